"""Ties, NaN and rows of -inf: what the installed torch does in argmax and topk, and what `choose` makes of it."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from kgverify.audit.report import Finding, Unmeasured, describe_error
from kgverify.audit.numerics.report import Convention
from kgverify.audit.values import Look, in_mode
from kgverify.engines.compiled.stages.choose import choose
from kgverify.engines.compiled.state import FALSE, GOAL, TRUE, Choices

SHAPES: Final = ((3, 4), (64, 121), (5, 3000), (2048, 16))
LARGE_SHAPES: Final = ((1 << 16, 121), (7, 1 << 18))
"""On CUDA as well: reductions of rows or of columns are divided differently there."""

WIDTHS: Final = (4, 16, 121)
"""Numbers of resolvents that `choose` is given room for."""

LOWEST, HIGHEST, NAN_FIRST, ZERO = "lowest index", "highest index", "first NaN", "index 0"
TOLERANCE: Final = 1e-9
ROUNDING: Final = 4 * 2.0**-52
"""Of log-probabilities, which are made in float64: relative, and relative to the highest score, from which it is taken."""

Choose = Callable[[Tensor, Tensor, Tensor], Choices]


def _tied(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Few different values, so that nearly every row has several highest ones."""
    rows, columns = (torch.arange(n, device=device) for n in shape)
    return ((rows[:, None] * 7 + columns * 5 + columns // 3) % 3).float()


def _with_nan(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Two NaN in every row, not at its ends, and a +inf before them."""
    values = _tied(shape, device)
    values[:, 0] = torch.inf
    values[:, shape[1] // 2] = torch.nan
    values[:, shape[1] // 2 + 1] = torch.nan
    return values


def _all_low(shape: tuple[int, int], device: torch.device) -> Tensor:
    return torch.full(shape, -torch.inf, device=device)


SITUATIONS: Final[dict[str, Callable[[tuple[int, int], torch.device], Tensor]]] = {
    "ties": _tied,
    "NaN": _with_nan,
    "all -inf": _all_low,
}
OPERATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "argmax": lambda values: values.argmax(1),
    "max": lambda values: values.max(1).indices,
    "topk": lambda values: values.topk(1, 1).indices[:, 0],
    "sort, descending": lambda values: values.sort(1, descending=True).indices[:, 0],
}
RELIED_ON: Final = {("argmax", "ties"): LOWEST}
"""What `choose` needs: of equal scores the lowest index. It is never given NaN, and takes no choice from a row without scores."""


def observe_rule(values: Tensor, index: Tensor) -> str:
    """The rule that the indices taken of the rows follow; `none` where there is none."""
    is_nan = values.isnan()
    if bool(is_nan.any()):
        return NAN_FIRST if torch.equal(index, is_nan.int().argmax(1)) else "none"
    columns = torch.arange(values.shape[1], device=values.device)
    is_best = values == values.amax(1, keepdim=True)
    lowest = torch.where(is_best, columns, values.shape[1]).amin(1)
    if bool((values == -torch.inf).all()):
        return ZERO if bool((index == 0).all()) else "none"
    if torch.equal(index, lowest):
        return LOWEST
    return HIGHEST if torch.equal(index, torch.where(is_best, columns, -1).amax(1)) else "none"


def audit_conventions(device: torch.device, *, mode: str | None = "default") -> tuple[tuple[Convention, ...], Look]:
    """What torch does where a choice is open, in several shapes. mode: of `torch.compile`; None leaves that out."""
    shapes = SHAPES + (LARGE_SHAPES if device.type == "cuda" else ())
    given = {name: [make(shape, device) for shape in shapes] for name, make in SITUATIONS.items()}

    def take_all(values: list[Tensor]) -> list[list[Tensor]]:
        return [[operation(each) for each in values] for operation in OPERATIONS.values()]

    flat = [each for values in given.values() for each in values]
    eager = _rules(take_all(flat), given, len(shapes))
    compiled: dict[tuple[str, str], str] = {}
    unmeasured = []
    if mode is not None:
        try:
            compiled = _rules(in_mode(take_all, mode)(flat), given, len(shapes))
        except Exception as error:  # Whatever the compiler raises.
            unmeasured.append(Unmeasured(audit="argmax", reason=f"mode {mode}: {describe_error(error)}"))
    conventions = tuple(
        Convention(
            operation=operation,
            situation=situation,
            shapes=tuple(f"{rows}x{columns}" for rows, columns in shapes),
            eager=rule,
            compiled=compiled.get((operation, situation), ""),
            relies=RELIED_ON.get((operation, situation), ""),
        )
        for (operation, situation), rule in eager.items()
    )
    findings = tuple(_convention_finding(each) for each in conventions if not each.holds)
    return conventions, Look(findings, tuple(unmeasured))


def _rules(taken: Sequence[Sequence[Tensor]], given: dict[str, list[Tensor]], num: int) -> dict[tuple[str, str], str]:
    rules = {}
    for operation, indices in zip(OPERATIONS, taken, strict=True):
        for number, (situation, values) in enumerate(given.items()):
            seen = {observe_rule(v, i) for v, i in zip(values, indices[number * num : (number + 1) * num], strict=True)}
            rules[operation, situation] = seen.pop() if len(seen) == 1 else "none"
    return rules


def _convention_finding(convention: Convention) -> Finding:
    return Finding(
        audit="argmax",
        mechanism="which of equal values an argmax takes is no promise of torch; each kernel has its own way",
        finding=f"{convention.operation} with {convention.situation}: {convention.eager} in eager,"
        f" {convention.compiled or 'not looked at'} compiled; `choose` relies on: {convention.relies}",
        where="choose",
        remedy="take the least index of the highest score by `where` and `amin`",
    )


def plant_choices(device: torch.device, num_columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Arguments of `choose` where much is open: ties at every place, one resolvent alone, none, TRUE, FALSE, extreme scores."""
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


def reference_choice(kind: int, num: int, scores: Sequence[float]) -> tuple[int, float]:
    """Of SEMANTICS: the highest score, of equal ones the lowest index, and its log-softmax. TRUE and FALSE stand alone."""
    if kind != GOAL or num == 0:
        return 0, 0.0
    best = max(scores)
    total = math.fsum(math.exp(each - best) for each in scores)
    return scores.index(best), -math.log(total)


def audit_choose(stage: Choose = choose, *, device: torch.device, mode: str | None = "default") -> Look:
    """The stage on planted scores against the semantics, eager and compiled; and that a NaN never stays silent.

    Measure: `choices_planted`.
    """
    planted = [plant_choices(device, num_columns) for num_columns in WIDTHS]
    poisoned = [(kind, num, torch.where(score == -torch.inf, score, torch.nan)) for kind, num, score in planted]
    findings: list[Finding] = []
    unmeasured: list[Unmeasured] = []

    def choose_all(steps: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[Choices]:
        return [stage(*step) for step in steps]

    for how in ("eager",) if mode is None else ("eager", mode):
        try:
            function = in_mode(choose_all, how)
            choices = function(planted)
            of_nan = function(poisoned)
        except Exception as error:  # Whatever the compiler, or a stage of the user's, raises.
            unmeasured.append(Unmeasured(audit="choose", reason=f"mode {how}: {describe_error(error)}"))
            continue
        findings += _check_choices(how, planted, choices)
        findings += _check_nan(how, planted, of_nan)
    num_planted = sum(len(kind) for kind, _, _ in planted)
    return Look(tuple(findings), tuple(unmeasured), {"choices_planted": float(num_planted)})


def _check_choices(
    how: str, planted: Sequence[tuple[Tensor, Tensor, Tensor]], choices: Sequence[Choices]
) -> Iterator[Finding]:
    wrong = []
    for (kind, num_resolvents, score), given in zip(planted, choices, strict=True):
        steps = zip(
            kind.tolist(),
            num_resolvents.tolist(),
            score.tolist(),
            given.choice.tolist(),
            given.log_probability.tolist(),
            strict=True,
        )
        for each, num, scores, actual, nats in steps:
            choice, log_probability = reference_choice(each, num, scores[:num])
            best = abs(scores[choice]) if num else 0.0
            allowed = TOLERANCE * max(1.0, abs(log_probability)) + ROUNDING * best
            if actual != choice or not abs(nats - log_probability) <= allowed:
                wrong.append((num, choice, log_probability, actual, nats))
    if not wrong:
        return
    num, choice, expected_nats, actual, actual_nats = wrong[0]
    total = sum(len(kind) for kind, _, _ in planted)
    yield Finding(
        audit="choose",
        mechanism="of equal scores the lowest index is to be chosen (SEMANTICS.md, stage choose)",
        finding=f"mode {how}: {len(wrong)} of {total} planted steps differ; of {num} resolvents"
        f" expected {choice} ({expected_nats:.6g} nats), chosen {actual} ({actual_nats:.6g} nats)",
        where="choose",
        remedy="use argmax, or the least index of the highest score by `where` and `amin`; never topk or sort",
    )


def _check_nan(
    how: str, planted: Sequence[tuple[Tensor, Tensor, Tensor]], choices: Sequence[Choices]
) -> Iterator[Finding]:
    chooses = [(kind == GOAL) & (num > 1) for kind, num, _ in planted]
    pairs = zip(chooses, choices, strict=True)
    num_silent = sum(int((each & ~given.log_probability.isnan()).sum()) for each, given in pairs)
    if num_silent:
        yield Finding(
            audit="choose",
            mechanism="comparisons with NaN are false, so that a NaN can be passed over without a word",
            finding=f"mode {how}: of {num_silent} steps whose scores are NaN the log-probability is a number",
            where="choose",
            remedy="make the log-probability of all scores, so that a NaN among them makes it NaN",
        )
