"""The search for the smallest comparison of two environments that shows a difference: fewest slots and actions."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.result import Divergence
from kgverify.environments.causes import root_of
from kgverify.environments.compare import Compared
from kgverify.environments.protocol import ActionSpace, Leaves, RandomPolicy
from kgverify.environments.trajectory import Stage
from kgverify.errors import UserError
from kgverify.runs.delta_debugging import minimize

MOST_TRIED: Final = 250
"""The most comparisons of a search."""

MOST_SLOTS: Final = 64
MOST_ROUNDS: Final = 4
MOST_EARLY: Final = 32
"""The slots that try other seeds and actions at once, how many times, and the most actions of each."""

FEW_STEPS: Final = 5
MOST_DRAWN: Final = 16
"""The number of actions that is small enough, and how many other sequences of that length are tried."""

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
    """The search made as many comparisons as it may."""


class Shrinker:
    """A search for a smaller case in which the same field differs.

    run: a function that compares a case
    """

    def __init__(self, target: Divergence, space: ActionSpace, run: Callable[[Case], Tried]) -> None:
        self._target, self._space, self._run = target, space, run
        self._num_tried = 0
        self._best: tuple[tuple[int, int, int], Tried, Divergence] | None = None

    def shrink(self, tried: Tried) -> Shrunk | None:
        """Return the smallest case found, from one that is known to differ; None if it does not differ again."""
        try:
            for step in (
                self._cut_steps,
                self._start_late,
                self._look_early,
                self._use_fewer_slots,
                self._drop_actions,
            ):
                if self._best is None:
                    self._consider(tried)
                if self._best is not None:
                    step(self._best[1].case)
            self._keep_stage()
        except _Spent:
            pass
        return self._finish()

    @property
    def _size(self) -> tuple[int, int]:
        """The slots and actions of the best case."""
        assert self._best is not None
        shape = self._best[1].case.actions.shape
        return shape[0], shape[1]

    def _finish(self) -> Shrunk | None:
        if self._best is None:
            return None
        _, tried, first = self._best
        case = tried.case
        again = min(self._matching(self._run(case)), key=_order, default=None)
        return Shrunk(
            slots=len(case.actions),
            steps=case.actions.shape[1],
            seed=case.seed,
            actions=case.actions.swapaxes(0, 1).tolist(),
            states=None if case.states is None else {name: each.tolist() for name, each in case.states.items()},
            divergence=first,
            num_tried=self._num_tried,
            repeats=again == first,
        )

    def _matching(self, tried: Tried) -> list[Divergence]:
        """Return the divergences in the same field and stage; a right state that is shown wrongly may look like a wrong one."""
        target, found = self._target, []
        for each in tried.compared.comparison.divergences:
            stages = {each.stage, target.stage}
            may_be_same = root_of(each.field) == "observation" and Stage.OBSERVE in stages
            if root_of(each.field) == root_of(target.field) and (len(stages) == 1 or may_be_same):
                found.append(each)
        return found

    def _try(self, case: Case) -> bool:
        """Compare a case; return whether it is smaller than the best one and differs."""
        if self._num_tried >= MOST_TRIED:
            raise _Spent
        self._num_tried += 1
        try:
            return self._consider(self._run(case))
        except UserError:
            # The environment may fail after other actions.
            return False

    def _consider(self, tried: Tried) -> bool:
        found = min(self._matching(tried), key=_order, default=None)
        if found is None:
            return False
        num_slots, num_steps, *_ = tried.case.actions.shape
        # Many slots are reduced better than many steps.
        size = max(num_steps, found.step), num_slots, found.stage != self._target.stage
        if self._best is not None and size >= self._best[0]:
            return False
        self._best = size, tried, found
        return True

    def _cut_steps(self, case: Case) -> None:
        """Leave out what follows the first difference. A reset is only recorded if an action follows it."""
        assert self._best is not None
        step = max(1, self._best[2].step)
        for num in (step, step + 1):
            if num < self._size[1] and self._try(case._replace(actions=case.actions[:, :num])):
                return

    def _start_late(self, case: Case) -> None:
        """Begin with the expected state before the last actions."""
        assert self._best is not None
        _, tried, _ = self._best
        num = case.actions.shape[1]
        for left in (1, 2):
            if left < num and tried.states and all(len(states) >= num for states in tried.states):
                rows = [states[num - left] for states in tried.states]
                states = {name: np.array([row[name] for row in rows]) for name in rows[0]}
                if self._try(Case(case.seed, case.actions[:, -left:], states)):
                    return

    def _look_early(self, case: Case) -> None:
        """Try other seeds and actions in many slots at once, until the difference comes after few actions."""
        num_slots = max(len(case.actions), MOST_SLOTS)
        for number in range(MOST_ROUNDS):
            if self._size[1] <= FEW_STEPS or case.states is not None:
                return
            num_steps = min(self._size[1] - 1, MOST_EARLY)
            tried = self._draw(num_slots, num_steps, case.seed + num_slots * number, is_constant=not number % 2)
            if self._try(tried):
                assert self._best is not None
                self._cut_steps(self._best[1].case)

    def _draw(self, num_slots: int, num_steps: int, seed: int, *, is_constant: bool) -> Case:
        """Return other actions: random ones, or the same again and again in each slot."""
        space = self._space
        policy = RandomPolicy(space, list(range(seed, seed + num_slots)))
        num = 1 if is_constant else num_steps
        slots = np.arange(num_slots)
        rows = [policy.draw(slots) for _ in range(num)] * (num_steps if is_constant else 1)
        return Case(seed, np.stack(rows, axis=1))

    def _use_fewer_slots(self, case: Case) -> None:
        """Take a slot that differs with few neighbours, or the first slots up to it."""
        assert self._best is not None
        found = sorted(self._matching(self._best[1]), key=_order)
        slots = list(dict.fromkeys(each.candidate for each in found if each.step <= case.actions.shape[1]))
        for num, most in ((1, MOST_STARTS), (2, MOST_SLOTS), (3, MOST_STARTS)):
            for first in _starts_of(slots[:most], num, len(case.actions)):
                if self._size[0] > num and self._try(case.take(first, num)):
                    return
        for num in sorted({slot + more for slot in slots[:MOST_STARTS] for more in (1, 2)}):
            if num < self._size[0] and self._try(case.take(0, num)):
                return

    def _drop_actions(self, case: Case) -> None:
        """Leave out actions, the same in all slots; then try other short sequences."""
        if case.states is not None:
            return
        num_slots, num_steps = self._size
        if num_steps > 1:
            minimize(range(num_steps), lambda kept: self._try(case._replace(actions=case.actions[:, list(kept)])))
        for number in range(MOST_DRAWN):
            if self._size[1] <= FEW_STEPS:
                return
            self._try(self._draw(num_slots, FEW_STEPS, case.seed + number * num_slots, is_constant=not number % 2))

    def _keep_stage(self) -> None:
        """Add a few actions if they show the stage that the whole run showed."""
        assert self._best is not None
        size, tried, first = self._best
        case = tried.case
        for more in range(1, FEW_STEPS - case.actions.shape[1] + 1) if first.stage != self._target.stage else ():
            longer = case._replace(actions=np.concatenate([case.actions, *[case.actions[:, -1:]] * more], axis=1))
            self._best = (size[0] + more + 1, *size[1:]), tried, first
            if self._try(longer) and self._best[2].stage == self._target.stage:
                return
        self._best = size, tried, first


def _order(divergence: Divergence) -> tuple[int, int]:
    return divergence.step, divergence.candidate


def _starts_of(slots: Iterable[int], num: int, num_slots: int) -> Iterator[int]:
    """Yield the first slots of all neighbours that include one of some slots, each once."""
    firsts = (first for slot in slots for first in range(slot - num + 1, slot + 1))
    yield from dict.fromkeys(first for first in firsts if 0 <= first <= num_slots - num)
