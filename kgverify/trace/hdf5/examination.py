"""What of one trace file can be read, whatever is wrong with the rest: for checking and repairing it."""

from pathlib import Path
from typing import NamedTuple

import xxhash

from kgverify.trace.hdf5.byte_ranges import Place, read_place
from kgverify.trace.hdf5.dataset_location import drop_refused, is_archived
from kgverify.trace.hdf5.stored_file import identity_of, missing, noting
from kgverify.trace.model.required_datasets import required_of
from kgverify.trace.model.schema import FIELDS, Arrays, check_file_checksum


class Examination(NamedTuple):
    """The datasets of a file by path: those that their checksums vouch for, those that could be read, what is wrong.

    is_archived: as `FileContent` has it
    """

    intact: Arrays
    altered: Arrays
    problems: dict[str, str]
    is_archived: bool = False


class Found(NamedTuple):
    """What of a file could be located: places and stored checksums by path, that of the file under `/`; what could not."""

    places: dict[str, Place]
    checksums: dict[str, int]
    problems: dict[str, str]


def examine(descriptor: int, path: Path, found: Found) -> Examination:
    """Read what was located, and tell what is intact."""
    places, checksums, problems = found
    intact: Arrays = {}
    altered: Arrays = {}
    drop_refused(places, identity_of(descriptor)[2], problems)
    for name, place in places.items():
        with noting(problems, name):
            array = altered[name] = read_place(descriptor, place)
            if xxhash.xxh3_64_intdigest(array.data) == checksums.get(name):
                intact[name] = altered.pop(name)
            else:
                problems.setdefault(name, "its checksum does not fit: the data were altered")
    with noting(problems, "header"):
        required = required_of(intact["header"], str(path)) if "header" in intact else frozenset({"header"})
        for field in FIELDS:
            if field.path in required - places.keys():
                problems.setdefault(field.path, missing(field, str(path)).message)
    if "/" in checksums:
        with noting(problems, "/"):
            check_file_checksum({n: c for n, c in checksums.items() if n != "/"}, checksums["/"], str(path))
    return Examination(intact, altered, problems, is_archived(places.values()))
