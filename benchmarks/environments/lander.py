"""A lander in one dimension, as a torchrl environment of N slots with continuous thrust.

A vehicle has to stop at the origin. Wind and starts are drawn from a key for each slot and from counters; the
environment holds its state, and a partial reset replaces the slots of the mask `_reset`.
"""

from typing import Any, Final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data.tensor_specs import Binary, Bounded, Composite, Unbounded
from torchrl.envs.common import EnvBase

from benchmarks.environments.draws import draw_bits, draw_uniform

SECONDS: Final = 0.1
GAIN: Final = 0.8
WIND: Final = 0.1
MAX_POSITION: Final = 2.0
LANDING_POSITION: Final = 0.25
LANDING_SPEED: Final = 0.5
LANDING_REWARD: Final = 10.0
# Units of fuel that full thrust burns in one step.
FUEL_RATE: Final = 10
MAX_STEPS: Final = 40


class Lander(EnvBase):
    """The environment.

    position, velocity, scale: float32 [N], `scale` the sensor's in this episode; burnt: int64 [N] units of fuel;
    elapsed, episode: int64 [N]; key: int64 [N].
    """

    rng: Any = None

    def __init__(self, num_slots: int, seed: int = 0) -> None:
        super().__init__(device="cpu", batch_size=[num_slots])
        self.num_slots = num_slots
        column = (num_slots, 1)
        self.observation_spec = Composite(
            motion=Unbounded(shape=(num_slots, 2), dtype=torch.float32),
            burnt=Unbounded(shape=column, dtype=torch.int64),
            elapsed=Unbounded(shape=column, dtype=torch.int64),
            shape=(num_slots,),
        )
        self.action_spec = Bounded(-1.0, 1.0, shape=column, dtype=torch.float32)
        self.reward_spec = Unbounded(shape=column, dtype=torch.float32)
        flag = Binary(n=1, shape=column, dtype=torch.bool)
        self.done_spec = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=(num_slots,))
        self.position = self.velocity = torch.zeros(num_slots)
        self.scale = torch.ones(num_slots)
        self.burnt = self.elapsed = self.episode = torch.zeros(num_slots, dtype=torch.int64)
        self.set_seed(seed)

    def _set_seed(self, seed: int | None) -> None:
        self.key = draw_bits(torch.full((self.num_slots,), seed or 0), torch.arange(self.num_slots))
        self.episode = torch.full((self.num_slots,), -1)

    def _reset(self, tensordict: TensorDictBase | None, **_options: Any) -> TensorDict:
        slots = torch.ones(self.num_slots, dtype=torch.bool)
        if tensordict is not None and "_reset" in tensordict:
            slots = tensordict["_reset"].view(-1)
        self.start(slots)
        return TensorDict({**self.observe(), **self.flags(*[torch.zeros_like(slots)] * 2)}, self.batch_size)

    def start(self, slots: Tensor) -> None:
        """Draw new episodes for the slots bool [N]."""
        self.episode = self.episode + slots
        draws = self.draw_start()
        self.position = torch.where(slots, draws[0], self.position)
        self.velocity = torch.where(slots, draws[1], self.velocity)
        self.scale = torch.where(slots, draws[2], self.scale)
        self.burnt = torch.where(slots, 0, self.burnt)
        self.elapsed = torch.where(slots, 0, self.elapsed)

    def draw_start(self) -> Tensor:
        """Return float32 [3, N]: positions, velocities and scales of the episodes that the slots are in."""
        uniform = [draw_uniform(self.key, self.episode, place).float() for place in range(3)]
        return torch.stack([2 * uniform[0] - 1, uniform[1] - 0.5, 0.5 + uniform[2]])

    def observe(self) -> dict[str, Tensor]:
        """Return the observation, newly allocated."""
        motion = torch.stack([self.position, self.velocity], 1) / self.scale.unsqueeze(1)
        return {"motion": motion, "burnt": self.burnt.clone().view(-1, 1), "elapsed": self.elapsed.clone().view(-1, 1)}

    def flags(self, terminated: Tensor, truncated: Tensor) -> dict[str, Tensor]:
        """Return the three flags bool [N, 1] of torchrl."""
        flags = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
        return {name: flag.view(-1, 1) for name, flag in flags.items()}

    def thrust(self, action: Tensor) -> Tensor:
        """Return the acceleration float32 [N] of an action float32 [N, 1]."""
        return GAIN * action.view(-1)

    def wind(self) -> Tensor:
        """Return the wind float32 [N] of this step."""
        return WIND * (draw_uniform(self.key, self.episode, 3 + self.elapsed).float() - 0.5)

    def burn(self, action: Tensor) -> Tensor:
        """Return int64 [N], the units of fuel of an action."""
        return (action.view(-1).abs() * FUEL_RATE).round().long()

    def move(self, action: Tensor) -> None:
        """Integrate velocity and position, and count steps and fuel."""
        self.burnt = self.burnt + self.burn(action)
        self.velocity = self.velocity + SECONDS * self.thrust(action) + self.wind()
        self.position = self.position + SECONDS * self.velocity
        self.elapsed = self.elapsed + 1

    def has_landed(self) -> Tensor:
        """Return bool [N], whether the vehicle is at the origin and slow."""
        return (self.position.abs() < LANDING_POSITION) & (self.velocity.abs() < LANDING_SPEED)

    def end(self) -> tuple[Tensor, Tensor]:
        """Return `terminated`, landed or lost, and `truncated`, at the time limit."""
        terminated = self.has_landed() | (self.position.abs() > MAX_POSITION)
        return terminated, (self.elapsed >= MAX_STEPS) & ~terminated

    def pay(self, action: Tensor, terminated: Tensor) -> Tensor:
        """Return float32 [N]: the costs of distance and of thrust, and the reward of a landing."""
        cost = self.position.square() + 0.1 * self.velocity.square() + 0.01 * action.view(-1).square()
        return torch.where(terminated & self.has_landed(), LANDING_REWARD - cost, -cost)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        action = tensordict["action"]
        self.move(action)
        terminated, truncated = self.end()
        reward = self.pay(action, terminated).view(-1, 1)
        return TensorDict({**self.observe(), "reward": reward, **self.flags(terminated, truncated)}, self.batch_size)
