"""One module decides device, mode and precision, with reasons; the compiler never fails silently; caches are reported."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
import torch
from invoked_commands import invoke
from torch import Tensor

from kgverify import Limits, UserError, load_graph
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import CompilerCaches
from kgverify.files.code_identity import find_compiler
from kgverify.prover import execution_choice
from kgverify.prover.execution import compilation as compile_module
from kgverify.prover.execution.compilation import CacheCounts, compile_function, describe_caches, fresh_caches
from kgverify.prover.execution_choice import Execution, choose_execution, choose_layout, why_not_fused
from kgverify.prover.stages.choose import SCORES
from kgverify.prover.stages.stage_functions import Stages
from kgverify.report.render.terminal import describe_execution

LIMITS = Limits()
NOTHING = CacheCounts(0, 0, 0, 0, -1)


@pytest.fixture(autouse=True)
def known_compiler() -> None:
    """Let the native evaluator find its compiler, which it looks for once, before a test hides it."""
    find_compiler()


def choose(device: str = "cpu", mode: str = "auto", precision: str = "float32") -> Execution:
    program, layout, stages = (
        load_graph("countries").program,
        choose_layout(LIMITS, slots=1),
        Stages(SCORES["shortest"]),
    )
    obstacle = partial(why_not_fused, program, LIMITS, SHORTEST, layout, stages)
    return choose_execution(LIMITS, SHORTEST, stages, obstacle, device=device, mode=mode, precision=precision)


def test_what_is_asked_for_is_taken_and_said_to_be_asked_for():
    execution = choose(mode="eager")
    assert (execution.device.type, execution.mode, execution.precision) == ("cpu", "eager", "float32")
    assert execution.reasons[:2] == ("device cpu: as requested", "mode eager: as requested")


def test_auto_says_why_it_compiles_or_why_it_does_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compile_module, "find_compiler", lambda: "/usr/bin/g++")
    assert "a C++ compiler was found" in choose().reasons[1]
    for module in (compile_module, execution_choice):
        monkeypatch.setattr(module, "find_compiler", lambda: None)
    assert choose().reasons[1] == "mode eager: no C++ compiler is on the PATH"


def test_a_precision_that_the_policy_does_not_use_is_reported():
    assert choose(mode="eager", precision="bf16").reasons[2] == (
        "precision float32: not bf16, since the policy has no products"
    )


@pytest.mark.parametrize("variable", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_a_compiler_that_is_turned_off_is_no_silent_eager(variable: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compile_module, "find_compiler", lambda: "/usr/bin/g++")
    monkeypatch.setenv(variable, "1")
    assert choose().reasons[1] == f"mode eager: {variable}=1 turns torch.compile off"
    with pytest.raises(UserError, match="would run eagerly") as caught:
        choose(mode="default")
    assert "--mode eager" in caught.value.fix


def look_at_values(x: Tensor) -> Tensor:
    return x + 1 if x.sum().item() > 0 else x - 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("is_suppressed", [False, True])
def test_a_failed_compilation_is_reported_with_the_mode_and_the_fix(is_suppressed: bool):
    function = compile_function(look_at_values, "default")
    with torch._dynamo.config.patch(suppress_errors=is_suppressed):
        with pytest.raises(UserError, match="mode 'default' cannot be compiled") as caught:
            function(torch.ones(3))
        assert torch._dynamo.config.suppress_errors is is_suppressed
    assert "--mode eager" in caught.value.fix


def fail(x: Tensor) -> Tensor:
    raise IndexError("of a stage")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_error_of_the_function_itself_is_no_error_of_the_compiler_in_eager():
    with pytest.raises(IndexError):
        compile_function(fail, "eager")(torch.ones(1))


def plus_one(x: Tensor) -> Tensor:
    return x * 3 + 1


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fresh_cache_finds_nothing():
    import torch._dynamo.utils

    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with fresh_caches():
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] != before
        torch._dynamo.utils.counters.clear()
        assert compile_function(plus_one, "default")(torch.ones(3)).tolist() == [4, 4, 4]
        caches = describe_caches("default", NOTHING)
        assert (caches.state, caches.graph_hits, caches.graph_misses) == ("fresh", 0, 1)
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before


@pytest.mark.parametrize(
    ("hits", "misses", "state"), [(0, 2, "cold"), (2, 0, "warm"), (1, 1, "partly warm"), (0, 0, "unused")]
)
def test_the_state_of_the_caches_follows_from_hits_and_misses(
    hits: int, misses: int, state: str, monkeypatch: pytest.MonkeyPatch
):
    module = "kgverify.prover.execution.compilation"
    monkeypatch.setattr(f"{module}.count_caches", lambda: CacheCounts(hits + 5, misses, 0, 0, -1))
    monkeypatch.setattr(f"{module}._is_enabled", lambda: True)
    caches = describe_caches("default", CacheCounts(5, 0, 0, 0, -1))
    assert (caches.state, caches.graph_hits, caches.graph_misses, caches.kernels_added) == (state, hits, misses, None)
    assert describe_caches("eager", NOTHING).state == "unused"


def test_a_kernel_cache_that_grew_was_cold(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kgverify.prover.execution.compilation.count_caches", lambda: CacheCounts(0, 0, 0, 0, 14))
    assert describe_caches("fused", NOTHING).state == "cold"
    assert describe_caches("fused", CacheCounts(0, 0, 0, 0, 14)).state == "warm"


def test_the_reasons_are_one_line():
    caches = CompilerCaches(state="warm", graph_hits=2)
    assert describe_execution(("mode default: as requested",), caches) == (
        "settings: mode default: as requested; compiler's cache warm (graphs: 2 found, 0 compiled)"
    )


def test_a_report_holds_the_reasons_and_the_state_of_the_caches(tmp_path: Path):
    path = tmp_path / "report.json"
    options = ["--queries", "1", "--corruptions", "1", "--mode", "eager", "--device", "cpu", "--no-determinism"]
    done = invoke(["diff", *options, "--fresh-cache", "--json", str(path)])
    assert done.exit_code == 0, done.output
    report = json.loads(path.read_text())
    assert report["reasons_of_actual"][1] == "mode eager: as requested"
    assert report["caches"]["state"] == "unused"
    assert "settings: device cpu: as requested" in done.output
