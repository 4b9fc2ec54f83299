"""The evaluator takes, in every mode, the reference's steps, and evaluates, records and shows what it proves."""

import random
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import pytest
from engine_checks import (
    CPU,
    DEVICE,
    Known,
    assert_same,
    candidates_at,
    candidates_of,
    known,
    program_of,
    try_few_clauses_at_a_time,
)
from run_engines import assert_same_columns, needs_compiler

import kgverify as kv
from kgverify import Limits, NamedAtom, PolicySpec, Problem, Stage, TraceLevel
from kgverify.engines.policy import make_two_tower
from kgverify.engines.protocol import STOPPED, positions_of, split_positions
from kgverify.laws import compiled_maker, draw_problems
from kgverify.program.outcomes import STEP_STAGES, Outcome
from kgverify.program.program import parse_rules
from kgverify.prover.native.engine import NativeEngine
from kgverify.prover.tick import stage_ticks
from kgverify.runs.run import reference_pipeline
from kgverify.testing.checking.check import Checker, prepare_batches
from kgverify.testing.problems.merge import Merged, merge
from kgverify.testing.problems.problem import DEFAULT_SIZES
from kgverify.trace.model.column_reader import MemoryReader
from kgverify.trace.model.columns import concatenate, starts_of
from kgverify.trace.model.digests import compute_digests
from kgverify.verification.replay import find_position

MODES = [pytest.param("native", marks=needs_compiler), "eager", pytest.param("fused", marks=pytest.mark.deep)]


@pytest.fixture(autouse=True)
def _kernels_in_small_warps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an interpreted kernel try a few clauses at a time."""
    if "fused" in request.node.name:
        pytest.importorskip("triton", reason="Triton is not installed")
        if DEVICE == CPU:
            try_few_clauses_at_a_time(monkeypatch)


@pytest.mark.parametrize(
    ("mode", "examples"),
    [
        ("plain", 12),
        pytest.param("native", 30, marks=needs_compiler),
        pytest.param("native", 200, marks=[needs_compiler, pytest.mark.deep]),
        pytest.param("eager", 10, marks=pytest.mark.deep),
    ],
)
def test_a_mode_agrees_with_the_reference_and_keeps_every_law(mode: str, examples: int) -> None:
    # The network normalizes units that are nearly equal.
    near_equal = [
        Problem(
            rules=parse_rules("p(X,Y) p(Z,Y)"),
            queries=(NamedAtom("p", "a", "a"),),
            policy=PolicySpec("two_tower", seed, 2, hidden, 1),
        )
        for seed, hidden in enumerate((1, 2, 3) * 2)
    ]
    found = kv.check_engine(kv.Evaluator(mode=mode, device="cpu"), examples=examples, problems=near_equal, seconds=300)
    assert found.is_conforming, str(found)
    assert (len(found.laws), found.num_skipped) == (42, 0)


@pytest.mark.deep
def test_fused_kernels_agree_with_the_reference() -> None:
    # A small one, with a proof, a failure and both kinds of drop.
    problem = next(islice(draw_problems(14), 25, None))
    problems = [
        replace(problem, policy=policy) for policy in (PolicySpec("shortest"), PolicySpec("two_tower", 0, 8, 16, 1))
    ]
    make = compiled_maker(mode="fused", device=DEVICE.type)
    checker = Checker(make, lockstep=True)
    assert not any(map(checker.find_suspects, prepare_batches(problems)))


def full_step(num_facts: int, max_resolvents: int, **sizes: int) -> Known:
    """Return steps whose last clause proves the goal, or is the first that the limit drops."""
    facts = " ".join(f"q(a{i:03},b{i:03})" for i in range(num_facts))
    last = f"{num_facts - 1:03}"
    rules = "p(X,Y) q(U,V) r(V,U); s(X,Y) q(U,V) t(V,W)"
    program = program_of(f"{facts} r(b{last},a{last}) t(c,c)", rules, "p(a000,b000) s(a000,b000)")
    candidates = candidates_of(program, "p(a000,b000) s(a000,b000)")
    return Known(program, candidates, Limits(max_resolvents=max_resolvents, max_atoms=2), {"match_window": 16} | sizes)


def windows_beside_a_chain() -> Known:
    """Return a step in which 1,600 clauses match and 1,300 resolvents are kept, and a derivation along a chain."""
    num, kept = 1_600, 1_300
    facts = " ".join(f"has(c0,c{i})" for i in range(num))
    facts += " " + " ".join(f"links(c{i},c{to})" for i in range(8) for to in {0, i + 1})
    rules = "starts(X,Y) has(X,Z) ends(Z,Y); ends(X,Y) nothing(X,Y); is_true(X,Y) has(X,Y);"
    rules += "leads(X,Y) links(X,Z) leads(Z,Y); leads(X,Y) links(X,Z) links(Z,U) links(U,V) leads(V,Y)"
    program = program_of(facts, rules)
    candidates = candidates_of(program, f"leads(c0,c{num - 1}) starts(c0,c1) is_true(c0,c1) nothing(c0,c1)")
    limits = Limits(max_depth=8, max_atoms=3, max_resolvents=kept)
    return Known(program, candidates, limits, {"slots": 2, "match_window": 320, "score_window": kept, "pool": 3})


def uncounted_variables() -> Known:
    program = program_of("p(a,b)", "r(X,Z) s(X,Y) s(Y,Z); s(X,X) r(X,X)")
    r = program.symbols.predicate_ids["r"]
    return Known(
        program,
        candidates_at(np.array([[r, -2, -1], [r, -40, 0], [r, -3, -3], [r, -13, -1]], np.int32)),
        Limits(max_depth=3),
    )


def chain(num: int, **sizes: int) -> Known:
    """Return a proof of twice as many steps as the chain has links, one of a short chain, and a failure."""
    facts = " ".join(f"e(c{i},c{i + 1})" for i in range(num)) + f" t(c{num},b)"
    queries = f"t(c0,b) t(c{num - 1},b) t(c0,a) t(c0,b)"
    return known(facts, "t(X,Z) e(X,Y) t(Y,Z)", queries, Limits(max_depth=2 * num + 2), **sizes)


PAIRS = partial(known, "p(a,b) q(b,c) p(c,a) q(c,c) s(a,b) s(c,a)", "p(X,Y) p(X,Y) s(X,Y)", "p(a,b) q(b,c) p(c,a)")
LONG = "; ".join(f"p(X,Y) q(X,c{i}) q(c{i},Y)" for i in range(20))
CASES = {
    "no candidates": lambda: known("p(a,b)", "", ""),
    "no rules": lambda: known("p(a,b)", "", "p(a,b) p(X,Y) p(b,b)", Limits(exclude_query=False)),
    "no facts": lambda: known("", "p(X,Y) q(Y,Z); p(X,X) r(X,a)", "p(a,b) p(X,Y) p(b,b)", Limits(exclude_query=False)),
    "variables of any number": uncounted_variables,
    "goals that return": lambda: known("q(a,b)", "p(X,Y) p(Y,X)", "p(a,b) p(X,Y) p(X,X)"),
    "a long resolvent that returns": lambda: known("r(a,b)", "p(X,Y) p(X,Y) q(Y,Z) q(Z,V)", "p(a,b)", Limits(20, 2)),
    "each slot excludes its query": lambda: PAIRS(Limits(max_depth=1, max_atoms=2), slots=8),
    "no slot excludes its query": lambda: PAIRS(Limits(max_depth=1, max_atoms=2, exclude_query=False), slots=8),
    "a proof behind windows": lambda: full_step(20, 1, match_window=8),
    "a proof at the limit": lambda: full_step(20, 19),
    "a limit of all clauses": lambda: full_step(20, 20),
    "windows of one clause": lambda: full_step(20, 3, match_window=1, slots=1, pool=1),
    "more padding": lambda: full_step(20, 3, atoms=5, resolvents=27, slots=12),
    "resolvents that fill 8 bits": lambda: full_step(256, 256, match_window=64),
    "many long resolvents": lambda: known("q(a,b)", LONG, "p(a,b)", Limits(max_atoms=1)),
    "a long chain": lambda: chain(18, slots=1),
    "windows beside a chain": windows_beside_a_chain,
}


FUSED = (
    "no candidates",
    "variables of any number",
    "goals that return",
    "a long resolvent that returns",
    "each slot excludes its query",
    "a proof behind windows",
    "windows of one clause",
)
"""The cases whose kernels are interpreted in the deep tier; the exhaustive one has the others, which take longer."""


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(pytest.param(name, "native", marks=needs_compiler) for name in CASES),
        *((name, "eager") for name in CASES),
        *(
            pytest.param(name, "fused", marks=pytest.mark.deep if name in FUSED else pytest.mark.exhaustive)
            for name in CASES
        ),
    ],
)
def test_a_boundary_case_is_proved_as_by_the_reference(name: str, mode: str) -> None:
    case = CASES[name]()
    if mode == "fused" and (case.limits.max_resolvents > 1024 or case.limits.max_depth > 20):
        pytest.skip("the kernels keep fewer resolvents, and take long steps one by one here")
    expected, engine = case.expected, case.make(mode)
    assert_same(expected, engine.prove(case.candidates))
    if mode == "fused" and len(case.program.facts) > 100:
        return  # the interpreter takes a second for each of these steps
    assert_same(case.reference.step(positions_of(expected)), engine.step(positions_of(expected)))
    for found, wanted in zip(engine.evaluate(case.candidates).results, expected.candidates[4:], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)


@pytest.mark.deep
@pytest.mark.parametrize("mode", MODES[:2])
def test_every_fact_of_a_large_predicate_is_counted(mode: str) -> None:
    """The size of the largest predicate of wn18rr, and its hubs."""
    facts = [f"p(hub,out{i})" for i in range(2_543)] + [f"p(in{i},hub)" for i in range(1_777)]
    facts += [f"p(loop{i},loop{i})" for i in range(130)]
    facts += [f"p(x{i % 180},y{i // 180})" for i in range(34_796 - len(facts))]
    queries = "r(X,Z) r(in0,hub) r(hub,Z) s(loop3,hub) s(X,Z) t(hub,Z) r(x5,y5) p(hub,out7) r(X,Z)"
    rules = "r(X,Z) p(X,Y) q(Y,Z); s(X,Z) p(X,X) q(X,Z); t(X,Z) p(Y,X) q(Y,Z)"
    case = known(" ".join(facts[::-1]), rules, queries, Limits(max_depth=2), match_window=3000, slots=3)
    columns = case.make(mode).prove(case.candidates)
    assert_same(case.expected, columns)
    counts = columns.steps.num_resolvents + columns.steps.dropped_resolvents
    assert {34_796, 2_543, 1_777, 130} <= {*counts.tolist()}


@needs_compiler
def test_the_native_evaluator_counts_beyond_16_bits() -> None:
    num = 70_000
    facts = " ".join(f"p(a,c{i})" for i in range(num))
    case = known(facts, "q(X,X) p(X,Y) r(Y,Y)", "q(a,a)", Limits(max_resolvents=100_000, max_depth=2))
    columns = case.make("native").prove(case.candidates)
    assert columns.steps.num_resolvents.tolist() == [1, num]
    assert_same(case.expected, columns)


def drawn(seed: int, number: int, policy: str) -> Merged:
    return merge([replace(next(islice(draw_problems(seed), number, None)), policy=PolicySpec(policy))])


@pytest.mark.parametrize(
    ("mode", "seed", "number", "policy"),
    [
        pytest.param("native", 9, 389, "shortest", marks=needs_compiler),
        pytest.param("native", 9, 282, "two_tower", marks=needs_compiler),
        ("eager", 6, 87, "shortest"),
        ("eager", 9, 282, "two_tower"),
        pytest.param("fused", 14, 25, "shortest", marks=pytest.mark.deep),
    ],
)
def test_what_is_evaluated_recorded_and_shown_is_what_the_reference_proves(
    mode: str, seed: int, number: int, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = drawn(seed, number, policy)
    reference = reference_pipeline(merged.run)
    candidates = reference.draw_for(merged.run)
    sizes = DEFAULT_SIZES._replace(slots=2, pool=3)
    engine = compiled_maker(mode=mode, device="cpu" if mode != "fused" else DEVICE.type)(merged.run, sizes).engine
    if mode == "fused":
        # Steps leave the log before it is full.
        monkeypatch.setattr("kgverify.prover.fused.record.StepLog.has_room", lambda _: False)
    expected, error = reference.engine.prove(candidates), 0.0 if policy == "shortest" else 1e-5
    assert (expected.steps.dropped_atoms > 0).any()
    assert len({*expected.candidates.outcome.tolist()}) > 1

    columns, ended = engine.prove(candidates), []
    assert_same(expected, columns, error)
    digests = compute_digests(columns)
    for level in TraceLevel:
        parts = [part.read() for part in engine.record(candidates, ended.append, level=level)]
        assert sum(ended) == len(candidates.query)
        ended.clear()
        recorded = concatenate([part for part, _ in parts])
        assert_same([columns.candidates], [recorded.candidates])
        assert len(recorded.steps.depth) == len(columns.steps.depth)
        if level is not TraceLevel.DIGESTS or mode == "eager":
            assert_same(columns, recorded)
        if mode == "eager":
            assert {sequence for _, sequence in parts} == {None}
        else:
            assert np.concatenate([sequence for _, sequence in parts]).tolist() == digests.sequence.tolist()

    evaluation = engine.evaluate(candidates, ended.append, has_digests=mode != "eager")
    assert sum(ended) == len(candidates.query)
    for found, wanted in zip(evaluation.results, columns.candidates[4:], strict=True):
        np.testing.assert_array_equal(found, wanted)
    if mode != "eager":
        assert evaluation.digests.num_steps.tolist() == columns.candidates.num_steps.tolist()
        assert evaluation.digests.digests.sequence.tolist() == digests.sequence.tolist()
        num_choices = int((expected.steps.num_resolvents > 1).sum())
        assert evaluation.num_choices == (num_choices if policy == "two_tower" else 0)
    if mode == "fused":
        assert evaluation.digests.digests.multiset.tolist() == digests.multiset.tolist()
        # Nothing is above an infinite floor, so that only the last candidate takes a second step.
        floor = np.append(np.full(len(candidates.query) - 1, np.inf), -np.inf)
        first = columns.steps.outcome[starts_of(columns.candidates.num_steps.astype(np.int64))[:-1]]
        stops = (floor > 0) & (first == Outcome.OPEN)
        assert stops.any()
        stopped = engine.evaluate(candidates, floor=floor).results.outcome
        assert stopped.tolist() == np.where(stops, STOPPED, columns.candidates.outcome).tolist()

    # One step to TRUE, one to FALSE, and a first one.
    last = {int(outcome): row for row, outcome in enumerate(expected.candidates.outcome)}
    for row, step in ((last[Outcome.PROVED], -1), (last[Outcome.FAILED], -1), (0, 0)):
        position = find_position(MemoryReader(expected), row, step % int(expected.candidates.num_steps[row]))
        shown, outputs = engine.probe(position), reference.engine.probe(position)
        np.testing.assert_allclose(shown.pop(Stage.SCORE), outputs.pop(Stage.SCORE), atol=1e-4)
        assert {stage: shown[stage] for stage in outputs} == outputs


@pytest.mark.parametrize(("mode", "num"), [pytest.param("native", 100, marks=needs_compiler), ("eager", 8)])
def test_derivations_steps_and_stages_are_those_of_the_reference_under_any_limits(mode: str, num: int) -> None:
    rng = random.Random(2026)
    sizes = DEFAULT_SIZES._replace(slots=2, pool=3, match_window=2, score_window=40)
    for problem in islice(draw_problems(31), num):
        depth, atoms, resolvents = (rng.choice(each) for each in ((1, 2, 3, 4, 9), (1, 2, 3, 6), (1, 2, 3, 5, 40)))
        limits = Limits(depth, atoms, resolvents, exclude_query=rng.random() < 0.7)
        merged = merge([replace(problem, limits=limits, policy=PolicySpec("shortest"))])
        candidates = merged.with_unranked(merged.expected).draw_for(merged.run)
        reference, engine = merged.expected.engine, compiled_maker(mode=mode)(merged.run, sizes).engine
        expected = reference.prove(candidates)
        positions = positions_of(expected)
        assert_same(expected, engine.prove(candidates))
        assert_same(reference.step(positions), engine.step(positions))
        for position in islice(split_positions(positions, 1), 0, 30, 5):
            wanted, shown = reference.probe(position), engine.probe(position)
            assert {stage: shown[stage] for stage in STEP_STAGES} == wanted


@pytest.mark.parametrize("number", [1, 2, 4])
def test_an_engine_that_was_interrupted_proves_the_same_afterwards(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is interrupted within steps.
    monkeypatch.setattr(stage_ticks, "_READ_AT_ONCE", 0)
    num_interrupted = 0
    for problem in islice(draw_problems(31), 6):
        merged = merge([replace(problem, policy=PolicySpec("shortest"))])
        reference = reference_pipeline(merged.run)
        candidates = reference.draw_for(merged.run)
        engine = compiled_maker()(merged.run, DEFAULT_SIZES._replace(slots=2, pool=3, match_window=2)).engine
        ended: list[int] = []

        def stop(num: int, ended: list[int] = ended) -> None:
            ended.append(num)
            if len(ended) == number:
                raise InterruptedError

        with suppress(InterruptedError):
            engine.prove(candidates, stop)
        num_interrupted += len(ended) == number
        for buffer in engine._work:
            # The rest of a step.
            buffer.fill_(number)
        assert_same(reference.engine.prove(candidates), engine.prove(candidates))
    assert num_interrupted > 3


@needs_compiler
@pytest.mark.parametrize("name", ["shortest", "two_tower"])
def test_threads_and_neighbours_change_no_bit(name: str) -> None:
    graph, limits = kv.load_graph("countries"), Limits()
    run = kv.Run(graph, limits, num_queries=4, num_corruptions=15)
    policy = run.policy if name == "shortest" else make_two_tower(graph.program, limits, seed=1)
    candidates = reference_pipeline(run).draw_for(run)
    whole, *others = (NativeEngine(graph.program, limits, policy, threads=num).prove(candidates) for num in (1, 5))
    engine = NativeEngine(graph.program, limits, policy, threads=2)
    others.append(concatenate([engine.prove(candidates.take(slice(i, i + 1))) for i in range(len(candidates.query))]))
    for other in others:
        assert_same_columns(whole, other)


def test_a_position_beyond_the_limits_is_refused() -> None:
    program = program_of("p(a,b) p(b,c)", "r(X,Z) p(X,Y) p(Y,Z)", "r(a,c)")
    case = Known(program, candidates_of(program, "r(a,c)"), Limits(max_atoms=2))
    positions = positions_of(case.expected)
    longer = positions._replace(num_atoms=np.full_like(positions.num_atoms, 3), atoms=positions.atoms.repeat(3, 0))
    for mode in ("eager", "native"):
        with pytest.raises(kv.UserError, match="a step exceeds its limits"):
            case.make(mode).step(longer)
