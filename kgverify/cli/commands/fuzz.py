"""`kgverify fuzz`: try generated problems on two engines until a budget is spent."""

import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter, validators

from kgverify.api.fuzz import FuzzOptions, plan_campaign
from kgverify.cli import options
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.output import is_typed
from kgverify.cli.progress import (
    Phase,
    make_result_console,
    print_lines,
    print_note,
    replay_again,
    show_phase,
    typed_command,
    write_json,
)
from kgverify.errors import UserError, count_of
from kgverify.program.limits import OURS
from kgverify.runs.job import MOST_JOBS
from kgverify.testing.campaigns.campaign import Campaign, run_campaign
from kgverify.testing.campaigns.result import Tally, describe_campaign

_TITLES: Final = {
    "start": "starting",
    "replay": "replaying the corpus",
    "try": "trying problems",
    "shrink": "shrinking new divergences",
}
_TIME: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", re.ASCII)


@dataclass(frozen=True)
class BudgetOptions:
    """The problems to try.

    Attributes:
        seconds: The time for trying problems: 90s, 10m, 1h30m. Slow problems are interrupted.
        examples: The number of problems; 2000 if no --seconds are given.
    """

    seconds: Annotated[str | None, Parameter(metavar="TIME")] = None
    examples: Annotated[int | None, Parameter(validator=validators.Number(gte=1))] = None


def fuzz(
    *,
    budget: Annotated[BudgetOptions, options.OWN] = BudgetOptions(),
    sides: Annotated[options.SmallSideOptions, options.OWN] = options.SmallSideOptions(),
    source: Annotated[
        options.GraphOptions, options.of_record("Graph whose queries are tried first, in their neighbourhoods")
    ] = (options.GraphOptions()),
    # A path, for which shells complete the names of files.
    dialect: Annotated[Path | None, Parameter(metavar="DIALECT")] = None,
    trying: Annotated[FuzzOptions, options.FUZZING] = FuzzOptions(),
    seed: int = 0,
    jobs: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=MOST_JOBS))] = os.cpu_count() or 1,
    corpus: Annotated[Path, Parameter(metavar="DIR")] = Path("fuzz-corpus"),
) -> int:
    """Try generated problems on two engines; keep and shrink what differs.

    Args:
        dialect: The dialect of both engines: a TOML file, or search=beam(4),merge=sum,aggregate=sum; docs/semantics.md.
        seed: The seed of the problems.
        jobs: The number of processes.
        corpus: The folder of reproducers, which are replayed first, and of the progress.
    """
    made = sides.make()
    if trying.scheduler is not None and is_typed("--jobs"):
        raise UserError(
            "the workers of the scheduler try the problems, and --jobs would start processes here as well",
            where="scheduler",
            fix="give one of the two",
        )
    trying = replace(trying, dialect=OURS if dialect is None else options.parse_dialect(str(dialect)))
    campaign = plan_campaign(
        made.engine,
        made.reference,
        corpus,
        trying,
        graph=source.load_moved(),
        seed=seed,
        jobs=jobs,
        examples=budget.examples,
        seconds=None if budget.seconds is None else parse_seconds(budget.seconds),
    )
    campaign = replace(campaign, is_apart=bool(campaign.sides.foreign))
    try:
        with show_phase("starting", 0) as phase:
            result = run_campaign(campaign, watch=partial(_show_tally, phase, campaign))
    except KeyboardInterrupt:
        _print_how_to_resume("finished work is saved, work in progress is lost")
        raise
    replay = partial(replay_again, engine=sides.engines.engine, reference=sides.engines.reference)
    console = make_result_console()
    print_lines(
        console,
        *describe_campaign(result, lambda file: replay(file).text),
    )
    write_json(result, [replay(each.file) for each in result.divergences if each.file])
    if result.is_interrupted:
        _print_how_to_resume("the problems tried are saved")
        raise KeyboardInterrupt
    return EXIT_CODES[result.verdict]


def _show_tally(phase: Phase, campaign: Campaign, tally: Tally) -> None:
    """Show what a campaign does, its share of the budget, and what it found most often."""
    title, tried = _TITLES[tally.phase], tally.tried
    if tried.num_steps:
        title += f": {count_of(tried.num_candidates, 'candidate')}, {count_of(tried.num_steps, 'step')}"
    if found := Counter(tried.count_by(str)).most_common():
        num = count_of(tried.num_differing, "problem")
        title += f"; {num} of {count_of(len(found), 'kind')} differ, {found[0][1]:,} as {found[0][0]}"
    if tally.is_ending:
        title = "finishing blocks in progress; Ctrl-C again ends at once"
    is_timed = tally.phase == "try" and campaign.seconds is not None
    total, done = (campaign.seconds, tally.seconds) if is_timed else (tally.total or None, tally.done)
    phase.rename(title, total=total, completed=done)


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
