"""A derivation as a proof tree: each selected atom above the atoms of the clause that resolved it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from kgverify.comparison.step_view import Names, ResolventView, StepView
from kgverify.program.atoms import Atom, is_variable
from kgverify.program.outcomes import Origin
from kgverify.report.wording import clip
from kgverify.trace.model.trace import Trace


class TreeLine(NamedTuple):
    """An atom of a proof tree.

    depth:  0 for an atom of the query
    clause: the clause that resolved it; empty if no step selected it
    step:   the step that selected it; -1 if none did
    note:   `open` if no step selected it, `a fact` if pruning deleted it, `no clause` if no clause resolved it
    """

    depth: int
    atom: str
    clause: str
    step: int
    note: str = ""


Tree = tuple[TreeLine, ...]


@dataclass(eq=False)
class _Node:
    depth: int
    atom: str
    clause: str = ""
    step: int = -1
    note: str = "open"
    children: list["_Node"] = field(default_factory=list)

    def lines(self) -> Iterator[TreeLine]:
        yield TreeLine(self.depth, clip(self.atom), clip(self.clause), self.step, self.note)
        for child in self.children:
            yield from child.lines()


Bodies = Sequence[tuple[str, ...]]
"""The predicates of the body of each rule."""


def read_bodies(trace: Trace) -> Bodies:
    """Return the bodies of the rules of a trace; empty if it does not contain them."""
    predicates = trace.symbols.predicates
    return [tuple(predicates[atom[0]] for atom in rule.body) for rule in trace.rules or ()]


def build_tree(steps: Sequence[StepView], names: Names, bodies: Bodies) -> Tree:
    """Return the proof tree of a derivation in depth-first order, from all its steps.

    The tree is empty if it would say no more than the list of steps, since no chosen rule has two atoms. It is also empty if
    the steps do not determine it: an atom other than the first was selected, or pruning left more than one possibility.
    """
    if not steps:
        return ()
    roots = [_Node(0, names.atom(atom)) for atom in steps[0].goal]
    pending = list(roots)
    has_branches = False
    for number, step in enumerate(steps):
        if len(pending) != len(step.goal) or not pending:
            return ()
        for node, atom in zip(pending, step.goal, strict=True):
            node.atom = names.atom(atom)
        selected, *rest = pending
        selected.step, selected.note = number, ""
        chosen = step.resolvents[step.choice] if step.chosen is not None else None
        if chosen is None or chosen.origin_kind not in (Origin.RULE, Origin.FACT):
            selected.note = "no clause"
            break
        kept = _resolve(step, chosen, selected, rest, names, bodies)
        if kept is None:
            return ()
        has_branches |= len(selected.children) > 1
        pending = kept
        if not pending:
            break
    return tuple(line for root in roots for line in root.lines()) if has_branches else ()


def _resolve(
    step: StepView, chosen: ResolventView, selected: _Node, rest: list[_Node], names: Names, bodies: Bodies
) -> list[_Node] | None:
    """Put the atoms of the chosen clause below the selected one. Return the atoms that pruning left, or None if unknown."""
    is_rule = chosen.origin_kind == Origin.RULE
    if is_rule and not 0 <= chosen.origin < len(bodies):
        return None
    predicates = bodies[chosen.origin] if is_rule else ()
    fact = None if is_rule else names.fact(chosen.origin)
    pairs = zip(step.goal[0][1:], fact[1:], strict=True) if fact else ()
    values = {variable: constant for variable, constant in pairs if is_variable(variable)}
    remaining = [Atom(atom[0], *(values.get(each, each) for each in atom[1:])) for atom in step.goal[1:]]
    wanted = [(name, None) for name in predicates] + [(names.predicate(atom[0]), atom) for atom in remaining]
    found = list(islice(_embed(wanted, list(chosen.atoms), names), 2))
    if len(found) != 1:
        return None
    selected.clause = names.clause(*chosen.clause)
    selected.children = [_Node(selected.depth + 1, f"{name}(…)") for name in predicates]
    nodes = [*selected.children, *rest]
    for i, (node, (_, before)) in enumerate(zip(nodes, wanted, strict=True)):
        if i not in found[0]:
            node.note = "a fact"
            node.atom = names.atom(before) if before else node.atom
    pending = [nodes[i] for i in found[0]]
    for node, atom in zip(pending, chosen.atoms, strict=True):
        node.atom = names.atom(atom)
    return pending


def _embed(wanted: Sequence[tuple[str, Atom | None]], kept: list[Atom], names: Names) -> Iterator[list[int]]:
    """Yield the ways to match the kept atoms, in order, with atoms that a resolvent had before pruning."""
    if len(kept) == len(wanted):
        yield list(range(len(kept)))
    elif not kept:
        yield []
    else:
        for i in range(len(wanted) - len(kept) + 1):
            if _may_be(*wanted[i], kept[0], names):
                for others in _embed(wanted[i + 1 :], kept[1:], names):
                    yield [i, *(i + 1 + other for other in others)]


def _may_be(predicate: str, before: Atom | None, atom: Atom, names: Names) -> bool:
    """Return whether an atom may come by substitution from an earlier one, whose arguments may be unknown."""
    if names.predicate(atom[0]) != predicate:
        return False
    pairs = zip(before[1:], atom[1:], strict=True) if before else ()
    return all(is_variable(old) or old == new for old, new in pairs)
