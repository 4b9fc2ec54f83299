"""The truth about an engine, from the raw outputs of its calls and without a comparison by kgverify."""

from typing import NamedTuple

import torch

from kgverify.ranking.draw import draw_candidates
from kgverify.runs.job import Job, Proofs, Queries, Source

ROUNDINGS = 100
"""The units of float32 at the largest score that count as rounding here: more than any family needs."""


class Truth(NamedTuple):
    """The largest differences between the outputs of two engines for the same calls.

    scores:   of a listed score, relative to the largest score
    is_list:  whether a list or a count differs
    is_choice: whether a choice differs while the scores that it rests on are equal
    """

    scores: float
    is_list: bool
    is_choice: bool

    @property
    def is_observable(self) -> bool:
        """True if the difference is more than rounding."""
        return self.is_list or self.is_choice or self.scores > ROUNDINGS * torch.finfo(torch.float32).eps


def draw(graph, limits, num_queries, num_corruptions):
    """Return the run's policy and its candidates, as `kgverify.verify` draws them."""
    job = Job(Source(graph), Queries(num_queries, num_corruptions), proofs=Proofs(limits))
    run = job.make_run()
    return run.policy, draw_candidates(graph, run.split, run.queries, num_corruptions, run.seed)


def list_calls(engine, candidates):
    """Return the inputs of each call of a run of the engine."""
    engine.calls = []
    engine.prove(candidates)
    calls, engine.calls = engine.calls, None
    return calls


def compare_calls(right, wrong, calls):
    """Return the truth about an engine: its outputs, call for call, beside those of a right one."""
    largest = difference = 0.0
    is_list = is_choice = False
    for call in calls:
        a, b = (engine.expand(*(each.clone() for each in call)) for engine in (right, wrong))
        is_list |= not (torch.equal(a["counts"], b["counts"]) and torch.equal(a["successors"], b["successors"]))
        largest = max(largest, a["scores"].abs().max().item())
        gap = (a["scores"] - b["scores"]).abs().max().item()
        is_choice |= "choice" in a and gap == 0 and not torch.equal(a["choice"], b["choice"])
        difference = max(difference, gap)
    return Truth(difference / largest, is_list, is_choice)


def measure_rounding(right, other, calls):
    """Return the largest difference of scores between two right engines, absolute; at least a rounding of the largest."""
    difference = largest = 0.0
    for call in calls:
        a, b = (engine.expand(*(each.clone() for each in call))["scores"] for engine in (right, other))
        difference = max(difference, (a - b).abs().max().item())
        largest = max(largest, a.abs().max().item())
    return max(difference, largest * torch.finfo(torch.float32).eps / 2)
