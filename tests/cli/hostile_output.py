"""Commands over names of strangers, and what a CI runner and a terminal make of their output.

The parser of runner commands is written after actions/runner (`ActionCommand.cs`, `OutputManager.cs`) and the logging
commands of Azure and TeamCity, and stricter than they are: it takes every name of a command for a registered one, and skips
what a comparison by culture ignores. It shares nothing with `kgverify.escaping`.
"""

import io
import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kgverify import Equality, KnowledgeGraph, Problem, Report
from kgverify.cli.app import run
from kgverify.cli.command_line import list_commands, list_options, make_app
from kgverify.cli.entries import ENTRIES
from kgverify.laws import render_reproducer
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule, Symbols
from kgverify.runs.engine_makers import EngineSpec, evaluator_pipeline
from kgverify.runs.run import Run, reference_pipeline
from kgverify.testing.checking.failure import Signature
from kgverify.testing.reproducers.text_format import Reproducer
from kgverify.trace.model.header import Header
from kgverify.trace.model.trace import Trace
from kgverify.trace.write.writer import write_again
from kgverify.verification.save import save_verification
from kgverify.verification.verify import Verification, verify

# ---------------------------------------------------------------------------------------------------------------- names

_CODES = (
    *range(0x01, 0x20), *range(0x7F, 0xA0), 0xAD, 0x34F, 0x61C, 0x115F, 0x180E, 0x3164,
    *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2065), *range(0x2066, 0x2070), 0xFE0F, 0xFEFF,
    0xFFF9, 0xFFFE, 0xE0041,
)  # fmt: skip
_COMMANDS = (
    "##[error]FORGED", "##[add-mask]a", "###[error]FORGED", "x ##[set-env name=PATH;]FORGED", "##[group]FORGED",
    "::error::FORGED", "  ::error file=a,line=1::FORGED", "\t::warning::FORGED", "\xa0::notice::FORGED", "\u3000::debug::F",
    "::stop-commands::token", "::add-mask::a", "::set-output name=a::b", "::group::FORGED", "x\n::error::FORGED",
    "x\r\n::error::FORGED", "x\r::error::FORGED", "x\x0b::error::FORGED", "x\x85::error::FORGED", "x\u2028::error::FORGED",
    "\u200b::error::FORGED", "#\u200b#[error]FORGED", "##\u00ad[error]FORGED", ":\u200d:error::FORGED",
    "##vso[task.setvariable variable=a]b", "##teamcity[buildStatus status='FAILURE']", "##[error", "##", "::", "#",
    "a ::error::FORGED", "aaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbb ::error::FORGED ::error::FORGED ::error::FORGED",
    "%0A::error::FORGED", "%250A::error::FORGED", "\x1b[5mHIDDEN\x1b[8m", "\x1b]0;title\x07", "\x1b[2J\x1b[H", "\x9b5m",
    "\x1b]8;;http://example.invalid\x1b\\x", "[red]x[/red]", "[/]", ":smile:", "<script>alert(1)</script>", "]]>",
    "=cmd|' /C calc'!A0", "+1+1", "@SUM(A1)", "a'b\"c`d|e", "section_start:1:a\r\x1b[0K", "--- FORGED", "+++ FORGED",
    "\U000e0001\U000e0041", "a" * 300, "a\nAGREE   1,120 candidates, FORGED", "\\", "\\u200b", "naïve 北京 🙂",
)  # fmt: skip
NAMES = (*_COMMANDS, *(f"a{chr(code)}b" for code in _CODES))
"""Names that mean something to a runner, a terminal, a reader or a format."""

# ------------------------------------------------------------------------------------------------------- the two judges


def is_ignorable(character: str) -> bool:
    """Return whether a character has no glyph: a control, a format character, a separator of lines, a filler."""
    code = ord(character)
    return (
        unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        or code in (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0)
        or 0x180B <= code <= 0x180F
        or 0xFE00 <= code <= 0xFE0F
        or 0xE0000 <= code <= 0xE0FFF
    )


def parse_command(line: str) -> str:
    """Return the runner command of a line of a log; empty for any other line."""
    line = "".join(" " if each.isspace() else each for each in line if each.isspace() or not is_ignorable(each))
    trimmed = line.lstrip()
    if trimmed.startswith("::"):
        end = trimmed.find("::", 2)
        if end >= 0:
            return trimmed[2:end].split(" ")[0] or "nameless"
    start = line.find("##[")
    if start >= 0 and (end := line.find("]", start)) >= 0:
        return line[start + 3 : end].split(" ")[0] or "nameless"
    found = re.search(r"##(vso|teamcity)\[[^\]]*\]?", line)
    return found[0] if found else ""


_STYLE = "(?:[0-3]|22|3[0-79]|9[0-7])"
_STYLES = re.compile(rf"\x1b\[{_STYLE}(?:;{_STYLE})*m|\r?\x1b\[(?:2K|1A)|\x1b\[\?25[lh]")
"""Sequences of kgverify itself: bold, dim, italic, colours, and the redrawing of a bar in a terminal."""


def find_hidden(output: str) -> list[str]:
    """Return the characters of an output that have no glyph, but newlines and kgverify's own styles."""
    return [f"U+{ord(each):04X}" for each in _STYLES.sub("", output) if each != "\n" and is_ignorable(each)]


class Finding(NamedTuple):
    """A defect of an output: a command of the runner, a hidden character, or a forged line."""

    kind: str
    found: str


def judge(output: str) -> list[Finding]:
    """Return what a runner would execute, what nobody can see, and lines that a name forged."""
    lines = re.split(r"\r\n|\r|\n", output)
    found = [Finding("command", parse_command(_STYLES.sub("", line))) for line in lines]
    hidden = [Finding("hidden", each) for each in find_hidden(output)]
    forged = [Finding("forged", line[:40]) for line in lines if line.startswith("AGREE   1,120 candidates, FORGED")]
    return [*(each for each in found if each.found), *hidden, *forged]


# ------------------------------------------------------------------------------------------------------------- commands


class Finished(NamedTuple):
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def execute(
    words: Sequence[str],
    folder: Path,
    *,
    width: int = 120,
    is_github: bool = False,
    is_terminal=False,
    typed="",
    **variables: str,
):
    """Run a command in this process and in a folder, with further variables of the environment."""
    environment = dict(os.environ)
    streams, argv = (sys.stdin, sys.stdout, sys.stderr), sys.argv
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "FORCE_COLOR", "NO_COLOR"):
        os.environ.pop(name, None)
    os.environ.update(COLUMNS=str(width), LINES="40", TERM="xterm")
    os.environ.update(
        {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(folder / "summary.md")} if is_github else {}
    )
    os.environ.update({"FORCE_COLOR": "1"} if is_terminal else {})
    os.environ.update(variables)
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(typed.encode()), "utf-8"), out, err
    sys.argv = ["kgverify", *words]
    try:
        with _in_folder(folder):
            code = run()
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
    printed = []
    for stream in (out, err):
        stream.flush()
        printed.append(stream.buffer.getvalue().decode())
    return Finished(int(code), *printed)


# ---------------------------------------------------------------------------------------------------------- the workload

_TOKEN = "stranger"


def record_once() -> Verification:
    """Return a divergent run in whose names a token stands for a name of a stranger."""
    edge, last, query = (f"{_TOKEN}_{name}" for name in ("edge", "last", "query"))
    start, end = f"{_TOKEN}_start", f"{_TOKEN}_end"
    others = [f"{_TOKEN}_{i}" for i in range(60)]
    x, y, z = map(Variable, "XYZ")
    rule = NamedRule(NamedAtom(query, x, y), (NamedAtom(edge, x, z), NamedAtom(last, z, y)))
    graph = KnowledgeGraph(
        _TOKEN,
        train=(
            *(NamedAtom(edge, start, each) for each in others),
            *(NamedAtom(last, each, end) for each in others[52:]),
        ),
        test=(NamedAtom(query, start, end),),
        rules=(rule,),
    )
    a_run = Run(graph, num_queries=1, num_corruptions=3)
    judged = evaluator_pipeline(a_run, faults=["fact-cap"], mode="eager", device="cpu", slots=32)
    return verify(a_run, reference_pipeline(a_run), judged, equality=Equality(determinism=False))


def rename(value: Any, name: str) -> Any:
    """Return data with a name for the token, and after every other text that may be any."""
    if isinstance(value, dict):
        return {key: each if key in _FIXED else rename(each, name) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rename(each, name) for each in value]
    if not isinstance(value, str):
        return value
    return value.replace(_TOKEN, name) if _TOKEN in value else f"{name}{value}"


_FIXED = {
    "verdict", "level", "kind", "method", "basis", "unknown", "variables", "absent", "recording", "creator", "modulo",
    "lockstep", "minimum", "exercise", "limits", "sha256", "program_sha256", "faults", "precision", "field", "fields",
}  # fmt: skip
"""Fields whose texts are kgverify's own words, or decide how a trace is read."""


def rename_trace(trace: Trace, name: str) -> Trace:
    """Return a trace with other names."""
    symbols = Symbols(
        *(tuple(rename(each, name) for each in kind) for kind in (trace.symbols.predicates, trace.symbols.constants))
    )
    content = rename(msgspec.to_builtins(trace.header), name)
    header = msgspec.convert({**content, "program_sha256": ""}, Header)
    return replace(trace, symbols=symbols, header=header)


def rename_report(report: Report, name: str) -> Report:
    """Return a report with a name in each of its texts."""
    content = rename(msgspec.to_builtins(report), name)
    notes = {"notes": [name, f"x {name}"], "reasons": [name, f"x {name}"], "reasons_of_actual": [name], "command": name}
    return msgspec.convert({**content, **notes}, Report)


def write_run(once: Verification, name: str, folder: Path) -> None:
    """Write the files that the commands read: a saved run, a reproducer, a graph and lines, all with a name in every text."""
    renamed = Verification(
        rename_report(once.report, name), rename_trace(once.expected, name), rename_trace(once.actual, name), None
    )
    save_verification(renamed, folder / "run")
    write_again(renamed.expected, folder / "trace.h5")
    p, constant = f"{name}p", f"{name}c"
    problem = Problem(facts=(NamedAtom(p, constant, f"{name}d"),), queries=(NamedAtom(p, constant, f"{name}d"),))
    reproducer = Reproducer(
        problem=problem,
        signature=Signature("match_facts", name, "missing", name),
        candidate=name,
        step=0,
        expected=(name,),
        actual=(name,),
        message=f"{name} and {name}",
        neighbour=name,
        engine=EngineSpec("compiled"),
        notes=(name,),
    )
    (folder / "found.kg").write_text(render_reproducer(reproducer), encoding="utf-8")
    (folder / "broken.kg").write_text(render_reproducer(reproducer) + f"{name}\n", encoding="utf-8")
    other = replace(reproducer, engine=EngineSpec(f"no_such_module:{name}"))
    (folder / "other.kg").write_text(render_reproducer(other), encoding="utf-8")
    graph = folder / "graph"
    graph.mkdir()
    (graph / "train.txt").write_text(f"{name}a\t{name}r\t{name}b\n{name}b\t{name}s\t{name}a\n", encoding="utf-8")
    (graph / "test.txt").write_text(f"{name}a\t{name}r\t{name}b\n", encoding="utf-8")
    (graph / "rules.txt").write_text(f"{name}h(X, Y) :- {name}r(X, Y).\n", encoding="utf-8")
    (folder / "lines.jsonl").write_text(json.dumps({name: name, "candidate": 0}) + "\n", encoding="utf-8")
    (folder / "budget.toml").write_text(f"{json.dumps(name)} = 1\n", encoding="utf-8")


@dataclass(frozen=True)
class Case:
    """A command line.

    is_fast: False if it runs engines, or tests the comparison first
    typed:   the standard input
    """

    words: tuple[str, ...]
    is_fast: bool = True
    typed: str = ""


def _cases(*lines: str, is_fast: bool = True, typed: str = "") -> tuple[Case, ...]:
    return tuple(Case(tuple(line.split()), is_fast, typed) for line in lines)


_STEPS = "h\nn\nf\ns\ns\nS\no\nd 1\nc 1\nb\nwhat ##[error]x\nq\n"
EAGER = "--mode eager --device cpu"
CASES: dict[str, tuple[Case, ...]] = {
    "diff": _cases(
        "diff run/expected.h5 run/actual.h5",
        "diff run/expected.h5 run/actual.h5 --json -",
        f"diff --graph graph {EAGER} --queries 1 --corruptions 1",
        is_fast=False,
    ),
    "evaluate": _cases(f"evaluate --graph graph {EAGER} --queries 1 --corruptions 1 --json -", is_fast=False),
    "record": _cases("record --graph graph --engine reference --queries 1 --corruptions 1 -o new.h5", is_fast=False),
    "report": _cases(
        "report run", "report run --json -", "report run --html -", "report run --junit -", "report run --perfetto -"
    )
    + _cases("report run --markdown -", "report run --github", "report run --html --junit --markdown")
    + _cases("report run run --html -"),
    "show": _cases("show trace.h5", "show trace.h5 --candidate 0", "show trace.h5 --candidate 0 --step 0")
    + _cases("show trace.h5 --json -", "show trace.h5 --candidate 0 --step 0 --json -", "show run --divergence 1")
    + _cases("show run --divergence 1 --json -", "show run --explain", "show run --explain --divergence 1")
    + _cases("show run", typed=_STEPS),
    "shrink": _cases("shrink run", "shrink run --graph graph"),
    "replay": _cases("replay broken.kg", "replay other.kg")
    + _cases("replay found.kg", "replay found.kg --pytest test_found.py", is_fast=False),
    "fuzz": _cases("fuzz --known budget.toml --examples 1", "fuzz --corpus trace.h5 --examples 1")
    + _cases("fuzz --examples 2 --jobs 1 --fault fact-cap", is_fast=False),
    "train": _cases("train --graph graph -o absent/weights.safetensors"),
    "bench": _cases("bench --graph absent"),
    "dialect": _cases("dialect --engine absent", "dialect --engine reference -o absent/dialect.toml")
    + _cases("dialect --engine reference --examples 0", is_fast=False),
    "doctor": _cases("doctor", "doctor --json -"),
    "audit step": _cases("audit step absent.py:step --inputs absent.py:make"),
    "trace check": _cases("trace check trace.h5", "trace check trace.h5 --json -", "trace check budget.toml"),
    "trace convert": _cases("trace convert trace.h5 converted.h5", "trace convert trace.h5 absent/converted.h5"),
    "trace export": _cases("trace export trace.h5 --to steps.jsonl", "trace export trace.h5 --to steps.csv"),
    "trace import": _cases("trace import lines.jsonl -o imported.h5"),
    "trace join": _cases("trace join trace.h5 run -o joined.h5"),
    "trace repair": _cases("trace repair trace.h5", "trace repair trace.h5 --json -"),
}
"""The command lines of every command; a test requires that there are some for each."""


def commands_of() -> Iterator[tuple[str, list[Any]]]:
    """Yield the name of every command of the application with its arguments and options."""
    for words, each in list_commands(make_app(*ENTRIES)).items():
        yield " ".join(words), list_options(each)


def refused_lines(name: str) -> Iterator[tuple[str, ...]]:
    """Yield command lines that every command refuses at once: unknown options and commands, no numbers, too many words."""
    yield (name,)
    for command, described in commands_of():
        words = tuple(command.split())
        yield (*words, f"--{name}")
        yield (*words, *[name] * 4)
        for each in islice((each for each in described if each.hint in (int, float)), 1):
            yield (*words, f"{each.name}={name}")


def unusable_lines(name: str) -> Iterator[tuple[str, ...]]:
    """Yield command lines with a name that no file, graph, engine or mode has."""
    for command, described in commands_of():
        words = tuple(command.split())
        needed = [name for each in described if each.required and not each.name.startswith("-")]
        if needed:
            yield (*words, *needed)
        needed += [f"{each.name}={name}" for each in described if each.required and each.name.startswith("-")]
        for each in described:
            if each.name in _CHOSEN:
                yield (*words, *needed, f"{each.name}={name}")


_CHOSEN = {
    "--graph",
    "--engine",
    "--reference",
    "--policy",
    "--mode",
    "--device",
    "--fault",
    "--split",
    "--rung",
    "--budget",
}
"""Options whose values are checked before any work begins."""


def write_strange_files(folder: Path, name: str) -> list[str]:
    """Write files with a strange name, and return their names; none where the name is impossible."""
    plain = name.replace("/", "_").replace("\x00", "_")[:60]
    made = []
    for suffix in (".h5", ".kg", ".jsonl"):
        try:
            shutil.copyfile(
                folder / {".h5": "trace.h5", ".kg": "found.kg"}.get(suffix, "lines.jsonl"), folder / (plain + suffix)
            )
        except (OSError, ValueError):
            continue
        made.append(plain + suffix)
    return made


def strange_lines(files: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield command lines over files with strange names."""
    for each in files:
        path = f"./{each}"
        if each.endswith(".h5"):
            yield ("show", path)
            yield ("trace", "check", path)
            yield ("trace", "convert", path, f"./{each[:-3]}2.h5")
            yield ("trace", "export", path, "--to", f"./{each[:-3]}.csv")
            yield ("trace", "export", path, "--candidates", each, "--to", "x.csv")
            yield ("trace", "repair", path)
        if each.endswith(".jsonl"):
            yield ("trace", "import", path, "-o", f"./{each}.h5")
            yield ("show", path)


def allowed_commands(words: Sequence[str]) -> set[str]:
    """Return the runner commands that a command line asks for."""
    return {"error", "warning", "notice"} if "--github" in words else set()


def judge_case(case: Case, folder: Path, **how: Any) -> tuple[Finished, list[Finding]]:
    """Run a command line, and judge what it printed."""
    done = execute(case.words, folder, typed=case.typed, **how)
    allowed = allowed_commands(case.words)
    findings = [each for each in judge(done.out) if each.found not in allowed] + judge(done.err)
    return done, findings
