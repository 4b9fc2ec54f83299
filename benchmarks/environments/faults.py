"""Forty planted faults in four environments, with the answer that a differ should give.

Each class is one fault; `FAULTS` is the table. The right side of `cartpole` is Gymnasium's own environment, that of
`gridworld` one environment in plain Python run N times, and that of `prover` and `lander` the class itself.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from benchmarks.environments.cartpole import MAX_ANGLE, MAX_POSITION, CartPole
from benchmarks.environments.gridworld import PICK, SIZE, GridWorld, Observation, SingleGridWorld
from benchmarks.environments.lander import GAIN, Lander
from benchmarks.environments.lander import MAX_POSITION as MAX_LANDER_POSITION
from benchmarks.environments.prover import MAX_ATOMS, MAX_DEPTH, Prover, ProverState, select

STAGES: Final = ("reset", "observe", "mask", "choose", "transition", "reward", "end", "autoreset")
Make = Callable[[int], Any]
"""Makes an environment with the given number of slots."""


class Fault(NamedTuple):
    """A planted fault: where it is, in words when it shows, and both sides."""

    name: str
    environment: str
    stage: str
    condition: str
    note: str
    right: Make
    wrong: Make


FAULTS: Final[list[Fault]] = []
MAX_CART_STEPS: Final = 30


def make_carts(num_slots: int, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> SyncVectorEnv:
    """Return Gymnasium's CartPole-v1, one environment for each slot."""
    make_one = partial(gymnasium.make, "CartPole-v1", max_episode_steps=MAX_CART_STEPS)
    return SyncVectorEnv([make_one] * num_slots, autoreset_mode=mode)


def make_grids(num_slots: int, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> SyncVectorEnv:
    """Return one plain gridworld for each slot."""
    return SyncVectorEnv([SingleGridWorld] * num_slots, autoreset_mode=mode)


def name_fault(wrong: type) -> str:
    """Return the name of a class with underscores."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", wrong.__name__).lower()


def fault(stage: str, condition: str, note: str, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> Callable[[Any], Any]:
    """Enter a class into the table."""

    def enter(wrong: Any) -> Any:
        sides: dict[type, tuple[str, Make, Make]] = {
            Prover: ("prover", lambda _num_slots: Prover(), lambda _num_slots: wrong()),
            CartPole: ("cartpole", partial(make_carts, mode=mode), partial(wrong, autoreset_mode=mode)),
            GridWorld: ("gridworld", partial(make_grids, mode=mode), partial(wrong, autoreset_mode=mode)),
            Lander: ("lander", Lander, wrong),
        }
        environment, right, make_wrong = next(side for base, side in sides.items() if issubclass(wrong, base))
        FAULTS.append(Fault(name_fault(wrong), environment, stage, condition, note, right, make_wrong))
        return wrong

    return enter


# The prover


@fault("mask", "from the second step on, in slots whose mask changed", "the mask of the step before is returned")
class MaskOfTheStepBefore(Prover):
    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def reset(self, queries: Tensor) -> ProverState:
        self.last = None
        return super().reset(queries)

    def step(self, state: ProverState, action: Tensor) -> Any:
        self.last = super().mask(state)
        return super().step(state, action)

    def mask(self, state: ProverState) -> Tensor:
        return super().mask(state) if self.last is None else self.last


@fault("reward", "where the next slot has another reward", "each slot gets the reward of its right neighbour")
class RewardOfTheNextSlot(Prover):
    def pay(self, before: ProverState, after: ProverState, ended: Tensor) -> Tensor:
        return super().pay(before, after, ended).roll(-1)


@fault("autoreset", "in every 16th slot, at the end of an episode", "the next query is drawn with the neighbour's key")
class QueryOfTheNeighbour(Prover):
    def recycle(self, state: ProverState, done: Tensor) -> ProverState:
        is_16th = torch.arange(len(done)) % 16 == 15
        fresh = self.draw(torch.where(is_16th, state.key.roll(1), state.key), state.episode + 1)
        return select(done, fresh._replace(key=state.key), state)


@fault("end", "at the depth limit", "the limit is one step too late")
class LimitOneStepLate(Prover):
    def end(self, state: ProverState) -> tuple[Tensor, Tensor]:
        terminated, _ = super().end(state)
        return terminated, (state.depth > MAX_DEPTH) & ~terminated


@fault("autoreset", "after a truncation", "the depth is reset for terminated slots only")
class DepthKeptAfterTruncation(Prover):
    def recycle(self, state: ProverState, done: Tensor) -> ProverState:
        terminated, _ = self.end(state)
        fresh = super().recycle(state, done)
        return fresh._replace(depth=torch.where(terminated, fresh.depth, state.depth))


@fault("autoreset", "at the end of every episode", "the final observation is that of the next episode")
class FinalObservationOfTheNextEpisode(Prover):
    def step(self, state: ProverState, action: Tensor) -> Any:
        following, *rest, _ = super().step(state, action)
        return following, *rest, {"final_obs": self.observe(following)}


@fault(
    "transition",
    "where the goal holds a variable and a rule is applied",
    "variables of a rule are not renamed apart and capture those of the goal; not every capture changes the goal",
)
class CapturedVariables(Prover):
    def fresh_offset(self, goal: Tensor) -> Tensor:
        return torch.zeros(len(goal), dtype=torch.int64)


@fault(
    "mask",
    "where the goal is full (3 atoms) and a rule with two body atoms matches",
    "rare: an overlong resolvent is legal, and would lose its last atom if chosen",
)
class OverlongResolventAllowed(Prover):
    def mask(self, state: ProverState) -> Tensor:
        _, lengths, does_unify = self.resolve(state.goal)
        is_full = (state.goal[..., 0] > 0).sum(1) == MAX_ATOMS
        return super().mask(state) | (does_unify & (lengths > MAX_ATOMS) & is_full.unsqueeze(1))


@fault("end", "at a dead end (the goal is not empty and no clause applies)", "it counts as a truncation")
class DeadEndAsTruncation(Prover):
    def step(self, state: ProverState, action: Tensor) -> Any:
        following, reward, terminated, truncated, info = super().step(state, action)
        is_dead_end = terminated & (info["final_obs"]["goal"][..., 0] > 0).any(1)
        return following, reward, terminated & ~is_dead_end, truncated | is_dead_end, info


@fault("reset", "in every slot but the first", "the seed of the first slot serves all")
class OneSeedForAllSlots(Prover):
    def reset(self, queries: Tensor) -> ProverState:
        return super().reset(queries[:1].expand_as(queries))


# CartPole


@fault("autoreset", "on the step after the end of an episode", "the cart keeps its velocity")
class VelocityNotReset(CartPole):
    def start(self, slots: NDArray[np.bool_]) -> None:
        kept = np.where(slots & (self.elapsed > 0), self.state[:, 1], np.nan)
        super().start(slots)
        self.state[:, 1] = np.where(np.isnan(kept), self.state[:, 1], kept)


@fault("autoreset", "on the step after the end of an episode", "the episode goes on for one step, then it is reset")
class AutoresetOneStepLate(CartPole):
    def reset(self, **arguments: Any) -> Any:
        self.is_late = np.zeros(self.num_envs, np.bool_)
        return super().reset(**arguments)

    def step(self, actions: NDArray[np.int64]) -> Any:
        result = super().step(actions)
        self.is_over, self.is_late = self.is_late, self.is_over & ~self.is_late
        return result


@fault("observe", "an observation that is kept changes with the next step", "all steps return one buffer")
class SharedBuffer(CartPole):
    def __init__(self, num_envs: int, **arguments: Any) -> None:
        super().__init__(num_envs, **arguments)
        self.buffer = np.zeros((num_envs, 4), np.float32)

    def observe(self) -> NDArray[np.float32]:
        self.buffer[:] = self.state
        return self.buffer


@fault("end", "at the time limit", "a truncation is reported as a termination")
class TruncatedTakenForTerminated(CartPole):
    def end(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        terminated, truncated = super().end()
        return terminated | truncated, np.zeros_like(truncated)


@fault("transition", "in the last slot", "its actions are exchanged")
class ActionFlippedInTheLastSlot(CartPole):
    def move(self, actions: NDArray[np.int64]) -> None:
        super().move(np.append(actions[:-1], 1 - actions[-1]))


@fault(
    "transition",
    "at large angles of the pole",
    "sin(x) = x: at 0.2 rad the pole's acceleration is 0.7 % off, near 0 the difference is below float32",
)
class SmallAngleSine(CartPole):
    def sine(self, angle: NDArray[np.float64]) -> NDArray[np.float64]:
        return angle


@fault("end", "when the pole falls to the left", "the sign of the angle is not dropped")
class FallToTheLeftIsNoEnd(CartPole):
    def end(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        _, truncated = super().end()
        return (abs(self.state[:, 0]) > MAX_POSITION) | (self.state[:, 2] > MAX_ANGLE), truncated


@fault(
    "end",
    "in an episode after a terminated one, too early",
    "the counter of steps is reset after truncations only; nothing shows it until the limit comes too early",
)
class StepsCountedAcrossTerminations(CartPole):
    def start(self, slots: NDArray[np.bool_]) -> None:
        kept = np.where(self.elapsed <= self.max_steps, self.elapsed, 0)
        super().start(slots)
        self.elapsed = np.where(slots, kept, self.elapsed)


@fault(
    "reset",
    "when some slots are reset, in the other slots",
    "the reset mask is ignored, and running episodes are lost",
    AutoresetMode.DISABLED,
)
class ResetMaskIgnored(CartPole):
    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)


@fault("reward", "on the step after the end of an episode", "the step that only starts an episode is paid")
class RewardForTheReset(CartPole):
    def pay(self, is_started: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.ones(self.num_envs)


# The gridworld


@fault("transition", "where the wind blows", "the noise is drawn and not used")
class LostWind(GridWorld):
    def blow(self, actions: NDArray[np.int64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
        return actions


@fault("observe", "at steps that change the distance to the key", "one field is that of the step before")
class StaleScent(GridWorld):
    def __init__(self, num_envs: int, **arguments: Any) -> None:
        super().__init__(num_envs, **arguments)
        self.distance = np.zeros(num_envs, np.int64)

    def start(self, slots: NDArray[np.bool_]) -> None:
        super().start(slots)
        self.distance = np.where(slots, super().measure(), self.distance)

    def move(self, chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
        self.distance = super().measure()
        return super().move(chosen)

    def measure(self) -> NDArray[np.int64]:
        return self.distance


@fault("mask", "at the right border", "picking up is legal where there is no key")
class PickAllowedAtTheRightBorder(GridWorld):
    def mask(self) -> NDArray[np.int8]:
        mask = super().mask()
        mask[:, PICK] |= self.position[:, 1] == SIZE - 1
        return mask


@fault("observe", "always", "two keys of the dict are exchanged")
class KeysExchanged(GridWorld):
    def observe(self) -> Observation:
        right = super().observe()
        return {**right, "position": right["key"], "key": right["position"]}


@fault("autoreset", "at a truncation", "only terminated slots have a final observation", AutoresetMode.SAME_STEP)
class FinalObservationOfTruncationsLost(GridWorld):
    def finish(self, done: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> dict[str, Any]:
        info = super().finish(done, truncated)
        for slot in np.flatnonzero(truncated):
            info["final_obs"][slot] = None
        return {**info, "_final_obs": done & ~truncated}


@fault("transition", "in every 16th slot, at moves", "the move is made twice")
class TwoCellsInEvery16thSlot(GridWorld):
    def move(self, chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
        does_pick = super().move(chosen)
        once = self.position
        super().move(np.minimum(chosen, PICK - 1))
        is_twice = (np.arange(self.num_envs) % 16 == 15) & (chosen != PICK)
        self.position = np.where(is_twice[:, None], self.position, once)
        return does_pick


@fault("reward", "from the second episode of a slot on, when the key is picked up", "it is paid in the first one only")
class KeyPaidInTheFirstEpisode(GridWorld):
    def pay(self, does_pick: NDArray[np.bool_], terminated: NDArray[np.bool_]) -> NDArray[np.float64]:
        return super().pay(does_pick & (self.episode == 1), terminated)


@fault("end", "at every step after the first truncation of a slot", "the flag is never cleared")
class StickyTruncation(GridWorld):
    def reset(self, **arguments: Any) -> Any:
        self.was_truncated = np.zeros(self.num_envs, np.bool_)
        return super().reset(**arguments)

    def end(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        terminated, truncated = super().end()
        self.was_truncated = self.was_truncated | truncated
        return terminated, self.was_truncated & ~terminated


@fault(
    "autoreset", "from the second episode of a slot on", "the generator is seeded anew: all episodes are the first one"
)
class GeneratorSeededAnew(GridWorld):
    def start(self, slots: NDArray[np.bool_]) -> None:
        for slot in np.flatnonzero(slots):
            self.generators[slot] = np_random(self.seeds[slot])[0]
        super().start(slots)


@fault("reward", "when another slot picks up its key", "a wrong broadcast pays all slots")
class PickPaidInAllSlots(GridWorld):
    def pay(self, does_pick: NDArray[np.bool_], terminated: NDArray[np.bool_]) -> NDArray[np.float64]:
        return super().pay(np.broadcast_to(does_pick.any(), does_pick.shape), terminated)


# The lander


@fault("transition", "at every step with thrust", "the step scales the caller's action in place, after it has used it")
class ActionScaledInPlace(Lander):
    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        result = super()._step(tensordict)
        tensordict["action"].mul_(GAIN)
        return result


@fault("transition", "where the action differs from that of the step before", "the thrust is that of the last action")
class ThrustOfTheStepBefore(Lander):
    def start(self, slots: Tensor) -> None:
        if slots.all():
            self.last_action = torch.zeros(self.num_slots, 1)
        super().start(slots)

    def thrust(self, action: Tensor) -> Tensor:
        used, self.last_action = self.last_action, action.clone()
        return super().thrust(used)


@fault("transition", "once an episode has burnt more than 127 units", "the counter of fuel is an int8 and wraps")
class FuelInInt8(Lander):
    def move(self, action: Tensor) -> None:
        super().move(action)
        self.burnt = self.burnt.to(torch.int8).long()


@fault("autoreset", "when some slots are reset and not all", "the k-th slot that is reset gets the start of slot k")
class StartsOfTheFirstSlots(Lander):
    def start(self, slots: Tensor) -> None:
        self.rank = torch.where(slots, slots.cumsum(0) - 1, 0)
        super().start(slots)

    def draw_start(self) -> Tensor:
        return super().draw_start()[:, self.rank]


@fault("reward", "where the reward lies outside [-1, 1]", "it is clipped")
class RewardClipped(Lander):
    def pay(self, action: Tensor, terminated: Tensor) -> Tensor:
        return super().pay(action, terminated).clamp(-1, 1)


@fault("reward", "in slot 5", "its reward is scaled twice")
class RewardDoubledInOneSlot(Lander):
    def pay(self, action: Tensor, terminated: Tensor) -> Tensor:
        return super().pay(action, terminated) * torch.where(torch.arange(self.num_slots) == 5, 2.0, 1.0)


@fault("observe", "always", "the motion is divided by the sensor's scale of the slot before")
class ScaleOfTheSlotBefore(Lander):
    def observe(self) -> dict[str, Tensor]:
        own, self.scale = self.scale, self.scale.roll(1)
        observation = super().observe()
        self.scale = own
        return observation


@fault(
    "end",
    "where the observed position is out of bounds and the true one is not, or the reverse",
    "rare: the bound is compared with the position that the sensor reports",
)
class LossJudgedByTheSensor(Lander):
    def end(self) -> tuple[Tensor, Tensor]:
        _, truncated = super().end()
        terminated = self.has_landed() | ((self.position / self.scale).abs() > MAX_LANDER_POSITION)
        return terminated, truncated & ~terminated


@fault("end", "at the time limit", "`done` leaves out `truncated`, so that the collector does not reset the slot")
class DoneWithoutTruncated(Lander):
    def flags(self, terminated: Tensor, truncated: Tensor) -> dict[str, Tensor]:
        return {**super().flags(terminated, truncated), "done": terminated.view(-1, 1)}


@fault("transition", "from the second step of an episode on", "the counter of the noise stands still: it repeats")
class WindRepeats(Lander):
    def wind(self) -> Tensor:
        elapsed, self.elapsed = self.elapsed, torch.zeros_like(self.elapsed)
        wind = super().wind()
        self.elapsed = elapsed
        return wind
