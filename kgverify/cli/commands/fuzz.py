"""`kgverify fuzz`: try generated problems on two engines until a budget is spent."""

import os
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from kgverify.api.inputs import write_down
from kgverify.cli import completion, options
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.dashboard import show_dashboard
from kgverify.cli.help import EVALUATOR
from kgverify.cli.options import EngineOptions
from kgverify.cli.progress import (
    check_writable,
    is_typed,
    make_result_console,
    print_lines,
    print_note,
    replay_command,
    typed_command,
    write_json,
)
from kgverify.comparison.exercise.minimum import MINIMUM, parse_minimum
from kgverify.engines.table import COMPILED, REFERENCE
from kgverify.errors import UserError
from kgverify.program.dialect import OURS, read_dialect
from kgverify.runs.engine_makers import Sides
from kgverify.testing.campaigns.campaign import Campaign, run_campaign
from kgverify.testing.campaigns.known_divergences import read_known
from kgverify.testing.campaigns.result import describe_campaign
from kgverify.testing.problems.scope import SCOPE_MINIMUM, SCOPES

INTERRUPTED: Final = 130
_TIME: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", re.ASCII)


def fuzz(
    duration: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="TIME", help="The time for trying problems: 90s, 10m, 1h30m.", show_default=False
        ),
    ] = None,
    examples: Annotated[
        int | None, typer.Option(min=1, help="The number of problems; 2000 if no --time is given.", show_default=False)
    ] = None,
    engine: options.Engine = COMPILED,
    reference: options.ReferenceOption = REFERENCE,
    fault: options.Faults = None,
    mode: Annotated[
        str,
        typer.Option(
            help="Mode of the compiled evaluator: eager, native, fused, default, reduce-overhead,"
            " max-autotune or plain.",
            autocompletion=completion.one_of(completion.MODES[1:]),
            rich_help_panel=EVALUATOR,
        ),
    ] = "eager",
    device: Annotated[
        str,
        typer.Option(
            help="Device of the compiled evaluator: cpu or cuda.",
            autocompletion=completion.one_of(completion.DEVICES[1:]),
            rich_help_panel=EVALUATOR,
        ),
    ] = "cpu",
    dialect: options.DialectFile = None,
    lockstep: Annotated[bool, typer.Option("--lockstep", help="Also take every step from the expected goal.")] = False,
    seed: Annotated[int, typer.Option(help="The seed of the problems.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, max=options.MOST_JOBS, help="The number of processes.")] = os.cpu_count()
    or 1,
    scheduler: options.Scheduler = None,
    corpus: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder of reproducers, which are replayed first.")
    ] = Path("fuzz-corpus"),
    known: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file of known divergences.", show_default=False)
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            metavar="SCOPE",
            help="Try every problem of a scope instead: tiny, all 33,632 of them.",
            show_default=False,
            autocompletion=completion.one_of(SCOPES),
        ),
    ] = None,
    minimum: options.MinimumSpec = None,
    accept_changed: options.AcceptChanged = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ignore what earlier campaigns tried.")] = False,
    quiet: options.Quiet = False,
    json_path: options.JsonPath = None,
) -> None:
    """Try generated problems on two engines; keep and shrink what differs."""
    check_writable(json_path)
    given = EngineOptions(device=device, mode=mode, fault=fault)
    if COMPILED not in (engine, reference) and (mode, device) == ("eager", "cpu"):
        given = EngineOptions(fault=fault)
    engines = given.engines(engine, reference)
    sides = Sides(write_down(engines.engine), write_down(engines.reference, "reference"))
    chosen = OURS if dialect is None else read_dialect(dialect)
    if scheduler is not None and is_typed("--jobs"):
        raise UserError(
            "the workers of the scheduler try the problems, and --jobs would start processes here as well",
            where="--scheduler",
            fix="give one of the two",
        )
    campaign = Campaign(
        corpus=corpus,
        engine=sides.engine,
        reference=sides.reference,
        lockstep=lockstep,
        seed=seed,
        examples=examples,
        seconds=None if duration is None else parse_seconds(duration),
        jobs=jobs,
        scheduler=scheduler,
        is_apart=not all(side.is_own for side in sides),
        known=() if known is None else read_known(known),
        is_fresh=fresh,
        accept_changed=tuple(accept_changed or ()),
        minimum=parse_minimum(minimum, default=MINIMUM if scope is None else SCOPE_MINIMUM),
        dialect=chosen,
        scope=scope,
    )
    try:
        with show_dashboard(campaign) as watch:
            result = run_campaign(campaign, watch=watch)
    except KeyboardInterrupt:
        _print_how_to_resume("interrupted; finished work is saved, work in progress is lost")
        raise typer.Exit(INTERRUPTED) from None
    console = make_result_console(json_path)
    print_lines(console, describe_campaign(result, lambda file: replay_command(file, engine, reference)))
    write_json(result, json_path)
    if result.is_interrupted:
        _print_how_to_resume("interrupted; the problems tried are saved")
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(EXIT_CODES[result.verdict])


def _print_how_to_resume(what: str) -> None:
    again = typed_command().replace(" --fresh", "")
    print_note(f"{what}; to resume, run:", again)


def parse_seconds(text: str) -> float:
    """Return the seconds of `90s`, `10m`, `1h30m` or a bare number. UserError for anything else, and for 0."""
    match = _TIME.fullmatch(text.strip())
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if not total:
        raise UserError(f"expected a time, found {text!r}", where="--time", fix="give for example 90s, 10m or 1h30m")
    return float(total)
