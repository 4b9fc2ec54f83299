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

from kgverify.api.bisect import bisect

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
WORDS = "--graph cousins --corruptions all"
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
    hook = folder / ".git/hooks/post-index-change"
    hook.write_text("#!/bin/sh\ntouch ran\n")
    hook.chmod(0o755)
    (folder / "mine.py").write_text("raise RuntimeError('the working tree is not judged')\n")
    before = git(folder, "status", "--porcelain"), git(folder, "for-each-ref"), (folder / ".git/index").read_bytes()
    found = invoke(f"bisect {commits[0]} HEAD --json found.json -- {ENGINE}", folder)
    assert found.exit_code == 3, found.output
    result = json.loads((folder / "found.json").read_text())
    (folder / "found.json").unlink()
    assert result["commit"] == ""
    assert {each["name"] for each in result["candidates"]} == set(commits[2:4])
    assert (result["stage"], result["kind"]) == ("match_rules", "missing")
    assert f"{commits[2][:10]} skipped: 'mine.py' cannot be imported: No module named 'nowhere'" in found.stdout
    assert f"{commits[3][:10]} Change 3 (Ann, " in found.stdout
    after = git(folder, "status", "--porcelain"), git(folder, "for-each-ref"), (folder / ".git/index").read_bytes()
    assert after == before
    assert not list(folder.rglob("ran"))
    assert not (folder / ".git/kgverify").exists()
    for words, message in (
        (f"HEAD~1 HEAD {ENGINE}", "the good commit .*: DIVERGE match_rules, missing\nfix: give an earlier commit"),
        (f"HEAD~4 HEAD~3 {ENGINE}", "the bad commit .*: AGREE\nfix: give a later commit"),
        (f"HEAD HEAD~1 {ENGINE}", "the good commit .*: is no ancestor of"),
        (f"HEAD~2 HEAD {ENGINE}", "the good commit .* has no verdict: 'mine.py' cannot be imported"),
        (f"HEAD~4 HEAD {ENGINE} --cause limit", "no divergence in limit, but in match_rules"),
        (f"nothing HEAD {ENGINE}", "the good commit nothing: "),
        (f"HEAD~4 HEAD {WORDS}", "expected an engine in the repository"),
    ):
        refused = invoke(f"bisect {words}", folder)
        assert refused.exit_code == 2
        assert re.search(message, refused.stderr), refused.stderr
