"""jumanji 1.1.2: the gymnasium wrapper reports each episode that ends by itself as truncated too.

Similar: jumanji#275, open, about `terminated`.
Expected: `truncated` only at a limit outside of the task, as gymnasium documents it; the snake that leaves the board dies.
Found: `trunc = timestep.last()`, whatever the discount, which is 0 at a true end and 1 at a truncation.
"""

import sys

import jumanji
from jumanji.wrappers import JumanjiToGymWrapper

env = JumanjiToGymWrapper(jumanji.make("Snake-v1"))
env.reset(seed=0)
terminated = truncated = False
steps = 0
while not (terminated or truncated):
    _, _, terminated, truncated, _ = env.step(0)  # up, until the snake leaves the board of 12 x 12
    steps += 1
print("expected: terminated True, truncated False")
print(f"found: terminated {terminated}, truncated {truncated} after {steps} of 4000 steps")
sys.exit(truncated)
