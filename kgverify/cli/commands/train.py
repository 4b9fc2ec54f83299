"""`kgverify train`: train the weights of a policy for a graph."""

from pathlib import Path
from typing import Annotated, Final

import typer

from kgverify.cli import options
from kgverify.cli.options import DEFAULT_LIMITS, GraphOptions, make_limits, with_run_options
from kgverify.cli.progress import check_writable, make_result_console, print_text, show_phase, write_json
from kgverify.engines.policy import write_policy
from kgverify.engines.table import COMPILED, make_entry
from kgverify.errors import count_of

MOST_WIDTH: Final = 1 << 16
MOST_BLOCKS: Final = 1024


@with_run_options()
def train(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.safetensors", help="The file of weights to write.")
    ],
    files: GraphOptions,
    seed: Annotated[int, typer.Option(help="Seed of the initial weights, the hidden facts and the batches.")] = 0,
    rounds: Annotated[
        int, typer.Option(min=1, help="Number of rounds; each hides some facts and proves without them.")
    ] = 64,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over all decisions.")] = 10,
    embedding: Annotated[int, typer.Option(min=1, max=MOST_WIDTH, help="Width of the embeddings.")] = 32,
    hidden: Annotated[int, typer.Option(min=2, max=MOST_WIDTH, help="Width of the network.")] = 64,
    blocks: Annotated[int, typer.Option(min=0, max=MOST_BLOCKS, help="Residual blocks.")] = 2,
    max_depth: options.MaxDepth = DEFAULT_LIMITS.max_depth,
    max_atoms: options.MaxAtoms = DEFAULT_LIMITS.max_atoms,
    max_resolvents: options.MaxResolvents = DEFAULT_LIMITS.max_resolvents,
    dialect: options.DialectFile = None,
    json_path: options.JsonPath = None,
) -> None:
    """Train a two_tower policy to imitate the reference prover's proofs. The test split is not used."""
    check_writable(str(output))
    check_writable(json_path)
    limits = make_limits(max_depth, max_atoms, max_resolvents, dialect=dialect)
    trained = make_entry(COMPILED).train(
        files.load(),
        limits,
        seed=seed,
        phase=show_phase,
        embedding=embedding,
        hidden=hidden,
        blocks=blocks,
        epochs=epochs,
        rounds=rounds,
    )
    write_policy(trained.policy, output)
    print_text(
        make_result_console(json_path),
        f"{output}: {count_of(trained.num_decisions, 'decision')} of {count_of(trained.num_proved, 'proof')}"
        f" ({count_of(trained.num_queries, 'query')}), loss {trained.loss:.3f} nats",
    )
    data = {
        "path": str(output),
        "sha256": trained.policy.info.sha256,
        "num_queries": trained.num_queries,
        "num_proved": trained.num_proved,
        "num_decisions": trained.num_decisions,
        "loss": trained.loss,
    }
    write_json(data, json_path, indent=None)
