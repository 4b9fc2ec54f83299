"""Examine the arithmetic of the compiled evaluator: order, ties, batch sizes, precisions, settings.

    python -m benchmarks.numerics --graph family --policy two_tower --json numerics.json

Run it in the repository's root. Exit code 0 without findings, 1 with findings, 2 for bad input.
"""

from typing import Annotated

from cyclopts import Parameter, validators

from benchmarks.command_script import deliver_report, run_script
from benchmarks.numerics.evaluator import audit_evaluator
from kgverify.cli import options
from kgverify.cli.progress import show_phase


def main(
    *,
    source: Annotated[options.GraphOptions, options.OWN] = options.GraphOptions(),
    queries: Annotated[options.QueryOptions, options.OWN] = options.QueryOptions(),
    proofs: Annotated[options.ProofOptions, options.OWN] = options.ProofOptions(),
    device: str = "auto",
    mode: str = "default",
    repetitions: Annotated[int, Parameter(validator=validators.Number(gte=2))] = 3,
    flips: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 20,
) -> int:
    """Examine the arithmetic of the compiled evaluator: order, ties, batch sizes, precisions, settings.

    Exit code 0 without findings, 1 with findings.

    Args:
        device: The device.
        mode: Mode of torch.compile, examined beside eager; eager for that alone.
        repetitions: Calls with equal arguments.
        flips: Flips to list for each precision.
    """
    run = options.make_job(source, queries, proofs).make_run()
    report = audit_evaluator(run, device=device, mode=mode, repetitions=repetitions, most_flips=flips, phase=show_phase)
    return deliver_report(report)


if __name__ == "__main__":
    run_script(main)
