"""`kgverify report`: render a saved run; needs no engine."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from kgverify.cli.progress import make_result_console, write_json
from kgverify.errors import UserError
from kgverify.harness.save import read_run
from kgverify.report.github import render_annotations
from kgverify.report.html import render_html
from kgverify.report.junit import render_junit
from kgverify.report.markdown import render_markdown
from kgverify.report.report import encode_report
from kgverify.report.terminal import print_report

DEFAULT_NAMES: Final = {"--html": "report.html", "--junit": "junit.xml", "--markdown": "report.md"}
"""What a format's file is called, in the current folder, where its option names none."""


class ReportCommand(TyperCommand):
    """Lets `--html`, `--junit` and `--markdown` stand without a file name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, with the names put in that were left out."""
        named = []
        for argument, following in zip(args, [*args[1:], None], strict=True):
            named.append(argument)
            if argument in DEFAULT_NAMES and (following is None or following.startswith("--")):
                named.append(DEFAULT_NAMES[argument])
        return super().parse_args(ctx, named)


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="What `kgverify diff --save RUN_DIR` wrote.")],
    html: Annotated[Path | None, typer.Option(metavar="[FILE]", help="One self-contained page.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="[FILE]", help="JUnit XML, a case a query and side.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="[FILE]", help="Markdown.")] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Print annotations; append Markdown to $GITHUB_STEP_SUMMARY.")
    ] = False,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="The report as JSON; - for standard output.")
    ] = None,
) -> None:
    """Render a saved comparison: in the terminal, or as files."""
    run = read_run(folder)
    console = make_result_console(json_path)
    files: list[tuple[Path | None, Any]] = [
        (html, lambda: render_html(run.report, run.expected, run.actual).encode()),
        (junit, lambda: render_junit(run.report, run.expected)),
        (markdown, lambda: render_markdown(run.report).encode()),
    ]
    for path, render in files:
        if path is not None:
            _write(path, render(), "wb")
            console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
    if github:
        # Not through the console, which would wrap the lines.
        print(render_annotations(run.report), end="", file=sys.stderr if json_path == "-" else sys.stdout)
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if summary:
            _write(Path(summary), render_markdown(run.report).encode(), "ab")
    if json_path is not None:
        write_json(encode_report(run.report), json_path)
    if not github and json_path is None and not any(path for path, _ in files):
        print_report(run.report, console)


def _write(path: Path, content: bytes, mode: str) -> None:
    try:
        with path.open(mode) as file:
            file.write(content)
    except OSError as error:
        raise UserError(
            f"cannot be written: {error.strerror}", where=str(path), fix="give a path in a folder that exists"
        ) from None
