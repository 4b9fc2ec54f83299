"""Reproducers of broken laws: made, and run again, with and without the reference."""

from dataclasses import dataclass

from kgverify.comparison.result import Verdict
from kgverify.laws.catalogue import find_law
from kgverify.laws.law import Violation
from kgverify.laws.shrink_law import failure_of, find_violation
from kgverify.testing.checking.engine_spec import EAGER, EngineSpec, make_pipeline
from kgverify.testing.checking.failure import LAW
from kgverify.testing.checking.pipelines import MakePipeline
from kgverify.testing.reproducers.reproducer import Replay, Reproducer, replay


@dataclass(frozen=True, kw_only=True)
class LawReplay:
    """What running the reproducer of a broken law again came to.

    violation: None where the law holds
    compared:  the comparison with the reference
    """

    reproducer: Reproducer
    violation: Violation | None
    compared: Replay

    @property
    def verdict(self) -> Verdict:
        """DIVERGE where the law is broken; else that of the comparison with the reference."""
        return Verdict.DIVERGE if self.violation is not None else self.compared.verdict

    @property
    def is_same(self) -> bool:
        """Whether the law is broken still."""
        return self.violation is not None

    def __str__(self) -> str:
        """For people: whether the law holds, with both values, and what the reference says."""
        law = self.reproducer.signature.situation
        failure = self.compared.failure
        reference = "agrees" if failure is None else f"differs: {failure.signature}"
        told = [f"   reference   {reference}"]
        broken = self.violation
        if broken is None:
            return "\n".join([f"{self.verdict.value}   the law holds: {law}", *told])
        lines = [f"{self.verdict.value}   still broken: the law {law}", f"   {broken.statement}"]
        at = f", step {broken.step}" if broken.step >= 0 else ""
        lines += [f"   candidate   {broken.candidate}{at}"] if broken.candidate else []
        lines += [
            f"   field       {broken.field}",
            f"   expected    {broken.expected}",
            f"   actual      {broken.actual}",
        ]
        return "\n".join([*lines, *told])


def reproducer_of_violation(
    violation: Violation, engine: EngineSpec = EAGER, *, neighbour: str = "", notes: tuple[str, ...] = ()
) -> Reproducer:
    """The reproducer of a violation. One that takes company has a note of it: shrink it first."""
    others = len(violation.company) - 1
    company = (f"only in one run with {others} other problems",) if others else ()
    return Reproducer(
        problem=violation.problem,
        signature=failure_of(violation).signature,
        candidate=violation.candidate,
        step=violation.step,
        expected=(violation.expected,),
        actual=(violation.actual,),
        neighbour=neighbour,
        engine=engine,
        notes=(f"breaks the law {violation.law}: {violation.statement}", *company, *notes),
    )


def replay_any(reproducer: Reproducer, maker: MakePipeline | None = None) -> Replay | LawReplay:
    """Run a reproducer again, of a divergence or of a law. UserError for an unknown law, or an engine not to be made."""
    if reproducer.signature.kind != LAW:
        return replay(reproducer, maker)
    law = find_law(reproducer.signature.situation)
    make = maker or make_pipeline(reproducer.engine, "reproducer: engine")
    return LawReplay(
        reproducer=reproducer,
        violation=find_violation(reproducer.problem, law, make),
        compared=replay(reproducer, make),
    )


def assert_holds(reproducer: Reproducer, maker: MakePipeline | None = None) -> None:
    """For tests: AssertionError unless a reproducer's law holds, and both sides agree, on its problem."""
    found = replay_any(reproducer, maker)
    if found.verdict is not Verdict.AGREE:
        raise AssertionError(f"{reproducer.engine}\n{found}\n\n{reproducer.problem}")
