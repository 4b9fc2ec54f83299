"""Advantages and returns in float64, with a bound on the rounding of another computation, and mistakes that are made in them.

Generalised advantage estimation (Schulman et al. 2016): delta[t] = reward[t] + gamma · value of the next observation − value[t],
and advantage[t] = delta[t] + gamma · lam · advantage[t+1] while the episode goes on. With lam = 1 and no bootstrapping this is
the return minus a baseline (Williams 1992).
"""

from collections.abc import Callable, Iterator
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

    def take(rows: Steps = steps, gamma: float = gamma, lam: float = lam, bootstrap: str = bootstrap) -> Floats:
        return set_up(rows, gamma, lam, bootstrap).solve()

    right = set_up(steps, gamma, lam, bootstrap)
    terminated, truncated = steps.terminated, steps.truncated
    cut, none = truncated & ~terminated, np.zeros_like(terminated)
    after = np.concatenate((steps.value[1:], steps.last_value[None]))

    def change(**terms: Any) -> Floats:
        return right._replace(**terms).solve()

    for word, other in (("always", "bootstrapped where truncated"), ("end", "with truncation as termination")):
        yield other, take(bootstrap=word)
    yield "without bootstrapping", take(bootstrap="never")
    yield "with termination as truncation", take(steps._replace(terminated=none, truncated=terminated | truncated))
    yield "as if truncation did not end the episode", take(steps._replace(truncated=none))
    yield "as if termination did not end the episode", take(steps._replace(terminated=none))
    yield "across the end of episodes", take(steps._replace(terminated=none, truncated=none))
    yield "with the advantage of the next episode where an episode ends", change(goes_on=~none)
    yield (
        "with the advantage of the next episode where an episode is truncated",
        change(goes_on=right.goes_on | cut),
    )
    yield "with the value of the next episode where an episode ends", change(next_value=after)
    yield (
        "with the value of the next episode where an episode is truncated",
        change(next_value=np.where(cut, after, right.next_value)),
    )
    yield (
        "with the value of the next episode where an episode terminates",
        change(next_value=np.where(terminated, after, right.next_value)),
    )
    yield (
        "with the value before the last step where an episode is truncated",
        change(next_value=np.where(cut, steps.value, right.next_value)),
    )
    yield (
        "with the value of the same row in place of the next one",
        change(next_value=np.where(right.goes_on, steps.value, 0)),
    )
    for words, shift in (("next", -1), ("previous", 1)):
        moved = [_shift(each, shift) for each in (terminated, truncated)]
        yield f"with the done flag of the {words} row", take(steps._replace(terminated=moved[0], truncated=moved[1]))
        yield f"with the reward of the {words} row", change(reward=_shift(steps.reward, shift))
        yield f"with the value of the {words} row", take(steps._replace(value=_shift(steps.value, shift)))
        for field in ("reward", "value", "terminated", "truncated", "last_value", "final_value"):
            rolled = np.roll(getattr(steps, field), -shift, axis=-1)
            yield f"with the {field} of the {words} slot", take(steps._replace(**{field: rolled}))
    yield "with gamma and lambda exchanged", take(gamma=lam, lam=gamma)
    yield "with lambda 1", take(lam=1.0)
    yield "with lambda 0", take(lam=0.0)
    yield "with lambda in place of gamma · lambda", change(decay=lam)
    yield (
        "with gamma in place of gamma · lambda in the trace, and lambda in the difference",
        change(gamma=lam, decay=gamma),
    )
    yield "without gamma", take(gamma=1.0)
    yield "without gamma in the difference", change(gamma=1.0)
    last = right.next_value.copy()
    goes_on = right.goes_on[-1]
    for words, values in (
        ("without the value after the last step", np.zeros_like(steps.last_value)),
        ("with the value of the last row in place of the one after it", steps.value[-1]),
    ):
        last[-1] = np.where(goes_on, values, right.next_value[-1])
        yield words, change(next_value=last)
    last[-1] = steps.last_value
    yield "with the value after the last step, although the episode had ended", change(next_value=last)
    yield "with rewards clipped to [-1, 1]", change(reward=np.clip(steps.reward, -1, 1))
    yield "with the sign of rewards exchanged", change(reward=-steps.reward)
    yield "without the value as baseline", change(value=np.zeros_like(steps.value))
    yield "with the value added: they are returns", right.solve() + steps.value
    yield "with the opposite sign", -right.solve()
    yield from _list_layouts(steps, take, right)


def _list_layouts(steps: Steps, take: Callable[..., Floats], right: Recursion) -> Iterator[tuple[str, Floats]]:
    """Yield mistakes of axes and of scale."""
    shape = steps.reward.shape

    def reshape(change: Callable[[NDArray[Any]], NDArray[Any]], last_value: Floats) -> Steps:
        columns = {name: change(each) for name, each in steps._asdict().items() if name != "last_value"}
        return Steps(**columns, last_value=last_value)

    transposed = reshape(lambda each: each.T, np.append(steps.value[1:, 0], steps.last_value[-1:]))
    if shape[1] > 1:
        yield "along the slots in place of the steps", take(transposed).T
        column = np.append(steps.last_value[:1], 0.0)[:1]
        yield (
            "over the rows [T, N] as one sequence",
            take(reshape(lambda e: e.reshape(-1, 1), column)).reshape(shape),
        )
        by_slot = take(reshape(lambda e: e.T.reshape(-1, 1), steps.last_value[-1:]))
        yield "over all slots, one after the other, as one sequence", by_slot.reshape(shape[::-1]).T
        yield "with the rows [T, N] read as [N, T]", right.solve().T.reshape(shape)
    forward = right._replace(
        goes_on=_shift(right.goes_on, 1)[::-1], reward=(right.reward + right.gamma * right.next_value)[::-1]
    )
    backward = forward._replace(value=right.value[::-1], next_value=np.zeros(shape))
    yield "from the first step to the last one", backward.solve()[::-1]
    raw = right.solve()
    for ddof in (1, 0):
        if np.isfinite(raw).all() and raw.size > 1:
            yield "and normalised, where they should not be", (raw - raw.mean()) / (raw.std(ddof=ddof) + 1e-8)
    for words, axis in (("each slot", 0), ("each step", 1)):
        with np.errstate(invalid="ignore", divide="ignore"):
            yield f"and normalised over {words}", (raw - raw.mean(axis, keepdims=True)) / raw.std(axis, keepdims=True)


def _shift(values: NDArray[Any], by: int) -> NDArray[Any]:
    """Return the values of the previous rows (1) or of the next ones (-1); 0 where there is no such row."""
    moved = np.roll(values, by, axis=0)
    moved[0 if by > 0 else -1] = 0
    return moved


def list_return_mistakes(
    steps: Steps, advantage: Floats, gamma: float, right: Recursion
) -> Iterator[tuple[str, Floats]]:
    """Yield the returns that a mistake gives, from these advantages."""
    yield "as the advantages, without the value", advantage
    yield "with the value subtracted", advantage - steps.value
    for words, shift in (("next", -1), ("previous", 1)):
        yield f"with the value of the {words} row", advantage + _shift(steps.value, shift)
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled = (advantage - np.nanmean(advantage)) / (
            np.nanstd(advantage, ddof=1 if advantage.size > 1 else 0) + 1e-8
        )
    yield "from normalised advantages", scaled + steps.value
    yield "as discounted sums of rewards (lambda 1)", right._replace(decay=gamma, value=0 * steps.value).solve()
    sums = right._replace(decay=gamma, value=0 * steps.value, next_value=0 * steps.value).solve()
    yield "as discounted sums of rewards, without bootstrapping", sums
    yield "from one step (lambda 0)", steps.reward + gamma * right.next_value
    yield "with the rows [T, N] read as [N, T]", (advantage + steps.value).T.reshape(steps.value.shape)
