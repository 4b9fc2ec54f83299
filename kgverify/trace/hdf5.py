"""One trace file as HDF5: the only module that imports h5py.

Plain h5py follows external links, virtual datasets and raw external storage without a word, and allocates
whatever a shape asks for. Here every link on the way to a dataset, and the dataset's type, shape, layout,
filters and size, are judged, of all datasets together, before a byte is read; the bytes themselves are fetched and
unpacked by `kgverify.trace.storage`. HDF5's plugins, code that a file could ask to load, are switched off.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash

from kgverify.errors import UserError
from kgverify.trace.header import READABLE_VERSIONS, SCHEMA_VERSION, expected_versions
from kgverify.trace.levels import Packing
from kgverify.trace.locate import check_total, locate, most_bytes
from kgverify.trace.packing import storage_options
from kgverify.trace.presence import check_together, required_of
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
from kgverify.trace.storage import Place, check_extents, read_place

os.environ.setdefault("HDF5_PLUGIN_PRELOAD", "::")  # read once, when the library is loaded

import h5py
from h5py import h5a, h5d, h5g, h5l, h5o, h5s, h5t

_MAX_HEADER_BYTES: Final = 64 << 20
_MAX_ATTRIBUTE_BYTES: Final = 1 << 10
_MAX_LINKS: Final = 256
_MAX_NESTING: Final = 8
_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_PAGE: Final = 4096
_ORDER: Final = {field.path: place for place, field in enumerate(FIELDS)}


class FileContent(NamedTuple):
    """One file: its known datasets and the others by path, and what cannot be kept of it."""

    arrays: Arrays
    unknown: Arrays
    dropped: tuple[str, ...]


def write_arrays(path: Path, arrays: Arrays, creator: str, packing: Packing = Packing.PLAIN) -> None:
    """Write one file, with checksums. Same input, same bytes.

    Plain: contiguous datasets on page boundaries. What would unpack to more than a reader admits is written plain.
    """
    _write(path, arrays, creator, packing)
    total = sum(array.nbytes for array in arrays.values())
    if packing is not Packing.PLAIN and total > most_bytes(path.stat().st_size):
        _write(path, arrays, creator, Packing.PLAIN)


def _write(path: Path, arrays: Arrays, creator: str, packing: Packing) -> None:
    # From version 1.10 on HDF5 puts checksums on its own metadata. Pages would cost more than small datasets do.
    align = {"alignment_threshold": _PAGE, "alignment_interval": _PAGE} if packing is Packing.PLAIN else {}
    with h5py.File(path, "w", libver=("v110", "v110"), **align) as file:
        checksums = {}
        for name in sorted(arrays, key=lambda name: (_ORDER.get(name, len(_ORDER)), name)):
            array = arrays[name]
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            checksum = xxhash.xxh3_64_intdigest(little.data)
            dataset = file.create_dataset(name, data=little, **storage_options(little, packing))
            dataset.attrs["xxh3"] = np.uint64(checksum)
            if name in FIELD_OF:
                checksums[name] = checksum
        file.attrs["format"] = np.bytes_(FORMAT)
        file.attrs["schema_version"] = np.uint32(SCHEMA_VERSION)
        file.attrs["creator"] = np.bytes_(creator.encode("ascii", "replace")[:_MAX_ATTRIBUTE_BYTES])
        file.attrs["xxh3"] = np.uint64(file_checksum(checksums))


def read_arrays(path: Path) -> Arrays:
    """Every known dataset of one file, by path. UserError for what `docs/trace-format.md` refuses."""
    return read_file(path, with_unknown=False).arrays


def read_file(path: Path, *, with_unknown: bool = True) -> FileContent:
    """Every dataset of one file that can be kept. UserError for what `docs/trace-format.md` refuses."""
    where = str(path)
    with _told_as_user_error(where), _open_regular(path) as descriptor:
        if os.pread(descriptor, len(_SIGNATURE), 0) != _SIGNATURE:
            raise UserError(
                "not an HDF5 file, or cut off in its first bytes; expected a trace",
                where=where,
                fix=RECORD_AGAIN,
            )
        with h5py.File(path, "r", locking="best-effort") as file:
            root: Any = file["/"].id
            _check_identity(root, where)
            return _read_fields(root, descriptor, path, with_unknown=with_unknown)


@contextmanager
def _open_regular(path: Path) -> Iterator[int]:
    """A descriptor of a regular file; a pipe or a device is not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise UserError(f"cannot be opened: {error.strerror}", where=str(path), fix="check the path") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UserError("is not a regular file", where=str(path), fix="give the path of a trace")
        yield descriptor
    finally:
        os.close(descriptor)


def _read_fields(root: Any, descriptor: int, path: Path, *, with_unknown: bool) -> FileContent:
    file_size = os.fstat(descriptor).st_size
    found: dict[str, tuple[Any, Place]] = {}
    opened: dict[str, Any] = {}
    for field in FIELDS:
        where = f"{path}:{field.path}"
        with _told_as_user_error(where):
            dataset = _open_dataset(root, field, str(path), opened)
            if dataset is not None:
                found[field.path] = dataset, _check_dataset(dataset, field, where, file_size)
    dropped: list[str] = []
    if with_unknown:
        with _told_as_user_error(str(path)):
            for name, dataset in _find_unknown(root, dropped):
                try:
                    found[name] = dataset, _check_unknown(dataset, f"{path}:{name}", file_size)
                except UserError:
                    dropped.append(name)
    places = [place for _, place in found.values()]
    check_extents(places, file_size)
    check_total(places, file_size)
    arrays: Arrays = {}
    unknown: Arrays = {}
    checksums: dict[str, int] = {}
    for name, (dataset, place) in found.items():
        with _told_as_user_error(place.place):
            array = read_place(descriptor, place)
            checksum = xxhash.xxh3_64_intdigest(array.data)
            is_known = name in FIELD_OF
            if is_known or h5a.exists(dataset, b"xxh3"):
                stored = _read_checksum(dataset, place.place)
                if checksum != stored:
                    raise UserError(
                        f"checksum is {checksum:016x}, expected {stored:016x}: the data were altered",
                        where=place.place,
                        fix=RECORD_AGAIN,
                    )
        if is_known:
            checksums[name] = checksum
        (arrays if is_known else unknown)[name] = array
        if name == "header":
            _check_required(required_of(array, str(path)), found, str(path))
    check_together(arrays, str(path))
    check_file_checksum(checksums, _read_checksum(root, f"{path}:/"), str(path))
    return FileContent(arrays, unknown, tuple(dropped))


def _check_required(required: frozenset[str], found: dict[str, tuple[Any, Place]], where: str) -> None:
    for field in FIELDS:
        if field.path in required and field.path not in found:
            raise _missing(field, where)


def _missing(field: Field, where: str) -> UserError:
    return UserError(
        f"missing, expected a dataset of {' or '.join(np.dtype(d).name for d in field.dtypes)}",
        where=f"{where}:{field.path}",
        fix="write every dataset that docs/trace-format.md requires at this level",
    )


def _check_identity(root: Any, where: str) -> None:
    fix = "give a trace that kgverify, or a writer following docs/trace-format.md, made"
    found = _read_text(root, "format", where)
    if found is None:
        raise UserError("HDF5, but without the root attribute `format`: not a trace", where=where, fix=fix)
    if found != FORMAT:
        raise UserError(f"the root attribute `format` is {found!r}, expected {FORMAT!r}", where=where, fix=fix)
    version = _read_integer(root, "schema_version", where)
    if version not in READABLE_VERSIONS:
        newer = version is not None and version > SCHEMA_VERSION
        raise UserError(
            f"schema version is {version}, expected {expected_versions()}",
            where=where,
            fix="read it with a newer kgverify" if newer else "record the trace again with this kgverify",
        )


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


def _open_dataset(root: Any, field: Field, where: str, opened: dict[str, Any]) -> Any:
    """The dataset, reached through hard links alone; None if it is absent and not the header.

    opened: the groups that were reached so before, by path
    """
    node = root
    walked = ""
    for part in field.path.split("/"):
        walked = f"{walked}/{part}".lstrip("/")
        name = part.encode()
        if walked in opened:
            node = opened[walked]
            continue
        if not isinstance(node, h5g.GroupID) or not node.links.exists(name):
            # Which others are required the header says, by its level.
            if field.path != "header":
                return None
            raise _missing(field, where)
        if node.links.get_info(name).type != h5l.TYPE_HARD:
            raise UserError(
                "is a soft, external or user-defined link, expected the object itself",
                where=f"{where}:{walked}",
                fix="copy what it points to into the file",
            )
        node = h5o.open(node, name)
        if isinstance(node, h5g.GroupID):
            opened[walked] = node
    if not isinstance(node, h5d.DatasetID):
        raise UserError("is not a dataset", where=f"{where}:{field.path}", fix="write a dataset under this name")
    return node


def _check_dataset(dataset: Any, field: Field, place: str, file_size: int) -> Place:
    """Where the data of a known dataset lie. UserError unless its type, shape and storage are as they must be."""
    stored_type = dataset.get_type()
    matching = [d for d in field.dtypes if stored_type.equal(_type_of(d))]
    if not matching:
        expected = " or ".join(np.dtype(d).name for d in field.dtypes)
        raise UserError(
            f"dtype is {_describe_type(stored_type)}, expected little-endian {expected}",
            where=place,
            fix="write it with the type that docs/trace-format.md prescribes",
        )
    shape = _shape_of(dataset)
    if shape is None or len(shape) != 1 + bool(field.width) or (field.width and shape[1] != field.width):
        raise UserError(
            f"shape is {list(shape or ())}, expected {field.shape_text}",
            where=place,
            fix=f"write it with shape {field.shape_text}",
        )
    if field.path == "header" and shape[0] > _MAX_HEADER_BYTES:
        raise UserError(
            f"takes {shape[0]} bytes, expected at most {_MAX_HEADER_BYTES}", where=place, fix="write a shorter header"
        )
    return locate(dataset, np.dtype(matching[0]), shape, place, file_size)


def _check_unknown(dataset: Any, place: str, file_size: int) -> Place:
    """Where the data of an unknown dataset lie. UserError unless it is a plain array of numbers."""
    shape = _shape_of(dataset)
    plain = [f"<{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)] + ["<f2", "<f4", "<f8"]
    matching = [d for d in plain if dataset.get_type().equal(_type_of(d))]
    if shape is None or not 0 < len(shape) <= _MAX_NESTING or not matching:
        raise UserError("is not a plain array", where=place, fix="write it as an array of numbers")
    return locate(dataset, np.dtype(matching[0]), shape, place, file_size)


@cache
def _type_of(dtype: str) -> Any:
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


@contextmanager
def _told_as_user_error(where: str) -> Iterator[None]:
    """What HDF5 raises on a damaged file becomes a `UserError`."""
    try:
        yield
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError, MemoryError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"HDF5 cannot read it, it is cut off or damaged: {reason}", where=where, fix=RECORD_AGAIN
        ) from error
