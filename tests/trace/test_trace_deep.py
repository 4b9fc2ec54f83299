"""Level `deep`: what each stage of each step gave, written, read, mapped, refused, repaired."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from trace_builders import (
    FACTS,
    HEADER,
    RULES,
    SYMBOLS,
    assert_same_columns,
    make_columns,
    open_writer,
    write_file,
)

from kgverify import LoopWriter, Stage, UserError
from kgverify.program.outcomes import STEP_STAGES
from kgverify.report.steps import LazyTraceView
from kgverify.trace.hdf5.writing import write_arrays
from kgverify.trace.maintain.repair import convert_trace
from kgverify.trace.model.columns import StageItems, no_stage_items, select_candidates
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.stage_items import StageReader, encode_stage_outputs, ends_alike
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.trace.write.writer import encode_trace

COLUMNS = make_columns(4, 30, has_stages=True)
NUM_STEPS = len(COLUMNS.steps.depth)
OUTPUTS = [
    {
        Stage.SELECT: (1, 2, -1),
        Stage.MATCH_RULES: (0, 2),
        Stage.MATCH_FACTS: (),
        Stage.RESOLVE: ((1, 0, ((1, 2, -1), (0, -1, 3))), (1, 2, ())),
        Stage.PRUNE: ((1, 0, ((-(2**31), 0, 0),)),),
        Stage.RENAME: (),
        Stage.REVISIT: ((1, 0, ((1, 2, -1),)),),
        Stage.CLOSE: ((0, 1, 0, ((1, 2, -1),)), (2, 0, 0, ())),
        Stage.LIMIT: (((1, 2, 1, ()),), 3, 4),
        Stage.SCORE: (0.5, float("-inf"), -0.0),
        Stage.CHOOSE: -1,
        Stage.ADVANCE: (1, ((0, 0, 0),), 7),
        Stage.FINISH: 3,
    },
    {},
    {Stage.MATCH_FACTS: (5,), Stage.FINISH: 0},
]


def deep(path: Path, columns=COLUMNS, **options) -> Path:
    write_file(path, HEADER, SYMBOLS, columns, facts=FACTS, rules=RULES, level="deep", **options)
    return path


def test_outputs_come_back_as_they_were_given():
    items = encode_stage_outputs(OUTPUTS)
    columns = make_columns(1, 0)._replace(stages=items)
    dropped = np.array([3, 0, 0], np.uint32), np.array([4, 0, 0], np.uint32)
    columns = columns._replace(steps=columns.steps._replace(dropped_atoms=dropped[0], dropped_resolvents=dropped[1]))
    reader = StageReader(columns)
    found = [reader.read(i) for i in range(3)]
    assert found == OUTPUTS
    assert list(found[0]) == list(STEP_STAGES)
    assert StageReader(make_columns(1, 3)).read(2) == {}


@pytest.mark.parametrize("is_archived", [False, True])
def test_what_the_stages_gave_is_read_and_mapped(tmp_path, is_archived):
    path = deep(tmp_path / "a", is_archived=is_archived)
    trace, mapped = read_trace(path), TraceFile(path)
    mapped.verify_content()
    for found in (trace.columns, mapped.read_candidates(0, 30)):
        assert_same_columns(found, COLUMNS)
    rows = np.random.default_rng(1).permutation(30)[:11]
    assert_same_columns(mapped.gather_candidates(rows), select_candidates(COLUMNS, rows))


def test_a_recording_that_was_interrupted_goes_on(tmp_path):
    path = tmp_path / "a"

    def record(num, **options):
        with open_writer(
            path, HEADER, SYMBOLS, facts=FACTS, rules=RULES, level="deep", shard_steps=20, **options
        ) as writer:
            for i in range(writer.num_appended, num):
                writer.append(select_candidates(COLUMNS, np.array([i])))
            if num < 30:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        record(17)
    assert_same_columns(read_trace(tmp_path / "a.partial").columns, select_candidates(COLUMNS, np.arange(17)))
    record(30, resume=True)
    assert_same_columns(read_trace(path).columns, COLUMNS)
    assert read_trace(path).root == read_trace(deep(tmp_path / "one")).root


def test_a_deep_trace_is_lowered_and_no_other_is_raised(tmp_path):
    deep(tmp_path / "deep")
    write_file(tmp_path / "steps", HEADER, SYMBOLS, COLUMNS, facts=FACTS, rules=RULES)
    convert_trace(tmp_path / "deep", tmp_path / "lowered", TraceLevel.STEPS)
    assert (tmp_path / "lowered").read_bytes() == (tmp_path / "steps").read_bytes()
    for level in ("steps", "compact"):
        write_file(tmp_path / level, HEADER, SYMBOLS, COLUMNS, facts=FACTS, rules=RULES, level=level)
        with pytest.raises(UserError, match="cannot be restored at level 'deep'"):
            convert_trace(tmp_path / level, tmp_path / "raised", TraceLevel.DEEP, rebuild=lambda trace: trace)


def test_steps_that_do_not_say_what_their_stages_gave_are_no_deep_trace(tmp_path):
    with pytest.raises(UserError, match="level deep keeps") as caught:
        deep(tmp_path / "a", COLUMNS._replace(stages=no_stage_items()))
    assert "told" in caught.value.fix
    untold = COLUMNS._replace(stages=no_stage_items(NUM_STEPS))
    assert_same_columns(read_trace(deep(tmp_path / "a", untold)).columns, untold)


def change(name, row, value):
    def apply(arrays):
        array = arrays[f"stages/{name}"].copy()
        array[row] = value
        arrays[f"stages/{name}"] = array

    return apply


def cut(name):
    def apply(arrays):
        arrays[f"stages/{name}"] = arrays[f"stages/{name}"][:-1]

    return apply


def place(stage: Stage) -> int:
    """The first item of a stage."""
    return int(np.flatnonzero(COLUMNS.stages.stage == list(STEP_STAGES).index(stage) + 1)[0])


WRONG = {
    "no such stage": (change("stage", -1, 14), "stage"),
    "no stage": (change("stage", 0, 0), "stage"),
    "stages in another order": (change("stage", place(Stage.MATCH_RULES), 13), "stage|num_items"),
    "a stage that is not known": (change("told", int(np.argmax(COLUMNS.stages.told > 0)), 0), "stage|num_items"),
    "a bit of no stage": (change("told", 0, 1 << 13), "told"),
    "a single stage twice": (change("stage", place(Stage.FINISH) + 1, 13), "stage|num_items"),
    "a selected atom that is missing": (change("num_atoms", place(Stage.SELECT), 0), "num_atoms"),
    "a choice between two numbers": (change("number", place(Stage.CHOOSE), 0.5), "number"),
    "a depth that is not a number": (change("number", place(Stage.ADVANCE), np.nan), "number"),
    "an outcome beyond all": (change("number", place(Stage.FINISH), 1e300), "number"),
    "no such kind": (change("kind", 0, 4), "kind"),
    "no such origin kind": (change("origin_kind", 0, 3), "origin_kind"),
    "no such rule": (change("origin", place(Stage.MATCH_RULES), 99), "origin"),
    "a fact before the first": (change("origin", place(Stage.MATCH_FACTS), -1), "origin"),
    "items that do not add up": (change("num_items", 0, 2**32 - 1), "num_items"),
    "atoms that do not add up": (change("num_atoms", -1, 2**16 - 1), "num_atoms"),
    "too few steps": (cut("told"), "told|stages|steps"),
    "too few items": (cut("origin"), "origin|stages"),
    "too few atoms": (cut("atoms"), "num_atoms"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_stages_cannot_give_is_refused(tmp_path, name):
    apply, where = WRONG[name]
    arrays = encode_trace(read_trace(deep(tmp_path / "a")))
    apply(arrays)
    write_arrays(tmp_path / "b", arrays, "test")

    def map_it(path):
        mapped = TraceFile(path)
        mapped.verify_content()
        mapped.read_candidates(0, 30)

    for look in (read_trace, map_it):
        with pytest.raises(UserError) as caught:
            look(tmp_path / "b")
        assert any(each in caught.value.where for each in where.split("|")), caught.value
        assert caught.value.fix


@pytest.mark.parametrize(
    "convert", [np.asarray, lambda c: torch.from_numpy(c.astype("f8" if c.dtype.kind == "f" else "i8"))]
)
def test_a_loop_gives_what_its_stages_gave(tmp_path, convert):
    groups = [{name: convert(column) for name, column in group._asdict().items()} for group in COLUMNS]

    def writer(name):
        return LoopWriter(
            tmp_path / name,
            engine="mine",
            predicates=SYMBOLS.predicates,
            constants=SYMBOLS.constants,
            facts=FACTS,
            rules=RULES,
            level="deep",
        )

    with writer("a") as trace:
        trace.append(*groups)
    assert_same_columns(read_trace(tmp_path / "a").columns, COLUMNS)
    del groups[3]["origin"]
    with pytest.raises(UserError, match=r"stages\.origin is missing"), writer("b") as trace:
        trace.append(*groups)
    with pytest.raises(UserError, match="level deep keeps"), writer("c") as trace:
        trace.append(*groups[:3])


def test_the_columns_are_documented():
    page = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
    for name in StageItems._fields:
        assert f"| `/stages/{name}` | {getattr(COLUMNS.stages, name).dtype}" in page, name


def test_a_probe_ends_like_a_step_if_scores_are_equal_within_the_tolerance_and_all_else_is_equal():
    step = {Stage.LIMIT: ((), 0, 0), Stage.SCORE: (-1.0, -2.0, float("nan")), Stage.CHOOSE: 1, Stage.MATCH_FACTS: (1,)}
    assert ends_alike(step, step, 0.0)
    assert ends_alike(step | {Stage.SCORE: (-1.0, -2.25, float("nan")), Stage.MATCH_FACTS: ()}, step, 0.25)
    for other in ({Stage.SCORE: (-1.0, -2.25, float("nan"))}, {Stage.SCORE: (-1.0, -2.0)}, {Stage.CHOOSE: 0}):
        assert not ends_alike(step | other, step, 0.125)


def test_what_stages_cannot_give_is_not_shown_either(tmp_path):
    path = tmp_path / "a"
    deep(path)
    step = int(np.argmax(COLUMNS.stages.told > 0))
    candidate = int(np.repeat(np.arange(30), COLUMNS.candidates.num_steps)[step])
    number = step - int(np.cumsum(COLUMNS.candidates.num_steps)[candidate] - COLUMNS.candidates.num_steps[candidate])
    assert LazyTraceView(TraceFile(path)).step(candidate, number)["stages"]
    with h5py.File(path, "r+") as file:
        file["stages/told"][step] = 0
    with pytest.raises(UserError, match="stage"):
        LazyTraceView(TraceFile(path)).step(candidate, number)["stages"]
