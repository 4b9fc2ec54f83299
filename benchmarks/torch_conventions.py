"""Rules of the installed torch for ties, NaN and rows of -inf in argmax, max, topk and sort, eager and compiled.

    python benchmarks/torch_conventions.py --device cuda --mode default

torch promises none of these rules. The stage `choose` of the evaluator relies on one: among equal scores argmax takes the
lowest index. The exit code is 1 where that does not hold.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from benchmarks.numerics.compile_in_mode import compile_in_mode
from kgverify.prover.execution.device import resolve_device

SHAPES: Final = ((3, 4), (64, 121), (5, 3000), (2048, 16))
LARGE_SHAPES: Final = ((1 << 16, 121), (7, 1 << 18))
"""Further shapes on CUDA, where reductions of rows or of columns are divided differently."""

LOWEST, HIGHEST, NAN_FIRST, ZERO = "lowest index", "highest index", "first NaN", "index 0"


def _tied(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Make few different values, so that nearly every row has several highest ones."""
    rows, columns = (torch.arange(n, device=device) for n in shape)
    return ((rows[:, None] * 7 + columns * 5 + columns // 3) % 3).float()


def _with_nan(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Make two NaN in every row, not at its ends, and a +inf before them."""
    values = _tied(shape, device)
    values[:, 0] = torch.inf
    values[:, shape[1] // 2] = torch.nan
    values[:, shape[1] // 2 + 1] = torch.nan
    return values


def _all_low(shape: tuple[int, int], device: torch.device) -> Tensor:
    return torch.full(shape, -torch.inf, device=device)


SITUATIONS: Final[dict[str, Callable[[tuple[int, int], torch.device], Tensor]]] = {
    "ties": _tied,
    "NaN": _with_nan,
    "all -inf": _all_low,
}
OPERATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "argmax": lambda values: values.argmax(1),
    "max": lambda values: values.max(1).indices,
    "topk": lambda values: values.topk(1, 1).indices[:, 0],
    "sort, descending": lambda values: values.sort(1, descending=True).indices[:, 0],
}


def observe_rule(values: Tensor, index: Tensor) -> str:
    """Return the rule that the indices of the rows follow; `none` if there is no such rule."""
    is_nan = values.isnan()
    if bool(is_nan.any()):
        return NAN_FIRST if torch.equal(index, is_nan.int().argmax(1)) else "none"
    columns = torch.arange(values.shape[1], device=values.device)
    is_best = values == values.amax(1, keepdim=True)
    lowest = torch.where(is_best, columns, values.shape[1]).amin(1)
    if bool((values == -torch.inf).all()):
        return ZERO if bool((index == 0).all()) else "none"
    if torch.equal(index, lowest):
        return LOWEST
    return HIGHEST if torch.equal(index, torch.where(is_best, columns, -1).amax(1)) else "none"


def find_conventions(device: torch.device, mode: str) -> dict[tuple[str, str], str]:
    """Return the rule of each operation in each situation that holds for all shapes; `none` without such a rule."""
    shapes = SHAPES + (LARGE_SHAPES if device.type == "cuda" else ())
    given = {name: [make(shape, device) for shape in shapes] for name, make in SITUATIONS.items()}

    def take_all(values: Sequence[Tensor]) -> list[list[Tensor]]:
        return [[operation(each) for each in values] for operation in OPERATIONS.values()]

    flat = [each for values in given.values() for each in values]
    taken = compile_in_mode(take_all, mode)(flat)
    rules = {}
    for operation, indices in zip(OPERATIONS, taken, strict=True):
        for number, (situation, values) in enumerate(given.items()):
            of_situation = indices[number * len(shapes) : (number + 1) * len(shapes)]
            seen = {observe_rule(v, i) for v, i in zip(values, of_situation, strict=True)}
            rules[operation, situation] = seen.pop() if len(seen) == 1 else "none"
    return rules


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--mode", default="default", help="of torch.compile, beside eager")
    options = parser.parse_args()
    device = resolve_device(options.device)
    found = {mode: find_conventions(device, mode) for mode in ("eager", options.mode)}
    print(f"| operation | situation | {' | '.join(found)} |")
    print("|---|---|" + "---|" * len(found))
    for operation, situation in found["eager"]:
        rules = (rules[operation, situation] for rules in found.values())
        print(f"| {operation} | {situation} | {' | '.join(rules)} |")
    return int(any(rules["argmax", "ties"] != LOWEST for rules in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
