"""Evaluators as people write them: a right one, and some with one mistake each, over candidates of which some are known."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kgverify.trace.model.columns import Rankings
from kgverify.trace.model.trace import Trace


@dataclass
class Scored:
    """The candidates of a query and side: their scores, which one is true, and which are known in which split."""

    scores: np.ndarray
    true: np.ndarray
    known: dict[str, np.ndarray]
    any_relation: np.ndarray
    side: int
    proved: np.ndarray
    rng: np.random.Generator

    def kept(self, *splits: str) -> np.ndarray:
        """Return which candidates a filter of splits leaves."""
        return self.true | ~np.any([self.known[split] for split in splits], axis=0)

    def rank(self, kept=None, scores=None, *, tie="mean"):
        """Return the number of ranked candidates and both bounds of the rank."""
        kept = self.kept("train", "valid", "test") if kept is None else kept
        scores = self.scores if scores is None else scores
        own, others = scores[self.true][0], scores[kept & ~self.true]
        low = 1.0 + (others > own).sum()
        high = low + (others == own).sum()
        if tie == "bounds":
            return len(others) + 1, low, high
        ranks = {
            "mean": (low + high) / 2,
            "min": low,
            "max": high,
            "up": np.ceil((low + high) / 2),
            "int": (low + high) // 2,
        }
        rank = ranks[tie] if tie in ranks else float(self.rng.integers(low, high + 1))
        return len(others) + 1, rank, rank


def _add(ranks, by):
    num, low, high = ranks
    return num, low + by, high + by


def _few(g, num=10):
    kept = g.kept("train", "valid", "test")
    return g.rank(kept & (np.cumsum(kept & ~g.true) < num) | g.true)


def _sampled(g, num=20):
    others = np.flatnonzero(g.kept("train", "valid", "test") & ~g.true)
    drawn = g.rng.permutation(others)[:num]
    return g.rank(g.true | np.isin(np.arange(len(g.true)), drawn))


Evaluate = Callable[[Scored], "tuple[float, ...] | None"]

RIGHT: dict[str, Evaluate] = {"mean": Scored.rank, "both bounds": lambda g: g.rank(tie="bounds")}

FILTERS = {
    "no filter": lambda g: g.rank(np.ones_like(g.true)),
    "filter of train only": lambda g: g.rank(g.kept("train")),
    "filter of valid only": lambda g: g.rank(g.kept("valid")),
    "filter of test only": lambda g: g.rank(g.kept("test")),
    "filter without valid": lambda g: g.rank(g.kept("train", "test")),
    "filter on the head side only": lambda g: g.rank() if g.side == 0 else g.rank(np.ones_like(g.true)),
    "known masked by 0": lambda g: g.rank(
        np.ones_like(g.true), np.where(g.kept("train", "valid", "test"), g.scores, 0.0)
    ),
    "filter of any relation": lambda g: g.rank(g.true | ~g.any_relation),
}
WRONG: dict[str, tuple[Evaluate, str, str]] = {
    "one more": (lambda g: _add(g.rank(), 1), "each rank is one too high", "each rank is one too high"),
    "at least, itself too": (lambda g: _add(g.rank(tie="max"), 1), "each rank is one too high", "higher"),
    "counted from 0": (lambda g: _add(g.rank(), -1), "counted from 0", "counted from 0"),
    "ascending": (lambda g: g.rank(scores=-g.scores), "the lowest score ranks first", "the lowest score ranks first"),
    "true filtered": (
        lambda g: (*g.rank()[:1], *g.rank()[:1] * 2), "the true triple ranks last", "the true triple ranks last",
    ),
    "the first 10": (_few, "only the first candidates of each ranking count, 10 of them", "no actual rank is above"),
    "sampled 20": (_sampled, "as if drawn at random, 21 of them", "no actual rank is above"),
    "only tails": (lambda g: g.rank() if g.side else None, "the head side is not ranked", "the head side is not ranked"),
    "maximum": (lambda g: g.rank(tie="max"), "ties count as higher", "ties count as higher"),
    "minimum": (lambda g: g.rank(tie="min"), "ties count as lower", "ties count as lower"),
    "random ties": (lambda g: g.rank(tie="random"), "ties are broken at random", "ties are broken at random"),
    "rounded up": (lambda g: g.rank(tie="up"), "the mean, rounded up", "the mean, rounded up"),
    "cut to int": (lambda g: g.rank(tie="int"), "the mean, rounded down", "the mean, rounded down"),
    "NaN first": (
        lambda g: g.rank(scores=np.where(g.proved, g.scores, np.inf)), "what is not proved ranks first", "",
    ),
    "NaN compared": (
        lambda g: g.rank(scores=np.where(g.proved, g.scores, np.nan)),
        "what is not proved ranks neither",
        "",
    ),
    "no filter": (FILTERS["no filter"], "each candidate once", "filter lacked"),
    "filter of train only": (FILTERS["filter of train only"], "of train alone", "filter lacked"),
    "filter of valid only": (FILTERS["filter of valid only"], "of valid alone", "filter lacked"),
    "filter of test only": (FILTERS["filter of test only"], "of test alone", "filter lacked"),
    "filter without valid": (FILTERS["filter without valid"], "of test and train alone", "filter lacked valid"),
    "filter on the head side only": (FILTERS["filter on the head side only"], "on the head side alone", "only the side tail"),
    "known masked by 0": (FILTERS["known masked by 0"], "known true triples rank first", "filter lacked"),
    "filter of any relation": (FILTERS["filter of any relation"], "true in any relation", ""),
}  # fmt: skip
"""The evaluator of each mistake, and what its rule and the pattern of its ranks say; an empty text if ranks alone do not tell."""


def rank_by(trace: Trace, evaluate: Evaluate, splits: dict[str, np.ndarray], *, exchanges: bool = False) -> Rankings:
    """Rank the candidates of a trace as an evaluator does."""
    c, rng, rows = trace.columns.candidates, np.random.default_rng(5), []
    scores = c.log_probability - 100.0 * (c.outcome != 1)
    atoms = list(map(tuple, c.atom.tolist()))
    sets = {split: set(map(tuple, own.tolist())) for split, own in splits.items()}
    known = {split: np.array([atom in own for atom in atoms]) for split, own in sets.items()}
    pairs = {atom[1:] for own in sets.values() for atom in own}
    in_any = np.array([atom[1:] in pairs for atom in atoms])
    true = (c.atom == splits["test"][c.query]).all(1)
    for query, side in sorted(set(zip(c.query.tolist(), c.side.tolist(), strict=True))):
        mask = (c.query == query) & (c.side == (1 - side if exchanges else side))
        own = {split: values[mask] for split, values in known.items()}
        group = Scored(scores[mask], true[mask], own, in_any[mask], side, c.outcome[mask] == 1, rng)
        found = evaluate(group)
        if found is not None:
            rows.append((query, side, *found))
    dtypes = np.int32, np.int8, np.uint32, np.float64, np.float64
    return Rankings(*(np.array(x, dtype) for x, dtype in zip(zip(*rows, strict=True), dtypes, strict=True)))


def write_ranks(path: Path, rankings: Rankings, *, has_bounds: bool = False) -> Path:
    """Write a table of mean ranks, or of their bounds."""
    query, side = rankings.query.tolist(), [("head", "tail")[side] for side in rankings.side]
    ranks = (
        (rankings.optimistic, rankings.pessimistic)
        if has_bounds
        else ((rankings.optimistic + rankings.pessimistic) / 2,)
    )
    sign = "," if path.suffix == ".csv" else "\t"
    rows = [("query", "side", *(("optimistic", "pessimistic") if has_bounds else ("rank",)))]
    rows += zip(query, side, *(each.tolist() for each in ranks), strict=True)
    path.write_text("".join(f"{sign.join(map(str, row))}\n" for row in rows))
    return path
