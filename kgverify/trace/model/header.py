"""The header of a trace: the engine, the program, the policy, the limits and the run."""

from math import inf
from typing import Any, Final, Literal

import msgspec

from kgverify.errors import UserError
from kgverify.program.limits import NUMBERS, OURS, DeclaredLimits, Dialect, Limits
from kgverify.trace.model.columns import FIELD_OF, KNOWLEDGE_GRAPH, PATHS

SCHEMA_VERSION: Final = 4
"""The only version that is written and read."""


class EngineInfo(msgspec.Struct, frozen=True):
    """The engine that took the steps.

    name:        `reference`, `compiled`, or the name a third party gives its engine
    mode:        its execution mode: `python`, `eager`, a `torch.compile` mode; empty if it has none
    device:      `cpu`, `cuda`
    precision:   dtype of the scores
    score_error: bound on a score's rounding error, absolute, in the scores' own unit; accepted up to the judge's bound
    layout:      sizes that must not change any result: slots, paddings, windows
    versions:    library name to version
    faults:      the faults planted in it; normally empty
    unknown:     columns that it does not know, such as `resolvents.origin`; they hold no information and are not compared
    variables:   `canonical` if it numbers the variables of each goal by first appearance, `own` if in any other way

    Example:
        >>> import kgverify as kv
        >>> kv.EngineInfo("my-prover", precision="float32", score_error=1e-6).name
        'my-prover'
    """

    name: str
    mode: str = ""
    device: str = "cpu"
    precision: str = "float64"
    score_error: float = 0.0
    layout: dict[str, int] = {}
    versions: dict[str, str] = {}
    faults: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    variables: str = "canonical"


SEARCHED: Final = "searched"
"""The mode of an engine that searches for any proof. Its outcomes OPEN and DEPTH_LIMIT leave a candidate undecided."""

FROM_SCORES: Final = "choices by kgverify from its scores"
"""The end of the mode of an engine that scores resolvents itself, so that the run's policy chooses nothing there."""

NUM_STEPS: Final = "candidates.num_steps"
"""The column without which nothing is known about steps."""
_IDENTITY: Final = frozenset(f"candidates.{name}" for name in KNOWLEDGE_GRAPH.identity)
_COUNTS: Final = frozenset(each.name for each in KNOWLEDGE_GRAPH.counts) & KNOWLEDGE_GRAPH.compared_names - {NUM_STEPS}
_PAIRS: Final = tuple(frozenset(FIELD_OF[path].name for path in pair) for pair in KNOWLEDGE_GRAPH.together)
"""Pairs of columns that are meaningless without each other."""


def unknown_columns(engine: EngineInfo, limits: DeclaredLimits | None = None) -> frozenset[str]:
    """Return the columns that an engine does not know, and the columns that are meaningless without them.

    limits: only if their dialect searches with several paths, the columns of paths may be known
    """
    has_paths = limits is not None and limits.dialect is not None and limits.dialect.search != OURS.search
    unknown = frozenset(engine.unknown) | (PATHS if not has_paths else frozenset())
    return unknown.union(*(pair for pair in _PAIRS if pair & unknown))


def known_columns(engine: EngineInfo, limits: DeclaredLimits) -> frozenset[str]:
    """Return the compared columns that an engine knows, as in `Trace.fields`."""
    return (KNOWLEDGE_GRAPH.compared_names | PATHS) - unknown_columns(engine, limits)


def check_unknown(engine: EngineInfo) -> None:
    """Raise a UserError for an unknown column that is needed to read the others."""
    unknown = frozenset(engine.unknown)
    if odd := sorted(unknown & _IDENTITY):
        raise UserError(
            f"engine.unknown names {odd[0]}, without which no candidate can be compared",
            where=engine.name,
            fix="remove it from EngineInfo.unknown",
        )
    if NUM_STEPS not in unknown and (odd := sorted(unknown & _COUNTS)):
        raise UserError(
            f"engine.unknown names {odd[0]}, a count that says which rows belong together",
            where=engine.name,
            fix=f"give the counts, and name the columns of the rows instead; or name {NUM_STEPS} as well: then outcomes"
            " are compared, and no steps",
        )


class InputFile(msgspec.Struct, frozen=True):
    """A file from which the graph was read."""

    name: str
    sha256: str


class PolicyInfo(msgspec.Struct, frozen=True):
    """The policy that scored: its name, empty if unknown, and the hash of its weights, empty if it has no weights.

    score_errors: the judge's bound on the rounding error of scores in each precision, in nats, computed from the weights
    """

    name: str
    sha256: str = ""
    score_errors: dict[str, float] = {}


class RunInfo(msgspec.Struct, frozen=True):
    """The choice of the candidates to be proved.

    num_corruptions: corruptions for each query and side; -1 means all
    rank_tolerance:  two ranking scores closer than this are a tie, in nats
    """

    graph: str = ""
    split: str = "test"
    num_queries: int = 0
    num_corruptions: int = 0
    seed: int = 0
    rank_tolerance: float = 0.0

    @property
    def unknown(self) -> tuple[str, ...]:
        """The fields that are unknown. A run without a graph and without any other field is completely unknown."""
        if self.graph:
            return ()
        if self == RunInfo(rank_tolerance=self.rank_tolerance):
            return "graph", "split", "num_queries", "num_corruptions", "seed"
        return ("graph",) if self.num_queries else ("graph", "num_queries")


class Part(msgspec.Struct, frozen=True):
    """The part of one process in a recording by several.

    rank, world: the number of the process, from 0, and the number of processes
    assign:      the rule: `modulo` if a query with all its candidates belongs to the rank (number of the query) mod world,
                 `blocks` if each rank has consecutive queries, about the same number; empty if it is unknown. An engine
                 that divides single candidates numbers these instead, in the order of the whole run

    UserError unless the rank is from 0 to world - 1, and the world below 2**31.

    Example:
        >>> import kgverify as kv
        >>> kv.Part(1, 4, "modulo").world
        4
    """

    rank: int
    world: int
    assign: Literal["", "modulo", "blocks"] = ""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world < 1 << 31:
            raise UserError(
                f"is rank {self.rank} of a world of {self.world}",
                where="part",
                fix="number the processes from 0 to world - 1",
            )


class ClauseTexts(msgspec.Struct, frozen=True):
    """The rules as text, with their source locations, and the file of the facts."""

    rules: tuple[str, ...] = ()
    rule_sources: tuple[str, ...] = ()
    facts_file: str = ""


class Header(msgspec.Struct, frozen=True):
    """The header of a trace; unknown fields are kept beside it, in `Trace.unknown`.

    limits:    a `Limits` if all of them are known
    level:     a `TraceLevel`: the columns that the trace holds
    absent:    columns that the prover did not know and that the digests count as 0, named as in `Trace.fields`; listed
               only at a level that leaves such columns out by itself
    recording: a random id that every copy of a recording keeps; empty if it has none
    part:      set if this is the trace of one of several processes, each of which proved some of the candidates
    """

    engine: EngineInfo
    limits: DeclaredLimits
    policy: PolicyInfo
    program_sha256: str
    run: RunInfo = RunInfo()
    inputs: tuple[InputFile, ...] = ()
    clauses: ClauseTexts = ClauseTexts()
    creator: str = ""
    level: str = "steps"
    absent: tuple[str, ...] = ()
    recording: str = ""
    part: Part | None = None
    schema_version: int = SCHEMA_VERSION


def encode_header(header: Header) -> dict[str, Any]:
    """Encode a header as JSON values. A dialect that `decode_header` would assume anyway is left out."""
    fields: dict[str, Any] = msgspec.to_builtins(header)
    if header.limits.dialect == _assumed_dialect(fields["limits"]):
        del fields["limits"]["dialect"]
    if header.part is None:
        del fields["part"]
    return fields


def decode_header(content: bytes) -> Header:
    """Decode the JSON of a header. MsgspecError if it is not a header, UserError for an impossible limit.

    A header with all limits but no dialect has the default dialect. If a limit is unknown, so is the dialect.
    """
    raw = msgspec.json.decode(content)
    if isinstance(raw, dict):
        limits = raw.get("limits")
        raw["limits"] = {} if limits is None else limits
        if isinstance(limits, dict) and "dialect" not in limits:
            raw["limits"]["dialect"] = msgspec.to_builtins(_assumed_dialect(raw["limits"]))
    header = msgspec.convert(raw, Header)
    check_header(header)
    known = header.limits
    return header if known.unknown else msgspec.structs.replace(header, limits=Limits(**msgspec.structs.asdict(known)))


def _assumed_dialect(limits: dict[str, Any]) -> Dialect | None:
    return None if any(limits.get(name) is None for name in NUMBERS) else OURS


def without(content: bytes, *names: str) -> dict[str, Any]:
    """Return the JSON of a header without some fields, such as `recording`, which may differ between the shards of a run."""
    raw = msgspec.json.decode(content)
    return {name: value for name, value in raw.items() if name not in names} if isinstance(raw, dict) else {"": raw}


def differing_fields(one: bytes, other: bytes, *ignored: str) -> str:
    """Return ` in run, limits`: the fields in which two headers differ, except `recording` and the ignored ones."""
    left, right = (without(each, "recording", *ignored) for each in (one, other))
    odd = sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
    return f" in {', '.join(odd)}" if odd else ""


def check_header(header: Header) -> None:
    """Raise a UserError for a score error too large for any arithmetic, or for a column that cannot be unknown."""
    check_unknown(header.engine)
    numbers = {"engine.score_error": header.engine.score_error, "run.rank_tolerance": header.run.rank_tolerance}
    numbers |= {f"policy.score_errors.{name}": value for name, value in header.policy.score_errors.items()}
    for name, value in numbers.items():
        if not 0 <= value < inf:
            raise UserError(
                f"{name} is {value}, expected a finite number from 0 on", where=name, fix="write it in nats"
            )


def check_version(version: object, where: str) -> None:
    """Raise a UserError unless this version of a trace can be read."""
    if version != SCHEMA_VERSION:
        is_newer = isinstance(version, int) and version > SCHEMA_VERSION
        raise UserError(
            f"schema version is {version}, expected {SCHEMA_VERSION}",
            where=where,
            fix="read it with a newer kgverify" if is_newer else "record the trace again with this kgverify",
        )
