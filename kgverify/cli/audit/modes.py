"""`kgverify audit modes`: the first rung of the compiler on which the evaluator's tick deviates from eager."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kgverify.cli import completion, options
from kgverify.cli.audit.deliver import deliver_reports
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.options import RunOptions, with_run_options
from kgverify.cli.progress import check_writable, make_error_console, show_phase
from kgverify.comparison.result import Verdict
from kgverify.errors import UserError

if TYPE_CHECKING:
    from kgverify.audit.ladder.climb import Rung

RungNames = Annotated[
    list[str] | None,
    typer.Option(
        "--rung",
        metavar="NAME",
        help="Only these: backend-eager, aot-eager, aot-eager-decomposed, default, reduce-overhead, max-autotune.",
        autocompletion=completion.one_of(completion.RUNGS),
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
            min=0,
            help="Climb again with this many slots, since some code is wrong only when it is large; 0 skips it."
            " 8192 on CUDA, else 0, if not given.",
        ),
    ] = None,
    each_stage: Annotated[
        bool, typer.Option("--each-stage", help="Climb every stage by itself as well, as compiled region by region.")
    ] = False,
    rung: RungNames = None,
    fault: options.Faults = None,
    repetitions: Annotated[int, typer.Option(min=0, help="Calls repeated on equal arguments.")] = 2,
    seconds: Annotated[float, typer.Option(min=0, help="Time limit of the search for the cause.")] = 300.0,
    reproducer: Annotated[
        Path | None, typer.Option(metavar="FILE.py", help="Write a deviation as a script without kgverify.")
    ] = None,
    json_path: options.JsonPath = None,
) -> None:
    """Run the evaluator's tick in eager and on every rung of torch.compile; explain the first that deviates.

    Outputs, changes of arguments, shared memory and errors are compared, call by call.
    """
    from kgverify.audit.evaluator.audited_tick import build_tick_subject
    from kgverify.audit.ladder.modes_audit import LadderOptions, audit_modes
    from kgverify.prover.execution.device import resolve_device
    from kgverify.prover.faults.catalogue import find_faults
    from kgverify.prover.faults.plant import plant_faults

    check_writable(json_path)
    check_reproducer(reproducer)
    rungs = choose_rungs(rung)
    run = run_options.build()
    plant = plant_faults(run.limits, run.policy, find_faults(fault or ()))
    if large_slots is None:
        large_slots = 8192 if resolve_device(device).type == "cuda" else 0
    reports = []
    with show_phase("the evaluator's tick", 0) as shown, announcing(shown) as announce:
        for size in filter(None, (slots, large_slots)):
            subject = build_tick_subject(
                run, device=device, slots=size, stages=plant.stages, name=f"tick of {size:,} slots"
            )
            given = LadderOptions(rungs, reproducer, seconds, repetitions, announce=announce)
            subjects = (subject, *(subject.parts.values() if each_stage else ()))
            reports += [audit_modes(each, given) for each in subjects]
            if any(report.verdict is not Verdict.AGREE for report in reports):
                break
    deliver_reports(reports, reports, json_path)
    verdicts = [report.verdict for report in reports]
    worst = next((each for each in (Verdict.DIVERGE, Verdict.INCONCLUSIVE) if each in verdicts), Verdict.AGREE)
    raise typer.Exit(EXIT_CODES[worst])


def check_reproducer(path: Path | None) -> None:
    """Raise UserError where no Python file can be written."""
    if path is not None and (path.suffix != ".py" or path.is_dir() or not path.absolute().parent.is_dir()):
        raise UserError(
            "is not a Python file in an existing folder",
            where=f"--reproducer {path}",
            fix="give a path such as wrong.py",
        )


def choose_rungs(names: list[str] | None) -> "tuple[Rung, ...]":
    """Return the named rungs, or all of them. UserError for an unknown one."""
    from kgverify.audit.audited_function import check_names
    from kgverify.audit.audited_step import RUNG_NAMES
    from kgverify.audit.ladder.climb import RUNGS

    check_names("rung", names or (), RUNG_NAMES)
    return tuple(each for each in RUNGS if not names or each.name in names)


@contextmanager
def announcing(shown: Any) -> Iterator[Callable[[str], None]]:
    """Announce work in the progress bar of a terminal, else as lines on standard error."""
    console = make_error_console()

    def announce(what: str) -> None:
        if console.is_terminal:
            shown.rename(what)
        elif "attempt" not in what:
            console.print(what)

    yield announce
