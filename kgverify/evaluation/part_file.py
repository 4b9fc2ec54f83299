"""The result of a part, and its file: plain arrays in a zip that `numpy.load` reads."""

import io
import os
import zipfile
from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, get_args, get_type_hints

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.engines.protocol import STOPPED
from kgverify.errors import InternalError, UserError
from kgverify.files.reading import open_file
from kgverify.files.writing import explained, renamed_into
from kgverify.program.outcomes import Outcome, Side
from kgverify.ranking.draw import mix
from kgverify.ranking.groups import Groups, divide, find_groups, sort_rows, take_candidates
from kgverify.runs.run import Part
from kgverify.trace.model.columns import Candidates, CandidateSet, Rankings

SAMPLED: Final = 512
"""The number of true triples, and of corruptions, that a part's result keeps."""

SALT: Final = 0x6B67766572696679


class ChoiceStatistics(NamedTuple):
    """The closeness of choices: how many there were between two resolvents or more, and how many were repeated.

    smallest_gap: between the two highest scores of a choice, in nats
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


class PartResult(NamedTuple):
    """The result of a part. Rankings Q, one for each query and side; sampled candidates S.

    query, num_ranked, outcome, num_limited: of the rankings, as are optimistic and pessimistic ranks
    outcome, log_probability: of the true triple
    num_outcomes:             uint32 [Q, 4]  candidates by `Outcome`
    drawn:                    uint64 [Q]  the hash of the drawn entities (`hash_entities`), 0 if they were not listed
    sample_...:               some candidates, by ascending sample_priority in each of the two strata
    num_choices, num_rescored, smallest_gap: of all candidates, as in `ChoiceStatistics`
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
    sample_priority: NDArray[np.uint64]
    sample_is_true: NDArray[np.bool_]
    sample_query: NDArray[np.int32]
    sample_side: NDArray[np.int8]
    sample_atom: NDArray[np.int32]
    sample_outcome: NDArray[np.int8]
    sample_is_limited: NDArray[np.uint8]
    sample_log_probability: NDArray[np.float64]
    num_choices: NDArray[np.int64]
    num_rescored: NDArray[np.int64]
    smallest_gap: NDArray[np.float64]

    @property
    def rankings(self) -> Rankings:
        """The rankings without the other columns."""
        return Rankings(self.query, self.side, self.num_ranked, self.optimistic, self.pessimistic)

    @property
    def sample(self) -> "Sample":
        """The sampled candidates."""
        return Sample(*(getattr(self, name) for name in Sample._fields))

    @classmethod
    def build(
        cls,
        rankings: Rankings,
        true: Candidates,
        num_outcomes: NDArray[np.integer],
        num_limited: NDArray[np.integer],
        drawn: NDArray[np.uint64],
        sample: "Sample",
        choices: ChoiceStatistics,
    ) -> "PartResult":
        """Assemble the result from its rankings, its true triples and the counts of its candidates."""
        return cls(
            *rankings,
            outcome=true.outcome,
            log_probability=true.log_probability,
            num_outcomes=num_outcomes.astype(np.uint32),
            num_limited=num_limited.astype(np.uint32),
            drawn=drawn,
            **sample._asdict(),
            num_choices=np.array(choices.num_choices, np.int64),
            num_rescored=np.array(choices.num_rescored, np.int64),
            smallest_gap=np.array(choices.smallest_gap, np.float64),
        )


class Sample(NamedTuple):
    """The candidates that a result keeps; the fields of `PartResult` with the same names."""

    sample_priority: NDArray[np.uint64]
    sample_is_true: NDArray[np.bool_]
    sample_query: NDArray[np.int32]
    sample_side: NDArray[np.int8]
    sample_atom: NDArray[np.int32]
    sample_outcome: NDArray[np.int8]
    sample_is_limited: NDArray[np.uint8]
    sample_log_probability: NDArray[np.float64]

    @property
    def candidates(self) -> CandidateSet:
        """The candidates without their endings."""
        return CandidateSet(self.sample_query, self.sample_side, self.sample_atom)

    def take(self, rows: NDArray[np.int64]) -> "Sample":
        """Return some of the candidates."""
        columns: tuple[NDArray[Any], ...] = self
        return Sample(*(column[rows] for column in columns))


_COMMON: Final = ("query", "side", "num_ranked", "outcome", "log_probability", "drawn")
"""The columns that are the same in every share of a part."""

_WIDTHS: Final = {"num_outcomes": (len(Outcome),), "sample_atom": (3,)}
"""The columns with more than one value in each row."""

_NOT_ARRAYS: Final = (
    OSError,
    ValueError,
    LookupError,
    EOFError,
    RuntimeError,
    TypeError,
    ArithmeticError,
    SyntaxError,
    MemoryError,
    zipfile.BadZipFile,
)
"""The errors of zipfile and numpy for a damaged file."""


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
    return PartResult.build(rankings, true, num_outcomes, num_limited, drawn, sample, choices)


def hash_entities(candidates: Candidates | CandidateSet, groups: Groups) -> NDArray[np.uint64]:
    """Return the sum of `mix` over the entities of each group, whatever their order: uint64 [G]."""
    return np.add.reduceat(mix(entities_of(candidates).astype(np.uint64)), groups.starts[:-1])


def entities_of(candidates: Candidates | CandidateSet) -> NDArray[np.int32]:
    """Return the argument of each candidate that is replaced in corruptions."""
    entities: NDArray[np.int32] = np.where(candidates.side == Side.HEAD, candidates.atom[:, 1], candidates.atom[:, 2])
    return entities


def draw_sample(candidates: Candidates, is_true: NDArray[np.bool_], seed: int) -> Sample:
    """Return the true triples of lowest priority, and the corruptions of lowest priority that were not stopped.

    is_true: bool [N]
    """
    priority = _priorities(candidates, seed)
    is_ended = ~is_true & (candidates.outcome != STOPPED)
    rows = np.concatenate([_lowest(priority, of) for of in (is_true, is_ended)])
    columns = candidates.query, candidates.side, candidates.atom, candidates.outcome, candidates.is_limited
    return Sample(priority, is_true, *columns, candidates.log_probability).take(rows)


def join_samples(samples: Iterable[Sample]) -> Sample:
    """Return the candidates of lowest priority of several samples, in each of the two strata."""
    joined = Sample(*map(np.concatenate, zip(*samples, strict=True)))
    is_true = joined.sample_is_true
    return joined.take(np.concatenate([_lowest(joined.sample_priority, of) for of in (is_true, ~is_true)]))


def _priorities(candidates: Candidates, seed: int) -> NDArray[np.uint64]:
    """Compute priorities from (seed, query, side, replaced entity) alone."""
    group = candidates.query.astype(np.uint64)
    group <<= np.uint64(2)
    group |= candidates.side.astype(np.uint64)
    key = mix(np.array([seed ^ SALT], np.uint64))
    return mix(mix(key ^ group) ^ entities_of(candidates).astype(np.uint64))


def _lowest(priority: NDArray[np.uint64], of: NDArray[np.bool_]) -> NDArray[np.int64]:
    num = np.count_nonzero(of)
    rows = np.flatnonzero(of)
    if num > 4 * SAMPLED:
        # About twice the wanted number pass this limit, so that few need to be sorted.
        few = np.flatnonzero(of & (priority < np.uint64(2 * SAMPLED / num * 2**64)))
        rows = few if len(few) >= SAMPLED else rows
    return rows[np.argsort(priority[rows], kind="stable")[:SAMPLED]]


def join_results(results: Iterable[PartResult]) -> PartResult:
    """Return the results of several parts as one, in which `num_choices`, `num_rescored` and `smallest_gap` have a row each."""
    return PartResult(
        *(np.concatenate([np.atleast_1d(each) for each in column]) for column in zip(*results, strict=True))
    )


def pack_result(result: PartResult) -> bytes:
    """Return a result as bytes."""
    file = io.BytesIO()
    _save(file, result, "")
    return file.getvalue()


def unpack_result(packed: bytes) -> PartResult:
    """Return the result that was packed. InternalError if it was altered."""
    with zipfile.ZipFile(io.BytesIO(packed)) as members:
        arrays = _read_arrays(members, len(packed))
    identity, checksum = (str(arrays.pop(name)) for name in ("identity", "xxh3"))
    result = PartResult(**arrays)
    if hash_result(result, identity) != checksum:
        raise InternalError("the result of another process arrived altered")
    return result


def join_shares(shares: Sequence[PartResult]) -> PartResult:
    """Return the result of a part from those of all shares, first the leader's, whose true triples count."""
    leader = shares[0]
    for share in shares[1:]:
        if not all(np.array_equal(getattr(share, name), getattr(leader, name)) for name in _COMMON):
            raise InternalError("the processes of the group do not prove the same true triples alike")
    choices = reduce(ChoiceStatistics.combine, (_choices_of(share) for share in shares))
    return leader._replace(
        # A rank is one more than the corruptions above.
        optimistic=1 + np.sum([share.optimistic - 1 for share in shares], axis=0),
        pessimistic=1 + np.sum([share.pessimistic - 1 for share in shares], axis=0),
        num_outcomes=np.sum([share.num_outcomes for share in shares], axis=0, dtype=np.uint32),
        num_limited=np.sum([share.num_limited for share in shares], axis=0, dtype=np.uint32),
        **join_samples(share.sample for share in shares)._asdict(),
        num_choices=np.array(choices.num_choices, np.int64),
        num_rescored=np.array(choices.num_rescored, np.int64),
        smallest_gap=np.array(choices.smallest_gap, np.float64),
    )


def _choices_of(share: PartResult) -> ChoiceStatistics:
    return ChoiceStatistics(int(share.num_choices), int(share.num_rescored), float(share.smallest_gap))


def write_part(path: Path, result: PartResult, identity: str) -> None:
    """Write the file atomically; equal results give equal bytes. UserError if it cannot be written."""
    with (
        explained(path, kept="the finished parts are safe, and the same command resumes"),
        renamed_into(path, is_durable=True) as temporary,
        temporary.open("wb") as file,
    ):
        _save(file, result, identity)


def _save(file: IO[bytes], result: PartResult, identity: str) -> None:
    np.savez(file, identity=np.array(identity), xxh3=np.array(hash_result(result, identity)), **result._asdict())


def read_part(path: Path, part: Part, identities: Collection[str]) -> PartResult:
    """Read a part's file. DamagedError unless it is complete and belongs to this part of an evaluation with such an identity."""
    try:
        with open_file(path, purpose="a part of an evaluation") as raw, zipfile.ZipFile(raw) as packed:
            arrays = _read_arrays(packed, os.fstat(raw.fileno()).st_size)
    except UserError as error:
        raise DamagedError(error.message) from None
    except _NOT_ARRAYS as error:
        raise DamagedError(f"cannot be read ({error})") from None
    if (identity := str(arrays.pop("identity"))) not in identities:
        raise DamagedError("belongs to another evaluation")
    checksum = str(arrays.pop("xxh3"))
    result = PartResult(**arrays)
    num_queries, num_samples = result.query.size, result.sample_query.size
    for name, kind in get_type_hints(PartResult).items():
        length = (
            () if name in ChoiceStatistics._fields else (num_samples if name.startswith("sample_") else num_queries,)
        )
        dtype, shape = type_of_items(kind), (*length, *_WIDTHS.get(name, ()))
        if (arrays[name].dtype, arrays[name].shape) != (dtype, shape):
            raise DamagedError(f"has a column {name} of another type or length")
    if checksum != hash_result(result, identity):
        raise DamagedError("has another checksum: it was altered")
    if not np.array_equal(np.unique(result.query), part.queries):
        raise DamagedError("holds other queries than this part")
    return result


def _read_arrays(packed: zipfile.ZipFile, num_bytes: int) -> dict[str, NDArray[Any]]:
    """Read the arrays of a part. DamagedError if they are packed, or take more memory than a file of this size holds."""
    members = {name: packed.getinfo(f"{name}.npy") for name in ("identity", "xxh3", *PartResult._fields)}
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
    digest = xxhash.xxh3_64(identity.encode())
    for name, array in result._asdict().items():
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def type_of_items(kind: Any) -> Any:
    """Return the type of an array's items from its annotation, whose form depends on numpy's version."""
    last = get_args(kind)[-1]
    return next(iter(get_args(last)), last)
