"""Parts of an evaluation: the result of each, its file, and the folder from which an interrupted evaluation resumes.

A file contains plain arrays in a zip that `numpy.load` reads. A folder in an object store has a copy on this machine while the
evaluation runs. An object appears whole or not at all, so a part is either present or missing, as on a disk.
"""

import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.engines.protocol import STOPPED, Engine
from kgverify.errors import InternalError, UserError
from kgverify.files.code_identity import Code, list_changes, refuse_changes
from kgverify.files.reading import open_file, read_json
from kgverify.files.remote import Remote, find_local, find_remote
from kgverify.files.writing import (
    FOLDER_LOCK,
    explained,
    is_temporary,
    locked_folder,
    make_folders,
    renamed_into,
    temporary_folder,
    write_file,
)
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Outcome, Side
from kgverify.ranking.draw import mix
from kgverify.ranking.rank import RANK_TOLERANCE, Groups, divide, find_groups, sort_rows, take_candidates
from kgverify.runs.run import Part, Plan, Run
from kgverify.trace.model.columns import Candidates, CandidateSet, Rankings, join_candidates

SAMPLED: Final = 512
"""The number of true triples, and of corruptions, that a part's result keeps."""

SALT: Final = 0x6B67766572696679


class ChoiceStatistics(NamedTuple):
    """The closeness of choices: the number of choices between two or more resolvents, and how many of them were repeated.

    smallest_gap: the smallest gap between the two highest scores of a choice, in nats
    """

    num_choices: int = 0
    num_rescored: int = 0
    smallest_gap: float = float("inf")

    def combine(self, other: "ChoiceStatistics") -> "ChoiceStatistics":
        """Combine the statistics of two sets of candidates."""
        return ChoiceStatistics(
            self.num_choices + other.num_choices,
            self.num_rescored + other.num_rescored,
            min(self.smallest_gap, other.smallest_gap),
        )


class Sample(NamedTuple):
    """The candidates that a result keeps, in ascending priority in each of the two strata.

    priority: uint64 [S]; is_true: bool [S]; candidates: without their numbers of steps
    """

    priority: NDArray[np.uint64]
    is_true: NDArray[np.bool_]
    candidates: Candidates

    def take(self, rows: NDArray[np.int64]) -> "Sample":
        """Return some of the candidates."""
        return Sample(self.priority[rows], self.is_true[rows], take_candidates(self.candidates, rows))


class PartResult(NamedTuple):
    """The result of a part, with Q rankings, one for each query and side.

    query, num_ranked, num_limited, and the optimistic and pessimistic ranks: of each ranking
    outcome, log_probability: of its true triple
    num_outcomes:             uint32 [Q, 4]  candidates by `Outcome`
    drawn:                    uint64 [Q]  the hash of the drawn entities (`hash_entities`), or 0 if they were not listed
    choices:                  the choices of all candidates
    """

    query: NDArray[np.int32]
    side: NDArray[np.int8]
    num_ranked: NDArray[np.uint32]
    optimistic: NDArray[np.float64]
    pessimistic: NDArray[np.float64]
    outcome: NDArray[np.int8]
    log_probability: NDArray[np.float64]
    num_outcomes: NDArray[np.uint32]
    num_limited: NDArray[np.uint32]
    drawn: NDArray[np.uint64]
    sample: Sample
    choices: ChoiceStatistics

    @property
    def rankings(self) -> Rankings:
        """The rankings, without the other columns."""
        return Rankings(*self[:5])


_OF_RANKINGS: Final[dict[str, tuple[Any, tuple[int, ...]]]] = {
    "query": (np.int32, ()),
    "side": (np.int8, ()),
    "num_ranked": (np.uint32, ()),
    "optimistic": (np.float64, ()),
    "pessimistic": (np.float64, ()),
    "outcome": (np.int8, ()),
    "log_probability": (np.float64, ()),
    "num_outcomes": (np.uint32, (len(Outcome),)),
    "num_limited": (np.uint32, ()),
    "drawn": (np.uint64, ()),
}
_OF_SAMPLES: Final[dict[str, tuple[Any, tuple[int, ...]]]] = {
    "priority": (np.uint64, ()),
    "is_true": (np.bool_, ()),
    "query": (np.int32, ()),
    "side": (np.int8, ()),
    "atom": (np.int32, (3,)),
    "outcome": (np.int8, ()),
    "is_limited": (np.uint8, ()),
    "log_probability": (np.float64, ()),
}
_OF_CHOICES: Final = {"num_choices": np.int64, "num_rescored": np.int64, "smallest_gap": np.float64}
"""The columns of a part's file: the type of their items, and the shape of a row. Choices have no rows."""

_COMMON: Final = ("query", "side", "num_ranked", "outcome", "log_probability", "drawn")
"""The columns that are equal in all shares of a part."""


def list_columns(result: PartResult) -> dict[str, NDArray[Any]]:
    """Return the columns of a result as stored in its file, by name."""
    sample = {"priority": result.sample.priority, "is_true": result.sample.is_true}
    sample |= {name: column for name, column in result.sample.candidates._asdict().items() if name in _OF_SAMPLES}
    columns = {name: getattr(result, name) for name in _OF_RANKINGS}
    columns |= {f"sample_{name}": column for name, column in sample.items()}
    return columns | {name: np.array(getattr(result.choices, name), kind) for name, kind in _OF_CHOICES.items()}


def build_result(columns: Mapping[str, NDArray[Any]]) -> PartResult:
    """Build a result from its columns."""
    priority, is_true, query, side, atom, *ends = (columns[f"sample_{name}"] for name in _OF_SAMPLES)
    sample = Sample(priority, is_true, Candidates(query, side, atom, np.zeros(len(query), np.uint32), *ends))
    choices = ChoiceStatistics(*(columns[name].item() for name in _OF_CHOICES))
    rankings: Any = {name: columns[name] for name in _OF_RANKINGS}
    return PartResult(**rankings, sample=sample, choices=choices)


class DamagedError(Exception):
    """The reason why a part's file cannot be used."""


def summarize_part(
    candidates: Candidates,
    rankings: Rankings,
    triples: NDArray[np.int32],
    seed: int,
    choices: ChoiceStatistics,
) -> PartResult:
    """Return the result of a part whose candidates were all proved, each query and side with one true triple.

    triples: int32 [n, 3], the split that `candidates.query` points into
    """
    groups = find_groups(candidates, triples)
    if groups is None:
        rows = sort_rows(candidates, triples)
        candidates = take_candidates(candidates, rows)
        groups = divide(candidates, triples)
    is_true = np.zeros(len(candidates.query), np.bool_)
    is_true[groups.true] = True
    cell = groups.repeat(np.arange(len(groups.query)) * len(Outcome)) + candidates.outcome
    num_outcomes = np.bincount(cell, minlength=len(groups.query) * len(Outcome)).reshape(-1, len(Outcome))
    num_limited = groups.count_where(candidates.is_limited != 0)
    true, sample = take_candidates(candidates, groups.true), draw_sample(candidates, is_true, seed)
    drawn = hash_entities(candidates, groups)
    ends, counts = (true.outcome, true.log_probability), (num_outcomes.astype(np.uint32), num_limited.astype(np.uint32))
    return PartResult(*rankings, *ends, *counts, drawn, sample, choices)


def hash_entities(candidates: Candidates | CandidateSet, groups: Groups) -> NDArray[np.uint64]:
    """Return the sum of `mix` over the entities of each group, which does not depend on their order: uint64 [G]."""
    return np.add.reduceat(mix(entities_of(candidates).astype(np.uint64)), groups.starts[:-1])


def entities_of(candidates: Candidates | CandidateSet) -> NDArray[np.int32]:
    """Return the argument of each candidate that its corruptions replace."""
    entities: NDArray[np.int32] = np.where(candidates.side == Side.HEAD, candidates.atom[:, 1], candidates.atom[:, 2])
    return entities


def draw_sample(candidates: Candidates, is_true: NDArray[np.bool_], seed: int) -> Sample:
    """Return the true triples of lowest priority, and the corruptions of lowest priority that were not stopped.

    is_true: bool [N]
    """
    priority = _priorities(candidates, seed)
    is_ended = ~is_true & (candidates.outcome != STOPPED)
    rows = np.concatenate([_lowest(priority, of) for of in (is_true, is_ended)])
    return Sample(priority, is_true, candidates).take(rows)


def join_samples(samples: Iterable[Sample]) -> Sample:
    """Return the candidates of lowest priority of several samples, in each of the two strata."""
    priorities, truths, candidates = zip(*samples, strict=True)
    joined = Sample(np.concatenate(priorities), np.concatenate(truths), join_candidates(candidates))
    rows = np.concatenate([_lowest(joined.priority, of) for of in (joined.is_true, ~joined.is_true)])
    return joined.take(rows)


def _priorities(candidates: Candidates, seed: int) -> NDArray[np.uint64]:
    """Compute priorities from (seed, query, side, replaced entity) only."""
    group = candidates.query.astype(np.uint64)
    group <<= np.uint64(2)
    group |= candidates.side.astype(np.uint64)
    key = mix(np.array([seed ^ SALT], np.uint64))
    return mix(mix(key ^ group) ^ entities_of(candidates).astype(np.uint64))


def _lowest(priority: NDArray[np.uint64], of: NDArray[np.bool_]) -> NDArray[np.int64]:
    num = np.count_nonzero(of)
    rows = np.flatnonzero(of)
    if num > 4 * SAMPLED:
        # About twice the wanted number pass this limit, so only a few need to be sorted.
        few = np.flatnonzero(of & (priority < np.uint64(2 * SAMPLED / num * 2**64)))
        rows = few if len(few) >= SAMPLED else rows
    return rows[np.argsort(priority[rows], kind="stable")[:SAMPLED]]


def join_results(results: Iterable[PartResult]) -> PartResult:
    """Join the results of several parts, with one sample of all."""
    *columns, samples, choices = zip(*results, strict=True)
    rankings: Any = dict(zip(_OF_RANKINGS, map(np.concatenate, columns), strict=True))
    combined = reduce(ChoiceStatistics.combine, choices)
    return PartResult(**rankings, sample=join_samples(samples), choices=combined)


def pack_result(result: PartResult) -> bytes:
    """Return a result as bytes."""
    file = io.BytesIO()
    _save(file, result, "")
    return file.getvalue()


def unpack_result(packed: bytes) -> PartResult:
    """Return the packed result. InternalError if it was altered."""
    with zipfile.ZipFile(io.BytesIO(packed)) as members:
        arrays = _read_arrays(members, len(packed))
    identity, checksum = (str(arrays.pop(name)) for name in ("identity", "xxh3"))
    if hash_columns(arrays, identity) != checksum:
        raise InternalError("the result of another process arrived altered")
    return build_result(arrays)


def join_shares(shares: Sequence[PartResult]) -> PartResult:
    """Join the results of all shares of a part. The leader's share, whose true triples count, comes first."""
    leader = shares[0]
    for share in shares[1:]:
        if not all(np.array_equal(getattr(share, name), getattr(leader, name)) for name in _COMMON):
            raise InternalError("the processes of the group do not prove the same true triples alike")
    return leader._replace(
        # A rank is one more than the number of corruptions above.
        optimistic=1 + np.sum([share.optimistic - 1 for share in shares], axis=0),
        pessimistic=1 + np.sum([share.pessimistic - 1 for share in shares], axis=0),
        num_outcomes=np.sum([share.num_outcomes for share in shares], axis=0, dtype=np.uint32),
        num_limited=np.sum([share.num_limited for share in shares], axis=0, dtype=np.uint32),
        sample=join_samples(share.sample for share in shares),
        choices=reduce(ChoiceStatistics.combine, (share.choices for share in shares)),
    )


def write_part(path: Path, result: PartResult, identity: str) -> None:
    """Write a part's file atomically; equal results give equal bytes. UserError if it cannot be written."""
    with (
        explained(path, kept="the finished parts are safe, and the same command resumes"),
        renamed_into(path, is_durable=True) as temporary,
        temporary.open("wb") as file,
    ):
        _save(file, result, identity)


def _save(file: IO[bytes], result: PartResult, identity: str) -> None:
    columns: dict[str, Any] = list_columns(result)
    np.savez(file, identity=np.array(identity), xxh3=np.array(hash_columns(columns, identity)), **columns)


def read_part(path: Path, part: Part, identities: Collection[str]) -> PartResult:
    """Read a part's file. DamagedError unless it is complete and belongs to this part and one of the identities."""
    try:
        with open_file(path, purpose="a part of an evaluation") as raw, zipfile.ZipFile(raw) as packed:
            arrays = _read_arrays(packed, os.fstat(raw.fileno()).st_size)
    except UserError as error:
        raise DamagedError(error.message) from None
    except DamagedError:
        raise
    except Exception as error:
        # zipfile and numpy raise errors of many kinds for a damaged file.
        raise DamagedError(f"cannot be read ({error})") from None
    identity, checksum = (str(arrays.pop(name)) for name in ("identity", "xxh3"))
    if identity not in identities:
        raise DamagedError("belongs to another evaluation")
    of_rankings, of_samples = (arrays["query"].size,), (arrays["sample_query"].size,)
    expected = {name: (dtype, of_rankings + row) for name, (dtype, row) in _OF_RANKINGS.items()}
    expected |= {f"sample_{name}": (dtype, of_samples + row) for name, (dtype, row) in _OF_SAMPLES.items()}
    expected |= {name: (dtype, ()) for name, dtype in _OF_CHOICES.items()}
    for name, (dtype, shape) in expected.items():
        if (arrays[name].dtype, arrays[name].shape) != (dtype, shape):
            raise DamagedError(f"has a column {name} of another type or length")
    if checksum != hash_columns(arrays, identity):
        raise DamagedError("has another checksum: it was altered")
    if not np.array_equal(np.unique(arrays["query"]), part.queries):
        raise DamagedError("holds other queries than this part")
    return build_result(arrays)


def _read_arrays(packed: zipfile.ZipFile, num_bytes: int) -> dict[str, NDArray[Any]]:
    """Read the arrays of a part. DamagedError if they are compressed, or would take more memory than the file has bytes."""
    names = ["identity", "xxh3", *_OF_RANKINGS, *(f"sample_{name}" for name in _OF_SAMPLES), *_OF_CHOICES]
    members = {name: packed.getinfo(f"{name}.npy") for name in names}
    is_packed = any(member.compress_type != zipfile.ZIP_STORED for member in members.values())
    if is_packed or sum(member.file_size for member in members.values()) > num_bytes:
        raise DamagedError("unpacks to more bytes than it has")
    arrays = {}
    for name, member in members.items():
        with packed.open(member) as file:
            arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
    return arrays


def hash_result(result: PartResult, identity: str) -> str:
    """Return the checksum of a part's result: 16 hexadecimal digits."""
    return hash_columns(list_columns(result), identity)


def hash_columns(columns: Mapping[str, NDArray[Any]], identity: str) -> str:
    """Return the checksum of `hash_result` from the columns of a result."""
    digest = xxhash.xxh3_64(identity.encode())
    for name, array in columns.items():
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


RUN: Final = "run.json"
SUMMARY: Final = "summary.json"
FORMAT: Final = 5

Warn = Callable[[str], None]
"""A function that is called with each warning."""


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The properties that must be equal in two evaluations for their parts to share a folder.

    triples_sha256: the hash of the queries, the known triples and the domains
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

    earlier:  the hashes of identities whose parts were accepted although their code had changed
    accepted: the changes that were accepted, in words
    """

    identity: Identity
    earlier: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()


class PartFolder:
    """The folder of an evaluation.

    path:   the folder on this machine; for a folder in an object store, a copy with the files needed so far
    remote: the folder in the object store, if it is in one
    """

    def __init__(self, path: Path, remote: Remote | None = None) -> None:
        self.path, self._remote = path, remote

    def __str__(self) -> str:
        return str(self.path) if self._remote is None else self._remote.url

    def list_names(self) -> set[str]:
        """Return the names of the folder's files, except leftovers of a kill. UserError if the store does not answer."""
        if self._remote is None:
            return {each.name for each in self.path.iterdir() if not is_temporary(each.name)} - {FOLDER_LOCK}
        return set(self._remote.list_files())

    def fetch(self, name: str) -> Path:
        """Return the path of a file in the folder, or of its copy. UserError if it cannot be copied."""
        path = self.path / name
        if self._remote is not None and not path.exists():
            self._remote.join(name).fetch(self.path)
        return path

    def forget(self, name: str) -> None:
        """Drop the copy of a file that another process may replace."""
        if self._remote is not None:
            (self.path / name).unlink()

    def send(self, name: str) -> None:
        """Copy a file that was written to `path` to the object store. UserError if it cannot be sent."""
        if self._remote is not None:
            self._remote.join(name).send_file(self.path / name)

    def check_writable(self) -> None:
        """Raise the UserError that `send` would raise now, before a long run."""
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

    One process holds the lock of a folder on a disk for all processes that evaluate in it. Results are kept in memory, so no
    file is read twice.

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
        """Create the folder, or find the parts in it. UserError if it is another evaluation's or contains other files."""
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
        """Store the result of a part; several threads may call this at once. UserError if its file cannot be written."""
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
    """Return the identity of an evaluation of a run by an engine with a plan."""
    info, policy = engine.info, run.policy.info
    return Identity(
        program_sha256=run.graph.program.sha256,
        triples_sha256=hash_triples(run),
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
    """Describe each field that differs, as in `limits.max_depth is 20 there and 10 here`."""
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


def hash_triples(run: Run) -> str:
    """Return the hash of the queries, the known triples and the domains of a run."""
    predicates = np.unique(run.triples[:, 0]).tolist()
    domains = [run.graph.argument_domain(p, side) for p in predicates for side in (Side.HEAD, Side.TAIL)]
    arrays: list[NDArray[np.int32]] = [run.triples, run.graph.known_triples, *domains]
    # Predicates share domains, so each domain is hashed once.
    shared = {id(array): array for array in arrays}
    digests = {of: hashlib.sha256(np.ascontiguousarray(array, "<i4").data).digest() for of, array in shared.items()}
    return hashlib.sha256(b"".join(digests[id(array)] for array in arrays)).hexdigest()
