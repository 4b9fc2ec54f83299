"""Fit generated problems to the programs that engines support: their names and the forms of their rules."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice
from random import Random
from typing import Final

from kgverify.engines.support import Support
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.vocabulary import Vocabulary
from kgverify.program.limits import OURS
from kgverify.runs.engine_makers import AnyEngine, MakePipeline, find_support
from kgverify.testing.checking.guard import find_refused
from kgverify.testing.problems.decode import draw_simplest
from kgverify.testing.problems.neighbourhood import cut_problems
from kgverify.testing.problems.problem import Problem, list_predicates, replace_symbols

SHARE_OF_ENDS: Final = 0.5
"""The share of problems that have the last symbol of a vocabulary, and of those that have the first."""


def find_supports(
    engines: Sequence[AnyEngine], makers: Sequence[MakePipeline], graph: KnowledgeGraph | None = None
) -> tuple[Support, ...]:
    """Return what engines declare to support.

    If an engine refuses the simplest generated problem, and accepts one with all names of the graph, these are the names that
    it knows.
    """
    declared = tuple(map(find_support, engines))
    if graph is None or any(each.vocabulary is not None for each in declared):
        return declared
    whole = Vocabulary.of(graph)
    named = [replace(problem, vocabulary=whole) for problem in islice(cut_problems(graph), 1)]
    is_fixed = find_refused(makers, [draw_simplest(OURS)]) and named and not find_refused(makers, named)
    return (*declared, Support(whole)) if is_fixed else declared


def fit_problems(problems: Iterable[Problem], supports: Sequence[Support], seed: int, first: int = 0) -> list[Problem]:
    """Return problems without the rules that some engine does not support, and with names that it knows."""
    if all(each == Support() for each in supports):
        return list(problems)
    return [_fit(problem, supports, Random(f"{seed}:{i}")) for i, problem in enumerate(problems, first)]


def _fit(problem: Problem, supports: Sequence[Support], rng: Random) -> Problem:
    rules = tuple(rule for rule in problem.rules if all(each.allows(rule) for each in supports))
    if len(rules) < len(problem.rules):
        problem = replace(problem, rules=rules)
    known = next((each.vocabulary for each in supports if each.vocabulary is not None), None)
    if known is None or not known.is_closed:
        return problem
    symbols = known.symbols
    predicates = _choose_names(list_predicates(problem.atoms()), symbols.predicates, rng)
    fitted = replace_symbols(problem, _choose_names(problem.domain, symbols.constants, rng), predicates)
    return replace(fitted, vocabulary=known)


def _choose_names(names: Sequence[str], known: Sequence[str], rng: Random) -> dict[str, str]:
    """Return known names for the others: of any ids, and often of the lowest and the highest. If there are few, some recur."""
    taken = {*names} & {*known}
    free = [name for name in known if name not in taken] or [*known]
    others = [name for name in names if name not in taken]
    chosen = rng.sample(free, min(len(free), len(others)))
    for i, end in enumerate((free[-1], free[0])):
        if i < len(chosen) and end not in chosen and rng.random() < SHARE_OF_ENDS:
            chosen[i] = end
    return dict(zip(others, chain(chosen, iter(lambda: rng.choice(free), None)), strict=False))
