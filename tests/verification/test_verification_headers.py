"""Whatever a header says: AGREE is earned by what was compared, and no header that the format allows is a bug of kgverify."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pytest

import kgverify as kv
from kgverify import Equality, Header, TraceLevel
from kgverify.dialects import ReferenceEngine
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.hdf5.writing import write_arrays
from kgverify.trace.model.schema import packing_of
from kgverify.trace.read.data_file import DataFile

TRACES: Final = Path(kv.__file__).parents[1] / "traces"
NAMES: Final = ("reference", "digests", "archive", "deep", "compiled")
COLUMNS: Final = tuple(sorted(KNOWLEDGE_GRAPH.compared_names))
IDENTITY: Final = {"candidates.query", "candidates.side", "candidates.atom"}
COUNTS: Final = {"steps.num_atoms", "steps.num_resolvents", "resolvents.num_atoms"}
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
    yield from ((path, value, False) for path in header_paths() for value in WRONG)
    yield from (("level", level.value, False) for level in TraceLevel)
    yield from (("absent", [column], False) for column in COLUMNS)
    every = tuple(set(COLUMNS) - IDENTITY - COUNTS - {"candidates.num_steps"})
    groups = [[column] for column in COLUMNS] + [["candidates.num_steps", column] for column in COLUMNS]
    groups += [
        list(every),
        ["steps.choice", "resolvents.score"],
        ["steps.choice", "candidates.outcome", "resolvents.origin"],
    ]
    yield from (("engine.unknown", group, has_zeros) for group in groups for has_zeros in (False, True))
    yield "engine.variables", "own", False


def change_header(arrays: Any, change: Change, **more: str) -> Any:
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


def write(path: Path, arrays: Any) -> Path:
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
        assert report.coverage.steps, what
        for name in report.minimum:
            numbers = [getattr(side, name) for side in (report.exercise.expected, report.exercise.actual)]
            if numbers == [None, None]:
                assert "not required, since unknown to both sides: " in " ".join(str(report).split()), what
                assert {"steps.choice", "digests.sequence"} & set(report.coverage.fields), what
            else:
                assert all(number is not None and number >= 1 for number in numbers), (what, name, numbers)
    return report.verdict.value


@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "begin"), [(name, 16 * i + 5) for i, name in enumerate(NAMES)])
def test_no_header_earns_an_agreement_without_evidence_or_is_a_bug(name: str, begin: int, tmp_path: Path):
    arrays = DataFile(TRACES / f"countries-{name}.h5").load_arrays()
    base, seen = TRACES / f"countries-{name}.h5", set()
    for change in list(changes())[begin::96]:
        first = write(tmp_path / "first.h5", change_header(arrays, change))
        verdicts = {check_verdict(*pair, change) for pair in ((base, first), (first, base), ("reference", first))}
        # Nothing differs in what is known.
        assert "DIVERGE" not in verdicts or change[0] != "engine.unknown", change
        seen |= verdicts
        if change[0] not in ("engine", "engine.name"):
            second = write(tmp_path / "second.h5", change_header(arrays, change, name="another"))
            seen.add(check_verdict(first, second, change))
    assert seen >= {"refused"}


def test_a_requirement_that_both_sides_hide_is_waived_where_steps_are_compared_and_named(tmp_path: Path):
    arrays = DataFile(TRACES / "countries-reference.h5").load_arrays()

    def hiding(*columns: str) -> list[Path]:
        hidden: Change = ("engine.unknown", list(columns), False)
        return [write(tmp_path / name, change_header(arrays, hidden, name=name)) for name in ("a", "b")]

    report = kv.compare(*hiding("resolvents.origin"))
    assert report.verdict is kv.Verdict.AGREE
    assert "not required, since unknown to both sides: rules used" in " ".join(str(report).split())
    # Of one side alone, they follow from equal resolvents, and are marked.
    report = kv.compare(TRACES / "countries-reference.h5", tmp_path / "b")
    exercise = report.exercise.actual
    assert (report.verdict, exercise.inferred, exercise.rules) == (kv.Verdict.AGREE, ("rules",), 3)
    report = kv.compare(*hiding("resolvents.origin", "steps.choice"))
    assert report.verdict is kv.Verdict.INCONCLUSIVE
    assert "unknown rules used, 1 required (expected and actual)" in report.reasons[0]


def unknowing(column: str) -> type[ReferenceEngine]:
    """An engine that gives every column, and says that it does not know one."""

    class Unknowing(ReferenceEngine):
        @property
        def info(self) -> kv.EngineInfo:
            return msgspec.structs.replace(super().info, unknown=(column,))

    return Unknowing


@pytest.mark.sample(4)
@pytest.mark.parametrize("column", sorted(COLUMNS))
def test_each_unknown_column_of_an_engine_is_left_out_or_refused(column: str):
    def run() -> kv.Report:
        sizes = {"queries": 1, "corruptions": 2, "equality": Equality(lockstep=True, minimum="none")}
        return kv.verify("countries", unknowing(column), **sizes)

    if column in IDENTITY | COUNTS:
        with pytest.raises(kv.UserError, match=f"engine.unknown names {column}"):
            run()
        return
    report = run()
    assert report.verdict is not kv.Verdict.DIVERGE
    hidden = {each for each in COLUMNS if each.startswith(("steps.", "resolvents."))}
    assert {column, *(hidden if column == "candidates.num_steps" else ())} <= set(report.coverage.not_compared)


def test_an_unknown_column_that_does_not_exist_is_refused():
    with pytest.raises(kv.UserError, match=r"'steps.choices', which is not a column\nfix: did you mean 'steps.choice'"):
        kv.verify("countries", unknowing("steps.choices"), queries=1, corruptions=1)
