"""What a file holds beyond this version of the schema: found when it is read, put back when it is written again."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from kgverify.trace.hdf5.stored_file import FileContent
from kgverify.trace.model.header import Header
from kgverify.trace.model.trace import NOTHING_UNKNOWN, Unknown

# Groups of which an unknown dataset has, by the rules of the format, one row for each row of the level.
_BY_ROW = ("candidates/", "steps/", "resolvents/")


def find_unknown(content: FileContent, header: Header) -> Unknown:
    """What this version does not know of a file with this header."""
    raw = msgspec.json.decode(content.arrays["header"].tobytes())
    known = msgspec.to_builtins(header)
    fields = _without(raw, known)
    if not fields and not content.unknown and not content.dropped:
        return NOTHING_UNKNOWN
    return Unknown(content.unknown, fields, content.dropped)


def join_unknown(parts: Sequence[Unknown]) -> Unknown:
    """What several shards hold in common: rows one after the other, the rest where it is the same in all.

    Whatever is not in every shard, or does not fit together, is dropped, by name.
    """
    arrays = {}
    names = {name for part in parts for name in part.arrays}
    dropped = {name for part in parts for name in part.dropped}
    for name in sorted(names):
        found = [part.arrays[name] for part in parts if name in part.arrays]
        if len(found) == len(parts) and len({(a.dtype, a.shape[1:]) for a in found}) == 1:
            if name.startswith(_BY_ROW):
                arrays[name] = np.concatenate(found)
                continue
            if all(np.array_equal(found[0], other) for other in found[1:]):
                arrays[name] = found[0]
                continue
        dropped.add(name)
    header = parts[0].header if parts else {}
    return Unknown(arrays, header, tuple(sorted(dropped)))


def merge_fields(known: Mapping[str, Any], unknown: Mapping[str, Any]) -> dict[str, Any]:
    """A header's fields with the unknown ones put back where they were."""
    merged = dict(known)
    for name, value in unknown.items():
        if name not in merged:
            merged[name] = value
        elif isinstance(value, Mapping) and isinstance(merged[name], Mapping):
            merged[name] = merge_fields(merged[name], value)
    return merged


def _without(raw: Any, known: Any) -> dict[str, Any]:
    """The fields of `raw`, an object, that `known` does not have; nested objects alike."""
    fields: dict[str, Any] = {}
    if not isinstance(raw, dict):
        return fields
    for name, value in raw.items():
        if name not in known:
            fields[name] = value
        elif isinstance(value, dict) and isinstance(known[name], dict) and (inner := _without(value, known[name])):
            fields[name] = inner
    return fields
