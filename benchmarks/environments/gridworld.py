"""A gridworld with wind, a key and a pit: one environment in plain Python, and N of them in NumPy.

`SyncVectorEnv` over `SingleGridWorld` and `GridWorld` have the same episodes: each slot draws from a generator with its
own seed, four numbers at a start and three in each step.
"""

from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

SIZE: Final = 5
# Up, down, left, right; the fifth action picks up the key.
MOVES: Final = ((-1, 0), (1, 0), (0, -1), (0, 1))
NUM_ACTIONS: Final = 5
PICK: Final = 4
WALLS: Final = frozenset({(1, 1), (1, 3), (3, 1)})
PIT: Final = (3, 3)
GATE: Final = (4, 4)
FREE: Final = tuple((row, column) for row in range(SIZE) for column in range(SIZE) if (row, column) not in WALLS)
STARTS: Final = tuple(cell for cell in FREE if cell not in (PIT, GATE))
WIND: Final = 0.2
NOISE: Final = 0.1
STEP_REWARD: Final = -0.04
KEY_REWARD: Final = 0.5
GATE_REWARD: Final = 2.0
PIT_REWARD: Final = -1.5
MAX_STEPS: Final = 24

SPACE: Final = spaces.Dict(
    {
        "position": spaces.Box(0, SIZE - 1, (2,), np.int64),
        "key": spaces.Box(0, SIZE - 1, (2,), np.int64),
        "has_key": spaces.Discrete(2),
        "scent": spaces.Box(-np.inf, np.inf, (1,), np.float32),
    }
)

Observation = dict[str, Any]


class SingleGridWorld(gymnasium.Env[Observation, np.int64]):
    """One gridworld, in plain Python."""

    def __init__(self) -> None:
        self.observation_space = SPACE
        self.action_space = spaces.Discrete(NUM_ACTIONS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Place the agent and the key."""
        super().reset(seed=seed)
        draws = self.np_random.random(4)
        self.position = STARTS[int(draws[0] * len(STARTS))]
        self.key = STARTS[int(draws[1] * len(STARTS))]
        self.has_key = 0
        self.elapsed = 0
        return self._observe(draws[2]), self._info()

    def _observe(self, noise: float) -> Observation:
        distance = abs(self.position[0] - self.key[0]) + abs(self.position[1] - self.key[1])
        return {
            "position": np.array(self.position, np.int64),
            "key": np.array(self.key, np.int64),
            "has_key": np.int64(self.has_key),
            "scent": np.array([distance + NOISE * (noise - 0.5)], np.float32),
        }

    def _info(self) -> dict[str, Any]:
        mask = [self._ahead(move) is not None for move in MOVES]
        return {"action_mask": np.array([*mask, self.position == self.key and not self.has_key], np.int8)}

    def _ahead(self, move: tuple[int, int]) -> tuple[int, int] | None:
        cell = (self.position[0] + move[0], self.position[1] + move[1])
        return cell if cell in FREE else None

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move, unless the wind moves the agent, or pick up the key."""
        draws = self.np_random.random(3)
        reward = STEP_REWARD
        chosen = int(action)
        if draws[0] < WIND:
            chosen = int(draws[1] * len(MOVES))
        if chosen == PICK:
            if self.position == self.key and not self.has_key:
                self.has_key = 1
                reward += KEY_REWARD
        else:
            self.position = self._ahead(MOVES[chosen]) or self.position
        self.elapsed += 1
        terminated = self.position == PIT or (self.position == GATE and bool(self.has_key))
        if terminated:
            reward += PIT_REWARD if self.position == PIT else GATE_REWARD
        truncated = self.elapsed >= MAX_STEPS and not terminated
        return self._observe(draws[2]), reward, terminated, truncated, self._info()


class GridWorld(VectorEnv[Observation, NDArray[np.int64], Any]):
    """N gridworlds in arrays.

    position, key: int64 [N, 2]; has_key, elapsed, episode: int64 [N]; noise: float64 [N], of the last observation.
    """

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": autoreset_mode}
        self.single_observation_space = SPACE
        self.single_action_space = spaces.Discrete(NUM_ACTIONS)
        self.observation_space = batch_space(SPACE, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.generators = [np_random(None)[0] for _ in range(num_envs)]
        self.seeds: list[int | None] = [None] * num_envs
        self.position = np.zeros((num_envs, 2), np.int64)
        self.key = np.zeros((num_envs, 2), np.int64)
        self.has_key = np.zeros(num_envs, np.int64)
        self.elapsed = np.zeros(num_envs, np.int64)
        self.episode = np.zeros(num_envs, np.int64)
        self.noise = np.zeros(num_envs)
        self.is_over = np.zeros(num_envs, np.bool_)
        self.is_free = np.zeros((SIZE + 2, SIZE + 2), np.bool_)
        for row, column in FREE:
            self.is_free[row + 1, column + 1] = True

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode in all slots, or in those of `options["reset_mask"]`, bool [N]."""
        slots = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        seeds = seed if isinstance(seed, list) else [None if seed is None else seed + n for n in range(self.num_envs)]
        for slot in np.flatnonzero(slots):
            if seeds[slot] is not None:
                self.seeds[slot] = seeds[slot]
                self.generators[slot] = np_random(seeds[slot])[0]
                self.episode[slot] = 0
        self.start(slots)
        self.is_over = self.is_over & ~slots
        return self.observe(), self.inform()

    def start(self, slots: NDArray[np.bool_]) -> None:
        """Place agent and key of new episodes in the slots bool [N]."""
        cells = np.array(STARTS)
        for slot in np.flatnonzero(slots):
            draws = self.generators[slot].random(4)
            self.position[slot] = cells[int(draws[0] * len(cells))]
            self.key[slot] = cells[int(draws[1] * len(cells))]
            self.noise[slot] = draws[2]
        self.has_key[slots] = 0
        self.elapsed[slots] = 0
        self.episode[slots] += 1

    def measure(self) -> NDArray[np.int64]:
        """Return int64 [N], the distance to the key."""
        return abs(self.position - self.key).sum(1)

    def observe(self) -> Observation:
        """Return the observation, newly allocated."""
        scent = (self.measure() + NOISE * (self.noise - 0.5)).astype(np.float32)
        return {
            "position": self.position.copy(),
            "key": self.key.copy(),
            "has_key": self.has_key.copy(),
            "scent": scent[:, None],
        }

    def is_ahead_free(self) -> NDArray[np.bool_]:
        """Return bool [N, 4], whether the cell in each direction is free."""
        cells = self.position[:, None] + np.array(MOVES) + 1
        return self.is_free[cells[..., 0], cells[..., 1]]

    def is_at_key(self) -> NDArray[np.bool_]:
        """Return bool [N], whether there is a key to pick up."""
        return (self.position == self.key).all(1) & (self.has_key == 0)

    def mask(self) -> NDArray[np.int8]:
        """Return int8 [N, 5], 1 for legal actions."""
        return np.concatenate([self.is_ahead_free(), self.is_at_key()[:, None]], 1).astype(np.int8)

    def inform(self) -> dict[str, Any]:
        """Return the infos with the mask of each slot."""
        return {"action_mask": self.mask(), "_action_mask": np.ones(self.num_envs, np.bool_)}

    def blow(self, actions: NDArray[np.int64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the actions int64 [N] after the wind."""
        return np.where(draws[:, 0] < WIND, (draws[:, 1] * len(MOVES)).astype(np.int64), actions)

    def move(self, chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Move the agents or pick up keys; return bool [N], whether a key was picked up."""
        does_pick = (chosen == PICK) & self.is_at_key()
        directions = np.minimum(chosen, PICK - 1)
        can_move = (chosen != PICK) & self.is_ahead_free()[np.arange(self.num_envs), directions]
        self.position = np.where(can_move[:, None], self.position + np.array(MOVES)[directions], self.position)
        self.has_key = np.where(does_pick, 1, self.has_key)
        return does_pick

    def end(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return `terminated`, in the pit or through the gate, and `truncated`, at the time limit."""
        terminated = self.is_at(PIT) | (self.is_at(GATE) & (self.has_key > 0))
        return terminated, (self.elapsed >= MAX_STEPS) & ~terminated

    def is_at(self, cell: tuple[int, int]) -> NDArray[np.bool_]:
        """Return bool [N]."""
        return (self.position == np.array(cell)).all(1)

    def pay(self, does_pick: NDArray[np.bool_], terminated: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return float64 [N]."""
        reward = np.where(does_pick, STEP_REWARD + KEY_REWARD, STEP_REWARD)
        return np.where(terminated, reward + np.where(self.is_at(PIT), PIT_REWARD, GATE_REWARD), reward)

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Observation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Take a step in each slot, in the autoreset mode of `metadata`."""
        mode = self.metadata["autoreset_mode"]
        is_started = self.is_over.copy()
        if mode is AutoresetMode.DISABLED and is_started.any():
            raise ValueError("slots have ended: reset them by options={'reset_mask': ...}")
        draws = np.zeros((self.num_envs, 3))
        for slot in np.flatnonzero(~is_started):
            draws[slot] = self.generators[slot].random(3)
        does_pick = self.move(self.blow(actions, draws))
        self.noise = draws[:, 2].copy()
        self.elapsed = self.elapsed + 1
        terminated, truncated = self.end()
        reward = np.where(is_started, 0.0, self.pay(does_pick, terminated))
        terminated, truncated = terminated & ~is_started, truncated & ~is_started
        self.start(is_started)
        self.is_over = terminated | truncated
        info = self.inform()
        if mode is AutoresetMode.SAME_STEP and self.is_over.any():
            info = self.finish(self.is_over, truncated)
            self.is_over = np.zeros(self.num_envs, np.bool_)
        return self.observe(), reward, terminated, truncated, info

    def finish(self, done: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> dict[str, Any]:
        """Start the next episodes, and return the infos with the observations that ended the last ones."""
        last, last_info = self.observe(), self.inform()
        final = np.full(self.num_envs, None, dtype=object)
        for slot in np.flatnonzero(done):
            final[slot] = {name: column[slot] for name, column in last.items()}
        self.start(done)
        final_info = {"action_mask": last_info["action_mask"] * done[:, None], "_action_mask": done.copy()}
        return {
            **self.inform(),
            "final_obs": final,
            "_final_obs": done.copy(),
            "final_info": final_info,
            "_final_info": done.copy(),
        }
