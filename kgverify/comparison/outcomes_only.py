"""The comparison with an engine whose steps are unknown: a black box, which only shows how each derivation ends."""

from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from kgverify.comparison.source import MemorySource, StepSource
from kgverify.program.outcomes import Outcome
from kgverify.trace.model.columns import Digests, empty_columns
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.levels import TraceLevel

NUM_STEPS: Final = "candidates.num_steps"
_OF_STEPS: Final = frozenset({NUM_STEPS, "candidates.is_limited"})


def has_steps(engine: EngineInfo) -> bool:
    """Return whether an engine shows its steps."""
    return NUM_STEPS not in engine.unknown


def drop_unknown_steps(sources: tuple[StepSource, StepSource]) -> tuple[StepSource, StepSource]:
    """Return both sides without steps if one of them does not show its steps, else as they are."""
    if all(has_steps(source.header.engine) for source in sources):
        return sources
    left, right = (_without_steps(source) if NUM_STEPS in source.fields else source for source in sources)
    return left, right


def describe_unknown_steps(sources: tuple[StepSource, StepSource]) -> list[str]:
    """Return a note about what was compared, if one side does not show its steps."""
    hidden = dict.fromkeys(source.header.engine.name for source in sources if not has_steps(source.header.engine))
    if not hidden:
        return []
    return [
        f"the steps of {' and '.join(hidden)} are unknown: outcomes (PROVED or not), ranks and, where both sides have them,"
        " scores were compared, and any stage may be at fault"
    ]


def _without_steps(source: StepSource) -> MemorySource:
    trace = source.shell(has_candidates=True)
    every = trace.columns.candidates
    is_proved = every.outcome == Outcome.PROVED
    candidates = every._replace(
        num_steps=np.zeros_like(every.num_steps),
        outcome=np.where(is_proved, Outcome.PROVED, Outcome.FAILED).astype(np.int8),
        is_limited=np.zeros_like(every.is_limited),
    )
    return MemorySource(
        replace(
            trace,
            header=msgspec.structs.replace(trace.header, level=TraceLevel.STEPS.value),
            columns=empty_columns()._replace(candidates=candidates),
            digests=Digests(*(np.zeros(0, np.uint64) for _ in Digests._fields)),
            fields=frozenset(name for name in trace.fields if name.startswith("candidates.")) - _OF_STEPS,
        )
    )
