"""The conditions of causes in full, as `kgverify show --explain` prints them."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kgverify.comparison.result import Cause, Condition, Experiment
from kgverify.errors import UserError, count_of
from kgverify.report.content import ReportContent
from kgverify.report.wording import MOST_OF_CONDITION, cause_label, clip, describe_size

BAR: Final = 30
"""The characters of the longest bar of a plot."""


def explain_causes(
    report: ReportContent, divergence: int | None = None, folder: str | Path = "RUN_DIR"
) -> Iterator[str]:
    """Yield the lines that explain all causes of a report, or the one of a divergence, counted from 1.

    folder: that of the saved run, which the commands name

    UserError for a divergence that the report does not have.
    """
    numbers: list[int] = list(range(len(report.causes)))
    if divergence is not None:
        if not 1 <= divergence <= len(report.divergences):
            raise UserError(
                f"expected a divergence from 1 to {len(report.divergences):,}, found {divergence}",
                where="divergence",
                fix="choose one that the run has" if report.divergences else "choose a run that diverges",
            )
        numbers = [cause for cause in (report.divergences[divergence - 1].cause,) if cause >= 0]
    if not numbers:
        yield "no cause: nothing diverged, or its cause is unknown"
    for number in numbers:
        yield f"#{number + 1} {cause_label(report, number)}: {describe_size(report.causes[number])}"
        yield from (f"  {line}" for line in _explain(report.causes[number]))
        first = str(report.causes[number].first + 1)
        command = shlex.join(("kgverify", "shrink", str(folder), "--divergence", first))
        yield f"  first divergence: {first}; {command} writes a minimal problem of it, and one like it on which both sides agree"


def _explain(cause: Cause) -> Iterator[str]:
    found = cause.when
    if found is None:
        yield clip(cause.condition, MOST_OF_CONDITION) if cause.condition else "no condition was sought"
        return
    yield clip(found.sentence, MOST_OF_CONDITION)
    yield f"instances: {count_of(found.num_wrong, found.unit)} wrong, {found.num_right:,} right"
    if found.tests:
        yield f"chance: at most {found.chance:.2g}, after correction for {found.num_tried:,} conditions"
    if found.experiment is not None:
        yield from _explain_experiment(found.experiment)
    if found.is_cut:
        yield "the search ended before every condition was tried: there may be a shorter one"
    for title, texts in (
        ("as exact on these instances", found.others),
        ("not explained", found.counter_examples),
    ):
        if texts:
            yield f"{title}:"
            yield from (f"  {clip(text, MOST_OF_CONDITION)}" for text in texts)
    yield from _plot(found)
    if found.tried:
        yield "the best test of each feature alone: precision, recall"
        for each in found.tried:
            yield f"  {each.precision:.3f}  {each.recall:.3f}  {clip(each.words, MOST_OF_CONDITION)}"


def _explain_experiment(tried: Experiment) -> Iterator[str]:
    """Yield the verdict of an experiment, and its problems."""
    num = f": {tried.num_predicted:,} of {tried.num_tried:,} instances as predicted" if tried.num_tried else ""
    yield f"experiment: {tried.verdict}{num}{f' ({tried.reason})' if tried.reason else ''}"
    titles = ("wrong", "right") if len(tried.pair) > 1 else ("not as predicted",)
    yield from (f"  {title}: {clip(text, MOST_OF_CONDITION)}" for title, text in zip(titles, tried.pair, strict=False))


def _plot(found: Condition) -> Iterator[str]:
    """Yield a bar for each class at each value of the first feature."""
    if not found.values:
        return
    most = max(max(each.num_wrong, each.num_right) for each in found.values)
    yield f"{clip(found.features[0])}: wrong (#) and right (.)"
    for each in found.values:
        bars = "#" * _length(each.num_wrong, most), "." * _length(each.num_right, most)
        yield f"  {each.value:>10,.6g}  {bars[0]:<{BAR}}  {bars[1]:<{BAR}}  {each.num_wrong:,} / {each.num_right:,}"


def _length(num: int, most: int) -> int:
    return -(-num * BAR // most) if num else 0
