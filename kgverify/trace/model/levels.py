"""The levels of a trace: how much of each step it keeps. A level is a set of datasets; none changes what a dataset holds."""

from collections.abc import Collection
from enum import StrEnum
from typing import Any, Final

import msgspec
import numpy as np

from kgverify.errors import UserError, suggest
from kgverify.trace.model.columns import Candidates, Resolvents, Steps
from kgverify.trace.model.header import SCHEMA_VERSION
from kgverify.trace.model.schema import FIELDS, STAGES, Arrays


class TraceLevel(StrEnum):
    """What is kept, least first.

    digests: the candidates, and one digest of each step
    compact: also the clause, kind and score of each resolvent, and the counts; goals can be rebuilt from the program
    steps:   also the atoms of goals and resolvents
    deep:    also what each stage of each step gave
    """

    DIGESTS = "digests"
    COMPACT = "compact"
    STEPS = "steps"
    DEEP = "deep"


class Packing(StrEnum):
    """How datasets lie in a file.

    plain:   contiguous, to be read through a memory map
    small:   with gzip and shuffle where that saves half, else contiguous
    archive: every dataset with gzip, shuffle and fletcher32
    """

    PLAIN = "plain"
    SMALL = "small"
    ARCHIVE = "archive"


_ATOMS: Final = frozenset({"steps/num_atoms", "steps/goal_atoms", "resolvents/num_atoms", "resolvents/atoms"})
_OTHER_DIGESTS: Final = frozenset({"digests/multiset", "digests/renaming"})
_OF_STEPS: Final = frozenset(field.path for field in FIELDS if field.path.split("/")[0] in ("steps", "resolvents"))
_STAGES: Final = frozenset(STAGES)
_CLAUSES: Final = frozenset({"resolvents/origin_kind", "resolvents/origin"})

# What each level leaves out, and what it requires beyond the candidates and the symbols.
_LEFT_OUT: Final = {
    TraceLevel.DIGESTS: _OF_STEPS | _STAGES | _OTHER_DIGESTS | {"candidates/log_probability"},
    TraceLevel.COMPACT: _ATOMS | _STAGES | _OTHER_DIGESTS,
    TraceLevel.STEPS: _STAGES,
    TraceLevel.DEEP: frozenset[str](),
}
_REQUIRED: Final = {
    TraceLevel.DIGESTS: frozenset({"digests/sequence"}),
    TraceLevel.COMPACT: _CLAUSES | {"digests/sequence"},
    TraceLevel.STEPS: frozenset[str](),
    TraceLevel.DEEP: _STAGES,
}

# The columns that digests count and that a prover may not know.
_COUNTED: Final = ("steps/dropped_atoms", "steps/dropped_resolvents")


def parse_level(text: str, where: str) -> TraceLevel:
    """The level of this name. UserError for another name."""
    try:
        return TraceLevel(text)
    except ValueError:
        names = tuple(TraceLevel)
        raise UserError(
            f"unknown level {text!r}", where=where, fix=suggest(text, names) or f"choose one of {', '.join(names)}"
        ) from None


def left_out(level: TraceLevel) -> frozenset[str]:
    """Paths of the datasets that a trace of this level may not hold."""
    return _LEFT_OUT[level]


def required(level: TraceLevel) -> frozenset[str]:
    """Paths of the datasets that a trace of this level must hold."""
    always = {field.path for field in FIELDS if field.is_required}
    return frozenset(always - _LEFT_OUT[level]) | _REQUIRED[level]


def has_goals(level: str) -> bool:
    """Whether a trace of this level holds the atoms of its goals, so that digests can be computed from it."""
    return level not in (TraceLevel.DIGESTS, TraceLevel.COMPACT)


def optional_columns_of(level: TraceLevel, columns: frozenset[str]) -> frozenset[str]:
    """Those of the columns, named as in `Trace.fields`, that this level keeps."""
    return frozenset(name for name in columns if name.replace(".", "/") not in _LEFT_OUT[level])


def packing_of(level: TraceLevel, *, is_archived: bool) -> Packing:
    """How a trace of this level is packed: small levels always, others for the archive alone."""
    if is_archived:
        return Packing.ARCHIVE
    return Packing.PLAIN if has_goals(level) else Packing.SMALL


def lower_arrays(arrays: Arrays, level: TraceLevel) -> Arrays:
    """The datasets that this level keeps, out of those of a higher one, with the header saying so.

    The digests but that of the sequence follow from the columns, and are left out at every level. At level `digests` the
    program is left out, too: the header names it by its hash.
    """
    kept = {path: array for path, array in arrays.items() if is_kept(path, level)}
    raw: dict[str, Any] = msgspec.json.decode(arrays["header"].tobytes())
    absent = set(raw.get("absent", ()))
    if "steps/choice" in arrays:
        absent |= {path.replace("/", ".") for path in _COUNTED if path not in arrays}
    kept["header"] = encode_raw_header(raw | {"level": level.value, "absent": uncounted(level, absent)})
    return kept


def is_kept(path: str, level: TraceLevel) -> bool:
    """Whether this level keeps the dataset, as `lower_arrays` says."""
    if path in _LEFT_OUT[level] | _OTHER_DIGESTS:
        return False
    return level is not TraceLevel.DIGESTS or not path.startswith("program/")


def uncounted(level: TraceLevel, absent: Collection[str]) -> list[str]:
    """Of the columns that a prover does not know, those that a header of this level must name."""
    return sorted(name for name in absent if level is TraceLevel.DIGESTS and name.replace(".", "/") in _COUNTED)


def encode_raw_header(raw: dict[str, Any]) -> Any:
    """uint8 [n]: a header's JSON, in this version of the schema; fields that it does not know stay."""
    return np.frombuffer(msgspec.json.encode(raw | {"schema_version": SCHEMA_VERSION}), np.uint8)


def columns_kept(level: TraceLevel) -> frozenset[str]:
    """The columns of candidates, steps and resolvents that a trace of this level can hold, as in `Trace.fields`."""
    every = {
        f"{group}/{name}"
        for group, columns in (("candidates", Candidates), ("steps", Steps), ("resolvents", Resolvents))
        for name in columns._fields
    }
    return frozenset(path.replace("/", ".") for path in every - _LEFT_OUT[level])
