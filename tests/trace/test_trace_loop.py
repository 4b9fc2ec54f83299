"""A prover's own loop writes a trace: from whatever becomes an array, with nothing cut off and nothing made up."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from trace_builders import FACTS, OUTPUTS, RULES, SYMBOLS, assert_same_columns, make_columns, read

from kgverify import DeclaredLimits, LoopWriter, Part, UserError
from kgverify.kinds import KNOWLEDGE_GRAPH

PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
COLUMNS = make_columns(1, 9, has_stages=True)


def groups(convert=np.asarray):
    return [{name: convert(column) for name, column in group._asdict().items()} for group in COLUMNS]


def levels():
    """Return the columns without the outputs of stages."""
    return groups()[:3]


def write(path, *batches, **options):
    names = {"predicates": SYMBOLS.predicates, "constants": SYMBOLS.constants}
    with LoopWriter(path, engine="mine", **names, **options) as trace:
        for batch in batches:
            trace.append(*batch)
    return read(path)


@pytest.mark.parametrize(
    "convert",
    [
        # torch has few unsigned types, and a prover's integers are usually int64.
        lambda c: torch.from_numpy(c.astype(np.int64) if c.dtype.kind in "iu" else c),
        lambda c: SimpleNamespace(__array_interface__=np.ascontiguousarray(c).__array_interface__, column=c),
        lambda c: c.astype(">i8" if c.dtype.kind in "iu" else ">f8"),
    ],
)
def test_whatever_becomes_an_array_is_written(tmp_path, convert):
    trace = write(tmp_path / "a", groups(convert), facts=FACTS, rules=RULES, level="deep")
    assert_same_columns(trace.columns, COLUMNS)
    assert trace.rules == RULES


def test_a_short_float_of_torch_is_widened(tmp_path):
    given = levels()
    given[2]["score"] = torch.from_numpy(COLUMNS.resolvents.score).to(torch.bfloat16).requires_grad_()
    score = write(tmp_path / "a", given).columns.resolvents.score
    assert score.dtype == np.float32
    np.testing.assert_allclose(score, COLUMNS.resolvents.score, rtol=0.01)


@pytest.mark.parametrize("options", [{}, {"shard_steps": 1}, {"level": "digests"}])
def test_true_triples_are_marked(tmp_path, options):
    batches = [(levels()[0] | {"is_true": COLUMNS.candidates.side == i}, *levels()[1:]) for i in range(3)]
    marks = write(tmp_path / "a", *batches, **options).labels
    assert marks.tolist() == [side == i for i in range(3) for side in COLUMNS.candidates.side]
    with pytest.raises(UserError, match="is_true: has 2 values"):
        write(tmp_path / "b", (levels()[0] | {"is_true": [True, False]}, *levels()[1:]))


def test_what_is_left_out_is_absent(tmp_path):
    given = [
        {n: c for n, c in level.items() if f"{g}.{n}" not in KNOWLEDGE_GRAPH.optional}
        for g, level in zip(COLUMNS._fields, levels(), strict=False)
    ]
    del given[0]["query"], given[0]["side"]
    trace = write(tmp_path / "a", given, given)
    assert not trace.fields & KNOWLEDGE_GRAPH.optional
    assert trace.columns.candidates.query.tolist() == list(range(18))
    assert set(trace.columns.candidates.side.tolist()) == {2}
    header = trace.header
    assert (header.limits, header.policy.name, header.program_sha256) == (DeclaredLimits(), "", "")
    assert len(write(tmp_path / "b").columns.candidates.query) == 0


def test_a_derivation_is_limited_if_one_of_its_steps_dropped_something(tmp_path):
    given = levels()
    del given[0]["is_limited"]
    columns = write(tmp_path / "a", given).columns
    owner = np.repeat(np.arange(9), COLUMNS.candidates.num_steps)
    dropped = columns.steps.dropped_atoms + columns.steps.dropped_resolvents
    assert columns.candidates.is_limited.tolist() == [int((dropped[owner == i] > 0).any()) for i in range(9)]


@pytest.mark.parametrize(
    ("group", "name", "value", "match"),
    [
        (1, "depth", lambda c: c.astype(np.int64) + 70_000, "values from .* expected 0 to 65535"),
        (1, "choice", lambda c: c.astype(float), "expected integers"),
        (2, "score", lambda c: c.astype(str), "expected numbers"),
        (2, "origin", lambda c: object(), "expected integers|expected numbers"),
        (2, "kind", lambda c: [[1], [2, 3]], "is not an array"),
        (1, "colour", lambda c: c, "unknown column 'colour'"),
        (1, "num_resolvents", None, r"steps\.num_resolvents is missing"),
    ],
)
def test_what_a_column_cannot_hold_is_refused(tmp_path, group, name, value, match):
    given = levels()
    column = given[group].pop(name, np.zeros(3))
    if value is not None:
        given[group][name] = value(column)
    with pytest.raises(UserError, match=match) as caught:
        write(tmp_path / "a", given)
    assert caught.value.fix
    assert not (tmp_path / "a").exists()


def test_every_batch_has_the_same_columns(tmp_path):
    less = [*levels()[:2], {name: column for name, column in levels()[2].items() if name != "score"}]
    with pytest.raises(UserError, match=r"resolvents\.score is in one batch"):
        write(tmp_path / "a", levels(), less)


def test_outputs_of_stages_are_given_as_columns_or_step_by_step_and_all_of_them(tmp_path):
    atoms = np.zeros((3, 3), int)
    steps = {"num_atoms": [1] * 3, "num_resolvents": [0] * 3, "goal_atoms": atoms}
    resolvents = {"kind": [], "num_atoms": [], "atoms": []}
    trace = write(tmp_path / "a", ({"atom": atoms[:1], "num_steps": [3]}, steps, resolvents, OUTPUTS), level="deep")
    assert trace.columns.stages.told.tolist() == [2**13 - 1, 0, 2**2 + 2**12]
    given = groups()
    with pytest.raises(UserError, match="level deep keeps") as caught:
        write(tmp_path / "b", given[:3], level="deep")
    assert "told" in caught.value.fix
    del given[3]["origin"]
    with pytest.raises(UserError, match=r"stages\.origin is missing"):
        write(tmp_path / "b", given, level="deep")


def test_the_examples_of_the_page_write_traces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop, deep, opened, rank = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(loop + deep + opened + rank, "traces.md", "exec"), {"__name__": "example"})
    assert read(tmp_path / "deep.h5").columns.stages.num_items.tolist() == [5]
    assert read(tmp_path / "rank-1.h5").header.part == Part(1, 4, "modulo")
    trace = read(tmp_path / "mine.h5")
    assert trace.columns.candidates.outcome.tolist() == [1]
    assert "resolvents.score" not in trace.fields
