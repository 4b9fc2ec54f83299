"""Batched versions of Gymnasium's CartPole-v1: a `VectorEnv` in NumPy, and an environment on tensors."""

import math
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.environments.draws import draw_uniform

# Barto, Sutton and Anderson (1983), with the constants of Gymnasium.
GRAVITY: Final = 9.8
POLE_MASS: Final = 0.1
TOTAL_MASS: Final = 1.0 + POLE_MASS
HALF_LENGTH: Final = 0.5
POLE_MASS_LENGTH: Final = POLE_MASS * HALF_LENGTH
FORCE: Final = 10.0
SECONDS: Final = 0.02
MAX_ANGLE: Final = 12 * 2 * math.pi / 360
MAX_POSITION: Final = 2.4
START: Final = 0.05
BOUNDS: Final = np.array([MAX_POSITION * 2, np.inf, MAX_ANGLE * 2, np.inf], np.float32)


def accelerate(speed: Any, force: Any, sine: Any, cosine: Any) -> tuple[Any, Any]:
    """Return the accelerations of the cart and of the pole; arrays and tensors alike."""
    push = (force + POLE_MASS_LENGTH * (speed * speed) * sine) / TOTAL_MASS
    angular = (GRAVITY * sine - cosine * push) / (
        HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * (cosine * cosine) / TOTAL_MASS)
    )
    return push - POLE_MASS_LENGTH * angular * cosine / TOTAL_MASS, angular


class CartPole(VectorEnv[NDArray[np.float32], NDArray[np.int64], Any]):
    """CartPole-v1 in N slots, each with a generator of its own; the same episodes as `SyncVectorEnv`.

    state: float64 [N, 4], position, velocity, angle, angular velocity; elapsed: int64 [N] steps of the episode.
    """

    def __init__(
        self, num_envs: int, max_steps: int = 30, autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP
    ) -> None:
        self.num_envs = num_envs
        self.max_steps = max_steps
        self.metadata = {"autoreset_mode": autoreset_mode}
        self.single_action_space = spaces.Discrete(2)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.single_observation_space = spaces.Box(-BOUNDS, BOUNDS, dtype=np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.generators = [np_random(None)[0] for _ in range(num_envs)]
        self.state = np.zeros((num_envs, 4))
        self.elapsed = np.zeros(num_envs, np.int64)
        self.is_over = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode in all slots, or in those of `options["reset_mask"]`, bool [N]."""
        seeds = (
            [None if seed is None else seed + slot for slot in range(self.num_envs)]
            if not isinstance(seed, list)
            else seed
        )
        slots = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        for slot in np.flatnonzero(slots):
            if seeds[slot] is not None:
                self.generators[slot] = np_random(seeds[slot])[0]
        self.start(slots)
        self.is_over[slots] = False
        return self.observe(), {}

    def start(self, slots: NDArray[np.bool_]) -> None:
        """Draw the state of new episodes in the slots bool [N]."""
        for slot in np.flatnonzero(slots):
            self.state[slot] = self.generators[slot].uniform(-START, START, 4)
            self.elapsed[slot] = 0

    def observe(self) -> NDArray[np.float32]:
        """Return float32 [N, 4], newly allocated."""
        return self.state.astype(np.float32)

    def sine(self, angle: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sine of the pole's angle."""
        return np.sin(angle)

    def move(self, actions: NDArray[np.int64]) -> None:
        """Integrate the equations of motion by one step of Euler."""
        position, velocity, angle, speed = self.state.T
        force = np.where(actions == 1, FORCE, -FORCE)
        cart, pole = accelerate(speed, force, self.sine(angle), np.cos(angle))
        self.state = np.stack(
            [
                position + SECONDS * velocity,
                velocity + SECONDS * cart,
                angle + SECONDS * speed,
                speed + SECONDS * pole,
            ],
            1,
        )
        self.elapsed = self.elapsed + 1

    def end(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return `terminated`, out of bounds, and `truncated`, at the time limit; both may hold."""
        terminated = (abs(self.state[:, 0]) > MAX_POSITION) | (abs(self.state[:, 2]) > MAX_ANGLE)
        return terminated, self.elapsed >= self.max_steps

    def pay(self, is_started: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return 1, and 0 in slots whose step only started an episode."""
        return np.where(is_started, 0.0, 1.0)

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Take a step in each slot, in the autoreset mode of `metadata`."""
        mode = self.metadata["autoreset_mode"]
        is_started = self.is_over.copy()
        if mode is AutoresetMode.DISABLED and is_started.any():
            raise ValueError("slots have ended: reset them by options={'reset_mask': ...}")
        self.move(actions)
        self.start(is_started)
        terminated, truncated = self.end()
        terminated, truncated = terminated & ~is_started, truncated & ~is_started
        reward = self.pay(is_started)
        self.is_over = terminated | truncated
        info: dict[str, Any] = {}
        if mode is AutoresetMode.SAME_STEP and self.is_over.any():
            final = np.full(self.num_envs, None, dtype=object)
            observation = self.observe()
            for slot in np.flatnonzero(self.is_over):
                final[slot] = observation[slot]
            info = {"final_obs": final, "_final_obs": self.is_over.copy()}
            self.start(self.is_over)
            self.is_over = np.zeros(self.num_envs, np.bool_)
        return self.observe(), reward, terminated, truncated, info


class CartPoleState(NamedTuple):
    """One cart for each slot.

    motion:  floating [N, 4]  position, velocity, angle, angular velocity
    key:     int64 [N]        seed of the slot
    episode: int64 [N]        episodes before this one
    elapsed: int64 [N]        steps of this episode
    """

    motion: Tensor
    key: Tensor
    episode: Tensor
    elapsed: Tensor


class TensorCartPole:
    """CartPole-v1 on tensors, in same-step autoreset; `dtype` is that of the motion and of the rewards."""

    autoreset = "same_step"

    def __init__(self, dtype: torch.dtype = torch.float32, max_steps: int = 30) -> None:
        self.dtype = dtype
        self.max_steps = max_steps

    def reset(self, queries: Tensor) -> CartPoleState:
        """Start one episode for each seed int64 [N]."""
        return self.draw(queries, torch.zeros_like(queries))

    def draw(self, key: Tensor, episode: Tensor) -> CartPoleState:
        """Return the start of an episode."""
        uniform = torch.stack([draw_uniform(key, episode, place) for place in range(4)], 1)
        # The same numbers in each dtype.
        motion = (START * (2 * uniform - 1)).float().to(self.dtype)
        return CartPoleState(motion, key, episode, torch.zeros_like(key))

    def observe(self, state: CartPoleState) -> Tensor:
        """Return the motion."""
        return state.motion

    def step(
        self, state: CartPoleState, action: Tensor
    ) -> tuple[CartPoleState, Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Push to the left for 0 and to the right for 1."""
        position, velocity, angle, speed = state.motion.unbind(1)
        force = torch.where(action == 1, FORCE, -FORCE).to(self.dtype)
        cart, pole = accelerate(speed, force, angle.sin(), angle.cos())
        change = torch.stack([velocity, cart, speed, pole], 1)
        after = state._replace(motion=state.motion + SECONDS * change, elapsed=state.elapsed + 1)
        terminated = (after.motion[:, 0].abs() > MAX_POSITION) | (after.motion[:, 2].abs() > MAX_ANGLE)
        truncated = (after.elapsed >= self.max_steps) & ~terminated
        done = terminated | truncated
        fresh = self.draw(state.key, state.episode + 1)
        following = CartPoleState(
            *(
                torch.where(done.view(-1, *[1] * (new.dim() - 1)), new, old)
                for new, old in zip(fresh, after, strict=True)
            )
        )
        reward = torch.ones_like(position)
        return following, reward, terminated, truncated, {"final_obs": after.motion}
