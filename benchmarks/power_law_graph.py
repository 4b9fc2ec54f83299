"""Write a graph whose entities follow a power law and whose relations follow Zipf's law, with rules as a miner lists them.

    python benchmarks/power_law_graph.py FOLDER --facts 5000000 --rules 2000

The body of each rule is a walk through the graph, so that its instances exist. Support and confidence are drawn.
"""

import argparse
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

EXPONENT: Final = 0.75
"""The exponent of the entities' power law: the weight of the k-th is `k ** -EXPONENT`."""
FACTS_PER_ENTITY: Final = 8
NUM_TEST: Final = 1_000
_SHARE_WITH_CONSTANT: Final = 0.15
_LINES: Final = 1 << 18


class Triples(NamedTuple):
    """Triples in ids. head, relation, tail: int64 [n]."""

    head: NDArray[np.int64]
    relation: NDArray[np.int64]
    tail: NDArray[np.int64]


def draw_triples(num: int, num_entities: int, num_relations: int, random: np.random.Generator) -> Triples:
    """Draw different triples. Each relation has hubs of its own."""
    # Some are drawn twice.
    drawn = int(num * 1.3) + 100
    relation = (num_relations ** random.random(drawn)).astype(np.int64) - 1
    offsets = random.integers(0, num_entities, (2, num_relations))
    head, tail = (
        ((num_entities * random.random(drawn) ** (1 / (1 - EXPONENT))).astype(np.int64) + offsets[side, relation])
        % num_entities
        for side in (0, 1)
    )
    _, first = np.unique((relation * num_entities + head) * num_entities + tail, return_index=True)
    chosen = random.permutation(first)[:num]
    return Triples(head[chosen], relation[chosen], tail[chosen])


def draw_rules(triples: Triples, num: int, num_relations: int, random: np.random.Generator) -> list[str]:
    """Draw rules in AnyBURL's format: paths of one to three atoms, some of them with constants."""
    head, relation, tail = triples
    by_head = np.argsort(head, kind="stable")
    heads = head[by_head]

    def walk(entity: int, length: int) -> list[int]:
        """Return the triples of a walk from an entity."""
        low, high = np.searchsorted(heads, (entity, entity + 1))
        if not length or low == high:
            return []
        each = int(by_head[random.integers(low, high)])
        return [each, *walk(int(tail[each]), length - 1)]

    rules: dict[str, None] = {}
    while len(rules) < num:
        start = int(random.integers(len(head)))
        found = walk(int(head[start]), int(random.choice((1, 2, 3), p=(0.3, 0.6, 0.1))))
        names = ["X", *"ABC"[: len(found) - 1], "Y"]
        body = [f"r{relation[each]}({names[i]},{names[i + 1]})" for i, each in enumerate(found)]
        concluded = int(num_relations ** random.random()) - 1
        if random.random() < _SHARE_WITH_CONSTANT:
            body = [f"r{relation[found[0]]}(X,e{tail[found[0]]})"]
            clause = f"r{concluded}(X,e{tail[start]}) <= {body[0]}"
        else:
            clause = f"r{concluded}(X,Y) <= {', '.join(body)}"
        support = int(random.integers(5, 5_000))
        rules.setdefault(f"{int(support / 0.6)}\t{support}\t{random.uniform(0.1, 0.99):.4f}\t{clause}")
    return list(islice(rules, num))


def write_graph(folder: Path, num_facts: int, num_rules: int, num_relations: int, seed: int) -> None:
    """Write train.txt, test.txt and rules.txt."""
    random = np.random.default_rng(seed)
    num_entities = max(8, num_facts // FACTS_PER_ENTITY)
    triples = draw_triples(num_facts + NUM_TEST, num_entities, num_relations, random)
    folder.mkdir(parents=True, exist_ok=True)
    train = Triples(*(column[NUM_TEST:] for column in triples))
    for name, part in (("train", train), ("test", Triples(*(column[:NUM_TEST] for column in triples)))):
        with (folder / f"{name}.txt").open("w") as file:
            for begin in range(0, len(part.head), _LINES):
                rows = zip(*(column[begin : begin + _LINES].tolist() for column in part), strict=True)
                file.write("".join([f"e{head}\tr{relation}\te{tail}\n" for head, relation, tail in rows]))
    (folder / "rules.txt").write_text("\n".join(draw_rules(train, num_rules, num_relations, random)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--facts", type=int, default=1_000_000)
    parser.add_argument("--rules", type=int, default=500)
    parser.add_argument("--relations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write_graph(options.folder, options.facts, options.rules, options.relations, options.seed)


if __name__ == "__main__":
    main()
