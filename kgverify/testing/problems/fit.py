"""Fit generated problems to what engines support: their names, the forms of their rules, and their limits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle, islice
from random import Random
from typing import Final, NamedTuple

import msgspec

from kgverify.engines.support import Support
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.vocabulary import Vocabulary
from kgverify.program.limits import OURS
from kgverify.runs.engine_makers import AnyEngine, MakePipeline, find_limits, find_support, follows_semantics
from kgverify.testing.checking.guard import find_refused
from kgverify.testing.problems.decode import draw_simplest
from kgverify.testing.problems.neighbourhood import cut_problems
from kgverify.testing.problems.problem import Problem, list_predicates, replace_symbols

SHARE_OF_ENDS: Final = 0.5
"""The share of problems that have the last symbol of a vocabulary, and of those that have the first."""


class Supported(NamedTuple):
    """The programs that engines declare to support, and the smallest limits that they declare."""

    programs: tuple[Support, ...]
    limits: Mapping[str, int]


def find_supports(
    engines: Sequence[AnyEngine], makers: Sequence[MakePipeline], graph: KnowledgeGraph | None = None
) -> Supported:
    """Return what engines declare to support.

    If an engine refuses the simplest generated problem, and accepts one with all names of the graph, these are the names that
    it knows.
    """
    declared, limits = tuple(map(find_support, engines)), find_limits(*engines)
    foreign = [make for engine, make in zip(engines, makers, strict=True) if not follows_semantics(engine)]
    if graph is None or not foreign or any(each.vocabulary is not None for each in declared):
        return Supported(declared, limits)
    whole = Vocabulary.of(graph)
    named = [replace(problem, vocabulary=whole) for problem in islice(cut_problems(graph), 1)]
    is_fixed = find_refused(foreign, [draw_simplest(OURS)]) and named and not find_refused(foreign, named)
    return Supported((*declared, Support(whole)) if is_fixed else declared, limits)


def fit_problems(problems: Iterable[Problem], supports: Supported, seed: int, first: int = 0) -> list[Problem]:
    """Return problems without the rules that some engine does not support, with names that it knows, within its limits."""
    if all(each == Support() for each in supports.programs) and not supports.limits:
        return list(problems)
    return [_fit(problem, supports, Random(f"{seed}:{i}")) for i, problem in enumerate(problems, first)]


def _fit(problem: Problem, supported: Supported, rng: Random) -> Problem:
    supports, own = supported.programs, problem.limits
    smaller = {name: most for name, most in supported.limits.items() if most < getattr(own, name)}
    problem = replace(problem, limits=msgspec.structs.replace(own, **smaller))
    rules = tuple(rule for rule in problem.rules if all(each.allows(rule) for each in supports))
    if len(rules) < len(problem.rules):
        problem = replace(problem, rules=rules)
    known = next((each.vocabulary for each in supports if each.vocabulary is not None), None)
    if known is None or not known.is_closed:
        return problem
    symbols = known.symbols
    predicates = _choose_names(list_predicates(problem.atoms()), symbols.predicates, symbols.predicate_ids, rng)
    constants = _choose_names(problem.domain, symbols.constants, symbols.constant_ids, rng)
    return replace(replace_symbols(problem, constants, predicates), vocabulary=known)


def _choose_names(names: Sequence[str], known: Sequence[str], ids: Mapping[str, int], rng: Random) -> dict[str, str]:
    """Return known names for the others: of any ids, and often of the lowest and the highest. If there are few, some recur."""
    taken = {name for name in names if name in ids}
    others = [name for name in names if name not in taken]
    ends = [end for end in (len(known) - 1, 0) if rng.random() < SHARE_OF_ENDS]
    chosen = dict.fromkeys((*ends, *rng.sample(range(len(known)), min(len(known), len(names)))))
    free = (known[i] for i in chosen if known[i] not in taken)
    return dict(zip(others, chain(free, cycle(known)), strict=False))
