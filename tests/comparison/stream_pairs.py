"""Pairs of traces that differ in all the ways that the tests of the streamed comparison need, and ways to store them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import msgspec
import numpy as np
from comparison_traces import column_of, small_trace, with_column, with_columns, with_header_error, with_rankings

from kgverify import TraceWriter
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.program.program import Symbols
from kgverify.trace.model.columns import concatenate, expand_rows, select_candidates, select_steps, starts_of
from kgverify.trace.model.trace import Trace
from kgverify.trace.write.writer import Clauses, Storage

TOUCHED = (
    *("candidates.outcome", "candidates.is_limited", "candidates.log_probability"),
    *("steps.depth", "steps.dropped_atoms", "steps.dropped_resolvents", "steps.choice", "steps.outcome"),
    *("steps.goal_atoms", "resolvents.origin", "resolvents.score", "resolvents.atoms"),
)
Change = Callable[[Trace, np.random.Generator], Trace]


def base_trace(num_copies: int = 2, score_error: float = 0.0) -> Trace:
    """Copies of the small trace, which are candidates of other queries; the last has those of the first once more."""
    trace = small_trace()
    parts = []
    for i in range(num_copies):
        c = trace.columns.candidates
        parts.append(trace.columns._replace(candidates=c._replace(query=c.query + np.int32(10 * i))))
    parts.append(select_candidates(trace.columns, np.arange(3)))
    return with_header_error(with_columns(trace, concatenate(parts)), score_error)


def _rows(trace: Trace) -> int:
    return len(trace.columns.candidates.query)


def shuffle(trace: Trace, random: np.random.Generator) -> Trace:
    return with_columns(trace, select_candidates(trace.columns, random.permutation(_rows(trace))))


def lose(trace: Trace, random: np.random.Generator) -> Trace:
    kept = np.sort(random.permutation(_rows(trace))[: -int(random.integers(1, 4))])
    return with_columns(trace, select_candidates(trace.columns, kept))


def double(trace: Trace, random: np.random.Generator) -> Trace:
    rows = np.insert(np.arange(_rows(trace)), random.integers(_rows(trace)), random.integers(_rows(trace), size=2))
    return with_columns(trace, select_candidates(trace.columns, rows))


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
    kept = expand_rows(bounds, np.arange(0, len(bounds), 2))
    columns = select_steps(trace.columns, kept)
    return with_columns(
        trace, columns._replace(candidates=columns.candidates._replace(num_steps=fewer.astype(np.uint32)))
    )


def move_boundary(trace: Trace, random: np.random.Generator) -> Trace:
    """The totals stay; one count gives to the next."""
    name = str(random.choice(["candidates.num_steps", "steps.num_atoms", "steps.num_resolvents"]))
    values = column_of(trace, name).copy()
    rows = np.flatnonzero(values[:-1] > 0)
    row = int(random.choice(rows))
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
    optimistic = trace.rankings.optimistic.copy()
    optimistic[random.integers(len(optimistic))] += 1
    return with_rankings(trace, optimistic=optimistic, pessimistic=trace.rankings.pessimistic + 1)


def forget_column(trace: Trace, random: np.random.Generator) -> Trace:
    groups = [{"resolvents.origin_kind", "resolvents.origin"}, {"resolvents.score"}, {"candidates.log_probability"}]
    lost = random.choice([*groups, {"steps.dropped_atoms", "steps.dropped_resolvents"}])
    fields = trace.fields - lost
    for name in lost & fields:
        trace = with_column(trace, name, np.zeros_like(column_of(trace, name)))
    return replace(trace, fields=fields)


def forget_rankings(trace: Trace, random: np.random.Generator) -> Trace:
    return replace(trace, rankings=None)


def rename_constants(trace: Trace, random: np.random.Generator) -> Trace:
    """Constants numbered backwards."""
    last = len(trace.symbols.constants) - 1

    def convert(atoms: np.ndarray) -> np.ndarray:
        converted = atoms.copy()
        converted[:, 1:] = np.where(atoms[:, 1:] >= 0, last - atoms[:, 1:], atoms[:, 1:])
        return converted

    for name in ("candidates.atom", "steps.goal_atoms", "resolvents.atoms"):
        trace = with_column(trace, name, convert(column_of(trace, name)))
    header = msgspec.structs.replace(trace.header, program_sha256="")
    facts = convert(trace.facts) if trace.facts is not None and random.random() < 0.5 else None
    lines = trace.fact_lines if facts is not None else None
    symbols = Symbols(trace.symbols.predicates, trace.symbols.constants[::-1])
    return replace(trace, header=header, symbols=symbols, facts=facts, fact_lines=lines)


CHANGES: tuple[Change, ...] = (
    *(shuffle, lose, double, invent, swap_arguments, touch, cut_steps, move_boundary, jitter, coarsen, tie),
    *(rank_otherwise, forget_column, forget_rankings, rename_constants),
)


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
    with TraceWriter(
        path,
        trace.header,
        trace.symbols,
        clauses=Clauses(trace.facts, trace.fact_lines, trace.rules),
        storage=Storage(level, absent, is_archived, shard_steps),
    ) as writer:
        for i in range(_rows(trace)) if shard_steps < 1 << 40 else ():
            writer.append(select_candidates(trace.columns, np.array([i])))
        if shard_steps >= 1 << 40:
            writer.append(trace.columns)
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
