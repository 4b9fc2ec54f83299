"""Idioms of batched provers that some torch compiles wrongly without a word: which of them does the installed one?

Each is right in eager by the definition of its operators. The numbers are those of pytorch's issues.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

import torch
from torch import Tensor

from kgverify.audit.audited_function import Subject


class Kind(IntEnum):
    """Of a resolvent, as one would write it; kgverify's own compiled code has plain ints."""

    GOAL = 0
    TRUE = 1
    FALSE = 2


def keep_previous(previous: Tensor, current: Tensor, change: Tensor) -> Tensor:
    """Remember a buffer by slices, then go on writing it."""
    previous[:] = current[:]
    current.add_(change)
    return previous.sum()


def swap_buffers(first: Tensor, second: Tensor) -> None:
    """Exchange two buffers through a copy."""
    held = first.clone()
    first.copy_(second)
    second.copy_(held)


def shift_rows(rows: Tensor) -> Tensor:
    """Move every row one further."""
    rows[1:] = rows[:-1].clone()
    return rows


def add_mirrored(rows: Tensor) -> Tensor:
    """A fused update whose operand is made of what it writes."""
    torch._foreach_add_([rows], [rows.flip(0)])
    return rows


def exchange_at_once(first: Tensor, second: Tensor) -> None:
    """Exchange two buffers by one fused copy."""
    torch._foreach_copy_([first, second], [second.clone(), first.clone()])


def rotate_at_once(first: Tensor, second: Tensor, third: Tensor) -> None:
    """A fused copy that reads what it has written: in eager one after the other."""
    torch._foreach_copy_([first, second, third], [second, third, first])


def put_then_mirror(rows: Tensor) -> Tensor:
    """A scatter into a buffer, then an update that reads it elsewhere."""
    rows.index_put_((torch.arange(rows.size(0), device=rows.device),), rows * 2.0)
    rows.add_(rows.flip(0))
    return rows


def choose_lowest(scores: Tensor) -> Tensor:
    """The place of the least of a transposed buffer that was written just before."""
    scores.tan_()
    return scores.t().argmin()


def choose_transposed(scores: Tensor, bonus: Tensor) -> Tensor:
    """The place of the highest of a sum with a transposed operand."""
    return (scores.t() + bonus).max(dim=1).indices


def mark_true(kind: Tensor) -> Tensor:
    """Compare with a member of an IntEnum."""
    return torch.ones_like(kind, dtype=torch.bool) & (kind == Kind.TRUE)


def mark_others(kind: Tensor) -> Tensor:
    """The same, the other way round."""
    return torch.ones_like(kind, dtype=torch.bool) & (kind != Kind.TRUE)


class Trap(NamedTuple):
    """An idiom. issue: of pytorch, 0 where none is known; draw: its arguments, from a generator and a size"""

    name: str
    issue: int
    function: Callable[..., Tensor | None]
    draw: Callable[[torch.Generator, int], tuple[Tensor, ...]]

    def subject(self, device: str = "cpu", size: int = 16) -> Subject:
        """Under audit, on arguments of about size times size elements."""

        def make_inputs(call: int) -> tuple[Tensor, ...]:
            drawn = self.draw(torch.Generator().manual_seed(call), size)
            # Views stay what they are.
            return tuple(each.to(device) for each in drawn)

        return Subject(self.name, self.function, make_inputs, calls=4)


def _floats(num: int) -> Callable[[torch.Generator, int], tuple[Tensor, ...]]:
    def draw(generator: torch.Generator, size: int) -> tuple[Tensor, ...]:
        return tuple(torch.randn(size, size, generator=generator) for _ in range(num))

    return draw


def _wide(generator: torch.Generator, size: int) -> tuple[Tensor, ...]:
    return (torch.randn(size, size + 2, generator=generator),)


def _kinds(generator: torch.Generator, size: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, 3, (size * size,), generator=generator),)


TRAPS: Final = (
    Trap("keep-previous", 198131, keep_previous, _floats(3)),
    Trap("swap-buffers", 198131, swap_buffers, _floats(2)),
    Trap("shift-rows", 197829, shift_rows, _floats(1)),
    Trap("add-mirrored", 198033, add_mirrored, _floats(1)),
    Trap("exchange-at-once", 198033, exchange_at_once, _floats(2)),
    Trap("rotate-at-once", 198033, rotate_at_once, _floats(3)),
    Trap("put-then-mirror", 198270, put_then_mirror, _floats(1)),
    Trap("choose-lowest", 174073, choose_lowest, _wide),
    Trap("choose-transposed", 178964, choose_transposed, _floats(2)),
    Trap("mark-true", 0, mark_true, _kinds),
    Trap("mark-others", 0, mark_others, _kinds),
)
