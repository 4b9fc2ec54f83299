"""Compare the ranks of other people's evaluators with ours, on generated scores and graphs.

    python -m benchmarks.third_party_rankers --graphs 1000 pykeen torchkge

A problem is one ranking: a test triple with one side replaced by every entity, known triples left out where the evaluator
does so. Scores tie often. The ranks of `kgverify.ranking` are expected, and `scipy.stats.rankdata` ranks the same scores
independently: a problem counts as `differs` where these two agree. The script exits with 1 where they do not.
"""

import argparse
import importlib
import json
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from kgverify.program.outcomes import Outcome
from kgverify.ranking.rank import rank_scores
from kgverify.trace.model.columns import Candidates

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "third_party"
RANKERS = ("pykeen", "torchkge", "ogb", "tgb", "torch_geometric", "torchmetrics", "pytrec_eval", "sklearn")
UNFILTERED = {"torch_geometric"}
"""The evaluators that rank known triples as well."""
TOLERANCE = 1e-5
"""The relative error of a rank that a library gives as its float32 reciprocal."""


def draw_graph(rng):
    """Return scores, test triples, known triples, among them the test triples, with repetitions, and a batch size."""
    num_entities, num_relations = int(rng.choice([1, 2, 3, 5, 8, 13, 40])), int(rng.integers(1, 4))
    shape = (num_entities, num_relations, num_entities)
    kind = rng.integers(4)
    if kind == 0:
        scores = rng.integers(-2, 3, shape) / 4  # many ties
    elif kind == 1:
        scores = rng.normal(size=shape)
    elif kind == 2:
        scores = 1 + rng.integers(0, 3, shape) * 2.0**-22  # apart by a rounding of float32
    else:
        scores = np.full(shape, rng.integers(-1, 2) / 2)  # all tie

    def draw_triples(num):
        return np.stack([rng.integers(0, size, num) for size in shape], axis=1)

    tests = draw_triples(int(rng.choice([1, 2, 8, 64, 256])))
    known = np.concatenate([draw_triples(int(rng.choice([0, 1, 5, 30]))), tests])
    known = known[rng.integers(0, len(known), 2 * len(known))] if rng.random() < 0.5 else known
    known = np.concatenate([known, tests])
    batch_size = int(rng.choice([1, 2, 3, len(tests), 100]))
    return scores.astype(np.float32), tests.tolist(), known.tolist(), batch_size


def list_candidates(scores, tests, known):
    """Return the candidates of every ranking, with their scores and where each ranking ends: the test triple first."""
    triples = set(map(tuple, known))
    rows, sizes = [], []
    for query, (h, r, t) in enumerate(tests):
        for side in (0, 1):
            replaced = [(e, r, t) if side == 0 else (h, r, e) for e in range(len(scores))]
            others = [each for each in replaced if each not in triples and each != (h, r, t)]
            rows += [(query, side, *each) for each in [(h, r, t), *others]]
            sizes.append(1 + len(others))
    table = np.array(rows, np.int32)
    num = len(table)
    columns = (np.ones(num, np.uint32), np.full(num, Outcome.PROVED, np.int8), np.zeros(num, np.uint8), np.zeros(num))
    atoms = table[:, [3, 2, 4]]
    found = scores[table[:, 2], table[:, 3], table[:, 4]].astype(np.float64)
    return Candidates(table[:, 0], table[:, 1].astype(np.int8), atoms, *columns), found, np.cumsum(sizes)


def expect(scores, tests, known):
    """Return the bounds of the ranks by side, by us and by scipy."""
    candidates, found, ends = list_candidates(scores, tests, known)
    ours = rank_scores(candidates, found, np.array(tests, np.int32)[:, [1, 0, 2]], 0.0)
    bounds = list(zip(ours.optimistic.tolist(), ours.pessimistic.tolist(), strict=True))
    rankings = np.split(-found, ends[:-1])
    theirs = [tuple(rankdata(each, method)[0] for method in ("min", "max")) for each in rankings]
    return {name: (bounds[side::2], theirs[side::2]) for side, name in ((0, "head"), (1, "tail"))}


def is_expected(rank, low, high, ties):
    """Return whether a rank is the one between the bounds that the way of ties gives."""
    if ties == "any":
        return low * (1 - TOLERANCE) <= rank <= high * (1 + TOLERANCE) and abs(rank - round(rank)) <= TOLERANCE * rank
    wanted = {"optimistic": low, "realistic": (low + high) / 2, "pessimistic": high}[ties]
    return abs(rank - wanted) <= TOLERANCE * wanted


def judge(package, seed, num_graphs, deadline=float("inf")):
    """Return counts of problems by result, and examples of those that differ."""
    sys.path.insert(0, str(EXAMPLES))
    adapter = importlib.import_module(f"{package}_adapter")
    counts, examples = Counter(), []
    for number in range(num_graphs):
        if time.monotonic() > deadline:
            break
        scores, tests, known, batch_size = draw_graph(np.random.default_rng((seed, number)))
        bounds = expect(scores, tests, [] if package in UNFILTERED else known)
        counts["graphs"] += 1
        found = adapter.find_ranks(scores, tests, known, batch_size)
        counts["problems"] += sum(len(tests) for _ in {side for side, _ in found})
        for (side, ties), ranks in found.items():
            counts["ranks"] += len(ranks)
            for test, rank, ours, theirs in zip(tests, ranks, *bounds[side], strict=True):
                counts["ties"] += ours[0] < ours[1]
                if ours != theirs:
                    counts["judges differ"] += 1
                elif not is_expected(rank, *ours, ties):
                    counts["differs"] += 1
                    examples.append((number, side, ties, test, rank, ours))
    return counts, examples


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", help=f"of {', '.join(RANKERS)}; all by default")
    parser.add_argument("--graphs", type=int, default=200, help="number of graphs for each package")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop a package after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0, help="print this many problems that differ")
    arguments = parser.parse_args()
    is_right = True
    for package in arguments.packages or RANKERS:
        end = time.monotonic() + arguments.seconds
        counts, examples = judge(package, arguments.seed, arguments.graphs, end)
        print(json.dumps({"package": package, "seed": arguments.seed, **counts}), flush=True)
        for example in examples[: arguments.show]:
            print("   ", *example, sep="  ")
        is_right = is_right and not counts["judges differ"]
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
