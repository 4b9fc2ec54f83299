"""Goals rebuilt from a compact trace are those that were recorded, or the step is named."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from run_engines import assert_same_columns

import kgverify as kv
from kgverify import Limits, Rule, Trace, TraceLevel, UserError, Verdict
from kgverify.trace.maintain.repair import convert_trace
from kgverify.trace.model.columns import CandidateSet
from kgverify.trace.write.writer import write_again
from kgverify.verification import rebuild
from kgverify.verification.rebuild import Rebuilder, rebuild_goals

SIZES = {"queries": 3, "corruptions": 6}


def recorded(path: Path, graph: str = "countries", **options: object) -> Trace:
    kv.record(graph, path, "reference", **{**SIZES, **options})
    return kv.open_trace(path).load()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return recorded(tmp_path_factory.mktemp("full") / "full.h5")


def compact(trace: Trace, folder: Path) -> Trace:
    write_again(trace, folder / "full.h5")
    convert_trace(folder / "full.h5", folder / "compact.h5", TraceLevel("compact"))
    return kv.open_trace(folder / "compact.h5").load()


def test_rebuilt_goals_are_those_recorded(full: Trace, tmp_path: Path):
    rebuilt = rebuild_goals(compact(full, tmp_path))
    assert_same_columns(rebuilt.columns, full.columns)
    assert rebuilt.header == full.header
    assert rebuilt.fields >= full.fields - {"digests.sequence"}
    convert_trace(tmp_path / "compact.h5", tmp_path / "again.h5", TraceLevel("steps"), rebuild=rebuild_goals)
    assert (tmp_path / "again.h5").read_bytes() == (tmp_path / "full.h5").read_bytes()


@pytest.mark.parametrize("exclude_query", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_goals_of_random_programs_are_rebuilt(seed: int, exclude_query: bool, tmp_path: Path):
    limits = Limits(max_depth=6, exclude_query=exclude_query)
    trace = recorded(tmp_path / "a", f"random:{seed}", queries=6, corruptions=4, limits=limits)
    assert len(trace.columns.steps.depth) > 10
    assert_same_columns(rebuild_goals(compact(trace, tmp_path)).columns, trace.columns)


def test_candidates_with_variables_are_rebuilt(full: Trace, tmp_path: Path):
    from kgverify.dialects import ReferenceEngine
    from kgverify.engines.policy import SHORTEST

    atoms = np.array([[p, -1 - a, -1 - b] for p in range(2) for a, b in ((0, 1), (0, 0), (3, 1))], np.int32)
    engine = ReferenceEngine(kv.load_graph("countries").program, Limits(), SHORTEST)
    columns = engine.prove(CandidateSet(np.arange(6, dtype=np.int32), np.full(6, 2, np.int8), atoms))
    trace = kv.kinds.record(full.schema, columns)
    trace = replace(full, columns=columns, digests=trace.digests, rankings=None)
    assert_same_columns(rebuild_goals(compact(trace, tmp_path)).columns, columns)


def test_a_step_that_does_not_follow_from_its_clauses_is_named(full: Trace, tmp_path: Path):
    """A prover put another constant into one resolvent."""
    atoms = full.columns.resolvents.atoms.copy()
    row = int(np.argmax(atoms[:, 2] >= 0))
    atoms[row, 2] = (atoms[row, 2] + 1) % len(full.symbols.constants)
    astray = full.columns._replace(resolvents=full.columns.resolvents._replace(atoms=atoms))
    trace = compact(replace(full, columns=astray), tmp_path)
    (step,) = np.flatnonzero(Rebuilder(trace).try_rebuilding(trace).differs)
    candidates = trace.columns.candidates
    owner = np.repeat(np.arange(len(candidates.query)), candidates.num_steps)[step]
    with pytest.raises(UserError, match=f"step {step} of candidate {owner} .*do not follow from their clauses"):
        rebuild_goals(trace)
    write_again(full, tmp_path / "right.h5")
    for name in ("compact.h5", "full.h5"):
        report = kv.compare(tmp_path / "right.h5", tmp_path / name)
        assert (report.verdict, len(report.divergences)) == (Verdict.DIVERGE, 1)


def test_without_the_program_and_the_origins_nothing_is_rebuilt(full: Trace, tmp_path: Path):
    trace = compact(full, tmp_path)
    other = replace(trace, header=msgspec.structs.replace(trace.header, program_sha256="0" * 64))
    convert_trace(tmp_path / "full.h5", tmp_path / "digests.h5", TraceLevel("digests"))
    digests = kv.open_trace(tmp_path / "digests.h5").load()
    lacking = "does not hold the program's facts and rules"
    for lowered, text in (
        (replace(trace, facts=None), lacking),
        (replace(trace, rules=None), lacking),
        (other, "its program has the hash"),
        (digests, "does not hold the origins"),
    ):
        with pytest.raises(UserError, match=text):
            rebuild_goals(lowered)


@pytest.mark.parametrize("is_pruned", [False, True])
def test_goals_of_unbounded_size_are_not_rebuilt(full: Trace, tmp_path: Path, is_pruned: bool):
    """A rule may have 65,534 atoms in its body, and be named by every resolvent of a small file."""
    trace = compact(full, tmp_path)
    rule = trace.rules[0]
    atom = type(rule.clause_head)(*trace.facts[0].tolist()) if is_pruned else rule.body[0]
    rules = (Rule(rule.clause_head, (atom,) * 65_000), *trace.rules[1:])
    resolvents = trace.columns.resolvents
    nothing = np.zeros_like(resolvents.kind)
    made_by = resolvents._replace(kind=nothing, origin_kind=nothing + 1, origin=np.zeros_like(resolvents.origin))
    header = msgspec.structs.replace(trace.header, program_sha256="")
    hostile = replace(trace, header=header, rules=rules, columns=trace.columns._replace(resolvents=made_by))
    with pytest.raises(UserError, match="more than 32 atoms for each resolvent"):
        rebuild_goals(hostile)


@pytest.mark.parametrize("kind", [1, 2])
def test_a_clause_that_the_program_lacks_is_refused(full: Trace, tmp_path: Path, kind: int):
    trace = compact(full, tmp_path)
    num = len(trace.rules if kind == 1 else trace.facts)
    for origin, text in ((num - 1, "do not follow from their clauses"), (num, "lacks")):
        # The first resolvent alone.
        made_by = trace.columns.resolvents
        kinds, origins = made_by.origin_kind.copy(), made_by.origin.copy()
        kinds[0], origins[0] = kind, origin
        made_by = made_by._replace(origin_kind=kinds, origin=origins)
        with pytest.raises(UserError, match=text):
            rebuild_goals(replace(trace, columns=trace.columns._replace(resolvents=made_by)))


def test_the_atoms_of_goals_and_bodies_are_counted(full: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trace, resolvents = compact(full, tmp_path), full.columns.resolvents
    goals = np.repeat(full.columns.steps.num_atoms, full.columns.steps.num_resolvents).astype(int)
    rules = resolvents.origin[resolvents.origin_kind == 1]
    needed = int(goals.sum()) + sum(len(trace.rules[rule].body) for rule in rules)
    monkeypatch.setattr(rebuild, "_MOST_ATOMS_EACH", 0)
    monkeypatch.setattr(rebuild, "_MOST_ATOMS", needed)
    assert_same_columns(rebuild_goals(trace).columns, full.columns)
    monkeypatch.setattr(rebuild, "_MOST_ATOMS", needed - 1)
    with pytest.raises(UserError, match="atoms for each resolvent"):
        rebuild_goals(trace)
