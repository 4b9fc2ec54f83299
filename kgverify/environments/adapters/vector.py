"""The adapter of the interface of `gymnasium.vector.VectorEnv`: it copies what is returned, and notices what is overwritten."""

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.environments.adapters.interfaces import BatchedEnvironment, TensorDictEnvironment, ask, unpack
from kgverify.environments.adapters.spaces import describe_actions
from kgverify.environments.adapters.spec import EnvironmentSpec, parse_choice
from kgverify.environments.protocol import (
    Autoreset,
    Called,
    Environment,
    Leaves,
    Observed,
    Seeding,
    check_rows,
    flatten,
    rebuild,
    walk,
)
from kgverify.environments.trajectory import Overwritten
from kgverify.errors import UserError

STRIDE: Final = 1_000_003
"""The difference between the seeds of two episodes of a slot: a prime, so that a slot visits all rows of queries."""


class _Held(NamedTuple):
    """An array, tensor or nested value as it was returned, with a copy of its numbers.

    slots: int64 [n]  the slots of its rows
    """

    raw: Any
    leaves: Leaves
    slots: NDArray[np.int64]


class VectorAdapter(Environment):
    """Drives a vectorised environment with the interface of Gymnasium."""

    def __init__(self, vector: Any, spec: EnvironmentSpec, name: str, *, is_owned: bool = True) -> None:
        self.name, self.num_slots = name, int(vector.num_envs)
        self._vector, self._spec, self._is_owned = vector, spec, is_owned
        mode = spec.autoreset or (getattr(vector, "metadata", None) or {}).get("autoreset_mode")
        if mode is None:
            fix = "declare autoreset='same_step', 'next_step' or 'disabled' (the caller resets)"
            raise self._refuse("the environment does not tell what happens when an episode ends", "autoreset", fix)
        self.autoreset = parse_choice(mode, Autoreset, f"{name}: autoreset")
        self.seeding = parse_choice(spec.seeds or getattr(vector, "seeding", Seeding.SLOT), Seeding, "seeds")
        if self.seeding is Seeding.EPISODE and self.autoreset is not Autoreset.DISABLED:
            fix = "declare seeds='slot', or turn off its autoreset"
            raise self._refuse("an environment that resets itself takes no seeds for later episodes", "seeds", fix)
        space = getattr(vector, "single_action_space", None) if spec.actions is None else spec.actions
        self.actions = describe_actions(space, f"{name}: actions")
        self._num_choices = 0
        if self.actions.is_discrete and not self.actions.shape:
            self._num_choices = int(self.actions.high - self.actions.low) + 1
        self._state = _State.of(vector, spec.state)
        self.has_states = self._state is not None
        documented = inspect.getattr_static(getattr(vector, "unwrapped", vector), "copy", True) is False
        self._watches = not (spec.reuses_buffers or documented)
        self._held: dict[Overwritten, _Held] = {}
        self._all = np.arange(self.num_slots)

    def reset(self, seeds: NDArray[np.int64]) -> Observed:
        """Begin an episode in every slot."""
        self._held = {}
        self._seeds, self._episodes = np.asarray(seeds, np.int64), np.zeros(self.num_slots, np.int64)
        self._pending = np.zeros(self.num_slots, np.uint8)
        is_one = self.seeding in (Seeding.RUN, Seeding.OWN)
        return self._observe(*self._ask(2, self._vector.reset, seed=int(seeds[0]) if is_one else seeds.tolist()))

    def reset_slots(self, which: NDArray[np.bool_]) -> Observed:
        """Begin the next episode in some slots."""
        self._episodes += which
        seed = (self._seeds + STRIDE * self._episodes).tolist() if self.seeding is Seeding.EPISODE else None
        observed = self._observe(*self._ask(2, self._vector.reset, seed=seed, options={"reset_mask": which.copy()}))
        if observed.overwritten is not None:
            # The rows of the other slots follow with the next call.
            self._pending = np.where(which, 0, observed.overwritten)
        return observed

    def step(self, actions: NDArray[Any]) -> Called:
        """Take an action in every slot."""
        given = self._make_like_returned(np.asarray(actions, self.actions.dtype))
        self._hold(Overwritten.ACTION, given)
        observation, reward, terminated, truncated, info = self._ask(5, self._vector.step, given)
        flags = {"terminated": terminated, "truncated": truncated}
        observed = self._observe(observation, info, {Overwritten.REWARD: reward, Overwritten.END: flags})
        ends = [self._column(Overwritten.END, name).astype(np.bool_) for name in flags]
        rewards = self._column(Overwritten.REWARD, "")
        rewards = rewards.astype(self._spec.reward_dtype or rewards.dtype)
        return Called(observed, rewards, ends[0], ends[1], *self._find_final(info, ends[0] | ends[1]))

    def set_states(self, states: Leaves) -> None:
        """Set the state of every slot. If this changes an array that was returned, the environment is not to blame."""
        assert self._state is not None
        self._pending = self._find_overwritten()
        self._state.write(states)
        for code, held in self._held.items():
            self._hold(code, held.raw, held.slots)

    def close(self) -> None:
        """Close the environment, unless the user made it."""
        if self._is_owned and hasattr(self._vector, "close"):
            self._vector.close()

    def _observe(self, observation: Any, info: Any, raws: Mapping[Overwritten, Any] = {}) -> Observed:
        overwritten = self._find_overwritten()
        self._held, self._pending = {}, np.zeros_like(overwritten)
        named = {Overwritten.OBSERVATION: observation, **raws}
        if self._num_choices and (info or {}).get("action_mask") is not None:
            named[Overwritten.MASK] = info["action_mask"]
        for code, raw in named.items():
            self._hold(code, raw)
        leaves, mask = self._split(self._held[Overwritten.OBSERVATION].leaves)
        if mask is None and Overwritten.MASK in named:
            mask = self._held[Overwritten.MASK].leaves[""]
        if mask is not None and mask.shape != (self.num_slots, self._num_choices):
            message = f"the mask has the shape {list(mask.shape)}, expected {[self.num_slots, self._num_choices]}"
            raise self._refuse(message, "action_mask", "return a row for each slot, and a number for each action")
        states = None if self._state is None else self._leaves(self._state.read(), self._all, "state")
        return Observed(leaves, None if mask is None else mask.astype(np.bool_), states, overwritten)

    def _split(self, leaves: Leaves) -> tuple[Leaves, NDArray[Any] | None]:
        """Return an observation without its mask, and the mask. A single part named `observation` is a flat observation."""
        rest = dict(leaves)
        mask = rest.pop("action_mask", None) if self._num_choices else None
        return ({"": rest["observation"]} if list(rest) == ["observation"] else rest), mask

    def _find_final(self, info: Any, ends: NDArray[np.bool_]) -> tuple[Leaves | None, NDArray[np.bool_]]:
        """Return the observations that ended episodes, and the slots that have one."""
        info = info or {}
        key = "final_obs" if "final_obs" in info else "final_observation"
        raw, has = info.get(key), np.array(info.get(f"_{key}", ends), np.bool_)
        if raw is None or self.autoreset is not Autoreset.SAME_STEP:
            return None, np.zeros_like(ends)
        slots = self._all
        if isinstance(raw, list) or getattr(raw, "dtype", None) == np.dtype(object):
            slots = np.array([slot for slot in np.flatnonzero(has).tolist() if raw[slot] is not None], np.int64)
            raw = [raw[slot] for slot in slots]
        final = {}
        if len(slots):
            self._hold(Overwritten.FINAL_OBSERVATION, raw, slots)
            for name, rows in self._split(self._held[Overwritten.FINAL_OBSERVATION].leaves)[0].items():
                final[name] = np.zeros((self.num_slots, *rows.shape[1:]), rows.dtype)
                final[name][slots] = rows
        return final or None, has & np.isin(self._all, slots)

    def _column(self, code: Overwritten, name: str) -> NDArray[Any]:
        """Return what was returned as one number for each slot."""
        array = self._held[code].leaves.get(name, np.zeros(0))
        if array.size != self.num_slots:
            message = f"the shape is {list(array.shape)}, expected one number for each of {self.num_slots} slots"
            raise self._refuse(message, name or "reward", "return one number for each slot")
        return array.reshape(-1)

    def _ask(self, num: int, function: Callable[..., Any], *given: Any, **named: Any) -> tuple[Any, ...]:
        """Call a function of the environment that returns some values. UserError for its exceptions, with their lines."""
        seeds = (
            "; if it cannot take a seed for each slot, declare seeds='run' or seeds='own'" if named.get("seed") else ""
        )
        where, fix = f"{self.name}: {function.__name__}", f"repair it{seeds}"
        returned: tuple[Any, ...] = ask(lambda: unpack(function(*given, **named), num), where, fix)
        return returned

    def _refuse(self, message: str, where: str, fix: str) -> UserError:
        return UserError(message, where=f"{self.name}: {where}", fix=fix)

    def _make_like_returned(self, array: NDArray[Any]) -> Any:
        """Return actions as a tensor, if observations are tensors, and otherwise a copy of them."""
        raw = self._held[Overwritten.OBSERVATION].raw
        _, first = next(walk(raw[0] if isinstance(raw, list) else raw))
        if not hasattr(first, "new_tensor"):
            return array.copy()
        return sys.modules["torch"].tensor(array, device=first.device)

    def _hold(self, code: Overwritten, raw: Any, slots: NDArray[np.int64] | None = None) -> None:
        rows = self._all if slots is None else slots
        self._held[code] = _Held(raw, self._leaves(raw, rows, code.name.lower().replace("_", " ")), rows)

    def _find_overwritten(self) -> NDArray[np.uint8]:
        """Return the code of what changed in each slot since it was returned: uint8 [N]."""
        codes = self._pending.copy()
        for code, (raw, leaves, slots) in self._held.items() if self._watches else ():
            now = self._leaves(raw, slots, "")
            for name, before in leaves.items():
                after = now.get(name, before)
                # NaN is equal to NaN.
                changed = (after != before) & ((after == after) | (before == before))
                rows = slots[changed.reshape(len(slots), -1).any(axis=1)]
                codes[rows] = np.where(codes[rows], codes[rows], code)
        return codes

    def _leaves(self, raw: Any, slots: NDArray[np.int64], what: str) -> Leaves:
        """Return copies of the arrays of a nested value, or of a list of them, one for each slot."""
        if isinstance(raw, list):
            rows = [dict(flatten(each)) for each in raw]
            try:
                leaves = {name: np.stack([row[name] for row in rows]) for name in max(rows, key=len)}
            except (KeyError, ValueError):
                raise self._refuse(
                    "the shapes differ between slots", what, "return the same shapes in all slots"
                ) from None
        else:
            leaves = dict(flatten(raw))
        check_rows(leaves, len(slots), f"{self.name}: {what}")
        for name, each in leaves.items():
            if each.dtype.kind not in "biuf":
                message = f"{name or 'it'} has the type {each.dtype}, expected numbers"
                raise self._refuse(message, what, "return arrays or tensors of whole numbers, floats or booleans")
        return leaves


class _State(NamedTuple):
    """The functions that read and set the state of an environment, or of each single one.

    targets: the environments, one for each slot; None for one of all slots
    """

    vector: Any
    targets: list[Any] | None
    get: Callable[[Any], Any]
    put: Callable[[Any, Any], Any]

    @classmethod
    def of(cls, vector: Any, declared: Any) -> "_State | None":
        """Return the functions for the declared state, or for that of the environment itself; None without either."""
        targets = getattr(vector, "environments", None)
        names = declared or getattr(targets[0] if targets else vector, "state_names", None)
        if names is None:
            return None
        if isinstance(names, str) or isinstance(names[0], str):
            return cls(vector, targets, lambda env: _read(env, names), lambda env, value: _write(env, names, value))
        return cls(_unwrap(vector), [_unwrap(each) for each in targets] if targets else None, *names)

    def read(self) -> Any:
        """Return the state; of single environments a list."""
        return self.get(self.vector) if self.targets is None else [self.get(each) for each in self.targets]

    def write(self, leaves: Leaves) -> None:
        """Set the state, in the structure and the types that it has."""
        for slot, env in enumerate([self.vector] if self.targets is None else self.targets):
            rows = leaves if self.targets is None else {name: array[slot] for name, array in leaves.items()}
            self.put(env, rebuild(self.get(env), rows))


def _unwrap(env: Any) -> Any:
    """Return the environment that the user made."""
    return env.env if isinstance(env, BatchedEnvironment | TensorDictEnvironment) else env


def _find_owner(env: Any, name: str) -> Any:
    """Return the environment, or the one inside its wrappers, that has an attribute."""
    while not hasattr(env, name) and hasattr(env, "env"):
        env = env.env
    return env


def _read(env: Any, names: Any) -> Any:
    if not isinstance(names, str):
        return {name: _read(env, name) for name in names}
    several, owner = _find_owner(env, "get_attr"), _find_owner(env, names)
    try:
        return list(several.get_attr(names)) if hasattr(several, "get_attr") else getattr(owner, names)
    except AttributeError:
        fix = "name the attribute that holds the state, or give a pair of functions"
        raise UserError(f"{type(owner).__name__} has no attribute {names!r}", where="state", fix=fix) from None


def _write(env: Any, names: Any, value: Any) -> None:
    several = _find_owner(env, "set_attr")
    for name, part in [(names, value)] if isinstance(names, str) else value.items():
        if hasattr(several, "set_attr"):
            several.set_attr(name, part)
        else:
            setattr(_find_owner(env, name), name, part)
