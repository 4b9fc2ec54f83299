"""An implementation of PPO and REINFORCE as people write them, in any float type, with faults that can be planted."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn


class Agent(nn.Module):
    """A policy over four actions with a shared trunk, in the way of CleanRL."""

    def __init__(self, seed: int, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.trunk = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, width), nn.ReLU())
        self.actor, self.critic = nn.Linear(width, 4), nn.Linear(width, 1)

    def get_action_and_value(self, observation: Any, action: Any, mask: Any = None) -> Any:
        hidden = self.trunk(observation)
        logits = self.actor(hidden)
        if mask is not None:
            logits = logits.masked_fill(~mask, -3e4)
        logs = logits.log_softmax(-1)
        chosen = logs.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)
        return action, chosen, -(logs.exp() * logs).sum(-1), self.critic(hidden).squeeze(-1)


def make_buffer(
    agent: Agent, seed: int, num_steps: int = 12, num_slots: int = 4, masked: bool = False
) -> dict[str, Any]:
    """Return a buffer that the agent filled, in its own float type."""
    draw = np.random.default_rng(seed)
    dtype = next(agent.parameters()).dtype
    shape = num_steps, num_slots
    observation = torch.tensor(draw.normal(size=(*shape, 5)), dtype=dtype)
    mask = torch.tensor(draw.random((*shape, 4)) < 0.7)
    mask[..., 0] = True
    action = torch.tensor(draw.integers(0, 4, shape))
    if masked:
        action = torch.where(mask.gather(-1, action[..., None])[..., 0], action, 0)
    with torch.no_grad():
        _, log_probability, _, value = agent.get_action_and_value(observation, action, mask if masked else None)
    ends = draw.random(shape)
    buffer = {
        "reward": torch.tensor(draw.normal(size=shape), dtype=dtype),
        "value": value,
        "terminated": torch.tensor(ends < 0.1),
        "truncated": torch.tensor((ends >= 0.1) & (ends < 0.25)),
        "final_value": torch.tensor(draw.normal(size=shape), dtype=dtype),
        "last_value": torch.tensor(draw.normal(size=num_slots), dtype=dtype),
        "log_probability": log_probability,
        "action": action,
        "observation": observation,
    }
    return buffer | ({"mask": mask} if masked else {})


def estimate(buffer: dict[str, Any], gamma: float, lam: float) -> torch.Tensor:
    """Return the advantages: the recursion as CleanRL writes it, with final values as in Stable-Baselines3."""
    advantages = torch.zeros_like(buffer["reward"])
    carry = torch.zeros_like(buffer["last_value"])
    num = len(advantages)
    for t in reversed(range(num)):
        following = buffer["last_value"] if t == num - 1 else buffer["value"][t + 1]
        done = buffer["terminated"][t] | buffer["truncated"][t]
        reward = buffer["reward"][t] + gamma * buffer["final_value"][t] * (
            buffer["truncated"][t] & ~buffer["terminated"][t]
        )
        going = (~done).to(reward.dtype)
        delta = reward + gamma * following * going - buffer["value"][t]
        carry = delta + gamma * lam * going * carry
        advantages[t] = carry
    return advantages


def train(
    agent: Agent,
    buffer: dict[str, Any],
    algorithm: Any,
    num_epochs: int = 2,
    num_batches: int = 2,
    fault: Callable[[dict[str, Any]], None] | None = None,
    optimizer: Any = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Return what an update computes, recorded; the agent is changed. `fault` changes the numbers of a minibatch."""
    advantages = estimate(buffer, algorithm.gamma, algorithm.lam)
    returns = advantages + buffer["value"]
    flat = {name: each.reshape(-1, *each.shape[2:]) for name, each in buffer.items() if name != "last_value"} | {
        "advantage": advantages.reshape(-1),
        "return": returns.reshape(-1),
    }
    if algorithm.normalize_advantages == "buffer":
        flat["advantage"] = (flat["advantage"] - flat["advantage"].mean()) / (flat["advantage"].std() + 1e-8)
    draw = np.random.default_rng(seed)
    batches = []
    for _ in range(num_epochs):
        for index in np.array_split(draw.permutation(len(flat["advantage"])), num_batches):
            rows = {name: each[index] for name, each in flat.items()}
            mask = rows.get("mask")
            _, new, entropy, value = agent.get_action_and_value(rows["observation"], rows["action"], mask)
            numbers = rows | {"new": new, "entropy": entropy, "now": value}
            if fault is not None:
                fault(numbers)
            losses = compute_losses(algorithm, numbers)
            optimizer.zero_grad()
            losses["total"].backward()
            raw = {name: each.grad.clone() for name, each in agent.named_parameters()}
            if algorithm.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(agent.parameters(), algorithm.max_grad_norm)
            scaled = {name: each.grad.clone() for name, each in agent.named_parameters()}
            optimizer.step()
            after = {name: each.detach().clone() for name, each in agent.named_parameters()}
            batches.append(
                {
                    "index": index,
                    "losses": {name: each.item() for name, each in losses.items()},
                    "gradients": raw,
                    "scaled_gradients": scaled,
                    "parameters": after,
                }
            )
    return {"advantages": advantages, "returns": returns, "minibatches": batches}


def compute_losses(algorithm: Any, rows: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the terms of the loss."""
    advantage, reduce = rows["advantage"], torch.mean if algorithm.reduction == "mean" else torch.sum
    if algorithm.normalize_advantages == "minibatch":
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    if algorithm.clip is None:
        policy = -reduce(rows["new"] * advantage)
    else:
        ratio = (rows["new"] - rows["log_probability"]).exp()
        clipped = torch.clamp(ratio, 1 - algorithm.clip, 1 + algorithm.clip)
        policy = reduce(torch.max(-advantage * ratio, -advantage * clipped))
    value = (rows["now"] - rows["return"]) ** 2
    if algorithm.value_clip is not None:
        moved = rows["value"] + torch.clamp(rows["now"] - rows["value"], -algorithm.value_clip, algorithm.value_clip)
        value = torch.max(value, (moved - rows["return"]) ** 2)
    value, entropy = algorithm.value_scale * reduce(value), reduce(rows["entropy"])
    total = policy - algorithm.entropy_coefficient * entropy + value * algorithm.value_coefficient
    return {"policy": policy, "value": value, "entropy": entropy, "total": total}


def make_optimizer(rule: Any, agent: Agent) -> torch.optim.Optimizer:
    """Return torch's optimizer for a rule."""
    if hasattr(rule, "betas"):
        kind = torch.optim.AdamW if rule.decoupled else torch.optim.Adam
        return kind(agent.parameters(), lr=rule.lr, betas=rule.betas, eps=rule.eps, weight_decay=rule.weight_decay)
    return torch.optim.SGD(
        agent.parameters(),
        lr=rule.lr,
        momentum=rule.momentum,
        dampening=rule.dampening,
        nesterov=rule.nesterov,
        weight_decay=rule.weight_decay,
    )
