"""`kgverify fuzz`: try generated problems on two engines until a budget is spent."""

import os
import re
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter, validators

from kgverify.api.fuzz import FuzzOptions
from kgverify.api.inputs import write_down
from kgverify.cli import options
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.dashboard import show_dashboard
from kgverify.cli.output import is_typed
from kgverify.cli.progress import (
    make_result_console,
    print_lines,
    print_note,
    replay_command,
    typed_command,
    write_json,
)
from kgverify.comparison.exercise.exercise import MINIMUM, parse_minimum
from kgverify.errors import UserError
from kgverify.program.dialect import OURS, read_dialect
from kgverify.runs.engine_makers import Sides
from kgverify.runs.job import MOST_JOBS
from kgverify.testing.campaigns.campaign import Campaign, run_campaign
from kgverify.testing.campaigns.known_divergences import read_known
from kgverify.testing.campaigns.result import describe_campaign
from kgverify.testing.problems.scope import SCOPE_MINIMUM, SCOPES

INTERRUPTED: Final = 130
_TIME: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", re.ASCII)


def fuzz(
    *,
    seconds: Annotated[str | None, Parameter(alias="--time", metavar="TIME")] = None,
    examples: Annotated[int | None, Parameter(validator=validators.Number(gte=1))] = None,
    engines: Annotated[options.EngineOptions, options.OWN] = options.EngineOptions(),
    evaluator: Annotated[options.EvaluatorOptions, options.SMALL_EVALUATOR] = options.EvaluatorOptions(),
    dialect: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    trying: Annotated[FuzzOptions, options.FUZZING] = FuzzOptions(),
    seed: int = 0,
    jobs: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=MOST_JOBS))] = os.cpu_count() or 1,
    corpus: Annotated[Path, Parameter(metavar="DIR")] = Path("fuzz-corpus"),
    scope: Annotated[str | None, Parameter(choices=tuple(SCOPES))] = None,
) -> int:
    """Try generated problems on two engines; keep and shrink what differs.

    Args:
        seconds: The time for trying problems: 90s, 10m, 1h30m.
        examples: The number of problems; 2000 if no --seconds are given.
        dialect: The dialect of both engines, as TOML: docs/semantics.md.
        seed: The seed of the problems.
        jobs: The number of processes.
        corpus: The folder of reproducers, which are replayed first, and of the progress.
        scope: Try every problem of a scope instead: tiny, all 33,632 of them.
    """
    if options.prints_catalogue(evaluator):
        return 0
    made = options.make_engines(engines, evaluator)
    sides = Sides(write_down(made.engine), write_down(made.reference, "reference"))
    chosen = OURS if dialect is None else read_dialect(dialect)
    if trying.scheduler is not None and is_typed("--jobs"):
        raise UserError(
            "the workers of the scheduler try the problems, and --jobs would start processes here as well",
            where="scheduler",
            fix="give one of the two",
        )
    campaign = Campaign(
        corpus=corpus,
        engine=sides.engine,
        reference=sides.reference,
        lockstep=trying.lockstep,
        seed=seed,
        examples=examples,
        seconds=None if seconds is None else parse_seconds(seconds),
        jobs=jobs,
        scheduler=trying.scheduler,
        is_apart=not all(side.is_own for side in sides),
        known=() if trying.known is None else read_known(Path(trying.known)),
        is_fresh=trying.fresh,
        accept_changed=tuple(trying.accept_changed),
        minimum=parse_minimum(trying.minimum, default=MINIMUM if scope is None else SCOPE_MINIMUM),
        dialect=chosen,
        scope=scope,
    )
    try:
        with show_dashboard(campaign) as watch:
            result = run_campaign(campaign, watch=watch)
    except KeyboardInterrupt:
        _print_how_to_resume("interrupted; finished work is saved, work in progress is lost")
        return INTERRUPTED
    console = make_result_console()
    print_lines(
        console, describe_campaign(result, lambda file: replay_command(file, engines.engine, engines.reference))
    )
    write_json(result)
    if result.is_interrupted:
        _print_how_to_resume("interrupted; the problems tried are saved")
        return INTERRUPTED
    return EXIT_CODES[result.verdict]


def _print_how_to_resume(what: str) -> None:
    again = typed_command().replace(" --fresh", "")
    print_note(f"{what}; to resume, run:", again)


def parse_seconds(text: str) -> float:
    """Return the seconds of `90s`, `10m`, `1h30m` or a bare number. UserError for anything else, and for 0."""
    match = _TIME.fullmatch(text.strip())
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if not total:
        raise UserError(f"expected a time, found {text!r}", where="seconds", fix="give for example 90s, 10m or 1h30m")
    return float(total)
