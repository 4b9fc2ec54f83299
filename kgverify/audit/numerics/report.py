"""What the audit of numerics tells beside findings: conventions of argmax, and the ladder of precisions."""

import msgspec

from kgverify.audit.report import AuditReport


class Convention(msgspec.Struct, frozen=True, kw_only=True):
    """What the installed torch does where scores leave a choice open.

    rule:     that holds in each of the shapes, or `none` where there is none; of `eager` and `compiled` code
    relies:   whether the evaluator's `choose` needs the rule, and which one
    """

    operation: str
    situation: str
    shapes: tuple[str, ...]
    eager: str
    compiled: str
    relies: str = ""

    @property
    def holds(self) -> bool:
        """Whether what is relied on is so, where it was looked at."""
        return not self.relies or {self.eager, self.compiled} <= {self.relies, ""}


class Flip(msgspec.Struct, frozen=True, kw_only=True):
    """A choice that a precision makes otherwise than float64.

    candidate, step: in the run
    gap:   by how much, in float64, the resolvent chosen is below the highest, nats
    bound: twice the scores' declared error: a larger gap is no rounding
    """

    candidate: int
    step: int
    goal: str
    exact: str
    chosen: str
    gap: float
    bound: float

    @property
    def is_beyond(self) -> bool:
        """Whether the gap is more than rounding explains."""
        return not self.gap <= self.bound


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of a run in one precision, against those in float64.

    how:         `native`, `emulated`, or `kernel`: of the evaluator, on a GPU
    score_error: declared, nats; largest_error: the largest seen on the run's own states
    num_close:   choices with a gap of at most twice the declared error: those that may flip
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


class NumericsReport(AuditReport, frozen=True, kw_only=True):
    """The audit of numerics of one subject."""

    conventions: tuple[Convention, ...] = ()
    rungs: tuple[Rung, ...] = ()
