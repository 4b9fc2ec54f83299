"""The whole commands and calls of the table do what is stated by hand, and print exactly what is stored."""

import difflib
import os

import pytest
from foreign_folder import needs_records
from locked_runs import CASES, OUTPUTS, STATED, Finished, Workspace, render

MARKS = {"foreign": needs_records, "family": pytest.mark.skipif("KGVERIFY_DATA" not in os.environ, reason="needs data")}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("locked"))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[mark for word, mark in MARKS.items() if word in name]) for name in CASES]
)
def test_a_case_does_what_is_stated_and_prints_what_is_stored(
    name: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
):
    if not any(word in name for word in MARKS):
        # The names under it stand in some messages.
        monkeypatch.delenv("KGVERIFY_DATA", raising=False)
    finished = workspace.finish(name)
    printed, path = render(name, finished), OUTPUTS / f"{name}.txt"
    if "KGVERIFY_WRITE_OUTPUTS" in os.environ:
        path.write_text(printed, "utf-8")
    assert_is_as_stated(finished, STATED[name])
    stored = path.read_text("utf-8")
    assert printed == stored, "\n".join(
        difflib.unified_diff(stored.splitlines(), printed.splitlines(), "stored", "printed", lineterm="", n=1)
    )


def assert_is_as_stated(finished: Finished, stated: dict[str, object]) -> None:
    assert finished.code == stated["exit"], finished.out + finished.err
    for said in stated.get("says", []):
        assert said in finished.text
    for name in stated.keys() - {"exit", "says"}:
        expected = stated[name]
        found = finished.find(name)
        assert found == (pytest.approx(expected, abs=5e-5) if isinstance(expected, float) else expected), name


def test_every_case_has_its_statement_and_its_output():
    assert sorted(CASES) == sorted(STATED) == sorted(path.stem for path in OUTPUTS.glob("*.txt"))
