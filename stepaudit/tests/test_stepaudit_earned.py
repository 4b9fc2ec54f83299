"""AGREE is earned: only what runs with other roundings give is excused, and what nothing can restore is named."""

import itertools
import os
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from stepaudit import AuditReport, Verdict
from stepaudit.audited_function import MakeInputs, make_subject
from stepaudit.ladder.observation import Deviation, Observation, compare_observations
from stepaudit.ladder.rounding import excuse
from stepaudit.ladder.values_audit import audit_values
from stepaudit.options import AuditOptions
from stepaudit.report import ReportBuilder

TICKETS = itertools.count()
CYCLE = itertools.cycle([0.5, 2.0])


def draw(call: int) -> tuple[Tensor]:
    return (torch.randn(8, generator=torch.Generator().manual_seed(call)),)


def draw_bytes(call: int) -> tuple[Tensor]:
    return (torch.tensor([5, 1, 100, 3, 7, 8, 9, 13] * 5, dtype=torch.uint8) + call,)


def audit(step: object, rung: str, make: MakeInputs = draw) -> AuditReport:
    report = ReportBuilder()
    subject = make_subject("", step, make)  # type: ignore[arg-type]
    return report.build("step", {}, is_conclusive=audit_values(subject, report, AuditOptions(rungs=(rung,), seconds=5)))


def take_a_ticket(x: Tensor) -> Tensor:
    return x + next(TICKETS)


def scale_in_turn(x: Tensor) -> Tensor:
    return x * next(CYCLE)


def yield_rows(x: Tensor) -> Iterator[Tensor]:
    yield x + 1


def do_nothing(x: Tensor) -> str:
    return "nothing"


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (take_a_ticket, "global TICKETS (count) cannot be restored"),
        (scale_in_turn, "global CYCLE (cycle) cannot be restored"),
        (do_nothing, "no operation of torch ran"),
    ],
)
def test_a_step_that_nothing_can_judge_is_inconclusive(step: object, words: str):
    report = audit(step, "backend-eager")
    assert report.verdict is Verdict.INCONCLUSIVE
    assert any(words in each.reason for each in report.unmeasured)


def test_a_generator_is_no_agreement():
    assert audit(yield_rows, "backend-eager").verdict is not Verdict.AGREE


def seen(value: object) -> Observation:
    return Observation({"output": {"output": torch.tensor(value)}})


@pytest.mark.parametrize(
    ("expected", "actual", "others", "is_excused"),
    [
        (5, 0, [4, 6], False),
        (5, 4, [4, 6], True),
        (1.0, float("inf"), [2.0, 3.0], False),
        (1.0, float("inf"), [2.0, float("inf")], True),
        (float("nan"), 1.0, [float("nan"), 2.0], False),
        (float("inf"), 90000.0, [float("inf")], False),
        (1.0, 1.0 + 1e-6, [1.0, 1.0], False),
        (1.0, 1.0 + 1e-6, [1.0, 1.0 + 1e-6], True),
        ([1.0, 2.0], [1.0], [[1.0, 2.0]], False),
        ([1.0, 2.0], [1.0], [[3.0]], True),
    ],
)
def test_only_a_value_that_a_run_with_other_roundings_gave_is_excused(
    expected: object, actual: object, others: list[object], is_excused: bool
):
    deviation = Deviation("call 1", "output", "output", "")
    reason = excuse(deviation, seen(expected), seen(actual), seen(expected), [*map(seen, others)])
    assert bool(reason) is is_excused


def test_what_was_written_before_an_exception_is_compared():
    sides = [Observation({"captured": {"buffer": torch.tensor(each)}}, error="ValueError: no") for each in (1.0, 0.0)]
    (found,) = compare_observations(*sides)
    assert (found.kind, found.where) == ("captured", "buffer")


def test_a_failure_of_the_compiler_is_not_the_error_of_the_step():
    sides = Observation(error="ValueError: no"), Observation(error="InductorError: no", is_of_compiler=True)
    (found,) = compare_observations(*sides)
    assert found.kind == "error"


def drop_bits(x: Tensor) -> Tensor:
    return x - x.to(torch.bfloat16).float()


@torch.compile
def find_least(x: Tensor) -> Tensor:
    return x.amin()


@pytest.mark.parametrize(
    ("step", "make"),
    [
        pytest.param(drop_bits, draw, marks=pytest.mark.exhaustive),
        pytest.param(find_least, draw_bytes, marks=pytest.mark.exhaustive),
    ],
)
def test_an_omitted_cast_and_a_step_that_is_compiled_already_are_found(step: object, make: MakeInputs):
    assert audit(step, "default", make).verdict is Verdict.DIVERGE


@torch.library.custom_op("stepaudit_tests::add_in_any_order", mutates_args=())
def add_in_any_order(x: Tensor) -> Tensor:
    chance = torch.Generator().manual_seed(int.from_bytes(os.urandom(4)))
    return torch.stack([x[torch.randperm(len(x), generator=chance)].sum() for _ in range(3)])


@add_in_any_order.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(3)


def draw_many(call: int) -> tuple[Tensor]:
    return (torch.randn(40_000, generator=torch.Generator().manual_seed(call)),)


def add_beside_a_copy(x: Tensor) -> Tensor:
    return torch.cat([add_in_any_order(x), x[:3]])


def add_beside_a_wrong_copy(x: Tensor) -> Tensor:
    return torch.cat([add_in_any_order(x), x[:3] + (1e-3 if torch.compiler.is_compiling() else 0.0)])


def seed_anew(x: Tensor) -> Tensor:
    torch.seed()
    return x + torch.rand_like(x)


def test_where_eager_does_not_repeat_itself_its_own_spread_is_the_bound():
    report = audit(add_beside_a_copy, "backend-eager", draw_many)
    assert report.verdict is Verdict.AGREE
    assert "add_in_any_order at" in report.details["order"][0]
    wrong = audit(add_beside_a_wrong_copy, "backend-eager", draw_many)
    assert wrong.verdict is Verdict.DIVERGE


def test_random_numbers_that_no_seed_sets_are_named():
    report = audit(seed_anew, "backend-eager")
    assert report.verdict is Verdict.INCONCLUSIVE
    assert any("rand_like at" in each.reason for each in report.unmeasured)


def test_a_number_from_outside_is_no_operation_that_gives_other_results():
    report = audit(add_the_time, "backend-eager")
    assert any("receives other values in each run" in each.reason for each in report.unmeasured)


def add_the_time(x: Tensor) -> Tensor:
    return x + time.perf_counter()


def floor_probabilities(x: Tensor) -> Tensor:
    found = torch.softmax(torch.stack([x, x - 30.0]), 0)[1]
    return found.clamp(min=1e-8) if torch.compiler.is_compiling() else found


def test_a_small_probability_beside_a_large_one_is_compared_by_its_own_size():
    assert audit(floor_probabilities, "backend-eager").verdict is Verdict.DIVERGE


def compare_with_itself(x: Tensor) -> Tensor:
    other = x / 1.7
    return (x / 1.7 == (other + 1 if torch.compiler.is_compiling() else other)).sum()


def test_other_roundings_round_equal_operations_alike():
    make = lambda call: (torch.tensor([1.0 + call]),)  # noqa: E731
    assert audit(compare_with_itself, "backend-eager", make).verdict is Verdict.DIVERGE


def find_values(x: Tensor) -> Tensor:
    """The values alone, by an algorithm that torch replaces where a mode sees the operations; 1.5e-5 off if compiled."""
    pairs = x.outer(x) + 5 * torch.eye(len(x))
    return torch.linalg.eigvalsh(pairs) * (1 + 1.5e-7 * torch.compiler.is_compiling())


def test_a_run_that_sees_the_operations_may_differ_by_a_unit_of_rounding():
    assert audit(find_values, "backend-eager").verdict is Verdict.AGREE


def draw_doubles(call: int) -> tuple[Tensor]:
    return (torch.rand(64, dtype=torch.float64, generator=torch.Generator().manual_seed(call)) + 0.1,)


def scale_if_compiled(x: Tensor, num_units: float) -> Tensor:
    return x * (1 + num_units * torch.finfo(torch.float64).eps) if torch.compiler.is_compiling() else x


@pytest.mark.parametrize(
    ("step", "num_units", "verdict"),
    [
        (torch.sin, 20, Verdict.AGREE),
        (lambda x: x.sum(0, keepdim=True), 20, Verdict.AGREE),
        (lambda x: x.clone().mul_(0.3).index_add_(0, torch.tensor([0, 0]), x[:2]), 20, Verdict.AGREE),
        (torch.sin, 1e6, Verdict.DIVERGE),
        (lambda x: x.flip(0), 20, Verdict.DIVERGE),
        (lambda x: torch.where(x > 0.5, -2 * x, 0.1), 20, Verdict.DIVERGE),
        (lambda x: (x * 10).floor().exp2(), 20, Verdict.DIVERGE),
    ],
)
def test_in_float64_only_a_result_with_digits_of_its_own_is_rounded(
    step: Callable[[Tensor], Tensor], num_units: float, verdict: Verdict
):
    report = audit(lambda x: scale_if_compiled(step(x), num_units), "backend-eager", draw_doubles)
    assert report.verdict is verdict
