"""Write mine.trace.h5 without kgverify: one candidate, locatedIn(paris, france), proved in one step."""

import json

import h5py
import numpy as np
import xxhash


def names(values):
    """Return names in UTF-8 without separators, and where each begins and the last ends."""
    encoded = [value.encode() for value in values]
    return np.frombuffer(b"".join(encoded), "u1"), np.cumsum([0, *map(len, encoded)]).astype("<u8")


header = {
    "engine": {"name": "my-prover"},
    "limits": {"max_depth": 20, "max_atoms": None, "max_resolvents": 120},  # unknown: not compared
    "policy": {"name": "shortest"},
    "program_sha256": "",  # unknown; see above to compute it
}
predicates, predicate_offsets = names(["locatedIn"])
constants, constant_offsets = names(["paris", "france"])
datasets = {
    "header": np.frombuffer(json.dumps(header).encode(), "u1"),
    "symbols/predicates_bytes": predicates,
    "symbols/predicates_offsets": predicate_offsets,
    "symbols/constants_bytes": constants,
    "symbols/constants_offsets": constant_offsets,
    "candidates/query": np.array([0], "<i4"),
    "candidates/side": np.array([2], "i1"),
    "candidates/atom": np.array([[0, 0, 1]], "<i4"),
    "candidates/num_steps": np.array([1], "<u4"),
    "candidates/outcome": np.array([1], "i1"),
    "steps/depth": np.array([0], "<u2"),
    "steps/num_atoms": np.array([1], "<u2"),
    "steps/num_resolvents": np.array([1], "<u4"),
    "steps/choice": np.array([0], "<i4"),
    "steps/outcome": np.array([1], "i1"),
    "steps/goal_atoms": np.array([[0, 0, 1]], "<i4"),
    "resolvents/kind": np.array([1], "u1"),
    "resolvents/num_atoms": np.array([0], "<u2"),
    "resolvents/atoms": np.zeros((0, 3), "<i4"),
}
with h5py.File("mine.trace.h5", "w") as file:
    content = b""
    for path in sorted(datasets):
        checksum = xxhash.xxh3_64_intdigest(datasets[path].tobytes())
        file.create_dataset(path, data=datasets[path]).attrs["xxh3"] = np.uint64(checksum)
        content += path.encode() + b"\0" + checksum.to_bytes(8, "little")
    file.attrs["format"] = np.bytes_("kgverify-trace")
    file.attrs["schema_version"] = np.uint32(4)
    file.attrs["creator"] = np.bytes_("my-prover 1.0")
    file.attrs["xxh3"] = np.uint64(xxhash.xxh3_64_intdigest(content))
