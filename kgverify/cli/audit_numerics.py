"""`kgverify audit numerics`: does the same input give the same bits, and which choices depend on rounding?"""

from typing import Annotated

import msgspec
import typer

from kgverify.cli import options
from kgverify.cli.options import DEFAULT_LIMITS, build_run, naming_options
from kgverify.cli.progress import check_writable, make_result_console, show_phase, write_result


def audit_numerics(
    graph: options.Graph = "countries",
    rules: options.Rules = None,
    split: options.Split = "test",
    queries: options.Queries = 20,
    corruptions: options.Corruptions = "50",
    seed: options.Seed = 0,
    policy: options.PolicySpec = "two_tower",
    max_depth: options.MaxDepth = DEFAULT_LIMITS.max_depth,
    max_atoms: options.MaxAtoms = DEFAULT_LIMITS.max_atoms,
    max_resolvents: options.MaxResolvents = DEFAULT_LIMITS.max_resolvents,
    exclude_query: options.ExcludeQuery = DEFAULT_LIMITS.exclude_query,
    device: options.Device = "auto",
    mode: Annotated[
        str, typer.Option(help="Of torch.compile, looked at beside eager; eager for that alone.")
    ] = "default",
    repetitions: Annotated[int, typer.Option(min=2, help="Calls with equal arguments.")] = 3,
    flips: Annotated[int, typer.Option(min=0, help="Flips listed of each precision.")] = 20,
    json_path: options.JsonPath = None,
) -> None:
    """Look for what the compiled evaluator's arithmetic leaves open: order, ties, batch sizes, precisions, settings.

    Exit code 0 if nothing was found, 1 if something was.
    """
    from kgverify.audit.numerics_evaluator import audit_evaluator
    from kgverify.audit.numerics_text import render_numerics

    check_writable(json_path)
    run = build_run(
        graph=graph,
        rules=rules,
        split=split,
        queries=queries,
        corruptions=corruptions,
        seed=seed,
        policy=policy,
        max_depth=max_depth,
        max_atoms=max_atoms,
        max_resolvents=max_resolvents,
        exclude_query=exclude_query,
    )
    with naming_options():
        report = audit_evaluator(
            run, device=device, mode=mode, repetitions=repetitions, most_flips=flips, phase=show_phase
        )
    console = make_result_console(json_path)
    for part in render_numerics(report):
        console.print(part, highlight=False)
    if json_path is not None:
        write_result(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n", json_path)
    raise typer.Exit(0 if report.is_clean else 1)
