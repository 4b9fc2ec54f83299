"""Twenty faults of advantage, loss, gradient and update, with the term that a differ should name.

Right and wrong learners start from the same weights and train on the same buffer.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.environments.faults import name_fault
from benchmarks.environments.learning import (
    Buffer,
    Collector,
    Minibatch,
    Policy,
    Ppo,
    Reinforce,
    Terms,
)
from benchmarks.environments.prover import Prover, make_seeds

TERMS: Final = ("advantage", "loss.policy", "loss.value", "loss.entropy", "gradient", "update")


class UpdateFault(NamedTuple):
    """A planted fault: its term, in words when it shows, and both learners.

    Each learner of `loss.policy`, `loss.value` and `loss.entropy` shows its fault in the first minibatch.
    """

    name: str
    term: str
    condition: str
    note: str
    right: Callable[[], Ppo]
    wrong: Callable[[], Ppo]


UPDATE_FAULTS: Final[list[UpdateFault]] = []


def make_buffer(num_slots: int = 32, num_steps: int = 16, seed: int = 0) -> Buffer:
    """Return a rollout of `Policy(seed=0)` in the prover; it has terminations, truncations and running episodes."""
    environment = Prover()
    state = environment.reset(make_seeds(num_slots, seed))
    buffer, _ = Collector().collect(environment, Policy(), state, num_steps)
    return buffer


def make_policy(base: type[Ppo]) -> Policy:
    """Return the policy to train: for PPO some updates away from the one that collected, so that ratios differ from 1."""
    policy = Policy()
    if not issubclass(base, Reinforce):
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in policy.parameters():
                if parameter.requires_grad:
                    parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return policy


def fault(term: str, condition: str, note: str) -> Callable[[Any], Any]:
    """Enter a class into the table."""

    def enter(wrong: Any) -> Any:
        base = Reinforce if issubclass(wrong, Reinforce) else Ppo
        UPDATE_FAULTS.append(
            UpdateFault(
                name_fault(wrong),
                term,
                condition,
                note,
                lambda: base(make_policy(base)),
                lambda: wrong(make_policy(base)),
            )
        )
        return wrong

    return enter


# Advantages


@fault("advantage", "at the end of an episode and on the step after it", "the flags are those of the step before")
class DoneOfTheStepBefore(Ppo):
    def list_running(self, buffer: Buffer) -> Tensor:
        running = super().list_running(buffer)
        return torch.cat([torch.ones_like(running[:1]), running[:-1]])


@fault("advantage", "in an episode that is truncated", "a truncation counts as a termination: nothing is bootstrapped")
class TruncationAsTermination(Ppo):
    def next_values(self, buffer: Buffer) -> Tensor:
        return super().next_values(buffer._replace(terminated=buffer.terminated | buffer.truncated))


@fault("advantage", "in an episode that is truncated", "the value is that of the next episode's first observation")
class BootstrapOfTheResetObservation(Ppo):
    def next_values(self, buffer: Buffer) -> Tensor:
        return super().next_values(buffer._replace(truncated=torch.zeros_like(buffer.truncated)))


@fault("advantage", "always", "discount and trace decay are exchanged")
class DiscountAndDecayExchanged(Ppo):
    def advantages(self, buffer: Buffer) -> Tensor:
        settings = self.settings
        self.settings = settings._replace(discount=settings.trace_decay, trace_decay=settings.discount)
        advantages = super().advantages(buffer)
        self.settings = settings
        return advantages


@fault("advantage", "in episodes that still run after the last step", "the value after the last step is left out")
class LastValueDropped(Ppo):
    def next_values(self, buffer: Buffer) -> Tensor:
        return super().next_values(buffer._replace(last_value=torch.zeros_like(buffer.last_value)))


# The loss of the policy


@fault("loss.policy", "always", "advantages are normalised over the slots of each step, and not over the minibatch")
class NormalisedOverSlots(Ppo):
    def flatten(self, buffer: Buffer, advantages: Tensor, targets: Tensor) -> Minibatch:
        centred = advantages - advantages.mean(1, keepdim=True)
        return super().flatten(buffer, centred / (advantages.std(1, keepdim=True) + 1e-8), targets)

    def normalise(self, advantages: Tensor) -> Tensor:
        return advantages


@fault("loss.policy", "where the policy differs from the one that collected", "old over new instead of new over old")
class RatioInverted(Ppo):
    def policy_loss(self, log_probability: Tensor, batch: Minibatch) -> Tensor:
        inverted = 2 * batch.log_probability - log_probability
        return super().policy_loss(inverted, batch)


@fault("loss.policy", "where the ratio is clipped", "the larger surrogate is taken instead of the smaller one")
class LargerSurrogate(Ppo):
    def policy_loss(self, log_probability: Tensor, batch: Minibatch) -> Tensor:
        return -super().policy_loss(log_probability, batch._replace(advantage=-batch.advantage))


@fault(
    "loss.policy", "where some action is illegal", "the probabilities of the chosen action are those without the mask"
)
class MaskLost(Ppo):
    def losses(self, batch: Minibatch) -> Terms:
        logits, _ = self.policy(batch.observation)
        chosen = logits.log_softmax(-1).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        return {**super().losses(batch), "loss.policy": self.policy_loss(chosen, batch)}


@fault(
    "loss.policy",
    "where the policy differs from the one that collected",
    "the old probabilities are computed again with the present weights: the ratio is always 1",
)
class OldProbabilitiesComputedAnew(Ppo):
    def policy_loss(self, log_probability: Tensor, batch: Minibatch) -> Tensor:
        return super().policy_loss(log_probability, batch._replace(log_probability=log_probability.detach()))


# The loss of the value


@fault(
    "loss.value", "where a value has moved by more than the clip", "the smaller error is taken instead of the larger"
)
class SmallerValueError(Ppo):
    def value_loss(self, value: Tensor, batch: Minibatch) -> Tensor:
        limit = self.settings.value_clip
        clipped = batch.value + (value - batch.value).clamp(-limit, limit)
        return torch.minimum((value - batch.target).square(), (clipped - batch.target).square()).mean() / 2


@fault("loss.value", "always", "[M, 1] minus [M] is [M, M]: each value is compared with all targets")
class ValueBroadcast(Ppo):
    def value_loss(self, value: Tensor, batch: Minibatch) -> Tensor:
        limit = self.settings.value_clip
        clipped = batch.value + (value - batch.value).clamp(-limit, limit)
        errors = [(each.unsqueeze(1) - batch.target).square() for each in (value, clipped)]
        return torch.maximum(*errors).mean() / 2


# The entropy


@fault("loss.entropy", "always", "the bonus has the wrong sign and makes the policy greedy")
class EntropySign(Ppo):
    def entropy_loss(self, log_probabilities: Tensor, batch: Minibatch) -> Tensor:
        return -super().entropy_loss(log_probabilities, batch)


@fault("loss.entropy", "always", "the mean over the actions is taken where the sum is meant")
class EntropyAveragedOverActions(Ppo):
    def entropy_loss(self, log_probabilities: Tensor, batch: Minibatch) -> Tensor:
        return (log_probabilities.exp() * log_probabilities).mean()


# Gradients


@fault("gradient", "from the second minibatch on", "gradients are added to those of the minibatches before")
class GradientNotZeroed(Ppo):
    def forget_gradients(self) -> None:
        pass


@fault("gradient", "always", "the norm is limited before the scale of the loss is divided out")
class ClippedBeforeUnscaling(Ppo):
    def unscale(self) -> None:
        super().clip_gradients()
        super().unscale()

    def clip_gradients(self) -> None:
        pass


@fault(
    "gradient", "always, in the weights of the value", "REINFORCE: the baseline in the policy's loss is not detached"
)
class BaselineNotDetached(Reinforce):
    def losses(self, batch: Minibatch) -> Terms:
        _, value = self.policy(batch.observation)
        return super().losses(batch._replace(advantage=batch.target - value))


# Updates


@fault("update", "always, in the frozen parameter", "the decay of weights shrinks frozen parameters as well")
class FrozenParameterDecayed(Ppo):
    def list_decayed(self) -> list[nn.Parameter]:
        return list(self.policy.parameters())


@fault(
    "update", "from the second minibatch on", "Adam's counter of steps stands still, so that the moments stay biased"
)
class AdamStepNotAdvanced(Ppo):
    def apply(self) -> None:
        super().apply()
        for state in self.optimizer.state.values():
            state["step"].fill_(0)


@fault("update", "always, in the rows of minibatches", "rows are drawn with replacement: some never, some twice")
class RowsDrawnWithReplacement(Ppo):
    def permutation(self, num_rows: int, generator: torch.Generator) -> Tensor:
        return torch.randint(num_rows, (num_rows,), generator=generator)
