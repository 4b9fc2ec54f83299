"""Modes, precisions, memory and caches of an engine, for devices and settings that need not be those of this machine."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kgverify import Limits, UserError, load_graph
from kgverify.engines.policy import SHORTEST, make_two_tower
from kgverify.engines.protocol import StepDigests
from kgverify.evaluation.proving import ProcessGroup, is_out_of_memory
from kgverify.prover import engine as engine_module
from kgverify.prover import execution_choice
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution import compilation, device
from kgverify.prover.execution.compilation import MODES, captures_graphs, resolve_mode
from kgverify.prover.execution.device import PendingCopy, free_memory, products_set_to
from kgverify.prover.execution_choice import Demand, choose_evaluation_layout, choose_layout, resolve_precision
from kgverify.prover.stages.choose import SCORES
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.tick.stage_ticks import Recorded, Results
from kgverify.trace.model.columns import CandidateSet, Digests, empty_columns

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
OBSTACLE = "it is not available here"


@pytest.mark.parametrize("has_compiler", [False, True])
@pytest.mark.parametrize("is_turned_off", [False, True])
def test_each_mode_is_chosen_or_refused(
    has_compiler: bool, is_turned_off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "find_compiler", lambda: "/usr/bin/c++" if has_compiler else None)
    for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"):
        monkeypatch.delenv(name, raising=False)
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


@pytest.mark.parametrize(
    ("not_native", "reason"),
    [
        (None, "no C++ compiler is on the PATH"),
        ("no C++ compiler is on the PATH", "no C++ compiler is on the PATH"),
        ("it has no precision fp8", "not native, since it has no precision fp8; no C++ compiler is on the PATH"),
    ],
)
def test_a_reason_for_two_choices_is_given_once(
    not_native: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(execution_choice, "why_not_native", lambda *_: not_native)
    stages = Stages(SCORES["shortest"])
    chosen = execution_choice.choose_execution(
        Limits(), SHORTEST, stages, lambda _: "it needs a CUDA device", device="cpu"
    )
    assert (chosen.mode, chosen.reasons[1]) == ("eager", f"mode eager: {reason}")


def test_graphs_are_captured_on_a_gpu_in_the_modes_that_have_them() -> None:
    captured = {mode for mode in MODES if captures_graphs(mode, CUDA)}
    assert captured == {"reduce-overhead", "max-autotune", "fused", "native"}
    assert not any(captures_graphs(mode, CPU) for mode in MODES)


@pytest.mark.parametrize(
    ("most", "used", "workers", "share"),
    [
        ("1000", "400", 1, 600),
        ("1000", "400", 3, 200),
        ("max", "400", 1, None),
        ("1000", "", 1, None),
        (None, "4", 1, None),
    ],
)
def test_the_free_memory_of_a_cpu_is_what_the_container_leaves(
    most: str | None, used: str, workers: int, share: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_CGROUP", tmp_path)
    monkeypatch.setattr(device.os, "sysconf", lambda name: {"SC_AVPHYS_PAGES": 50, "SC_PAGE_SIZE": 100}[name])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(workers))
    for name, text in (("max", most), ("current", used)):
        if text is not None:
            (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    assert free_memory(CPU) == (5000 if share is None else share)


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (None, False),
        (ValueError("can't allocate memory"), False),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("shape mismatch"), False),
        (MemoryError(), True),
        (torch.OutOfMemoryError("no"), True),
        (caused(ValueError("compilation failed"), MemoryError()), True),
        (caused(ValueError("compilation failed"), KeyError("x")), False),
    ],
)
def test_a_failed_allocation_is_recognized(error: BaseException | None, wanted: bool) -> None:
    assert is_out_of_memory(error) == wanted


def test_products_are_set_inside_and_restored() -> None:
    before = torch.get_float32_matmul_precision()
    for outside, inside in product(("highest", "high", "medium"), repeat=2):
        with products_set_to(outside):
            with products_set_to(inside):
                assert torch.get_float32_matmul_precision() == inside
            assert torch.get_float32_matmul_precision() == outside
    assert torch.get_float32_matmul_precision() == before


def test_an_engine_measures_its_scores_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, limits, settings = load_graph("countries"), Limits(), []

    def prepare(*arguments: Any, **options: Any) -> Any:
        settings.append(torch.get_float32_matmul_precision())
        return original(*arguments, **options)

    original = engine_module.with_precision
    monkeypatch.setattr(engine_module, "with_precision", prepare)
    policy = make_two_tower(graph.program, limits, seed=1, embedding=4, hidden=8, blocks=1)
    with products_set_to("medium"):
        CompiledEngine(graph.program, limits, policy, mode="eager", device="cpu")
    assert settings == ["highest"]


def test_a_precision_is_chosen_or_refused() -> None:
    program, limits = load_graph("countries").program, Limits()
    small, wide = (make_two_tower(program, limits, seed=1, embedding=4, hidden=hidden, blocks=1) for hidden in (8, 520))
    stages = Stages(SCORES["two_tower"])
    faulty = stages._replace(score=lambda *_: None)
    for policy, given, where, precision, message in (
        (small, stages, CUDA, "bf16", ""),
        (small, stages, CUDA, "float32", ""),
        (small, stages, CPU, "bf16", "needs a CUDA device"),
        (small, faulty, CUDA, "bf16", "replaces the stage `score`"),
        (wide, stages, CUDA, "bf16", "hidden widths"),
        (wide, stages, CUDA, "float32", ""),
        (small, stages, CUDA, "fp8", "unknown precision"),
    ):
        if message:
            with pytest.raises(UserError, match=message):
                resolve_precision(precision, policy, given, where)
        else:
            assert resolve_precision(precision, policy, given, where) == precision
    assert resolve_precision("bf16", SHORTEST, stages, CUDA) == "float32"


def test_an_evaluation_takes_its_share_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    program, limits = load_graph("countries").program, Limits()
    free = 16 << 20
    monkeypatch.setattr(execution_choice, "free_memory", lambda _: free)
    chosen = choose_evaluation_layout(program, limits, SHORTEST, CPU, 1 << 20)
    assert chosen == choose_evaluation_layout(
        program, limits, SHORTEST, CPU, 1 << 20, Demand(int(execution_choice.SHARE * free))
    )
    assert chosen.slots < choose_evaluation_layout(program, limits, SHORTEST, CPU, 1 << 20, Demand(free * 8)).slots


def test_kernels_are_counted_in_the_cache_that_triton_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, num in (("own", 3), ("home/.triton/cache", 2)):
        for number in range(num):
            (tmp_path / folder / str(number)).mkdir(parents=True)
    (tmp_path / "own" / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "own"))
    assert compilation.count_caches().kernels == 3
    monkeypatch.delenv("TRITON_CACHE_DIR")
    assert compilation.count_caches().kernels == 2
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "nowhere"))
    assert compilation.count_caches().kernels == -1


@pytest.mark.parametrize(("has_cache", "is_forced", "is_enabled"), [(1, 0, True), (0, 0, False), (1, 1, False)])
def test_caches_that_are_turned_off_are_reported(
    has_cache: int, is_forced: int, is_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Config:
        fx_graph_cache = bool(has_cache)
        force_disable_caches = bool(is_forced)

    before = compilation.count_caches()
    monkeypatch.setitem(compilation.sys.modules, "torch._inductor.config", Config)
    assert compilation.describe_caches("default", before).state == ("unused" if is_enabled else "disabled")


@pytest.mark.parametrize(
    ("precision", "rows", "weights", "low"),
    [
        ("float32", torch.float32, torch.float32, 0),
        ("float64", torch.float64, torch.float32, 0),
        ("bf16", torch.bfloat16, torch.bfloat16, 0),
        ("fp16", torch.float16, torch.float16, 0),
        ("bf16x3", torch.float32, torch.bfloat16, 1),
    ],
)
def test_weights_have_the_types_of_their_precision(
    precision: str, rows: torch.dtype, weights: torch.dtype, low: int
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from kgverify.prover.tower.hopper import can_launch
    from kgverify.prover.tower.launch import build_tower_parameters

    policy = make_two_tower(load_graph("countries").program, Limits(), seed=1, embedding=4, hidden=256, blocks=1)
    made = build_tower_parameters(policy, precision, torch.device("meta"))
    assert (made[0].dtype, made[3].dtype, made[4].numel() > 0) == (rows, weights, bool(low))
    assert {part.device.type for part in made} == {"meta"}
    is_supported = precision in ("bf16", "fp16")
    assert can_launch(made, precision) == is_supported
    narrow = build_tower_parameters(
        make_two_tower(load_graph("countries").program, Limits(), seed=1, embedding=4, hidden=128, blocks=1),
        precision,
        CPU,
    )
    assert not can_launch(narrow, precision)
    assert not can_launch((*made[:3], made[3][:0], *made[4:]), precision)


def test_the_vectors_of_as_many_blocks_are_kept_as_fit_shared_memory() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from kgverify.prover.tower.hopper import _has_room

    # Of 227 KiB, 1 KiB is kept. 128 states and 4 slices of 64 rows take 512 bytes a row; a block has three vectors of 1 KiB.
    assert [_has_room(num) for num in range(16)] == [num <= 11 for num in range(16)]


@pytest.mark.parametrize("has_digests", [False, True])
def test_candidates_of_which_digests_alone_were_recorded_have_steps_without_contents(has_digests: bool) -> None:
    num_steps = np.array([2, 0, 3], np.uint32)
    sequence = np.arange(5, dtype=np.uint64)
    digests = PendingCopy(StepDigests(num_steps, Digests(sequence, sequence, sequence))) if has_digests else None
    results = Results(np.array([1, 2, 3]), np.array([False, True, False]), np.array([0.0, -1.0, -2.0]))
    drawn = CandidateSet(np.arange(3, dtype=np.int32), np.zeros(3, np.int8), np.zeros((3, 3), np.int32))
    columns, found = Recorded(drawn, None, PendingCopy(results), digests).read()
    assert (found is None) is not has_digests
    assert found is None or found.tolist() == sequence.tolist()
    assert columns.candidates.num_steps.tolist() == (num_steps.tolist() if has_digests else [])
    assert columns.candidates.outcome.tolist() == [1, 2, 3]
    assert columns.candidates.log_probability.tolist() == [0.0, -1.0, -2.0]
    assert {len(each) for each in columns.steps[:-1]} == {5 if has_digests else 0}
    assert [each.dtype for each in columns.steps] == [each.dtype for each in empty_columns(np.float32).steps]


def test_kernels_that_were_added_to_the_cache_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kernels"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))

    def added(before: compilation.CacheCounts) -> int | None:
        return compilation.describe_caches("fused", before).kernels_added

    absent = compilation.count_caches()
    assert added(absent) is None
    folder.mkdir()
    empty = compilation.count_caches()
    assert [added(absent), added(empty)] == [0, 0]
    assert compilation.describe_caches("fused", empty).state == "warm"
    (folder / "a").mkdir()
    assert compilation.describe_caches("fused", empty).state == "cold"
    (folder / "b").mkdir()
    two = compilation.count_caches()
    assert [added(absent), added(empty), added(two)] == [2, 2, 0]


def test_caches_are_fresh_in_an_older_torch_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = importlib.import_module("torch._inductor.utils")
    entered: list[bool] = []

    def is_fresh() -> bool:
        return compilation.describe_caches("default", compilation.count_caches()).state == "fresh"

    @contextmanager
    def fresh() -> Iterator[None]:
        entered.append(is_fresh())
        yield

    monkeypatch.delattr(utils, "fresh_cache", raising=False)
    monkeypatch.setattr(utils, "fresh_inductor_cache", fresh, raising=False)
    with compilation.fresh_caches():
        assert is_fresh()
    assert entered == [False]
    assert not is_fresh()


def test_processes_of_a_team_share_messages_and_counters() -> None:
    store = pytest.importorskip("torch.distributed").HashStore()
    store.set_timeout(timedelta(seconds=2))
    leader, other = (ProcessGroup(store, index, 2) for index in range(2))
    assert [leader.broadcast(message) for message in (b"a\0", b"b")] == [b"a\0", b"b"]
    assert [other.broadcast(b"c") for _ in range(2)] == [b"a\0", b"b"]
    long = bytes(range(256)) * (5 << 12)
    assert leader.receive("z") is None
    other.send("z", long)
    assert leader.receive("z") == long
    assert [leader.add("x", 3), other.add("x", 4), other.add("y", 1)] == [3, 7, 1]


def test_a_process_started_with_others_joins_them_with_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert device.join_team() is None
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert device.join_team() is None
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(device.distributed, "is_available", lambda: False)
    with pytest.raises(UserError, match="cannot run several processes"):
        device.join_team()
    monkeypatch.setattr(device.distributed, "is_available", lambda: True)
    store = torch.distributed.HashStore()
    meeting = importlib.import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(meeting, "rendezvous", lambda url: iter([(store, 2, 3)]))
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for has_gpu, local, rank in ((False, None, "2"), (True, None, "1"), (True, "0", "1"), (True, "2", "1")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setenv("RANK", rank)
        if local is not None:
            monkeypatch.setenv("LOCAL_RANK", local)
        else:
            monkeypatch.delenv("LOCAL_RANK", raising=False)
        if local == "2":
            with pytest.raises(UserError, match="process 2 of this host has no GPU: there are 2"):
                device.join_team()
            continue
        assert device.join_team() == (store, 2, 3)
    assert taken == [1, 0]


@pytest.mark.parametrize(("kernels", "state"), [(None, "unknown"), (0, "warm"), (1, "cold"), (2, "cold")])
def test_a_cache_is_cold_if_a_kernel_was_added(kernels: int | None, state: str) -> None:
    assert compilation._state("fused", 0, 0, kernels) == state


def test_only_a_failed_compilation_is_explained() -> None:
    with compilation._explained_failures("compiled"):
        pass
    failure = torch._dynamo.exc.TorchDynamoException
    cases = (failure("no"), UserError), (failure("CUDA out of memory"), failure), (ValueError("other"), ValueError)
    for error, kind in cases:
        with pytest.raises(kind), compilation._explained_failures("compiled"):
            raise error


def test_nothing_was_cached_where_torch_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.utils, "counters", {})
    assert compilation.count_caches()[:4] == (0, 0, 0, 0)


def test_a_device_is_as_requested_or_as_found() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert execution_choice._device_reason("cpu", cpu) == "as requested"
    assert execution_choice._device_reason("auto", cpu) == "torch found no CUDA device"
    assert execution_choice._device_reason("auto", cuda) == "torch found one"


def test_a_narrow_network_can_be_fused() -> None:
    pytest.importorskip("triton")
    program, limits = load_graph("countries").program, Limits()
    policy, layout = make_two_tower(program, limits, seed=0), choose_layout(limits, slots=1)
    stages = Stages(SCORES["two_tower"])
    assert execution_choice.why_not_fused(program, limits, policy, layout, stages, torch.device("cuda")) is None
