"""`kgverify.watch`: a sample of the steps of a running engine, judged in another process."""

import json
import logging
import os
import random
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeAlias, TypeVar, cast
from weakref import WeakMethod

import numpy as np

from kgverify.api.inputs import make_pipeline
from kgverify.api.watch_judge import Judged, Sample, SampleJudge, Setting, WatchedDivergence, judge
from kgverify.arguments import checked
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.comparison.result import ROLES
from kgverify.engines.adapters.stepwise import StepwiseEngine
from kgverify.engines.adapters.tensor import Expansion, TensorEngine
from kgverify.engines.policy import SHORTEST, Policy
from kgverify.engines.protocol import STOPPED, Engine, Evaluation
from kgverify.engines.table import EngineMaker
from kgverify.errors import UserError
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.progress import Progress, no_progress
from kgverify.runs.engine_makers import EngineSpec
from kgverify.runs.job import EngineLike, Job, choose_reference, write_down
from kgverify.runs.pool import Processes, WorkerLost, send_maker
from kgverify.runs.run import Run, build_trace, run_of_program
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns, select_candidates
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.score_tolerance import OWN_ENGINES, ScoreTolerance
from kgverify.verification.rounding import EngineRun, measure_tolerance

SHARE: Final = 1 / 4096
"""The default share of steps that are sampled."""

EVERY: Final = 64
"""One call in this number is sampled, with more of its rows: a sampled call costs time, its rows hardly any."""

MAX_ROWS: Final = 1 << 12
"""The maximum number of sampled rows that wait for the judge. Further rows are dropped and counted."""

MAX_COPIES: Final = 64
"""The maximum number of calls whose rows are still being copied from a GPU."""

MAX_LINES: Final = 10_000
"""The maximum number of lines of a sampled derivation."""

CLOSING_SECONDS: Final = 60.0
"""The longest time to wait for the judge at the end."""

CONFIDENCE: Final = 0.99
"""The chance of detection for which the summary gives the smallest rate of defects."""

NUM_MEASURED: Final = 16
"""The candidates on which the rounding of scores is measured, before the loop."""

MAX_ERRORS: Final = 100
"""The maximum number of different errors of the watch that are reported."""

T = TypeVar("T")
_Sampled: TypeAlias = tuple[str, Any, int, "_Copies | None"]
"""The kind, content and size of a `Sample`, and its copies if these are under way."""

_logger: Final = logging.getLogger("kgverify.watch")
_BEGINS: Final = re.compile(r'\s*\{\s*"candidate"\s*:')


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
    """The sampling of one engine, and the process of its judge. seen: the steps so far."""

    def __init__(
        self,
        share: float,
        seed: int,
        describe: Callable[[Run | None, Any], Setting],
        on_divergence: Callable[[WatchedDivergence], object] | None,
        *,
        raises: bool,
    ) -> None:
        self.seen = self._calls = self._due = self._begin = 0
        self.prove_alone: Callable[[CandidateSet], Columns] | None = None
        self._share, self._random = share, random.Random(seed)
        self._describe, self._on_divergence, self._raises = describe, on_divergence, raises
        self._counts: Counter[str] = Counter()
        self._divergences: Counter[tuple[str, str]] = Counter()
        self._runs: list[Path] = []
        self._told: deque[WatchedDivergence] = deque(maxlen=1000)
        self._copies: deque[tuple[Sample, _Copies]] = deque()
        self._waiting: list[Sample] = []
        self._suspects: list[CandidateSet] = []
        self._under_way: Future[list[Judged]] | None = None
        # The number of rows to send at once, and the time when they were sent.
        self._room, self._sent = 16, 0.0
        self._lock = threading.Condition(threading.RLock())
        self._num_lost = 0
        self._errors: set[str] = set()
        self._pid, self._processes, self._program = os.getpid(), cast("Processes | None", None), cast(Any, None)

    def start(self, run: Run | None, engine: Any, every: int = 1) -> bool:
        """Start the judge, once; return False if this watch judges another program already. every: one call in it is sampled."""
        program = None if run is None else run.graph.program
        if self._program is not None:
            return self._program is program
        self._program = program or engine
        # Rounding the distance of rows changes the share by a sixteenth at most.
        self._window, self._most = 1, max(1, min(every, int(1 / (8 * self._share))))
        try:
            self._processes = Processes(1, imports_main=False)
        except (AssertionError, OSError) as error:
            # A daemonic process, such as a worker of a DataLoader, has no children.
            self._report(f"nothing is judged in this process: {error}")
            return True
        self._maker = send_maker(partial(SampleJudge, self._describe(run, engine)), self._processes)
        self._plan()
        close = WeakMethod(self.close)
        # Before the threads of the pool end; the functions of `atexit` run after that.
        with suppress(AttributeError, RuntimeError):
            threading._register_atexit(lambda: (close() or int)())  # type: ignore[attr-defined]
        return True

    def is_next(self, num: int) -> bool:
        """Count a call on a number of rows, and return whether it is sampled."""
        self._calls += 1
        self.seen += num
        return self._calls == self._due

    def around(self, num: int, call: Callable[[], T], sample: Callable[[slice], Callable[[T], _Sampled]]) -> T:
        """Return the result of a sampled call. sample: takes rows before it, and returns a function that takes the result."""
        rows, finish = self._take(num), None
        if rows is not None:
            with self._reported():
                finish = sample(rows)
        result = call()
        if rows is not None and finish is not None:
            with self._reported():
                kind, content, size, copies = finish(result)
                self._offer(Sample(kind, self._calls, rows.start, rows.step, size, content), copies)
        if self._pid == os.getpid():
            self._plan()
        return result

    def _take(self, num: int) -> slice | None:
        """Return the rows to sample of this call; None for none."""
        if self._pid != os.getpid() or self._processes is None:
            # After a fork, the judge belongs to the parent.
            return None
        self._deliver()
        first = self._random.randrange(self._stride)
        return slice(first, num, self._stride) if first < num else None

    def _plan(self) -> None:
        """Choose the next call to sample, and its rows. Windows double at first, so that a frequent fault is found early."""
        self._due = self._begin + 1 + self._random.randrange(self._window)
        self._stride = max(1, round(1 / (self._share * self._window)))
        self._begin += self._window
        self._window = min(2 * self._window, self._most)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Report an error of the watch itself, which must not reach the loop."""
        try:
            yield
        except Exception as error:
            self._report(f"{type(error).__name__}: {error}")

    def _report(self, text: str) -> None:
        if text not in self._errors and len(self._errors) < MAX_ERRORS:
            self._errors.add(text)
            _logger.warning("%s", text)

    def _offer(self, sample: Sample, copies: "_Copies | None" = None) -> None:
        """Give rows to the judge, once they are copied; drop them if too many are waiting."""
        self._counts["sampled"] += sample.size
        if copies is not None and len(self._copies) < MAX_COPIES:
            self._copies.append((sample, copies))
        elif copies is not None:
            self._counts["dropped"] += sample.size
        elif sample.size:
            self._queue(sample)

    def _deliver(self, *, waits: bool = False) -> None:
        """Give completed copies to the judge, and what it found to the user."""
        while self._copies and (waits or self._copies[0][1].is_complete):
            sample, copies = self._copies.popleft()
            copies.wait()
            self._queue(sample)
        if self._suspects and self.prove_alone is not None:
            candidates, prove, self.prove_alone = self._suspects[0], self.prove_alone, None
            with self._reported():
                content = prove(candidates)
                self._queue(Sample("alone", self._calls, int(candidates.query[0]), 1, len(candidates.query), content))
        while self._told:
            found = self._told.popleft()
            if self._on_divergence is not None:
                with self._reported():
                    self._on_divergence(found)
            if self._raises:
                raise AssertionError(str(found))

    def _queue(self, sample: Sample) -> None:
        with self._lock:
            waiting = sum(each.size for each in self._waiting)
            if self._processes is None or waiting + sample.size > max(MAX_ROWS, sample.size):
                self._counts["dropped"] += sample.size
            else:
                self._waiting.append(sample)
                self._send()

    def _send(self) -> None:
        """Send the free judge about one second of work from the waiting samples. Call this with the lock held."""
        if self._under_way is not None or not self._waiting or self._processes is None:
            return
        samples = [self._waiting.pop(0)]
        while self._waiting and sum(each.size for each in samples) + self._waiting[0].size <= self._room:
            samples.append(self._waiting.pop(0))
        self._sent = time.monotonic()
        self._under_way = self._processes.submit(judge, *self._maker, samples)
        self._under_way.add_done_callback(partial(self._receive, samples))

    def _receive(self, samples: Sequence[Sample], future: Future[list[Judged]]) -> None:
        """Note what the judge found. Called in another thread."""
        with self._lock:
            self._under_way = None
            is_slow = time.monotonic() - self._sent > 1.0
            self._room = max(1, self._room // 2) if is_slow else min(MAX_ROWS, 2 * self._room)
            try:
                for judged in future.result():
                    self._note(judged)
                self._send()
            except BaseException as error:
                self._counts["unjudged"] += sum(each.size for each in samples)
                self._num_lost += 1
                self._report(f"the judge stopped, for the {self._num_lost}. time: {error}")
                if self._num_lost > 1 or not isinstance(error, WorkerLost):
                    threading.Thread(target=self._stop(), daemon=True).start()
            self._lock.notify_all()

    def _note(self, judged: Judged) -> None:
        for name in ("judged", "idle", "unjudged", "near_ties"):
            self._counts[name] += getattr(judged, name)
        if judged.error:
            self._report(f"a sample could not be judged: {judged.error}")
        if judged.suspects is not None:
            self._suspects.append(judged.suspects)
        for cause in judged.causes:
            key = cause.stage, cause.kind
            self._divergences[key] += cause.num
            found = cause._replace(num=self._divergences[key])
            self._runs += [cause.run] if cause.run is not None else []
            self._told.append(found)
            if found.num == cause.num:
                _logger.warning("%s", found)

    @property
    def summary(self) -> WatchSummary:
        """The numbers so far."""
        named = {f"{stage or 'unknown stage'}: {kind}": num for (stage, kind), num in self._divergences.items()}
        counts = {name: self._counts[name] for name in WatchSummary._fields[1:-2]}
        return WatchSummary(seen=self.seen, **counts, divergences=named, runs=tuple(self._runs))

    def close(self) -> None:
        """Wait for the judge, for at most a minute, and log the summary. A second call does nothing."""
        if self._processes is None or self._pid != os.getpid():
            return
        end = time.monotonic() + CLOSING_SECONDS
        try:
            # Candidates whose endings differ are judged in a second round.
            for _ in range(3):
                self._deliver(waits=True)
                with self._lock:
                    while self._under_way is not None and time.monotonic() < end:
                        self._lock.wait(0.1)
        finally:
            with self._lock:
                end_judge = self._stop()
            # Its threads may wait for the lock.
            end_judge()
            summary = self.summary
            is_quiet = summary.judged and not summary.divergences
            _logger.log(logging.INFO if is_quiet else logging.WARNING, "%s", summary)

    def _stop(self) -> Callable[[], object]:
        """Judge nothing more; return a function that ends the judge's process, at once if it is busy. The lock is held."""
        self._counts["unjudged"] += sum(each.size for each in self._waiting)
        self._waiting.clear()
        processes, self._processes, self._due = self._processes, None, -1
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
        given, expand = (states, next_variable, excluded), cast(Any, super()).expand
        if not self._watch.is_next(len(states)):
            return expand(*given)

        def sample(rows: slice) -> Callable[[Any], _Sampled]:
            copies = _Copies()
            # The engine may write into its arguments.
            before = [copies.fetch(each, rows) for each in given]

            def finish(result: Any) -> _Sampled:
                named = result if isinstance(result, Mapping) else dict(zip(Expansion._fields, result, strict=False))
                after = {name: None if each is None else copies.fetch(each, rows) for name, each in named.items()}
                copies.begin()
                return "expand", (before, after), len(before[0]), copies

            return finish

        return self._watch.around(len(states), partial(expand, *given), sample)


class _Copies:
    """Copies of rows: of tensors on a GPU without waiting for them, of other arrays at once."""

    def __init__(self) -> None:
        self._of_torch: Any = None

    def fetch(self, array: Any, rows: slice) -> Any:
        """Return the array that will hold these rows."""
        if not hasattr(array, "detach"):
            return np.array(array[rows])
        if self._of_torch is None:
            from kgverify.torch.host_copy import HostCopy

            self._of_torch = HostCopy()
        own = array.detach()[rows].clone()
        is_short = own.dtype.is_floating_point and own.dtype.itemsize < 4
        return self._of_torch.fetch(own.float() if is_short else own, np.int64)

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
        take = cast(Any, super()).take_step
        (taken,) = self._sample([query], [visited], lambda queries, goals: [take(queries[0], goals[0])])
        return taken

    def _sample(self, queries: Any, visited: Any, take: Callable[[Any, Any], Any]) -> Any:
        if not self._watch.is_next(len(queries)):
            return take(queries, visited)

        def sample(rows: slice) -> Callable[[Any], _Sampled]:
            given = [tuple(each) for each in queries[rows]], [list(map(tuple, each)) for each in visited[rows]]
            show = cast(Any, self)._show
            return lambda taken: ("steps", show(*given, taken[rows]), len(given[0]), None)

        return self._watch.around(len(queries), partial(take, queries, visited), sample)


class _SteppingTogether(_Stepping):
    """A watched `StepwiseEngine` that takes many steps at once."""

    def take_step(self, query: Any, visited: Sequence[Any]) -> Any:
        return cast(Any, super(_Stepping, self)).take_step(query, visited)

    def take_steps(self, queries: Sequence[Any], visited: Sequence[Sequence[Any]]) -> Any:
        return self._sample(queries, visited, cast(Any, super(_Stepping, self)).take_steps)


class _Proving(_Watched):
    """A watched engine that proves candidates and records their steps."""

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        def sample(rows: slice) -> Callable[[Columns], _Sampled]:
            def finish(columns: Columns) -> _Sampled:
                chosen = select_candidates(columns, np.arange(*rows.indices(rows.stop)))
                return "prove", chosen, len(chosen.steps.depth), None

            return finish

        num, prove = len(candidates.query), partial(cast(Any, super()).prove, candidates, progress)
        columns: Columns = self._watch.around(num, prove, sample) if self._watch.is_next(num) else prove()
        self._watch.seen += len(columns.steps.depth) - num
        return columns


class _Evaluating(_Proving):
    """A watched engine that also proves candidates without recording their steps."""

    def evaluate(self, candidates: CandidateSet, progress: Progress = no_progress, **options: Any) -> Evaluation:
        def sample(rows: slice) -> Callable[[Evaluation], _Sampled]:
            def finish(evaluation: Evaluation) -> _Sampled:
                at = np.arange(*rows.indices(rows.stop))
                # A derivation that was stopped has no ending.
                at = at[evaluation.results.outcome[at] != STOPPED]
                outcome, is_limited, score = (each[at] for each in evaluation.results)
                ends = outcome.astype(np.int8), is_limited.astype(np.uint8), score
                given = candidates.take(at)._replace(query=at.astype(np.int32))
                return "evaluate", Candidates(*given, np.zeros(len(at), np.uint32), *ends), len(at), None

            return finish

        prove = partial(cast(Any, super()).evaluate, candidates, progress, **options)
        num = len(candidates.query)
        evaluation: Evaluation = self._watch.around(num, prove, sample) if self._watch.is_next(num) else prove()
        return evaluation


class _Making(_Watched):
    """A watched maker, such as `kgverify.Evaluator(...)`, which makes watched engines."""

    def __call__(self, program: Program, limits: Limits, policy: Policy) -> Any:
        made = cast(Any, super()).__call__(program, limits, policy)
        return _around(made, self._watch, run_of_program(program, limits, policy))


def _around(engine: Any, watch: Watch, run: Run) -> Any:
    """Return a watched engine; the engine itself if the watch judges another program already."""
    kind: type[_Watched] = _Evaluating if callable(getattr(engine, "evaluate", None)) else _Proving
    if isinstance(engine, TensorEngine):
        kind = _Expanding
    elif isinstance(engine, StepwiseEngine):
        is_single = _own_class(engine).take_steps is StepwiseEngine.take_steps
        kind = _Stepping if is_single else _SteppingTogether
    if not watch.start(run, engine, 1 if issubclass(kind, _Proving) else EVERY):
        return engine
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

    def __init__(self, lines: Iterable[str | bytes]) -> None:
        self._lines = lines

    def __iter__(self) -> Iterator[Any]:
        header, is_first = "", True
        group: list[str] = []
        for line in self._lines:
            text = (line.decode() if isinstance(line, bytes) else line).rstrip("\n") + "\n"
            if is_first and "trace" in json.loads(text):
                header = text
            else:
                if _BEGINS.match(text):
                    self._end(header, group)
                    group = []
                # A longer derivation is judged up to this line.
                group += [text] if len(group) < MAX_LINES else []
            is_first = False
            yield line
        self._end(header, group)

    def _end(self, header: str, group: list[str]) -> None:
        size = sum('"successors"' in each for each in group)
        if group and self._watch.is_next(size):
            self._watch.around(1, int, lambda rows: lambda _: ("lines", (header, group), size, None))


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
        >>> watched.summary.judged > 0, watched.summary.divergences
        (True, {})
    """
    if not 0 < share <= 1:
        raise UserError(f"expected a share above 0 and up to 1, found {share}", where="share", fix="give such as 0.001")
    folder = None if save is None else Path(save).absolute()
    about: dict[str, Any] = {"equality": equality, "save": folder, "max_saved": max_saved}
    named = None if reference is None else write_down(reference, "reference")
    made = Watch(share, seed, partial(_describe, reference=named, **about), on_divergence, raises=raises)
    if isinstance(engine, EngineMaker):
        return _as_kind(engine, _Making, made)
    run = None if job is None else job.make_run()
    if callable(getattr(engine, "prove", None)) and not isinstance(engine, type):
        if run is None and not hasattr(engine, "program"):
            raise UserError("does not hold its program", where="engine", fix="give job=kgverify.Job(...)")
        return _around(engine, made, run or run_of_program(engine.program, engine.limits, engine.policy))
    if isinstance(engine, Iterable) and not isinstance(engine, str):
        made.start(run, engine)
        return type("WatchedLines", (WatchedLines,), {"_watch": made})(engine)
    raise UserError(
        f"expected an engine or lines, found {type(engine).__name__}",
        where="engine",
        fix="give an engine that was made of (program, limits, policy), or kgverify.Evaluator(...)",
    )


def _measure(run: Run, engine: Engine, reference: EngineSpec, equality: Equality) -> ScoreTolerance | None:
    """Return the tolerance of scores, measured on some facts; None if the policy computes without rounding, or it is known."""
    if not run.policy.weights or engine.info.name in OWN_ENGINES:
        return None
    facts = run.graph.program.facts
    atoms = facts[:: max(1, len(facts) // NUM_MEASURED)][:NUM_MEASURED]
    zeros = np.zeros(len(atoms), np.int32)
    candidates = CandidateSet(zeros, zeros.astype(np.int8), atoms)
    expected = make_pipeline(reference, run, where="reference").engine
    sides = [
        EngineRun(role, each, build_trace(run, each, each.prove(candidates), None))
        for role, each in zip(ROLES, (expected, engine), strict=True)
    ]
    return measure_tolerance((sides[0], sides[1]), equality.accepted_error)


def _describe(
    run: Run | None, engine: Any, *, reference: EngineSpec | None, equality: Equality, **about: Any
) -> Setting:
    info, reader = getattr(engine, "info", EngineInfo("lines")), None
    if isinstance(engine, TensorEngine):
        reader = TensorEngine(engine.program, engine.limits, SHORTEST)
        names = ("encoding", "memory", "max_atoms", "max_depth")
        vars(reader).update({name: getattr(engine, name) for name in names}, arrays="numpy")
    reference = reference or write_down(choose_reference(None, info))
    tolerance = None if run is None else _measure(run, engine, reference, equality)
    about |= {"equality": equality, "tolerance": tolerance}
    return Setting(run=run, info=info, reference=reference, reader=reader, **about)
