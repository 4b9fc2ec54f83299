"""The plan of a large evaluation: parts that the run alone determines, so that it is no matter who does them, or when."""

import hashlib
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify import __version__
from kgverify.engines.protocol import Engine
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Side
from kgverify.ranking.corrupt import ALL, count_candidates
from kgverify.ranking.rank import RANK_TOLERANCE
from kgverify.runs.run import Run

FORMAT: Final = 2

SIZES: Final = {"cuda": (1 << 18, 1 << 20), "cpu": (1 << 13, 1 << 16)}
"""Fewest and most candidates of a part: on a GPU many, since its slots run empty at the end of each."""

RANKED_SIZES: Final = {"cuda": (1 << 25, 1 << 25), "cpu": SIZES["cpu"]}
"""The same where only ranks are asked for, among all corruptions: few of the candidates are proved."""

_FEWEST_PARTS: Final = 32


class Part(NamedTuple):
    """Consecutive queries: their indices, and how many candidates they have."""

    number: int
    queries: range
    num_candidates: int

    @property
    def name(self) -> str:
        """The part's file."""
        return f"part-{self.number:06d}.npz"


class Plan(NamedTuple):
    """The parts of a run.

    size:      most candidates of a part, but for a query that alone has more
    rank_only: whether only ranks are asked for
    """

    size: int
    parts: tuple[Part, ...]
    rank_only: bool = False

    @property
    def num_candidates(self) -> int:
        """Of all parts."""
        return sum(part.num_candidates for part in self.parts)


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What makes two evaluations the same one: their parts may stand in one folder.

    triples_sha256: of the queries, the known triples and the domains; versions: of what computes
    rank_only: whether candidates that cannot matter for a rank were left out
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
        """64 hexadecimal digits."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


def plan_parts(run: Run, device: str, size: int | None = None, *, rank_only: bool = False) -> Plan:
    """Consecutive queries together, as long as their candidates are no more than the size.

    size: by the run's candidates and the kind of device if not given; nothing else has a say in it.
    """
    queries = run.queries
    counts = count_candidates(run.graph, run.split, queries, run.num_corruptions)
    if size is None:
        sizes = RANKED_SIZES if rank_only and run.num_corruptions == ALL else SIZES
        fewest, most = sizes.get(device, sizes["cpu"])
        size = int(np.clip(int(counts.sum()) // _FEWEST_PARTS, fewest, most))
    ends = np.cumsum(counts)
    parts: list[Part] = []
    begin = 0
    while begin < len(queries):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + size, "right")))
        parts.append(Part(len(parts), queries[begin:end], int(ends[end - 1]) - before))
        begin = end
    return Plan(size, tuple(parts), rank_only)


def identify(run: Run, engine: Engine, plan: Plan) -> Identity:
    """The identity of an evaluation of this run by this engine in these parts."""
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


def list_differences(there: Identity, here: Identity) -> list[str]:
    """`limits.max_depth is 20 there and 10 here`, for each field that differs."""
    found, given = (dict(_flatten(msgspec.to_builtins(each))) for each in (there, here))
    return [
        f"{name} is {_shorten(found.get(name))} there and {_shorten(given.get(name))} here"
        for name in dict.fromkeys((*found, *given))
        if found.get(name) != given.get(name)
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
    digest = hashlib.sha256()
    predicates = np.unique(run.triples[:, 0]).tolist()
    domains = (run.graph.argument_domain(p, side) for p in predicates for side in (Side.HEAD, Side.TAIL))
    array: NDArray[np.int32]
    for array in (run.triples, run.graph.known_triples, *domains):
        digest.update(len(array).to_bytes(8, "little") + np.ascontiguousarray(array, "<i4").tobytes())
    return digest.hexdigest()
