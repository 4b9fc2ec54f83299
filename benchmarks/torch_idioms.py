"""Idioms of batched provers that some versions of torch compile wrongly without an error.

    python benchmarks/torch_idioms.py swap-buffers shift-rows --size 2048 --save wrong

Each idiom is right in eager by the definition of its operators. The script climbs the rungs of the compiler with each, and prints
the first wrong rung and the items of the compiler without which it is right. The issue numbers are those of pytorch.
"""

import argparse
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from stepaudit.audited_function import Subject
from stepaudit.ladder.values_audit import audit_values
from stepaudit.options import RUNG_NAMES, AuditOptions
from stepaudit.report import ReportBuilder


class Kind(IntEnum):
    """Kinds of a resolvent as an IntEnum; code that is compiled had better use plain ints."""

    GOAL = 0
    TRUE = 1
    FALSE = 2


def keep_previous(previous: Tensor, current: Tensor, change: Tensor) -> Tensor:
    """Copy a buffer by slices, then write it again."""
    previous[:] = current[:]
    current.add_(change)
    return previous.sum()


def swap_buffers(first: Tensor, second: Tensor) -> None:
    """Exchange two buffers through a copy."""
    held = first.clone()
    first.copy_(second)
    second.copy_(held)


def shift_rows(rows: Tensor) -> Tensor:
    """Move every row by one."""
    rows[1:] = rows[:-1].clone()
    return rows


def add_mirrored(rows: Tensor) -> Tensor:
    """Update rows by a fused operator whose operand is made from them."""
    torch._foreach_add_([rows], [rows.flip(0)])
    return rows


def exchange_at_once(first: Tensor, second: Tensor) -> None:
    """Exchange two buffers by one fused copy."""
    torch._foreach_copy_([first, second], [second.clone(), first.clone()])


def rotate_at_once(first: Tensor, second: Tensor, third: Tensor) -> None:
    """Rotate buffers by a fused copy that reads its own results: in eager one after the other."""
    torch._foreach_copy_([first, second, third], [second, third, first])


def put_then_mirror(rows: Tensor) -> Tensor:
    """Scatter into a buffer, then update it by reading other elements of it."""
    rows.index_put_((torch.arange(rows.size(0), device=rows.device),), rows * 2.0)
    rows.add_(rows.flip(0))
    return rows


def choose_lowest(scores: Tensor) -> Tensor:
    """Return the index of the least value of a transposed buffer that was just written."""
    scores.tan_()
    return scores.t().argmin()


def choose_transposed(scores: Tensor, bonus: Tensor) -> Tensor:
    """Return the index of the highest value of a sum with a transposed operand."""
    return (scores.t() + bonus).max(dim=1).indices


def mark_true(kind: Tensor) -> Tensor:
    """Compare with a member of an IntEnum."""
    return torch.ones_like(kind, dtype=torch.bool) & (kind == Kind.TRUE)


def mark_others(kind: Tensor) -> Tensor:
    """Compare with a member of an IntEnum by inequality."""
    return torch.ones_like(kind, dtype=torch.bool) & (kind != Kind.TRUE)


class Idiom(NamedTuple):
    """An idiom. issue: of pytorch, 0 if unknown; draw: makes its arguments from a generator and a size."""

    name: str
    issue: int
    function: Callable[..., Tensor | None]
    draw: Callable[[torch.Generator, int], tuple[Tensor, ...]]

    def subject(self, device: str = "cpu", size: int = 16) -> Subject:
        """Describe the idiom for an audit, on arguments of about size times size elements."""

        def make_inputs(call: int) -> tuple[Tensor, ...]:
            drawn = self.draw(torch.Generator().manual_seed(call), size)
            # Views stay views.
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


IDIOMS: Final = (
    Idiom("keep-previous", 198131, keep_previous, _floats(3)),
    Idiom("swap-buffers", 198131, swap_buffers, _floats(2)),
    Idiom("shift-rows", 197829, shift_rows, _floats(1)),
    Idiom("add-mirrored", 198033, add_mirrored, _floats(1)),
    Idiom("exchange-at-once", 198033, exchange_at_once, _floats(2)),
    Idiom("rotate-at-once", 198033, rotate_at_once, _floats(3)),
    Idiom("put-then-mirror", 198270, put_then_mirror, _floats(1)),
    Idiom("choose-lowest", 174073, choose_lowest, _wide),
    Idiom("choose-transposed", 178964, choose_transposed, _floats(2)),
    Idiom("mark-true", 0, mark_true, _kinds),
    Idiom("mark-others", 0, mark_others, _kinds),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [idiom.name for idiom in IDIOMS]
    parser.add_argument("name", nargs="*", metavar="NAME", help=f"one of {', '.join(names)}; all if not given")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", type=int, default=16, help="rows and columns of the arguments: try 16 and 2048")
    parser.add_argument("--rung", action="append", help="only this rung of the compiler; repeat for several")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of the search for the cause of each")
    parser.add_argument("--save", type=Path, help="folder for a reproducer of each idiom that deviates")
    options = parser.parse_args()
    if unknown := set(options.name) - set(names):
        parser.error(f"unknown idioms {', '.join(sorted(unknown))}")
    is_cuda = torch.cuda.is_available() if options.device == "auto" else options.device.startswith("cuda")
    device = "cuda" if is_cuda else "cpu"
    if options.save is not None:
        options.save.mkdir(parents=True, exist_ok=True)
    rungs = tuple(name for name in RUNG_NAMES if not options.rung or name in options.rung)
    print(
        f"| idiom | pytorch issue | torch {torch.__version__}, {device}, {options.size} x {options.size} | right without |"
    )
    print("|---|---|---|---|")
    for idiom in IDIOMS:
        if options.name and idiom.name not in options.name:
            continue
        path = None if options.save is None else options.save / f"{idiom.name}.py"
        subject = idiom.subject(device, options.size)
        builder = ReportBuilder()
        asked = AuditOptions(rungs=rungs, reproducer=path, seconds=options.seconds)
        is_conclusive = audit_values(subject, builder, asked)
        report = builder.build(subject.name, {}, is_conclusive=is_conclusive)
        issue = f"#{idiom.issue}" if idiom.issue else ""
        if "attribution" in report.sections:
            (row,) = report.sections["attribution"].rows
            found, repaired = row["rung"], row["left_out"] or "nothing that was tried"
        else:
            found, repaired = report.verdict.value, ""
        print(f"| {idiom.name} | {issue} | {found} | {repaired} |", flush=True)


if __name__ == "__main__":
    main()
