"""`kgverify.assert_agrees`: a check of an engine on one problem, for Hypothesis to draw and to shrink."""

import sys
from pathlib import Path

from kgverify.api.inputs import describe_engine
from kgverify.arguments import checked
from kgverify.conformance import describe_failure
from kgverify.engines.load_engine import refuse_exit
from kgverify.engines.table import REFERENCE
from kgverify.errors import UserError
from kgverify.runs.engine_makers import AnyEngine, find_maker, name_engine
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.guard import find_supported
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.text_format import make_reproducer, write_reproducer


@refuse_exit()
@checked
def assert_agrees(
    engine: AnyEngine,
    problem: Problem,
    *,
    reference: AnyEngine = REFERENCE,
    lockstep: bool = True,
    save: Path | str | None = None,
) -> None:
    """Raise an AssertionError unless an engine and a reference agree on one problem, step by step.

    The problem is not shrunk: Hypothesis does that, if it drew the problem. An example with a policy that the engine does
    not support is rejected there.

    Args:
        engine: A class or function that makes the engine of `(program, limits, policy)`, or its name: `"module:name"` or
            `"file.py:name"`.
        problem: What both prove, as `kgverify.strategies.problems()` draws it.
        reference: The engine to compare with, given in the same way; kgverify's reference prover if not given.
        lockstep: Compare every step from the expected goal as well.
        save: The file for the problem if it fails, which `kgverify replay` runs again. Hypothesis runs its smallest
            example last, so that this one remains.

    Raises:
        AssertionError: If the engine differs or fails. Its text names the stage and shows both values and the problem.
        UserError: If the engine cannot be made, or does not support the problem.

    Example:
        >>> from hypothesis import Phase, given, settings
        >>> import kgverify as kv
        >>> from kgverify import strategies
        >>> @kv.engine_of
        ... def proves_nothing(goal, clauses):
        ...     return []
        >>> @given(strategies.problems(policies=["shortest"]))
        ... @settings(deadline=None, database=None, derandomize=True, phases=[Phase.generate])
        ... def test_agrees(problem):
        ...     kv.assert_agrees(proves_nothing, problem)
        >>> try:
        ...     test_agrees()
        ... except AssertionError as error:
        ...     print(str(error).splitlines()[0])
        proves_nothing does not agree
    """
    __tracebackhide__ = True  # of pytest, which would show this function's source instead of the test
    make, make_expected = find_maker(engine, "engine"), find_maker(reference, "reference")
    if not all(find_supported(each, [problem]) for each in (make, make_expected)):
        hypothesis = sys.modules.get("hypothesis")
        if hypothesis is not None and hypothesis.currently_in_test_context():
            hypothesis.reject()
        raise UserError(
            f"the engine does not support the policy {problem.policy.name!r} or the limits of this problem",
            where=name_engine(engine),
            fix="give another problem, such as one drawn by strategies.problems(policies=['shortest'])",
        )
    failure = Checker(make, make_expected, lockstep).judge(problem)
    if failure is not None:
        if save is not None:
            sides = describe_engine(engine), describe_engine(reference)
            write_reproducer(make_reproducer(failure, sides[0], reference=sides[1], lockstep=lockstep), Path(save))
        raise AssertionError("\n".join([f"{name_engine(engine)} does not agree", *describe_failure(failure)]))
