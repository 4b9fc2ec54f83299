"""A prover's own loop writes a trace: whatever becomes an array, nothing cut, nothing made up."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from trace_builders import FACTS, RULES, SYMBOLS, make_columns

from kgverify import LoopWriter, UserError
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.read.trace_file import read_trace

PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
COLUMNS = make_columns(1, 9)


def levels(convert):
    return [{name: convert(column) for name, column in level._asdict().items()} for level in COLUMNS]


def writer(path, **options):
    options = {"engine": "mine", "predicates": SYMBOLS.predicates, "constants": SYMBOLS.constants} | options
    return LoopWriter(path, **options)


def as_tensor(column):
    # torch has few unsigned types, and a prover's integers are int64 as a rule.
    return torch.from_numpy(column.astype(np.int64) if column.dtype.kind in "iu" else column)


class WithArray:
    def __init__(self, column):
        self.column = column

    def __array__(self, dtype=None, copy=None):
        return self.column if dtype is None else self.column.astype(dtype)


@pytest.mark.parametrize(
    "convert", [np.asarray, as_tensor, WithArray, lambda c: c[::1].astype(">i8" if c.dtype.kind in "iu" else ">f8")]
)
def test_whatever_becomes_an_array_is_written(tmp_path, convert):
    with writer(tmp_path / "a", facts=FACTS, rules=RULES) as trace:
        trace.append(*levels(convert))
    read = read_trace(tmp_path / "a")
    for actual, expected in zip(read.columns, COLUMNS, strict=True):
        for name in expected._fields:
            np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), name)
    assert read.rules == RULES


def test_a_short_float_of_torch_is_widened(tmp_path):
    given = levels(np.asarray)
    given[2]["score"] = torch.from_numpy(COLUMNS.resolvents.score).to(torch.bfloat16).requires_grad_()
    with writer(tmp_path / "a") as trace:
        trace.append(*given)
    score = read_trace(tmp_path / "a").columns.resolvents.score
    assert score.dtype == np.float32
    np.testing.assert_allclose(score, COLUMNS.resolvents.score, rtol=0.01)


def test_what_is_left_out_is_absent(tmp_path):
    given = [
        {n: c for n, c in level.items() if f"{g}.{n}" not in KNOWLEDGE_GRAPH.optional}
        for g, level in zip(COLUMNS._fields, levels(np.asarray), strict=True)
    ]
    del given[0]["query"], given[0]["side"]
    with writer(tmp_path / "a") as trace:
        trace.append(*given)
        trace.append(*given)
    read = read_trace(tmp_path / "a")
    assert not read.fields & KNOWLEDGE_GRAPH.optional
    assert read.columns.candidates.query.tolist() == list(range(18))
    assert set(read.columns.candidates.side.tolist()) == {2}


def test_whether_a_derivation_is_limited_follows_from_what_was_dropped(tmp_path):
    given = levels(np.asarray)
    del given[0]["is_limited"]
    with writer(tmp_path / "a") as trace:
        trace.append(*given)
    steps = read_trace(tmp_path / "a").columns.steps
    owner = np.repeat(np.arange(9), COLUMNS.candidates.num_steps)
    expected = [int(((steps.dropped_atoms + steps.dropped_resolvents)[owner == i] > 0).any()) for i in range(9)]
    assert read_trace(tmp_path / "a").columns.candidates.is_limited.tolist() == expected


def test_a_loop_without_batches_writes_a_trace_of_no_candidates(tmp_path):
    with writer(tmp_path / "a"):
        pass
    assert len(read_trace(tmp_path / "a").columns.candidates.query) == 0


@pytest.mark.parametrize(
    ("group", "name", "value", "match"),
    [
        (1, "depth", lambda c: c.astype(np.int64) + 70_000, "values from .* expected 0 to 65535"),
        (1, "choice", lambda c: c.astype(float), "expected integers"),
        (2, "score", lambda c: c.astype(str), "expected numbers"),
        (2, "origin", lambda c: object(), "expected integers|expected numbers"),
        (2, "kind", lambda c: [[1], [2, 3]], "is not an array"),
        (1, "colour", lambda c: c, "unknown column 'colour'"),
    ],
)
def test_what_a_column_cannot_hold_is_refused(tmp_path, group, name, value, match):
    given = levels(np.asarray)
    given[group][name] = value(given[group].get(name, np.zeros(3)))
    with pytest.raises(UserError, match=match) as caught, writer(tmp_path / "a") as trace:
        trace.append(*given)
    assert caught.value.fix
    assert not (tmp_path / "a").exists()


def test_a_required_column_is_required_and_every_batch_has_the_same(tmp_path):
    given = levels(np.asarray)
    del given[1]["num_resolvents"]
    with pytest.raises(UserError, match=r"steps\.num_resolvents is missing"), writer(tmp_path / "a") as trace:
        trace.append(*given)
    given = levels(np.asarray)
    less = [*given[:2], {name: column for name, column in given[2].items() if name != "score"}]
    trace = writer(tmp_path / "a")
    trace.append(*given)
    with pytest.raises(UserError, match=r"resolvents\.score is in one batch"):
        trace.append(*less)


def test_the_page_s_example_writes_a_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop, deep, opened = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(loop + deep + opened, "traces.md", "exec"), {"__name__": "example"})
    assert read_trace(tmp_path / "deep.h5").columns.stages.num_items.tolist() == [5]
    trace = read_trace(tmp_path / "mine.h5")
    assert trace.columns.candidates.outcome.tolist() == [1]
    assert "resolvents.score" not in trace.fields
