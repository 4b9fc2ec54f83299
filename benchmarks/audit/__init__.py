"""The audit of a step, scored on steps whose answer is known.

`FILE.py:STEP` and `FILE.py:make_STEP` name a step of this package and what makes its arguments.
"""

import importlib
import inspect
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from benchmarks import ROOT, Figure, Task, make_parser, print_figures, print_header, print_row, run_tasks
from stepaudit import RUNG_NAMES, UserError, audit_step

# Steps and their arguments

Make: TypeAlias = Callable[[torch.Generator], tuple[Any, ...]]
"""Draws the arguments of a call."""


def add_make(step: Callable[..., Any], module: str, make: Make) -> Callable[[int], tuple[Any, ...]]:
    """Define `make_STEP(call)` in a module, which draws the arguments of a call by its number."""

    def make_call(call: int) -> tuple[Any, ...]:
        return make(torch.Generator().manual_seed(call))

    setattr(sys.modules[module], f"make_{name_of(step)}", make_call)
    return make_call


def name_of(step: Any) -> str:
    """Return the name of a function, or of the class of a callable object."""
    name: str = getattr(step, "__name__", type(step).__name__)
    return name


def floats(*shapes: tuple[int, ...]) -> Make:
    """Draw small whole numbers as floats, so that no sum rounds."""
    return lambda draw: tuple(torch.randint(-9, 10, shape, generator=draw).float() for shape in shapes)


def normals(*shapes: tuple[int, ...]) -> Make:
    """Draw normal numbers."""
    return lambda draw: tuple(torch.randn(shape, generator=draw) for shape in shapes)


def leaves(*shapes: tuple[int, ...]) -> Make:
    """Draw normal numbers that require gradients."""
    return lambda draw: tuple(each.requires_grad_() for each in normals(*shapes)(draw))


def slots(draw: torch.Generator) -> tuple[Tensor, ...]:
    """Draw goals int64 [8, 4], depths int64 [8], and a table int64 [16, 4]."""
    goal = torch.randint(0, 6, (8, 4), generator=draw)
    return goal, torch.randint(0, 5, (8,), generator=draw), torch.randint(0, 6, (16, 4), generator=draw)


# Scores


RUNGS: Final = tuple(
    name for name in RUNG_NAMES if name in ("backend-eager", "aot-eager", "aot-eager-decomposed", "default")
)


def list_marked_lines(function: Callable[..., Any]) -> set[str]:
    """Return the lines of the module of a step that end in `# here`, as `file:line`."""
    module = sys.modules[function.__module__]
    path = str(inspect.getsourcefile(module))
    lines = Path(path).read_text("utf-8").splitlines()
    return {f"{path}:{number}" for number, line in enumerate(lines, 1) if line.rstrip().endswith("# here")}


def score_miscompile(name: str) -> dict[str, Any]:
    """Audit a miscompile, and return whether it is found, with its rung, cause, line and script."""
    from benchmarks.audit.miscompiles import MISCOMPILES

    case = MISCOMPILES[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "wrong.py")
        report = audit_step(case.step, case.make, calls=2, rungs=RUNGS, seconds=60, reproducer=path)
    rows = report.sections["attribution"].rows if "attribution" in report.sections else ()
    found: dict[str, Any] = dict(rows[0]) if rows else {}
    values = [each for each in report.findings if each.audit == "values"]
    # Memory that is shared in eager as well is no miscompile.
    is_compiled = ("guard-holes: ", "only when compiled")
    other = sorted(
        {each.audit for each in report.findings if any(part in f"{each.audit}: {each.finding}" for part in is_compiled)}
    )
    is_here = any(each.where in list_marked_lines(case.step) for each in values)
    return {
        "detected": bool(values) or bool(other),
        "culprit": found.get("left_out", "").replace(f"{ROOT}/", "") or ", ".join(other),
        "right rung": found.get("rung", "") == case.rung,
        "line": is_here,
        "script": bool(found.get("reproducer")),
    }


def score_correct(name: str) -> dict[str, Any]:
    """Audit a correct step: what is found there is a false alarm."""
    from benchmarks.audit.correct_steps import CORRECT_STEPS

    report = audit_step(*CORRECT_STEPS[name], calls=2, rungs=RUNGS)
    return {
        "right": not report.findings,
        "findings": ", ".join(f"{each.audit}: {each.finding}" for each in report.findings),
    }


def score_fault(name: str) -> dict[str, Any]:
    """Audit a step that loses a property: whether it is found, and at its line."""
    from benchmarks.audit.property_faults import PROPERTY_FAULTS

    fault = PROPERTY_FAULTS[name]
    report = audit_step(fault.step, fault.make, calls=4, rungs=(), **fault.options)
    here = list_marked_lines(fault.step)
    hits = [each for each in report.findings if each.audit == fault.audit]
    return {"found": bool(hits), "line": any(each.where in here for each in hits)}


SCORES: Final = {"miscompiles": score_miscompile, "correct": score_correct, "faults": score_fault}


def list_names(kind: str) -> Iterable[str]:
    """Return the names of the steps of a kind."""
    module = {"miscompiles": "miscompiles", "correct": "correct_steps", "faults": "property_faults"}[kind]
    steps: Iterable[str] = getattr(importlib.import_module(f"benchmarks.audit.{module}"), module.upper())
    return steps


def score(kind: str, name: str) -> dict[str, Any]:
    """Score one step; an audit that raises has a row as well."""
    before = _read_cpu_seconds()
    try:
        found = SCORES[kind](name)
    except UserError as error:
        found = {"error": str(error)}
    seconds = round(_read_cpu_seconds() - before, 1)
    return {"name": name, "cpu_seconds": seconds, **found}


def _read_cpu_seconds() -> float:
    used = (resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


COLUMNS: Final = {
    "miscompiles": ("detected", "right rung", "culprit", "line", "script"),
    "correct": ("right",),
    "faults": ("found", "line"),
}
"""The columns that are counted, for each kind of steps."""


def score_apart(kind: str, name: str) -> dict[str, Any]:
    """Score one step in a process of its own; a process that ends without a row has one that says so."""
    # A forked process may wait for threads of its parent that it does not have.
    command = [sys.executable, "-m", "benchmarks", "audit", kind, name, "--row"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        row: dict[str, Any] = json.loads(lines[-1])
        return row
    said = f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"
    return {"name": name, "cpu_seconds": 0.0, "error": said}


def run_audit(words: list[str]) -> None:
    """Score the audit of a step on steps whose answer is known: miscompiles of torch, correct steps, and planted faults.

        python -m benchmarks audit --log scores.jsonl
        python -m benchmarks audit faults --jobs 16
        python -m benchmarks audit miscompiles keep_previous shift_rows

    `stepaudit.audit_step` audits each step in a process of its own, `--jobs` of them at the same time. CPU seconds are
    those of the audit and of all its processes, without the import of torch.
    """
    parser = make_parser(run_audit)
    parser.add_argument("kind", nargs="?", default="all", choices=(*SCORES, "all"))
    parser.add_argument("name", nargs="*", help="all steps of the kind if not given")
    parser.add_argument("--jobs", type=int, default=1, help="steps that are audited at the same time")
    parser.add_argument("--log", type=Path, help="a file of finished steps, from which a later run resumes")
    parser.add_argument("--row", action="store_true", help="score one step in this process, and print its row as JSON")
    options = parser.parse_args(words)
    if options.row:
        print(json.dumps(score(options.kind, *options.name)))
        return
    kinds = tuple(SCORES) if options.kind == "all" else (options.kind,)
    steps: list[Task] = [
        (f"{kind} {name}", score_apart, (kind, name)) for kind in kinds for name in options.name or list_names(kind)
    ]
    found = dict(
        zip([given for *_, given in steps], run_tasks(steps, dict[str, Any], options.jobs, options.log), strict=True)
    )
    figures = []
    for kind in kinds:
        rows = [row for (of, _), row in found.items() if of == kind]
        print_header(kind, *COLUMNS[kind], "CPU time, s", "error")
        for row in rows:
            cells = [row.get(key, "") for key in COLUMNS[kind]]
            print_row(row["name"], *cells, row["cpu_seconds"], row.get("error") or row.get("findings", ""))
        figures += [
            Figure(f"{kind}: {key}", sum(bool(row.get(key)) for row in rows), len(rows), 1.0) for key in COLUMNS[kind]
        ]
    print_figures(figures)
