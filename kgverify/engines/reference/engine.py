"""The reference prover as an engine."""

import platform
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Any, Final, get_type_hints

import numpy as np
from numpy.typing import NDArray

from kgreference.derivation import Derivation, conclude, derive, derive_together
from kgreference.dialect import OURS, Filter
from kgreference.dialect import Dialect as ReferenceDialect
from kgreference.facts import FactColumns, ListedFacts
from kgreference.policy import Policy as ReferencePolicy
from kgreference.policy import Shortest
from kgreference.program import NumberedFacts
from kgreference.program import Program as ReferenceProgram
from kgreference.program import Rule as ReferenceRule
from kgreference.program import Variable as ReferenceVariable
from kgreference.resolvent import Resolvent
from kgreference.search import Path as ReferencePath
from kgreference.search import Search, search, take_level
from kgreference.step import OUR_STAGES, Outcome, Situation, Stages, Step, find_excluded, take_step
from kgreference.step import Limits as ReferenceLimits
from kgreference.terms import Atom, Goal, Triple, canonical
from kgreference.two_tower import TwoTower
from kgverify.engines.adapters.stepwise import read_positions
from kgverify.engines.policy import Policy, check_policy
from kgverify.engines.protocol import Positions, StageOutputs, find_positives
from kgverify.errors import InternalError
from kgverify.garbage_collection import skip_existing_objects, without_garbage_collection
from kgverify.program.atom_table import AtomTable, number_rows
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.limits import Dialect, Limits
from kgverify.program.outcomes import Stage
from kgverify.program.program import NO_SYMBOLS, Program
from kgverify.progress import Progress, no_progress
from kgverify.step.search import Path
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns, Paths, Resolvents, Steps, concatenate
from kgverify.trace.model.header import EngineInfo

MOST_LISTED: Final = 100_000
"""The largest number of facts that the reference numbers and sorts itself.

With more facts, it searches the program's columns: each step takes longer, but building an index takes neither time nor
memory.
"""

_MOST_CONSTANTS: Final = 1 << 24
"""The bound on constants below which all triples of up to 2^15 predicates have different numbers."""

_NUM_SAMPLED: Final = 64


@without_garbage_collection()
def build_reference_program(program: Program) -> ReferenceProgram:
    """Build the same program in the reference's terms. InternalError if the reference numbers the symbols differently.

    A program read from a trace has no named clauses, and keeps its ids and the order of its facts.
    """
    is_named = program.named_facts or program.named_rules or program.named_queries
    if not is_named or (len(program.facts) and not program.named_facts):
        return ReferenceProgram(
            list(program.symbols.predicates),
            list(program.symbols.constants),
            ListedFacts(zip(*program.facts.T.tolist(), strict=True)),
            [ReferenceRule(Atom(*head), tuple(Atom(*atom) for atom in body)) for head, body in program.rules],
        )

    variables: dict[str, ReferenceVariable] = {}

    def term(named: Term) -> str | ReferenceVariable:
        if not isinstance(named, Variable):
            return named
        if named.name not in variables:
            variables[named.name] = ReferenceVariable(named.name)
        return variables[named.name]

    def atom(named: NamedAtom) -> tuple[str, str | ReferenceVariable, str | ReferenceVariable]:
        predicate, first, second = named
        return predicate, term(first), term(second)

    table = AtomTable.of(program.named_facts)
    first = program.first_symbols
    is_large = (
        first == NO_SYMBOLS
        and len(table) > MOST_LISTED
        and len(table.constants) < _MOST_CONSTANTS
        and table.has_numbered_names
    )
    built = ReferenceProgram.from_names(
        facts=_take_columns(program, table) if is_large else table.iterate_names(),
        rules=[(atom(rule.clause_head), [atom(b) for b in rule.body]) for rule in program.named_rules],
        queries=[atom(query) for query in program.named_queries],
        constants=program.symbols.constants[len(table.constants) if is_large else 0 :],
        first_symbols=(first.predicates, first.constants),
    )
    if (built.predicates, built.constants) != (program.symbols.predicates, program.symbols.constants):
        raise InternalError("the reference numbers the symbols of the program differently")
    if is_large:
        _check_sample(built, table)
    return built


def _take_columns(program: Program, table: AtomTable) -> NumberedFacts:
    """Return the program's facts by column. InternalError unless they are the distinct rows of the table, in order."""
    facts, rows = program.facts, table.rows
    size = len(table.constants)
    _, first = table.distinct
    is_repeated = np.ones(len(rows), np.bool_)
    is_repeated[first] = False
    numbers = number_rows(facts, size)
    if not (bool((numbers[1:] > numbers[:-1]).all()) and np.array_equal(np.take(rows, first, axis=0), facts)):
        raise InternalError("the facts of the program are not those of its file")
    repeated = number_rows(rows[is_repeated], size)
    found = np.minimum(np.searchsorted(numbers, repeated), len(numbers) - 1)
    if not (numbers[found] == repeated).all():
        raise InternalError("the program lacks a fact of its file")
    # numpy finds the distinct rows in a fraction of the time that the reference takes.
    extremes: Any = facts.min(0).tolist(), facts.max(0).tolist()
    columns = FactColumns(facts[:, 0], facts[:, 1], facts[:, 2], extremes)
    return NumberedFacts(table.predicates, table.constants, columns)


def _check_sample(built: ReferenceProgram, table: AtomTable) -> None:
    """Compare samples of the file's facts and of the reference's facts, by name.

    InternalError if a fact is missing on the other side.
    """
    _, first = table.distinct
    for row in np.linspace(0, len(table) - 1, _NUM_SAMPLED).astype(np.int64).tolist():
        if built.facts.find(built.encode(table[row])) < 0:
            raise InternalError(f"the reference lacks the fact {table[row]}")
    for index in np.linspace(0, len(first) - 1, _NUM_SAMPLED).astype(np.int64).tolist():
        if built.decode(built.facts[index]) != table[int(first[index])]:
            raise InternalError(f"the reference has the fact {built.decode(built.facts[index])}, which the file lacks")


_MOST_HELD = 256
"""The number of resolvents that are held with the outputs of all stages before they are converted.

It is small, so that their memory is reused while it is in the cache.
"""

_MOST_REMEMBERED = 512
"""The number of derivations that are kept for candidates with the same triple: a few megabytes."""

_MOST_TOGETHER = 32
"""The number of candidates derived together: the same number as in one task of a worker."""


class _UsersPolicy:
    """A policy that calls a user's function."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def scores(self, goal: Goal, resolvents: Sequence[Resolvent]) -> list[float]:
        """Return the user's scores; 0 for TRUE and FALSE, which are alone."""
        return self._policy.score(goal, [each.atoms for each in resolvents])


def _make_policy(policy: Policy) -> ReferencePolicy:
    if policy.scorer is not None:
        return _UsersPolicy(policy)
    return Shortest() if policy.name == "shortest" else TwoTower(policy.weights)


class ReferenceEngine:
    """The pure-Python reference prover, in float64, in the dialect of its limits.

    stages:  functions of `kgreference.step`; each of them may be replaced
    triples: int32 [n, 3] the split of the queries; it identifies the positives in a dialect that excludes only
             positives

    UserError if the policy does not fit the program.
    """

    def __init__(
        self,
        program: Program,
        limits: Limits,
        policy: Policy,
        *,
        stages: Stages = OUR_STAGES,
        triples: NDArray[np.int32] | None = None,
    ) -> None:
        check_policy(policy, program, limits)
        self.stages, self._triples = stages, triples
        self._replaced = [name for name in stages._fields if getattr(stages, name) is not getattr(OUR_STAGES, name)]
        self._given = program
        self._limits = ReferenceLimits(limits.max_depth, limits.max_atoms, limits.max_resolvents, limits.exclude_query)
        self._dialect = build_reference_dialect(limits.dialect)
        self._policy = _make_policy(policy)
        self._score_error = 0.0 if policy.name == "shortest" else 1e-9

    @cached_property
    def program(self) -> ReferenceProgram:
        """The program in the reference's terms, built when first needed; InternalError as in `build_reference_program`."""
        return build_reference_program(self._given)

    @property
    def info(self) -> EngineInfo:
        """The name, the precision and Python's version."""
        replaced = f" with its own {', '.join(self._replaced)}" if self._replaced else ""
        return EngineInfo(
            name=f"reference{replaced}",
            mode="python",
            device="cpu",
            precision="float64",
            score_error=self._score_error,
            versions={"python": platform.python_version(), "numpy": np.__version__},
            variables="canonical" if self._dialect.forgets_names else "own",
        )

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end."""
        parts = []
        with without_garbage_collection():
            begin = 0
            derivations: list[Derivation | Search] = []
            num_held = 0
            for end, derivation in enumerate(self._derive(candidates), 1):
                derivations.append(derivation)
                for step in derivation.steps:
                    num_held += len(step.after_resolve)
                if num_held > _MOST_HELD:
                    parts.append(_columns(candidates.take(slice(begin, end)), derivations))
                    begin, derivations, num_held = end, [], 0
                progress(1)
            parts.append(_columns(candidates.take(slice(begin, None)), derivations))
            skip_existing_objects()
        return concatenate(parts)

    def _derive(self, candidates: CandidateSet) -> Iterator[Derivation | Search]:
        program, limits, policy = self.program, self._limits, self._policy
        queries = list(map(Atom._make, candidates.atom.tolist()))
        if isinstance(policy, TwoTower) and self._dialect == OURS and not self._replaced:
            for begin in range(0, len(queries), _MOST_TOGETHER):
                yield from derive_together(program, limits, policy, queries[begin : begin + _MOST_TOGETHER])
            return
        # A triple may be a corruption of several queries.
        name, size, _ = self._dialect.search_numbers
        most = max(1, _MOST_REMEMBERED // size)
        follow: Callable[..., Derivation | Search] = derive if name == "greedy" else search
        derive_once = lru_cache(most)(partial(follow, program, limits, policy))
        for query, is_positive in zip(
            queries, find_positives(self._dialect.exclusion, candidates, self._triples), strict=True
        ):
            yield derive_once(query, self._dialect, self.stages, is_positive)

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position."""
        steps = self._take_steps(positions)
        return _columns(positions.candidates, [conclude(step.selected, [step]) for step in steps])

    def take_beams(self, candidates: CandidateSet, beams: Sequence[Sequence[Path]]) -> Columns:
        """Take a level of each beam; return columns with a candidate for each, whose steps are its paths."""
        positives = find_positives(self._dialect.exclusion, candidates, self._triples)
        found = []
        for query, is_positive, beam in zip(candidates.atom.tolist(), positives, beams, strict=True):
            excluded = find_excluded(self._dialect, self._limits, Atom._make(query), is_positive)
            goal = canonical((Atom._make(query),))
            start = Situation(self._dialect, self.program, self._limits, self._policy, excluded, goal, 0, set())
            paths = []
            for path in beam:
                goals = tuple([tuple(map(Atom._make, goal)) for goal in path.visited])
                counted = path.depth, path.num_uncounted
                paths.append(ReferencePath(path.place, path.parent, path.log_probability, goals, *counted))
            # Every path of a beam has taken as many steps as the beam has levels.
            level, _ = take_level(start, len(beam[0].visited) - 1, paths, self.stages)
            found.append(Search(start, [level], [], Outcome.OPEN, False, 0.0))
        return _columns(candidates, found)

    def probe(self, position: Positions) -> StageOutputs:
        """Return the output of each stage of one step."""
        (step,) = self._take_steps(position)
        limited = tuple(map(_with_kind, step.after_limit))
        return {
            Stage.SELECT: tuple(step.selected),
            Stage.MATCH_RULES: tuple(step.matched_rules),
            Stage.MATCH_FACTS: tuple(step.matched_facts),
            Stage.RESOLVE: tuple([_without_kind(each, canonical(each.atoms)) for each in step.after_resolve]),
            Stage.PRUNE: tuple([_without_kind(each, canonical(each.atoms)) for each in step.after_prune]),
            Stage.RENAME: tuple([_without_kind(each, each.atoms) for each in step.after_rename]),
            Stage.REVISIT: tuple([_without_kind(each, each.atoms) for each in step.after_revisit]),
            # Names do not matter before `rename`, which some dialects apply after `close`.
            Stage.CLOSE: tuple([_with_kind(each._replace(atoms=canonical(each.atoms))) for each in step.after_close]),
            Stage.LIMIT: (limited, step.dropped_atoms, step.dropped_resolvents),
            Stage.SCORE: tuple(step.scores),
            Stage.CHOOSE: step.choice,
            Stage.ADVANCE: (int(step.chosen.kind), _plain(step.chosen.atoms), step.depth),
            Stage.FINISH: int(step.outcome),
        }

    def _take_steps(self, positions: Positions) -> list[Step]:
        queries, visited = read_positions(positions)
        positives = find_positives(self._dialect.exclusion, positions.candidates, self._triples)
        situations = zip(queries, positions.depth.tolist(), visited, positives, strict=True)
        return [self._take_step(*situation) for situation in situations]

    def _take_step(self, query: Triple, depth: int, visited: list[Goal], is_positive: bool) -> Step:
        """Take one step from the last of the visited goals."""
        excluded = find_excluded(self._dialect, self._limits, query, is_positive)

        def take(goals: list[Goal], depth: int, num_uncounted: int = 0) -> Step:
            given = self._dialect, self.program, self._limits, self._policy, excluded, goals[-1], depth, set(goals)
            return take_step(Situation(*given), self.stages, num_uncounted)

        step = take(visited, depth)
        most = self._limits.max_depth
        if not step.is_uncounted or len(visited) <= most + depth:
            return step
        # After max_depth uncounted steps in a row, one is counted.
        num_unary = 0
        for end in range(len(visited) - 1, 0, -1):
            if not take(visited[:end], 0).is_uncounted:
                break
            num_unary += 1
        return take(visited, depth, num_unary % (most + 1))


def _plain(atoms: Goal) -> tuple[tuple[int, int, int], ...]:
    return tuple([(p, a, b) for p, a, b in atoms])


def _without_kind(resolvent: Resolvent, atoms: Goal) -> tuple[int, int, tuple[tuple[int, int, int], ...]]:
    return int(resolvent.origin_kind), resolvent.origin, _plain(atoms)


def _with_kind(resolvent: Resolvent) -> tuple[int, int, int, tuple[tuple[int, int, int], ...]]:
    return int(resolvent.kind), *_without_kind(resolvent, resolvent.atoms)


def build_reference_dialect(dialect: Dialect) -> ReferenceDialect:
    """Build the same dialect in the reference's terms, whose switches have the same names and values."""
    kinds = get_type_hints(ReferenceDialect)
    switches: dict[str, Any] = {name: getattr(dialect, name) for name in kinds}
    for name, value in switches.items():
        switches[name] = tuple(map(Filter, value)) if isinstance(value, tuple) else kinds[name](value)
    built = ReferenceDialect(**switches)
    return OURS if built == OURS else built


def _columns(candidates: CandidateSet, derivations: Sequence[Derivation | Search]) -> Columns:
    steps = list(chain.from_iterable([derivation.steps for derivation in derivations]))
    resolvents = chain.from_iterable([step.after_limit for step in steps])
    kinds, goals, origin_kinds, origins = tuple(zip(*resolvents, strict=True)) or ((), (), (), ())
    return Columns(
        Candidates(
            candidates.query,
            candidates.side,
            candidates.atom,
            np.array([len(each.steps) for each in derivations], np.uint32),
            np.array([each.outcome for each in derivations], np.int8),
            np.array([each.is_limited for each in derivations], np.uint8),
            np.array([each.log_probability for each in derivations], np.float64),
        ),
        Steps(
            depth=np.array([step.depth - (not step.is_uncounted) for step in steps], np.uint16),
            num_atoms=np.array([len(step.goal) for step in steps], np.uint16),
            num_resolvents=np.array([len(step.after_limit) for step in steps], np.uint32),
            dropped_atoms=np.array([step.dropped_atoms for step in steps], np.uint32),
            dropped_resolvents=np.array([step.dropped_resolvents for step in steps], np.uint32),
            choice=np.array([step.choice for step in steps], np.int32),
            outcome=np.array([step.outcome for step in steps], np.int8),
            goal_atoms=_atoms([step.goal for step in steps]),
        ),
        Resolvents(
            kind=np.frombuffer(bytearray(kinds), np.uint8),
            num_atoms=np.fromiter(map(len, goals), np.uint16),
            origin_kind=np.frombuffer(bytearray(origin_kinds), np.uint8),
            origin=np.array(origins, np.int32),
            score=np.fromiter(chain.from_iterable(step.scores for step in steps), np.float64),
            atoms=_atoms(goals),
        ),
        paths=_paths([each for each in derivations if isinstance(each, Search)]),
    )


def _paths(searches: Sequence[Search]) -> Paths:
    """Return the paths of searches, in the order of their steps."""
    rows = [each for found in searches for level in found.levels for each in level]
    children = [child for each in rows for child in each.children]
    return Paths(
        np.array([each.level for each in rows], np.int32),
        np.array([each.path.place for each in rows], np.int32),
        np.array([each.path.parent for each in rows], np.int32),
        np.array([each.path.log_probability for each in rows], np.float64),
        np.array([place for place, _ in children], np.int32),
        np.array([log_probability for _, log_probability in children], np.float64),
    )


def _atoms(goals: Sequence[Goal]) -> NDArray[np.int32]:
    flat = chain.from_iterable(chain.from_iterable(goals))
    return np.fromiter(flat, np.int32).reshape(-1, 3)
