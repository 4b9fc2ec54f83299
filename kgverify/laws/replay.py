"""Replay and shrinking of reproducers. A replay compares both sides again, and checks the broken law again, if any."""

from collections.abc import Sequence
from dataclasses import dataclass

from kgverify.comparison.result import Verdict
from kgverify.errors import UserError, count_of
from kgverify.escaping import ShownAsText, make_visible
from kgverify.laws.catalogue import find_law
from kgverify.laws.law import Law, Violation, find_violations
from kgverify.runs.engine_makers import EAGER, PLAIN, AnyEngine, EngineSpec, MakePipeline, find_maker
from kgverify.runs.pool import Processes, WorkerLost
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.failure import DEATH, LAW, UNDECIDED, Failure, Signature, fails_same_way, label_lines
from kgverify.testing.problems.merge import group_problems
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.text_format import Reproducer, make_reproducer, saving_bugs
from kgverify.testing.shrinking.shrink import DEFAULT_BUDGET, Budget, Oracle, Shrunk, shrink_with


def shrink_violation(
    violation: Violation,
    make_pipeline: MakePipeline,
    *,
    law: Law | None = None,
    max_calls: int = DEFAULT_BUDGET.max_calls,
    seconds: float = DEFAULT_BUDGET.seconds,
) -> tuple[Shrunk, Violation]:
    """Return a minimal problem that breaks the same law, and its violation. Deterministic, unless the seconds run out.

    law: the law of the violation, if it is not in the catalogue

    UserError if a second run of the problem does not break the law.
    """
    budget = Budget(max_calls, seconds)
    shrunk = shrink_with(LawOracle(law or find_law(violation.law), violation, make_pipeline, budget), violation)
    assert isinstance(shrunk.failure, Violation)
    return shrunk, shrunk.failure


def find_violation(problem: Problem, law: Law, make_pipeline: MakePipeline) -> Violation | None:
    """Return how the pipeline under test breaks a law on a problem by itself; None if it does not."""
    return next(find_violations(make_pipeline, [problem], [law], [0]), None)


class LawOracle(Oracle):
    """Decides whether a law is broken on a problem. A check counts as one call, however many runs it takes."""

    def __init__(self, law: Law, violation: Violation, make_pipeline: MakePipeline, budget: Budget) -> None:
        super().__init__(Checker(make_pipeline), violation.signature, budget)
        self._law = law

    @property
    def can_share(self) -> bool:
        """True if violations can be recognized in a run with other problems, that is, if problems do not affect each other."""
        return bool(self.signature.stage) and not self.needs_batch

    def judge_alone(self, problem: Problem) -> Failure | None:
        """Return how the law is broken on a problem by itself."""
        self.calls += 1
        return find_violation(problem, self._law, self._make)

    def judge_together(self, problems: Sequence[Problem]) -> set[int]:
        """Return the indices of the problems on which the law is broken in a common run."""
        self.calls += 1
        (indices,) = group_problems(problems)
        return {each.index for each in find_violations(self._make, problems, [self._law], indices)}


def make_law_reproducer(
    violation: Violation,
    engine: EngineSpec = EAGER,
    *,
    reference: EngineSpec = PLAIN,
    neighbour: str = "",
) -> Reproducer:
    """Return the reproducer of a violation. Shrink the violation first.

    A note says whether it needs other problems in its run.
    """
    others = len(violation.group) - 1
    group = (f"only in one run with {count_of(others, 'other problem')}",) if others else ()
    return Reproducer(
        problem=violation.problem,
        signature=violation.signature,
        candidate=violation.candidate,
        step=violation.step,
        expected=(violation.expected,),
        actual=(violation.actual,),
        neighbour=neighbour,
        engine=engine,
        reference=reference,
        notes=(f"breaks the law {violation.law}: {violation.statement}", *group),
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Replay(ShownAsText):
    """The result of running a reproducer again.

    failure:   the difference between both engines; None if they agree
    violation: the violation of the reproducer's law; None if the law holds, or if the reproducer names no law
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

    engine, reference: used instead of the engines that the reproducer names

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
    """Run a reproducer in its own process, for engines that end their process.

    A crash counts as a failure.

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
