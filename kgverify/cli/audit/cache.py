"""`kgverify audit cache`: copy the compiler's caches to another machine of the same kind."""

from pathlib import Path
from typing import Annotated

import typer

from kgverify.cli import options
from kgverify.cli.options import GraphOptions, ProofOptions, RunOptions, SourceOptions, with_run_options
from kgverify.cli.progress import make_result_console
from kgverify.errors import UserError


@with_run_options()
def audit_cache(
    files: GraphOptions,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compile the evaluator, and write its caches.")
    ] = None,
    load: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Load the caches from a file. It holds code, and needs --trust as well."),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the code in the file of --load.", show_default=False)
    ] = False,
    policy: options.PolicySpec = "shortest",
    device: options.Device = "auto",
    mode: options.Mode = "auto",
    slots: options.Slots = None,
) -> None:
    """Save or load the compiler's caches, then prove one query's candidates and report the use of the caches."""
    from kgverify.prover.engine import CompiledEngine
    from kgverify.prover.execution.caches import load_caches, save_caches
    from kgverify.prover.layout import choose_layout
    from kgverify.ranking.corrupt import draw_candidates
    from kgverify.report.render.terminal import describe_execution

    if save is not None and load is not None:
        raise UserError("cannot be combined with --load", where="--save", fix="give one of the two")
    if load is not None:
        if not trust:
            raise UserError(
                "compiler caches hold code, which would run", where=str(load), fix="add --trust if you trust the file"
            )
        load_caches(load)
    run = RunOptions(SourceOptions(files), queries=1, corruptions="1", proofs=ProofOptions(policy=policy)).build()
    layout = None if slots is None else choose_layout(run.limits, slots=slots)
    engine = CompiledEngine(run.graph.program, run.limits, run.policy, mode=mode, device=device, layout=layout)
    engine.prove(draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed))
    console = make_result_console(None)
    console.print(describe_execution(engine.reasons, engine.caches))
    if save is not None:
        console.print(f"{save}: {save_caches(save):,} bytes")
