"""Steps that some version of torch was reported to compile wrongly without an error, most of them in its issue tracker.

Not every version does: `python -m benchmarks audit miscompiles` prints the rung of each that is detected. Each step is right
in eager by the definition of its operators. A report that names a line which ends in `# here` names the right one. The issue
numbers are those of pytorch.
"""

import dataclasses
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from benchmarks.audit import Make, add_make, floats, leaves


class Miscompile(NamedTuple):
    """A step. rung: the first that is wrong; issue: of pytorch, 0 if unknown; ends: whether compiled code ends the process."""

    name: str
    step: Callable[..., Any]
    make: Callable[[int], tuple[Any, ...]]
    rung: str
    issue: int
    ends: bool


MISCOMPILES: Final[dict[str, Miscompile]] = {}


def case(
    make: Make, *, rung: str = "default", issue: int = 0, ends: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a step with its arguments, which `make_NAME(call)` of this module makes."""

    def register(step: Callable[..., Any]) -> Callable[..., Any]:
        made = add_make(step, __name__, make)
        MISCOMPILES[step.__name__] = Miscompile(step.__name__, step, made, rung, issue, ends)
        return step

    return register


SQUARE: Final = floats((6, 6))
TWO: Final = floats((6, 6), (6, 6))


@case(floats((6, 6), (6, 6), (6, 6)), issue=198131)
def keep_previous(previous: Tensor, current: Tensor, change: Tensor) -> Tensor:
    previous[:] = current[:]  # here
    current.add_(change)  # here
    return previous.sum()  # here


@case(TWO, issue=198131)
def swap_buffers(first: Tensor, second: Tensor) -> None:
    held = first.clone()  # here
    first.copy_(second)  # here
    second.copy_(held)  # here


@case(TWO, issue=198131)
def recycle_slots(slots: Tensor, fresh: Tensor) -> tuple[Tensor, Tensor]:
    before = torch.empty_like(slots)
    before[:] = slots[:]  # here
    slots[fresh > 0] = 0.0  # here
    return before, slots


@case(SQUARE, issue=197829)
def shift_rows(rows: Tensor) -> Tensor:
    rows[1:] = rows[:-1].clone()  # here
    return rows


@case(SQUARE, issue=197829)
def shift_columns(rows: Tensor) -> Tensor:
    rows[:, :-1] = rows[:, 1:].clone()  # here
    return rows.cumsum(0)


@case(SQUARE, issue=198033)
def add_mirrored(rows: Tensor) -> Tensor:
    torch._foreach_add_([rows], [rows.flip(0)])  # here
    return rows


@case(TWO, issue=198033)
def exchange_at_once(first: Tensor, second: Tensor) -> None:
    torch._foreach_copy_([first, second], [second.clone(), first.clone()])  # here


@case(TWO)
def copy_after_update(target: Tensor, source: Tensor) -> Tensor:
    torch._foreach_add_([target, source], 1.0)  # here
    target.copy_(source)  # here
    return target


@case(floats((4, 4), (4, 4), (4, 4)), rung="aot-eager", issue=198033)
def rotate_at_once(first: Tensor, second: Tensor, third: Tensor) -> None:
    torch._foreach_copy_([first, second, third], [second, third, first])  # here


@case(SQUARE, issue=198270)
def put_then_mirror(rows: Tensor) -> Tensor:
    rows.index_put_((torch.arange(rows.size(0)),), rows * 2.0)  # here
    rows.add_(rows.flip(0))  # here
    return rows


@case(TWO, issue=198270)
def put_then_shift(rows: Tensor, more: Tensor) -> Tensor:
    rows[torch.tensor([1, 4])] = more[:2]  # here
    rows[1:] = rows[:-1].clone()  # here
    return rows


@case(floats((4, 6), (4, 6)), issue=198094)
def scatter_then_clear(state: Tensor, update: Tensor) -> Tensor:
    scattered = torch.slice_scatter(state, update[1:3], dim=0, start=1, end=3)  # here
    state.zero_()  # here
    return scattered


@case(floats((6, 6), (6,)), issue=198094)
def select_scatter_then_fill(state: Tensor, row: Tensor) -> Tensor:
    scattered = torch.select_scatter(state, row, 0, 2)  # here
    state.fill_(7.0)  # here
    return scattered


@case(SQUARE, issue=198094)
def scatter_own_diagonal(state: Tensor) -> Tensor:
    kept = torch.diagonal_scatter(state, state.diagonal())  # here
    state.fill_(2.0)  # here
    return kept


@case(SQUARE, issue=198094)
def fill_then_clone(state: Tensor) -> Tensor:
    state.index_fill_(0, torch.tensor([1, 3]), 5.0)  # here
    kept = state.clone()  # here
    state.clamp_(-1.0, 1.0)  # here
    return kept


@case(floats((2, 3), (1, 3)), issue=195451)
def scatter_back(state: Tensor, row: Tensor) -> Tensor:
    updated = torch.slice_scatter(state, row, 0, 0, 1)  # here
    state.copy_(updated)  # here
    return updated  # here


class Kind(IntEnum):
    GOAL = 0
    TRUE = 1
    FALSE = 2


def _kinds(draw: torch.Generator) -> tuple[Tensor, ...]:
    return (torch.randint(0, 3, (16,), generator=draw),)


@case(_kinds, rung="backend-eager")
def mark_true(kind: Tensor) -> Tensor:
    return torch.ones_like(kind, dtype=torch.bool) & (kind == Kind.TRUE)  # here


@case(_kinds, rung="backend-eager")
def mark_others(kind: Tensor) -> Tensor:
    is_other = kind != Kind.TRUE  # here
    return torch.where(is_other, kind, -1)  # here


@case(lambda draw: (torch.randint(0, 9, (64,), generator=draw),))
def hash_rows(rows: Tensor) -> Tensor:
    mixed = torch.arange(64) * -7046029254386353131  # here
    return (mixed >> 33) ^ rows  # here


@case(lambda draw: (torch.randint(0, 9, (257,), generator=draw),), ends=True)
def hash_and_sum(rows: Tensor) -> Tensor:
    return ((torch.arange(257) * -7046029254386353131) ^ rows).sum()  # here


@case(floats((8, 40)), ends=True)
def first_free(slots: Tensor) -> Tensor:
    at = (slots > 0).to(torch.int8).argmax(-1)  # here
    return slots.gather(1, at[:, None])  # here


@case(lambda draw: (torch.ones(4), torch.full((4,), 0.5)), issue=185382)
def adam_steps(weight: Tensor, gradient: Tensor) -> Tensor:
    mean, square, number = torch.zeros(4), torch.zeros(4), torch.zeros(())
    for _ in range(5):
        _adam(weight, gradient, mean, square, number)
    return weight


def _adam(weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, number: Tensor) -> None:
    number.add_(1)
    mean.mul_(0.9).add_(gradient, alpha=0.1)
    square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    count = number.item()
    root = (square.sqrt() / (1 - 0.999**count) ** 0.5).add_(1e-8)  # here
    weight.addcdiv_(mean, root, value=-0.001 / (1 - 0.9**count))  # here


@case(lambda draw: (torch.rand(4, 3, generator=draw),), issue=183769)
def select_beyond(rows: Tensor) -> Tensor:
    base = rows.unsqueeze(1)
    return torch.cat([base.select(1, 0), base.select(1, 1)], -1)  # here


@case(lambda draw: (torch.tensor([2, -2, 4]), torch.arange(10.0).reshape(5, 2)), issue=183608)
def look_up_negative(rows: Tensor, table: Tensor) -> Tensor:
    return torch.nn.functional.embedding(rows, table)  # here


@case(
    lambda draw: (torch.zeros(4, 3), torch.tensor([0, -1]), torch.ones(2, 3)), rung="aot-eager-decomposed", issue=185885
)
def add_at_negative(state: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    return torch.index_add(state, 0, rows, values)  # here


@case(lambda draw: (torch.full((2, 20), 0.3)[:, :17],), issue=177839)
def logit_of_slice(values: Tensor) -> Tensor:
    return torch.special.logit(values, eps=0.51)  # here


class Log:
    items: Final[list[int]] = []
    factor = 1.0


@case(SQUARE, rung="backend-eager", issue=169253)
def log_in_class(state: Tensor) -> Tensor:
    Log.items.append(len(Log.items))  # here
    return state * 2


COUNTS: Final = {"n": 0}


@case(SQUARE, rung="backend-eager", issue=197896)
def count_in_helper(state: Tensor) -> Tensor:
    class Helper:
        def touch(self) -> None:
            COUNTS["n"] += 1  # here

    Helper().touch()
    return state + 1


def make_counting_step() -> Callable[[Tensor], Tensor]:
    seen: list[int] = []

    def count_in_closure(state: Tensor) -> Tensor:
        class Helper:
            def touch(self, size: int) -> None:
                seen.append(size)  # here

        Helper().touch(state.size(0))
        return state + 1

    return count_in_closure


count_in_closure = case(SQUARE, rung="backend-eager", issue=197896)(make_counting_step())


@case(SQUARE, rung="backend-eager", issue=196467)
def size_as_shape(state: Tensor) -> int:
    return torch.Tensor(state[:1].size()).dim()  # here


class Base:
    def __init__(self, width: int) -> None:
        self.width = width


class Derived(Base):
    """Another kind of record."""


@case(SQUARE, rung="backend-eager", issue=174050)
def change_class(state: Tensor) -> tuple[Tensor, bool]:
    held = Base(5)
    held.__class__ = Derived  # here
    return state + 1, isinstance(held, Derived)  # here


@dataclasses.dataclass
class Region:
    hidden: Tensor


REGION = Region(torch.tensor(0))


@torch.compiler.nested_compile_region
def _region() -> Tensor:
    return REGION.hidden + 1  # here


@case(lambda draw: (torch.randint(0, 9, (), generator=draw),), rung="backend-eager", issue=191821)
def repeat_region(hidden: Tensor) -> Tensor:
    global REGION
    for _ in range(2):
        REGION = Region(hidden)  # here
        hidden = _region()  # here
    return hidden


@case(leaves((8, 8), (8,)), issue=182012)
def set_diagonal(state: Tensor, diagonal: Tensor) -> Tensor:
    return torch.diagonal_scatter(state, diagonal).sum()  # here


@case(leaves((6, 6), (2, 6)), issue=182012)
def set_slice(state: Tensor, rows: Tensor) -> Tensor:
    return torch.slice_scatter(state, rows, 0, 1, 3).sum()  # here


@case(leaves((1, 2, 6, 8), (3, 2, 3, 3), (3,)), issue=185509)
def convolve_and_choose(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    larger = torch.nn.functional.interpolate(image, scale_factor=(1.5, 1.25), mode="bilinear", align_corners=False)
    convolved = torch.nn.functional.conv2d(larger[:, :, 1:7, 1:8], weight, bias, padding=1)
    pooled = torch.nn.functional.max_pool2d(convolved, kernel_size=3, stride=1, padding=1)  # here
    return torch.where(convolved > 0, convolved, pooled)  # here


@case(
    lambda draw: (torch.tensor([-(2**31)], dtype=torch.int32), torch.tensor([-1], dtype=torch.int32)),
    issue=184406,
    ends=True,
)
def divide_least(values: Tensor, by: Tensor) -> Tensor:
    return torch.floor_divide(values, by)  # here


@case(lambda draw: (torch.randn(1, 8, 66, 66, generator=draw), torch.tensor([[1]])), issue=195402, ends=True)
def read_beyond(values: Tensor, rows: Tensor) -> Tensor:
    return (values - 0.5)[rows]  # here


@case(lambda draw: (torch.randn(4, generator=draw).requires_grad_(),), issue=91468)
def keep_gradient(values: Tensor) -> tuple[Tensor, bool]:
    doubled = values * 2
    doubled.retain_grad()  # here
    return doubled * 3, doubled.retains_grad  # here


@case(floats((2, 3)), issue=136662)
def differentiate_inside(rows: Tensor) -> Tensor:
    def total(values: Tensor) -> Tensor:
        held = values.clone()
        held[:, 0] += values[:, 2].abs()  # here
        return held.sum()

    return torch.func.grad(total)(rows)  # here


@case(lambda draw: (torch.tensor([1000, 5, -3]), torch.tensor([64, 65, 70])), issue=143566)
def shift_far(values: Tensor, by: Tensor) -> Tensor:
    return torch.bitwise_left_shift(values, by)  # here


@case(lambda draw: (torch.randint(100, 256, (8,), generator=draw).to(torch.uint8),), issue=105264)
def add_bytes(values: Tensor) -> Tensor:
    return (values + values).to(torch.int16)  # here


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.add:
            return out + 10  # here
        return out


@case(lambda draw: (torch.randn(3, generator=draw).as_subclass(Tagged),), rung="backend-eager", issue=176679)
def add_tagged(values: Tensor) -> Tensor:
    return torch.add(values, 1)  # here


class Kept(torch.Tensor):
    """A tensor of a class of its own."""


@case(lambda draw: (torch.randn(4, 5, generator=draw).as_subclass(Kept),), rung="aot-eager")
def double_tagged(values: Tensor) -> Tensor:
    return values * 2 + 1  # here


@case(lambda draw: (torch.randn(7, 9, generator=draw),), issue=174073)
def choose_lowest(scores: Tensor) -> Tensor:
    scores.tan_()  # here
    return scores.t().argmin()  # here


@case(lambda draw: (torch.randn(5, 8, generator=draw),), issue=183082)
def choose_highest(scores: Tensor) -> Tensor:
    scores.sin_()  # here
    return scores.t().argmax()  # here


@case(lambda draw: (torch.rand(6, 9, generator=draw) > 0.5,), issue=184893)
def least_flag(flags: Tensor) -> tuple[Tensor, Tensor]:
    return flags.argmin(1), flags.min(1).indices  # here


@case(
    lambda draw: (
        torch.randn(4, 8, 17, generator=draw),
        torch.randn(4, 8, generator=draw),
        torch.rand(8),
        torch.rand(8),
    ),
    issue=185702,
)
def stack_special(many: Tensor, more: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    x = many[..., 16]
    positive = torch.nn.functional.softplus(x) + 0.0001
    rates = torch.nn.functional.softplus(more) + 0.0001
    gamma = torch.special.gammaln(positive + alpha.view(1, -1))  # here
    error = torch.special.erf(x * beta.view(1, -1))  # here
    return torch.stack((gamma, error, torch.special.xlogy(positive, rates)), dim=-1)  # here


class Pair(NamedTuple):
    value: Tensor
    rows: Tensor
    depth: Tensor


@case(TWO, rung="backend-eager")
def replace_twice(first: Tensor, second: Tensor) -> Pair:
    pair = Pair(first, first.argmax(1), torch.zeros(6))
    return pair._replace(value=second)._replace(depth=pair.depth + 1)  # here


@case(lambda draw: (torch.tensor([3.0]),), rung="backend-eager", issue=176851)
def scale_by_class(values: Tensor) -> Tensor:
    return values * Log.factor  # here


@case(lambda draw: (torch.full((4,), 0.1875),), issue=126848)
def underflow(values: Tensor) -> Tensor:
    return values * 2.0 ** (-127 + 3)  # here


@case(lambda draw: (torch.randn(20, generator=draw) * 40,), issue=131910)
def to_byte(values: Tensor) -> Tensor:
    return values.byte()  # here


@case(SQUARE, rung="backend-eager", issue=175855)
def grow_while_read(state: Tensor) -> Tensor:
    values = [state.sum()]

    def grow() -> Any:
        for item in values:
            if len(values) < 3:
                values.append(item + 1)
            yield item

    return torch.stack(list(grow())).sum()  # here


@case(SQUARE, rung="aot-eager", issue=97083)
def squeeze_and_write(state: Tensor) -> Tensor:
    first = state[0:1]
    flat = first.squeeze()
    first[0] = 0  # here
    if flat[0] < 1e5:  # here
        flat = flat + 0
    first[0] = 2  # here
    return first.squeeze()  # here


@case(floats((2, 8)), issue=138908)
def double_at(state: Tensor) -> Tensor:
    rows = torch.tensor([[0, 0]])
    state[rows] += state[rows]  # here
    return state


@case(leaves((4, 8), (8, 8)), rung="aot-eager", issue=179804)
def without_autocast(values: Tensor, weight: Tensor) -> Tensor:
    with torch.amp.autocast("cpu", dtype=torch.bfloat16):  # here
        low = values @ weight
        with torch.amp.autocast("cpu", enabled=False):
            return low.float() @ weight.T  # here
