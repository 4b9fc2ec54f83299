"""Hypothesis strategies for a prover's input: symbols, atoms, programs, queries, limits, and whole problems.

All are bounded: at most four predicates, eight constants and a block of seventy facts. They need Hypothesis, which
`pip install 'kgverify[fuzz]'` installs.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Final, TypeVar

import numpy as np

from kgverify.engines.policy import POLICY_NAMES
from kgverify.errors import UserError, find_missing_dependency
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.limits import FILTERS, OURS, VALUES, Dialect, Limits, Search
from kgverify.program.outcomes import Side
from kgverify.program.program import NamedRule, Program, Symbols
from kgverify.testing.problems.decode import (
    BULK,
    BULK_BEYOND,
    RULES,
    SHAPES,
    SIZE,
    add_switch,
    decode_problem,
    fill_facts,
    fill_rules,
    put_in_dialect,
)
from kgverify.testing.problems.problem import PolicySpec, Problem, list_variables
from kgverify.trace.model.columns import CandidateSet

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import DrawFn, SearchStrategy
except ImportError as error:
    raise find_missing_dependency(error, where="kgverify.strategies") or error from error

T = TypeVar("T")

AWKWARD_NAMES: Final = (
    "0",
    "-1",
    "X",
    "_",
    "nil",
    "a b",
    " a",
    "a,b",
    "p(a,b)",
    "it's",
    '"',
    "\\",
    "a:b",
    "->",
    ":-",
    "%",
    "#",
    "?x",
    ".",
    "é",
    "é",
    "\ufeff",
    "\u200b",
    "\u2028",
    "ß",
    "İ",
    "名前",
    "𝒳",
    "\x00",
    "~0",
)
"""Names that readers, writers and tables may get wrong: signs of the formats, blanks, and similar Unicode characters."""

VARIABLES: Final = tuple(map(Variable, ("X", "Y", "Z", "W", "V")))
_BLOCKS: Final = ("single", "chain", "cycle", "fan out", "fan in", "loops", "complete", "scattered")
_BULKS: Final = ("bulk chain", "bulk fan out", "bulk fan in")


@cache
def names() -> SearchStrategy[str]:
    """Draw names of one to six characters that a graph's files can contain. They shrink to letters."""
    alphabet = st.characters(codec="utf-8", exclude_characters="\n\r\t")
    return st.one_of(
        st.sampled_from("abcdefgh"), st.sampled_from(AWKWARD_NAMES), st.text(alphabet, min_size=1, max_size=6)
    )


@cache
def symbols(*, awkward: bool = True) -> SearchStrategy[Symbols]:
    """Draw two to four predicates and two to eight constants; without `awkward`, plain names."""

    def some(prefix: str, most: int) -> SearchStrategy[tuple[str, ...]]:
        plain = st.integers(2, most).map(lambda count: tuple(f"{prefix}{i}" for i in range(count)))
        if not awkward:
            return plain
        return plain | st.lists(names(), min_size=2, max_size=most, unique=True).map(tuple)

    return _call(Symbols, some("p", 4), some("c", 8))


@lru_cache(maxsize=256)
def atoms(known: Symbols, *, variables: tuple[Variable, ...] = VARIABLES) -> SearchStrategy[NamedAtom]:
    """Draw atoms over the symbols; an argument is a variable twice as often as a constant."""
    constants: SearchStrategy[Term] = st.sampled_from(known.constants)
    terms = st.one_of(st.sampled_from(variables), st.sampled_from(variables), constants) if variables else constants
    return _call(NamedAtom, st.sampled_from(known.predicates), terms, terms)


@lru_cache(maxsize=256)
def facts(known: Symbols) -> SearchStrategy[tuple[NamedAtom, ...]]:
    """Draw a block of facts: single, chain, cycle, fan, loops, scattered, or more of one predicate than a cap of 50.

    A bulk block brings further constants, `m0` to `m69`.
    """

    def blocks(shapes: Sequence[str], sizes: SearchStrategy[int]) -> SearchStrategy[tuple[NamedAtom, ...]]:
        return _call(
            fill_facts,
            st.sampled_from(shapes),
            st.sampled_from(known.predicates),
            st.just(known.constants),
            st.integers(0, 7),
            sizes,
        )

    small = blocks(_BLOCKS, st.integers(1, 8))
    bulk = blocks(_BULKS, st.integers(BULK + 1, BULK + BULK_BEYOND))
    return st.one_of(small, small, small, bulk)


@lru_cache(maxsize=256)
def rules(known: Symbols) -> SearchStrategy[tuple[NamedRule, ...]]:
    """Draw one to three related rules: a known trap with its holes filled, or any rule of one to five body atoms.

    They include chains, inverses, mutual recursion, repeated variables, constants, and variables of only the head or body.
    """
    anything = _call(NamedRule, atoms(known), st.lists(atoms(known), min_size=1, max_size=5).map(tuple))
    names_of_holes = st.tuples(*[st.sampled_from(known.predicates)] * 4)
    constants = st.sampled_from(known.constants)
    traps = _call(fill_rules, st.integers(0, len(RULES) - 1), names_of_holes, constants, constants)
    return st.one_of(traps, anything.map(lambda rule: (rule,)))


@st.composite
def programs(draw: DrawFn, known: Symbols | None = None) -> Program:
    """Draw up to four blocks of facts and up to four groups of rules, in any order, some of them twice."""
    over = known or draw(symbols())
    blocks = draw(st.lists(facts(over), max_size=4))
    groups = draw(st.lists(rules(over), max_size=4))
    return Program.from_names(
        [fact for block in blocks for fact in block], [rule for group in groups for rule in group], (), over.constants
    )


@st.composite
def derivations(draw: DrawFn, program: Program) -> tuple[NamedAtom, tuple[NamedAtom, ...]]:
    """Draw a ground query and facts from which it follows by a rule; without rules, a fact as both.

    Four in five uniformly drawn queries would fail.
    """
    constants = st.sampled_from(program.symbols.constants)
    if not program.named_rules:
        fact = NamedAtom(draw(_predicates(program)), draw(constants), draw(constants))
        return fact, (fact,)
    rule = draw(st.sampled_from(program.named_rules))
    values: dict[Term, Term] = {variable: draw(constants) for variable in list_variables(rule.atoms)}
    ground = rule.rename(values)
    return ground.clause_head, ground.body


def queries(program: Program, *, ground: bool = False) -> SearchStrategy[NamedAtom]:
    """Draw heads of rules, facts and any other atoms of the program; with variables too, unless `ground`."""
    constants: SearchStrategy[Term] = st.sampled_from(program.symbols.constants)
    heads = _predicates(program)
    anything = _call(NamedAtom, heads, constants, constants)
    ways: list[SearchStrategy[NamedAtom]] = [anything]
    if program.named_facts:
        ways.append(st.sampled_from(program.named_facts))
    if not ground:
        variable = st.just(VARIABLES[0])
        ways += [
            _call(NamedAtom, heads, constants, variable),
            _call(NamedAtom, heads, variable, constants),
            _call(NamedAtom, heads, variable, st.sampled_from(VARIABLES[:2])),
        ]
    return st.one_of(ways)


def candidate_sets(program: Program, *, max_size: int = 12) -> SearchStrategy[CandidateSet]:
    """Draw candidates without a ranking, each with its own query number, possibly with repetitions.

    They use the program's symbols. UserError for a program without predicates.
    """
    if not program.symbols.predicates:
        raise UserError(
            "expected a program with a predicate, found none", where="candidate_sets", fix="give it a fact or a rule"
        )

    def encode(drawn: list[NamedAtom]) -> CandidateSet:
        rows = np.array([program.symbols.encode(atom) for atom in drawn], np.int32).reshape(-1, 3)
        return CandidateSet(np.arange(len(rows), dtype=np.int32), np.full(len(rows), Side.NONE, np.int8), rows)

    return st.lists(queries(program), max_size=max_size).map(encode)


@cache
def dialects() -> SearchStrategy[Dialect]:
    """Draw dialects with any value of each switch, small searches, and most filters in any order.

    They shrink to the default dialect.
    """
    drawn: dict[str, SearchStrategy[Any]] = {
        name: st.sampled_from(sorted(values, key=lambda value: value != getattr(OURS, name)))
        for name, values in VALUES.items()
    }
    any_filters = st.lists(st.sampled_from(FILTERS), unique=True, max_size=len(FILTERS)).map(tuple)
    drawn["filters"] = st.just(OURS.filters) | st.permutations(OURS.filters).map(tuple) | any_filters
    few, aggregate = st.integers(1, 4), st.sampled_from(("max", "sum", "noisy_or"))
    samples = _call(Search, st.just("sample"), few, st.integers(0, 3))
    others = _call(Search, st.sampled_from(("beam", "all")), few | st.integers(1, 20))
    merge = st.sampled_from(("none", "max", "sum"))
    searches: SearchStrategy[dict[str, str]] = st.one_of(
        st.just({}),
        st.fixed_dictionaries({"search": samples.map(str), "aggregate": aggregate}),
        st.fixed_dictionaries({"search": others.map(str), "aggregate": aggregate, "merge": merge}),
    )
    return st.tuples(st.fixed_dictionaries(drawn), searches).map(lambda pair: Dialect(**pair[0], **pair[1]))


@lru_cache(maxsize=256)
def limits(dialect: Dialect = OURS) -> SearchStrategy[Limits]:
    """Draw small limits, which many steps meet or just exceed, and sometimes the defaults, in one dialect."""
    return st.builds(
        Limits,
        dialect=st.just(dialect),
        max_depth=st.sampled_from((*range(1, 10), 20)),
        max_atoms=st.integers(1, 6),
        max_resolvents=st.sampled_from((*range(1, 9), 50, 51, 60, 120)),
        exclude_query=st.booleans(),
    )


@st.composite
def graphs(draw: DrawFn) -> KnowledgeGraph:
    """Draw a program as a graph, with one to six test triples, some derivable and some facts."""
    program = draw(programs())
    derived = draw(st.lists(derivations(program), max_size=3))
    others = draw(st.lists(queries(program, ground=True), min_size=1, max_size=3))
    return KnowledgeGraph(
        "drawn",
        train=(*program.named_facts, *(fact for _, proof in derived for fact in proof)),
        test=(*(query for query, _ in derived), *others),
        rules=program.named_rules,
    )


@st.composite
def problems(draw: DrawFn, policies: Sequence[str] = POLICY_NAMES, dialect: Dialect = OURS) -> Problem:
    """Draw whole problems, decoded from bytes. They are fast to draw and find faults in the fewest examples.

    In a dialect other than the default, some problems have clauses and a query for which a switch matters.

    policies: the policies to draw from, for an engine that does not support all
    """
    # With a composite strategy, Hypothesis prints a failing problem as a program, not as bytes.
    problem = decode_problem(draw(st.binary(min_size=SIZE, max_size=SIZE)))
    if dialect != OURS:
        problem = put_in_dialect(problem, dialect)
        if draw(st.booleans()):
            problem = add_switch(problem, draw(st.integers(0, 2 * len(SHAPES) - 1)), draw(st.integers(0, 2**32 - 1)))
    return problem if problem.policy.name in policies else replace(problem, policy=PolicySpec(policies[0]))


def _call(make: Callable[..., T], *arguments: SearchStrategy[Any]) -> SearchStrategy[T]:
    """Build a strategy like `st.builds`, without its search for types."""
    return st.tuples(*arguments).map(lambda drawn: make(*drawn))


def _predicates(program: Program) -> SearchStrategy[str]:
    """Draw predicates of rule heads or, less often, any predicate; a placeholder name if the program has none."""
    heads = tuple(dict.fromkeys(rule.clause_head.predicate for rule in program.named_rules))
    ways: list[Any] = [st.sampled_from(each) for each in (heads, program.symbols.predicates) if each]
    return st.one_of(ways) if ways else st.just("p")
