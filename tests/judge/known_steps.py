"""The known-answer test of recorded steps: records of ticks whose columns are known, as no small run makes them.

Counts, offsets, candidates and identifiers are beyond 8, 15 and 16 bits; unused rows and stale origins hold values that must
not be recorded.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from column_names import name_difference
from numpy.typing import NDArray
from torch import Tensor

from kgverify.engines.protocol import Results, StepDigests
from kgverify.errors import InternalError
from kgverify.prover.execution.device import PendingCopy, single_thread
from kgverify.prover.state import FALSE, GOAL, PAD, TRUE, Choices, Rows, StepRecord, Work
from kgverify.prover.tick.stage_ticks import Recorded, read_steps, take_steps
from kgverify.trace.model.columns import (
    Candidates,
    CandidateSet,
    Columns,
    Digests,
    Resolvents,
    Steps,
    no_stage_items,
)

_ATOMS: Final = 2
"""The padding of goals."""
_STALE: Final = 77
"""An origin that an earlier step left in its slot."""
_WIDE: Final = (33_000, 32_600)
"""The resolvents of two steps of the first tick: rows are beyond 15 bits behind the first, beyond 16 behind both."""
_NUM_WITH_STEPS: Final = 7
_APART: Final = 11_000
"""The candidates from one with steps to the next one, whose last is beyond 16 bits."""
_NUM_CANDIDATES: Final = (_NUM_WITH_STEPS - 1) * _APART + 1


class KnownStep(NamedTuple):
    """A step, or with `is_taken` False the rows of a slot that waits.

    key:       the number from which its values follow
    candidate: among those with steps
    """

    key: int
    candidate: int
    kind: int
    num_resolvents: int
    is_taken: bool = True

    @property
    def pool_index(self) -> int:
        """The place of its candidate among all."""
        return self.candidate * _APART

    @property
    def rows(self) -> NDArray[np.int64]:
        """The numbers of its resolvents that have rows: none for TRUE and FALSE."""
        return np.arange(self.num_resolvents if self.kind == GOAL else 0) + self.key * 100_003

    @property
    def counts(self) -> NDArray[np.int64]:
        """The atoms of each of these resolvents."""
        return 1 + self.rows % _ATOMS

    @property
    def origin_kinds(self) -> NDArray[np.int64]:
        """The kind of the origin of each of these resolvents: none, a rule, a fact."""
        return self.rows // 2 % 3

    @property
    def origins(self) -> NDArray[np.int64]:
        """The clause of each of these resolvents; 0 without one."""
        return np.where(self.origin_kinds == 0, 0, self.rows * 65_537 % (1 << 31))

    @property
    def scores(self) -> NDArray[np.float64]:
        """The scores of these resolvents."""
        return self.rows % 1_000_003 / -7

    @property
    def true_kind(self) -> int:
        """The kind of the origin of TRUE: none, a rule, a fact."""
        return self.key % 3 if self.kind == TRUE else 0

    def goal(self) -> NDArray[np.int64]:
        """Return the atoms of the goal."""
        return make_atoms(np.arange(1 + self.key % _ATOMS) + self.key * 7)

    def numbers(self) -> dict[str, int]:
        """Return the columns of the step that hold one number each."""
        key = self.key
        return {
            "depth": (0, 8, 300, 65_535)[key % 4],
            "dropped_atoms": (0, 255, 256, 65_536, (1 << 32) - 1)[key % 5],
            "dropped_resolvents": (256, 0, 1 << 16, 1 << 31, 3)[key // 2 % 5],
            "choice": (0, 127, 128, 300, 39_999)[key % 5],
            "outcome": key % 4,
        }


def make_atoms(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an atom for each number: constants of up to 31 bits, and variables beyond the 128th and the 65,536th."""
    return np.column_stack((rows % 70_001, rows * 1_000_003 % (1 << 31), -1 - rows % 70_001 * (rows % 5)))


def _list_ticks() -> Iterator[list[KnownStep]]:
    """Yield the slots of each tick: first of many resolvents, then of few, in ticks whose candidates are not in order."""
    keys = iter(range(1, 1000))
    first, second = _WIDE
    yield [
        KnownStep(next(keys), 0, GOAL, 5, is_taken=False),
        KnownStep(next(keys), 3, GOAL, first),
        KnownStep(next(keys), 1, TRUE, 1),
        KnownStep(next(keys), 0, GOAL, 7, is_taken=False),
        KnownStep(next(keys), 6, GOAL, second),
        KnownStep(next(keys), 4, GOAL, 300),
        KnownStep(next(keys), 5, FALSE, 1),
    ]
    for tick in range(9):
        yield [
            KnownStep(
                next(keys),
                (tick + slot) % _NUM_WITH_STEPS,
                (tick + slot) % 3,
                (1 + tick) if (tick + slot) % 3 == GOAL else 1,
                (tick * slot) % 4 != 1,
            )
            for slot in range(5)
        ]


def _record(slots: Sequence[KnownStep], dtype: torch.dtype) -> StepRecord:
    """Return the record of a tick. Unused rows of arrays hold values that no step has."""
    width = max(1, *(slot.num_resolvents for slot in slots))
    num_rows = sum(len(slot.rows) for slot in slots)
    origin_kind, origin = (np.full((len(slots), width + 1), value) for value in (2, _STALE))
    score = np.full((len(slots), width), -np.inf)
    # Two rows of the window are unused.
    atoms = np.full((num_rows + 2, _ATOMS, 3), PAD, np.int64)
    row_slot, is_live = np.zeros(num_rows + 2, np.int64), np.arange(num_rows + 2) < num_rows
    goal, first = np.full((len(slots), _ATOMS, 3), PAD, np.int64), np.full(len(slots), _STALE)
    begin = 0
    for i, slot in enumerate(slots):
        goal[i, : len(slot.goal())] = slot.goal()
        num = len(slot.rows)
        if not num:
            continue
        end = begin + num
        first[i], row_slot[begin:end], score[i, :num] = begin, i, slot.scores
        origin_kind[i, :num] = slot.origin_kinds
        origin[i, :num] = np.where(slot.origin_kinds == 0, _STALE, slot.origins)
        is_atom = np.arange(_ATOMS) < slot.counts[:, None]
        atoms[begin:end][is_atom] = make_atoms(np.repeat(slot.rows * 3, slot.counts))
        begin = end
    numbers = {name: _tensor([slot.numbers()[name] for slot in slots]) for name in slots[0].numbers()}
    counts = _tensor([slot.num_resolvents for slot in slots])
    true_kind = np.array([slot.true_kind for slot in slots])
    nothing = _tensor([0] * len(slots))
    return StepRecord(
        is_taken=_tensor([slot.is_taken for slot in slots], torch.bool),
        pool_index=_tensor([slot.pool_index for slot in slots]),
        goal=_tensor(goal, torch.int32),
        depth=numbers["depth"].int(),
        outcome=numbers["outcome"].int(),
        work=Work(
            cursor=nothing,
            num_survivors=counts,
            num_kept=counts,
            dropped_atoms=numbers["dropped_atoms"],
            dropped_resolvents=numbers["dropped_resolvents"],
            true_origin_kind=_tensor(true_kind, torch.int32),
            true_origin=_tensor([_STALE + slot.key for slot in slots], torch.int32),
            origin_kind=_tensor(origin_kind, torch.int32),
            origin=_tensor(origin, torch.int32),
        ),
        rows=Rows(_tensor(row_slot), _tensor(is_live, torch.bool), _tensor(atoms, torch.int32), _tensor(first)),
        choices=Choices(
            kind=_tensor([slot.kind for slot in slots], torch.int32),
            num_resolvents=counts,
            score=_tensor(score, dtype),
            choice=numbers["choice"],
            log_probability=nothing.double(),
        ),
        gaps=None,
    )


def _tensor(values: Any, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.as_tensor(np.asarray(values), device="cpu").to(dtype)


def _expect(steps: Sequence[KnownStep], dtype: torch.dtype, candidates: CandidateSet, results: Results) -> Columns:
    """Return the columns of steps in the order of their candidates."""

    def column(name: str, kind: Any) -> NDArray[Any]:
        return np.array([step.numbers()[name] for step in steps], kind)

    def join(parts: Iterator[Any], kind: Any) -> NDArray[Any]:
        return np.concatenate([np.zeros(0), *parts]).astype(kind)

    def atoms(parts: Iterator[NDArray[np.int64]]) -> NDArray[np.int32]:
        return np.concatenate([*parts]).astype(np.int32)

    def per_row(step: KnownStep, rows: NDArray[Any], alone: int) -> Any:
        """Return the values of a step's rows, or that of TRUE or FALSE."""
        return rows if step.kind == GOAL else [alone]

    return Columns(
        Candidates(
            *candidates,
            np.bincount([step.pool_index for step in steps], minlength=_NUM_CANDIDATES).astype(np.uint32),
            results.outcome.astype(np.int8),
            results.is_limited.astype(np.uint8),
            results.log_probability,
        ),
        Steps(
            column("depth", np.uint16),
            np.array([len(step.goal()) for step in steps], np.uint16),
            np.array([step.num_resolvents for step in steps], np.uint32),
            column("dropped_atoms", np.uint32),
            column("dropped_resolvents", np.uint32),
            column("choice", np.int32),
            column("outcome", np.int8),
            atoms(step.goal() for step in steps),
        ),
        Resolvents(
            np.repeat([step.kind for step in steps], [step.num_resolvents for step in steps]).astype(np.uint8),
            join((per_row(step, step.counts, 0) for step in steps), np.uint16),
            join((per_row(step, step.origin_kinds, step.true_kind) for step in steps), np.uint8),
            join((per_row(step, step.origins, step.true_kind and _STALE + step.key) for step in steps), np.int32),
            join(
                (per_row(step, step.scores, 0) for step in steps), np.float64 if dtype == torch.float64 else np.float32
            ),
            atoms(make_atoms(np.repeat(step.rows * 3, step.counts)) for step in steps),
        ),
        no_stage_items(),
    )


@cache
def check_known_steps() -> None:
    """InternalError unless the steps of known ticks are recorded as they are, in both precisions."""
    with single_thread():
        _check()


def _check() -> None:
    number = np.arange(_NUM_CANDIDATES)
    candidates = CandidateSet(
        (number * 300_000_007).astype(np.int32),
        (number % 3).astype(np.int8),
        make_atoms(number * 9_999).astype(np.int32),
    )
    results = Results((number % 4).astype(np.int32), number % 3 == 1, number / -3)
    ticks = [*_list_ticks()]
    # Only the last step is out of order.
    turned = [[KnownStep(key, place, GOAL, 2) for key, place in enumerate((0, 1, 1, 6, 4))]]
    for dtype, used in ((torch.float32, ticks), (torch.float64, ticks[1:]), (torch.float64, turned)):
        taken = [take_steps(_record(slots, dtype)) for slots in used]
        # Ticks are read by several and alone.
        chunks = [read_steps(some) for some in (taken[:4], taken[4:5], taken[5:]) if some]
        steps = [step for slots in used for step in slots if step.is_taken]
        known = _expect(sorted(steps, key=lambda step: step.pool_index), dtype, candidates, results)
        words = np.arange(len(steps), dtype=np.uint64) << np.uint64(33)
        digests = StepDigests(known.candidates.num_steps, Digests(words, words, words))
        pending = [PendingCopy(chunk) for chunk in chunks]
        for given in (pending, None):
            found, sequence = Recorded(candidates, given, PendingCopy(results), PendingCopy(digests)).read()
            is_right = sequence is not None and np.array_equal(sequence, words) and len(found.steps.depth) == len(words)
            if not is_right:
                raise InternalError("known steps are recorded with wrong digests")
            # Where only digests were taken, there is nothing but the candidates.
            num_groups = 3 if given else 1
            if name := name_difference(found[:num_groups], known[:num_groups]):
                raise InternalError(f"known steps are recorded with a wrong column {name}")
