"""Opening one trace file as HDF5 and checking every dataset in it, before any of its data are read.

Plain h5py silently follows external links, virtual datasets and raw external storage, and allocates as much
memory as a shape asks for. This module first checks every link on the way to a dataset, and the dataset's type,
shape, layout, filters and size, and the total size of all datasets; `kgverify.trace.hdf5.stored_array` then reads
and unpacks the bytes. HDF5's plugins are switched off: a file could use them to load code.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from kgverify.errors import UserError
from kgverify.files.reading import open_descriptor
from kgverify.trace.hdf5.stored_array import (
    DEFLATE,
    FLETCHER32,
    SHUFFLE,
    Chunk,
    Identity,
    StoredArray,
    check_extents,
    identity_of,
    translate_hdf5_errors,
)
from kgverify.trace.model.columns import FIELD_OF, KNOWLEDGE_GRAPH, LABELS
from kgverify.trace.model.header import check_version
from kgverify.trace.model.schema import RECORD_AGAIN, Column, Schema
from kgverify.trace.model.validate import check_shape

os.environ.setdefault("HDF5_PLUGIN_PRELOAD", "::")  # the library reads it once, when it is loaded

import h5py
from h5py import h5a, h5d, h5g, h5l, h5o, h5s, h5t

_MAX_HEADER_BYTES: Final = 64 << 20
_MIN_HEADER_BYTES: Final = 1 << 20
_MAX_HEADER_RATIO: Final = 8
"""The most bytes of header for each byte of the file; a decoded header takes up to twenty times as much memory."""
_MAX_ATTRIBUTE_BYTES: Final = 1 << 10
_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"

MAX_BYTES: Final = 64 << 30
MAX_RATIO: Final = 64
"""The memory that all datasets of a file may take together, as a multiple of its size; at least `MIN_TOTAL_BYTES`."""
MIN_TOTAL_BYTES: Final = 64 << 20
_MAX_CHUNK_BYTES: Final = 1 << 30
_MIN_CHUNKS: Final = 1 << 10
"""The number of chunks that a dataset may always have, however short they are."""
_LEAST_CHUNK_BYTES: Final = 4 << 10
"""The average bytes in memory that further chunks must have: each costs a lookup and a read. HDF5 picks 8 KiB or more."""
_MAX_DEFLATE_RATIO: Final = 1100  # deflate cannot do better than 1032 to 1
_FILTERS: Final = (DEFLATE, SHUFFLE, FLETCHER32)

# HDF5's own numbers for the layouts.
_COMPACT: Final = 0
_CONTIGUOUS: Final = 1
_CHUNKED: Final = 2


def describe_hdf5() -> str:
    """Return the versions of HDF5 and of h5py."""
    return f"HDF5 {h5py.version.hdf5_version}, h5py {h5py.__version__}"


class StoredFile(NamedTuple):
    """The datasets of one file, by path.

    arrays:   the datasets that the schema names
    labels:   `/candidates/is_true`, if there is one
    identity: the identity that the file must still have when it is read
    checksum: the stored checksum of the file: a checksum over those of all datasets that the schema names
    """

    arrays: dict[str, StoredArray]
    labels: StoredArray | None
    identity: Identity
    checksum: int


def locate_arrays(path: Path, schema: Schema = KNOWLEDGE_GRAPH) -> StoredFile:
    """Locate and check every dataset of one file that the format names; ignore others. The caller verifies the checksums.

    UserError for a file that `docs/traces.md` refuses.
    """
    where = str(path)
    with opened_trace(path, schema) as (root, descriptor):
        identity = identity_of(descriptor)
        found: dict[str, StoredArray] = {}
        for field in (*schema.columns, FIELD_OF[LABELS]):
            place = f"{where}:{field.path}"
            with translate_hdf5_errors(place):
                if (dataset := _find_dataset(root, field.path, where)) is not None:
                    found[field.path] = _check_dataset(dataset, field, place, identity.size)
        check_extents([*found.values()], identity.size)
        _check_total([*found.values()], identity.size)
        return StoredFile(found, found.pop(LABELS, None), identity, _read_checksum(root, f"{where}:/"))


@contextmanager
def opened_trace(path: Path, schema: Schema = KNOWLEDGE_GRAPH) -> Iterator[tuple[Any, int]]:
    """Open a file that claims to be a trace; yield its root group and a descriptor. UserError for any other file."""
    where = str(path)
    with translate_hdf5_errors(where), open_descriptor(path, purpose="a trace") as descriptor:
        if os.pread(descriptor, len(_SIGNATURE), 0) != _SIGNATURE:
            raise UserError(
                "not an HDF5 file, or cut off in its first bytes; expected a trace",
                where=where,
                fix=f"import JSON lines with `kgverify trace import FILE -o TRACE.h5`; else {RECORD_AGAIN}",
            )
        # If the system supports it, open the same file that was checked, even if another file has its name by now.
        again = Path(f"/proc/self/fd/{descriptor}")
        with h5py.File(again if again.exists() else path, "r", locking="best-effort") as file:
            root: Any = file["/"].id
            _check_attributes(root, where, schema)
            yield root, descriptor


def _check_attributes(root: Any, where: str, schema: Schema) -> None:
    """Raise a UserError unless the root attributes are those of a trace in a version that can be read."""
    found = _read_scalar(root, b"format", h5t.STRING)
    fix = "give a trace that kgverify, or a writer following docs/traces.md, made"
    if found is None:
        raise UserError(
            "HDF5, but without the root attribute `format` that is one string of fixed length: not a trace",
            where=where,
            fix=fix,
        )
    if found != schema.format.encode():
        text = found.decode(errors="replace")
        raise UserError(f"the root attribute `format` is {text!r}, expected {schema.format!r}", where=where, fix=fix)
    version = _read_scalar(root, b"schema_version", h5t.INTEGER)
    check_version(None if version is None else int(version), where)


def _find_dataset(root: Any, path: str, where: str) -> Any | None:
    """Return the dataset at a path, reached through hard links only; None if no dataset is there.

    UserError for a link of another kind, and for another object than a dataset.
    """
    node, names = root, path.split("/")
    for number, name in enumerate(names, 1):
        here = "/".join(names[:number])
        if not isinstance(node, h5g.GroupID) or not node.links.exists(name.encode()):
            return None
        if node.links.get_info(name.encode()).type != h5l.TYPE_HARD:
            raise UserError(
                "is a soft, external or user-defined link, expected the object itself",
                where=f"{where}:{here}",
                fix="copy what it points to into the file",
            )
        node = h5o.open(node, name.encode())
        h5o.get_info(node)  # checks more than looking up an object by its name
    if not isinstance(node, h5d.DatasetID):
        raise UserError("is not a dataset", where=f"{where}:{path}", fix="write a dataset under this name")
    return node


def _check_dataset(dataset: Any, field: Column, where: str, file_size: int) -> StoredArray:
    """Locate the data of a known dataset. UserError unless its type, shape and storage are as they must be."""
    stored_type = dataset.get_type()
    matching = [d for d in field.dtypes if stored_type.equal(_library_type(d))]
    if not matching:
        expected = " or ".join(np.dtype(d).name for d in field.dtypes)
        raise UserError(
            f"dtype is {_describe_type(stored_type)}, expected little-endian {expected}",
            where=where,
            fix="write it with the type that docs/traces.md prescribes",
        )
    shape = _shape_of(dataset) or ()
    check_shape(field, shape, where)
    most = min(_MAX_HEADER_BYTES, _MIN_HEADER_BYTES + _MAX_HEADER_RATIO * file_size)
    if field.path == "header" and shape[0] > most:
        raise UserError(f"takes {shape[0]} bytes, expected at most {most}", where=where, fix="write a shorter header")
    # The checksum of the labels is optional.
    has_checksum = field.path != LABELS or h5a.exists(dataset, b"xxh3")
    checksum = _read_checksum(dataset, where) if has_checksum else None
    return _locate(dataset, np.dtype(matching[0]), shape, where, file_size, checksum)


def _locate(
    dataset: Any, dtype: np.dtype[Any], shape: tuple[int, ...], where: str, file_size: int, checksum: int | None
) -> StoredArray:
    """Locate the data. UserError unless they all lie in this file, which must be large enough for the shape."""
    num_bytes = dtype.itemsize * prod(shape)
    plan = dataset.get_create_plist()
    layout = plan.get_layout()
    if layout not in (_CONTIGUOUS, _CHUNKED, _COMPACT) or plan.get_external_count():
        raise UserError(
            "is a virtual dataset, or keeps its data in another file",
            where=where,
            fix="copy the data into the file",
        )
    filters = _read_filters(plan, where)
    stored = min(dataset.get_storage_size(), file_size)
    chunk_shape = _read_chunk_shape(plan, dtype, where) if layout == _CHUNKED else ()
    most = stored * (_MAX_DEFLATE_RATIO if DEFLATE in filters else 1)
    offset = None
    if layout == _CONTIGUOUS:
        offset = dataset.get_offset()
        most = 0 if offset is None else max(0, min(stored, file_size - offset))
    if num_bytes > min(most, MAX_BYTES):
        raise UserError(
            f"its shape asks for {num_bytes} bytes, but the file holds {stored} for it"
            f" and a dataset may have {MAX_BYTES}",
            where=where,
            fix=RECORD_AGAIN,
        )
    if layout == _COMPACT:
        # The data lie in the metadata, which are always small.
        content = np.empty(shape, dtype)
        if num_bytes:
            space = dataset.get_space()
            dataset.read(space, space, content)
        return StoredArray(where, dtype, shape, content=content, checksum=checksum)
    if layout == _CONTIGUOUS or not num_bytes:
        return StoredArray(where, dtype, shape, -1 if offset is None else int(offset), checksum=checksum)
    stored_array = StoredArray(where, dtype, shape, -1, None, chunk_shape, filters, checksum=checksum)
    return replace(stored_array, chunks=_locate_chunks(dataset, stored_array, file_size))


def _read_filters(plan: Any, where: str) -> tuple[int, ...]:
    """Return HDF5's numbers for the filters of a dataset. UserError for a filter that cannot be undone."""
    filters = tuple(int(plan.get_filter(i)[0]) for i in range(plan.get_nfilters()))
    if any(f not in _FILTERS for f in filters) or len(set(filters)) < len(filters):
        raise UserError(
            f"uses the HDF5 filters {list(filters)}, expected none, or one each of gzip, shuffle and fletcher32",
            where=where,
            fix="repack it without filters, e.g. h5repack -f NONE",
        )
    return filters


def _read_chunk_shape(plan: Any, dtype: np.dtype[Any], where: str) -> tuple[int, ...]:
    """Return the shape of a chunk. UserError if it takes too much memory."""
    chunk_shape = tuple(int(n) for n in plan.get_chunk())
    chunk_bytes = dtype.itemsize * prod(chunk_shape)
    if chunk_bytes > _MAX_CHUNK_BYTES:
        raise UserError(
            f"a chunk takes {chunk_bytes} bytes, expected at most {_MAX_CHUNK_BYTES}",
            where=where,
            fix="write it contiguous",
        )
    return chunk_shape


def _locate_chunks(dataset: Any, stored: StoredArray, file_size: int) -> tuple[Chunk, ...]:
    where, shape, chunk_shape, num_bytes = stored.where, stored.shape, stored.chunk_shape, stored.num_bytes
    counts = tuple(-(-whole // part) for whole, part in zip(shape, chunk_shape, strict=True))
    num_chunks = prod(counts)
    if num_chunks > _MIN_CHUNKS + num_bytes // _LEAST_CHUNK_BYTES:
        raise UserError(
            f"is cut into {num_chunks} chunks of {num_bytes // num_chunks} bytes, expected at least"
            f" {_LEAST_CHUNK_BYTES} bytes where there are more than {_MIN_CHUNKS}",
            where=where,
            fix="write it contiguous",
        )
    # A stored chunk takes at least one byte, whatever the index says.
    if num_chunks > file_size or dataset.get_num_chunks() < num_chunks:
        raise UserError(
            f"its shape asks for {num_chunks} chunks, but the file does not hold as many",
            where=where,
            fix="write it contiguous",
        )
    found: dict[tuple[int, ...], Any] = {}

    def keep(info: Any) -> None:
        found[info.chunk_offset] = info

    # The time to look up one chunk grows with the number of chunks.
    dataset.chunk_iter(keep)
    chunks = []
    for number in np.ndindex(counts):
        index = tuple(int(i) * part for i, part in zip(number, chunk_shape, strict=True))
        info = found.get(index)
        if info is None or info.byte_offset is None or not 0 < info.size <= file_size:
            raise UserError(f"the chunk at {list(index)} is missing", where=where, fix=RECORD_AGAIN)
        chunks.append(Chunk(int(info.byte_offset), int(info.size), int(info.filter_mask), index))
    return tuple(chunks)


def most_bytes(file_size: int) -> int:
    """Return the most memory that all datasets of a file of this size may take together."""
    return min(MAX_BYTES, max(MIN_TOTAL_BYTES, MAX_RATIO * file_size))


def _check_total(arrays: Sequence[StoredArray], file_size: int) -> None:
    """Raise a UserError if the datasets together unpack to more than a file of this size may hold."""
    total = sum(stored.memory_bytes for stored in arrays)
    if total > most_bytes(file_size):
        largest = max(arrays, key=lambda stored: stored.memory_bytes)
        raise UserError(
            f"the datasets together ask for {total} bytes, expected at most {most_bytes(file_size)} of a file of"
            f" {file_size}",
            where=largest.where,
            fix="repack it without filters, e.g. h5repack -f NONE",
        )


@cache
def _library_type(dtype: str) -> Any:
    return h5t.py_create(np.dtype(dtype))


def _shape_of(dataset: Any) -> tuple[int, ...] | None:
    space = dataset.get_space()
    if space.get_simple_extent_type() != h5s.SIMPLE:
        return None
    return tuple(int(n) for n in space.get_simple_extent_dims())


def _read_checksum(node: Any, where: str) -> int:
    found = _read_scalar(node, b"xxh3", h5t.INTEGER)
    if found is None or found.dtype != np.uint64:
        raise UserError(
            "has no attribute `xxh3` that is one uint64",
            where=where,
            fix="write the checksums that docs/traces.md defines",
        )
    return int(found)


def _read_scalar(node: Any, name: bytes, kind: int) -> Any:
    """Return an attribute that is one number, or one string of fixed length; None if there is no such attribute."""
    if not h5a.exists(node, name):
        return None
    attribute = h5a.open(node, name)
    stored = attribute.get_type()
    is_scalar = attribute.get_space().get_simple_extent_type() == h5s.SCALAR
    if not is_scalar or stored.get_class() != kind or stored.get_size() > _MAX_ATTRIBUTE_BYTES:
        return None
    if kind == h5t.STRING and stored.is_variable_str():
        return None
    value = np.zeros((), stored.dtype)
    attribute.read(value)
    return value[()]


def _describe_type(kind: Any) -> str:
    if kind.get_class() == h5t.VLEN or (kind.get_class() == h5t.STRING and kind.is_variable_str()):
        return "of variable length"
    # A compound type may have any number of members.
    return str(kind.dtype) if kind.get_class() in (h5t.INTEGER, h5t.FLOAT) else "of another kind"
