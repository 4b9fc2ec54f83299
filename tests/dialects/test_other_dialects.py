"""A recording in a dialect that differs in one switch from the declared one: the switch is named."""

import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import kgverify as kv
from kgverify.dialects import Dialect, read_dialect, recognise_dialect
from kgverify.program.limits import show_value

FILTERS = Dialect().filters


SWITCHES = [
    ("unification", "one_pass"),
    ("order", "facts_first"),
    ("is_reversed", True),
    ("exclusion", "never"),
    ("exclusion", "positives_only"),
    ("long_resolvents", "truncate"),
    ("memory", "none"),
    ("memory", "set"),
    ("forgets_names", False),
    ("exempts_terminal", True),
    ("skips_unary", True),
    ("stopping", "where_no_terminal"),
    *(("filters", tuple(each for each in FILTERS if each != name)) for name in FILTERS),
    ("filters", ("duplicates", *FILTERS)),
    ("filters", (*FILTERS, "duplicates")),
    ("filters", (*FILTERS[:2], "max_atoms", "close", "max_resolvents")),
    ("filters", (*FILTERS[:3], "max_resolvents", "max_atoms")),
]
HIDDEN = [SWITCHES[1], SWITCHES[4], SWITCHES[8], SWITCHES[9]]
"""The switches that make no difference in these steps."""


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("switch", "value"), SWITCHES, ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value)
)
def test_the_switch_is_named_where_every_step_fits_it(switch: str, value: object, tmp_path: Path):
    limits = kv.Limits(max_depth=6, max_atoms=3, max_resolvents=6, dialect=Dialect(**{switch: value}))
    named = noted = 0
    for graph in ("random:3", "random:7"):
        path = tmp_path / f"{graph[-1]}.h5"
        kv.record(graph, path, "reference", queries=8, corruptions=8, limits=limits)
        report = kv.compare("reference", path, limits={"dialect": Dialect()})
        notes = [note for note in report.notes if "a dialect that differs in one switch" in note]
        assert len(notes) == bool(report.divergences)
        noted += sum(f"{switch} = " in note for note in notes)
        found = recognise_dialect(path, limits={"dialect": Dialect()})
        assert found.verdict is kv.Verdict.AGREE, str(found)
        assert found.num_steps == found.num_recorded
        assert f"all {found.num_steps} steps fit {'`' if found.changes else 'the declared dialect'}" in str(found)
        named += f"{switch} = {show_value(value)}" in (found.changes, *found.alternatives)
        # Nothing else is named.
        assert not found.changes or f"{switch} = {show_value(value)}" in (found.changes, *found.alternatives)
    assert bool(named) is ((switch, value) not in HIDDEN)
    assert bool(noted) is bool(named)


def test_either_of_two_traces_is_named(tmp_path: Path):
    traces = []
    for memory in ("set", "sequence"):
        limits = kv.Limits(max_depth=6, max_atoms=3, max_resolvents=6, dialect=Dialect(memory=memory))
        kv.record("random:7", tmp_path / f"{memory}.h5", "reference", queries=8, corruptions=8, limits=limits)
        trace = kv.open_trace(tmp_path / f"{memory}.h5").load()
        declared = msgspec.structs.replace(trace.header.limits, dialect=Dialect())
        traces.append(replace(trace, header=msgspec.structs.replace(trace.header, limits=declared)))
    for pair, role in ((traces, "expected"), (traces[::-1], "actual")):
        (note,) = [note for note in kv.compare(*pair).notes if "differs in one switch" in note]
        assert re.match(rf"all \d+ steps that were read, of the \d+ {role} ones, fit|all \d+ {role} steps fit", note)
        assert "memory = set" in note


LINES = [
    {"trace": 1, "engine": "mine"},
    {"candidate": ["old", "ann", "eve"]},
    {"goal": [["old", "ann", "eve"]], "successors": [[["age", "ann", "?0"]], [["hair", "ann", "grey"]]], "choice": 0},
]


def test_several_switches_are_named_in_lines_without_a_program_and_what_fits_none_is_shown(tmp_path: Path):
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "train.txt").write_text("bob\tage\tseven\nbob\told\tseven\n")
    rules = ["old(X,Y) :- hair(X,grey).", "old(X,Y) :- age(X,Z)."]
    (tmp_path / "graph" / "rules.pl").write_text("\n".join(rules))
    with pytest.raises(kv.UserError, match="its program"):
        recognise_dialect(tmp_path / "lines.jsonl")
    found = recognise_dialect(tmp_path / "lines.jsonl", graph=tmp_path / "graph")
    assert (found.changes, found.num_fitting, found.num_declared) == ("is_reversed = true", 1, 0)
    found.save(tmp_path / "mine.toml")
    assert read_dialect(tmp_path / "mine.toml") == Dialect(is_reversed=True)
    (tmp_path / "graph" / "rules.pl").write_text(rules[0])
    found = recognise_dialect(tmp_path / "lines.jsonl", graph=tmp_path / "graph")
    assert (found.verdict, found.changes) == (kv.Verdict.DIVERGE, "")
    assert str(found).splitlines()[1:] == [
        "0 of 1 step fit the declared dialect",
        "first step that does not fit: candidate 0, old(ann, eve), step 0",
        "   goal        old(ann, eve)",
        "   the dialect hair(ann, grey)",
        "   recorded    age(ann, X0); hair(ann, grey)",
    ]


def test_a_fault_that_no_switch_has_is_not_taken_for_a_dialect(tmp_path: Path):
    engine = kv.Evaluator(mode="eager", faults="fact-cap")
    kv.record("countries", tmp_path / "a.h5", engine, queries=4, corruptions=4)
    report = kv.compare("reference", tmp_path / "a.h5")
    assert report.divergences
    assert not any("differs in one switch" in note for note in report.notes)
