"""Prove with and without recording in each mode: both must end alike, and as eager does.

    python -m benchmarks.observer --graph countries --mode default --json observer.json

Run it in the repository's root. Exit code 0 if they do, 1 if not, 2 for bad input.

A compiler optimizes code whose results nobody reads. So the tick that records its steps and the one that does not are two
programs, and a defect of one may be missing from the other: a comparison of recorded steps then vouches for code other than
the code that evaluates. Both must end in equal outcomes and log-probabilities, bit for bit, and in those of eager.
"""

import itertools
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from cyclopts import Parameter, validators
from numpy.typing import NDArray

from benchmarks.command_script import deliver_report, run_script
from benchmarks.numerics.precision_ladder import collect_choice_states, find_choices
from kgverify.audit.evaluator.audited_tick import lay_out_candidates
from kgverify.audit.report import AuditReport, ReportBuilder
from kgverify.cli import options
from kgverify.cli.progress import show_phase
from kgverify.engines.endings import Results
from kgverify.engines.policy import Policy
from kgverify.errors import InternalError, UserError, describe_error
from kgverify.program.outcomes import Outcome
from kgverify.progress import Phase, silent_phase
from kgverify.prover.engine import CompiledEngine, Ticks
from kgverify.prover.execution.compilation import FUSED
from kgverify.prover.execution.device import resolve_device
from kgverify.prover.stages.choose import SCORES
from kgverify.prover.stages.stage_functions import Stages, build_stages
from kgverify.prover.tick.stage_ticks import StageTicks
from kgverify.prover.tick.step_record import TakenSteps
from kgverify.runs.machine import describe_environment
from kgverify.runs.run import Run
from kgverify.trace.model.columns import CandidateSet, Columns

AUDIT: Final = "observer"
RECORDED, UNRECORDED, DIGESTS = "with its steps recorded", "without", "with digests"
MODES: Final = {"cpu": ("eager", "default"), "cuda": ("eager", "default", "reduce-overhead", FUSED)}
TICKS_ALLOWED: Final = 4
"""A build that takes more than this many times the ticks of the eager evaluator counts as endless."""


class Endless(InternalError):
    """A build that takes far more ticks than the eager evaluator."""


class Build(NamedTuple):
    """One build of the evaluator in one mode, against the eager evaluator with its steps recorded.

    recording:     `with its steps recorded`, `without`, or `with digests`
    num_differing: candidates that end otherwise, by more than rounding explains; first: a description of the first one
    num_rounded:   candidates that end alike, but not bit for bit, as other kernels round products differently
    num_close:     candidates that end otherwise after a choice that was closer than twice the scores' error
    error:         the error that it raised; empty if there was no error
    """

    mode: str
    recording: str
    num_differing: int = 0
    num_rounded: int = 0
    num_close: int = 0
    first: str = ""
    error: str = ""

    @property
    def is_right(self) -> bool:
        """True if it ended as the eager evaluator did."""
        return not self.num_differing and not self.error


class End(NamedTuple):
    """The end of the candidates in a build. results: None where it raised an error."""

    mode: str
    recording: str
    results: Results | None
    error: str = ""


class Standard(NamedTuple):
    """The end with which builds are compared.

    is_close:   bool    [N]  candidates with a choice within twice the scores' error, which rounding may change
    allowed:    float64 [N]  largest difference of log-probabilities by rounding, nats
    most_ticks: limit on the ticks of a build
    """

    results: Results
    is_close: NDArray[np.bool_]
    allowed: NDArray[np.float64]
    most_ticks: int


class _CountedTicks(StageTicks):
    """Ticks that are counted, with a limit."""

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

    def limit_ticks(self, most: int | None) -> None:
        """Count ticks from 0, with a limit."""
        if isinstance(self._ticks, _CountedTicks):
            self._ticks.num, self._ticks.most = 0, most

    @property
    def num_ticks(self) -> int:
        """The number of ticks since `limit_ticks`."""
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
) -> AuditReport:
    """Prove the candidates of a run in each mode with and without recording, and compare their ends bit for bit.

    modes:  of the evaluator, beside eager; those of the device if not given
    stages: replace the evaluator's own
    The section `builds` of the report has a row for each build. UserError where the run has no candidates, or for a mode
    that is unavailable.
    """
    on = resolve_device(device)
    wanted = [mode for mode in (MODES[on.type] if modes is None else modes) if mode != "eager"]
    stages = build_stages(SCORES[run.policy.name]) if stages is None else stages
    candidates, layout = lay_out_candidates(run, slots)
    options: dict[str, Any] = {"device": on.type, "layout": layout, "stages": stages, "precision": precision}
    build = partial(_CountedEngine, run.graph.program, run.limits, run.policy, **options)
    report = ReportBuilder()
    # Even where warnings are errors, those of torch are not a difference that recording makes: the trees of CUDA graphs
    # begin with an empty capture, of which torch warns.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with phase("eager", 0):
            eager = build(mode="eager")
            standard = _make_standard(run, eager, candidates)
            ends = [End("eager", RECORDED, standard.results)]
            ends.append(find_end("eager", UNRECORDED, eager, candidates, standard.most_ticks))
        for mode in wanted:
            with phase(mode, 0):
                try:
                    engine = build(mode=mode)
                except UserError as error:
                    if modes is not None:
                        raise
                    report.skip(AUDIT, error.message)
                    continue
                recordings = (RECORDED, UNRECORDED, DIGESTS) if mode == FUSED else (RECORDED, UNRECORDED)
                ends += [find_end(mode, each, engine, candidates, standard.most_ticks) for each in recordings]
    if on.type != "cuda":
        report.skip(AUDIT, "captured graphs and fused ticks need a CUDA device")
    builds = [compare_with_standard(end, standard) for end in ends]
    judge_builds(builds, ends, standard, report)
    report.measures |= {"candidates": float(len(candidates.query)), "builds": float(len(builds))}
    report.add_section("builds", "ends, against eager with its steps recorded", (each._asdict() for each in builds))
    environment = describe_environment(on.type, modes=", ".join(("eager", *wanted)))
    return report.build(f"compiled evaluator on {run.graph.name}", environment)


def _make_standard(run: Run, engine: _CountedEngine, candidates: CandidateSet) -> Standard:
    """Prove in eager, with every step recorded."""
    engine.limit_ticks(None)
    columns = engine.prove(candidates)
    states = collect_choice_states(columns, run.limits.max_atoms)
    num_resolvents = columns.steps.num_resolvents.astype(np.int64)
    scores = columns.resolvents.score[np.repeat(num_resolvents > 1, num_resolvents)].astype(np.float64)
    error = engine.info.score_error
    is_close = np.zeros(len(candidates.query), np.bool_)
    # Exact scores tie exactly, and rounding does not change the lowest index.
    if error and len(states.goal):
        _, _, gap = find_choices(scores, states)
        is_close[states.candidate[gap <= 2 * error]] = True
    return Standard(
        _results(columns),
        is_close,
        2 * error * columns.candidates.num_steps.astype(np.float64),
        TICKS_ALLOWED * engine.num_ticks + 64,
    )


def _results(columns: Columns) -> Results:
    ended = columns.candidates
    return Results(ended.outcome.astype(np.int32), ended.is_limited.astype(np.bool_), ended.log_probability)


def find_end(mode: str, recording: str, engine: _CountedEngine, candidates: CandidateSet, most: int) -> End:
    """Prove the candidates in a build; return their end, or the error that it raises."""
    engine.limit_ticks(most)
    looks = itertools.count(1)

    def look(_: int) -> None:
        if next(looks) > most:
            raise Endless(f"no end after {most} looks at the device")

    try:
        if recording == RECORDED:
            return End(mode, recording, _results(engine.prove(candidates, look)))
        return End(mode, recording, engine.evaluate(candidates, look, has_digests=recording == DIGESTS).results)
    except Exception as error:  # Any error of the compiler or of compiled code is the end of this build.
        return End(mode, recording, None, describe_error(error))


def _find_differing(
    expected: Results, actual: Results, standard: Standard
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return bool [N] twice: candidates that end otherwise, and further ones that are not equal bit for bit."""
    a, b = expected.log_probability, actual.log_probability
    is_same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        is_near = is_same | (np.abs(a - b) <= standard.allowed)
    otherwise = (expected.outcome != actual.outcome) | (expected.is_limited != actual.is_limited) | ~is_near
    bits = a.view(np.int64) != b.view(np.int64)
    return otherwise, bits & ~otherwise


def compare_with_standard(end: End, standard: Standard) -> Build:
    """Compare the end of a build with that of eager."""
    if end.results is None:
        return Build(mode=end.mode, recording=end.recording, error=end.error)
    otherwise, rounded = _find_differing(standard.results, end.results, standard)
    wrong = np.flatnonzero(otherwise & ~standard.is_close)
    return Build(
        mode=end.mode,
        recording=end.recording,
        num_differing=len(wrong),
        num_rounded=int(rounded.sum()),
        num_close=int((otherwise & standard.is_close).sum()),
        first=_describe_candidate(int(wrong[0]), standard.results, end.results) if len(wrong) else "",
    )


def _describe_candidate(candidate: int, expected: Results, actual: Results) -> str:
    def describe(results: Results) -> str:
        limited = ", limited" if results.is_limited[candidate] else ""
        value = int(results.outcome[candidate])
        name = Outcome(value).name if value in tuple(Outcome) else f"outcome {value}"
        return f"{name}{limited}, {results.log_probability[candidate]:.9g} nats"

    return f"candidate {candidate} ends {describe(actual)} instead of {describe(expected)}"


def judge_builds(builds: Sequence[Build], ends: Sequence[End], standard: Standard, report: ReportBuilder) -> None:
    """Compare the builds of each mode with each other, then with eager."""
    by_mode: dict[str, list[tuple[Build, End]]] = {}
    for build, end in zip(builds, ends, strict=True):
        by_mode.setdefault(build.mode, []).append((build, end))
    for mode, of_mode in by_mode.items():
        recorded, recorded_end = of_mode[0]
        different = [build for build, end in of_mode[1:] if not _are_alike(recorded_end, end, standard)]
        for build in different:
            effect = "hides" if recorded.is_right else "brings in" if build.is_right else "changes"
            report.find(
                AUDIT,
                mechanism="recording a step reads values that nothing else reads; without it the compiler may fuse, reorder or"
                " omit their computation, and is right in one build and wrong in the other",
                finding=f"mode {mode}: recording {effect} a defect: {_describe_end(recorded)}, and {_describe_end(build)}",
                where=f"mode {mode}",
                remedy="compare outcomes of the build"
                " that is used, not recorded steps alone, or use --mode eager",
            )
        if not different and not recorded.is_right:
            report.find(
                AUDIT,
                mechanism="both builds are wrong in the same way: recording neither hides nor makes the defect",
                finding=f"mode {mode}: {_describe_end(recorded)}, and without recording the same",
                where=f"mode {mode}",
                remedy="use --mode eager",
            )


def _are_alike(recorded: End, unrecorded: End, standard: Standard) -> bool:
    if recorded.results is None or unrecorded.results is None:
        return recorded.error == unrecorded.error
    otherwise, _ = _find_differing(recorded.results, unrecorded.results, standard)
    return not bool((otherwise & ~standard.is_close).any())


def _describe_end(build: Build) -> str:
    if build.error:
        return f"{build.recording} it raises {build.error}"
    if build.num_differing:
        return f"{build.recording} {build.num_differing:,} candidates end unlike eager ({build.first})"
    return f"{build.recording} it ends as eager does"


def main(
    *,
    source: Annotated[options.GraphOptions, options.OWN] = options.GraphOptions(),
    queries: Annotated[options.QueryOptions, options.OWN] = options.QueryOptions(),
    proofs: Annotated[options.ProofOptions, options.OWN] = options.ProofOptions(),
    device: str = "auto",
    mode: list[str] | None = None,
    precision: str = "float32",
    slots: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 64,
) -> int:
    """Prove with and without recording in each mode: both must end alike, and as eager does.

    Exit code 0 if they do, 1 if not.

    Args:
        device: The device.
        mode: A mode of the evaluator; repeat for several; those of the device if not given.
        precision: Precision of the policy's products.
        slots: Derivations in flight.
    """
    run = options.make_job(source, queries, proofs).make_run()
    report = audit_observer(run, modes=mode or None, device=device, slots=slots, precision=precision, phase=show_phase)
    return deliver_report(report)


if __name__ == "__main__":
    run_script(main)
