"""Steps of a user that lose one property each; the line that loses it ends in `# here`.

What a CPU cannot show, such as copies before replays, is not among them.
"""

import copy
import functools
import io
import operator
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.audit import Make, add_make, floats, name_of


class PropertyFault(NamedTuple):
    """A step. audit: the one that finds it; options: of the audit."""

    step: Callable[..., Any]
    make: Callable[[int], tuple[Any, ...]]
    audit: str
    options: Mapping[str, Any]


PROPERTY_FAULTS: Final[dict[str, PropertyFault]] = {}


def fault(audit: str, make: Make | Callable[[int], tuple[Any, ...]], *, by_call: bool = False, **options: Any) -> Any:
    """Register a step with its arguments; `by_call` passes the number of the call to `make`."""

    def register(step: Any) -> Any:
        made: Any = make if by_call else add_make(step, __name__, make)  # type: ignore[arg-type]
        PROPERTY_FAULTS[name_of(step)] = PropertyFault(step, made, audit, options)
        return step

    return register


FOUR: Final = floats((4,))


@fault("graph-breaks", FOUR)
def print_inside(values: Tensor) -> Tensor:
    doubled = values * 2
    print(end="")  # here
    return doubled + 1


@fault("graph-breaks", FOUR)
def break_on_purpose(values: Tensor) -> Tensor:
    doubled = values * 2
    torch._dynamo.graph_break()  # here
    return doubled + 1


@torch.compiler.disable
def _outside(values: Tensor) -> Tensor:
    return values + 1


@fault("graph-breaks", FOUR)
def call_disabled(values: Tensor) -> Tensor:
    doubled = values * 2
    return _outside(doubled) * 3  # here


@fault("graph-breaks", FOUR)
def branch_on_value(values: Tensor) -> Tensor:
    if values.sum() > 0:  # here
        return values * 2
    return values - 1


@fault("syncs", FOUR)
def loop_until(values: Tensor) -> Tensor:
    while values.abs().max() > 4:  # here
        values = values / 2
    return values


@fault("syncs", FOUR)
def read_item(values: Tensor) -> Tensor:
    largest = values.max().item()  # here
    return values / (largest + 20)


@fault("syncs", FOUR)
def index_by_mask(values: Tensor) -> Tensor:
    return values[values > 0].sum()  # here


@fault("syncs", FOUR)
def find_nonzero(values: Tensor) -> Tensor:
    return torch.nonzero(values).sum()  # here


@fault("syncs", FOUR)
def list_unique(values: Tensor) -> Tensor:
    return torch.unique(values).sum()  # here


@fault("syncs", FOUR)
def as_list(values: Tensor) -> Tensor:
    first = values.tolist()[0]  # here
    return values * first


@fault("syncs", lambda draw: (torch.tensor([1, 2, 0]), torch.arange(3.0)))
def repeat_by_tensor(times: Tensor, values: Tensor) -> Tensor:
    return values.repeat_interleave(times).sum()  # here


@fault("recompilations", lambda call: (torch.ones(3 + call % 3),), by_call=True)
def grow_by_call(values: Tensor) -> Tensor:
    total = values * 2
    for number in range(values.shape[0]):  # here
        total = total + number
    return total


@fault("recompilations", lambda call: (torch.ones(4), "w" * call), by_call=True)
def depend_on_word(values: Tensor, word: str) -> Tensor:
    return values + 1 if word == "" else values + len(word)  # here


@fault("recompilations", lambda call: (torch.ones(4, dtype=(torch.float32, torch.float64)[call % 2]),), by_call=True)
def change_dtype(values: Tensor) -> Tensor:
    return values * 2  # here


@fault("recompilations", lambda call: (torch.ones(4), call % 2 == 0), by_call=True)
def depend_on_flag(values: Tensor, is_first: bool) -> Tensor:
    return values * 2 if is_first else values + 1  # here


@fault("recompilations", lambda call: ([torch.ones(2)] * (2 + call % 3),), by_call=True)
def grow_a_list(parts: list[Tensor]) -> Tensor:
    return functools.reduce(operator.add, parts)  # here


@fault("graph-breaks", lambda call: ([torch.ones(2)] * (1 + call % 3),), by_call=True)  # here
def do_nothing_at_first(parts: list[Tensor]) -> Tensor:
    return functools.reduce(operator.add, parts)


def make_buffer_step() -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    state = torch.zeros(4)

    def return_buffer(values: Tensor) -> tuple[Tensor, Tensor]:
        state.add_(values)
        return values * 2, state  # here

    return return_buffer


fault("aliasing", FOUR)(make_buffer_step())


@fault("aliasing", floats((4,), (4,)))
def return_written_view(state: Tensor, values: Tensor) -> Tensor:
    state.mul_(2).add_(values)
    return state.view(2, 2)  # here


class Cache(nn.Module):
    held: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(4))

    def forward(self, values: Tensor) -> Tensor:
        self.held.copy_(values * 2)
        return self.held[:2]  # here


fault("aliasing", FOUR)(Cache())


@fault("duplicate-scatters", lambda draw: (torch.arange(4.0), torch.tensor([1, 3, 1, 4])))
def put_twice(values: Tensor, rows: Tensor) -> Tensor:
    return torch.zeros(6).index_put((rows,), values) * 2  # here


@fault("duplicate-scatters", lambda draw: (torch.arange(4.0), torch.tensor([1, 3, 1, 4])))
def scatter_twice(values: Tensor, rows: Tensor) -> Tensor:
    slots = torch.zeros(6)
    slots.scatter_(0, rows, values)  # here
    return slots


@fault("duplicate-scatters", lambda draw: (torch.zeros(6), torch.arange(4.0), torch.tensor([1, 3, 1, 4])))
def assign_twice(state: Tensor, values: Tensor, rows: Tensor) -> None:
    state[rows] = values  # here


WIDTH: Final = {"factor": 2.0}


@torch._dynamo.assume_constant_result
def _factor() -> float:
    return WIDTH["factor"]  # here


@fault("guard-holes", FOUR)
def read_constant(values: Tensor) -> Tensor:
    return values * _factor()


class Kind(Enum):
    SUM = 1
    PRODUCT = 2


class Settings:
    kind = Kind.SUM
    scale = 3.0


@torch._dynamo.assume_constant_result
def _scale() -> float:
    return Settings.scale  # here


@fault("guard-holes", FOUR)
def read_class_attribute(values: Tensor) -> Tensor:
    return values * _scale()


def _first(values: Tensor) -> Tensor:
    return values * 2


CHOICES: Final = {"act": _first}


@torch._dynamo.assume_constant_result
def _is_usual() -> bool:
    return CHOICES["act"] is _first  # here


@fault("guard-holes", FOUR)
def read_callable(values: Tensor) -> Tensor:
    return values * 2 if _is_usual() else values * 3


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act: nn.Module = nn.ReLU()

    def forward(self, values: Tensor) -> Tensor:
        return values * 2 if self._is_usual() else values * 3

    @torch._dynamo.assume_constant_result
    def _is_usual(self) -> bool:
        return isinstance(self.act, nn.ReLU)  # here


fault("guard-holes", FOUR)(Network())


def make_keeping_step() -> Callable[[Tensor], Tensor]:
    kept: list[Tensor] = [torch.zeros(4)]

    def return_same_memory(values: Tensor) -> Tensor:
        torch.add(values, 1, out=kept[0])
        return kept[0]  # here

    return return_same_memory


fault("aliasing", FOUR)(make_keeping_step())


def _make_moving(call: int) -> tuple[Tensor, ...]:
    weights = torch.arange(4.0)
    torch._dynamo.mark_static_address(weights, guard=False)
    return (weights, torch.ones(4) * call)


@fault("address-stability", _make_moving, by_call=True)
def read_static(weights: Tensor, values: Tensor) -> Tensor:
    return weights * values  # here


@fault("eager-fallback", lambda call: (torch.ones(4), "w" * call), by_call=True)
def compile_too_often(values: Tensor, word: str) -> Tensor:
    return values + 1 if word == "" else values * hash(word)  # here


@fault("syncs", floats((6, 3), (6, 3)))
def clip_by_norm(values: Tensor, gradients: Tensor) -> Tensor:
    norm = float(gradients.square().sum().sqrt())  # here
    return values - gradients * min(1.0, 5.0 / (norm + 1e-6))


class Schedule:
    def __init__(self) -> None:
        self.num_steps = 0

    def __call__(self, values: Tensor) -> Tensor:
        self.num_steps += 1  # here
        return values * (0.9**self.num_steps)  # here


fault("recompilations", FOUR)(Schedule())


def make_remembering_step() -> Callable[[Tensor], Tensor]:
    memory = {"hidden": torch.zeros(4)}

    def decay_memory(values: Tensor) -> Tensor:
        memory["hidden"].mul_(0.5).add_(values)
        return memory["hidden"].view(2, 2)  # here

    return decay_memory


fault("aliasing", FOUR)(make_remembering_step())


def make_alternating_step() -> Callable[[Tensor, int], Tensor]:
    buffers = torch.zeros(2, 4)

    def write_in_turn(values: Tensor, number: int) -> Tensor:
        torch.add(values, 1, out=buffers[number % 2])
        return buffers[number % 2]  # here

    return write_in_turn


fault("aliasing", lambda call: (torch.ones(4) * call, call), by_call=True)(make_alternating_step())


@fault("recompilations", lambda call: (torch.ones(2 + 3 * (call % 3), 4),), by_call=True)
def depend_on_batch(rows: Tensor) -> Tensor:
    if rows.shape[0] > 4:  # here
        return rows.mean(0)
    return rows.sum(0)


class Scoring:
    def __init__(self) -> None:
        self.score: Callable[[Tensor], Tensor] = torch.sin

    def __call__(self, values: Tensor) -> Tensor:
        return _apply_score(values) * 2  # here


SCORING: Final = Scoring()


@torch.compiler.allow_in_graph
def _apply_score(values: Tensor) -> Tensor:
    return SCORING.score(values)  # here


fault("guard-holes", FOUR)(SCORING)


def make_drawing_step() -> Callable[[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(3)

    def draw_with_generator(values: Tensor) -> Tensor:
        noise = torch.rand(4, generator=generator)  # here
        return values + noise

    return draw_with_generator


fault("graph-breaks", FOUR)(make_drawing_step())


@fault(
    "duplicate-scatters",
    lambda draw: (
        torch.zeros(6, 2),
        torch.tensor([True, True, False, True, True, False]),
        torch.randn(6, 2, generator=draw),
    ),
)
def fill_free_slots(slots: Tensor, is_new: Tensor, fresh: Tensor) -> Tensor:
    rank = (is_new.cumsum(0) - 1).clamp(0, 2)
    return slots.index_copy(0, rank, fresh)  # here


@fault("syncs", lambda draw: (torch.randn(3, 6, generator=draw), torch.tensor([2, 5, 4])))
def trim_to_longest(rows: Tensor, lengths: Tensor) -> Tensor:
    longest = int(lengths.max())  # here
    return rows[:, :longest].cumsum(1)


@fault("syncs", lambda draw: (torch.randint(0, 5, (9,), generator=draw),))
def count_relations(relations: Tensor) -> Tensor:
    return torch.bincount(relations).amax() + relations  # here


@fault("graph-breaks", FOUR)
def save_inside(values: Tensor) -> Tensor:
    scaled = values * 3
    torch.save(scaled, io.BytesIO())  # here
    return scaled.softmax(0)


@fault("graph-breaks", FOUR)
def copy_deeply(values: Tensor) -> Tensor:
    kept = copy.deepcopy(values)  # here
    return kept.cumsum(0) - values


@fault("recompilations", lambda call: (torch.ones(3, 4) if call % 2 else torch.ones(4, 3).t(),), by_call=True)
def depend_on_layout(rows: Tensor) -> Tensor:
    return (rows * 2).sum(1)  # here


@fault(
    "recompilations",
    lambda call: ({"goal": torch.ones(4)} | ({"mask": torch.ones(4)} if call % 2 else {}),),
    by_call=True,
)
def read_optional(batch: dict[str, Tensor]) -> Tensor:
    goal = batch["goal"] * 2
    return goal * batch["mask"] if "mask" in batch else goal  # here


class Memory(NamedTuple):
    cells: Tensor
    turned: Tensor


@fault("aliasing", floats((3, 3), (3, 3)))
def remember_turned(cells: Tensor, values: Tensor) -> Memory:
    cells.add_(values)
    return Memory(cells.sum(0), cells.t())  # here


@fault(
    "duplicate-scatters",
    lambda draw: (torch.full((8,), -1), torch.tensor([3, 11, 6, 14, 1]), torch.tensor([1, 2, 3, 4, 5])),
)
def insert_by_hash(table: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    table[keys % 8] = values  # here
    return table[keys % 8] == values


@fault(
    "duplicate-scatters",
    lambda draw: (torch.zeros(5, 4), torch.tensor([0, 9, 2, 7]), torch.randn(4, 4, generator=draw)),
)
def drop_into_last(slots: Tensor, free: Tensor, fresh: Tensor) -> Tensor:
    return slots.scatter(0, free.clamp_max(4)[:, None].expand(-1, 4), fresh)  # here


VOCABULARY: Final = ["parent", "sibling", "cousin"]


@torch._dynamo.assume_constant_result
def _count_words() -> int:
    return len(VOCABULARY)  # here


@fault("guard-holes", FOUR)
def wrap_at_vocabulary(values: Tensor) -> Tensor:
    return values.remainder(_count_words())


@fault("eager-fallback", lambda call: (torch.ones(3 + call),), by_call=True, dynamic=False)
def lengthen_each_call(values: Tensor) -> Tensor:
    return values.cumsum(0) * 2  # here


def _make_fresh_table(call: int) -> tuple[Any, ...]:
    table = torch.arange(6.0)
    torch._dynamo.mark_static_address(table, guard=False)
    return {"table": table, "rows": torch.tensor([call % 6, 2])}, torch.ones(2)


@fault("address-stability", _make_fresh_table, by_call=True)
def look_up_moved(given: dict[str, Tensor], weights: Tensor) -> Tensor:
    return given["table"][given["rows"]] * weights  # here
