"""`kgverify.watch`: a sample of the steps of a running engine, judged in another process."""

import json
import logging
import os
import random
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self, cast

import numpy as np

from kgverify.api.watch_judge import FoundCause, Judged, Sample, SampleJudge, Setting, TensorForm, judge
from kgverify.arguments import checked
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.engines.adapters.stepwise import StepwiseEngine
from kgverify.engines.adapters.tensor import Expansion, TensorEngine
from kgverify.engines.policy import SHORTEST, Policy
from kgverify.engines.protocol import STOPPED, Engine, Evaluation
from kgverify.engines.table import EngineMaker
from kgverify.errors import UserError
from kgverify.interrupts import is_interrupt
from kgverify.program.limits import DeclaredLimits, Limits
from kgverify.program.program import Program
from kgverify.progress import Progress, no_progress
from kgverify.runs.job import EngineLike, Job, choose_reference, write_down
from kgverify.runs.pool import Processes, WorkerLost, send_maker
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns, select_candidates
from kgverify.trace.model.header import EngineInfo

SHARE: Final = 1 / 4096
"""The default share of steps that are sampled."""

EVERY: Final = 32
"""One call in this number is sampled, and more rows of it: the cost is that of a call, and hardly that of its rows."""

MAX_ROWS: Final = 1 << 12
"""The most sampled rows that wait for the judge. Further ones are dropped and counted."""

MAX_COPIES: Final = 64
"""The most calls whose rows are still being copied from a GPU."""

MAX_LINES: Final = 10_000
"""The most lines of a sampled derivation."""

CLOSING_SECONDS: Final = 60.0
"""The longest time to wait for the judge at the end."""

CONFIDENCE: Final = 0.99
"""The chance of detection for which the summary gives the smallest rate of defects."""

_logger: Final = logging.getLogger("kgverify.watch")
_BEGINS: Final = re.compile(r'\s*\{\s*"candidate"\s*:')


class WatchedDivergence(NamedTuple):
    """Divergences of one cause that the judge of a watched engine found, as `on_divergence` receives them.

    stage:     the stage at fault; empty if only the ending of a candidate is known
    kind:      the class of the difference
    num:       the divergences of this cause so far
    call, row: the call of the engine, counted from 1, and the row in its batch
    expected, actual, goal, atom: the first of them, in names
    run:       the saved run, for `kgverify show`, with `reproduce.py`; None if this cause has one already
    """

    stage: str
    kind: str
    num: int
    field: str
    call: int
    row: int
    atom: str
    goal: str
    expected: str
    actual: str
    run: Path | None

    def __str__(self) -> str:
        """Return the divergence in a line."""
        at = f"{self.stage or 'unknown stage'}: {self.kind}, in {self.field} at row {self.row} of call {self.call}"
        goal = f"goal {self.goal}" if self.goal else f"candidate {self.atom}"
        shown = f"; kgverify show {self.run}" if self.run else ""
        return f"{at}; {goal}: expected {self.expected}, actual {self.actual}; {self.num:,} so far{shown}"


class WatchSummary(NamedTuple):
    """The numbers of a watched engine.

    seen:        steps that the engine took (of an evaluation, candidates), padding included
    sampled:     those that were copied
    judged:      those that the reference took as well
    idle:        sampled rows without a goal
    dropped:     sampled, while the judge had too much to do
    unjudged:    sampled, but lost with the judge, or refused by it
    near_ties:   choices between scores that are closer than their errors
    divergences: their number by cause
    runs:        the saved runs
    """

    seen: int
    sampled: int
    judged: int
    idle: int
    dropped: int
    unjudged: int
    near_ties: int
    divergences: dict[str, int]
    runs: tuple[Path, ...]

    @property
    def smallest_rate(self) -> float:
        """The smallest rate of wrong steps that this sample would have shown with probability 99 %."""
        return 1 - (1 - CONFIDENCE) ** (1 / self.judged) if self.judged else 1.0

    def __str__(self) -> str:
        """Return the numbers in words."""
        counts = {"idle": self.idle, "dropped": self.dropped, "unjudged": self.unjudged, "near-ties": self.near_ties}
        others = "".join(f", {num:,} {name}" for name, num in counts.items() if num)
        found = "; ".join(f"{num:,} x {cause}" for cause, num in self.divergences.items()) or "no divergence"
        return (
            f"watched {self.seen:,} steps, sampled {self.sampled:,}, judged {self.judged:,}{others}: {found}. A defect in"
            f" {self.smallest_rate:.2g} of the steps would have shown with probability 99 %"
        )


class Watch:
    """The sampling of one engine, and the process of its judge.

    calls, due: the number of calls so far, and of the next one that is sampled
    """

    def __init__(
        self,
        *,
        share: float,
        seed: int,
        make_setting: Callable[..., Setting],
        on_divergence: Callable[[WatchedDivergence], object] | None,
        raises: bool,
    ) -> None:
        self.calls = self.seen = 0
        self.every = max(1, min(EVERY, round(1 / share)))
        self.stride = max(1, round(1 / (share * self.every)))
        self.stride_of_all = max(1, round(1 / share))
        self.due = 0
        self.prove_alone: Callable[[CandidateSet], Columns] | None = None
        self._random, self._begin = random.Random(seed), 0
        self._make_setting, self._on_divergence, self._raises = make_setting, on_divergence, raises
        self._counts: Counter[str] = Counter()
        self._divergences: Counter[tuple[str, str]] = Counter()
        self._runs: list[Path] = []
        self._told: deque[WatchedDivergence] = deque(maxlen=1000)
        self._copies: deque[tuple[Sample, Any]] = deque()
        self._waiting: list[Sample] = []
        self._suspects: deque[CandidateSet] = deque(maxlen=1)
        self._has_proved_alone = False
        self._under_way: Future[Any] | None = None
        self._room, self._sent = 16, 0.0
        self._lock = threading.Condition(threading.RLock())
        self._num_lost = 0
        self._errors: set[str] = set()
        self._pid = os.getpid()
        self._processes: Processes | None = None
        self._about: Any = None

    def start(self, *about: Any) -> bool:
        """Start the judge, once; return False if this watch judges another program already."""
        if self._processes is not None:
            return self._about is about[0]
        self._about = about[0]
        self._processes = Processes(1, imports_main=False)
        self._maker = send_maker(partial(SampleJudge, self._make_setting(*about)), self._processes)
        self._plan()
        # Before the pool of threads ends; the functions of `atexit` run after it.
        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            with suppress(RuntimeError):
                register(self.close)
        return True

    @property
    def is_active(self) -> bool:
        """True in the process that started it, until it is closed, or its judge was killed twice."""
        return self._processes is not None and self._pid == os.getpid()

    def take(self, num: int, stride: int | None = None) -> slice | None:
        """Return the rows to sample of a call with this number of rows, and plan the next sample; None for none."""
        if self._pid != os.getpid():
            # After a fork, the judge belongs to the parent.
            self.due = -1
            return None
        if stride is None:
            self._plan()
        self.deliver()
        stride = stride or self.stride
        first = self._random.randrange(stride)
        return slice(first, num, stride) if first < num and self.is_active else None

    def _plan(self) -> None:
        self.due = self._begin + 1 + self._random.randrange(self.every)
        self._begin += self.every

    def offer(self, kind: str, rows: slice, content: Any, size: int | None = None, copies: Any = None) -> None:
        """Give rows of this call to the judge, once they are copied; drop them if too many are waiting."""
        size = len(range(*rows.indices(rows.stop))) if size is None else size
        sample = Sample(kind, self.calls, rows.start, rows.step or 1, size, content)
        self._counts["sampled"] += size
        if copies is not None:
            if len(self._copies) >= MAX_COPIES:
                self._counts["dropped"] += size
            else:
                self._copies.append((sample, copies))
        else:
            self._queue(sample)

    def fail(self, error: BaseException) -> None:
        """Report an error of the watch itself, which must not reach the loop."""
        if is_interrupt(error):
            raise error
        self._report_error(f"{type(error).__name__}: {error}")

    def deliver(self, *, waits: bool = False) -> None:
        """Give completed copies to the judge, and what it found to the user."""
        while self._copies and (waits or self._copies[0][1].is_complete):
            sample, copies = self._copies.popleft()
            copies.wait()
            self._queue(sample)
        if self._suspects and self.prove_alone is not None and not self._has_proved_alone:
            self._has_proved_alone = True
            candidates = self._suspects.popleft()
            columns = self.prove_alone(candidates)
            self._queue(Sample("alone", self.calls, int(candidates.query[0]), 1, len(candidates.query), columns))
        while self._told:
            found = self._told.popleft()
            if self._on_divergence is not None:
                try:
                    self._on_divergence(found)
                except Exception as error:
                    self._report_error(f"on_divergence raised {type(error).__name__}: {error}")
            if self._raises:
                raise AssertionError(str(found))

    def _queue(self, sample: Sample) -> None:
        with self._lock:
            if not self.is_active:
                self._counts["unjudged"] += sample.size
            elif sum(each.size for each in self._waiting) + sample.size > max(MAX_ROWS, sample.size):
                self._counts["dropped"] += sample.size
            else:
                self._waiting.append(sample)
                self._send()

    def _send(self) -> None:
        """Send waiting samples if the judge is free: about as many as it judges in a second. The lock is held."""
        if self._under_way is not None or not self._waiting or self._processes is None:
            return
        samples = [self._waiting.pop(0)]
        while self._waiting and sum(each.size for each in samples) + self._waiting[0].size <= self._room:
            samples.append(self._waiting.pop(0))
        self._sent = time.monotonic()
        try:
            self._under_way = self._processes.submit(judge, *self._maker, samples)
        except RuntimeError:
            # The interpreter ends.
            self._counts["unjudged"] += sum(each.size for each in samples)
            return
        self._under_way.add_done_callback(partial(self._receive, samples))

    def _receive(self, samples: Sequence[Sample], future: Future[Any]) -> None:
        """Note what the judge found. Called in another thread."""
        with self._lock:
            self._under_way = None
            is_slow = time.monotonic() - self._sent > 1.0
            self._room = max(1, self._room // 2) if is_slow else min(MAX_ROWS, 2 * self._room)
            try:
                for judged in future.result():
                    self._note(judged)
            except BaseException as error:
                self._counts["unjudged"] += sum(each.size for each in samples)
                self._num_lost += 1
                if isinstance(error, WorkerLost) and self._num_lost < 2:
                    _logger.warning("the judge died (%s), and was started again", error.end)
                else:
                    self._report_error(f"the judge stopped, and nothing more is judged: {error}")
                    threading.Thread(target=self._stop(), daemon=True).start()
            self._send()
            self._lock.notify_all()

    def _note(self, judged: Judged) -> None:
        self._counts["judged"] += judged.num_judged
        self._counts["idle"] += judged.num_idle
        self._counts["unjudged"] += judged.num_unjudged
        self._counts["near_ties"] += judged.num_near_ties
        if judged.error:
            self._report_error(f"a sample could not be judged: {judged.error}")
        if judged.suspects is not None:
            self._suspects.append(judged.suspects)
        for cause in judged.causes:
            self._note_cause(cause)

    def _note_cause(self, cause: FoundCause) -> None:
        key = cause.stage, cause.kind
        is_new = key not in self._divergences
        self._divergences[key] += cause.num
        if cause.folder is not None:
            self._runs.append(cause.folder)
        first = cause.first
        found = WatchedDivergence(
            cause.stage,
            cause.kind,
            self._divergences[key],
            first.field,
            cause.call,
            cause.row,
            first.atom,
            first.goal,
            str(first.expected),
            str(first.actual),
            cause.folder,
        )
        if is_new:
            _logger.warning("%s", found)
        self._told.append(found)

    def _report_error(self, text: str) -> None:
        if text not in self._errors and len(self._errors) < 100:
            self._errors.add(text)
            _logger.warning("%s", text)

    @property
    def summary(self) -> WatchSummary:
        """The numbers so far."""
        named = {f"{stage or 'unknown stage'}: {kind}": num for (stage, kind), num in self._divergences.items()}
        counts = {name: self._counts[name] for name in WatchSummary._fields[1:-2]}
        return WatchSummary(seen=self.seen, **counts, divergences=named, runs=tuple(self._runs))

    def close(self) -> None:
        """Wait for the judge, for at most a minute, and log the summary. A second call does nothing."""
        if not self.is_active:
            return
        end = time.monotonic() + CLOSING_SECONDS
        try:
            self._wait(end)
            self.deliver(waits=True)
            self._wait(end)
            self.deliver()
        finally:
            with self._lock:
                self._counts["unjudged"] += sum(each.size for each in self._waiting)
                self._waiting.clear()
                end_judge = self._stop()
            # Its threads may wait for the lock.
            end_judge()
            summary = self.summary
            is_quiet = summary.judged and not summary.divergences
            _logger.log(logging.INFO if is_quiet else logging.WARNING, "%s", summary)

    def _wait(self, end: float) -> None:
        """Wait until the judge has nothing to do, or the time is over."""
        self.deliver(waits=True)
        with self._lock:
            while (self._under_way is not None or self._waiting) and self.is_active and time.monotonic() < end:
                self._lock.wait(0.1)

    def _stop(self) -> Callable[[], object]:
        """Judge nothing more; return a function that ends the judge's process, at once if it is busy."""
        processes, self._processes, self.due = self._processes, None, -1
        kind = None if self._under_way is None else KeyboardInterrupt
        return int if processes is None else partial(processes.__exit__, kind, None, None)


class _Watched:
    """The methods that a watched engine has beside its own."""

    _watch: ClassVar[Watch]

    @property
    def summary(self) -> WatchSummary:
        """The numbers so far."""
        return self._watch.summary

    def close(self) -> None:
        """Wait for the judge, and log the summary."""
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        # In another process, the engine is not watched.
        return object.__new__, (type(self).__bases__[1],), vars(self)


class _Expanding(_Watched):
    """A watched `TensorEngine`."""

    def expand(self, states: Any, next_variable: Any, excluded: Any) -> Any:
        watch = self._watch
        watch.calls += 1
        watch.seen += len(states)
        if watch.calls != watch.due:
            return cast(Any, super()).expand(states, next_variable, excluded)
        rows, given, copies = watch.take(len(states)), [], None
        try:
            if rows is not None:
                copies = _Copies()
                # The engine may write into its arguments.
                given = [copies.fetch(each, rows) for each in (states, next_variable, excluded)]
        except Exception as error:
            watch.fail(error)
        result = cast(Any, super()).expand(states, next_variable, excluded)
        try:
            if rows is not None and copies is not None:
                named = result if isinstance(result, dict) else dict(zip(Expansion._fields, result, strict=False))
                copied = {name: None if each is None else copies.fetch(each, rows) for name, each in named.items()}
                copies.begin()
                watch.offer("expand", rows, (given, copied), copies=copies)
        except Exception as error:
            watch.fail(error)
        return result


class _Copies:
    """Copies of rows: of tensors on a GPU without waiting for them, of other arrays at once."""

    def __init__(self) -> None:
        self._of_torch: Any = None

    def fetch(self, array: Any, rows: slice) -> Any:
        """Return the array that will hold these rows."""
        if isinstance(array, np.ndarray) or not hasattr(array, "detach"):
            return np.array(array[rows])
        if self._of_torch is None:
            from kgverify.torch.host_copy import HostCopy

            self._of_torch = HostCopy()
        own = array.detach()[rows].clone()
        if own.dtype.is_floating_point and own.dtype.itemsize < 4:
            own = own.float()
        return self._of_torch.fetch(own, np.int64)

    def begin(self) -> None:
        """Begin to copy."""
        if self._of_torch is not None:
            self._of_torch.begin()

    @property
    def is_complete(self) -> bool:
        """True if all rows are copied."""
        return self._of_torch is None or self._of_torch.is_complete

    def wait(self) -> None:
        """Wait for the copies."""
        if self._of_torch is not None:
            self._of_torch.wait()


class _Stepping(_Watched):
    """A watched `StepwiseEngine` that takes one step at a time."""

    def take_step(self, query: Any, visited: Sequence[Any]) -> Any:
        (taken,) = self._sample([query], [visited], lambda: [super(_Stepping, self).take_step(query, visited)])  # type: ignore[misc]
        return taken

    def _sample(self, queries: Sequence[Any], visited: Sequence[Sequence[Any]], take: Callable[[], Any]) -> Any:
        watch = self._watch
        watch.calls += 1
        watch.seen += len(queries)
        if watch.calls != watch.due:
            return take()
        rows = watch.take(len(queries))
        if rows is None:
            return take()
        given = [tuple(each) for each in queries[rows]], [list(map(tuple, each)) for each in visited[rows]]
        taken = take()
        try:
            watch.offer("steps", rows, cast(Any, self)._show(*given, taken[rows]))
        except Exception as error:
            watch.fail(error)
        return taken


class _SteppingTogether(_Stepping):
    """A watched `StepwiseEngine` that takes many steps at once."""

    def take_step(self, query: Any, visited: Sequence[Any]) -> Any:
        return super(_Stepping, self).take_step(query, visited)  # type: ignore[misc]

    def take_steps(self, queries: Sequence[Any], visited: Sequence[Sequence[Any]]) -> Any:
        return self._sample(queries, visited, lambda: super(_Stepping, self).take_steps(queries, visited))  # type: ignore[misc]


class _Proving(_Watched):
    """A watched engine that proves candidates and records their steps."""

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        columns: Columns = cast(Any, super()).prove(candidates, progress)
        self._note(candidates, lambda rows: columns.candidates.num_steps[rows].sum(), self._offer, columns)
        return columns

    def _offer(self, rows: slice, columns: Columns) -> None:
        chosen = select_candidates(columns, np.arange(*rows.indices(rows.stop)))
        self._watch.offer("prove", rows, chosen, len(chosen.steps.depth))

    def _note(
        self, candidates: CandidateSet, count: Callable[[slice], Any], offer: Callable[..., None], *given: Any
    ) -> None:
        watch, num = self._watch, len(candidates.query)
        watch.calls += 1
        watch.seen += int(count(slice(None)))
        rows = watch.take(num, watch.stride_of_all)
        if rows is not None:
            try:
                offer(rows, *given)
            except Exception as error:
                watch.fail(error)


class _Evaluating(_Proving):
    """A watched engine that also proves candidates without recording their steps."""

    def evaluate(self, candidates: CandidateSet, progress: Progress = no_progress, **options: Any) -> Evaluation:
        evaluation: Evaluation = cast(Any, super()).evaluate(candidates, progress, **options)
        self._note(candidates, lambda rows: len(candidates.query), self._offer_endings, candidates, evaluation)
        return evaluation

    def _offer_endings(self, rows: slice, candidates: CandidateSet, evaluation: Evaluation) -> None:
        chosen = np.arange(*rows.indices(rows.stop))
        outcome, is_limited, log_probability = (each[chosen] for each in evaluation.results)
        # A derivation that was stopped has no ending.
        ends = outcome != STOPPED
        given = candidates.take(chosen[ends])
        content = Candidates(
            *given._replace(query=chosen[ends].astype(np.int32)),
            num_steps=np.zeros(int(ends.sum()), np.uint32),
            outcome=outcome[ends].astype(np.int8),
            is_limited=is_limited[ends].astype(np.uint8),
            log_probability=log_probability[ends],
        )
        if ends.any():
            self._watch.offer("evaluate", rows, content, int(ends.sum()))


class _Making(_Watched):
    """A watched maker, such as `kgverify.Evaluator(...)`, which makes watched engines."""

    def __call__(self, program: Program, limits: Limits, policy: Policy) -> Any:
        made: Any = super().__call__(program, limits, policy)  # type: ignore[misc]
        return _around(made, self._watch, program, limits, policy)


def _around(engine: Any, watch: Watch, program: Program, limits: Limits, policy: Policy) -> Any:
    """Return a watched engine; the engine itself if the watch judges another program already."""
    if not watch.start(program, limits, policy, engine):
        return engine
    kind: type[_Watched] = _Evaluating if callable(getattr(engine, "evaluate", None)) else _Proving
    if isinstance(engine, TensorEngine):
        kind = _Expanding
    elif isinstance(engine, StepwiseEngine):
        is_single = _own_class(engine).take_steps is StepwiseEngine.take_steps
        kind = _Stepping if is_single else _SteppingTogether
    watch.prove_alone = engine.prove
    return _as_kind(engine, kind, watch)


def _own_class(engine: Any) -> Any:
    return type(engine).__bases__[1] if isinstance(engine, _Watched) else type(engine)


def _as_kind(engine: Any, kind: type[_Watched], watch: Watch) -> Any:
    """Give the engine a class that has the methods of `kind` before its own. A copy could release its memory twice."""
    own = _own_class(engine)
    names: dict[str, Any] = {name: getattr(own, name) for name in ("__module__", "__qualname__", "__doc__")}
    # A method of the instance, such as a compiled one, hides those of a class.
    hidden = {name: value for name, value in vars(engine).items() if name in vars(kind) and callable(value)}
    if hidden:
        own = type(own.__name__, (own,), {**names, **{name: staticmethod(each) for name, each in hidden.items()}})
    for name in hidden:
        del vars(engine)[name]
    object.__setattr__(engine, "__class__", type(own.__name__, (kind, own), {**names, "_watch": watch}))
    return engine


class WatchedLines(_Watched):
    """JSON lines of another process: iterate over it instead of over the lines; the derivations of a sample are judged."""

    def __init__(self, lines: Iterable[str | bytes], watch: Watch) -> None:
        self._lines, self._own = lines, watch
        type(self)._watch = watch
        watch.start(lines)

    def __iter__(self) -> Iterator[Any]:
        watch, header, is_first = self._watch, "", True
        group: list[str] | None = None
        for line in self._lines:
            text = line.decode() if isinstance(line, bytes) else line
            text = text if text.endswith("\n") else text + "\n"
            if is_first and "trace" in json.loads(text):
                header = text
            elif _BEGINS.match(text) or (is_first and not header):
                self._end(header, group)
                group = None
                watch.calls += 1
                if watch.calls == watch.due:
                    rows = watch.take(1)
                    group = None if rows is None else []
            watch.seen += '"goal"' in text
            if group is not None and len(group) < MAX_LINES and text is not header:
                group.append(text)
            is_first = False
            yield line
        self._end(header, group)

    def _end(self, header: str, group: list[str] | None) -> None:
        if group and len(group) < MAX_LINES:
            num = sum('"successors"' in each for each in group)
            self._watch.offer("lines", slice(0, 1, 1), (header, group), num)


@checked
def watch(
    engine: Any,
    *,
    share: float = SHARE,
    reference: EngineLike | None = None,
    job: Job | None = None,
    seed: int = 0,
    equality: Equality = DEFAULT_EQUALITY,
    save: str | Path | None = "kgverify-watch",
    max_saved: int = 8,
    on_divergence: Callable[[WatchedDivergence], object] | None = None,
    raises: bool = False,
) -> Any:
    """Watch an engine in your own loop: a sample of its steps is taken again by the reference, in another process.

    The result is used exactly like the engine. It also has `summary` and `close`, and is a context manager. Divergences are
    warnings of the logger `kgverify.watch`.

    Args:
        engine: A `TensorEngine` or `StepwiseEngine` made of (program, limits, policy); kgverify's `Evaluator`; any engine with
            `prove`; or JSON lines of a prover in another language, such as `process.stdout`.
        share: The share of steps to judge: 1 for all; an evaluation's share is that of its candidates.
        reference: The engine to compare with, as for `kgverify.verify`; one that can be imported by its name.
        job: The graph, limits and policy of an engine that does not hold its program.
        seed: Seed of the sample.
        equality: What counts as equal.
        save: The folder of the saved runs, one for each cause, with `reproduce.py`; None to save nothing.
        max_saved: Maximum number of saved runs.
        on_divergence: A function that is called with each `WatchedDivergence`, at the next sampled call and at the end.
        raises: Raise an AssertionError at the next sampled call, or at the end, if a divergence was found.

    Returns:
        The watched engine.

    Raises:
        UserError: If the engine or the reference cannot be watched.

    Example:
        >>> import kgverify as kv
        >>> with kv.watch(kv.Evaluator(mode="eager"), share=1, save=None) as watched:
        ...     _ = kv.evaluate("countries", watched, queries=1, corruptions=3)
        >>> watched.summary.judged, watched.summary.divergences
        (7, {})
    """
    if not 0 < share <= 1:
        raise UserError(f"expected a share above 0 and up to 1, found {share}", where="share", fix="give such as 0.001")
    run = None if job is None else job.make_run()
    about = partial(
        _make_setting,
        reference=reference,
        equality=equality,
        save=None if save is None else Path(save).absolute(),
        max_saved=max_saved,
        job=job,
    )
    made = Watch(share=share, seed=seed, make_setting=about, on_divergence=on_divergence, raises=raises)
    if isinstance(engine, EngineMaker):
        return _as_kind(engine, _Making, made)
    if callable(getattr(engine, "prove", None)) and not isinstance(engine, type):
        if run is None and not hasattr(engine, "program"):
            raise UserError("does not hold its program", where="engine", fix="give job=kgverify.Job(...)")
        given = engine if run is None else run
        program = engine.program if run is None else run.graph.program
        return _around(engine, made, program, given.limits, getattr(given, "policy", SHORTEST))
    if isinstance(engine, Iterable) and not isinstance(engine, str):
        return type("WatchedLines", (WatchedLines,), {})(engine, made)
    raise UserError(
        f"expected an engine or lines, found {type(engine).__name__}",
        where="engine",
        fix="give an engine that was made of (program, limits, policy), or kgverify.Evaluator(...)",
    )


def _make_setting(
    program: Any,
    limits: Limits | None = None,
    policy: Policy = SHORTEST,
    engine: Engine | None = None,
    *,
    reference: EngineLike | None,
    job: Job | None,
    **about: Any,
) -> Setting:
    form = None
    if isinstance(engine, TensorEngine):
        form = TensorForm(engine.encoding, engine.memory, engine.max_atoms, engine.max_depth)
    return Setting(
        program=program if engine is not None else None,
        limits=limits or DeclaredLimits()
        if job is None
        else cast(Any, job.proofs.limits or limits or DeclaredLimits()),
        policy=policy,
        info=EngineInfo("lines") if engine is None else engine.info,
        reference=write_down(choose_reference(reference, None if engine is None else engine.info), "reference"),
        form=form,
        job=job,
        **about,
    )
