"""The space of actions of an environment of Gymnasium or torchrl, recognised by its attributes."""

from typing import Any

import numpy as np

from kgverify.environments.protocol import ActionSpace, to_array
from kgverify.errors import UserError


def describe_actions(space: Any, where: str) -> ActionSpace:
    """Return the actions of one slot, for a space of Gymnasium, a spec of torchrl or a number. UserError for any other."""
    if isinstance(space, ActionSpace):
        return space
    if isinstance(space, int | np.integer) and space > 0:
        return ActionSpace.discrete(int(space))
    dtype = np.dtype(str(getattr(space, "dtype", None) or "int64").removeprefix("torch."))
    shape = tuple(getattr(space, "shape", None) or ())
    start = to_array(getattr(space, "start", 0))
    if hasattr(space, "nvec"):
        return ActionSpace(shape, dtype, np.broadcast_to(start, shape), start + to_array(space.nvec) - 1)
    if hasattr(space, "low") and hasattr(space, "high"):
        return ActionSpace(shape, dtype, to_array(space.low), to_array(space.high))
    if hasattr(space, "n"):
        num = 2 if shape else int(space.n)
        return ActionSpace(shape, dtype, np.broadcast_to(start, shape), np.broadcast_to(start + num - 1, shape))
    raise UserError(
        f"cannot draw actions of {'a missing space' if space is None else repr(space)}",
        where=where,
        fix="give Discrete, MultiDiscrete, MultiBinary or Box actions, or declare actions= a number of them; wrap others",
    )
