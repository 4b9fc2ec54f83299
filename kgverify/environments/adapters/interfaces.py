"""Environments of other interfaces in that of `gymnasium.vector.VectorEnv`: single ones, torchrl's, and functions on tensors."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from kgverify.engines.load_engine import describe_raised, detail_raised, pass_on
from kgverify.environments.adapters.spec import EnvironmentSpec, parse_choice
from kgverify.environments.protocol import Autoreset, Seeding, flatten, rebuild, to_array
from kgverify.errors import UserError

Options = Mapping[str, Any] | None

RETURNED: Final = {
    2: "(observation, info)",
    3: "(state, reward, done)",
    4: "(state, reward, terminated, truncated)",
    5: "(observation or state, reward, terminated, truncated, info)",
}
"""The values that `reset` and `step` may return, by their number."""


def ask(call: Callable[[], Any], where: str, fix: str) -> Any:
    """Return what a user's function returns. UserError for its exceptions, with the lines that raised them."""
    try:
        return call()
    except UserError as error:
        raise UserError(error.message, where=where, fix=error.fix) from None
    except Exception as error:
        pass_on(error)
        message, details = f"raised {describe_raised(error)}", detail_raised(error)
        raise UserError(message, where=where, fix=fix, details=details) from error


def unpack(returned: Any, *lengths: int) -> tuple[Any, ...]:
    """Return what `reset` or `step` returned as a tuple of one of the lengths. UserError for any other value."""
    # A state may be a NamedTuple.
    is_several = isinstance(returned, tuple | list) and not hasattr(returned, "_fields")
    if is_several and len(returned) in lengths:
        return tuple(returned)
    found = f"{len(returned)} values" if is_several else f"a value of type {type(returned).__name__}"
    fix = f"return {' or '.join(RETURNED[each] for each in lengths)}"
    raise UserError(f"returned {found}, expected {' or '.join(map(str, lengths))} values", fix=fix)


class SeparateEnvironments:
    """Single environments, one for each slot; the caller resets them. Their observations are lists."""

    metadata: Final = {"autoreset_mode": "disabled"}

    def __init__(self, environments: Sequence[Any]) -> None:
        self.environments = list(environments)
        self.num_envs = len(self.environments)
        self.single_action_space = getattr(self.environments[0], "action_space", None)
        self._shown: list[tuple[Any, Any]] = [(None, {})] * self.num_envs

    def reset(self, *, seed: Sequence[int] | int | None = None, options: Options = None) -> tuple[Any, ...]:
        """Reset all environments, or those of `reset_mask`."""
        which = np.ones(self.num_envs, np.bool_) if options is None else options["reset_mask"]
        for slot in np.flatnonzero(which).tolist():
            one = seed + slot if isinstance(seed, int) else seed[slot] if seed is not None else None
            observation, info = unpack(self.environments[slot].reset(seed=one), 2)
            self._shown[slot] = observation, info
        return self._show()

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Take an action in each environment."""
        returned = [unpack(each.step(actions[slot]), 5) for slot, each in enumerate(self.environments)]
        self._shown = [(each[0], each[4]) for each in returned]
        numbers = (np.array([to_array(each[at]).reshape(()) for each in returned]) for at in (1, 2, 3))
        observations, infos = self._show()
        return observations, *numbers, infos

    def _show(self) -> tuple[Any, dict[str, Any]]:
        observations, infos = zip(*self._shown, strict=True)
        masks = [each.get("action_mask") for each in infos]
        shown = next((each for each in masks if each is not None), None)
        filled = [np.zeros_like(to_array(shown)) if each is None else each for each in masks]
        return list(observations), {} if shown is None else {"action_mask": filled}

    def close(self) -> None:
        """Close all of them."""
        for each in self.environments:
            if hasattr(each, "close"):
                each.close()


class TensorDictEnvironment:
    """An environment of torchrl, with a batch size of [N], or of [] for a single one; the caller resets its slots.

    states: the part of the TensorDict that is the state
    """

    metadata: Final = {"autoreset_mode": "disabled"}

    def __init__(self, env: Any) -> None:
        size = tuple(env.batch_size)
        if len(size) > 1:
            where = type(env).__name__
            raise UserError(f"the batch size is {list(size)}", where=where, fix="flatten it to one number")
        self.env, self.num_envs = env, size[0] if size else 1
        spec = env.action_spec[0] if size else env.action_spec
        self._size = int(spec.space.n) if type(spec).__name__ in ("OneHot", "Categorical") else 0
        self._is_one_hot = type(spec).__name__ == "OneHot"
        self.action_space = self.single_action_space = self._size or spec
        # An environment of workers takes a seed for each.
        self._has_workers = bool(size) and getattr(env, "num_workers", None) == self.num_envs
        self.seeding = Seeding.SLOT if self._has_workers or not size else Seeding.RUN
        self.state_names = "states" if [*env.state_keys] else None
        self._last: Any = None

    @property
    def states(self) -> Any:
        """The state."""
        return self._last.select(*self.env.state_keys)

    @states.setter
    def states(self, states: Any) -> None:
        self._last = self._last.clone().update(states)

    def reset(self, *, seed: Any = None, options: Options = None) -> tuple[Any, dict[str, Any]]:
        """Reset all slots, or those of `reset_mask`."""
        given: list[Any] = []
        named: dict[str, Any] = {}
        if options is not None:
            # torchrl may change the tensors that it takes.
            given = [self._last.clone()]
            done = given[0]["done"]
            given[0]["_reset"] = done.new_tensor(options["reset_mask"]).reshape(done.shape)
        if seed is not None:
            self.env.set_seed(seed[0] if self._has_workers else seed)
            named = {"list_of_kwargs": [{"seed": each} for each in seed]} if self._has_workers else {"seed": seed}
        try:
            self._last = self.env.reset(*given, **named)
        except TypeError:
            # An environment that takes its seed only by `set_seed`.
            self._last = self.env.reset(*given)
        return self._observe(self._last), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Take an action in each slot."""
        asked, numbers = self._last.clone(), to_array(actions)
        numbers = np.eye(self._size, dtype=np.int64)[numbers] if self._is_one_hot else numbers
        asked[self.env.action_key] = self.env.action_spec.zero().new_tensor(numbers)
        returned = self.env.step(asked)
        if not self._is_one_hot:
            # It may have changed the actions in place.
            actions[...] = asked[self.env.action_key].reshape(actions.shape)
        self._last, following = self.env.step_mdp(returned), returned["next"]
        # A collector resets the slots that are done, whatever the other flags say.
        done = following["done"]
        truncated = done & following.get("truncated", done.new_zeros(done.shape))
        terminated = done & (following.get("terminated", done) | ~truncated)
        return self._observe(following), following[self.env.reward_key], terminated, truncated, {}

    def close(self) -> None:
        """Close the environment."""
        try:
            self.env.close()
        except RuntimeError:
            # A batch of torchrl that has not started refuses to close.
            if self._last is not None:
                raise

    def _observe(self, values: Any) -> Any:
        return values.select(*self.env.observation_spec.keys(True, True))


class BatchedEnvironment:
    """Functions on a batch: `reset(queries) -> state` and `step(state, action)`, with `observe(state)` and `mask(state)`.

    `step` returns (state, reward, done) or (state, reward, terminated, truncated), and an info last if there is one: with
    `final_obs`, and with `terminated` or `truncated` beside `done`. Without autoreset, `reset` is asked for all slots, and
    the rows of those that ended are taken.

    states: the state
    """

    state_names: Final = "states"

    def __init__(self, env: Any, num_slots: int, spec: EnvironmentSpec) -> None:
        self.env, self.num_envs, self._queries, self.states = env, num_slots, spec.queries, None
        mode = spec.autoreset or getattr(env, "autoreset", None)
        self.metadata = {"autoreset_mode": mode}
        self.single_action_space = getattr(env, "num_actions", None) or getattr(env, "action_space", None)
        if self.single_action_space is None and spec.actions is None and hasattr(env, "mask"):
            # The mask has a number for each action.
            self.single_action_space = self.reset(seed=0)[1]["action_mask"].shape[-1]
        is_reset = mode is not None and parse_choice(mode, Autoreset, "autoreset") is Autoreset.DISABLED
        self.seeding = Seeding.EPISODE if is_reset else Seeding.SLOT

    def reset(self, *, seed: Any, options: Options = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in all slots, or in those of `reset_mask`."""
        seeds = seed + np.arange(self.num_envs) if isinstance(seed, int) else np.array(seed, np.int64)
        states = self._begin(seeds if self._queries is None else self._queries[seeds % len(self._queries)])
        if options is not None:
            merged, fresh = dict(flatten(self.states)), dict(flatten(states))
            for name, rows in merged.items():
                rows[options["reset_mask"]] = fresh[name][options["reset_mask"]]
            states = rebuild(self.states, merged)
        self.states = states
        return self._show({})

    def _begin(self, queries: Any) -> Any:
        """Ask for the first states; with seeds as a tensor if torch is loaded and an array of them is refused."""
        try:
            return self.env.reset(queries)
        except Exception:
            torch = sys.modules.get("torch")
            if torch is None or not isinstance(queries, np.ndarray):
                raise
            return self.env.reset(torch.from_numpy(queries))

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Take an action in each slot."""
        returned = unpack(self.env.step(self.states, actions), 3, 4, 5)
        has_info = isinstance(returned[-1], Mapping)
        self.states, reward, *ends = returned[:-1] if has_info else returned
        observation, info = self._show(dict(returned[-1]) if has_info else {})
        if len(ends) == 1:
            done = to_array(ends[0]).astype(np.bool_)
            truncated = to_array(info.get("truncated", np.zeros_like(done))).astype(np.bool_)
            ends = [info.get("terminated", done & ~truncated), truncated]
        return observation, reward, *ends, info

    def _show(self, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        observe, mask = (getattr(self.env, name, None) for name in ("observe", "mask"))
        masks = {} if mask is None else {"action_mask": mask(self.states)}
        return (self.states if observe is None else observe(self.states)), info | masks
