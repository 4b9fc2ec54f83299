"""Traces of the recorded steps of provers that kgverify did not write, each record a candidate with one step."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind, Outcome, Side
from kgverify.program.program import Symbols
from kgverify.trace.model.columns import Candidates, Columns, Resolvents, Steps
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import EngineInfo, Header, PolicyInfo, RunInfo
from kgverify.trace.model.trace import Trace

FOLDER = Path(os.environ.get("KGVERIFY_FOREIGN", Path(os.environ.get("KGVERIFY_DATA", "datasets")).parent / "foreign"))

UNKNOWN = (
    "resolvents.origin_kind",
    "resolvents.origin",
    "resolvents.score",
    "steps.dropped_atoms",
    "steps.dropped_resolvents",
    "candidates.log_probability",
)

needs_records = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no recorded steps in {FOLDER} (KGVERIFY_FOREIGN)")


@cache
def read_records(graph: str, engine: str, kind: str = "forced") -> Trace:
    """A trace of the records of an engine, with its own numbers of variables."""
    program = json.loads((FOLDER / f"program_{graph}.json").read_text())
    with np.load(FOLDER / f"{graph}.{engine}.{kind}.npz") as records:
        data = {name: records[name] for name in records.files if name != "meta"}
    special = {program["true"]: GoalKind.TRUE, program["false"]: GoalKind.FALSE}
    last = program["constant_no"]

    def goal(atoms: np.ndarray) -> tuple[int, list[list[int]]]:
        """The kind and the atoms of a state."""
        kinds = [special[p] for p, *_ in atoms.tolist() if p in special]
        kept = [[p, *(last - x if x > last else x for x in rest)] for p, *rest in atoms.tolist() if p not in special]
        return (int(kinds[0]), kept) if kinds else (int(GoalKind.GOAL), [atom for atom in kept if atom[0]])

    num = len(data["query"])
    goals, num_atoms, counts, kinds, lengths, atoms = [], [], [], [], [], []
    for i in range(num):
        _, own = goal(data["state_atoms"][data["state_ptr"][i] : data["state_ptr"][i + 1]])
        goals += own
        num_atoms.append(len(own))
        begin, end = data["derived_ptr"][i : i + 2].tolist()
        counts.append(end - begin)
        for j in range(begin, end):
            kind, made = goal(data["derived_atoms"][data["derived_atom_ptr"][j] : data["derived_atom_ptr"][j + 1]])
            kinds.append(kind)
            lengths.append(len(made))
            atoms += made
    queries = np.array(program["queries"], np.int32)[data["query"]]
    columns = Columns(
        Candidates(
            data["query"].astype(np.int32),
            np.full(num, Side.NONE, np.int8),
            queries,
            np.ones(num, np.uint32),
            np.full(num, Outcome.OPEN, np.int8),
            np.zeros(num, np.uint8),
            np.zeros(num),
        ),
        Steps(
            data["step"].astype(np.uint16),
            np.array(num_atoms, np.uint16),
            np.array(counts, np.uint32),
            np.zeros(num, np.uint32),
            np.zeros(num, np.uint32),
            np.where(data["action"] < np.array(counts), data["action"], -1).astype(np.int32),
            np.full(num, Outcome.OPEN, np.int8),
            np.array(goals, np.int32).reshape(-1, 3),
        ),
        Resolvents(
            np.array(kinds, np.uint8),
            np.array(lengths, np.uint16),
            np.zeros(len(kinds), np.uint8),
            np.zeros(len(kinds), np.int32),
            np.zeros(len(kinds), np.float32),
            np.array(atoms, np.int32).reshape(-1, 3),
        ),
    )
    levels: Any = columns[:3]
    names = (f"{group}.{name}" for group, level in zip(columns._fields, levels, strict=False) for name in level._fields)
    return Trace(
        header=Header(
            engine=EngineInfo(name=engine, unknown=UNKNOWN, variables="own"),
            policy=PolicyInfo("shortest"),
            limits=Limits(),
            program_sha256="",
            run=RunInfo(graph=graph),
        ),
        symbols=Symbols(tuple(program["predicates"]), tuple(map(str, program["constants"]))),
        columns=columns,
        digests=compute_digests(columns),
        rankings=None,
        facts=None,
        fact_lines=None,
        is_complete=True,
        source="",
        fields=frozenset(names) - frozenset(UNKNOWN),
    )
