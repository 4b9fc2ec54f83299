"""The trial of a semantic mutant: the commands that a user runs, or the tests, in a copy of the tree."""

import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
from msgspec.structs import replace
from mutant import ROOT
from semantic_mutant import SemanticMutant, plant_copy

IMPORTED: Final = (
    "kgverify.cli",
    "kgverify.engines.compiled.engine",
    "kgverify.engines.reference.engine",
    "kgverify.testing.campaigns.campaign",
    "kgverify.evaluation.evaluate",
    "kgverify.verification.verify",
)
"""The modules that commands import when they need them."""
BUG: Final = 70
MORE_SECONDS: Final = 30.0
"""A command that takes these seconds more than four times its time on the original has not ended."""
MORE_MEMORY: Final = 8 << 30

NOTICED: Final = "noticed"
WRONG: Final = "wrong result"
SILENT: Final = "no effect seen"


class Command(msgspec.Struct, frozen=True):
    """Commands of a user, run one after the other until one does not end with 0.

    name:     a name for tables
    lines:    their arguments; the last one writes `result.json`
    is_sound: whether the original ends with 0; else a fault is planted, which it finds
    only:     the beginnings of the paths of the files whose mutants are tried on it; of all, if empty
    unused:   the beginnings of the paths of files that it does not run
    """

    name: str
    lines: tuple[str, ...]
    is_sound: bool = True
    only: tuple[str, ...] = ()
    unused: tuple[str, ...] = ("kgverify/evaluation/", "kgverify/engines/native/")

    def runs(self, mutant: SemanticMutant) -> bool:
        """Return whether the mutant is tried on it."""
        unused = (*self.unused, *_OF_DIVERGENCES) if self.is_sound else self.unused
        return mutant.file.startswith(self.only or "") and not mutant.file.startswith(unused)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a command.

    code:    the exit code; minus the signal that killed the process
    verdict: as the JSON has it
    stages:  the stages that it names, the first cause first
    numbers: the metrics and counts that it reports, hashed
    last:    the end of the output, where the command ended with an error
    """

    command: str
    code: int
    seconds: float
    verdict: str = ""
    stages: tuple[str, ...] = ()
    numbers: str = ""
    last: str = ""


class SemanticResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a trial.

    status: `NOTICED`: a command ends with another exit code than that of a correct result.
            `WRONG`: none does, and one reports another verdict, stage, metric or count than the original.
            `SILENT`: they report what the original does
    by:     the command or test that noticed it, or whose result is wrong
    code:   its exit code
    named:  the first stage that it names
    """

    digest: str
    mutant: str
    list: str
    file: str
    status: str
    by: str = ""
    code: int = 0
    stage: str = ""
    named: str = ""
    seconds: float = 0.0
    outcomes: tuple[Outcome, ...] = ()


_OF_DIVERGENCES: Final = ("kgverify/conditions/",)
"""The files that run where something diverges."""
CPU: Final = "cpu"
CUDA: Final = "cuda"
KERNELS: Final = (
    "kgverify/engines/compiled/fused/",
    "kgverify/engines/compiled/tower/",
    "kgverify/engines/compiled/tick/tick_loop.py",
)
"""The files of what runs on a GPU alone, or in Triton's interpreter: their mutants are tried on a GPU, if there is one."""
NATIVE: Final = ("kgverify/engines/native/",)
"""The files of the native evaluator."""
_RECORDING: Final = tuple(
    f"kgverify/{each}/" for each in ("trace/read", "trace/write", "trace/hdf5", "comparison", "verification")
)
_WEIGHTS: Final = "wide.safetensors"
_WIDE_GRAPH: Final = "random:1"
"""A graph with long goals, for those weights."""
_JSON: Final = "--json result.json"


def commands(fuzz_seconds: int, device: str = CPU) -> Iterator[Command]:
    """Yield the commands for a device, those that notice most in the least time first."""
    yield from _on_cuda(fuzz_seconds) if device == CUDA else _on_cpu(fuzz_seconds)


def _on_cpu(fuzz_seconds: int) -> Iterator[Command]:
    eager = f"--mode eager {_JSON}"
    random = "--graph random:1 --queries 8 --policy two_tower"
    yield Command("diff countries", (f"diff --queries 6 {eager}",))
    yield Command("diff random", (f"diff {random} {eager}",))
    yield Command("diff family", (f"diff --graph {_family()} --queries 3 --corruptions 12 --policy two_tower {eager}",))
    yield from _evaluations(eager)
    yield Command("fuzz", (f"fuzz --time {fuzz_seconds}s --jobs 1 --fresh {eager}",))
    yield from _traces("--mode eager")
    yield from _on_native(fuzz_seconds)
    fused = f"--mode fused --device cpu {_JSON}"
    size = "--queries 1 --corruptions 1 --max-depth 3 --slots 4 --no-determinism --minimum none"
    yield Command("diff --mode fused", (f"diff {size} {fused}",), only=KERNELS)
    yield Command("fuzz --mode fused", (f"fuzz --examples 36 --jobs 1 --fresh {fused}",), only=KERNELS)
    yield Command("fact-cap", (f"diff --queries 6 --fault fact-cap {eager}",), is_sound=False)
    yield Command("tf32-scores", (f"diff {random} --fault tf32-scores {eager}",), is_sound=False)
    small = "--graph random:1 --queries 6 --policy two_tower"
    yield Command("lockstep", (f"diff {small} --lockstep --fault dead-end-open {eager}",), is_sound=False)
    yield Command(
        "faulty trace",
        (
            f"record --engine reference -o a.h5 {small}",
            f"record --engine compiled -o b.h5 --fault dead-end-open --shard-steps 200 {small} --mode eager",
            "diff a.h5 b.h5 --json result.json",
        ),
        is_sound=False,
    )


def _on_native(fuzz_seconds: int) -> Iterator[Command]:
    """Yield the commands for mutants of the native evaluator, which all of them but `fuzz` run by default."""
    family = f"--graph {_family()} --policy two_tower"
    found = (
        Command("native diff countries", (f"diff --queries 20 {_JSON}",)),
        Command("native diff random", (f"diff --graph random:1 --queries 8 --policy two_tower {_JSON}",)),
        Command("native diff family", (f"diff {family} --queries 4 --corruptions 30 {_JSON}",)),
        Command("native fuzz", (f"fuzz --mode native --time {fuzz_seconds}s --jobs 1 --fresh {_JSON}",)),
        Command("native evaluate", (f"evaluate --queries 8 {_JSON}",)),
        Command("native evaluate family", (f"evaluate {family} --queries 10 --minimum none {_JSON}",)),
        Command("native ranks", (f"evaluate {family} --queries 10 --rank-only --minimum none {_JSON}",)),
        *(replace(each, name=f"native {each.name}") for each in _traces("")),
    )
    yield from (replace(each, only=NATIVE, unused=()) for each in found)


def _on_cuda(fuzz_seconds: int) -> Iterator[Command]:
    fused = f"--mode fused --device cuda {_JSON}"
    yield Command("diff countries", (f"diff --queries 10 {fused}",))
    yield Command("diff random", (f"diff --graph random:1 --queries 8 --policy two_tower {fused}",))
    wide = f"diff --graph {_WIDE_GRAPH} --queries 6 --minimum none --policy ../{_WEIGHTS}"
    narrow = tuple(f"{wide} --precision {each} {fused}" for each in ("bf16", "bf16x3", "fp16"))
    yield Command("diff narrow", narrow, only=KERNELS)
    yield Command("diff family", (f"diff --graph {_family()} --queries 3 --corruptions 12 --policy two_tower {fused}",))
    yield Command("fuzz", (f"fuzz --time {fuzz_seconds}s --jobs 1 --fresh {fused}",))
    yield Command("diff --lockstep", (f"diff --graph random:1 --queries 6 --lockstep --minimum none {fused}",))
    yield from _evaluations(fused)
    many = f"evaluate --graph {_family()} --queries 60 --corruptions 200 --policy two_tower {fused}"
    yield Command("evaluate many", (many,), unused=(*_RECORDING, *NATIVE))
    yield from _traces("--mode fused --device cuda")


def _family() -> str:
    return "family" if (Path(os.environ.get("KGVERIFY_DATA", "")) / "family").is_dir() else "random:4"


def _evaluations(options: str) -> Iterator[Command]:
    yield Command("evaluate", (f"evaluate --queries 8 {options}",), unused=(*_RECORDING, *NATIVE))
    yield Command(
        "evaluate --rank-only", (f"evaluate --queries 8 --rank-only {options}",), unused=(*_RECORDING, *NATIVE)
    )


def _traces(options: str) -> Iterator[Command]:
    run = "--graph random:1 --queries 6 --policy two_tower"
    # Steps of more resolvents than a warp has lanes, and derivations that reach the depth limit.
    wide = " --max-depth 4 --max-resolvents 100"
    for level, size in (("compact", ""), ("deep", " --corruptions 2"), ("steps", wide), ("digests", wide)):
        yield Command(
            f"{level} traces",
            (
                f"record --engine reference -o a.h5 --level {level} {run}{size}",
                f"record --engine compiled -o b.h5 --level {level} --shard-steps 200 {run}{size} {options}",
                "trace check a.h5",
                "trace check b.h5",
                "diff a.h5 b.h5 --json result.json",
            ),
        )


def run_commands(
    mutant: SemanticMutant | None,
    chosen: Sequence[Command],
    expected: Mapping[str, Outcome],
    folder: str,
    answer: "Connection[Any, Any]",
) -> None:
    """Run commands in a copy with the mutant; send the outcomes, up to the first that notices it."""
    try:
        _enter_copy(mutant, Path(folder))
        if any(_WEIGHTS in line for command in chosen for line in command.lines):
            _write_weights(Path(folder) / _WEIGHTS)
        outcomes = []
        for command in chosen if mutant is None else _sorted_for(mutant, chosen):
            limit = MORE_SECONDS + 4 * expected[command.name].seconds if expected else 600.0
            outcome = _run_command(command, Path(folder) / command.name.replace(" ", "-"), limit)
            outcomes.append(outcome)
            if expected and notices(command, outcome, expected[command.name]):
                break
        answer.send(outcomes)
    except BaseException as error:
        answer.send([Outcome(command="import", code=BUG, seconds=0.0, last=f"{type(error).__name__}: {error}")])
    answer.close()
    os._exit(0)


def _sorted_for(mutant: SemanticMutant, chosen: Sequence[Command]) -> list[Command]:
    """Return the commands that run a mutant, those that write and read traces first for one of their own files."""
    is_recorder = mutant.file.startswith("kgverify/trace/")
    return sorted(
        (command for command in chosen if command.runs(mutant)),
        key=lambda command: is_recorder and not any(line.startswith("record") for line in command.lines),
    )


def _write_weights(path: Path) -> None:
    """Write random weights of the one width for which Hopper has a kernel of its own."""
    from kgverify.engines.policy import make_two_tower, write_policy
    from kgverify.graphs.load import load_graph
    from kgverify.program.limits import Limits

    write_policy(make_two_tower(load_graph(_WIDE_GRAPH).program, Limits(), seed=0, hidden=256), path)


def notices(command: Command, outcome: Outcome, expected: Outcome) -> bool:
    """Return whether an outcome tells the user that something is wrong, where the original has another."""
    if outcome.code == expected.code:
        return False
    return command.is_sound or outcome.code == BUG or outcome.code < 0


def judge(
    mutant: SemanticMutant,
    outcomes: Sequence[Outcome],
    chosen: Sequence[Command],
    expected: Mapping[str, Outcome],
    seconds: float,
) -> SemanticResult:
    """Return the result of a mutant from the outcomes of its commands."""
    command_of = {command.name: command for command in chosen}
    status, by = SILENT, None
    for outcome in outcomes:
        command = command_of.get(outcome.command)
        if command is None or notices(command, outcome, expected[command.name]):
            status, by = NOTICED, outcome
            break
        if status == SILENT and _content(outcome) != _content(expected[command.name]):
            status, by = WRONG, outcome
    return SemanticResult(
        digest=mutant.digest,
        mutant=str(mutant),
        list=mutant.list,
        file=mutant.file,
        status=status,
        by=by.command if by else "",
        code=by.code if by else 0,
        stage=mutant.stage,
        named=by.stages[0] if by and by.stages else "",
        seconds=round(seconds, 2),
        outcomes=tuple(outcomes),
    )


def run_tests(
    mutant: SemanticMutant, tests: Sequence[str], markers: str, folder: str, answer: "Connection[Any, Any]"
) -> None:
    """Run tests in a copy with the mutant; send the first that fails, or ""."""
    try:
        _enter_copy(mutant, Path(folder), has_tests=True)
        import pytest

        failed: list[str] = []

        class Failures:
            def pytest_runtest_logreport(self, report: Any) -> None:
                failed.extend([report.nodeid] if report.failed else [])

            def pytest_collectreport(self, report: Any) -> None:
                failed.extend([report.nodeid] if report.failed else [])

        root = Path(folder) / "tree"
        arguments = [f"--rootdir={root}", "-x", "-q", "-o", "addopts=", "-p", "pytester", "-m", markers]
        arguments += ["-p", "no:cacheprovider", "-p", "no:benchmark"]
        pytest.main([*arguments, *(str(root / test) for test in tests)], plugins=[Failures()])
        answer.send(failed[0] if failed else "")
    except BaseException as error:
        answer.send(f"{type(error).__name__}: {error}")
    answer.close()
    os._exit(0)


def _enter_copy(mutant: SemanticMutant | None, folder: Path, *, has_tests: bool = False) -> None:
    """Make this process, and those that it starts, import from a copy of the tree."""
    os.setsid()
    output = os.open(folder / "log", os.O_RDWR | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    root = folder / "tree"
    plant_copy(mutant, root, has_tests=has_tests)
    own = (str(ROOT), str(ROOT / "reference"), str(Path(__file__).parent))
    sys.path[:] = [str(root), str(root / "reference"), *(path for path in sys.path if path not in own)]
    further = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in own]
    os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], *further])
    os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = str(folder)
    if mutant is not None and mutant.file.startswith(NATIVE):
        # A library of a mutant is of no use afterwards.
        os.environ["KGVERIFY_LIBRARIES"] = str(folder / "libraries")
    # Workers that a command starts would run the script that started this process.
    sys.modules["__main__"] = types.ModuleType("__main__")
    importlib.invalidate_caches()
    os.chdir(root)
    for name in IMPORTED:
        importlib.import_module(name)
    found = str(sys.modules["kgverify"].__file__)
    if not found.startswith(str(root)):
        raise RuntimeError(f"imported {found}, expected it below {root}")


def _run_command(command: Command, folder: Path, limit: float) -> Outcome:
    folder.mkdir()
    begun = time.monotonic()
    code = 0
    for line in command.lines:
        child = os.fork()
        if not child:
            _become(line.split(), folder)
        code = _wait(child, begun + limit)
        if code:
            break
    seconds = round(time.monotonic() - begun, 2)
    last = (folder / "log").read_text(errors="replace").strip()[-300:] if code not in (0, 1) else ""
    verdict, stages, numbers = _read_json(folder / "result.json")
    return Outcome(
        command=command.name, code=code, seconds=seconds, verdict=verdict, stages=stages, numbers=numbers, last=last
    )


def _wait(child: int, deadline: float) -> int:
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL
        time.sleep(0.01)


def _become(arguments: list[str], folder: Path) -> NoReturn:
    """Run a command of `kgverify` in this process, and exit."""
    code = BUG
    try:
        os.chdir(folder)
        output = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(output, stream)
        for name, stream in (("stdout", 1), ("stderr", 2)):
            setattr(sys, name, open(stream, "w", closefd=False, errors="replace"))  # noqa: SIM115  open until the process ends
        if "cuda" not in arguments:
            # The driver of a GPU reserves far more addresses than it has memory.
            with open("/proc/self/statm", encoding="ascii") as file:
                pages = int(file.read().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MORE_MEMORY,) * 2)
        sys.argv = ["kgverify", *arguments]
        from kgverify.cli import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _read_json(path: Path) -> tuple[str, tuple[str, ...], str]:
    """Return the verdict, the stages of the causes and the numbers of a result."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return "", (), ""
    first = [data["first_cause"]] if data.get("first_cause") else []
    found = [*first, *data.get("causes", ()), *data.get("divergences", ())]
    stages = tuple(dict.fromkeys(each["stage"] for each in found if isinstance(each, dict) and "stage" in each))
    kept = (
        "metrics",
        "coverage",
        "outcomes",
        "true_outcomes",
        "num_limited",
        "num_left_out",
        "num_rankings",
        "attribution",
    )
    # A campaign counts what it tried in its time.
    if "problems_per_second" in data or "num_problems" in data:
        return "", stages, ""
    text = json.dumps(_rounded({name: data[name] for name in kept if name in data}), sort_keys=True)
    return str(data.get("verdict", "")), stages, hashlib.sha256(text.encode()).hexdigest()[:16]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _content(outcome: Outcome) -> tuple[object, ...]:
    return outcome.code, outcome.verdict, outcome.stages, outcome.numbers
