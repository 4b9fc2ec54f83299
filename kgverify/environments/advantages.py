"""Advantages and returns in float64, with a bound on the rounding of another computation, and mistakes that are made in them.

Generalised advantage estimation (Schulman et al. 2016): delta[t] = reward[t] + gamma · value of the next observation − value[t],
and advantage[t] = delta[t] + gamma · lam · advantage[t+1] while the episode goes on. With lam = 1 and no bootstrapping this is
the return minus a baseline (Williams 1992).
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ROUNDINGS: Final = 8
"""Roundings of each of the terms of a step, at most: two factors rounded to the type, two products, three sums, a result."""


class Steps(NamedTuple):
    """The rows of a buffer, T steps of N slots.

    reward, value: float64 [T, N]  value: of the observation before the action
    terminated, truncated: bool [T, N]  whether the step ended the episode
    final_value:   float64 [T, N]  the value of the observation that ended an episode; NaN if unknown
    last_value:    float64 [N]     the value of the observation after the last step; NaN if unknown
    """

    reward: Floats
    value: Floats
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_value: Floats
    last_value: Floats


class Recursion(NamedTuple):
    """The terms of the recursion.

    reward, value, next_value: float64 [T, N]
    goes_on: bool [T, N]  whether the advantage of the next row counts
    gamma, decay: the factors of the next value and of the next advantage
    """

    reward: Floats
    value: Floats
    next_value: Floats
    goes_on: NDArray[np.bool_]
    gamma: float
    decay: float

    def solve(self) -> Floats:
        """Return the advantages: float64 [T, N]."""
        return self._accumulate(self.reward + self.gamma * self.next_value - self.value)

    def bound(self, unit: float) -> Floats:
        """Return the largest rounding error of advantages in a type with this unit roundoff: float64 [T, N]."""
        sizes = self._accumulate(np.abs(self.reward) + self.gamma * np.abs(self.next_value) + np.abs(self.value))
        return self._accumulate(ROUNDINGS * unit * sizes)

    def _accumulate(self, terms: Floats) -> Floats:
        sums = terms.copy()
        for t in range(len(sums) - 2, -1, -1):
            sums[t] += np.where(self.goes_on[t], self.decay * sums[t + 1], 0.0)
        return sums


def set_up(steps: Steps, gamma: float, lam: float, bootstrap: str) -> Recursion:
    """Return the recursion of an algorithm over the rows of a buffer."""
    ended = steps.terminated | steps.truncated
    last = steps.last_value if bootstrap != "never" else np.zeros_like(steps.last_value)
    final = steps.final_value if bootstrap == "always" else np.zeros_like(steps.final_value)
    after = np.concatenate((steps.value[1:], last[None]))
    next_value = np.where(steps.terminated, 0.0, np.where(steps.truncated, final, after))
    return Recursion(steps.reward, steps.value, next_value, ~ended, gamma, gamma * lam)


def list_mistakes(steps: Steps, gamma: float, lam: float, bootstrap: str) -> Iterator[tuple[str, Floats]]:
    """Yield the advantages that a mistake gives, with the mistake in words: "computed" + words."""

    def take(gamma: float = gamma, lam: float = lam, bootstrap: str = bootstrap, **columns: Any) -> Floats:
        return set_up(steps._replace(**columns), gamma, lam, bootstrap).solve()

    right = set_up(steps, gamma, lam, bootstrap)
    (terminated, truncated), value = steps[2:4], steps.value
    cut, none, goes_on = truncated & ~terminated, np.zeros_like(terminated), right.goes_on
    after = np.concatenate((value[1:], steps.last_value[None]))
    is_last = np.arange(len(value))[:, None] == len(value) - 1
    inputs: dict[str, dict[str, Any]] = {
        "with truncation as termination": {"bootstrap": "end"},
        "without bootstrapping": {"bootstrap": "never"},
        "bootstrapped where truncated": {"bootstrap": "always"},
        "with termination as truncation": {"terminated": none, "truncated": terminated | truncated},
        "as if truncation did not end the episode": {"truncated": none},
        "as if termination did not end the episode": {"terminated": none},
        "across the end of episodes": {"terminated": none, "truncated": none},
        "with gamma and lambda exchanged": {"gamma": lam, "lam": gamma},
        "with lambda 1": {"lam": 1.0},
        "with lambda 0": {"lam": 0.0},
        "without gamma": {"gamma": 1.0},
        "with rewards clipped to [-1, 1]": {"reward": np.clip(steps.reward, -1, 1)},
        "with the sign of rewards exchanged": {"reward": -steps.reward},
    }
    terms: dict[str, dict[str, Any]] = {
        "with the advantage of the next episode where an episode ends": {"goes_on": ~none},
        "with the advantage of the next episode where an episode is truncated": {"goes_on": goes_on | cut},
        "with the value of the same row in place of the next one": {"next_value": np.where(goes_on, value, 0)},
        "with lambda in place of gamma · lambda": {"decay": lam},
        "without gamma in the difference": {"gamma": 1.0},
        "without the value as baseline": {"value": 0 * value},
    }
    for words, rows, following in (
        ("with the value of the next episode where an episode ends", True, after),
        ("with the value of the next episode where an episode is truncated", cut, after),
        ("with the value of the next episode where an episode terminates", terminated, after),
        ("with the value before the last step where an episode is truncated", cut, value),
        ("without the value after the last step", is_last & goes_on, 0),
        ("with the value of the last row as the one after it", is_last & goes_on, value),
        ("with the value after the last step, although the episode had ended", is_last, after),
    ):
        terms[words] = {"next_value": np.where(rows, following, right.next_value)}
    for words, by in (("next", -1), ("previous", 1)):
        moved = {name: _shift(each, by) for name, each in steps._asdict().items()}
        inputs[f"with the done flag of the {words} row"] = {name: moved[name] for name in ("terminated", "truncated")}
        terms[f"with the done flag of the {words} row in the trace"] = {"goes_on": ~_shift(~goes_on, by)}
        for name, each in steps._asdict().items():
            inputs[f"with the {name} of the {words} row"] = {name: moved[name]}
            inputs[f"with the {name} of the {words} slot"] = {name: np.roll(each, by, axis=-1)}
    yield from ((words, take(**change)) for words, change in inputs.items())
    yield from ((words, right._replace(**change).solve()) for words, change in terms.items())
    raw, shape = right.solve(), value.shape
    yield "with the value added: they are returns", raw + value
    # Values of the next row are those of the next slot, or the rows of all slots are one sequence.
    columns = steps._asdict()
    for words, order, width, last in (
        ("along the slots in place of the steps", "T", shape[0], np.append(value[1:, 0], steps.last_value[-1:])),
        ("over all slots, one after the other, as one sequence", "T", 1, steps.last_value[-1:]),
        ("over the rows [T, N] as one sequence", "", 1, steps.last_value[:1]),
    ):
        other = {
            name: (each.T if order else each).reshape(-1, width)
            for name, each in columns.items()
            if name != "last_value"
        }
        found = take(**other, last_value=last)
        yield words, found.reshape(shape[::-1]).T if order else found.reshape(shape)
    yield "with the rows [T, N] read as [N, T]", raw.T.reshape(shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        for words, axis in (("all rows", None), ("each slot", 0), ("each step", 1)):
            for ddof in (0, 1) if raw.size > 1 else ():
                scaled = (raw - raw.mean(axis, keepdims=True)) / (raw.std(axis, keepdims=True, ddof=ddof) + 1e-8)
                yield f"and normalised over {words}, where they should not be", scaled


def _shift(values: NDArray[Any], by: int) -> NDArray[Any]:
    """Return the values of the previous rows (1) or of the next ones (-1); 0 where there is no such row."""
    moved = np.roll(values, by, axis=0)
    moved[0 if by > 0 else -1] = 0
    return moved


def list_return_mistakes(
    steps: Steps, advantage: Floats, gamma: float, right: Recursion
) -> Iterator[tuple[str, Floats]]:
    """Yield the returns that a mistake gives, from these advantages."""
    value = steps.value
    yield "as the advantages, without the value", advantage
    yield "with the value subtracted", advantage - value
    yield "with the value of the next row", advantage + _shift(value, -1)
    yield "from normalised advantages", (advantage - advantage.mean()) / (advantage.std() + 1e-8) + value
    yield "as discounted sums of rewards (lambda 1)", right._replace(decay=gamma).solve() + value
    sums = right._replace(decay=gamma, value=0 * value, next_value=0 * value).solve()
    yield "as discounted sums of rewards, without bootstrapping", sums
    yield "from one step (lambda 0)", steps.reward + gamma * right.next_value
    yield "with the rows [T, N] read as [N, T]", (advantage + value).T.reshape(value.shape)
