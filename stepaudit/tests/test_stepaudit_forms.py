"""Steps as users have them: keyword arguments, methods, dataclasses, compiled steps, backends, custom operators."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.compiler import is_compiling

from stepaudit import AuditReport, Keywords, UserError, Verdict, audit_step
from stepaudit.audited_function import make_subject
from stepaudit.compiled_step import unwrap_compiled
from stepaudit.ladder.values_audit import audit_values
from stepaudit.options import AuditOptions
from stepaudit.report import ReportBuilder


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AuditReport]:
    """Audit the values of a step on the rung `backend-eager`, and no properties."""
    monkeypatch.setattr("stepaudit.audited_step.examine_properties", lambda *given, **options: None)
    monkeypatch.setattr("stepaudit.audited_step.warm_up_compiler", lambda: None)
    return functools.partial(audit_step, calls=1, rungs=("backend-eager",), seconds=0, repetitions=0)


@dataclasses.dataclass(frozen=True)
class Scale:
    factor: Tensor


@dataclasses.dataclass
class State:
    scale: Scale
    steps: int


def advance(state: State, by: float = 1.0, *, wrong: bool = False) -> State:
    extra = 1 if wrong and is_compiling() else 0
    return State(Scale(state.scale.factor * by + extra), state.steps + 1)


def make_state() -> State:
    return State(Scale(torch.ones(3)), 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (make_state(),),
        lambda: (make_state(), Keywords(by=2.0)),
        lambda: {"state": make_state(), "by": 2.0},
        lambda: (Keywords(state=make_state(), by=2.0),),
    ],
)
def test_keyword_arguments_and_dataclasses_are_taken(audit: Callable[..., AuditReport], make: Callable[[], Any]):
    assert audit(advance, make).verdict is Verdict.AGREE


def clear(rows: Tensor) -> Tensor:
    return rows.zero_() + 1


@pytest.mark.parametrize(
    ("step", "rows"),
    [(lambda rows: rows.to(torch.uint64), torch.ones(3)), (clear, torch.ones(1, 3).expand(2, 3))],
    ids=["unsigned", "expanded"],
)
def test_unsigned_results_and_written_rows_that_are_one_row_in_memory_are_compared(
    audit: Callable[..., AuditReport], step: Callable[[Tensor], Tensor], rows: Tensor
):
    assert audit(step, lambda: (rows,)).verdict is Verdict.AGREE
    assert rows.bool().all()


def test_a_deviation_in_a_nested_dataclass_is_named(audit: Callable[..., AuditReport]):
    report = audit(advance, lambda: {"state": make_state(), "wrong": True})
    assert report.verdict is Verdict.DIVERGE
    assert "output.scale.factor" in {row["where"] for row in report.sections["deviations"].rows}


@pytest.mark.deep
def test_keyword_arguments_reach_the_properties_and_another_device():
    report = audit_step(advance, lambda: (make_state(), Keywords(by=2.0)), rungs=(), calls=1, device="cpu")
    assert report.measures["graphs"] == 1


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, values: Tensor) -> Tensor:
        return self.linear(values)

    def twice(self, values: Tensor, *, times: int = 2) -> Tensor:
        self.last = values.detach() * 2
        return self.linear(values) * times

    @torch.compile(backend="aot_eager", dynamic=False)
    def compiled(self, values: Tensor) -> Tensor:
        return self.linear(values)


def make_rows() -> tuple[Tensor]:
    return (torch.ones(2, 3),)


def test_methods_and_partials_are_steps(audit: Callable[..., AuditReport]):
    assert audit(Layer().twice, make_rows).verdict is Verdict.AGREE
    assert audit(functools.partial(Layer().twice, times=3), make_rows).verdict is Verdict.AGREE


def double(values: Tensor) -> Tensor:
    return values * 2


def add_one(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    return lambda *given: [each + 1 for each in graph(*given)]


USUAL = {"dynamic": None, "fullgraph": False}


@pytest.mark.parametrize(
    ("compiled", "settings"),
    [
        (torch.compile(double), USUAL | {"mode": "default"}),
        (
            torch.compile(double, mode="max-autotune", fullgraph=True),
            {**USUAL, "mode": "max-autotune", "fullgraph": True},
        ),
        (torch.compile(double, options={"max_fusion_size": 1}), USUAL | {"backend_options": {"max_fusion_size": 1}}),
        (
            torch.compile(double, backend="aot_eager", dynamic=True),
            {"backend": "aot_eager", "backend_options": {}, "fullgraph": False, "dynamic": True},
        ),
        (torch.compile(double, backend=add_one), USUAL | {"backend": add_one, "backend_options": {}}),
        (functools.partial(torch.compile(double)), USUAL | {"mode": "default"}),
        (torch.compile(Layer()), USUAL | {"mode": "default"}),
        (Layer().compiled, {"backend": "aot_eager", "backend_options": {}, "fullgraph": False, "dynamic": False}),
        (torch.compiler.disable(double), {}),
        (double, {}),
    ],
)
def test_the_settings_of_a_compiled_step_are_read(compiled: Callable[..., Any], settings: dict[str, Any]):
    inner, found = unwrap_compiled(compiled)
    assert found == settings
    assert not settings or inner is not compiled


def test_a_compiled_step_is_compared_with_its_settings(audit: Callable[..., AuditReport]):
    report = audit(torch.compile(double, backend=add_one), make_rows)
    rows = report.sections["rungs"].rows
    assert [(row["name"], row["deviations"]) for row in rows] == [("backend-eager", 0), ("add_one", 2)]
    assert audit(torch.compile(double, backend="eager"), make_rows).verdict is Verdict.AGREE


def test_a_module_that_is_compiled_in_place_is_its_own_reference_and_stays_compiled(audit: Callable[..., AuditReport]):
    layer = Layer()
    layer.compile(backend=add_one)
    compiled = layer._compiled_call_impl
    assert audit(layer, make_rows).verdict is Verdict.DIVERGE
    assert layer._compiled_call_impl is compiled


def jump(values: Tensor) -> Tensor:
    return values * 2 if values.sum() > 0 else values


def test_a_graph_break_is_an_error_of_a_full_graph(audit: Callable[..., AuditReport]):
    assert audit(jump, make_rows).verdict is Verdict.AGREE
    assert "Unsupported" in audit(jump, make_rows, fullgraph=True).findings[0].finding


@pytest.mark.parametrize(
    ("given", "rungs"),
    [
        ({}, ["backend-eager", "default"]),
        ({"mode": "max-autotune-no-cudagraphs"}, ["backend-eager", "default", "max-autotune-no-cudagraphs"]),
        ({"backend_options": {"max_fusion_size": 1}}, ["backend-eager", "default", "default with options"]),
        ({"backend": "aot_eager"}, ["backend-eager", "aot-eager"]),
        ({"backend": "eager"}, ["backend-eager"]),
        ({"backend": add_one, "dynamic": True}, ["backend-eager", "add_one"]),
    ],
)
def test_the_last_rung_has_the_settings_of_the_user(given: dict[str, Any], rungs: list[str]):
    ladder = AuditOptions(rungs=("backend-eager", "default"), **given).ladder
    assert [rung.name for rung in ladder] == rungs
    assert all((rung.options or {}).get("dynamic") == given.get("dynamic") for rung in ladder)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"backend": "aot_eagr"}, "did you mean 'aot_eager'"),
        ({"backend_options": {"max_fusion_sze": 1}}, "did you mean 'max_fusion_size'"),
        ({"mode": "max-autotun"}, "did you mean 'max-autotune'"),
    ],
)
def test_an_unknown_setting_is_a_mistake(given: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        AuditOptions(**given)


@pytest.mark.parametrize("name", ["DistributedDataParallel", "FullyShardedDataParallel"])
def test_modules_of_several_processes_are_refused_by_name(name: str, audit: Callable[..., AuditReport]):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel

    kind = {each.__name__: each for each in (DistributedDataParallel, FullyShardedDataParallel)}[name]
    wrapped = kind.__new__(kind)
    torch.nn.Module.__init__(wrapped)
    wrapped.module = wrapped._fsdp_wrapped_module = torch.nn.Linear(3, 3)
    for step, make in ((lambda values: wrapped(values), make_rows), (wrapped, make_rows), (double, lambda: (wrapped,))):
        with pytest.raises(UserError, match=f"a module of {name}"):
            audit(step, make)


@torch.library.custom_op("stepaudit_tests::sine", mutates_args=())
def sine(values: Tensor) -> Tensor:
    return values.sin()


@sine.register_fake
def _(values: Tensor) -> Tensor:
    return torch.empty_like(values)


@torch.library.custom_op("stepaudit_tests::short_sine", mutates_args=())
def short_sine(values: Tensor) -> Tensor:
    return values.sin()[:1].clone()


@short_sine.register_fake
def _(values: Tensor) -> Tensor:
    return torch.empty_like(values)


def step_with_sines(values: Tensor) -> tuple[Tensor, Tensor]:
    return sine(values), short_sine(values)  # here


def test_a_custom_operator_is_checked_where_it_is_used():
    report = ReportBuilder()
    audit_values(make_subject("", step_with_sines, make_rows), report, AuditOptions(rungs=(), calls=1, repetitions=0))
    (found,) = report.findings
    assert "stepaudit_tests::short_sine fails test_faketensor" in found.finding
    assert found.where == f"{__file__}:{step_with_sines.__code__.co_firstlineno + 1}"
