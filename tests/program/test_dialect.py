"""The dialect in limits: its values, its files, its place in the header of a trace, and the engines that take it."""

import dataclasses
import json
import typing
from pathlib import Path

import msgspec
import pytest

import kgreference
import kgverify as kv
from kgverify.dialects import Dialect, describe_differences, read_dialect, write_dialect

FOREIGN = Dialect(
    unification="one_pass",
    filters=("prune", "close", "max_resolvents", "revisit", "max_atoms"),
    memory="set",
    exempts_terminal=True,
    stopping="where_no_terminal",
    ties="random",
)
DIALECTS = (Dialect(), FOREIGN, Dialect(filters=()))


def test_the_switches_are_those_of_the_reference(tmp_path: Path):
    fields = dataclasses.fields(kgreference.Dialect)
    assert tuple(each.name for each in fields) == Dialect.__struct_fields__
    (tmp_path / "filters.toml").write_text(f"filters = {json.dumps([*map(str, kgreference.Filter)])}")
    assert read_dialect(tmp_path / "filters.toml").filters == tuple(map(str, kgreference.Filter))
    for name, kind in typing.get_type_hints(kgreference.Dialect).items():
        values = {"filters": (), "search": ("beam(8)", "all(1000)", "sample(16, 0)", "greedy")}.get(name)
        for value in values if values is not None else (False, True) if kind is bool else map(str, kind):
            search = 'search = "beam(2)"' if name in ("merge", "aggregate") else ""
            (tmp_path / "dialect.toml").write_text(f"{name} = {json.dumps(value)}\n{search}")
            assert getattr(read_dialect(tmp_path / "dialect.toml"), name) == value


def test_a_dialect_is_written_and_read_as_toml(tmp_path: Path):
    path = tmp_path / "dialect.toml"
    for dialect in DIALECTS:
        write_dialect(dialect, path)
        assert read_dialect(path) == dialect
    path.write_text('memory = "set"')
    assert read_dialect(path) == Dialect(memory="set")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('memory = "sets"', "did you mean 'set'"),
        ("memory = 1", "memory is 1, expected sequence, none or set"),
        ("is_reversed = 1", "is_reversed is 1, expected false or true"),
        ('filters = "prune"', "filters is 'prune', expected names from"),
        ("filters = [[1]]", "expected prune, revisit"),
        ('filters = ["prune", "prune"]', "more than once"),
        ("memry = 1", "did you mean 'memory'"),
        ("memory", "is not TOML"),
    ],
)
def test_a_file_without_a_valid_dialect_is_refused(tmp_path: Path, text: str, message: str):
    path = tmp_path / "dialect.toml"
    path.write_text(text)
    with pytest.raises(kv.UserError, match=message) as caught:
        read_dialect(path)
    assert str(path) in str(caught.value)


def test_differences_are_sentences():
    assert describe_differences(FOREIGN, FOREIGN) == []
    assert describe_differences(Dialect(), Dialect(is_reversed=True, filters=("prune",))) == [
        "is_reversed is false in the expected dialect and true in the actual one",
        "filters is prune, revisit, close, max_atoms, max_resolvents in the expected dialect and prune in the actual one",
    ]
    assert (str(Dialect()), str(Dialect(is_reversed=True, memory="none"))) == (
        "default",
        "is_reversed true, memory none",
    )


def test_limits_without_a_dialect_have_the_default_one_and_declared_limits_none():
    assert kv.Limits().dialect == kv.DeclaredLimits().with_defaults().dialect == Dialect()
    assert "dialect" in kv.DeclaredLimits().unknown
    encoded = msgspec.json.encode(kv.Limits(dialect=Dialect(memory="set")))
    assert msgspec.json.decode(encoded, type=kv.Limits).dialect == Dialect(memory="set")


@pytest.mark.parametrize("dialect", DIALECTS[:2])
@pytest.mark.parametrize("known", [{}, {"max_depth": 3}])
def test_a_trace_keeps_the_dialect_that_its_writer_declared(tmp_path: Path, known: dict[str, int], dialect: Dialect):
    path = tmp_path / "trace.h5"
    limits = kv.Limits(dialect=dialect)
    kv.record("countries", path, engine="reference", queries=1, corruptions=1, limits=limits)
    assert kv.open_trace(path).header.limits == limits
    assert (b'"dialect"' in path.read_bytes()) == (dialect != Dialect())
    candidates = {"atom": [[0, 0, 1]], "num_steps": [1], "outcome": [1]}
    steps = {"num_atoms": [1], "num_resolvents": [1], "choice": [0], "goal_atoms": [[0, 0, 1]]}
    for declared in ({**known, "dialect": dialect}, known):
        with kv.LoopWriter(
            path, engine="mine", predicates="p", constants="ab", limits=declared, overwrites=True
        ) as writer:
            writer.append(candidates, steps, {"kind": [1], "num_atoms": [0], "atoms": []})
        assert kv.open_trace(path).header.limits == kv.DeclaredLimits(**declared)


def test_the_reference_judges_in_the_dialect_of_its_limits():
    size, limits = {"queries": 1, "corruptions": 1}, kv.Limits(dialect=FOREIGN)
    report = kv.verify("countries", "reference", **size, limits=limits, equality=kv.Equality(minimum="none"))
    assert (report.verdict.name, report.limits.dialect) == ("AGREE", FOREIGN)
