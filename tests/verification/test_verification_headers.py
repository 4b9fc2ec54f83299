"""Whatever a header says: AGREE is earned by what was compared, and no header that the format allows is a bug of kgverify."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pytest

import kgverify as kv
from kgverify.comparison.exercise.exercise import ITEMS
from kgverify.comparison.result import DIGEST
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.hdf5.writing import write_arrays
from kgverify.trace.model.header import Header
from kgverify.trace.model.schema import Arrays, TraceLevel, packing_of
from kgverify.trace.read.data_file import DataFile

TRACES: Final = Path(__file__).parents[2] / "traces"
NAMES: Final = ("reference", "compact", "digests", "archive", "deep", "compiled")
COLUMNS: Final = tuple(sorted(KNOWLEDGE_GRAPH.compared_names))
ABSENT: Final = object()
WRONG: Final = (ABSENT, None, "", "x", 0, -1, 7, 1e300, [], ["x"], {}, {"x": 1}, True)

Change = tuple[str, Any, bool]
"""A path in the header, its value, and whether the columns declared unknown hold zeros instead of what was recorded."""


def header_paths(kind: type[msgspec.Struct] = Header, before: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        yield before + field.name
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from header_paths(field.type, f"{before}{field.name}.")


def changes() -> Iterator[Change]:
    for path in header_paths():
        for value in WRONG:
            yield path, value, False
    for level in TraceLevel:
        yield "level", level.value, False
    for column in COLUMNS:
        yield "absent", [column], False
        for has_zeros in (False, True):
            yield "engine.unknown", [column], has_zeros
            yield "engine.unknown", [each for each in COLUMNS if each.split(".")[0] == column.split(".")[0]], has_zeros
            yield "engine.unknown", ["candidates.num_steps", column], has_zeros
    groups = (("steps.choice", "resolvents.score"), ("resolvents.origin", "resolvents.atoms"))
    counts = {"candidates.query", "candidates.side", "candidates.atom", "candidates.num_steps"}
    counts |= {"steps.num_atoms", "steps.num_resolvents", "resolvents.num_atoms"}
    for names in (*groups, tuple(set(COLUMNS) - counts), ("steps.choice", "candidates.outcome", "resolvents.origin")):
        yield from (("engine.unknown", list(names), has_zeros) for has_zeros in (False, True))
    yield "engine.variables", "own", False


def change_header(arrays: Arrays, change: Change, **more: str) -> Arrays:
    path, value, has_zeros = change
    header = json.loads(bytes(arrays["header"]))
    header["recording"] = ""
    header["engine"] |= more
    place, *_, name = header, *path.split(".")
    for part in path.split(".")[:-1]:
        place = place.setdefault(part, {}) if isinstance(place, dict) else {}
        place = {} if place is None else place
    place.pop(name, None)
    if value is not ABSENT:
        place[name] = value
    changed = dict(arrays, header=np.frombuffer(json.dumps(header).encode(), np.uint8))
    for column in value if has_zeros else ():
        if (stored := column.replace(".", "/")) in changed:
            changed[stored] = np.zeros_like(changed[stored])
    if has_zeros and header["level"] in ("steps", "deep"):
        changed = {name: array for name, array in changed.items() if not name.startswith("digests/")}
    return changed


def write(path: Path, arrays: Arrays) -> Path:
    level = json.loads(bytes(arrays["header"])).get("level")
    known = TraceLevel(level) if level in list(TraceLevel) else TraceLevel.STEPS
    write_arrays(path, arrays, "test", packing_of(known, is_archived=False))
    return path


def check_verdict(expected: Path | str, actual: Path, what: object) -> str:
    """Return the verdict, or that the trace was refused. AssertionError for AGREE without what it requires."""
    try:
        report = kv.compare(expected, actual)
    except kv.UserError:
        return "refused"
    if report.verdict is kv.Verdict.AGREE:
        sides = report.exercise.expected, report.exercise.actual
        assert report.coverage.steps, what
        for name in report.minimum:
            numbers = [getattr(side, name) for side in sides]
            if numbers == [None, None]:
                waived = " ".join(str(report).split()).partition("not required, since unknown to both sides: ")[2]
                assert ITEMS[name] in waived, what
                assert {"steps.choice", DIGEST} & set(report.coverage.fields), what
            else:
                assert all(number is not None and number >= 1 for number in numbers), (what, name, numbers)
    return report.verdict.value


def check_changes(name: str, wanted: list[Change], folder: Path) -> set[str]:
    base = TRACES / f"countries-{name}.h5"
    arrays = DataFile(base).load_arrays()
    seen = set()
    for change in wanted:
        first = write(folder / "first.h5", change_header(arrays, change))
        verdicts = {
            check_verdict(*pair, (name, change)) for pair in ((base, first), (first, base), ("reference", first))
        }
        # Nothing differs in what is known.
        assert "DIVERGE" not in verdicts or change[0] != "engine.unknown", (name, change)
        seen |= verdicts
        if change[0] != "engine" and change[0] != "engine.name":
            second = write(folder / "second.h5", change_header(arrays, change, name="another"))
            seen.add(check_verdict(first, second, (name, change)))
    return seen


@pytest.mark.sample(6, deep=16)
@pytest.mark.parametrize("begin", range(96))
@pytest.mark.parametrize("name", NAMES)
def test_no_header_earns_an_agreement_without_evidence_or_is_a_bug(name: str, begin: int, tmp_path: Path):
    assert check_changes(name, list(changes())[begin::96], tmp_path) >= {"refused"}


def test_a_requirement_that_both_sides_hide_is_waived_where_steps_are_compared_and_named(tmp_path: Path):
    arrays = DataFile(TRACES / "countries-reference.h5").load_arrays()
    hidden: Change = ("engine.unknown", ["resolvents.origin"], False)
    first, second = (write(tmp_path / name, change_header(arrays, hidden, name=name)) for name in ("a", "b"))
    report = kv.compare(first, second)
    assert report.verdict is kv.Verdict.AGREE
    assert "not required, since unknown to both sides: rules used" in " ".join(str(report).split())
    # Of one side alone, they follow from equal resolvents, and are marked.
    report = kv.compare(TRACES / "countries-reference.h5", second)
    assert (report.verdict, report.exercise.actual.inferred, report.exercise.actual.rules) == (
        kv.Verdict.AGREE,
        ("rules",),
        3,
    )
    hidden = "engine.unknown", ["resolvents.origin", "steps.choice"], False
    first, second = (write(tmp_path / name, change_header(arrays, hidden, name=name)) for name in ("a", "b"))
    report = kv.compare(first, second)
    assert report.verdict is kv.Verdict.INCONCLUSIVE
    assert "unknown rules used, 1 required (expected and actual)" in report.reasons[0]
