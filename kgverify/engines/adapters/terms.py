"""An engine from a function on readable terms: names are strings, and a variable is a string that begins with `?`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from operator import index
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from kgverify.engines.adapters.searching import Beams, SearchEngine
from kgverify.engines.adapters.stepwise import (
    GIVE_UP_SCORE,
    MEMORIES,
    UNKNOWN_TO_STEPS,
    Memory,
    StepwiseEngine,
    check_memory,
    collect,
    describe_mode,
    read_positions,
)
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Positions
from kgverify.errors import UserError
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind, Origin, Outcome
from kgverify.program.program import Program
from kgverify.step.plain_step import Resolvent, Taken, TakenStep
from kgverify.step.search import Kept, Level, Path, expand
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.header import EngineInfo

TermAtom: TypeAlias = tuple[str, str, str]
"""Predicate, first, second; an argument that begins with `?` is a variable."""

TermGoal: TypeAlias = tuple[TermAtom, ...]

MARK: Final = "?"
"""The first character of a variable."""

SIGNATURE: Final = "function(goal, program) -> list of successors, each a list of atoms, or True, False or None"


class Facts:
    """The facts that a derivation may use, in order, without the excluded query. Supports iteration, `in`, `len` and `of`."""

    def __init__(self, by_predicate: dict[str, list[TermAtom]], every: dict[TermAtom, None], excluded: TermAtom | None):
        self._by_predicate, self._every = by_predicate, every
        self._excluded = excluded if excluded in every else None

    def of(self, predicate: str) -> list[TermAtom]:
        """Return the facts of a predicate, in order."""
        found = self._by_predicate.get(predicate, [])
        if self._excluded is not None and self._excluded[0] == predicate:
            return [fact for fact in found if fact != self._excluded]
        return found

    def __iter__(self) -> Iterator[TermAtom]:
        return (fact for fact in self._every if fact != self._excluded)

    def __contains__(self, atom: object) -> bool:
        return atom in self._every and atom != self._excluded

    def __len__(self) -> int:
        return len(self._every) - (self._excluded is not None)


class TermProgram(NamedTuple):
    """A program in readable terms, as one step of a derivation sees it.

    facts:    the usable facts, in order, without the excluded query; `facts.of(predicate)` returns the facts of a
              predicate
    rules:    pairs of a head and a tuple of body atoms, in order, with the variables of the file
    limits:   the limits of the run
    query:    the query of the derivation
    visited:  the goals of the derivation so far; the current one is last. In a search, a list of these for each path
    number:   the number of goals that a derivation has visited

    `rename` gives new names to the variables of a clause.
    """

    facts: Facts
    rules: tuple[tuple[TermAtom, TermGoal], ...]
    limits: Limits
    query: TermAtom
    visited: Sequence[Any]
    number: int

    def rename(self, *clause: TermAtom) -> list[TermAtom]:
        """Return the atoms of a clause with variables renamed to new ones: `?X` becomes `?X.3` at step 3."""
        return [(p, *(f"{t}.{self.number}" if t.startswith(MARK) else t for t in terms)) for p, *terms in clause]  # type: ignore[misc]


class TermEngine(StepwiseEngine):
    """A prover whose author provides `find_successors`, a function on readable terms; see `engine_of`.

    memory: the goals to which a derivation does not return: `"none"`; `"sets"`: sets of atoms that it visited, by the
            engine's own variables; `"goals"`: goals that it visited, up to the names of variables
    """

    memory: ClassVar[Memory] = "none"
    form: ClassVar[str] = SIGNATURE

    def __init__(self, program: Program, limits: Limits, policy: Policy) -> None:
        super().__init__(program, limits, policy)
        self._where = type(self).__name__
        check_memory(self.memory, self._where)
        names = (*program.symbols.predicates, *program.symbols.constants)
        marked = next((name for name in names if name.startswith(MARK)), None)
        if marked is not None:
            raise UserError(
                f"the name {marked!r} looks like a variable",
                where=self._where,
                fix=f"rename it, since names that begin with {MARK} are variables here, or write a StagedEngine",
            )
        self._predicates, self._constants = dict(program.symbols.predicate_ids), dict(program.symbols.constant_ids)
        self._rules = tuple((_spell(r.clause_head), tuple(map(_spell, r.body))) for r in program.named_rules)

    def find_successors(self, goal: TermGoal, program: TermProgram) -> Iterable[Any]:
        """Return the successors of a goal, each a list of atoms, or True (proved), False, or None (gives up)."""
        raise NotImplementedError

    @property
    def info(self) -> EngineInfo:
        """The engine's info: the name of the class, and the unknown columns."""
        mode = describe_mode("python", ("choice",) if isinstance(self, SearchEngine) else ())
        return EngineInfo(name=self._where, mode=mode, unknown=UNKNOWN_TO_STEPS, variables="own")

    def take_step(self, query: Any, visited: Sequence[Any]) -> Taken:
        """Call the function, and reject successors that have too many atoms or are in the memory."""
        made = self.find_successors(visited[-1], self._show_program(query, visited, len(visited)))
        if isinstance(made, str) or not isinstance(made, Iterable):
            raise self._misshapen(f"found {type(made).__name__}")
        found = [self._read(each) for each in made]
        remembers = MEMORIES[self.memory]
        seen = {self._remember(remembers, goal) for goal in visited} if remembers else set()
        kept = [
            each
            for each in found
            if each.kind is not GoalKind.GOAL
            or (
                len(each.atoms) <= self.limits.max_atoms
                and (not remembers or self._remember(remembers, each.atoms) not in seen)
            )
        ]
        if found and not kept:
            kept = [Resolvent((), Origin.NONE, 0, GoalKind.FALSE)]
        return Taken(kept)

    def _show_program(self, query: TermAtom, visited: Sequence[Any], number: int) -> TermProgram:
        facts = Facts(self._facts_of, self._facts, query if self.limits.exclude_query else None)
        return TermProgram(facts, self._rules, self.limits, query, visited, number)

    @cached_property
    def _facts(self) -> dict[TermAtom, None]:
        predicates, constants = self.program.symbols.predicates, self.program.symbols.constants
        return {(predicates[p], constants[a], constants[b]): None for p, a, b in self.program.facts.tolist()}

    @cached_property
    def _facts_of(self) -> dict[str, list[TermAtom]]:
        found: dict[str, list[TermAtom]] = {}
        for fact in self._facts:
            found.setdefault(fact[0], []).append(fact)
        return found

    def _remember(self, remembers: Callable[[Any], Any], goal: Any) -> Any:
        return remembers(self._encode(goal, {}) if self.memory == "goals" else goal)

    def _read(self, successor: Any) -> Resolvent:
        """Return a successor as a resolvent in terms, scored by the policy. UserError for anything else."""
        if successor is None:
            return Resolvent((), Origin.NONE, 0, GoalKind.STOP, GIVE_UP_SCORE)
        if isinstance(successor, bool):
            return Resolvent((), Origin.NONE, 0, GoalKind.TRUE if successor else GoalKind.FALSE)
        try:
            atoms: Any = tuple([(predicate, first, second) for predicate, first, second in successor])
        except (TypeError, ValueError):
            raise self._misshapen(f"found the successor {successor!r}") from None
        for each in (name for atom in atoms for name in atom):
            if not isinstance(each, str):
                raise self._misshapen(f"found {each!r} in an atom, expected a string")
        variables = {term for atom in atoms for term in atom[1:] if term.startswith(MARK)}
        score = -(len(atoms) + len(variables) / 64) if atoms else GIVE_UP_SCORE
        return Resolvent(atoms, Origin.NONE, 0, GoalKind.GOAL, score)

    def _misshapen(self, message: str) -> UserError:
        return UserError(message, where=self._where, fix=f"write {self.form}; an atom is (predicate, first, second)")

    def _take_all(self, queries: Sequence[Any], visited: Sequence[Sequence[Any]]) -> Sequence[Taken]:
        # A step without successors is recorded as such.
        return self.take_steps(queries, visited)

    def _choose(self, goal: Any, depth: int, taken: Taken) -> TakenStep:
        if not taken.resolvents:
            return TakenStep(goal, depth, taken, -1, Outcome.FAILED, 0.0)
        return super()._choose(goal, depth, taken)

    def _show(
        self, queries: Sequence[Any], visited: Sequence[Sequence[Any]], taken: Sequence[Taken]
    ) -> tuple[Positions, Columns]:
        encoded = []
        for query, goals, each in zip(queries, visited, taken, strict=True):
            numbers: dict[str, int] = {}
            seen = [self._encode(goal, numbers) for goal in goals]
            given = Taken([r._replace(atoms=self._encode(r.atoms, numbers)) for r in each.resolvents])
            encoded.append((self._encode([query], numbers)[0], seen, given))
        queries, visited, taken = zip(*encoded, strict=True)
        return super()._show(queries, visited, taken)

    def _read_queries(self, candidates: CandidateSet) -> list[Any]:
        return [self._decode(atom) for atom in candidates.atom.tolist()]

    def _read_positions(self, positions: Positions) -> tuple[list[Any], list[list[Any]]]:
        queries, visited = read_positions(positions)
        return (
            [self._decode(query) for query in queries],
            [[tuple(map(self._decode, goal)) for goal in goals] for goals in visited],
        )

    def _record(self, candidates: CandidateSet, derivations: list[list[TakenStep]]) -> Columns:
        """Return the steps in ids; the variables of each derivation are numbered by first appearance."""
        encoded = []
        for steps in derivations:
            # Variables of a given goal keep their numbers.
            numbers: dict[str, int] = {}
            given: Any = steps[0].goal
            for _, *arguments in given:
                numbers |= {term: int(term[1:]) for term in arguments if term.startswith(MARK)}
            encoded.append(
                [
                    step._replace(
                        goal=self._encode(step.goal, numbers),
                        taken=Taken([e._replace(atoms=self._encode(e.atoms, numbers)) for e in step.taken.resolvents]),
                    )
                    for step in steps
                ]
            )
        return collect(candidates, encoded)

    def _decode(self, atom: Sequence[int]) -> TermAtom:
        """Return an atom in terms; variable number v is `?v`."""
        predicate, *arguments = atom
        symbols = self.program.symbols
        first, second = (f"{MARK}{-1 - a}" if a < 0 else _name(symbols.constants, a, "constant") for a in arguments)
        return _name(symbols.predicates, predicate, "predicate"), first, second

    def _encode(self, goal: Any, numbers: dict[str, int]) -> Any:
        """Return a goal in ids, given the numbers of variables so far. A name that the program lacks gets a new id."""

        def encode(term: str) -> int:
            if not term.startswith(MARK):
                return self._constants.setdefault(term, len(self._constants))
            if term not in numbers:
                numbers[term] = max(numbers.values(), default=-1) + 1
            return -1 - numbers[term]

        return tuple(
            [(self._predicates.setdefault(p, len(self._predicates)), encode(a), encode(b)) for p, a, b in goal]
        )


class TermSearchEngine(TermEngine, SearchEngine):
    """A prover whose author provides `search`, a function on all paths of a beam in readable terms; see `engine_of`."""

    form: ClassVar[str] = "function(goals, log_probabilities, program) -> lists of (successor, score), kept pairs"
    searches: ClassVar[tuple[str, ...]] = ("greedy", "beam", "all")

    def search(self, goals: list[TermGoal], log_probabilities: list[float], program: TermProgram) -> Any:
        """Return for each goal its successors with their scores, and the pairs that are kept."""
        raise NotImplementedError

    def take_level(self, query: Any, beam: Sequence[Path]) -> Level:
        """Call the function. Log-probabilities are those of its scores."""
        visited: list[Any] = [path.visited for path in beam]
        program = self._show_program(query, visited, len(visited[0]))
        made = self.search([goals[-1] for goals in visited], [path.log_probability for path in beam], program)
        try:
            lists, pairs = made
            taken = [Taken([self._read(goal)._replace(score=float(score)) for goal, score in each]) for each in lists]
            kept = [(index(parent), index(choice)) for parent, choice in pairs]
            sums = {child[:2]: child.log_probability for child in expand(beam, taken)}
        except (TypeError, ValueError):
            raise self._misshapen(f"found {made!r:.200}") from None
        places = [(beam[i].place if 0 <= i < len(beam) else -1, choice) for i, choice in kept]
        return Level(taken, [Kept(*pair, place, sums.get(pair, 0.0)) for place, pair in enumerate(places)])

    def take_beams(self, candidates: CandidateSet, beams: Beams) -> Columns:
        """Take a level of each beam, as `SearchEngine` does."""

        def decode(goal: Any) -> Any:
            return tuple(map(self._decode, goal))

        named = [[path._replace(visited=list(map(decode, path.visited))) for path in beam] for beam in beams]
        return super().take_beams(candidates, named)


def _spell(atom: NamedAtom) -> TermAtom:
    first, second = (MARK + term.name if isinstance(term, Variable) else term for term in atom[1:])
    return atom.predicate, first, second


def _name(names: Sequence[str], number: int, kind: str) -> str:
    return names[number] if 0 <= number < len(names) else f"{kind}#{number}"
