"""A small batched environment on tensors, in every mode of autoreset, for tests: walks on a line with walls."""

from typing import Any

import numpy as np
import torch

from kgverify.environments.protocol import ActionSpace, Autoreset, Called, Environment, Observed, flatten, to_array


class BatchedWalk:
    """Walks from seeded positions. It overwrites the buffers that it returns, as captured graphs do.

    A walk ends at 0 or 9, and is truncated after 6 steps. Actions: left, stay, right.
    """

    def __init__(self, seeds: Any, autoreset: Autoreset, device: str = "cpu") -> None:
        self.autoreset, self.seeds = autoreset, torch.as_tensor(seeds, device=device)
        self.num = len(self.seeds)
        self.episode, self.count, self.position = (torch.zeros_like(self.seeds) for _ in range(3))
        self.ended = torch.zeros(self.num, dtype=torch.bool, device=device)
        self.buffers = {
            "position": torch.zeros(self.num, 2, device=device),
            "count": torch.zeros(self.num, dtype=torch.int64, device=device),
        }

    def begin(self, which: torch.Tensor) -> None:
        self.episode += which
        fresh = 1 + (self.seeds * 7 + self.episode * 3) % 8
        self.position = torch.where(which, fresh, self.position)
        self.count = torch.where(which, 0, self.count)
        self.ended &= ~which

    def show(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        self.buffers["position"][:, 0] = self.position / 3
        self.buffers["position"][:, 1] = -self.position.float()
        self.buffers["count"].copy_(self.count)
        mask = torch.stack((self.position > 0, self.position >= 0, self.position < 9), 1)
        return self.buffers, mask

    def reset(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        self.begin(torch.ones_like(self.ended))
        return self.show()

    def step(self, action: torch.Tensor) -> tuple[Any, ...]:
        before = self.ended.clone()
        if self.autoreset is Autoreset.NEXT_STEP:
            self.begin(before)
        acts = ~before
        self.position = torch.where(acts, (self.position + action - 1).clamp(0, 9), self.position)
        self.count = self.count + acts
        terminated = acts & ((self.position == 0) | (self.position == 9))
        truncated = acts & (self.count >= 6)
        reward = torch.where(terminated, 1.5, -0.125) * acts
        self.ended = terminated | truncated | (self.ended & acts)
        observation, mask = self.show()
        final = None
        if self.autoreset is Autoreset.SAME_STEP:
            final = {name: each.clone() for name, each in observation.items()}
            self.begin(self.ended.clone())
            observation, mask = self.show()
        return observation, reward, terminated, truncated, mask, final


class WalkAdapter(Environment):
    """The same environment as kgverify drives it."""

    name, actions = "walk", ActionSpace.discrete(3)

    def __init__(self, autoreset: Autoreset, num_slots: int) -> None:
        self.autoreset, self.num_slots = autoreset, num_slots

    def reset(self, seeds: Any) -> Observed:
        self.walk = BatchedWalk(seeds, self.autoreset)
        return self.observed(*self.walk.reset())

    def step(self, actions: Any) -> Called:
        observation, reward, terminated, truncated, mask, final = self.walk.step(torch.as_tensor(actions))
        ends = tuple(map(to_array, (terminated, truncated)))
        leaves = None if final is None else dict(flatten(final))
        has_final = None if final is None else ends[0] | ends[1]
        return Called(self.observed(observation, mask), to_array(reward).astype(np.float64), *ends, leaves, has_final)

    def reset_slots(self, which: Any) -> Observed:
        self.walk.begin(torch.as_tensor(which))
        return self.observed(*self.walk.show())

    def observed(self, observation: Any, mask: Any) -> Observed:
        return Observed(dict(flatten(observation)), to_array(mask))
