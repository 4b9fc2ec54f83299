"""The levels of a trace: how much of each step it keeps. A level is a set of datasets; it never changes their content."""

from collections.abc import Collection
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np

from kgverify.errors import UserError, suggest
from kgverify.trace.model.columns import FIELD_OF, FIELDS
from kgverify.trace.model.digests import COUNTED
from kgverify.trace.model.schema import STAGES, TOGETHER, Arrays


class TraceLevel(StrEnum):
    """The level of a trace, from the one that keeps least.

    digests: the candidates, and one digest of each step
    compact: also the clause, kind and score of each resolvent, and the counts; goals can be rebuilt from the program
    steps:   also the atoms of goals and resolvents
    deep:    also what each stage of each step gave
    """

    DIGESTS = "digests"
    COMPACT = "compact"
    STEPS = "steps"
    DEEP = "deep"


LevelName: TypeAlias = Literal["digests", "compact", "steps", "deep"]
"""The name of a level."""


class Packing(StrEnum):
    """The storage of the datasets in a file.

    plain:   contiguous, to be read through a memory map
    small:   with gzip and shuffle where that saves half, else contiguous
    archive: every dataset with gzip, shuffle and fletcher32
    """

    PLAIN = "plain"
    SMALL = "small"
    ARCHIVE = "archive"


_ATOMS: Final = frozenset({"steps/num_atoms", "steps/goal_atoms", "resolvents/num_atoms", "resolvents/atoms"})
_OF_STEPS: Final = frozenset(field.path for field in FIELDS if field.path.split("/")[0] in ("steps", "resolvents"))
_STAGES: Final = frozenset(STAGES)

# The datasets that each level leaves out, and those that it requires beyond the candidates and the symbols.
_LEFT_OUT: Final = {
    TraceLevel.DIGESTS: _OF_STEPS | _STAGES | {"candidates/log_probability"},
    TraceLevel.COMPACT: _ATOMS | _STAGES,
    TraceLevel.STEPS: _STAGES,
    TraceLevel.DEEP: frozenset[str](),
}
_REQUIRED: Final = {
    TraceLevel.DIGESTS: frozenset({"digests/sequence"}),
    TraceLevel.COMPACT: frozenset({"digests/sequence"}),
    TraceLevel.STEPS: frozenset[str](),
    TraceLevel.DEEP: _STAGES,
}


def parse_level(text: str, where: str) -> TraceLevel:
    """Return the level of this name. UserError for an unknown name."""
    try:
        return TraceLevel(text)
    except ValueError:
        names = tuple(TraceLevel)
        raise UserError(
            f"unknown level {text!r}", where=where, fix=suggest(text, names) or f"choose one of {', '.join(names)}"
        ) from None


def left_out(level: TraceLevel) -> frozenset[str]:
    """Return the paths of the datasets that a trace of this level may not hold."""
    return _LEFT_OUT[level]


def required(level: TraceLevel) -> frozenset[str]:
    """Return the paths of the datasets that a trace of this level must hold."""
    always = {field.path for field in FIELDS if field.is_required}
    return frozenset(always - _LEFT_OUT[level]) | _REQUIRED[level]


def has_goals(level: str) -> bool:
    """Return whether a trace of this level holds the atoms of its goals, so that digests can be computed from it."""
    return level not in (TraceLevel.DIGESTS, TraceLevel.COMPACT)


def packing_of(level: TraceLevel, *, is_archived: bool) -> Packing:
    """Return the packing of a trace of this level: small levels are always packed, others only for the archive."""
    if is_archived:
        return Packing.ARCHIVE
    return Packing.PLAIN if has_goals(level) else Packing.SMALL


def lower_arrays(arrays: Arrays, level: TraceLevel) -> Arrays:
    """Return the datasets of a higher level that this level keeps, with a header of this level.

    Level `digests` leaves out the program as well: the header names it by its hash.
    """
    kept = {path: array for path, array in arrays.items() if is_kept(path, level)}
    raw: dict[str, Any] = msgspec.json.decode(arrays["header"].tobytes())
    absent = set(raw.get("absent", ()))
    if "steps/num_resolvents" in arrays:
        absent |= {name for name in COUNTED if name.replace(".", "/") not in arrays}
    kept["header"] = np.frombuffer(
        msgspec.json.encode(raw | {"level": level.value, "absent": uncounted(level, absent)}),
        np.uint8,
    )
    return kept


def is_kept(path: str, level: TraceLevel) -> bool:
    """Return whether this level keeps the dataset, as described in `lower_arrays`."""
    if path in _LEFT_OUT[level]:
        return False
    return level is not TraceLevel.DIGESTS or not path.startswith("program/")


def uncounted(level: TraceLevel, absent: Collection[str]) -> list[str]:
    """Return those of the columns unknown to a prover that a header of this level must name."""
    return sorted(name for name in absent if level is TraceLevel.DIGESTS and name in COUNTED)


def columns_kept(level: TraceLevel) -> frozenset[str]:
    """Return the columns of candidates, steps and resolvents that this level can hold, named as in `Trace.fields`."""
    every = {field.path for field in FIELDS if field.path.split("/")[0] in ("candidates", "steps", "resolvents")}
    return frozenset(path.replace("/", ".") for path in every - _LEFT_OUT[level])


def missing_dataset(path: str, where: str) -> UserError:
    """Return the error for a file that lacks a dataset."""
    return UserError(
        f"missing, expected a dataset of {' or '.join(np.dtype(d).name for d in FIELD_OF[path].dtypes)}",
        where=f"{where}:{path}",
        fix="write every dataset that docs/trace-format.md requires at this level",
    )


def check_level(arrays: Collection[str], level: TraceLevel, where: str, *, is_piece: bool = False) -> None:
    """Raise a UserError unless a file with these datasets holds what its level requires, and nothing that it leaves out.

    is_piece: the file need not hold the symbols: it is a piece of a recording, whose first file has them
    """
    if odd := _LEFT_OUT[level].intersection(arrays):
        raise UserError(
            f"found, but the level is {str(level)!r}, which leaves it out",
            where=f"{where}:{min(odd)}",
            fix="leave it out, or name the level whose datasets these are",
        )
    needed = {path for path in required(level) if not (is_piece and path.startswith("symbols/"))}
    if missing := [field.path for field in FIELDS if field.path in needed.difference(arrays)]:
        raise missing_dataset(missing[0], where)
    for group in TOGETHER:
        held = [name for name in group if name in arrays]
        if held and len(held) < len(group):
            raise UserError(
                f"missing, while {held[0]} is there",
                where=f"{where}:{next(name for name in group if name not in arrays)}",
                fix=f"write all of {', '.join(group)}, or none",
            )
