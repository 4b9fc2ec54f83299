"""An engine from the stages that its author provides: each stage is a method, and the others follow the semantics."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import index
from typing import Any, Final, Literal, NamedTuple, TypeAlias, overload

from kgverify.engines.adapters.stepwise import AtomIds, Goal, Memory, StepwiseEngine, check_memory, read_positions
from kgverify.engines.adapters.terms import TermEngine, TermGoal, TermProgram, TermSearchEngine
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Positions, StageOutputs
from kgverify.errors import UserError
from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind, Origin, Stage
from kgverify.program.program import Program
from kgverify.step import plain_step
from kgverify.step.clauses import Clauses
from kgverify.step.plain_step import FALSE, Filtered, Resolvent, Situation, Step, Taken


class Clause(NamedTuple):
    """A rule, or a fact, which has no body.

    Atoms are (predicate, first, second) in ids. An argument below 0 is a variable; -1 is the first variable of each
    clause. Rules are not standardized apart: the variables of a goal have the same numbers.
    """

    head: AtomIds
    body: Goal
    origin_kind: Origin
    origin: int


_CLAUSE_KINDS: Final = (Origin.RULE, Origin.FACT)

Made: TypeAlias = Iterable[tuple[Clause, Sequence[AtomIds]]]
"""Clauses, each with the atoms of the resolvent that it makes."""


class StagedEngine(StepwiseEngine):
    """A prover whose author provides `resolve`, and any of the later stages.

    rules, facts: the clauses of the program, in order

    The other stages (prune, rename, revisit, close, limit, score) follow docs/semantics.md. `probe` shows the result of
    each stage, so that kgverify can attribute a divergence to its stage.

    Example:
        >>> import kgverify as kv
        >>> class Empty(kv.StagedEngine):
        ...     def resolve(self, goal, excluded):
        ...         return []
        >>> report = kv.verify("countries", Empty, queries=1, corruptions=1)
        >>> report.verdict.value, report.first_divergence.stage
        ('DIVERGE', 'match_rules')
    """

    def __init__(self, program: Program, limits: Limits, policy: Policy) -> None:
        super().__init__(program, limits, policy)
        # Plain tuples, so that authors can compare and print them.
        self.rules = [
            Clause((p, a, b), tuple((q, c, d) for q, c, d in body), Origin.RULE, i)
            for i, ((p, a, b), body) in enumerate(program.rules)
        ]
        self.facts = [Clause((p, a, b), (), Origin.FACT, i) for i, (p, a, b) in enumerate(program.facts.tolist())]
        self._situation = Situation(Clauses(program, exclude_query=limits.exclude_query), limits, None, ())
        self._clauses_of: dict[int, list[Clause]] = {}
        for clause in (*self.rules, *self.facts):
            self._clauses_of.setdefault(clause.head[0], []).append(clause)

    def clauses_for(self, goal: Goal, excluded: AtomIds | None) -> list[Clause]:
        """Return the clauses of the first atom's predicate, rules before facts, without the excluded fact."""
        clauses = self._clauses_of.get(goal[0][0], [])
        return [each for each in clauses if each.body or each.head != excluded]

    def resolve(self, goal: Goal, excluded: AtomIds | None) -> Made:
        """Return each clause that matches the first atom, in order, with its body and then the goal's other atoms.

        excluded: the fact that may not be used, or None

        The numbering of variables does not matter yet.
        """
        raise NotImplementedError

    def prune(self, resolvents: Sequence[Resolvent], excluded: AtomIds | None) -> Sequence[Resolvent]:
        """Delete the atoms that are facts, except the excluded fact, from the resolvents."""
        return plain_step.prune(self._situation._replace(excluded=excluded), resolvents)

    def rename(self, resolvents: Sequence[Resolvent]) -> Sequence[Resolvent]:
        """Return the resolvents with their variables numbered by first appearance."""
        return plain_step.rename(self._situation, resolvents)

    def revisit(self, resolvents: Sequence[Resolvent], visited: Sequence[Goal]) -> Sequence[Resolvent]:
        """Return the resolvents that differ from every visited goal."""
        return plain_step.revisit(self._situation._replace(visited=visited), resolvents)

    def close(self, resolvents: Sequence[Resolvent]) -> Sequence[Resolvent]:
        """Return only the first resolvent without atoms, as TRUE, if there is one; only FALSE if there are no resolvents."""
        return plain_step.close(self._situation, resolvents)

    def limit(self, resolvents: Sequence[Resolvent]) -> Taken:
        """Return the resolvents within the limits, and the numbers of dropped ones."""
        short, dropped_atoms = plain_step.limit_atoms(self._situation, resolvents)
        kept, dropped_resolvents = plain_step.limit_resolvents(self._situation, short)
        return Taken(kept or [FALSE], dropped_atoms, dropped_resolvents)

    def score(self, goal: Goal, resolvents: Sequence[Resolvent]) -> Sequence[float]:
        """Return a score for each resolvent other than TRUE and FALSE, by the policy `shortest`."""
        return plain_step.score_shortest(goal, resolvents)

    def take_step(self, query: AtomIds, visited: Sequence[Goal]) -> Taken:
        """Run every stage up to `score`."""
        return self._run_stages(query, visited)[0].taken

    def probe(self, position: Positions) -> StageOutputs:
        """Return the result of each stage of one step."""
        (query,), (visited,) = read_positions(position)
        filtered, resolved = self._run_stages(query, visited)
        step = self._choose(visited[-1], int(position.depth[0]), filtered.taken)
        rules, facts = ([each.origin for each in resolved if each.origin_kind is kind] for kind in _CLAUSE_KINDS)
        outputs = plain_step.show_stages(Step(visited[-1][0], rules, facts, filtered, step))
        # The author's `resolve` selects the atom without showing it.
        del outputs[Stage.SELECT]
        return outputs

    def _run_stages(self, query: AtomIds, visited: Sequence[Goal]) -> tuple[Filtered, list[Resolvent]]:
        """Return the resolvents after each filter, and those that the clauses made."""
        goal = visited[-1]
        excluded = query if self.limits.exclude_query and min(query) >= 0 else None
        after: dict[Stage, Sequence[Resolvent]] = {}
        after[Stage.RESOLVE] = resolved = self._read(self.resolve(goal, excluded))
        after[Stage.PRUNE] = pruned = self.prune(resolved, excluded)
        after[Stage.RENAME] = renamed = self.rename(pruned)
        after[Stage.REVISIT] = new = self.revisit(renamed, visited)
        after[Stage.CLOSE] = closed = self.close(new)
        taken = self.limit(closed)
        after[Stage.LIMIT] = kept = list(taken.resolvents)
        if kept and all(each.kind is GoalKind.GOAL for each in kept):
            scores = self.score(goal, kept)
            kept = [each._replace(score=float(score)) for each, score in zip(kept, scores, strict=True)]
        return Filtered(after, taken._replace(resolvents=kept), is_uncounted=False), resolved

    def _read(self, made: Any) -> list[Resolvent]:
        """Return the resolvents that `resolve` made. UserError unless they are pairs of a clause and atoms."""
        pairs = made if isinstance(made, Iterable) else [made]
        return [Resolvent(_read_goal(pair, type(self).__name__), *pair[0][2:]) for pair in pairs]


@overload
def engine_of(resolve: Callable[[Goal, list[Clause]], Made]) -> type[StagedEngine]: ...


@overload
def engine_of(
    resolve: Callable[[TermGoal, TermProgram], Iterable[Any]], *, terms: Literal[True], memory: Memory = "none"
) -> type[TermEngine]: ...


@overload
def engine_of(
    *, terms: Literal[True], search: bool = False, memory: Memory = "none"
) -> Callable[[Callable[..., Any]], type[TermEngine]]: ...


def engine_of(resolve: Any = None, *, terms: bool = False, search: bool = False, memory: Memory = "none") -> Any:
    """Return an engine class for a function: of a goal and its clauses in numbers or, with `terms=True`, in names.

    With `terms=True` the function is the whole step. It receives the goal, a tuple of atoms (predicate, first, second), and
    the program: `program.rules` (pairs of a head and a body), `program.facts` (without the query itself, with
    `.of(predicate)`), `program.limits`, `program.query`, `program.visited`, and `program.rename(*atoms)`, which gives new
    variables. Every name is a string, and **an argument that begins with `?` is a variable**. It returns the successors: each
    a list of atoms, or True (proved), False, or None (gives up). Goals go from step to step with the names that the function
    gave. kgverify rejects successors of more atoms than the limits allow, and chooses by the policy `shortest`; which clause
    made a successor remains unknown.

    With `search=True` as well, the function takes a level of a search with several paths, such as
    `--limits search=beam(8)`. It receives the goals of all open paths of a query, their log-probabilities so far, and the
    program; `program.visited` lists the goals that each path has visited, the current one last. It returns two lists: for each
    goal its successors, as pairs (successor, score); and the children that it keeps, the best first, as pairs (index of the
    goal, index of the successor). The goals of the next level are those kept. The function applies `program.limits` itself:
    `max_atoms`, and `dialect.searching.size`, the number of paths.

    Args:
        resolve: A function that returns each clause that matches the first atom of the goal, with the atoms that then
            remain to be proved. Atoms are numbers (predicate, first, second); a number below 0 is a variable. The other
            stages of a step follow docs/semantics.md. With `terms=True`, a function as described above.
        terms: The function works on names.
        search: With `terms=True`, the function takes a step of all paths of a query.
        memory: With `terms=True`, the goals to which a derivation does not return: `"none"`; `"sets"`: sets of atoms that it
            visited; `"goals"`: goals that it visited, up to the names of variables.

    Returns:
        A class, made of (program, limits, policy); without a function, a decorator that returns one.

    Raises:
        UserError: When the engine proves, if the function returns anything else.

    Example:
        >>> import kgverify as kv
        >>> @kv.engine_of
        ... def facts_only(goal, clauses):
        ...     return [(clause, goal[1:]) for clause in clauses if clause.head == goal[0]]
        >>> kv.check_engine(facts_only, examples=20).is_conforming
        False
        >>> @kv.engine_of(terms=True)
        ... def looks_up(goal, program):
        ...     return [all(atom in program.facts for atom in goal)]
        >>> kv.check_engine(looks_up, examples=20).is_conforming
        False
    """
    if resolve is None:
        return partial(engine_of, terms=terms, search=search, memory=memory)
    if not callable(resolve):
        raise UserError(
            f"expected a function, found {type(resolve).__name__}", where="engine_of", fix="write @engine_of above one"
        )
    if search > terms or (memory != "none" and (search or not terms)):
        raise UserError(
            "memory or search belongs to functions on terms", where="engine_of", fix="give one of them, and terms=True"
        )

    def call(self: StagedEngine, goal: Goal, excluded: AtomIds | None) -> Any:
        return resolve(goal, self.clauses_for(goal, excluded))

    def call_on_terms(self: TermEngine, *arguments: Any) -> Any:
        return resolve(*arguments)

    described = {name: getattr(resolve, name, None) for name in ("__module__", "__qualname__", "__doc__")}
    described["made_of"] = resolve
    name = getattr(resolve, "__name__", type(resolve).__name__)
    if terms:
        check_memory(memory, "engine_of")
        if search:
            return type(name, (TermSearchEngine,), {"search": call_on_terms, **described})
        return type(name, (TermEngine,), {"find_successors": call_on_terms, "memory": memory, **described})
    return type(name, (StagedEngine,), {"resolve": call, **described})


def _read_goal(pair: Any, where: str) -> Goal:
    """Return the atoms of a pair, as tuples. UserError for anything else."""
    try:
        clause, atoms = pair
        goal = tuple([(index(predicate), index(first), index(second)) for predicate, first, second in atoms])
        if isinstance(clause, Clause):
            return goal
    except (TypeError, ValueError):
        pass
    raise UserError(
        f"expected a clause and the atoms that it leaves, found {pair!r}",
        where=where,
        fix="yield (clause, [(predicate, first, second), ...]) for each clause that matches",
    )
