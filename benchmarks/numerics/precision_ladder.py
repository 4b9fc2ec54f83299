"""The ladder of precisions: every choice of a run in each, against float64, with its gap against the declared error."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.numerics.products import PrecisionScore, list_precision_scores
from kgverify.audit.report import ReportBuilder
from kgverify.engines.policy import Policy
from kgverify.errors import describe_error
from kgverify.program.outcomes import GoalKind
from kgverify.prover.stages.choose import Parameters, Score, build_parameters, score_two_tower
from kgverify.prover.state import PAD
from kgverify.prover.tower.precision import estimate_score_error
from kgverify.trace.model.columns import Columns, cut_rows, starts_of

AUDIT: Final = "precision"
ROWS: Final = 1 << 15
"""Resolvents scored at a time, about."""

NameGoal = Callable[[NDArray[np.int32]], str]
"""Atoms int32 [A, 3], padded -> readable text."""


class ChoiceStates(NamedTuple):
    """Every step of a run with two resolvents or more, G of them, with all R resolvents.

    goal:      int32 [G, A, 3]  padded with PAD
    resolvent: int32 [R, A, 3]
    slot:      int64 [R]        the goal of each resolvent
    first:     int64 [G + 1]    where the resolvents of each goal begin
    candidate: int64 [G]
    step:      int64 [G]
    """

    goal: NDArray[np.int32]
    resolvent: NDArray[np.int32]
    slot: NDArray[np.int64]
    first: NDArray[np.int64]
    candidate: NDArray[np.int64]
    step: NDArray[np.int64]


def collect_choice_states(columns: Columns, atoms: int) -> ChoiceStates:
    """Collect the choices of a run. atoms: the length to which goals are padded."""
    steps, resolvents = columns.steps, columns.resolvents
    num_steps = columns.candidates.num_steps.astype(np.int64)
    owner = np.repeat(np.arange(len(num_steps)), num_steps)
    ordinal = np.arange(len(owner)) - starts_of(num_steps)[owner]
    num_resolvents = steps.num_resolvents.astype(np.int64)
    chooses = num_resolvents > 1
    is_of_choice = np.repeat(chooses, num_resolvents) & (resolvents.kind == GoalKind.GOAL)
    goal = _pad(steps.num_atoms, steps.goal_atoms, chooses, atoms)
    resolvent = _pad(resolvents.num_atoms, resolvents.atoms, is_of_choice, atoms)
    counts = num_resolvents[chooses]
    return ChoiceStates(
        goal, resolvent, np.repeat(np.arange(len(counts)), counts), starts_of(counts), owner[chooses], ordinal[chooses]
    )


def _pad(
    num_atoms: NDArray[np.uint16], rows: NDArray[np.int32], picked: NDArray[np.bool_], atoms: int
) -> NDArray[np.int32]:
    """Pad the picked goals of a ragged column to int32 [n, A, 3]."""
    num = num_atoms.astype(np.int64)
    owner = np.repeat(np.arange(len(num)), num)
    column = np.arange(len(owner)) - starts_of(num)[owner]
    wanted = picked[owner]
    row_of = np.cumsum(picked) - 1
    padded = np.full((int(picked.sum()), atoms, 3), PAD, np.int32)
    padded[row_of[owner[wanted]], column[wanted]] = rows[wanted]
    return padded


class Flip(NamedTuple):
    """A choice that differs between a precision and float64.

    candidate, step: of the run
    gap:   the distance in float64 of the chosen resolvent below the highest, nats
    bound: twice the declared error of scores: a larger gap is not rounding
    """

    candidate: int
    step: int
    gap: float
    bound: float
    goal: str
    chosen: str
    exact: str


class PrecisionResult(NamedTuple):
    """The choices of a run in one precision, against those in float64.

    how:         `native`, `emulated`, or `kernel`, one of the evaluator's on a GPU
    score_error: declared, nats; largest_error: the largest of the run's states
    num_close:   choices with a gap of at most twice the declared error, which rounding may change
    flips:       the largest gaps first; num_flips counts all of them, num_beyond those beyond twice the error
    """

    precision: str
    how: str
    score_error: float
    largest_error: float
    num_choices: int
    num_close: int
    num_flips: int
    num_beyond: int
    smallest_gap: float
    flips: tuple[Flip, ...] = ()


def climb_precisions(
    policy: Policy,
    states: ChoiceStates,
    device: torch.device,
    name: NameGoal,
    report: ReportBuilder,
    *,
    max_atoms: int,
    most_flips: int = 20,
    scores: Sequence[PrecisionScore] | None = None,
) -> list[PrecisionResult]:
    """Compare each precision with float64, which comes first; add sections `precisions` and `flips` to the report.

    scores: the precisions to compare; all available ones if not given
    """
    if policy.name != "two_tower" or len(states.goal) == 0:
        report.skip(AUDIT, "the policy has no products" if policy.name != "two_tower" else "no step has a choice")
        return []
    exact = score_states(score_two_tower, build_parameters(policy, device, torch.float64), states, device)
    best, _, gap = find_choices(exact, states)
    results = [PrecisionResult("fp64", "native", 0.0, 0.0, len(best), 0, 0, 0, float(gap.min()))]
    if device.type != "cuda":
        report.skip(AUDIT, "tf32 and bf16x3 are emulated on a CPU, and the evaluator's kernels need a CUDA device")
    for each in list_precision_scores(policy, device) if scores is None else scores:
        try:
            found = score_states(each.score, each.parameters, states, device)
            error = estimate_score_error(policy, max_atoms, device, each.score, each.parameters)
        except (RuntimeError, NotImplementedError) as failure:
            report.skip(AUDIT, f"{each.precision}, {each.how}: {describe_error(failure)}")
            continue
        results.append(compare_choices(each, states, exact, found, error, name, most_flips))
        _judge(results[-1], report)
    rows = [each._asdict() for each in results]
    flips = [
        {"precision": row["precision"], "how": row["how"], **flip._asdict()}
        for row in rows
        for flip in row.pop("flips")
    ]
    report.add_section("precisions", "precisions, against float64 (nats)", rows)
    report.add_section("flips", "choices that differ from float64, the largest gaps of each precision first", flips)
    return results


def score_states(
    score: Score, parameters: Parameters, states: ChoiceStates, device: torch.device
) -> NDArray[np.float64]:
    """Return the scores, float64 [R], computed for some goals at a time."""
    parts = []
    for begin, end in cut_rows(states.first, ROWS):
        rows = slice(int(states.first[begin]), int(states.first[end]))
        given = states.goal[begin:end], states.resolvent[rows], states.slot[rows] - begin
        found = score(parameters, *(torch.as_tensor(each, device=device) for each in given))
        parts.append(found.double().cpu().numpy())
    return np.concatenate(parts)


def find_choices(
    scores: NDArray[np.float64], states: ChoiceStates
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return for each choice the first row of the highest score, that score, and its gap to the next different state.

    The gap is inf where all resolvents are the same state. NaN counts as the highest, as in argmax.
    """
    first = states.first[:-1]
    ranked = np.where(np.isnan(scores), np.inf, scores)
    top = np.maximum.reduceat(ranked, first)
    rows = np.arange(len(scores))
    best = np.minimum.reduceat(np.where(ranked == top[states.slot], rows, len(scores)), first)
    same = (states.resolvent == states.resolvent[best[states.slot]]).all(axis=(1, 2))
    second = np.maximum.reduceat(np.where(same, -np.inf, ranked), first)
    return best, top, top - second


def compare_choices(
    score: PrecisionScore,
    states: ChoiceStates,
    exact: NDArray[np.float64],
    found: NDArray[np.float64],
    error: float,
    name: NameGoal,
    most_flips: int,
) -> PrecisionResult:
    """Compare the choices of a precision with those of float64; two resolvents that are the same state are one choice."""
    best, top, gap = find_choices(exact, states)
    chosen, _, _ = find_choices(found, states)
    differs = (states.resolvent[best] != states.resolvent[chosen]).any(axis=(1, 2))
    lost = top - exact[chosen]
    flipped = np.flatnonzero(differs)
    flipped = flipped[np.argsort(-lost[flipped], kind="stable")]
    bound = 2 * error
    flips = tuple(
        Flip(
            candidate=int(states.candidate[i]),
            step=int(states.step[i]),
            gap=float(lost[i]),
            bound=bound,
            goal=name(states.goal[i]),
            chosen=name(states.resolvent[chosen[i]]),
            exact=name(states.resolvent[best[i]]),
        )
        for i in flipped[:most_flips].tolist()
    )
    apart = np.abs(found - exact)
    return PrecisionResult(
        precision=score.precision,
        how=score.how,
        score_error=error,
        largest_error=float(np.where(np.isnan(apart), np.inf, apart).max()),
        num_choices=len(best),
        num_close=int((gap <= bound).sum()),
        num_flips=len(flipped),
        num_beyond=int((~(lost[flipped] <= bound)).sum()),
        smallest_gap=float(gap.min()),
        flips=flips,
    )


def _judge(result: PrecisionResult, report: ReportBuilder) -> None:
    """Report flips beyond the bound, and scores with a larger error than declared."""
    title = f"{result.precision} ({result.how})"
    if result.num_beyond:
        first = ""
        if result.flips:
            worst = result.flips[0]
            first = f"; the first, candidate {worst.candidate}, step {worst.step}: {worst.chosen} instead of"
            first += f" {worst.exact}, {worst.gap:.3g} nats below it"
        report.find(
            AUDIT,
            mechanism="rounded products move scores by up to their error; rounding may change a choice with a gap of at most"
            " twice that, and no other",
            finding=f"{title}: {result.num_beyond:,} of {result.num_choices:,} choices differ from float64 by more than"
            f" twice the declared error of {result.score_error:.3g} nats{first}",
            where="score",
            remedy="score close choices again in a higher precision, or declare a larger error",
        )
    if not result.largest_error <= result.score_error:
        report.find(
            AUDIT,
            mechanism="the declared error of scores decides whether a choice that differs is rounding",
            finding=f"{title}: the largest error of a score is {result.largest_error:.3g} nats,"
            f" {result.score_error:.3g} are declared",
            where="score",
            remedy="declare an error that bounds the scores of the states that runs reach",
        )
    key = f"{result.precision}_{result.how}"
    report.measures[f"flips_{key}"] = float(result.num_flips)
    report.measures[f"flips_beyond_{key}"] = float(result.num_beyond)
