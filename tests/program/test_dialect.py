"""The dialect in limits: its values, its files, its place in the header of a trace, and the engines that take it."""

import dataclasses
import typing

import msgspec
import pytest

import kgreference
import kgverify as kv
from kgverify.dialects import Dialect, describe_differences, read_dialect, write_dialect
from kgverify.engines.reference.engine import build_reference_dialect
from kgverify.program.limits import FILTERS, OURS, VALUES, DeclaredLimits, parse_dialect, render_dialect
from kgverify.trace.model.header import Header, PolicyInfo, decode_header, encode_header

FOREIGN = Dialect(
    unification="one_pass",
    filters=("prune", "close", "max_resolvents", "revisit", "max_atoms"),
    memory="set",
    exempts_terminal=True,
    stopping="where_no_terminal",
    ties="random",
)


def test_the_switches_are_those_of_the_reference():
    fields = dataclasses.fields(kgreference.Dialect)
    assert tuple(each.name for each in fields) == Dialect.__struct_fields__
    assert [*map(str, kgreference.Filter)] == [*FILTERS]
    kinds = typing.get_type_hints(kgreference.Dialect)
    for name, values in VALUES.items():
        expected = [False, True] if kinds[name] is bool else [*map(str, kinds[name])]
        assert sorted(values) == sorted(expected), name
    assert build_reference_dialect(OURS) == kgreference.OURS
    for field in fields:
        others = [["prune"]] if field.name == "filters" else VALUES[field.name]
        for value in others:
            built = build_reference_dialect(Dialect(**{field.name: value}))
            assert getattr(built, field.name) == (tuple(value) if field.name == "filters" else value)


def test_a_dialect_is_written_and_read_as_toml(tmp_path):
    path = tmp_path / "dialect.toml"
    for dialect in (OURS, FOREIGN, Dialect(filters=())):
        write_dialect(dialect, path)
        assert read_dialect(path) == parse_dialect(render_dialect(dialect)) == dialect
    assert parse_dialect('memory = "set"') == Dialect(memory="set")


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
def test_a_file_without_a_valid_dialect_is_refused(tmp_path, text, message):
    path = tmp_path / "dialect.toml"
    path.write_text(text)
    with pytest.raises(kv.UserError, match=message) as caught:
        read_dialect(path)
    assert str(path) in str(caught.value)


def test_differences_are_sentences():
    assert describe_differences(FOREIGN, FOREIGN) == []
    assert describe_differences(OURS, Dialect(is_reversed=True, filters=("prune",))) == [
        "is_reversed is false in the expected dialect and true in the actual one",
        "filters is prune, revisit, close, max_atoms, max_resolvents in the expected dialect and prune in the actual one",
    ]
    assert (str(OURS), str(Dialect(is_reversed=True, memory="none"))) == ("default", "is_reversed true, memory none")


def test_limits_without_a_dialect_have_the_default_one_and_declared_limits_none():
    assert kv.Limits().dialect == DeclaredLimits().with_defaults().dialect == OURS
    assert "dialect" in DeclaredLimits().unknown
    encoded = msgspec.json.encode(kv.Limits(dialect=Dialect(memory="set")))
    assert msgspec.json.decode(encoded, type=kv.Limits).dialect == Dialect(memory="set")


def test_a_trace_keeps_its_dialect_and_leaves_out_the_default_one(tmp_path):
    for dialect in (OURS, FOREIGN):
        path = tmp_path / "trace.h5"
        limits = kv.Limits(dialect=dialect)
        kv.record(
            "countries",
            path,
            engine="reference",
            queries=1,
            corruptions=1,
            limits=limits,
            options=kv.RecordingOptions(overwrite=True),
        )
        assert kv.open_trace(path).header.limits == limits
        assert (b'"dialect"' in path.read_bytes()) == (dialect != OURS)


@pytest.mark.parametrize("known", [{}, {"max_depth": 3}, kv.Limits(max_depth=3)])
def test_a_declared_dialect_survives_beside_limits_that_are_unknown(known):
    limits = known if isinstance(known, kv.Limits) else DeclaredLimits(**known)
    for dialect in (None, OURS, FOREIGN):
        changed = DeclaredLimits(**{**msgspec.structs.asdict(limits), "dialect": dialect})
        header = Header(kv.EngineInfo("mine"), changed, PolicyInfo(""), "")
        fields = encode_header(header)
        assert decode_header(msgspec.json.encode(fields)).limits == changed
        assumed = None if limits.unknown else OURS
        assert ("dialect" in fields["limits"]) == (dialect != assumed)


def test_the_reference_judges_in_the_dialect_of_its_limits():
    limits = kv.Limits(dialect=FOREIGN)
    report = kv.verify(
        "countries", engine="reference", queries=1, corruptions=1, limits=limits, equality=kv.Equality(minimum="none")
    )
    assert (report.verdict.name, report.limits.dialect) == ("AGREE", FOREIGN)
