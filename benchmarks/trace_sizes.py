"""Bytes a step of every level, and how fast each is written and read: a synthetic trace, and a real one of the family graph.

    python benchmarks/trace_sizes.py                       # 1,000,000 synthetic steps; 20 queries of family
    python benchmarks/trace_sizes.py --steps 10000 --queries 1

The synthetic trace has the shape of traces that were measured: 8.1 resolvents a step (p99 65), 2.86 atoms a goal, about
359 bytes a step with one digest, ten steps a candidate, resolvents in the order of the semantics, float32 scores
that are noise. Prints Markdown tables; both sides of a ratio are of one run.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from synthetic_traces import write_trace

from kgverify.graphs.load import load_graph
from kgverify.program.atoms import Atom
from kgverify.program.limits import Limits
from kgverify.program.program import Rule, Symbols
from kgverify.runs.run import Run, build_trace, reference_pipeline
from kgverify.trace.model.columns import Candidates, Columns, Resolvents, Steps, starts_of
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import ClauseTexts, EngineInfo, Header, PolicyInfo
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import read_trace
from kgverify.trace.write.writer import Clauses, Storage
from kgverify.verification.rebuild import Rebuilder

NUM_CONSTANTS, NUM_PREDICATES, NUM_FACTS, NUM_RULES = 3000, 12, 28_000, 48
GOALS = {
    ("digests", False): 9.0,
    ("compact", False): 64.0,
    ("steps", False): 370.0,
    ("steps", True): 90.0,
}


def make_synthetic(num_steps: int, seed: int = 0) -> Trace:
    """A trace whose goals follow from one another as those of a prover do: a resolvent is a body and the rest of the goal."""
    random = np.random.default_rng(seed)
    num_candidates = max(1, num_steps // 10)
    steps_of = np.full(num_candidates, num_steps // num_candidates, np.uint32)
    steps_of[: num_steps - int(steps_of.sum())] += 1
    num_resolvents = np.clip(random.lognormal(np.log(3.95), 1.21, num_steps).round(), 1, 120).astype(np.uint32)
    goal_sizes = random.choice([1, 2, 3, 4, 5, 6], num_steps, p=[0.12, 0.32, 0.28, 0.16, 0.08, 0.04]).astype(np.uint16)
    first = starts_of(num_resolvents)
    owner = np.repeat(np.arange(num_steps), num_resolvents)
    total = int(first[-1])
    # A fact takes an atom away and a pruned rule may, too: most resolvents are shorter than their goals.
    taken = random.choice([0, 1, 2], total, p=[0.25, 0.46, 0.29])
    sizes = np.maximum(1, goal_sizes[owner].astype(np.int64) - taken).astype(np.uint16)
    goal_atoms = _atoms(random, goal_sizes)
    goal_first = starts_of(goal_sizes)
    inner = starts_of(sizes)
    place = np.arange(int(inner[-1])) - np.repeat(inner[:-1], sizes)
    back = np.repeat(goal_sizes[owner] - np.minimum(sizes, goal_sizes[owner]), sizes)
    of_goal = np.minimum(place + back, np.repeat(goal_sizes[owner], sizes) - 1)
    atoms = goal_atoms[np.repeat(goal_first[:-1][owner], sizes) + of_goal].copy()
    # The first atom is the clause's, with a constant of its own where a fact bound it.
    heads = inner[:-1]
    # Clauses come in order: rules, then facts, those that match one atom beside each other.
    facts = np.unique(
        np.column_stack([random.integers(0, n, NUM_FACTS) for n in (NUM_PREDICATES, NUM_CONSTANTS, NUM_CONSTANTS)]),
        axis=0,
    ).astype(np.int32)
    rank = np.arange(total) - first[:-1][owner]
    num_rules = random.integers(0, 4, num_steps)[owner]
    is_fact = rank >= num_rules
    base = random.integers(0, len(facts) - 200, num_steps)[owner]
    origin = np.where(is_fact, base + rank - num_rules, (base + rank) % NUM_RULES)
    atoms[heads, 1] = np.where(is_fact, facts[origin, 2], -1)
    depth = (np.arange(num_steps) - np.repeat(starts_of(steps_of)[:-1], steps_of)).astype(np.uint16)
    last = starts_of(steps_of)[1:] - 1
    outcome = np.zeros(num_steps, np.int8)
    outcome[last] = random.choice([1, 2, 3], num_candidates).astype(np.int8)
    query = np.repeat(np.arange(-(-num_candidates // 102)), 102)[:num_candidates].astype(np.int32)
    side = (np.arange(num_candidates) // 51 % 2).astype(np.int8)
    atom = np.column_stack(
        [query % NUM_PREDICATES, query % NUM_CONSTANTS, random.integers(0, NUM_CONSTANTS, num_candidates)]
    ).astype(np.int32)
    columns = Columns(
        Candidates(
            query,
            side,
            atom,
            steps_of,
            outcome[last],
            np.zeros(num_candidates, np.uint8),
            random.normal(size=num_candidates),
        ),
        Steps(
            depth,
            goal_sizes,
            num_resolvents,
            np.zeros(num_steps, np.uint32),
            np.zeros(num_steps, np.uint32),
            (random.random(num_steps) * num_resolvents).astype(np.int32),
            outcome,
            goal_atoms,
        ),
        Resolvents(
            np.zeros(total, np.uint8),
            sizes,
            np.where(is_fact, 2, 1).astype(np.uint8),
            origin.astype(np.int32),
            random.normal(size=total).astype(np.float32),
            atoms,
        ),
    )
    rules = tuple(
        Rule(Atom(i % NUM_PREDICATES, -1, -2), (Atom(i % 7, -1, -3), Atom(i % 5, -3, -2))) for i in range(NUM_RULES)
    )
    header = Header(
        EngineInfo("synthetic"), Limits(), PolicyInfo("noise"), "", clauses=ClauseTexts(rules=("r",) * NUM_RULES)
    )
    names = tuple(f"p{i}" for i in range(NUM_PREDICATES)), tuple(f"constant {i}" for i in range(NUM_CONSTANTS))
    fields = frozenset(f"{level}.{name}" for level in columns._fields for name in getattr(columns, level)._fields)
    lines = np.arange(len(facts), dtype=np.int32)
    digests = compute_digests(columns)
    return Trace(header, Symbols(*names), columns, digests, None, facts, lines, fields, True, "", rules)


def _atoms(random: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
    """Atoms of goals: the bodies of a few rules, bound by a constant at the front, variables by first appearance."""
    total = int(sizes.sum())
    rule = np.repeat(random.integers(0, NUM_RULES, len(sizes)), sizes)
    place = np.arange(total) - np.repeat(starts_of(sizes)[:-1], sizes)
    predicate = (rule * 5 + place * (1 + rule % 3)) % NUM_PREDICATES
    first = np.where(place == 0, random.integers(0, NUM_CONSTANTS, total), -place)
    second = np.where(random.random(total) < 0.15, random.integers(0, NUM_CONSTANTS, total), -1 - place)
    return np.column_stack([predicate, first, second]).astype(np.int32)


def make_real(num_queries: int) -> Trace:
    """The reference on the family graph, 50 corruptions a side."""
    run = Run(load_graph("family"), num_queries=num_queries)
    pipeline = reference_pipeline(run)
    columns = pipeline.engine.prove(pipeline.draw_for(run))
    return build_trace(run, pipeline.engine, columns, pipeline.rank_finite(run, columns.candidates))


def measure(trace: Trace, folder: Path, repeats: int) -> int:
    """Print the table of one trace. Returns how many goals were missed."""
    num_steps = len(trace.columns.steps.depth)
    raw = sum(column.nbytes for level in trace.columns for column in level)
    resolvents = trace.columns.steps.num_resolvents
    print(
        f"{num_steps:,} steps, {len(trace.columns.candidates.query):,} candidates,"
        f" {resolvents.mean():.1f} resolvents a step (p99 {np.percentile(resolvents, 99):.0f}),"
        f" {trace.columns.steps.num_atoms.mean():.2f} atoms a goal, {raw / num_steps:.0f} bytes a step in memory,"
        f" scores {trace.columns.resolvents.score.dtype}\n"
    )
    print(
        "| level | bytes/step | goal | of steps | write, M steps/s | read and check, M steps/s |\n|---|---|---|---|---|---|"
    )
    sizes = {}
    num_missed = 0
    for level in (TraceLevel.STEPS, TraceLevel.COMPACT, TraceLevel.DIGESTS):
        for is_archived in (False, True):
            path = folder / "a.h5"
            written = read = float("inf")
            for _ in range(repeats):
                begin = time.perf_counter()
                write_trace(
                    path,
                    trace.header,
                    trace.symbols,
                    trace.columns,
                    trace.rankings,
                    clauses=Clauses(trace.facts, trace.fact_lines, trace.rules),
                    storage=Storage(level.value, is_archived=is_archived),
                )
                middle = time.perf_counter()
                found = read_trace(path)
                written, read = min(written, middle - begin), min(read, time.perf_counter() - middle)
            assert found.root == trace.root
            size = path.stat().st_size / num_steps
            sizes[level, is_archived] = size
            goal = GOALS.get((level.value, is_archived))
            num_missed += goal is not None and size > goal
            whole = sizes[TraceLevel.STEPS, False]
            print(
                f"| {level.value}{', archived' * is_archived} | {size:.1f} | {'' if goal is None else f'≤ {goal:g}'} |"
                f" {size / whole:.3f} | {num_steps / written / 1e6:.2f} | {num_steps / read / 1e6:.2f} |"
            )
    return num_missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print("Synthetic:", end=" ")
        num_missed = measure(make_synthetic(options.steps), Path(name), options.repeats)
        trace = make_real(options.queries)
        print("\nReal, family by the reference:", end=" ")
        measure(trace, Path(name), options.repeats)
        write_trace(
            Path(name) / "compact.h5",
            trace.header,
            trace.symbols,
            trace.columns,
            clauses=Clauses(trace.facts, rules=trace.rules),
            storage=Storage("compact"),
        )
        low = read_trace(Path(name) / "compact.h5")
        begin = time.perf_counter()
        rebuilt = Rebuilder(low).try_rebuilding(low)
        seconds = time.perf_counter() - begin
        num_steps = len(rebuilt.differs)
        print(
            f"\nrebuilding the goals: {num_steps / seconds:,.0f} steps/s, {int(rebuilt.differs.sum())} of {num_steps:,} differ"
        )
    return 1 if num_missed else 0


if __name__ == "__main__":
    sys.exit(main())
