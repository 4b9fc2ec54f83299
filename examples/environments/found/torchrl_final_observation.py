"""torchrl 0.14.1 with gymnasium 1.4.0: `GymEnv(..., num_envs=n)` replaces each final observation by zeros.

Expected: in "next", the observation in which the episode ended, as from SerialEnv and ParallelEnv. The documentation of
VecGymEnvTransform: "The resulting data truly reflects the output of the step."
Found: GymEnv creates AsyncVectorEnv in its default mode, NextStep, which GymWrapper refuses ("must be one of SAME_STEP or
DISABLED"). There is no "final_obs" to read then, and zeros take its place. The step in which the environment is
reset is collected as a transition with the reward 0.
"""

import sys


def finish(env):
    """Push the cart until the pole falls, and return the final observation."""
    data = env.reset()
    for _ in range(20):
        stepped, data = env.step_and_maybe_reset(data.set("action", env.action_spec.zero()))
        if stepped["next", "done"].all():
            return stepped["next", "observation"].flatten().tolist()
    return []


if __name__ == "__main__":
    from torchrl.envs import GymEnv

    final = finish(GymEnv("CartPole-v1", num_envs=1))
    print("expected: an angle of more than 0.2094, at which the episode ends")
    print("found:", final)
    sys.exit(abs(final[2]) < 0.2094)
