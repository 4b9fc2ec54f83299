"""Drive environments with the same actions, slot by slot, and record what they return as rows that do not depend on autoreset."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.environments.protocol import (
    Acted,
    ActionSpace,
    Autoreset,
    Called,
    Environment,
    Leaves,
    Observed,
    Policy,
    describe_numbers,
    join_leaves,
)
from kgverify.environments.trajectory import Rows, StepKind, Trajectories, as_numbers, assemble
from kgverify.errors import UserError
from kgverify.trace.model.columns import count_where, starts_of

Slots = NDArray[np.int64]


class Plan(NamedTuple):
    """The seeds and the number of actions of a run.

    seeds: int64 [N]  the seed of each slot
    num_steps: the actions of each slot
    slots: int32 [N]  the number of each slot; by default, they count up from 0
    """

    seeds: NDArray[np.int64]
    num_steps: int
    slots: NDArray[np.int32] | None = None


class Drive:
    """A run of one environment, recorded row by row; `actions` of one run can drive another.

    names:  the name of each number of a group, such as `observations`, as the first call showed them
    dtypes: the type of each of these numbers
    known:  the optional columns of `Steps` that the environment or its policy told
    """

    def __init__(self, environment: Environment, plan: Plan, choose: "Chooser") -> None:
        self.environment, self._plan, self._choose = environment, plan, choose
        self.names: dict[str, list[str]] = {}
        self.dtypes: dict[str, list[str]] = {}
        self.known = {"reward", "terminated", "truncated"}
        self._calls: list[Rows] = []
        self._num = np.zeros(environment.num_slots, np.int64)
        # A slot whose episode ended: it begins the next one before its next action.
        self._ended = np.zeros(environment.num_slots, np.bool_)

    def run(self) -> Trajectories:
        """Drive the environment until every slot has taken its actions, and return the rows."""
        for _ in self.steps():
            pass
        return self.trajectories()

    def trajectories(self) -> Trajectories:
        """Return the rows so far."""
        slots = self._plan.slots
        slots = np.arange(self.environment.num_slots, dtype=np.int32) if slots is None else slots
        return assemble(self._plan.seeds, slots, self._calls)

    def steps(self) -> Iterator[int]:
        """Drive the environment call by call; yield the number of rows of each."""
        environment = self.environment
        self._last = environment.reset(self._plan.seeds)
        self._record(np.arange(environment.num_slots), StepKind.RESET, self._last)
        yield environment.num_slots
        while self._is_open.any():
            before = len(self._calls)
            if environment.autoreset is Autoreset.DISABLED and self._ended.any():
                which = self._ended.copy()
                self._merge(environment.reset_slots(which), which)
                self._record(np.flatnonzero(which & self._is_open), StepKind.RESET, self._last)
                self._ended[:] = False
            self._call()
            yield sum(len(each.slots) for each in self._calls[before:])

    @property
    def _is_open(self) -> NDArray[np.bool_]:
        """The slots that have actions left."""
        return self._num < self._plan.num_steps

    def _call(self) -> None:
        """Call `step` once. A slot that resets itself, or has no actions left, takes an action that does not count."""
        environment, acts = self.environment, self._is_open & ~self._ended
        slots = np.flatnonzero(acts)
        choice = self._choose(slots, self._num[slots], _rows_of(self._last, slots))
        space = environment.actions
        actions = np.broadcast_to(space.low, (environment.num_slots, *space.shape)).astype(space.dtype)
        if self._last.mask is not None and not space.shape:
            actions[:] = space.low + self._last.mask.argmax(axis=1)
        actions[slots] = choice.forced.reshape(len(slots), *space.shape)
        if choice.states is not None and self._last.states is not None:
            states = {name: each.copy() for name, each in self._last.states.items()}
            if states.keys() != choice.states.keys():
                parts = (", ".join(each) or "one array" for each in (choice.states, states))
                raise UserError(
                    f"the states have different parts: {' and '.join(parts)}",
                    where="lockstep",
                    fix="name the parts alike on both sides, or turn lockstep off",
                )
            for name, rows in choice.states.items():
                states[name][slots] = rows
            environment.set_states(states)
        called = environment.step(actions)
        was_ended, ends = self._ended.copy(), called.terminated | called.truncated
        self._last = called.observed
        self._record_steps(slots, choice.own, called, ends)
        self._num[slots] += 1
        if environment.autoreset is Autoreset.SAME_STEP:
            begun = self._last._replace(overwritten=None)
            self._record(np.flatnonzero(ends & acts & self._is_open), StepKind.RESET, begun)
            return
        if environment.autoreset is Autoreset.NEXT_STEP:
            self._record(np.flatnonzero(was_ended & self._is_open), StepKind.RESET, self._last, _scalars_of(called))
        self._ended = ends & ~was_ended

    def _record_steps(self, slots: Slots, acted: Acted, called: Called, ends: NDArray[np.bool_]) -> None:
        """Record what the call returned to the slots that acted; the end of an episode has the observation that ended it."""
        values = {name: each[slots] for name, each in _scalars_of(called).items()}
        optional = {"log_probability": acted.log_probability, "value": acted.value}
        values |= {name: as_numbers(each)[:, 0] for name, each in optional.items() if each is not None}
        if called.observed.overwritten is not None:
            values["overwritten"] = called.observed.overwritten[slots]
        self.known |= values.keys()
        self.dtypes |= {name: [str(np.asarray(each).dtype)] for name, each in values.items()}
        numbers = self._join({"actions": {"": acted.actions}, "hidden": acted.hidden})
        for own, observed in self._observations(called, ends):
            chosen = own[slots]
            if chosen.any():
                at = slots[chosen]
                rows = {name: each[chosen] for name, each in numbers.items()} | self._join(_groups_of(observed, at))
                self._calls.append(Rows(at, StepKind.STEP, {name: each[chosen] for name, each in values.items()}, rows))

    def _observations(self, called: Called, ends: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.bool_], Observed]]:
        """Yield slots, bool [N], with their observations; the one that ends an episode has no mask, as no action follows."""
        yield ~ends, called.observed
        if self.environment.autoreset is not Autoreset.SAME_STEP:
            yield ends, Observed(called.observed.leaves)
            return
        has_final = np.zeros_like(ends) if called.has_final is None else called.has_final
        if called.final is not None:
            yield ends & has_final, Observed(called.final)
        yield ends & ~has_final, Observed({})

    def _record(
        self, slots: Slots, kind: StepKind, observed: Observed, scalars: Mapping[str, NDArray[Any]] = {}
    ) -> None:
        if len(slots):
            values = {name: each[slots] for name, each in scalars.items()}
            if observed.overwritten is not None:
                values["overwritten"] = observed.overwritten[slots]
            self._calls.append(Rows(slots, kind, values, self._join(_groups_of(observed, slots))))

    def _join(self, groups: Mapping[str, Leaves | None]) -> dict[str, NDArray[np.float64]]:
        """Return the numbers of the groups that have any, and note their names if they are the first ones."""
        present = {group: leaves for group, leaves in groups.items() if leaves}
        for group, leaves in present.items():
            if group not in self.names:
                self.names[group], self.dtypes[group] = describe_numbers(group, leaves)
        return {group: join_leaves(leaves) for group, leaves in present.items()}

    def _merge(self, observed: Observed, which: NDArray[np.bool_]) -> None:
        """Take some slots of an observation into the last one."""

        def join(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
            merged = old.copy()
            merged[which] = new[which]
            return merged

        last = self._last
        leaves = {name: join(each, observed.leaves[name]) for name, each in last.leaves.items()}
        mask = None if last.mask is None or observed.mask is None else join(last.mask, observed.mask)
        states = last.states
        if states is not None and observed.states is not None:
            states = {name: join(each, observed.states[name]) for name, each in states.items()}
        self._last = Observed(leaves, mask, states, observed.overwritten)


class Choice(NamedTuple):
    """The action that is taken, and the choice that the policy of this side made itself.

    forced: the actions taken, [n, *shape]
    own:    the choice that is recorded
    states: the states from which they are taken, in lockstep; None for the environment's own
    """

    forced: NDArray[Any]
    own: Acted
    states: Leaves | None = None


Chooser = Callable[[Slots, NDArray[np.int64], Observed], Choice]
"""A function of slots, the number of actions that each has taken, and their rows of an observation."""


class Leader:
    """The chooser of the side that leads: its policy chooses.

    taken:  the actions of each slot, which a follower repeats
    states: the states from which they were taken; none if the environment does not show its state
    sets_first: whether its policy gave the states from which the first actions are taken
    """

    sets_first = False

    def __init__(self, policy: Policy, num_slots: int) -> None:
        self._policy = policy
        self.taken: list[list[NDArray[Any]]] = [[] for _ in range(num_slots)]
        self.states: list[list[Leaves]] = [[] for _ in range(num_slots)]

    def __call__(self, slots: Slots, numbers: NDArray[np.int64], observed: Observed) -> Choice:
        """Choose, and keep the actions."""
        acted = self._policy.act(slots, numbers, observed)
        for row, slot in enumerate(slots.tolist()):
            self.taken[slot].append(np.array(acted.actions[row]))
            if observed.states is not None:
                states = {**observed.states, **(acted.states or {})}
                self.sets_first |= acted.states is not None
                self.states[slot].append({name: each[row] for name, each in states.items()})
        return Choice(acted.actions, acted, acted.states)


class Follower:
    """The chooser of the side that follows: it takes the leader's actions; a policy of its own only shows its choice.

    lockstep: whether to take each action from the leader's state
    change:   a relative change of the numbers of that state, up or down at random, to see what rounding does
    """

    def __init__(
        self,
        leader: "Leader | Recorded",
        policy: Policy | None = None,
        *,
        lockstep: bool = False,
        change: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._leader, self._policy, self._lockstep = leader, policy, lockstep
        self._change, self._draw = change, np.random.default_rng(seed)

    def __call__(self, slots: Slots, numbers: NDArray[np.int64], observed: Observed) -> Choice:
        """Return the leader's actions of these slots and numbers."""
        at = list(zip(slots.tolist(), numbers.tolist(), strict=True))
        forced = np.array([self._leader.taken[slot][number] for slot, number in at])
        own = Acted(forced) if self._policy is None else self._policy.act(slots, numbers, observed)
        states = None
        if at and (self._lockstep or (self._leader.sets_first and not numbers.any())):
            rows = [self._leader.states[slot][number] for slot, number in at]
            states = {name: self._changed(np.array([row[name] for row in rows])) for name in rows[0]}
        return Choice(forced, own, states)

    def _changed(self, values: NDArray[Any]) -> NDArray[Any]:
        if not self._change or values.dtype.kind != "f":
            return values
        signs = self._draw.choice([-1.0, 1.0], values.shape)
        changed: NDArray[Any] = (values * (1.0 + signs * self._change)).astype(values.dtype)
        return changed


class Recorded:
    """The actions that were recorded, which drive another environment. states: none, since other processes cannot set them."""

    sets_first = False

    def __init__(self, columns: Trajectories, space: ActionSpace) -> None:
        self.states: list[list[Leaves]] = []
        width, has_action = math.prod(space.shape), columns.steps.num_actions > 0
        if odd := sorted({*columns.steps.num_actions[has_action].tolist()} - {width}):
            raise UserError(
                f"the recorded actions have {odd[0]} numbers, expected {width}",
                where="actions",
                fix="give an environment that takes the same actions",
            )
        actions = columns.actions.number.astype(space.dtype).reshape(-1, *space.shape)
        counts = count_where(has_action, starts_of(columns.candidates.num_steps))
        self.taken = [list(each) for each in np.split(actions, np.cumsum(counts)[:-1])]


def _scalars_of(called: Called) -> dict[str, NDArray[Any]]:
    return {"reward": called.reward, "terminated": called.terminated, "truncated": called.truncated}


def _rows_of(observed: Observed, slots: Slots) -> Observed:
    """Return the rows of some slots."""
    return Observed(
        {name: each[slots] for name, each in observed.leaves.items()},
        None if observed.mask is None else observed.mask[slots],
        None if observed.states is None else {name: each[slots] for name, each in observed.states.items()},
    )


def _groups_of(observed: Observed, slots: Slots) -> dict[str, Leaves | None]:
    """Return the groups of numbers that some slots observed."""
    leaves, mask, states, _ = _rows_of(observed, slots)
    return {"observations": leaves, "masks": None if mask is None else {"": mask}, "states": states}
