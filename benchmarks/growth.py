"""Growth of time and memory, and large graphs."""

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared import make_parser, print_header, print_row
from kgverify.engines.policy import SHORTEST
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.rules import parse_rules
from kgverify.program.atom_table import AtomTable
from kgverify.program.limits import Limits
from kgverify.prover.evaluator import Evaluator
from kgverify.ranking.draw import draw_candidates
from kgverify.trace.model.columns import CandidateSet

# Large graphs


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


def run_large_graph(words: list[str]) -> None:
    """Write a graph whose entities follow a power law and whose relations follow Zipf's law, with rules as a miner lists them.

        python -m benchmarks large-graph FOLDER --facts 5000000 --rules 2000

    The body of each rule is a walk through the graph, so that its instances exist. Support and confidence are drawn.
    """
    parser = make_parser(run_large_graph)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("large"))
    parser.add_argument("--facts", type=int, default=5_000_000)
    parser.add_argument("--rules", type=int, default=2_000)
    parser.add_argument("--relations", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    write_graph(options.folder, options.facts, options.rules, options.relations, options.seed)


# Growth


POINTS: Final = {
    "facts": (20_000, 80_000, 320_000, 1_280_000),
    "rules": (25, 50, 100, 200, 400),
    "candidates": (1_010, 4_040, 16_160, 64_640),
    "depth": (8, 16, 32, 64, 128),
    "slots": (32, 64, 128, 256),
}
TINY: Final = {
    "facts": (200, 400),
    "rules": (2, 4),
    "candidates": (22, 44),
    "depth": (2, 4),
    "slots": (4, 8),
}
MEASURED: Final = {"setup": "set-up, s", "each": "µs a candidate", "memory": "peak memory, MB"}
REPEATS: Final = 3


class Point(NamedTuple):
    """A measurement. setup: seconds; each: microseconds; memory: MB; ends: a digest of the ends of all candidates."""

    setup: float
    each: float
    memory: float
    ends: str


def draw_graph(num_facts: int, num_rules: int, num_copies: int = 1, num_relations: int = 40) -> KnowledgeGraph:
    """Draw a power-law graph with rules, and repeat its facts with other entities."""
    random = np.random.default_rng(0)
    num_entities = max(8, num_facts // FACTS_PER_ENTITY)
    num_test = max(2, num_facts // 100)
    drawn = draw_triples(num_facts + num_test, num_entities, num_relations, random)
    triples = np.stack([drawn.relation, drawn.head, drawn.tail], 1).astype(np.int32)
    facts = np.concatenate([triples[num_test:]] * num_copies)
    facts[:, 1:] += np.repeat(np.arange(num_copies, dtype=np.int32), len(triples) - num_test)[:, None] * num_entities
    predicates = tuple(f"r{i}" for i in range(num_relations))
    constants = tuple(f"e{i}" for i in range(num_entities * num_copies))
    lines = draw_rules(type(drawn)(*(column[num_test:] for column in drawn)), num_rules, num_relations, random)
    rules = parse_rules("\n".join(lines), "rules.txt", constants=constants, predicates=predicates).rules
    tables = (AtomTable(predicates, constants, rows) for rows in (facts, triples[:num_test]))
    train, test = tables
    return KnowledgeGraph("growth", train=train, test=test, rules=rules)


def draw_chain(length: int) -> KnowledgeGraph:
    """Draw a chain whose end cannot be reached from the other end: a derivation takes as many steps as it may."""
    facts = np.zeros((length, 3), np.int32)
    facts[:, 1] = np.arange(length)
    facts[:, 2] = facts[:, 1] + 1
    names = ("next", "reach"), tuple(f"e{i}" for i in range(length + 1))
    queries = np.stack([np.full(100, 1), np.arange(100) % 10, np.zeros(100)], 1).astype(np.int32)
    rule = "reach(X,Y) :- next(X,Z), reach(Z,Y).\n"
    rules = parse_rules(rule, "rules.txt", constants=names[1], predicates=names[0]).rules
    return KnowledgeGraph("chain", train=AtomTable(*names, facts), test=AtomTable(*names, queries), rules=rules)


def draw_alike(graph: KnowledgeGraph, base: KnowledgeGraph, num: int) -> CandidateSet:
    """Draw candidates in a graph, and return them in the ids of another one that has the same names."""
    num_queries = min(len(base.test), max(1, num // 101))
    drawn = draw_candidates(base, "test", range(num_queries), num // num_queries // 2, 0)
    source, target = base.program.symbols, graph.program.symbols
    predicates = np.array([target.predicate_ids[name] for name in source.predicates], np.int32)
    constants = np.array([target.constant_ids[name] for name in source.constants], np.int32)
    atoms = np.stack([predicates[drawn.atom[:, 0]], constants[drawn.atom[:, 1]], constants[drawn.atom[:, 2]]], 1)
    return drawn._replace(atom=atoms).take(np.arange(min(num, len(atoms))))


def measure_point(axis: str, value: int, smallest: int, mode: str, is_tiny: bool) -> Point:
    """Measure one point of an axis; smallest: its first value."""
    num_facts, num_rules, num = (200, 4, 44) if is_tiny else (20_000, 50, 4_040)
    limits = Limits(max_depth=value) if axis == "depth" else Limits()
    if axis == "depth":
        base = graph = draw_chain(2 * max(POINTS["depth"]))
    else:
        base = draw_graph(smallest if axis == "facts" else num_facts, value if axis == "rules" else num_rules)
        graph = draw_graph(smallest, num_rules, value // smallest) if axis == "facts" else base
    num = value if axis == "candidates" else num // 10 if axis == "slots" else num
    began = time.process_time()
    graph.program  # noqa: B018  made once, by the first who asks
    numbered = time.process_time() - began
    candidates = draw_alike(graph, base, num)
    began = time.process_time()
    settings = {"mode": "eager", "slots": value} if axis == "slots" else {"mode": mode}
    engine = Evaluator(device="cpu", **settings)(graph.program, limits, SHORTEST)
    setup = numbered + time.process_time() - began
    seconds = []
    for _ in range(REPEATS):
        began = time.process_time()
        results = engine.evaluate(candidates).results
        seconds.append(time.process_time() - began)
    digest = hashlib.sha256(results.outcome.tobytes() + results.log_probability.tobytes()).hexdigest()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return Point(setup, min(seconds) / len(candidates.query) * 1e6, memory, digest)


def fit_exponent(values: Sequence[float], measured: Sequence[float]) -> float:
    """Return the slope of the logarithm of what was measured against that of the values."""
    return float(np.polyfit(np.log(values), np.log(np.maximum(measured, 1e-9)), 1)[0])


def run_growth(words: list[str]) -> None:
    """Time and memory against facts, rules, candidates, depth and slots, with fitted exponents.

        python -m benchmarks growth

    Each point is a process of its own. Times are CPU seconds, the least of three repeats; an exponent is the slope of a
    line through the logarithms. More facts are copies of the same graph, so that what matches stays equal: all ends are
    compared.
    """
    parser = make_parser(run_growth)
    parser.add_argument("--mode", default="native", help="of the evaluator; slots are measured in mode eager")
    parser.add_argument("--axes", nargs="+", choices=tuple(POINTS), default=list(POINTS))
    parser.add_argument("--tiny", action="store_true", help="small values, to see that it runs")
    parser.add_argument("--point", nargs=2, metavar=("AXIS", "VALUE"), help="measure one point in this process")
    options = parser.parse_args(words)
    values = TINY if options.tiny else POINTS
    if options.point is not None:
        axis, value = options.point[0], int(options.point[1])
        print(json.dumps(measure_point(axis, value, values[axis][0], options.mode, options.tiny)))
        return
    points: dict[str, dict[int, Point]] = {}
    titles = [title for label in MEASURED.values() for title in (label, "exponent")]
    print_header("against", "from", "to", *titles)
    for axis in options.axes:
        points[axis] = {value: _measure_apart(axis, value, options) for value in values[axis]}
        if axis in ("facts", "slots") and len({each.ends for each in points[axis].values()}) > 1:
            sys.exit(f"{axis}: the ends of the candidates differ")
        cells = []
        for name in MEASURED:
            measured = [getattr(each, name) for each in points[axis].values()]
            cells += [f"{measured[0]:,.3g} to {measured[-1]:,.3g}", f"{fit_exponent(values[axis], measured):.2f}"]
        print_row(axis, f"{values[axis][0]:,}", f"{values[axis][-1]:,}", *cells)


def _measure_apart(axis: str, value: int, options: argparse.Namespace) -> Point:
    words = [sys.executable, "-m", "benchmarks", "growth", "--point", axis, str(value), "--mode", options.mode]
    words += ["--tiny"] * options.tiny
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stderr}")
    return Point(*json.loads(done.stdout))
