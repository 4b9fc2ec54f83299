"""The ladder of precisions: every choice of a run in each, against float64, its gap against the declared error."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from kgverify.audit.finding import Finding, Unmeasured, describe_error
from kgverify.audit.numerics.products import PrecisionScore, precision_scores
from kgverify.audit.numerics.report import Flip, Rung
from kgverify.audit.numerics.states import ChoiceStates
from kgverify.audit.numerics.values import Look
from kgverify.engines.compiled.stages.choose import Parameters, Score, build_parameters, score_two_tower
from kgverify.engines.compiled.tower.precision import estimate_score_error
from kgverify.engines.policy import Policy

ROWS: Final = 1 << 15
"""Resolvents scored at a time, about."""
MECHANISM: Final = (
    "rounded products move scores by up to their error; a choice with a gap of at most twice that may fall either way,"
    " and one with a larger gap may not"
)

NameGoal = Callable[[NDArray[np.int32]], str]
"""Atoms int32 [A, 3], padded -> as a person reads them."""


def climb_ladder(
    policy: Policy,
    states: ChoiceStates,
    device: torch.device,
    name: NameGoal,
    *,
    max_atoms: int,
    most_flips: int = 20,
    scores: Sequence[PrecisionScore] | None = None,
) -> tuple[tuple[Rung, ...], Look]:
    """The rungs, float64 first, and what of them is a finding. scores: the rungs to climb, if not all there are"""
    if policy.name != "two_tower" or len(states.goal) == 0:
        reason = "the policy has no products" if policy.name != "two_tower" else "no step of the run has a choice"
        return (), Look(unmeasured=(Unmeasured(audit="precision", reason=reason),))
    exact = score_states(score_two_tower, build_parameters(policy, device, torch.float64), states, device)
    best, _, gap = pick(exact, states)
    smallest = float(gap.min())
    rungs = [_exact_rung(len(best), smallest)]
    look = Look()
    if device.type != "cuda":
        reason = "tf32 and bf16x3 are emulated on a CPU, and the evaluator's kernels need a CUDA device"
        look = Look(unmeasured=(Unmeasured(audit="precision", reason=reason),))
    for each in precision_scores(policy, device) if scores is None else scores:
        try:
            found = score_states(each.score, each.parameters, states, device)
            error = estimate_score_error(policy, max_atoms, device, each.score, each.parameters)
        except (RuntimeError, NotImplementedError) as failure:
            reason = f"{each.precision}, {each.how}: {describe_error(failure)}"
            look = look.join(Look(unmeasured=(Unmeasured(audit="precision", reason=reason),)))
            continue
        rung = compare_choices(each, states, exact, found, error, name, most_flips)
        rungs.append(rung)
        look = look.join(_judge(rung))
    return tuple(rungs), look


def score_states(
    score: Score, parameters: Parameters, states: ChoiceStates, device: torch.device
) -> NDArray[np.float64]:
    """float64 [R]: the scores, some goals at a time."""
    parts = []
    begin = 0
    while begin < len(states.goal):
        end = int(np.searchsorted(states.first, states.first[begin] + ROWS, "right")) - 1
        end = max(begin + 1, min(end, len(states.goal)))
        rows = slice(int(states.first[begin]), int(states.first[end]))
        parts.append(
            score(
                parameters,
                torch.as_tensor(states.goal[begin:end], device=device),
                torch.as_tensor(states.resolvent[rows], device=device),
                torch.as_tensor(states.slot[rows] - begin, device=device),
            )
            .double()
            .cpu()
            .numpy()
        )
        begin = end
    return np.concatenate(parts)


def pick(
    scores: NDArray[np.float64], states: ChoiceStates
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Of each choice the row of the highest score, of equal ones the first; that score; and its gap to the next other state.

    The gap is inf where all resolvents are the same state. NaN counts as the highest, as argmax has it.
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
    rung: PrecisionScore,
    states: ChoiceStates,
    exact: NDArray[np.float64],
    found: NDArray[np.float64],
    error: float,
    name: NameGoal,
    most_flips: int,
) -> Rung:
    """What a precision chooses otherwise than float64; two resolvents that are the same state are one choice."""
    best, top, gap = pick(exact, states)
    chosen, _, _ = pick(found, states)
    differs = (states.resolvent[best] != states.resolvent[chosen]).any(axis=(1, 2))
    lost = top - exact[chosen]
    flipped = np.flatnonzero(differs)
    flipped = flipped[np.argsort(-lost[flipped], kind="stable")]
    bound = 2 * error
    flips = tuple(
        Flip(
            candidate=int(states.candidate[i]),
            step=int(states.step[i]),
            goal=name(states.goal[i]),
            exact=name(states.resolvent[best[i]]),
            chosen=name(states.resolvent[chosen[i]]),
            gap=float(lost[i]),
            bound=bound,
        )
        for i in flipped[:most_flips].tolist()
    )
    apart = np.abs(found - exact)
    return Rung(
        precision=rung.precision,
        how=rung.how,
        score_error=error,
        largest_error=float(np.where(np.isnan(apart), np.inf, apart).max()),
        num_choices=len(best),
        num_close=int((gap <= bound).sum()),
        num_flips=len(flipped),
        num_beyond=int((~(lost[flipped] <= bound)).sum()),
        smallest_gap=float(gap.min()),
        flips=flips,
    )


def _exact_rung(num: int, smallest: float) -> Rung:
    return Rung(
        precision="fp64",
        how="native",
        score_error=0.0,
        largest_error=0.0,
        num_choices=num,
        num_close=0,
        num_flips=0,
        num_beyond=0,
        smallest_gap=smallest,
    )


def _judge(rung: Rung) -> Look:
    """Flips beyond the bound, and scores further off than is declared."""
    findings = []
    title = f"{rung.precision} ({rung.how})"
    if rung.num_beyond:
        worst = rung.flips[0] if rung.flips else None
        first = (
            f"; the first, candidate {worst.candidate}, step {worst.step}: {worst.chosen} instead of {worst.exact},"
            f" {worst.gap:.3g} nats below it"
            if worst
            else ""
        )
        findings.append(
            Finding(
                audit="precision",
                mechanism=MECHANISM,
                finding=f"{title}: {rung.num_beyond:,} of {rung.num_choices:,} choices differ from float64 by more than"
                f" twice the declared error of {rung.score_error:.3g} nats{first}",
                where="score",
                remedy="score close choices again in a higher precision, or declare a larger error",
            )
        )
    if not rung.largest_error <= rung.score_error:
        findings.append(
            Finding(
                audit="precision",
                mechanism="the error declared of scores is what decides whether a choice that differs is rounding",
                finding=f"{title}: a score of the run is {rung.largest_error:.3g} nats off, {rung.score_error:.3g} are declared",
                where="score",
                remedy="declare an error that bounds the scores of the states that runs come to",
            )
        )
    key = f"{rung.precision}_{rung.how}"
    measures = {f"flips_{key}": float(rung.num_flips), f"flips_beyond_{key}": float(rung.num_beyond)}
    return Look(tuple(findings), (), measures)
