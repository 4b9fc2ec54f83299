"""Two recorded traces agree only where their agreement is evidence: each reason to doubt it is named."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison_traces import (
    ORIGINS,
    TRACES,
    as_other,
    column_of,
    expand_rows,
    explained_error,
    judge,
    renumbered,
    shallow_trace,
    small_trace,
    starts_of,
    with_candidates,
    with_column,
    with_columns,
    with_element,
    with_header,
    with_rankings,
    with_resolvents,
    with_score_error,
    without_columns,
)
from invoked_commands import invoke
from trace_changes import store

import kgverify as kv
from kgverify import Candidates, Limits, Trace, Verdict

OPEN, PROVED, DEPTH_LIMIT = 0, 1, 3


def assert_withheld(expected: Any, actual: Any, reason: str, **options: Any) -> None:
    report = judge(expected, actual, **options)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert any(reason in each for each in report.reasons), report.reasons


@pytest.mark.parametrize("shard_steps", [1 << 40, 60], ids=["file", "shards"])
def test_a_recording_does_not_agree_with_itself(tmp_path: Path, shard_steps: int):
    first = store(small_trace(), tmp_path / "first", shard_steps=shard_steps)
    (tmp_path / "link").symlink_to(first)
    (shutil.copytree if first.is_dir() else shutil.copy)(first, tmp_path / "copy")
    for name in ("first", "link", "copy"):
        assert_withheld(first, tmp_path / name, "the same recording twice")
    if first.is_file():
        os.link(first, tmp_path / "hard")
        assert_withheld(tmp_path / "hard", first, "the same recording twice")
    again = store(small_trace(), tmp_path / "again:1", shard_steps=shard_steps)
    assert judge(str(first), str(again)).verdict is Verdict.AGREE
    assert judge(first, store(as_other(small_trace()), tmp_path / "other")).verdict is Verdict.AGREE


def test_one_recording_of_two_engines_is_no_copy():
    one = with_header(small_trace(), recording="id")
    assert kv.compare(one, with_header(one, engine={"mode": "other"})).verdict is Verdict.AGREE
    for same in (one, small_trace()):
        assert any("the same recording twice" in reason for reason in kv.compare(same, same).reasons)


def test_copies_without_an_id_of_their_recording_are_noted(tmp_path: Path):
    golden = TRACES / "countries-reference.h5"
    shutil.copy(golden, tmp_path / "copy.h5")
    for other, is_copy in ((tmp_path / "copy.h5", True), (TRACES / "countries-compiled.h5", False)):
        notes = kv.compare(golden, other).notes
        assert any("the traces hold the same bytes" in note for note in notes) is is_copy


def last_steps(trace: Trace) -> np.ndarray:
    return starts_of(trace.columns.candidates.num_steps)[1:] - 1


def with_choice(trace: Trace) -> Trace:
    """A copy in which a step that is not the last takes another of its resolvents than the next step's goal."""
    steps = trace.columns.steps
    row = next(i for i in range(len(steps.depth)) if steps.num_resolvents[i] > 1 and i not in last_steps(trace))
    return with_element(trace, "steps.choice", row, lambda choice: (choice + 1) % int(steps.num_resolvents[row]))


def last_step_of_three(trace: Trace) -> int:
    return int(last_steps(trace)[int(np.argmax(trace.columns.candidates.num_steps >= 3))])


def end_open(trace: Trace) -> Trace:
    candidate = int(np.argmax(trace.columns.candidates.num_steps >= 3))
    ended = with_element(trace, "candidates.outcome", candidate, lambda _: OPEN)
    return with_element(ended, "steps.outcome", last_step_of_three(trace), lambda _: OPEN)


def with_bare_candidate(trace: Trace, outcome: int) -> Trace:
    """A copy with one more candidate, that has no step."""
    rows = trace.columns.candidates
    bare = rows._replace(num_steps=rows.num_steps * 0, outcome=np.full_like(rows.outcome, outcome))
    more = Candidates(*(np.concatenate((own, new[-1:])) for own, new in zip(rows, bare, strict=True)))
    return replace(trace, columns=trace.columns._replace(candidates=more))


def invert(value: Any) -> Any:
    return 3 - value


CONTRADICTIONS = [
    ("end OPEN", end_open),
    ("end OPEN", lambda t: with_bare_candidate(t, OPEN)),
    ("PROVED or DEPTH_LIMIT without a step", lambda t: with_bare_candidate(t, PROVED)),
    ("PROVED or DEPTH_LIMIT without a step", lambda t: with_bare_candidate(t, DEPTH_LIMIT)),
    ("not that of their last step", lambda t: with_element(t, "candidates.outcome", 3, invert)),
    (
        "ended their derivation, and others follow",
        lambda t: with_element(t, "steps.outcome", last_step_of_three(t) - 1, lambda _: PROVED),
    ),
    (
        "does not follow the step before",
        lambda t: with_element(t, "steps.depth", last_step_of_three(t), lambda depth: depth - 1),
    ),
    ("deeper than max_depth", lambda t: with_header(t, limits=Limits(max_depth=3))),
    ("deeper than max_depth", lambda t: with_header(t, limits=Limits(max_depth=int(t.columns.steps.depth.max())))),
    ("DEPTH_LIMIT, or do not", lambda t: with_header(t, limits=Limits(max_depth=19))),
    ("more than max_atoms 1", lambda t: with_header(t, limits=Limits(max_atoms=1))),
    ("more than max_resolvents 2", lambda t: with_header(t, limits=Limits(max_resolvents=2))),
    ("not one of their resolvents", lambda t: with_element(t, "steps.choice", 2, lambda _: 900)),
    (
        "the resolvent they chose does not give",
        lambda t: with_element(t, "steps.outcome", int(last_steps(t)[0]), invert),
    ),
    ("begin with a goal that the step before did not choose", with_choice),
    ("another goal than the atom to prove", lambda t: with_element(t, "candidates.atom", (2, 1), lambda a: a + 1)),
    ("marked as limited", lambda t: with_element(t, "candidates.is_limited", 0, lambda flag: 1 - flag)),
    (
        "log-probability that is not that of their choices",
        lambda t: with_element(t, "candidates.log_probability", 2, lambda value: value - 0.01),
    ),
]


@pytest.mark.parametrize(("text", "change"), CONTRADICTIONS)
def test_traces_that_contradict_themselves_alike_do_not_agree(text: str, change: Any, tmp_path: Path):
    wrong = change(shallow_trace())
    assert_withheld(wrong, wrong, text)
    # The check of a trace names the same.
    told = invoke(["trace", "check", store(wrong, tmp_path / "wrong.h5")]).output
    assert text in " ".join(told.split())


def test_a_contradiction_of_one_side_leaves_a_divergence():
    report = judge(small_trace(), with_choice(small_trace()))
    assert report.verdict is Verdict.DIVERGE
    assert any("the actual trace contradicts itself" in note for note in report.notes)


def test_rankings_of_more_candidates_than_there_are_contradict_them():
    wrong = with_rankings(small_trace(), num_ranked=small_trace().rankings.num_ranked + np.uint32(9))
    assert_withheld(wrong, wrong, "rankings are of more candidates than the trace has")


@pytest.mark.parametrize(("num", "repeated", "is_reason"), [(3, 1, False), (4, 2, True), (6, 2, False), (6, 5, True)])
def test_half_of_the_candidates_repeated_are_a_reason_and_fewer_a_note(num: int, repeated: int, is_reason: bool):
    rows = [*range(num - repeated), *[0] * repeated]
    trace = replace(with_candidates(shallow_trace(), rows), rankings=None)
    report = judge(trace, trace)
    text = f"{repeated} of {num} candidates are further recordings of others among them"
    assert any(text in each for each in (report.reasons if is_reason else report.notes))
    assert report.verdict is (Verdict.INCONCLUSIVE if is_reason else Verdict.AGREE)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("policy", ["shortest", "theirs"])
def test_an_error_of_scores_that_no_arithmetic_explains_is_not_accepted(policy: str, precision: str):
    trace = with_score_error(shallow_trace(), 1e6)
    trace = with_header(trace, engine={"precision": precision}, policy={"name": policy})
    wrong = with_element(trace, "resolvents.score", 7, lambda score: score + 100)
    assert_withheld(trace, wrong, "no arithmetic of precision")
    # What a user accepts is a decision of the user's.
    accepted = judge(trace, wrong, score_error=1e6)
    assert not any("arithmetic" in reason for reason in accepted.reasons)


@pytest.mark.parametrize(("score", "is_explained"), [(-0.25, False), (-3.0, True), (-np.inf, False)])
def test_a_bound_on_errors_is_explained_by_the_largest_score(score: float, is_explained: bool):
    scores = np.full_like(column_of(shallow_trace(), "resolvents.score"), score)
    trace = with_column(shallow_trace(), "resolvents.score", scores)
    trace = with_header(trace, engine={"precision": "float32"}, policy={"name": "two_tower"})
    # Half as much again as rounding explains for scores of one nat.
    trace = with_score_error(trace, 1.5 * explained_error(trace, "float32"))
    found = any("no arithmetic of precision" in reason for reason in judge(trace, trace).reasons)
    assert found is not is_explained


def test_the_bounds_of_a_sound_network_are_explained():
    trace = with_header(small_trace(), policy={"name": "two_tower"})
    # Those of a network with 8 blocks of 1,024 neurons.
    for precision, bound in {"float64": 1e-9, "float32": 0.0077, "bf16x3": 0.0077, "tf32": 0.11, "bf16": 15.0}.items():
        assert bound <= explained_error(trace, precision)


def test_programs_of_unknown_hash_are_compared_by_their_facts_and_rules():
    trace = with_header(shallow_trace(), program_sha256="")
    facts = trace.facts.copy()
    facts[0, 2] += 1
    assert_withheld(trace, replace(trace, facts=facts), "the programs differ in 2 facts")
    other = with_element(replace(trace, facts=facts), "candidates.outcome", 0, lambda outcome: 3 - outcome)
    for actual, has_note in ((other, False), (replace(other, rules=None), True)):
        notes = judge(trace, actual).notes
        assert "the programs differ in 2 facts [KG206]" in notes
        assert any("the program" in each for each in notes if each.startswith("not compared")) is has_note
    assert_withheld(trace, replace(trace, rules=trace.rules[:-1]), "rules that the traces hold are not the same")
    backwards = renumbered(trace)
    for same in (backwards, replace(backwards, rules=None), replace(trace, rules=None)):
        assert judge(trace, same).verdict is Verdict.AGREE
    changed = replace(backwards, rules=(backwards.rules[1], backwards.rules[0], *backwards.rules[2:]))
    assert_withheld(trace, changed, "rules that the traces hold are not the same")


@pytest.mark.parametrize("is_stored", [False, True])
def test_outputs_of_stages_are_compared_where_the_steps_agree(tmp_path: Path, is_stored: bool):
    trace = with_header(small_trace(), level="deep")
    number = trace.columns.stages.number.copy()
    number[np.flatnonzero(trace.columns.stages.stage == 10)[4]] += 0.5
    spoiled = replace(trace, columns=trace.columns._replace(stages=trace.columns.stages._replace(number=number)))
    pair: list[Any] = [trace, *map(as_other, (spoiled, trace, with_header(trace, level="steps")))]
    if is_stored:
        pair = [store(each, tmp_path / str(i), level=each.header.level) for i, each in enumerate(pair)]
    assert_withheld(pair[0], pair[1], "`score`")
    assert judge(pair[0], pair[2]).verdict is Verdict.AGREE
    report = judge(pair[0], pair[3])
    assert report.verdict is Verdict.AGREE
    assert "the outputs of the stages were not compared: the actual trace has none" in report.notes


def test_a_large_trace_is_checked_in_samples_and_at_the_ends_of_every_file(tmp_path: Path, monkeypatch: Any):
    for name, value in (("_WINDOWS", 1), ("_WINDOW_STEPS", 1), ("_WINDOW_CANDIDATES", 3)):
        monkeypatch.setattr(f"kgverify.comparison.recorded.evidence.{name}", value)
    monkeypatch.setattr("kgverify.comparison.comparable.VERIFIED_STEPS", 1)
    sound = store(small_trace(), tmp_path / "sound")
    for candidate in (9, 21):
        wrong = with_element(small_trace(), "candidates.outcome", candidate, invert)
        paths = [
            store(each, tmp_path / f"{i}-{candidate}", shard_steps=20)
            for i, each in enumerate((wrong, as_other(wrong)))
        ]
        assert len(list(paths[0].glob("*.h5"))) > 2
        assert_withheld(*paths, f"not that of their last step (first: candidate {candidate})")
    report = judge(sound, store(as_other(small_trace()), tmp_path / "again"))
    assert report.verdict is Verdict.AGREE
    assert any(note.startswith("checked in the") for note in report.notes)


TIGHT = Limits(max_depth=5, max_atoms=3, max_resolvents=4)
FAULTS = (
    "rule-cap",
    "last-fact-lost",
    "rest-not-substituted",
    "offset-renaming",
    "truncated-goals",
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_evidence_of_each_divergence_is_that_of_its_candidate_compared_alone(fault: str, tmp_path: Path):
    paths = [tmp_path / name for name in ("reference.h5", "faulty.h5")]
    for path, engine in zip(paths, ("reference", kv.Evaluator(mode="eager", device="cpu", faults=fault)), strict=True):
        kv.record("random:4", path, engine, queries=6, corruptions=3, limits=TIGHT)
    sides = [kv.open_trace(path).load() for path in paths]
    found = [each for each in judge(*sides).divergences if each.stage != "rank"]
    assert found
    for each in found[:12]:
        alone = [replace(with_candidates(side, [each.candidate]), rankings=None) for side in sides]
        first = judge(*alone).divergences[0]
        # What a fault of one stage explains depends on the other candidates.
        evidence, own = (found.evidence.partition("; a fault")[0] for found in (each, first))
        assert (own, first.step, first.expected, first.actual) == (evidence, each.step, each.expected, each.actual)


@pytest.mark.parametrize(("wanted", "stage", "kind"), [(0, "match_", "missing"), (1, "close", "proof_lost")])
def test_an_empty_list_without_origins_is_explained_by_contents(wanted: int, stage: str, kind: str):
    """A step whose first resolvent is a goal or a proof ends with FALSE."""
    trace = without_columns(shallow_trace(), *ORIGINS)
    resolvents, counts = trace.columns.resolvents, column_of(trace, "steps.num_resolvents").astype(np.int64)
    starts = starts_of(counts)
    is_wanted = (resolvents.kind[starts[:-1]] == wanted) & (counts > (wanted == 0))
    row = int(np.flatnonzero(is_wanted)[0])
    kept = np.delete(np.arange(starts[-1]), slice(starts[row] + 1, starts[row + 1]))
    counts[row] = 1
    ended = with_resolvents(trace, kept, counts)
    made = ended.columns.resolvents
    kinds, num_atoms = made.kind.copy(), made.num_atoms.copy()
    kinds[starts[row]], num_atoms[starts[row]] = 2, 0
    rows = np.delete(np.arange(len(kinds)), starts[row])
    atoms = made.atoms[expand_rows(starts_of(made.num_atoms), rows)]
    ended = with_columns(
        ended, ended.columns._replace(resolvents=made._replace(kind=kinds, num_atoms=num_atoms, atoms=atoms))
    )
    found = judge(trace, ended).divergences[0]
    assert found.stage.startswith(stage)
    assert found.kind == kind
