"""The scoreboard as figures with their targets, and as a table of faults by graphs."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from kgverify.comparison.result import Verdict
from kgverify.prover.faults.plant import FAULTS

from .arenas import Trial
from .trials import Scores

INERT: Final = "="
"""The cell of a fault that does nothing on a graph: both traces, and the ranks, are equal."""


INTRODUCTION: Final = """\
This page is for those who ask how reliably a report names the stage and the cause.
Every fault of the catalogue is planted in the compiled evaluator on {graphs},
and the report of `kgverify diff` is scored. `python -m benchmarks.scoreboard` makes this page. The ground truth is computed
without the differ: the faulty evaluator runs tick by tick, and the sound functions are given the very same input.
"""
LEGEND: Final = f"""\
Each graph is tried with default limits, with limits that many steps meet, and with a policy of weights. A cell `n/m` counts
the candidates that are wrong by the ground truth or by the report (`m`), and those for which both name the same first step
(`n`). `stage` or `class` marks a cell in which the report gives some of them another stage or class. `{INERT}`: the fault has
no effect on that graph; traces and ranks are equal.
"""
PAIRS: Final = """\
Pairs are drawn among the faults that manifest on a graph. In {num_hidden} of {num} pairs one fault hid the other
completely: without it, the evaluator did exactly the same.
"""


class Figure(NamedTuple):
    """A measured share, `num` of `of`, and its target."""

    name: str
    num: int
    of: int
    target: float

    @property
    def is_met(self) -> bool:
        """True if something was measured and the share reaches the target."""
        return self.of > 0 and self.num >= self.target * self.of

    @property
    def text(self) -> str:
        """The share as text, `7,099 of 7,101 (99.97 %)`; rounded down, so that 100 means all."""
        return f"{self.num:,} of {self.of:,} ({int(self.num / max(1, self.of) * 10000) / 100:g} %)"


def figures(scores: Scores) -> tuple[Figure, ...]:
    """Compute the figures of the scoreboard."""
    manifest = [trial for trial in scores.trials if trial.is_manifest]
    silent = [trial for trial in scores.trials if not trial.is_manifest]
    visible = [pair for pair in scores.pairs if pair.is_visible]
    num_found = sum(trial.num_divergences for trial in manifest)
    listed = (
        Figure("faults that manifest: detected", sum(map(is_detected, manifest)), len(manifest), 1.0),
        Figure("first divergent step exact", *_sums(manifest, "num_steps", "num_wrong"), 0.98),
        Figure("stage exact", sum(trial.num_stages for trial in manifest), num_found, 0.95),
        Figure("stage of the largest cause", sum(map(_has_stage, manifest)), len(manifest), 0.95),
        Figure("class right", sum(trial.num_kinds for trial in manifest), num_found, 0.9),
        Figure("class of the largest cause", sum(map(_has_kind, manifest)), len(manifest), 0.9),
        Figure("faults that do nothing: traces equal", sum(map(_is_equal, silent)), len(silent), 1.0),
        Figure("no fault: no alarm", sum(map(_is_equal, scores.sound)), len(scores.sound), 1.0),
        Figure("pairs of faults in lockstep: both listed", sum(pair.is_listed for pair in visible), len(visible), 0.9),
    )
    return tuple(figure for figure in listed if figure.of)


def is_detected(trial: Trial) -> bool:
    """Return whether the verdict is DIVERGE."""
    return trial.verdict == Verdict.DIVERGE


def _sums(trials: Sequence[Trial], *names: str) -> tuple[int, int]:
    num, of = (sum(getattr(trial, name) for trial in trials) for name in names)
    return num, of


def _has_stage(trial: Trial) -> bool:
    return bool(trial.found) and trial.found[0][0] in trial.stages


def _has_kind(trial: Trial) -> bool:
    return _has_stage(trial) and trial.found[0][1] in trial.kinds


def _is_equal(trial: Trial) -> bool:
    """Return whether nothing was found. Scores of weights may differ in bits, so that equal digests are not required."""
    return trial.verdict == Verdict.AGREE and not trial.num_divergences


def table(scores: Scores) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the heads and rows of the table: for each fault and graph, the candidates found, of those wrong."""
    graphs = tuple(dict.fromkeys(trial.graph for trial in scores.trials))
    rows = []
    for name in dict.fromkeys(trial.faults[0] for trial in scores.trials):
        fault = FAULTS[name]
        cells = (
            _cell([t for t in scores.trials if t.faults == (name,) and t.graph == graph and t.is_manifest])
            for graph in graphs
        )
        rows.append((name, fault.stage.value, fault.expected_kind.value, *cells))
    return ("fault", "stage", "class", *graphs), rows


def _cell(trials: Sequence[Trial]) -> str:
    if not trials:
        return INERT
    num, of = _sums(trials, "num_steps", "num_wrong")
    is_exact = all(trial.num_stages == trial.num_divergences for trial in trials)
    is_right = all(trial.num_kinds == trial.num_divergences for trial in trials)
    return f"{num:,}/{of:,}{'' if is_exact else ' stage'}{'' if is_right else ' class'}"


def render_page(scores: Scores) -> str:
    """Render the scoreboard in Markdown."""
    heads, rows = table(scores)
    lines = [
        "# Scoreboard",
        "",
        INTRODUCTION.format(graphs=", ".join(heads[3:])),
        "| figure | measured | target |",
        "|---|---|---|",
        *(f"| {f.name} | {f.text} | {f.target:.0%} |" for f in figures(scores)),
        "",
        LEGEND,
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    missed = [pair for pair in scores.pairs if pair.is_visible and not pair.is_listed]
    if scores.pairs:
        num_hidden = sum(not pair.is_visible for pair in scores.pairs)
        lines += ["", PAIRS.format(num=len(scores.pairs), num_hidden=num_hidden).rstrip()]
    if missed:
        lines += ["", "Pairs of which one is not listed:", ""]
        lines += [
            f"- {' and '.join(pair.faults)} ({pair.graph}, {pair.arena}): {'; '.join(map(', '.join, pair.found))}"
            for pair in missed
        ]
    return "\n".join(lines) + "\n"
