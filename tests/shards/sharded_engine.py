"""A foreign prover that shares its queries among processes, each of which writes a trace; and faults of the sharing.

It knows nothing of kgverify but `LoopWriter` and `Part`. `python sharded_engine.py FOLDER RANK` is one of four processes, which
writes the trace of its rank for every fault.
"""

import random
import sys
from pathlib import Path

import kgverify as kv

WORLD, NUM_NODES, MAX_DEPTH, SEED = 4, 12, 6, 7
NODES = [f"n{i}" for i in range(NUM_NODES)]
EDGES = {a: random.Random(a).sample(range(NUM_NODES), 3) for a in range(NUM_NODES)}
QUERIES = [(0, a, (a * 5 + k) % NUM_NODES) for k in (1, 3, 6) for a in range(NUM_NODES)][:30]
"""Thirty queries `path(a, b)`: two more than a multiple of the world."""
GOAL, TRUE, FALSE, OPEN, PROVED, FAILED, DEPTH_LIMIT = 0, 1, 2, 0, 1, 2, 3

FAULTS = (
    "first lost",
    "middle lost",
    "last lost",
    "remainder lost",
    "padded by repetition",
    "exchanged between ranks",
    "names exchanged",
    "wrong rank",
    "wrong offset",
    "gathered in the order of ranks",
    "another seed",
    "stale limit",
    "another seed, stated",
    "no trace of a rank",
    "rank written twice",
)


def prove(query, seed=SEED, max_depth=MAX_DEPTH):
    """Return the steps of a query, each (goal, resolvents, choice, outcome), a resolvent (kind, atoms, score)."""
    steps, (_, node, target), outcome = [], query, OPEN
    seen = {node}
    while outcome == OPEN:
        resolvents = [
            (TRUE, [], 1.0)
            if to == target
            else (GOAL, [(0, to, target)], random.Random(f"{seed} {node} {to}").random())
            for to in EDGES[node]
            if to == target or to not in seen
        ] or [(FALSE, [], 0.0)]
        choice = max(range(len(resolvents)), key=lambda i: resolvents[i][2])
        kind, atoms, _ = resolvents[choice]
        is_last = len(steps) + 1 == max_depth
        outcome = {TRUE: PROVED, FALSE: FAILED, GOAL: DEPTH_LIMIT if is_last else OPEN}[kind]
        steps.append(((0, node, target), resolvents, choice, outcome))
        if kind == GOAL:
            node = atoms[0][1]
            seen.add(node)
    return steps


def write(path, numbers, part=None, results=None, query=None, stated=SEED, shard_steps=1000, **options):
    """Write the trace of the queries with these numbers; `results` are the numbers of the queries really proved."""
    derivations = [prove(QUERIES[number], **options) for number in results or numbers]
    taken = [step for steps in derivations for step in steps]
    listed = [each for _, resolvents, _, _ in taken for each in resolvents]
    with kv.LoopWriter(
        path,
        engine=kv.EngineInfo("walker"),
        predicates=["path"],
        constants=NODES,
        limits={"max_depth": MAX_DEPTH},
        policy=kv.PolicyInfo("random", f"{stated:064d}"),
        part=part,
        shard_steps=shard_steps,
    ) as trace:
        trace.append(
            {
                "query": query or list(numbers),
                "atom": [QUERIES[number] for number in numbers],
                "num_steps": [len(steps) for steps in derivations],
                "outcome": [steps[-1][3] for steps in derivations],
            },
            {
                "num_atoms": [1] * len(taken),
                "num_resolvents": [len(resolvents) for _, resolvents, _, _ in taken],
                "choice": [choice for _, _, choice, _ in taken],
                "outcome": [outcome for _, _, _, outcome in taken],
                "goal_atoms": [goal for goal, _, _, _ in taken],
            },
            {
                "kind": [kind for kind, _, _ in listed],
                "num_atoms": [len(atoms) for _, atoms, _ in listed],
                "atoms": [atom for _, atoms, _ in listed for atom in atoms],
                "score": [score for _, _, score in listed],
            },
        )


def share(rank, assign="modulo", world=WORLD):
    """Return the numbers of the queries of a rank."""
    if assign == "modulo":
        return list(range(rank, len(QUERIES), world))
    size, more = divmod(len(QUERIES), world)
    begin = rank * size + min(rank, more)
    return list(range(begin, begin + size + (rank < more)))


def write_rank(folder, rank, fault, assign="modulo"):
    """Write the trace of one rank into a folder, with a fault of the sharing."""
    own, results, options, stated = share(rank, assign), None, {}, rank
    if fault in ("first lost", "middle lost", "last lost"):
        lost = {"first lost": 0, "middle lost": 14, "last lost": 29}[fault]
        own = [number for number in own if number != lost]
    elif fault == "remainder lost":
        own = [number for number in own if number < len(QUERIES) // WORLD * WORLD]
    elif fault == "padded by repetition":
        # As torch's DistributedSampler does without drop_last.
        padded = [*range(len(QUERIES)), 0, 1]
        own = padded[rank::WORLD]
    elif fault == "exchanged between ranks":
        own = [{5: 14, 14: 5}.get(number, number) for number in own]
    elif fault == "names exchanged":
        results = [{5: 14, 14: 5}.get(number, number) for number in own]
    elif fault == "wrong rank":
        own = [number for number in own if number != 9] + [9] * (rank == 3)
    elif fault == "wrong offset" and rank == 2:
        own = [number + 1 for number in own if number + 1 < len(QUERIES)]
    elif fault == "gathered in the order of ranks":
        gathered = [number for each in range(WORLD) for number in share(each, assign)]
        results = [gathered[number] for number in own]
    elif fault.startswith("another seed") and rank == 1:
        options = {"seed": 8} | ({"stated": 8} if fault.endswith("stated") else {})
    elif fault == "stale limit" and rank == 3:
        options = {"max_depth": 2}
    elif fault == "rank written twice" and rank == 2:
        stated, own = 1, share(1, assign)
    if fault != "no trace of a rank" or rank != 2:
        write(folder / f"rank-{rank}.h5", own, kv.Part(stated, WORLD, assign), results, **options)


if __name__ == "__main__":
    for name in ("none", *FAULTS):
        path = Path(sys.argv[1]) / name
        path.mkdir(exist_ok=True)
        write_rank(path, int(sys.argv[2]), name)
