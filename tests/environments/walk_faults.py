"""A walk on a line in some slots, whose state can be shown, and faults planted in it."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.environments.protocol import ActionSpace, Autoreset, Called, Environment, Leaves, Observed

LIMIT: Final = 12
GOAL: Final = 5


class Walk(Environment):
    """Walk from a drawn start to 5 or -5; the energy decays; an episode is truncated after 12 steps."""

    name = "walk"
    actions = ActionSpace.discrete(3)

    def __init__(self, num_slots: int, shows_states: bool = False, autoreset: Autoreset = Autoreset.SAME_STEP) -> None:
        self.num_slots, self.has_states, self.autoreset = num_slots, shows_states, autoreset
        self.slots = np.arange(num_slots)

    def draw(self, which: NDArray[np.bool_]) -> None:
        """Begin an episode in some slots."""
        for slot in np.flatnonzero(which):
            self.episode[slot] += 1
            stream = np.random.default_rng([self.seeds[slot], self.episode[slot]])
            self.place[slot], self.energy[slot], self.elapsed[slot] = stream.integers(-3, 4), stream.uniform(1, 2), 0

    def reset(self, seeds: NDArray[np.int64]) -> Observed:
        self.seeds, self.episode = seeds, np.zeros(self.num_slots, np.int64)
        self.place, self.elapsed = np.zeros(self.num_slots, np.int64), np.zeros(self.num_slots, np.int64)
        self.energy = np.zeros(self.num_slots)
        self.ended = np.zeros(self.num_slots, np.bool_)
        self.how = np.zeros(self.num_slots, np.int64)
        self.draw(np.ones(self.num_slots, np.bool_))
        self.calls = 0
        return self.observed()

    def observed(self) -> Observed:
        return Observed(self.leaves(), self.mask(), self.states())

    def states(self) -> Leaves | None:
        if not self.has_states:
            return None
        names = ("place", "elapsed", "energy", "episode", "how")
        return {name: getattr(self, name).copy() for name in names}

    def set_states(self, states: Leaves) -> None:
        for name, each in states.items():
            setattr(self, name, each.copy())

    def leaves(self) -> Leaves:
        return {"": np.stack([self.place, self.energy, self.place * self.energy], 1)}

    def mask(self) -> NDArray[np.bool_]:
        return np.stack([np.ones(self.num_slots), np.abs(self.place) < 4, np.ones(self.num_slots)], 1).astype(bool)

    def move(self, actions: NDArray[np.int64]) -> None:
        self.place = self.place + actions - 1
        self.energy = self.energy * 0.9

    def pay(self, actions: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.energy - 0.5 * (actions != 1)

    def ends(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        terminated = np.abs(self.place) >= GOAL
        return terminated, (self.elapsed >= LIMIT) & ~terminated

    def final(self) -> Leaves:
        return self.leaves()

    def step(self, actions: NDArray[Any]) -> Called:
        self.calls += 1
        fresh = self.ended.copy() if self.autoreset is Autoreset.NEXT_STEP else np.zeros(self.num_slots, np.bool_)
        self.elapsed = self.elapsed + 1
        self.before = self.leaves()[""].copy()
        self.move(actions)
        reward = np.where(fresh, 0.0, self.pay(actions))
        terminated, truncated = self.ends()
        terminated, truncated = terminated & ~fresh, truncated & ~fresh
        done = terminated | truncated
        self.how = np.where(done, np.where(truncated, 2, 1), self.how)
        self.done = done
        if self.autoreset is Autoreset.SAME_STEP:
            final = self.final()
            self.draw(done)
            return Called(self.observed(), reward, terminated, truncated, final, done)
        self.draw(fresh)
        self.ended = done
        return Called(self.observed(), reward, terminated, truncated)

    def reset_slots(self, which: NDArray[np.bool_]) -> Observed:
        self.draw(which)
        return self.observed()


FAULTS: Final[dict[str, tuple[str, type[Walk]]]] = {}
"""The stage and the class of each fault, by its name."""


def planted(stage: str) -> Callable[[type[Walk]], type[Walk]]:
    def plant(fault: type[Walk]) -> type[Walk]:
        FAULTS[fault.__name__] = (stage, fault)
        return fault

    return plant


@planted("reward")
class RewardOfTheNextSlot(Walk):
    def pay(self, actions: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.roll(super().pay(actions), -1)


@planted("reward")
class RewardDoubledForAction2(Walk):
    def pay(self, actions: NDArray[np.int64]) -> NDArray[np.float64]:
        return super().pay(actions) * np.where(actions == 2, 2, 1)


@planted("reward")
class RewardLostWhereEnergyIsLow(Walk):
    def pay(self, actions: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.where(self.energy < 0.6, 0.0, super().pay(actions))


@planted("observe")
class StaleObservationInEvery16thSlot(Walk):
    def leaves(self) -> Leaves:
        shown = super().leaves()[""]
        if self.calls_made():
            stale = (self.slots % 16 == 15) & ~self.ended_now()
            shown = np.where(stale[:, None], self.kept, shown)
        return {"": shown}

    def calls_made(self) -> bool:
        return getattr(self, "calls", 0) > 0 and hasattr(self, "kept")

    def ended_now(self) -> NDArray[np.bool_]:
        return self.elapsed == 0

    def step(self, actions: NDArray[Any]) -> Called:
        self.kept = super().leaves()[""].copy()
        called = super().step(actions)
        del self.kept
        return called


@planted("end")
class LimitOneStepLate(Walk):
    def ends(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        terminated, _ = super().ends()
        return terminated, (self.elapsed > LIMIT) & ~terminated


@planted("end")
class TruncatedTakenForTerminated(Walk):
    def ends(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        terminated, truncated = super().ends()
        return terminated | truncated, np.zeros_like(truncated)


@planted("autoreset")
class SeedReusedAtReset(Walk):
    def draw(self, which: NDArray[np.bool_]) -> None:
        self.episode[which] = 0
        super().draw(which)


@planted("autoreset")
class EnergyKeptAfterTruncation(Walk):
    def draw(self, which: NDArray[np.bool_]) -> None:
        kept = self.energy.copy()
        super().draw(which)
        truncated = which & (self.how == 2)
        self.energy[truncated] = kept[truncated]


@planted("autoreset")
class FinalObservationOfTheNextEpisode(Walk):
    def step(self, actions: NDArray[Any]) -> Called:
        called = super().step(actions)
        return called._replace(final=called.observed.leaves)


@planted("autoreset")
class FinalObservationLost(Walk):
    def step(self, actions: NDArray[Any]) -> Called:
        return super().step(actions)._replace(final=None, has_final=None)


@planted("mask")
class MaskOfTheSlotBefore(Walk):
    def mask(self) -> NDArray[np.bool_]:
        return np.roll(super().mask(), 1, axis=0)


@planted("reset")
class SameSeedForAllSlots(Walk):
    def reset(self, seeds: NDArray[np.int64]) -> Observed:
        return super().reset(np.full_like(seeds, seeds[0]))


@planted("transition")
class DecayFromTheSecondEpisode(Walk):
    def move(self, actions: NDArray[np.int64]) -> None:
        super().move(actions)
        self.energy = np.where(self.episode > 1, self.energy * 0.99, self.energy)


@planted("transition")
class MoveLostWhileAnotherSlotEnded(Walk):
    def move(self, actions: NDArray[np.int64]) -> None:
        lost = getattr(self, "done", np.zeros(self.num_slots, np.bool_))
        other = (lost.sum() - lost) > 0
        super().move(np.where(other & (self.calls > 1), 1, actions))


@planted("observe")
class ProductShownInSingle(Walk):
    def leaves(self) -> Leaves:
        shown = super().leaves()[""]
        shown[:, 2] = np.where(shown[:, 0] < -1, 0.0, shown[:, 2])
        return {"": shown}
