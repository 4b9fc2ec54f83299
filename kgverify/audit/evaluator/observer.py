"""Does looking change what is seen? The evaluator with its steps recorded against the one without, mode by mode.

A compiler optimizes what nobody reads. So the tick that tells its steps and the one that does not are two programs, and a
defect of one may be missing from the other: a comparison of recorded steps then vouches for code that is not the code
that evaluates. Both must end in equal outcomes and log-probabilities, bit for bit, and in those of the eager evaluator.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.audit.environment import describe_environment
from kgverify.audit.evaluator.subject import lay_out_candidates
from kgverify.audit.finding import AuditReport, Finding, Unmeasured, describe_error
from kgverify.audit.numerics.precision_ladder import pick
from kgverify.audit.numerics.states import choice_states
from kgverify.engines.compiled.engine import CompiledEngine
from kgverify.engines.compiled.execution.compilation import FUSED
from kgverify.engines.compiled.execution.device import resolve_device
from kgverify.engines.compiled.stages.choose import SCORES
from kgverify.engines.compiled.stages.stage_functions import Stages, build_stages
from kgverify.engines.compiled.tick.stage_ticks import StageTicks
from kgverify.engines.compiled.tick.step_record import Results, TakenSteps
from kgverify.engines.compiled.tick.tick_loop import Ticks
from kgverify.engines.policy import Policy
from kgverify.errors import InternalError, UserError
from kgverify.program.outcomes import Outcome
from kgverify.runs.progress import Phase, silent_phase
from kgverify.runs.run import Run
from kgverify.trace.model.columns import CandidateSet, Columns

PROBED, UNPROBED, DIGESTS = "with its steps recorded", "without", "with digests"
MODES: Final = {"cpu": ("eager", "default"), "cuda": ("eager", "default", "reduce-overhead", FUSED)}
TICKS_ALLOWED: Final = 4
"""Times as many ticks as the eager evaluator takes, before a build is taken for one that never ends."""

MECHANISM: Final = (
    "what records a step reads values that nothing else does; without it the compiler may fuse, reorder or leave out their"
    " computation, and is right in one build and wrong in the other"
)


class Endless(InternalError):
    """A build that takes far more ticks than the eager evaluator."""


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """One build of the evaluator in one mode, against the eager evaluator with its steps recorded.

    how:           `with its steps recorded`, `without`, or `with digests`
    num_differing: candidates that end otherwise, by more than rounding explains; first: the first of them, in words
    num_rounded:   candidates that end alike, but not bit for bit, as products of other kernels are rounded
    num_close:     candidates that end otherwise after a choice that was closer than twice the scores' error
    error:         what it raised, if it did
    """

    mode: str
    how: str
    num_differing: int = 0
    num_rounded: int = 0
    num_close: int = 0
    first: str = ""
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Whether it ended as the eager evaluator did."""
        return not self.num_differing and not self.error


class End(NamedTuple):
    """How the candidates ended in a build; None where it raised, and what."""

    mode: str
    how: str
    results: Results | None
    error: str = ""


class Standard(NamedTuple):
    """What builds are compared with.

    is_close:   bool    [N]  candidates with a choice within twice the scores' error, which rounding may change
    allowed:    float64 [N]  by how much log-probabilities may differ by rounding, nats
    most_ticks: that a build may take
    """

    results: Results
    is_close: NDArray[np.bool_]
    allowed: NDArray[np.float64]
    most_ticks: int


class ObserverReport(AuditReport, frozen=True, kw_only=True):
    """The check of observers: every build that was compared."""

    builds: tuple[Build, ...] = ()


class _CountedTicks(StageTicks):
    """Counts its ticks, and gives up where there are too many."""

    num = 0
    most: int | None = None

    def _take_recorded_tick_(self) -> TakenSteps:
        self._count()
        return super()._take_recorded_tick_()

    def _take_tick_(self) -> None:
        self._count()
        super()._take_tick_()

    def _count(self) -> None:
        self.num += 1
        if self.most is not None and self.num > self.most:
            raise Endless(f"no end after {self.most} ticks")


class _CountedEngine(CompiledEngine):
    def _build_ticks(self, policy: Policy) -> Ticks:
        if self._mode == FUSED:
            return super()._build_ticks(policy)
        buffers = self._derivations, self._work, self._pool
        return _CountedTicks(self._setting, self._tables, self._parameters, buffers, self._mode)

    def allow(self, most: int | None) -> None:
        """From now on so many ticks."""
        if isinstance(self._ticks, _CountedTicks):
            self._ticks.num, self._ticks.most = 0, most

    @property
    def num_ticks(self) -> int:
        """Since `allow`."""
        return self._ticks.num if isinstance(self._ticks, _CountedTicks) else 0


def audit_observer(
    run: Run,
    *,
    modes: Sequence[str] | None = None,
    device: str = "auto",
    slots: int = 64,
    precision: str = "float32",
    stages: Stages | None = None,
    phase: Phase = silent_phase,
) -> ObserverReport:
    """Prove the candidates of a run in each mode with and without recording, and compare their ends bit for bit.

    modes:  of the evaluator, beside eager; those of the device if not given
    stages: instead of the evaluator's own
    UserError where the run has no candidates, or for a mode that is not to be had.
    """
    on = resolve_device(device)
    wanted = [mode for mode in (MODES[on.type] if modes is None else modes) if mode != "eager"]
    stages = build_stages(SCORES[run.policy.name]) if stages is None else stages
    candidates, layout = lay_out_candidates(run, slots)

    def build(mode: str) -> _CountedEngine:
        return _CountedEngine(
            run.graph.program,
            run.limits,
            run.policy,
            mode=mode,
            device=on.type,
            layout=layout,
            stages=stages,
            precision=precision,
        )

    with phase("eager", 0):
        eager = build("eager")
        standard = _standard(run, eager, candidates)
        ends = [End("eager", PROBED, standard.results), _end("eager", UNPROBED, eager, candidates, standard.most_ticks)]
    unmeasured = []
    for mode in wanted:
        with phase(mode, 0):
            try:
                engine = build(mode)
            except UserError as error:
                if modes is not None:
                    raise
                unmeasured.append(Unmeasured(audit="observer", reason=error.message))
                continue
            hows = (PROBED, UNPROBED, DIGESTS) if mode == FUSED else (PROBED, UNPROBED)
            ends += [_end(mode, how, engine, candidates, standard.most_ticks) for how in hows]
    if on.type != "cuda":
        reason = "captured graphs and fused ticks need a CUDA device"
        unmeasured.append(Unmeasured(audit="observer", reason=reason))
    builds = [_compare(end, standard) for end in ends]
    return ObserverReport(
        subject=f"compiled evaluator on {run.graph.name}",
        findings=tuple(_judge(builds, ends, standard)),
        unmeasured=tuple(unmeasured),
        measures={"candidates": float(len(candidates.query)), "builds": float(len(builds))},
        environment=describe_environment(on.type, modes=", ".join(("eager", *wanted))),
        builds=tuple(builds),
    )


def _standard(run: Run, engine: _CountedEngine, candidates: CandidateSet) -> Standard:
    """The eager evaluator, every step recorded."""
    engine.allow(None)
    columns = engine.prove(candidates)
    states = choice_states(columns, run.limits.max_atoms)
    num_resolvents = columns.steps.num_resolvents.astype(np.int64)
    scores = columns.resolvents.score[np.repeat(num_resolvents > 1, num_resolvents)].astype(np.float64)
    error = engine.info.score_error
    is_close = np.zeros(len(candidates.query), np.bool_)
    if len(states.goal):
        _, _, gap = pick(scores, states)
        is_close[states.candidate[gap <= 2 * error]] = True
    if error == 0.0:
        # Exact scores tie exactly, and the lowest index is no matter of rounding.
        is_close[:] = False
    return Standard(
        _results(columns),
        is_close,
        2 * error * columns.candidates.num_steps.astype(np.float64),
        TICKS_ALLOWED * engine.num_ticks + 64,
    )


def _results(columns: Columns) -> Results:
    ended = columns.candidates
    return Results(ended.outcome.astype(np.int32), ended.is_limited.astype(np.bool_), ended.log_probability)


def _end(mode: str, how: str, engine: _CountedEngine, candidates: CandidateSet, most: int) -> End:
    """How the candidates end in a build, or what it raises."""
    engine.allow(most)
    num_looks = 0

    def count(_: int) -> None:
        nonlocal num_looks
        num_looks += 1
        if num_looks > most:
            raise Endless(f"no end after {most} looks at the device")

    try:
        if how == PROBED:
            return End(mode, how, _results(engine.prove(candidates, count)))
        return End(mode, how, engine.evaluate(candidates, count, has_digests=how == DIGESTS).results)
    except Exception as error:  # Of one build alone: whatever the compiler or what it made raises is its end.
        return End(mode, how, None, describe_error(error))


def _differ(expected: Results, actual: Results, standard: Standard) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """bool [N] each: which candidates end otherwise, and which of the others are not equal bit for bit."""
    a, b = expected.log_probability, actual.log_probability
    is_same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        is_near = is_same | (np.abs(a - b) <= standard.allowed)
    otherwise = (expected.outcome != actual.outcome) | (expected.is_limited != actual.is_limited) | ~is_near
    bits = a.view(np.int64) != b.view(np.int64)
    return otherwise, bits & ~otherwise


def _compare(end: End, standard: Standard) -> Build:
    if end.results is None:
        return Build(mode=end.mode, how=end.how, error=end.error)
    otherwise, rounded = _differ(standard.results, end.results, standard)
    wrong = np.flatnonzero(otherwise & ~standard.is_close)
    return Build(
        mode=end.mode,
        how=end.how,
        num_differing=len(wrong),
        num_rounded=int(rounded.sum()),
        num_close=int((otherwise & standard.is_close).sum()),
        first=_describe(int(wrong[0]), standard.results, end.results) if len(wrong) else "",
    )


def _describe(candidate: int, expected: Results, actual: Results) -> str:
    def told(results: Results) -> str:
        limited = ", limited" if results.is_limited[candidate] else ""
        value = int(results.outcome[candidate])
        name = Outcome(value).name if value in tuple(Outcome) else f"outcome {value}"
        return f"{name}{limited}, {results.log_probability[candidate]:.9g} nats"

    return f"candidate {candidate} ends {told(actual)} instead of {told(expected)}"


def _judge(builds: Sequence[Build], ends: Sequence[End], standard: Standard) -> Iterator[Finding]:
    """In each mode the builds against one another, then against eager."""
    by_mode: dict[str, list[tuple[Build, End]]] = {}
    for build, end in zip(builds, ends, strict=True):
        by_mode.setdefault(build.mode, []).append((build, end))
    for mode, of_mode in by_mode.items():
        probed, probed_end = of_mode[0]
        is_told = False
        for build, end in of_mode[1:]:
            if _are_alike(probed_end, end, standard):
                continue
            is_told = True
            yield _finding(mode, probed, build)
        if not is_told and not probed.is_right:
            yield _wrong_alike(mode, probed)


def _are_alike(probed: End, unprobed: End, standard: Standard) -> bool:
    if probed.results is None or unprobed.results is None:
        return probed.error == unprobed.error
    otherwise, _ = _differ(probed.results, unprobed.results, standard)
    return not bool((otherwise & ~standard.is_close).any())


def _told(build: Build) -> str:
    if build.error:
        return f"{build.how} it raises {build.error}"
    if build.num_differing:
        return f"{build.how} {build.num_differing:,} candidates end unlike eager ({build.first})"
    return f"{build.how} it ends as eager does"


def _finding(mode: str, probed: Build, unprobed: Build) -> Finding:
    if probed.is_right:
        what = "recording hides a defect"
    elif unprobed.is_right:
        what = "recording brings in a defect"
    else:
        what = "recording changes a defect"
    return Finding(
        audit="observer",
        mechanism=MECHANISM,
        finding=f"mode {mode}: {what}: {_told(probed)}, and {_told(unprobed)}",
        where=f"mode {mode}",
        remedy="look for the stage and the pass with `kgverify audit modes`; until it is found, compare outcomes of the build"
        " that is used, not recorded steps alone, or use --mode eager",
    )


def _wrong_alike(mode: str, probed: Build) -> Finding:
    return Finding(
        audit="observer",
        mechanism="both builds are wrong in the same way: recording neither hides nor makes the defect",
        finding=f"mode {mode}: {_told(probed)}, and without recording the same",
        where=f"mode {mode}",
        remedy="look for the stage and the pass with `kgverify audit modes`, or use --mode eager",
    )
