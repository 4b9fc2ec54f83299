"""Goals rebuilt from a compact trace are those that were recorded, or the step is named."""

import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from run_engines import assert_same_columns

from kgverify import Limits, UserError, Verdict, load_graph
from kgverify.graphs.random_graph import draw_graph
from kgverify.program.atoms import Atom
from kgverify.program.outcomes import Origin
from kgverify.program.program import Rule
from kgverify.runs.run import Run, build_trace, reference_pipeline
from kgverify.trace.maintain.repair import convert_trace
from kgverify.trace.model.columns import CandidateSet
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.read.trace_file import read_trace
from kgverify.trace.write.writer import write_again
from kgverify.verification import rebuild
from kgverify.verification.rebuild import Rebuilder, rebuild_goals
from kgverify.verification.recorded import compare_recorded


def recorded(run: Run):
    pipeline = reference_pipeline(run)
    columns = pipeline.engine.prove(pipeline.draw_for(run))
    return build_trace(run, pipeline.engine, columns, pipeline.rank_finite(run, columns.candidates))


@pytest.fixture(scope="module")
def full():
    return recorded(Run(load_graph("countries"), num_queries=3, num_corruptions=6))


def compact(trace, path: Path):
    write_again(trace, path / "full.h5")
    convert_trace(path / "full.h5", path / "compact.h5", TraceLevel.COMPACT)
    return read_trace(path / "compact.h5")


def test_rebuilt_goals_are_those_recorded(full, tmp_path: Path):
    rebuilt = rebuild_goals(compact(full, tmp_path))
    assert_same_columns(rebuilt.columns, full.columns)
    assert rebuilt.header == full.header
    assert rebuilt.fields >= full.fields


@pytest.mark.parametrize("exclude_query", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_goals_of_random_programs_are_rebuilt(seed: int, exclude_query: bool, tmp_path: Path):
    graph = draw_graph(seed)
    run = Run(graph, limits=Limits(max_depth=6, exclude_query=exclude_query), num_queries=6, num_corruptions=4)
    trace = recorded(run)
    assert len(trace.columns.steps.depth) > 10
    assert_same_columns(rebuild_goals(compact(trace, tmp_path)).columns, trace.columns)


def test_candidates_with_variables_are_rebuilt(tmp_path: Path):
    run = Run(load_graph("countries"))
    engine = reference_pipeline(run).engine
    atoms = np.array([[p, -1 - a, -1 - b] for p in range(2) for a, b in ((0, 1), (0, 0), (3, 1))], np.int32)
    candidates = CandidateSet(np.arange(6, dtype=np.int32), np.full(6, 2, np.int8), atoms)
    trace = build_trace(run, engine, engine.prove(candidates), None)
    assert_same_columns(rebuild_goals(compact(trace, tmp_path)).columns, trace.columns)


def astray(trace):
    """The same trace by a prover that put another constant into one resolvent."""
    atoms = trace.columns.resolvents.atoms.copy()
    row = int(np.argmax(atoms[:, 2] >= 0))
    atoms[row, 2] = (atoms[row, 2] + 1) % len(trace.symbols.constants)
    return replace(trace, columns=trace.columns._replace(resolvents=trace.columns.resolvents._replace(atoms=atoms)))


def test_a_step_that_does_not_follow_from_its_clauses_is_named(full, tmp_path: Path):
    trace = compact(astray(full), tmp_path)
    (step,) = np.flatnonzero(Rebuilder(trace).try_rebuilding(trace).differs)
    candidates = trace.columns.candidates
    owner = np.repeat(np.arange(len(candidates.query)), candidates.num_steps)[step]
    with pytest.raises(UserError, match=f"step {step} of candidate {owner} .*do not follow from their clauses"):
        rebuild_goals(trace)
    write_again(full, tmp_path / "right.h5")
    for name in ("compact.h5", "full.h5"):
        report = compare_recorded(tmp_path / "right.h5", tmp_path / name).report
        assert report.verdict is Verdict.DIVERGE
        assert len(report.divergences) == 1


@pytest.mark.parametrize("lost", ["facts", "rules"])
def test_without_a_program_nothing_is_rebuilt(full, tmp_path: Path, lost: str):
    trace = compact(full, tmp_path)
    with pytest.raises(UserError, match="does not hold the program's facts and rules"):
        rebuild_goals(replace(trace, **{lost: None}))


def test_the_program_is_checked_by_its_hash(full, tmp_path: Path):
    trace = compact(full, tmp_path)
    header = msgspec.structs.replace(trace.header, program_sha256="0" * 64)
    with pytest.raises(UserError, match="its program has the hash"):
        rebuild_goals(replace(trace, header=header))


def test_digests_cannot_be_rebuilt(full, tmp_path: Path):
    write_again(full, tmp_path / "full.h5")
    convert_trace(tmp_path / "full.h5", tmp_path / "digests.h5", TraceLevel.DIGESTS)
    with pytest.raises(UserError, match="does not hold the origins"):
        rebuild_goals(read_trace(tmp_path / "digests.h5"))


def test_a_compact_trace_is_converted_back_to_its_original(full, tmp_path: Path):
    compact(full, tmp_path)
    convert_trace(tmp_path / "compact.h5", tmp_path / "again.h5", TraceLevel.STEPS, rebuild=rebuild_goals)
    assert (tmp_path / "again.h5").read_bytes() == (tmp_path / "full.h5").read_bytes()


@pytest.mark.sample(1)
@pytest.mark.parametrize("is_pruned", [False, True])
def test_goals_of_unbounded_size_are_not_rebuilt(full, tmp_path: Path, is_pruned: bool):
    """A rule may have 65,534 atoms in its body, and be named by every resolvent of a small file."""
    trace = compact(full, tmp_path)
    rule = trace.rules[0]
    atom = Atom(*trace.facts[0].tolist()) if is_pruned else rule.body[0]
    rules = (Rule(rule.clause_head, (atom,) * 65_000), *trace.rules[1:])
    resolvents = trace.columns.resolvents
    made_by = resolvents._replace(
        kind=np.zeros_like(resolvents.kind),
        origin_kind=np.full_like(resolvents.origin_kind, Origin.RULE),
        origin=np.zeros_like(resolvents.origin),
    )
    header = msgspec.structs.replace(trace.header, program_sha256="")
    hostile = replace(trace, header=header, rules=rules, columns=trace.columns._replace(resolvents=made_by))
    begin = time.process_time()
    with pytest.raises(UserError, match="more than 32 atoms for each resolvent"):
        rebuild_goals(hostile)
    assert time.process_time() - begin < 20


@pytest.mark.parametrize(("num_atoms", "fits"), [(65535, True), (65536, False)])
def test_a_goal_has_as_many_atoms_as_a_trace_can_store(full, num_atoms: int, fits: bool):
    sizes = len(full.columns.steps.depth), len(full.columns.resolvents.kind)
    goals = [((0, 0, 0),) * num_atoms, *[()] * (sizes[0] - 1)]
    if fits:
        rebuilt = rebuild._join(full, goals, [()] * sizes[1])
        assert rebuilt.trace.columns.steps.num_atoms[:2].tolist() == [num_atoms, 0]
        return
    with pytest.raises(UserError, match="a goal has 65536 atoms, more than a trace can store"):
        rebuild._join(full, goals, [()] * sizes[1])


@pytest.mark.parametrize("kind", [Origin.RULE, Origin.FACT])
def test_a_clause_that_the_program_lacks_is_refused(full, tmp_path: Path, kind: Origin):
    trace = compact(full, tmp_path)
    resolvents = trace.columns.resolvents
    num = len(trace.rules if kind is Origin.RULE else trace.facts)
    for origin, is_refused in ((num - 1, False), (num, True)):
        # The first resolvent alone.
        kinds, origins = resolvents.origin_kind.copy(), resolvents.origin.copy()
        kinds[0], origins[0] = kind, origin
        columns = trace.columns._replace(resolvents=resolvents._replace(origin_kind=kinds, origin=origins))
        with pytest.raises(UserError, match="lacks" if is_refused else "do not follow from their clauses"):
            rebuild_goals(replace(trace, columns=columns))


def test_the_atoms_of_goals_and_bodies_are_counted(full, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trace = compact(full, tmp_path)
    goal = np.repeat(full.columns.steps.num_atoms, full.columns.steps.num_resolvents).astype(int)
    made_by = full.columns.resolvents
    bodies = [
        len(trace.rules[origin].body) if kind == Origin.RULE else 0
        for kind, origin in zip(made_by.origin_kind.tolist(), made_by.origin.tolist(), strict=True)
    ]
    monkeypatch.setattr(rebuild, "_MOST_ATOMS_EACH", 0)
    needed = int(goal.sum()) + sum(bodies)
    monkeypatch.setattr(rebuild, "_MOST_ATOMS", needed)
    assert_same_columns(rebuild_goals(trace).columns, full.columns)
    monkeypatch.setattr(rebuild, "_MOST_ATOMS", needed - 1)
    with pytest.raises(UserError, match="atoms for each resolvent"):
        rebuild_goals(trace)
