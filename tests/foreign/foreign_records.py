"""Steps recorded from provers that kgverify did not write, as traces in memory that hold what the records hold and no more."""

import json
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from foreign_folder import FOLDER
from foreign_folder import needs_records as needs_records

from kgverify import EngineInfo, Limits
from kgverify.program.atoms import Atom
from kgverify.program.outcomes import GoalKind, Outcome, Side
from kgverify.program.program import Rule, Symbols
from kgverify.trace.model.columns import Candidates, Columns, Resolvents, Steps, no_stage_items
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import Header, PolicyInfo
from kgverify.trace.model.trace import Trace

UNKNOWN = (
    "resolvents.origin_kind",
    "resolvents.origin",
    "resolvents.score",
    "steps.depth",
    "steps.dropped_atoms",
    "steps.dropped_resolvents",
    "candidates.is_limited",
    "candidates.log_probability",
)

Rows = list[tuple[int, int, int]]


@dataclass(frozen=True)
class Records:
    """The records of one engine, in the ids of the program file: states, successors, the one taken, and proofs.

    The two last say nothing in forced records.
    """

    query: list[int]
    states: list[Rows]
    successors: list[list[Rows]]
    action: list[int]
    success: list[int]


@cache
def program_of(graph: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"program_{graph}.json").read_text())


@cache
def records_of(graph: str, engine: str, kind: str = "forced") -> Records:
    data = np.load(FOLDER / f"{graph}.{engine}.{kind}.npz")

    def split(rows: np.ndarray, bounds: np.ndarray) -> list[Rows]:
        listed = [tuple(row) for row in rows.tolist()]
        return [listed[a:b] for a, b in zip(bounds.tolist(), bounds[1:].tolist(), strict=False)]

    derived = split(data["derived_atoms"], data["derived_atom_ptr"])
    bounds = data["derived_ptr"].tolist()
    successors = [derived[a:b] for a, b in pairwise(bounds)]
    return Records(
        data["query"].tolist(),
        split(data["state_atoms"], data["state_ptr"]),
        successors,
        data["action"].tolist(),
        data["success"].tolist(),
    )


@cache
def trace_of(graph: str, engine: str) -> Trace:
    """The forced records of an engine: each is a candidate with one step."""
    program, records = program_of(graph), records_of(graph, engine)
    start = program["variable_start"]

    def encode(row: tuple[int, int, int]) -> tuple[int, int, int]:
        predicate, *terms = row
        if predicate == 0:
            return -1, 0, 0
        a, b = (start - 1 - term if term >= start else term for term in terms)
        return predicate, a, b

    ends = {program["true"]: GoalKind.TRUE, program["false"]: GoalKind.FALSE}
    kinds, atoms = [], []
    for successor in (each for listed in records.successors for each in listed):
        kinds.append(next((ends[row[0]] for row in successor if row[0] in ends), GoalKind.GOAL))
        atoms.append([encode(row) for row in successor if row[0] not in ends])
    num = len(records.query)
    zeros = np.zeros(num, np.int64)
    steps = Steps(
        depth=zeros.astype(np.uint16),
        num_atoms=np.array([len(state) for state in records.states], np.uint16),
        num_resolvents=np.array([len(listed) for listed in records.successors], np.uint32),
        dropped_atoms=zeros.astype(np.uint32),
        dropped_resolvents=zeros.astype(np.uint32),
        choice=np.full(num, -1, np.int32),
        outcome=np.full(num, Outcome.OPEN, np.int8),
        goal_atoms=np.array([encode(row) for state in records.states for row in state], np.int32).reshape(-1, 3),
    )
    resolvents = Resolvents(
        kind=np.array(kinds, np.uint8),
        num_atoms=np.array([len(each) for each in atoms], np.uint16),
        origin_kind=np.zeros(len(kinds), np.uint8),
        origin=np.zeros(len(kinds), np.int32),
        score=np.zeros(len(kinds)),
        atoms=np.array([row for each in atoms for row in each], np.int32).reshape(-1, 3),
    )
    candidates = Candidates(
        query=np.arange(num, dtype=np.int32),
        side=np.full(num, Side.NONE, np.int8),
        atom=np.array([encode(tuple(program["queries"][query])) for query in records.query], np.int32),
        num_steps=np.ones(num, np.uint32),
        outcome=np.full(num, Outcome.OPEN, np.int8),
        is_limited=zeros.astype(np.uint8),
        log_probability=np.zeros(num),
    )
    columns = Columns(candidates, steps, resolvents, no_stage_items(num))
    every = {f"{level}.{name}" for level in columns._fields[:-1] for name in getattr(columns, level)._fields}
    predicates = {name: i for i, name in enumerate(program["predicates"])}
    limits = Limits(max_depth=program["max_depth"], max_atoms=31, max_resolvents=1 << 20)
    return Trace(
        header=Header(EngineInfo(engine, unknown=UNKNOWN, variables="own"), limits, PolicyInfo(""), ""),
        symbols=Symbols(tuple(program["predicates"]), tuple(program["constants"])),
        columns=columns,
        digests=compute_digests(columns),
        rankings=None,
        facts=np.array(program["facts"], np.int32),
        fact_lines=None,
        fields=frozenset(every - set(UNKNOWN)),
        is_complete=True,
        source="",
        rules=tuple(_encode_rule(rule, predicates) for rule in program["rules"]),
    )


def _encode_rule(rule: dict[str, Any], predicates: dict[str, int]) -> Rule:
    numbers: dict[str, int] = {}
    head, *body = (
        Atom(predicates[name], *(-1 - numbers.setdefault(term, len(numbers)) for term in terms))
        for name, *terms in (rule["head"], *rule["body"])
    )
    return Rule(head, tuple(body))
