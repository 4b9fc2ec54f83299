"""Shrink a problem on which an engine fails to a minimal one on which it fails in the same way.

Failing in the same way means that the first divergence has the same stage, field, class and situation (see
`Signature`), or that the exception has the same type. Its atom, its step and its values may change.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kgverify.errors import UserError
from kgverify.runs.engine_makers import MakePipeline, compiled_maker, make_reference
from kgverify.testing.checking.failure import Failure
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import Problem
from kgverify.testing.shrinking.neighbour import Neighbour, find_neighbour
from kgverify.testing.shrinking.oracle import Oracle, OutOfBudget
from kgverify.testing.shrinking.passes import LAST_PASSES, PASSES

MAX_CALLS: Final = 2000
"""The default limit on the runs of the engine under test."""
MAX_SECONDS: Final = 60.0
"""The default limit on the seconds of a shrink."""

Progress = Callable[[str, Problem, int], None]
"""A callback after each pass, with its name, the problem so far and the calls so far."""


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The result of a shrink.

    failure:     of the minimal problem, which fails alone
    original:    the problem, or the group of problems, with which the shrink began
    neighbour:   the minimal problem with one change, on which both sides agree; None if none was found
    calls:       runs of the engine under test; one run of many problems is one call
    seconds:     that it took
    is_finished: whether it ended before the limit on calls or seconds
    """

    failure: Failure
    original: tuple[Problem, ...]
    neighbour: Neighbour | None
    calls: int
    seconds: float
    is_finished: bool

    @property
    def problem(self) -> Problem:
        """The minimal problem."""
        return self.failure.problem

    @property
    def change(self) -> str:
        """The change after which both sides agree; empty where none is known."""
        return self.neighbour.change if self.neighbour is not None else ""


def shrink(
    failure: Failure,
    make_pipeline: MakePipeline | None = None,
    *,
    reference: MakePipeline = make_reference,
    lockstep: bool = False,
    max_calls: int = MAX_CALLS,
    seconds: float = MAX_SECONDS,
    progress: Progress | None = None,
) -> Shrunk:
    """Return a minimal problem with the failure's signature. Deterministic, unless the seconds run out.

    make_pipeline: makes the engine that fails, as for `judge`
    reference:     makes the engine that it is compared with
    lockstep:      whether the failure was found in lockstep

    If calls or seconds run out, the smallest problem found so far is the result.
    """
    oracle = Oracle(
        make_pipeline or compiled_maker(),
        failure.signature,
        reference=reference,
        lockstep=lockstep,
        max_calls=max_calls,
        seconds=seconds,
    )
    return shrink_with(oracle, failure, progress)


def shrink_with(oracle: Oracle, failure: Failure, progress: Progress | None = None) -> Shrunk:
    """Shrink like `shrink`, with the calls and the seconds that an oracle has left."""
    found, neighbour, is_finished = failure, None, False
    try:
        for joined in [failure.problem] if failure.is_alone else join_problems(failure.group):
            if oracle.holds(joined):
                found = oracle.judge(joined) or found
                break
        else:
            raise UserError(
                f"does not fail again with the signature {failure.signature}",
                where="shrink",
                fix="give the failure that `judge` or `check_problems` found with the same engine",
            )
        for name, problem in _run_passes(found.problem, oracle):
            found = oracle.judge(problem) or found
            if progress is not None:
                progress(name, problem, oracle.calls)
        neighbour = find_neighbour(found.problem, oracle)
        is_finished = True
    except OutOfBudget:
        # The limit was reached in the middle of a pass.
        if oracle.smallest is not None and oracle.smallest.size < found.problem.size:
            found = oracle.judge(oracle.smallest) or found
    return Shrunk(
        failure=replace(found, index=failure.index),
        original=failure.group,
        neighbour=neighbour,
        calls=oracle.calls,
        seconds=oracle.seconds,
        is_finished=is_finished,
    )


def join_problems(group: Sequence[Problem]) -> Iterator[Problem]:
    """Yield one problem in place of several in one run: with its candidates unranked, or with its queries."""
    merged = merge(group)
    facts, rules, limits = tuple(merged.graph.train), merged.graph.rules, merged.run.limits
    common = Problem(
        facts=facts,
        rules=rules,
        unranked=tuple(merged.list_candidates()),
        limits=limits,
        policy=group[0].policy,
        num_corruptions=0,
        sizes=merged.sizes,
    )
    yield common
    ranked = tuple(query for query, is_ranked in zip(merged.graph.test, merged.is_ranked, strict=True) if is_ranked)
    if ranked:
        yield replace(common, queries=ranked, unranked=(), num_corruptions=group[0].num_corruptions)


def _run_passes(problem: Problem, oracle: Oracle) -> Iterator[tuple[str, Problem]]:
    """Yield the problem after each pass that changed it."""
    # A pass is not tried again on a problem that it did not change.
    idle: dict[str, Problem] = {}
    while any(idle.get(each.__name__) != problem for each in PASSES):
        for each in PASSES:
            if idle.get(each.__name__) == problem:
                continue
            smaller = each(problem, oracle)
            if smaller == problem:
                idle[each.__name__] = problem
            else:
                problem = smaller
                yield each.__name__, problem
    for each in LAST_PASSES:
        problem = each(problem, oracle)
        yield each.__name__, problem
