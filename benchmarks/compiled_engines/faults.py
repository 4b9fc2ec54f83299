"""Twelve faults for each family, half of which show in scores only, with the stages that a right report may name.

A fault of a table or a weight is a change of a buffer, so that a compiled step needs no other compilation.
"""

import torch

SCORES, LISTS = "scores", "lists"


class Fault:
    """A fault of an engine.

    shows_in: `SCORES` or `LISTS`
    stages:   the stages that a right report may name
    reason:   why there are several, if so
    """

    name, shows_in, stages, reason = "", SCORES, ("score",), ""

    def change_modules(self, search, scorer):
        """Change tables or weights, in place."""

    def change_excluded(self, excluded):
        """Return other queries that may not be used as facts."""
        return excluded

    def change_outputs(self, engine, out):
        """Return other outputs of a step."""
        return out

    def change_counts(self, counts):
        """Return other counts for the choice."""
        return counts


class PreviousScores(Fault):
    """The scores that the last call left in the output buffer."""

    name, stages = "previous-scores", ("score", "recycle")
    reason = "the scores are wrong, by a buffer around the step"
    buffer = None

    def change_outputs(self, engine, out):
        scores, previous = out["scores"], self.buffer
        self.buffer = scores.clone()
        if previous is None or previous.shape[1:] != scores.shape[1:]:
            return out
        num = min(len(previous), len(scores))
        return {**out, "scores": torch.cat([previous[:num], scores[num:]])}


class OtherRow(Fault):
    """The scores of the row before."""

    name, stages = "other-row", ("score", "recycle")
    reason = "the scores are wrong, and depend on the batch"

    def change_outputs(self, engine, out):
        return {**out, "scores": out["scores"].roll(1, 0)}


class StaleWeight(Fault):
    """One layer has its weights from before an update."""

    name = "stale-weight"

    def change_modules(self, search, scorer):
        generator = torch.Generator().manual_seed(3)
        weight = scorer.stale.weight
        noise = torch.randn(weight.shape, generator=generator) * weight.std()
        weight.data.add_(0.05 * noise)


class WrongMask(Fault):
    """Padding takes part as if it were atoms."""

    name = "wrong-mask"

    def change_modules(self, search, scorer):
        scorer.padding_weight.fill_(1)


class Temperature(Fault):
    """Scores divided by 1.1."""

    name = "temperature"

    def change_outputs(self, engine, out):
        return {**out, "scores": out["scores"] / 1.1}


class HalfScores(Fault):
    """Scores that were float16 for a moment."""

    name = "half-scores"

    def change_outputs(self, engine, out):
        return {**out, "scores": out["scores"].half().float()}


class Bfloat16Weights(Fault):
    """A layer in bfloat16."""

    name = "bfloat16-layer"

    def change_modules(self, search, scorer):
        weight = scorer.stale.weight
        weight.data.copy_(weight.data.bfloat16().float())


class FactCap(Fault):
    """Only the first facts of a predicate are tried."""

    name, shows_in, stages = "fact-cap", LISTS, ("match_facts",)

    def change_modules(self, search, scorer):
        search.cap.fill_(100)


class NarrowKey(Fault):
    """Keys of predicate and argument lose their high bits."""

    name, shows_in, stages = "narrow-key", LISTS, ("match_facts",)

    def change_modules(self, search, scorer):
        search.modulus.fill_(1 << 10)


class QueryAsFact(Fault):
    """The query may be used as a fact in its own proof."""

    name, shows_in, stages = "query-as-fact", LISTS, ("match_facts", "prune")
    reason = "both stages read the excluded atom; at the first step only match_facts can differ"

    def change_excluded(self, excluded):
        return torch.zeros_like(excluded)


class ForgetfulPrune(Fault):
    """Facts of the last predicates stay in goals."""

    name, shows_in, stages = "forgetful-prune", LISTS, ("prune",)

    def change_modules(self, search, scorer):
        search.last_pruned.fill_(2 * len(search.bodies) // 3)


class LastRow(Fault):
    """The last row of a batch repeats the row before it."""

    name, shows_in, stages = "last-row", LISTS, ("recycle",)

    def change_outputs(self, engine, out):
        if len(out["counts"]) < 2 or len(out["counts"]) % 32 == 0:
            return out
        names = ("successors", "counts", "scores")
        return {**out, **{name: torch.cat([out[name][:-1], out[name][-2:-1]]) for name in names}}


class ReversedLists(Fault):
    """Lists of an odd number of successors are in reverse order."""

    name, shows_in, stages = "reversed-lists", LISTS, ("resolve", "match_rules", "match_facts")
    reason = "rules among rules, facts among facts, and both among each other are ordered by these stages"

    def change_outputs(self, engine, out):
        counts = out["counts"][:, None]
        index = torch.arange(out["scores"].shape[1], device=counts.device).expand_as(out["scores"])
        index = torch.where((counts % 2 == 1) & (index < counts), counts - 1 - index, index)
        successors = out["successors"].gather(1, index[..., None, None].expand_as(out["successors"]))
        return {**out, "successors": successors, "scores": out["scores"].gather(1, index)}


class StaleCounts(Fault):
    """The choice among as many successors as the row before has."""

    name, shows_in, stages = "stale-counts", LISTS, ("choose", "recycle")
    reason = "the choice is wrong, and depends on the batch"

    def change_counts(self, counts):
        return torch.minimum(counts, counts.roll(1, 0).clamp(min=1))


class Offset(Fault):
    """A number added to one resolvent's score in a quarter of the states, by the states' content."""

    def __init__(self, bound: float, factor: float) -> None:
        self.factor, self.offset = factor, factor * bound
        self.name = f"offset-{factor:g}"

    def change_outputs(self, engine, out):
        successors, counts, scores = out["successors"], out["counts"], out["scores"]
        content = (successors * torch.tensor([131, 31, 17], device=counts.device)).sum((-1, -2, -3))
        is_wrong = (content % 4 == 0) & (counts > 1)
        row = torch.arange(scores.shape[1], device=counts.device)
        is_wrong = is_wrong[:, None] & (row == (content % counts.clamp(min=1))[:, None])
        return {**out, "scores": torch.where(is_wrong, scores + self.offset, scores)}


FACTORS = (1.5, 3, 10, 30, 100)
"""The sizes of an `Offset`, in bounds."""


def list_faults(family, gives_choice):
    """Return the classes of the twelve faults of a family."""
    coarse = HalfScores if family in ("dot", "attention", "ragged") else Bfloat16Weights
    order = StaleCounts if gives_choice else ReversedLists
    in_scores = [PreviousScores, OtherRow, StaleWeight, WrongMask, Temperature, coarse]
    return [*in_scores, FactCap, NarrowKey, QueryAsFact, ForgetfulPrune, LastRow, order]
