"""`kgverify report`: render a saved run; needs no engine."""

import os
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

from cyclopts import Parameter

from kgverify.cli.output import settings
from kgverify.cli.progress import make_result_console, write_github, write_result
from kgverify.errors import UserError
from kgverify.report.render.github import render_annotations, render_markdown
from kgverify.report.render.html import render_html
from kgverify.report.render.index import RunSummary, render_index, summarize_run
from kgverify.report.render.junit import render_junit
from kgverify.report.render.perfetto import render_perfetto
from kgverify.report.render.terminal import print_report
from kgverify.report.report import encode_report
from kgverify.verification.save import REPORT, read_run, read_saved_report, read_times

PAGE: Final = "report.html"
"""The name of the page in the folder of a run, to which an index page links."""


def report(
    folders: list[Path],
    /,
    *,
    html: str | None = None,
    junit: str | None = None,
    markdown: str | None = None,
    perfetto: str | None = None,
    github: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Render a saved comparison: in the terminal, or as files. Several become one index page with their trends.

    Args:
        folders: A folder written by `kgverify diff --save RUN_DIR`; several make an index page with --html.
        html: One self-contained page; - for standard output. Each format has a default name for its file.
        junit: JUnit XML, one case per query and side; - for standard output.
        markdown: Markdown; - for standard output.
        perfetto: A timeline of all steps for ui.perfetto.dev; - for standard output.
        github: Print annotations; append Markdown to $GITHUB_STEP_SUMMARY.
    """
    json_path = settings.json_path
    folder = folders[0]
    if len(folders) > 1:
        if html is None or junit or markdown or perfetto or github or json_path:
            raise UserError(
                f"{len(folders)} runs make an index page, and no other format",
                where=str(folder),
                fix="give --html FILE alone, or one run",
            )
        write_result(_render_index(folders, None if html == "-" else Path(html).parent).encode(), html)
        if html != "-":
            make_result_console().print(f"wrote {html}", soft_wrap=True)
        return
    run = read_run(folder)
    files: list[tuple[str | None, Callable[[], bytes]]] = [
        (html, lambda: render_html(run.report, run.expected, run.actual, run.stepped).encode()),
        (junit, lambda: render_junit(run.report, run.expected)),
        (markdown, lambda: render_markdown(run.report).encode()),
        (perfetto, lambda: render_perfetto(run.report, run.expected, run.actual)),
        (json_path, lambda: encode_report(run.report)),
    ]
    to_output = [path for path, _ in files if path == "-"]
    if len(to_output) > 1:
        raise UserError("only one format can go to standard output", where=str(folder), fix="name files for the others")
    console = make_result_console(is_beside_file=bool(to_output))
    for path, render in files:
        if path is not None:
            write_result(render(), path)
            if path not in ("-", json_path):
                console.print(f"wrote {path}", soft_wrap=True)
    if github:
        write_github(render_annotations(run.report), partial(render_markdown, run.report), to_error=bool(to_output))
    if not github and not any(path for path, _ in files):
        next_commands = {shlex.join(["kgverify", "show", str(folder)]): "step through it"}
        print_report(run.report, console, expected=run.expected, next_commands=next_commands)


def _render_index(folders: Sequence[Path], beside: Path | None) -> str:
    """Render the index page of several runs. beside: its folder, from which it links to the page in the folder of a run."""
    return render_index([_summarize(folder, beside) for folder in folders])


def _summarize(folder: Path, beside: Path | None) -> RunSummary:
    report = read_saved_report(folder)
    written = datetime.fromtimestamp((folder / REPORT).stat().st_mtime, UTC)
    page = folder / PAGE
    # With `./` no name can be taken for a scheme such as `javascript:`.
    link = f"./{quote(os.path.relpath(page, beside))}" if beside is not None and page.is_file() else ""
    name = str(folder) if beside is None else os.path.relpath(folder, beside)
    times = read_times(folder)
    seconds = times.total if times else None
    return summarize_run(name, report, written=f"{written:%Y-%m-%d %H:%M} UTC", page=link, seconds=seconds)
