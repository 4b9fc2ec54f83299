"""One trace file as HDF5: the only module that imports h5py.

Plain h5py follows external links, virtual datasets and raw external storage without a word, and allocates
whatever a shape asks for. Here every link on the way to a dataset, and the dataset's type, shape, layout,
filters and size, are judged, of all datasets together, before a byte is read; the bytes themselves are fetched and
unpacked by `kgverify.trace.hdf5.byte_ranges`. HDF5's plugins, code that a file could ask to load, are switched off.
"""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.files.disk import Placed, bytes_of, checksum_of, little_endian, opened, write_placed
from kgverify.trace.hdf5.byte_ranges import Place, check_extents
from kgverify.trace.hdf5.dataset_location import check_total, is_archived, locate, most_bytes
from kgverify.trace.hdf5.examination import Examination, Found, examine
from kgverify.trace.hdf5.filters import create_packed
from kgverify.trace.hdf5.metadata_image import MetadataImage, Written, write_bytes
from kgverify.trace.hdf5.stored_file import (
    FileContent,
    StoredArray,
    StoredFile,
    check_format,
    check_required,
    check_shape,
    check_version,
    identity_of,
    missing,
    noting,
    open_regular,
    read_stored,
    told_as_user_error,
)
from kgverify.trace.model.header import SCHEMA_VERSION
from kgverify.trace.model.levels import Packing
from kgverify.trace.model.required_datasets import check_together, required_of
from kgverify.trace.model.schema import (
    FIELD_OF,
    FIELDS,
    FORMAT,
    RECORD_AGAIN,
    Arrays,
    Field,
    check_file_checksum,
    file_checksum,
)

os.environ.setdefault("HDF5_PLUGIN_PRELOAD", "::")  # read once, when the library is loaded

import h5py
from h5py import h5a, h5d, h5g, h5l, h5o, h5p, h5s, h5t

_MAX_ATTRIBUTE_BYTES: Final = 1 << 10
_MAX_LINKS: Final = 256
_MAX_NESTING: Final = 8
_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_PAGE: Final = 4096
# From version 1.10 on HDF5 puts checksums on its own metadata.
_BOUNDS: Final = ("v110", "v110")
_ORDER: Final = {field.path: place for place, field in enumerate(FIELDS)}


def write_arrays(
    path: Path,
    arrays: Mapping[str, NDArray[Any] | Sequence[NDArray[Any]]],
    creator: str,
    packing: Packing = Packing.PLAIN,
) -> Written:
    """Write one file and force it to disk, with checksums, taken meanwhile. Same input, same bytes.

    Plain: contiguous datasets on page boundaries. A dataset may come in parts, rows after rows; no copy is made of them.
    Packed, a file is made in memory first; what would unpack to more than a reader admits is written plain.

    HDF5 itself lays the file out, but in memory: what goes to the disk goes through `kgverify.trace.files.disk`, so that each
    failure is one of ours.
    """
    names = sorted(arrays, key=lambda name: (_ORDER.get(name, len(_ORDER)), name))
    parts = {name: little_endian(arrays[name]) for name in names}
    if packing is not Packing.PLAIN:
        packed = _pack(parts, creator, packing)
        total = sum(piece.nbytes for pieces in parts.values() for piece in pieces)
        if total <= most_bytes(len(packed)):
            return write_bytes(path, packed)
    image = MetadataImage()
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor, ThreadPoolExecutor(2) as pool:
        with h5py.File(image, "w", libver=_BOUNDS, alignment_threshold=_PAGE, alignment_interval=_PAGE) as file:
            placed = _lay_out(file, parts)
            written = pool.submit(write_placed, descriptor, placed)
            _sign(file, {name: checksum_of(pieces) for name, pieces in parts.items()}, creator)
        return image.write_out(descriptor, placed, written, pool)


def _lay_out(file: Any, parts: Mapping[str, Sequence[NDArray[Any]]]) -> list[Placed]:
    """Make the datasets, without their data; where those belong."""
    plan = h5p.create(h5p.DATASET_CREATE)
    plan.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5d.FILL_TIME_NEVER)
    placed: list[Placed] = []
    for name, pieces in parts.items():
        shape = (sum(len(piece) for piece in pieces), *pieces[0].shape[1:])
        dataset = file.create_dataset(name, shape, pieces[0].dtype, dcpl=plan)
        if (offset := dataset.id.get_offset()) is not None:
            placed.append((offset, [bytes_of(piece) for piece in pieces]))
    return placed


def _pack(parts: Mapping[str, Sequence[NDArray[Any]]], creator: str, packing: Packing) -> memoryview:
    """The bytes of a packed file. Pages would cost more than small datasets do."""
    content = io.BytesIO()
    with h5py.File(content, "w", libver=_BOUNDS) as file:
        for name, pieces in parts.items():
            array = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            create_packed(file, name, array, packing)
        _sign(file, {name: checksum_of(pieces) for name, pieces in parts.items()}, creator)
    return content.getbuffer()


def _sign(file: Any, checksums: Mapping[str, int], creator: str) -> None:
    """Write the checksums of all datasets, and what makes the file a trace."""
    for name, checksum in checksums.items():
        file[name].attrs["xxh3"] = np.uint64(checksum)
    file.attrs["format"] = np.bytes_(FORMAT)
    file.attrs["schema_version"] = np.uint32(SCHEMA_VERSION)
    file.attrs["creator"] = np.bytes_(creator.encode("ascii", "replace")[:_MAX_ATTRIBUTE_BYTES])
    known = {name: checksum for name, checksum in checksums.items() if name in FIELD_OF}
    file.attrs["xxh3"] = np.uint64(file_checksum(known))


def read_arrays(path: Path) -> Arrays:
    """Every known dataset of one file, by path. UserError for what `docs/trace-format.md` refuses."""
    return read_file(path, with_unknown=False).arrays


def read_file(path: Path, *, with_unknown: bool = True) -> FileContent:
    """Every dataset of one file that can be kept. UserError for what `docs/trace-format.md` refuses."""
    dropped: list[str] = []
    with _opened_trace(path) as (root, descriptor):
        unknown = _locate_unknown(root, descriptor, path, dropped) if with_unknown else {}
        known = _locate_known(root, descriptor, path, unknown)
        arrays = {name: read_stored(descriptor, stored) for name, stored in known.items()}
        others = {name: read_stored(descriptor, stored) for name, stored in unknown.items()}
    every = (*known.values(), *unknown.values())
    return FileContent(arrays, others, tuple(dropped), is_archived(stored.place for stored in every))


def locate_arrays(path: Path) -> StoredFile:
    """Where each known dataset of one file lies. UserError as by `read_arrays`, but that checksums are left to the caller."""
    with _opened_trace(path) as (root, descriptor):
        return StoredFile(_locate_known(root, descriptor, path, {}), identity_of(descriptor))


def examine_arrays(path: Path) -> Examination:
    """Every dataset of one file that can be read, whatever is wrong with the others. UserError if it is no trace file."""
    found = Found({}, {}, {})
    groups: dict[str, Any] = {}
    with _opened_trace(path) as (root, descriptor):
        file_size = os.fstat(descriptor).st_size
        for field in FIELDS:
            with noting(found.problems, field.path):
                if (dataset := _open_dataset(root, field, str(path), groups)) is not None:
                    place = _check_dataset(dataset, field, f"{path}:{field.path}", file_size)
                    found.places[field.path] = place
                    found.checksums[field.path] = _read_checksum(dataset, place.place)
        with noting(found.problems, "/"):
            found.checksums["/"] = _read_checksum(root, f"{path}:/")
        return examine(descriptor, path, found)


@contextmanager
def _opened_trace(path: Path) -> Iterator[tuple[Any, int]]:
    """The root group and a descriptor of a file that says it is a trace."""
    where = str(path)
    with told_as_user_error(where), open_regular(path) as descriptor:
        if os.pread(descriptor, len(_SIGNATURE), 0) != _SIGNATURE:
            raise UserError(
                "not an HDF5 file, or cut off in its first bytes; expected a trace",
                where=where,
                fix=RECORD_AGAIN,
            )
        with h5py.File(path, "r", locking="best-effort") as file:
            root: Any = file["/"].id
            check_format(_read_text(root, "format", where), where)
            check_version(_read_integer(root, "schema_version", where), where)
            yield root, descriptor


def _locate_known(root: Any, descriptor: int, path: Path, unknown: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """The datasets that the schema names. UserError for what they, or together with the unknown ones, may not be."""
    file_size = os.fstat(descriptor).st_size
    found: dict[str, StoredArray] = {}
    groups: dict[str, Any] = {}
    for field in FIELDS:
        where = f"{path}:{field.path}"
        with told_as_user_error(where):
            dataset = _open_dataset(root, field, str(path), groups)
            if dataset is not None:
                place = _check_dataset(dataset, field, where, file_size)
                found[field.path] = StoredArray(place, _read_checksum(dataset, where))
    with told_as_user_error(str(path)):
        for group in (root, *groups.values()):
            h5o.get_info(group)  # looks at what finding a dataset by its name does not
    places = [stored.place for stored in (*found.values(), *unknown.values())]
    check_extents(places, file_size)
    check_total(places, file_size)
    header = read_stored(descriptor, found["header"])
    check_required(required_of(header, str(path)), found, str(path))
    check_together(found, str(path))
    checksums = {name: stored.checksum or 0 for name, stored in found.items()}
    check_file_checksum(checksums, _read_checksum(root, f"{path}:/"), str(path))
    return found


def _locate_unknown(root: Any, descriptor: int, path: Path, dropped: list[str]) -> dict[str, StoredArray]:
    """The datasets that the schema does not name and that can be kept; the names of others are added to `dropped`."""
    file_size = os.fstat(descriptor).st_size
    found: dict[str, StoredArray] = {}
    with told_as_user_error(str(path)):
        for name, dataset in _find_unknown(root, dropped):
            where = f"{path}:{name}"
            try:
                place = _check_unknown(dataset, where, file_size)
            except UserError:
                dropped.append(name)
            else:
                has_checksum = h5a.exists(dataset, b"xxh3")
                found[name] = StoredArray(place, _read_checksum(dataset, where) if has_checksum else None)
    return found


def _find_unknown(root: Any, dropped: list[str]) -> Iterator[tuple[str, Any]]:
    """Datasets that the schema does not name, reached through hard links alone; the others are dropped.

    A group counts once, so that cycles end; of a group with too many links nothing is looked at.
    """
    seen = set()
    groups = [("", root)]
    while groups:
        prefix, group = groups.pop()
        address = h5o.get_info(group).addr
        if address in seen:
            continue
        seen.add(address)
        if group.get_num_objs() > _MAX_LINKS or prefix.count("/") >= _MAX_NESTING or len(seen) > _MAX_LINKS:
            dropped.append(prefix or "/")
            continue
        for raw in sorted(group):
            try:
                name = prefix + raw.decode()
            except UnicodeDecodeError:
                dropped.append(prefix + repr(raw))
                continue
            if name in FIELD_OF:
                continue
            if group.links.get_info(raw).type != h5l.TYPE_HARD:
                dropped.append(name)
                continue
            node = h5o.open(group, raw)
            if isinstance(node, h5g.GroupID):
                groups.append((f"{name}/", node))
            elif isinstance(node, h5d.DatasetID):
                yield name, node
            else:
                dropped.append(name)


def _open_dataset(root: Any, field: Field, where: str, groups: dict[str, Any]) -> Any:
    """The dataset, reached through hard links alone; None if it is absent and not the header.

    groups: those that were reached so before, by path; more are added
    """
    node = root
    walked = ""
    for part in field.path.split("/"):
        walked = f"{walked}/{part}".lstrip("/")
        if walked in groups:
            node = groups[walked]
            continue
        name = part.encode()
        if not isinstance(node, h5g.GroupID) or not node.links.exists(name):
            # Which others are required the header says, by its level.
            if field.path != "header":
                return None
            raise missing(field, where)
        if node.links.get_info(name).type != h5l.TYPE_HARD:
            raise UserError(
                "is a soft, external or user-defined link, expected the object itself",
                where=f"{where}:{walked}",
                fix="copy what it points to into the file",
            )
        node = h5o.open(node, name)
        if isinstance(node, h5g.GroupID):
            groups[walked] = node
    if not isinstance(node, h5d.DatasetID):
        raise UserError("is not a dataset", where=f"{where}:{field.path}", fix="write a dataset under this name")
    return node


def _check_dataset(dataset: Any, field: Field, place: str, file_size: int) -> Place:
    """Where the data of a known dataset lie. UserError unless its type, shape and storage are as they must be."""
    stored_type = dataset.get_type()
    matching = [d for d in field.dtypes if stored_type.equal(_library_type(d))]
    if not matching:
        expected = " or ".join(np.dtype(d).name for d in field.dtypes)
        raise UserError(
            f"dtype is {_describe_type(stored_type)}, expected little-endian {expected}",
            where=place,
            fix="write it with the type that docs/trace-format.md prescribes",
        )
    shape = check_shape(_shape_of(dataset), field, place)
    return locate(dataset, np.dtype(matching[0]), shape, place, file_size)


def _check_unknown(dataset: Any, place: str, file_size: int) -> Place:
    """Where the data of an unknown dataset lie. UserError unless it is a plain array of numbers."""
    shape = _shape_of(dataset)
    plain = [f"<{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)] + ["<f2", "<f4", "<f8"]
    matching = [d for d in plain if dataset.get_type().equal(_library_type(d))]
    if shape is None or not 0 < len(shape) <= _MAX_NESTING or not matching:
        raise UserError("is not a plain array", where=place, fix="write it as an array of numbers")
    return locate(dataset, np.dtype(matching[0]), shape, place, file_size)


@cache
def _library_type(dtype: str) -> Any:
    return h5t.py_create(np.dtype(dtype))


def _shape_of(dataset: Any) -> tuple[int, ...] | None:
    space = dataset.get_space()
    if space.get_simple_extent_type() != h5s.SIMPLE:
        return None
    return tuple(int(n) for n in space.get_simple_extent_dims())


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
    kind = attribute.get_type()
    is_scalar = attribute.get_space().get_simple_extent_type() == h5s.SCALAR
    is_fixed = kind.get_class() == h5t.STRING and not kind.is_variable_str()
    if not (is_scalar and is_fixed and kind.get_size() <= _MAX_ATTRIBUTE_BYTES):
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


def _describe_type(kind: Any) -> str:
    if kind.get_class() == h5t.VLEN or (kind.get_class() == h5t.STRING and kind.is_variable_str()):
        return "of variable length"
    if kind.get_class() not in (h5t.INTEGER, h5t.FLOAT, h5t.STRING):
        # A compound may have members without end.
        return "of another kind"
    try:
        return str(kind.dtype)
    except (TypeError, ValueError):
        return "of another kind"
