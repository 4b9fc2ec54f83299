"""`kgverify shrink` and `kgverify replay`: from a saved run to a reproducer, and every block of the page on them."""

import re
import tempfile
from pathlib import Path

import msgspec
import pytest
from cli_runs import EAGER, SMALL
from warm_commands import run_python, run_shell

from kgverify.comparison.compare import Comparer
from kgverify.testing.reproducers.text_format import parse_reproducer, read_reproducer
from kgverify.verification import lockstep
from kgverify.verification.save import REPORT

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "fuzzing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE.partition("## Shrink a divergence")[2], re.DOTALL)


def squash(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


@pytest.fixture
def saved(command, tmp_path):
    def save(*options: str) -> Path:
        folder = tmp_path / "run"
        assert command("diff", *SMALL, *EAGER, "--save", folder, *options).code in (0, 1)
        return folder

    return save


def test_a_saved_run_becomes_a_reproducer_and_a_test(command, saved, tmp_path):
    folder = saved("--fault", "last-fact-lost")
    shrunk = command("shrink", folder, "--pytest", tmp_path / "test_it.py")
    assert shrunk.code == 0, shrunk.err
    assert "it fails, as it must" in squash(shrunk.out)
    file = folder / "divergence-1.kg"
    assert read_reproducer(file).problem.size == 1
    again = command("replay", file)
    assert again.code == 1
    assert "in the same way" in squash(again.out)
    pair = command("replay", folder / "divergence-1.agrees.kg")
    assert (pair.code, "AGREE" in pair.out) == (0, True)
    assert "divergence-1.agrees.kg" in squash(shrunk.out).replace(" ", "")
    fixed = command("replay", file, "--engine", "compiled", "--pytest", tmp_path / "test_fixed.py")
    assert (fixed.code, "IT DOES NOT FAIL" in squash(fixed.out)) == (0, True)
    other = command("replay", file, "--fault", "query-matched")
    assert other.code == 0


@pytest.mark.deep
def test_a_bug_of_ours_while_replaying_exits_with_70_and_says_where_the_problem_is_saved(
    command, saved, tmp_path, monkeypatch
):
    folder = saved("--fault", "last-fact-lost")
    assert command("shrink", folder).code == 0

    class Failing(Comparer):
        def compare(self):
            raise LookupError("a bug")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(lockstep, "Comparer", Failing)
    failed = command("replay", folder / "divergence-1.kg")
    assert failed.code == 70
    assert "Traceback" in failed.err
    (file,) = tmp_path.glob("kgverify-bug-*/*.kg")
    assert str(file.parent) in failed.err
    assert read_reproducer(file).problem == read_reproducer(folder / "divergence-1.kg").problem


@pytest.mark.exhaustive
def test_a_run_in_lockstep_and_one_with_weights_become_reproducers(command, saved):
    folder = saved("--fault", "stale-weights", "--policy", "two_tower", "--lockstep")
    shrunk = command("shrink", folder, "--divergence", "2", "-o", folder / "x.kg")
    assert shrunk.code == 0, shrunk.err
    made = read_reproducer(folder / "x.kg")
    assert made.lockstep
    assert made.signature.stage == "score"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--divergence", "99999"], "there is no divergence 99999"),
        (["--graph", "no-such-graph"], "no such graph"),
        (["--graph", "random:1"], "holds other facts or rules"),
        (["--engine", "nothing"], "cannot make the engine 'nothing'"),
        (["-o", "no/such/folder/x.kg"], "cannot be written"),
        (["--calls", "0"], "no part of the graph was found"),
    ],
)
def test_a_run_that_cannot_be_shrunk_is_reported(command, saved, options, message):
    failed = command("shrink", saved("--fault", "last-fact-lost"), *options)
    assert failed.code == 2
    assert message in failed.err
    assert "fix:" in failed.err


def test_an_engine_that_kgverify_cannot_make_is_reported(command, saved):
    folder = saved("--fault", "last-fact-lost")
    path = folder / REPORT
    report = msgspec.json.decode(path.read_bytes())
    report["environment"]["actual"]["name"] = "theirs"
    report["job"]["engine"] = {"name": ""}
    path.write_bytes(msgspec.json.encode(report))
    failed = command("shrink", folder)
    assert failed.code == 2
    assert "cannot make the engine 'theirs' again" in failed.err
    assert "--engine MODULE:FUNCTION" in failed.err


def test_a_run_that_agrees_cannot_be_shrunk(command, saved):
    failed = command("shrink", saved())
    assert failed.code == 2
    assert "shrink a run that diverges" in failed.err


@pytest.mark.deep
def test_every_block_of_the_page_is_true(tmp_path):
    assert {kind for kind, _ in BLOCKS} == {"console", "text", "reproducer", "python"}
    printed = ""
    for kind, text in BLOCKS:
        if kind == "console":
            done = run_shell(text, tmp_path)
            assert done.returncode == 0, done.stderr
            printed = squash(f"{printed} {done.stdout}")
        elif kind == "reproducer":
            assert parse_reproducer(text).signature.stage == "match_facts"
    for kind, text in BLOCKS:
        if kind == "text":
            assert squash(text) in printed
    (tmp_path / "step.kg").rename(tmp_path / "kept.txt")
    for kind, text in BLOCKS:
        if kind == "python":
            done = run_python(text, tmp_path)
            assert done.returncode == 0, done.stderr
