"""Rollouts, PPO and REINFORCE in plain torch, as methods on a buffer of steps; T steps, N slots, K actions.

A method is one term of an update, and a wrong learner overrides one of them.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.environments.draws import draw_uniform
from benchmarks.environments.prover import CLAUSES, MAX_ATOMS, MAX_TERMS, Prover, ProverState, make_seeds

# Gradients of the scaled loss are divided by it before they are clipped, as a mixed-precision trainer does.
LOSS_SCALE: Final = 1024.0
MASKED: Final = -1e9


class Policy(nn.Module):
    """A policy over the clauses of the prover, and a value; `temperature` is frozen."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32, width: int = 32) -> None:
        super().__init__()
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            self.terms = nn.Embedding(MAX_TERMS, 8)
            self.body = nn.Sequential(nn.Linear(MAX_ATOMS * 3 * 8 + 1, width), nn.Tanh())
            self.choice = nn.Linear(width, len(CLAUSES))
            self.value = nn.Linear(width, 1)
        self.temperature = nn.Parameter(torch.tensor(1.5), requires_grad=False)
        self.to(dtype)

    def forward(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return logits [..., K], without the mask, and values [...]."""
        goal = self.terms(observation["goal"]).flatten(-3)
        hidden = self.body(torch.cat([goal, observation["potential"].to(goal.dtype).unsqueeze(-1)], -1))
        return self.choice(hidden) / self.temperature, self.value(hidden).squeeze(-1)


class Buffer(NamedTuple):
    """The steps of a rollout.

    observation:     of [T, N, ...]     seen before the action
    mask:            bool [T, N, K]     legal actions
    action:          int64 [T, N]
    log_probability: floating [T, N]    of the action
    value:           floating [T, N]    of the observation
    reward:          floating [T, N]
    terminated:      bool [T, N]        the episode ended by itself
    truncated:       bool [T, N]        the episode ended at a limit
    final_value:     floating [T, N]    of the observation that ended the episode, 0 elsewhere
    last_value:      floating [N]       of the observation after the last step
    """

    observation: dict[str, Tensor]
    mask: Tensor
    action: Tensor
    log_probability: Tensor
    value: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_value: Tensor
    last_value: Tensor


class Collector:
    """Collects rollouts of a policy in the prover, in same-step autoreset."""

    def act(self, policy: Policy, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the logits and values by which the policy acts."""
        with torch.no_grad():
            logits, value = policy(observation)
        return logits, value

    def choose(self, state: ProverState, logits: Tensor) -> Tensor:
        """Sample int64 [N] by Gumbel noise that is a function of the state."""
        places = range(logits.shape[-1])
        uniform = torch.stack([draw_uniform(state.key, state.episode, state.depth, place) for place in places], -1)
        return (logits - (-uniform.clamp(1e-12, 1 - 1e-12).log()).log()).argmax(-1)

    def collect(
        self, environment: Prover, policy: Policy, state: ProverState, num_steps: int
    ) -> tuple[Buffer, ProverState]:
        """Return the steps and the state after them."""
        rows: list[dict[str, Any]] = []
        for _ in range(num_steps):
            observation, mask = environment.observe(state), environment.mask(state)
            logits, value = self.act(policy, observation)
            log_probabilities = logits.masked_fill(~mask, MASKED).log_softmax(-1)
            action = self.choose(state, log_probabilities)
            state, reward, terminated, truncated, info = environment.step(state, action)
            _, final_value = self.act(policy, info["final_obs"])
            rows.append(
                {
                    "observation": observation,
                    "mask": mask,
                    "action": action,
                    "log_probability": log_probabilities.gather(-1, action.unsqueeze(-1)).squeeze(-1),
                    "value": value,
                    "reward": reward,
                    "terminated": terminated,
                    "truncated": truncated,
                    "final_value": torch.where(terminated | truncated, final_value, 0),
                }
            )
        names = rows[0].keys() - {"observation"}
        observations = {
            name: torch.stack([row["observation"][name] for row in rows]) for name in rows[0]["observation"]
        }
        _, last_value = self.act(policy, environment.observe(state))
        columns = {name: torch.stack([row[name] for row in rows]) for name in names}
        return Buffer(observation=observations, last_value=last_value, **columns), state


class Settings(NamedTuple):
    """The numbers of an update; a `value_clip` of 0 turns the clipping of values off."""

    discount: float = 0.97
    trace_decay: float = 0.9
    clip: float = 0.2
    value_clip: float = 0.1
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    learning_rate: float = 0.01
    weight_decay: float = 0.01
    max_norm: float = 0.5
    num_epochs: int = 2
    num_minibatches: int = 4


class Minibatch(NamedTuple):
    """Rows of a flat buffer, with their numbers, advantages and targets of the values."""

    observation: dict[str, Tensor]
    mask: Tensor
    action: Tensor
    log_probability: Tensor
    value: Tensor
    advantage: Tensor
    target: Tensor
    row: Tensor


Terms = dict[str, Tensor]
"""The terms of one minibatch: `rows` int64 [M] of the flat buffer, `loss.policy`, `loss.value`, `loss.entropy`,
`gradient.NAME` as the optimizer gets it, and `update.NAME`, the weights after the step."""


class Ppo:
    """Proximal policy optimisation (Schulman 2017) with generalised advantages (Schulman 2016)."""

    def __init__(self, policy: Policy, settings: Settings | None = None, seed: int = 0) -> None:
        self.policy = policy
        self.settings = settings or Settings()
        self.optimizer = torch.optim.Adam(self.list_trained(), lr=self.settings.learning_rate)
        self.seed = seed
        self.num_updates = 0

    def list_trained(self) -> list[nn.Parameter]:
        """Return the parameters that are not frozen."""
        return [parameter for parameter in self.policy.parameters() if parameter.requires_grad]

    # Advantages

    def next_values(self, buffer: Buffer) -> Tensor:
        """Return [T, N], the value after each step: 0 if terminated, that of the final observation if truncated."""
        following = torch.cat([buffer.value[1:], buffer.last_value.unsqueeze(0)])
        following = torch.where(buffer.truncated, buffer.final_value, following)
        return torch.where(buffer.terminated, torch.zeros_like(following), following)

    def advantages(self, buffer: Buffer) -> Tensor:
        """Return [T, N]; no credit crosses the end of an episode."""
        discount, decay = self.settings.discount, self.settings.trace_decay
        change = buffer.reward + discount * self.next_values(buffer) - buffer.value
        goes_on = self.list_running(buffer)
        advantages = torch.zeros_like(change)
        carried = torch.zeros_like(change[0])
        for step in reversed(range(len(change))):
            carried = change[step] + discount * decay * goes_on[step] * carried
            advantages[step] = carried
        return advantages

    def list_running(self, buffer: Buffer) -> Tensor:
        """Return bool [T, N], whether the episode goes on after each step."""
        return ~(buffer.terminated | buffer.truncated)

    def targets(self, buffer: Buffer, advantages: Tensor) -> Tensor:
        """Return [T, N], what the values are fitted to."""
        return advantages + buffer.value

    def normalise(self, advantages: Tensor) -> Tensor:
        """Return advantages of mean 0 and deviation 1 over the minibatch."""
        return (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    # Losses

    def log_probabilities(self, logits: Tensor, batch: Minibatch) -> Tensor:
        """Return [M, K]."""
        return logits.masked_fill(~batch.mask, MASKED).log_softmax(-1)

    def policy_loss(self, log_probability: Tensor, batch: Minibatch) -> Tensor:
        """Return the clipped surrogate, which is minimised."""
        ratio = (log_probability - batch.log_probability).exp()
        advantage = self.normalise(batch.advantage)
        clipped = ratio.clamp(1 - self.settings.clip, 1 + self.settings.clip)
        return -torch.minimum(ratio * advantage, clipped * advantage).mean()

    def value_loss(self, value: Tensor, batch: Minibatch) -> Tensor:
        """Return half the squared error, of the worse of value and clipped value."""
        error = (value - batch.target).square()
        if self.settings.value_clip > 0:
            change = (value - batch.value).clamp(-self.settings.value_clip, self.settings.value_clip)
            error = torch.maximum(error, (batch.value + change - batch.target).square())
        return error.mean() / 2

    def entropy_loss(self, log_probabilities: Tensor, batch: Minibatch) -> Tensor:
        """Return the negative mean entropy of the choice among legal actions."""
        return (log_probabilities.exp() * log_probabilities).sum(-1).mean()

    # The update

    def minibatches(self, rows: Minibatch) -> Iterator[Minibatch]:
        """Yield each row once in each epoch, in an order drawn from the seed and the number of the update."""
        generator = torch.Generator().manual_seed(self.seed + 1000 * self.num_updates)
        for _ in range(self.settings.num_epochs):
            order = self.permutation(len(rows.action), generator)
            for chosen in order.chunk(self.settings.num_minibatches):
                yield Minibatch(
                    {name: part[chosen] for name, part in rows[0].items()}, *(part[chosen] for part in rows[1:])
                )

    def permutation(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Return the order of the rows in an epoch."""
        return torch.randperm(num_rows, generator=generator)

    def losses(self, batch: Minibatch) -> Terms:
        """Return the three terms of the loss."""
        logits, value = self.policy(batch.observation)
        all_log_probabilities = self.log_probabilities(logits, batch)
        chosen = all_log_probabilities.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        return {
            "loss.policy": self.policy_loss(chosen, batch),
            "loss.value": self.value_loss(value, batch),
            "loss.entropy": self.entropy_loss(all_log_probabilities, batch),
        }

    def differentiate(self, losses: Terms) -> None:
        """Put the clipped gradients of the weighted sum of losses into the parameters."""
        loss = (
            losses["loss.policy"]
            + self.settings.value_weight * losses["loss.value"]
            + self.settings.entropy_weight * losses["loss.entropy"]
        )
        self.forget_gradients()
        (loss * LOSS_SCALE).backward()
        self.unscale()
        self.clip_gradients()

    def forget_gradients(self) -> None:
        """Drop the gradients of the minibatch before."""
        self.optimizer.zero_grad()

    def unscale(self) -> None:
        """Divide the gradients by the scale of the loss."""
        for parameter in self.list_trained():
            if parameter.grad is not None:
                parameter.grad /= LOSS_SCALE

    def clip_gradients(self) -> None:
        """Shorten the gradient to the maximum norm."""
        nn.utils.clip_grad_norm_(self.list_trained(), self.settings.max_norm)

    def apply(self) -> None:
        """Decay weights as AdamW does, and take a step of Adam."""
        with torch.no_grad():
            for parameter in self.list_decayed():
                parameter.mul_(1 - self.settings.learning_rate * self.settings.weight_decay)
        self.optimizer.step()

    def list_decayed(self) -> list[nn.Parameter]:
        """Return the parameters whose weights decay."""
        return self.list_trained()

    def flatten(self, buffer: Buffer, advantages: Tensor, targets: Tensor) -> Minibatch:
        """Return all rows of a buffer as one minibatch."""
        columns = (buffer.mask, buffer.action, buffer.log_probability, buffer.value, advantages, targets)
        observation = {name: column.flatten(0, 1) for name, column in buffer.observation.items()}
        return Minibatch(observation, *(column.flatten(0, 1) for column in columns), torch.arange(advantages.numel()))

    def update(self, buffer: Buffer) -> list[Terms]:
        """Train on a buffer; return its `advantage` and `target`, and then the terms of each minibatch."""
        advantages = self.advantages(buffer)
        targets = self.targets(buffer, advantages)
        terms: list[Terms] = [{"advantage": advantages, "target": targets}]
        for batch in self.minibatches(self.flatten(buffer, advantages, targets)):
            losses = self.losses(batch)
            self.differentiate(losses)
            # `named_parameters` has the frozen ones as well, without a gradient.
            named = dict(self.policy.named_parameters())
            gradients = {f"gradient.{name}": each.grad.clone() for name, each in named.items() if each.grad is not None}
            self.apply()
            weights = {f"update.{name}": each.detach().clone() for name, each in named.items()}
            losses = {name: loss.detach() for name, loss in losses.items()}
            terms.append({"rows": batch.row, **losses, **gradients, **weights})
        self.num_updates += 1
        return terms


class Reinforce(Ppo):
    """REINFORCE (Williams 1992) with the value as its baseline: one step on the whole buffer."""

    def __init__(self, policy: Policy, settings: Settings | None = None, seed: int = 0) -> None:
        settings = (settings or Settings())._replace(trace_decay=1.0, value_clip=0.0, num_epochs=1, num_minibatches=1)
        super().__init__(policy, settings, seed)

    def policy_loss(self, log_probability: Tensor, batch: Minibatch) -> Tensor:
        """Return the negative mean of log-probabilities weighted with return minus baseline."""
        return -(log_probability * batch.advantage).mean()


class Training(NamedTuple):
    """An environment, a collector and a learner; `run` is a training."""

    environment: Prover
    collector: Collector
    learner: Ppo

    def run(
        self, num_slots: int = 32, num_steps: int = 16, num_updates: int = 3, seed: int = 0
    ) -> list[tuple[Buffer, list[Terms]]]:
        """Return the rollout and the terms of each update."""
        state = self.environment.reset(make_seeds(num_slots, seed))
        results = []
        for _ in range(num_updates):
            buffer, state = self.collector.collect(self.environment, self.learner.policy, state, num_steps)
            results.append((buffer, self.learner.update(buffer)))
        return results


def list_rows(results: list[tuple[Buffer, list[Terms]]]) -> list[tuple[str, Terms]]:
    """Return the results of a training in the order they came: each rollout's columns, then the update's terms."""
    rows = []
    for number, (buffer, terms) in enumerate(results):
        columns = {name: column for name, column in buffer._asdict().items() if isinstance(column, Tensor)}
        observation = {f"observation.{name}": column for name, column in buffer.observation.items()}
        rows.append((f"rollout {number}", {**observation, **columns}))
        rows += [(f"update {number}, minibatch {batch}", each) for batch, each in enumerate(terms)]
    return rows


def find_difference(expected: list[tuple[str, Terms]], actual: list[tuple[str, Terms]]) -> tuple[str, list[str]] | None:
    """Return the first row that differs, and its columns that do."""
    for (label, right), (_, wrong) in zip(expected, actual, strict=True):
        names = [name for name in right.keys() | wrong.keys() if not _is_same(right.get(name), wrong.get(name))]
        if names:
            return label, sorted(names)
    return None


def _is_same(left: Tensor | None, right: Tensor | None) -> bool:
    return left is not None and right is not None and torch.equal(left, right)


def copy_policy(policy: Policy) -> Policy:
    """Return a policy with the same weights in its own memory."""
    return copy.deepcopy(policy)
