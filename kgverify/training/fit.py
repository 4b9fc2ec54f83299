"""Fit the weights of a `two_tower` to decisions: cross-entropy of the choice, AdamW, one thread, float32."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kgverify.engines.compiled.stages.choose import Parameters, build_parameters, score_two_tower
from kgverify.engines.compiled.state import PAD
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Progress, no_progress
from kgverify.training.decisions import Decision


def fit_policy(
    policy: Policy,
    decisions: Sequence[Decision],
    *,
    seed: int,
    epochs: int,
    batch: int,
    learning_rate: float,
    weight_decay: float,
    progress: Progress = no_progress,
) -> tuple[Policy, float]:
    """Train a policy; return it, and its mean loss in nats over the decisions of the last epoch.

    The loss of a decision is the negative log-softmax of the scores at its choice. On one machine, the result depends on the
    arguments alone.
    """
    batches = _Batches(decisions)
    generator = torch.Generator().manual_seed(seed)
    with _single_thread():
        parameters = build_parameters(policy, torch.device("cpu"), torch.float32)
        trained = [each.requires_grad_() for each in parameters if each.is_floating_point()]
        optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=weight_decay)
        steps = epochs * -(-len(decisions) // batch)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        mean = 0.0
        for _ in range(epochs):
            total = 0.0
            order = torch.randperm(len(decisions), generator=generator)
            for chosen in torch.split(order, batch):
                optimizer.zero_grad()
                loss = batches.loss(parameters, chosen)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                total += loss.item() * len(chosen)
            mean = total / len(decisions)
            progress(1)
    return _read_back(policy, parameters), mean


class _Batches:
    """The decisions as tensors. N decisions, M resolvents of all decisions, A atoms.

    goals:      int32 [N, A, 3]
    resolvents: int32 [M, A, 3]
    num:        int64 [N]        resolvents of each decision
    starts:     int64 [N]        the first of them
    choice:     int64 [N]        the index of the right one
    """

    def __init__(self, decisions: Sequence[Decision]) -> None:
        rows = [goal for each in decisions for goal in each.resolvents]
        width = max(len(goal) for goal in (*rows, *(each.goal for each in decisions)))
        self.goals = _pad([each.goal for each in decisions], width)
        self.resolvents = _pad(rows, width)
        self.num = torch.tensor([len(each.resolvents) for each in decisions])
        self.starts = self.num.cumsum(0) - self.num
        self.choice = torch.tensor([each.choice for each in decisions])

    def loss(self, parameters: Parameters, chosen: Tensor) -> Tensor:
        """Return the mean loss of some decisions, int64 [n]."""
        num = self.num[chosen]
        slot = torch.repeat_interleave(torch.arange(len(chosen)), num)
        index = torch.arange(len(slot)) - torch.repeat_interleave(num.cumsum(0) - num, num)
        rows = self.starts[chosen][slot] + index
        score = score_two_tower(parameters, self.goals[chosen], self.resolvents[rows], slot)
        padded = torch.full((len(chosen), int(num.max())), -torch.inf).index_put((slot, index), score)
        return functional.cross_entropy(padded, self.choice[chosen])


def _pad(goals: Sequence[Sequence[tuple[int, int, int]]], width: int) -> Tensor:
    padded = np.full((len(goals), width, 3), PAD, np.int32)
    for row, goal in zip(padded, goals, strict=True):
        row[: len(goal)] = goal
    return torch.from_numpy(padded)


def _read_back(policy: Policy, parameters: Parameters) -> Policy:
    predicate, argument, num_variables, weight, bias, *blocks = (each.detach().numpy().copy() for each in parameters)
    variables, constants = np.split(argument, [int(num_variables)])
    weights = {
        "embedding.predicate": predicate,
        "embedding.constant": constants,
        "embedding.variable": variables,
        "input.weight": weight,
        "input.bias": bias,
    }
    parts = [
        f"block.{i}.{part}" for i in range(policy.num_blocks) for part in ("weight", "bias", "norm.weight", "norm.bias")
    ]
    return Policy(policy.name, weights | dict(zip(parts, blocks, strict=True)))


@contextmanager
def _single_thread() -> Iterator[None]:
    """Use one thread, so that sums have the same order on any number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
