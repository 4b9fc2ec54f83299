"""The search for the smallest comparison of two environments that shows a difference: fewest slots and actions."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.result import Divergence
from kgverify.environments.compare import Compared
from kgverify.environments.locate import root_of
from kgverify.environments.protocol import ActionSpace, Leaves, RandomPolicy
from kgverify.environments.trajectory import Stage
from kgverify.errors import UserError
from kgverify.runs.delta_debugging import minimize

MOST_SECONDS: Final = 60.0
"""The time of a search: an environment of processes, or one that is compiled, takes seconds to open."""

MOST_TRIED: Final = 250
"""The maximum number of comparisons in a search."""

MOST_SLOTS: Final = 64
MOST_ROUNDS: Final = 4
MOST_EARLY: Final = 32
"""The search for other seeds and actions: the slots tried at once, the rounds, and the maximum number of actions in a slot."""

FEW_SLOTS: Final = 4
FEW_STEPS: Final = 5
"""The slots from which a search begins again, and the actions that are few enough."""

MOST_STARTS: Final = 6
"""The most slots with a difference from which fewer slots are tried."""


class Case(NamedTuple):
    """A comparison: slots that take given actions.

    seed:    of the first slot; the others count up from it
    actions: [N, T, *shape]
    states:  the states from which the first actions are taken, [N, ...] each; None for those of the reset
    """

    seed: int
    actions: NDArray[Any]
    states: Leaves | None = None

    def take(self, first: int, num: int) -> "Case":
        """Return the case of some neighbouring slots."""
        rows = slice(first, first + num)
        states = None if self.states is None else {name: each[rows] for name, each in self.states.items()}
        return Case(self.seed + first, self.actions[rows], states)


class Tried(NamedTuple):
    """A case that was compared.

    states: the states before each action of each slot; empty if the environments do not show them
    """

    case: Case
    compared: Compared
    states: Sequence[Sequence[Leaves]]


class Shrunk(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest comparison found that shows a difference.

    slots, steps, seed: the slots, the actions of each, and the seed of the first slot
    actions:    the actions [steps, slots, ...]
    states:     the states before the first action, [slots, ...] each by name; None if they are those of the reset
    divergence: its first difference
    num_tried:  the number of comparisons that the search made
    repeats:    whether it came out the same when run again
    """

    slots: int
    steps: int
    seed: int
    actions: list[Any]
    states: dict[str, list[Any]] | None = None
    divergence: Divergence
    num_tried: int = 0
    repeats: bool = True

    def render_test(self, expected: str, actual: str) -> str:
        """Return a test for pytest that fails as long as the difference exists. expected, actual: the text of each side."""
        first = self.divergence
        states = "" if self.states is None else f"\n        states={self.states!r},"
        return f'''"""A difference between two environments: {first.atom}, step {first.step}, {first.stage}: {first.field}."""

import kgverify


def test_environments_agree() -> None:
    report = kgverify.verify_env(
        {expected!r},
        {actual!r},
        seed={self.seed},
        actions={self.actions!r},{states}
    )
    assert not report.divergences, str(report)
'''


class _Spent(Exception):
    """The search made as many comparisons, or took as much time, as it may."""


class Shrinker:
    """A search for a smaller case in which the same field differs.

    run:   a function that compares a case
    tried: a case that differs
    """

    def __init__(self, target: Divergence, space: ActionSpace, run: Callable[[Case], Tried], tried: Tried) -> None:
        self._target, self._space, self._run, self._whole = target, space, run, tried.case
        self._num_tried, self._until = 0, time.monotonic() + MOST_SECONDS
        self._best = tried, self._matching(tried)[0]

    def shrink(self) -> Shrunk:
        """Return the smallest case found."""
        steps = (
            self._cut_steps,
            self._start_late,
            self._look_early,
            self._use_fewer_slots,
            self._begin_smaller,
            self._drop_actions,
        )
        try:
            for step in steps:
                step(self._case)
        except _Spent:
            pass
        case, first = self._case, self._best[1]
        return Shrunk(
            slots=self._size[0],
            steps=self._size[1],
            seed=case.seed,
            actions=case.actions.swapaxes(0, 1).tolist(),
            states=None if case.states is None else {name: each.tolist() for name, each in case.states.items()},
            divergence=first,
            num_tried=self._num_tried,
            repeats=self._matching(self._run(case))[:1] == [first],
        )

    @property
    def _case(self) -> Case:
        return self._best[0].case

    @property
    def _size(self) -> tuple[int, int]:
        """The slots and the actions of the best case."""
        return self._case.actions.shape[0], self._case.actions.shape[1]

    def _matching(self, tried: Tried) -> list[Divergence]:
        """Return the divergences in the same field and stage, the earliest first.

        Without the rows that follow, a wrong observation may look like a wrong state.
        """
        target, found = self._target, []
        for each in tried.compared.comparison.divergences:
            stages = {each.stage, target.stage}
            may_be_same = root_of(each.field) == "observation" and Stage.OBSERVE in stages
            if root_of(each.field) == root_of(target.field) and (len(stages) == 1 or may_be_same):
                found.append(each)
        return sorted(found, key=lambda each: (each.step, each.candidate))

    def _compare(self, case: Case) -> tuple[Tried, list[Divergence]] | None:
        """Compare a case, and return the divergences that are sought; None without any."""
        if self._num_tried >= MOST_TRIED or time.monotonic() > self._until:
            raise _Spent
        self._num_tried += 1
        try:
            tried = self._run(case)
        except UserError:
            # The environment may fail after other actions.
            return None
        found = self._matching(tried)
        return (tried, found) if found else None

    def _try(self, case: Case) -> bool:
        """Compare a case, and make it the best one if it is smaller and differs; return whether it is."""
        num_slots, num_steps = case.actions.shape[:2]
        found = self._compare(case)
        if found is None:
            return False
        # Many slots are reduced better than many steps.
        is_smaller = (max(num_steps, found[1][0].step), num_slots) < (self._size[1], self._size[0])
        if is_smaller:
            self._best = found[0], found[1][0]
        return is_smaller

    def _cut_steps(self, case: Case) -> None:
        """Leave out what follows the first difference. A reset is only recorded if an action follows it."""
        step = max(1, self._best[1].step)
        any(num < self._size[1] and self._try(case._replace(actions=case.actions[:, :num])) for num in (step, step + 1))

    def _start_late(self, case: Case) -> None:
        """Begin with the expected state before the last actions."""
        before, num = self._best[0].states, self._size[1]
        for left in (1, 2, FEW_STEPS):
            if left < num and before and all(len(states) >= num for states in before):
                rows = [states[num - left] for states in before]
                states = {name: np.array([row[name] for row in rows]) for name in rows[0]}
                if self._try(Case(case.seed, case.actions[:, -left:], states)):
                    return

    def _look_early(self, case: Case) -> None:
        """Try other seeds and actions in many slots at once, until the difference comes after few actions."""
        num_slots = max(self._size[0], MOST_SLOTS)
        for number in range(MOST_ROUNDS):
            if self._size[1] <= FEW_STEPS or case.states is not None:
                return
            num_steps = min(self._size[1] - 1, MOST_EARLY)
            if self._try(self._draw(num_slots, num_steps, case.seed + num_slots * number, is_constant=not number % 2)):
                self._cut_steps(self._case)

    def _draw(self, num_slots: int, num_steps: int, seed: int, *, is_constant: bool) -> Case:
        """Return other actions: random ones, or the same again and again in each slot."""
        policy = RandomPolicy(self._space, list(range(seed, seed + num_slots)))
        rows = [policy.draw(np.arange(num_slots)) for _ in range(1 if is_constant else num_steps)]
        return Case(seed, np.stack(rows * (num_steps if is_constant else 1), axis=1))

    def _use_fewer_slots(self, case: Case) -> None:
        """Take a slot that differs with few neighbours, or the first slots up to it."""
        slots = list(dict.fromkeys(each.candidate for each in self._matching(self._best[0])))
        for num, most in ((1, MOST_STARTS), (2, MOST_SLOTS), (3, MOST_STARTS)):
            for first in _starts_of(slots[:most], num, self._size[0]):
                if self._size[0] > num and self._try(case.take(first, num)):
                    return
        for num in sorted({slot + more for slot in slots[:MOST_STARTS] for more in (1, 2)}):
            if num < self._size[0] and self._try(case.take(0, num)):
                return

    def _begin_smaller(self, _: Case) -> None:
        """Begin again with the first slots of the whole run: a slot with a smaller number may differ later."""
        num = FEW_SLOTS
        while num < self._size[0]:
            found = self._compare(self._whole.take(0, num))
            if found is not None:
                other = Shrinker(self._target, self._space, self._run, found[0])
                other._cut_steps(other._case)
                other._start_late(other._case)
                if other._size[1] <= max(FEW_STEPS, self._size[1]):
                    self._best = other._best
            num *= 2

    def _drop_actions(self, case: Case) -> None:
        """Leave out actions, the same in all slots."""
        if case.states is None and self._size[1] > 1:
            steps = range(self._size[1])
            minimize(steps, lambda kept: self._try(case._replace(actions=case.actions[:, list(kept)])))


def _starts_of(slots: Iterable[int], num: int, num_slots: int) -> Iterator[int]:
    """Yield the first slots of all neighbours that include one of some slots, each once."""
    firsts = (first for slot in slots for first in range(slot - num + 1, slot + 1))
    yield from dict.fromkeys(first for first in firsts if 0 <= first <= num_slots - num)
