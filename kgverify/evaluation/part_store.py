"""Storage for the parts of an evaluation: memory, or a folder from which an interrupted evaluation resumes.

A folder in an object store has a copy on this machine while the evaluation runs. An object appears whole or not at all, so
that a part is there or it is missing, as on a disk.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Engine
from kgverify.errors import UserError
from kgverify.evaluation.part_file import DamagedError, PartResult, read_part, write_part
from kgverify.files.code_identity import Code, list_changes, refuse_changes
from kgverify.files.reading import read_json
from kgverify.files.remote import Remote, find_local, find_remote
from kgverify.files.writing import FOLDER_LOCK, is_temporary, locked_folder, make_folders, temporary_folder, write_file
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Side
from kgverify.ranking.rank import RANK_TOLERANCE
from kgverify.runs.run import Part, Plan, Run

RUN: Final = "run.json"
SUMMARY: Final = "summary.json"
FORMAT: Final = 5

Warn = Callable[[str], None]
"""Called with a warning."""


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The properties that two evaluations share if their parts may be in one folder.

    triples_sha256: of the queries, the known triples and the domains
    code:           the identity of the code, with the versions that the engine declares
    rank_only:      whether candidates that cannot affect a rank were left out or stopped
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
    part_size: int
    code: Code
    rank_only: bool = False
    format: int = FORMAT

    @property
    def sha256(self) -> str:
        """The hash of all properties: 64 hexadecimal digits."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


class _StoredRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `run.json`.

    earlier:  hashes of the identities whose parts were accepted although their code had changed
    accepted: the changes that were accepted, in words
    """

    identity: Identity
    earlier: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()


class PartFolder:
    """The folder of an evaluation.

    path:   the folder on this machine; of a folder in an object store, a copy without the files not needed yet
    remote: the folder in the object store, if it is one
    """

    def __init__(self, path: Path, remote: Remote | None = None) -> None:
        self.path, self._remote = path, remote

    def __str__(self) -> str:
        return str(self.path) if self._remote is None else self._remote.url

    def list_names(self) -> set[str]:
        """Return the names of the files of the folder but for those left by a kill. UserError if the store cannot be asked."""
        if self._remote is None:
            return {each.name for each in self.path.iterdir() if not is_temporary(each.name)} - {FOLDER_LOCK}
        return set(self._remote.list_files())

    def fetch(self, name: str) -> Path:
        """Return the path of a file of the folder, or of its copy. UserError if it cannot be copied."""
        path = self.path / name
        if self._remote is not None and not path.exists():
            self._remote.join(name).fetch(self.path)
        return path

    def forget(self, name: str) -> None:
        """Drop the copy of a file that another process may replace."""
        if self._remote is not None:
            (self.path / name).unlink()

    def send(self, name: str) -> None:
        """Let the object store have a file that was written to `path`. UserError if it cannot be sent."""
        if self._remote is not None:
            self._remote.join(name).send_file(self.path / name)

    def check_writable(self) -> None:
        """Raise the UserError of `send` before a long run, if it would raise one already."""
        if self._remote is not None:
            self._remote.join(RUN).check_writable()


@contextmanager
def opened_folder(folder: Path, *, is_locked: bool) -> Iterator[PartFolder]:
    """Yield a folder for parts, given by a path or URL, and lock it if it is on a disk and this is requested.

    UserError if another process holds the lock, or no folder can be created.
    """
    remote = find_remote(folder)
    if remote is not None:
        with temporary_folder("kgverify-parts-") as copy:
            yield PartFolder(copy, remote)
        return
    local = find_local(folder)
    if not is_locked:
        yield PartFolder(local)
        return
    fix = "wait until it ends: the same command then resumes, or give another --save folder"
    with locked_folder(local, "this evaluation", fix=fix):
        yield PartFolder(local)


def write_summary(folder: Path, encoded: bytes) -> None:
    """Write the summary of an evaluation into its folder, given by a path or URL. UserError if it cannot be written."""
    with opened_folder(folder, is_locked=False) as found:
        write_file(found.path / SUMMARY, encoded)
        found.send(SUMMARY)


class PartStore:
    """The results of parts, in memory; with a folder, also `run.json`, the evaluation's identity, and a file for each part.

    One process holds the lock of a folder on a disk for all that evaluate in it. Results are kept, so that none is read twice.

    identity: the identity of the evaluation
    missing:  the numbers of the parts that `open` did not find
    accepted: the changes of code between its parts that the user accepted, in words
    """

    def __init__(self, folder: PartFolder | None, identity: Identity, accept_changed: Collection[str] = ()) -> None:
        self.missing: list[int] = []
        self.accepted: tuple[str, ...] = ()
        self._folder, self.identity, self._accept_changed = folder, identity, accept_changed
        self._sha256s: tuple[str, ...] = (identity.sha256,)
        self._results: dict[int, PartResult] = {}

    def open(self, parts: Sequence[Part], warn: Warn) -> None:
        """Create the folder, or find the parts that it holds. UserError if it is of another evaluation or holds other files."""
        if self._folder is not None:
            self._open_folder(self._folder)
        found = self.collect(parts, warn)
        self.missing = [part.number for part in parts if part.number not in found]

    def _open_folder(self, folder: PartFolder) -> None:
        make_folders(folder.path)
        names = folder.list_names()
        folder.check_writable()
        if RUN in names:
            self._resume(folder)
        elif names:
            raise UserError(
                f"holds files but no {RUN}, so there is no evaluation to resume",
                where=str(folder),
                fix="give another --save folder",
            )
        else:
            self._write_run(folder)

    def put(self, part: Part, result: PartResult) -> None:
        """Store the result of a part; several threads may do so. UserError if its file cannot be written."""
        if self._folder is not None:
            write_part(self._folder.path / part.name, result, self._sha256s[0])
            self._folder.send(part.name)
        self._results[part.number] = result

    def collect(self, parts: Sequence[Part], warn: Warn) -> dict[int, PartResult]:
        """Return the results by part; skip damaged files with a warning."""
        folder, results = self._folder, self._results
        unread = [part for part in parts if part.number not in results]
        if folder is None or not unread:
            return results
        names = folder.list_names()
        for part in unread:
            if part.name not in names:
                continue
            try:
                results[part.number] = read_part(folder.fetch(part.name), part, self._sha256s)
            except DamagedError as error:
                folder.forget(part.name)
                warn(f"{folder}/{part.name} {error}; the part is repeated")
        return results

    def _resume(self, folder: PartFolder) -> None:
        fix = "give another --save folder"
        stored = read_json(folder.fetch(RUN), _StoredRun, purpose=f"the {RUN} of an evaluation", fix=fix)
        there, here = stored.identity, self.identity
        different = _list_differences(msgspec.structs.replace(there, code=here.code), here)
        if different:
            raise UserError(
                f"belongs to another evaluation: {'; '.join(different)}",
                where=str(folder),
                fix="give the options that it was started with, or another --save folder",
            )
        changes = list_changes(there.code, here.code)
        refuse_changes(changes, self._accept_changed, where=str(folder), what="parts", fix=fix)
        earlier = dict.fromkeys((*stored.earlier, there.sha256))
        self.accepted = tuple(dict.fromkeys((*stored.accepted, *changes.values())))
        self._sha256s = tuple(dict.fromkeys((here.sha256, *earlier)))
        if changes:
            self._write_run(folder)

    def _write_run(self, folder: PartFolder) -> None:
        stored = _StoredRun(self.identity, self._sha256s[1:], self.accepted)
        encoded = msgspec.json.format(msgspec.json.encode(stored), indent=2) + b"\n"
        write_file(folder.path / RUN, encoded, is_durable=True)
        folder.send(RUN)


def identify(run: Run, engine: Engine, plan: Plan, code: Code) -> Identity:
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
        part_size=plan.size,
        code=code | {f"{name} of the engine": text for name, text in info.versions.items() if code.get(name) != text},
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
    # Predicates share domains, each of which is hashed once.
    shared = {id(array): array for array in arrays}
    digests = {of: hashlib.sha256(np.ascontiguousarray(array, "<i4").data).digest() for of, array in shared.items()}
    return hashlib.sha256(b"".join(digests[id(array)] for array in arrays)).hexdigest()
