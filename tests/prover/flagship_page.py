"""docs/flagship.md: its blocks and tables, its commands run again, and the tables that these give."""

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgverify.cli import main
from kgverify.program.outcomes import Outcome
from kgverify.ranking.rank import MRR, RANK_TOLERANCE, compute_metrics
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "flagship.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```console\n\$ (kgverify .*?)\n(.*?)```$", PAGE, re.DOTALL | re.MULTILINE))
TABLES = dict(re.findall(r"^<!-- table: ([\w-]+) -->\n((?:\|.*\n)+)", PAGE, re.MULTILINE))

NUMBER = r"\d+\.\d+"
PLAIN = {"diff": ("--mode", "eager", "--device", "cpu", "--no-determinism"), "train": ()}
"""Options that the test adds to a command, for the same result in less time."""


@dataclass(frozen=True)
class Finished:
    """A command that has been run: what it printed, and its result as data."""

    code: Any
    printed: str
    data: dict[str, Any]

    @property
    def expected(self) -> float:
        return self.data["metrics"]["expected"][MRR]

    @property
    def actual(self) -> float:
        return self.data["metrics"]["actual"][MRR]


def run_command(command: str, folder: Path) -> Finished:
    """Run a command of the page in this process, in a folder."""
    words = shlex.split(command)
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(folder)
        patch.setattr(sys, "argv", [*words, *PLAIN[words[1]], "--json", "result.json"])
        with pytest.raises(SystemExit) as caught:
            main()
    return Finished(
        caught.value.code or 0, printed.getvalue(), msgspec.json.decode((folder / "result.json").read_bytes())
    )


def find_unprinted(shown: str, printed: str, tolerance: float = 0.0) -> list[str]:
    """The parts of a block, between its ellipses, that were not printed so and in that order.

    tolerance: of decimal fractions; whole numbers are as printed
    """
    printed, unprinted, place = _squash(printed), [], 0
    for part in filter(None, map(_squash, shown.split("…"))):
        pattern = f"({NUMBER})".join(map(re.escape, re.split(NUMBER, part)))
        wanted = [float(number) for number in re.findall(NUMBER, part)]
        for match in re.compile(pattern).finditer(printed, place):
            if all(abs(float(a) - b) <= tolerance for a, b in zip(match.groups(), wanted, strict=True)):
                place = match.end()
                break
        else:
            unprinted.append(part)
    return unprinted


def causes_table(finished: Finished) -> str:
    """The causes of a report as the page shows them; in lockstep nothing is attributed."""
    attribution = finished.data.get("attribution")
    if attribution is None:
        return _table(("stage", "difference"), [_cause(each) for each in finished.data["causes"]])
    shares = {share["cause"]: share for share in attribution["shares"]}
    rows = [
        (*_cause(each), str(each["num_candidates"]), f"{shares[i]['share']:.4f}", f"{shares[i]['repaired']:.4f}")
        for i, each in enumerate(finished.data["causes"])
    ]
    return _table(("stage", "difference", "candidates", "MRR lost", "MRR if repaired alone"), rows)


def _cause(cause: dict[str, Any]) -> tuple[str, str]:
    difference = f"{cause['kind']}: {cause['situation']}" if cause["situation"] else cause["kind"]
    return f"`{cause['stage']}`", difference


def measure(run: Run, names: Sequence[str], slots: int | None = None) -> tuple[str, str]:
    """MRR and the number of candidates proved, of the compiled evaluator with faults in it, run alone."""
    pipeline = evaluator_pipeline(run, faults=names, mode="eager", device="cpu", slots=slots)
    drawn = pipeline.draw(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    candidates = pipeline.engine.prove(drawn).candidates
    metrics = compute_metrics(pipeline.rank(candidates, run.triples, RANK_TOLERANCE))
    return f"{metrics[MRR]:.4f}", str(int((candidates.outcome == Outcome.PROVED).sum()))


def repairs_table(run: Run, parts: Sequence[str]) -> str:
    """Every set of the faults repaired, the others left in."""
    rows = []
    for repaired in _subsets(parts):
        left = [name for name in parts if name not in repaired]
        rows.append((", ".join(f"`{name}`" for name in repaired) or "nothing", *measure(run, left)))
    return _table(("repaired", "MRR", "proved"), rows)


def _subsets(parts: Sequence[str]) -> Iterator[list[str]]:
    masks = sorted(range(1 << len(parts)), key=lambda mask: (mask.bit_count(), mask))
    for mask in masks:
        yield [name for i, name in enumerate(parts) if mask >> i & 1]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def _squash(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
