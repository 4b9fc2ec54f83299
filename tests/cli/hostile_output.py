"""Commands over names of strangers, and what a CI runner and a terminal make of their output.

The parser of runner commands is written after actions/runner (`ActionCommand.cs`, `OutputManager.cs`) and the logging
commands of Azure and TeamCity, and stricter than they are: it takes every name of a command for a registered one, and skips
what a comparison by culture ignores. It shares nothing with `kgverify.escaping`.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from invoked_commands import Invoked, invoke
from lossy_graph import lossy_graph

import kgverify as kv
from kgverify.cli.command_line import list_commands, list_options, make_app
from kgverify.cli.entries import ENTRIES
from kgverify.dialects import ReferenceEngine
from kgverify.laws import render_reproducer
from kgverify.report.render.formats import FORMATS
from kgverify.testing.checking.failure import Signature

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
    odd = {each: " " if each.isspace() else "" for each in {*line} if each.isspace() or is_ignorable(each)}
    line = line.translate(str.maketrans(odd))
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
    output = _STYLES.sub("", output)
    hidden = {each for each in {*output} if each != "\n" and is_ignorable(each)}
    return [f"U+{ord(each):04X}" for each in output if each in hidden]


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


def execute(
    words: str | Sequence[str],
    folder: Path,
    *,
    typed: str = "",
    width: int = 120,
    is_github: bool = False,
    is_terminal: bool = False,
    **variables: str,
) -> Invoked:
    """Run a command in a folder, in a terminal of a width or on a runner of GitHub."""
    variables = {"COLUMNS": str(width), "LINES": "40", "TERM": "xterm", **variables}
    variables |= {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(folder / "summary.md")} if is_github else {}
    variables |= {"FORCE_COLOR": "1"} if is_terminal else {}
    return invoke(words, folder, typed=typed, **variables)


_FIXED = {
    "verdict", "level", "kind", "method", "basis", "unknown", "variables", "absent", "recording", "creator", "modulo",
    "lockstep", "minimum", "exercise", "limits", "sha256", "program_sha256", "faults", "precision", "field", "fields",
}  # fmt: skip
"""Fields whose texts are kgverify's own words, or decide how a report is read."""


def put_before(value: Any, name: str) -> Any:
    """Return data with a name before every text that does not contain it and may be any text."""
    if isinstance(value, dict):
        return {key: each if key in _FIXED else put_before(each, name) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [put_before(each, name) for each in value]
    return f"{name}{value}" if isinstance(value, str) and name not in value else value


class Walk:
    """A walk whose observation has a name; it ends after two steps."""

    def __init__(self, name: str, reward: float) -> None:
        self.name, self.reward = name, reward

    def reset(self, seeds: Any) -> dict[str, Any]:
        """Begin at 0."""
        return {self.name: np.zeros(len(seeds))}

    def step(self, state: dict[str, Any], action: Any) -> tuple[Any, ...]:
        """Go on."""
        at = state[self.name] + 1
        return {self.name: at}, at * self.reward, at >= 2


def write_run(name: str, folder: Path) -> None:
    """Write the files that the commands read: a run, a trace, reproducers, a graph and lines, with a name in every text."""
    predicates, ends = ([f"{name}_{each}" for each in words.split()] for words in ("edge last query", "start end"))
    graph = lossy_graph(name, predicates=predicates, ends=ends, middle=[f"{name}_{i}" for i in range(60)])
    engine = kv.Evaluator(faults="fact-cap", mode="eager", device="cpu", slots=32)
    size, equality = {"queries": 1, "corruptions": 3}, kv.Equality(determinism=False)
    report = kv.verify(graph, engine, **size, equality=equality, save=folder / "run")
    plain = msgspec.to_builtins(report)
    content = put_before(plain, name) | {"format": plain["format"]}
    texts = {"notes": [name, f"x {name}"], "reasons": [name, f"x {name}"], "reasons_of_actual": [name], "command": name}
    msgspec.convert(content | texts, kv.Report).to_json(folder / "run" / "report.json")

    walks = (kv.EnvironmentSpec(Walk(name, each), autoreset="disabled", actions=2, name=name) for each in (1.0, 2.0))
    kv.verify_env(*walks, slots=1, steps=4, lockstep=False, minimum={}, save=folder / "env")
    walked = json.loads((folder / "env" / "report.json").read_bytes())
    texts = {"reasons": [name, f"x {name}"], "notes": [name], "rounding": name, "command": name}
    (folder / "env" / "report.json").write_text(
        json.dumps(put_before(walked, name) | texts | {"format": walked["format"]})
    )

    class Named(ReferenceEngine):
        info = kv.EngineInfo(name)

    kv.record(graph, folder / "trace.h5", Named, **size)
    fact = kv.NamedAtom(f"{name}p", f"{name}c", f"{name}d")
    found = kv.Reproducer(
        problem=kv.Problem(facts=(fact,), queries=(fact,)),
        signature=Signature("match_facts", name, "missing", name),
        candidate=name,
        step=0,
        expected=(name,),
        actual=(name,),
        message=f"{name} and {name}",
        neighbour=name,
        engine=kv.EngineSpec("compiled"),
        notes=(name,),
    )
    other = replace(found, engine=kv.EngineSpec(f"no_such_module:{name}"))
    (folder / "graph").mkdir()
    for file, text in {
        "found.kg": render_reproducer(found),
        "broken.kg": f"{render_reproducer(found)}{name}\n",
        "other.kg": render_reproducer(other),
        "graph/train.txt": f"{name}a\t{name}r\t{name}b\n{name}b\t{name}s\t{name}a\n",
        "graph/test.txt": f"{name}a\t{name}r\t{name}b\n",
        "graph/rules.txt": f"{name}h(X, Y) :- {name}r(X, Y).\n",
        "lines.jsonl": json.dumps({name: name, "candidate": 0}) + "\n",
        "budget.toml": f"{json.dumps(name)} = 1\n",
    }.items():
        (folder / file).write_text(text, encoding="utf-8")


FAST = [
    *(f"report run --{name} -" for name in FORMATS),
    *"""
diff --graph absent
diff run/expected.h5 absent.h5
evaluate --graph absent
golden budget.toml
evaluate --compare lines.jsonl
record --graph absent --engine reference -o new.h5
report run
report run --json -
report run --github
report run --github --engine absent.py:Engine
report run --svg pictures
report run --html --junit --markdown
show trace.h5
show trace.h5 --candidate 0
show trace.h5 --candidate 0 --step 0
show trace.h5 --json -
show trace.h5 --candidate 0 --step 0 --json -
show run --divergence 1
show run --divergence 1 --json -
show run --explain
show run --explain --json -
show run
shrink run
shrink run --graph graph
replay broken.kg
replay other.kg
fuzz --dialect budget.toml --examples 1
fuzz --corpus trace.h5 --examples 1
why p(a,b) --graph graph
bisect absent --engine absent.py:Engine
dialect --engine absent
dialect absent
dialect --engine reference -o absent/dialect.toml
doctor --json -
env diff env/expected.h5 env/actual.h5
env diff absent.py:make absent:make
env record absent.h5 -o new.h5
env show env
env show env --divergence 1 --json -
env show env --html -
audit step absent.py:step --inputs absent.py:make
trace check trace.h5
trace check trace.h5 --json -
trace check budget.toml
trace convert trace.h5 converted.h5
trace convert trace.h5 absent/converted.h5
trace export trace.h5 --to steps.jsonl
trace export trace.h5 --to steps.csv
trace import lines.jsonl -o imported.h5
trace join trace.h5 run -o joined.h5
trace repair trace.h5
trace repair trace.h5 --json -
""".strip().splitlines(),
]
"""Command lines of every command, which run no engine; a test requires that there are some for each."""
ENGINES = (
    "diff run/expected.h5 run/actual.h5 --json -",
    "evaluate --engine reference --graph graph --queries 1 --corruptions 1 --json -",
    "golden new.golden --engine reference --graph graph --queries 1 --corruptions 1 --json -",
    "golden new.golden --engine reference --graph graph --seed 1",
    "golden new.golden --engine reference --graph graph --update",
    "record --graph graph --engine reference --queries 1 --corruptions 1 -o new.h5",
    "replay found.kg --pytest test_found.py --log hostile.log",
    "replay found.kg --python",
)
"""Command lines that run engines, or test the comparison first."""
TYPED = "h\nn\nf\ns\ns\nS\no\nd 1\nc 1\nb\nwhat ##[error]x\nq\n"
"""The keys typed into `show run`."""
FILES = (
    "show {}.h5",
    "show {}.jsonl",
    "trace check {}.h5",
    "trace convert {}.h5 {}2.h5",
    "trace export {}.h5 --to {}.csv",
    "trace export {}.h5 --candidates {} --to x.csv",
    "trace repair {}.h5",
    "trace import {}.jsonl -o {}.jsonl.h5",
)
"""Command lines over files with a name."""
_CHOSEN = {"graph", "engine", "reference", "policy", "mode", "device", "fault", "split", "rung", "budget"}
"""Options whose values are checked before any work begins."""


def commands_of() -> Iterator[tuple[list[str], list[Any]]]:
    """Yield the words of every command of the application with its arguments and options."""
    for words, each in list_commands(make_app(*ENTRIES)).items():
        yield [*words], list_options(each)


def refused_lines(name: str) -> Iterator[list[str]]:
    """Yield command lines that every command refuses: unknown options and commands, no numbers, too many words."""
    yield [name]
    for words, described in commands_of():
        yield [*words, f"--{name}"]
        yield [*words, *[name] * 4]
        yield from ([*words, f"{each.name}={name}"] for each in described if each.hint in (int, float))


def unusable_lines(name: str) -> Iterator[list[str]]:
    """Yield command lines with a name that no file, graph, engine or mode has."""
    for words, described in commands_of():
        required = [each for each in described if each.required]
        needed = [f"{each.name}={name}" if each.name.startswith("-") else name for each in required]
        # A golden file that does not exist is written.
        if any(not each.name.startswith("-") for each in required) and words != ["golden"]:
            yield [*words, *needed]
        yield from ([*words, *needed, f"{each.name}={name}"] for each in described if each.name[2:] in _CHOSEN)


def judge_line(words: str | Sequence[str], folder: Path, **how: Any) -> tuple[Invoked, list[Finding]]:
    """Run a command line, and judge what it printed. `--github` asks for some commands of the runner."""
    done = execute(words, folder, typed=TYPED if words == "show run" else "", **how)
    allowed = {"error", "warning", "notice"} if "--github" in words else set()
    return done, [each for each in judge(done.stdout) if each.found not in allowed] + judge(done.stderr)
