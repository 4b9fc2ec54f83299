"""jumanji 1.1.2: the dm_env wrapper steps an environment whose episode has ended.

Expected: its documentation of `step`: "If the environment returned a TimeStep with StepType.LAST at the previous step,
this call to step will start a new sequence and action will be ignored", as dm_env demands.
Found: `step` calls the environment's `step` in any case, and returns LAST again and again.
"""

import sys

import jumanji
from jumanji.wrappers import JumanjiToDMEnvWrapper

env = JumanjiToDMEnvWrapper(jumanji.make("Snake-v1"))
timestep = env.reset()
for _ in range(100):
    timestep = env.step(0)
    if timestep.last():
        break
following = [env.step(0).step_type.item() for _ in range(2)]
print("expected: step types [0, 1], the first step of an episode and a step within")
print("found: step types", following, "where 2 is the last")
sys.exit(following[0] != 0)
