"""Options that several commands share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from kgverify.errors import UserError
from kgverify.program.limits import Limits

Graph = Annotated[
    str, typer.Option(help="An embedded graph's name, a name under $KGVERIFY_DATA, or a path.", show_default=True)
]
Rules = Annotated[Path | None, typer.Option(help="A file of rules, instead of the graph's own.")]
Split = Annotated[str, typer.Option(help="The split whose triples are the queries: train, valid or test.")]
Queries = Annotated[int, typer.Option(help="The first so many triples of the split.")]
Corruptions = Annotated[str, typer.Option(help="Corruptions for each query and side; `all` for every entity.")]
Seed = Annotated[int, typer.Option(help="Seed of the corruptions and of a random policy.")]
PolicySpec = Annotated[
    str,
    typer.Option(
        "--policy",
        help="shortest, two_tower (random, by the seed), trained (its weights come with kgverify), or a safetensors file.",
    ),
]
MaxDepth = Annotated[int, typer.Option(help="Most steps of a derivation.")]
MaxAtoms = Annotated[int, typer.Option(help="Most atoms of a resolvent.")]
MaxResolvents = Annotated[int, typer.Option(help="Most resolvents of a step.")]
ExcludeQuery = Annotated[bool, typer.Option(help="Whether the query may not serve as a fact in its own derivation.")]
Device = Annotated[str, typer.Option(help="Of the compiled evaluator: auto, cpu or cuda.")]
Mode = Annotated[
    str,
    typer.Option(help="Of the compiled evaluator: auto, fused, eager, default, reduce-overhead or max-autotune."),
]
Precision = Annotated[str, typer.Option(help="Of the policy's products: float32, or on CUDA bf16x3, fp16 or bf16.")]
Slots = Annotated[int | None, typer.Option(help="Derivations that the compiled evaluator has in flight.")]
Faults = Annotated[
    list[str] | None, typer.Option("--fault", help="Plant a fault in the compiled evaluator, e.g. fact-cap.")
]
Jobs = Annotated[int, typer.Option(min=1, help="Processes that the reference proves in.")]
Scheduler = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="A dask scheduler, whose workers prove for the reference instead."),
]
JsonPath = Annotated[
    str | None, typer.Option("--json", metavar="PATH", help="Write the result as JSON; - for standard output.")
]

DEFAULT_LIMITS = Limits()

_OPTION_OF: Final = {
    "split": "--split",
    "max_depth": "--max-depth",
    "max_atoms": "--max-atoms",
    "max_resolvents": "--max-resolvents",
    "layout.slots": "--slots",
}
"""What is typed for what a mistake is told of."""


@contextmanager
def naming_options() -> Iterator[None]:
    """Mistakes told inside are told of the option that was typed."""
    try:
        yield
    except UserError as error:
        if error.where not in _OPTION_OF:
            raise
        raise UserError(error.message, where=_OPTION_OF[error.where], fix=error.fix) from None


def check_reference_workers(jobs: int, scheduler: str | None, *, has_reference: bool, why: str) -> None:
    """UserError where processes or machines are asked for that have no work, or both."""
    if jobs == 1 and scheduler is None:
        return
    where = "--jobs" if scheduler is None else "--scheduler"
    if not has_reference:
        raise UserError(f"is for the reference, and {why}", where=where, fix="leave it out")
    if jobs != 1 and scheduler is not None:
        raise UserError(
            "the scheduler has workers of its own, and --jobs starts processes here",
            where=where,
            fix="give one of the two",
        )


def parse_corruptions(text: str) -> int:
    """A number of corruptions; -1 for `all`."""
    if text == "all":
        return -1
    if text.isdecimal():
        return int(text)
    raise UserError(f"expected a number or `all`, found {text!r}", where="--corruptions", fix="give 0 or more, or all")
