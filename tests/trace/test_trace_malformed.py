"""States that only a wrong engine makes, and what an engine does not know: stored as they are, never refused or made up."""

import json

import msgspec
import numpy as np
import pytest
import trace_builders as traces
from hostile_traces import alter

import kgverify as kv
from kgverify import DeclaredLimits, Dialect, Limits, PolicyInfo, Symbols, Verdict
from kgverify.kinds import KNOWLEDGE_GRAPH, compare
from kgverify.trace.model.columns import PATHS

GOAL, TRUE, FALSE, STOP = range(4)
MALFORMED = traces.make_malformed(traces.make_columns(1, 24))
UNKNOWN = msgspec.structs.replace(traces.HEADER, limits=DeclaredLimits(), policy=PolicyInfo(""), program_sha256="")


def test_malformed_states_survive_every_way_of_writing(tmp_path):
    first = traces.write_file(tmp_path / "a", MALFORMED)
    traces.assert_same_columns(first.columns, MALFORMED)
    assert set(MALFORMED.resolvents.kind.tolist()) == {GOAL, TRUE, FALSE, STOP}
    assert (MALFORMED.resolvents.num_atoms[MALFORMED.resolvents.kind != GOAL] > 0).any()
    traces.assert_same_columns(traces.write_file(tmp_path / "b", MALFORMED, shard_steps=20).columns, MALFORMED)
    for level in ("steps", "digests"):
        traces.run("convert", tmp_path / "a", tmp_path / level, "--level", level, "--archive")
        assert traces.read(tmp_path / level).root == first.root
        assert traces.run("check", tmp_path / level)["state"] == "whole"
    traces.assert_same_trace(traces.read(tmp_path / "steps"), first)
    for level in ("steps", "digests"):
        assert compare(tmp_path / "a", tmp_path / level).verdict is Verdict.AGREE
    writer = traces.open_writer(tmp_path / "c")
    writer.append(MALFORMED)
    writer.commit()
    del writer
    assert not traces.run("repair", tmp_path / "c.partial")["losses"]
    traces.assert_same_columns(traces.read(tmp_path / "c.partial").columns, MALFORMED)


def test_malformed_states_are_shown_and_exported(tmp_path):
    columns = traces.one_step([(0, 0, -1)], [[(-1, 0, 0), (7, 900, -1)], []], choice=0)
    kind = np.array([TRUE, STOP], np.uint8)
    traces.write_file(tmp_path / "a", columns._replace(resolvents=columns.resolvents._replace(kind=kind)))
    shown = kv.open_trace(tmp_path / "a").step(0, 0)["resolvents"]
    assert [each["goal"] for each in shown] == ["TRUE, with atoms left: no atom, predicate#7(constant#900, X0)", "STOP"]
    traces.run("export", tmp_path / "a", "--to", tmp_path / "a.jsonl")
    exported = json.loads((tmp_path / "a.jsonl").read_text())["resolvents"]
    assert [each["kind"] for each in exported] == ["TRUE", "STOP"]
    assert exported[0]["goal"] == ["no atom", "predicate#7(constant#900, X0)"]


@pytest.mark.parametrize(
    ("atoms", "kind"),
    [
        ([[(0, 0, 1)], [(-1, 0, 0)]], GOAL),
        ([[(0, 0, 1)], [(1, 900, 2)]], GOAL),
        ([[(0, 0, 1)], [(1, 1, 2)]], TRUE),
        ([[(0, 0, 1)], [(1, 1, 2)]], STOP),
        ([[(0, 0, 1)], []], GOAL),
    ],
    ids=["a hole", "an unknown id", "an atom left beside TRUE", "a stop", "fewer atoms"],
)
def test_each_malformed_state_is_a_difference(tmp_path, atoms, kind):
    wrong = traces.one_step([(0, 0, -1)], atoms)
    resolvents = wrong.resolvents._replace(kind=np.array([0, kind], np.uint8))
    traces.write_file(tmp_path / "right", traces.one_step([(0, 0, -1)], [[(0, 0, 1)], [(1, 1, 2)]]))
    traces.write_file(tmp_path / "wrong", wrong._replace(resolvents=resolvents))
    found = compare(tmp_path / "right", tmp_path / "wrong")
    assert found.verdict is Verdict.DIVERGE
    assert found.divergences[0].step == 0


def test_ids_without_names_stay_apart_from_those_of_another_numbering(tmp_path):
    """An id that only one of two numberings names is not taken for that name."""
    small, large = Symbols(("p",), ("a", "b")), Symbols(("p", "q"), ("c", "b", "a"))
    for name, symbols, columns in (
        ("a", large, traces.one_step([(0, 2, 1)], [[(0, 0, 1)], [(0, 900, 2)]])),
        ("b", small, traces.one_step([(0, 0, 1)], [[(0, 2, 1)], [(0, 900, 0)]])),
        ("c", small, traces.one_step([(0, 0, 1)], [[(0, 0, 1)], [(0, 900, 0)]])),
    ):
        traces.write_file(tmp_path / name, columns, header=UNKNOWN, symbols=symbols)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.verdict is Verdict.DIVERGE
    assert "constant#2" in str(found.divergences[0].actual)
    assert "900" not in str(compare(tmp_path / "a", tmp_path / "c").divergences[0].actual)


@pytest.mark.parametrize("limits", [DeclaredLimits(), DeclaredLimits(max_resolvents=120), Limits(max_depth=3)])
def test_limits_that_the_header_leaves_out_are_unknown(tmp_path, limits):
    trace = traces.write_file(tmp_path / "a", MALFORMED, header=msgspec.structs.replace(UNKNOWN, limits=limits))
    assert (trace.header.limits, type(trace.header.limits)) == (limits, type(limits))
    traces.write_file(
        tmp_path / "b", MALFORMED, header=msgspec.structs.replace(traces.HEADER, limits=Limits(max_depth=9))
    )
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.verdict is (Verdict.AGREE if limits.unknown else Verdict.INCONCLUSIVE)
    wanted = [*(f"the limit {name}" for name in limits.unknown if name != "dialect"), "the program", "the policy"]
    if limits.unknown:
        wanted.insert(-2, "the dialect")
    notes = [note for note in found.notes if note.startswith("not compared")]
    assert notes == [f"not compared, since unknown to the expected trace: {', '.join(wanted)}"]


LIMITS = {"max_depth": 3, "max_atoms": 4, "max_resolvents": 5, "exclude_query": False}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (None, DeclaredLimits()),
        ({}, DeclaredLimits()),
        ({"max_atoms": None}, DeclaredLimits()),
        ("missing", DeclaredLimits()),
        ({"max_depth": 3}, DeclaredLimits(max_depth=3)),
        (LIMITS, Limits(**LIMITS, dialect=Dialect())),
    ],
)
def test_limits_may_be_null_or_missing(tmp_path, limits, expected):
    def change(array):
        raw = json.loads(array.tobytes()) | {"limits": limits}
        if limits == "missing":
            del raw["limits"]
        return np.frombuffer(json.dumps(raw).encode(), np.uint8)

    traces.write_file(tmp_path / "a", MALFORMED)
    assert traces.read(alter(tmp_path / "a", {"header": change})).header.limits == expected


TOGETHER = ({"resolvents.origin", "resolvents.origin_kind"}, {"steps.dropped_atoms", "steps.dropped_resolvents"})


@pytest.mark.parametrize("name", sorted(KNOWLEDGE_GRAPH.optional - PATHS))
def test_an_unknown_column_survives_and_is_not_compared(tmp_path, name):
    absent = next((group for group in TOGETHER if name in group), {name})
    options = {"facts": traces.FACTS, "rules": traces.RULES}
    engine = msgspec.structs.replace(traces.HEADER.engine, unknown=tuple(sorted(absent)))
    first, full = (
        traces.write_file(tmp_path / p, MALFORMED, absent=a, **options) for p, a in (("a", absent), ("full", set()))
    )
    assert full.fields - first.fields == absent
    traces.run("convert", tmp_path / "a", tmp_path / "b")
    traces.run("join", tmp_path / "a", "-o", tmp_path / "c")
    traces.write_file(
        tmp_path / "d", MALFORMED, header=msgspec.structs.replace(traces.HEADER, engine=engine), **options
    )
    for path in "bcd":
        again = traces.read(tmp_path / path)
        assert (again.fields, again.root) == (first.fields, first.root)
        assert compare(tmp_path / "a", tmp_path / path).verdict is Verdict.AGREE
    found = compare(tmp_path / "full", tmp_path / "a")
    assert (found.verdict, set(found.coverage.not_compared)) == (Verdict.AGREE, absent)
    traces.run("convert", tmp_path / "a", tmp_path / "digests", "--level", "digests")
    assert compare(tmp_path / "full", tmp_path / "digests").verdict is Verdict.AGREE
    row = int(np.argmax(MALFORMED.candidates.num_steps))
    group, column = name.split(".")
    trace = kv.open_trace(tmp_path / "a")
    shown = trace.candidate(row) if group == "candidates" else trace.step(row, 0)
    assert shown.get(column) is None
