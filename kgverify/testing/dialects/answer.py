"""The answer of an engine, or of the reference in some dialect, to the question of an experiment."""

from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
import numpy as np

from kgverify.engines.protocol import Positions
from kgverify.program.atoms import NamedAtom, Term, Variable, decode_variable, is_variable
from kgverify.program.dialect import Dialect
from kgverify.program.outcomes import GoalKind, Outcome, Side
from kgverify.program.program import Symbols, encode_atoms
from kgverify.runs.engine_makers import MakePipeline, make_reference
from kgverify.step.clauses import number_variables
from kgverify.testing.dialects.experiments import Experiment, render_goal
from kgverify.testing.problems.merge import Merged, merge
from kgverify.testing.problems.problem import VARIABLE_NAMES, Problem
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.header import EngineInfo, unknown_columns

PROVED: Final = "proved"
NOT_PROVED: Final = "not proved"


class Answer(NamedTuple):
    """An answer.

    lines:     the resolvents of a step in order, as text with canonical variables; or the outcome of a query
    counts:    the numbers dropped by `max_atoms` and by `max_resolvents` in a step; empty if they are unknown
    is_forced: whether no step of a derivation had a choice; False where that is unknown
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
    """Return the default dialect, except for the switches and the filters that an experiment uses."""
    switches = {name: getattr(dialect, name) for name in uses if name in Dialect.__struct_fields__}
    return Dialect(**switches, filters=tuple([each for each in dialect.filters if each in uses]))


def ask(experiment: Experiment, make: MakePipeline, dialect: Dialect | None = None) -> Answer:
    """Return the answer of an engine, made for this experiment alone; the dialect is that of its limits.

    Raises what the engine raises.
    """
    merged = _merge(experiment)
    limits = experiment.limits if dialect is None else msgspec.structs.replace(experiment.limits, dialect=dialect)
    engine = make(replace(merged.run, limits=limits), merged.sizes).engine
    symbols = merged.graph.program.symbols
    side = Side.TAIL if experiment.is_corruption else Side.NONE
    query = np.array([symbols.encode(experiment.query)], np.int32)
    candidate = CandidateSet(np.zeros(1, np.int32), np.array([side], np.int8), query)
    if experiment.is_step:
        return _read_step(engine.step(_make_position(experiment, candidate, symbols)), engine.info, symbols)
    return _read_outcome(engine.prove(candidate), engine.info)


@lru_cache(maxsize=1 << 10)
def _merge(experiment: Experiment) -> Merged:
    """Return the run of an experiment, whose symbols are known even where no clause has them."""
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


def _make_position(experiment: Experiment, candidate: CandidateSet, symbols: Symbols) -> Positions:
    goals = [encode_atoms(goal, symbols.predicate_ids, symbols.constant_ids) for goal in experiment.path]
    return Positions(
        candidate,
        np.array([len(goals) - 1], np.uint16),
        np.array([len(goals)], np.uint32),
        np.array([len(goal) for goal in goals], np.uint16),
        np.array([atom for goal in goals for atom in goal], np.int32).reshape(-1, 3),
    )


def _read_step(columns: Columns, info: EngineInfo, symbols: Symbols) -> Answer:
    """Return the answer of the first step."""
    _, steps, resolvents, _ = columns
    num = int(steps.num_resolvents[0])
    lines, begin = [], 0
    for kind, num_atoms in zip(resolvents.kind[:num].tolist(), resolvents.num_atoms[:num].tolist(), strict=True):
        atoms = number_variables(iter(map(tuple, resolvents.atoms[begin : begin + num_atoms].tolist())))
        begin += num_atoms
        goal = render_goal(tuple([_name(atom, symbols) for atom in atoms])) if num_atoms else ""
        terminal = "" if kind == GoalKind.GOAL and num_atoms else GoalKind(kind).name if kind in _KINDS else str(kind)
        lines.append(": ".join(filter(None, (terminal, goal))))
    # Without resolvents the derivation ends just as with FALSE.
    counts = (
        () if "steps.dropped_atoms" in unknown_columns(info) else (steps.dropped_atoms[0], steps.dropped_resolvents[0])
    )
    return Answer(tuple(lines) or (GoalKind.FALSE.name,), tuple(map(int, counts)))


_KINDS: Final = frozenset(map(int, GoalKind))


def _read_outcome(columns: Columns, info: EngineInfo) -> Answer:
    is_proved = columns.candidates.outcome[0] == Outcome.PROVED
    is_known = "steps.num_resolvents" not in unknown_columns(info)
    return Answer(
        (PROVED if is_proved else NOT_PROVED,), (), is_known and bool((columns.steps.num_resolvents == 1).all())
    )


def _name(atom: tuple[int, int, int], symbols: Symbols) -> NamedAtom:
    """Return an atom in names; an id that has none is shown as a number."""

    def name(names: tuple[str, ...], number: int) -> str:
        return names[number] if 0 <= number < len(names) else f"#{number}"

    def term(number: int) -> Term:
        if not is_variable(number):
            return name(symbols.constants, number)
        numbered = decode_variable(number)
        return Variable(VARIABLE_NAMES[numbered] if numbered < len(VARIABLE_NAMES) else f"V{numbered}")

    predicate, first, second = atom
    return NamedAtom(name(symbols.predicates, predicate), term(first), term(second))
