"""`kgverify fuzz`: try generated problems on two engines until a budget is spent."""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Final

import typer

from kgverify.api.inputs import write_down_sides
from kgverify.cli import completion, options
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.dashboard import show_dashboard
from kgverify.cli.help import EVALUATOR
from kgverify.cli.progress import (
    check_writable,
    is_typed,
    make_error_console,
    make_result_console,
    print_lines,
    print_note,
    replay_command,
    show_phase,
    typed_command,
    write_json,
)
from kgverify.comparison.exercise.minimum import parse_minimum
from kgverify.comparison.result import Verdict
from kgverify.errors import UserError
from kgverify.program.dialect import OURS, read_dialect
from kgverify.testing.campaigns.campaign import Campaign, run_campaign
from kgverify.testing.campaigns.known_divergences import read_known
from kgverify.testing.campaigns.result import describe_campaign
from kgverify.testing.checking.engine_makers import COMPILED, REFERENCE, Sides
from kgverify.testing.exhaustive.scope import SCOPES, Scope, find_scope

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
    reference: options.Reference = REFERENCE,
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
    exhaustive: Annotated[
        str | None,
        typer.Option(
            metavar="SCOPE",
            help="Check every problem of a scope instead, such as tiny or one-rule.",
            show_default=False,
            autocompletion=completion.one_of(SCOPES),
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --exhaustive: resume from, and save progress to, a file.", show_default=False
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
    sides = write_down_sides(engine, reference, mode=mode, device=device, faults=tuple(fault or ()))
    chosen = OURS if dialect is None else read_dialect(dialect)
    if scheduler is not None and is_typed("--jobs"):
        raise UserError(
            "the workers of the scheduler try the problems, and --jobs would start processes here as well",
            where="--scheduler",
            fix="give one of the two",
        )
    if exhaustive is not None:
        if scheduler is not None:
            raise UserError("cannot be used with a scope", where="--scheduler", fix="give --jobs instead")
        if duration is not None or examples is not None:
            raise UserError("a scope has no budget", where="--exhaustive", fix="leave out --time and --examples")
        scope = find_scope(exhaustive, chosen)
        raise typer.Exit(_certify_scope(scope, sides, state, jobs, json_path, accept_changed or ()))
    if state is not None:
        raise UserError("cannot be used with a campaign", where="--state", fix="give --exhaustive, or leave it out")
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
        minimum=parse_minimum(minimum),
        dialect=chosen,
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


def _certify_scope(
    scope: Scope,
    sides: Sides,
    state: Path | None,
    jobs: int,
    json_path: str | None,
    accept_changed: Collection[str],
) -> int:
    """Compare every problem of a scope, print the certificate, and return the exit code."""
    from kgverify.testing.exhaustive.certificate import certify

    try:
        with show_phase("problems", scope.count.problems) as phase:
            certificate = certify(
                scope,
                sides.engine,
                reference=sides.reference,
                state=state,
                accept_changed=accept_changed,
                progress=phase,
                jobs=jobs,
                on_interrupt=lambda: phase.rename("ending"),
            )
    except KeyboardInterrupt:
        if state:
            _print_how_to_resume("interrupted; finished work is saved")
        else:
            make_error_console().print("interrupted; with --state FILE, a run can be resumed")
        return INTERRUPTED
    print_lines(make_result_console(json_path), str(certificate).splitlines())
    write_json(certificate, json_path)
    if certificate.is_proof:
        return 0
    return 1 if certificate.divergent or certificate.proved else EXIT_CODES[Verdict.INCONCLUSIVE]


def parse_seconds(text: str) -> float:
    """Return the seconds of `90s`, `10m`, `1h30m` or a bare number. UserError for anything else, and for 0."""
    match = _TIME.fullmatch(text.strip())
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if not total:
        raise UserError(f"expected a time, found {text!r}", where="--time", fix="give for example 90s, 10m or 1h30m")
    return float(total)
