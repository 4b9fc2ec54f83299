"""The least model of a program, on the device: every ground atom that follows from it, as sorted keys.

The evaluation is semi-naive (Bancilhon 1986): each application of a rule uses an atom that was new in the previous
round. The atoms of a body are joined in an order found at run time: first atoms that bind no new variable, then atoms
that share one, the smallest first.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kgverify.errors import UserError
from kgverify.program.atoms import Atom
from kgverify.program.program import Program, Rule
from kgverify.prover.execution.device import resolve_device, single_thread
from kgverify.prover.program.relations import (
    Relation,
    Table,
    View,
    expand,
    filter_rows,
    is_among,
    is_filter,
    keep_columns,
    sort_once,
    whole,
)

MEMORY_BUDGET: Final = 1 << 30
"""The bytes that the model and the tables of its joins may take."""

MOST_ROWS_ON_CPU: Final = 1 << 22
"""The largest number of rows of joins on a CPU for a model on another device.

On that device, a small model would wait at each join.
"""

_BYTES_OF_ATOM = 64
_BYTES_OF_ROW = 256


_WORK_OF_JOIN: Final = 1 << 12
"""The number of rows that take as long to sort as an empty join takes: about 0.3 ms."""


class TooMuchWorkError(Exception):
    """The model takes more work than was allowed."""


class _TooManyRowsError(Exception):
    """The joins have too many rows for a CPU."""


class _State(NamedTuple):
    """The atoms of a predicate: all of them, the atoms known before the last round, and the atoms new in it."""

    all: Relation
    old: Relation
    new: Relation


class LeastModel:
    """Every ground atom that follows from a program (van Emden and Kowalski 1976).

    A variable that occurs only in the head of a rule stands for every constant of the program. `num_rounds` counts the rounds
    that derived new atoms.

    device:    the device that holds the model; it also computes the joins, unless all have few rows
    most_rows: the largest number of rows of a join in one part; by default the number that fits in `memory_budget`
    most_work: the total number of rows that may be joined and sorted; TooMuchWorkError beyond it
    must_stop: called at each join; KeyboardInterrupt if it returns True

    UserError if the model takes more than `memory_budget` bytes, or its keys do not fit in 63 bits.
    """

    def __init__(
        self,
        program: Program,
        *,
        device: str = "auto",
        memory_budget: int = MEMORY_BUDGET,
        most_rows: int | None = None,
        most_work: float = math.inf,
        must_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        # If there are several GPUs, this thread's current one, whichever thread uses the model later.
        target = torch.zeros(0, device=resolve_device(device)).device
        self._device = torch.device("cpu")
        self._num_constants = max(1, len(program.symbols.constants))
        self._num_predicates = len(program.symbols.predicates)
        self._most_atoms = memory_budget // _BYTES_OF_ATOM
        self._most_rows = max(1, memory_budget // _BYTES_OF_ROW) if most_rows is None else most_rows
        self._memory_budget = memory_budget
        self._work_left, self._must_stop = most_work, must_stop
        if (self._num_predicates + 1) * self._num_constants**2 >= 2**63:
            raise UserError(
                f"{self._num_predicates} predicates and {self._num_constants} constants do not fit 63-bit keys",
                where="graph",
                fix="split the graph: predicates * constants^2 must stay below 2^63",
            )
        self._states: list[_State] = []
        self._rows_left = MOST_ROWS_ON_CPU if target.type == "cuda" else math.inf
        try:
            # Sharing a few rows among threads takes longer than joining them.
            with single_thread():
                self._derive(program)
        except _TooManyRowsError:
            self._device, self._rows_left = target, math.inf
            self._derive(program)
        if self._device != target:
            self._device = target
            self._states = [_State(*(self._relation(part.keys.to(target)) for part in state)) for state in self._states]

    def _derive(self, program: Program) -> None:
        """Apply the rules until nothing new follows."""
        nothing = self._relation(torch.zeros(0, dtype=torch.int64, device=self._device))
        facts = torch.as_tensor(program.facts.astype(np.int64), device=self._device).view(-1, 3)
        keys = facts[:, 1] * self._num_constants + facts[:, 2]
        bounds = np.searchsorted(program.facts[:, 0], np.arange(self._num_predicates + 1)).tolist()
        self._states.clear()
        for predicate in range(self._num_predicates):
            given = self._relation(keys[bounds[predicate] : bounds[predicate + 1]])
            self._states.append(_State(given, nothing, given))
        self.num_rounds = 0
        while self._apply(program.rules):
            self.num_rounds += 1

    @property
    def num_atoms(self) -> int:
        """The number of ground atoms, facts included."""
        return sum(len(state.all) for state in self._states)

    @cached_property
    def keys(self) -> Tensor:
        """The keys `(predicate * C + first) * C + second`, int64 [num_atoms], ascending; C is the number of constants."""
        return self._join_keys(state.all.keys for state in self._states)

    def _join_keys(self, of_predicates: Iterable[Tensor]) -> Tensor:
        """Return the keys of the atoms of all predicates, in order."""
        size, nothing = self._num_constants**2, torch.zeros(0, dtype=torch.int64, device=self._device)
        keys: Tensor = torch.cat([nothing, *(keys + number * size for number, keys in enumerate(of_predicates))])
        return keys

    def read_keys(self) -> NDArray[np.int64]:
        """Return the keys of the atoms on the host."""
        keys: NDArray[np.int64] = self.keys.cpu().numpy()
        return keys

    def contains(self, atoms: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return whether each atom, int32 [n, 3], follows: bool [n]. An atom with variables follows if an instance does."""
        rows = np.ascontiguousarray(atoms, np.int64)
        predicate, first, second = rows.T
        key = (predicate * self._num_constants + first) * self._num_constants + second
        found: NDArray[np.bool_] = is_among(torch.as_tensor(key, device=self._device), self.keys).cpu().numpy()
        is_open = (first < 0) | (second < 0)
        found &= ~is_open
        for row in np.flatnonzero(is_open).tolist():
            atom = Atom(*rows[row].tolist())
            found[row] = len(self._states[atom.predicate].all.select(atom).values) > 0
        return found

    def select_entities(self, atoms: NDArray[np.int32], side: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Find the entities that turn an atom, int32 [n, 3], into one that follows when they replace one of its arguments.

        Returns their number for each atom, int64 [n], and the entities, int32, ascending for each atom.
        side: 0 for the first argument, 1 for the second
        """
        size = self._num_constants
        rows = atoms.astype(np.int64)
        low = torch.as_tensor((rows[:, 0] * size + rows[:, 2 - side]) * size, device=self._device)
        keys = self.keys if side else self._keys_by_second
        begin = torch.searchsorted(keys, low)
        num = torch.searchsorted(keys, low + size) - begin
        offset = begin - (num.cumsum(0) - num)
        start = torch.repeat_interleave(offset, num)
        entities = keys[start + torch.arange(len(start), device=self._device)] % size
        return num.cpu().numpy(), entities.to(torch.int32).cpu().numpy()

    @cached_property
    def _keys_by_second(self) -> Tensor:
        """The keys `(predicate * C + second) * C + first`, int64 [num_atoms], ascending."""
        return self._join_keys(state.all.by_second for state in self._states)

    def _relation(self, keys: Tensor) -> Relation:
        return Relation(keys, self._num_constants)

    def _apply(self, rules: tuple[Rule, ...]) -> bool:
        """Apply every rule once; return whether that derived new atoms."""
        derived: list[list[Tensor]] = [[] for _ in self._states]
        for rule in rules:
            predicate = rule.clause_head.predicate
            pending = derived[predicate]
            for position, atom in enumerate(rule.body):
                if not len(self._states[atom.predicate].new):
                    continue
                for keys in self._conclude(rule, position):
                    pending.append(keys)
                    if sum(map(len, pending)) > self._most_rows:
                        pending[:] = [self._drop_known(predicate, pending)]
        fresh = [self._drop_known(predicate, pending) for predicate, pending in enumerate(derived)]
        num_fresh = sum(map(len, fresh))
        self._check_size(num_fresh)
        self._spend(sum(len(state.all) for state, keys in zip(self._states, fresh, strict=True) if len(keys)))
        self._states = [
            _State(self._merge(state.all, keys), state.all, self._relation(keys))
            for state, keys in zip(self._states, fresh, strict=True)
        ]
        return num_fresh > 0

    def _spend(self, num_rows: int) -> None:
        """Count work. TooMuchWorkError if it exceeds the allowed work, KeyboardInterrupt if the caller must stop."""
        self._work_left -= num_rows
        if self._must_stop():
            raise KeyboardInterrupt
        if self._work_left < 0:
            raise TooMuchWorkError

    def _merge(self, relation: Relation, keys: Tensor) -> Relation:
        return self._relation(torch.cat((relation.keys, keys)).sort().values) if len(keys) else relation

    def _drop_known(self, predicate: int, pending: list[Tensor]) -> Tensor:
        """Return the keys that are not known yet, without repetitions."""
        known = self._states[predicate].all.keys
        if not pending:
            return known[:0]
        self._spend(sum(map(len, pending)))
        keys = sort_once(torch.cat(pending))
        keys = keys[~is_among(keys, known)]
        self._check_size(len(keys))
        return keys

    def _check_size(self, num_more: int) -> None:
        if self.num_atoms + num_more > self._most_atoms:
            raise UserError(
                f"the least model has more than {self._most_atoms:,} atoms, the most that fit into"
                f" {self._memory_budget / 2**30:.1f} GiB",
                where="least model",
                fix="give a larger memory_budget, or evaluate without the least model",
            )

    def _conclude(self, rule: Rule, position: int) -> Iterator[Tensor]:
        """Yield the keys, int64, of heads that follow if a new atom is at a position of the body, with repetitions."""
        views = []
        for i, atom in enumerate(rule.body):
            state = self._states[atom.predicate]
            relation = state.new if i == position else state.old if i < position else state.all
            view = relation.select(atom)
            if not len(view.values):
                return
            views.append(view)
        in_body = {variable for view in views for variable in view.variables}
        head_variables = {term for term in rule.clause_head[1:] if term < 0}
        for variable in head_variables - in_body:
            every = torch.arange(self._num_constants, device=self._device)
            views.append(View((variable,), every, self._num_constants))
        start = whole(views.pop(position))
        for table in self._join(start, views, head_variables):
            first, second = (
                table.columns[term] if term < 0 else torch.full((table.size,), term, device=self._device)
                for term in rule.clause_head[1:]
            )
            yield first * self._num_constants + second

    def _join(self, table: Table, views: list[View], wanted: set[int]) -> Iterator[Table]:
        """Yield tables of the bindings of the wanted variables that agree with every view."""
        while True:
            self._spend(_WORK_OF_JOIN + table.size)
            needed = wanted.union(*(view.variables for view in views))
            table = keep_columns(table, needed, self._num_constants)
            if not table.size:
                return
            if not views:
                yield table
                return
            i = min(range(len(views)), key=lambda each: _cost(table, views, each, wanted))
            view, views = views[i], views[:i] + views[i + 1 :]
            needed = wanted.union(*(each.variables for each in views))
            if is_filter(table, view, needed):
                table = filter_rows(table, view)
                continue
            for part in expand(table, view, needed, self._most_rows):
                self._rows_left -= part.size
                if self._rows_left < 0:
                    raise _TooManyRowsError
                yield from self._join(part, views, wanted)
            return


def _cost(table: Table, views: list[View], i: int, wanted: set[int]) -> tuple[int, int]:
    """Rank a view for the join order: filters first, then views that share a variable, the smallest first among equals."""
    view = views[i]
    needed = wanted.union(*(other.variables for j, other in enumerate(views) if j != i))
    num_bound = sum(variable in table.columns for variable in view.variables)
    rank = 0 if is_filter(table, view, needed) else 1 if num_bound else 2
    return rank, len(view.values)
