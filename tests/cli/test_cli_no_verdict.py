"""Exit code 0 only after a verdict: engines that end the process, streams that cannot be written, missing packages."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from invoked_commands import SMALL

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and pipes are other things there")

ENGINE = """
import ctypes, os, signal, sys, time
from kgverify.dialects import ReferenceEngine

class Other(BaseException): pass

class Killing:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

def act(what):
    match what:
        case "_exit": os._exit(0)
        case "native exit": ctypes.CDLL(None)._exit(0)
        case "exec": os.execv("/bin/true", ["true"])
        case "KeyboardInterrupt": raise KeyboardInterrupt
        case "Other": raise Other
        case "SIGKILL": os.kill(os.getpid(), signal.SIGKILL)
        case "fork": os.fork()
        case "SIGTERM in __del__": Killing(); time.sleep(2)
        case "close": os.closerange(1, 3)

class Engine(ReferenceEngine):
    def __init__(self, program, limits, policy):
        os.environ["WHERE"] == "factory" and act(os.environ["WHAT"])
        super().__init__(program, limits, policy)

    def prove(self, *arguments):
        os.environ["WHERE"] == "prove" and act(os.environ["WHAT"])
        return super().prove(*arguments)
"""


def run(words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a new process."""
    return subprocess.run(
        [sys.executable, "-m", "kgverify", *words.split()],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


MAIN = "from kgverify.cli import main; main()"


def start(script: str, words: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Run `kgverify` by a script in a new session."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *words.split()],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("what", "where", "command", "code", "said"),
    [
        ("native exit", "prove", "diff", 2, "ended the process with exit code 0 before there was a verdict"),
        pytest.param("SIGKILL", "prove", "record", 137, "ended by SIGKILL before there was", marks=pytest.mark.deep),
        pytest.param("SIGTERM in __del__", "prove", "record", 143, "ended by SIGTERM\n", marks=pytest.mark.deep),
        pytest.param("KeyboardInterrupt", "prove", "evaluate", 2, "", marks=pytest.mark.deep),
        pytest.param("Other", "factory", "diff", 2, "", marks=pytest.mark.deep),
        pytest.param("_exit", "factory", "fuzz", 2, "a process died", marks=pytest.mark.deep),
        pytest.param("exec", "factory", "evaluate", 2, "ended the process", marks=pytest.mark.deep),
        pytest.param("fork", "factory", "diff", 0, "", marks=pytest.mark.deep),
        pytest.param("close", "prove", "diff", 0, "", marks=pytest.mark.deep),
    ],
)
def test_whatever_an_engine_does_exit_code_0_comes_with_a_verdict(
    tmp_path: Path, what: str, where: str, command: str, code: int, said: str
):
    (tmp_path / "broken.py").write_text(ENGINE)
    options = {
        "fuzz": "--examples 4 --jobs 1",
        "record": f"{' '.join(SMALL)} -o x.h5",
    }.get(command, " ".join(SMALL))
    done = run(f"{command} --engine broken:Engine {options}", tmp_path, WHAT=what, WHERE=where)
    assert done.returncode == code, done.stderr
    assert done.stdout.count("\n") >= 1 if code == 0 else done.stdout == ""
    assert said in done.stderr
    assert not re.search("This is a bug|interrupted|Traceback", done.stderr)


def test_an_engine_that_the_configuration_names_is_watched(tmp_path: Path):
    (tmp_path / "broken.py").write_text(ENGINE)
    (tmp_path / "kgverify.toml").write_text("engine = 'broken.py:Engine'\n")
    done = run(f"diff {' '.join(SMALL)}", tmp_path, WHAT="_exit", WHERE="factory")
    assert (done.returncode, done.stdout) == (2, "")
    assert "ended the process" in done.stderr


TWO = "--queries 2 --corruptions 4"
ENDS = {
    f"diff --engine reference {TWO}": True,
    "diff expected.h5 expected.h5": True,
    f"golden new.golden --engine reference {TWO}": True,
    f"record --engine reference {TWO} -o new.h5": True,
    "show expected.h5": True,
    "show wrong --divergence 1": True,
    "show run --explain": True,
    "report run": True,
    "fuzz --jobs 1 --corpus found --examples 3 --engine reference": True,
    "dialect expected.h5": True,
    "shrink wrong -o new.kg": True,
    "replay found.kg": False,
    "trace import steps.jsonl -o new.h5": False,
    "trace check expected.h5": True,
    "trace repair expected.h5": True,
    "trace join expected.h5 -o new": True,
    "trace convert expected.h5 new.h5": False,
    "trace export expected.h5 --to new.jsonl": False,
    "doctor": True,
    "env diff run.h5 run.h5 --minimum none": True,
    "env record walk.py:walk -o new.h5": False,
    "env show walked": True,
    "why 'neighborOf(iran, iraq)' --limit 1": True,
    f"evaluate --mode eager --device cpu {TWO}": True,
}
"""Every command, and whether it has a result as JSON."""


WALK = """
import kgverify as kv

class Walk:
    def reset(self, seeds):
        return seeds * 1.0

    def step(self, state, action):
        return state + action, state, state > 3

walk = kv.EnvironmentSpec(Walk(), autoreset="disabled", actions=2)
"""
"""An environment."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ends")
    for words in (
        f"record --engine reference {TWO} -o expected.h5",
        f"diff --engine reference {TWO} --save run",
        "diff --mode plain --queries 1 --corruptions 2 --fault last-argmax --save wrong",
        "shrink wrong -o found.kg",
    ):
        run(words, folder)
    (folder / "walk.py").write_text(WALK)
    run("env record walk.py:walk -o run.h5", folder)
    run("env diff run.h5 run.h5 --save walked", folder)
    (folder / "steps.jsonl").write_text('{"goal": [["p", "a", "b"]], "successors": [true], "choice": 0}\n')
    return folder


def end(pipeline: str, folder: Path) -> int:
    """Return the exit code of a pipeline of bash that begins with `kgverify`, and remove what it writes."""
    line = f"set -o pipefail; {sys.executable} -m kgverify {pipeline}"
    done = subprocess.run(["bash", "-c", line], cwd=folder, stderr=subprocess.PIPE, text=True, check=False)
    for path in folder.glob("new*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not re.search("This is a bug|Traceback", done.stderr), done.stderr
    return done.returncode


@pytest.mark.parametrize(
    ("pipeline", "code"),
    [("diff --fault list | true", 141), pytest.param("diff --fault list >&-", 74, marks=pytest.mark.deep)],
)
def test_a_result_that_nobody_reads_has_its_own_exit_code(tmp_path: Path, pipeline: str, code: int):
    assert end(pipeline, tmp_path) == code


@pytest.mark.sample(0, deep=9)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("command", ENDS)
def test_every_command_ends_as_stated_if_its_result_cannot_be_written(command: str, folder: Path):
    assert end(f"{command} > /dev/full", folder) == 74
    assert end(f"{command} --json /dev/full > new.txt", folder) == (74 if ENDS[command] else 2)
    assert end(f"{command} | true", folder) == 141


@pytest.mark.sample(1, deep=8)
@pytest.mark.parametrize("command", ["trace check x.h5", *ENDS])
def test_every_command_refuses_a_current_folder_that_was_deleted(command: str, tmp_path: Path):
    line = f"rmdir ../{tmp_path.name}; {sys.executable} -m kgverify {command}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: the current folder cannot be used: .*\nfix: cd to a folder that exists\n", done.stderr)


@pytest.mark.sample(0, deep=9)
@pytest.mark.parametrize("command", ENDS)
def test_every_command_refuses_an_option_and_an_input_that_do_not_exist(command: str, folder: Path):
    assert end(f"{command} --no-such-option", folder) == 2
    missing = re.sub(r"expected\.h5|run|wrong|reference|steps|found\.", "no_such_input", command)
    assert end(missing, folder) == (2 if missing != command else 0)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("package", "code", "words", "said"),
    [
        ("torch", 'raise OSError("libcudart.so")', "fuzz --examples 4 --jobs 1", "torch cannot be imported: "),
        ("h5py", 'raise ImportError("libhdf5.so", name="h5py._errors")', "replay x", "h5py cannot be imported: "),
        # As on Windows.
        ("fcntl", 'raise ModuleNotFoundError(name="fcntl")', "doctor", "fcntl, which Python lacks on this system"),
    ],
)
def test_a_package_that_cannot_be_imported_is_neither_a_divergence_nor_a_bug(
    tmp_path: Path, package: str, code: str, words: str, said: str
):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run(words, tmp_path, PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "\nfix: " in done.stderr
    assert not re.search("bug in kgverify|Traceback", done.stderr)


@pytest.mark.usefixtures("heeds_signals")
def test_ctrl_c_while_packages_are_imported_prints_one_line(tmp_path: Path):
    # The interpreter itself may start late on a busy machine; it is kgverify's first import that begins the time.
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, sys\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'kgverify.cli.supervise':\n"
        "            pathlib.Path('begun').touch()\n"
        "sys.meta_path.insert(0, Watch())\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = start(MAIN, "diff --engine reference --queries 24 --corruptions all", tmp_path, PYTHONPATH=path)
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


# A command, the signal, its exit code, the file that shows that work is on disk, what is said of it, and how it resumes.
INTERRUPTED = [
    (
        "record --engine reference --corruptions all --shard-steps 50 -o run.h5",
        (signal.SIGTERM, 143, "run.h5.partial/manifest.json"),
        r"[1-9][\d,]* candidates with [\d,]+ steps are safe in run\.h5\.partial\n"
        r"resume with: kgverify record [^\n]* --resume\n(?s:.*)ended by SIGTERM\n$",
        "of them from before",
    ),
    (
        "evaluate --engine reference --part-size 20 --corruptions 20 --check 9 --minimum none --save run",
        (signal.SIGINT, 130, "run/part-000000.npz"),
        r"stopping after the current part[^§]*\d+ of \d+ parts are done; resume with: kgverify evaluate --engine ",
        "were finished before",
    ),
    (
        "fuzz --examples 1024 --jobs 1 --corpus corpus --engine reference --minimum none",
        (signal.SIGINT, 130, "corpus/*.jsonl"),
        r"to resume, run:\nkgverify fuzz --examples 1024",
        " of them earlier",
    ),
]
# Blocks of 2,048 problems take long to end.
SMALL_BLOCKS = f"from kgverify.testing.campaigns import campaign; campaign.BLOCK_SIZE = 128; {MAIN}"


@pytest.mark.deep
@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize(("line", "signalled", "said", "again"), INTERRUPTED)
def test_an_interrupted_command_reports_what_is_safe_and_resumes(
    tmp_path: Path, line: str, signalled: tuple[int, int, str], said: str, again: str
):
    number, code, written = signalled
    process = start(SMALL_BLOCKS, line, tmp_path)
    num_lines = 2 if written.endswith("jsonl") else 0
    while process.poll() is None:
        found = [*tmp_path.glob(written)]
        if found and found[0].read_bytes().count(b"\n") >= num_lines:
            break
        time.sleep(0.01)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, out + err
    assert (out == "") == (not num_lines)
    assert re.search(said, err), err
    assert err.endswith("\n")
    assert "Traceback" not in err
    assert not [*tmp_path.rglob("*.tmp")]
    resumed = start(SMALL_BLOCKS, f"{line}{' --resume' * ('partial' in written)}", tmp_path)
    out, err = resumed.communicate(timeout=300)
    assert (resumed.returncode, again in out) == (0, True), err


@pytest.mark.deep
@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_a_command_has_its_exit_code_and_leaves_no_temporary_files(tmp_path: Path, name: str):
    (temporary := tmp_path / "temporary").mkdir()
    words = "fuzz --engine reference --examples 9999 --jobs 2 --corpus found"
    process = start(MAIN, words, tmp_path, TMPDIR=str(temporary))
    while not any(temporary.iterdir()) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.Signals[name])
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (128 + signal.Signals[name], "")
    assert err.endswith(f"ended by {name}\n")
    assert [*temporary.iterdir(), *(tmp_path / "found").glob(".*")] == []
