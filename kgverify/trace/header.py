"""What a trace says of itself: who made it, from what, under which limits."""

from typing import Final

import msgspec

from kgverify.logic.limits import Limits

SCHEMA_VERSION: Final = 1


class EngineInfo(msgspec.Struct, frozen=True):
    """Who took the steps.

    name:        `reference`, `compiled`, or the name a third party gives its engine
    mode:        how it ran: `python`, `eager`, a `torch.compile` mode; empty if that means nothing
    device:      `cpu`, `cuda`
    precision:   dtype of the scores
    score_error: bound on a score's rounding error, absolute, in the scores' own unit
    layout:      sizes that may change nothing: slots, paddings, windows
    versions:    library name to version
    faults:      the faults planted in it; normally none
    """

    name: str
    mode: str = ""
    device: str = "cpu"
    precision: str = "float64"
    score_error: float = 0.0
    layout: dict[str, int] = {}
    versions: dict[str, str] = {}
    faults: tuple[str, ...] = ()


class InputFile(msgspec.Struct, frozen=True):
    """A file the graph was read from."""

    name: str
    sha256: str


class PolicyInfo(msgspec.Struct, frozen=True):
    """The policy that scored: its name, and the hash of its weights (empty without weights)."""

    name: str
    sha256: str = ""


class RunInfo(msgspec.Struct, frozen=True):
    """Which candidates were to be proved.

    num_corruptions: corruptions for each query and side; -1 means all
    rank_tolerance:  two ranking scores closer than this are a tie, nats
    """

    graph: str = ""
    split: str = "test"
    num_queries: int = 0
    num_corruptions: int = 0
    seed: int = 0
    rank_tolerance: float = 0.0


class ClauseTexts(msgspec.Struct, frozen=True):
    """Rules as a person reads them, and where they stand; the facts' file."""

    rules: tuple[str, ...] = ()
    rule_sources: tuple[str, ...] = ()
    facts_file: str = ""


class Header(msgspec.Struct, frozen=True):
    """The header of a trace; unknown fields of a later minor version are ignored on reading."""

    engine: EngineInfo
    limits: Limits
    policy: PolicyInfo
    program_sha256: str
    run: RunInfo = RunInfo()
    inputs: tuple[InputFile, ...] = ()
    clauses: ClauseTexts = ClauseTexts()
    creator: str = ""
    level: str = "steps"
    schema_version: int = SCHEMA_VERSION
