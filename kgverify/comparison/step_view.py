"""Single steps of a trace, and the names to print them with."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property, partial
from itertools import starmap
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgverify.program.atoms import Atom, Goal, decode_variable, is_variable
from kgverify.program.outcomes import STEP_STAGES, GoalKind, Origin, Outcome, Side, Stage
from kgverify.step.clauses import Atoms, number_variables
from kgverify.trace.model.columns import Columns, starts_of
from kgverify.trace.model.paths import find_made, find_parents
from kgverify.trace.model.stage_items import StageOutputs
from kgverify.trace.model.trace import Trace

UNNAMED: Final = 1 << 30
"""The offset added to an id without a name if the other trace uses the id for a name; it is not printed."""


class ResolventView(NamedTuple):
    """A resolvent; kind is a `GoalKind`, origin_kind an `Origin`."""

    kind: int
    atoms: Goal
    origin_kind: int
    origin: int
    score: float

    @property
    def content(self) -> tuple[int, Goal]:
        """The kind and the atoms."""
        return self.kind, self.atoms

    @property
    def clause(self) -> tuple[int, int]:
        """The clause that made it."""
        return self.origin_kind, self.origin


class StepView(NamedTuple):
    """A step, with the fields that it has in the trace."""

    depth: int
    goal: Goal
    resolvents: tuple[ResolventView, ...]
    dropped_atoms: int
    dropped_resolvents: int
    choice: int
    outcome: int

    @property
    def chosen(self) -> tuple[int, Goal] | None:
        """The content of the chosen resolvent; None if the choice is not the index of a resolvent."""
        return self.resolvents[self.choice].content if 0 <= self.choice < len(self.resolvents) else None

    def without_stopping(self) -> "StepView":
        """Return the step without STOP among its resolvents; FALSE marks a list that held nothing else."""
        left = tuple(r for r in self.resolvents if r.kind != GoalKind.STOP)
        return self._replace(resolvents=left) if left or not self.resolvents else self._replace(resolvents=(_DEAD_END,))

    @property
    def outputs(self) -> StageOutputs:
        """The stage outputs that the step itself shows; those of stages before `limit` are shown after the limits apply."""
        items = tuple((r.kind, *r.clause, r.atoms) for r in self.resolvents)
        rules, facts = (
            tuple(r.origin for r in self.resolvents if r.origin_kind == kind) for kind in (Origin.RULE, Origin.FACT)
        )
        return {
            Stage.MATCH_RULES: rules,
            Stage.MATCH_FACTS: facts,
            **dict.fromkeys(LISTING_STAGES, items),
            Stage.LIMIT: (items, self.dropped_atoms, self.dropped_resolvents),
            Stage.SCORE: tuple(r.score for r in self.resolvents),
            Stage.CHOOSE: self.choice,
            Stage.FINISH: self.outcome,
        }


_DEAD_END: Final = ResolventView(GoalKind.FALSE, (), Origin.NONE, 0, 0.0)

LISTING_STAGES: Final = STEP_STAGES[STEP_STAGES.index(Stage.RESOLVE) : STEP_STAGES.index(Stage.LIMIT)]
"""The stages that list resolvents, without the counts of `limit`."""

Views = dict[tuple[int, int], tuple[StepView, StepView]]
"""Both versions of each step that differs, by (candidate, step)."""


_make_atom: Final[Callable[[Iterable[int]], Atom]] = partial(tuple.__new__, Atom)
"""Makes an atom of its fields, in half the time that `Atom` takes."""


class StepReader:
    """A reader of single steps in columns."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    @cached_property
    def first_step(self) -> list[int]:
        """The first step of each candidate, followed by the number of steps."""
        return [int(i) for i in starts_of(self.columns.candidates.num_steps)]

    @cached_property
    def _starts(self) -> tuple[NDArray[np.int64], ...]:
        """The first atom of each goal, the first resolvent of each step, and the first atom of each resolvent."""
        steps, resolvents = self.columns.steps, self.columns.resolvents
        return starts_of(steps.num_atoms), starts_of(steps.num_resolvents), starts_of(resolvents.num_atoms)

    def first_resolvent(self, row: int) -> int:
        """Return the row of the first resolvent of a step."""
        return int(self._starts[1][row])

    def goal_of(self, row: int) -> Goal:
        """Return the goal of the step in a row as plain tuples."""
        starts = self._starts[0]
        return tuple(map(tuple, self.columns.steps.goal_atoms[starts[row] : starts[row + 1]].tolist()))  # type: ignore[arg-type]

    def read_earlier(self, candidate: int, step: int) -> tuple[StepView, ...]:
        """Return the steps of a derivation before a step: in a search, those of its path."""
        return tuple(view for _, view in self.read_path(candidate, step))

    def read_path(self, candidate: int, step: int) -> list[tuple[int, StepView]]:
        """Return the steps before a step of a derivation, or of a path, with their numbers; each chooses the next goal."""
        first, path = self.first_step[candidate], []
        row = first + step
        if row == self.first_step[candidate + 1]:
            return [(i, self.read(first + i)) for i in range(step)]
        while (parent := int(self._parents[row])) >= 0:
            choice = int(self._made[row]) - self.first_resolvent(parent)
            path.append((parent - first, self.read(parent)._replace(choice=choice if self._made[row] >= 0 else -1)))
            row = parent
        return path[::-1]

    @cached_property
    def _parents(self) -> NDArray[np.int64]:
        return find_parents(self.columns)

    @cached_property
    def _made(self) -> NDArray[np.int64]:
        return find_made(self.columns)

    def read(self, row: int) -> StepView:
        """Return the step in a row of the step columns."""
        steps, resolvents = self.columns.steps, self.columns.resolvents
        goal_starts, resolvent_starts, atom_starts = self._starts
        begin, end = int(resolvent_starts[row]), int(resolvent_starts[row + 1])
        goal = steps.goal_atoms[goal_starts[row] : goal_starts[row + 1]]
        atom_begin = int(atom_starts[begin])
        atoms = list(map(_make_atom, resolvents.atoms[atom_begin : atom_starts[end]].tolist()))
        bounds = (atom_starts[begin : end + 1] - atom_begin).tolist()
        rest = zip(
            resolvents.kind[begin:end].tolist(),
            bounds,
            bounds[1:],
            resolvents.origin_kind[begin:end].tolist(),
            resolvents.origin[begin:end].tolist(),
            resolvents.score[begin:end].tolist(),
            strict=False,
        )
        return StepView(
            int(steps.depth[row]),
            tuple(map(_make_atom, goal.tolist())),
            tuple(ResolventView(k, tuple(atoms[a:b]), ok, o, s) for k, a, b, ok, o, s in rest),
            int(steps.dropped_atoms[row]),
            int(steps.dropped_resolvents[row]),
            int(steps.choice[row]),
            int(steps.outcome[row]),
        )


class Names:
    """The names of a trace, to render its ids."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._predicates = trace.symbols.predicates
        self._constants = trace.symbols.constants

    def argument(self, argument: int) -> str:
        """Render an argument: the name of a constant, or `X0`, `X1` for a variable."""
        if is_variable(argument):
            return f"X{decode_variable(argument)}"
        return self._constants[argument] if argument < len(self._constants) else f"constant#{argument & ~UNNAMED}"

    def predicate(self, predicate: int) -> str:
        """Render a predicate."""
        is_known = 0 <= predicate < len(self._predicates)
        return self._predicates[predicate] if is_known else f"predicate#{predicate & ~UNNAMED}"

    def atom(self, atom: Atom | tuple[int, int, int]) -> str:
        """Render an atom: `p(a, X0)`."""
        predicate, first, second = atom
        if predicate < 0:
            return "no atom"
        return f"{self.predicate(predicate)}({self.argument(first)}, {self.argument(second)})"

    def goal(self, atoms: Goal, kind: int = GoalKind.GOAL) -> str:
        """Render a goal: its atoms, or TRUE, FALSE or STOP together with any atoms beside it."""
        text = ", ".join(map(self.atom, atoms))
        if kind == GoalKind.GOAL:
            return text or "(no atoms)"
        name = GoalKind(kind).name if kind in tuple(GoalKind) else f"kind#{kind}"
        return f"{name}, with atoms left: {text}" if text else name

    def fact(self, origin: int) -> Atom | None:
        """Return a fact by its index; None if the trace does not contain it."""
        facts = self._trace.facts
        return Atom(*facts[origin].tolist()) if facts is not None and 0 <= origin < len(facts) else None

    def clause(self, origin_kind: int, origin: int) -> str:
        """Render the clause that made a resolvent, with the file and the line from which it was read."""
        clauses = self._trace.header.clauses
        if origin_kind == Origin.RULE:
            text = clauses.rules[origin] if 0 <= origin < len(clauses.rules) else f"rule {origin}"
            source = clauses.rule_sources[origin] if 0 <= origin < len(clauses.rule_sources) else ""
        elif origin_kind == Origin.FACT:
            fact, lines = self.fact(origin), self._trace.fact_lines
            text = f"fact {self.atom(fact)}" if fact is not None else f"fact {origin}"
            line = int(lines[origin]) if lines is not None and 0 <= origin < len(lines) else 0
            source = f"{clauses.facts_file}:{line}" if line else ""
        else:
            return ""
        return f"{text} [{source}]" if source else text

    def resolvent(self, resolvent: ResolventView) -> str:
        """Render a resolvent and the clause that made it."""
        made_by = self.clause(*resolvent.clause)
        text = self.goal(resolvent.atoms, resolvent.kind)
        return f"{text}   by {made_by}" if made_by else text


def outcome_name(outcome: int) -> str:
    """Return the name of an outcome, such as `PROVED`, or the number of an unknown outcome."""
    return Outcome(outcome).name if outcome in tuple(Outcome) else f"outcome#{outcome}"


def side_name(side: int) -> str:
    """Return the name of a side: `head`, `tail` or `none`, or the number of an unknown side."""
    return Side(side).name.lower() if side in tuple(Side) else f"side#{side}"


Content = tuple[int, Atoms]
"""The kind of a resolvent, and its atoms in canonical variables."""


def plain(atoms: Iterable[tuple[int, int, int]]) -> Atoms:
    """Return atoms as plain tuples, which are equal to the atoms of a program and have the same hashes."""
    return tuple([(predicate, a, b) for predicate, a, b in atoms])


def canonical(atoms: Goal) -> Goal:
    """Return the goal with its variables numbered by first appearance."""
    return tuple(starmap(Atom, number_variables(iter(atoms))))


Item = TypeVar("Item")


def content_of(resolvent: ResolventView) -> Content:
    """Return the kind of a resolvent and its atoms, in canonical variables."""
    return resolvent.kind, number_variables(iter(plain(resolvent.atoms)))


def list_missing(
    these: Iterable[Item], others: Iterable[Item], key: Callable[[Item], Hashable] = lambda item: item
) -> list[Item]:
    """Return the items of `these` that `others` lack, counted with multiplicity; items with the same key are equal."""
    left = Counter(map(key, others))
    found = []
    for item in these:
        if left[key(item)]:
            left[key(item)] -= 1
        else:
            found.append(item)
    return found


def list_unshared(
    expected: Sequence[Item], actual: Sequence[Item], key: Callable[[Item], Hashable] = lambda item: item
) -> tuple[list[Item], list[Item]]:
    """Return the items that only one of two lists has, as `list_missing` finds them."""
    return list_missing(expected, actual, key), list_missing(actual, expected, key)
