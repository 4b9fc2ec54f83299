"""The search for the commit at which an engine began to diverge, in histories made by the test."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commit_histories import State, git, make_history
from invoked_commands import invoke

import kgverify as kv

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
WORDS = "--graph cousins --corruptions all"
OTHER_CONDITION = pytest.mark.xfail(reason="the stated condition is not the planted one", strict=True)
ENGINE = f"--engine mine.py:Mine {WORDS}"


def make_repository(folder: Path) -> None:
    """Make a repository, with a graph that no commit contains."""
    git(folder, "init", "-q", "-b", "main")
    (folder / ".git/info/exclude").write_text("cousins\n")
    (folder / "cousins").mkdir()
    (folder / "cousins/train.txt").write_text("parent(ann,bob).\nparent(bob,cid).\nparent(bob,dan).\n")
    (folder / "cousins/test.txt").write_text("grandparent(ann,cid).\n")
    (folder / "cousins/rules.txt").write_text("grandparent(X,Y) :- parent(X,Z), parent(Z,Y).\n")


def commit(folder: Path, state: State, **others: str) -> str:
    """Commit a state of an engine, and further files; return the name of the commit."""
    for name, text in (state.render() | others).items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", f"Change {state.number}")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def history(tmp_path: Path):
    """Make a history: right, right, broken, faulty, faulty. Return its folder and its commits."""
    folder = tmp_path / "work"
    folder.mkdir()
    make_repository(folder)
    states = [("", ""), ("", ""), ("import", ""), ("", "one-rule"), ("", "one-rule")]
    return folder, [
        commit(folder, State("file", {fault} - {""}, broken, number)) for number, (broken, fault) in enumerate(states)
    ]


def test_skipped_commits_leave_several_and_none_of_them_is_named(history):
    folder, commits = history
    (folder / "mine.py").write_text("raise RuntimeError('the working tree is not judged')\n")
    before = git(folder, "status", "--porcelain"), git(folder, "for-each-ref"), (folder / ".git/index").read_bytes()
    hook = folder / ".git/hooks/post-index-change"
    hook.write_text("#!/bin/sh\ntouch ran\n")
    hook.chmod(0o755)
    found = invoke(f"bisect {commits[0]} HEAD --json {folder.parent}/found.json -- {ENGINE}", folder)
    assert found.exit_code == 3, found.output
    result = json.loads((folder.parent / "found.json").read_text())
    assert result["commit"] == ""
    assert {each["name"] for each in result["candidates"]} == set(commits[2:4])
    assert (result["cause"]["stage"], result["cause"]["kind"]) == ("match_rules", "missing")
    assert re.search(f"{commits[2][:10]} skipped: .*'mine.py' cannot be imported", found.stdout)
    assert f"{commits[3][:10]} Change 3 (Ann, " in found.stdout
    assert not list(folder.rglob("ran"))
    hook.unlink()
    after = git(folder, "status", "--porcelain"), git(folder, "for-each-ref"), (folder / ".git/index").read_bytes()
    assert after == before
    assert not (folder / ".git/kgverify").exists()


@pytest.mark.deep
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"HEAD~1 HEAD {ENGINE}", "the good commit .*: DIVERGE match_rules, missing\nfix: give an earlier commit"),
        (f"HEAD~4 HEAD~3 {ENGINE}", "the bad commit .*: AGREE\nfix: give a later commit"),
        (f"HEAD HEAD~1 {ENGINE}", "the good commit .*: is no ancestor of"),
        (f"HEAD~4 HEAD {ENGINE} --cause limit", "no divergence in limit, but in match_rules"),
        (f"nothing HEAD {ENGINE}", "the good commit nothing: "),
        (f"HEAD~4 HEAD {WORDS}", "expected an engine in the repository"),
    ],
)
def test_ends_that_are_not_as_the_user_says_are_refused(history, words: str, message: str):
    refused = invoke(f"bisect {words}", history[0])
    assert refused.exit_code == 2
    assert re.search(message, refused.stderr), refused.stderr


@pytest.mark.deep
def test_an_interrupted_search_resumes_and_a_slow_commit_is_skipped(tmp_path: Path):
    make_repository(tmp_path)
    slow = "import time\ntime.sleep(600)\n"
    commits = [
        commit(tmp_path, State("file", faults, number=number), **({"mine.py": slow} if is_slow else {}))
        for number, (faults, is_slow) in enumerate([(set(), False), (set(), True), ({"one-rule"}, False)])
    ]
    words = ["bisect", commits[0], "HEAD", *ENGINE.split()]
    line = [sys.executable, "-m", "kgverify", *words]
    with subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        judged = [running.stderr.readline() for _ in range(2)]
        running.send_signal(signal.SIGTERM)
        assert "to resume, run" in running.stderr.read()
    assert running.returncode == 128 + signal.SIGTERM
    assert ["Change 2" in judged[0], "Change 0" in judged[1]] == [True, True]
    assert [each.suffix for each in (tmp_path / ".git/kgverify").iterdir()] == [".jsonl"]
    found = invoke([*words, "--timeout", "4"], tmp_path)
    assert found.exit_code == 3
    assert re.findall("Change .", found.stderr) == ["Change 1"]
    assert f"{commits[1][:10]} skipped: it took more than 4 seconds" in found.stdout


@pytest.mark.deep
def test_the_engine_is_that_of_the_commit_wherever_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    main, linked = tmp_path / "main", tmp_path / "linked"
    main.mkdir()
    make_repository(main)
    git(main, "checkout", "-qb", "work")
    commit(main, State("package"))
    for path in ("kinship", "cousins"):
        shutil.rmtree(main / path)

    def keep(number: int, faults: set[str], **others: str) -> str:
        files = {
            f"deep/src/{name}".replace("/", "__"): text for name, text in State("package", faults).render().items()
        }
        return commit(main, State("file", number=number), **files, **others)

    commits = [keep(number, {"one-rule"} if number > 1 else set()) for number in range(3)]
    git(main, "checkout", "-q", "--detach")
    git(main, "worktree", "add", "-q", str(linked), "work")
    (tmp_path / "graph").mkdir()
    make_repository(tmp_path / "graph")
    monkeypatch.chdir(linked / "deep")
    monkeypatch.syspath_prepend(str(linked / "deep/src"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(linked / "deep/src"), os.environ.get("PYTHONPATH", "")]))
    job = kv.Job(kv.Source(tmp_path / "graph/cousins"), engines=kv.Engines("kinship.engine:Mine"))
    result = kv.bisect(job, commits[0], save="run")
    assert result.cause is not None
    assert (result.commit, result.cause.stage) == (commits[2], "match_rules")
    assert result.report.first_divergence is not None
    assert Path("run/report.json").is_file()


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [*range(25), pytest.param(25, marks=OTHER_CONDITION), *range(26, 60)])
def test_the_right_commit_is_found_in_a_generated_history(tmp_path: Path, seed: int):
    made = make_history(tmp_path, seed)
    found = invoke(["bisect", made.good, made.bad, *made.words, "--json", "found.json"], tmp_path)
    result = json.loads((tmp_path / "found.json").read_text())
    assert result["commit"] in (*made.answers, "")
    if made.candidates:
        assert {each["name"] for each in result["candidates"]} == made.candidates
    else:
        assert (found.exit_code, result["cause"]["stage"]) == (0, made.stage)
        assert re.search(made.condition, result["cause"]["condition"])
