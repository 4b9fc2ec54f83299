"""A recording in a dialect that differs in one switch from the declared one: the switch is named."""

from pathlib import Path

import pytest

import kgverify as kv
from kgverify.dialects import Dialect

FILTERS = Dialect().filters


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("switch", "value"),
    [
        ("unification", "one_pass"),
        ("order", "facts_first"),
        ("is_reversed", True),
        ("exclusion", "never"),
        ("long_resolvents", "truncate"),
        ("memory", "none"),
        ("memory", "set"),
        ("stopping", "where_no_terminal"),
        *(("filters", tuple(each for each in FILTERS if each != name)) for name in FILTERS),
        ("filters", ("duplicates", *FILTERS)),
        ("filters", (*FILTERS[:2], "max_atoms", "close", "max_resolvents")),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_the_switch_is_named_where_every_step_fits_it(switch: str, value: object, tmp_path: Path):
    limits = kv.Limits(max_depth=6, max_atoms=3, max_resolvents=6, dialect=Dialect(**{switch: value}))
    named = 0
    for graph in ("random:3", "random:7"):
        path = tmp_path / f"{graph[-1]}.h5"
        kv.record(graph, path, "reference", queries=8, corruptions=8, limits=limits)
        report = kv.compare("reference", path, limits={"dialect": Dialect()})
        notes = [note for note in report.notes if "a dialect that differs in one switch" in note]
        assert len(notes) == bool(report.divergences)
        named += sum(f"{switch} = " in note for note in notes)
    assert named or (switch, value) == ("order", "facts_first")


def test_a_fault_that_no_switch_has_is_not_taken_for_a_dialect(tmp_path: Path):
    engine = kv.Evaluator(mode="eager", faults="fact-cap")
    kv.record("countries", tmp_path / "a.h5", engine, queries=4, corruptions=4)
    report = kv.compare("reference", tmp_path / "a.h5")
    assert report.divergences
    assert not any("differs in one switch" in note for note in report.notes)
