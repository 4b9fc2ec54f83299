"""What a benchmark measured, as data: for a terminal, for JSON, for a comparison with a later run."""

from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from kgverify.errors import UserError

SCHEMA_VERSION: Final = 1


class State(StrEnum):
    """What became of one that was to be measured.

    timed: it was right, and this is its speed; wrong: it differs, and its speed is withheld; undecided: it differs where the
    arithmetic may differ, and its speed is withheld; failed: it raised an error; absent: it is not to be had here, or was left
    out; interrupted: right as far as it came
    """

    TIMED = "timed"
    WRONG = "wrong"
    UNDECIDED = "undecided"
    FAILED = "failed"
    ABSENT = "absent"
    INTERRUPTED = "interrupted"


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """What one gave, beside what another gave.

    against:       `eager` or `reference`
    num_compared:  candidates; of a compile strategy, numbers of the end state
    num_differing: near-ties left out, of which none is looked for after the first that is none
    num_near_ties: on their way two scores are closer than the arithmetic's error
    largest_gap:   of log-probabilities where nothing differs, nats
    example:       the first difference
    """

    against: str
    num_compared: int
    num_differing: int = 0
    num_near_ties: int = 0
    largest_gap: float = 0.0
    example: str = ""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One prover in one mode, or one compile strategy. All that tells a speed is there only where it was right.

    num_units:       candidates proved by each call, or ticks taken
    build_seconds:   to make it; first_seconds, second_seconds: of the first two calls, warm-up
    compile_seconds: of what torch or Triton compiled
    samples:         seconds of the calls after these: the steady state
    cache:           compiled code: `miss` compiled here, `hit` from torch's cache on disk, `bypass`, or several; empty where none
    ticks, launches: of one steady call. Launches are kernels and copies on the device
    device_seconds:  that the device worked in one steady call
    peak_bytes:      most memory in use, less what was in use before it was built
    unmeasured:      what could not be looked at here, and why
    """

    name: str
    state: State
    reason: str = ""
    num_units: int = 0
    build_seconds: float | None = None
    first_seconds: float | None = None
    second_seconds: float | None = None
    compile_seconds: float | None = None
    samples: tuple[float, ...] = ()
    cache: str = ""
    ticks: int | None = None
    launches: int | None = None
    device_seconds: float | None = None
    peak_bytes: int | None = None
    agreements: tuple[Agreement, ...] = ()
    unmeasured: dict[str, str] = {}


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What was to be done. kind: `modes` or `strategies`. num_queries: asked for; num_candidates: what came of it."""

    kind: str
    size: str
    graph: str
    graph_sha256: str
    split: str
    seed: int
    num_queries: int
    num_corruptions: int
    num_candidates: int
    slots: int
    policy: str
    policy_sha256: str
    limits: dict[str, int]
    precision: str
    steps: int = 0
    faults: tuple[str, ...] = ()


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was done. matmul_precision, tf32: torch's settings for products in float32. caches: `as found` or `fresh`."""

    kgverify: str
    python: str
    torch: str
    triton: str
    cuda: str
    device: str
    device_name: str
    platform: str
    num_cpus: int
    threads: int
    matmul_precision: str
    tf32: bool
    caches: str


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark. unit: what speeds are told for, `candidate` or `tick`. is_complete: false where it was interrupted."""

    work: Work
    environment: Environment
    unit: str
    measurements: tuple[Measurement, ...]
    is_complete: bool = True
    schema_version: int = SCHEMA_VERSION

    @property
    def is_right(self) -> bool:
        """Whether nothing that was measured is wrong or failed."""
        return not any(each.state in (State.WRONG, State.FAILED) for each in self.measurements)

    def find(self, name: str) -> Measurement | None:
        """The measurement of that name."""
        return next((each for each in self.measurements if each.name == name), None)


class _Version(msgspec.Struct):
    schema_version: int


def encode_result(result: BenchResult) -> bytes:
    """As JSON, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"


def decode_result(encoded: bytes, where: str) -> BenchResult:
    """Of JSON. UserError for anything else, and for another version of the schema."""
    try:
        version = msgspec.json.decode(encoded, type=_Version).schema_version
        if version == SCHEMA_VERSION:
            return msgspec.json.decode(encoded, type=BenchResult)
    except msgspec.DecodeError as error:
        raise UserError(
            f"is no result of a benchmark: {error}", where=where, fix="write it with kgverify bench --json FILE"
        ) from None
    raise UserError(
        f"expected version {SCHEMA_VERSION} of the schema, found {version}",
        where=where,
        fix="measure it again with this version of kgverify",
    )


def read_result(path: Path) -> BenchResult:
    """Read a saved benchmark. UserError for a file that is not there or is none."""
    try:
        encoded = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot be read: {error.strerror}", where=str(path), fix="give a file of kgverify bench --json FILE"
        ) from None
    return decode_result(encoded, str(path))
