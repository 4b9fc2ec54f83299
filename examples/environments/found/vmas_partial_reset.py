"""vmas 1.5.2: the reset of one environment moves the joints of all others in the batch.

Expected: `reset_at(0)` leaves environment 1 as it is: "Resets the environment at index". Both rollouts have the same seed
and the same actions; they differ in that reset only.
Found: `Joint.notify` runs when an entity is placed, and sets the position and the rotation of the joint with
`batch_index=None`, which is every environment. The scenarios with joints are affected, such as buzz_wire.
"""

import sys

import torch
from vmas import make_env


def roll_out(is_reset):
    """Return the observations of environment 1 after a step in which environment 0 is reset, or is not."""
    env = make_env("buzz_wire", num_envs=2, seed=0, device="cpu")
    env.reset(seed=0)
    actions = [torch.tensor([[1.0, 1.0]] * 2), torch.tensor([[1.0, -1.0]] * 2)]
    for _ in range(20):
        env.step(actions)
    if is_reset:
        env.reset_at(0)
    observations, *_ = env.step(actions)
    return torch.stack(observations)[:, 1]


expected, found = roll_out(False), roll_out(True)
print("expected:", expected[0].tolist())
print("found:", found[0].tolist())
sys.exit(not torch.equal(expected, found))
