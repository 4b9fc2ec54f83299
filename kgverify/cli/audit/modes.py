"""`kgverify audit modes` and `kgverify audit traps`: on which rung of the compiler does a function stop doing what it does?"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from kgverify.cli import options
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.options import naming_options
from kgverify.cli.progress import (
    check_writable,
    make_error_console,
    make_result_console,
    print_lines,
    show_phase,
    write_result,
)
from kgverify.cli.run_options import RunOptions, with_run_options
from kgverify.comparison.result import Verdict
from kgverify.errors import UserError, suggest

if TYPE_CHECKING:
    from kgverify.audit.ladder.modes import Attribution, Deviating, ModesReport

RungNames = Annotated[
    list[str] | None,
    typer.Option(
        "--rung",
        metavar="NAME",
        help="Only these: backend-eager, aot-eager, aot-eager-decomposed, default, reduce-overhead, max-autotune.",
    ),
]


@with_run_options(queries=5, corruptions="20")
def modes(
    run_options: RunOptions,
    device: options.Device = "auto",
    slots: Annotated[int, typer.Option(min=1, help="Derivations in flight.")] = 64,
    large_slots: Annotated[
        int | None,
        typer.Option(
            min=0, help="Climb again with so many: some code is wrong when it is large only. 8192 on CUDA, else 0: not."
        ),
    ] = None,
    each_stage: Annotated[
        bool, typer.Option("--each-stage", help="Climb every stage by itself as well, as compiled region by region.")
    ] = False,
    rung: RungNames = None,
    fault: options.Faults = None,
    repetitions: Annotated[int, typer.Option(min=0, help="Calls made again on equal arguments.")] = 2,
    seconds: Annotated[float, typer.Option(min=0, help="For the search for what repairs a deviation.")] = 300.0,
    reproducer: Annotated[
        Path | None, typer.Option(metavar="FILE.py", help="Write a deviation as a script without kgverify.")
    ] = None,
    json_path: options.JsonPath = None,
) -> None:
    """Run the evaluator's tick in eager and on every rung of torch.compile; explain the first that deviates.

    Compared are outputs, what is left in the arguments, what shares memory with what, and errors, call by call.
    """
    from kgverify.audit.evaluator.subject import evaluator_subject
    from kgverify.audit.ladder.modes import audit_modes
    from kgverify.engines.compiled.execution.device import resolve_device
    from kgverify.faults.catalogue import find_faults
    from kgverify.faults.plant import plant_faults

    check_writable(json_path)
    check_reproducer(reproducer)
    rungs = choose_rungs(rung)
    with naming_options():
        run = run_options.build()
    plant = plant_faults(run, find_faults(fault or ()))
    if large_slots is None:
        large_slots = 8192 if resolve_device(device).type == "cuda" else 0
    reports = []
    with show_phase("the evaluator's tick", 0) as shown, telling(shown) as phase:
        for size in filter(None, (slots, large_slots)):
            subject = evaluator_subject(
                plant.run, device=device, slots=size, stages=plant.stages, name=f"tick of {size:,} slots"
            )
            reports += [
                audit_modes(
                    each, rungs=rungs, reproducer=reproducer, seconds=seconds, repetitions=repetitions, phase=phase
                )
                for each in (subject, *(subject.parts.values() if each_stage else ()))
            ]
            if any(report.verdict is not Verdict.AGREE for report in reports):
                break
    _deliver(reports, json_path)


def traps(
    name: Annotated[list[str] | None, typer.Argument(help="Only these.", show_default=False)] = None,
    device: options.Device = "auto",
    size: Annotated[int, typer.Option(min=2, help="Rows and columns of the arguments: try 16 and 2048.")] = 16,
    rung: RungNames = None,
    seconds: Annotated[float, typer.Option(min=0, help="For the search for what repairs each.")] = 60.0,
    save: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a reproducer of each that deviates.")
    ] = None,
    json_path: options.JsonPath = None,
) -> None:
    """Which idioms of batched provers does the installed torch compile wrongly, on which rung, and what repairs them?

    Exit code 0, whatever is found: these are facts about torch.
    """
    from kgverify.audit.ladder.modes import audit_modes
    from kgverify.audit.ladder.traps import TRAPS
    from kgverify.engines.compiled.execution.device import resolve_device

    check_writable(json_path)
    rungs = choose_rungs(rung)
    names = [trap.name for trap in TRAPS]
    for each in name or ():
        if each not in names:
            raise UserError(
                f"unknown trap {each!r}", where="NAME", fix=suggest(each, names) or f"choose {', '.join(names)}"
            )
    chosen = [trap for trap in TRAPS if not name or trap.name in name]
    on = resolve_device(device).type
    found = []
    with show_phase("traps", len(chosen)) as shown, telling(shown) as phase:
        for trap in chosen:
            path = None if save is None else save / f"{trap.name}.py"
            report = audit_modes(trap.subject(on, size), rungs=rungs, reproducer=path, seconds=seconds, phase=phase)
            found.append((trap.issue, report))
            shown(1)
    console = make_result_console(json_path)
    table = Table(
        title=f"torch {found[0][1].environment['torch']} on {on}, {size} x {size}", box=None, header_style="bold"
    )
    for column in ("idiom", "pytorch issue", "first wrong on", "right again without"):
        table.add_column(column, overflow="fold")
    for issue, report in found:
        at = report.attribution
        repaired = "" if at is None else " and ".join(at.left_out) or "nothing that was tried"
        number = f"#{issue}" if issue else ""
        table.add_row(report.subject, number, at.rung if at else report.verdict.value, repaired)
    console.print(table)
    if json_path is not None:
        write_result(msgspec.json.encode([report for _, report in found]) + b"\n", json_path)


def check_reproducer(path: Path | None) -> None:
    """UserError where no Python file can be written there."""
    if path is not None and (path.suffix != ".py" or path.is_dir() or not path.absolute().parent.is_dir()):
        raise UserError(
            "is no Python file in a folder that exists",
            where=f"--reproducer {path}",
            fix="give a path such as wrong.py",
        )


def choose_rungs(names: list[str] | None) -> Any:
    """All where none is named. UserError for an unknown one."""
    from kgverify.audit.ladder.rungs import EAGER, NAMES, RUNGS

    for each in names or ():
        if each not in NAMES or each == EAGER.name:
            others = [name for name in NAMES if name != EAGER.name]
            fix = suggest(each, others) or f"choose {', '.join(others)}"
            raise UserError(f"unknown rung {each!r}", where="--rung", fix=fix)
    return tuple(each for each in RUNGS if not names or each.name in names)


@contextmanager
def telling(shown: Any) -> Iterator[Any]:
    """What tells the phase: in a bar on a terminal, else a line each on standard error."""
    console = make_error_console()

    def tell(what: str) -> None:
        if console.is_terminal:
            shown.rename(what)
        elif "attempt" not in what:
            console.print(what, markup=False, highlight=False)

    yield tell


def _deliver(reports: "list[ModesReport]", json_path: str | None) -> None:
    console = make_result_console(json_path)
    for report in reports:
        print_modes(report, console)
    if json_path is not None:
        write_result(msgspec.json.encode(reports) + b"\n", json_path)
    verdicts = [report.verdict for report in reports]
    worst = next((each for each in (Verdict.DIVERGE, Verdict.INCONCLUSIVE) if each in verdicts), Verdict.AGREE)
    raise typer.Exit(EXIT_CODES[worst])


def print_modes(report: "ModesReport", console: Console) -> None:
    """A table of the rungs, then where the first deviation comes from."""
    facts = ", ".join(f"{key} {value}" for key, value in report.environment.items())
    print_lines(console, [f"{report.verdict.value}  {report.subject} ({facts})", ""])
    if report.unsteady:
        lines = ["eager differs from itself, so that nothing can be said of the rungs:", *_list(report.unsteady), ""]
        print_lines(console, [*lines, "fix: seed what is drawn inside of the function"])
        return
    table = Table(box=None, header_style="bold")
    for column, justify in (
        ("rung", "left"),
        ("adds", "left"),
        ("calls", "right"),
        ("differences", "right"),
        ("s", "right"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for rung in report.rungs:
        row = rung.name, rung.adds, f"{rung.num_calls:,}", f"{rung.num_deviations:,}", f"{rung.seconds:.1f}"
        table.add_row(*row, style="red" if rung.num_deviations else None)
    console.print(table)
    if report.attribution is None:
        return
    first = next(rung for rung in report.rungs if rung.num_deviations)
    print_lines(console, ["", f"on rung {first.name}:", *_list(first.deviations[:5])])
    print_lines(console, _explain(report.attribution, first.adds))


def _explain(found: "Attribution", adds: str) -> Iterator[str]:
    yield ""
    yield f"smallest part   {found.part or 'the whole: no stage shows it by itself'}"
    if found.left_out:
        yield f"right without   {' and '.join(found.left_out)}"
    else:
        tried = f"{found.num_tried} attempts" + (
            "" if found.is_complete else ", then there was no time left: --seconds"
        )
        yield f"right without   nothing that was tried ({tried}); it is in what the rung adds: {adds}"
    if found.reproducer:
        state = "" if found.reproducer_shows else f"  (does not show it: {found.reproducer_problem})"
        yield f"reproducer      python {found.reproducer}{state}"
    elif found.reproducer_problem:
        yield f"reproducer      could not be written: {found.reproducer_problem}"


def _list(deviations: "tuple[Deviating, ...]") -> list[str]:
    return [f"  {each.call}: {each.kind} {each.where}: {each.detail}" for each in deviations]
