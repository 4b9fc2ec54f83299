"""The environment of a prover: one in plain Python for one query, and one in torch for a batch of them.

A state is an entity and the query that it came from. An action follows one of the entity's facts; the query is proved when
its answer is reached, and given up after four steps.

    kgverify env diff examples/environments/prover.py:plain examples/environments/prover.py:batched
    kgverify env diff examples/environments/prover.py:plain examples/environments/prover.py:capped
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import kgverify as kv

FACTS = {0: (1, 2, 3, 4), 1: (0, 5), 2: (0,), 3: (0, 6), 4: (0, 7), 5: (1, 8), 6: (3,), 7: (4, 8), 8: (5, 7)}
"""The entities that the facts of an entity lead to."""

QUERIES = ((0, 8), (1, 7), (2, 6), (3, 5), (4, 0), (5, 2), (8, 3), (6, 1))
"""Pairs of an entity and the answer."""

MAX_STEPS = 4
MOST_FACTS = max(map(len, FACTS.values()))


class PlainProver:
    """One query at a time, in the interface of Gymnasium."""

    def reset(self, *, seed: int, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin the query of a seed."""
        self.at, self.answer = QUERIES[seed % len(QUERIES)]
        self.steps = 0
        return self.observe()

    def step(self, action: int) -> tuple[Any, ...]:
        """Follow a fact."""
        self.at = FACTS[self.at][action]
        self.steps += 1
        is_proved = self.at == self.answer
        observation, info = self.observe()
        return observation, float(is_proved), is_proved, not is_proved and self.steps == MAX_STEPS, info

    def observe(self) -> tuple[Any, dict[str, Any]]:
        """Return the entity and the answer, and which actions lead on."""
        mask = [number < len(FACTS[self.at]) for number in range(MOST_FACTS)]
        return {"at": self.at, "answer": self.answer}, {"action_mask": mask}


class State(NamedTuple):
    """The states of a batch: int64 [B] each."""

    at: Tensor
    answer: Tensor
    steps: Tensor


class BatchedProver:
    """The same on tensors: facts are a table [entities, width], padded with -1."""

    num_actions = MOST_FACTS
    autoreset = "disabled"

    def __init__(self, width: int = MOST_FACTS) -> None:
        # Too narrow a table loses facts, as the buffer of a compiled prover does.
        rows = [[*facts[:width], *[-1] * (MOST_FACTS - len(facts[:width]))] for facts in FACTS.values()]
        self.facts, self.queries = torch.tensor(rows), torch.tensor(QUERIES)

    def reset(self, seeds: Any) -> State:
        """Begin the query of each seed."""
        at, answer = self.queries[torch.as_tensor(seeds) % len(QUERIES)].unbind(1)
        return State(at, answer, torch.zeros_like(at))

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor, Tensor]:
        """Follow a fact in every slot."""
        at = self.facts[state.at, action]
        following = State(at, state.answer, state.steps + 1)
        is_proved = at == state.answer
        return following, is_proved.float(), is_proved, ~is_proved & (following.steps == MAX_STEPS)

    def observe(self, state: State) -> dict[str, Tensor]:
        """Return the entity and the answer."""
        return {"at": state.at, "answer": state.answer}

    def mask(self, state: State) -> Tensor:
        """Return which actions lead on: bool [B, A]."""
        return self.facts[state.at] >= 0


plain = kv.EnvironmentSpec(PlainProver, seeds="episode", actions=MOST_FACTS)
batched = kv.EnvironmentSpec(BatchedProver())
capped = kv.EnvironmentSpec(BatchedProver(width=3))
