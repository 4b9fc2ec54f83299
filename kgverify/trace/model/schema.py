"""The datasets of a trace file: groups, lengths, and the encoding of columns, names and rules."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.errors import UserError, suggest
from kgverify.program.atoms import Atom
from kgverify.program.program import Rule, Symbols
from kgverify.trace.model.columns import (
    FIELD_OF,
    FIELDS,
    RAGGED,
    Candidates,
    Columns,
    Digests,
    Rankings,
    Resolvents,
    StageItems,
    Steps,
    absent_column,
    build_columns,
)
from kgverify.trace.model.digests import COUNTED

FORMAT: Final = "kgverify-trace"

RECORD_AGAIN: Final = "copy the trace from its source again, or record it again"

Arrays = dict[str, NDArray[Any]]


# Of each of these a file holds all or none.
TOGETHER: Final = (
    ("resolvents/origin_kind", "resolvents/origin"),
    ("steps/dropped_atoms", "steps/dropped_resolvents"),
    ("program/rule_atoms", "program/rule_lengths"),
    tuple(f"rankings/{name}" for name in Rankings._fields),
)

# The columns that a trace may lack.
OPTIONAL_COLUMNS: Final = frozenset(
    field.name
    for field in FIELDS
    if not field.is_required and field.path.split("/")[0] in ("candidates", "steps", "resolvents")
)


def file_checksum(checksums: Mapping[str, int]) -> int:
    """Return the xxh3 over the path and checksum of each dataset, in ascending order of paths."""
    content = b"".join(path.encode() + b"\0" + checksums[path].to_bytes(8, "little") for path in sorted(checksums))
    return xxhash.xxh3_64_intdigest(content)


def check_file_checksum(checksums: Mapping[str, int], stored: int, where: str) -> None:
    """Raise a UserError unless the datasets found are those with which the file was written."""
    found = file_checksum(checksums)
    if found != stored:
        raise UserError(
            f"the root attribute `xxh3` is {stored:016x}, expected {found:016x} from the datasets found:"
            " one was renamed, removed or added",
            where=where,
            fix=RECORD_AGAIN,
        )


def encode_level(group: str, level: Candidates | Steps | Resolvents | StageItems | Digests | Rankings) -> Arrays:
    """Return the columns of a NamedTuple, by path."""
    return {f"{group}/{name}": column for name, column in level._asdict().items()}


def encode_columns(columns: Columns, absent: Iterable[str] = ()) -> Arrays:
    """Return the columns by path, without the absent ones, named as in `Trace.fields`."""
    arrays: Arrays = {}
    for group, level in columns._asdict().items():
        arrays |= encode_level(group, level)
    for name in absent:
        del arrays[name.replace(".", "/")]
    return arrays


def encode_rules(rules: Sequence[Rule]) -> Arrays:
    """Encode the atoms of the rules, each head first, and the number of atoms of each rule."""
    atoms = [atom for rule in rules for atom in (rule.clause_head, *rule.body)]
    return {
        "program/rule_atoms": np.array(atoms, np.int32).reshape(-1, 3),
        "program/rule_lengths": np.array([1 + len(rule.body) for rule in rules], np.uint16),
    }


def decode_rules(arrays: Arrays) -> tuple[Rule, ...] | None:
    """Decode the rules; None if the file has none. The caller has checked the lengths."""
    if "program/rule_lengths" not in arrays:
        return None
    atoms = iter([Atom(*row) for row in arrays["program/rule_atoms"].tolist()])
    return tuple(
        Rule(next(atoms), tuple(islice(atoms, length - 1))) for length in arrays["program/rule_lengths"].tolist()
    )


def decode_columns(arrays: Arrays) -> Columns:
    """Decode the datasets of a file; an absent column is zeros, and absent atoms and stages are empty."""
    lengths = num_rows({path: len(array) for path, array in arrays.items()})

    rows = lengths | dict.fromkeys(RAGGED, 0) | ({"stages": 0} if STAGES[0] in arrays else {})
    return build_columns(rows, lambda path, length: arrays[path] if path in arrays else absent_column(path, length))


STAGES: Final = tuple(f"stages/{name}" for name in StageItems._fields)
"""The outputs of the stages of each step: a file holds all of these or none."""

SEQUENCE: Final = "digests/sequence"
"""The digests of the steps that a writer writes."""

# A level without atoms counts its steps and resolvents by the datasets that it has.
_LENGTH_FROM: Final = {
    "candidates": ("candidates/num_steps",),
    "steps": ("steps/num_atoms", "steps/num_resolvents", "digests/sequence"),
    "resolvents": ("resolvents/num_atoms", "resolvents/kind"),
}


def num_rows(lengths: Mapping[str, int]) -> dict[str, int]:
    """Return the number of candidates, steps and resolvents of a file with datasets of these lengths."""
    return {
        group: next((lengths[path] for path in paths if path in lengths), 0) for group, paths in _LENGTH_FROM.items()
    }


def encode_symbols(symbols: Symbols, where: str) -> Arrays:
    """Encode names as UTF-8 bytes, one after the other, with the offsets at which they begin and end."""
    arrays: Arrays = {}
    for kind, names in (("predicates", symbols.predicates), ("constants", symbols.constants)):
        encoded = []
        for i, name in enumerate(names):
            try:
                encoded.append(name.encode())
            except UnicodeEncodeError as error:
                raise UserError(
                    f"name {i} is {name!r}, expected text that UTF-8 can encode",
                    where=f"{where}:symbols/{kind}_bytes",
                    fix="decode the input files as UTF-8",
                ) from error
        if len(set(names)) != len(names):
            raise _duplicate_name(names, f"{where}:symbols/{kind}_bytes")
        offsets = np.zeros(len(encoded) + 1, np.uint64)
        offsets[1:] = np.cumsum([len(name) for name in encoded], dtype=np.uint64)
        arrays[f"symbols/{kind}_bytes"] = np.frombuffer(b"".join(encoded), np.uint8)
        arrays[f"symbols/{kind}_offsets"] = offsets
    return arrays


def decode_symbols(arrays: Arrays, where: str) -> Symbols:
    """Decode names. UserError for offsets that do not fit, bad UTF-8, or a duplicate name."""
    return Symbols(_decode_names(arrays, "predicates", where), _decode_names(arrays, "constants", where))


def _decode_names(arrays: Arrays, kind: str, where: str) -> tuple[str, ...]:
    content, offsets = arrays[f"symbols/{kind}_bytes"], arrays[f"symbols/{kind}_offsets"]
    ascends = len(offsets) > 0 and offsets[0] == 0 and bool((offsets[1:] >= offsets[:-1]).all())
    if not ascends or int(offsets[-1]) != len(content):
        raise UserError(
            f"offsets do not ascend from 0 to the {len(content)} bytes of the names",
            where=f"{where}:symbols/{kind}_offsets",
            fix="write one offset more than there are names: where each begins, then where the last ends",
        )
    where = f"{where}:symbols/{kind}_bytes"
    raw, bounds = content.tobytes(), offsets.tolist()
    try:
        names = tuple(raw[bounds[i] : bounds[i + 1]].decode() for i in range(len(bounds) - 1))
    except UnicodeDecodeError as error:
        raise UserError(f"found bytes that are not UTF-8: {error}", where=where, fix="write names as UTF-8") from error
    if len(set(names)) != len(names):
        raise _duplicate_name(names, where)
    return names


def _duplicate_name(names: tuple[str, ...], where: str) -> UserError:
    first = {name: i for i, name in reversed([*enumerate(names)])}
    second = next(i for i, name in enumerate(names) if first[name] != i)
    return UserError(
        f"ids {first[names[second]]} and {second} have the same name {names[second]!r}, expected one id per name",
        where=where,
        fix="give each name one id",
    )


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
