"""What is kept of a part, and its file: plain arrays in a zip that numpy alone reads (`numpy.load`)."""

import os
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.harness.parts import Part
from kgverify.logic.outcomes import Outcome
from kgverify.ranking.corrupt import mix
from kgverify.trace.columns import Candidates, CandidateSet, Rankings

SAMPLED: Final = 512
"""Candidates of a part that are kept, of the true triples and again of the corruptions."""

_SALT: Final = 0x6B67766572696679


class PartResult(NamedTuple):
    """What came of a part. Rankings Q, one for each query and side; sampled candidates S.

    query, num_ranked, outcome, num_limited: of the rankings, as are optimistic and pessimistic ranks
    outcome, log_probability: of the true triple
    num_outcomes:             uint32 [Q, 4]  candidates by `Outcome`
    sample_...:               some candidates, by ascending sample_priority in each of the two strata
    num_choices, num_rescored, smallest_gap: of all candidates, as of `Evaluation`
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
        """The ranks alone."""
        return Rankings(self.query, self.side, self.num_ranked, self.optimistic, self.pessimistic)

    @property
    def sample(self) -> CandidateSet:
        """The sampled candidates."""
        return CandidateSet(self.sample_query, self.sample_side, self.sample_atom)


class DamagedError(Exception):
    """A part's file that cannot be believed; says why."""


def summarize_part(
    candidates: Candidates,
    rankings: Rankings,
    triples: NDArray[np.int32],
    seed: int,
    gaps: tuple[int, int, float],
) -> PartResult:
    """What is kept of a part's candidates, in the order of (query, side), each with one true triple.

    triples: int32 [n, 3], the split that `candidates.query` points into
    """
    is_true = (candidates.atom == triples[candidates.query]).all(1)
    group = candidates.query.astype(np.int64) * 4 + candidates.side
    groups = rankings.query.astype(np.int64) * 4 + rankings.side
    place = np.searchsorted(groups, group)
    true = np.flatnonzero(is_true)[np.searchsorted(group[is_true], groups)]
    num_outcomes = np.bincount(place * len(Outcome) + candidates.outcome, minlength=len(groups) * len(Outcome))
    priority = _priorities(candidates, group, seed)
    kept = np.concatenate([_lowest(priority, np.flatnonzero(of)) for of in (is_true, ~is_true)])
    return PartResult(
        *rankings,
        outcome=candidates.outcome[true],
        log_probability=candidates.log_probability[true],
        num_outcomes=num_outcomes.reshape(-1, len(Outcome)).astype(np.uint32),
        num_limited=np.bincount(place[candidates.is_limited != 0], minlength=len(groups)).astype(np.uint32),
        sample_priority=priority[kept],
        sample_is_true=is_true[kept],
        sample_query=candidates.query[kept],
        sample_side=candidates.side[kept],
        sample_atom=candidates.atom[kept],
        sample_outcome=candidates.outcome[kept],
        sample_is_limited=candidates.is_limited[kept],
        sample_log_probability=candidates.log_probability[kept],
        num_choices=np.array(gaps[0], np.int64),
        num_rescored=np.array(gaps[1], np.int64),
        smallest_gap=np.array(gaps[2], np.float64),
    )


def _priorities(candidates: Candidates, group: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """By (seed, query, side, the replaced entity) alone."""
    entity = np.where(candidates.side == 0, candidates.atom[:, 1], candidates.atom[:, 2])
    key = mix(np.array([seed ^ _SALT], np.uint64))
    return mix(mix(key ^ group.astype(np.uint64)) ^ entity.astype(np.uint64))


def _lowest(priority: NDArray[np.uint64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    if len(rows) > SAMPLED:
        rows = rows[np.argpartition(priority[rows], SAMPLED)[:SAMPLED]]
    return rows[np.argsort(priority[rows])]


def write_part(path: Path, result: PartResult, identity: str) -> None:
    """Write the file as a whole or not at all; the same result gives the same bytes."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, identity=np.array(identity), xxh3=np.array(_hash(result, identity)), **result._asdict())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_part(path: Path, part: Part, identity: str) -> PartResult:
    """Read it again. DamagedError unless it is whole and of this part of this evaluation."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            found, checksum = str(file["identity"]), str(file["xxh3"])
            result = PartResult(**{name: file[name] for name in PartResult._fields})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DamagedError(f"cannot be read ({error})") from None
    if found != identity:
        raise DamagedError("is of another evaluation")
    if checksum != _hash(result, identity):
        raise DamagedError("its checksum is another: it was altered")
    if not np.array_equal(np.unique(result.query), part.queries):
        raise DamagedError("holds other queries than the plan says")
    return result


def _hash(result: PartResult, identity: str) -> str:
    digest = xxhash.xxh3_64(identity.encode())
    for name, array in result._asdict().items():
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
