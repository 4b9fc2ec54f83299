"""The proofs of an atom, the smallest first; without a proof, incomplete proofs in which few atoms are lacking.

The search is best-first (Hart, Nilsson and Raphael 1968): the tables of `kgverify.engines.search` give the smallest number of
clauses of each open atom, which is never too large. An atom that follows from nothing may be assumed at a price above every
proof, so that incomplete proofs come last.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count, islice
from math import inf
from typing import Final, NamedTuple

from kgverify.engines.search import Body, Tables, bind, is_ground
from kgverify.program.atoms import Atom
from kgverify.program.fact_index import FactIndex
from kgverify.program.outcomes import Origin
from kgverify.program.program import Program

MOST_EXPANDED: Final = 200_000
"""The maximum number of partial proofs that are extended: about a minute."""
_LACK: Final = 1 << 20
"""The price of an assumed atom, in clauses."""


class Node(NamedTuple):
    """An atom of a proof.

    parent: the index of the node whose clause has this atom in its body; -1 for the proved atom
    kind:   the kind of clause that resolves the atom; None for an atom that is lacking
    origin: the index of the fact or of the rule; -1 for an atom that is lacking
    """

    atom: Atom
    parent: int = -1
    kind: Origin | None = None
    origin: int = -1


Proof = tuple[Node, ...]
"""A proof in depth-first order, each body in the order of its rule."""


class FoundProofs(NamedTuple):
    """The proofs of an atom.

    proofs:      the smallest proofs; without one, some incomplete proofs in which few atoms are lacking
    is_complete: whether there are no other proofs
    is_decided:  whether the search ended, rather than its work
    """

    proofs: tuple[Proof, ...]
    is_complete: bool
    is_decided: bool

    @property
    def is_proved(self) -> bool:
        """True if there is a proof."""
        return any(all(node.kind is not None for node in proof) for proof in self.proofs)


def find_proofs(program: Program, atom: Atom, limit: int, *, excludes_atom: bool) -> FoundProofs:
    """Find the smallest proofs of a ground atom.

    A proof in which an atom is above itself is left out, since a smaller one proves the same.

    limit:         the maximum number of proofs
    excludes_atom: whether the atom may not be used as a fact
    """
    search = _Search(program, atom if excludes_atom else None)
    proofs = tuple(islice(search.find(atom), limit + 1))
    found = FoundProofs(proofs[:limit], len(proofs) <= limit and search.is_decided, search.is_decided)
    return found._replace(is_complete=found.is_complete or (search.is_decided and not found.is_proved))


class _State(NamedTuple):
    """A partial proof.

    open: the indices of the nodes that no clause resolves yet and that are not assumed
    used: the number of variables so far
    """

    nodes: Proof
    open: tuple[int, ...]
    used: int = 0


class _Search:
    def __init__(self, program: Program, excluded: Atom | None) -> None:
        self._program, self._excluded = program, excluded
        self._facts = FactIndex(program.facts)
        self._tables = Tables(program, self._facts, excluded)
        self._heap: list[tuple[float, int, _State]] = []
        self._count = count()
        self.is_decided = True

    def find(self, atom: Atom) -> Iterator[Proof]:
        """Yield the proofs of an atom; without one, the incomplete proofs that lack the fewest atoms."""
        self._push(_State((Node(atom),), (0,)))
        most = inf
        for _ in range(MOST_EXPANDED):
            if not self._heap or self._heap[0][0] >= most:
                return
            cost, _, state = heappop(self._heap)
            if state.open:
                self._expand(state)
            else:
                most = (cost // _LACK + 1) * _LACK
                yield _order(state.nodes)
        self.is_decided = False

    def _push(self, state: _State) -> None:
        """Add a partial proof, unless an atom is above itself."""
        for node in state.nodes:
            above = node.parent
            while above >= 0 and state.nodes[above].atom != node.atom:
                above = state.nodes[above].parent
            if above >= 0:
                return
        closed = [_LACK + 1 if node.kind is None else 1 for i, node in enumerate(state.nodes) if i not in state.open]
        cost = sum(closed) + sum(self._price(state.nodes[i].atom) for i in state.open)
        heappush(self._heap, (cost, next(self._count), state))

    def _price(self, atom: Atom) -> float:
        """Return a lower bound on the clauses that an open atom takes, or the price of an assumption."""
        size = self._tables.find(atom)
        if size is None:
            self.is_decided = False
            return 1
        return size if size < inf else _LACK + 1

    def _expand(self, state: _State) -> None:
        """Bind the first atom with variables to its answers; else resolve the first atom that follows from something."""
        ranks = {i: self._price(state.nodes[i].atom) > _LACK for i in state.open}
        chosen = min(state.open, key=lambda i: (ranks[i], is_ground(state.nodes[i].atom), i))
        node = state.nodes[chosen]
        rest = tuple(i for i in state.open if i != chosen)
        if not is_ground(node.atom) and not ranks[chosen]:
            for answer in self._answers(node.atom):
                self._add(state, chosen, (answer,), node, state.open)
            return
        if is_ground(node.atom) and node.atom != self._excluded and node.atom in self._facts:
            fact = node._replace(kind=Origin.FACT, origin=self._facts[node.atom])
            self._add(state, chosen, (node.atom,), fact, rest)
        for number, rule in enumerate(self._program.rules):
            if rule.clause_head.predicate == node.atom.predicate:
                clause = _rename((rule.clause_head, *rule.body), state.used)
                self._add(state, chosen, clause, node._replace(kind=Origin.RULE, origin=number), rest)
        if ranks[chosen] and chosen:
            self._push(_State(state.nodes, rest, state.used))

    def _add(self, state: _State, chosen: int, clause: Body, node: Node, still_open: tuple[int, ...]) -> None:
        """Add the partial proof in which a clause, head first, is unified with a node."""
        num = len(state.nodes)
        atoms = _unify((*(each.atom for each in state.nodes), *clause), chosen, num)
        if atoms is None:
            return
        nodes = [each._replace(atom=atom) for each, atom in zip(state.nodes, atoms, strict=False)]
        nodes[chosen] = node._replace(atom=atoms[chosen])
        nodes += [Node(atom, chosen) for atom in atoms[num + 1 :]]
        used = max(state.used, *(-min(atom[1:]) for atom in atoms))
        self._push(_State(tuple(nodes), (*still_open, *range(num, len(nodes))), used))

    def _answers(self, atom: Atom) -> list[Atom]:
        """Return the atoms with this form that follow."""
        answers = self._tables.find_all(atom)
        if answers is None:
            self.is_decided = False
        return sorted(answers or ())


def _rename(atoms: Body, used: int) -> Body:
    """Return a clause with variables that nothing else uses."""
    return tuple([Atom(p, *(term - used if term < 0 else term for term in terms)) for p, *terms in atoms])


def _unify(atoms: Body, one: int, other: int) -> Body | None:
    """Bind variables in all atoms so that two of them become equal; None if they cannot."""
    for place in (1, 2):
        first, second = sorted((atoms[one][place], atoms[other][place]))
        if first != second:
            if first >= 0:
                return None
            atoms = bind(atoms, first, second)
    return atoms


def _order(nodes: Proof) -> Proof:
    """Return the nodes in depth-first order."""
    children: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(i)
    ordered: list[Node] = []

    def visit(i: int, parent: int) -> None:
        place = len(ordered)
        ordered.append(nodes[i]._replace(parent=parent))
        for child in children.get(i, ()):
            visit(child, place)

    visit(0, -1)
    return tuple(ordered)
