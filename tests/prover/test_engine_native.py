"""The native evaluator: every step, stage, score and digest is that of the reference, on any number of threads."""

import _ctypes
import os
import shutil
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from engine_checks import assert_identical, difference, near_ties, reference
from random_programs import Problem, random_problem

from kgverify import Evaluator, Limits, RecordingOptions, Stage, UserError, load_graph
from kgverify.dialects import Dialect
from kgverify.engines.policy import SHORTEST, Policy, make_two_tower
from kgverify.engines.protocol import ExplainedEngine, ProbedEngine, RecordingEngine, positions_of, split_positions
from kgverify.errors import InternalError
from kgverify.program.outcomes import STEP_STAGES, GoalKind, Outcome
from kgverify.prover.native import choice, library
from kgverify.prover.native.engine import NativeEngine
from kgverify.ranking.draw import draw_candidates
from kgverify.runs.run import Run, reference_pipeline
from kgverify.threads import count_threads
from kgverify.trace.model.columns import CandidateSet, concatenate
from kgverify.trace.model.digests import compute_sequence
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.stage_items import ends_alike
from kgverify.trace.read.trace_file import read_trace
from kgverify.verification.record import record

pytestmark = pytest.mark.skipif(library.why_not_available() is not None, reason=str(library.why_not_available()))


def native(problem: Problem, policy: Policy = SHORTEST, threads: int = 2) -> NativeEngine:
    return NativeEngine(problem.program, problem.limits, policy, threads=threads)


def countries(policy: Policy = SHORTEST, threads: int = 2, **limits: int) -> tuple[NativeEngine, Problem]:
    graph = load_graph("countries")
    problem = Problem(
        graph.program, Limits(**limits), draw_candidates(graph, "test", range(4), num_corruptions=15, seed=0)
    )
    return native(problem, policy, threads), problem


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.deep] * (seed >= 30)) for seed in range(240)])
def test_its_steps_are_those_of_the_reference(seed: int) -> None:
    problem = random_problem(seed)
    prover, engine = reference(problem), native(problem)
    expected = prover.prove(problem.candidates)
    assert not difference(expected, engine.prove(problem.candidates)), "free running"
    positions = positions_of(expected)
    assert not difference(prover.step(positions), engine.step(positions)), "in lockstep"


def test_rare_outcomes_and_limits_occur_in_these_problems() -> None:
    parts = [native(problem).prove(problem.candidates) for problem in map(random_problem, range(30))]
    found = concatenate(parts)
    assert set(found.candidates.outcome.tolist()) == {Outcome.PROVED, Outcome.FAILED, Outcome.DEPTH_LIMIT}
    assert set(found.resolvents.kind.tolist()) == {GoalKind.GOAL, GoalKind.TRUE, GoalKind.FALSE}
    for counts in (found.steps.dropped_atoms, found.steps.dropped_resolvents, found.candidates.is_limited):
        assert counts.any()


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(3, 40))])
def test_its_choices_by_a_network_are_those_of_the_reference(seed: int) -> None:
    problem = random_problem(seed)
    policy = make_two_tower(problem.program, problem.limits, seed=seed, embedding=7, hidden=19, blocks=seed % 3)
    prover, engine = reference(problem, policy), native(problem, policy)
    expected, error = prover.prove(problem.candidates), engine.info.score_error
    assert not near_ties(expected, 1e-12).any() or seed, "the first problem has no tie"
    if not near_ties(expected, 1e-12).any():
        assert not difference(expected, engine.prove(problem.candidates), error)
    positions = positions_of(expected)
    stepped, own = prover.step(positions), engine.step(positions)
    differs = stepped.steps.choice != own.steps.choice
    assert not (differs & ~near_ties(stepped, 1e-12)).any()
    assert np.abs(stepped.resolvents.score - own.resolvents.score).max(initial=0) <= error


def test_close_choices_are_made_in_float64() -> None:
    graph = load_graph("countries")
    policy = make_two_tower(graph.program, Limits(), seed=0)
    # So flat a network has scores within the rounding of float32.
    last = policy.num_blocks - 1
    flat = {
        name: array * (1e-4 if name == f"block.{last}.norm.weight" else 1) for name, array in policy.weights.items()
    }
    engine, problem = countries(Policy("two_tower", flat))
    evaluation = engine.evaluate(problem.candidates)
    assert 0 < evaluation.num_rescored <= evaluation.num_choices
    assert evaluation.smallest_gap < 2 * engine.info.score_error
    expected = reference(problem, Policy("two_tower", flat)).prove(problem.candidates)
    assert not difference(expected, engine.prove(problem.candidates), engine.info.score_error)


def test_every_stage_of_a_probe_is_that_of_the_reference() -> None:
    for problem in map(random_problem, range(12)):
        prover, engine = reference(problem), native(problem)
        for position in split_positions(positions_of(prover.prove(problem.candidates.take(slice(0, 3)))), 1):
            expected, actual = prover.probe(position), engine.probe(position)
            assert list(actual) == list(STEP_STAGES) or set(actual) == set(STEP_STAGES)
            assert {stage: actual[stage] for stage in STEP_STAGES} == expected
            assert ends_alike(actual, engine.probe(position), 0.0)


@pytest.mark.parametrize("name", ["shortest", "two_tower"])
def test_threads_parts_and_neighbours_change_no_bit(name: str) -> None:
    graph = load_graph("countries")
    policy = SHORTEST if name == "shortest" else make_two_tower(graph.program, Limits(), seed=1)
    engine, problem = countries(policy, threads=1)
    whole = engine.prove(problem.candidates)
    assert_identical(whole, countries(policy, threads=5)[0].prove(problem.candidates))
    alone = [engine.prove(problem.candidates.take(slice(i, i + 1))) for i in range(len(problem.candidates.query))]
    assert_identical(whole, concatenate(alone))


def test_recorded_parts_have_the_digests_of_their_steps() -> None:
    engine, problem = countries()
    parts = [part.read() for part in engine.record(problem.candidates)]
    for columns, sequence in parts:
        np.testing.assert_array_equal(sequence, compute_sequence(columns))
    whole = np.concatenate([sequence for _, sequence in parts if sequence is not None])
    light = [part.read() for part in engine.record(problem.candidates, level=TraceLevel.DIGESTS)]
    np.testing.assert_array_equal(np.concatenate([sequence for _, sequence in light if sequence is not None]), whole)
    assert not any(len(columns.resolvents.kind) for columns, _ in light)
    taken = engine.evaluate(problem.candidates, has_digests=True).digests
    assert taken is not None
    np.testing.assert_array_equal(taken.digests.sequence, whole)


@pytest.mark.parametrize("level", ["compact", "steps", "digests"])
def test_a_trace_of_each_level_has_the_digests_of_the_reference(tmp_path: Path, level: str) -> None:
    run = Run(load_graph("countries"), num_queries=2, num_corruptions=3)
    expected = reference_pipeline(run)
    pipelines = expected._replace(engine=NativeEngine(run.graph.program, run.limits, run.policy)), expected
    for name, pipeline in zip("ab", pipelines, strict=True):
        record(run, pipeline, tmp_path / name, RecordingOptions(level=level))
    ours, theirs = (read_trace(tmp_path / name) for name in "ab")
    np.testing.assert_array_equal(ours.digests.sequence, theirs.digests.sequence)
    np.testing.assert_array_equal(ours.columns.candidates.num_steps, theirs.columns.candidates.num_steps)


def test_an_evaluation_ends_as_the_recorded_derivations_do() -> None:
    engine, problem = countries(max_depth=3, max_resolvents=4)
    seen: list[int] = []
    results = engine.evaluate(problem.candidates, seen.append).results
    recorded = engine.prove(problem.candidates).candidates
    for name in results._fields:
        np.testing.assert_array_equal(getattr(results, name), getattr(recorded, name))
    assert sum(seen) == len(problem.candidates.query)
    nothing = CandidateSet(np.zeros(0, np.int32), np.zeros(0, np.int8), np.zeros((0, 3), np.int32))
    assert len(engine.evaluate(nothing).results.outcome) == len(engine.prove(nothing).steps.depth) == 0


def test_it_offers_what_engines_of_kgverify_do() -> None:
    engine, problem = countries()
    assert isinstance(engine, ProbedEngine | RecordingEngine | ExplainedEngine)
    assert engine.info.mode == "native"
    made = Evaluator(mode="native")(problem.program, problem.limits, SHORTEST)
    assert isinstance(made, ExplainedEngine)
    assert any("native" in reason for reason in made.reasons)


def test_counts_beyond_16_bits_are_kept() -> None:
    from kgverify.program.atoms import NamedAtom, Variable
    from kgverify.program.program import NamedRule, Program

    num = 70_000
    x, y = Variable("X"), Variable("Y")
    facts = [NamedAtom("p", "a", f"c{i}") for i in range(num)]
    rule = NamedRule(NamedAtom("q", x, x), (NamedAtom("p", x, y), NamedAtom("r", y, y)))
    program = Program.from_names(facts, [rule], [NamedAtom("q", "a", "a")])
    query = np.array([program.symbols.encode(NamedAtom("q", "a", "a"))], np.int32)
    candidates = CandidateSet(np.zeros(1, np.int32), np.zeros(1, np.int8), query)
    problem = Problem(program, Limits(max_resolvents=100_000, max_depth=2), candidates)
    columns = native(problem).prove(candidates)
    assert columns.steps.num_resolvents.tolist() == [1, num]
    assert not difference(reference(problem).prove(candidates), columns)


def test_a_run_that_it_does_not_support_is_refused_with_the_reason() -> None:
    graph = load_graph("countries")
    for options, text in (
        ({"device": "cuda"}, "CPU"),
        ({"precision": "bf16"}, "bf16"),
        ({"limits": Limits(dialect=Dialect(memory="none"))}, "dialect"),
    ):
        limits = options.pop("limits", Limits())
        with pytest.raises(UserError, match=text) as caught:
            Evaluator(mode="native", **options)(graph.program, limits, SHORTEST)  # type: ignore[arg-type]
        assert caught.value.where == "mode"
    engine, problem = countries(max_atoms=2)
    positions = positions_of(engine.prove(problem.candidates))
    with pytest.raises(InternalError, match="does not fit"):
        countries(max_atoms=1)[0].step(positions._replace(num_atoms=positions.num_atoms + 1))


def test_faults_of_stages_are_refused_and_others_are_planted() -> None:
    from kgverify.runs.engine_makers import evaluator_pipeline
    from kgverify.runs.run import Run

    graph = load_graph("countries")
    run = Run(graph, Limits(), SHORTEST, num_queries=2, num_corruptions=5)
    with pytest.raises(UserError, match="mode 'native' does not carry the fault 'fact-cap'") as caught:
        evaluator_pipeline(run, faults=["fact-cap"], mode="native")
    assert caught.value.fix == "choose the mode eager, default, reduce-overhead, max-autotune or plain"
    pipeline = evaluator_pipeline(run, faults=["optimistic-ties"], mode="native")
    assert pipeline.engine.info.faults == ("optimistic-ties",)


compiled: list[Path] = []


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of libraries that does not exist yet, and a compiler that copies some library."""
    monkeypatch.setenv(library.LIBRARIES, str(tmp_path / "libraries"))
    compiled.clear()

    def copy(compiler: str, into: Path) -> Path:
        compiled.append(into)
        return Path(shutil.copy(_ctypes.__file__, into / "prover.so"))

    monkeypatch.setattr(library, "_compile", copy)
    return tmp_path / "libraries"


def load_again() -> None:
    library.load_library.__wrapped__()


def test_a_library_is_compiled_once_and_kept_for_its_owner_alone(kept: Path) -> None:
    load_again()
    load_again()
    assert len(compiled) == 1
    assert kept.stat().st_mode & 0o777 == 0o700
    (path,) = kept.glob("*.so")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    load_again()
    assert len(compiled) == 2, "a changed library is not loaded"
    path.chmod(0o666)
    load_again()
    assert len(compiled) == 3, "nor one that others can write"


def test_choices_between_several_resolvents_are_counted() -> None:
    engine, problem = countries(make_two_tower(load_graph("countries").program, Limits(), seed=1))
    num_resolvents = engine.prove(problem.candidates).steps.num_resolvents
    found = engine.evaluate(problem.candidates)
    assert found.num_choices == int((num_resolvents > 1).sum()) > 0
    assert found.num_rescored < found.num_choices


def test_no_candidates_have_no_results_and_no_digests() -> None:
    problem = random_problem(0)
    none = problem.candidates.take(np.zeros(0, np.int64))
    found = native(problem).evaluate(none, has_digests=True)
    assert found.digests is not None
    sizes = {len(each) for each in (*found.results, found.digests.num_steps, *found.digests.digests)}
    assert (sizes, found.num_choices) == ({0}, 0)


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_in_one_that_others_can_write_is_not_used(kept: Path, mode: int) -> None:
    load_again()
    (path,) = kept.glob("*.so")
    kept.parent.chmod(mode)
    load_again()
    assert len(compiled) == 2
    kept.parent.chmod(0o700)
    load_again()
    assert len(compiled) == 2
    assert [*kept.iterdir()] == [path]


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_that_others_can_write_is_not_used(kept: Path, mode: int) -> None:
    kept.mkdir()
    kept.chmod(mode)
    load_again()
    load_again()
    assert len(compiled) == 2
    assert not list(kept.iterdir())


def test_a_linked_folder_is_not_used(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    kept.symlink_to(tmp_path / "elsewhere")
    load_again()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_libraries_are_kept_in_the_folder_that_is_named_or_beside_other_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base: Path | None = tmp_path / "cache"
    monkeypatch.setattr(library, "find_cache", lambda: base)
    monkeypatch.delenv(library.LIBRARIES, raising=False)
    assert library._find_folder() == tmp_path / "cache" / "native"
    monkeypatch.setenv(library.LIBRARIES, str(tmp_path / "named"))
    assert library._find_folder() == tmp_path / "named"
    base = None
    assert library._find_folder() == tmp_path / "named"
    monkeypatch.delenv(library.LIBRARIES)
    assert library._find_folder() is None


def test_a_library_is_known_by_its_sources_its_compiler_and_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("1")
    for name in library.SOURCES:
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(library, "files", lambda _: tmp_path)

    def find_key() -> str:
        return library._find_key(str(compiler))

    keys = [find_key()]
    assert find_key() == keys[0]
    for name in library.SOURCES:
        (tmp_path / name).write_text(name.upper())
        keys.append(find_key())
    compiler.write_text("12")
    keys.append(find_key())
    monkeypatch.setattr(library, "OPTIONS", (*library.OPTIONS, "-g"))
    keys.append(find_key())
    assert len({*keys}) == len(keys)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("touch prover.so", ""),
        ("echo 'x.cpp:1: error: no' >&2; touch prover.so; exit 1", "cc fails: x.cpp:1: error: no"),
        ("exit 4", "cc fails: exit code 4"),
        ("exit 0", "cc fails: exit code 0"),
    ],
)
def test_a_compiler_that_leaves_no_library_fails(script: str, message: str, tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    if message:
        with pytest.raises(UserError, match=message):
            library._compile(str(compiler), tmp_path)
    else:
        assert library._compile(str(compiler), tmp_path) == tmp_path / "prover.so"


def test_without_a_compiler_the_mode_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    graph = load_graph("countries")
    with pytest.raises(UserError, match=r"no C\+\+ compiler"):
        Evaluator(mode="native")(graph.program, Limits(), SHORTEST)
    with pytest.raises(UserError, match=r"no C\+\+ compiler"):
        load_again()
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'x.cpp:1: error: no' >&2\nexit 1\n")
    os.chmod(broken, 0o755)
    with pytest.raises(UserError, match="error: no"):
        load_again()


def test_the_stages_of_the_source_have_the_names_of_the_semantics() -> None:
    text = (Path(library.__file__).parent / "stages.h").read_text("utf-8")
    for stage in set(STEP_STAGES) - {Stage.SCORE}:
        assert f" {stage.value}(" in text or f"&{stage.value}(" in text, stage
    assert "score_shortest(" in text


def test_positions_beyond_the_limits_are_refused() -> None:
    limits = Limits(max_atoms=2)
    for num_atoms, lowest, num_goals in product((1, 2, 3), (-3, -4, -5), (0, 1)):
        positions = SimpleNamespace(
            depth=np.zeros(1, np.uint16),
            num_goals=np.array([num_goals], np.uint32),
            num_atoms=np.array([num_atoms], np.uint16),
            atoms=np.array([[0, 0, lowest]], np.int32),
        )
        engine = SimpleNamespace(limits=limits)
        if num_atoms <= 2 and lowest >= -4 and num_goals:
            assert NativeEngine._position_arrays(engine, positions)
        else:
            with pytest.raises(InternalError, match="does not fit the limits"):
                NativeEngine._position_arrays(engine, positions)


def test_as_many_threads_run_as_there_are_cores_unless_another_number_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, wanted in (("3", 3), ("0", 5), ("many", 5), ("", 5)):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(5), raising=False)
        assert count_threads() == wanted
    # As on systems that do not tell the cores of a process.
    monkeypatch.delattr(os, "sched_getaffinity")
    for found, wanted in ((7, 7), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda found=found: found)
        assert count_threads() == wanted


def test_a_library_without_memory_is_an_error_and_an_engine_that_was_not_made_is_freed() -> None:
    candidates = CandidateSet(np.zeros(1, np.int32), np.zeros(1, np.int8), np.zeros((1, 3), np.int32))

    def find_no_memory(*arguments: object) -> None:
        return None

    without = SimpleNamespace(_library=SimpleNamespace(native_run=find_no_memory), _engine=None, _threads=1)
    with pytest.raises(MemoryError, match="the steps of these candidates"):
        NativeEngine._run(without, candidates, 0)
    NativeEngine.__new__(NativeEngine).__del__()


def test_a_device_is_looked_for_only_where_there_is_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "driver"
    monkeypatch.setattr(choice, "_DRIVERS", (str(driver),))
    for has_driver, has_cuda in product((False, True), repeat=2):
        driver.write_text("") if has_driver else driver.unlink(missing_ok=True)
        monkeypatch.setattr("torch.cuda.is_available", lambda has_cuda=has_cuda: has_cuda)
        assert choice.is_on_cpu("cpu")
        assert not choice.is_on_cpu("cuda")
        assert choice.is_on_cpu("auto") is not (has_driver and has_cuda)


def test_auto_takes_the_native_evaluator_on_a_cpu_where_nothing_speaks_against_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "why_not_native", lambda *_: None)
    chosen = choice.choose_native("auto", "cpu", "float32", Limits(), SHORTEST)
    assert chosen == (
        "device cpu: as requested",
        "mode native: the fastest on a CPU, and a C++ compiler was found",
        "precision float32: its scores are exact",
    )
    for mode, device in (("auto", "cuda"), ("eager", "cpu"), ("fused", "cuda")):
        assert choice.choose_native(mode, device, "float32", Limits(), SHORTEST) is None
    monkeypatch.setattr(choice, "why_not_native", lambda *_: "there is an obstacle")
    assert choice.choose_native("auto", "cpu", "float32", Limits(), SHORTEST) is None
    with pytest.raises(UserError, match="there is an obstacle"):
        choice.choose_native("native", "cpu", "float32", Limits(), SHORTEST)


def test_the_oldest_libraries_are_removed(tmp_path: Path) -> None:
    built = tmp_path / "built"
    for number in range(library.MOST_KEPT + 3):
        built.write_bytes(bytes([number]))
        library._keep(tmp_path, f"key{number}", built)
        (kept,) = tmp_path.glob(f"key{number}-*.so")
        os.utime(kept, (number, number))
        assert len(list(tmp_path.glob("*.so"))) == min(number + 1, library.MOST_KEPT)
    assert len(list(tmp_path.glob(f"key{number}-*.so"))) == 1
