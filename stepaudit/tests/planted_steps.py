"""Steps with one property lost each; the line that loses it ends in `# here`."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

WIDTH = {"factor": 2.0}
ROWS: list[Tensor] = []


class Pair(NamedTuple):
    total: Tensor
    parts: dict[str, Tensor]


def line_of(function: Callable[..., Any]) -> str:
    """`file:line` of the marked line."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [number for number, line in enumerate(lines) if line.rstrip().endswith("# here")]
    return f"{inspect.getsourcefile(function)}:{first + number}"


def clean_step(state: Pair, given: tuple[Tensor, int]) -> Pair:
    values, times = given
    total = torch.where(values > 0, state.total * times, state.total - values)
    return Pair(total * WIDTH["factor"], {"sum": total.sum(), "same": state.parts["same"]})


def clean_inputs(call: int) -> tuple[Pair, tuple[Tensor, int]]:
    return Pair(torch.full((4,), float(1 + call)), {"same": torch.ones(2)}), (torch.arange(4.0) - call, 3)


def breaking_step(values: Tensor) -> Tensor:
    doubled = values * 2
    tell(doubled)
    return doubled + 1


def tell(values: Tensor) -> None:
    print(end="")  # here


def step_with_shapes(values: Tensor) -> Tensor:
    total = values * 2
    for number in range(values.shape[0]):  # here
        total = total + number
    return total


def step_with_words(values: Tensor, word: str) -> Tensor:
    total = values * 2
    if word != "":  # here
        total = total + 1
    return total


def reading_step(values: Tensor) -> Tensor:
    total = values.sum()
    if total > 2:  # here
        return values * 2
    return values - 1


def listing_step(values: Tensor) -> Tensor:
    first, *_ = values.tolist()  # here
    return values * first


def choosing_step(values: Tensor) -> Tensor:
    chosen = values[values > 1]  # here
    return chosen.sum() + values


def make_aliasing_step() -> Callable[..., Any]:
    state = torch.zeros(4)

    def aliasing_step(values: Tensor) -> tuple[Tensor, Tensor]:
        state.add_(values)
        return values * 2, state[:2]  # here

    return aliasing_step


def mutating_step(state: Tensor, values: Tensor) -> Tensor:
    state.mul_(2).add_(values)
    return state.view(2, 2)  # here


def passing_step(state: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return an argument unchanged, and write nothing in place."""
    return state, values + 1


def colliding_step(values: Tensor, rows: Tensor) -> Tensor:
    slots = torch.zeros(6)
    slots = slots.index_put((rows,), values)  # here
    return slots * 2


def scattering_step(values: Tensor, rows: Tensor) -> Tensor:
    slots = torch.zeros(2, 6)
    slots.scatter_(1, rows.expand(2, -1), values.expand(2, -1))  # here
    return slots * 2


def step_with_sink(values: Tensor, rows: Tensor) -> Tensor:
    """Colliding values are written to a row that is cut off."""
    slots = torch.zeros(7).index_put((torch.where(rows == 1, 6, rows),), values)
    return slots[:6] * 2


def adding_step(values: Tensor, rows: Tensor) -> Tensor:
    return torch.zeros(6).index_put((rows,), values, accumulate=True)


@torch._dynamo.assume_constant_result
def factor() -> float:
    return WIDTH["factor"]  # here


def step_with_hole(values: Tensor) -> Tensor:
    return values * factor()


@torch.compiler.allow_in_graph
def scale(values: Tensor) -> Tensor:
    return values * WIDTH["factor"]  # here


def step_with_late_hole(values: Tensor) -> Tensor:
    return scale(values) + 1


def raise_values(values: Tensor) -> Tensor:
    return values ** WIDTH["factor"]  # here


decorated = torch._dynamo.nonstrict_trace(raise_values)


def step_with_decorated_hole(values: Tensor) -> Tensor:
    return decorated(values) + 1


def step_with_branch(rows: Tensor) -> Tensor:
    if rows.shape[0] > 4:  # here
        return rows.mean(0)
    return rows.sum(0)


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.times = 2
        self.names = ["a", "b"]

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values) * self.times * len(self.names)


def make_step_with_table() -> Callable[..., Any]:
    table = torch.arange(4.0, device="cuda")

    def step_with_table(values: Tensor) -> Tensor:
        return values * table + 1  # here

    return step_with_table


def keeping_step(values: Tensor) -> Tensor:
    doubled = values * 2
    return doubled + 1  # here


def make_racing_step() -> Callable[..., Any]:
    side = torch.cuda.Stream()

    def racing_step(values: Tensor, *, waits: bool = False) -> Tensor:
        doubled = values * 2
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            result = doubled + 1  # here
        torch.cuda.current_stream().wait_stream(side)
        return result

    return racing_step


LAST = {"sum": torch.zeros(4)}


def step_that_keeps_its_sum(values: Tensor) -> Tensor:
    total = values + LAST["sum"].to(values.device)  # here
    LAST["sum"] = total
    return total * 2
