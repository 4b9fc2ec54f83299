"""Play an environment with given actions and record what a caller sees. It shares no code with any differ."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor
from torchrl.envs.common import EnvBase

from benchmarks.environments.prover import make_seeds

Columns = dict[str, Any]
"""Arrays or tensors [N, ...] by name, of one step."""


def copy_array(column: Any) -> NDArray[Any]:
    """Copy an array or a tensor into an array."""
    return np.array(column.numpy() if isinstance(column, Tensor) else column)


def _flatten(name: str, value: Any) -> Columns:
    if isinstance(value, dict):
        return {column: part for key, each in value.items() for column, part in _flatten(f"{name}.{key}", each).items()}
    return {name: value}


def _list_finals(finals: Any, is_final: NDArray[np.bool_]) -> Columns:
    """Stack the final observations of a Gymnasium vector; rows of slots without one are zero."""
    first = next((final for final in finals if final is not None), None)
    if first is None:
        return {"has_final": is_final}
    keys = list(first) if isinstance(first, dict) else [None]
    columns: Columns = {"has_final": is_final}
    for key in keys:
        zero = np.zeros_like(first if key is None else first[key])
        rows = [zero if final is None else final if key is None else final[key] for final in finals]
        columns["final" if key is None else f"final.{key}"] = np.stack(rows)
    return columns


def play_tensors(environment: Any, num_slots: int, seed: int) -> Iterator[Columns]:
    """Yield the columns of each step of an environment on tensors; `send` takes the actions."""
    state = environment.reset(make_seeds(num_slots, seed))
    outcome: Columns = {}
    while True:
        mask = {"mask": environment.mask(state)} if hasattr(environment, "mask") else {}
        actions = yield {**_flatten("observation", environment.observe(state)), **mask, **outcome}
        state, reward, terminated, truncated, info = environment.step(state, torch.as_tensor(actions))
        outcome = {"reward": reward, "terminated": terminated, "truncated": truncated}
        if (final := info.get("final_obs")) is not None:
            done = terminated | truncated
            for name, column in _flatten("final", final).items():
                outcome[name] = torch.where(done.view(-1, *[1] * (column.dim() - 1)), column, 0)


def play_gymnasium(environment: VectorEnv[Any, Any, Any], num_slots: int, seed: int) -> Iterator[Columns]:
    """Yield the columns of each step of a Gymnasium vector; slots are reset by mask if autoreset is disabled."""
    observation, info = environment.reset(seed=seed)
    outcome: Columns = {}
    while True:
        mask = {"mask": info["action_mask"]} if "action_mask" in info else {}
        actions = yield {**_flatten("observation", observation), **mask, **outcome}
        observation, reward, terminated, truncated, info = environment.step(actions.copy())
        outcome = {"reward": reward, "terminated": terminated, "truncated": truncated}
        done = terminated | truncated
        if "final_obs" in info:
            outcome |= _list_finals(info["final_obs"], info["_final_obs"])
        if environment.metadata["autoreset_mode"] is AutoresetMode.DISABLED and done.any():
            outcome |= _flatten("last", observation)
            observation, started = environment.reset(options={"reset_mask": done})
            if "action_mask" in started:
                info = {**info, "action_mask": np.where(done[:, None], started["action_mask"], info["action_mask"])}


def play_torchrl(environment: EnvBase, num_slots: int, seed: int) -> Iterator[Columns]:
    """Yield the columns of each step of a torchrl environment, which the collector resets."""
    names = ("motion", "burnt", "elapsed")
    environment.set_seed(seed)
    step = environment.reset()
    outcome: Columns = {}
    while True:
        actions = yield {**{f"observation.{name}": step[name] for name in names}, **outcome}
        given = torch.as_tensor(actions, dtype=torch.float32).clone()
        step["action"] = given
        last, step = environment.step_and_maybe_reset(step)
        outcome = {name: last["next", name] for name in ("reward", "terminated", "truncated", "done")}
        outcome |= {f"final.{name}": last["next", name] for name in names} | {"given": given}


PLAYERS: Final = {
    "prover": play_tensors,
    "cartpole": play_gymnasium,
    "cartpole tensors": play_tensors,
    "gridworld": play_gymnasium,
    "lander": play_torchrl,
}


def draw_actions(columns: Columns, environment: str, num_slots: int, generator: np.random.Generator) -> Any:
    """Draw one legal action for each slot."""
    if environment == "lander":
        return generator.uniform(-1, 1, (num_slots, 1))
    if "mask" not in columns:
        return generator.integers(0, 2, num_slots)
    mask = copy_array(columns["mask"]).astype(bool)
    return (mask * generator.random(mask.shape)).argmax(1)


def play(
    kind: str, environment: Any, num_slots: int, num_steps: int, seed: int = 0, actions: list[Any] | None = None
) -> tuple[list[Columns], list[Any]]:
    """Play and return the columns of each step, and the actions, which are drawn if none are given.

    Each step's observation is kept without a copy as well; `kept` holds what has become of it after the next step.
    """
    player = PLAYERS[kind](environment, num_slots, seed)
    generator = np.random.default_rng(seed)
    shown = next(player)
    steps, played = [], []
    for number in range(num_steps):
        copied = {name: copy_array(column) for name, column in shown.items()}
        steps.append(copied)
        played.append(draw_actions(shown, kind, num_slots, generator) if actions is None else actions[number])
        following = player.send(played[-1])  # type: ignore[attr-defined]
        for name in [name for name in shown if name.startswith("observation")]:
            copied[name.replace("observation", "kept")] = copy_array(shown[name])
        shown = following
    return steps, played


def list_differences(right: list[Columns], wrong: list[Columns]) -> list[tuple[int, str, list[int]]]:
    """Return step, column and slots of all differences of the first step that has one."""
    for number, (expected, actual) in enumerate(zip(right, wrong, strict=True)):
        found = []
        for name in sorted(expected.keys() | actual.keys()):
            if name not in expected or name not in actual:
                found.append((number, name, []))
            elif (is_other := expected[name] != actual[name]).any():
                slots = is_other.reshape(len(is_other), -1).any(1)
                found.append((number, name, np.flatnonzero(slots).tolist()))
        if found:
            return found
    return []
