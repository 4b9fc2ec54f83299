"""Everything that a step does is compared, and nothing that a correct step does is flagged."""

import enum
import inspect
import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.utils.checkpoint import checkpoint

from stepaudit import AuditReport, Verdict
from stepaudit.audited_function import MakeInputs, make_subject
from stepaudit.ladder.climb import Judge, climb, watch
from stepaudit.ladder.observation import Deviation, Observation, compare_observations, observe
from stepaudit.ladder.values_audit import audit_values
from stepaudit.options import AuditOptions, Rung
from stepaudit.report import ReportBuilder


class Mode(enum.Enum):
    ROWS = 1
    COLUMNS = 2


class Settings:
    mode = Mode.ROWS


SETTINGS = Settings()
SETTINGS.mode = Mode.ROWS
WEIGHT = torch.nn.Parameter(torch.ones(4))
BUFFER = torch.zeros(4)
COUNTS = np.zeros(3)
RECENT = deque([1, 2])
SEEN = {1}
STREAM = random.Random(1)


def draw(call: int) -> tuple[Tensor]:
    return (torch.randn(4, generator=torch.Generator().manual_seed(call)),)


def audit(step: Callable[..., Any], make: MakeInputs = draw, **options: Any) -> AuditReport:
    report = ReportBuilder()
    chosen = AuditOptions(rungs=("backend-eager",), seconds=0, repetitions=0, **options)
    subject = make_subject("", step, make)
    return report.build("step", {}, is_conclusive=audit_values(subject, report, chosen))


def find_kinds(step: Callable[..., Any], **options: Any) -> set[tuple[str, str]]:
    chosen = AuditOptions(rungs=("backend-eager",), repetitions=0, **options)
    first = climb(make_subject("", step, draw), chosen).first
    return set() if first is None else {(each.kind, each.where) for each in first.deviations}


def lay_out_otherwise(x: Tensor) -> Tensor:
    turned = x.reshape(2, 2).t() + 1
    return turned.contiguous() if is_compiling() else turned


def leave_another_gradient(x: Tensor) -> Tensor:
    (WEIGHT * x).pow(3 if is_compiling() else 2).sum().backward()
    return x + 1


def draw_once_more(x: Tensor) -> Tensor:
    if is_compiling():
        torch.rand(2)
    return x + 1


def draw_from_a_stream(x: Tensor) -> Tensor:
    STREAM.seed(3 if is_compiling() else 2)
    return x + 1


def set_an_attribute(x: Tensor) -> Tensor:
    SETTINGS.width = 3 if is_compiling() else 4  # type: ignore[attr-defined]
    return x + 1


def set_a_member(x: Tensor) -> Tensor:
    SETTINGS.mode = Mode.ROWS if is_compiling() else Mode.COLUMNS
    return x + 1


def write_an_array(x: Tensor) -> Tensor:
    COUNTS[0] = 2 if is_compiling() else 1
    return x + 1


def write_a_deque(x: Tensor) -> Tensor:
    RECENT[0] = 9 if is_compiling() else 8
    return x + 1


def add_to_a_set(x: Tensor) -> Tensor:
    SEEN.add(9 if is_compiling() else 8)
    return x + 1


@pytest.mark.parametrize(
    ("step", "kind", "where"),
    [
        (lay_out_otherwise, "stride", "output"),
        (leave_another_gradient, "captured", "global WEIGHT.grad"),
        (draw_once_more, "random", "torch"),
        (draw_from_a_stream, "captured", "global STREAM"),
        (set_an_attribute, "captured", "global SETTINGS.width"),
        (set_a_member, "captured", "global SETTINGS.mode"),
        (write_an_array, "captured", "global COUNTS"),
        (write_a_deque, "captured", "global RECENT[0]"),
        (add_to_a_set, "captured", "global SEEN"),
    ],
)
def test_each_effect_that_differs_is_a_deviation(step: Callable[..., Any], kind: str, where: str):
    assert find_kinds(step, calls=1) == {(kind, where)}


class Side:
    def __init__(self) -> None:
        self.left, self.right = object(), object()
        self.current = self.left


SIDE = Side()


def turn_the_side(x: Tensor) -> Tensor:
    if SIDE.current is SIDE.left:  # here
        SIDE.current = SIDE.right
        return x + 1
    SIDE.current = SIDE.left
    return x - 1


def move_a_key(x: Tensor, cache: dict[str, Tensor]) -> Tensor:
    cache["b"] = cache.pop("b") if is_compiling() else cache["b"]
    cache["a"] = cache["a"] if is_compiling() else cache.pop("a")  # here
    return x + 1


def add_one_twice(x: Tensor, cache: dict[str, Tensor]) -> Tensor:
    cache["a"].add_(1)
    if not is_compiling():
        cache["a"].add_(1)  # here
    return x + 1


@torch.compiler.disable
def leave_to_eager(x: Tensor) -> Tensor:
    copy = x.clone()
    return copy * 2


def add_after_eager(x: Tensor) -> Tensor:
    doubled = leave_to_eager(x)
    return doubled + is_compiling()  # here


@pytest.mark.parametrize(
    ("step", "make"),
    [
        (turn_the_side, draw),
        (add_after_eager, draw),
        (move_a_key, lambda call: (*draw(call), {"a": torch.ones(2), "b": torch.ones(2)})),
        (add_one_twice, lambda call: (*draw(call), {"a": torch.ones(2)})),
    ],
)
def test_the_line_is_where_eager_leaves_what_was_traced_or_changes_the_value(
    step: Callable[..., Any], make: MakeInputs
):
    (found,) = audit(step, make, calls=2).findings
    lines, first = inspect.getsourcelines(step)
    assert found.where == f"{__file__}:{first + next(at for at, line in enumerate(lines) if '# here' in line)}"


def drop_in_a_checkpoint(x: Tensor) -> Tensor:
    return checkpoint(lambda rows: torch.nn.functional.dropout(rows.sin()), x, use_reentrant=False)


def test_rungs_that_are_right_again_are_named():
    if not torch.__version__.startswith("2.13"):
        pytest.skip("torch 2.13 draws other numbers when it repeats a checkpoint")
    chosen = AuditOptions(rungs=("backend-eager", "aot-eager"), calls=1, repetitions=0, seconds=0)
    report = ReportBuilder()
    audit_values(
        make_subject("", drop_in_a_checkpoint, lambda call: (torch.ones(64).requires_grad_(),)), report, chosen
    )
    (found,) = report.findings
    assert ": gradient argument[0]: " in found.finding
    assert found.finding.endswith("; right again on aot-eager")


def test_the_climb_ends_where_a_second_rung_deviates():
    rungs = ("backend-eager", "aot-eager", "aot-eager-decomposed")
    ladder = climb(make_subject("", lay_out_otherwise, draw), AuditOptions(rungs=rungs, calls=1, repetitions=0))
    assert [each.rung.name for each in ladder.climbs] == ["backend-eager", "aot-eager"]


def keep_strides(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.reshape(2, 2).t() + 1, x.sum().expand(3), (x * 2)[::2]


def leave_a_gradient(x: Tensor) -> Tensor:
    (WEIGHT * x).pow(2).sum().backward()
    return x + 1


def draw_from_everywhere(x: Tensor) -> Tensor:
    return x + torch.rand(4) + random.random() + float(np.random.rand())


def change_state(x: Tensor) -> Tensor:
    SETTINGS.mode = Mode.COLUMNS
    SETTINGS.last = x * 2  # type: ignore[attr-defined]
    COUNTS[0] += 1
    RECENT.append(3)
    SEEN.add(4)
    return x + 1


def write_and_raise(x: Tensor, rows: int) -> Tensor:
    torch.sin(x, out=BUFFER)
    if rows > 3:
        raise ValueError(f"{rows} rows")
    return x + 1


@pytest.mark.parametrize(
    ("step", "make"),
    [
        (keep_strides, draw),
        (leave_a_gradient, draw),
        (draw_from_everywhere, draw),
        (change_state, draw),
        (write_and_raise, lambda call: (*draw(call), 3 + call)),
    ],
)
def test_a_correct_step_with_such_effects_agrees(step: Callable[..., Any], make: MakeInputs):
    assert audit(step, make, calls=2).verdict is Verdict.AGREE


def turn_zeros(x: Tensor) -> Tensor:
    return torch.zeros_like(x) * (-1.0 if is_compiling() else 1.0)


def test_zeros_with_another_sign_are_listed_and_deviate_only_on_request():
    report = audit(turn_zeros, calls=1)
    assert report.verdict is Verdict.AGREE
    assert report.details["signed_zeros"][0].endswith("4 zeros have another sign")
    assert find_kinds(turn_zeros, calls=1, signed_zero=True) == {("signed zero", "output")}


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (0, 4)])
def test_strides_without_an_effect_on_addresses_are_equal(shape: tuple[int, int]):
    one = torch.empty_strided(shape, (7, 1) if shape[1] > 1 else (1, 9))
    same = one.clone(memory_format=torch.contiguous_format)
    sides = [observe(torch.Tensor.fill_, (each, 1.0)) for each in (one, same)]
    assert not list(compare_observations(*sides))


def return_an_object(x: Tensor) -> tuple[Tensor, object, object]:
    return x + torch.rand(4), torch.distributions.Normal(x, 1.0), SimpleNamespace(rows=x)


def test_what_cannot_be_compared_is_listed():
    report = audit(return_an_object, calls=1)
    assert report.details["not_compared"] == ("output[1] (torch.distributions.normal.Normal): only its class",)


def test_inductor_may_draw_from_streams_of_its_own():
    sides = [observe(torch.rand, (2,), draws_as_eager=is_same) for is_same in (True, False)]
    assert sides[0].draws
    assert "torch" in sides[0].leaves("random")
    assert "torch" not in sides[1].leaves("random")


def test_errors_of_another_kind_are_listed_and_repair_nothing():
    make = lambda call: (*draw(call), 3 + call)  # noqa: E731
    judge = Judge(make_subject("", write_and_raise, make), AuditOptions(repetitions=0))
    others = {call: replace(seen, error=seen.error and "KeyError: 4") for call, seen in judge.expected.items()}
    assert judge.judge(others) == ((), ())
    assert "call 2: eager raises ValueError, and compiled code KeyError" in judge.errors
    assert not judge.is_right(others)
    assert judge.is_right(judge.expected)


def multiply(x: Tensor, size: int) -> Tensor:
    return x @ torch.ones(size)


def test_a_step_that_raises_is_audited_quietly():
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("torch._subclasses.fake_tensor").addHandler(handler)
    try:
        with pytest.raises(RuntimeError, match="fake tensor"):
            torch.compile(multiply, backend="eager")(torch.ones(4), 5)
        num_loud = len(records)
        subject = make_subject("", multiply, lambda call: (*draw(call), 4 + call))
        actual = watch(subject, Rung("traced", "", {"backend": "eager"}), repetitions=0)
    finally:
        logging.getLogger("torch._subclasses.fake_tensor").removeHandler(handler)
    assert (num_loud > 0, len(records)) == (True, num_loud)
    assert actual["call 2"].kind_of_error == "RuntimeError"


def test_a_deviation_names_what_was_drawn():
    sides = [Observation({"random": {"torch": each}}) for each in ("one", "other")]
    (found,) = compare_observations(*sides)
    assert found == Deviation("", "random", "torch", "other random numbers were drawn: one, other")
