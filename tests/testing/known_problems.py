"""Known problems: those of fixed seeds, what they become in a run, and the features found in them, each known by a hash.

Another constant or branch of the generator gives other problems, which are as valid, and may exercise less. After an
intended change, `python tests/testing/known_problems.py` writes the hashes again.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from problem_features import _batch_features, boundary_features

from kgverify import Limits
from kgverify.dialects import Dialect
from kgverify.laws import draw_problems
from kgverify.program.limits import OURS
from kgverify.testing.checking.check import prepare_alone, prepare_batches
from kgverify.testing.checking.guard import find_limit
from kgverify.testing.problems.decode import (
    ALONE_EVERY,
    SHAPES,
    SIZE,
    add_switch,
    decode_problem,
    draw_boundary_problem,
    draw_device_problem,
    draw_kernel_problem,
    put_in_dialect,
)
from kgverify.testing.problems.merge import Merged, group_problems, merge
from kgverify.testing.problems.problem import SHORTEST, Spread

PATH: Final = Path(__file__).with_suffix(".json")
RARE_TURNS: Final = (100, 120, 248, 376, 504, 612, 1124, 1636)
"""Turns at which a problem that runs alone has very many symbols, facts, resolvents, steps or candidates."""
RARE_ON_DEVICE: Final = (4 * 1 + 3, 4 * 2 + 3, 4 * 7 + 3)
DIALECTS: Final = (Dialect(unification="one_pass"), Dialect(memory="set", is_reversed=True), Dialect(skips_unary=True))


def alone_indices(num: int) -> list[int]:
    """Return the first indices at which a problem runs alone."""
    return [turn * ALONE_EVERY + ALONE_EVERY - 1 for turn in range(num)]


def _drawn(seed: int, num: int = 320, dialect: Dialect = OURS) -> Iterator[str]:
    return map(repr, islice(draw_problems(seed, 0, dialect), num))


def _of_equal_bytes() -> Iterator[str]:
    return (repr(decode_problem(bytes([value]) * SIZE)) for value in range(256))


def _of_single_bytes() -> Iterator[str]:
    """Yield problems of bytes of which only one is not zero."""
    for at in range(SIZE):
        for value in (1, 6, 7, 63, 128, 177, 208, 255):
            yield repr(decode_problem(bytes([value if i == at else 0 for i in range(SIZE)])))


def _alone() -> Iterator[str]:
    return (repr(draw_boundary_problem(0, index)) for index in alone_indices(200))


def _rare() -> Iterator[str]:
    for turn in RARE_TURNS:
        yield repr(draw_boundary_problem(0, turn * ALONE_EVERY + ALONE_EVERY - 1))
    for index in RARE_ON_DEVICE:
        yield repr(draw_device_problem(0, index))


def _of_kernels() -> Iterator[str]:
    return (repr(draw_kernel_problem(0, index)) for index in range(160))


def _on_device() -> Iterator[str]:
    return (repr(draw_device_problem(0, index)) for index in range(240) if index not in RARE_ON_DEVICE)


def _as_text() -> Iterator[str]:
    yield from (str(draw_boundary_problem(0, index)) for index in alone_indices(32))
    yield from map(str, islice(draw_problems(0), 96))


def _in_dialects() -> Iterator[str]:
    for dialect in DIALECTS:
        yield from (repr(put_in_dialect(draw_boundary_problem(0, index), dialect)) for index in alone_indices(8))


def _switched() -> Iterator[str]:
    problem = next(draw_problems(0))
    for limits in (Limits(max_depth=2, max_atoms=1, max_resolvents=2), Limits(max_depth=30, max_atoms=5)):
        for number, choice in product(range(len(SHAPES)), range(32)):
            yield repr(add_switch(replace(problem, limits=limits), number, choice))


def _spread() -> Iterator[str]:
    problems = [each for each in islice(draw_problems(4), 40) if each.queries]
    for number, spread in enumerate((Spread(0, 2), Spread(3, 0, 1), Spread(4, 1, 9), Spread(0, 0, 2), Spread(1, 1))):
        yield from describe_run(merge([replace(problems[number], spread=spread)]))


def _merged() -> Iterator[str]:
    problems = list(islice(draw_problems(3), 160))
    for group in group_problems(problems):
        yield from describe_run(merge([problems[i] for i in group]))
    for problem in problems[:40]:
        yield from describe_run(merge([problem]))


def describe_run(merged: Merged) -> Iterator[str]:
    """Yield what a run has of its problems, with rounded weights."""
    run, program = merged.run, merged.graph.program
    yield repr((program.symbols, program.facts.tolist(), merged.graph.rules, merged.graph.valid, merged.graph.test))
    yield repr((merged.graph.domains, merged.sizes, merged.owner.tolist(), merged.is_ranked.tolist()))
    yield repr([column.tolist() for column in merged.unranked])
    yield repr((run.limits, run.num_queries, run.num_corruptions, run.seed, run.policy.name))
    for name, values in sorted(run.policy.weights.items()):
        yield f"{name} {np.round(np.asarray(values, np.float64), 3).tolist()}"
    for mode in ("eager", "default"):
        yield f"{find_limit(run, merged.sizes, len(merged.unranked.query), mode):.6g}"


def _fitted() -> Iterator[str]:
    """Yield the sizes, features and candidates of problems that run alone, whose sizes fit their first steps."""
    for number, index in enumerate(alone_indices(64)):
        batch = prepare_alone(0, index, number, replace(draw_boundary_problem(0, index), policy=SHORTEST))
        yield repr((batch.merged.sizes, sorted(boundary_features(batch))))
        yield from (repr(sorted(features)) for features in _batch_features(batch))


def _features() -> Iterator[str]:
    # Scores of networks differ in their last bits from one machine to another.
    for batch in prepare_batches([replace(each, policy=SHORTEST) for each in islice(draw_problems(5), 120)]):
        yield repr((batch.indices, sorted(boundary_features(batch))))
        yield from (repr(sorted(features)) for features in _batch_features(batch))


KNOWN: Final[Mapping[str, Callable[[], Iterable[str]]]] = {
    **{f"drawn with seed {seed}": lambda seed=seed: _drawn(seed) for seed in range(3)},
    **{f"drawn in dialect {n}": lambda each=each: _drawn(0, 64, each) for n, each in enumerate(DIALECTS)},
    "of equal bytes": _of_equal_bytes,
    "of single bytes": _of_single_bytes,
    "switched": _switched,
    "spread": _spread,
    "alone": _alone,
    "rare": _rare,
    "of kernels": _of_kernels,
    "on a device": _on_device,
    "as text": _as_text,
    "in dialects": _in_dialects,
    "merged": _merged,
    "fitted": _fitted,
    "features": _features,
}


def answer_to(name: str) -> str:
    """Return the number of texts of a name, and their hash."""
    digest, num = hashlib.sha256(), 0
    for text in KNOWN[name]():
        digest.update(f"{text}\n".encode())
        num += 1
    return f"{num} {digest.hexdigest()[:16]}"


def main() -> int:
    answers: dict[str, Any] = {name: answer_to(name) for name in KNOWN}
    PATH.write_bytes(msgspec.json.format(msgspec.json.encode(answers), indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
