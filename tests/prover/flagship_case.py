"""A metric that fell: the commands of a hunt from the metric to its causes, and what they must print."""

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

TRAIN = "kgverify train --graph countries_s3 -o s3.safetensors"

PUBLISHED = "kgverify diff --graph countries_s3 --policy s3.safetensors --queries 24 --corruptions 4 --fault fact-cap"

SHIPPED = "kgverify diff --policy trained --queries 24 --corruptions 4 --fault fact-cap"

FIRST_COMPILED = (
    "kgverify diff --policy trained --queries 24 --corruptions 4 --limits max_resolvents=3 --fault first-compiled"
)

V10 = "kgverify diff --graph family --queries 9 --corruptions 10 --tune slots=64 --fault v10"


EXPECTED = {
    TRAIN: """\
s3.safetensors: 34,234 decisions of 1,634 proofs (4,220 queries), loss 0.524 nats
""",
    PUBLISHED: """\
…
first divergence: match_facts at step 1
…
candidate   0: locatedInCR(bulgaria, europe) (query 0, head side)
…
neighborOf(bulgaria, X0), locatedInCR(X0, europe)
…
difference  missing: 5 facts missing, none extra (confidence 100%)
expected    fact neighborOf(bulgaria, greece) [train.txt:417]
            fact neighborOf(bulgaria, macedonia) [train.txt:418]
            fact neighborOf(bulgaria, romania) [train.txt:419]
            fact neighborOf(bulgaria, turkey) [train.txt:421]
            fact neighborOf(bulgaria, serbia) [train.txt:420]
actual      nothing more
…
match_facts explains 0.3319 of the 0.3319 MRR lost
…
mean_reciprocal_rank   0.8677 -> 0.5358   0.8104 -> 0.5312   0.9250 -> 0.5403
…
""",
    SHIPPED: """\
…
match_facts explains 0.4410 of the 0.4410 MRR lost
…
mean_reciprocal_rank   0.8590 -> 0.4181   0.8160 -> 0.3979   0.9021 -> 0.4382
…
""",
    FIRST_COMPILED: """\
…
first divergence: match_facts at step 1
…
match_facts explains 0.2718, rank explains 0.1506, close explains 0.0116 of the 0.4340 MRR lost
…
mean_reciprocal_rank   0.8486 -> 0.4146   0.8160 -> 0.3910   0.8812 -> 0.4382
…
""",
    V10: """\
…
note: no candidate was proved by the actual side: 6 of 198 candidates proved expected, 0 of 198 actual
…
mean_reciprocal_rank   0.4487 -> 0.1591   0.4444 -> 0.1598   0.4529 -> 0.1583
…
hits_at_1              0.3333 -> 0.0000   0.3333 -> 0.0000   0.3333 -> 0.0000
…
""",
}
"""Parts that each command prints in this order, between ellipses."""


TABLES = {
    "first-compiled-causes": """\
| stage | difference | candidates | MRR lost | MRR if repaired alone |
| --- | --- | --- | --- | --- |
| `close` | outcome: a false proof | 4 | 0.0116 | 0.4181 |
| `match_facts` | missing | 198 | 0.2718 | 0.5271 |
| `rank` | rank | 27 | 0.1506 | 0.4076 |
""",
    "first-compiled-repairs": """\
| repaired | MRR | proved |
| --- | --- | --- |
| nothing | 0.4146 | 6 |
| `fact-cap` | 0.4545 | 142 |
| `scatter-collision` | 0.4181 | 2 |
| `no-push-down` | 0.4076 | 6 |
| `fact-cap`, `scatter-collision` | 0.5358 | 65 |
| `fact-cap`, `no-push-down` | 0.5931 | 142 |
| `scatter-collision`, `no-push-down` | 0.4181 | 2 |
| `fact-cap`, `scatter-collision`, `no-push-down` | 0.8486 | 65 |
""",
    "first-compiled-lockstep": """\
| stage | difference |
| --- | --- |
| `match_facts` | missing |
| `rank` | rank |
| `close` | outcome: a false proof |
""",
    "v10-causes": """\
| stage | difference | candidates | MRR lost | MRR if repaired alone |
| --- | --- | --- | --- | --- |
| `advance` | stale | 116 | 0.1862 | 0.3440 |
| `recycle` | missing | 82 | 0.1033 | 0.2611 |
""",
}
"""The tables of causes and repairs."""

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
    """Run a command in this process, in a folder."""
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
    """Return the causes of a report as a table; in lockstep nothing is attributed."""
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
