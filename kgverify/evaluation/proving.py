"""The work on one part of an evaluation: its candidates are drawn, proved by any engine, and summarized."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Engine
from kgverify.errors import UserError
from kgverify.evaluation.part_file import ChoiceStatistics, PartResult, summarize_part
from kgverify.progress import Progress, no_progress
from kgverify.runs.dask_workers import check_same_engine
from kgverify.runs.parts import Part
from kgverify.runs.pool import make_once
from kgverify.runs.run import Pipeline, Run
from kgverify.trace.model.columns import Candidates, CandidateSet, join_candidates
from kgverify.trace.model.header import EngineInfo

if TYPE_CHECKING:
    from kgverify.engines.endings import Evaluation


class PartWork(Protocol):
    """The work on a part. `prove` takes what `draw` returns, and `summarize` what `prove` returns.

    `draw` and `summarize` run beside the engine, for the next part and the previous one.
    """

    def draw(self, part: Part) -> Any:
        """Prepare the engine's input."""
        ...

    def prove(self, part: Part, drawn: Any, progress: Progress) -> Any:
        """Run the engine."""
        ...

    def summarize(self, part: Part, proved: Any) -> PartResult:
        """Return the part's result. UserError for a log-probability that is not finite."""
        ...


class FullWork:
    """The work that proves every candidate of a part."""

    def __init__(self, run: Run, pipeline: Pipeline) -> None:
        self._run, self._pipeline = run, pipeline

    @property
    def is_divisible(self) -> bool:
        """True if candidates of a part may be proved apart: batches of an engine with slots should be full."""
        return not self._pipeline.engine.info.layout.get("slots")

    def draw(self, part: Part) -> CandidateSet:
        """Draw the candidates of the part."""
        run = self._run
        return self._pipeline.draw(run.graph, run.split, part.queries, run.num_corruptions, run.seed)

    def prove(self, part: Part, drawn: CandidateSet, progress: Progress) -> tuple[Candidates, ChoiceStatistics]:
        """Prove them."""
        return prove_candidates(self._pipeline.engine, drawn, progress)

    def summarize(self, part: Part, proved: tuple[Candidates, ChoiceStatistics]) -> PartResult:
        """Rank and count them."""
        candidates, choices = proved
        rankings = self._pipeline.rank_finite(self._run, candidates)
        if rankings is None:
            raise refuse_scores(part)
        return summarize_part(candidates, rankings, self._run.triples, self._run.seed, choices)


def make_work(
    run: Run, make: Callable[[], Pipeline], build: Callable[[Run, Pipeline], PartWork], info: EngineInfo
) -> PartWork:
    """Make the work on the parts of a run, on a worker. UserError if the engine is another one here.

    make: makes the pipeline, and `build` the work with it
    info: the engine's description where the evaluation was started
    """
    pipeline = make()
    check_same_engine(pipeline.engine.info, info)
    return build(run, pipeline)


def do_part(make: bytes, name: str, part: Part) -> PartResult:
    """Return the result of a part on a worker; `make` and `name` are those of `send_maker`."""
    work: PartWork = make_once(make, name)
    return work.summarize(part, work.prove(part, work.draw(part), no_progress))


def do_piece(make: bytes, name: str, part: Part, drawn: CandidateSet) -> tuple[Candidates, ChoiceStatistics]:
    """Prove some candidates of a part on a worker; `make` and `name` are those of `send_maker`, for a `FullWork`."""
    work: FullWork = make_once(make, name)
    return work.prove(part, drawn, no_progress)


def join_proved(
    pieces: Sequence[tuple[Candidates, ChoiceStatistics]],
) -> tuple[Candidates, ChoiceStatistics]:
    """Return the proved candidates of the pieces of a part as one."""
    candidates, choices = zip(*pieces, strict=True)
    return join_candidates(list(candidates)), reduce(ChoiceStatistics.combine, choices)


def prove_candidates(
    engine: Engine,
    drawn: CandidateSet,
    progress: Progress = no_progress,
    floor: NDArray[np.float64] | None = None,
) -> tuple[Candidates, ChoiceStatistics]:
    """Return the candidates with their endings, and the closeness of the choices.

    An engine with a method `evaluate` returns the endings alone; any other records steps, which are dropped.
    floor: float64 [N]  the log-probabilities below which derivations are `STOPPED` by an engine that `may_stop`
    """
    evaluate: Callable[..., Evaluation] | None = getattr(engine, "evaluate", None)
    if evaluate is None:
        return engine.prove(drawn, progress).candidates, ChoiceStatistics()
    floors = {} if floor is None or not may_stop(engine) else {"floor": floor}
    ended = evaluate(drawn, progress, **floors)
    outcome, is_limited, log_probability = ended.results
    proved = Candidates(
        *drawn,
        num_steps=np.zeros(len(drawn.query), np.uint32),
        outcome=outcome.astype(np.int8),
        is_limited=is_limited.astype(np.uint8),
        log_probability=log_probability,
    )
    return proved, ChoiceStatistics(ended.num_choices, ended.num_rescored, ended.smallest_gap)


def may_stop(engine: Engine) -> bool:
    """Return whether an engine stops derivations below their floors: its attribute `takes_floors` says so."""
    return bool(getattr(engine, "takes_floors", False))


def warm_up(run: Run, pipeline: Pipeline, part: Part) -> None:
    """Let the engine compile its kernels on one candidate."""
    drawn = pipeline.draw(run.graph, run.split, part.queries[:1], 0, run.seed)
    prove_candidates(pipeline.engine, drawn.take(slice(0, 1)))


def refuse_scores(part: Part) -> UserError:
    """Return the error for a part with a log-probability that is not finite."""
    return UserError(
        f"a log-probability of {part.name} is not finite, so it has no rank",
        where="policy",
        fix=f"inspect its candidates: kgverify diff --queries {part.queries.stop}",
    )


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one that led to it, is an allocation that failed, in torch or elsewhere."""
    while error is not None:
        # torch's allocator for the CPU raises a plain RuntimeError, and CUDA's runtime another kind of it.
        text = str(error).lower() if isinstance(error, RuntimeError) else ""
        is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if is_named or "can't allocate memory" in text or "cuda error: out of memory" in text:
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def explain_out_of_memory(info: EngineInfo | None = None) -> Iterator[None]:
    """Replace an allocation failure inside the context by a UserError that names the options that need less memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        slots = None if info is None else info.layout.get("slots")
        batch = "the batch" if slots is None else f"a batch of {slots:,} slots"
        # torch's message begins with the size of the request, and continues with advice.
        request = ". ".join((str(error).strip() or "out of memory").splitlines()[0].split(". ")[:2]).rstrip(".")
        raise UserError(
            f"there is not enough memory for {batch} ({request})",
            where="memory",
            fix="give less memory or fewer slots with --tune, or stop other programs that use the device's memory",
        ) from error
