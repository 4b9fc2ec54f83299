"""Seven defects of a historical project outside evaluation, each in the prover's environment and its training.

Two of its rows name two defects each, so that `HISTORY` has nine entries for seven rows.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from benchmarks.environments.faults import name_fault
from benchmarks.environments.learning import (
    Buffer,
    Collector,
    Minibatch,
    Policy,
    Ppo,
    Settings,
    Training,
    copy_policy,
)
from benchmarks.environments.prover import DISCOUNT, MAX_DEPTH, Prover, ProverState


class HistoricalDefect(NamedTuple):
    """A defect: the row of the history it belongs to, where it is, in words when it shows, and both sides."""

    row: int
    name: str
    stage: str
    condition: str
    right: Callable[[], Training]
    wrong: Callable[[], Training]


HISTORY: Final[list[HistoricalDefect]] = []


def make_training(
    environment: type[Prover] = Prover,
    collector: type[Collector] = Collector,
    learner: type[Ppo] = Ppo,
    settings: Settings | None = None,
) -> Training:
    """Return a training, with classes of which one may be wrong."""
    return Training(environment(), collector(), learner(Policy(), settings))


def defect(row: int, stage: str, condition: str, **settings: Any) -> Callable[[Any], Any]:
    """Enter a class into the table."""

    def enter(wrong: Any) -> Any:
        bases = {"environment": Prover, "collector": Collector, "learner": Ppo}
        part = next(name for name, base in bases.items() if issubclass(wrong, base))
        chosen = Settings(**settings)
        HISTORY.append(
            HistoricalDefect(
                row,
                name_fault(wrong),
                stage,
                condition,
                lambda: make_training(settings=chosen),
                lambda: make_training(settings=chosen, **{part: wrong}),
            )
        )
        return wrong

    return enter


@defect(1, "reward", "at the end of an episode with a proof")
class RewardReadAfterDone(Prover):
    """`is_true & ~done`, with a `done` that this step has set already."""

    def succeed(self, state: ProverState) -> Tensor:
        terminated, truncated = self.end(state)
        success = super().succeed(state)
        return torch.where(terminated | truncated, torch.zeros_like(success), success)


@defect(2, "choose", "after the first update")
class CapturedWeights(Collector):
    """A closure, or a captured graph, keeps the weights of its first call."""

    captured: Policy | None = None

    def act(self, policy: Policy, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        self.captured = self.captured or copy_policy(policy)
        return super().act(self.captured, observation)


@defect(3, "reward", "at a proof whose label differs from that of the slot's next query")
class LabelReadAfterReset(Prover):
    def succeed(self, state: ProverState) -> Tensor:
        terminated, truncated = self.end(state)
        return super().succeed(state._replace(is_true=self.recycle(state, terminated | truncated).is_true))


@defect(3, "reward", "at the end of every episode")
class ShapingReadAfterReset(Prover):
    def pay(self, before: ProverState, after: ProverState, ended: Tensor) -> Tensor:
        terminated, truncated = self.end(after)
        following = self.recycle(after, terminated | truncated)
        return self.succeed(after) + DISCOUNT * self.potential(following) - self.potential(before)


@defect(4, "advantage", "in an episode that ends, at the steps up to its end")
class DoneReadAfterReset(Ppo):
    """The flags are those of the slots after their reset, which have not ended."""

    def advantages(self, buffer: Buffer) -> Tensor:
        running = torch.zeros_like(buffer.terminated)
        return super().advantages(buffer._replace(terminated=running, truncated=running))


@defect(5, "loss", "from the second minibatch on, in the loss of the value", value_clip=0.0)
class ValueClipOfZero(Ppo):
    """Zero was meant to be off."""

    def value_loss(self, value: Tensor, batch: Minibatch) -> Tensor:
        change = (value - batch.value).clamp(-1e-8, 1e-8)
        clipped = (batch.value + change - batch.target).square()
        return torch.maximum((value - batch.target).square(), clipped).mean() / 2


@defect(6, "end", "at the depth limit, in an episode that ends there by itself")
class LimitOverwritesOutcome(Prover):
    def step(self, state: ProverState, action: Tensor) -> Any:
        following, reward, terminated, truncated, info = super().step(state, action)
        is_at_limit = info["final_obs"]["depth"] >= MAX_DEPTH
        return following, reward, terminated & ~is_at_limit, truncated | is_at_limit, info


@defect(6, "autoreset", "at the end of every episode, in the depth of the final observation")
class DepthAliased(Prover):
    def recycle(self, state: ProverState, done: Tensor) -> ProverState:
        following = super().recycle(state, done)
        state.depth[done] = 0
        return following


@defect(7, "reset", "in slots whose query has a corrupted object")
class FirstCorruptionSchemeOnly(Prover):
    def draw_scheme(self, key: Tensor, episode: Tensor) -> Tensor:
        return super().draw_scheme(key, episode).clamp(max=1)
