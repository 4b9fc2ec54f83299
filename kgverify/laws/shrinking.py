"""Violations of laws, shrunk with the law held fixed and written as reproducers."""

from collections.abc import Sequence

from kgverify.errors import count_of
from kgverify.laws.catalogue import find_law
from kgverify.laws.law import Law, Violation, find_violations
from kgverify.runs.engine_makers import EAGER, PLAIN, EngineSpec, MakePipeline
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.failure import Failure
from kgverify.testing.problems.merge import group_problems
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.text_format import Reproducer
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

    law: that of the violation, if it is not in the catalogue

    UserError if the law is not broken when the problem is run again.
    """
    budget = Budget(max_calls, seconds)
    shrunk = shrink_with(LawOracle(law or find_law(violation.law), violation, make_pipeline, budget), violation)
    assert isinstance(shrunk.failure, Violation)
    return shrunk, shrunk.failure


def find_violation(problem: Problem, law: Law, make_pipeline: MakePipeline) -> Violation | None:
    """Return how the pipeline under test breaks a law on a problem by itself; None if it does not."""
    return next(find_violations(make_pipeline, [problem], [law], [0]), None)


class LawOracle(Oracle):
    """Decides whether a law is broken on a problem; one check is one call, however many runs it takes."""

    def __init__(self, law: Law, violation: Violation, make_pipeline: MakePipeline, budget: Budget) -> None:
        super().__init__(Checker(make_pipeline), violation.signature, budget)
        self._law = law

    @property
    def can_share(self) -> bool:
        """True if violations can be recognized in a run with others: not if problems affect each other there."""
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
    notes: tuple[str, ...] = (),
) -> Reproducer:
    """Return the reproducer of a violation. A note says if it needs other problems in its run: shrink it first."""
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
        notes=(f"breaks the law {violation.law}: {violation.statement}", *group, *notes),
    )
