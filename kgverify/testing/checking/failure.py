"""A failure: a problem on which an engine differs from the reference, and the signature of the difference."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kgverify.comparison.result import Divergence
from kgverify.errors import count_of
from kgverify.program.outcomes import DifferenceClass, Stage
from kgverify.report.report import Report
from kgverify.testing.problems.problem import Problem

CRASH: Final = "crash"
"""The kind of a failure in which the engine raised an exception."""

HANG: Final = "hang"
"""The kind of a failure in which the engine did not return in time."""

DEATH: Final = "death"
"""The kind of a failure in which the engine ended its process."""

ENDS_RUN: Final = (CRASH, HANG, DEATH)
"""The kinds of failures that end the run for all its problems."""

REFUSED: Final = "refused"
"""The kind of a failure in which an engine declined the problem when it was made, so that nothing was compared."""

LAW: Final = "law"
"""The kind of a failure in which the engine breaks a law. Its situation is the name of the law."""

RESOLVENTS: Final = "resolvents."
"""The prefix of the fields of a step's resolvents."""

UNDECIDED: Final = "undecided"
"""The kind of a failure in which nothing could be compared."""


class Signature(NamedTuple):
    """The identity of a failure, which stays the same while its problem is shrunk.

    stage, field: the location of the first divergence: a `Stage`, and a column or `stage.NAME`; empty without a
                  divergence
    kind:         a `DifferenceClass`, or `CRASH`, `HANG`, `DEATH`, `REFUSED`, `UNDECIDED` or `LAW`
    situation:    the situation of its cause, the type of a crash's exception, or the name of a law
    """

    stage: str
    field: str
    kind: str
    situation: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.stage, self.field, self.kind, self.situation) if part)

    @property
    def held(self) -> "Signature":
        """The parts that shrinking holds fixed.

        If a step is right alone and wrong in a batch, the column of its resolvents may change. If a reported value
        breaks a law, the law may be broken elsewhere after shrinking.
        """
        if self.kind == LAW:
            return self._replace(stage=LAW if self.stage else "", field="")
        is_any = self.stage == Stage.RECYCLE and self.field.startswith(RESOLVENTS)
        return self._replace(field=RESOLVENTS.rstrip(".")) if is_any else self


def fails_same_way(signature: Signature, other: Signature) -> bool:
    """Return whether a failure has the stage, field, class and situation of another, ignoring parts that are not held fixed."""
    return signature.held == other.held


def list_forms(signature: Signature) -> tuple[Signature, ...]:
    """Return the other signatures that the same fault may have in a smaller problem.

    A fact that is not matched loses a resolvent or, if nothing else remains to be proved, the proof.
    """
    is_lost_fact = (signature.stage, signature.kind) == (Stage.MATCH_FACTS, DifferenceClass.MISSING)
    return (signature._replace(stage=Stage.CLOSE, kind=DifferenceClass.PROOF_LOST),) if is_lost_fact else ()


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A problem on which the engine under test differs from the reference.

    index:      the index of the problem among those checked
    problem:    the failing problem; with all its corruptions if only the corruptions drawn in a batch show the
                difference
    group:      the problems, including this one, that fail in one run; only the problem itself if it fails alone
    signature:  the signature of its first divergence
    divergence: its first divergence; None for a crash, or if nothing was compared
    message:    the exception's text, or the reason why nothing was compared
    """

    index: int
    problem: Problem
    group: tuple[Problem, ...]
    signature: Signature
    divergence: Divergence | None = None
    message: str = ""

    @property
    def is_alone(self) -> bool:
        """True if the problem fails by itself."""
        return len(self.group) == 1


def sign(report: Report, divergence: Divergence) -> Signature:
    """Return the signature of a divergence of a report."""
    situation = report.causes[divergence.cause].situation if divergence.cause >= 0 else ""
    return Signature(divergence.stage, divergence.field, divergence.kind.value, situation)


MOST_REASONS: Final = 3
"""The largest number of reasons for refusals that a report lists."""

HOW_TO_SUPPORT: Final = "declare its names and rules as `support = kgverify.Support(...)`, or give its graph"
"""The advice for an engine that refuses every problem."""


def describe_refusals(reasons: Mapping[str, int], num_refused: int, num_problems: int) -> str:
    """Return how many of some problems engines declined, with the most frequent reasons; empty if none."""
    if not num_refused:
        return ""
    shown = Counter(reasons).most_common(MOST_REASONS)
    texts = [f"{reason} ({count_of(num, 'time')})" if num < num_refused else reason for reason, num in shown if reason]
    if texts and (num_others := num_refused - sum(num for _, num in shown)) > 0:
        texts.append(f"other reasons ({count_of(num_others, 'time')})")
    return f"{REFUSED} {num_refused:,} of {num_problems:,}{': ' * bool(texts)}{'; '.join(texts)}"


def label_lines(label: str, lines: Sequence[object]) -> list[str]:
    """Return lines of text, indented, with a label before the first."""
    return [f"   {label if not i else '':<11} {line}" for i, line in enumerate(lines)]
