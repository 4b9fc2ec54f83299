"""Twins of traces: the same steps with other names of variables, in another order, with some resolvents repeated."""

from dataclasses import replace

import msgspec
import numpy as np

from kgverify import Engine
from kgverify.engines.protocol import Positions
from kgverify.progress import Progress, no_progress
from kgverify.trace.model.columns import CandidateSet, Columns, Resolvents, expand_rows, no_stage_items, starts_of
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.trace import Trace


def twin(trace: Trace, seed: int, *, kinds: str = "names,order") -> Trace:
    """A trace that differs from another in the given kinds alone."""
    columns = twin_columns(trace.columns, seed, kinds=kinds)
    return replace(trace, columns=columns, digests=compute_digests(columns))


def twin_columns(columns: Columns, seed: int, *, kinds: str = "names,order") -> Columns:
    rng = np.random.default_rng(seed)
    columns = columns._replace(stages=no_stage_items())
    if "duplicates" in kinds:
        columns = _repeat(columns, rng)
    if "order" in kinds:
        columns = _shuffle(columns, rng)
    if "names" in kinds:
        columns = _rename(columns, rng)
    return columns


def select_resolvents(columns: Columns, rows: np.ndarray, counts: np.ndarray) -> Columns:
    """Columns with some resolvents, in a given order, a number of them for each step."""
    resolvents = columns.resolvents
    atoms = resolvents.atoms[expand_rows(starts_of(resolvents.num_atoms), rows)]
    chosen = Resolvents(*(column[rows] for column in resolvents[:-1]), atoms)
    steps = columns.steps._replace(num_resolvents=counts.astype(np.uint32))
    return columns._replace(steps=steps, resolvents=chosen)


def _shuffle(columns: Columns, rng: np.random.Generator) -> Columns:
    steps = columns.steps
    counts = steps.num_resolvents.astype(np.int64)
    starts = starts_of(counts)
    step = np.repeat(np.arange(len(counts)), counts)
    rows = np.lexsort((rng.random(len(step)), step))
    place = np.empty_like(rows)
    place[rows] = np.arange(len(rows))
    choice, is_valid = steps.choice.copy(), (steps.choice >= 0) & (steps.choice < counts)
    first = starts[:-1][is_valid]
    choice[is_valid] = place[first + choice[is_valid]] - first
    shuffled = select_resolvents(columns, rows, counts)
    return shuffled._replace(steps=shuffled.steps._replace(choice=choice))


def _rename(columns: Columns, rng: np.random.Generator) -> Columns:
    def rename(atoms: np.ndarray, counts: np.ndarray) -> np.ndarray:
        renamed = atoms.copy()
        moved = np.repeat(rng.integers(0, 50, len(counts)), counts)[:, None] - 3 * (renamed[:, 1:] + 1)
        renamed[:, 1:] = np.where(renamed[:, 1:] < 0, -1 - moved, renamed[:, 1:])
        return renamed

    steps, resolvents = columns.steps, columns.resolvents
    return columns._replace(
        steps=steps._replace(goal_atoms=rename(steps.goal_atoms, steps.num_atoms)),
        resolvents=resolvents._replace(atoms=rename(resolvents.atoms, resolvents.num_atoms)),
    )


def _repeat(columns: Columns, rng: np.random.Generator) -> Columns:
    """Repeat some resolvents at the end of their steps; the sums of log-probabilities follow."""
    counts = columns.steps.num_resolvents.astype(np.int64)
    step = np.repeat(np.arange(len(counts)), counts)
    again = np.flatnonzero(rng.random(len(step)) < 0.3)
    rows = np.concatenate((np.arange(len(step)), again))
    rows = rows[np.argsort(step[rows], kind="stable")]
    repeated = select_resolvents(columns, rows, np.bincount(step[rows], minlength=len(counts)))
    owner = np.repeat(np.arange(len(columns.candidates.query)), columns.candidates.num_steps)
    sums = columns.candidates.log_probability.copy()
    np.subtract.at(sums, owner, log_sums(repeated) - log_sums(columns))
    return repeated._replace(candidates=columns.candidates._replace(log_probability=sums))


def log_sums(columns: Columns) -> np.ndarray:
    parts = np.split(columns.resolvents.score.astype(float), np.cumsum(columns.steps.num_resolvents)[:-1])
    return np.array([np.logaddexp.reduce(part) if len(part) else 0.0 for part in parts])


class TwinEngine:
    """An engine that differs from another in names, in order or in repetitions alone, and shows no stages."""

    def __init__(self, engine: Engine, *, kinds: str = "names,order", variables: str = "own") -> None:
        self._engine, self._kinds = engine, kinds
        self.info = msgspec.structs.replace(engine.info, name="twin", variables=variables)

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        return twin_columns(self._engine.prove(candidates, progress), 1, kinds=self._kinds)

    def step(self, positions: Positions) -> Columns:
        return twin_columns(self._engine.step(positions), 2, kinds=self._kinds)
