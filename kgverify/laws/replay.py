"""Replay of reproducers: both sides are compared again, and so is the law that was broken, if any."""

from dataclasses import dataclass

from kgverify.comparison.result import Verdict
from kgverify.errors import UserError
from kgverify.escaping import make_visible
from kgverify.laws.catalogue import find_law
from kgverify.laws.law import Violation
from kgverify.laws.shrinking import find_violation
from kgverify.runs.engine_makers import AnyEngine, find_maker
from kgverify.runs.pool import Processes, WorkerLost
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.failure import DEATH, LAW, UNDECIDED, Failure, Signature, fails_same_way, label_lines
from kgverify.testing.reproducers.text_format import Reproducer, make_reproducer, saving_bugs


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The result of running a reproducer again.

    failure:   the difference between both engines; None where they agree
    violation: of the reproducer's law; None where the law holds, or where the reproducer names none
    """

    reproducer: Reproducer
    failure: Failure | None
    violation: Violation | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict: INCONCLUSIVE if nothing could be compared, DIVERGE if a law is broken or the sides differ."""
        if self.violation is not None:
            return Verdict.DIVERGE
        if self.failure is None:
            return Verdict.AGREE
        return Verdict.INCONCLUSIVE if self.failure.signature.kind == UNDECIDED else Verdict.DIVERGE

    @property
    def is_same(self) -> bool:
        """True if it fails in the same way as before."""
        if self.reproducer.signature.kind == LAW:
            return self.violation is not None
        return self.failure is not None and fails_same_way(self.failure.signature, self.reproducer.signature)

    def __repr__(self) -> str:
        """Return the first line of the text."""
        return f"<Replay {str(self).partition(chr(10))[0]}>"

    def __str__(self) -> str:
        """Return the verdict with both values as text."""
        lines = self._law_lines() if self.reproducer.signature.kind == LAW else self._difference_lines()
        return "\n".join(map(make_visible, lines))

    def _law_lines(self) -> list[str]:
        law = self.reproducer.signature.situation
        reference = "agrees" if self.failure is None else f"differs: {self.failure.signature}"
        last = f"   reference   {reference} ({self.reproducer.reference})"
        broken = self.violation
        if broken is None:
            return [f"{self.verdict.value}   the law holds: {law}", last]
        return [f"{self.verdict.value}   still broken: the law {law}", *broken.lines, last]

    def _difference_lines(self) -> list[str]:
        before = self.reproducer.signature
        if self.failure is None:
            return [f"AGREE   no longer: {before}"]
        found = make_reproducer(self.failure)
        if self.is_same:
            lines = [f"{self.verdict.value}   still, and in the same way: {before}"]
        else:
            lines = [f"{self.verdict.value}   in another way: {found.signature}", f"   was         {before}"]
        if found.candidate:
            lines.append(f"   candidate   {found.candidate}" + (f", step {found.step}" if found.step >= 0 else ""))
        lines += label_lines("expected", found.expected) + label_lines("actual", found.actual)
        return lines + label_lines("message", tuple(found.message.splitlines()))


@saving_bugs()
def replay(made: Reproducer, engine: AnyEngine | None = None, reference: AnyEngine | None = None) -> Replay:
    """Run a reproducer again.

    engine, reference: replace those that the reproducer names

    UserError for an unknown law, or an engine that cannot be made.
    """
    make = find_maker(made.engine, "reproducer: engine") if engine is None else find_maker(engine)
    make_expected = (
        find_maker(made.reference, "reproducer: reference")
        if reference is None
        else find_maker(reference, "--reference")
    )
    violation = None
    if made.signature.kind == LAW:
        violation = find_violation(made.problem, find_law(made.signature.situation), make)
    failure = Checker(make, make_expected, made.lockstep).judge(made.problem)
    return Replay(reproducer=made, failure=failure, violation=violation)


def replay_apart(reproducer: Reproducer) -> Replay:
    """Run a reproducer in a process of its own, whose end is a failure; for engines that end their process.

    UserError as for `replay`, or if the process cannot start.
    """
    with Processes(1) as workers:
        try:
            workers.submit(abs, 0).result()
        except WorkerLost:
            raise UserError(
                "its engine may end the process, and another one could not be started",
                where="replay",
                fix='call it below `if __name__ == "__main__":`, or use `kgverify replay`',
            ) from None
        try:
            return workers.submit(replay, reproducer).result()
        except WorkerLost as lost:
            message = f"the process ended ({lost.end})"
    problem, signature = reproducer.problem, Signature("", "", DEATH)
    failure = Failure(index=0, problem=problem, group=(problem,), signature=signature, message=message)
    return Replay(reproducer=reproducer, failure=failure)


def assert_agrees(reproducer: Reproducer, engine: AnyEngine | None = None, reference: AnyEngine | None = None) -> None:
    """Raise an AssertionError with the first cause unless both sides agree and the reproducer's law, if any, holds."""
    found = replay(reproducer, engine, reference)
    if found.verdict is not Verdict.AGREE:
        raise AssertionError(f"{make_visible(str(found.reproducer.sides))}\n{found}\n\n{found.reproducer.problem}")
