"""Exit code 0 only after a verdict: engines that end the process, streams that cannot be written, missing packages."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_runs import SMALL, Command

from kgverify.cli.supervise import may_run_foreign_code, supervise

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and pipes are other things there")

ENGINE = """
import atexit, ctypes, io, os, signal, sys, threading, time
from kgverify.engines.reference.engine import ReferenceEngine
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import rank_candidates

class Other(BaseException): pass

def act(what):
    match what:
        case "exit": sys.exit(0)
        case "_exit": os._exit(0)
        case "native exit": ctypes.CDLL(None)._exit(0)
        case "exec": os.execv("/bin/true", ["true"])
        case "thread": threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(5)
        case "KeyboardInterrupt": raise KeyboardInterrupt
        case "GeneratorExit": raise GeneratorExit
        case "Other": raise Other
        case "KeyError": raise KeyError("x")
        case "SIGKILL": os.kill(os.getpid(), signal.SIGKILL)
        case "SIGSEGV": os.kill(os.getpid(), signal.SIGSEGV)
        case "close": sys.stdout.close()
        case "no stdout": sys.stdout = None
        case "other stdout": sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        case "other file": os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        case "fork": os.fork()
        case "at exit": atexit.register(os._exit, 0)
        case "import": import nothing_of_this_name

WHAT, WHERE = os.environ["WHAT"], os.environ["WHERE"]
if WHERE == "module":
    act(WHAT)

class Engine(ReferenceEngine):
    def __init__(self, program, limits, policy):
        WHERE == "factory" and act(WHAT)
        super().__init__(program, limits, policy)

    def prove(self, *arguments):
        WHERE == "prove" and act(WHAT)
        return super().prove(*arguments)

    def step(self, *arguments):
        WHERE == "step" and act(WHAT)
        return super().step(*arguments)

    def draw(self, *arguments):
        WHERE == "draw" and act(WHAT)
        return draw_candidates(*arguments)

    def rank(self, *arguments):
        WHERE == "rank" and act(WHAT)
        return rank_candidates(*arguments)
"""

ENDS = ("_exit", "native exit", "exec", "thread")
RAISES = ("exit", "KeyboardInterrupt", "GeneratorExit", "Other", "KeyError", "import")
SIGNALS = {"SIGKILL": 137, "SIGSEGV": 139}
HARMLESS = ("close", "no stdout", "other stdout", "other file", "fork", "at exit")
PLACES = ("module", "factory", "prove", "step", "draw", "rank")
COMMANDS = {
    "diff": ["diff", "--engine", "broken:Engine", *SMALL],
    "evaluate": ["evaluate", "--engine", "broken:Engine", "--queries", "1", "--corruptions", "2"],
    "record": ["record", "--engine", "broken:Engine", *SMALL, "-o", "x.h5"],
    "bench": ["bench", "--engine", "broken:Engine", "--queries", "1", "--corruptions", "2"],
    "fuzz": ["fuzz", "--engine", "broken:Engine", "--examples", "4", "--jobs", "1"],
}


def run(words: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a new process."""
    return subprocess.run(
        [sys.executable, "-m", "kgverify", *words],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def check(what: str, where: str, command: str, folder: Path) -> None:
    (folder / "broken.py").write_text(ENGINE)
    lockstep = ["--lockstep"] if where == "step" and command in ("diff", "fuzz") else []
    done = run([*COMMANDS[command], *lockstep], folder, WHAT=what, WHERE=where)
    assert "This is a bug" not in done.stderr
    if what in HARMLESS:
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n") >= 1
    elif command == "fuzz" and where != "module" and what in (*ENDS, *SIGNALS):
        # Its one process is not the command's.
        assert done.returncode == (2 if where == "factory" else 1), done.stderr
        assert ("a process died" in done.stderr) if where == "factory" else ("death   in " in done.stdout)
    elif what in SIGNALS:
        assert (done.returncode, done.stdout) == (SIGNALS[what], "")
        assert done.stderr.startswith(f"error: ended by {what} before there was a verdict")
    elif what in ENDS:
        assert (done.returncode, done.stdout) == (2, "")
        # While a module is imported, `os._exit` is an exception.
        assert re.search(
            "ended the process (with exit code 0 before there was a verdict|[(]SystemExit: 0)", done.stderr
        )
    else:
        assert done.returncode in (1, 2), (done.stdout, done.stderr)
        assert "interrupted" not in done.stderr
        assert "Traceback" not in done.stderr


def test_an_engine_that_ends_the_process_gives_no_verdict(tmp_path: Path):
    check("native exit", "prove", "diff", tmp_path)


def test_where_ctrl_c_is_ignored_an_interrupt_is_an_engines(tmp_path: Path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        check("KeyboardInterrupt", "draw", "diff", tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("what", "where", "command"),
    [
        ("native exit", "factory", "fuzz"),
        ("KeyboardInterrupt", "draw", "diff"),
        ("Other", "prove", "diff"),
        ("SIGKILL", "rank", "diff"),
    ],
)
def test_whatever_an_engine_does_exit_code_0_comes_with_a_verdict(tmp_path: Path, what: str, where: str, command: str):
    check(what, where, command, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("where", ["module", "factory", "prove"])
@pytest.mark.parametrize("what", [*ENDS, *RAISES, *SIGNALS, *HARMLESS])
def test_every_command_needs_a_verdict(tmp_path: Path, what: str, where: str, command: str):
    check(what, where, command, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("where", ["step", "draw", "rank"])
@pytest.mark.parametrize("what", [*ENDS, *RAISES, *SIGNALS])
def test_every_part_of_an_engine_is_watched(tmp_path: Path, what: str, where: str):
    check(what, where, "diff", tmp_path)


def test_only_commands_that_may_run_foreign_code_are_watched():
    assert may_run_foreign_code(["diff", "--engine", "a:b"])
    assert may_run_foreign_code(["fuzz", "--reference=a.py:b"])
    assert may_run_foreign_code(["replay", "x.kg", "--trust"])
    assert not may_run_foreign_code(["replay", "x.kg"])
    assert not may_run_foreign_code(["diff", "--engine", "compiled"])
    assert not may_run_foreign_code([])


@pytest.mark.parametrize("code", [0, 1, 3, 70])
def test_the_exit_code_that_a_command_reports_is_returned(code: int):
    script = f"import sys; from kgverify.cli.supervise import supervise; sys.exit(supervise(lambda: {code}))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == code
    assert callable(supervise)


def piped(words: str, folder: Path) -> int:
    """Run a pipeline in bash with pipefail, and return its exit code."""
    command = f"set -o pipefail; {sys.executable} -m kgverify {words}"
    return subprocess.run(["bash", "-c", command], cwd=folder, stderr=subprocess.DEVNULL, check=False).returncode


DIVERGES = "diff --engine reference --queries 1 --corruptions 2 --max-depth 3"


@pytest.mark.parametrize(
    ("pipeline", "code"),
    [
        ("diff --fault list | true", 141),
        pytest.param("diff --fault list >&-", 74, marks=pytest.mark.deep),
        pytest.param("diff --fault list > /dev/full", 74, marks=pytest.mark.exhaustive),
        pytest.param(f"{DIVERGES} | true", 141, marks=pytest.mark.exhaustive),
        pytest.param(f"{DIVERGES} --json - | true", 141, marks=pytest.mark.exhaustive),
        pytest.param(f"{DIVERGES} > /dev/full", 74, marks=pytest.mark.deep),
        pytest.param(f"{DIVERGES} --json - > /dev/full", 74, marks=pytest.mark.exhaustive),
        pytest.param("--help | true", 141, marks=pytest.mark.exhaustive),
    ],
)
def test_a_result_that_cannot_be_written_has_its_own_exit_code(tmp_path: Path, pipeline: str, code: int):
    if "/dev/full" in pipeline and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    assert piped(pipeline, tmp_path) == code


@pytest.mark.parametrize(
    ("package", "code", "words"),
    [
        pytest.param(
            "torch",
            'raise ModuleNotFoundError("No module named \'torch\'", name="torch")',
            ["diff", *SMALL, "--mode", "eager"],
            marks=pytest.mark.deep,
        ),
        pytest.param(
            "torch",
            'raise OSError("libcudart.so")',
            ["diff", *SMALL, "--mode", "eager"],
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "torch", 'raise OSError("libcudart.so")', ["fuzz", "--examples", "4", "--jobs", "1"], marks=pytest.mark.deep
        ),
        pytest.param(
            "torch",
            'raise ImportError("x", name="torch")',
            ["fuzz", "--examples", "4", "--jobs", "2", "--engine", "plain:Engine", "--reference", "compiled"],
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "h5py", 'raise ImportError("libhdf5.so", name="h5py._errors")', ["replay", "x"], marks=pytest.mark.deep
        ),
    ],
)
def test_a_package_that_cannot_be_imported_is_neither_a_divergence_nor_a_bug(
    tmp_path: Path, package: str, code: str, words: list[str]
):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(code)
    (tmp_path / "plain.py").write_text("from kgverify.engines.reference.engine import ReferenceEngine as Engine")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run(words, tmp_path, PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (2, "")
    if "ModuleNotFoundError" in code:
        assert "torch, which is not installed\nfix: pip install 'kgverify[compiled]'" in done.stderr
    else:
        assert f"{package} cannot be imported: " in done.stderr
        assert f"fix: install {package} in this environment, or repair its installation" in done.stderr
    assert "bug in kgverify" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize(
    ("seconds", "engine"),
    [
        (0.2, "reference"),
        pytest.param(0.7, "plain:Engine", marks=pytest.mark.deep),
        *(
            pytest.param(seconds, engine, marks=pytest.mark.exhaustive)
            for seconds in (0.4, 1.0, 1.5)
            for engine in ("reference", "plain:Engine")
        ),
    ],
)
def test_ctrl_c_while_packages_are_imported_prints_one_line(tmp_path: Path, seconds: float, engine: str):
    (tmp_path / "plain.py").write_text("from kgverify.engines.reference.engine import ReferenceEngine as Engine")
    # The interpreter itself may start late on a busy machine; it is kgverify's first import that begins the time.
    begun = tmp_path / "begun"
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, sys\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'kgverify.cli.supervise':\n"
        f"            pathlib.Path({str(begun)!r}).touch()\n"
        "sys.meta_path.insert(0, Watch())\n"
    )
    words = ["diff", "--engine", engine, "--queries", "24", "--corruptions", "all"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kgverify", *words],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not begun.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


@pytest.mark.usefixtures("heeds_signals")
def test_ctrl_c_inside_code_compiled_from_a_text_has_the_usual_exit_code(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, kgverify.cli.start as start\n"
        "def interrupt():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "def run():\n"
        "    try:\n"
        "        exec('interrupt()', {'interrupt': interrupt})\n"
        "    except KeyboardInterrupt:\n"
        "        return 130\n"
        "start.import_command_line = lambda: run\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    assert run(["doctor"], tmp_path, PYTHONPATH=path).returncode == 130


def test_weights_are_written_with_ordinary_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from kgverify import Limits, load_graph
    from kgverify.engines.policy import make_two_tower, write_policy

    before = os.umask(0o022)
    try:
        write_policy(make_two_tower(load_graph("countries").program, Limits(), seed=0), tmp_path / "x.safetensors")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.safetensors").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["diff", "--queries", str(10**20)], "expected at most 2,147,483,647 queries, found more"),
        (["diff", "--queries", str(10**400)], "expected at most 2,147,483,647 queries, found more"),
        (["diff", "--corruptions", str(10**400)], "expected at most 2,147,483,647 corruptions, found more"),
        (["diff", "--queries", "nan"], "--queries"),
        (["diff", "--queries", "-1"], "1 or more"),
        (["diff", "--jobs", str(10**20)], "--jobs"),
        (["train", "--epochs", "-1", "-o", "x.safetensors"], "--epochs"),
    ],
)
def test_an_absurd_size_is_refused(command: Command, words: list[str], message: str):
    done = command(*words)
    assert done.code == 2
    assert message in done.err


@pytest.mark.deep
def test_more_queries_than_there_are_are_reported(command: Command):
    done = command("diff", "--engine", "reference", "--queries", 1000, "--corruptions", 0, "--max-depth", 1)
    assert "warning: --queries 1000: the split test has 24, and all are taken" in done.err
