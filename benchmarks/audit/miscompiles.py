"""Steps that torch 2.13 compiles wrongly on a CPU without an error, most of them in its issue tracker.

Each step is right in eager by the definition of its operators. A report that names a line which ends in `# here` names the right
one. The issue numbers are those of pytorch.
"""

import dataclasses
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.audit import Make, add_make, floats, leaves


class Miscompile(NamedTuple):
    """A step. rung: the first that is wrong; issue: of pytorch, 0 if unknown."""

    step: Callable[..., Any]
    make: Callable[[int], tuple[Any, ...]]
    rung: str
    issue: int


MISCOMPILES: Final[dict[str, Miscompile]] = {}


def case(make: Make, *, rung: str = "default", issue: int = 0) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a step with its arguments, which `make_NAME(call)` of this module makes."""

    def register(step: Callable[..., Any]) -> Callable[..., Any]:
        made = add_make(step, __name__, make)
        MISCOMPILES[step.__name__] = Miscompile(step, made, rung, issue)
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


@case(SQUARE, issue=197829)
def shift_rows(rows: Tensor) -> Tensor:
    rows[1:] = rows[:-1].clone()  # here
    return rows


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


@case(lambda draw: (torch.randint(0, 9, (257,), generator=draw),))
def hash_and_sum(rows: Tensor) -> Tensor:
    return ((torch.arange(257) * -7046029254386353131) ^ rows).sum()  # here


@case(SQUARE, rung="backend-eager", issue=196467)
def size_as_shape(state: Tensor) -> int:
    return torch.Tensor(state[:1].size()).dim()  # here


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


@case(leaves((1, 2, 6, 8), (3, 2, 3, 3), (3,)), issue=185509)
def convolve_and_choose(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    larger = torch.nn.functional.interpolate(image, scale_factor=(1.5, 1.25), mode="bilinear", align_corners=False)
    convolved = torch.nn.functional.conv2d(larger[:, :, 1:7, 1:8], weight, bias, padding=1)
    pooled = torch.nn.functional.max_pool2d(convolved, kernel_size=3, stride=1, padding=1)  # here
    return torch.where(convolved > 0, convolved, pooled)  # here


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


@case(SQUARE, rung="aot-eager", issue=97083)
def squeeze_and_write(state: Tensor) -> Tensor:
    first = state[0:1]
    flat = first.squeeze()
    first[0] = 0  # here
    if flat[0] < 1e5:  # here
        flat = flat + 0
    first[0] = 2  # here
    return first.squeeze()  # here


def _values(*values: float, dtype: torch.dtype = torch.float32) -> Make:
    return lambda draw: (torch.tensor(values, dtype=dtype),)


@case(_values(*range(9)))
def turn_rows(rows: Tensor) -> Tensor:
    turned = torch.arange(3, dtype=torch.uint8) - 2  # here
    return rows[turned.long() % rows.size(0)]  # here


@case(_values(1, 1, 0, 1, dtype=torch.bool), issue=184893)
def find_first_open(done: Tensor) -> Tensor:
    return done.min(0).indices  # here


@case(_values(-128, 3, dtype=torch.int8))
def hash_small(rows: Tensor) -> Tensor:
    return rows.abs() % 7  # here


@case(SQUARE, issue=156786)
def add_to_next(rows: Tensor) -> Tensor:
    rows = rows + 1  # here
    return rows.index_add(0, torch.arange(1, 6), rows[:5])  # here


@case(SQUARE, rung="aot-eager", issue=198033)
def scale_twice(rows: Tensor) -> Tensor:
    torch._foreach_mul_([rows, rows], [2.0, 10.0])  # here
    return rows


@case(lambda draw: (torch.tensor(2.0, dtype=torch.float64),), rung="aot-eager")
def clip_loss(loss: Tensor) -> Tensor:
    torch.nn.functional.hardtanh(loss, 0.1, 0.9, inplace=True)  # here
    return loss * 1  # here


@case(_values(1.0, torch.inf), issue=188048)
def divide_down(numbers: Tensor) -> Tensor:
    return numbers // 2.0 + 1.0 // -numbers  # here


@case(lambda draw: (torch.full((16,), -1.5),), issue=198057)
def wrap_around(numbers: Tensor) -> Tensor:
    return numbers % -torch.inf  # here


@case(_values(torch.nan, 2.0), issue=186281)
def shrink_softly(numbers: Tensor) -> Tensor:
    return torch.nn.functional.softshrink(numbers)  # here


@case(lambda draw: (torch.tensor(torch.inf),))
def vary(number: Tensor) -> Tensor:
    return number.var(correction=0)  # here


@case(_values(100, 100, dtype=torch.int8), rung="backend-eager", issue=198056)
def count_up(rows: Tensor) -> Tensor:
    return torch.as_tensor(np.cumsum(rows.numpy()))  # here
