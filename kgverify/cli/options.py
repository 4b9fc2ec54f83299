"""Types of the options that several commands share, with their help texts."""

from pathlib import Path
from typing import Annotated, Final

import typer

from kgverify.program.limits import Limits

Graph = Annotated[
    str, typer.Option(help="An embedded graph's name, a name under $KGVERIFY_DATA, or a path.", show_default=True)
]
Rules = Annotated[Path | None, typer.Option(help="A file of rules that replaces those of the graph.")]
Split = Annotated[str, typer.Option(help="The split whose triples are the queries: train, valid or test.")]
Queries = Annotated[int, typer.Option(help="Number of queries, from the beginning of the split.")]
Corruptions = Annotated[str, typer.Option(help="Corruptions for each query and side; `all` for every entity.")]
Seed = Annotated[int, typer.Option(help="Seed of the corruptions and of a random policy.")]
PolicySpec = Annotated[
    str,
    typer.Option(
        "--policy",
        help="shortest, two_tower (random weights), trained (weights that come with kgverify), or a safetensors file.",
    ),
]
MaxDepth = Annotated[int, typer.Option(help="Maximum steps of a derivation.")]
MaxAtoms = Annotated[int, typer.Option(help="Maximum atoms of a resolvent.")]
MaxResolvents = Annotated[int, typer.Option(help="Maximum resolvents of a step.")]
ExcludeQuery = Annotated[bool, typer.Option(help="Do not use the query as a fact in its own derivation.")]
Device = Annotated[str, typer.Option(help="Device of the compiled evaluator: auto, cpu or cuda.")]
Mode = Annotated[
    str,
    typer.Option(help="Mode of the compiled evaluator: auto, fused, eager, default, reduce-overhead or max-autotune."),
]
Precision = Annotated[
    str, typer.Option(help="Precision of the policy's matrix products: float32, or on CUDA bf16x3, fp16 or bf16.")
]
Slots = Annotated[int | None, typer.Option(help="Derivations that the compiled evaluator proves at the same time.")]
Faults = Annotated[
    list[str] | None, typer.Option("--fault", help="Plant a fault in the compiled evaluator, e.g. fact-cap.")
]
Jobs = Annotated[int, typer.Option(min=1, help="Processes in which the reference proves.")]
Scheduler = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="A dask scheduler whose workers prove for the reference."),
]
JsonPath = Annotated[
    str | None, typer.Option("--json", metavar="PATH", help="Write the result as JSON; - for standard output.")
]

DEFAULT_LIMITS = Limits()

OPTION_OF: Final = {
    "split": "--split",
    "max_depth": "--max-depth",
    "max_atoms": "--max-atoms",
    "max_resolvents": "--max-resolvents",
    "layout.slots": "--slots",
}
"""The option that sets what an error is about."""
