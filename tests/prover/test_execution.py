"""Device, mode, precision and sizes are chosen with reasons or refused with a fix; memory and processes are reported."""

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_checks import CPU, candidates_of, eager, program_of
from invoked_commands import invoke

import kgverify as kv
from kgverify import Evaluator, Limits, Policy, PolicySpec, Run, UserError, load_graph
from kgverify.dialects import Dialect, ReferenceEngine
from kgverify.engines.policy import POLICY_NAMES, SHORTEST, make_two_tower
from kgverify.engines.protocol import Workload
from kgverify.evaluation.proving import is_out_of_memory
from kgverify.files.code_identity import find_compiler
from kgverify.laws import compiled_maker, draw_problems
from kgverify.prover import execution_choice
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution import compilation, device
from kgverify.prover.execution.compilation import MODES, compile_function, resolve_mode
from kgverify.prover.execution.device import products_set_to
from kgverify.prover.execution_choice import Demand, choose_evaluation_layout, choose_layout, resolve_precision
from kgverify.prover.native import choice
from kgverify.prover.stages.choose import (
    SCORES,
    Parameters,
    Rescoring,
    build_parameters,
    score_shortest,
    score_two_tower,
)
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.state import Layout
from kgverify.prover.tower.launch import declare_error, estimate_score_error
from kgverify.runs.run import load_policy, reference_pipeline
from kgverify.testing.problems.merge import merge

CUDA = torch.device("cuda")
OBSTACLE = "it is not available here"
COUNTRIES = load_graph("countries").program
LIMITS = Limits(max_atoms=3, max_resolvents=10)


@pytest.fixture(autouse=True)
def _usual_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # The native evaluator looks for its compiler once, before a test hides it.
    find_compiler()
    for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"):
        monkeypatch.delenv(name, raising=False)


def make(limits: Limits = LIMITS, policy: Policy = SHORTEST, **options: Any) -> CompiledEngine:
    return CompiledEngine(COUNTRIES, limits, policy, **{"mode": "eager", "device": "cpu"} | options)


def make_policy(program: kv.Program = COUNTRIES, hidden: int = 8) -> Policy:
    return make_two_tower(program, LIMITS, seed=1, embedding=4, hidden=hidden, blocks=1)


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (lambda: choose_layout(LIMITS, atoms=2), r"atoms.*at least 3(.|\n)*fix: choose atoms >= 3"),
        (lambda: choose_layout(LIMITS, resolvents=9), r"resolvents.*at least 10"),
        (lambda: choose_layout(LIMITS, score_window=9), r"score_window.*at least 10"),
        (lambda: choose_layout(LIMITS, slots=0), r"slots.*at least 1"),
        (lambda: choose_layout(LIMITS, match_window=0), r"match_window.*at least 1"),
        (lambda: choose_layout(LIMITS, pool=0), r"pool.*at least 1"),
        (lambda: choose_layout(Limits(max_resolvents=1 << 20), slots=4096), r"GiB, more than 8 GiB(.|\n)*fewer slots"),
        (lambda: make(layout=Layout(2, 1, 10, 8, 10, 4)), r"atoms is 1"),
        (lambda: make(Limits(dialect=Dialect(memory="set"))), "supports the default dialect alone, found memory set"),
        (lambda: make(policy=Policy("longest")), "unknown policy 'longest'"),
        (lambda: make(mode="fast"), r"unknown mode 'fast'(.|\n)*eager"),
        (lambda: make(device="abacus"), "unknown device 'abacus'"),
        (lambda: make(policy=make_policy(), precision="fp8"), "unknown precision"),
        (lambda: make(Limits(max_atoms=9), mode="fused"), "goals of at most 7 atoms"),
        (lambda: make(policy=make_policy(hidden=520), mode="fused"), "hidden widths"),
        (lambda: evaluator(mode="fused", faults="fact-cap"), "a fault in one of the stages"),
        (lambda: evaluator(mode="native", device="cuda"), "CPU"),
        (lambda: evaluator(mode="native", precision="bf16"), "bf16"),
        (lambda: evaluator(Limits(dialect=Dialect(memory="none")), mode="native"), "dialect"),
        (
            lambda: evaluator(mode="native", faults="last-argmax"),
            r"not carry the fault 'last-argmax'(.|\n)*max-autotune or plain",
        ),
        (
            lambda: evaluator(mode="plain", faults="bf16-scores"),
            r"the fault 'bf16-scores'(.|\n)*mode eager, default, (.*) or max-autotune",
        ),
        (lambda: evaluator(mode="plain", device="cuda"), "mode 'plain' has no device cuda"),
        (lambda: evaluator(mode="plain", precision="bf16"), "mode 'plain' has no precision bf16"),
        (
            lambda: make().evaluate(candidates_of(COUNTRIES, "locatedInCR(france,europe)"), has_digests=True),
            "mode `fused`",
        ),
    ],
)
def test_a_choice_that_is_not_possible_is_refused(refused: Callable[[], Any], words: str) -> None:
    if "fused" in refused.__code__.co_consts:
        pytest.importorskip("triton", reason="Triton is not installed")
    with pytest.raises(UserError, match=words) as caught:
        refused()
    assert caught.value.fix


def evaluator(limits: Limits = LIMITS, **options: Any) -> Any:
    return Evaluator(**options)(COUNTRIES, limits, SHORTEST)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_cuda_device_is_reported() -> None:
    with pytest.raises(UserError, match=r'no CUDA device(.|\n)*device="cpu"'):
        make(device="cuda")
    with pytest.raises(UserError, match="needs a CUDA device"):
        make(policy=make_policy(), precision="bf16x3")
    assert make(device="auto").info.device == "cpu"


@pytest.mark.parametrize("engine", [CompiledEngine, ReferenceEngine])
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("input.bias", lambda array: None, "input.bias"),
        ("embedding.constant", lambda array: array[:-1], "constant"),
        ("embedding.variable", lambda array: array[:5], "at least 6"),
        ("input.bias", lambda array: array * np.nan, "NaN"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused(engine: type, name: str, change: Any, message: str) -> None:
    weights = dict(make_policy().weights)
    array = change(weights.pop(name))
    with pytest.raises(UserError, match=message):
        engine(COUNTRIES, LIMITS, Policy("two_tower", weights if array is None else weights | {name: array}))


def test_every_policy_has_scores_and_may_be_read_only() -> None:
    assert set(SCORES) == set(POLICY_NAMES)
    program = program_of("p(a,b)", "r(X,Z) p(X,Y) p(Y,Z); r(X,Y) p(Y,X)", "r(a,b)")
    policy = make_policy(program)
    for array in policy.weights.values():
        array.setflags(write=False)
    eager(program, LIMITS, policy)


@pytest.mark.parametrize("has_compiler", [False, True])
@pytest.mark.parametrize("is_turned_off", [False, True])
def test_each_mode_is_chosen_or_refused(
    has_compiler: bool, is_turned_off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "find_compiler", lambda: "/usr/bin/c++" if has_compiler else None)
    if is_turned_off:
        monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    for mode, where, obstacle in product(("auto", *MODES), (CPU, CUDA), (None, OBSTACLE)):
        if mode in ("native", "fused"):
            wanted = "" if mode == "native" or obstacle else mode
        elif mode == "auto":
            on_gpu = "reduce-overhead" if obstacle else "fused"
            wanted = on_gpu if where == CUDA else "default" if has_compiler and not is_turned_off else "eager"
        else:
            is_refused = is_turned_off or (where == CPU and not has_compiler)
            wanted = "" if mode != "eager" and is_refused else mode
        try:
            found = resolve_mode(mode, where, obstacle)
        except UserError:
            found = ""
        assert found == wanted, (mode, where, obstacle)


def test_a_precision_is_chosen_or_refused() -> None:
    stages, small, wide = Stages(SCORES["two_tower"]), make_policy(), make_policy(hidden=520)
    for policy, where, precision in ((small, CUDA, "bf16"), (wide, CUDA, "float32"), (small, CPU, "float32")):
        assert resolve_precision(precision, policy, stages, where) == precision
        assert resolve_precision(precision, SHORTEST, stages, where) == "float32"
    for policy, given, where, message in (
        (small, stages, CPU, "needs a CUDA device"),
        (small, stages._replace(score=lambda *_: None), CUDA, "replaces the stage `score`"),
        (wide, stages, CUDA, "hidden widths"),
    ):
        with pytest.raises(UserError, match=message):
            resolve_precision("bf16", policy, given, where)


def reasons_of(native: str | None = OBSTACLE, **options: str) -> tuple[str, ...]:
    stages = Stages(SCORES["shortest"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution_choice, "why_not_native", lambda *_: native)
        return execution_choice.choose_execution(
            LIMITS, SHORTEST, stages, lambda _: "it needs a CUDA device", **{"device": "cpu"} | options
        ).reasons


def test_each_choice_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reasons_of(mode="eager", precision="bf16") == (
        "device cpu: as requested",
        "mode eager: as requested",
        "precision float32: not bf16, since the policy has no products",
    )
    for module in (compilation, execution_choice):
        monkeypatch.setattr(module, "find_compiler", lambda: "/usr/bin/g++")
    assert "a C++ compiler was found" in reasons_of()[1]
    for variable in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "1")
            assert reasons_of(native=None)[1] == f"mode eager: {variable}=1 turns torch.compile off"
            with pytest.raises(UserError, match="would run eagerly") as caught:
                reasons_of(mode="default")
            assert "--mode eager" in caught.value.fix
    for module in (compilation, execution_choice):
        monkeypatch.setattr(module, "find_compiler", lambda: None)
    missing = "no C++ compiler is on the PATH"
    assert reasons_of(missing)[1] == f"mode eager: {missing}"
    assert (
        reasons_of("it has no precision fp8")[1] == f"mode eager: not native, since it has no precision fp8; {missing}"
    )
    assert [execution_choice._device_reason("auto", where) for where in (CPU, CUDA)] == [
        "torch found no CUDA device",
        "torch found one",
    ]


def test_auto_takes_the_native_evaluator_on_a_cpu_where_nothing_speaks_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = partial(choice.choose_native, precision="float32", limits=LIMITS, policy=SHORTEST)
    monkeypatch.setattr(choice, "why_not_native", lambda *_: None)
    assert choose("auto", "cpu") == (
        "device cpu: as requested",
        "mode native: the fastest on a CPU, and a C++ compiler was found",
        "precision float32: its scores are exact",
    )
    for mode, where in (("auto", "cuda"), ("eager", "cpu"), ("fused", "cuda")):
        assert choose(mode, where) is None
    monkeypatch.setattr(choice, "why_not_native", lambda *_: OBSTACLE)
    assert choose("auto", "cpu") is None
    with pytest.raises(UserError, match=OBSTACLE):
        choose("native", "cpu")
    # A device is looked for only where there is a driver.
    driver = tmp_path / "driver"
    monkeypatch.setattr(choice, "_DRIVERS", (str(driver),))
    for has_driver, has_cuda in product((False, True), repeat=2):
        driver.write_text("") if has_driver else driver.unlink(missing_ok=True)
        monkeypatch.setattr("torch.cuda.is_available", lambda has_cuda=has_cuda: has_cuda)
        assert choice.is_on_cpu("auto") is not (has_driver and has_cuda)


@pytest.mark.parametrize(
    ("fault", "total", "name", "mode", "reason"),
    [
        (
            "fact-cap",
            None,
            "plain",
            "plain",
            "it is quick enough for few candidates; not native, since there is a fault",
        ),
        (
            "fact-cap",
            2_000,
            "plain",
            "plain",
            "it is quick enough for few candidates; not native, since there is a fault",
        ),
        ("fact-cap", 2_001, "compiled", "eager", "compiling would take longer than it saves"),
        ("last-fact-lost", None, "compiled", "eager", "compiling would take longer than it saves"),
        ("last-fact-lost", 99_999, "compiled", "eager", "compiling would take longer than it saves"),
        ("last-fact-lost", 100_000, "compiled", "default", "compiled loops are faster than eager ones"),
    ],
)
def test_auto_compiles_only_what_repays_it(fault: str, total: int | None, name: str, mode: str, reason: str) -> None:
    work = None if total is None else Workload(lambda _: 64, total)
    engine: Any = Evaluator(device="cpu", faults=fault, work=work)(COUNTRIES, LIMITS, SHORTEST)
    assert (engine.info.name, engine.info.mode) == (name, mode)
    assert reason in engine.reasons[1]


def test_a_small_run_stays_on_a_gpu_unless_a_fault_replaces_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgverify.prover.evaluator.is_on_cpu", lambda _: False)
    monkeypatch.setattr("kgverify.prover.native.choice.is_on_cpu", lambda _: False)
    for faults, name in (("", "compiled"), ("known-triples", "compiled"), ("fact-cap", "plain")):
        engine: Any = Evaluator(faults=faults or ())(COUNTRIES, LIMITS, SHORTEST)
        assert engine.info.name == name


def test_auto_takes_the_plain_evaluator_for_a_dialect_that_no_other_one_supports() -> None:
    engine: Any = Evaluator(device="cpu")(COUNTRIES, Limits(dialect=Dialect(exclusion="never")), SHORTEST)
    assert engine.info.name == "plain"
    assert "the only one that supports this dialect" in engine.reasons[1]


def look_at_values(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum().item() > 0 else x - 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("is_suppressed", [False, True])
def test_a_failed_compilation_is_reported_with_the_mode_and_the_fix(is_suppressed: bool) -> None:
    function = compile_function(look_at_values, "default")
    with torch._dynamo.config.patch(suppress_errors=is_suppressed):
        with pytest.raises(UserError, match="mode 'default' cannot be compiled") as caught:
            function(torch.ones(3))
        assert torch._dynamo.config.suppress_errors is is_suppressed
    assert "--mode eager" in caught.value.fix
    for error in (torch._dynamo.exc.TorchDynamoException("CUDA out of memory"), ValueError("other")):
        with pytest.raises(type(error)), compilation._explained_failures("default"):
            raise error


def test_the_free_memory_of_a_cpu_is_what_the_container_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_CGROUP", tmp_path)
    monkeypatch.setattr(device.os, "sysconf", lambda name: {"SC_AVPHYS_PAGES": 50, "SC_PAGE_SIZE": 100}[name])
    assert device.free_memory(CPU) == 5000
    for most, used, workers, share in (("1000", "400", 1, 600), ("1000", "400", 3, 200), ("max", "400", 1, 5000)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(workers))
        (tmp_path / "memory.max").write_text(f"{most}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
        assert device.free_memory(CPU) == share


def test_an_evaluation_takes_its_share_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = partial(choose_evaluation_layout, COUNTRIES, Limits(), SHORTEST, CPU, 1 << 20)
    free = 16 << 20
    monkeypatch.setattr(execution_choice, "free_memory", lambda _: free)
    assert choose() == choose(Demand(int(execution_choice.SHARE * free)))
    assert choose().slots < choose(Demand(free * 8)).slots
    for limits in (Limits(max_depth=1000), Limits(max_resolvents=1 << 20)):
        layout = choose_evaluation_layout(COUNTRIES, limits, SHORTEST, CUDA, 1 << 20, Demand(1 << 40))
        assert 1 < layout.slots < 1 << 16
    with pytest.raises(UserError, match="more than 8 GiB"):
        choose_evaluation_layout(
            COUNTRIES, Limits(max_depth=1000), SHORTEST, CUDA, 1 << 20, Demand(1 << 40, slots=1 << 16)
        )


def test_a_failed_allocation_is_recognized() -> None:
    failed, other = ValueError("compilation failed"), ValueError("compilation failed")
    failed.__cause__, other.__cause__ = MemoryError(), KeyError("x")
    texts = "[enforce fail] DefaultCPUAllocator: can't allocate memory", "CUDA error: out of memory"
    for error in (*map(RuntimeError, texts), torch.OutOfMemoryError("no"), failed):
        assert is_out_of_memory(error)
    for error in (None, ValueError("can't allocate memory"), RuntimeError("shape mismatch"), other):
        assert not is_out_of_memory(error)


def test_a_process_started_with_others_joins_them_with_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert device.join_team() is None
    monkeypatch.setenv("WORLD_SIZE", "3")
    with monkeypatch.context() as patch:
        patch.setattr(device.distributed, "is_available", lambda: False)
        with pytest.raises(UserError, match="cannot run several processes"):
            device.join_team()
    store, taken = torch.distributed.HashStore(), []
    meeting = importlib.import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(meeting, "rendezvous", lambda url: iter([(store, 2, 3)]))
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for num_gpus, local, rank, gpus in ((0, "", "2", []), (2, "", "1", [1]), (2, "0", "1", [1, 0])):
        monkeypatch.setattr(torch.cuda, "is_available", lambda num=num_gpus: num > 0)
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", local) if local else monkeypatch.delenv("LOCAL_RANK", raising=False)
        assert device.join_team() == (store, 2, 3)
        assert taken == gpus
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="process 2 of this host has no GPU: there are 2"):
        device.join_team()


def test_a_report_holds_the_reasons(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    options = ["--queries", "1", "--corruptions", "1", "--mode", "eager", "--device", "cpu", "--no-determinism"]
    done = invoke(["diff", *options, "--json", str(path)])
    assert done.exit_code == 0, done.output
    report = json.loads(path.read_text())
    assert report["reasons_of_actual"][1] == "mode eager: as requested"
    assert "settings: device cpu: as requested" in done.output


def test_of_usual_weights_the_error_is_small() -> None:
    policy = load_policy("trained", load_graph("countries"), Limits(), 0)
    parameters = build_parameters(policy, CPU, torch.float32)
    assert 0 < estimate_score_error(policy, 6, CPU, score_two_tower, parameters) < 1e-3
    assert estimate_score_error(SHORTEST, 6, CPU, score_shortest, ()) == 0


def test_the_declared_error_is_that_of_the_sizes_or_of_what_was_seen() -> None:
    policy = make_two_tower(load_graph("countries").program, Limits(), seed=1, embedding=4, hidden=16, blocks=2)
    weights = {**policy.weights, "block.1.norm.weight": np.full(16, -2.0), "block.1.norm.bias": np.full(16, 1.0)}
    policy = replace(policy, weights=weights)
    # Of towers of 16 units of at most 2 + 1, the product by 16**0.5 is 36; 2 + 2 layers round sums of 16 units.
    assert declare_error(policy, 0.0, CPU) == pytest.approx(36 * (2 + 2) * 16**0.5 * 2**-23)
    assert declare_error(policy, 1.0, CPU) == 8.0
    assert declare_error(policy, 1.0, torch.device("cuda")) == 4.0


def score_coarsely(
    parameters: Parameters, goals: torch.Tensor, resolvents: torch.Tensor, slot: torch.Tensor
) -> torch.Tensor:
    """Return scores rounded to bfloat16, of the first half of the parameters."""
    half = parameters[: len(parameters) // 2]
    return score_two_tower(half, goals, resolvents, slot).bfloat16().float()


def test_close_choices_of_coarse_scores_are_made_again_while_their_slots_wait() -> None:
    policy, limits = PolicySpec("two_tower", 0, 16, 16, 2), Limits(max_resolvents=3)
    drawn = islice(draw_problems(21, 0), 40)
    merged = merge([replace(each, policy=policy, limits=limits, num_corruptions=1, seed=0) for each in drawn])
    candidates = reference_pipeline(merged.run).draw_for(merged.run)
    exact = compiled_maker()(merged.run, merged.sizes).engine.prove(candidates)
    columns = []
    for is_rescored in (True, False):
        engine = compiled_maker()(merged.run, merged.sizes).engine
        assert isinstance(engine, CompiledEngine)
        parameters = engine._parameters
        engine._parameters = (*parameters, *parameters)
        error = max(estimate_score_error(merged.run.policy, 6, CPU, score_coarsely, engine._parameters), 0.05)
        rescoring = Rescoring(score_two_tower, len(parameters), error, limits.max_resolvents)
        stages = engine._setting.stages._replace(score=score_coarsely)
        engine._setting = engine._setting._replace(stages=stages, rescoring=rescoring if is_rescored else None)
        engine._ticks = engine._build_ticks(merged.run.policy)
        columns.append(engine.prove(candidates))
    rescored, coarse = columns
    assert exact.steps.num_resolvents.sum() > 10 * limits.max_resolvents
    assert coarse.steps.choice.tolist() != exact.steps.choice.tolist()
    assert rescored.candidates.outcome.tolist() == exact.candidates.outcome.tolist()
    for name in ("choice", "num_resolvents"):
        assert getattr(rescored.steps, name).tolist() == getattr(exact.steps, name).tolist()
    for name in ("num_atoms", "atoms"):
        assert getattr(rescored.resolvents, name).tolist() == getattr(exact.resolvents, name).tolist()


def test_settings_and_autocast_around_the_evaluator_change_no_bit() -> None:
    graph = load_graph("countries")
    run = Run(graph, policy=load_policy("two_tower", graph, Limits(), 0), num_queries=2, num_corruptions=3)
    candidates = reference_pipeline(run).draw_for(run)
    layout = choose_layout(run.limits, slots=16, pool=16)

    def evaluate() -> tuple[bytes, float]:
        engine = CompiledEngine(graph.program, run.limits, run.policy, mode="eager", device="cpu", layout=layout)
        return engine.evaluate(candidates).results.log_probability.tobytes(), engine.info.score_error

    expected = evaluate()
    with products_set_to("medium"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert evaluate() == expected
        assert torch.get_float32_matmul_precision() == "medium"
