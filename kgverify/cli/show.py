"""`kgverify show`: a trace, a derivation or a step, in names."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kgverify.cli import options
from kgverify.cli.progress import make_result_console, write_json
from kgverify.errors import UserError
from kgverify.report.steps import TraceView, render_derivation, render_step, render_trace
from kgverify.trace.reader import read_trace


def show(
    trace: Annotated[Path, typer.Argument(help="A trace: a file, or a folder of shards.")],
    candidate: Annotated[int | None, typer.Option(help="The derivation of this candidate.")] = None,
    step: Annotated[int | None, typer.Option(help="This step of the candidate.")] = None,
    json_path: options.JsonPath = None,
) -> None:
    """Show a trace as a person reads it: its candidates, a derivation, or one step."""
    if step is not None and candidate is None:
        raise UserError("a step belongs to a candidate", where="--step", fix="give --candidate as well")
    view = TraceView(read_trace(trace))
    data: dict[str, Any]
    if candidate is None:
        rendered = render_trace(view)
        data = {**view.summary(), "candidates": [view.candidate(i) for i in range(view.num_candidates)]}
    elif step is None:
        rendered = render_derivation(view, candidate)
        found = view.candidate(candidate)
        data = {**found, "steps": [view.step(candidate, i) for i in range(found["num_steps"])]}
    else:
        rendered = render_step(view, candidate, step)
        data = {**view.candidate(candidate), **view.step(candidate, step)}
    make_result_console(json_path).print(rendered, highlight=False)
    if json_path is not None:
        write_json(msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n", json_path)
