"""The datasets of a trace file: groups, lengths, and the encoding of columns, names and rules."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.program.atoms import Atom
from kgverify.program.program import Rule, Symbols
from kgverify.trace.model.columns import (
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
