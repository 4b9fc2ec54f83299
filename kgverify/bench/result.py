"""The result of a benchmark, as data: for a terminal, for JSON, for a comparison with a later run."""

import os
import platform
import statistics
from collections.abc import Sequence
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from kgverify.errors import UserError, count_of
from kgverify.escaping import escape_json
from kgverify.files.decoding import MAX_JSON_BYTES, NOT_JSON
from kgverify.files.reading import read_file
from kgverify.runs.machine import read_processor
from kgverify.version import __version__

SCHEMA_VERSION: Final = 1


class State(StrEnum):
    """The state of a measurement.

    timed: right, with its speed; wrong: it differs, and its speed is withheld; undecided: it differs where the arithmetic may
    differ, and its speed is withheld; failed: it raised an error; absent: unavailable here, or left out; interrupted: right
    until the interruption
    """

    TIMED = "timed"
    WRONG = "wrong"
    UNDECIDED = "undecided"
    FAILED = "failed"
    ABSENT = "absent"
    INTERRUPTED = "interrupted"


_TITLES: Final = {
    State.TIMED: "timed",
    State.WRONG: "WRONG, speed withheld",
    State.UNDECIDED: "undecided, speed withheld",
    State.FAILED: "FAILED",
    State.ABSENT: "not measured",
    State.INTERRUPTED: "interrupted",
}


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of results with those of another prover.

    against:       `eager` or `reference`
    num_compared:  candidates; of a compile strategy, numbers of the end state
    num_differing: without near-ties, which are not counted after the first real difference
    num_near_ties: candidates with two scores closer than the error of the arithmetic
    largest_gap:   of log-probabilities where nothing differs, nats
    example:       the first difference
    """

    against: str
    num_compared: int
    num_differing: int = 0
    num_near_ties: int = 0
    largest_gap: float = 0.0
    example: str = ""


class Spread(NamedTuple):
    """Statistics of samples, in their unit; deviation: of the sample, with n - 1; 0 for a single one."""

    least: float
    median: float
    mean: float
    most: float
    deviation: float


def summarize(samples: Sequence[float]) -> Spread:
    """Summarize samples, of which there must be at least one."""
    deviation = statistics.stdev(samples) if len(samples) > 1 else 0.0
    return Spread(min(samples), statistics.median(samples), statistics.fmean(samples), max(samples), deviation)


class Measurement(msgspec.Struct, kw_only=True):
    """One prover in one mode, or one compile strategy. Times are present only where it was right.

    num_units:       candidates proved by each call, or ticks taken
    build_seconds:   to build it; first_seconds, second_seconds: the first two calls, which warm up
    compile_seconds: spent in compiling by torch or Triton
    samples:         seconds of the later calls: the steady state
    cache:           of compiled code: `miss` compiled here, `hit` from torch's cache on disk, `bypass`, or several; may be empty
    ticks, launches: of one steady call. Launches are kernels and copies on the device
    device_seconds:  working time of the device in one steady call
    peak_bytes:      most memory in use, less the memory in use before the build
    unmeasured:      quantities that could not be measured here, with the reason
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

    def describe_state(self) -> str:
        """Describe the state, with its reason."""
        title = _TITLES[self.state]
        return f"{title}: {self.reason}" if self.reason and self.reason != title else title


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The measured work. kind: `modes` or `strategies`. num_queries: requested; num_candidates: the resulting number.

    reference, engine: as the user gave them; no engine stands for the compiled evaluator
    """

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
    reference: str = "reference"
    engine: str = ""

    def describe_amount(self) -> str:
        """Describe the number of candidates and slots."""
        amount = f"{count_of(self.num_candidates, 'candidate')}, {count_of(self.slots, 'slot')}"
        return f"a search of {self.steps} ticks, {amount}" if self.kind == "strategies" else amount


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and its settings. matmul_precision, tf32: of products in float32. caches: `as found` or `fresh`."""

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
    """A benchmark. unit: of speeds, `candidate` or `tick`. is_complete: false where it was interrupted."""

    work: Work
    environment: Environment
    unit: str
    measurements: tuple[Measurement, ...]
    is_complete: bool = True
    schema_version: int = SCHEMA_VERSION

    @property
    def is_right(self) -> bool:
        """True if no measurement is wrong or failed."""
        return not any(each.state in (State.WRONG, State.FAILED) for each in self.measurements)

    def find(self, name: str) -> Measurement | None:
        """Return the measurement of that name."""
        return next((each for each in self.measurements if each.name == name), None)


def read_environment(device: str, *, has_fresh_cache: bool) -> Environment:
    """Describe this machine and its settings. device: `cpu` or `cuda`."""
    import torch

    is_cuda = device == "cuda"
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = ""
    return Environment(
        kgverify=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        triton=triton,
        cuda=str(torch.version.cuda or "") if is_cuda else "",
        device=device,
        device_name=torch.cuda.get_device_name() if is_cuda else read_processor(),
        # An update of the operating system leaves these alone.
        platform=f"{platform.system()} {platform.machine()}",
        num_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        matmul_precision=torch.get_float32_matmul_precision(),
        tf32=bool(torch.backends.cuda.matmul.allow_tf32),
        caches="fresh" if has_fresh_cache else "as found",
    )


class _Version(msgspec.Struct):
    schema_version: int


def encode_result(result: BenchResult) -> bytes:
    """Encode a result as JSON, with a newline at its end."""
    return escape_json(msgspec.json.format(msgspec.json.encode(result), indent=2)) + b"\n"


def decode_result(encoded: bytes, where: str) -> BenchResult:
    """Decode a result from JSON. UserError for anything else, and for another version of the schema."""
    try:
        version = msgspec.json.decode(encoded, type=_Version).schema_version
        if version == SCHEMA_VERSION:
            return msgspec.json.decode(encoded, type=BenchResult)
    except NOT_JSON as error:
        raise UserError(
            f"is not a result of a benchmark: {error}", where=where, fix="write it with kgverify bench --json FILE"
        ) from None
    raise UserError(
        f"expected version {SCHEMA_VERSION} of the schema, found {version}",
        where=where,
        fix="measure it again with this version of kgverify",
    )


def read_result(path: Path) -> BenchResult:
    """Read a saved benchmark. UserError for a missing or invalid file."""
    encoded = read_file(path, purpose="a file of kgverify bench --json FILE", max_bytes=MAX_JSON_BYTES)
    return decode_result(encoded, str(path))
