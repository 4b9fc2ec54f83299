"""The dashboard of a campaign, redrawn on a terminal: its progress, the work compared, and the failures."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult  # noqa: TID251  the type in rich's protocol
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from kgverify.cli.output import settings
from kgverify.cli.progress import ECHOED, make_error_console
from kgverify.errors import count_of
from kgverify.report.render.screen import Text
from kgverify.testing.campaigns.campaign import Campaign
from kgverify.testing.campaigns.result import Tally, Watch, name_source

REDRAWN: Final = 4
"""The number of redraws per second."""
MOST_FAILURES: Final = 12
"""The maximum number of signatures listed, the most frequent first."""
LINES_WITHOUT_FAILURES: Final = 12
_PHASES: Final = {
    "start": "starting",
    "replay": "replaying the corpus",
    "try": "trying problems",
    "shrink": "shrinking new divergences",
}


@contextmanager
def show_dashboard(campaign: Campaign) -> Iterator[Watch]:
    """Show the progress and the findings, but only on a terminal. The dashboard disappears at the end."""
    console = make_error_console()
    if settings.is_quiet or not console.is_terminal:
        yield lambda tally: None
        return
    dashboard = Dashboard(campaign)
    with Live(dashboard, console=console, transient=True, refresh_per_second=REDRAWN):
        yield dashboard.watch


class Dashboard:
    """The last tally of a campaign, drawn with the time since then."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._began = time.monotonic()
        self._tally = Tally("start")
        self._updated = self._began

    def watch(self, tally: Tally) -> None:
        """Draw this tally from now on."""
        self._tally, self._updated = tally, time.monotonic()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw as many signatures as fit on the terminal."""
        tally = self._tally
        seconds = tally.seconds + time.monotonic() - self._updated
        num_failures = max(1, options.size.height - LINES_WITHOUT_FAILURES)
        table = draw(self._campaign, tally._replace(seconds=seconds), num_failures)
        yield from console.render(table, options.update_width(max(1, options.max_width - ECHOED)))


def draw(campaign: Campaign, tally: Tally, num_failures: int = MOST_FAILURES) -> Table:
    """Return the dashboard with a line for each item, cut to the width of the terminal."""
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    rows: list[tuple[str | Text, RenderableType]] = [
        ("engine", str(campaign.engine)),
        ("now", Text(_phase(campaign, tally), style="yellow" if tally.is_ending else "bold")),
        ("time", _time(campaign, tally)),
    ]
    if (share := _share(campaign, tally)) is not None:
        rows.insert(2, ("", ProgressBar(total=1.0, completed=share, width=24)))
    if tally.phase == "try":
        rows += _list_counts(campaign, tally) + _list_failures(tally, min(num_failures, MOST_FAILURES))
    for row in rows:
        table.add_row(*row)
    return table


def _list_counts(campaign: Campaign, tally: Tally) -> list[tuple[str | Text, RenderableType]]:
    tried, rate = tally.tried, _rate(tally)
    resumed = f", {tally.resumed:,} of them earlier" if tally.resumed else ""
    return [
        (
            "problems",
            f"{tally.done:,} of {name_source(campaign)}{resumed}; {tally.at_work:,} more in work",
        ),
        (
            "compared",
            f"{count_of(tried.num_candidates, 'candidate')}, {count_of(tried.num_steps, 'step')},"
            f" {count_of(tried.num_resolvents, 'resolvent')}",
        ),
        ("speed", f"{rate:,.0f} problems a second" if rate else "not known yet"),
    ]


def _list_failures(tally: Tally, num_shown: int) -> list[tuple[str | Text, RenderableType]]:
    tried = tally.tried
    found = Counter(tried.count_by(str)).most_common()
    if not found:
        return [("failures", "none" if tally.done else "none yet")]
    num = f"{count_of(len(found), 'kind')}, in {count_of(tried.num_differing, 'problem')}"
    more = len(found) - num_shown
    return [
        ("failures", Text(num, style="bold red")),
        ("stages", _counted(tried.stages)),
        ("classes", _counted(tried.classes)),
        *((Text(f"{count:>8,}", style="red"), signature) for signature, count in found[:num_shown]),
        *([("", Text(f"and {more:,} more", style="dim"))] if more > 0 else []),
    ]


def _phase(campaign: Campaign, tally: Tally) -> str:
    if tally.is_ending:
        return "finishing blocks in progress; Ctrl-C again ends at once"
    what = _PHASES[tally.phase]
    if tally.phase == "start":
        if campaign.scheduler is not None:
            return f"{what} {campaign.scheduler}"
        return what + (f" {count_of(campaign.jobs, 'process')}" if campaign.jobs > 1 else "")
    return what if tally.phase == "try" else f"{what}: {tally.done:,} of {tally.total:,}"


def _share(campaign: Campaign, tally: Tally) -> float | None:
    """Return the share of the budget already spent; None without a budget."""
    shares = [(tally.done / tally.total) if tally.total else 0.0]
    if tally.phase == "try" and campaign.seconds:
        shares.append(tally.seconds / campaign.seconds)
    return None if tally.phase == "start" else min(1.0, max(shares))


def _time(campaign: Campaign, tally: Tally) -> str:
    """Return the time spent, and the time left."""
    spent = _clock(tally.seconds)
    if tally.phase != "try" or tally.is_ending:
        return spent
    left = [(tally.total - tally.done) / rate] if tally.total and (rate := _rate(tally)) else []
    if campaign.seconds:
        left.append(campaign.seconds - tally.seconds)
        spent = f"{spent} of {_clock(campaign.seconds)}"
    if not left:
        return spent
    return f"{spent}, {_clock(min(left))} left" if min(left) > 0 else f"{spent}, finishing blocks in progress"


def _rate(tally: Tally) -> float:
    """Return the number of problems per second in this campaign; 0 if it is unknown."""
    num_new = tally.done - tally.resumed
    return num_new / tally.seconds if num_new > 0 and tally.seconds > 0 else 0.0


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in Counter(counts).most_common())


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=max(0, int(seconds))))
