"""Contest the outputs of every command that writes: planted links, two writers at the same time, and full disks.

    python benchmarks/contested_outputs.py --rounds 200

The names that a command uses are seen by an audit hook. A round then plants a link at one of them (symbolic to a file, to
nothing or to a folder, or hard), starts two commands with the same output a moment apart, or lets a command find no room
from a random byte or call on while an older output is there. Afterwards every file that a link named is as it was, no
trace is lost, what stands at the output is one whole result, and no command ended with exit code 70. Exits 1 otherwise.
"""

import argparse
import errno
import fcntl
import gc
import importlib
import json
import os
import random
import resource
import select
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

from kgverify.testing.reproducers.text_format import read_reproducer
from kgverify.trace.maintain.repair import repair_trace
from kgverify.trace.read.trace_file import read_trace
from kgverify.verification.save import read_run

SECONDS = 120
IMPORTED = (
    "kgverify.cli.app",
    "kgverify.engines.reference.engine",
    "kgverify.runs.run",
    "kgverify.verification.verify",
    "kgverify.trace.write.writer",
)
SLOW = (
    "kgverify.prover.engine",
    "kgverify.testing.campaigns.campaign",
    "kgverify.evaluation.evaluate",
    "kgverify.prover.training.train",
    "kgverify.bench",
)
"""Modules that commands import when they need them. A forked command has them already."""

LINES = """{"candidate": ["grandparent", "ann", "eve"]}
{"goal": [["grandparent", "ann", "eve"]], "successors": [[["parent", "ann", "?0"], ["parent", "?0", "eve"]]], "choice": 0}
{"goal": [["parent", "ann", "?0"], ["parent", "?0", "eve"]], "successors": [[["parent", "cal", "eve"]], true], "choice": 1}
{"end": "PROVED"}
"""
RECORD = ["record", "--reference", "reference", "--corruptions", "2"]
SMALL = ["--mode", "eager", "--device", "cpu", "--corruptions", "2"]


class Command(NamedTuple):
    """A command that writes.

    words:     the words of a variant, 0 or 1, given the folder of the inputs and the output
    read:      returns what identifies a whole output; raises for a damaged one
    output:    the name of its output; a folder if it has no suffix
    protects:  whether it refuses to overwrite, so that of two at most one may succeed
    overwrite: the words that let it overwrite
    is_slow:   whether it takes seconds
    """

    words: Callable[[int, Path, Path], list[Any]]
    read: Callable[[Path], str]
    output: str
    protects: bool = False
    overwrite: tuple[str, ...] = ()
    is_slow: bool = False


def identify_trace(path: Path) -> str:
    """Return the root of a trace."""
    return f"{read_trace(path).root:x}"


def identify_run(folder: Path) -> str:
    """Return the verdict of a saved run and the roots of its traces."""
    run = read_run(folder)
    return f"{run.report.verdict} {run.expected.root:x} {run.actual.root:x}"


def identify_file(path: Path) -> str:
    """Return a hash of a file."""
    return sha256(path.read_bytes()).hexdigest()


def identify_json(path: Path) -> str:
    """Return the keys of an object in JSON, whose values differ from run to run."""
    return " ".join(sorted(json.loads(path.read_bytes())))


def identify_corpus(folder: Path) -> str:
    """Check a corpus: every reproducer and every line of its logs."""
    for path in folder.glob("*.kg"):
        read_reproducer(path)
    for path in folder.glob("*.jsonl"):
        identify_lines(path)
    return "whole"


def identify_lines(path: Path) -> str:
    """Check a file of JSON lines."""
    content = path.read_bytes()
    assert content.endswith(b"\n")
    for line in content.splitlines():
        json.loads(line)
    return "whole"


def identify_evaluation(folder: Path) -> str:
    """Return the hashes of the parts of an evaluation."""
    identify_json(folder / "summary.json")
    hashes = []
    for path in sorted(folder.glob("part-*")):
        with np.load(path) as file:
            hashes.append(str(file["xxh3"]))
    return " ".join(hashes)


def identify_weights(path: Path) -> str:
    """Return the sum of all weights."""
    return repr(sum(float(each.sum()) for each in load_file(path).values()))


def identify_reproducer(path: Path) -> str:
    """Return the signature of a reproducer."""
    return str(read_reproducer(path).signature)


def identify_repaired(path: Path) -> str:
    """Return the root of a trace that a repair left, or of one that it would make of what is there."""
    repair_trace(path)
    return identify_trace(path)


def repair(variant: int, inputs: Path, output: Path) -> list[Any]:
    """Put a damaged trace at the output before it is repaired."""
    if not output.exists() and not any(output.parent.glob(f"{output.name}.*")):
        shutil.copytree(inputs / "damaged", output)
    return ["trace", "repair", output]


def export(suffix: str) -> Command:
    """Return the command that exports a trace in a format."""
    return Command(lambda v, i, o: ["trace", "export", i / f"{v}.h5", "--to", o], identify_file, f"out{suffix}")


def render(option: str) -> Command:
    """Return the command that renders a saved run in a format."""
    return Command(lambda v, i, o: ["report", i / f"run{v}", option, o], identify_file, "out.txt")


COMMANDS: dict[str, Command] = {
    "record": Command(
        lambda v, i, o: [*RECORD, "--queries", 1 + v, "-o", o], identify_trace, "out.h5", True, ("--force",)
    ),
    "record, shards": Command(
        lambda v, i, o: [*RECORD, "--queries", 1 + v, "--shard-steps", 9, "-o", o],
        identify_trace,
        "out",
        True,
        ("--force",),
    ),
    "diff --save": Command(lambda v, i, o: ["diff", i / "0.h5", i / f"{v}.h5", "--save", o], identify_run, "run"),
    "trace convert": Command(
        lambda v, i, o: ["trace", "convert", i / f"{v}.h5", o], identify_trace, "out.h5", True, ("--force",)
    ),
    "trace convert, shards": Command(
        lambda v, i, o: ["trace", "convert", i / f"shards{v}", o], identify_trace, "out", True, ("--force",)
    ),
    "trace import": Command(
        lambda v, i, o: ["trace", "import", i / f"{v}.jsonl", "-o", o], identify_trace, "out.h5", True, ("--force",)
    ),
    "trace join": Command(
        lambda v, i, o: ["trace", "join", i / f"shards{v}", "-o", o], identify_trace, "out", True, ("--force",)
    ),
    "trace repair": Command(repair, identify_repaired, "out"),
    "trace export, jsonl": export(".jsonl"),
    "trace export, csv": export(".csv"),
    "trace export, npz": Command(
        lambda v, i, o: ["trace", "export", i / f"{v}.h5", "--to", o],
        lambda path: str(sorted((name, array.shape) for name, array in np.load(path).items())),
        "out.npz",
    ),
    "report --html": render("--html"),
    "report --junit": render("--junit"),
    "report --markdown": render("--markdown"),
    "report --json": render("--json"),
    "shrink -o": Command(
        lambda v, i, o: ["shrink", i / "fault", "--calls", 3 + v, "-o", o],
        identify_reproducer,
        "out.kg",
        is_slow=True,
    ),
    "fuzz": Command(
        lambda v, i, o: ["fuzz", "--corpus", o, "--examples", 2, "--seed", v, "--fault", "fact-cap"],
        identify_corpus,
        "corpus",
        is_slow=True,
    ),
    "evaluate --save": Command(
        lambda v, i, o: ["evaluate", *SMALL, "--queries", 2, "--part-size", 1, "--check", 0, "--save", o],
        identify_evaluation,
        "parts",
        is_slow=True,
    ),
    "bench --json": Command(
        lambda v, i, o: [
            *("bench", "--modes", "eager", "--device", "cpu", "--queries", 1, "--corruptions", 1),
            *("--seconds", 0, "--json", o),
        ],
        identify_json,
        "out.json",
        is_slow=True,
    ),
    "train": Command(
        lambda v, i, o: [
            *("train", "--rounds", 1, "--epochs", 1, "--seed", v, "-o", o),
        ],
        identify_weights,
        "out.safetensors",
        is_slow=True,
    ),
}


@dataclass
class Findings:
    """The findings of all rounds."""

    rounds: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)

    def blame(self, fault: str, message: str) -> None:
        """Count what must not be."""
        self.faults[fault] += 1
        self.messages.append(f"{fault}: {message}")


FAULTS = ("link target overwritten", "trace lost", "damaged output", "exit code 70", "unexplained", "hang")


class Ended(NamedTuple):
    """A command that ended: its exit code (None after a timeout), what it printed, and when it ended."""

    code: int | None
    text: str
    at: float


class Child:
    """A command in a forked process, in which everything is imported already."""

    def __init__(self, words: list[Any], folder: Path, prepare: Callable[[], None] = lambda: None) -> None:
        self._read, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                os.setpgid(0, 0)
                os.chdir(folder)
                null = os.open(os.devnull, os.O_RDONLY)
                for number, descriptor in ((0, null), (1, write), (2, write)):
                    os.dup2(descriptor, number)
                sys.stdout = os.fdopen(1, "w", closefd=False)
                sys.stderr = os.fdopen(2, "w", closefd=False)
                sys.argv = ["kgverify", *map(str, words)]
                from kgverify.cli.app import run

                prepare()
                code = run()
                sys.stdout.flush()
            finally:
                os._exit(code)
        os.close(write)

    def wait(self) -> Ended:
        """Wait until it ends, or end it after a while."""
        text, deadline = b"", time.monotonic() + SECONDS
        while select.select([self._read], [], [], max(0, deadline - time.monotonic()))[0]:
            part = os.read(self._read, 1 << 16)
            text += part
            if not part:
                break
        else:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self._read)
        status = os.waitpid(self.pid, 0)[1]
        code = os.waitstatus_to_exitcode(status)
        return Ended(None if code == -signal.SIGKILL else code, text.decode(errors="replace"), time.monotonic())


def run_command(words: list[Any], folder: Path, prepare: Callable[[], None] = lambda: None) -> Ended:
    """Run a command in a folder."""
    return Child(words, folder, prepare).wait()


def make_inputs(folder: Path, *, needs_fault: bool) -> None:
    """Make the inputs of all commands."""
    folder.mkdir()
    for v in (0, 1):
        (folder / f"{v}.jsonl").write_text(LINES * (1 + v))
        for words in (
            [*RECORD, "--queries", 1 + v, "-o", folder / f"{v}.h5"],
            [*RECORD, "--queries", 1 + v, "--shard-steps", 9, "-o", folder / f"shards{v}"],
        ):
            ended = run_command(words, folder)
            assert ended.code == 0, ended.text
    words = [["diff", folder / "0.h5", folder / f"{v}.h5", "--save", folder / f"run{v}"] for v in (0, 1)]
    if needs_fault:
        words.append(["diff", *SMALL, "--queries", 2, "--fault", "fact-cap", "--save", folder / "fault"])
    for each in words:
        ended = run_command(each, folder)
        assert ended.code in (0, 1, 3), ended.text
    shutil.copytree(folder / "shards1", folder / "damaged")
    (folder / "damaged" / "shard-00001.h5").unlink()


def see_names(command: Command, inputs: Path, folder: Path) -> list[str]:
    """Run a command, and return the names that it creates or opens to write, relative to the folder of its output."""
    log = folder.parent / "names.txt"
    log.write_text("")

    def watch() -> None:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            paths: tuple[Any, ...] = ()
            if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
                paths = arguments[:1]
            elif event in ("os.rename", "os.link", "os.mkdir"):
                paths = arguments[:2]
            for path in paths:
                if isinstance(path, (str, bytes, os.PathLike)) and Path(os.fsdecode(path)).is_relative_to(folder):
                    os.write(descriptor, os.fsencode(path) + b"\n")

        sys.addaudithook(hook)

    ended = run_command(command.words(1, inputs, folder / command.output), folder, watch)
    assert ended.code in (0, 1, 3), ended.text
    seen = {Path(line).relative_to(folder) for line in log.read_text().splitlines()}
    names = {str(each) for each in seen if each.parts and not any(part.endswith(".tmp") for part in each.parts)}
    # Random names cannot be planted, but what does not look random may be guessed.
    names = {name for name in names if ".kgverify-staged-" not in name}
    return sorted(names | {command.output, *(f"{command.output}.{end}" for end in ("tmp", "partial", "copy", "new"))})


@dataclass
class Victims:
    """Files outside of the output that links name, and what they hold."""

    folder: Path
    before: dict[str, Any] = field(default_factory=dict)

    def make(self) -> None:
        """Make the files, a folder among them."""
        (self.folder / "folder").mkdir(parents=True)
        for name in ("file", "folder/file"):
            (self.folder / name).write_text(f"years of work in {name}\n")
            (self.folder / name).chmod(0o640)
        self.before = self.look()

    def look(self) -> dict[str, Any]:
        """Return the names, contents and permissions of everything."""
        return {
            str(path.relative_to(self.folder)): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
            for path in sorted(self.folder.rglob("*"))
        }


def plant(kind: str, path: Path, victims: Path) -> None:
    """Plant a link; nothing if it cannot be planted there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "hard link":
        os.link(victims / "file", path)
    else:
        target = {"link to a file": "file", "link to nothing": "nothing", "link to a folder": "folder"}[kind]
        os.symlink(victims / target, path)


FOLDERS = ("run", "corpus", "parts")
"""Outputs that are folders of several files, which may be links."""
PLANTED = ("link to a file", "link to nothing", "link to a folder", "hard link")


class Contest:
    """All rounds on one folder."""

    def __init__(self, folder: Path, names: list[str], seed: int) -> None:
        self.findings = Findings()
        self._random = random.Random(seed)
        self._folder, self._inputs = folder, folder / "inputs"
        folder.mkdir(exist_ok=True)
        self._commands = {name: COMMANDS[name] for name in names}
        is_slow = any(each.is_slow for each in self._commands.values())
        for name in (*IMPORTED, *(SLOW if is_slow else ())):
            importlib.import_module(name)
        gc.collect()
        gc.freeze()
        make_inputs(self._inputs, needs_fault="shrink -o" in names)
        self._names: dict[str, list[str]] = {}
        self._known: dict[str, set[str]] = {}
        for name, command in self._commands.items():
            with self._work() as work:
                self._names[name] = see_names(command, self._inputs, work)
            self._known[name] = set()
            for variant in (0, 1):
                with self._work() as work:
                    run_command(command.words(variant, self._inputs, work / command.output), work)
                    self._known[name].add(command.read(work / command.output))

    @contextmanager
    def _work(self) -> Iterator[Path]:
        work = self._folder / "work"
        work.mkdir()
        try:
            yield work
        finally:
            shutil.rmtree(work)

    def run(self, num_rounds: int) -> None:
        """Run rounds: every command meets every kind of contest in turn."""
        order: list[tuple[str, str]] = []
        while len(order) < num_rounds:
            each = [(name, kind) for name in self._commands for kind in ("links", "writers", "no room")]
            self._random.shuffle(each)
            order += each
        for name, kind in order[:num_rounds]:
            self.findings.rounds[kind] += 1
            with self._work() as work:
                getattr(self, f"_contest_{kind.replace(' ', '_')}")(name, self._commands[name], work)

    def _judge(self, name: str, ended: Ended) -> None:
        self.findings.codes[-1 if ended.code is None else ended.code] += 1
        if ended.code is None:
            self.findings.blame("hang", name)
        elif ended.code not in (0, 1, 2, 3):
            self.findings.blame("exit code 70", f"{name}: {ended.code} {ended.text[-600:]}")
        elif ended.code == 2 and "fix: " not in ended.text:
            self.findings.blame("unexplained", f"{name}: {ended.text[-600:]}")

    def _check_output(self, name: str, command: Command, path: Path, known: set[str], why: str) -> None:
        try:
            found = command.read(path)
        except Exception as error:
            self.findings.blame("damaged output", f"{name}: {type(error).__name__}: {error} ({why})")
            return
        if found not in known:
            self.findings.blame("damaged output", f"{name}: {found}, expected one of {sorted(known)} ({why})")

    def _contest_links(self, name: str, command: Command, work: Path) -> None:
        kind, planted = self._random.choice(PLANTED), self._random.choice(self._names[name])
        victims = Victims(self._folder / "victims")
        victims.make()
        try:
            output = work / command.output
            words = command.words(1, self._inputs, output)
            if (work / planted).exists() and not (work / planted).is_dir():
                (work / planted).unlink()
            if not os.path.lexists(work / planted):
                plant(kind, work / planted, victims.folder)
            ended = run_command(words, work)
            self._judge(f"{name}, {kind} at {planted}", ended)
            found = victims.look()
            if kind == "link to a folder" and planted == command.output in FOLDERS:
                # A folder that the user names may be a link; files may be added to it, and none changed.
                found = {each: found.get(each) for each in victims.before}
            if found != victims.before:
                self.findings.blame("link target overwritten", f"{name}, {kind} at {planted}: exit code {ended.code}")
            if ended.code in (0, 1, 3):
                self._check_output(name, command, output, self._known[name], f"{kind} at {planted}")
        finally:
            shutil.rmtree(victims.folder)

    def _contest_writers(self, name: str, command: Command, work: Path) -> None:
        output = work / command.output
        pause = self._random.choice((0.0, 0.005, 0.02, 0.05, 0.2, 0.6))

        def delay() -> None:
            for function in ("fsync", "replace", "rename", "mkdir"):
                setattr(os, function, delayed(getattr(os, function), 0.01))

        first = Child(command.words(0, self._inputs, output), work, delay)
        time.sleep(pause)
        second = Child(command.words(1, self._inputs, output), work, delay)
        both = [each.wait() for each in (first, second)]
        for ended in both:
            self._judge(f"{name}, two writers {pause} s apart", ended)
        done = [ended.code in (0, 1, 3) for ended in both]
        if command.protects and all(done):
            self.findings.blame("trace lost", f"{name}: both succeeded, {pause} s apart")
        if any(done):
            self._check_output(name, command, output, self._known[name], f"two writers {pause} s apart")
        elif not any("is writing" in ended.text for ended in both):
            self.findings.blame("unexplained", f"{name}: neither of two succeeded: {[each.text for each in both]}")

    def _contest_no_room(self, name: str, command: Command, work: Path) -> None:
        output, folder = work / command.output, output_files(work, command.output)
        ended = run_command(command.words(0, self._inputs, output), work)
        number = self._random.choice((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS))
        if self._random.random() < 0.5:
            limit = self._random.randrange(0, max(2, 2 * max((each.stat().st_size for each in folder()), default=2)))
            prepare, why = limited(limit), f"files of at most {limit} bytes"
        else:
            calls = self._random.randrange(0, 30)
            prepare, why = failing(calls, number), f"{errno.errorcode[number]} from call {calls} on"
        ended = run_command([*command.words(1, self._inputs, output), *command.overwrite], work, prepare)
        self._judge(f"{name}, {why}", ended)
        self._check_output(name, command, output, self._known[name], why)


def output_files(work: Path, name: str) -> Callable[[], list[Path]]:
    """Return a function that lists the files of an output."""
    return lambda: [each for each in (work, *(work / name).rglob("*"), work / name) if each.is_file()]


def delayed(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Return a function that takes longer."""

    def call(*arguments: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return function(*arguments, **options)

    return call


def limited(num_bytes: int) -> Callable[[], None]:
    """Return a function that lets the system refuse longer files, as a quota does."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))

    return limit


def failing(num_calls: int, number: int) -> Callable[[], None]:
    """Return a function that lets calls that need room fail after some of them have succeeded."""

    def prepare() -> None:
        left = num_calls

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                if isinstance(arguments[0], int) and not stat.S_ISREG(os.fstat(arguments[0]).st_mode):
                    return original(*arguments, **options)
                left -= 1
                if left < 0:
                    raise OSError(number, os.strerror(number))
                return original(*arguments, **options)

            return call

        for name in ("write", "pwritev", "fsync", "replace", "mkdir"):
            setattr(os, name, wrap(getattr(os, name)))

    return prepare


def main() -> int:
    """Run the rounds, and print what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fast", action="store_true", help="leave out the commands that take seconds")
    parser.add_argument("--only", action="append", help="a command; may be repeated")
    parser.add_argument("--folder", help="where to write")
    options = parser.parse_args()
    names = [name for name, each in COMMANDS.items() if not (options.fast and each.is_slow)]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        contest = Contest(Path(folder), options.only or names, options.seed)
        contest.run(options.rounds)
    findings = contest.findings
    print("| " + " | ".join(("rounds", *FAULTS)) + " |")
    print("|" + "---|" * (1 + len(FAULTS)))
    rounds = ", ".join(f"{num} {kind}" for kind, num in findings.rounds.items())
    print("| " + " | ".join((rounds, *(str(findings.faults[fault]) for fault in FAULTS))) + " |")
    print("exit codes:", dict(sorted(findings.codes.items())))
    print(*findings.messages[:30], sep="\n")
    return 1 if findings.messages else 0


if __name__ == "__main__":
    raise SystemExit(main())
