"""Merge many problems into one run: symbols are renamed apart, and each problem keeps its own domain."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.policy import SHORTEST, Policy
from kgverify.engines.protocol import Sizes
from kgverify.errors import UserError
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.atom_table import AtomTable
from kgverify.program.atoms import NamedAtom, Term
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Side
from kgverify.program.program import NamedRule, Program, Symbols
from kgverify.runs.engine_makers import make_reference
from kgverify.runs.run import Pipeline, Run
from kgverify.testing.problems.problem import VARIABLE_NAMES, PolicySpec, Problem, list_predicates
from kgverify.trace.model.columns import CandidateSet

MOST_SLOTS: Final = 256
MATCHED_PER_SLOT: Final = 3
SCORED_PER_SLOT: Final = 2
"""The share of the score window for each slot.

Larger values slow an eager evaluator down, and so does a window for which most slots have to wait.
"""


@dataclass(frozen=True, eq=False)
class Merged:
    """Problems merged into one run.

    sizes:     the sizes of the batch, for all problems together
    owner:     int64 [n]  the index in `problems` of each query's problem
    is_ranked: bool [n]   whether the query is ranked; the other queries represent problems without ranked queries
    unranked:  the candidates outside the ranking; each has the number of a query of its problem
    reference: makes the reference's pipeline
    """

    problems: tuple[Problem, ...]
    graph: KnowledgeGraph
    run: Run
    sizes: Sizes
    owner: NDArray[np.int64]
    is_ranked: NDArray[np.bool_]
    unranked: CandidateSet
    reference: Callable[[Run, Sizes], Pipeline]

    @property
    def expected(self) -> Pipeline:
        """The reference, with the unranked candidates added to its draw."""
        return self.with_unranked(self.reference(self.run, self.sizes))

    def with_unranked(self, pipeline: Pipeline) -> Pipeline:
        """Return the pipeline with the unranked candidates added to its draw, next to the others of their problems."""
        draw_ranked = pipeline.draw

        def draw(graph: KnowledgeGraph, split: str, queries: Sequence[int], num: int, seed: int) -> CandidateSet:
            drawn = draw_ranked(graph, split, [query for query in queries if self.is_ranked[query]], num, seed)
            every = CandidateSet(
                np.concatenate((drawn.query, self.unranked.query)),
                np.concatenate((drawn.side, self.unranked.side)),
                np.concatenate((drawn.atom, self.unranked.atom)),
            )
            return every.take(np.argsort(self.owner[every.query], kind="stable"))

        return pipeline._replace(draw=draw)

    def list_candidates(self) -> list[NamedAtom]:
        """Return the candidates in names, in the order in which they are proved."""
        atoms = self.expected.draw_for(self.run).atom.tolist()
        return [self.graph.program.symbols.decode(atom, VARIABLE_NAMES.__getitem__) for atom in atoms]


def group_problems(problems: Sequence[Problem]) -> list[list[int]]:
    """Return the indices of the problems that can share a run, in order of first appearance.

    A problem with a closed vocabulary cannot: in a common run, symbols get other names.
    """
    groups: dict[object, list[int]] = {}
    for i, problem in enumerate(problems):
        groups.setdefault(i if problem.vocabulary.is_closed else problem.key, []).append(i)
    return list(groups.values())


def merge(problems: Sequence[Problem], reference: Callable[[Run, Sizes], Pipeline] = make_reference) -> Merged:
    """Merge all problems into one run; a single problem keeps its names.

    UserError unless all have the same `key`.

    Each problem keeps the order of its facts, its rules and its ids.
    """
    if not problems:
        raise UserError("expected a problem, found none", where="merge", fix="give a problem or more")
    key = problems[0].key
    if any(problem.key != key for problem in problems):
        raise UserError(
            "expected one setting of limits, policy, corruptions and seed, found several",
            where="merge",
            fix="group the problems with group_problems first",
        )
    limits, policy, num_corruptions, seed = key
    parts = [_rename(problem, f"{i}:" if len(problems) > 1 else "") for i, problem in enumerate(problems)]
    graph = KnowledgeGraph(
        "problem" if len(problems) == 1 else f"{len(problems)} problems",
        train=AtomTable.of([fact for part in parts for fact in part.facts]),
        valid=tuple(atom for part in parts for atom in part.declared),
        test=tuple(query for part in parts for query in part.queries),
        rules=tuple(rule for part in parts for rule in part.rules),
        domains={f"{i}:domain": part.domain for i, part in enumerate(parts)},
        first_symbols=parts[0].first_symbols if len(parts) == 1 else _join_symbols(parts),
    )
    counts = [len(part.queries) for part in parts]
    owner = np.repeat(np.arange(len(parts)), counts)
    first_query = np.cumsum([0, *counts[:-1]])
    run = Run(
        graph,
        limits,
        build_policy(policy, graph.program, limits, is_merged=len(problems) > 1),
        num_queries=len(owner),
        num_corruptions=num_corruptions,
        seed=seed,
    )
    return Merged(
        problems=tuple(problems),
        graph=graph,
        run=run,
        sizes=_add_sizes(problems),
        owner=owner,
        is_ranked=np.array([bool(problems[i].queries) for i in owner.tolist()], np.bool_),
        unranked=_list_unranked([part.unranked for part in parts], first_query, graph.program.symbols),
        reference=reference,
    )


def _list_unranked(
    unranked: Sequence[Sequence[NamedAtom]], queries: NDArray[np.int64], symbols: Symbols
) -> CandidateSet:
    """Return the unranked queries of each problem as candidates, each with the number of a query of its problem."""
    rows = [symbols.encode(atom) for atoms in unranked for atom in atoms]
    of_query = np.repeat(queries, [len(atoms) for atoms in unranked]).astype(np.int32)
    return CandidateSet(of_query, np.full(len(rows), Side.NONE, np.int8), np.array(rows, np.int32).reshape(-1, 3))


class _Part(NamedTuple):
    """A problem with the names that it has in the run.

    declared:      atoms that declare the symbols that occur only in unranked queries
    first_symbols: the symbols that are numbered before all others
    """

    facts: list[NamedAtom]
    rules: list[NamedRule]
    queries: list[NamedAtom]
    unranked: list[NamedAtom]
    declared: list[NamedAtom]
    domain: tuple[str, ...]
    first_symbols: Symbols


def _join_symbols(parts: Sequence[_Part]) -> Symbols:
    predicates, constants = (
        tuple([name for part in parts for name in names(part.first_symbols)])
        for names in (attrgetter("predicates"), attrgetter("constants"))
    )
    return Symbols(predicates, constants)


def _rename(problem: Problem, prefix: str) -> _Part:
    """Return a problem with a prefix before each symbol; variables keep their names."""
    plain = problem.domain
    domain = tuple([prefix + constant for constant in plain])
    names: dict[Term, Term] = dict(zip(plain, domain, strict=True))
    renamed = names.get

    def put(atoms: Sequence[NamedAtom]) -> list[NamedAtom]:
        return [NamedAtom(prefix + p, renamed(a, a), renamed(b, b)) for p, a, b in atoms]

    # Plain tuples take half the time, and become a table later.
    facts: list[Any] = [(prefix + p, names[a], names[b]) for p, a, b in problem.facts]
    rules = [rule.with_atoms(put(rule.atoms)) for rule in problem.rules]
    queries, unranked = put(problem.queries), put(problem.unranked)
    first = problem.vocabulary.symbols
    if prefix:
        first = Symbols(*(tuple([prefix + name for name in names]) for names in (first.predicates, first.constants)))
    known = {predicate for atoms in (facts, queries, *(rule.atoms for rule in rules)) for predicate, _, _ in atoms}
    known.update(first.predicates)
    unknown = [predicate for predicate in list_predicates(unranked) if predicate not in known]
    constant = next(iter((*domain, *first.constants[:1])), f"{prefix}c")
    declared = [NamedAtom(predicate, constant, constant) for predicate in unknown]
    # A run needs a query, for which a problem without ranked queries has this one, whose ranking is not compared.
    placeholder = [NamedAtom(atom.predicate, constant, constant) for atom in unranked[:1]]
    return _Part(facts, rules, queries or placeholder, unranked, declared, domain, first)


def _add_sizes(problems: Sequence[Problem]) -> Sizes:
    """Return sizes for all problems together: the sums, as far as they are fast."""
    if len(problems) == 1:
        return problems[0].sizes
    sizes = [problem.sizes for problem in problems]
    slots = min(sum(each.slots for each in sizes), MOST_SLOTS)
    return Sizes(
        slots=slots,
        atoms=max(each.atoms for each in sizes),
        resolvents=max(each.resolvents for each in sizes),
        match_window=min(sum(each.match_window for each in sizes), MATCHED_PER_SLOT * slots),
        score_window=min(sum(each.score_window for each in sizes), SCORED_PER_SLOT * slots),
        pool=sum(each.pool for each in sizes),
    )


def build_policy(spec: PolicySpec, program: Program, limits: Limits, *, is_merged: bool) -> Policy:
    """Return the policy of a run. Each symbol has the same embedding as if its problem ran alone."""
    if spec.name == "shortest":
        return SHORTEST

    def number(names: Sequence[str]) -> list[int]:
        """Return the number of each symbol in its own problem."""
        counts: Counter[str] = Counter()
        numbers = []
        for name in names:
            prefix = name.partition(":")[0] if is_merged else ""
            numbers.append(counts[prefix])
            counts[prefix] += 1
        return numbers

    d, h = spec.embedding, spec.hidden

    def table(stream: int, rows: Sequence[int], width: int, scale: float) -> NDArray[np.float32]:
        most = 64
        while most <= max(rows, default=0):
            most *= 2
        return (_normal(spec.seed, stream, most, width)[list(rows)] * scale).astype(np.float32)

    weights = {
        "embedding.predicate": table(0, number(program.symbols.predicates), d, 1.0),
        "embedding.constant": table(1, number(program.symbols.constants), d, 1.0),
        "embedding.variable": table(2, range(2 * limits.max_atoms), d, 1.0),
        "input.weight": table(3, range(h), d, d**-0.5),
        "input.bias": table(4, [0], h, 0.1)[0],
    }
    for i in range(spec.blocks):
        stream = 5 + 4 * i
        weights[f"block.{i}.weight"] = table(stream, range(h), h, (2 / h) ** 0.5)
        weights[f"block.{i}.bias"] = table(stream + 1, [0], h, 0.1)[0]
        weights[f"block.{i}.norm.weight"] = 1 + table(stream + 2, [0], h, 0.1)[0]
        weights[f"block.{i}.norm.bias"] = table(stream + 3, [0], h, 0.1)[0]
    return Policy("two_tower", weights)


@lru_cache(maxsize=256)
def _normal(seed: int, stream: int, rows: int, width: int) -> NDArray[np.float64]:
    """Return standard normal numbers, float64 [rows, width]. A shorter table has the same first rows."""
    return np.random.default_rng((seed, stream)).standard_normal((rows, width))
