"""The stage `choose` on planted ties, NaN and extreme scores, against its definition in SEMANTICS.md."""

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import torch
from torch import Tensor

from benchmarks.numerics.compile_in_mode import compile_in_mode
from kgverify.audit.report import ReportBuilder
from kgverify.errors import describe_error
from kgverify.prover.stages.choose import choose
from kgverify.prover.state import FALSE, GOAL, TRUE, Choices

AUDIT: Final = "choose"
WIDTHS: Final = (4, 16, 121)
"""Numbers of resolvents for which `choose` is given room."""

TOLERANCE: Final = 1e-9
ROUNDING: Final = 4 * 2.0**-52
"""Relative error of log-probabilities, which are made in float64, and relative to the highest score, which is subtracted."""

Step: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""The arguments of `choose`: kind, num_resolvents, score."""

Choose = Callable[[Tensor, Tensor, Tensor], Choices]


def plant_choices(device: torch.device, num_columns: int) -> Step:
    """Make arguments of `choose` with ties at every index, one resolvent, no resolvent, TRUE, FALSE and extreme scores."""
    rows: list[tuple[int, int, list[float]]] = []
    for num in sorted({n for n in (1, 2, 3, 5, 16, 32, 120) if n < num_columns} | {num_columns}):
        for first in sorted({0, num // 2, num - 1}):
            for second in sorted({first, num - 1}):
                row = [-1.0 - 0.25 * (i % 5) for i in range(num)]
                row[first] = row[second] = 0.5
                rows.append((GOAL, num, row))
        rows += [
            (GOAL, num, [float((offset + 5 * i) % turn) for i in range(num)]) for turn in (2, 3, 5) for offset in (0, 1)
        ]
        zeros = [0.0, -0.0] * (num // 2) + [0.0] * (num % 2)
        rows += [(GOAL, num, [0.0] * num), (GOAL, num, [-3.0e38] * num), (GOAL, num, zeros)]
    rows += [(TRUE, 1, [0.0]), (FALSE, 1, [0.0]), (GOAL, 0, [])]
    score = torch.full((len(rows), num_columns), -torch.inf)
    for i, (_, num, values) in enumerate(rows):
        score[i, :num] = torch.tensor(values)
    kind = torch.tensor([kind for kind, _, _ in rows], dtype=torch.int32)
    num_resolvents = torch.tensor([num for _, num, _ in rows])
    return kind.to(device), num_resolvents.to(device), score.to(device)


def choose_by_definition(kind: int, num: int, scores: Sequence[float]) -> tuple[int, float]:
    """Return the choice of SEMANTICS.md: the highest score, among equal ones the lowest index, and its log-softmax."""
    if kind != GOAL or num == 0:
        return 0, 0.0
    best = max(scores)
    total = math.fsum(math.exp(each - best) for each in scores)
    return scores.index(best), -math.log(total)


def audit_choose(
    report: ReportBuilder, stage: Choose = choose, *, device: torch.device, mode: str | None = "default"
) -> None:
    """Compare the stage on planted scores with the semantics, eager and compiled; check that a NaN is never silent.

    Measure: `choices_planted`.
    """
    planted = [plant_choices(device, num_columns) for num_columns in WIDTHS]
    poisoned = [(kind, num, torch.where(score == -torch.inf, score, torch.nan)) for kind, num, score in planted]

    def choose_all(steps: Sequence[Step]) -> list[Choices]:
        return [stage(*step) for step in steps]

    for how in ("eager",) if mode is None else ("eager", mode):
        try:
            function = compile_in_mode(choose_all, how)
            choices = function(planted)
            of_nan = function(poisoned)
        except Exception as error:  # The compiler and a stage of the user may raise anything.
            report.skip(AUDIT, f"mode {how}: {describe_error(error)}")
            continue
        _check_choices(how, planted, choices, report)
        num_silent = sum(
            int(((kind == GOAL) & (num > 1) & ~given.log_probability.isnan()).sum())
            for (kind, num, _), given in zip(planted, of_nan, strict=True)
        )
        if num_silent:
            report.find(
                AUDIT,
                mechanism="comparisons with NaN are false, so that a NaN can be passed over silently",
                finding=f"mode {how}: of {num_silent} steps whose scores are NaN the log-probability is a number",
                where="choose",
                remedy="make the log-probability of all scores, so that a NaN among them makes it NaN",
            )
    report.measures["choices_planted"] = float(sum(len(kind) for kind, _, _ in planted))


def _check_choices(how: str, planted: Sequence[Step], choices: Sequence[Choices], report: ReportBuilder) -> None:
    wrong = []
    for (kind, num_resolvents, score), given in zip(planted, choices, strict=True):
        columns = kind, num_resolvents, score, given.choice, given.log_probability
        for each, num, scores, actual, nats in zip(*(column.tolist() for column in columns), strict=True):
            choice, log_probability = choose_by_definition(each, num, scores[:num])
            best = abs(scores[choice]) if num else 0.0
            allowed = TOLERANCE * max(1.0, abs(log_probability)) + ROUNDING * best
            if actual != choice or not abs(nats - log_probability) <= allowed:
                wrong.append((num, choice, log_probability, actual, nats))
    if not wrong:
        return
    num, choice, expected_nats, actual, actual_nats = wrong[0]
    total = sum(len(kind) for kind, _, _ in planted)
    report.find(
        AUDIT,
        mechanism="among equal scores the lowest index must be chosen (SEMANTICS.md, stage choose)",
        finding=f"mode {how}: {len(wrong)} of {total} planted steps differ; of {num} resolvents"
        f" expected {choice} ({expected_nats:.6g} nats), chosen {actual} ({actual_nats:.6g} nats)",
        where="choose",
        remedy="use argmax, or the least index of the highest score by `where` and `amin`; never topk or sort",
    )
