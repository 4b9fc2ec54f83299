"""An engine from a batched step on padded tensors. States are passed from step to step unchanged."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import getattr_static
from itertools import pairwise
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.adapters.encoding import HOLE, Decoded, Encoding, Ids, Translation
from kgverify.engines.adapters.searching import Beams, collect_levels, collect_search
from kgverify.engines.adapters.stepwise import (
    GIVE_UP_SCORE,
    MEMORIES,
    UNKNOWN_TO_STEPS,
    AtomIds,
    Goal,
    Memory,
    check_memory,
    check_support,
    describe_mode,
    read_positions,
)
from kgverify.engines.adapters.taps import TapLog, Tapped, are_in_use, call_with_taps, read_taps, write_tap
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Positions, StageOutputs
from kgverify.errors import UserError
from kgverify.program.limits import OURS, Limits
from kgverify.program.outcomes import ENDS, STEP_STAGES, GoalKind, Origin, Outcome, Side, Stage
from kgverify.program.program import Program
from kgverify.progress import Progress, no_progress
from kgverify.step.plain_step import Resolvent, Taken
from kgverify.step.search import Ended, Kept, Level, Path, Searches, aggregate, expand
from kgverify.trace.model.columns import (
    Candidates,
    CandidateSet,
    Columns,
    Resolvents,
    Steps,
    concatenate,
    expand_rows,
    select_steps,
    starts_of,
)
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.stage_items import ends_alike, read_step_outputs

SIGNATURE: Final = (
    "expand(states int64 [B, A, 3], next_variable int64 [B], excluded int64 [B, 1, 3])"
    " -> successors [B, S, M, 3], counts [B], next_variable [B]; then, optionally, scores [B, S], choice [B],"
    " done [B], success [B]"
)

MAX_SCORE: Final = 1e300
"""A tolerance within which all scores are equal: taps may change how scores are rounded."""

_KINDS: Final[Mapping[str, tuple[str, type[np.generic]]]] = {
    "integers": ("iu", np.int64),
    "floats": ("f", np.float64),
    "booleans": ("biu", np.bool_),
}
"""The kinds of NumPy types that are accepted for each kind of number, and the type to which they are converted."""


class Expansion(NamedTuple):
    """The result of a batched step; B states, S successors, M atoms.

    successors:    integers [B, S, M, 3]  padded
    counts:        integers [B]           successors of each state
    next_variable: integers [B]           first free variable of each state's successors
    scores:        floats   [B, S]        higher is better
    choice:        integers [B]           index of the successor to take
    done, success: booleans [B]           whether the derivation ends with the chosen successor, and whether it is then
                   proved

    The others belong to a search of Q queries, whose beams have k places each, B = Q * k; see `TensorEngine.take_level`.
    """

    successors: Any
    counts: Any
    next_variable: Any
    scores: Any = None
    choice: Any = None
    done: Any = None
    success: Any = None
    parents: Any = None
    choices: Any = None
    log_probabilities: Any = None
    next_states: Any = None
    merged: Any = None


_REQUIRED: Final = (*Expansion._fields[:3], "parents", "choices")

BEYOND: Final = Resolvent((), Origin.NONE, 0, GoalKind.GOAL, GIVE_UP_SCORE)
"""The successor that is recorded if the count is beyond the list."""


class _State(NamedTuple):
    """Open derivations, in the form that the engine returned: int64 [B, A, 3], [B] and [B, 1, 3]."""

    states: Ids
    next_variable: Ids
    excluded: Ids

    def take(self, rows: NDArray[np.integer] | slice) -> "_State":
        return _State(self.states[rows], self.next_variable[rows], self.excluded[rows])


class TensorEngine:
    """A prover whose author provides `expand`, a batched step on padded tensors, and its `encoding`.

    program, limits, policy: as given, for `setup` and `expand` to use
    encoding:   the numbers of symbols; `setup` may set it, if it depends on the program
    arrays:     `"torch"`, `"numpy"`, or a function that converts NumPy arrays to the engine's, such as
                `jax.numpy.asarray`
    device:     the device of the tensors, for torch
    precision:  the float type of its arithmetic, such as `"float16"`; by default the type of its scores, at least
                float32
    batch_size: the number of states in a call
    max_atoms:  the rows of a state, and the largest number of atoms of a successor; by default as in the limits. A run has
                this limit too if none is given
    max_depth:  the largest number of steps of a derivation; likewise
    memory:     the goals to which a derivation does not return: `"none"`; `"sets"`: sets of atoms that it visited, by the
                engine's own variables; `"goals"`: goals that it visited, up to the numbering of variables

    `expand` receives B states in the numbers of `encoding`, A = `max_atoms`:

        states        int64 [B, A, 3]  the atoms left to prove, from row 0 on; the other rows are padding
        next_variable int64 [B]        the first number that no variable of the state has
        excluded      int64 [B, 1, 3]  the query of each state, which is neither matched nor deleted as a fact; padding
                                       with `exclude_query=False`

    For facts, int64 [F, 3], `(facts != excluded).any(-1)` is a bool [B, F] of those that may be used. `encode` turns
    `program.facts`, int32 [F, 3], and the atoms of `program.rules` into these numbers. `expand` returns a tuple, or a
    mapping with these names; S successors of M atoms:

        successors int [B, S, M, 3], counts int [B], next_variable int [B],
        scores float [B, S], choice int [B], done bool [B], success bool [B]    (optional)

    The first `counts` successors of a state count. A successor of padding alone is proved or, if the encoding has `true`, one
    with that predicate. kgverify passes the chosen successor and `next_variable` on unchanged, and decodes a copy for the
    record. Without `choice`, it plays the environment: it rejects successors that have too many atoms or are in the memory,
    and takes the first one with the highest score. Without `scores`, it scores by the policy `shortest`. Unsound states
    (holes, atoms beside TRUE, unknown numbers, counts beyond the list) are recorded as they are.

    `kgverify.tap` shows the stages inside of `expand`.

    An engine that searches with several paths, such as `--limits search=beam(8)`, declares `searches = ("beam",)` and provides
    `take_level` instead of `expand`, or beside it for the search `greedy`.

    Example:
        >>> import kgverify as kv
        >>> import numpy as np
        >>> class GivesUp(kv.TensorEngine):
        ...     encoding, arrays = kv.Encoding(true=98, false=99), "numpy"
        ...     def expand(self, states, next_variable, excluded):
        ...         successors = np.zeros((len(states), 1, 1, 3), np.int64)
        ...         successors[:, 0, 0, 0] = 99
        ...         return successors, np.ones(len(states), np.int64), next_variable
        >>> report = kv.verify("countries", GivesUp, queries=1, corruptions=1)
        >>> report.verdict.value
        'DIVERGE'
    """

    policies: ClassVar[tuple[str, ...]] = ("shortest",)
    searches: ClassVar[tuple[str, ...]] = ("greedy",)
    encoding: Encoding = Encoding()
    arrays: str | Callable[[NDArray[np.int64]], Any] = "torch"
    device: str = "cpu"
    precision: str = ""
    batch_size: int = 1024
    max_atoms: int | None = None
    max_depth: int | None = None
    memory: Memory = "none"

    def __init__(self, program: Program, limits: Limits, policy: Policy) -> None:
        check_support(limits, policy, self.policies, self.searches)
        self.program, self.limits, self.policy = program, limits, policy
        self._is_search, self._beam_size = limits.dialect.search != OURS.search, limits.dialect.searching.size
        self._where = type(self).__name__
        check_memory(self.memory, self._where)
        self._gives: frozenset[str] = frozenset()
        self._has_short_scores = False
        self._sizes: set[int] = set()
        self._has_run = False
        self._translation: Translation | None = None
        self._twin: TensorEngine | None = None
        self.tap_log = TapLog.of(self)
        with self.tap_log.observe():
            self.setup()
        taken = [name for name in ("prove", "step") if name in vars(self)]
        if taken:
            raise UserError(
                f"sets self.{taken[0]}, a method that kgverify calls",
                where=self._where,
                fix="choose another name for it",
            )

    def setup(self) -> None:
        """Prepare the engine for `self.program` and `self.limits`. Optional."""

    def expand(self, states: Any, next_variable: Any, excluded: Any) -> Any:
        """Return the successors of each state, their counts, and the first free variable after them."""
        raise NotImplementedError

    def take_level(self, states: Any, next_variable: Any, excluded: Any, visited: Any, log_probabilities: Any) -> Any:
        """Take one step of every path of Q beams with k places each, and return the children that are kept.

        k is the size of `self.limits.dialect.searching`, and B = Q * k. Row q * k + p is the path at place p of query q. A
        state of padding alone is an empty place, without an open path. The rows of a query stay its rows until all queries of
        the batch have ended. An engine that keeps its own goals forgets them in the first level.

            states            int64   [B, A, 3]     as for `expand`, like next_variable int64 [B], excluded int64 [B, 1, 3]
            visited           int64   [B, L, A, 3]  the goals that each path visited, the current one last, L = 1 in level 1
            log_probabilities float64 [Q, k]        of the paths, in nats; -inf for an empty place

        Returns a mapping:

            successors int [B, S, M, 3], counts int [B], next_variable int [B], parents int [Q, k], choices int [Q, k],
            scores float [B, S], log_probabilities float [Q, k], next_states int [B, M, 3], merged int [Q, k]    (optional)

        The child at place p of query q is successor `choices[q, p]` of the path at place `parents[q, p]`; both are -1 for an
        empty place. Without `log_probabilities`, a child has its parent's, plus the log-softmax of its score. An engine that
        goes on from goals of its own returns these as `next_states`, so that they are recorded as they are. A child that no
        path of the query has is recorded with the parent -1. `merged[q, p]` is the place of the path that took the child in,
        or -1. `memory` is not applied: the engine itself rejects successors that it has visited.
        """
        raise NotImplementedError

    def aggregate(self, query: AtomIds, ended: Sequence[Ended]) -> tuple[Outcome, float]:
        """Return the outcome and the log-probability of a candidate from its ended paths; by default, those of the dialect."""
        return aggregate(self.limits.dialect, ended)

    def encode(self, atoms: Any) -> Any:
        """Return atoms of the program, integers [..., 3], in the engine's numbers and as its arrays."""
        return self.to_arrays(self._translate.encode(np.asarray(atoms, np.int64).reshape(*np.shape(atoms)[:-1], 3)))

    @property
    def info(self) -> EngineInfo:
        """The engine's info: the name of the class, and the unknown columns. If nothing was proved yet, `expand` is tried."""
        if not self._gives:
            self._try_expand()
        unknown: tuple[str, ...] = UNKNOWN_TO_STEPS
        if self._is_search and "scores" not in self._gives:
            sums = "candidates.log_probability", "paths.log_probability", "paths.child_log_probability"
            unknown = (*unknown, "resolvents.score", *(() if "log_probabilities" in self._gives else sums))
        if "choice" in self._gives and "scores" not in self._gives:
            unknown = (*unknown, "resolvents.score", "candidates.log_probability")
        name = self.arrays if isinstance(self.arrays, str) else "tensors"
        return EngineInfo(
            name=self._where,
            mode=describe_mode(name, {"choice"} if self._is_search else self._gives),
            device=self.device,
            precision=self.precision or ("float32" if self._has_short_scores else "float64"),
            unknown=unknown,
            variables="own",
        )

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end, `batch_size` at a time. UserError if `expand` returns a result of the wrong form."""
        num = candidates.num_candidates
        if self._is_search:
            size = max(1, self.batch_size // self._beam_size)
            return concatenate(
                [self._search(candidates.take(slice(i, i + size)), progress) for i in range(0, num, size)]
            )
        parts: list[Columns] = []
        owners: list[NDArray[np.int64]] = []
        for begin in range(0, num, self.batch_size):
            rows = np.arange(begin, min(begin + self.batch_size, num))
            for columns, owner in self._derive(candidates.take(rows), progress):
                parts.append(columns)
                owners.append(rows[owner])
        self._has_run = True
        if not parts:
            return concatenate([])
        steps, owner = concatenate(parts), np.concatenate(owners)
        order = np.argsort(owner, kind="stable")
        ordered, owner = select_steps(steps, order), owner[order]
        num_steps = np.bincount(owner, minlength=num)
        # Not -0.0, which other engines do not have.
        sums = np.bincount(owner, steps.candidates.log_probability[order], num).astype(np.float64) + 0.0
        outcome = ordered.steps.outcome[np.cumsum(num_steps) - 1]
        ends = Candidates(*candidates, num_steps.astype(np.uint32), outcome, np.zeros(num, np.uint8), sums)
        return ordered._replace(candidates=ends)

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position. UserError if `expand` returns a result of the wrong form."""
        if self._is_search:
            beams = [[Path(0, goals, depth=len(goals) - 1)] for goals in read_positions(positions)[1]]
            return self.take_beams(positions.candidates, beams)
        state, visited = self._begin(positions)
        parts = []
        size = min(self.batch_size, max(self._sizes)) if self._has_run and self._sizes else self.batch_size
        for begin in range(0, len(positions.depth), size):
            rows = slice(begin, begin + size)
            part = positions.candidates.take(rows)
            parts.append(self._take(part, state.take(rows), positions.depth[rows], visited[rows])[0])
        return concatenate(parts)

    def take_beams(self, candidates: CandidateSet, beams: Beams) -> Columns:
        """Take a level of each beam; return columns with a candidate for each, whose steps are its paths."""
        alone = [candidates.take(slice(i, i + 1)) for i in range(len(beams))]
        levels = [self._take_level([beam], *self._place(c, [beam]))[0][0] for c, beam in zip(alone, beams, strict=True)]
        return collect_levels(candidates, self.limits, beams, levels)

    def _search(self, candidates: CandidateSet, progress: Progress) -> Columns:
        queries = [(predicate, first, second) for predicate, first, second in candidates.atom.tolist()]
        searches = Searches(self.limits, [(query,) for query in queries])
        state, visited = self._place(candidates, [each[-1] for each in searches.beams])
        while searches.open:
            levels, held, row = self._take_level([each[-1] for each in searches.beams], state, visited)
            progress(searches.advance([levels[i] for i in searches.open]))
            rows = [i * self._beam_size + path.place for i, each in enumerate(searches.beams) for path in each[-1]]
            is_open = np.isin(np.arange(len(row)), rows)
            state = self._hand_on(held, np.zeros(len(row), np.int64), is_open, state)
            state.states[~is_open] = self.encoding.padding
            visited = np.concatenate((visited[row], state.states[:, None]), axis=1)
        found = [searches.conclude(i, partial(self.aggregate, query)) for i, query in enumerate(queries)]
        return collect_search(candidates, self.limits, found)

    def _probe(self, position: Positions) -> StageOutputs:
        """Take one step and return the outputs of the tapped stages, and of those that follow from the step itself."""
        plain = self.step(position)
        columns, tapped = self._take_tapped(position)
        log = self.tap_log
        log.num_probes += 1
        log.fired |= tapped.keys()
        log.changed += not ends_alike(read_step_outputs(plain), read_step_outputs(columns), MAX_SCORE)
        outputs = read_step_outputs(columns)
        if "choice" in self._gives and "scores" not in self._gives:
            del outputs[Stage.SCORE]
        outputs |= read_taps(tapped, self._translate, self.program.facts)
        return {stage: outputs[stage] for stage in STEP_STAGES if stage in outputs}

    def replace_stage(self, position: Positions, stage: Stage, output: Any) -> Columns | None:
        """Take one step with the value of a tap replaced by the output of its stage; None if the value has another form."""
        tapped = self._take_tapped(position)[1].get(stage)
        given = write_tap(stage, output, tapped, self._translate) if tapped is not None else None
        return None if given is None or self._twin is not None else self._take_tapped(position, {stage: given})[0]

    def _take_tapped(
        self, position: Positions, replaced: Mapping[str, Tapped] | None = None
    ) -> tuple[Columns, dict[str, Tapped]]:
        """Take one step with taps recorded, or with some replaced."""
        if self._twin is None:
            columns, tapped = call_with_taps(partial(self.step, position), self.device, replaced)
            if tapped or replaced or not self.tap_log.seen:
                return columns, tapped
            # The graph that the engine captured has no taps. Another engine captures one with taps.
            made = partial(type(self), self.program, self.limits, self.policy)
            self._twin = call_with_taps(made, self.device, is_repeated=False)[0]
            self._twin._sizes, self._twin._has_run = self._sizes, True
        return call_with_taps(partial(self._twin.step, position), self.device)

    @property
    def numbers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The encoding's numbers of all predicates and of all constants: int64 [P] and int64 [C]."""
        return self._translate.numbers

    @property
    def _translate(self) -> Translation:
        if not isinstance(self.encoding, Encoding):
            raise UserError(
                f"expected an Encoding, found {type(self.encoding).__name__}",
                where=f"{self._where}.encoding",
                fix="write encoding = kgverify.Encoding(...)",
            )
        if self._translation is None or self._translation.encoding is not self.encoding:
            self._translation = Translation(self.encoding, self.program)
        return self._translation

    @property
    def _num_atoms(self) -> int:
        return self.limits.max_atoms if self.max_atoms is None else self.max_atoms

    def _begin(self, positions: Positions) -> tuple[_State, list[set[Any]]]:
        """Return the states of positions, and the visited goals of each position in the form that the memory keeps."""
        num, goals = len(positions.depth), positions.atoms.astype(np.int64)
        atom_starts, goal_starts = starts_of(positions.num_atoms), starts_of(positions.num_goals)
        last = goal_starts[1:] - 1
        length = positions.num_atoms[last].astype(np.int64)
        longest = int(length.max(initial=0))
        if self.max_atoms is not None and longest > self.max_atoms:
            raise UserError(
                f"a goal of {longest} atoms was given, and a state has {self.max_atoms} rows",
                where=f"{self._where}.max_atoms",
                fix=f"give both engines this limit: --limits max_atoms={self.max_atoms}; or set max_atoms to more rows",
            )
        states = np.full((num, max(self._num_atoms, longest), 3), self.encoding.padding, np.int64)
        is_atom = np.arange(states.shape[1]) < length[:, None]
        states[is_atom] = self._translate.encode(goals[expand_rows(atom_starts, last)])
        owner = np.repeat(np.arange(num), np.diff(atom_starts[goal_starts]))
        num_variables = np.zeros(num, np.int64)
        np.maximum.at(num_variables, owner, -goals[:, 1:].min(axis=1, initial=0))
        excluded = self._translate.encode(positions.candidates.atom)
        if not self.limits.exclude_query:
            excluded[:] = self.encoding.padding
        state = _State(states, self._translate.free_variable(num_variables), excluded[:, None])
        remembers = MEMORIES[self.memory]
        if remembers is None:
            return state, [set() for _ in range(num)]
        every = [remembers(goals[a:b].tolist()) for a, b in pairwise(atom_starts.tolist())]
        return state, [set(every[a:b]) for a, b in pairwise(goal_starts.tolist())]

    def _place(self, candidates: CandidateSet, beams: Beams) -> tuple[_State, Ids]:
        """Return the states of beams whose paths have visited the same number of goals, and the goals visited."""
        paths = [(i * self._beam_size + path.place, path.visited) for i, beam in enumerate(beams) for path in beam]
        longest = max([self._num_atoms, *(len(goal) for _, goals in paths for goal in goals)])
        atoms = np.full((len(beams) * self._beam_size, len(paths[0][1]), longest, 3), HOLE, np.int64)
        for row, goals in paths:
            for j, goal in enumerate(goals):
                atoms[row, j, : len(goal)] = goal
        visited, excluded = self._translate.encode(atoms), self._translate.encode(candidates.atom[:, None])
        if not self.limits.exclude_query:
            excluded[:] = self.encoding.padding
        next_variable = self._translate.free_variable(-atoms[..., 1:].min(axis=(1, 2, 3), initial=0))
        return _State(visited[:, -1], next_variable, np.repeat(excluded, self._beam_size, axis=0)), visited

    def _take_level(self, beams: Beams, state: _State, visited: Ids) -> tuple[list[Level], Expansion, Ids]:
        """Call `take_level`. Return the level of each beam; what each place then holds, and the row of its parent."""
        size = self._beam_size
        sums = np.full((len(beams), size), -np.inf)
        for i, beam in enumerate(beams):
            sums[i, [path.place for path in beam]] = [path.log_probability for path in beam]
        with self.tap_log.observe():
            result = self.take_level(*(self.to_arrays(array.copy()) for array in (*state, visited, sums)))
        found = self._read_result(result, len(state.states))
        num, width = found.successors.shape[:2]
        counts = np.clip(found.counts, 0, width)
        is_listed = np.arange(width) < counts[:, None]
        decoded = self._translate.decode(found.successors[is_listed])
        scores = _score_shortest(decoded) if found.scores is None else found.scores[is_listed]
        listed = zip(_list_goals(decoded), scores.tolist(), strict=True)
        resolvents = [Resolvent(goal, Origin.NONE, 0, kind, score) for (kind, goal), score in listed]
        begins, num_beyond = starts_of(counts).tolist(), (found.counts > width).tolist()
        # An engine may also take a successor of another query's rows, or one that does not count.
        row, column = np.arange(num) // size * size + found.parents.ravel(), found.choices.ravel()
        is_held = (row >= 0) & (row < num) & (column >= 0) & (column < width)
        row, held, stated = np.where(is_held, row, 0), found.next_states, found.log_probabilities
        if held is None:
            padded = np.pad(found.successors, ((0, 0), (0, 1), (0, 0), (0, 0)), constant_values=self.encoding.padding)
            held = padded[row, np.where(is_held, column, width)]
        goals = _list_goals(self._translate.decode(held))
        levels = []
        for i, beam in enumerate(beams):
            rows = [i * size + path.place for path in beam]
            taken = [Taken([*resolvents[begins[j] : begins[j + 1]], *[BEYOND] * num_beyond[j]]) for j in rows]
            children = {child[:2]: child.log_probability for child in expand(beam, taken)}
            kept = []
            for place, child in enumerate(zip(found.parents[i].tolist(), found.choices[i].tolist(), strict=True)):
                at = i * size + place
                kind, goal = goals[at] if found.next_states is not None or is_held[at] else (GoalKind.GOAL, ())
                total = children.get(child, -np.inf) if stated is None else stated[i, place]
                merged = -1 if found.merged is None else int(found.merged[i, place])
                parent, choice = child if child in children else (-1, -1)
                if child != (-1, -1):
                    kept.append(Kept(parent, choice, place, float(total), merged, goal, kind))
            levels.append(Level(taken, kept))
        return levels, Expansion(held[:, None], None, found.next_variable[row]), row

    def _derive(self, candidates: CandidateSet, progress: Progress) -> Iterator[tuple[Columns, NDArray[np.int64]]]:
        """Yield the steps of each tick, and the derivations that took them."""
        num = candidates.num_candidates
        depth, ones = np.zeros(num, np.uint16), np.ones(num, np.uint32)
        state, visited = self._begin(Positions(candidates, depth, ones, ones.astype(np.uint16), candidates.atom))
        owner = np.arange(num)
        while len(owner):
            taken = candidates.take(owner), state, depth[owner], [visited[i] for i in owner.tolist()]
            columns, following = self._take(*taken)
            yield columns, owner
            is_open = columns.steps.outcome == Outcome.OPEN
            progress(int((~is_open).sum()))
            owner, state = owner[is_open], following.take(is_open)
            depth += 1

    def _take(
        self, candidates: CandidateSet, state: _State, depth: NDArray[np.uint16], visited: Sequence[set[Any]]
    ) -> tuple[Columns, _State]:
        """Take one step from each state, and add the resulting goals to the visited ones.

        Returns the steps, each as a separate candidate, and the states that they lead to.
        """
        return self._read_step(self._expand(state), candidates, state, depth, visited)

    def _read_step(
        self,
        found: Expansion,
        candidates: CandidateSet,
        state: _State,
        depth: NDArray[np.uint16],
        visited: Sequence[set[Any]],
    ) -> tuple[Columns, _State]:
        num, size = found.successors.shape[:2]
        # One more column than successors: FALSE if the environment rejects every successor, or an empty goal if the
        # count is beyond the list.
        is_listed = np.arange(size + 1) < np.clip(found.counts, 0, size)[:, None]
        decoded = self._translate.decode(found.successors[is_listed[:, :size]])
        kind = np.full(is_listed.shape, GoalKind.FALSE, np.uint8)
        num_atoms, first_atom = np.zeros((2, *is_listed.shape), np.int64)
        kind[is_listed], num_atoms[is_listed] = decoded.kind, decoded.num_atoms
        first_atom[is_listed] = starts_of(decoded.num_atoms)[:-1]
        scores = np.zeros(is_listed.shape, np.float64 if found.scores is None else found.scores.dtype)
        is_offered = is_listed.copy()
        if found.scores is not None:
            scores[:, :size] = np.where(is_listed[:, :size], found.scores, 0)
        elif found.choice is None:
            scores[is_listed] = _score_shortest(decoded)
        if found.choice is None:
            is_offered[is_listed] = self._admit(decoded, np.nonzero(is_listed)[0], visited)
        is_beyond = found.counts > size
        kind[is_beyond, size], scores[is_beyond, size] = GoalKind.GOAL, GIVE_UP_SCORE
        is_offered[:, size] = is_beyond | (is_listed.any(axis=1) & ~is_offered.any(axis=1))
        num_resolvents = is_offered.sum(axis=1)
        rows = np.arange(num)
        if found.choice is None:
            exists, column = num_resolvents > 0, _first_of_highest(scores, is_offered)
            choice = np.where(exists, np.cumsum(is_offered, axis=1)[rows, column] - 1, -1)
        else:
            choice = found.choice
            exists = (choice >= 0) & (choice < num_resolvents)
            column = np.where(exists, choice, 0)
        outcome = self._end(found, np.where(exists, kind[rows, column], GoalKind.FALSE), exists, depth)
        # Only an open derivation continues, with a successor from the list.
        is_open = outcome == Outcome.OPEN
        following = self._hand_on(found, column, is_open, state)
        remembers = MEMORIES[self.memory]
        if remembers is not None:
            for i, begin, length in zip(rows, first_atom[rows, column], num_atoms[rows, column], strict=True):
                if is_open[i]:
                    visited[i].add(remembers(decoded.atoms[begin : begin + length].tolist()))
        goal = self._translate.decode(state.states)
        zeros = np.zeros(num, np.uint32)
        columns = Columns(
            Candidates(
                *candidates,
                np.ones(num, np.uint32),
                outcome,
                np.zeros(num, np.uint8),
                _log_softmax(scores, is_offered, column, exists),
            ),
            Steps(
                depth,
                goal.num_atoms.astype(np.uint16),
                num_resolvents.astype(np.uint32),
                zeros,
                zeros,
                np.clip(choice, -1, 1 << 30).astype(np.int32),
                outcome,
                goal.atoms.astype(np.int32),
            ),
            Resolvents(
                kind[is_offered],
                num_atoms[is_offered].astype(np.uint16),
                np.zeros(num_resolvents.sum(), np.uint8),
                np.zeros(num_resolvents.sum(), np.int32),
                scores[is_offered],
                decoded.atoms[np.repeat(is_offered[is_listed], decoded.num_atoms)].astype(np.int32),
            ),
        )
        return columns, following

    def _admit(self, decoded: Decoded, slot: NDArray[np.int64], visited: Sequence[set[Any]]) -> NDArray[np.bool_]:
        """Return whether the environment admits each successor: it must be terminal, or fit and not be in the memory."""
        is_goal = decoded.kind == GoalKind.GOAL
        is_admitted: NDArray[np.bool_] = ~is_goal | (decoded.extent <= self._num_atoms)
        remembers = MEMORIES[self.memory]
        if remembers is not None:
            starts = starts_of(decoded.num_atoms).tolist()
            atoms = decoded.atoms.tolist()
            for i in np.flatnonzero(is_goal & is_admitted).tolist():
                is_admitted[i] = remembers(atoms[starts[i] : starts[i + 1]]) not in visited[slot[i]]
        return is_admitted

    def _end(
        self, found: Expansion, kind: NDArray[np.uint8], exists: NDArray[np.bool_], depth: NDArray[np.uint16]
    ) -> NDArray[np.int8]:
        """Return the outcome of each step, given the kind of its chosen successor, if there is one."""
        ends = np.array([ENDS.get(code, Outcome.OPEN) for code in GoalKind], np.int8)[kind]
        if found.done is not None:
            success = ends == Outcome.PROVED if found.success is None else found.success
            ends = np.where(success, Outcome.PROVED, Outcome.FAILED).astype(np.int8)
            ends[~found.done] = Outcome.OPEN
            ends[~exists] = Outcome.FAILED
        most = self.limits.max_depth if self.max_depth is None else self.max_depth
        ends[(ends == Outcome.OPEN) & (depth.astype(np.int64) + 1 >= most)] = Outcome.DEPTH_LIMIT
        return ends

    def _hand_on(
        self, found: Expansion, column: NDArray[np.int64], is_open: NDArray[np.bool_], state: _State
    ) -> _State:
        """Return the states of the chosen successors, unchanged; any state for a derivation that has ended."""
        num, width = state.states.shape[:2]
        size, length = found.successors.shape[1:3]
        taken = np.full((num, max(width, length), 3), self.encoding.padding, np.int64)
        is_given = column < size
        taken[is_given, :length] = found.successors[is_given, column[is_given]]
        if (is_open & (taken[:, width:] != self.encoding.padding).any(axis=(1, 2))).any():
            raise UserError(
                f"the successor taken has more than the {width} rows of a state",
                where=f"{self._where}.expand",
                fix="set max_atoms to more rows, or choose among successors that fit",
            )
        return state._replace(states=taken[:, :width], next_variable=found.next_variable)

    def to_arrays(self, array: Ids) -> Any:
        """Return a NumPy array as one of the engine's arrays, on its device."""
        # A function that is an attribute of a class would be bound to the engine.
        made = getattr_static(self, "arrays")
        made = made.__func__ if isinstance(made, staticmethod) else made
        if callable(made):
            return made(array)
        if self.arrays == "numpy":
            return array
        if self.arrays != "torch":
            raise UserError(
                f"unknown arrays {self.arrays!r}",
                where=f"{self._where}.arrays",
                fix='give "torch", "numpy", or a function of a NumPy array, such as jax.numpy.asarray',
            )
        from importlib import import_module

        return import_module("torch").from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _expand(self, state: _State) -> Expansion:
        """Call `expand` on copies, and return its result as NumPy arrays.

        UserError if the result has the wrong form.

        Later calls reuse the numbers of states of the first run, so that a compiled step meets no new shape. To reach
        such a number, the batch is filled with copies of its last state.
        """
        num, size = len(state.states), self._fit(len(state.states))
        if size > num:
            state = state.take(np.minimum(np.arange(size), num - 1))
        found = self._call_expand(state)
        return found if size == num else Expansion(*(None if each is None else each[:num] for each in found))

    def _try_expand(self) -> None:
        """Call `expand` once on a fact, to learn what it returns; a recording states this before its first step."""
        fact, one = self.program.facts[:1], np.ones(1, np.uint16)
        candidate = CandidateSet(np.zeros(1, np.int32), np.zeros(1, np.int8), fact)
        # Proving reports its errors.
        with suppress(Exception):
            if self._is_search:
                self._search(candidate, no_progress)
                return
            state, _ = self._begin(Positions(candidate, one - 1, one.astype(np.uint32), one, fact))
            # A compiler treats one state specially, and would compile again for two.
            self._call_expand(state.take(np.zeros(2, np.int64)))

    def _fit(self, num: int) -> int:
        """Return the smallest sufficient number of states among the calls of the first run."""
        if not self._has_run:
            self._sizes.add(num)
        return min((each for each in self._sizes if each >= num), default=num)

    def _call_expand(self, state: _State) -> Expansion:
        with self.tap_log.observe():
            result = self.expand(*(self.to_arrays(array.copy()) for array in state))
        if are_in_use():
            # Only then may the engine show stages.
            self.probe = self._probe
        return self._read_result(result, len(state.states))

    def _read_result(self, result: Any, num: int) -> Expansion:
        try:
            made = Expansion(**result) if isinstance(result, Mapping) else Expansion(*result)
        except TypeError as error:
            raise self._misshapen(f"found {_describe(result)}") from error
        if made.success is not None and made.done is None:
            raise self._misshapen("success is given, and done is not")
        gives = frozenset(name for name, value in made._asdict().items() if value is not None)
        if self._gives and gives != self._gives:
            raise self._misshapen(f"{', '.join(sorted(gives ^ self._gives))} given in some calls only")
        self._gives = gives
        if other := gives.intersection(Expansion._fields[4:7] if self._is_search else Expansion._fields[7:]):
            raise self._misshapen(f"{', '.join(sorted(other))} given, and the search is {self.limits.dialect.search}")
        beams = num // self._beam_size, self._beam_size
        successors = self._read("successors", made.successors, "integers", num, None, None, 3)
        every = self._read("scores", made.scores, "floats", num, successors.shape[1])
        self._has_short_scores = every is not None and every.dtype == np.float32
        return Expansion(
            successors,
            self._read("counts", made.counts, "integers", num),
            self._read("next_variable", made.next_variable, "integers", num),
            every,
            self._read("choice", made.choice, "integers", num),
            self._read("done", made.done, "booleans", num),
            self._read("success", made.success, "booleans", num),
            self._read("parents", made.parents, "integers", *beams),
            self._read("choices", made.choices, "integers", *beams),
            self._read("log_probabilities", made.log_probabilities, "floats", *beams),
            self._read("next_states", made.next_states, "integers", num, None, 3),
            self._read("merged", made.merged, "integers", *beams),
        )

    def _read(self, name: str, value: Any, kind: str, *shape: int | None) -> Any:
        """Return a part of the result as an array of int64, float32, float64 or bool; None if it is optional and absent.

        UserError for another type or shape.
        """
        if value is None and name not in (_REQUIRED if self._is_search else _REQUIRED[:3]):
            return None
        array = _to_numpy(value)
        if array is None:
            raise self._misshapen(f"{name} is {_describe(value)}")
        if array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
            expected = ", ".join("n" if length is None else str(length) for length in shape)
            raise self._misshapen(f"{name} has shape {list(array.shape)}, expected [{expected}]")
        kinds, numbers = _KINDS[kind]
        if array.dtype.kind not in kinds:
            raise self._misshapen(f"{name} has dtype {array.dtype}, expected {kind}")
        return array.astype(np.float32 if kind == "floats" and array.dtype.itemsize < 8 else numbers)

    def _misshapen(self, message: str) -> UserError:
        fix = "see help(kgverify.TensorEngine.take_level)" if self._is_search else f"write {SIGNATURE}"
        return UserError(message, where=f"{self._where}.{'take_level' if self._is_search else 'expand'}", fix=fix)


def read_call(engine: TensorEngine, given: Sequence[Ids], result: Any) -> tuple[Positions, Columns]:
    """Return the goals of a recorded call of `expand`, and its steps, each as a candidate; idle states are left out.

    given: the three arguments; result: what was returned. UserError if it has the wrong form

    The depth and the goals visited before are unknown: each derivation begins with its state.
    """
    state = _State(*(np.asarray(each, np.int64) for each in given))
    found = engine._read_result(result, len(state.states))
    is_open = engine._translate.decode(state.states).num_atoms > 0
    if engine.limits.exclude_query:
        # From a state without a query, the reference would exclude its first atom.
        is_open &= engine._translate.decode(state.excluded).num_atoms > 0
    rows = np.flatnonzero(is_open)
    state, found = state.take(rows), Expansion(*(None if each is None else each[rows] for each in found))
    goal = engine._translate.decode(state.states)
    atoms = goal.atoms.astype(np.int32)
    excluded = engine._translate.decode(state.excluded)
    first = atoms[starts_of(goal.num_atoms)[:-1]]
    first[excluded.num_atoms > 0] = excluded.atoms[starts_of(excluded.num_atoms)[:-1][excluded.num_atoms > 0]]
    num = len(rows)
    candidates = CandidateSet(np.arange(num, dtype=np.int32), np.full(num, Side.NONE, np.int8), first)
    ones, depth = np.ones(num, np.uint32), np.zeros(num, np.uint16)
    positions = Positions(candidates, depth, ones, goal.num_atoms.astype(np.uint16), atoms)
    remembers = MEMORIES[engine.memory]
    goals = np.split(atoms, starts_of(goal.num_atoms)[1:-1]) if num else []
    visited = [set() if remembers is None else {remembers(each.tolist())} for each in goals]
    columns = engine._read_step(found._replace(done=None, success=None), candidates, state, depth, visited)[0]
    if found.done is not None and found.success is not None:
        # It may also have ended at a limit of the depth, which is unknown here.
        outcome = np.where(
            found.done & ~found.success & (columns.steps.outcome == Outcome.PROVED),
            Outcome.FAILED,
            columns.steps.outcome,
        )
        outcome = np.where(found.done & found.success, Outcome.PROVED, outcome).astype(np.int8)
        columns = columns._replace(
            candidates=columns.candidates._replace(outcome=outcome), steps=columns.steps._replace(outcome=outcome)
        )
    return positions, columns


def _list_goals(decoded: Decoded) -> list[tuple[GoalKind, Goal]]:
    """Return the kind and the atoms of each state."""
    atoms: list[AtomIds] = [(predicate, first, second) for predicate, first, second in decoded.atoms.tolist()]
    ends = pairwise(starts_of(decoded.num_atoms).tolist())
    return [(GoalKind(kind), tuple(atoms[a:b])) for kind, (a, b) in zip(decoded.kind.tolist(), ends, strict=True)]


def _to_numpy(value: Any) -> NDArray[Any] | None:
    """Convert an array of any library to NumPy; None if it is not an array."""
    if callable(getattr(value, "detach", None)):
        # A torch tensor may lie on another device, or have a type that NumPy lacks.
        host = value.detach().cpu()
        try:
            return np.asarray(host.numpy())
        except (TypeError, RuntimeError):
            return np.asarray(host.float().numpy())
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError):
            # NumPy cannot read the memory of another device; most libraries copy it by themselves.
            pass
    return np.asarray(value) if hasattr(value, "__array__") else None


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def _score_shortest(decoded: Decoded) -> NDArray[np.float64]:
    """Return the scores of the policy `shortest`: 0 for TRUE and FALSE; an empty goal and STOP come last."""
    num = len(decoded.kind)
    owner = np.repeat(np.arange(num), decoded.num_atoms)
    arguments = decoded.atoms[:, 1:].ravel()
    is_variable = arguments < 0
    pairs = np.unique(np.stack((np.repeat(owner, 2)[is_variable], arguments[is_variable])), axis=1)
    scores = -(decoded.num_atoms + np.bincount(pairs[0], minlength=num) / 64.0)
    is_goal = decoded.kind == GoalKind.GOAL
    scores[~is_goal] = 0.0
    scores[(decoded.kind == GoalKind.STOP) | (is_goal & (decoded.num_atoms == 0))] = GIVE_UP_SCORE
    return scores


def _first_of_highest(scores: NDArray[np.floating], is_offered: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the column of the first highest score of each step, NaN being lowest; 0 for a step without resolvents."""
    known = np.where(is_offered & ~np.isnan(scores), scores, -np.inf)
    return np.asarray(np.argmax(is_offered & (known == known.max(axis=1, keepdims=True)), axis=1))


def _log_softmax(
    scores: NDArray[np.floating],
    is_offered: NDArray[np.bool_],
    column: NDArray[np.int64],
    exists: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return the log-softmax of the chosen successor; 0 for a step without successors."""
    known = np.where(is_offered, scores.astype(np.float64), -np.inf)
    highest = known.max(axis=1)
    with np.errstate(all="ignore"):
        total = np.exp(known - highest[:, None]).sum(axis=1)
        found = known[np.arange(len(known)), column] - highest - np.log(total)
    return np.where(exists, found, 0.0)
