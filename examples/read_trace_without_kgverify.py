"""Read a trace of kgverify with h5py alone, into a dictionary of arrays by path: docs/traces.md specifies the format.

It verifies every checksum, and refuses links, data in other files, further filters, and more memory than a file of this size
may ask for. It checks neither values, nor the unpacked size of a stranger's chunks.
"""

import json
from pathlib import Path

import h5py
import numpy as np
import xxhash

BY_ROW = "candidates/", "steps/", "resolvents/", "stages/", "digests/"


def list_datasets(group, prefix=""):
    """Yield the path of each dataset below a group, and the dataset."""
    for name in group:
        if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
            raise ValueError(f"{prefix}{name} is a link")
        node = group[name]
        if isinstance(node, h5py.Group):
            yield from list_datasets(node, f"{prefix}{name}/")
        else:
            yield prefix + name, node


def read_file(path):
    """Return the arrays of a file by path, and the checksum of the file."""
    arrays, sums, size = {}, b"", Path(path).stat().st_size
    with h5py.File(path) as file:
        if (file.attrs["format"], file.attrs["schema_version"]) != (b"kgverify-trace", 4):
            raise ValueError(f"{path} is no trace of version 4")
        for name, data in sorted(list_datasets(file)):
            plan = data.id.get_create_plist()
            filters = {plan.get_filter(i)[0] for i in range(plan.get_nfilters())}
            if data.is_virtual or data.external or not filters <= {1, 2, 3} or data.dtype.kind not in "iuf":
                raise ValueError(f"{path}:{name} is no plain dataset of this file")
            if data.nbytes > max(64 << 20, 64 * size):
                raise ValueError(f"{path}:{name} asks for too much memory")
            arrays[name] = data[()]
            checksum = xxhash.xxh3_64_intdigest(arrays[name].tobytes())
            if checksum != data.attrs["xxh3"]:
                raise ValueError(f"{path}:{name} was altered")
            sums += name.encode() + b"\0" + checksum.to_bytes(8, "little")
        if xxhash.xxh3_64_intdigest(sums) != file.attrs["xxh3"]:
            raise ValueError(f"{path} lacks datasets that it had")
    return arrays, xxhash.xxh3_64_hexdigest(sums)


def read_trace(path):
    """Return the arrays of a file or of a folder of shards by path."""
    if Path(path).is_file():
        return read_file(path)[0]
    parts = {}
    for shard in json.loads(Path(path, "manifest.json").read_text())["shards"]:
        arrays, checksum = read_file(Path(path, Path(shard["name"]).name))
        if checksum != shard["xxh3"]:
            raise ValueError(f"{path}: {shard['name']} is another file than the one committed")
        for name, array in arrays.items():
            parts.setdefault(name, []).append(array)
    return {name: np.concatenate(own) if name.startswith(BY_ROW) else own[-1] for name, own in parts.items()}
