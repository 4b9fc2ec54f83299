"""The experiments that distinguish dialects.

Each is a program of a few lines, with a goal to resolve or a query to prove. The answer of each dialect is not written
here: the reference computes it.
"""

import re
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final, NamedTuple

import msgspec
import numpy as np

from kgverify.comparison.step_view import StepReader
from kgverify.engines.protocol import make_positions
from kgverify.program.atoms import NamedAtom, Term, Variable, decode_variable, is_variable
from kgverify.program.limits import FILTERS, VALUES, Dialect, Limits
from kgverify.program.outcomes import GoalKind, Outcome, Side
from kgverify.program.program import NamedRule, Symbols, encode_atoms, render_named
from kgverify.runs.engine_makers import MakePipeline, make_reference
from kgverify.step.clauses import number_variables
from kgverify.testing.problems.merge import Merged, merge
from kgverify.testing.problems.problem import VARIABLE_NAMES, Problem
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.header import EngineInfo, unknown_columns

_ATOM: Final = re.compile(r"(\w)(?:\((\w),(\w)\))?")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A program and a question about it, whose answer depends on some switches of the dialect.

    about:    the switch that it decides; `filters` is followed by one filter (is it applied?) or by two (in which
              order?)
    facts, rules: the program
    path:     the goals of a derivation, the query first. A step is taken from the last goal; if the query is the only
              goal, it is proved
    is_step:  whether the question is about a step rather than the outcome of a query
    uses:     the switches and filters that may affect the answer
    is_corruption: whether the query is a corruption of a test triple
    """

    about: tuple[str, ...]
    facts: tuple[NamedAtom, ...]
    rules: tuple[NamedRule, ...]
    path: tuple[tuple[NamedAtom, ...], ...]
    is_step: bool
    uses: frozenset[str]
    limits: Limits
    is_corruption: bool = False

    @property
    def query(self) -> NamedAtom:
        """The query of the derivation."""
        return self.path[0][0]

    @property
    def lines(self) -> list[str]:
        """The program, one clause per line."""
        return [*map(str, self.rules), *map(render_named, self.facts)]

    @property
    def asks(self) -> str:
        """The question in words."""
        limits = {name: getattr(self.limits, name) for name in ("max_depth", "max_atoms", "max_resolvents")}
        default = Limits()
        settings = [f"{name} {value}" for name, value in limits.items() if value != getattr(default, name)]
        settings += ["a corruption"] if self.is_corruption else []
        end = f"   ({', '.join(settings)})" if settings else ""
        if not self.is_step:
            return f"is {render_named(self.query)} proved?{end}"
        *visited, goal = map(render_goal, self.path)
        after = f", after {'; '.join(visited)}" if visited else ""
        return f"resolve {goal}{after}{end}"


def render_goal(atoms: tuple[NamedAtom, ...]) -> str:
    """Render a goal as text; the goal without atoms is TRUE."""
    return ", ".join(map(render_named, atoms)) or "TRUE"


def vary(experiment: Experiment) -> tuple[Experiment, ...]:
    """Return the experiment, and variants that ask the same question about another program.

    One variant swaps the arguments of every atom. Another adds unrelated facts, so that ids and their order differ.
    """
    fillers = tuple(NamedAtom("w", a, b) for a, b in (("d", "c"), ("c", "b"), ("e", "a")))
    return experiment, _swap_arguments(experiment), replace(experiment, facts=(*fillers, *experiment.facts))


def _swap_arguments(experiment: Experiment) -> Experiment:
    def swap(atoms: tuple[NamedAtom, ...]) -> tuple[NamedAtom, ...]:
        return tuple([NamedAtom(predicate, b, a) for predicate, a, b in atoms])

    rules = tuple([rule.with_atoms(swap(rule.atoms)) for rule in experiment.rules])
    return replace(experiment, facts=swap(experiment.facts), rules=rules, path=tuple(map(swap, experiment.path)))


_STEPS: Final = """
stopping | p <- q. p <- r. | p | is_reversed
order | p <- q. p. | g > p(a,X), r(X,X) | stopping
is_reversed | p. p(a,c). | g > p(a,X), q(X,X) | stopping
is_reversed | p <- q. p <- r. | p | stopping
unification | p(X,X) <- q(X,X). p <- r. | p(a,X) | is_reversed UNARY
unification | p(X,X) <- q. p <- r. | g > p(X,b), r(X,a) | is_reversed UNARY
exclusion | p. q. | p | close stopping
exclusion | p. q. | p | close stopping | corruption
filters prune | p <- q, r. q. | p | UNARY
filters prune | p <- r, q. q. | p | UNARY
filters close | p <- q. p. | g > p | order stopping
filters close | p. p(a,c). | g > p(a,X) | duplicates stopping
filters prune close | p <- q. p <- r. q. | p | is_reversed stopping
filters max_atoms | p <- q, r, s. p <- t. | p | LONG | max_atoms 2
long_resolvents | p <- q(X,Z), r(Z,Y). p <- s. | g > p, t | max_atoms LONG | max_atoms 2
filters prune max_atoms | p <- q, r, s. p <- t. q. | p | LONG | max_atoms 2
filters max_resolvents | p. p(a,c). p(a,d). | g > p(a,X), q(X,X) | is_reversed stopping | max_resolvents 2
filters close max_resolvents | p <- q. p <- r. p <- s. s. | p | prune is_reversed stopping | max_resolvents 2
filters close max_resolvents | p <- s. p <- q. p <- r. s. | p | prune is_reversed stopping | max_resolvents 2
filters close max_resolvents | p <- q. p <- r. p. | g > p | order is_reversed stopping | max_resolvents 2
filters max_atoms max_resolvents | p <- q, r, s. p <- t. p <- u. | p | LONG | max_atoms 2, max_resolvents 2
filters max_atoms max_resolvents | p <- t. p <- u. p <- q, r, s. | p | LONG | max_atoms 2, max_resolvents 2
filters duplicates | p <- q(X,Z). p <- q(X,W). | p | UNARY
filters duplicates | p <- q. p. p(a,c). | g > p(a,X), r(a,a) | order is_reversed UNARY
filters prune duplicates | p <- q. p <- t, q. t. | p | is_reversed UNARY
filters duplicates max_resolvents | p <- q(X,Z). p <- q(X,W). p <- r. | p | is_reversed UNARY | max_resolvents 2
filters duplicates max_resolvents | p <- r. p <- q(X,Z). p <- q(X,W). | p | is_reversed UNARY | max_resolvents 2
filters duplicates max_atoms | p <- q, r, s. p <- q, r, t. | p | close LONG | max_atoms 2
memory | p <- p. p <- q. | p | revisit is_reversed UNARY
memory | p <- r(Y,X). p <- q. | r(b,a) > p | revisit is_reversed UNARY
memory | p <- q(Y,X), p(Y,X). p <- r. | g(b,a) > p(b,a), q(b,a) > p | revisit is_reversed UNARY
memory | p <- p, p. p <- r. | p | revisit duplicates is_reversed UNARY
forgets_names | p <- p(X,Z). p <- q. | p(a,X) | VISITED UNARY
forgets_names | p <- q(Z,Y). p <- r. | q(X,b) > p | VISITED UNARY
forgets_names | p <- r(X,Z), q(X,Z). p <- s. | q(a,X) > q(a,X), r(a,X) > p | VISITED UNARY
filters prune revisit | p <- q, p. p <- r. q. | p | VISITED UNARY
filters revisit max_resolvents | p <- p. p <- q. p <- r. | p | VISITED UNARY | max_resolvents 2
filters revisit max_resolvents | p <- q. p <- r. p <- p. | p | VISITED UNARY | max_resolvents 2
filters revisit max_atoms | p <- p, q, s. p <- r, s. | g > p, q | close VISITED LONG | max_atoms 2
filters duplicates revisit | p <- p(X,Z). p <- p. p <- r. | p(a,X) | forgets_names VISITED UNARY
filters duplicates revisit | p <- p. p <- p(X,Z). p <- r. | p(a,X) | forgets_names VISITED UNARY
filters revisit close | p <- p. q. | p | VISITED UNARY
filters close max_atoms | p <- q, r, s. q(a,c). | p | LONG | max_atoms 2
filters close max_atoms | p <- q, r, s. p. | g > p | order LONG | max_atoms 2
filters revisit max_atoms | p <- p, p, p. p <- r. | p | VISITED LONG | max_atoms 2
filters duplicates max_atoms | p <- q(X,Z), r, s. p <- q(X,W), r, s. p <- t. | p | LONG | max_atoms 2
"""
"""The experiments about steps. Each depends on little besides the switches that earlier experiments decide."""

_OUTCOMES: Final = """
unification | g <- p(X,Z). p(X,X) <- q(X,X). q(a,a). | g
unification | g <- p(X,Z). p(X,X) <- q. q. | g
exclusion | p. q. | p
exclusion | p. q. | p |  | corruption
is_reversed | g <- p(X,Z), s(Z,Z). p. p(a,c). s <- u. u(b,b). | g
is_reversed | g <- p(X,Z), s(Z,Z). p. p(a,c). s <- u. u(c,c). | g
is_reversed | p <- q. p <- r. r <- u. u. | p
filters prune | p <- q, r. p <- t(X,Z). q. r <- u. u. | p
filters prune | p <- q, r. p <- t(X,Z). q. t(a,c). | p
filters max_atoms | p <- q, r, s. s <- v. GOOD | p | long_resolvents | max_atoms 2
long_resolvents | p <- q, r, s. GOOD | p | max_atoms | max_atoms 2
filters prune max_atoms | p <- s, q, r. GOOD s. | p | long_resolvents | max_atoms 2
filters prune max_atoms | p <- s, q, t. GOOD s. | p | long_resolvents | max_atoms 2
filters max_resolvents | DEAD p <- q. GOOD | p | is_reversed | max_resolvents 2
filters max_resolvents | p <- q. DEAD GOOD | p | is_reversed | max_resolvents 2
order | g <- p(X,Z), s(Z,Z). p <- q. p. s <- u. u(b,b). | g | max_resolvents | max_resolvents 1
order | g <- p(X,Z), s(Z,Z). p <- q. p. q(a,c). s <- u. u(c,c). | g | max_resolvents | max_resolvents 1
order | g <- p(X,Z), s(Z,Z). p(X,c) <- t(X,c). p. t(a,c). s <- u. u(c,c). | g | prune
order | g <- p(X,Z), s(Z,Z). p(X,c) <- t(X,c). p. t(a,c). s <- u. u(b,b). | g | prune
filters close max_resolvents | DEAD p <- q. q. | p | prune is_reversed | max_resolvents 2
filters close max_resolvents | p <- q. DEAD q. | p | prune is_reversed | max_resolvents 2
filters close max_resolvents | g <- p(X,Z). DEAD p(a,c). | g | order | max_resolvents 2
filters max_atoms max_resolvents | p <- t(X,X), t, t(Y,X). p <- t, t(Y,X). p <- q. GOOD | p | long_resolvents is_reversed | BOTH
filters max_atoms max_resolvents | p <- q. p <- t, t(Y,X). p <- t(X,X), t, t(Y,X). GOOD | p | long_resolvents is_reversed | BOTH
filters duplicates max_resolvents | p <- t(X,Z). p <- t(X,W). p <- q. GOOD | p | is_reversed | max_resolvents 2
filters duplicates max_resolvents | p <- q. p <- t(X,Z). p <- t(X,W). GOOD | p | is_reversed | max_resolvents 2
filters prune duplicates | p <- t(X,Z). p <- v, t(X,W). p <- q. GOOD | p | max_resolvents is_reversed | max_resolvents 2
filters prune duplicates | p <- q. p <- t(X,Z). p <- v, t(X,W). GOOD | p | max_resolvents is_reversed | max_resolvents 2
memory | p <- p. p <- q, r. GOOD | p | revisit | max_depth 8
memory | p <- p(Y,X). p <- q, r. q <- v(Y,X). GOOD r(b,a) <- v(a,b). | p | revisit prune | max_depth 8
memory | p <- p, p. p <- q, r, q. GOOD | p | revisit prune max_atoms long_resolvents skips_unary is_reversed | max_depth 8
forgets_names | g <- p(X,Z). p <- p(X,W). p <- q, r. q(a,c). r(a,c). | g | revisit memory | max_depth 8
filters prune revisit | p <- v, p. p <- q, r, q. GOOD | p | memory | max_depth 8
filters revisit max_resolvents | p <- p. p <- t, t(Y,X). p <- q, r. GOOD | p | memory is_reversed | FEW
filters revisit max_resolvents | p <- q, r. p <- t, t(Y,X). p <- p. GOOD | p | memory is_reversed | FEW
filters revisit max_atoms | p <- p, q. p <- q. GOOD | p | memory long_resolvents is_reversed | ONE
filters revisit max_atoms | p <- q. p <- p, q. GOOD | p | memory long_resolvents is_reversed | ONE
"""
"""The experiments about outcomes, for an engine whose steps are unknown."""

_UNARY: Final = """
skips_unary | p <- q. q <- r. r <- s. s. | p | prune | max_depth 2
skips_unary | p <- q(Y,X). q <- r. r <- q(X,Z), q(Z,Y). q(b,c). q(c,a). | p | prune order | max_depth 3
"""
"""The experiments about outcomes that are put to every engine, since no step shows the answer."""

_CONTROLS: Final = """
control | p <- q. q. | p
control | p <- q. q(a,c). | p
"""
"""Queries that every dialect answers in the same way."""

_CHOICES: Final = """
control | p <- q. p <- r, s. r <- u. s <- u. u. | p
control | p <- r, s. p <- q. q <- u. u. | p
"""
"""Queries that show whether the engine makes the choices of the policy `shortest`, without backtracking to others."""

_TABLES: Final = {
    "STEPS": _STEPS,
    "OUTCOMES": _OUTCOMES,
    "UNARY": _UNARY,
    "CONTROLS": _CONTROLS,
    "CHOICES": _CHOICES,
}

_SHORT: Final = {
    "UNARY": "stopping skips_unary",
    "LONG": "long_resolvents is_reversed stopping skips_unary",
    "VISITED": "revisit memory is_reversed",
    "GOOD": "q <- v. r <- v. v.",
    "DEAD": "p <- t, t(Y,X). p <- t(Y,X), t.",
    "BOTH": "max_atoms 2, max_resolvents 2",
    "FEW": "max_resolvents 2, max_depth 8",
    "ONE": "max_atoms 1, max_depth 8",
}
"""The abbreviations in the tables. A bare predicate stands for p(X, Y) in a rule, and for p(a, b) elsewhere."""


def _read_atoms(text: str, *, is_rule: bool = False) -> tuple[NamedAtom, ...]:
    bare = "XY" if is_rule else "ab"

    def term(name: str) -> Term:
        return Variable(name) if name.isupper() else name

    found = _ATOM.findall(text.replace(" ", ""))
    return tuple([NamedAtom(p, term(a or bare[0]), term(b or bare[1])) for p, a, b in found])


def _read_row(row: str, *, is_step: bool) -> Experiment:
    """Read a row of a table: the subject, clauses that end with dots, a path of goals, the switches used, and limits."""
    for short, words in _SHORT.items():
        row = row.replace(short, words)
    about, program, path, *rest = row.split("|")
    uses, settings = (*rest, "", "")[:2]
    clauses = [clause.partition("<-") for clause in program.split(".") if clause.strip()]
    switch, *filters = about.split()
    limits = [each.split() for each in settings.split(",") if each.strip() not in ("", "corruption")]
    return Experiment(
        about=(switch, *filters),
        facts=tuple([_read_atoms(head)[0] for head, _, body in clauses if not body]),
        rules=tuple(
            [
                NamedRule(_read_atoms(head, is_rule=True)[0], _read_atoms(body, is_rule=True))
                for head, _, body in clauses
                if body
            ]
        ),
        path=tuple(map(_read_atoms, path.split(">"))),
        is_step=is_step,
        uses=frozenset(name for name in (*about.split(), *uses.split()) if name in VALUES or name in FILTERS),
        limits=msgspec.convert({name: int(value) for name, value in limits}, Limits),
        is_corruption="corruption" in settings,
    )


@cache
def list_experiments(*tables: str) -> tuple[Experiment, ...]:
    """Return the experiments of tables, in order: STEPS, OUTCOMES, UNARY, CONTROLS or CHOICES."""
    return tuple(
        [_read_row(row, is_step=name == "STEPS") for name in tables for row in _TABLES[name].strip().splitlines()]
    )


PROVED: Final = "proved"
NOT_PROVED: Final = "not proved"


class Answer(NamedTuple):
    """An answer to an experiment.

    lines:     the resolvents of a step in order, as text with canonical variables, or the outcome of a query
    counts:    the numbers of resolvents that `max_atoms` and `max_resolvents` dropped in a step; empty if unknown
    is_forced: whether no step of a derivation had a choice; False if unknown
    """

    lines: tuple[str, ...]
    counts: tuple[int, ...] = ()
    is_forced: bool = False

    def __str__(self) -> str:
        """Return the answer in one line."""
        counts = "; ".join(f"{num} dropped" for num in [sum(self.counts)] if num)
        return "; ".join(filter(None, (*self.lines, counts)))


@lru_cache(maxsize=1 << 14)
def predict(experiment: Experiment, dialect: Dialect) -> Answer:
    """Return the reference's answer in a dialect."""
    return ask(experiment, make_reference, dialect)


def project(dialect: Dialect, uses: frozenset[str]) -> Dialect:
    """Return a dialect with the defaults of all switches and filters that an experiment does not use."""
    switches = {name: getattr(dialect, name) for name in uses if name in Dialect.__struct_fields__}
    return Dialect(**switches, filters=tuple([each for each in dialect.filters if each in uses]))


def ask(experiment: Experiment, make: MakePipeline, dialect: Dialect | None = None) -> Answer:
    """Return the answer of an engine that is made only for this experiment, with the dialect in its limits.

    Exceptions of the engine are passed on.
    """
    merged = _merge(experiment)
    limits = experiment.limits if dialect is None else msgspec.structs.replace(experiment.limits, dialect=dialect)
    engine = make(replace(merged.run, limits=limits), merged.sizes).engine
    symbols = merged.graph.program.symbols
    side = Side.TAIL if experiment.is_corruption else Side.NONE
    query = np.array([symbols.encode(experiment.query)], np.int32)
    candidate = CandidateSet(np.zeros(1, np.int32), np.array([side], np.int8), query)
    if experiment.is_step:
        goals = [encode_atoms(goal, symbols.predicate_ids, symbols.constant_ids) for goal in experiment.path]
        position = make_positions(candidate, np.array([len(goals) - 1], np.uint16), [goals])
        return _read_step(engine.step(position), engine.info, symbols)
    columns = engine.prove(candidate)
    outcome = PROVED if columns.candidates.outcome[0] == Outcome.PROVED else NOT_PROVED
    is_known = "steps.num_resolvents" not in unknown_columns(engine.info)
    return Answer((outcome,), (), is_known and bool((columns.steps.num_resolvents == 1).all()))


@lru_cache(maxsize=1 << 10)
def _merge(experiment: Experiment) -> Merged:
    """Return the run of an experiment. Its symbols are known even if no clause contains them."""
    query = experiment.query
    ranked = [query] if query.is_ground else []
    if experiment.is_corruption:
        ranked = [query._replace(second="c")]
    problem = Problem(
        facts=experiment.facts,
        rules=experiment.rules,
        queries=tuple(ranked),
        unranked=tuple([atom for goal in experiment.path for atom in goal]),
        limits=experiment.limits,
        num_corruptions=0,
    )
    return merge([problem])


def _read_step(columns: Columns, info: EngineInfo, symbols: Symbols) -> Answer:
    """Return the answer of the first step."""
    step, lines = StepReader(columns).read(0), []
    for each in step.resolvents:
        goal = render_goal(tuple([_name(atom, symbols) for atom in number_variables(each.atoms)])) if each.atoms else ""
        is_goal = each.kind == GoalKind.GOAL and each.atoms
        terminal = "" if is_goal else GoalKind(each.kind).name if each.kind in _KINDS else str(each.kind)
        lines.append(": ".join(filter(None, (terminal, goal))))
    # Without resolvents the derivation ends, just as with FALSE.
    counts = () if "steps.dropped_atoms" in unknown_columns(info) else (step.dropped_atoms, step.dropped_resolvents)
    return Answer(tuple(lines) or (GoalKind.FALSE.name,), counts)


_KINDS: Final = frozenset(map(int, GoalKind))


def _name(atom: tuple[int, int, int], symbols: Symbols) -> NamedAtom:
    """Return an atom in names; an id without a name is shown as a number."""

    def name(names: tuple[str, ...], number: int) -> str:
        return names[number] if 0 <= number < len(names) else f"#{number}"

    def term(number: int) -> Term:
        if not is_variable(number):
            return name(symbols.constants, number)
        numbered = decode_variable(number)
        return Variable(VARIABLE_NAMES[numbered] if numbered < len(VARIABLE_NAMES) else f"V{numbered}")

    predicate, first, second = atom
    return NamedAtom(name(symbols.predicates, predicate), term(first), term(second))
