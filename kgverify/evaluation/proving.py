"""The work on one part of an evaluation: draw its candidates, prove them with any engine, and summarize the results."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Engine
from kgverify.engines.table import COMPILED, make_entry
from kgverify.errors import UserError
from kgverify.evaluation.parts import ChoiceStatistics, PartResult, summarize_part
from kgverify.progress import Progress, no_progress
from kgverify.runs.fan_out import check_same_engine
from kgverify.runs.pool import make_once
from kgverify.runs.run import Part, Pipeline, Run
from kgverify.trace.model.columns import Candidates, CandidateSet, find_end, join_candidates
from kgverify.trace.model.header import EngineInfo

if TYPE_CHECKING:
    from kgverify.engines.protocol import Evaluation


class PartWork(Protocol):
    """The work on a part. `prove` takes the result of `draw`, and `summarize` takes the result of `prove`.

    While the engine proves a part, `draw` prepares the next part and `summarize` processes the previous one.
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
        """True if the candidates of a part may be proved separately. An engine with slots needs full batches instead."""
        return not self._pipeline.engine.info.layout.get("slots")

    def draw(self, part: Part) -> CandidateSet:
        """Draw the candidates of the part."""
        run = self._run
        return self._pipeline.draw(run.graph, run.split, part.queries, run.num_corruptions, run.seed)

    def prove(self, part: Part, drawn: CandidateSet, progress: Progress) -> tuple[Candidates, ChoiceStatistics]:
        """Prove the candidates."""
        return prove_candidates(self._pipeline.engine, drawn, progress)

    def summarize(self, part: Part, proved: tuple[Candidates, ChoiceStatistics]) -> PartResult:
        """Rank and count the candidates."""
        candidates, choices = proved
        rankings = self._pipeline.rank_finite(self._run, candidates)
        if rankings is None:
            raise refuse_scores(part)
        return summarize_part(candidates, rankings, self._run.triples, self._run.seed, choices)


def make_work(
    run: Run, make: Callable[[], Pipeline], build: Callable[[Run, Pipeline], PartWork], info: EngineInfo
) -> PartWork:
    """Make the work on the parts of a run, on a worker. UserError if the engine here is a different one.

    make: makes the pipeline, and `build` the work with it
    info: the engine's description on the machine that started the evaluation
    """
    pipeline = make()
    check_same_engine(pipeline.engine.info, info)
    return build(run, pipeline)


def do_part(make: bytes, name: str, part: Part) -> PartResult:
    """Return the result of a part on a worker; `make` and `name` come from `send_maker`."""
    work: PartWork = make_once(make, name)
    return work.summarize(part, work.prove(part, work.draw(part), no_progress))


def do_piece(make: bytes, name: str, part: Part, drawn: CandidateSet) -> tuple[Candidates, ChoiceStatistics]:
    """Prove some candidates of a part on a worker; `make` and `name` come from `send_maker`, for a `FullWork`."""
    work: FullWork = make_once(make, name)
    return work.prove(part, drawn, no_progress)


def join_proved(
    pieces: Sequence[tuple[Candidates, ChoiceStatistics]],
) -> tuple[Candidates, ChoiceStatistics]:
    """Join the proved candidates of a part's pieces."""
    candidates, choices = zip(*pieces, strict=True)
    return join_candidates(list(candidates)), reduce(ChoiceStatistics.combine, choices)


def prove_candidates(
    engine: Engine,
    drawn: CandidateSet,
    progress: Progress = no_progress,
    floor: NDArray[np.float64] | None = None,
) -> tuple[Candidates, ChoiceStatistics]:
    """Return the candidates with their endings, and the closeness of the choices.

    An engine with a method `evaluate` returns only the endings. Any other engine records steps, which are dropped.
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
    """Return whether an engine stops derivations below their floors, as its attribute `takes_floors` says."""
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
    """Return whether an error, or a cause of it, is a failed allocation, in torch or elsewhere."""
    while error is not None:
        # torch's CPU allocator raises a plain RuntimeError, and CUDA's runtime raises a subclass of it.
        text = str(error).lower() if isinstance(error, RuntimeError) else ""
        is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if is_named or "can't allocate memory" in text or "cuda error: out of memory" in text:
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def explain_out_of_memory(info: EngineInfo | None = None) -> Iterator[None]:
    """Replace an allocation failure inside the context by a UserError that names options to save memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        slots = None if info is None else info.layout.get("slots")
        batch = "the batch" if slots is None else f"a batch of {slots:,} slots"
        # torch's message begins with the requested size and continues with advice.
        request = ". ".join((str(error).strip() or "out of memory").splitlines()[0].split(". ")[:2]).rstrip(".")
        raise UserError(
            f"there is not enough memory for {batch} ({request})",
            where="memory",
            fix="give less memory or fewer slots with --tune, or stop other programs that use the device's memory",
        ) from error


UNITS: Final = 8
"""Maximum number of units that are proved at once."""

_LONG: Final = 4 * UNITS
"""The number of units above which a list takes long to prove: they do not fit into one block."""

_CLAIMS: Final = 4
"""The number of claims in which each process would take its share of the remaining units at the current size."""

_PIECE: Final = 1 << 21
"""The bytes of a message sent at once; the store accepts at most four times this number."""


class ProcessGroup:
    """The processes that share an evaluation. Process 0 leads: it chooses the parts and collects the results.

    store: the torch key-value store through which the processes found each other; None for a single process
    index: the number of this process; size: the number of processes
    """

    def __init__(self, store: Any = None, index: int = 0, size: int = 1) -> None:
        self._store, self.index, self.size = store, index, size
        self._counters: Counter[str] = Counter()

    def broadcast(self, message: bytes) -> bytes:
        """Return the leader's message in every process, in the order of the calls."""
        if self._store is None:
            return message
        self._counters["shared"] += 1
        key = f"kgverify/shared {self._counters['shared']}"
        if self.index == 0:
            self._store.set(key, message.hex())
        return bytes.fromhex(self._store.get(key).decode())

    def add(self, counter: str, num: int) -> int:
        """Add to a counter that all processes share, and return its new value."""
        if self._store is not None:
            return int(self._store.add(f"kgverify/{counter}", num))
        self._counters[counter] += num
        return self._counters[counter]

    def send(self, name: str, message: bytes) -> None:
        """Send a message to the leader."""
        key = f"kgverify/message {name}"
        pieces = [message[i : i + _PIECE] for i in range(0, len(message), _PIECE)]
        for i, piece in enumerate(pieces):
            self._store.set(f"{key} {i}", piece.hex())
        self._store.set(key, str(len(pieces)))

    def receive(self, name: str) -> bytes | None:
        """Return the message with a name, if it has arrived."""
        key = f"kgverify/message {name}"
        if not self._store.check([key]):
            return None
        num_pieces = int(self._store.get(key))
        return b"".join(bytes.fromhex(self._store.get(f"{key} {i}").decode()) for i in range(num_pieces))


def join_process_group() -> ProcessGroup:
    """Join the processes that `torchrun` started with this one; else return a group of one. UserError as in `join_team`."""
    # A single process may run without torch.
    joined = None if os.environ.get("WORLD_SIZE", "1") == "1" else make_entry(COMPILED).join_processes()
    return ProcessGroup(*joined or ())


class Share:
    """The units that one process of a group proves of the part with a given number.

    leads: whether this process also counts the true triples, which every process proves
    """

    def __init__(self, group: ProcessGroup, number: int) -> None:
        self._group, self._number, self.leads = group, number, group.index == 0
        self._is_new = True

    def take(self, name: str, num: int) -> range:
        """Return the next units to prove from a list of `num` units; an empty range if no unit is left.

        Several processes take several units at a time from a long list, and fewer towards the end, so that all end together. A
        single process takes the last unit of a long list separately, and likewise the first unit of a part. The engine waits
        until the first unit is drawn, and the part is finished only when the last unit is compared.
        """
        counter = f"{name} of part {self._number}"
        wanted = num - self._group.add(counter, 0)
        if self._group.size > 1:
            wanted = max(1, min(UNITS, wanted // (_CLAIMS * self._group.size)))
        elif num > _LONG:
            wanted = 1 if self._is_new else max(wanted - 1, min(wanted, 1))
        self._is_new &= not num
        begin = self._group.add(counter, wanted) - wanted
        return range(min(begin, num), min(begin + wanted, num))


def cut_units(starts: NDArray[np.int64], block_size: int) -> list[int]:
    """Return the bounds of units of ragged rows: each unit has an eighth of a block's elements, and fewer towards the end."""
    bounds = [0]
    while bounds[-1] < len(starts) - 1:
        begin = bounds[-1]
        left = int(starts[-1] - starts[begin])
        size = max(block_size // UNITS**2, min(left // (2 * UNITS), block_size // UNITS))
        bounds.append(find_end(starts, begin, size))
    return bounds
