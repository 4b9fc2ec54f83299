"""`kgverify train`: train the weights of a policy for a graph."""

from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter, validators

from kgverify.cli import options
from kgverify.cli.progress import check_writable, make_result_console, print_lines, show_phase, write_json
from kgverify.engines.policy import write_policy
from kgverify.engines.table import COMPILED, make_entry
from kgverify.errors import count_of

SIZES: Final = {"embedding": 32, "hidden": 64, "blocks": 2}
"""The sizes of the network."""


def train(
    *,
    output: Annotated[Path, Parameter(alias="-o", metavar="FILE.safetensors")],
    source: Annotated[options.GraphOptions, options.OWN] = options.GraphOptions(),
    seed: int = 0,
    rounds: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 64,
    epochs: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 10,
    proofs: Annotated[options.LimitOptions, options.OWN] = options.LimitOptions(),
) -> None:
    """Train a two_tower policy to imitate the reference prover's proofs. The test split is not used.

    Args:
        output: The file of weights to write.
        seed: Seed of the initial weights, the hidden facts and the batches.
        rounds: Number of rounds; each hides some facts and proves without them.
        epochs: Passes over all decisions.
    """
    check_writable(str(output))
    limits = proofs.read_limits()
    trained = make_entry(COMPILED).train(
        source.load(), limits, seed=seed, phase=show_phase, epochs=epochs, rounds=rounds, **SIZES
    )
    write_policy(trained.policy, output)
    print_lines(
        make_result_console(),
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
    write_json(data, indent=None)
