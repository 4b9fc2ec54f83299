"""A failure: the problem on which an engine differs from the reference, and what identifies the difference."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from kgverify.comparison.result import Divergence
from kgverify.program.stages import Stage
from kgverify.report.report import Report
from kgverify.testing.problems.problem import Problem

CRASH: Final = "crash"
"""The kind of a failure where the engine raised an exception."""

LAW: Final = "law"
"""The kind of a failure where the engine breaks a law, whose name is the situation."""

RESOLVENTS: Final = "resolvents."
"""How the fields of a step's resolvents begin."""

UNDECIDED: Final = "undecided"
"""The kind of a failure where nothing could be compared."""


class Signature(NamedTuple):
    """What identifies a failure, and must stay the same while its problem is made smaller.

    stage, field: of the first divergence: a `Stage`, and a column or `stage.NAME`; empty where there is none
    kind:         a `DifferenceClass`, or `CRASH`, `UNDECIDED` or `LAW`
    situation:    of its cause; the exception's type of a crash; the law's name
    """

    stage: str
    field: str
    kind: str
    situation: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.stage, self.field, self.kind, self.situation) if part)

    @property
    def held(self) -> "Signature":
        """What is held fixed: where a step is right alone and wrong among others, not which column of its resolvents
        is the first to differ; of a law, where it is broken by what was reported, not where that is."""
        if self.kind == LAW:
            return self._replace(stage=LAW if self.stage else "", field="")
        is_any = self.stage == Stage.RECYCLE and self.field.startswith(RESOLVENTS)
        return self._replace(field=RESOLVENTS.rstrip(".")) if is_any else self


def is_same_way(signature: Signature, other: Signature) -> bool:
    """Whether two failures are of the same stage, field, class and situation, as far as these are held fixed."""
    return signature.held == other.held


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A problem on which the engine under test differs from the reference.

    index:      place of the problem among those checked
    problem:    what fails; the problem checked, with all its corruptions where those drawn in company show it and its own
                do not
    company:    the problems, this one among them, in whose common run it fails; itself alone if it fails alone
    signature:  of its first divergence
    divergence: its first divergence; None for a crash, or where nothing was compared
    message:    what the exception says, or why nothing was compared
    """

    index: int
    problem: Problem
    company: tuple[Problem, ...]
    signature: Signature
    divergence: Divergence | None = None
    message: str = ""

    @property
    def is_alone(self) -> bool:
        """Whether the problem fails by itself."""
        return len(self.company) == 1


def sign(report: Report, divergence: Divergence) -> Signature:
    """The signature of a divergence of a report."""
    situation = report.causes[divergence.cause].situation if divergence.cause >= 0 else ""
    return Signature(divergence.stage, divergence.field, divergence.kind.value, situation)
