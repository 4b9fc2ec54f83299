"""torchrl 0.14.1: FrameSkipTransform continues to step an environment whose episode has ended.

Expected: the frames end with the episode, as with `GymEnv(..., frame_skip=4)`, whose documentation is the same: "the
number of frames during which the same action must be applied".
Found: the loop never looks at "done". Rewards of frames after the end are added, the final observation is later than the
end, and "done" is that of the last frame.
"""

import sys

import torch
from torchrl.envs import GymEnv
from torchrl.envs.transforms import FrameSkipTransform, TransformedEnv


def finish(env):
    """Push the cart to the right in each of four frames, and return the angle of the pole at the end."""
    env.set_seed(0)
    data = env.reset()
    while True:
        data = env.step(data.set("action", torch.tensor([0, 1])))["next"]
        if data["done"].all():
            return data["observation"].tolist()


expected = finish(GymEnv("CartPole-v1", frame_skip=4))
found = finish(TransformedEnv(GymEnv("CartPole-v1"), FrameSkipTransform(4)))
print("expected:", expected)
print("found:", found)
sys.exit(expected != found)
