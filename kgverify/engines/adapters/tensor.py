"""An engine from a batched step on padded tensors: states go from step to step as the engine leaves them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import getattr_static
from itertools import pairwise
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.adapters.encoding import Decoded, Encoding, Ids, Translation
from kgverify.engines.adapters.environment import (
    GIVE_UP_SCORE,
    MEMORIES,
    UNKNOWN_TO_STEPS,
    Memory,
    check_memory,
    describe_mode,
)
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Positions
from kgverify.errors import UserError
from kgverify.program.limits import Limits
from kgverify.program.outcomes import ENDS, GoalKind, Outcome
from kgverify.program.program import Program
from kgverify.progress import Progress, no_progress
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

SIGNATURE: Final = (
    "expand(states int64 [B, A, 3], next_variable int64 [B], excluded int64 [B, 1, 3])"
    " -> successors [B, S, M, 3], counts [B], next_variable [B]; then, optionally, scores [B, S], choice [B],"
    " done [B], success [B]"
)


class Expansion(NamedTuple):
    """The result of a batched step; B states, S successors, M atoms.

    successors:    integers [B, S, M, 3]  padded
    counts:        integers [B]           successors of each state
    next_variable: integers [B]           first free variable of each state's successors
    scores:        floats   [B, S]        higher is better
    choice:        integers [B]           index of the successor to take
    done, success: booleans [B]           whether the derivation ends with the successor taken, and is then proved
    """

    successors: Any
    counts: Any
    next_variable: Any
    scores: Any = None
    choice: Any = None
    done: Any = None
    success: Any = None


class _State(NamedTuple):
    """Open derivations, as the engine left them: int64 [B, A, 3], [B] and [B, 1, 3]."""

    states: Ids
    next_variable: Ids
    excluded: Ids

    def take(self, rows: NDArray[np.integer] | slice) -> "_State":
        return _State(self.states[rows], self.next_variable[rows], self.excluded[rows])


class _Taken(NamedTuple):
    """The steps of a batch: one candidate with one step each, and the states that they lead to."""

    columns: Columns
    state: _State


class TensorEngine:
    """A prover whose author provides `expand`, a batched step on padded tensors, and its `encoding`.

    program, limits, policy: as given, for `setup` and `expand` to use
    encoding:   the numbers of symbols; `setup` may set it, if it depends on the program
    arrays:     `"torch"`, `"numpy"`, or a function that makes the engine's arrays of NumPy's, such as `jax.numpy.asarray`
    device:     of the tensors, for torch
    precision:  the float type of its arithmetic, such as `"float16"`; if not given, that of its scores, at least float32
    batch_size: the number of states in a call
    max_atoms:  rows of a state, and the largest number of atoms of a successor; if not given, that of the limits
    max_depth:  steps of a derivation; if not given, that of the limits
    memory:     the goals to which a derivation does not return: `"none"`; `"sets"`: sets of atoms that it visited, by the
                engine's own variables; `"goals"`: goals that it visited, up to the numbering of variables

    `expand` receives the states with the first variable that is free in each, and the query of each, which may not be used
    as a fact (padding if it may). It returns a tuple, or a mapping with these names:

        successors int [B, S, M, 3], counts int [B], next_variable int [B],
        scores float [B, S], choice int [B], done bool [B], success bool [B]    (optional)

    kgverify hands on the successor taken and `next_variable` as they are, and decodes a copy for the record. Without
    `choice`, it plays the environment: it rejects successors with too many atoms and those in the memory, and takes the
    first of the highest scores; without `scores`, those of the policy `shortest`. Unsound states (holes, atoms beside TRUE,
    unknown numbers, counts beyond the list) are recorded as they are.

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
    encoding: Encoding = Encoding()
    arrays: str | Callable[[NDArray[np.int64]], Any] = "torch"
    device: str = "cpu"
    precision: str = ""
    batch_size: int = 1024
    max_atoms: int | None = None
    max_depth: int | None = None
    memory: Memory = "none"

    def __init__(self, program: Program, limits: Limits, policy: Policy) -> None:
        if policy.name not in self.policies:
            raise NotImplementedError(f"the policy {policy.name}")
        self.program, self.limits, self.policy = program, limits, policy
        self._where = type(self).__name__
        check_memory(self.memory, self._where)
        self._gives: frozenset[str] = frozenset()
        self._has_short_scores = False
        self._sizes: set[int] = set()
        self._has_run = False
        self._translation: tuple[Encoding, Translation] | None = None
        self.setup()

    def setup(self) -> None:
        """Prepare the engine for `self.program` and `self.limits`. Optional."""

    def expand(self, states: Any, next_variable: Any, excluded: Any) -> Any:
        """Return the successors of each state, their counts, and the first free variable after them."""
        raise NotImplementedError

    def encode(self, atoms: Any) -> Any:
        """Return atoms of the program, integers [..., 3], in the engine's numbers and as its arrays."""
        return self._to_own(self._translate.encode(np.asarray(atoms, np.int64).reshape(*np.shape(atoms)[:-1], 3)))

    @property
    def info(self) -> EngineInfo:
        """The engine's info: the class's name, and the columns that it does not know."""
        unknown: tuple[str, ...] = UNKNOWN_TO_STEPS
        if "choice" in self._gives and "scores" not in self._gives:
            unknown = (*unknown, "resolvents.score", "candidates.log_probability")
        name = self.arrays if isinstance(self.arrays, str) else "tensors"
        return EngineInfo(
            name=self._where,
            mode=describe_mode(name, self._gives),
            device=self.device,
            precision=self.precision or ("float32" if self._has_short_scores else "float64"),
            unknown=unknown,
            variables="own",
        )

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end, `batch_size` at a time. UserError if `expand` returns something else."""
        num = candidates.num_candidates
        parts, owners = [], []
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
        last = np.cumsum(num_steps) - 1
        sums = np.bincount(owner, weights=steps.candidates.log_probability[order], minlength=num).astype(np.float64)
        return ordered._replace(
            candidates=Candidates(
                *candidates,
                num_steps.astype(np.uint32),
                ordered.steps.outcome[last],
                np.zeros(num, np.uint8),
                # Not -0.0, which other engines do not have.
                sums + 0.0,
            )
        )

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position. UserError if `expand` returns something else."""
        num = len(positions.depth)
        goals = positions.atoms.astype(np.int64)
        atom_starts, goal_starts = starts_of(positions.num_atoms), starts_of(positions.num_goals)
        last = goal_starts[1:] - 1
        length = positions.num_atoms[last].astype(np.int64)
        states = self._make_states(goals[expand_rows(atom_starts, last)], length)
        owner = np.repeat(np.arange(num), np.diff(atom_starts[goal_starts]))
        num_variables = np.zeros(num, np.int64)
        np.maximum.at(num_variables, owner, -goals[:, 1:].min(axis=1, initial=0))
        state = _State(
            states, self._translate.free_variable(num_variables), self._make_excluded(positions.candidates.atom)
        )
        remembers = MEMORIES[self.memory]
        visited = [
            {remembers(goals[a:b].tolist()) for a, b in pairwise(atom_starts[first : end + 1].tolist())}
            if remembers is not None
            else set()
            for first, end in pairwise(goal_starts.tolist())
        ]
        parts = []
        size = min(self.batch_size, max(self._sizes)) if self._has_run and self._sizes else self.batch_size
        for begin in range(0, num, size):
            rows = slice(begin, begin + size)
            part = positions.candidates.take(rows)
            parts.append(self._take(part, state.take(rows), positions.depth[rows], visited[rows]).columns)
        return concatenate(parts)

    @property
    def _translate(self) -> Translation:
        if self._translation is None or self._translation[0] is not self.encoding:
            if not isinstance(self.encoding, Encoding):
                raise UserError(
                    f"expected an Encoding, found {type(self.encoding).__name__}",
                    where=f"{self._where}.encoding",
                    fix="write encoding = kgverify.Encoding(...)",
                )
            self._translation = self.encoding, Translation(self.encoding, self.program)
        return self._translation[1]

    @property
    def _num_atoms(self) -> int:
        return self.limits.max_atoms if self.max_atoms is None else self.max_atoms

    def _make_states(self, atoms: Ids, length: Ids) -> Ids:
        width = max(self._num_atoms, int(length.max(initial=0)))
        states = np.full((len(length), width, 3), self.encoding.padding, np.int64)
        row = np.repeat(np.arange(len(length)), length)
        states[row, np.arange(len(atoms)) - np.repeat(starts_of(length)[:-1], length)] = self._translate.encode(atoms)
        return states

    def _make_excluded(self, queries: NDArray[np.integer]) -> Ids:
        excluded = self._translate.encode(queries)
        if not self.limits.exclude_query:
            excluded[:] = self.encoding.padding
        return excluded[:, None]

    def _derive(self, candidates: CandidateSet, progress: Progress) -> Iterator[tuple[Columns, NDArray[np.int64]]]:
        """Yield the steps of each tick, and the derivations that took them."""
        num = candidates.num_candidates
        queries = candidates.atom.astype(np.int64)
        state = _State(
            self._make_states(queries, np.ones(num, np.int64)),
            self._translate.free_variable(-queries[:, 1:].min(axis=1, initial=0)),
            self._make_excluded(queries),
        )
        remembers = MEMORIES[self.memory]
        visited = [set() if remembers is None else {remembers([query])} for query in queries.tolist()]
        owner = np.arange(num)
        depth = 0
        while len(owner):
            at = np.full(len(owner), depth, np.uint16)
            taken = self._take(candidates.take(owner), state, at, [visited[i] for i in owner.tolist()])
            yield taken.columns, owner
            is_open = taken.columns.steps.outcome == Outcome.OPEN
            progress(int((~is_open).sum()))
            owner, state = owner[is_open], taken.state.take(is_open)
            depth += 1

    def _take(
        self, candidates: CandidateSet, state: _State, depth: NDArray[np.uint16], visited: Sequence[set[Any]]
    ) -> _Taken:
        """Take one step from each state, and add the goals that these lead to to the visited ones."""
        num = len(depth)
        found = self._expand(state)
        size = found.successors.shape[1]
        listed = np.clip(found.counts, 0, size)
        is_listed = np.arange(size) < listed[:, None]
        decoded = self._translate.decode(found.successors[is_listed])
        slot, column = np.nonzero(is_listed)
        chooses = found.choice is None
        if found.scores is not None:
            scores = found.scores[is_listed]
        else:
            scores = _score_shortest(decoded) if chooses else np.zeros(len(slot))
        # A count beyond the list is recorded as one empty successor after it.
        is_beyond = found.counts > size
        if chooses:
            kept = self._admit(decoded, slot, visited)
            slot, column, scores = slot[kept], column[kept], scores[kept]
            decoded = _take_decoded(decoded, kept)
            is_rejected = (np.bincount(slot, minlength=num) == 0) & (listed > 0) & ~is_beyond
        else:
            is_rejected = np.zeros(num, np.bool_)
        slot, column, scores, decoded = _insert(slot, column, scores, decoded, is_rejected, is_beyond, size)
        num_resolvents = np.bincount(slot, minlength=num)
        starts = starts_of(num_resolvents)
        choice = _first_of_highest(scores, starts) if chooses else found.choice
        exists = (choice >= 0) & (choice < num_resolvents)
        row = starts[:-1][exists] + choice[exists]
        outcome, log_probability = self._end(found, decoded, depth, exists, row), np.zeros(num)
        log_probability[exists] = _log_softmax(scores, starts, exists, row)
        chosen_column = np.zeros(num, np.int64)
        chosen_column[exists] = column[row]
        # Only an open derivation goes on, with a successor in the list.
        is_open = outcome == Outcome.OPEN
        following = self._hand_on(found, chosen_column, is_open, state)
        atoms_of = starts_of(decoded.num_atoms)
        remembers = MEMORIES[self.memory]
        if remembers is not None:
            at = np.zeros(num, np.int64)
            at[exists] = row
            for i in np.flatnonzero(is_open).tolist():
                visited[i].add(remembers(decoded.atoms[atoms_of[at[i]] : atoms_of[at[i] + 1]].tolist()))
        goal = self._translate.decode(state.states)
        zeros = np.zeros(num, np.uint32)
        columns = Columns(
            Candidates(
                candidates.query,
                candidates.side,
                candidates.atom,
                np.ones(num, np.uint32),
                outcome,
                np.zeros(num, np.uint8),
                log_probability,
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
                decoded.kind,
                decoded.num_atoms.astype(np.uint16),
                np.zeros(len(slot), np.uint8),
                np.zeros(len(slot), np.int32),
                scores,
                decoded.atoms.astype(np.int32),
            ),
        )
        return _Taken(columns, following)

    def _admit(self, decoded: Decoded, slot: NDArray[np.int64], visited: Sequence[set[Any]]) -> NDArray[np.int64]:
        """Return the successors that the environment admits: terminal ones, and those that fit and are not remembered."""
        is_goal = decoded.kind == GoalKind.GOAL
        is_admitted = ~is_goal | (decoded.extent <= self._num_atoms)
        remembers = MEMORIES[self.memory]
        if remembers is not None:
            starts = starts_of(decoded.num_atoms).tolist()
            atoms = decoded.atoms.tolist()
            for i in np.flatnonzero(is_goal & is_admitted).tolist():
                if remembers(atoms[starts[i] : starts[i + 1]]) in visited[slot[i]]:
                    is_admitted[i] = False
        return np.flatnonzero(is_admitted)

    def _end(
        self,
        found: Expansion,
        decoded: Decoded,
        depth: NDArray[np.uint16],
        exists: NDArray[np.bool_],
        row: NDArray[np.int64],
    ) -> NDArray[np.int8]:
        """Return the outcome of each step, given the rows of the successors taken."""
        kind = np.full(len(depth), GoalKind.FALSE, np.uint8)
        kind[exists] = decoded.kind[row]
        ends = np.array([ENDS.get(code, Outcome.OPEN) for code in GoalKind], np.int8)[kind]
        if found.done is not None:
            success = ends == Outcome.PROVED if found.success is None else found.success
            ends = np.where(~found.done, Outcome.OPEN, np.where(success, Outcome.PROVED, Outcome.FAILED)).astype(
                np.int8
            )
            ends[~exists] = Outcome.FAILED
        most = self.limits.max_depth if self.max_depth is None else self.max_depth
        ends[(ends == Outcome.OPEN) & (depth.astype(np.int64) + 1 >= most)] = Outcome.DEPTH_LIMIT
        return ends

    def _hand_on(
        self, found: Expansion, chosen: NDArray[np.int64], is_open: NDArray[np.bool_], state: _State
    ) -> _State:
        """Return the states after the successors taken, as the engine left them; of ended derivations, any."""
        width, num = state.states.shape[1], len(chosen)
        states = np.full_like(state.states, self.encoding.padding)
        if found.successors.shape[1]:
            last = found.successors.shape[1] - 1
            successor = found.successors[np.arange(num), np.minimum(chosen, last)]
            successor[chosen > last] = self.encoding.padding
            states[:, : successor.shape[1]] = successor[:, :width]
            is_cut = is_open & (successor[:, width:] != self.encoding.padding).any(axis=(1, 2))
            if is_cut.any():
                raise UserError(
                    f"the successor taken has more than the {width} rows of a state",
                    where=f"{self._where}.expand",
                    fix="set max_atoms to more rows, or choose among successors that fit",
                )
        return state._replace(states=states, next_variable=found.next_variable)

    def _to_own(self, array: Ids) -> Any:
        """Return an array of NumPy as one of the engine's."""
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
        """Call `expand` on copies, and return its result as arrays of NumPy. UserError if it has another form.

        Later calls have the numbers of states of the first run, so that a compiled step meets no new shape: the batch is
        filled with copies of its last state.
        """
        num, size = len(state.states), self._fit(len(state.states))
        if size > num:
            state = state.take(np.minimum(np.arange(size), num - 1))
        found = self._call_expand(state)
        return found if size == num else Expansion(*(None if each is None else each[:num] for each in found))

    def _fit(self, num: int) -> int:
        """Return the smallest number of states that a call had in the first run and that is large enough."""
        if not self._has_run:
            self._sizes.add(num)
        return min((each for each in self._sizes if each >= num), default=num)

    def _call_expand(self, state: _State) -> Expansion:
        result = self.expand(*(self._to_own(array.copy()) for array in state))
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
        num = len(state.states)
        successors = self._read("successors", made.successors, "iu", (num, None, None, 3))
        read: dict[str, Any] = {"successors": successors}
        for name, kinds, shape in (
            ("counts", "iu", (num,)),
            ("next_variable", "iu", (num,)),
            ("scores", "f", (num, successors.shape[1])),
            ("choice", "iu", (num,)),
            ("done", "biu", (num,)),
            ("success", "biu", (num,)),
        ):
            value = getattr(made, name)
            if value is not None or name in Expansion._fields[:3]:
                read[name] = self._read(name, value, kinds, shape)
        return Expansion(**read)

    def _read(self, name: str, value: Any, kinds: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
        """Return a part of the result as an array of int64, float64 or bool. UserError for another type or shape."""
        array = _to_numpy(value)
        if array is None:
            raise self._misshapen(f"{name} is {_describe(value)}")
        expected = ", ".join("n" if length is None else str(length) for length in shape)
        if array.ndim != len(shape) or any(n is not None and n != m for n, m in zip(shape, array.shape, strict=True)):
            raise self._misshapen(f"{name} has shape {list(array.shape)}, expected [{expected}]")
        if array.dtype.kind not in kinds:
            what = {"f": "floats", "iu": "integers"}.get(kinds, "booleans")
            raise self._misshapen(f"{name} has dtype {array.dtype}, expected {what}")
        if name in ("done", "success"):
            return array.astype(np.bool_)
        if name == "scores":
            self._has_short_scores = array.dtype.itemsize < 8
        return array.astype(
            np.float32 if kinds == "f" and array.dtype.itemsize < 8 else np.float64 if kinds == "f" else np.int64
        )

    def _misshapen(self, message: str) -> UserError:
        return UserError(message, where=f"{self._where}.expand", fix=f"write {SIGNATURE}")


def _to_numpy(value: Any) -> NDArray[Any] | None:
    """Return an array of any library as one of NumPy; None if it is no array."""
    if isinstance(value, np.ndarray):
        return value
    if callable(getattr(value, "detach", None)):
        # torch, where a tensor may lie on another device or have a type that NumPy lacks.
        host = value.detach().cpu()
        try:
            found: NDArray[Any] = host.numpy()
        except (TypeError, RuntimeError):
            return np.asarray(host.float().numpy())
        return found
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError):
            # NumPy reads no other device's memory; most libraries copy it by themselves.
            pass
    if hasattr(value, "__array__"):
        return np.asarray(value)
    return None


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def _take_decoded(decoded: Decoded, rows: NDArray[np.int64]) -> Decoded:
    atoms = decoded.atoms[expand_rows(starts_of(decoded.num_atoms), rows)]
    return Decoded(decoded.kind[rows], decoded.num_atoms[rows], decoded.extent[rows], atoms)


def _insert(
    slot: NDArray[np.int64],
    column: NDArray[np.int64],
    scores: NDArray[np.float64],
    decoded: Decoded,
    is_rejected: NDArray[np.bool_],
    is_beyond: NDArray[np.bool_],
    size: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], Decoded]:
    """Add FALSE where the environment rejected every successor, and an empty goal where the count is beyond the list."""
    new = np.flatnonzero(is_rejected | is_beyond)
    if not len(new):
        return slot, column, scores, decoded
    at = np.searchsorted(slot, new, side="right")
    kinds = np.where(is_rejected[new], GoalKind.FALSE, GoalKind.GOAL)
    grown = Decoded(
        np.insert(decoded.kind, at, kinds),
        np.insert(decoded.num_atoms, at, 0),
        np.insert(decoded.extent, at, 0),
        decoded.atoms,
    )
    beyond = np.where(is_rejected[new], 0, GIVE_UP_SCORE)
    return np.insert(slot, at, new), np.insert(column, at, size), np.insert(scores, at, beyond), grown


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


def _first_of_highest(scores: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the first highest score of each step, NaN being lowest; -1 for a step without resolvents."""
    num = np.diff(starts)
    choice = np.full(len(num), -1, np.int64)
    has = num > 0
    if not has.any():
        return choice
    known = np.where(np.isnan(scores), -np.inf, scores)
    highest = np.maximum.reduceat(known, starts[:-1][has])
    is_highest = known == np.repeat(highest, num[has])
    index = np.arange(len(known)) - np.repeat(starts[:-1][has], num[has])
    choice[has] = np.minimum.reduceat(np.where(is_highest, index, len(known)), starts[:-1][has])
    return choice


def _log_softmax(
    scores: NDArray[np.float64], starts: NDArray[np.int64], exists: NDArray[np.bool_], row: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the log-softmax of the successor taken, for each step that has one."""
    if not len(row):
        return np.zeros(0)
    num = np.diff(starts)[exists]
    scores = scores.astype(np.float64)
    every = scores[expand_rows(starts, np.flatnonzero(exists))]
    begins = starts_of(num)[:-1]
    highest = np.maximum.reduceat(every, begins)
    with np.errstate(all="ignore"):
        total = np.add.reduceat(np.exp(every - np.repeat(highest, num)), begins)
        found: NDArray[np.float64] = scores[row] - highest - np.log(total)
    return found
