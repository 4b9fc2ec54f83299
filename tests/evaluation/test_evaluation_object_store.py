"""Evaluations saved at URLs: the same files and checks as in a folder on a disk."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import kgverify as kv
from kgverify import UserError
from kgverify.evaluation.parts import RUN, PartFolder, write_summary
from kgverify.report.evaluation import EvaluationReport

pytest.importorskip("fsspec", reason="kgverify[storage] is not installed")

URL = "memory://bucket/run"


def evaluate(save: str | Path, *, seed: int = 0, **options: Any) -> EvaluationReport:
    chosen = replace(kv.EvaluationOptions(part_size=8, check=0, minimum="none"), **options)
    return kv.evaluate("countries", "reference", queries=4, corruptions=3, seed=seed, options=chosen, save=save)


def read_all(store: Any) -> dict[str, bytes]:
    return {path.rpartition("/")[2]: store.cat_file(path) for path in store.find("/bucket/run")}


def without_times(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files but for the content of the summary, which says how long the evaluation took."""
    return {name: b"" if name == "summary.json" else content for name, content in files.items()}


@pytest.mark.parametrize("url", [URL, Path(URL)])
def test_an_evaluation_has_the_same_files_at_a_url(store: Any, tmp_path: Path, url: str | Path) -> None:
    here, there = evaluate(tmp_path / "run"), evaluate(url)
    assert there.metrics == here.metrics
    assert there.num_parts_resumed == 0
    assert without_times(read_all(store)) == without_times(
        {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    )
    assert there.num_parts > 2


def test_missing_and_damaged_objects_are_repeated(store: Any) -> None:
    first = evaluate(URL)
    before = read_all(store)
    store.rm_file("/bucket/run/part-000000.npz")
    altered = bytearray(before["part-000001.npz"])
    altered[len(altered) // 2] ^= 1
    store.pipe_file("/bucket/run/part-000001.npz", bytes(altered))
    warnings: list[str] = []
    again = evaluate(URL, warn=warnings.append)
    assert again.num_parts_resumed == first.num_parts - 2
    assert [each.partition(" ")[0] for each in warnings] == [f"{URL}/part-000001.npz"]
    assert without_times(read_all(store)) == without_times(before)
    assert again.metrics == first.metrics


def test_a_url_of_another_evaluation_is_refused(store: Any) -> None:
    evaluate(URL)
    before = read_all(store)
    with pytest.raises(UserError, match="seed is 0 there and 1 here") as caught:
        evaluate(URL, seed=1)
    assert caught.value.where == URL
    assert read_all(store) == before


def test_a_url_that_holds_other_objects_is_refused(store: Any) -> None:
    store.pipe_file("/bucket/run/notes.txt", b"mine")
    with pytest.raises(UserError, match=f"no {RUN}"):
        evaluate(URL)
    assert read_all(store) == {"notes.txt": b"mine"}


def test_a_store_that_refuses_writing_is_found_before_the_work(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("read only")

    monkeypatch.setattr(type(store), "pipe_file", refuse)
    with pytest.raises(UserError, match="cannot be written") as caught:
        evaluate(URL)
    assert caught.value.where.startswith(URL)


def test_a_forgotten_file_is_fetched_as_it_is_now(tmp_path: Path) -> None:
    class Remote:
        """A store with one object, which says how often it was asked for."""

        num = 0

        def join(self, name: str) -> "Remote":
            return self

        def fetch(self, folder: Path) -> None:
            self.num += 1
            (folder / "part").write_text(str(self.num))

    folder = PartFolder(tmp_path, cast(Any, Remote()))
    assert [folder.fetch("part").read_text() for _ in range(2)] == ["1", "1"]
    folder.forget("part")
    assert folder.fetch("part").read_text() == "2"


def test_the_summary_is_an_object_beside_the_parts(store: Any) -> None:
    write_summary(Path(URL), b"{}\n")
    assert read_all(store) == {"summary.json": b"{}\n"}
