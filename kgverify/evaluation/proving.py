"""How the candidates of an evaluation end, by any engine; memory that gives out is told with the options that need less."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Engine, Progress, no_progress
from kgverify.errors import UserError
from kgverify.evaluation.parts import Part
from kgverify.trace.model.columns import Candidates, CandidateSet
from kgverify.trace.model.header import EngineInfo


class Ended(Protocol):
    """How candidates ended, as an `Evaluation` of the compiled evaluator tells it."""

    @property
    def results(self) -> Sequence[NDArray[Any]]:
        """outcome [N], is_limited [N], log_probability float64 [N]"""
        ...

    @property
    def num_choices(self) -> int:
        """Between two resolvents or more."""
        ...

    @property
    def num_rescored(self) -> int:
        """Made again in a higher precision."""
        ...

    @property
    def smallest_gap(self) -> float:
        """In nats."""
        ...


@runtime_checkable
class Evaluator(Engine, Protocol):
    """An engine that can prove candidates without recording steps. Any other records them, and they are dropped."""

    def evaluate(self, candidates: CandidateSet, progress: Progress = no_progress) -> Ended:
        """How every candidate ends."""
        ...


class Gaps(NamedTuple):
    """How close choices were, as of `Evaluation`."""

    num_choices: int = 0
    num_rescored: int = 0
    smallest: float = float("inf")

    def join(self, other: "Gaps") -> "Gaps":
        """Of both."""
        return Gaps(
            self.num_choices + other.num_choices,
            self.num_rescored + other.num_rescored,
            min(self.smallest, other.smallest),
        )


def prove_candidates(engine: Engine, drawn: CandidateSet, progress: Progress = no_progress) -> tuple[Candidates, Gaps]:
    """The candidates as they ended, and how close the choices were."""
    if not isinstance(engine, Evaluator):
        return engine.prove(drawn, progress).candidates, Gaps()
    ended = engine.evaluate(drawn, progress)
    outcome, is_limited, log_probability = ended.results
    proved = Candidates(
        *drawn,
        num_steps=np.zeros(len(drawn.query), np.uint32),
        outcome=outcome.astype(np.int8),
        is_limited=is_limited.astype(np.uint8),
        log_probability=log_probability,
    )
    return proved, Gaps(ended.num_choices, ended.num_rescored, ended.smallest_gap)


def refuse_scores(part: Part) -> UserError:
    """What is told where a log-probability of a part is no number."""
    return UserError(
        f"a log-probability of {part.name} is no number, and so has no rank",
        where="policy",
        fix=f"look at its candidates: kgverify diff --queries {part.queries.stop}",
    )


@contextmanager
def naming_memory(info: EngineInfo | None = None) -> Iterator[None]:
    """Where memory gives out inside, a UserError that names the options, instead of torch's."""
    try:
        yield
    except RuntimeError as error:
        if not _tells_of_memory(error):
            raise
        slots = None if info is None else info.layout.get("slots")
        batch = "the batch" if slots is None else f"a batch of {slots:,} slots"
        # Torch tells what it was asked for first, and much else after that.
        asked = ". ".join(str(error).strip().splitlines()[0].split(". ")[:2]).rstrip(".")
        raise UserError(
            f"there is not enough memory for {batch} ({asked})",
            where="--memory",
            fix="give less --memory or fewer --slots, or end what else takes memory of the device",
        ) from error


def _tells_of_memory(error: BaseException | None) -> bool:
    """Whether it, or what led to it, is an allocation that failed; `torch.OutOfMemoryError` is a RuntimeError."""
    while error is not None:
        text = str(error).lower()
        if "out of memory" in text or "can't allocate memory" in text:
            return True
        error = error.__cause__ or error.__context__
    return False
