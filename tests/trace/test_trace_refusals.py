"""Refusals: a reader names the problem, its place and a fix, for a file in memory and for one that stays on disk."""

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
import pytest
import trace_builders as traces
from hostile_traces import alter, copy_as_plain_h5py, reseal, with_row

import kgverify as kv
from kgverify import Symbols, UserError
from kgverify.program.outcomes import STEP_STAGES, Stage
from kgverify.trace.model.columns import Paths

COLUMNS = traces.make_columns(1, 8)
DEEP = traces.make_columns(4, 30, has_stages=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    traces.write_file(folder / "steps", COLUMNS, traces.RANKINGS, **traces.PROGRAM)
    traces.write_file(folder / "deep", DEEP, level="deep", **traces.PROGRAM)
    return folder


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made / "steps", tmp_path / "a"))


def refuse(path: Path, match: str | None = None) -> UserError:
    """Check that a trace is refused in memory and on disk; return the error of the first."""
    found = []
    for look in (traces.read, traces.read_mapped):
        with pytest.raises(UserError, match=match) as caught:
            look(path)
        assert caught.value.where.startswith(str(path))
        assert caught.value.fix
        found.append(caught.value)
    return found[0]


def test_a_path_without_a_trace_is_refused(tmp_path: Path):
    refuse(tmp_path / "none", "no such trace")
    refuse(tmp_path, r"no manifest\.json in this folder")
    (tmp_path / "a").write_bytes(b"query,side\n1,0\n" * 100)
    assert "kgverify trace import" in refuse(tmp_path / "a", "not an HDF5 file").fix
    with h5py.File(tmp_path / "a", "w") as file:
        file["x"] = 1
    refuse(tmp_path / "a", "without the root attribute `format`")
    with h5py.File(tmp_path / "a", "r+") as file:
        file.attrs["format"] = np.bytes_("anndata")
    refuse(tmp_path / "a", "'anndata', expected 'kgverify-trace'")


@pytest.mark.parametrize(
    ("version", "found", "fix"),
    [(3, 3, "record"), (0, 0, "record"), (None, None, "record"), (5, 5, "newer"), (np.float64(4), None, "record")],
)
def test_another_schema_version_is_refused_with_the_fix_for_it(path: Path, version: Any, found: Any, fix: str):
    with h5py.File(path, "r+") as file:
        del file.attrs["schema_version"]
        if version is not None:
            file.attrs["schema_version"] = np.int64(version) if isinstance(version, int) else version
    assert fix in refuse(path, f"schema version is {found}, expected 4").fix


@pytest.mark.parametrize("field", ["resolvents/origin", "steps/dropped_atoms", "rankings/side", "program/rule_lengths"])
def test_datasets_that_belong_together_are_there_together(path: Path, field: str):
    alter(path, {"digests/sequence": None, field: None})
    assert refuse(path, "missing, while").where.endswith(field)


def test_datasets_cannot_be_lost_renamed_or_altered_unnoticed(path: Path):
    content = path.read_bytes()
    alter(path, {"resolvents/score": None}, is_resealed=False)
    refuse(path, "one was renamed, removed or added")
    for change in (None, np.atleast_1d, np.int64):
        path.write_bytes(content)
        with h5py.File(path, "r+") as file:
            del file["steps/choice"].attrs["xxh3"]
            if change is not None:
                file["steps/choice"].attrs["xxh3"] = change(np.uint64(7))
        assert refuse(path, "no attribute `xxh3` that is one uint64").where.endswith("steps/choice")
    path.write_bytes(content)
    with h5py.File(path, "r+") as file:
        file["steps/choice"][0] += 1
    assert refuse(path, "checksum is .*, expected").where.endswith("steps/choice")
    reseal(path)
    assert "digests/" in refuse(path, "step 0 has digest").where


def column(name: str, row: Any, value: Any) -> dict[str, Any]:
    return {name: with_row(row, value)}


def header(**changes: Any) -> dict[str, Any]:
    def change(array):
        return np.frombuffer(json.dumps(json.loads(array.tobytes()) | changes).encode(), np.uint8)

    return {"header": change}


def shorten(array):
    return array[:-1]


TYPES: list[tuple[str, Any, str]] = [
    ("steps/choice", np.zeros(3, np.int64), "dtype is int64, expected little-endian int32"),
    ("steps/choice", np.zeros(3, ">i4"), "dtype is >i4"),
    ("candidates/is_limited", np.zeros(3, bool), "dtype is"),
    ("resolvents/score", np.zeros(3, np.float16), "expected little-endian float32 or float64"),
    ("steps/goal_atoms", np.zeros(9, np.int32), r"shape is \[9\], expected \[n, 3\]"),
    ("steps/goal_atoms", np.zeros((9, 2), np.int32), "shape is"),
    ("steps/choice", np.int32(3), r"shape is \[\], expected \[n\]"),
    ("steps/choice", h5py.Empty("i4"), "shape is"),
    ("steps/choice", np.zeros(3, [("a", "i4")]), "dtype is"),
]
VALUES: list[tuple[str, Any, Any, str]] = [
    ("candidates/outcome", 0, 4, "expected a code of Outcome, 0 to 3"),
    ("candidates/outcome", 0, -1, "expected a code of Outcome"),
    ("candidates/side", 0, 3, "expected a code of Side"),
    ("candidates/is_limited", 0, 2, "expected a flag"),
    ("candidates/num_steps", 0, 2**32 - 1, "add up"),
    ("steps/num_atoms", 0, 77, "add up"),
    ("steps/num_resolvents", 0, 77, "add up"),
    ("steps/outcome", 0, 9, "expected a code of Outcome"),
    ("resolvents/num_atoms", 0, 77, "add up"),
    ("resolvents/kind", 0, 4, "expected a code of GoalKind"),
    ("resolvents/origin_kind", 0, 3, "expected a code of Origin"),
    ("rankings/side", 0, 7, "expected a code of Side"),
    ("program/facts", (0, 1), -1, "a variable, expected ground atoms"),
    ("program/facts", (0, 0), 9, "expected a predicate's id"),
    ("program/facts", (0, 1), 40, "expected a constant's id"),
    ("program/facts", (0, 2), 40, "expected a constant's id"),
    ("program/rule_lengths", 0, 1, "a head and one or more atoms"),
    ("symbols/predicates_offsets", 0, 1, "do not ascend"),
    ("symbols/constants_offsets", 3, 2**63, "do not ascend"),
    ("symbols/constants_bytes", 0, 0xFF, "not UTF-8"),
    ("header", 0, 0xFF, "not a header"),
    ("header", 0, ord("["), "not a header"),
]
HEADERS: list[tuple[dict[str, Any], str]] = [
    ({"schema_version": 3}, "schema version is 3, expected 4"),
    ({"level": "all"}, "unknown level 'all'"),
    ({"level": 3}, "not a header"),
    ({"engine": None}, "not a header"),
    ({"limits": {"max_depth": 0}}, "max_depth is 0"),
    ({"limits": {"max_width": 1}}, "not a header"),
]
ORIGIN = ("resolvents/origin_kind", "resolvents/origin")
WRONG: list[tuple[dict[str, Any], str, str]] = [
    *(({name: array}, match, name) for name, array, match in TYPES),
    *((column(name, row, value), match, name) for name, row, value, match in VALUES),
    *((header(**changes), match, "header") for changes, match in HEADERS),
    *(({name: shorten}, "lengths differ", "") for name in ("candidates/query", "steps/depth", "rankings/side")),
    ({"program/fact_lines": shorten}, "found 11 lines for 12 facts", ""),
    *(
        (column(ORIGIN[0], 2, kind) | column(ORIGIN[1], 2, origin), f"row 2 names .* {origin}, expected", "")
        for kind, origin in ((1, 3), (1, -1), (2, 12))
    ),
    (
        {
            "symbols/predicates_bytes": np.frombuffer(b"aabcd", np.uint8),
            "symbols/predicates_offsets": np.arange(6, dtype=np.uint64),
        },
        "ids 0 and 1 have the same name 'a'",
        "",
    ),
    ({"digests/sequence": np.zeros(1, np.uint64)}, "lengths differ: .*, sequence 1; expected", ""),
    (column("program/facts", (3, 1), 5), "program_sha256 is", ""),
]


@pytest.mark.parametrize(("changes", "match", "where"), WRONG)
def test_what_a_trace_cannot_hold_is_refused(path: Path, changes: dict[str, Any], match: str, where: str):
    # Without digests, which would not fit the other values.
    alter(path, {"digests/sequence": None} | changes)
    assert refuse(path, match).where.endswith(where)


@pytest.mark.parametrize(
    ("field", "row", "value", "message"),
    [
        ("optimistic", 0, 0.0, "row 0 is 0 of 3 candidates, expected a rank from 1 to 3"),
        ("optimistic", 1, -1.0, "row 1 is -1 of 3"),
        ("pessimistic", 2, np.nan, "row 2 is nan of 2"),
        ("pessimistic", 2, np.inf, "row 2 is inf of 2"),
        ("pessimistic", 1, 4.0, "row 1 is 4 of 3"),
        ("optimistic", 2, 2.5, "row 2 is 2.5 of 2"),
        ("pessimistic", 1, 1.0, "row 1 is 2, above the pessimistic rank 1"),
        ("num_ranked", 0, 0, "row 0 is 1 of 0"),
        ("side", 1, 0, "ranked twice"),
    ],
)
def test_ranks_that_no_ranking_gives_are_neither_written_nor_read(
    path: Path, tmp_path: Path, field: str, row: int, value: Any, message: str
):
    wrong = traces.RANKINGS._replace(**{field: with_row(row, value)(getattr(traces.RANKINGS, field))})
    with pytest.raises(UserError, match=message):
        traces.write_file(tmp_path / "written", COLUMNS, wrong)
    alter(path, column(f"rankings/{field}", row, value))
    with pytest.raises(UserError, match=message):
        traces.read(path)
    assert traces.run("check", path)["state"] == "damaged"


FIRST = {stage: int(np.argmax(DEEP.stages.stage == number)) for number, stage in enumerate(STEP_STAGES, 1)}
"""The first item of each stage."""


@pytest.mark.parametrize(
    ("field", "row", "value", "where"),
    [
        ("stage", -1, 14, "stage"),
        ("stage", 0, 0, "stage"),
        ("stage", FIRST[Stage.MATCH_RULES], 13, "stage|num_items"),
        ("stage", FIRST[Stage.FINISH] + 1, 13, "stage|num_items"),
        ("told", int(np.argmax(DEEP.stages.told > 0)), 0, "stage|num_items"),
        ("told", 0, 1 << 13, "told"),
        ("num_atoms", FIRST[Stage.SELECT], 0, "num_atoms"),
        ("number", FIRST[Stage.CHOOSE], 0.5, "number"),
        ("number", FIRST[Stage.ADVANCE], np.nan, "number"),
        ("number", FIRST[Stage.FINISH], 1e300, "number"),
        ("kind", 0, 4, "kind"),
        ("origin_kind", 0, 3, "origin_kind"),
        ("origin", FIRST[Stage.MATCH_RULES], 99, "origin"),
        ("origin", FIRST[Stage.MATCH_FACTS], -1, "origin"),
        ("num_items", 0, 2**32 - 1, "num_items"),
        ("num_atoms", -1, 2**16 - 1, "num_atoms"),
        ("told", None, None, "told|stages|steps"),
        ("origin", None, None, "origin|stages"),
        ("atoms", None, None, "num_atoms"),
    ],
)
def test_what_stages_cannot_give_is_refused(made: Path, tmp_path: Path, field: str, row: Any, value: Any, where: str):
    path = Path(shutil.copy(made / "deep", tmp_path / "a"))
    alter(path, {f"stages/{field}": shorten} if row is None else column(f"stages/{field}", row, value))
    found = refuse(path).where
    assert any(each in found for each in where.split("|")), found


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize("name", ["score_error", "rank_tolerance", "score_errors.float32"])
def test_errors_of_scores_are_finite_numbers(tmp_path: Path, name: str, value: float):
    group = {"score_error": "engine", "rank_tolerance": "run", "score_errors.float32": "policy"}[name]
    change = {"score_errors": {"float32": value}} if group == "policy" else {name: value}
    wrong = msgspec.structs.replace(
        traces.HEADER, **{group: msgspec.structs.replace(getattr(traces.HEADER, group), **change)}
    )
    with pytest.raises(UserError, match=f"{name} is .*expected a finite number from 0 on"):
        traces.write_file(tmp_path / "wrong", COLUMNS, header=wrong)


def test_a_program_that_is_not_that_of_the_hash_is_refused(tmp_path: Path):
    other = with_row((3, 1), 5)(traces.FACTS)
    for facts, rules in ((other, traces.RULES), (traces.FACTS, traces.RULES[:2]), (traces.FACTS, ())):
        with pytest.raises(UserError, match=r"program_sha256 is .*expected .* from the names, facts and rules"):
            traces.write_file(tmp_path / "wrong", COLUMNS, facts=facts, rules=rules)
    # Without all of the program, or without a hash, nothing can be checked.
    traces.write_file(tmp_path / "facts", COLUMNS, facts=other)
    unknown = msgspec.structs.replace(traces.HEADER, program_sha256="")
    traces.write_file(tmp_path / "unknown", COLUMNS, header=unknown, facts=other, rules=traces.RULES)


def test_a_writer_refuses_what_a_reader_would(tmp_path: Path):
    steps, path = COLUMNS.steps, tmp_path / "a"
    for changes, match in (
        ({"choice": steps.choice.astype(np.int64)}, r"steps/choice: dtype is int64, expected int32\nfix: .*astype"),
        ({"goal_atoms": steps.goal_atoms[:, :2]}, "goal_atoms: shape is"),
        ({"goal_atoms": steps.goal_atoms[:-1]}, "add up to"),
        ({"outcome": steps.outcome + np.int8(9)}, "expected a code of Outcome"),
    ):
        with pytest.raises(UserError, match=match):
            traces.write_file(path, COLUMNS._replace(steps=steps._replace(**changes)))
        shutil.rmtree(tmp_path / "a.partial", ignore_errors=True)
    with pytest.raises(UserError, match="not be absent"):
        traces.open_writer(path, absent=["steps.num_atoms"])
    with pytest.raises(UserError, match="folder does not exist"):
        traces.write_file(tmp_path / "no" / "a", COLUMNS)
    with pytest.raises(UserError, match="unknown level 'digest'") as caught:
        traces.write_file(path, COLUMNS, level="digest")
    assert "digests" in caught.value.fix
    surrogate = Symbols(traces.SYMBOLS.predicates, ("\udc80", *traces.SYMBOLS.constants[1:]))
    with pytest.raises(UserError, match="UTF-8"):
        traces.write_file(
            path, COLUMNS, symbols=surrogate, header=msgspec.structs.replace(traces.HEADER, program_sha256="")
        )
    writer = traces.open_writer(path)
    writer.append(COLUMNS)
    with pytest.raises(UserError, match="dtype is float32, expected float64"):
        writer.append(traces.make_columns(1, 5, score_dtype=np.float32))
    # What was appended before is kept, nothing else is written.
    writer.commit()
    traces.assert_same_columns(traces.read(tmp_path / "a.partial").columns, COLUMNS)


def test_a_place_below_zero_is_refused(tmp_path: Path):
    num, num_resolvents = len(COLUMNS.steps.depth), len(COLUMNS.resolvents.kind)
    places, sums = np.arange(num, dtype=np.int32), np.zeros(num)
    children, gained = np.full(num_resolvents, -1, np.int32), np.zeros(num_resolvents)
    traces.write_file(tmp_path / "a", COLUMNS._replace(paths=Paths(places, places, places, sums, children, gained)))
    with pytest.raises(UserError, match="paths/place: row 0 is -1, expected a place"):
        traces.write_file(
            tmp_path / "b", COLUMNS._replace(paths=Paths(places, places - 1, places, sums, children, gained))
        )


@pytest.mark.parametrize("layout", ["kgverify", "h5py"])
def test_a_flipped_bit_or_a_cut_is_an_error_or_changes_nothing(path: Path, layout: str):
    if layout == "h5py":
        copy_as_plain_h5py(path, path.with_name("b"))
        path = path.with_name("b")
    expected, content = traces.read(path), path.read_bytes()
    random, refused = np.random.default_rng(7), []

    def read_again() -> None:
        traces.assert_same_trace(traces.read(path), expected)

    def map_again() -> None:
        traces.assert_same_columns(traces.read_mapped(path), expected.columns)

    for position in random.choice(8 * len(content), 60, replace=False).tolist():
        traces.flip(path, position // 8, 1 << position % 8)
        for look in (read_again, map_again):
            try:
                look()
            except UserError as error:
                refused.append(error)
        path.write_bytes(content)
    assert len(refused) > 20
    assert all(error.where and error.fix for error in refused)
    for length in [*range(0, len(content), len(content) // 30), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(UserError):
            traces.read(path)


def test_damage_of_the_names_of_a_large_group_is_found_in_memory_and_mapped(made: Path, tmp_path: Path):
    """A group of many datasets keeps their names in a heap, whose free space is not read to find one of them."""
    path = Path(shutil.copy(made / "deep", tmp_path / "a"))
    content = path.read_bytes()
    # The header of a manager of free space, by HDF5's file format specification.
    start = content.index(b"FSHD")
    for byte in range(start, start + 82, 3):
        traces.flip(path, byte)
        for look in (traces.read, kv.open_trace):
            with pytest.raises(UserError):
                look(path)
        path.write_bytes(content)


def test_a_flipped_bit_of_a_step_is_not_shown_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A single step is checked by its digest: the checksum of a column is that of all of it."""
    monkeypatch.setattr("kgverify.report.steps.MOST_READ", 0)
    path = tmp_path / "a"
    traces.write_file(path, traces.one_step([(0, 0, 1)], [[(1, 1, 2)]]))
    assert kv.open_trace(path).step(0, 0)
    with h5py.File(path, "r+") as file:
        file["resolvents/atoms"][0, 0] ^= 1
    with pytest.raises(UserError, match="has digest"):
        kv.open_trace(path).step(0, 0)


@pytest.mark.parametrize("column", [1, 2])
def test_a_constant_without_a_name_is_refused_among_many_facts(tmp_path: Path, column: int):
    facts = np.zeros((300, 3), np.int32)
    facts[280, column] = traces.NUM_CONSTANTS
    with pytest.raises(UserError, match=f"is {traces.NUM_CONSTANTS}, expected a constant's id"):
        traces.write_file(tmp_path / "b", COLUMNS, facts=facts)
