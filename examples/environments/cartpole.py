"""CartPole as a batch in torch, compared with Gymnasium's, which runs once for each slot.

kgverify env diff examples/environments/cartpole.py:single examples/environments/cartpole.py:batched
kgverify env diff examples/environments/cartpole.py:single examples/environments/cartpole.py:wrong
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import kgverify as kv

GRAVITY, FORCE, TAU = 9.8, 10.0, 0.02
POLE_MASS, TOTAL_MASS, HALF_LENGTH = 0.1, 1.1, 0.5
MAX_STEPS = 500


class State(NamedTuple):
    """The states of a batch.

    physics: float64 [B, 4]  the position and speed of the cart, the angle and angular speed of the pole
    steps:   int64 [B]
    """

    physics: Tensor
    steps: Tensor


class BatchedCartPole:
    """The physics of `gymnasium.envs.classic_control.CartPoleEnv`.

    is_semi_implicit: whether positions follow the new speeds, a planted fault
    """

    num_actions = 2
    autoreset = "disabled"

    def __init__(self, *, is_semi_implicit: bool = False) -> None:
        self.is_semi_implicit = is_semi_implicit

    def reset(self, seeds: np.ndarray) -> State:
        """Begin an episode of each seed, with Gymnasium's random numbers."""
        rows = [np.random.Generator(np.random.PCG64(int(seed))).uniform(-0.05, 0.05, 4) for seed in seeds]
        return State(torch.tensor(np.array(rows)), torch.zeros(len(seeds), dtype=torch.int64))

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, Tensor]:
        """Push every cart to the right or left."""
        x, speed, angle, turning = state.physics.unbind(1)
        force = torch.where(action == 1, FORCE, -FORCE)
        sine, cosine = angle.sin(), angle.cos()
        pushed = (force + POLE_MASS * HALF_LENGTH * turning.square() * sine) / TOTAL_MASS
        leverage = HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine.square() / TOTAL_MASS)
        turned = (GRAVITY * sine - cosine * pushed) / leverage
        moved = pushed - POLE_MASS * HALF_LENGTH * turned * cosine / TOTAL_MASS
        new_speed, new_turning = speed + TAU * moved, turning + TAU * turned
        used = (new_speed, new_turning) if self.is_semi_implicit else (speed, turning)
        x, angle = x + TAU * used[0], angle + TAU * used[1]
        following = State(torch.stack((x, new_speed, angle, new_turning), 1), state.steps + 1)
        fell = (x.abs() > 2.4) | (angle.abs() > 12 * 2 * np.pi / 360)
        return following, torch.ones(len(x), dtype=torch.float64), fell, following.steps >= MAX_STEPS

    def observe(self, state: State) -> Tensor:
        """Return float32 [B, 4]."""
        return state.physics.float()


single = kv.EnvironmentSpec("gymnasium:CartPole-v1", seeds="episode")
batched = kv.EnvironmentSpec(BatchedCartPole())
wrong = kv.EnvironmentSpec(BatchedCartPole(is_semi_implicit=True))
