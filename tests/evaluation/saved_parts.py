"""The files of saved evaluations, and the rankings that the reference records for the same run."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import kgverify as kv

EXACT = ("query", "side", "num_ranked", "optimistic", "pessimistic", "outcome", "log_probability")
"""The columns that are the same whether or not candidates without influence on a rank are left out."""
COUNTS = ("num_outcomes", "num_limited")
UNCHECKED = kv.EvaluationOptions(check=0, minimum="none")

Columns = dict[str, NDArray[Any]]


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files of an evaluation, without the content of the summary, which contains the seconds."""
    return {path.name: b"" if path.name == "summary.json" else path.read_bytes() for path in sorted(folder.iterdir())}


def read_rankings(folder: Path) -> Columns:
    """Return the rankings of all parts, as docs/evaluating.md reads them."""
    parts = [np.load(path) for path in sorted(folder.glob("part-*.npz"))]
    return {name: np.concatenate([part[name] for part in parts]) for name in (*EXACT, *COUNTS)}


class Recorded(NamedTuple):
    """The rankings of a run as the reference records them, and the ends of all candidates."""

    rankings: Columns
    ends: Columns


def record_reference(graph: kv.KnowledgeGraph | str, path: Path, **options: Any) -> Recorded:
    """Record a run of the reference, and derive from its candidates what an evaluation stores."""
    trace = kv.open_trace(kv.record(graph, path, "reference", **options).path)
    candidates, rankings = trace.candidate_columns(), trace.rankings
    assert rankings is not None
    group = candidates.query.astype(np.int64) * 2 + candidates.side
    # The true triple is the first candidate of its query and side.
    keys, first, owner = np.unique(group, return_index=True, return_inverse=True)
    found = {name: getattr(rankings, name) for name in ("query", "side", "num_ranked", "optimistic", "pessimistic")}
    found |= {"outcome": candidates.outcome[first], "log_probability": candidates.log_probability[first]}
    found["num_outcomes"] = np.zeros((len(keys), 4), np.int64)
    np.add.at(found["num_outcomes"], (owner, candidates.outcome), 1)
    found["num_limited"] = np.bincount(owner, candidates.is_limited != 0, len(keys))
    return Recorded(found, {"outcome": candidates.outcome, "is_limited": candidates.is_limited})


def assert_equal(actual: Columns, expected: Columns, names: tuple[str, ...] = (*EXACT, *COUNTS)) -> None:
    for name in names:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)
