"""The climb from eager upwards, rung by rung, to the first rung on which a function behaves differently than in eager."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch._inductor.utils import fresh_cache

from stepaudit.audited_function import Function, Inputs, Subject
from stepaudit.errors import UserError
from stepaudit.isolation import can_isolate, run_isolated
from stepaudit.ladder.observation import (
    Deviation,
    DeviceLost,
    Observation,
    compare_observations,
    observe,
    seeding,
)
from stepaudit.ladder.rounding import RUNS, Float64Run, excuse, may_be_rounding
from stepaudit.minimize import Attempts
from stepaudit.options import EAGER, USUALLY, AuditOptions, Rung
from stepaudit.properties.captured_values import CapturedState, find_captured_values, restoring, set_tensor
from stepaudit.values import EXACT, USUAL, is_on_cuda, list_leaves

COLD, WARM, OFF = "as users run it", "as users run it, from the caches", "without the caches"
"""The states of the compiler's caches in which a rung runs."""
FEW: Final = 2
"""The number of calls in every state except the first."""


class Climb(NamedTuple):
    """The result of a rung.

    num_calls:    the compared calls; seconds: the duration, including compilation; is_lost: whether the device was lost
    caches:       the first state of the caches in which calls deviated
    is_of_caches: whether it deviates with the caches, but not without them
    excuses:      differences that count as rounding
    is_seeded:    whether the compiled code drew eager's random numbers (`fallback_random`)
    """

    rung: Rung
    deviations: tuple[Deviation, ...]
    num_calls: int
    seconds: float
    is_lost: bool = False
    caches: str = COLD
    is_of_caches: bool = False
    excuses: tuple[str, ...] = ()
    is_seeded: bool = False


class Ladder(NamedTuple):
    """The results of a subject on every rung.

    unsteady:   how eager differs from itself; if it does, no rung is compared
    impossible: the rungs that this device does not support, each with the reason
    judge:      the judge, for further runs
    """

    unsteady: tuple[Deviation, ...]
    climbs: tuple[Climb, ...]
    impossible: tuple[tuple[str, str], ...]
    judge: "Judge"

    @property
    def first(self) -> Climb | None:
        """The lowest rung that deviates."""
        return next((climb for climb in self.climbs if climb.deviations), None)


Watched = dict[str, Observation]
"""The observations of calls, by the names of the calls, in order.

call N:           calls with separate arguments, each from the original state of the function
repeated call N:  the same number of calls on the same arguments, at the same addresses, after the preceding eager call
call 1 again, N:  more calls like the first, on equal arguments
"""


class Judge:
    """The comparison of a subject's calls with eager.

    It knows the expected observations, and which differences are rounding.

    unproven: the differences that may be rounding, if runs with other roundings cannot decide it
    """

    def __init__(self, subject: Subject, options: AuditOptions = USUALLY) -> None:
        self.subject, self.options = subject, options
        self.unproven: list[str] = []
        self.expected = watch(subject, EAGER, repetitions=options.repetitions)

    @cached_property
    def control(self) -> tuple[tuple[Deviation, ...], int]:
        """The differences of calls in the context of those with other roundings, but without any; and the operations."""
        made: list[Float64Run] = []

        def round_nothing() -> Float64Run:
            made.append(Float64Run(0, ulps=0.0))
            return made[-1]

        seen = watch(self.subject, EAGER, self.expected, repetitions=0, float64=round_nothing)
        found = (
            each for call, one in seen.items() for each in compare_observations(self.expected[call], one, call, EXACT)
        )
        return tuple(found), sum(each.num_of_step for each in made)

    @cached_property
    def _roundings(self) -> tuple[Watched, list[Watched]]:
        """The calls in float64, and the calls with other roundings; only one of these if no operation rounds."""
        run = partial(watch, self.subject, EAGER, self.expected, repetitions=0)
        made: list[Float64Run] = []

        def round_otherwise(seed: int) -> Float64Run:
            made.append(Float64Run(seed))
            return made[-1]

        others = [run(float64=partial(round_otherwise, 0))]
        while len(others) < RUNS and any(each.has_rounded for each in made):
            others.append(run(float64=partial(round_otherwise, len(others))))
        return run(float64=Float64Run), others

    def watch(self, rung: Rung, most: int | None = None, **heard: Any) -> Watched:
        """Make the calls on a rung, compiled anew; only the first `most` calls if given. heard: as in `watch_isolated`."""
        if most is None:
            return watch_isolated(self.subject, rung, self.options, self.expected, **heard)
        few = replace(self.subject, calls=min(most, self.subject.calls))
        return watch_isolated(few, rung, replace(self.options, repetitions=0), self.expected)

    def judge(self, actual: Watched) -> tuple[tuple[Deviation, ...], tuple[str, ...]]:
        """Return the deviations, call by call, and the differences that count as rounding."""
        found, excuses = [], []
        for call, observed in actual.items():
            for each in compare_observations(self.expected[call], observed, call, self.options.precision):
                if reason := self._excuse(each, observed):
                    excuses.append(reason)
                elif (
                    self.options.precision == USUAL
                    and self.control[0]
                    and may_be_rounding(each, self.expected[call], observed)
                ):
                    self.unproven.append(f"{call}, {each.where}")
                else:
                    found.append(each)
        return tuple(found), tuple(excuses)

    def _excuse(self, deviation: Deviation, observed: Observation) -> str:
        if self.options.precision != USUAL or self.control[0]:
            return ""
        shadow, others = self._roundings
        # Eager has been compared with itself: a repeated call does the same.
        of = deviation.call if deviation.call in shadow else "call 1"
        return excuse(deviation, self.expected[deviation.call], observed, shadow[of], [other[of] for other in others])

    def run_as_found(self, climb: Climb) -> Watched:
        """Make the calls on the rung on which a climb first deviated, in the same state of the caches."""
        if not climb.is_of_caches:
            return self.watch(climb.rung)
        with fresh_cache():
            actual = self.watch(climb.rung)
            return self.watch(climb.rung) if climb.caches == WARM else actual

    def begin_search(self, work: str) -> Attempts:
        """Begin a search that may take half of the time for searches, and announce its attempts."""
        announce = self.options.announce
        return Attempts(self.options.seconds / 2, lambda num: announce(f"{self.subject.name}: attempt {num} to {work}"))


def watch_isolated(
    subject: Subject,
    rung: Rung,
    options: AuditOptions,
    expected: Watched | None = None,
    listen: Callable[[Callable[[Any], None]], AbstractContextManager[Any]] = lambda send: nullcontext(),
    receive: Callable[[Any], None] = lambda sent: None,
) -> Watched:
    """Make calls in a separate process.

    If a call ends the process, its observation says so.

    listen: makes a context around the calls, which sends additional values to `receive` in this process
    """
    seen: Watched = {}

    def keep(made: tuple[str, Any]) -> None:
        if isinstance(made[1], Observation):
            seen[made[0]] = made[1]
        else:
            receive(made)

    def work(send: Callable[[Any], None]) -> None:
        with listen(send):
            watch(subject, rung, expected, repetitions=options.repetitions, note=lambda *made: send(made))

    if end := run_isolated(work, keep, seconds=options.patience):
        seen[next(reversed(seen), "call 1")] = Observation(end=end)
    return seen


@cache
def warm_up_compiler() -> None:
    """Let Inductor make the preparations that it makes once in a process; forked processes inherit them.

    Its tests of the processor and of the headers need no empty folder of caches: torch keeps them in the user's folder.
    """
    from torch._inductor.codecache import CacheBase, torch_key
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    pick_vec_isa()
    if can_isolate():
        prepare_compiler(Subject("sum", _add_mirrored, lambda call: (torch.ones(64), torch.ones(64)), calls=1))
        torch_key()
        CacheBase.get_system()


def _add_mirrored(first: Tensor, second: Tensor) -> Tensor:
    return first.flip(0) + second


def prepare_compiler(subject: Subject) -> None:
    """Compile the first call by Inductor here, so that forked processes inherit everything that torch loads for it.

    The compiled code does not run, since it may end the process.
    """

    def compile_alone(graph: Any, inputs: list[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx

        compile_fx(graph, inputs)
        raise NotImplementedError

    if can_isolate():
        rung = Rung("compiled", "nothing", {"backend": compile_alone})
        with compiling_without_caches(), torch._inductor.config.patch(compile_threads=1):
            watch(replace(subject, calls=1, first=1), rung, repetitions=0)


def climb(subject: Subject, options: AuditOptions = USUALLY, rungs: Sequence[Rung] | None = None) -> Ladder:
    """Compare every rung with eager, after running eager twice.

    The caller chooses the folder of the caches.

    rungs: by default those of the options

    A rung runs as users run it, with the compiler's caches in that folder. It runs again from these caches, and then
    without caches.
    """
    judge, unsteady = _judge_eager(subject, options)
    climbs: list[Climb] = []
    impossible = []
    is_cuda = is_on_cuda((subject.inputs(0), [each.get() for each in find_captured_values(subject.function)]))
    rungs = options.ladder if rungs is None else rungs
    for rung in () if unsteady else rungs:
        if rung.name == "reduce-overhead" and not is_cuda:
            impossible.append((rung.name, "CUDA graphs need tensors on a CUDA device"))
            continue
        options.announce(f"{subject.name} on rung {rung.name}")
        climbs.append(_climb_rung(judge, rung, is_seeded=bool(climbs) and climbs[-1].is_seeded))
        # A higher rung also does the work of this one.
        if climbs[-1].is_lost or any(each.kind == "end" for each in climbs[-1].deviations):
            break
    if all(each.error for each in judge.expected.values()) and not any(each.deviations for each in climbs):
        raise UserError(
            f"already fails in eager: {next(iter(judge.expected.values())).error}",
            where=subject.name,
            fix="check the function and the arguments that make_inputs makes",
        )
    return Ladder(unsteady, tuple(climbs), tuple(impossible), judge)


def _judge_eager(subject: Subject, options: AuditOptions) -> tuple[Judge, tuple[Deviation, ...]]:
    """Run a function twice in eager. Return the judge of its calls, and the differences between the two runs."""
    options.announce(f"{subject.name} on rung {EAGER.name}")
    again = watch_isolated(subject, EAGER, options)
    if end := next((each.end for each in again.values() if each.end), ""):
        raise UserError(
            f"ends the process without the compiler: {end}", where=subject.name, fix="audit a step that returns"
        )
    judge = Judge(subject, options)
    # The state of the step must be restored in this process as well, where the calls before have changed it.
    here = watch(subject, EAGER, repetitions=options.repetitions)
    found: dict[Deviation, None] = {}
    for call, before in judge.expected.items():
        for other in (again[call], here[call]):
            found |= dict.fromkeys(compare_observations(before, other, call, options.precision))
    return judge, tuple(found)


def _climb_rung(judge: Judge, rung: Rung, *, is_seeded: bool) -> Climb:
    """Run a rung in each state of the caches. If random numbers differ, run it with those of eager."""
    began = time.perf_counter()
    found: tuple[Deviation, ...] = ()
    excuses: tuple[str, ...] = ()
    where, num_calls = COLD, 0
    try:
        with drawing_as_eager(is_seeded):
            for caches in (COLD, WARM, OFF) if rung.has_caches else (COLD,):
                with compiling_without_caches() if caches == OFF else nullcontext():
                    actual = judge.watch(rung, None if caches == COLD else FEW)
                deviations, excused = judge.judge(actual)
                num_calls += len(actual)
                draws = not is_seeded and any(each.draws for each in judge.expected.values())
                if deviations and draws and not found:
                    with drawing_as_eager(True):
                        seeded, _ = judge.judge(judge.watch(rung))
                    if len(seeded) < len(deviations):
                        return _climb_rung(judge, rung, is_seeded=True)
                excuses = excuses or excused
                if deviations and not found:
                    found, where = deviations, caches
                if any(each.kind == "end" for each in deviations):
                    break
                if deviations and rung.has_caches and caches == COLD:
                    # This also serves the searches for the cause and the line.
                    prepare_compiler(judge.subject)
    except DeviceLost as error:
        lost = Deviation("some call", "error", "", f"the device was lost: {error}")
        return Climb(rung, (lost,), 0, time.perf_counter() - began, is_lost=True)
    # If there are no deviations at the end, the rung is right without the caches.
    return Climb(rung, found, num_calls, time.perf_counter() - began, False, where, not deviations, excuses, is_seeded)


def watch(
    subject: Subject,
    rung: Rung,
    expected: Watched | None = None,
    *,
    repetitions: int = 2,
    float64: Callable[[], Float64Run] | None = None,
    note: Callable[[str, Observation], None] = lambda name, seen: None,
) -> Watched:
    """Make the calls of a subject on a rung, compiled anew.

    Everything that the calls change is restored.

    expected: the eager calls. Repeated calls begin with the results of these, so that rounding does not add up over
              calls.
    float64:  makes the context in which each call is observed
    note:     receives an empty observation when a call begins, and the actual observation when it has returned
    """
    with _compiling_anew():
        function = subject.function if rung.options is None else _compile_plainly(subject.function, rung.options)
        seen: Watched = {}

        def call(name: str, inputs: Inputs, number: int) -> None:
            note(name, Observation())
            # In eager, also what the step compiles itself runs without the compiler.
            stance = torch.compiler.set_stance("force_eager") if rung.options is None else nullcontext()
            with seeding(subject.first + number), stance:
                seen[name] = _call(function, subject.function, inputs, float64)
            note(name, seen[name])

        for number in range(subject.calls):
            with _restored(subject, number) as (inputs, _):
                call(f"call {number + 1}", inputs, number)
        with _restored(subject, 0) as (held, state):
            for number in range(subject.calls if subject.first == 0 else 0):
                if expected is not None and number:
                    _put_results(held, state, expected[f"repeated call {number}"])
                call(f"repeated call {number + 1}", held, number)
        for number in range(repetitions):
            with _restored(subject, 0) as (inputs, _):
                call(f"call 1 again, {number + 1}", inputs, 0)
        return seen


@contextmanager
def _restored(subject: Subject, number: int) -> Iterator[tuple[Inputs, CapturedState]]:
    """Make the arguments of a call. Afterwards restore them, and everything else that the function can reach."""
    with seeding(subject.first + number):
        inputs = subject.shared_inputs(number)
    state = find_captured_values(subject.function, inputs)
    with restoring(state):
        yield inputs, state


def _put_results(held: Inputs, state: CapturedState, before: Observation) -> None:
    leaves = [leaf for _, leaf in list_leaves(held)]
    pairs = [*zip(leaves, before.leaves("argument").values(), strict=False)]
    pairs += [(captured.get(), before.leaves("captured").get(captured.path)) for captured in state]
    for leaf, value in pairs:
        if isinstance(leaf, Tensor) and isinstance(value, Tensor):
            set_tensor(leaf, value.detach())


def _compile_plainly(function: Function, options: dict[str, Any]) -> Function:
    """Compile any callable, such as a module, through a plain function."""

    def run(*inputs: Any) -> Any:
        return function(*inputs)

    compiled: Function = torch.compile(run, **options)
    return compiled


def _call(
    function: Function, captures: Function, inputs: Inputs, float64: Callable[[], Float64Run] | None
) -> Observation:
    if torch.cuda.is_available():
        # Earlier outputs of a captured graph may be overwritten, but they have been copied.
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
    if float64 is None:
        return observe(function, inputs, captures=captures)
    run = float64()

    def step(*given: Any) -> Any:
        try:
            return function(*given)
        finally:
            run.num_of_step = run.num_operations

    return observe(step, inputs, captures=captures, around=run, convert=run.shadow_of)


@contextmanager
def _compiling_anew() -> Iterator[None]:
    """Ignore graphs compiled earlier in this process. A failed compilation is an error, not an eager run."""
    torch._dynamo.reset()
    # Torch measures how long guards take only to log it, and empties the processor's caches for that, a tenth of a
    # second each time.
    unmeasured = patch("torch._dynamo.guards.profile_guard_manager", lambda *given: 0.0, create=True)
    with warnings.catch_warnings(), torch._dynamo.config.patch(suppress_errors=False), unmeasured:
        # Even if warnings are errors, the compiler's warnings are not a property of the function.
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch._dynamo.reset()


@contextmanager
def keeping_caches(rungs: Sequence[Rung]) -> Iterator[None]:
    """Compile with torch's caches in an empty folder. rungs: the rungs that run."""
    if any(rung.has_caches for rung in rungs):
        warm_up_compiler()
    with fresh_cache():
        yield


def drawing_as_eager(is_needed: bool) -> AbstractContextManager[Any]:
    """Let compiled code draw the same random numbers as eager, if needed."""
    import torch._inductor.config

    patched: AbstractContextManager[Any] = torch._inductor.config.patch({"fallback_random": True} if is_needed else {})
    return patched


@contextmanager
def compiling_without_caches() -> Iterator[None]:
    """Ignore graphs in the caches. Generated kernels stay in the caches, since their key is their whole source."""
    import torch._functorch.config
    import torch._inductor.config

    with (
        torch._inductor.config.patch(fx_graph_cache=False, fx_graph_remote_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield
