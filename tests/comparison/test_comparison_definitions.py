"""Parts of the comparison against their definitions: fast paths, tolerances, normal forms, and what belongs to one side."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import h5py
import msgspec
import numpy as np
import pytest
import xxhash
from comparison_traces import column_of, small_trace, with_column, with_columns, with_header, with_header_error
from stream_pairs import base_trace, rename_constants, store
from twins import select_resolvents

from kgverify import Equality, UserError, Verdict
from kgverify.comparison import comparable as sources
from kgverify.comparison.align import align_candidates
from kgverify.comparison.classify import Surroundings, describe_recorded, find_surroundings
from kgverify.comparison.comparable import Numbering, _blank, _renumber, compare_dialects, open_source, wants_content
from kgverify.comparison.compare import Comparer, Options, compare
from kgverify.comparison.equal_columns import has_equal_scores, has_equal_sums, has_same_bytes
from kgverify.comparison.inference import step_difference
from kgverify.comparison.inference.infer import BlockInference, ProgramInference, find_program, name_in_dialect
from kgverify.comparison.inference.origins import MOST_ATOMS, StepOrigins
from kgverify.comparison.inference.single_fault import ALONE
from kgverify.comparison.inference.step_difference import _is_list_limit, find_limits
from kgverify.comparison.modulo import DUPLICATES, NAMES, ORDER, normalise, normalise_steps, resolve_modulo
from kgverify.comparison.recorded import evidence
from kgverify.comparison.result import Level
from kgverify.comparison.step_view import UNNAMED, Names, StepReader, StepView
from kgverify.comparison.stored_columns import _PairedChecksums, _split_column
from kgverify.dialects import Dialect
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.program.limits import OURS, DeclaredLimits
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.program.program import Symbols
from kgverify.step.clauses import number_variables
from kgverify.trace.model.columns import (
    CandidateSet,
    expand_rows,
    no_stage_items,
    select_candidates,
    select_steps,
    starts_of,
)
from kgverify.trace.model.trace import Trace

VALUES = (-np.inf, -1.0, -1.0 - 2.0**-40, 0.0, 2.0**-30, 1.0, np.inf, np.nan)


def _is_close(x: float, y: float, tolerance: float) -> bool:
    return x == y or (np.isfinite(x) and np.isfinite(y) and abs(x - y) <= tolerance)


def test_scores_are_equal_within_the_tolerance_and_then_differ_in_bits_or_not():
    for kinds in product((np.float32, np.float64), repeat=2):
        coarse = min(kinds, key=lambda kind: np.dtype(kind).itemsize)
        for a, b, tolerance in product(VALUES, VALUES, (0.0, 2.0**-20, 2.0)):
            x, y = (np.array([0.5, value, 0.5], kind) for value, kind in zip((a, b), kinds, strict=True))
            is_equal = _is_close(float(x[1]), float(y[1]), tolerance)
            other_bits = is_equal and not np.array_equal(x.astype(coarse), y.astype(coarse))
            assert has_equal_scores(x, y, tolerance) == (is_equal, other_bits), (a, b, tolerance, kinds)
    assert has_equal_scores(np.zeros(2), np.zeros(3), 1.0) == (False, False)


def test_sums_are_equal_within_what_their_steps_allow():
    for a, b, tolerance, num in product((*VALUES, -1e6, -1e6 - 5e-4, 3e-10), VALUES, (0.0, 2.0**-32), (0, 1, 7)):
        size = abs(a) if np.isfinite(a) else 0.0
        wanted = _is_close(a, b, 2 * tolerance * max(1, num) + 1e-9 * max(1.0, size))
        args = np.array([0.0, a]), np.array([0.0, b]), np.array([1, num], np.uint32), tolerance
        assert has_equal_sums(*args) == wanted, (a, b, tolerance, num)


@pytest.mark.parametrize("delta", [5e-10, -5e-10, 2e-9])
def test_a_sum_is_judged_alike_beside_a_divergence_and_alone(delta: float):
    trace = small_trace()
    sums = column_of(trace, "candidates.log_probability").copy()
    sums[3] += delta
    alone = with_column(trace, "candidates.log_probability", sums)
    outcomes = column_of(trace, "candidates.outcome").copy()
    outcomes[0] = 3 - outcomes[0]
    beside = with_column(alone, "candidates.outcome", outcomes)
    found = [[each.candidate for each in compare(trace, each).divergences] for each in (alone, beside)]
    assert found == ([[], [0]] if abs(delta) < 1e-9 else [[3], [0, 3]])


@pytest.mark.parametrize("is_expected_longer", [True, False])
def test_of_two_candidates_only_the_one_that_the_other_side_has_is_paired(is_expected_longer: bool):
    several, one = (
        CandidateSet(np.zeros(num, np.int32), np.ones(num, np.int8), np.array([(0, 1, 2), (0, 1, 3)], np.int32)[-num:])
        for num in (2, 1)
    )
    found = align_candidates(several, one) if is_expected_longer else align_candidates(one, several)
    assert (found.expected.tolist(), found.actual.tolist()) == (([1], [0]) if is_expected_longer else ([0], [1]))
    assert (found.missing.tolist(), found.extra.tolist()) == (([0], []) if is_expected_longer else ([], [0]))


def test_a_trace_without_goals_counts_in_its_digests_what_it_knows():
    steps = small_trace().columns.steps
    trace = with_column(small_trace(), "steps.dropped_atoms", np.ones_like(steps.dropped_atoms))
    trace = with_column(trace, "steps.choice", (steps.num_resolvents - 1).astype(np.int32))
    lost = {"steps.dropped_atoms", "steps.dropped_resolvents"}
    bare = with_column(trace, "steps.dropped_atoms", np.zeros_like(trace.columns.steps.dropped_atoms))
    compact = with_header(replace(bare, fields=bare.fields - lost), level="compact")
    for pair in ((trace, compact), (compact, trace)):
        comparison = compare(*pair)
        assert not comparison.divergences
        assert lost <= {*comparison.coverage.not_compared}


def test_steps_before_a_step_are_those_of_its_candidate():
    reader = StepReader(small_trace().columns)
    first = reader.first_step[1]
    views = reader.read(first + 2), reader.read(first + 2)
    divergence = SimpleNamespace(candidate=1, step=2, field="resolvents.atoms", stage="prune")
    for own, has_history, num in ((views, True, 2), (views, False, 0), ((views[0], None), True, 0)):
        found = find_surroundings(divergence, reader, own, error_bound=0.0, has_history=has_history)
        assert found.earlier == tuple(reader.read(first + i) for i in range(num))


def test_equal_digests_of_other_names_are_no_agreement():
    trace = small_trace()
    of_candidates = set(column_of(trace, "candidates.atom")[:, 1:].ravel().tolist())
    others = sorted({*column_of(trace, "steps.goal_atoms")[:, 1:].ravel().tolist()} - of_candidates - {*range(-99, 0)})
    constants = [*trace.symbols.constants]
    constants[others[0]], constants[others[1]] = constants[others[1]], constants[others[0]]
    swapped = replace(trace, symbols=Symbols(trace.symbols.predicates, tuple(constants)), facts=None, fact_lines=None)
    compact = with_header(swapped, level="compact", program_sha256="")
    for pair in ((trace, compact), (compact, trace)):
        assert compare(*pair).verdict is Verdict.DIVERGE


def test_without_goals_other_clauses_are_more_than_another_order():
    trace = small_trace()
    counts, origin = trace.columns.steps.num_resolvents.astype(np.int64), column_of(trace, "resolvents.origin")
    # Two rules beside the one that is chosen.
    row = int(np.flatnonzero((counts > 2) & (trace.columns.steps.choice == 0))[0])
    first = int(starts_of(counts)[row]) + 1
    swapped, changed = origin.copy(), origin.copy()
    swapped[[first, first + 1]] = origin[[first + 1, first]]
    changed[first] = origin[first + 1]
    for origins, level in ((swapped, Level.ORDER), (changed, Level.RENAMING)):
        wrong = with_column(trace, "resolvents.origin", origins)
        digests = wrong.digests._replace(sequence=wrong.digests.sequence + (np.arange(len(counts)) == row))
        pair = (with_header(each, level="compact") for each in (trace, replace(wrong, digests=digests)))
        (found,) = compare(*pair).divergences
        assert found.level is level


def test_equal_ids_of_other_names_are_no_agreement():
    trace = replace(with_header(small_trace(), program_sha256=""), rankings=None)
    constants = list(trace.symbols.constants)
    atom = trace.columns.candidates.atom[0]
    first, second = int(atom[1]), int(atom[2])
    constants[first], constants[second] = constants[second], constants[first]
    renamed = replace(trace, symbols=Symbols(trace.symbols.predicates, tuple(constants)), facts=None, fact_lines=None)
    for pair in ((trace, renamed), (renamed, trace)):
        assert compare(*pair).verdict is Verdict.DIVERGE


def test_what_has_many_atoms_or_odd_ones_is_explained_by_what_is_nearest(monkeypatch: pytest.MonkeyPatch):
    trace = small_trace()
    goal = tuple(map(tuple, trace.columns.steps.goal_atoms[:1].tolist()))
    asked = []
    monkeypatch.setattr(StepOrigins, "_explain_otherwise", lambda self, atoms: asked.append(atoms) or [])
    monkeypatch.setattr(StepOrigins, "_find_nearest", lambda self, atoms: "nearest")
    step = ProgramInference(trace).origins.at(goal, None)
    named, odd = (0, 0, -1), (-1, 0, 0)
    for atoms in ((named,) * 2, (named,) * MOST_ATOMS, (named,) * (MOST_ATOMS + 1), (odd, named), (odd,) * 13):
        assert step.explain(atoms) == "nearest"
    assert asked == [(named,) * 2, (named,) * MOST_ATOMS]


def test_equal_names_of_other_ids_agree_with_facts_and_without():
    trace = with_header(base_trace(), program_sha256="")
    trace = with_columns(trace, trace.columns._replace(stages=no_stage_items()))
    rng = np.random.default_rng(0)
    renamed = rename_constants(trace, rng)
    for facts in (renamed.facts, None, np.zeros((0, 3), np.int32)):
        lines = None if facts is None or not len(facts) else renamed.fact_lines
        other = replace(renamed, facts=facts, fact_lines=lines)
        for name in ("resolvents.origin", "resolvents.origin_kind"):
            # As of an engine that does not know its clauses.
            other = with_column(other, name, np.zeros_like(column_of(other, name)))
            other = replace(other, fields=other.fields - {name})
        assert compare(trace, other).verdict is Verdict.AGREE


def test_variables_of_candidates_count_unless_names_are_benign():
    def with_atom(first: int, second: int) -> Trace:
        atoms = column_of(small_trace(), "candidates.atom").copy()
        atoms[:, 1:] = first, second
        return replace(with_column(small_trace(), "candidates.atom", atoms), rankings=None)

    pair = with_atom(-1, -2), with_atom(-2, -1)
    assert compare(*pair).divergences
    assert not compare(*pair, equality=Equality(modulo=["names"])).divergences


def test_dialects_differ_only_if_both_are_known():
    def of(dialect: Dialect | None) -> Trace:
        limits = DeclaredLimits(**msgspec.structs.asdict(small_trace().header.limits) | {"dialect": dialect})
        return replace(small_trace(), header=msgspec.structs.replace(small_trace().header, limits=limits))

    own = Dialect(memory="none")
    for left, right in product((None, OURS, own), repeat=2):
        assert bool(compare_dialects(of(left), of(right))) == (None not in (left, right) and left != right)


def test_stages_keep_their_names_in_no_known_dialect_and_in_the_default_one():
    choices = column_of(small_trace(), "steps.choice").copy()
    choices[0] += 1
    comparer = Comparer(small_trace(), with_column(small_trace(), "steps.choice", choices), Options(explains=True))
    comparison = comparer.compare()
    divergences = tuple(msgspec.structs.replace(each, stage="prune") for each in comparison.divergences)
    for dialect in (None, OURS):
        assert name_in_dialect(divergences, comparer.findings, dialect) == (divergences, comparer.findings)
    assert name_in_dialect(divergences, comparer.findings, Dialect(filters=("close",)))[0] != divergences


@pytest.mark.parametrize(
    ("filters", "hidden"),
    [
        (("prune", "revisit", "max_atoms"), None),
        (("prune", "max_atoms", "revisit"), "max_atoms"),
        (("prune", "duplicates", "revisit"), "duplicates"),
        (("prune", "revisit", "duplicates"), "duplicates"),
    ],
)
def test_a_filter_that_shows_no_output_hides_the_stage_of_the_others(filters: Any, hidden: str | None):
    choices = column_of(small_trace(), "steps.choice") + 1
    comparer = Comparer(
        small_trace(), with_column(small_trace(), "steps.choice", choices), Options(kept=1, explains=True)
    )
    (found,) = comparer.compare().divergences
    shown = msgspec.structs.replace(found, stage="prune", field="stage.prune")
    (named,), (finding,) = name_in_dialect((shown,), comparer.findings, Dialect(filters=filters))
    assert named.stage == ("prune" if hidden is None else "unknown")
    assert finding.evidence.endswith(f"its filter {hidden} shows no output of its own") == (hidden is not None)


def _repeated(trace: Trace, row: int, times: int) -> Trace:
    """Return a trace in which the first resolvent of a step is listed more often, before the others."""
    columns = trace.columns
    starts = starts_of(columns.steps.num_resolvents)
    rows = np.insert(np.arange(starts[-1]), starts[row], np.full(times, starts[row]))
    atoms = columns.resolvents.atoms[expand_rows(starts_of(columns.resolvents.num_atoms), rows)]
    resolvents = type(columns.resolvents)(*(column[rows] for column in columns.resolvents[:-1]), atoms)
    counts, choice = columns.steps.num_resolvents.copy(), columns.steps.choice.copy()
    counts[row] += times
    choice[row] += times
    return with_columns(
        trace,
        columns._replace(steps=columns.steps._replace(num_resolvents=counts, choice=choice), resolvents=resolvents),
    )


def _row_of_many(trace: Trace) -> int:
    return int(np.argmax(trace.columns.steps.num_resolvents))


@pytest.mark.parametrize("kinds", [{ORDER}, {DUPLICATES}, {ORDER, DUPLICATES}])
def test_a_normal_form_chooses_what_was_chosen(kinds: set[str]):
    trace = small_trace()
    row = _row_of_many(trace)
    columns = select_steps(_repeated(trace, row, 5).columns, np.array([row]))
    row = 0
    starts, ends = starts_of(columns.steps.num_resolvents), starts_of(columns.resolvents.num_atoms)
    for choice in range(int(columns.steps.num_resolvents[row])):
        choices = columns.steps.choice.copy()
        choices[row] = choice
        normal = normalise_steps(columns._replace(steps=columns.steps._replace(choice=choices)), frozenset(kinds))
        own, own_ends = starts_of(normal.steps.num_resolvents), starts_of(normal.resolvents.num_atoms)
        at, found = starts[row] + choice, own[row] + normal.steps.choice[row]
        wanted = columns.resolvents.atoms[ends[at] : ends[at + 1]].tolist()
        assert normal.resolvents.atoms[own_ends[found] : own_ends[found + 1]].tolist() == wanted


def test_sums_that_lack_scores_stay_in_a_normal_form():
    columns = _repeated(small_trace(), _row_of_many(small_trace()), 2).columns
    for has_scores in (False, True):
        normal = normalise(columns, frozenset([DUPLICATES]), has_scores=has_scores)
        is_same = np.array_equal(normal.candidates.log_probability, columns.candidates.log_probability)
        assert is_same == (not has_scores)


def test_a_sum_is_compared_where_the_side_with_scores_repeats_resolvents():
    trace = replace(small_trace(), rankings=None)
    row = _row_of_many(trace)
    repeated = _repeated(trace, row, 2)
    sums = normalise(repeated.columns, frozenset([DUPLICATES])).candidates.log_probability
    bare = replace(
        with_column(trace, "resolvents.score", np.zeros_like(column_of(trace, "resolvents.score"))),
        fields=trace.fields - {"resolvents.score"},
    )
    right = with_column(bare, "candidates.log_probability", sums)
    wrong = with_column(bare, "candidates.log_probability", sums - 0.5)
    assert [compare(repeated, each, equality=Equality(modulo=[DUPLICATES])).verdict for each in (right, wrong)] == [
        Verdict.AGREE,
        Verdict.DIVERGE,
    ]


def _other(trace: Trace) -> Trace:
    return with_header(trace, engine={"mode": "other"}, recording="")


def _reasons(expected: Any, actual: Any) -> list[str]:
    return evidence._judge_programs(Comparer(expected, actual))


def test_rules_are_compared_where_both_traces_hold_them():
    trace = with_header(small_trace(), program_sha256="")
    rules = trace.rules
    assert rules
    for left, right in product((None, rules, rules[:-1]), repeat=2):
        differ = None not in (left, right) and left != right
        found = _reasons(replace(trace, rules=left), replace(trace, rules=right))
        assert bool(found) == differ


@pytest.mark.parametrize(("num", "repeated", "is_reason"), [(3, 1, False), (4, 2, True), (6, 2, False), (2, 1, True)])
def test_half_of_the_candidates_repeated_are_a_reason_and_fewer_a_note(num: int, repeated: int, is_reason: bool):
    rows = np.array([*range(num - repeated), *range(repeated)])
    trace = replace(with_columns(small_trace(), select_candidates(small_trace().columns, rows)), rankings=None)
    reasons, notes = evidence._judge_repeated(Comparer(trace, trace))
    text = [f"{repeated} of {num} candidates are further recordings of others among them"]
    assert (reasons, notes) == ((text, []) if is_reason else ([], text))


@pytest.mark.parametrize("largest", [0.25, 3.0])
def test_a_bound_on_errors_is_explained_by_the_largest_score(largest: float):
    trace = small_trace()
    trace = with_column(trace, "resolvents.score", np.full_like(column_of(trace, "resolvents.score"), -largest))
    assert evidence._largest_score(open_source(trace)) == largest
    policy = with_header(trace, policy={"name": "two_tower"}).header.policy
    bound = 1.5 * evidence.explain_bound(policy, "float32", 1.0)
    trace = with_header(trace, policy={"name": "two_tower"}, engine={"score_error": bound, "precision": "float32"})
    assert bool(evidence._judge_score_errors(Comparer(trace, _other(trace)))) == (largest < 1.5)


def test_copies_without_an_id_of_their_recording_are_noted(tmp_path):
    trace = with_header(small_trace(), recording="")
    changed = with_column(trace, "steps.depth", column_of(trace, "steps.depth") + np.uint8(1))
    for shard_steps in (1 << 40, 60):
        paths = [
            store(each, tmp_path / f"{shard_steps}-{i}", shard_steps=shard_steps)
            for i, each in enumerate((trace, trace, changed))
        ]
        copy = tmp_path / f"{shard_steps}-copy"
        (shutil.copytree if paths[0].is_dir() else shutil.copyfile)(paths[0], copy)
        comparers = [Comparer(paths[0], other) for other in (copy, changed, paths[2], trace)]
        assert [bool(evidence._note_copy(each.recorded)) for each in comparers] == [True, False, False, False]


def test_a_trace_on_disk_is_verified_once_its_content_was(tmp_path):
    source = open_source(store(small_trace(), tmp_path / "a"))
    assert not source.is_verified
    for content in (False, True):
        source.verify(content=content)
        assert source.is_verified == content


def test_a_candidate_without_steps_has_no_first_digest():
    columns = small_trace().columns
    num_steps = columns.candidates.num_steps.copy()
    left = select_steps(columns, np.arange(int(num_steps[0]), int(num_steps.sum())))
    num_steps[0] = 0
    idle = with_columns(small_trace(), left._replace(candidates=columns.candidates._replace(num_steps=num_steps)))
    found = evidence._first_digests(open_source(idle), np.arange(len(num_steps)))
    assert found is not None
    assert found[:3].tolist() == [0, *idle.digests.sequence[[0, int(num_steps[1])]].tolist()]


def test_ends_are_checked_in_every_file_of_a_trace(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evidence, "_WINDOWS", 1)
    monkeypatch.setattr(evidence, "_WINDOW_STEPS", 1)
    outcomes = column_of(small_trace(), "candidates.outcome").copy()
    last = len(outcomes) - 1
    outcomes[last] = 3 - outcomes[last]
    trace = with_column(small_trace(), "candidates.outcome", outcomes)
    path = store(trace, tmp_path / "shards", shard_steps=20)
    comparer = Comparer(path, store(_other(trace), tmp_path / "other"), Options(verifies_content=False))
    texts, _ = evidence._check_sources(comparer)
    assert len(comparer.sources[0].trace.files) > 2
    assert texts
    assert all(f"(first: candidate {last})" in text for text in texts), texts


def test_the_digests_of_goals_are_verified_where_the_other_trace_keeps_none(monkeypatch: pytest.MonkeyPatch):
    steps = small_trace()
    bare = with_header(steps, level="digests")
    few = tuple(open_source(each) for each in (steps, bare))
    assert wants_content(few, None) == [True, True]
    monkeypatch.setattr(sources, "VERIFIED_STEPS", 1)
    for pair, each in (
        ((steps, steps), [False, False]),
        ((steps, bare), [True, False]),
        ((bare, steps), [False, True]),
    ):
        assert wants_content(tuple(map(open_source, pair)), None) == each
        assert wants_content(tuple(map(open_source, pair)), False) == each


class _File:
    """A file of one column, which requires the right checksum and counts how often it was checked."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.num_checked = values, 0
        self.stored = {"steps/choice": self}
        self.shape = values.shape

    def length(self, name: str) -> int:
        return len(self.values)

    def dtype(self, name: str) -> np.dtype:
        return self.values.dtype

    def check_checksum(self, found: int) -> None:
        assert found == xxhash.xxh3_64_intdigest(self.values.tobytes())
        self.num_checked += 1


def _divisions(values: np.ndarray) -> Iterator[SimpleNamespace]:
    for cuts in product((False, True), repeat=len(values) - 1):
        parts = np.split(values, [i for i, is_cut in enumerate(cuts, 1) if is_cut])
        yield SimpleNamespace(files=[_File(part) for part in parts])


@pytest.mark.parametrize("piece_bytes", [1, 12, 400])
@pytest.mark.parametrize("is_same", [True, False])
def test_the_checksums_of_files_are_verified_however_two_traces_are_divided(piece_bytes: int, is_same: bool):
    values = np.arange(5, dtype=np.int32)
    others = values if is_same else np.where(values == 3, 9, values).astype(np.int32)
    for left, right in product(_divisions(values), _divisions(others)):
        checksums = _PairedChecksums("steps/choice")
        pieces = list(_split_column(left, right, "steps/choice", piece_bytes))
        if len(left.files) == len(right.files) == 1:
            assert len(pieces) == -(-5 // max(1, piece_bytes // 4))
        for begin, end, a, b in pieces:
            x, y = (file.values[at : at + end - begin] for file, at in (a, b))
            checksums.add(a, b, x, y, np.array_equal(x, y))
        assert all(file.num_checked == 1 for file in (*left.files, *right.files))
        for file in (*left.files, *right.files):
            file.num_checked = 0


def test_what_differs_on_disk_is_found_where_one_trace_counts_more_columns_in_its_digests(tmp_path):
    trace = replace(base_trace(), rankings=None)
    lost = {"steps.dropped_atoms", "steps.dropped_resolvents"}
    fewer = trace
    for name in lost:
        fewer = with_column(fewer, name, np.zeros_like(column_of(fewer, name)))
    fewer = replace(fewer, fields=fewer.fields - lost)
    choices = column_of(fewer, "steps.choice").copy()
    choices[5] += 1
    for number, (other, verdict) in enumerate(
        ((fewer, Verdict.AGREE), (with_column(fewer, "steps.choice", choices), Verdict.DIVERGE))
    ):
        pair = store(trace, tmp_path / f"{number}a"), store(other, tmp_path / f"{number}b")
        for verifies_content in (True, False):
            for both in (pair, pair[::-1]):
                assert Comparer(*both, Options(verifies_content=verifies_content)).compare().verdict is verdict


def test_names_are_benign_where_an_engine_numbers_variables_its_own_way():
    header = small_trace().header
    own = with_header(small_trace(), engine={"variables": "own"}).header
    assert resolve_modulo(None, header, header) == (frozenset(), ())
    for pair in ((own, header), (header, own), (own, own)):
        kinds, notes = resolve_modulo(None, *pair)
        assert kinds == {NAMES}
        assert len(notes) == 1
        assert resolve_modulo([ORDER], *pair) == ({ORDER}, ())


def test_a_recorded_step_shows_what_is_missing_and_what_is_extra():
    trace = small_trace()
    row = int(starts_of(trace.columns.resolvents.num_atoms)[1])
    atoms = column_of(trace, "resolvents.atoms").copy()
    atoms[row, 2] += 1
    wrong = with_column(trace, "resolvents.atoms", atoms)
    steps = [StepReader(each.columns).read(0) for each in (trace, wrong)]
    around = Surroundings(steps[0], steps[1], None, (), frozenset(), 0.0)
    (divergence, *_) = compare(trace, wrong).divergences
    divergence = msgspec.structs.replace(divergence, field="resolvents.atoms")
    assert describe_recorded(divergence, around) == "1 resolvent missing, 1 extra, in the recorded step"
    scores = msgspec.structs.replace(divergence, field="resolvents.score", stage="score")
    assert "missing" not in describe_recorded(scores, around)


def test_the_longest_resolvent_is_a_goal():
    resolvents = small_trace().columns.resolvents
    found = find_limits(small_trace(), lambda candidate, step: None)
    assert found.longest == int(resolvents.num_atoms[resolvents.kind == GoalKind.GOAL].max())
    assert found.most == int(small_trace().columns.steps.num_resolvents.max())


@pytest.mark.parametrize("is_shortened", [True, False])
def test_a_limit_of_atoms_is_seen_where_a_rule_makes_longer_resolvents_elsewhere(is_shortened: bool):
    resolvents = small_trace().columns.resolvents
    longest = int(resolvents.num_atoms[resolvents.kind == GoalKind.GOAL].max())
    by_rule = ((int(Origin.RULE), 0),)

    def find_origins(candidate: int, step: StepView) -> Any:
        """The first rule makes what the step has, and perhaps a resolvent that it lacks."""
        made = {number_variables(iter(r.atoms)): by_rule for r in step.resolvents}
        return SimpleNamespace(made=made | {((0, -1, -2),) * (longest + is_shortened): by_rule}, count_made=len)

    trace = with_header(small_trace(), limits={"max_atoms": longest + 5})
    assert find_limits(trace, find_origins).atoms == {longest + 5} | ({longest} if is_shortened else set())


def test_an_agreement_beside_near_ties_keeps_what_each_side_made_behind_them():
    expected = with_header_error(small_trace(), 1e9)
    columns = expected.columns
    counts, num_steps = columns.steps.num_resolvents.astype(np.int64), columns.candidates.num_steps
    row = int(np.flatnonzero((counts[:-1] > 1) & (columns.steps.depth[1:] > 0) & (counts[1:] > 1))[0])
    choice, score = columns.steps.choice.copy(), columns.resolvents.score.copy()
    choice[row] = (choice[row] + 1) % counts[row]
    score[starts_of(counts)[row] + choice[row]] += 1000
    columns = columns._replace(
        steps=columns.steps._replace(choice=choice), resolvents=columns.resolvents._replace(score=score)
    )
    rows = np.delete(np.arange(len(score)), starts_of(counts)[row + 2] - 1)
    counts[row + 1] -= 1
    columns = select_resolvents(columns, rows, counts)
    comparer = Comparer(
        expected, with_columns(expected, columns), Options(equality=Equality(modulo=frozenset([DUPLICATES])))
    )
    comparison = comparer.compare()
    assert (comparison.verdict, len(comparison.near_ties)) == (Verdict.AGREE, 1)
    pair = comparer.load_pairs(np.arange(len(num_steps)))
    made = [(len(each.kind), len(each.origin_kind), len(each.origin)) for each in (t.columns.resolvents for t in pair)]
    assert made == [(num,) * 3 for num in (len(score), len(score) - 1)]


def test_a_stage_is_inferred_only_where_that_is_asked_for():
    trace = with_columns(small_trace(), small_trace().columns._replace(stages=no_stage_items()))
    counts = trace.columns.steps.num_resolvents.astype(np.int64)
    row = int(np.flatnonzero(counts > 1)[0])
    rows = np.delete(np.arange(len(trace.columns.resolvents.kind)), starts_of(counts)[row + 1] - 1)
    counts[row] -= 1
    fewer = with_columns(trace, select_resolvents(trace.columns, rows, counts))
    found = [compare(trace, fewer, explains=explains).divergences[0] for explains in (False, True)]
    assert [bool(each.evidence) for each in found] == [False, True]


def test_an_empty_list_without_origins_is_explained_by_contents():
    trace = with_columns(small_trace(), small_trace().columns._replace(stages=no_stage_items()))
    trace = replace(trace, fields=trace.fields - {"resolvents.origin_kind", "resolvents.origin"})
    resolvents, counts = trace.columns.resolvents, trace.columns.steps.num_resolvents.astype(np.int64)
    starts = starts_of(counts)
    is_goal = resolvents.kind == GoalKind.GOAL
    has_goals = np.array([is_goal[begin:end].sum() > 1 for begin, end in pairwise(starts)])
    is_proof = resolvents.kind[starts[:-1]] == GoalKind.TRUE
    for row, kind_of in ((np.flatnonzero(has_goals)[0], "missing"), (np.flatnonzero(is_proof)[0], "proof_lost")):
        begin, end = starts[row], starts[row + 1]
        fewer = counts.copy()
        fewer[row] = 1
        kept = np.delete(np.arange(starts[-1]), slice(begin + 1, end))
        columns = select_resolvents(trace.columns, kept, fewer)
        made = columns.resolvents
        kind, num_atoms = made.kind.copy(), made.num_atoms.copy()
        atoms = np.delete(made.atoms, slice(*starts_of(num_atoms)[begin : begin + 2]), axis=0)
        kind[begin], num_atoms[begin] = GoalKind.FALSE, 0
        ended = columns._replace(resolvents=made._replace(kind=kind, num_atoms=num_atoms, atoms=atoms))
        found = compare(trace, with_columns(trace, ended)).divergences[0]
        assert (found.stage.startswith("match_"), found.kind.value) == (True, kind_of), found
        assert not found.evidence.endswith(ALONE)


def test_values_are_verified_only_where_that_is_asked_for(tmp_path):
    path = store(small_trace(), tmp_path / "a")
    with h5py.File(path, "r+") as file:
        file["steps/choice"][3] += 1
    open_source(path).verify(content=False)
    with pytest.raises(UserError, match="steps/choice"):
        open_source(path).verify(content=True)


def test_a_program_has_its_facts_and_its_rules():
    trace = small_trace()
    without_facts, without_rules = replace(trace, facts=None), replace(trace, rules=None)
    assert trace.header.clauses.rules
    assert find_program((without_facts, without_rules)) is None
    assert find_program((without_facts, without_rules, trace)) is trace
    clauses = msgspec.structs.replace(trace.header.clauses, rules=())
    facts_alone = replace(without_rules, header=msgspec.structs.replace(trace.header, clauses=clauses))
    assert find_program((without_facts, facts_alone)) is facts_alone


def test_the_same_bytes_are_those_of_all_elements_in_order():
    numbers = np.arange(6)
    assert has_same_bytes(numbers[::2], np.array([0, 2, 4]))
    assert has_same_bytes(numbers, numbers.copy())
    for other in (numbers[:5], numbers[::-1], numbers.reshape(2, 3), numbers.astype(np.int32)):
        assert not has_same_bytes(numbers, other)
        assert not has_same_bytes(other, numbers)


def test_names_that_only_the_other_trace_has_get_further_numbers_and_ids_without_a_name_stay():
    values, ids = np.array([-2, 0, 1, 2, 3, 4, 9], np.int32), np.array([7, 5], np.int32)
    converted = _renumber(values, ids, num_names=4)
    assert converted.tolist() == [-2, 7, 5, 2 | UNNAMED, 3 | UNNAMED, 4, 9]


def test_facts_in_another_order_do_not_forbid_digests_of_the_same_names():
    trace = with_header(small_trace(), level="digests")
    assert trace.facts is not None
    for other, is_comparable in (
        (replace(trace, facts=trace.facts[::-1]), True),
        (rename_constants(trace, np.random.default_rng(0)), False),
    ):
        assert (Numbering(trace, other).reasons == ()) == is_comparable


def test_a_trace_without_atoms_has_none_of_a_trace_with_atoms():
    columns = _blank(small_trace(), ("steps.goal_atoms", "resolvents.atoms"), removes_atoms=True)
    assert (columns.steps.goal_atoms.shape, columns.resolvents.atoms.shape) == ((0, 3), (0, 3))


@pytest.mark.parametrize("name", [None, "sequence", "multiset"])
def test_every_stored_digest_of_equal_steps_must_be_equal(name: str | None):
    columns, rows = small_trace().columns, np.arange(2)
    stored = [{each: np.zeros(3, np.uint64) for each in ("sequence", "multiset")} for _ in range(2)]
    if name is not None:
        stored[1][name][1] = 1
    sources = [SimpleNamespace(stored_digests=lambda _, own=own: own) for own in stored]
    comparer = SimpleNamespace(
        sources=sources,
        _numbering=SimpleNamespace(is_same=True),
        _ignored=frozenset(),
        _pair=SimpleNamespace(schema=KNOWLEDGE_GRAPH),
        score_tolerance=0.0,
        has_like_digests=True,
    )
    assert Comparer.agrees(comparer, (columns, columns), rows, rows) == (name is None, False)


def test_a_step_without_origins_is_explained_by_the_earlier_steps_of_its_candidate():
    trace, asked = small_trace(), []

    def find_earlier(*place: int) -> tuple[StepView, ...]:
        asked.append(place)
        return ()

    program = SimpleNamespace(origins=None, at=lambda goal, atom: None)
    options = {"has_origins": False, "has_counts": True}
    inference = BlockInference(program, (trace, trace), Names(trace), find_earlier, **options)
    reader = StepReader(trace.columns)
    first = reader.read(int(np.argmax(trace.columns.steps.num_resolvents > 1)))
    assert inference.explain(1, 2, first, first._replace(resolvents=first.resolvents[:1])) is not None
    assert set(asked) == {(1, 2)}


def test_a_limit_of_lists_is_seen_in_several_cut_lists_with_other_numbers_by_rules():
    rule = {((0, -1, -2),): ((int(Origin.RULE), 0),)}
    resolvents = [SimpleNamespace(atoms=((0, -1, -2),)), SimpleNamespace(atoms=((1, -1, -2),))]

    def cut(num_by_rules: int, num_made: int = 5) -> Any:
        step = SimpleNamespace(resolvents=resolvents[:1] * num_by_rules + resolvents[1:] * (4 - num_by_rules))
        return step, SimpleNamespace(made=rule, count_made=lambda _: num_made)

    assert _is_list_limit([cut(1), cut(1), cut(2)], 4)
    assert not _is_list_limit([cut(1), cut(2)], 4), "two lists are too few"
    assert not _is_list_limit([cut(1), cut(1), cut(1)], 4), "a cap on the rules does the same"
    assert not _is_list_limit([cut(1), cut(1), cut(2, num_made=4)], 4), "the last list is whole"


def test_a_limit_is_looked_for_in_a_bounded_number_of_steps(monkeypatch):
    monkeypatch.setattr(step_difference, "MOST_SAMPLED", 2)
    asked = []
    find_limits(small_trace(), lambda candidate, step: asked.append(candidate))
    assert 2 <= len(asked) <= 4


def test_unpaired_candidates_count_among_the_divergences_that_are_listed():
    trace = small_trace()
    fewer = with_columns(trace, select_candidates(trace.columns, np.arange(1, len(trace.columns.candidates.query))))
    choices = column_of(fewer, "steps.choice") + 1
    comparer = Comparer(trace, with_column(fewer, "steps.choice", choices), Options(kept=1))
    assert len(comparer.compare().divergences) == 1
