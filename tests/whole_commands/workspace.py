"""A folder in which whole commands run, and a summary of their reports that a person can state."""

import contextlib
import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from foreign_folder import FOLDER
from invoked_commands import invoke

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

WORDS = {
    "SMALL": "--queries 2 --corruptions 5",
    "TINY": "--queries 1 --corruptions 2",
    "EAGER": "--mode eager --device cpu --tune slots=8",
    "NATIVE": "--mode native --device cpu --tune slots=8",
    "ANN": "--graph family_of_ann --queries 3 --corruptions 2",
    "FUZZ": "fuzz --jobs 1 --corpus found",
}
"""Options that many commands share."""


def damage(source: str, path: str) -> None:
    """Copy a trace with 8 wrong bytes in its middle."""
    content = bytearray(Path(source).read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(255 - byte for byte in content[middle : middle + 8])
    Path(path).write_bytes(content)


def write_foreign(path: str) -> None:
    """Write recorded steps of a foreign prover as a trace: GRAPH.ENGINE.KIND.h5."""
    sys.path.insert(0, "examples")
    from recorded_steps import write_trace

    write_trace(FOLDER, *path.split(".")[:3], Path(path))


MADE = {
    "expected.h5": "record --engine reference SMALL -o expected.h5",
    "actual.h5": "record --engine compiled EAGER SMALL -o actual.h5",
    "faulty.h5": "record --engine compiled EAGER SMALL --fault fact-cap -o faulty.h5",
    "deep.h5": "record --engine reference SMALL --level deep -o deep.h5",
    "faulty_deep.h5": "record --engine compiled EAGER SMALL --fault rest-not-substituted --level deep -o faulty_deep.h5",
    "seeded.h5": "record --engine reference SMALL --seed 1 -o seeded.h5",
    "sets.h5": "record --engine reference SMALL --limits dialect=sets.toml -o sets.h5",
    "network.h5": "record --engine reference SMALL --policy two_tower -o network.h5",
    "shards": "record --engine reference SMALL --shard-steps 100 -o shards",
    "mine.h5": "trace import steps.jsonl -o mine.h5",
    "wrong.h5": "trace import wrong_steps.jsonl -o wrong.h5",
    "run": "diff TINY EAGER --no-determinism --fault fact-cap --save run",
    "agreeing": "diff SMALL NATIVE --save agreeing",
}
"""The commands that make what others read, once."""


class Finished(NamedTuple):
    """The end of a command: its exit code, all that it printed, and the JSON that it wrote."""

    code: int
    out: str
    err: str
    data: Any

    @property
    def text(self) -> str:
        """All that was printed, on one line, so that it does not matter where lines are wrapped."""
        return " ".join(f"{self.out} {self.err}".split())


class Workspace:
    """A folder with the inputs, the golden traces and the examples."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(HERE / "inputs", folder)
        shutil.copy(HERE.parent / "cli" / "two_engines.py", folder)
        for name in ("traces", "examples"):
            shutil.copytree(ROOT / name, folder / name)
        self._folder = folder
        self._made: set[str] = set()

    def run(self, command: str, *, json_too: bool = False) -> Finished:
        """Run a command after those that make what it reads. Files that it writes are removed."""
        with pytest.MonkeyPatch.context() as patch, contextlib.chdir(self._folder):
            patch.setenv("COLUMNS", "120")
            patch.syspath_prepend(str(self._folder))
            self._make(command)
            before = set(Path().rglob("*"))
            done = invoke(_expand(f"{command} --json result.json" if json_too else command))
            data = json.loads(Path("result.json").read_bytes()) if Path("result.json").exists() else None
            for path in sorted(set(Path().rglob("*")) - before, reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        return Finished(done.exit_code, done.stdout, done.stderr, data)

    def _make(self, command: str) -> None:
        for name in set(command.split()) - self._made:
            make: Callable[[], object] | None = None
            if name in MADE:
                make = lambda name=name: invoke(_expand(MADE[name]))  # noqa: E731
            elif name == "damaged.h5":
                self._make("expected.h5")
                make = lambda: damage("expected.h5", "damaged.h5")  # noqa: E731
            elif name.endswith((".forced.h5", ".free.h5")):
                make = lambda name=name: write_foreign(name)  # noqa: E731
            if make is not None:
                self._made.add(name)
                done = make()
                assert Path(name).exists(), done


def _expand(command: str) -> list[str]:
    return shlex.split(" ".join(WORDS.get(word, word) for word in command.split(" ")))


def summarize(report: Mapping[str, Any]) -> str:
    """Return the verdict of a report and its first divergence, the MRR and the proved candidates, in one line.

    `22, 18 diverge: 0.1 match_facts missing` says that of 22 candidates 18 diverge, candidate 0 first, in its step 1.
    """
    words = f"{report['verdict']} {report['coverage']['candidates']}"
    if report["divergences"]:
        first = report["divergences"][0]
        place = f"{first['candidate']}.{first['step']}" if first["step"] >= 0 else str(first["candidate"])
        words += f", {len(report['divergences'])} diverge: {place} {first['stage']} {first['kind']}"
        words += f" and {len(report['causes']) - 1} more" * (len(report["causes"]) > 1)
    mrr = [side["both.realistic.mean_reciprocal_rank"] for side in report["metrics"].values() if side]
    proved = [side.get("PROVED", 0) for side in map(report["outcomes"].get, ("expected", "actual")) if side]
    if mrr:
        words += f"; MRR {' -> '.join(dict.fromkeys(f'{each:.4f}' for each in mrr))}"
    return f"{words}; proved {' -> '.join(dict.fromkeys(map(str, proved)))}"


def find(data: Any, path: str) -> Any:
    """Return what is at a path in JSON: `divergences.0.stage`, or `divergences.#` for their number; after `/` a key with dots."""
    names, _, last = path.partition("/")
    for key in [*names.split("."), *([last] if last else [])]:
        data = len(data) if key == "#" else data[int(key) if isinstance(data, list) else key]
    return data


PATTERNS = (
    (r"\b\d[\d.,]*(e-?\d+)? (seconds?|minutes?|s|ms|us|µs|ns|min)\b", "<time>"),
    (r"\b\d[\d,.]* candidates/s", "<number> candidates/s"),
)


def normalize(text: str) -> str:
    """Replace the times."""
    for pattern, replacement in PATTERNS:
        text = re.sub(pattern, replacement, text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
