"""An environment of torchrl. Importing it takes seconds, so that tests do so when they run."""

import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, GymEnv, SerialEnv

__all__ = ["GymEnv", "SerialEnv", "StatelessCounter"]


class StatelessCounter(EnvBase):
    """The counter as an environment of torchrl that keeps its state in the TensorDict."""

    def __init__(self, num):
        super().__init__(batch_size=[num])
        self.observation_spec = Composite(
            at=Unbounded((num,)), action_mask=Categorical(2, (num, 3), dtype=torch.bool), shape=(num,)
        )
        self.state_spec = Composite(at=Unbounded((num,)), shape=(num,))
        self.action_spec = Categorical(3, (num,))
        self.reward_spec = Unbounded((num, 1))

    def _set_seed(self, seed):
        self.seed = seed

    def _reset(self, tensordict):
        return self._show(torch.full(self.batch_size, float(self.seed % 7)))

    def _step(self, tensordict):
        at = tensordict["at"] + tensordict["action"] - 1
        return self._show(at).update({"reward": at.unsqueeze(1), "done": (at > 5).unsqueeze(1)})

    def _show(self, at):
        mask = torch.stack((at > 0, at >= 0, at >= -1000), dim=1)
        return TensorDict({"at": at, "action_mask": mask}, batch_size=self.batch_size)
