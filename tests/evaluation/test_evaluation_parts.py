"""Saved evaluations: they resume, repeat what is damaged, and take nothing of another evaluation or of a stranger."""

import io
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from run_engines import needs_compiler
from saved_parts import UNCHECKED, read_files

import kgverify as kv
from kgverify.dialects import ReferenceEngine
from kgverify.evaluation.parts import write_part
from kgverify.files.writing import temporary_beside

OPTIONS = replace(UNCHECKED, part_size=15)
RUN: dict[str, Any] = {"queries": 6, "corruptions": 9}
URL = "memory://bucket/run"


def evaluate(
    save: str | Path, engine: Any = "reference", options: kv.EvaluationOptions = OPTIONS, **changed: Any
) -> kv.EvaluationReport:
    return kv.evaluate("countries", engine, **RUN | changed, options=options, save=save)


def resume(save: str | Path, **changed: Any) -> tuple[kv.EvaluationReport, list[str]]:
    """Evaluate again, and return the report and the warnings."""
    warnings: list[str] = []
    return evaluate(save, options=replace(OPTIONS, warn=warnings.append), **changed), warnings


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a finished evaluation."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert evaluate(folder).num_parts == 6
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path, finished: dict[str, bytes]) -> Path:
    (tmp_path / "run").mkdir()
    for name, content in finished.items():
        (tmp_path / "run" / name).write_bytes(content)
    return tmp_path / "run"


def test_a_folder_has_the_parts_the_run_and_the_summary(finished: dict[str, bytes]) -> None:
    assert sorted(finished) == [*(f"part-{i:06d}.npz" for i in range(6)), "run.json", "summary.json"]


def test_missing_parts_are_proved_and_the_others_reused(folder: Path) -> None:
    whole = read_files(folder)
    (folder / "part-000001.npz").unlink()
    (folder / "part-000005.npz").unlink()
    report, warnings = resume(folder)
    assert (report.num_parts, report.num_parts_resumed, warnings) == (6, 4, [])
    assert report.num_candidates == 90
    assert read_files(folder) == whole
    assert resume(folder)[0].num_parts_resumed == 6


def test_the_speed_is_that_of_the_parts_of_this_run_after_the_warm_up(folder: Path, monkeypatch) -> None:
    clock, prove = [0.0], ReferenceEngine.prove

    def prove_in_five_seconds(*given: Any) -> kv.Columns:
        clock[0] += 5
        return prove(*given)

    for number in (1, 5):
        (folder / f"part-00000{number}.npz").unlink()
    times = SimpleNamespace(monotonic=lambda: clock[0], sleep=time.sleep)
    monkeypatch.setattr("kgverify.evaluation.evaluate.time", times)
    monkeypatch.setattr(ReferenceEngine, "prove", prove_in_five_seconds)
    report, _ = resume(folder)
    assert (report.num_candidates, report.num_parts_resumed) == (90, 4)
    # One candidate warms up, and two parts of 15 candidates are proved.
    assert (report.warm_up_seconds, report.seconds, report.candidates_per_second) == (5, 10, 3)


@pytest.mark.parametrize("number", range(6))
def test_a_part_that_cannot_be_stored_is_an_error_whichever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def write(path: Path, *given: Any) -> None:
        if path.name == f"part-{number:06d}.npz":
            raise kv.UserError("no space is left", where=str(path), fix="make room there")
        write_part(path, *given)

    with monkeypatch.context() as patch:
        patch.setattr("kgverify.evaluation.parts.write_part", write)
        with pytest.raises(kv.UserError, match="no space is left"):
            evaluate(tmp_path / "run")
    report, _ = resume(tmp_path / "run")
    assert number <= report.num_parts_resumed < report.num_parts == 6


def test_what_a_killed_process_left_is_deleted(folder: Path, finished: dict[str, bytes]) -> None:
    temporary_beside(folder / "part-000001.npz").write_text("half")
    resume(folder)
    assert {path.name for path in folder.iterdir()} == finished.keys()


@needs_compiler
def test_the_files_depend_on_the_run_alone(tmp_path: Path) -> None:
    for name, engine in (("one", kv.Evaluator(mode="native")), ("two", kv.Evaluator(mode="native", memory="64MiB"))):
        evaluate(tmp_path / name, engine)
    assert read_files(tmp_path / "one") == read_files(tmp_path / "two")


def describe(shape: str, kind: str = "<f8", content: bytes = b"") -> bytes:
    """Return the file of an array by its description."""
    return with_header(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}", content)


def with_header(text: str, content: bytes = b"") -> bytes:
    header = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


def repack(content: bytes, name: str, member: bytes, kind: int = zipfile.ZIP_STORED) -> bytes:
    """Return a part with another member."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(packed, "w", kind) as new:
        for each in old.namelist():
            new.writestr(each, member if each == f"{name}.npy" else old.read(each))
    return packed.getvalue()


def save_array(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def change_value(content: bytes) -> bytes:
    """Change a rank, in a zip that is valid."""
    with np.load(io.BytesIO(content)) as part:
        return repack(content, "optimistic", save_array(part["optimistic"] + 1))


def flip_bit(content: bytes) -> bytes:
    place = content.index(b"optimistic.npy") + 170
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


PICKLE = b"cos\nsystem\n(S'exit 3'\ntR."
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda part: part[:-9],
    "a flipped bit": flip_bit,
    "empty": lambda part: b"",
    "no zip": lambda part: b"?",
    "a zip without an end": lambda part: b"PK\x03\x04",
    "a pickle": lambda part: PICKLE,
    "a plain array": lambda part: save_array(np.zeros(3)),
    "another value": change_value,
    "another type": lambda part: repack(part, "side", save_array(np.zeros(2, np.int64))),
    "another length": lambda part: repack(part, "side", save_array(np.zeros(3, np.int8))),
    "another shape": lambda part: repack(part, "num_outcomes", save_array(np.zeros((2, 3), np.uint32))),
    "more dimensions": lambda part: repack(part, "sample_atom", save_array(np.zeros((2, 1, 3), np.int32))),
    "a number with rows": lambda part: repack(part, "smallest_gap", describe("(1,)", content=bytes(8))),
    "packed": lambda part: repack(
        part, "optimistic", describe("(1048576,)", content=bytes(8 << 20)), zipfile.ZIP_DEFLATED
    ),
    "too many": lambda part: repack(part, "optimistic", describe("(1000000000000000,)")),
    "too many of nothing": lambda part: repack(part, "optimistic", describe("(1000000000000000,)", "|V0")),
    "beyond 64 bits": lambda part: repack(part, "optimistic", describe(f"({10**30},)")),
    "a header without an end": lambda part: repack(part, "optimistic", with_header("{'descr': (\n")),
    "a negative number": lambda part: repack(part, "optimistic", describe("(-1,)")),
    "objects": lambda part: repack(part, "optimistic", describe("(1,)", "|O", PICKLE)),
    "code as a header": lambda part: repack(part, "optimistic", with_header("__import__('os')._exit(3)")),
    "a deep header": lambda part: repack(part, "optimistic", with_header("(" * 9000 + ")" * 9000)),
    "no array": lambda part: repack(part, "optimistic", b"nothing"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_part_is_repeated_with_a_warning(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    whole = read_files(folder)
    path = folder / "part-000001.npz"
    path.write_bytes(damage(path.read_bytes()))
    report, (warning,) = resume(folder)
    assert "part-000001.npz" in warning
    assert "the part is repeated" in warning
    assert report.num_parts_resumed == 5
    assert read_files(folder) == whole


def test_exchanged_parts_are_repeated(folder: Path) -> None:
    whole = read_files(folder)
    (folder / "part-000000.npz").write_bytes(whole["part-000003.npz"])
    (folder / "part-000003.npz").write_bytes(whole["part-000000.npz"])
    report, warnings = resume(folder)
    assert (report.num_parts_resumed, len(warnings)) == (4, 2)
    assert read_files(folder) == whole


FACTS = "a\tp\tb\nb\tp\tc\nc\tp\ta\nc\tq\ta\n"
RULES = "q(X,Y) :- p(X,Z), p(Z,Y).\np(X,Y) :- q(Y,X).\n"
FILES = {"train.txt": FACTS, "valid.txt": "b\tq\tb\n", "test.txt": "a\tq\tc\nb\tq\ta\n", "rules.pl": RULES}


class Other(ReferenceEngine):
    """Another engine with the same results."""


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"limits": kv.Limits(max_depth=5)}, "max_depth is 20 there and 5"),
        ({"queries": 1}, "num_queries"),
        ({"corruptions": 2}, "num_corruptions is 1 there and 2 here"),
        ({"seed": 2**32}, "seed"),
        ({"queries": kv.Queries(2, corruptions=1, split="valid"), "corruptions": None}, "split"),
        ({"policy": "two_tower"}, "policy"),
        ({"limits": kv.Limits(max_atoms=3)}, "max_atoms"),
        ({"limits": kv.Limits(max_resolvents=9)}, "max_resolvents"),
        ({"limits": kv.Limits(exclude_query=False)}, "exclude_query"),
        ({"engine": Other}, "engine"),
        ({"options": replace(OPTIONS, part_size=4)}, "part_size"),
        ({"test.txt": "a\tq\tc\nb\tq\tb\n"}, ""),
        ({"valid.txt": "b\tq\tc\n"}, ""),
        ({"train.txt": FACTS.replace("c\tq\ta", "c\tq\tb")}, ""),
        ({"rules.pl": RULES.splitlines()[0]}, ""),
    ],
)
def test_every_property_of_an_evaluation_belongs_to_its_folder(
    tmp_path: Path, changes: dict[str, Any], difference: str
) -> None:
    usual = {"engine": "reference", "queries": 2, "corruptions": 1, "options": OPTIONS}

    def evaluate_files(changes: dict[str, Any]) -> None:
        given = usual | {"save": tmp_path / "run"} | changes
        (tmp_path / "graph").mkdir(exist_ok=True)
        for name, text in FILES.items():
            (tmp_path / "graph" / name).write_text(given.pop(name, text))
        kv.evaluate(tmp_path / "graph", **given)

    evaluate_files({})
    before = read_files(tmp_path / "run")
    with pytest.raises(kv.UserError) as caught:
        evaluate_files(changes)
    assert "another --save folder" in caught.value.fix
    assert difference in caught.value.message
    assert read_files(tmp_path / "run") == before


@needs_compiler
def test_faults_precisions_and_ranks_alone_belong_to_the_folder(tmp_path: Path) -> None:
    native = kv.Evaluator(mode="native")
    evaluate(tmp_path / "run", native)
    for engine, rank_only, difference in (
        (native, True, "rank_only is False there and True here"),
        (kv.Evaluator(mode="eager", device="cpu"), False, "mode"),
        (kv.Evaluator(faults="last-fact-lost"), False, "faults"),
    ):
        with pytest.raises(kv.UserError, match=difference):
            evaluate(tmp_path / "run", engine, replace(OPTIONS, rank_only=rank_only))


@pytest.mark.parametrize(("name", "content"), [("notes.txt", "mine"), ("run.json", "{}")])
def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(kv.UserError, match=r"run\.json"):
        evaluate(tmp_path)
    assert read_files(tmp_path) == {name: content.encode()}


def test_a_folder_in_use_is_locked(tmp_path: Path) -> None:
    refused: list[str] = []

    class Nested(ReferenceEngine):
        """An engine that starts another evaluation in the same folder."""

        def prove(self, *given: Any) -> kv.Columns:
            if not refused:
                with pytest.raises(kv.UserError) as caught:
                    evaluate(tmp_path / "run")
                refused.append(str(caught.value))
            return super().prove(*given)

    assert evaluate(tmp_path / "run", Nested).num_parts == 6
    assert "wait until it ends" in refused[0]


# Object stores.


@pytest.fixture
def bucket(store: Any) -> Callable[[], dict[str, bytes]]:
    """A function that reads the objects of an evaluation."""

    def read() -> dict[str, bytes]:
        contents = {path.rpartition("/")[2]: store.cat_file(path) for path in store.find("/bucket/run")}
        return contents | {"summary.json": b""} if "summary.json" in contents else contents

    return read


@pytest.mark.parametrize("url", [URL, Path(URL)])
def test_an_evaluation_has_the_same_files_at_a_url_and_the_same_refusals(
    store: Any, bucket: Any, folder: Path, url: str | Path
) -> None:
    store.pipe_file("/bucket/run/notes.txt", b"mine")
    with pytest.raises(kv.UserError, match=r"no run\.json"):
        evaluate(url)
    assert bucket() == {"notes.txt": b"mine"}
    store.rm_file("/bucket/run/notes.txt")
    assert evaluate(url).num_parts_resumed == 0
    with pytest.raises(kv.UserError, match="seed is 0 there and 1 here") as caught:
        evaluate(url, seed=1)
    assert (caught.value.where, bucket()) == (URL, read_files(folder))


def test_missing_and_damaged_objects_are_repeated(store: Any, bucket: Any) -> None:
    first = evaluate(URL)
    before = bucket()
    store.rm_file("/bucket/run/part-000000.npz")
    store.pipe_file("/bucket/run/part-000001.npz", change_value(before["part-000001.npz"]))
    again, warnings = resume(URL)
    assert (again.num_parts_resumed, again.metrics) == (4, first.metrics)
    assert [warning.partition(" ")[0] for warning in warnings] == [f"{URL}/part-000001.npz"]
    assert bucket() == before


def test_a_store_that_refuses_writing_is_found_before_the_work(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("read only")

    monkeypatch.setattr(type(store), "pipe_file", refuse)
    with pytest.raises(kv.UserError, match="cannot be written") as caught:
        evaluate(URL)
    assert caught.value.where.startswith(URL)
