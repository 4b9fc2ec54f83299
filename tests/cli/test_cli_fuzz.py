"""`kgverify fuzz`: exit codes, what is printed, interrupts, and every block of the page on it."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from warm_commands import run_python, run_shell

from kgverify import UserError
from kgverify.cli.commands.fuzz import parse_seconds

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "fuzzing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE.partition("## Shrink a divergence")[0], re.DOTALL)


def squash(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def test_a_campaign_says_what_it_found_and_writes_it_as_json(command, tmp_path):
    few = ("--examples", "24", "--jobs", "1", "--corpus", tmp_path / "corpus", "--json", "-")
    passed = command("fuzz", *few)
    assert passed.code == 0, passed.err
    assert "NOTHING NEW   24 problems" in passed.err
    assert msgspec.json.decode(passed.out)["num_problems"] == 24
    failed = command("fuzz", *few, "--fault", "last-fact-lost")
    assert failed.code == 1
    assert "1 NEW DIVERGENCE" in failed.err
    (found,) = msgspec.json.decode(failed.out)["divergences"]
    assert command("replay", found["file"]).code == 1


@pytest.mark.exhaustive
def test_every_problem_of_a_scope_is_compared_and_a_fault_in_it_is_found(command, tmp_path):
    scope = ("fuzz", "--scope", "tiny", "--jobs", "1", "--corpus")
    proved = command(*scope, tmp_path / "sound", "--json", tmp_path / "tiny.json")
    assert proved.code == 0, proved.err
    assert "NOTHING NEW   33,632 problems" in proved.out
    assert "no divergence exists in the scope tiny" in proved.out
    assert msgspec.json.decode((tmp_path / "tiny.json").read_bytes())["num_differing"] == 0
    failed = command(*scope, tmp_path / "faulty", "--fault", "last-fact-lost")
    assert (failed.code, "NEW DIVERGENCE" in failed.out) == (1, True)
    assert "no divergence exists" not in failed.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mode", "fast"], "unknown value 'fast'"),
        (["--fault", "nothing"], "unknown value 'nothing'"),
        (["--engine", "nothing"], "cannot make the engine 'nothing'"),
        (["--engine", "m:f", "--fault", "fact-cap"], "planted in the compiled evaluator"),
        (["--time", "soon"], "expected a time, found 'soon'"),
        (["--known", "nothing.toml"], "cannot be read"),
        (["--scope", "everything"], "unknown value 'everything'"),
        (["--scope", "tiny", "--time", "5s"], "a scope has no budget"),
        (["--json", "no/such/folder/x.json"], "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_an_error(command, tmp_path, options, message):
    failed = command("fuzz", "--corpus", tmp_path / "corpus", *options)
    assert failed.code == 2
    assert message in squash(failed.err)
    assert "fix:" in failed.err
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1h1m1s", 3661)]
)
def test_times_are_read(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "m", "-1m", "1.5h", "10 m", "1m1h"])
def test_an_invalid_time_is_an_error(text):
    with pytest.raises(UserError, match="expected a time"):
        parse_seconds(text)


@pytest.mark.deep
@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is another thing there")
def test_ctrl_c_ends_a_campaign_with_what_it_found_and_says_how_to_go_on(tmp_path):
    words = ["fuzz", "--time", "5m", "--jobs", "2", "--corpus", "corpus", "--fault", "last-fact-lost"]
    # A block of 2,048 problems takes long to end.
    script = "from kgverify.cli import main; from kgverify.testing.campaigns import campaign; campaign.BLOCK_SIZE = 128; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        logs = list((tmp_path / "corpus").glob("*.jsonl"))
        if logs and logs[0].read_bytes().count(b"\n") > 1:
            break
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, out + err
    assert "(not shrunk yet)" in out
    assert re.match(r"\d+ NEW DIVERGENCES? SO FAR ", out)
    assert "to resume, run:\nkgverify fuzz --time 5m" in err
    assert "Traceback" not in err


@pytest.mark.deep
def test_every_block_of_the_page_is_true(tmp_path):
    assert {kind for kind, _ in BLOCKS} == {"console", "text", "toml", "python"}
    printed = ""
    for kind, text in BLOCKS:
        if kind == "console":
            done = run_shell(text, tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            printed = squash(f"{printed} {done.stdout}")
        elif kind == "toml":
            (tmp_path / "known.toml").write_text(text)
        elif kind == "text":
            assert squash(text) in printed, printed
        elif kind == "python":
            done = run_python(text, tmp_path)
            assert done.returncode == 0, done.stderr
            printed = f"{printed} {squash(done.stdout)}"
    assert "match_facts stage.match_facts missing" in printed
