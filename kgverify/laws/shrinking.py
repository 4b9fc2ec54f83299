"""Violations of laws, shrunk with the law held fixed and written as reproducers."""

from collections.abc import Sequence
from typing import NamedTuple

from kgverify.comparison.result import Divergence
from kgverify.laws.catalogue import find_law
from kgverify.laws.law import Law, Violation, find_violations
from kgverify.testing.checking.engine_makers import EAGER, EngineSpec, MakePipeline
from kgverify.testing.checking.failure import LAW, Failure, Signature
from kgverify.testing.problems.merge import group_problems
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.reproducer import Reproducer
from kgverify.testing.shrinking.oracle import Oracle
from kgverify.testing.shrinking.shrink import MAX_CALLS, MAX_SECONDS, Progress, Shrunk, shrink_with


class ShrunkViolation(NamedTuple):
    """The result of shrinking a violation; `violation` is that of the minimal problem."""

    shrunk: Shrunk
    violation: Violation


def shrink_violation(
    violation: Violation,
    make_pipeline: MakePipeline,
    *,
    law: Law | None = None,
    max_calls: int = MAX_CALLS,
    seconds: float = MAX_SECONDS,
    progress: Progress | None = None,
) -> ShrunkViolation:
    """Return a minimal problem that breaks the same law. Deterministic, unless the seconds run out.

    law: that of the violation, if it is not in the catalogue

    UserError if the law is not broken when the problem is run again.
    """
    oracle = LawOracle(law or find_law(violation.law), violation, make_pipeline, max_calls=max_calls, seconds=seconds)
    shrunk = shrink_with(oracle, make_failure(violation), progress)
    return ShrunkViolation(shrunk, oracle.violations.get(shrunk.problem, violation))


def find_violation(problem: Problem, law: Law, make_pipeline: MakePipeline) -> Violation | None:
    """Return how the pipeline under test breaks a law on a problem by itself; None if it does not."""
    return next(find_violations(make_pipeline, [problem], [law], [0]), None)


def make_failure(violation: Violation) -> Failure:
    """Return a violation as a failure, whose signature names the law."""
    return Failure(
        index=violation.index,
        problem=violation.problem,
        group=violation.group,
        signature=Signature(violation.stage, violation.field, LAW, violation.law),
        message=f"expected {violation.expected}, found {violation.actual}",
    )


class LawOracle(Oracle):
    """Decides whether a law is broken on a problem; one check is one call, however many runs it takes.

    violations: of the problems judged alone so far
    """

    def __init__(
        self, law: Law, violation: Violation, make_pipeline: MakePipeline, *, max_calls: int, seconds: float
    ) -> None:
        super().__init__(make_pipeline, make_failure(violation).signature, max_calls=max_calls, seconds=seconds)
        self.violations: dict[Problem, Violation] = {}
        self._law = law
        self._pipeline = make_pipeline

    @property
    def can_share(self) -> bool:
        """True if violations can be recognized in a run with others: not if problems affect each other there."""
        return bool(self.signature.stage) and not self.needs_batch

    def judge_alone(self, problem: Problem) -> Failure | None:
        """Return how the law is broken on a problem by itself."""
        self.calls += 1
        violation = find_violation(problem, self._law, self._pipeline)
        if violation is None:
            return None
        self.violations[problem] = violation
        return make_failure(violation)

    def judge_together(self, problems: Sequence[Problem]) -> dict[int, Divergence | None]:
        """Return the indices of the problems on which the law is broken in a common run."""
        self.calls += 1
        (indices,) = group_problems(problems)
        return {each.index: None for each in find_violations(self._pipeline, problems, [self._law], indices)}


def make_law_reproducer(
    violation: Violation, engine: EngineSpec = EAGER, *, neighbour: str = "", notes: tuple[str, ...] = ()
) -> Reproducer:
    """Return the reproducer of a violation. A note says if it needs other problems in its run: shrink it first."""
    others = len(violation.group) - 1
    group = (f"only in one run with {others} other problems",) if others else ()
    return Reproducer(
        problem=violation.problem,
        signature=make_failure(violation).signature,
        candidate=violation.candidate,
        step=violation.step,
        expected=(violation.expected,),
        actual=(violation.actual,),
        neighbour=neighbour,
        engine=engine,
        notes=(f"breaks the law {violation.law}: {violation.statement}", *group, *notes),
    )
