"""`kgverify.assert_equivalent`: a check of an engine in one line."""

import sys
from pathlib import Path

from kgverify.api.verify import verify_job
from kgverify.arguments import checked
from kgverify.comparison.equality import Equality
from kgverify.comparison.exercise.exercise import Minimum
from kgverify.comparison.result import Verdict
from kgverify.conformance import EXAMPLES, SECONDS, check_engine, check_scope, describe_failure
from kgverify.engines.load_engine import refuse_exit
from kgverify.engines.table import REFERENCE
from kgverify.errors import UserError
from kgverify.program.limits import Dialect, Limits
from kgverify.runs.engine_makers import AnyEngine, find_dialect, find_maker, name_engine
from kgverify.runs.job import Engines, GraphLike, Job, Proofs, Queries, Source, job_of, write_down
from kgverify.runs.run import Run
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.guard import find_supported
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.text_format import make_reproducer, write_reproducer


@refuse_exit()
@checked
def assert_equivalent(
    engine: AnyEngine,
    graph: GraphLike | Run | None = None,
    *,
    scope: str | None = None,
    reference: AnyEngine | None = None,
    examples: int = EXAMPLES,
    seed: int = 0,
    seconds: float = SECONDS,
    queries: int | Queries = 20,
    minimum: str | Minimum | None = None,
    dialect: Dialect | None = None,
) -> None:
    """Raise an AssertionError unless an engine agrees with a reference and keeps the laws.

    In pytest the fixture `assert_equivalent` does the same, and saves what it finds.

    Args:
        engine: A class or function that makes the engine of `(program, limits, policy)`, or its name: `"module:name"` or
            `"file.py:name"`.
        graph: A graph to compare on, or a `kgverify.Run`; if not given, generated problems, which are shrunk if they fail.
        scope: `"tiny"` compares all 33,632 problems up to that size, without laws, instead of generated ones.
        reference: The engine to compare with, given in the same way. If not given, kgverify's reference prover; on a graph,
            `"search"` for an engine that tells only outcomes. With another one, only laws that hold for any prover are
            checked.
        examples: Number of generated problems.
        seed: Seed of the generated problems, or of the corruptions of a graph.
        seconds: Seconds after which no further problems are generated.
        queries: Number of queries of the graph, or `kgverify.Queries(...)`.
        minimum: The exercise that is required, as for `kgverify.verify`: of the graph, or of all problems together.
        dialect: The dialect of the engine; if not given, its attribute `dialect`, and the default dialect if it has none.

    Raises:
        AssertionError: If the engine differs or breaks a law, or if too little was exercised. Its text is the report.
        UserError: If the engine cannot be made, or the graph cannot be read.

    Example:
        >>> import kgverify as kv
        >>> @kv.engine_of
        ... def proves_nothing(goal, clauses):
        ...     return []
        >>> kv.assert_equivalent(proves_nothing, examples=20)
        Traceback (most recent call last):
        ...
        kgverify.conformance.NotConforming: proves_nothing does not conform...
    """
    if scope is not None:
        if graph is not None:
            raise UserError("expected a graph or a scope, found both", where="scope", fix="give one of them")
        check_scope(engine, scope, reference=reference or REFERENCE, dialect=dialect, minimum=minimum).raise_if_broken()
        return
    if graph is None:
        found = check_engine(
            engine,
            reference=reference or REFERENCE,
            examples=examples,
            seed=seed,
            seconds=seconds,
            minimum=minimum,
            dialect=dialect,
        )
        found.raise_if_broken()
        return
    equality, sides = Equality(minimum=minimum), Engines(engine, reference)
    if isinstance(graph, Run):
        job = job_of(graph, sides, equality)
    else:
        limits = Limits(dialect=find_dialect(engine) if dialect is None else dialect)
        job = Job(Source(graph), Queries.choose(queries, None, seed), sides, Proofs(limits), equality)
    report = verify_job(job)
    if report.verdict is not Verdict.AGREE:
        raise AssertionError(str(report))


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
            sides = [write_down(each, default=name_engine(each)) for each in (engine, reference)]
            write_reproducer(make_reproducer(failure, sides[0], reference=sides[1], lockstep=lockstep), Path(save))
        raise AssertionError("\n".join([f"{name_engine(engine)} does not agree", *describe_failure(failure)]))
