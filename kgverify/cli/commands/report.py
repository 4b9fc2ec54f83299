"""`kgverify report`: render a saved run; needs no engine."""

import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from cyclopts import Parameter

from kgverify.cli.output import settings
from kgverify.cli.progress import make_console_beside, make_result_console, write_github, write_result
from kgverify.errors import UserError
from kgverify.report.next_steps import name_commands, show_run
from kgverify.report.render.formats import FORMATS
from kgverify.report.render.github import render_annotations, render_markdown
from kgverify.report.render.index import render_index, summarize_run
from kgverify.report.render.pictures import write_pictures
from kgverify.report.render.template import Values
from kgverify.report.render.terminal import print_report
from kgverify.report.report import encode_report
from kgverify.verification.save import REPORT, read_run, read_saved_report, read_times
from kgverify.verification.source_lines import find_place


def report(
    folders: list[Path],
    /,
    *,
    html: str | None = None,
    junit: str | None = None,
    markdown: str | None = None,
    svg: Path | None = None,
    github: Annotated[bool, Parameter(negative="")] = False,
    engine: str | None = None,
) -> None:
    """Render a saved comparison: in the terminal, or as files. Several become one index page with their trends.

    Args:
        folders: A folder written by `kgverify diff --save RUN_DIR`; several make an index page with --html.
        html: One self-contained page; - for standard output. Each format has a default name for its file.
        junit: JUnit XML, one case per query and side; - for standard output.
        markdown: Markdown; - for standard output.
        svg: A folder for the pictures, as SVG images.
        github: Print annotations; append Markdown to $GITHUB_STEP_SUMMARY.
        engine: The engine whose file gets the annotations, if the run names none: FILE.py:NAME or MODULE:NAME. It is not run.
    """
    folder = folders[0]
    given = {"html": html, "junit": junit, "markdown": markdown, "json": settings.json_path}
    paths = {name: path for name, path in given.items() if path is not None}
    if len(folders) > 1:
        if html is None or len(paths) > 1 or svg is not None or github:
            raise UserError(
                f"{len(folders)} runs make an index page, and no other format",
                where=str(folder),
                fix="give --html FILE alone, or one run",
            )
        beside = None if html == "-" else Path(html).parent
        write_result(render_index([_summarize(each, beside) for each in folders]).encode(), html)
        if html != "-":
            make_result_console().print(f"wrote {html}", soft_wrap=True)
        return
    run = read_run(folder)
    console = make_console_beside(paths.values(), str(folder))
    for name, path in paths.items():
        write_result(encode_report(run.report) if name == "json" else FORMATS[name].render(run.report, run), path)
        if path != "-" and name != "json":
            console.print(f"wrote {path}", soft_wrap=True)
    pictures = write_pictures(run.report, run, svg) if svg is not None else []
    for picture in pictures:
        console.print(f"wrote {picture}", soft_wrap=True)
    if svg is not None and not pictures:
        console.print("no pictures: no step and no rank differs")
    if github:
        annotations = render_annotations(run.report, lambda each: find_place(run.report, each, engine or ""))
        write_github(annotations, partial(render_markdown, run.report), to_error="-" in paths.values())
    elif not paths and svg is None:
        print_report(run.report, console, expected=run.expected, next_commands=name_commands([show_run(folder)]))


def _summarize(folder: Path, beside: Path | None) -> Values:
    report = read_saved_report(folder)
    written = datetime.fromtimestamp((folder / REPORT).stat().st_mtime, UTC)
    page = folder / FORMATS["html"].file
    # With `./` no name can be taken for a scheme such as `javascript:`.
    link = f"./{quote(os.path.relpath(page, beside))}" if beside is not None and page.is_file() else ""
    name = str(folder) if beside is None else os.path.relpath(folder, beside)
    times = read_times(folder)
    seconds = times.total if times else None
    return summarize_run(name, report, written=f"{written:%Y-%m-%d %H:%M} UTC", page=link, seconds=seconds)
