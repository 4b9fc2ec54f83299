"""Shrinking: from a problem on which an engine fails to a minimal one on which it fails in the same way.

In the same way means: the first divergence has the same stage, field, class and situation (see `Signature`); for an
exception, the same type. Which atom it is of, at which step and with which values, may change.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kgverify.errors import UserError
from kgverify.testing.checking.engine_makers import MakePipeline, compiled_maker
from kgverify.testing.checking.failure import Failure
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import Problem
from kgverify.testing.shrinking.neighbour import Neighbour, find_neighbour
from kgverify.testing.shrinking.oracle import Oracle, OutOfBudget
from kgverify.testing.shrinking.passes import LAST_PASSES, PASSES, list_candidates

MAX_CALLS: Final = 2000
"""Runs of the engine under test that a shrink may take unless it is told otherwise."""
MAX_SECONDS: Final = 60.0
"""Seconds that a shrink may take unless it is told otherwise."""

Progress = Callable[[str, Problem, int], None]
"""Told after each pass: its name, the problem so far, the calls so far."""


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """What a shrink came to.

    failure:     of the minimal problem, which fails alone
    original:    the problem, or the company of problems, that it began with
    neighbour:   the minimal problem with one thing changed, on which both sides agree; None if none was found
    calls:       runs of the engine under test; one run of many problems is one call
    seconds:     that it took
    is_finished: whether it ended by itself, rather than for want of calls or seconds
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
    lockstep: bool = False,
    max_calls: int = MAX_CALLS,
    seconds: float = MAX_SECONDS,
    progress: Progress | None = None,
) -> Shrunk:
    """A minimal problem with the failure's signature. Deterministic, unless the seconds run out.

    make_pipeline: what fails, as for `judge`; lockstep: whether the failure was found so
    Where calls or seconds run out, the smallest problem found so far is the result.
    """
    oracle = Oracle(
        make_pipeline or compiled_maker(), failure.signature, lockstep=lockstep, max_calls=max_calls, seconds=seconds
    )
    return shrink_with(oracle, failure, progress)


def shrink_with(oracle: Oracle, failure: Failure, progress: Progress | None = None) -> Shrunk:
    """As `shrink`, with the calls and the seconds that an oracle has left."""
    found, neighbour, is_finished = failure, None, False
    try:
        for joined in [failure.problem] if failure.is_alone else joined_problems(failure.company):
            if oracle.holds(joined):
                found = oracle.judge(joined) or found
                break
        else:
            raise UserError(
                f"does not fail as told ({failure.signature}) when it is run again alone",
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
        # In the middle of a pass.
        if oracle.smallest is not None and oracle.smallest.size < found.problem.size:
            found = oracle.judge(oracle.smallest) or found
    return Shrunk(
        failure=replace(found, index=failure.index),
        original=failure.company,
        neighbour=neighbour,
        calls=oracle.calls,
        seconds=oracle.seconds,
        is_finished=is_finished,
    )


def joined_problems(company: Sequence[Problem]) -> Iterator[Problem]:
    """Problems that share a run as a single one: its candidates those of the run, unranked; or its queries theirs."""
    merged = merge(company)
    facts, rules, limits = merged.graph.train, merged.graph.rules, merged.run.limits
    common = Problem(
        facts=facts,
        rules=rules,
        unranked=tuple(list_candidates(merged)),
        limits=limits,
        policy=company[0].policy,
        num_corruptions=0,
        sizes=merged.sizes,
    )
    yield common
    ranked = tuple(query for query, is_ranked in zip(merged.graph.test, merged.is_ranked, strict=True) if is_ranked)
    if ranked:
        yield replace(common, queries=ranked, unranked=(), num_corruptions=company[0].num_corruptions)


def _run_passes(problem: Problem, oracle: Oracle) -> Iterator[tuple[str, Problem]]:
    """The problem after each pass that made something of it."""
    # A pass is not tried again on what it made nothing of.
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
