"""The report of a comparison, as `--json` writes it and `kgverify.verify` returns it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kgverify.errors import UserError
from kgverify.escaping import escape_json, escape_notebook
from kgverify.files.writing import write_file
from kgverify.report.content import ComparedTraces, ReportContent
from kgverify.report.next_steps import NextStep


class Report(ReportContent, frozen=True, kw_only=True, dict=True, tag_field="format", tag="kgverify report 1"):
    """The result of a comparison with what it rests on.

    first_cause: the first lost or false proof, else the first divergence; None without divergences
    causes:      the divergences grouped; attribution: the cost of each cause
    lockstep:    whether every step was compared separately, from the expected goal
    command:     the command that made the report, without its output options; empty if no command did
    reasons_of_actual: the reasons for the actual engine's device, mode and precision; empty if it gives no reasons
    self_test:   the changes planted before the verdict was given, all of which the comparison reported
    ranking_rules: the rules by which two recorded traces that differ were ranked; None with engines, or if nothing shows them
    exercise:    the evidence behind the verdict: what the candidates and steps of each side exercised
    minimum:     the exercise that AGREE required of both sides
    job:         the graph, the queries, the engines, their limits and the policies, as `kgverify.runs.job` reads them; None
                 for two recorded traces

    Example:
        >>> import kgverify as kv
        >>> report = kv.verify("countries", kv.Evaluator(mode="eager", faults="fact-cap"), queries=1, corruptions=1)
        >>> print(repr(report).splitlines()[0])
        DIVERGE   4 candidates, ...
        >>> report.to_json("report.json").stat().st_size > 1000
        True
    """

    def to_json(self, path: str | Path) -> Path:
        """Write the report as JSON (docs/report.schema.json).

        Args:
            path: The file, which is overwritten.

        Returns:
            The path of the file.

        Raises:
            UserError: If the file cannot be written.
        """
        write_file(path, encode_report(self))
        return Path(path)

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML page, on which every divergence can be stepped through.

        Args:
            path: The file, which is overwritten.

        Returns:
            The path of the file.

        Raises:
            UserError: If the file cannot be written, or if the report was read from a file and has no traces.
        """
        return self._write(path, "html")

    def to_svg(self, folder: str | Path) -> list[Path]:
        """Write the pictures of the report as SVG images, for example for slides.

        Args:
            folder: The folder, which is created if it does not exist. Files with the names of pictures are overwritten.

        Returns:
            The paths of the images: `step.svg`, `condition.svg`, `clauses.svg`, `depth.svg` and `ranks.svg`, without those
            that the run has no data for.

        Raises:
            UserError: If a file cannot be written, or if the report was read from a file and has no traces.
        """
        from kgverify.report.render.pictures import write_pictures

        return write_pictures(self, self._require_traces(folder, "svg"), folder)

    def _write(self, path: str | Path, name: str) -> Path:
        from kgverify.report.render.formats import FORMATS

        write_file(path, FORMATS[name].render(self, self._require_traces(path, name)))
        return Path(path)

    def _require_traces(self, path: str | Path, name: str) -> ComparedTraces:
        if self.traces is None:
            raise UserError(
                "this report was read without its traces, which the file shows",
                where=str(path),
                fix=f"save the run with `save=`, and render it with `kgverify report RUN_DIR --{name}`",
            )
        return self.traces

    def __str__(self) -> str:
        """Return the report as the terminal shows it, 120 columns wide."""
        from kgverify.report.render.terminal import draw_text, print_report

        return draw_text(lambda console: print_report(self, console, next_commands=self._next_calls()))

    def _next_calls(self) -> dict[str, str]:
        """Return the calls that show more, with their purposes."""
        shrinks = {"kgverify.shrink(report)": "reduces the first divergence to a minimal problem"}
        return {'report.to_html("report.html")': "every divergence, step by step"} | (shrinks if self.job else {})

    def __repr__(self) -> str:
        """Return the verdict, what was compared, and the first divergence."""
        from kgverify.report.render.terminal import summary_lines

        return "\n".join(summary_lines(self))

    def _repr_html_(self) -> str:
        """Return the report for a notebook."""
        from kgverify.report.render.first_screen import render_first_screen

        calls = [f"  {call}   # {purpose}" for call, purpose in self._next_calls().items() if self.divergences]
        return render_first_screen(self) + (escape_notebook("\n".join(["next", *calls])) if calls else "")


def encode_report(value: Any, steps: Sequence[NextStep] | None = None, indent: int | None = 2) -> bytes:
    """Encode a report, or another result, as JSON with a final newline; on one line if `indent` is None.

    steps: the steps that lead on, which become its member `next`; None for no such member
    """
    encoded = msgspec.json.encode(value)
    if steps is not None:
        encoded = encoded[:-1] + b',"next":' + msgspec.json.encode(steps) + b"}"
    formatted = encoded if indent is None else msgspec.json.format(encoded, indent=indent)
    return escape_json(formatted) + b"\n"
