"""Steps recorded from provers that kgverify did not write, and the truth about them, without any of kgverify's inference.

The truth uses the records as they are stored, and the words of their description.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from foreign_folder import FOLDER
from foreign_folder import needs_records as needs_records

import kgverify as kv
from kgverify import Clauses, Storage
from kgverify.dialects import Dialect
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.model.columns import select_candidates

EXPAND = Dialect(unification="one_pass", filters=("prune", "close", "max_resolvents"))
"""The dialect of what the engines record: the environment around them drops visited and long states later."""
CAP = 120
FACT_CAP = 50
"""The facts of a predicate that the engine `compiled_first` matches."""

Atom = tuple[int, int, int]
Goal = tuple[Atom, ...]


@dataclass(frozen=True)
class Records:
    """The records of one engine, in the ids of the program file: states, successors, the one taken, and proofs.

    The two last say nothing in forced records.
    """

    query: list[int]
    states: list[Goal]
    successors: list[list[Goal]]
    action: list[int]
    success: list[int]


@cache
def program_of(graph: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"program_{graph}.json").read_text())


@cache
def records_of(graph: str, engine: str, kind: str = "forced") -> Records:
    data = np.load(FOLDER / f"{graph}.{engine}.{kind}.npz")

    def split(rows: np.ndarray, bounds: np.ndarray) -> list[Goal]:
        listed = [tuple(row) for row in rows.tolist()]
        return [tuple(listed[a:b]) for a, b in pairwise(bounds.tolist())]

    derived = split(data["derived_atoms"], data["derived_atom_ptr"])
    return Records(
        data["query"].tolist(),
        split(data["state_atoms"], data["state_ptr"]),
        [derived[a:b] for a, b in pairwise(data["derived_ptr"].tolist())],
        data["action"].tolist(),
        data["success"].tolist(),
    )


def write_trace(folder: Path, graph: str, engine: str, kind: str = "forced", *, every: int = 1) -> Path:
    """Write records, or each n-th candidate of them, as a trace, once, by the example that does so."""
    if every > 1:
        path = folder / f"{graph}.{engine}.{kind}.{every}.h5"
        whole = kv.open_trace(write_trace(folder, graph, engine, kind)).load()
        rows = np.arange(0, len(whole.columns.candidates.query), every)
        clauses = Clauses(whole.facts, whole.fact_lines, whole.rules)
        absent = KNOWLEDGE_GRAPH.optional - whole.fields
        with kv.TraceWriter(
            path, whole.header, whole.symbols, clauses=clauses, storage=Storage(absent=absent)
        ) as writer:
            writer.append(select_candidates(whole.columns, rows))
        return path
    path = folder / f"{graph}.{engine}.{kind}.h5"
    if not path.exists():
        examples = str(Path(__file__).parents[2] / "examples")
        if examples not in sys.path:
            sys.path.append(examples)
        import recorded_steps

        recorded_steps.write_trace(FOLDER, graph, engine, kind, path)
    return path


def canonical(graph: str, atoms: Goal) -> Goal:
    """Return a goal whose variables are numbered by first appearance, from -1 downwards."""
    start, numbers = program_of(graph)["variable_start"], {}
    return tuple(
        (p, *(-1 - numbers.setdefault(t, len(numbers)) if t >= start else t for t in terms)) for p, *terms in atoms
    )


@cache
def facts_of(graph: str) -> dict[Atom, int]:
    """Return each fact with its position among the facts of its predicate."""
    num: Counter[int] = Counter()
    positions = {}
    for fact in map(tuple, program_of(graph)["facts"]):
        positions[fact] = num[fact[0]]
        num[fact[0]] += 1
    return positions


@cache
def made_by_facts(graph: str, query: int, state: Goal) -> dict[Goal, list[int]]:
    """Return the successors that facts make of a state, with the positions of these facts."""
    program, facts = program_of(graph), facts_of(graph)
    start, excluded = program["variable_start"], tuple(program["queries"][query])
    (predicate, *terms), *rest = state
    made: dict[Goal, list[int]] = {}
    for fact, position in facts.items():
        bound: dict[int, int] = {}
        is_match = fact[0] == predicate and fact != excluded
        if is_match and all(
            bound.setdefault(term, value) == value if term >= start else term == value
            for term, value in zip(terms, fact[1:], strict=True)
        ):
            left = [(p, *(bound.get(term, term) for term in terms)) for p, *terms in rest]
            left = [atom for atom in left if atom not in facts or atom == excluded]
            made.setdefault(canonical(graph, tuple(left)), []).append(position)
    return made


def truth_of(graph: str, engine: str) -> Iterator[tuple[int, set[str]]]:
    """Yield each forced record that differs from the right engine's, with the stages and classes that are right."""
    program = program_of(graph)
    sides = records_of(graph, "eager"), records_of(graph, engine)
    for i, (expected, actual) in enumerate(zip(*(side.successors for side in sides), strict=True)):
        if expected == actual:
            continue
        lists = [[canonical(graph, each) for each in side] for side in (expected, actual)]
        has_proof = [any(row[0] == program["true"] for each in side for row in each) for side in (expected, actual)]
        state = sides[0].states[i]
        if has_proof[0] != has_proof[1]:
            # A single step does not show what lost its proof; the facts that other steps lack may.
            kind = "proof_lost" if has_proof[0] else "false_proof"
            yield i, {f"close {kind}", f"match_facts {kind}"}
        elif has_proof[1] and any(len(each) > 1 for each in actual):
            yield i, {"close malformed", "prune malformed"}
        elif lists[0] == lists[1]:
            yield i, {"rename renamed"}
        elif Counter(lists[0]) == Counter(lists[1]):
            made = made_by_facts(graph, sides[0].query[i], state)
            by_facts = [[each in made for each in side] for side in lists]
            rules = [[each for each in side if each not in made] for side in lists]
            stage = "match_rules" if rules[0] != rules[1] else "match_facts"
            yield i, {f"{'resolve' if by_facts[0] != by_facts[1] else stage} reordered"}
        elif len(expected) == len(actual) == CAP:
            yield i, {"limit limit"}
        else:
            made = made_by_facts(graph, sides[0].query[i], state)
            false = ((program["false"], 0, 0),)
            missing = [each for each in Counter(lists[0]) - Counter(lists[1]) if each != false]
            assert missing
            assert not [each for each in Counter(lists[1]) - Counter(lists[0]) if each != false]
            # As described: nothing but facts past the 50th of their predicate.
            assert all(max(made[each]) >= FACT_CAP for each in missing)
            yield i, {"match_facts missing"}
