"""gymnasium 1.4.0: VectorizeTransformAction writes the transformed actions into the caller's array.

Expected: the actions stay as they were, as with `gymnasium.wrappers.TransformAction` around one environment. The example
is that of the documentation of VectorizeTransformAction, a ReLU; "Returns: The updated actions".
Found: where the two action spaces are equal, `concatenate(..., actions)` uses the argument as its output. A rollout that
stores its actions after the step stores others than those its log-probabilities belong to.
"""

import sys

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TransformAction
from gymnasium.wrappers.vector import VectorizeTransformAction


def relu(action):
    return (action > 0.0) * action


vector = gym.make_vec("MountainCarContinuous-v0", num_envs=2)
space = vector.single_action_space
vector = VectorizeTransformAction(vector, wrapper=TransformAction, func=relu, action_space=space)
vector.reset(seed=0)
actions = np.array([[-0.5], [0.5]], dtype=np.float32)
print("expected:", actions.ravel().tolist())
before = actions.copy()
vector.step(actions)
print("found:", actions.ravel().tolist())
sys.exit(not np.array_equal(actions, before))
