"""Small real runs to report on, in folders, and reports of any size made from them."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from invoked_commands import invoke
from lossy_graph import lossy_graph

import kgverify as kv

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "\"' onmouseover=alert(3) x='",
    "]]>&lt;b&gt;&amp;",
    "{{ 7 * 7 }}{% raw %}",
    "a|b`c`\\|d @all #1 *e* [f](javascript:alert(4))",
    "100%::error::%0A",
    "\x00\x07\x1b[31m\x7f\ufffe\u202etxt",
    "https://example.invalid/x.png",
    "line\n::error::break",
)
"""Names that mean something to HTML, scripts, XML, Jinja, Markdown, GitHub's runner or a terminal."""


class SavedRun(NamedTuple):
    """A report with its traces, and the folder in which both are saved."""

    report: kv.Report
    folder: Path

    def render(self, *options: str, report: kv.Report | None = None, width: int = 120, **variables: str) -> str:
        """Return what `kgverify report` prints for this run, or for a report of it that was changed."""
        folder = self.folder if report is None else self.with_report(report)
        done = invoke(["report", folder, *options], COLUMNS=str(width), **{"GITHUB_STEP_SUMMARY": "", **variables})
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def with_report(self, report: kv.Report) -> Path:
        """Save a changed report with the traces of this run; return its folder."""
        folder = self.folder.with_name(f"{self.folder.name}-changed")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder)
        report.to_json(folder / "report.json")
        return folder


def save_run(
    folder: Path, graph: Any = "countries", fault: str = "", *, is_lockstep: bool = False, **size: int
) -> SavedRun:
    """Compare the reference with the evaluator, with a planted fault if one is named."""
    engine = kv.Evaluator(faults=fault or (), mode="eager", device="cpu", slots=32)
    equality = kv.Equality(lockstep=is_lockstep, determinism=False)
    size = size or {"queries": 3, "corruptions": 6}
    return SavedRun(kv.verify(graph, engine, equality=equality, save=folder, **size), folder)


def hostile_graph() -> kv.KnowledgeGraph:
    """The graph of `lossy_graph` with hostile names."""
    middle = [HOSTILE[i - 50] if i >= 50 else f"m{i}" for i in range(60)]
    return lossy_graph(HOSTILE[0], predicates=HOSTILE[2:5], ends=HOSTILE[:2], middle=middle)


def change(struct: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(struct, **fields)


def without_causes(report: kv.Report) -> kv.Report:
    """Return the report in an older form: divergences without classes, no causes, no attribution."""
    lost = ("kind", "evidence", "confidence", "cause")
    plain = msgspec.convert(
        [{k: v for k, v in msgspec.to_builtins(each).items() if k not in lost} for each in report.divergences],
        tuple[kv.Divergence, ...],
    )
    return change(report, divergences=plain, first_cause=plain[0] if plain else None, causes=(), attribution=None)


def enlarged(report: kv.Report, num: int) -> kv.Report:
    """Return the report with `num` divergences, the first ones over and over."""
    return change(report, divergences=(report.divergences * (num // len(report.divergences) + 1))[:num])


def with_many_causes(report: kv.Report, num: int) -> kv.Report:
    """Return the report with `num` divergences, each with a cause of its own."""
    large, cause = enlarged(report, num), report.causes[0]
    one = {"num_candidates": 1, "num_queries": 1, "num_divergences": 1, "condition": "", "when": None}
    causes = tuple(change(cause, situation=f"situation {i}", first=i, **one) for i in range(num))
    divergences = tuple(change(each, cause=i) for i, each in enumerate(large.divergences))
    return change(large, divergences=divergences, first_cause=divergences[0], causes=causes, attribution=None)
