"""Write recorded steps as a trace, with nothing added that the records do not hold.

The records are arrays of padded ids and a program in JSON; the README of their folder describes them.

    python examples/recorded_steps.py FOLDER GRAPH ENGINE KIND -o OUT.h5
"""

import argparse
import json
from pathlib import Path

import numpy as np

import kgverify as kv

GOAL, TRUE, FALSE, STOP = range(4)
OPEN, PROVED, FAILED, DEPTH_LIMIT = range(4)


def write_trace(folder: Path, graph: str, engine: str, kind: str, output: Path) -> None:
    """Write FOLDER/GRAPH.ENGINE.KIND.npz as a trace. KIND is `free` (derivations) or `forced` (steps from given goals)."""
    program = json.loads((folder / f"program_{graph}.json").read_text())
    with np.load(folder / f"{graph}.{engine}.{kind}.npz", allow_pickle=False) as archive:
        records = dict(archive)
    is_free = kind == "free"

    def encode(atoms):
        """Variables become negative, and a hole an atom without predicate; the ids of names stay."""
        atoms = np.array(atoms).reshape(-1, 3)
        predicates, arguments = atoms[:, :1], atoms[:, 1:]
        first = program["variable_start"]
        arguments = np.where(arguments > program["constant_no"], first - 1 - arguments, arguments)
        return np.hstack([np.where(predicates == program["padding_idx"], -1, predicates), arguments])

    # TRUE, FALSE and the terminal action of the engine are atoms there, and kinds of a resolvent here.
    atoms, sizes = records["derived_atoms"], np.diff(records["derived_atom_ptr"])
    owner = np.repeat(np.arange(len(sizes)), sizes)
    kinds, markers = np.full(len(sizes), GOAL), np.array([-1, program["true"], program["false"], program["endf"]])
    for code in (STOP, FALSE, TRUE):
        kinds[owner[atoms[:, 0] == markers[code]]] = code
    is_kept = atoms[:, 0] != markers[kinds[owner]]
    sizes = np.bincount(owner[is_kept], minlength=len(sizes))

    # A count larger than the list claims resolvents that are empty.
    listed = np.diff(records["derived_ptr"])
    claimed = np.maximum(records["count"], listed)
    empty = np.repeat(records["derived_ptr"][1:], claimed - listed)
    resolvents = {
        "kind": np.insert(kinds, empty, GOAL),
        "num_atoms": np.insert(sizes, empty, 0),
        "atoms": encode(atoms[is_kept]),
    }
    steps = {
        "depth": records["step"],
        "num_atoms": np.diff(records["state_ptr"]),
        "num_resolvents": claimed,
        "choice": records["action"],
        "goal_atoms": encode(records["state_atoms"]),
    }

    # Each forced step is a candidate of its own, which is still open; free steps of one query make one.
    is_first = np.append(True, np.diff(records["query"]) != 0) if is_free else np.full(len(claimed), True)
    first = np.flatnonzero(is_first)
    query = records["query"][first]
    candidates = {
        "query": query,
        "atom": encode(program["queries"])[query],
        "num_steps": np.diff(np.append(first, len(claimed))),
    }
    if is_free:
        is_deep = (records["step"] + 1 >= program["max_depth"]) & ~_is_terminal(records, kinds)
        failed = np.where(is_deep, DEPTH_LIMIT, FAILED)
        ended = np.where(records["success"] == 1, PROVED, failed)
        steps["outcome"] = np.where(records["done"] == 1, ended, OPEN)
        candidates["outcome"] = steps["outcome"][np.append(first[1:], len(claimed)) - 1]

    rules = program["rules_index"]
    with kv.LoopWriter(
        output,
        engine=kv.EngineInfo(engine, variables="own"),
        predicates=program["predicates"],
        constants=program["constants"],
        limits={"max_resolvents": program["cap"]} | ({"max_depth": program["max_depth"]} if is_free else {}),
        policy=program["policy"],
        facts=encode(program["facts"]),
        rules=[
            encode([head, *body[:length]])
            for head, body, length in zip(rules["heads"], rules["bodies"], rules["lens"], strict=True)
        ],
    ) as trace:
        trace.append(candidates, steps, resolvents)


def _is_terminal(records, kinds):
    """Return whether each step had nothing to choose, or chose a terminal resolvent."""
    has_choice = (records["action"] >= 0) & (records["action"] < np.diff(records["derived_ptr"]))
    chosen = np.where(has_choice, records["derived_ptr"][:-1] + records["action"], 0)
    return ~has_choice | (kinds[chosen] != GOAL)


def main() -> None:
    """Read the arguments and write the trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("graph")
    parser.add_argument("engine")
    parser.add_argument("kind", choices=["free", "forced"])
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    write_trace(arguments.folder, arguments.graph, arguments.engine, arguments.kind, arguments.output)


if __name__ == "__main__":
    main()
