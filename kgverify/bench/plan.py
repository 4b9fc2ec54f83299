"""The sizes of a benchmark: how many candidates, in how many slots, and how long it may take."""

from typing import Final, NamedTuple

from kgverify.errors import UserError, suggest


class Size(NamedTuple):
    """What is proved at once and for how long it is repeated.

    queries, corruptions: of a run; corruptions for each query and side
    slots:   derivations in flight, at most
    sample:  candidates that the reference proves, at most
    seconds: after so many no further repeat of a mode is begun, once there are `LEAST_REPEATS`
    """

    queries: int
    corruptions: int
    slots: int
    sample: int
    seconds: float


SIZES: Final = {
    "small": Size(10, 20, 64, 128, 4.0),
    "medium": Size(50, 50, 256, 256, 20.0),
    "large": Size(200, 100, 4096, 512, 60.0),
    "extreme": Size(5000, 100, 65536, 1024, 120.0),
}

FOR_GPUS: Final = ("extreme",)
"""Sizes that a CPU takes hours for."""

LEAST_REPEATS: Final = 3
"""Fewer say nothing of the noise."""


def find_size(name: str) -> Size:
    """The size of that name. UserError for another."""
    if name not in SIZES:
        raise UserError(
            f"unknown size {name!r}", where="--size", fix=suggest(name, SIZES) or f"choose {', '.join(SIZES)}"
        )
    return SIZES[name]
