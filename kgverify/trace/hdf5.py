"""One trace file as HDF5: the only module that imports h5py.

Plain h5py follows external links, virtual datasets and raw external storage without a word, and allocates
whatever a shape asks for. Here every link on the way to a dataset, and the dataset's type, shape, layout,
filters and size, are judged before a byte of it is read. HDF5's plugins, code that a file could ask to load,
are switched off.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.disk import Buffer, bytes_of, opened, sync, write_all
from kgverify.trace.header import SCHEMA_VERSION
from kgverify.trace.image import MetadataImage, Written, hash_pieces
from kgverify.trace.schema import (
    FIELD_OF,
    FIELDS,
    FORMAT,
    RECORD_AGAIN,
    Arrays,
    Field,
    check_file_checksum,
    file_checksum,
)
from kgverify.trace.stored import Examination, StoredArray, check_together, hash_rows, little_endian, told_as_user_error

os.environ.setdefault("HDF5_PLUGIN_PRELOAD", "::")  # read once, when the library is loaded

import h5py
from h5py import h5a, h5d, h5f, h5g, h5l, h5o, h5p, h5s, h5t, h5z

MAX_BYTES: Final = 64 << 30
_MAX_CHUNK_BYTES: Final = 1 << 30
_MAX_ATTRIBUTE_BYTES: Final = 1 << 10
_MAX_DEFLATE_RATIO: Final = 1100  # deflate cannot do better than 1032 to 1
_FILTERS: Final = (h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32)
_PAGE: Final = 4096
_CHUNK_CACHE_BYTES: Final = 64 << 20


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any] | Sequence[NDArray[Any]]], creator: str) -> Written:
    """Write one file and force it to disk: contiguous datasets on page boundaries, with checksums.

    A dataset may come in parts, rows after rows; no copy is made of them. HDF5 itself lays the file out, but in
    memory: what goes to the disk goes through `kgverify.trace.disk`, so that each failure is one of ours. Same input,
    same bytes.
    """
    parts = {name: little_endian(given) for name, given in arrays.items()}
    image = MetadataImage()
    bounds = ("v110", "v110")  # from 1.10 on HDF5 puts checksums on its own metadata
    with (
        h5py.File(image, "w", libver=bounds, alignment_threshold=_PAGE, alignment_interval=_PAGE) as file,
        opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor,
        ThreadPoolExecutor(1) as hasher,
    ):
        plan = h5p.create(h5p.DATASET_CREATE)
        plan.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        plan.set_fill_time(h5d.FILL_TIME_NEVER)
        placed: list[tuple[int, Sequence[Buffer]]] = []
        datasets = {}
        for name, pieces in parts.items():
            shape = (sum(len(piece) for piece in pieces), *pieces[0].shape[1:])
            datasets[name] = dataset = file.create_dataset(name, shape, pieces[0].dtype, dcpl=plan)
            if (offset := dataset.id.get_offset()) is not None:
                placed.append((offset, [bytes_of(piece) for piece in pieces]))
        summed = hasher.submit(lambda: {name: hash_rows(pieces) for name, pieces in parts.items()})
        for offset, buffers in placed:
            write_all(descriptor, buffers, offset)
        checksums = summed.result()
        for name, checksum in checksums.items():
            datasets[name].attrs["xxh3"] = np.uint64(checksum)
        file.attrs["format"] = np.bytes_(FORMAT)
        file.attrs["schema_version"] = np.uint32(SCHEMA_VERSION)
        file.attrs["creator"] = np.bytes_(creator.encode("ascii", "replace")[:_MAX_ATTRIBUTE_BYTES])
        file.attrs["xxh3"] = np.uint64(file_checksum(checksums))
        file.close()
        os.ftruncate(descriptor, image.size)
        runs: list[tuple[int, Sequence[Buffer]]] = [(offset, [content]) for offset, content in image.runs()]
        for offset, buffers in runs:
            write_all(descriptor, buffers, offset)
        hashed = hasher.submit(hash_pieces, placed + runs, image.size)
        sync(descriptor)
        return Written(image.size, hashed.result())


def read_arrays(path: Path) -> Arrays:
    """Every known dataset of one file, by path. UserError for what `docs/trace-format.md` refuses."""
    where = str(path)
    with told_as_user_error(where), _open_trace(path) as root:
        return _read_fields(root, path)


def locate_arrays(path: Path) -> dict[str, StoredArray]:
    """Where each known dataset of one file lies. UserError as by `read_arrays`, but that checksums are left to the caller."""
    where = str(path)
    with told_as_user_error(where), _open_trace(path) as root:
        file_size = path.stat().st_size
        found: dict[str, StoredArray] = {}
        groups: dict[str, Any] = {}
        for field in FIELDS:
            place = f"{path}:{field.path}"
            with told_as_user_error(place):
                dataset = _open_dataset(root, field, where, groups)
                if dataset is None:
                    continue
                dtype, shape = _check_dataset(dataset, field, place, file_size)
                found[field.path] = StoredArray(dtype, shape, dataset.get_offset(), _read_checksum(dataset, place))
        check_together(found, path)
        checksums = {name: stored.checksum for name, stored in found.items()}
        check_file_checksum(checksums, _read_checksum(root, f"{path}:/"), where)
    return found


class ChunkReader:
    """Reads rows of datasets that are not contiguous, block by block; they must have been located before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with told_as_user_error(str(path)):
            self._file = h5py.File(path, "r", locking="best-effort", rdcc_nbytes=_CHUNK_CACHE_BYTES)

    def read(self, name: str, stored: StoredArray, begin: int, end: int) -> NDArray[Any]:
        """The rows from `begin` to `end`. UserError if HDF5 cannot read them."""
        array = np.empty((end - begin, *stored.shape[1:]), stored.dtype)
        if array.size:
            with told_as_user_error(f"{self._path}:{name}"):
                dataset: Any = _open_dataset(self._file["/"].id, FIELD_OF[name], str(self._path))
                space = dataset.get_space()
                space.select_hyperslab((begin, *(0 for _ in stored.shape[1:])), array.shape)
                dataset.read(h5s.create_simple(array.shape), space, array)
        return array


@contextmanager
def _open_trace(path: Path) -> Iterator[Any]:
    """The root of a file that says it is a trace."""
    where = str(path)
    if not h5f.is_hdf5(os.fsencode(path)):
        raise UserError(
            "not an HDF5 file, or cut off in its first bytes; expected a trace",
            where=where,
            fix=RECORD_AGAIN,
        )
    with h5py.File(path, "r", locking="best-effort") as file:
        root: Any = file["/"].id
        _check_identity(root, where)
        yield root


def examine_arrays(path: Path) -> Examination:
    """Every dataset of one file that can be read, whatever is wrong with the others. UserError if it is no trace file."""
    where = str(path)
    found = Examination({}, {}, {})
    checksums: dict[str, int] = {}
    with told_as_user_error(where), h5py.File(path, "r", locking="best-effort") as file:
        root: Any = file["/"].id
        _check_identity(root, where)
        for field in FIELDS:
            place = f"{path}:{field.path}"
            try:
                with told_as_user_error(place):
                    dataset = _open_dataset(root, field, where)
                    if dataset is None:
                        continue
                    array = _read_dataset(dataset, field, place, path.stat().st_size)
                    found.altered[field.path] = array
                    stored = checksums[field.path] = _read_checksum(dataset, place)
                    if xxhash.xxh3_64_intdigest(array.data) == stored:
                        found.intact[field.path] = found.altered.pop(field.path)
                    else:
                        found.problems[field.path] = "its checksum does not fit: the data were altered"
            except UserError as error:
                found.problems[field.path] = error.message
        try:
            check_file_checksum(checksums, _read_checksum(root, f"{path}:/"), where)
        except UserError as error:
            found.problems["/"] = error.message
    return found


def _read_fields(root: Any, path: Path) -> Arrays:
    arrays: Arrays = {}
    checksums: dict[str, int] = {}
    for field in FIELDS:
        place = f"{path}:{field.path}"
        with told_as_user_error(place):
            dataset = _open_dataset(root, field, str(path))
            if dataset is None:
                continue
            arrays[field.path] = array = _read_dataset(dataset, field, place, path.stat().st_size)
            stored = _read_checksum(dataset, place)
            checksums[field.path] = found = xxhash.xxh3_64_intdigest(array.data)
            if found != stored:
                raise UserError(
                    f"checksum is {found:016x}, expected {stored:016x}: the data were altered",
                    where=place,
                    fix=RECORD_AGAIN,
                )
    check_together(arrays, path)
    check_file_checksum(checksums, _read_checksum(root, f"{path}:/"), str(path))
    return arrays


def _check_identity(root: Any, where: str) -> None:
    fix = "give a trace that kgverify, or a writer following docs/trace-format.md, made"
    found = _read_text(root, "format", where)
    if found is None:
        raise UserError("HDF5, but without the root attribute `format`: not a trace", where=where, fix=fix)
    if found != FORMAT:
        raise UserError(f"the root attribute `format` is {found!r}, expected {FORMAT!r}", where=where, fix=fix)
    version = _read_integer(root, "schema_version", where)
    if version != SCHEMA_VERSION:
        newer = version is not None and version > SCHEMA_VERSION
        raise UserError(
            f"schema version is {version}, expected {SCHEMA_VERSION}",
            where=where,
            fix="read it with a newer kgverify" if newer else "record the trace again with this kgverify",
        )


def _open_dataset(root: Any, field: Field, where: str, groups: dict[str, Any] | None = None) -> Any:
    """The dataset, reached through hard links alone; None if it is absent and may be.

    groups: those opened before, by path; more are added
    """
    node = root
    walked = ""
    for part in field.path.split("/"):
        walked = f"{walked}/{part}".lstrip("/")
        if groups is not None and walked in groups:
            node = groups[walked]
            continue
        name = part.encode()
        links = node.links if isinstance(node, h5g.GroupID) else None
        if links is None or not links.exists(name):
            if not field.is_required:
                return None
            raise UserError(
                f"missing, expected a dataset of {' or '.join(np.dtype(d).name for d in field.dtypes)}",
                where=f"{where}:{field.path}",
                fix="write every dataset that docs/trace-format.md requires",
            )
        if links.get_info(name).type != h5l.TYPE_HARD:
            raise UserError(
                "is a soft, external or user-defined link, expected the object itself",
                where=f"{where}:{walked}",
                fix="copy what it points to into the file",
            )
        node = h5o.open(node, name)
        if groups is not None and isinstance(node, h5g.GroupID):
            groups[walked] = node
    if not isinstance(node, h5d.DatasetID):
        raise UserError("is not a dataset", where=f"{where}:{field.path}", fix="write a dataset under this name")
    return node


def _read_dataset(dataset: Any, field: Field, place: str, file_size: int) -> NDArray[Any]:
    dtype, shape = _check_dataset(dataset, field, place, file_size)
    array = np.empty(shape, dtype)
    if array.size:
        dataset.read(h5s.ALL, h5s.ALL, array)
    return array


def _check_dataset(dataset: Any, field: Field, place: str, file_size: int) -> tuple[str, tuple[int, ...]]:
    """Type and shape, once these and the storage are what they may be."""
    stored_type = dataset.get_type()
    matching = [d for d in field.dtypes if stored_type.equal(_library_type(d))]
    if not matching:
        expected = " or ".join(np.dtype(d).name for d in field.dtypes)
        raise UserError(
            f"dtype is {_describe_type(stored_type)}, expected little-endian {expected}",
            where=place,
            fix="write it with the type that docs/trace-format.md prescribes",
        )
    space = dataset.get_space()
    is_simple = space.get_simple_extent_type() == h5s.SIMPLE
    shape = tuple(int(n) for n in space.get_simple_extent_dims()) if is_simple else ()
    if len(shape) != 1 + bool(field.width) or (field.width and shape[1] != field.width):
        raise UserError(
            f"shape is {list(shape)}, expected {field.shape_text}",
            where=place,
            fix=f"write it with shape {field.shape_text}",
        )
    num_bytes = np.dtype(matching[0]).itemsize
    for length in shape:
        num_bytes *= length
    _check_storage(dataset, num_bytes, place, file_size)
    return matching[0], shape


def _check_storage(dataset: Any, num_bytes: int, place: str, file_size: int) -> None:
    """UserError unless the data lie in this very file and can be as large as the shape says."""
    plan = dataset.get_create_plist()
    layout = plan.get_layout()
    if layout not in (h5d.CONTIGUOUS, h5d.CHUNKED, h5d.COMPACT) or plan.get_external_count():
        raise UserError(
            "is a virtual dataset, or keeps its data in another file",
            where=place,
            fix="copy the data into the file",
        )
    filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
    if any(f not in _FILTERS for f in filters) or len(set(filters)) < len(filters):
        raise UserError(
            f"uses the HDF5 filters {filters}, expected none, or one each of gzip, shuffle and fletcher32",
            where=place,
            fix="repack it without filters, e.g. h5repack -f NONE",
        )
    stored = dataset.get_storage_size()
    most = stored
    if layout == h5d.CONTIGUOUS:
        offset = dataset.get_offset()
        most = max(0, min(stored, file_size - offset)) if offset is not None else 0
    elif layout == h5d.CHUNKED:
        chunk_bytes = dataset.get_type().get_size()
        for length in plan.get_chunk():
            chunk_bytes *= int(length)
        if chunk_bytes > _MAX_CHUNK_BYTES:
            raise UserError(
                f"a chunk takes {chunk_bytes} bytes, expected at most {_MAX_CHUNK_BYTES}",
                where=place,
                fix="write it contiguous",
            )
        most = min(stored, file_size) * (_MAX_DEFLATE_RATIO if h5z.FILTER_DEFLATE in filters else 1)
    if num_bytes > min(most, MAX_BYTES):
        raise UserError(
            f"its shape asks for {num_bytes} bytes, but the file holds {min(stored, file_size)} for it"
            f" and a dataset may have {MAX_BYTES}",
            where=place,
            fix=RECORD_AGAIN,
        )


def _read_checksum(node: Any, place: str) -> int:
    name = b"xxh3"
    if h5a.exists(node, name):
        attribute = h5a.open(node, name)
        is_scalar = attribute.get_space().get_simple_extent_type() == h5s.SCALAR
        if is_scalar and attribute.get_type().equal(h5t.STD_U64LE):
            value = np.zeros((), np.uint64)
            attribute.read(value)
            return int(value)
    raise UserError(
        "has no attribute `xxh3` that is one uint64",
        where=place,
        fix="write the checksums that docs/trace-format.md defines",
    )


def _read_text(node: Any, name: str, where: str) -> str | None:
    if not h5a.exists(node, name.encode()):
        return None
    attribute = h5a.open(node, name.encode())
    kind, extent = attribute.get_type(), attribute.get_space().get_simple_extent_type()
    is_fixed = kind.get_class() == h5t.STRING and not kind.is_variable_str()
    if not (extent == h5s.SCALAR and is_fixed and kind.get_size() <= _MAX_ATTRIBUTE_BYTES):
        raise UserError(
            f"the root attribute `{name}` is not one string of fixed length",
            where=where,
            fix=f"write it as numpy.bytes_, such as file.attrs[{name!r}] = numpy.bytes_(...)",
        )
    value = np.zeros((), f"S{kind.get_size()}")
    attribute.read(value)
    return bytes(value[()]).decode("utf-8", "replace")


def _read_integer(node: Any, name: str, where: str) -> int | None:
    if not h5a.exists(node, name.encode()):
        return None
    attribute = h5a.open(node, name.encode())
    is_scalar = attribute.get_space().get_simple_extent_type() == h5s.SCALAR
    if not is_scalar or attribute.get_type().get_class() != h5t.INTEGER:
        raise UserError(f"the root attribute `{name}` is not one integer", where=where, fix="write it as numpy.uint32")
    value = np.zeros((), np.int64)
    attribute.read(value)
    return int(value)


@cache
def _library_type(dtype: str) -> Any:
    return h5t.py_create(np.dtype(dtype))


def _describe_type(kind: Any) -> str:
    if kind.get_class() == h5t.VLEN or (kind.get_class() == h5t.STRING and kind.is_variable_str()):
        return "of variable length"
    try:
        return str(kind.dtype)
    except (TypeError, ValueError):
        return "of another kind"
