"""Pairs of environments that are both right: a difference that a differ reports between them is a false alarm."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import gymnasium
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from benchmarks.environments.cartpole import CartPole, TensorCartPole
from benchmarks.environments.faults import MAX_CART_STEPS, Make, make_carts, make_grids
from benchmarks.environments.gridworld import GridWorld, SingleGridWorld
from benchmarks.environments.lander import Lander
from benchmarks.environments.prover import Prover


class Pair(NamedTuple):
    """Two right environments.

    kind:      how they are played: `gymnasium`, `tensors` or `torchrl`
    declared:  what differs legitimately, in words: `autoreset`, `dtype`, `seeding`; empty if all is equal to the bit
    num_slots: 0 if any number will do
    is_single: the left side is one Gymnasium `Env`, to be run once for each slot with the seeds `seed + slot`
    """

    name: str
    kind: str
    left: Make
    right: Make
    declared: tuple[str, ...] = ()
    num_slots: int = 0
    is_single: bool = False


def make_one(name: str, max_steps: int | None = None) -> gymnasium.Env[Any, Any]:
    """Return one environment of Gymnasium's registry."""
    return gymnasium.make(name, max_episode_steps=max_steps) if max_steps else gymnasium.make(name)


def make_sync(
    num_slots: int, name: str, max_steps: int, mode: AutoresetMode = AutoresetMode.NEXT_STEP
) -> SyncVectorEnv:
    """Return N environments in this process."""
    return SyncVectorEnv([partial(make_one, name, max_steps)] * num_slots, autoreset_mode=mode)


def make_async(
    num_slots: int, name: str, max_steps: int, mode: AutoresetMode = AutoresetMode.NEXT_STEP
) -> AsyncVectorEnv:
    """Return N environments in processes of their own."""
    # torchrl makes `spawn` the default, and a spawned process would import torch for each slot.
    return AsyncVectorEnv([partial(make_one, name, max_steps)] * num_slots, autoreset_mode=mode, context="fork")


def ignore_slots(make: Callable[[], Any]) -> Make:
    """Return a function of the number of slots that does without it."""
    return lambda _num_slots: make()


# The time limits are short, so that truncations occur.
NAMES: Final = {"CartPole-v1": MAX_CART_STEPS, "FrozenLake-v1": 20, "Acrobot-v1": 50, "Taxi-v4": 25}
MODES: Final = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)

PAIRS: Final[tuple[Pair, ...]] = (
    *(
        Pair(
            f"sync-async {name} {mode.value}",
            "gymnasium",
            partial(make_sync, name=name, max_steps=max_steps, mode=mode),
            partial(make_async, name=name, max_steps=max_steps, mode=mode),
        )
        for name, max_steps in NAMES.items()
        for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)
    ),
    *(
        Pair(
            f"single-vector {name}",
            "gymnasium",
            ignore_slots(partial(make_one, name, max_steps)),
            partial(make_sync, name=name, max_steps=max_steps),
            ("autoreset",),
            is_single=True,
        )
        for name, max_steps in NAMES.items()
    ),
    Pair(
        "single-batched CartPole",
        "gymnasium",
        ignore_slots(partial(make_one, "CartPole-v1", MAX_CART_STEPS)),
        partial(CartPole, max_steps=MAX_CART_STEPS),
        ("autoreset",),
        is_single=True,
    ),
    Pair(
        "single-batched gridworld",
        "gymnasium",
        ignore_slots(SingleGridWorld),
        GridWorld,
        ("autoreset",),
        is_single=True,
    ),
    *(
        Pair(
            f"sync-batched {kind} {mode.value}",
            "gymnasium",
            partial(left, mode=mode),
            partial(right, autoreset_mode=mode),
        )
        for kind, left, right in (("CartPole", make_carts, CartPole), ("gridworld", make_grids, GridWorld))
        for mode in MODES
    ),
    *(
        Pair(
            f"modes {kind} {one.value} {other.value}",
            "gymnasium",
            partial(make, mode=one),
            partial(make, mode=other),
            ("autoreset",),
        )
        for kind, make in (("CartPole", make_carts), ("gridworld", make_grids))
        for one, other in ((MODES[0], MODES[1]), (MODES[0], MODES[2]), (MODES[1], MODES[2]))
    ),
    # One slot draws the same numbers as one environment; rewards are float32 beside float64.
    Pair(
        "single-CartPoleVectorEnv",
        "gymnasium",
        ignore_slots(partial(make_one, "CartPole-v1", MAX_CART_STEPS)),
        partial(CartPoleVectorEnv, max_episode_steps=MAX_CART_STEPS),
        ("autoreset", "dtype"),
        num_slots=1,
        is_single=True,
    ),
    # All slots of `CartPoleVectorEnv` share one generator, so that only transitions from equal states can be compared.
    Pair(
        "sync-CartPoleVectorEnv",
        "gymnasium",
        make_carts,
        partial(CartPoleVectorEnv, max_episode_steps=MAX_CART_STEPS),
        ("dtype", "seeding"),
    ),
    *(
        Pair(
            f"float32-float64 {kind.__name__}",
            "tensors",
            ignore_slots(partial(kind, dtype=torch.float64)),
            ignore_slots(partial(kind, dtype=torch.float32)),
            ("dtype",),
        )
        for kind in (TensorCartPole, Prover)
    ),
    *(
        Pair(
            f"prover {one} {other}",
            "tensors",
            ignore_slots(partial(Prover, one)),
            ignore_slots(partial(Prover, other)),
            ("autoreset",),
        )
        for one, other in (("same_step", "next_step"), ("same_step", "disabled"), ("next_step", "disabled"))
    ),
    Pair("prover twice", "tensors", ignore_slots(Prover), ignore_slots(Prover)),
    Pair("lander twice", "torchrl", Lander, Lander),
)
