"""Random changes of traces, by which two comparisons of the same pair are tested, and ways to store the traces."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from comparison_traces import (
    column_of,
    expand_rows,
    renumbered,
    small_trace,
    starts_of,
    with_candidates,
    with_column,
    with_columns,
    with_rankings,
    with_score_error,
)
from numpy.typing import NDArray
from second_opinion import can_be_checked, check_by_second, compare_again

from kgverify import Clauses, Storage, Trace, TraceWriter, Verdict
from kgverify.comparison.compare import Comparer, Options
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.laws import compiled_maker, draw_problems
from kgverify.runs.run import build_trace
from kgverify.testing.checking.check import prepare_batches
from kgverify.trace.hdf5.writing import write_arrays
from kgverify.trace.model.columns import concatenate, select_candidates, select_steps
from kgverify.trace.read.data_file import DataFile

TOUCHED = (
    *("candidates.outcome", "candidates.is_limited", "candidates.log_probability"),
    *("steps.depth", "steps.dropped_atoms", "steps.dropped_resolvents", "steps.choice", "steps.outcome"),
    *("steps.goal_atoms", "resolvents.origin", "resolvents.score", "resolvents.atoms"),
)
Change = Callable[[Trace, np.random.Generator], Trace]


def base_trace(num_copies: int = 1, score_error: float = 0.0) -> Trace:
    """Copies of the small trace, which are candidates of other queries; the last has those of the first once more."""
    columns = small_trace().columns
    copies = [
        columns._replace(candidates=columns.candidates._replace(query=columns.candidates.query + np.int32(10 * i)))
        for i in range(num_copies)
    ]
    trace = with_columns(small_trace(), concatenate([*copies, select_candidates(columns, np.arange(3))]))
    return with_score_error(trace, score_error)


def _rows(trace: Trace) -> int:
    return len(trace.columns.candidates.query)


def shuffle(trace: Trace, random: np.random.Generator) -> Trace:
    return with_candidates(trace, random.permutation(_rows(trace)))


def lose(trace: Trace, random: np.random.Generator) -> Trace:
    return with_candidates(trace, np.sort(random.permutation(_rows(trace))[: -int(random.integers(1, 4))]))


def double(trace: Trace, random: np.random.Generator) -> Trace:
    rows = np.insert(np.arange(_rows(trace)), random.integers(_rows(trace)), random.integers(_rows(trace), size=2))
    return with_candidates(trace, rows)


def invent(trace: Trace, random: np.random.Generator) -> Trace:
    atom = column_of(trace, "candidates.atom").copy()
    atom[random.integers(len(atom)), 1] = random.integers(len(trace.symbols.constants))
    return with_column(trace, "candidates.atom", atom)


def swap_arguments(trace: Trace, random: np.random.Generator) -> Trace:
    atom = column_of(trace, "candidates.atom").copy()
    group = column_of(trace, "candidates.query") == column_of(trace, "candidates.query")[random.integers(len(atom))]
    atom[group] = atom[group][:, [0, 2, 1]]
    return with_column(trace, "candidates.atom", atom)


def touch(trace: Trace, random: np.random.Generator) -> Trace:
    """One element of one column that is not a count."""
    name = str(random.choice(TOUCHED))
    values = column_of(trace, name).copy()
    place = (int(random.integers(len(values))), *((1,) if values.ndim == 2 else ()))
    if name == "candidates.is_limited":
        values[place] = 1 - values[place]
    elif name == "resolvents.origin":
        values[place] = 0
    elif values.dtype.kind == "f":
        values[place] += random.choice([1e-12, 1e-6, 1e-2, np.nan, np.inf])
    else:
        values[place] = (int(values[place]) + 1) % 3
    return with_column(trace, name, values)


def cut_steps(trace: Trace, random: np.random.Generator) -> Trace:
    """The last steps of some candidates are lost."""
    num_steps = column_of(trace, "candidates.num_steps")
    fewer = num_steps - (random.random(len(num_steps)) < 0.1) * (num_steps > 0)
    bounds = np.stack((starts_of(num_steps)[:-1], starts_of(num_steps)[:-1] + fewer), axis=1).reshape(-1)
    columns = select_steps(trace.columns, expand_rows(bounds, np.arange(0, len(bounds), 2)))
    return with_column(with_columns(trace, columns), "candidates.num_steps", fewer.astype(np.uint32))


def move_boundary(trace: Trace, random: np.random.Generator) -> Trace:
    """The totals stay; one count gives to the next."""
    name = str(random.choice(["candidates.num_steps", "steps.num_atoms", "steps.num_resolvents"]))
    values = column_of(trace, name).copy()
    row = int(random.choice(np.flatnonzero(values[:-1] > 0)))
    values[row] -= 1
    values[row + 1] += 1
    return with_column(trace, name, values)


def jitter(trace: Trace, random: np.random.Generator) -> Trace:
    """Scores of other bits."""
    score = column_of(trace, "resolvents.score")
    return with_column(trace, "resolvents.score", score + random.choice([0.0, 1e-9], len(score)))


def coarsen(trace: Trace, random: np.random.Generator) -> Trace:
    return with_column(trace, "resolvents.score", column_of(trace, "resolvents.score").astype(np.float32))


def tie(trace: Trace, random: np.random.Generator) -> Trace:
    """Another choice, which by its own scores is right; with a declared error it is a near-tie."""
    num = column_of(trace, "steps.num_resolvents")
    choice, score = column_of(trace, "steps.choice").copy(), column_of(trace, "resolvents.score").copy()
    first = starts_of(num)
    for row in random.choice(np.flatnonzero(num > 1), 2, replace=False).tolist():
        choice[row] = (choice[row] + 1) % num[row]
        score[first[row] + choice[row]] = score[first[row] : first[row + 1]].max() + 1e-4
    return with_column(with_column(trace, "steps.choice", choice), "resolvents.score", score)


def rank_otherwise(trace: Trace, random: np.random.Generator) -> Trace:
    assert trace.rankings is not None
    optimistic = trace.rankings.optimistic.copy()
    optimistic[random.integers(len(optimistic))] += 1
    return with_rankings(trace, optimistic=optimistic, pessimistic=trace.rankings.pessimistic + 1)


def forget_column(trace: Trace, random: np.random.Generator) -> Trace:
    groups = [{"resolvents.origin_kind", "resolvents.origin"}, {"resolvents.score"}, {"candidates.log_probability"}]
    lost = random.choice(np.array([*groups, {"steps.dropped_atoms", "steps.dropped_resolvents"}], object))
    for name in lost & trace.fields:
        trace = with_column(trace, name, np.zeros_like(column_of(trace, name)))
    return replace(trace, fields=trace.fields - lost)


def forget_rankings(trace: Trace, random: np.random.Generator) -> Trace:
    return replace(trace, rankings=None)


def number_otherwise(trace: Trace, random: np.random.Generator) -> Trace:
    return renumbered(trace, keeps_facts=bool(random.random() < 0.5))


STEP_CHANGES: tuple[Change, ...] = (
    *(shuffle, lose, double, invent, swap_arguments, touch, cut_steps, move_boundary, jitter, coarsen, tie),
    *(forget_column, number_otherwise),
)
CHANGES: tuple[Change, ...] = (*STEP_CHANGES, rank_otherwise, forget_rankings)


def compare_twice(expected: Trace, actual: Trace, *, lockstep: bool) -> Verdict | None:
    """Require that `kgreference.compare` finds the same, and return the verdict; None where too little is known."""
    comparer = Comparer(expected, actual, Options(lockstep=lockstep))
    found = comparer.compare()
    if found.reasons:
        return None
    assert can_be_checked(comparer)
    check_by_second(found, compare_again(expected, actual, comparer.score_tolerance, lockstep=lockstep), "")
    return found.verdict


def store(
    trace: Trace,
    path: Path,
    *,
    shard_steps: int = 1 << 40,
    is_chunked: bool = False,
    level: str = "steps",
    is_archived: bool = False,
) -> Path:
    """Write a trace as one file, or as a folder of shards of `shard_steps` steps; chunked as other writers may do it."""
    absent = KNOWLEDGE_GRAPH.optional - trace.fields
    storage = Storage(level, absent, is_archived, shard_steps)
    clauses = Clauses(trace.facts, trace.fact_lines, trace.rules)
    is_whole = shard_steps >= 1 << 40
    with TraceWriter(path, trace.header, trace.symbols, clauses=clauses, storage=storage) as writer:
        for rows in [np.arange(_rows(trace))] if is_whole else np.arange(_rows(trace))[:, None]:
            writer.append(select_candidates(trace.columns, rows))
        if trace.rankings is not None:
            writer.set_rankings(trace.rankings)
    if is_chunked and path.is_file():
        chunk(path)
    return path


def chunk(path: Path) -> None:
    """The same datasets in chunks, compressed."""
    whole = path.with_name(path.name + ".whole")
    path.rename(whole)
    with h5py.File(whole) as old, h5py.File(path, "w") as new:
        for name, value in old.attrs.items():
            new.attrs[name] = value

        def copy(name: str, node: h5py.Dataset | h5py.Group) -> None:
            if isinstance(node, h5py.Dataset):
                options = {"chunks": (min(7, node.shape[0]), *node.shape[1:]), "compression": "gzip", "shuffle": True}
                made = new.create_dataset(name, data=node[()], **(options if node.shape[0] else {}))
                made.attrs["xxh3"] = node.attrs["xxh3"]

        old.visititems(copy)
    whole.unlink()


def rewrite(source: Path, target: Path, **changes: NDArray[Any] | None) -> Path:
    """Write the datasets of a trace again, some with other content or, for None, left out; checksums fit the content."""
    arrays = DataFile(source).load_arrays()
    for name, values in changes.items():
        arrays.pop(name.replace("__", "/"), None)
        if values is not None:
            arrays[name.replace("__", "/")] = values
    write_arrays(target, arrays, "test")
    return target


def random_problems(num: int, faults: Sequence[str]) -> Iterator[tuple[Trace, list[Trace]]]:
    """Yield the reference's trace of some random problems, and those of the evaluator with a fault each."""
    for batch in prepare_batches(list(islice(draw_problems(11), num))):
        actual, merged = [], batch.merged
        for fault in faults:
            pipeline = merged.with_unranked(compiled_maker(faults=(fault,))(merged.run, merged.sizes))
            columns = pipeline.engine.prove(pipeline.draw_for(merged.run))
            actual.append(build_trace(merged.run, pipeline.engine, columns, None))
        yield batch.expected, actual
