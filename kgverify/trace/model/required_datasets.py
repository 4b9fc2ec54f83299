"""Which datasets a file must hold, and may hold: by the level that its header names."""

from collections.abc import Collection
from typing import Any

import msgspec
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.model.levels import TraceLevel, left_out, parse_level, required
from kgverify.trace.model.schema import TOGETHER


class _Levelled(msgspec.Struct, frozen=True):
    level: str = "steps"
    schema_version: int = 1


def required_of(header: NDArray[Any], where: str) -> frozenset[str]:
    """Paths of the datasets that a file with this header must hold. UserError for a level that is none."""
    return required(level_of(header, where))


def level_of(header: NDArray[Any], where: str) -> TraceLevel:
    """The level that a header names. UserError for a level that is none."""
    try:
        found = msgspec.json.decode(header.tobytes(), type=_Levelled)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"not a header: {error}", where=f"{where}:header", fix="write the JSON that docs/trace-format.md describes"
        ) from error
    # Version 1 gave the level no meaning.
    return parse_level(found.level if found.schema_version > 1 else "steps", f"{where}:header")


def check_together(arrays: Collection[str], where: str) -> None:
    """UserError for half of what goes together."""
    for group in TOGETHER:
        held = [name for name in group if name in arrays]
        if held and len(held) < len(group):
            missing = next(name for name in group if name not in arrays)
            raise UserError(
                f"missing, while {held[0]} is there",
                where=f"{where}:{missing}",
                fix=f"write all of {', '.join(group)}, or none",
            )
    if "digests/multiset" in arrays and "digests/sequence" not in arrays:
        raise UserError(
            "missing, while digests/multiset is there",
            where=f"{where}:digests/sequence",
            fix="write it as well",
        )


def check_level(arrays: Collection[str], level: str, where: str) -> None:
    """UserError for a dataset that a trace of this level may not hold."""
    if odd := sorted(left_out(parse_level(level, f"{where}:header")).intersection(arrays)):
        raise UserError(
            f"found, but the level is {level!r}, which leaves it out",
            where=f"{where}:{odd[0]}",
            fix="leave it out, or name the level whose datasets these are",
        )
