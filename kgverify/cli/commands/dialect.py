"""`kgverify dialect`: propose the dialect of an engine by experiments."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from kgverify.api.dialect import EXAMPLES, propose_dialect
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.options import EngineName
from kgverify.cli.progress import check_writable, make_result_console, print_lines, show_phase, write_json
from kgverify.engines.table import COMPILED


def dialect(
    *,
    engine: EngineName = COMPILED,
    output: Annotated[Path | None, Parameter(alias="-o", metavar="FILE")] = None,
    examples: Annotated[int, Parameter(validator=validators.Number(gte=0))] = EXAMPLES,
    seed: int = 0,
) -> int:
    """Propose the dialect of an engine by experiments, and compare it with the reference in this dialect.

    Args:
        engine: The engine: compiled, reference, or your own as MODULE:NAME or FILE.py:NAME.
        output: The TOML file to write, for --limits dialect=FILE.
        examples: Generated problems on which the engine and the reference are compared.
        seed: The seed of these problems.
    """
    check_writable(None if output is None else str(output))
    with show_phase("experiments", 0) as phase:
        proposal = propose_dialect(engine, examples=examples, seed=seed, progress=phase)
    console = make_result_console()
    print_lines(console, *str(proposal).splitlines())
    if output is not None:
        proposal.save(output)
        print_lines(console, f"written: {output}")
    write_json(proposal)
    return EXIT_CODES[proposal.verdict]
