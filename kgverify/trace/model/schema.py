"""The datasets of a trace file, schema version 2: paths, types, shapes, and the encoding of names and rules."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.program.atoms import Atom
from kgverify.program.program import Rule, Symbols
from kgverify.trace.model.columns import (
    Candidates,
    Columns,
    Digests,
    Rankings,
    Resolvents,
    StageItems,
    Steps,
    no_stage_items,
)

FORMAT: Final = "kgverify-trace"

RECORD_AGAIN: Final = "copy the trace from its source again, or record it again"

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Field:
    """A dataset: its path, the types it may have (little-endian), the length of its second axis or 0."""

    path: str
    dtypes: tuple[str, ...]
    width: int = 0
    is_required: bool = True

    @property
    def name(self) -> str:
        """The name in `Trace.fields`: `steps.choice`."""
        return self.path.replace("/", ".")

    @property
    def shape_text(self) -> str:
        """The shape as a person reads it."""
        return f"[n, {self.width}]" if self.width else "[n]"


def _fields(group: str, is_required: bool = True, **dtypes: str) -> tuple[Field, ...]:
    return tuple(
        Field(f"{group}/{name}", (dtype.removesuffix("*3"),), 3 * dtype.endswith("*3"), is_required)
        for name, dtype in dtypes.items()
    )


FIELDS: Final = (
    Field("header", ("<u1",)),
    *_fields("symbols", predicates_bytes="<u1", predicates_offsets="<u8"),
    *_fields("symbols", constants_bytes="<u1", constants_offsets="<u8"),
    *_fields("candidates", query="<i4", side="<i1", atom="<i4*3", num_steps="<u4", outcome="<i1"),
    *_fields("candidates", is_limited="<u1"),
    *_fields("candidates", False, log_probability="<f8"),
    *_fields("steps", depth="<u2", num_atoms="<u2", num_resolvents="<u4"),
    *_fields("steps", False, dropped_atoms="<u4", dropped_resolvents="<u4"),
    *_fields("steps", choice="<i4", outcome="<i1", goal_atoms="<i4*3"),
    *_fields("resolvents", kind="<u1", num_atoms="<u2"),
    *_fields("resolvents", False, origin_kind="<u1", origin="<i4"),
    Field("resolvents/score", ("<f4", "<f8"), is_required=False),
    *_fields("resolvents", atoms="<i4*3"),
    *_fields("stages", False, told="<u2", num_items="<u4", stage="<u1", kind="<u1", origin_kind="<u1", origin="<i4"),
    *_fields("stages", False, number="<f8", num_atoms="<u2", atoms="<i4*3"),
    *_fields("digests", False, sequence="<u8", multiset="<u8", renaming="<u8"),
    *_fields("rankings", False, query="<i4", side="<i1", num_ranked="<u4"),
    *_fields("rankings", False, optimistic="<f8", pessimistic="<f8"),
    *_fields("program", False, facts="<i4*3", fact_lines="<i4", rule_atoms="<i4*3", rule_lengths="<u2"),
    *_fields("shard", False, index="<u8"),
)

FIELD_OF: Final[Mapping[str, Field]] = {field.path: field for field in FIELDS}

# Of each of these a file holds all or none.
TOGETHER: Final = (
    ("resolvents/origin_kind", "resolvents/origin"),
    ("steps/dropped_atoms", "steps/dropped_resolvents"),
    ("digests/multiset", "digests/renaming"),
    ("program/rule_atoms", "program/rule_lengths"),
    tuple(f"rankings/{name}" for name in Rankings._fields),
)

# The columns that a trace may lack.
OPTIONAL_COLUMNS: Final = frozenset(
    field.name
    for field in FIELDS
    if not field.is_required and field.path.split("/")[0] in ("candidates", "steps", "resolvents")
)

_LEVELS: Final[Mapping[str, Any]] = {"candidates": Candidates, "steps": Steps, "resolvents": Resolvents}


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
    arrays = (
        encode_level("candidates", columns.candidates)
        | encode_level("steps", columns.steps)
        | encode_level("resolvents", columns.resolvents)
        | encode_level("stages", columns.stages)
    )
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

    def column(group: str, name: str) -> NDArray[Any]:
        path = f"{group}/{name}"
        return arrays[path] if path in arrays else absent_column(path, lengths[group])

    levels = [level(*(column(group, name) for name in level._fields)) for group, level in _LEVELS.items()]
    stages = StageItems(*(arrays[path] for path in STAGES)) if STAGES[0] in arrays else no_stage_items()
    return Columns(*[*levels, stages])


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


def absent_column(path: str, length: int) -> NDArray[Any]:
    """Return the stand-in for a dataset that a file does not hold: zeros for each row of its level, or no atoms."""
    field = FIELD_OF[path]
    return np.zeros((0, field.width) if field.width else length, field.dtypes[-1])


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
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if first.setdefault(name, i) != i:
            return UserError(
                f"ids {first[name]} and {i} have the same name {name!r}, expected one id per name",
                where=where,
                fix="give each name one id",
            )
    raise AssertionError("no name is doubled")
