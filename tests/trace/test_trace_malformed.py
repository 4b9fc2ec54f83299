"""States that only a wrong engine makes, and what an engine does not know: stored as they are, never refused or made up."""

import json

import msgspec
import numpy as np
import pytest
from trace_builders import (
    FACTS,
    HEADER,
    RULES,
    SYMBOLS,
    assert_same_columns,
    assert_same_trace,
    make_columns,
    make_malformed,
    one_step,
    open_writer,
    write_file,
)

import kgverify as kv
from kgverify import Limits, UserError, Verdict
from kgverify.comparison.compare import compare
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.program.limits import DeclaredLimits
from kgverify.program.outcomes import GoalKind
from kgverify.program.program import Symbols
from kgverify.report.steps import LazyTraceView, TraceView
from kgverify.report.tables import export_trace
from kgverify.trace.maintain.check import WHOLE, check_trace
from kgverify.trace.maintain.join import unite
from kgverify.trace.maintain.repair import convert_trace, repair_trace
from kgverify.trace.model.consistency import Contradictions
from kgverify.trace.model.header import PolicyInfo
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.verification.rebuild import rebuild_goals

MALFORMED = make_malformed(make_columns(1, 60))
UNKNOWN = msgspec.structs.replace(HEADER, limits=DeclaredLimits(), policy=PolicyInfo(""), program_sha256="")


def test_malformed_states_survive_every_way_of_writing(tmp_path):
    write_file(tmp_path / "a", HEADER, SYMBOLS, MALFORMED)
    first = read_trace(tmp_path / "a")
    assert_same_columns(first.columns, MALFORMED)
    assert set(MALFORMED.resolvents.kind.tolist()) == set(map(int, GoalKind))
    assert (MALFORMED.resolvents.num_atoms[MALFORMED.resolvents.kind != GoalKind.GOAL] > 0).any()
    with open_writer(tmp_path / "b", HEADER, SYMBOLS, shard_steps=20) as writer:
        writer.append(MALFORMED)
    assert_same_columns(read_trace(tmp_path / "b").columns, MALFORMED)
    for level in (TraceLevel.STEPS, TraceLevel.COMPACT, TraceLevel.DIGESTS):
        convert_trace(tmp_path / "a", tmp_path / level, level, is_archived=True)
        assert read_trace(tmp_path / level).root == first.root
        assert check_trace(tmp_path / level).state == WHOLE
    assert_same_trace(read_trace(tmp_path / TraceLevel.STEPS), first)
    assert compare(tmp_path / "a", tmp_path / TraceLevel.STEPS).verdict is Verdict.AGREE
    assert compare(tmp_path / "a", tmp_path / TraceLevel.DIGESTS).verdict is Verdict.AGREE


def test_malformed_states_survive_a_crash_and_a_repair(tmp_path):
    writer = open_writer(tmp_path / "a", HEADER, SYMBOLS)
    writer.append(MALFORMED)
    writer.commit()
    del writer
    assert not repair_trace(tmp_path / "a.partial").losses
    assert_same_columns(read_trace(tmp_path / "a.partial").columns, MALFORMED)


def test_malformed_states_are_shown_and_exported(tmp_path):
    atoms = [(-1, 0, 0), (7, 900, -1)]
    columns = one_step([(0, 0, -1)], [atoms, []], choice=0)
    kind = np.array([GoalKind.TRUE, GoalKind.STOP], np.uint8)
    write_file(tmp_path / "a", HEADER, SYMBOLS, columns._replace(resolvents=columns.resolvents._replace(kind=kind)))
    shown = LazyTraceView(TraceFile(tmp_path / "a")).step(0, 0)["resolvents"]
    assert [each["goal"] for each in shown] == ["TRUE, with atoms left: no atom, predicate#7(constant#900, X0)", "STOP"]
    export_trace(read_trace(tmp_path / "a"), np.arange(1), tmp_path / "a.jsonl")
    exported = json.loads((tmp_path / "a.jsonl").read_text())["resolvents"]
    assert [each["kind"] for each in exported] == ["TRUE", "STOP"]
    assert exported[0]["goal"] == ["no atom", "predicate#7(constant#900, X0)"]


@pytest.mark.parametrize("change", ["hole", "left beside TRUE", "unknown id", "stop", "fewer atoms"])
def test_each_malformed_state_is_a_difference(tmp_path, change):
    right = one_step([(0, 0, -1)], [[(0, 0, 1)], [(1, 1, 2)]])
    resolvents = right.resolvents
    atoms, kind = resolvents.atoms.copy(), resolvents.kind.copy()
    if change == "hole":
        atoms[1] = -1, 0, 0
    elif change == "unknown id":
        atoms[1, 1] = 900
    elif change == "fewer atoms":
        resolvents = resolvents._replace(num_atoms=np.array([1, 0], np.uint16))
        atoms = atoms[:1]
    else:
        kind[1] = GoalKind.TRUE if change == "left beside TRUE" else GoalKind.STOP
    wrong = right._replace(resolvents=resolvents._replace(atoms=atoms, kind=kind))
    write_file(tmp_path / "right", HEADER, SYMBOLS, right)
    write_file(tmp_path / "wrong", HEADER, SYMBOLS, wrong)
    found = compare(tmp_path / "right", tmp_path / "wrong")
    assert found.verdict is Verdict.DIVERGE
    assert found.divergences[0].step == 0


def test_ids_without_names_stay_apart_from_those_of_another_numbering(tmp_path):
    """An id that only one of two numberings names is not taken for that name."""
    small = Symbols(("p",), ("a", "b"))
    large = Symbols(("p", "q"), ("c", "b", "a"))
    write_file(tmp_path / "a", UNKNOWN, large, one_step([(0, 2, 1)], [[(0, 0, 1)], [(0, 900, 2)]]))
    write_file(tmp_path / "b", UNKNOWN, small, one_step([(0, 0, 1)], [[(0, 2, 1)], [(0, 900, 0)]]))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.verdict is Verdict.DIVERGE
    assert "constant#2" in str(found.divergences[0].actual)
    write_file(tmp_path / "c", UNKNOWN, small, one_step([(0, 0, 1)], [[(0, 0, 1)], [(0, 900, 0)]]))
    again = compare(tmp_path / "a", tmp_path / "c").divergences[0]
    assert "900" not in str(again.actual)


@pytest.mark.parametrize("limits", [DeclaredLimits(), DeclaredLimits(max_resolvents=120), Limits(max_depth=3)])
def test_limits_that_the_header_leaves_out_are_unknown(tmp_path, limits):
    header = msgspec.structs.replace(UNKNOWN, limits=limits)
    write_file(tmp_path / "a", header, SYMBOLS, MALFORMED)
    read = read_trace(tmp_path / "a").header
    assert (read.limits, type(read.limits)) == (limits, type(limits))
    write_file(tmp_path / "b", msgspec.structs.replace(HEADER, limits=Limits(max_depth=9)), SYMBOLS, MALFORMED)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.verdict is (Verdict.AGREE if limits.unknown else Verdict.INCONCLUSIVE)
    notes = [note for note in found.notes if note.startswith("not compared")]
    wanted = [*(f"the limit {name}" for name in limits.unknown if name != "dialect"), "the program", "the policy"]
    if limits.unknown:
        wanted.insert(-2, "the dialect")
    assert notes == [f"not compared, since unknown to the expected trace: {', '.join(wanted)}"]


def test_limits_may_be_null_or_missing(tmp_path):
    from kgverify.trace.hdf5.writing import write_arrays
    from kgverify.trace.write.writer import encode_trace

    write_file(tmp_path / "a", HEADER, SYMBOLS, MALFORMED)
    arrays = encode_trace(read_trace(tmp_path / "a"))
    raw = json.loads(arrays["header"].tobytes())
    for number, limits in enumerate((None, {}, {"max_atoms": None})):
        text = json.dumps(raw | {"limits": limits}).encode()
        write_arrays(tmp_path / f"{number}", arrays | {"header": np.frombuffer(text, np.uint8)}, "test")
        assert read_trace(tmp_path / f"{number}").header.limits == DeclaredLimits()
    del raw["limits"]
    text = json.dumps(raw).encode()
    write_arrays(tmp_path / "none", arrays | {"header": np.frombuffer(text, np.uint8)}, "test")
    assert read_trace(tmp_path / "none").header.limits == DeclaredLimits()


@pytest.mark.parametrize("name", sorted(KNOWLEDGE_GRAPH.optional))
def test_an_unknown_column_survives_and_is_not_compared(tmp_path, name):
    together = [{"resolvents.origin", "resolvents.origin_kind"}, {"steps.dropped_atoms", "steps.dropped_resolvents"}]
    absent = next((group for group in together if name in group), {name})
    for path, options in (("a", {"absent": absent}), ("full", {})):
        write_file(tmp_path / path, HEADER, SYMBOLS, MALFORMED, facts=FACTS, rules=RULES, **options)
    engine = msgspec.structs.replace(HEADER.engine, unknown=tuple(sorted(absent)))
    write_file(
        tmp_path / "declared",
        msgspec.structs.replace(HEADER, engine=engine),
        SYMBOLS,
        MALFORMED,
        facts=FACTS,
        rules=RULES,
    )
    first = read_trace(tmp_path / "a")
    assert read_trace(tmp_path / "full").fields - first.fields == absent
    convert_trace(tmp_path / "a", tmp_path / "b")
    unite([tmp_path / "a"], tmp_path / "c")
    writer = open_writer(tmp_path / "d", HEADER, SYMBOLS, absent=absent, facts=FACTS, rules=RULES)
    writer.append(MALFORMED)
    writer.commit()
    del writer
    with open_writer(tmp_path / "d", HEADER, SYMBOLS, absent=absent, facts=FACTS, rules=RULES, resume=True):
        pass
    for path in ("b", "c", "d", "declared"):
        read = read_trace(tmp_path / path)
        assert read.fields == first.fields
        assert read.root == first.root
        assert compare(tmp_path / "a", tmp_path / path).verdict is Verdict.AGREE
    found = compare(tmp_path / "full", tmp_path / "a")
    assert (found.verdict, set(found.coverage.not_compared)) == (Verdict.AGREE, absent)
    convert_trace(tmp_path / "a", tmp_path / "digests", TraceLevel.DIGESTS)
    assert compare(tmp_path / "full", tmp_path / "digests").verdict is Verdict.AGREE
    convert_trace(tmp_path / "a", tmp_path / "compact", TraceLevel.COMPACT)
    assert read_trace(tmp_path / "compact").fields < first.fields
    if name.startswith("resolvents.origin"):
        with pytest.raises(UserError, match="origin"):
            rebuild_goals(read_trace(tmp_path / "compact"))
    view = TraceView(first)
    step = next(view.step(i, 0) for i in range(60) if view.candidate(i)["num_steps"])
    group, field = name.split(".")
    shown = view.candidate(0) if group == "candidates" else step
    assert shown.get(field) is None


def test_a_required_column_that_an_engine_does_not_know_is_stored_and_not_compared(tmp_path):
    engine = msgspec.structs.replace(HEADER.engine, unknown=("resolvents.kind",))
    write_file(tmp_path / "a", msgspec.structs.replace(HEADER, engine=engine), SYMBOLS, MALFORMED)
    write_file(tmp_path / "b", HEADER, SYMBOLS, make_malformed(make_columns(1, 60)))
    assert "resolvents.kind" not in read_trace(tmp_path / "a").fields
    assert "resolvents.kind" not in TraceFile(tmp_path / "a").fields


def test_a_loop_that_tells_nothing_but_goals_and_resolvents(tmp_path):
    steps = {"num_atoms": [2], "num_resolvents": [1], "goal_atoms": [[0, 0, -1], [1, -1, 1]]}
    resolvents = {"kind": [1], "num_atoms": [0], "atoms": []}
    with kv.LoopWriter(tmp_path / "a", engine="mine", predicates=["p", "q"], constants=["a", "b"]) as trace:
        trace.append({"atom": [[0, 0, 1]], "num_steps": [1]}, steps, resolvents)
    read = read_trace(tmp_path / "a")
    assert not read.fields & KNOWLEDGE_GRAPH.optional
    header = read.header
    assert (header.limits, header.policy.name, header.program_sha256) == (DeclaredLimits(), "", "")
    # The first goal of a candidate need not be its atom.
    assert read.columns.steps.num_atoms.tolist() == [2]


@pytest.mark.parametrize("absent", [{"candidates.outcome"}, {"steps.choice"}, KNOWLEDGE_GRAPH.optional], ids=len)
def test_the_judges_of_a_verdict_agree_about_what_is_unknown(tmp_path, absent):
    kv.record("countries", tmp_path / "full", "reference", queries=2, corruptions=5)
    trace = read_trace(tmp_path / "full")
    header = msgspec.structs.replace(trace.header, recording="")
    write_file(tmp_path / "less", header, trace.symbols, trace.columns, trace.rankings, absent=absent)
    write_file(tmp_path / "wrong", header, trace.symbols, make_malformed(trace.columns), absent=absent)
    # Outcomes follow from choices that were compared, and are required.
    earned = Verdict.INCONCLUSIVE if absent >= {"candidates.outcome", "steps.choice"} else Verdict.AGREE
    assert kv.compare(tmp_path / "full", tmp_path / "less").verdict is earned
    report = kv.compare(tmp_path / "full", tmp_path / "wrong")
    assert report.verdict is Verdict.DIVERGE
    assert not absent & {each.field for each in report.divergences}


def test_nothing_contradicts_a_column_that_is_unknown(tmp_path):
    kv.record("countries", tmp_path / "full", "reference", queries=2, corruptions=5)
    trace = read_trace(tmp_path / "full")
    every = frozenset(name for name in trace.fields if name.startswith(("candidates.", "steps.", "resolvents.")))
    counts = {"candidates.num_steps", "steps.num_atoms", "steps.num_resolvents", "resolvents.num_atoms"}
    for unknown in [*({name} for name in every - counts), *(every - counts - {name} for name in every)]:
        columns = trace.columns
        for group, name in (each.split(".") for each in sorted(unknown)):
            level = getattr(columns, group)
            level = level._replace(**{name: np.roll(getattr(level, name), 7, axis=0)[::-1].copy()})
            columns = columns._replace(**{group: level})
        found = Contradictions()
        found.add(columns, trace.header, trace.fields - unknown)
        assert not found.describe(), unknown
