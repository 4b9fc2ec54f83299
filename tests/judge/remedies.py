"""Remedies that a report names: a minimum or an error to accept, and values of limits, checked with the columns."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from columns import PROVED, RULE, Pair, Recorded

Stated = Iterator[tuple[str, bool]]


def count_evidence(side: Recorded) -> dict[str, int | None]:
    """Return the number of each item of evidence in a trace; None if it is unknown."""
    steps = [step for each in side.steps for step in each]
    outcomes = side.column("candidates/outcome")
    knows_rules = side.has("resolvents/origin_kind", "resolvents/origin")
    return {
        "proved": outcomes and outcomes.count(PROVED),
        "rules": len({clause for step in steps for clause in step.clauses if clause[0] == RULE})
        if knows_rules
        else None,
        "choices": sum(len(step.resolvents) > 1 for step in steps),
    }


ITEMS = {"candidates proved": "proved", "rules used": "rules", "steps with more than one resolvent": "choices"}


def check_minimum(reason: str, pair: Pair) -> Stated:
    """Yield whether too little was exercised as a reason says, and whether enough was for the minimum that it names."""
    found = [count_evidence(side) for side in pair.sides]
    roles = {"expected": found[:1], "actual": found[1:]}
    for number, name, least, of in re.findall(r"([\d,]+) ([\w ]+), ([\d,]+) required(?: \(([\w ]+)\))?", reason):
        sides = [each for role in (of or "expected").split(" and ") for each in roles[role]]
        counts = [each[ITEMS[name]] for each in sides]
        stated = int(number.replace(",", ""))
        yield (
            f"{number} {name}",
            all(each in (None, stated) for each in counts) and stated < int(least.replace(",", "")),
        )
    accepted = re.search(r"to accept that: --minimum ([\w=,]+), or", reason)
    for item in accepted[1].split(",") if accepted and accepted[1] != "none" else ():
        name, least = item.split("=")
        counts = [each[name] for each in found if each[name] is not None]
        yield f"--minimum {item}", all(count >= int(least) for count in counts)


def check_error(note: str, num_divergences: int, expected: Recorded, actual: Recorded) -> Stated:
    """Yield whether the error that a note names explains all divergences, or all scores have the type that it names."""
    if found := re.match(
        r"all ([\d,]+) divergences? are of scores: (?:--score-error|accepted_error) ([\d.e+-]+) would", note
    ):
        num, error = int(found[1].replace(",", "")), float(found[2])
        others = Pair(expected, actual, error).first_difference
        yield note, num == num_divergences and not others
    if found := re.match(r"every actual score that differs is exact in (fp16|bf16)", note):
        scores = np.asarray(actual.columns["resolvents/score"], np.float32)
        words = scores.view(np.uint32)
        is_exact = scores == scores.astype(np.float16) if found[1] == "fp16" else words & 0xFFFF == 0
        left, right = (side.columns["resolvents/score"] for side in (expected, actual))
        differs = np.ones(len(scores), bool) if len(left) != len(right) else left != right
        yield note, bool(is_exact[differs].all())


def check_enough(role: str, side: Recorded, enough: dict[str, int]) -> Stated:
    """Yield whether limits of these values would have cut nothing in the steps of a trace."""
    steps = [step for each in side.steps for step in each]
    if "max_resolvents" in enough and side.has("steps/dropped_resolvents"):
        most = max((len(step.resolvents) + (step.dropped or (0, 0))[1] for step in steps), default=0)
        yield (
            f"{role}: max_resolvents {enough['max_resolvents']} is enough for {most}",
            most <= enough["max_resolvents"],
        )
    if "max_atoms" in enough:
        most = max((len(r.atoms) for step in steps for r in step.resolvents), default=0)
        yield f"{role}: max_atoms {enough['max_atoms']} is enough for {most}", most <= enough["max_atoms"]


def check_remedies(report: dict[str, Any], pair: Pair) -> Stated:
    """Yield the remedies of a report, each with whether the columns confirm it."""
    for reason in report["reasons"]:
        if reason.startswith("too little was exercised"):
            yield from check_minimum(reason, pair)
    for note in report["notes"]:
        yield from check_error(note, len(report["divergences"]), *pair.sides)
    for role, side in zip(("expected", "actual"), pair.sides, strict=True):
        yield from check_enough(role, side, ((report["exercise"] or {}).get(role) or {}).get("enough", {}))
    for number, cause in enumerate(report["causes"] or []):
        if found := re.fullmatch(r"kgverify shrink RUN_DIR --divergence (\d+)", cause["reproduce"]):
            shown = report["divergences"][int(found[1]) - 1 :][:1] if int(found[1]) else []
            is_own = any(number in (each["cause"], each["other_cause"]) for each in shown)
            yield f"{cause['reproduce']} is of cause {number + 1}", is_own
