"""The exercise of a comparison in words: the evidence behind its verdict, and how to exercise the rest."""

from typing import Final

from kgverify.comparison.exercise.exercise import ITEMS, Exercise, describe_minimum
from kgverify.comparison.result import Verdict
from kgverify.errors import count_of
from kgverify.program.limits import MAX_ATOMS, MAX_RESOLVENTS, DeclaredLimits
from kgverify.program.stages import Stage
from kgverify.report.content import ReportContent
from kgverify.report.wording import clip

MOST_RULES: Final = 3
"""The unused rules that are named."""
_MOST_OF_RULE: Final = 80

_LARGEST: Final = {"max_resolvents": MAX_RESOLVENTS, "max_atoms": MAX_ATOMS}
_OPTIONS: Final = {name: f"--limits {name}=" for name in ("max_resolvents", "max_atoms", "max_depth")}


def exercise_lines(report: ReportContent) -> list[str]:
    """Describe the exercise of both sides and the minimum, the steps of each stage, and advice; empty if it is unknown."""
    found = report.exercise
    if found is None:
        return []
    sides = (
        {"": found.expected}
        if found.expected == found.actual
        else {"expected ": found.expected, "actual ": found.actual}
    )
    lines = limit_lines(report)
    lines += [f"{role}exercised: {describe_exercise(each)}" for role, each in sides.items()]
    if report.verdict is Verdict.AGREE:
        lines[-1] += f" (required: {describe_minimum(report.minimum)})"
    lines += [f"{role}stages: {describe_stages(each)}" for role, each in sides.items() if each.stages]
    if report.verdict is not Verdict.DIVERGE and (advice := advise(found.expected)):
        lines.append(f"to exercise more: {advice}")
    return lines


def limit_lines(report: ReportContent) -> list[str]:
    """Describe the limits that decided the verdict, and those that it does not test; empty if the exercise is unknown."""
    found = report.exercise
    return (
        []
        if found is None
        else describe_limits(found.expected if found.expected.limits else found.actual, report.limits)
    )


def describe_exercise(exercise: Exercise) -> str:
    """Describe the evidence of a side: `5 candidates proved, 3 of 3 rules used, 242 of 278 steps with ...`."""

    def of(num: int | None, every: int | None, what: str) -> str:
        if num is None:
            return f"{what} unknown"
        return f"{num:,} {what}" if every is None else f"{num:,} of {every:,} {what}"

    proved = (
        "candidates proved unknown" if exercise.proved is None else f"{count_of(exercise.proved, 'candidate')} proved"
    )
    parts = [proved, of(exercise.rules, exercise.num_rules, "rules used")]
    if exercise.facts is not None:
        parts.append(of(exercise.facts, exercise.num_facts, "facts used"))
    parts.append(of(exercise.choices, exercise.counted or None, "steps with a choice"))
    if exercise.inferred:
        parts.append(f"{' and '.join(ITEMS[name] for name in exercise.inferred)} inferred from the other side")
    return ", ".join(parts)


def describe_stages(exercise: Exercise) -> str:
    """Describe in how many steps each stage acted: `match_rules 139, limit 0 of 278 steps`."""
    acted = ", ".join(f"{name} {num:,}" for name, num in exercise.stages.items() if name != Stage.CHOOSE)
    counted = "" if exercise.counted == exercise.steps else f"; counted in {exercise.counted:,} of {exercise.steps:,}"
    return f"{acted} of {exercise.counted:,} steps{counted}"


def describe_limits(exercise: Exercise, limits: DeclaredLimits) -> list[str]:
    """Describe the limits that decided steps, each with a value that would not have, and those that no step reached."""
    lines = []
    for name, num in exercise.limits.items():
        value, enough = getattr(limits, name), exercise.enough.get(name, 0)
        if not num or value is None:
            continue
        what = "derivations ended at the limit" if name == "max_depth" else f"of {exercise.counted:,} steps were cut"
        other = f"; {name} {enough:,} would cut none of them" if value < enough <= _LARGEST[name] else ""
        lines.append(f"{num:,} {what}: the verdict holds only for {name} {value:,}{other}")
    if never := [name for name in _OPTIONS if exercise.limits.get(name) == 0]:
        lines.append(f"no step reached {' or '.join(never)}: a fault there would not have been seen")
    return lines


def advise(exercise: Exercise) -> str:
    """Return how to exercise what was not, with options of the command line; empty if everything was."""
    parts = []
    never = [name for name in _OPTIONS if exercise.limits.get(name) == 0]
    if never:
        reached = [(name, exercise.largest.get(name, 0)) for name in never]
        lower = " or ".join(f"{_OPTIONS[name]}{most - 1}" for name, most in reached if most > 1)
        parts.append(f"{f'lower a limit with {lower}, or ' if lower else ''}raise --queries")
    if exercise.num_rules == 0:
        parts.append("the program has no rules: give a file of rules with --rules")
    if exercise.rules is not None and exercise.num_rules and exercise.rules < exercise.num_rules:
        parts.append(f"{_describe_unused(exercise)}: raise --queries or --corruptions")
    idle = [name for name, num in exercise.stages.items() if not num and name not in (Stage.LIMIT, Stage.CHOOSE)]
    if idle and exercise.counted:
        parts.append(f"never acted: {', '.join(idle)}")
    return "; ".join(parts)


def _describe_unused(exercise: Exercise) -> str:
    num = (exercise.num_rules or 0) - (exercise.rules or 0)
    named = [clip(rule, _MOST_OF_RULE) for rule in exercise.unused_rules[:MOST_RULES]]
    rest = num - len(named)
    listed = "; ".join(named) + (f" and {rest:,} more" if named and rest else "")
    return f"{num:,} rule{'' if num == 1 else 's'} not used{f' ({listed})' if listed else ''}"
