"""The climb from eager upwards, rung by rung, to the first rung on which a function behaves differently than in eager."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import torch

from stepaudit.audited_function import Function, Inputs, Subject, seeding
from stepaudit.compiled_step import is_compiled
from stepaudit.errors import UserError, describe_error
from stepaudit.isolation import can_isolate, is_device_lost, run_isolated
from stepaudit.ladder.custom_operators import UseOfOperator
from stepaudit.ladder.observation import SIGNED_ZERO, Deviation, Observation, compare_observations, observe, restored
from stepaudit.ladder.rounding import FEW_UNITS, RUNS, Excuse, Float64Run, excuse, may_be_rounding
from stepaudit.ladder.unsteady import Source, find_source
from stepaudit.minimize import Attempts
from stepaudit.operations import OperationMode
from stepaudit.options import EAGER, GIVEN, USUALLY, WITHOUT_CACHES, AuditOptions, Rung
from stepaudit.properties.captured_values import find_captured_values
from stepaudit.properties.compiled_run import silencing_compiler
from stepaudit.values import EXACT, USUAL, Precision, is_on_cuda

COLD, WARM = "as users run it", "as users run it, from the caches"
"""The states of the compiler's caches in which a rung runs."""
FEW: Final = 2
"""The number of calls from the caches."""


class Climb(NamedTuple):
    """The result of a rung.

    num_calls:    the compared calls; seconds: the duration, including compilation; is_lost: whether the device was lost
    caches:       the first state of the caches in which calls deviated
    excuses:      the differences that count as rounding
    observed:     the call of the first deviation
    """

    rung: Rung
    deviations: tuple[Deviation, ...]
    num_calls: int
    seconds: float
    is_lost: bool = False
    caches: str = COLD
    excuses: tuple[Excuse, ...] = ()
    observed: Observation | None = None


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
    signs, errors: the zeros with other signs, if these do not count as deviations, and the errors of other kinds
    draws:    whether eager draws random numbers; if so, compiled code draws the same ones
    repeats:  further runs in eager, if eager does not repeat itself to the bit
    source:   why it does not, if more than a unit of rounding differs
    """

    def __init__(self, subject: Subject, options: AuditOptions = USUALLY) -> None:
        self.subject, self.options = subject, options
        self.unproven: list[str] = []
        self.repeats: list[Watched] = []
        self.source: Source | None = None
        self.signs: dict[str, None] = {}
        self.errors: dict[str, None] = {}
        self.expected = watch(subject, EAGER, repetitions=options.repetitions)
        self.draws = any(each.draws for each in self.expected.values())
        self._watch_in = partial(watch, subject, EAGER, self.expected, repetitions=0)

    def compare(self, actual: Watched, precision: Precision) -> Iterator[tuple[Deviation, Observation]]:
        """Yield the deviations of calls from eager, each with its call."""
        for call, observed in actual.items():
            for each in compare_observations(self.expected[call], observed, call, precision):
                yield each, observed

    @cached_property
    def control(self) -> tuple[tuple[Deviation, ...], int, dict[Any, UseOfOperator]]:
        """The differences of calls in the context of those with other roundings, but without any.

        A few units of rounding are no difference if they come back, since operations may choose another algorithm there.
        Also the number of operations, and the operators that torch does not define, with their first use.

        Where eager does not repeat itself, these calls need not either: the difference must be rounding.
        """
        mode = Float64Run(0, 0.0)
        seen = self._watch_in(mode=mode)
        again = self._watch_in(mode=Float64Run(0, 0.0)) if any(self.compare(seen, EXACT)) else seen
        comes_back = not any(any(compare_observations(seen[call], again[call], "", EXACT)) for call in seen)
        unsteady = {each[1:3] for run in self.repeats for each, _ in self.compare(run, EXACT)}
        found = (
            each
            for each, one in self.compare(seen, EXACT)
            if not (comes_back and may_be_rounding(each, self.expected[each.call], one, FEW_UNITS))
            and (each[1:3] not in unsteady or not self._explain_rounding(each, one))
        )
        return tuple(found), sum(each.num_operations for each in seen.values()), mode.custom_operators

    @cached_property
    def _float64(self) -> Watched:
        """The calls in float64."""
        return self._watch_in(mode=Float64Run())

    @cached_property
    def _roundings(self) -> list[Watched]:
        """The calls with other roundings; only one of them if no operation rounds."""
        mode = Float64Run(0)
        first = self._watch_in(mode=mode)
        return [
            first,
            *(self._watch_in(mode=Float64Run(seed)) for seed in (range(1, RUNS) if mode.has_rounded else ())),
        ]

    def watch(self, rung: Rung, most: int | None = None, **heard: Any) -> Watched:
        """Make the calls on a rung, compiled anew; only the first `most` calls if given. heard: as in `watch_isolated`."""
        subject, options = self.subject, self.options
        if most is not None:
            subject, options = replace(subject, calls=min(most, subject.calls)), replace(options, repetitions=0)
        with torch._inductor.config.patch({"fallback_random": True} if self.draws else {}):
            return watch_isolated(subject, rung, options, self.expected, **heard)

    def judge(self, actual: Watched) -> tuple[tuple[Deviation, ...], tuple[Excuse, ...]]:
        """Return the deviations, call by call, and the differences that count as rounding."""
        found, excuses = [], []
        for call, observed in actual.items():
            kinds = self.expected[call].kind_of_error, observed.kind_of_error
            if all(kinds) and kinds[0] != kinds[1]:
                self.errors[f"{call}: eager raises {kinds[0]}, and compiled code {kinds[1]}"] = None
        is_usual = self.options.precision == USUAL
        for each, observed in self.compare(actual, self.options.precision):
            is_proven = is_usual and not self.control[0]
            if each.kind == SIGNED_ZERO and not self.options.signed_zero:
                self.signs[f"{each.call}, {each.where}: {each.detail}"] = None
            elif is_proven and (reason := self._explain_rounding(each, observed)):
                excuses.append(reason)
            elif is_usual and not is_proven and may_be_rounding(each, self.expected[each.call], observed):
                self.unproven.append(f"{each.call}, {each.where}")
            else:
                found.append(each)
        return tuple(found), tuple(excuses)

    def _explain_rounding(self, deviation: Deviation, observed: Observation) -> Excuse | None:
        """Return the excuse of a deviation that is rounding; None if it is not."""
        # Eager has been compared with itself: a repeated call does the same.
        of = deviation.call if deviation.call in self._float64 else "call 1"
        legitimate = [run[of] for run in (*self._roundings, *self.repeats)]
        return excuse(deviation, self.expected[deviation.call], observed, self._float64[of], legitimate)

    def read_float64(self, call: str) -> Observation | None:
        """Return a call in float64; None if no run in float64 repeats eager."""
        return None if self.control[0] else self._float64.get(call, self._float64["call 1"])

    def is_right(self, actual: Watched) -> bool:
        """Return whether the calls do what eager does. Where eager raises, the errors must be of the same kind."""
        kinds = [(self.expected[call].kind_of_error, observed.kind_of_error) for call, observed in actual.items()]
        return not self.judge(actual)[0] and all(expected == found for expected, found in kinds)

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
    UserError if that folder is not the user's, since torch runs what it finds there.
    """
    from torch._inductor.codecache import CacheBase, torch_key
    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

    for folder in (cache_dir(), default_cache_dir()):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.name == "posix" and (os.stat(folder).st_uid != os.geteuid() or os.stat(folder).st_mode & 0o002):
            raise UserError("belongs to others, or they can write there", where=folder, fix="delete it, or set TMPDIR")
    pick_vec_isa()
    if can_isolate():
        subject = Subject("warm-up", lambda rows: rows.flip(0) + rows, lambda call: (torch.ones(64),), calls=1)
        with compiling_without_caches(), torch._inductor.config.patch(compile_threads=1):
            watch(subject, Rung("warm-up", "", {"backend": "inductor"}), repetitions=0)
        torch_key()
        CacheBase.get_system()


def climb(subject: Subject, options: AuditOptions = USUALLY, rungs: Sequence[Rung] | None = None) -> Ladder:
    """Compare every rung with eager, after running eager twice.

    The caller chooses the folder of the caches.

    rungs: by default those of the options

    A rung runs as users run it, with the compiler's caches in that folder. Each rung below the first one that deviates runs
    again from the caches.
    """
    judge, unsteady = _judge_eager(subject, options)
    climbs: list[Climb] = []
    impossible = []
    captured = [each.get() for each in find_captured_values(subject.function)]
    is_cuda = is_on_cuda((subject.inputs(0), captured))
    if rungs is None:
        calls_compiled = any(map(is_compiled, captured))
        rungs = [*options.ladder, *([GIVEN] if calls_compiled and options.ladder else [])]
    for rung in () if unsteady else rungs:
        if rung.name == "reduce-overhead" and not is_cuda:
            impossible.append((rung.name, "CUDA graphs need tensors on a CUDA device"))
            continue
        options.announce(f"{subject.name} on rung {rung.name}")
        climbs.append(_climb_rung(judge, rung, is_first=not any(each.deviations for each in climbs)))
        # A higher rung also does the work of this one. After two that deviate, the others show nothing new.
        kinds = {each.kind for each in climbs[-1].deviations}
        if climbs[-1].is_lost or "end" in kinds or (kinds and any(each.deviations for each in climbs[:-1])):
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
    # A state with a period, such as that of `itertools.cycle`, may be the same when all calls are over.
    names = (name for name in judge.expected if name == "repeated call 1" or name.startswith("call 1 again"))
    alike = judge.expected | dict.fromkeys(names, judge.expected["call 1"])
    judge.repeats = [run for run in (again, here, alike) if any(judge.compare(run, EXACT))]
    # The sign of a zero may depend on an order of additions that varies.
    found = [
        (each, seen)
        for run in judge.repeats
        for each, seen in judge.compare(run, options.precision)
        if each.kind != SIGNED_ZERO or options.signed_zero
    ]
    if judge.repeats:
        judge.repeats += [watch(subject, EAGER, repetitions=options.repetitions) for _ in range(RUNS)]
    if not found:
        return judge, ()
    number = found[0][0].call.removeprefix("call ")
    judge.source = find_source(subject, int(number) - 1 if number.isdigit() else 0)
    is_small = all(may_be_rounding(each, judge.expected[each.call], seen) for each, seen in found)
    return judge, () if judge.source.is_order and is_small else tuple(dict.fromkeys(each for each, _ in found))


def _climb_rung(judge: Judge, rung: Rung, *, is_first: bool) -> Climb:
    """Run a rung as users run it. is_first: whether no rung below it deviates, so that the caches matter as well."""
    began = time.perf_counter()
    caches, num_calls = COLD, 0
    try:
        actual = judge.watch(rung)
        deviations, excuses = judge.judge(actual)
        num_calls += len(actual)
        if rung.has_caches and is_first and not deviations:
            actual, caches = judge.watch(rung, FEW), WARM
            deviations, excused = judge.judge(actual)
            num_calls, excuses = num_calls + len(actual), excuses or excused
    except RuntimeError as error:
        if not is_device_lost():
            raise
        lost = Deviation("some call", "error", "", f"the device was lost: {describe_error(error)}")
        return Climb(rung, (lost,), 0, time.perf_counter() - began, is_lost=True)
    observed = actual[deviations[0].call] if deviations else None
    seconds = time.perf_counter() - began
    return Climb(rung, deviations, num_calls, seconds, False, caches, excuses, observed)


def watch(
    subject: Subject,
    rung: Rung,
    expected: Watched | None = None,
    *,
    repetitions: int = 2,
    mode: OperationMode | None = None,
    note: Callable[[str, Observation], None] = lambda name, seen: None,
) -> Watched:
    """Make the calls of a subject on a rung, compiled anew.

    Everything that the calls change is restored.

    expected: the eager calls. Repeated calls begin with the results of these, so that rounding does not add up over
              calls.
    mode:     runs the operations of each call
    note:     receives an empty observation when a call begins, and the actual observation when it has returned
    """
    with _compiling_anew():
        function = subject.function if rung.options is None else _compile_plainly(subject.function, rung.options)
        seen: Watched = {}
        draws = rung.draws_as_eager

        def call(name: str, inputs: Inputs, number: int) -> None:
            note(name, Observation())
            # In eager, also what the step compiles itself runs without the compiler.
            stance = torch.compiler.set_stance("force_eager") if rung == EAGER else nullcontext()
            with seeding(subject.first + number), stance:
                if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                    # Earlier outputs of a captured graph may be overwritten, but they have been copied.
                    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                seen[name] = observe(function, inputs, captures=subject.function, mode=mode, draws_as_eager=draws)
            note(name, seen[name])

        for number in range(subject.calls):
            with restored(subject, number) as (inputs, _):
                call(f"call {number + 1}", inputs, number)
        with restored(subject, 0) as (held, state):
            for number in range(subject.calls if subject.first == 0 else 0):
                if expected is not None and number:
                    expected[f"repeated call {number}"].put_into(held, state)
                call(f"repeated call {number + 1}", held, number)
        for number in range(repetitions):
            with restored(subject, 0) as (inputs, _):
                call(f"call 1 again, {number + 1}", inputs, 0)
        return seen


def _compile_plainly(function: Function, options: dict[str, Any]) -> Function:
    """Compile any callable, such as a module, through a plain function."""

    def run(*inputs: Any, **keywords: Any) -> Any:
        return function(*inputs, **keywords)

    return torch.compile(run, **options)


@contextmanager
def _compiling_anew() -> Iterator[None]:
    """Ignore graphs compiled earlier in this process. A failed compilation is an error, not an eager run."""
    # Torch measures how long guards take only to log it, and empties the processor's caches for that, a tenth of a
    # second each time.
    unmeasured = patch("torch._dynamo.guards.profile_guard_manager", lambda *given: 0.0, create=True)
    quiet = patch("torch._inductor.select_algorithm.PRINT_AUTOTUNE", False, create=True)
    with silencing_compiler(), torch._dynamo.config.patch(suppress_errors=False), unmeasured, quiet:
        yield


@contextmanager
def compiling_without_caches() -> Iterator[None]:
    """Ignore graphs in the caches. Generated kernels stay in the caches, since their key is their whole source."""
    with ExitStack() as stack:
        for module, settings in WITHOUT_CACHES:
            stack.enter_context(module.patch(settings))
        yield
