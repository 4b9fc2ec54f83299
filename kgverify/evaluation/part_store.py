"""Storage for the parts of an evaluation: memory, or a folder from which an interrupted evaluation resumes."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Engine
from kgverify.errors import UserError
from kgverify.evaluation.part_file import DamagedError, PartResult, read_part, write_part
from kgverify.files.decoding import read_json
from kgverify.files.locking import FOLDER_LOCK
from kgverify.files.writing import make_folders, write_file
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Side
from kgverify.ranking.rank import RANK_TOLERANCE
from kgverify.runs.parts import Part, Plan
from kgverify.runs.run import Run
from kgverify.version import __version__

RUN: Final = "run.json"
SUMMARY: Final = "summary.json"
FORMAT: Final = 4

Warn = Callable[[str], None]
"""Called with a warning."""


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The properties that two evaluations share if their parts may be in one folder.

    triples_sha256: of the queries, the known triples and the domains
    versions:       of the libraries that compute
    rank_only:      whether candidates that cannot affect a rank were left out
    """

    program_sha256: str
    triples_sha256: str
    policy: str
    policy_sha256: str
    limits: Limits
    split: str
    num_queries: int
    num_corruptions: int
    seed: int
    rank_tolerance: float
    engine: str
    mode: str
    device: str
    precision: str
    faults: tuple[str, ...]
    versions: dict[str, str]
    kgverify: str
    part_size: int
    rank_only: bool = False
    format: int = FORMAT

    @property
    def sha256(self) -> str:
        """The hash of all properties: 64 hexadecimal digits."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


class PartStore:
    """The results of parts, in memory; with a folder, also `run.json`, the evaluation's identity, and a file for each part.

    One process holds the lock of the folder for all that evaluate in it.

    missing: the numbers of the parts that `open` did not find
    """

    def __init__(self, folder: Path | None, identity: Identity) -> None:
        self.missing: list[int] = []
        self._folder, self._identity = folder, identity
        self._sha256 = identity.sha256
        self._results: dict[int, PartResult] = {}

    def open(self, parts: Sequence[Part], warn: Warn) -> None:
        """Create the folder, or find the parts that it holds. UserError if it is of another evaluation or holds other files."""
        if self._folder is not None:
            self._open_folder(self._folder)
        found = self.collect(parts, warn)
        self.missing = [part.number for part in parts if part.number not in found]

    def _open_folder(self, folder: Path) -> None:
        make_folders(folder)
        path = folder / RUN
        if path.exists():
            self._check_identity(path)
        elif any(each.name != FOLDER_LOCK for each in folder.iterdir()):
            raise UserError(
                f"holds files but no {RUN}, so there is no evaluation to resume",
                where=str(folder),
                fix="give another --save folder",
            )
        else:
            encoded = msgspec.json.format(msgspec.json.encode(self._identity), indent=2) + b"\n"
            write_file(path, encoded, is_durable=True)

    def put(self, part: Part, result: PartResult) -> None:
        """Store the result of a part. UserError if its file cannot be written."""
        if self._folder is None:
            self._results[part.number] = result
            return
        write_part(self._folder / part.name, result, self._sha256)

    def collect(self, parts: Sequence[Part], warn: Warn) -> dict[int, PartResult]:
        """Return the results by part; skip damaged files with a warning."""
        if self._folder is None:
            return self._results
        results = {}
        for part in parts:
            path = self._folder / part.name
            if not path.exists():
                continue
            try:
                results[part.number] = read_part(path, part, self._sha256)
            except DamagedError as error:
                warn(f"{path} {error}; the part is repeated")
        return results

    def _check_identity(self, path: Path) -> None:
        found = read_json(path, Identity, purpose=f"the {RUN} of an evaluation", fix="give another --save folder")
        different = _list_differences(found, self._identity)
        if different:
            raise UserError(
                f"belongs to another evaluation: {'; '.join(different)}",
                where=str(self._folder),
                fix="give the options that it was started with, or another --save folder",
            )


def identify(run: Run, engine: Engine, plan: Plan) -> Identity:
    """Return the identity of an evaluation of this run by this engine in these parts."""
    info, policy = engine.info, run.policy.info
    return Identity(
        program_sha256=run.graph.program.sha256,
        triples_sha256=_hash_triples(run),
        policy=policy.name,
        policy_sha256=policy.sha256,
        limits=run.limits,
        split=run.split,
        num_queries=len(run.queries),
        num_corruptions=run.num_corruptions,
        seed=run.seed,
        rank_tolerance=RANK_TOLERANCE,
        engine=info.name,
        mode=info.mode,
        device=info.device,
        precision=info.precision,
        faults=info.faults,
        versions={name: version for name, version in info.versions.items() if name != "python"},
        kgverify=__version__,
        part_size=plan.size,
        rank_only=plan.rank_only,
    )


def _list_differences(found: Identity, given: Identity) -> list[str]:
    """Describe each field that differs: `limits.max_depth is 20 there and 10 here`."""
    there, here = (dict(_flatten(msgspec.to_builtins(each))) for each in (found, given))
    return [
        f"{name} is {_shorten(there.get(name))} there and {_shorten(here.get(name))} here"
        for name in dict.fromkeys((*there, *here))
        if there.get(name) != here.get(name)
    ]


def _flatten(fields: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in fields.items():
        flat += _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return flat


def _shorten(value: Any) -> str:
    text = "nothing" if value in (None, "", [], ()) else str(value)
    return f"{text[:12]}…" if len(text) == 64 else text


def _hash_triples(run: Run) -> str:
    predicates = np.unique(run.triples[:, 0]).tolist()
    domains = [run.graph.argument_domain(p, side) for p in predicates for side in (Side.HEAD, Side.TAIL)]
    arrays: list[NDArray[np.int32]] = [run.triples, run.graph.known_triples, *domains]
    # Predicates share domains.
    digests = {id(array): hashlib.sha256(np.ascontiguousarray(array, "<i4").data).digest() for array in arrays}
    return hashlib.sha256(b"".join(digests[id(array)] for array in arrays)).hexdigest()
