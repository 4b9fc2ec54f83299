"""`kgverify report`: render a saved run; needs no engine."""

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kgverify.cli.output import settings
from kgverify.cli.progress import make_console_beside, write_github, write_result
from kgverify.report.next_steps import name_commands, show_run
from kgverify.report.render.formats import FORMATS
from kgverify.report.render.github import render_annotations, render_markdown
from kgverify.report.render.pictures import write_pictures
from kgverify.report.render.terminal import print_report
from kgverify.report.report import encode_report
from kgverify.verification.save import read_run
from kgverify.verification.source_lines import find_place


def report(
    folder: Path,
    /,
    *,
    html: str | None = None,
    junit: str | None = None,
    markdown: str | None = None,
    svg: Path | None = None,
    github: Annotated[bool, Parameter(negative="")] = False,
    engine: str | None = None,
) -> None:
    """Render a saved comparison: in the terminal, or as files.

    Args:
        folder: A folder written by `kgverify diff --save RUN_DIR`.
        html: One self-contained page; - for standard output. Each format has a default name for its file.
        junit: JUnit XML, one case per query and side; - for standard output.
        markdown: Markdown; - for standard output.
        svg: A folder for the pictures, as SVG images.
        github: Print annotations; append Markdown to $GITHUB_STEP_SUMMARY.
        engine: The engine whose file gets the annotations, if the run names none: FILE.py:NAME or MODULE:NAME. It is not run.
    """
    given = {"html": html, "junit": junit, "markdown": markdown, "json": settings.json_path}
    paths = {name: path for name, path in given.items() if path is not None}
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
