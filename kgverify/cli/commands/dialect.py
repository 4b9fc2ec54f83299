"""`kgverify dialect`: propose the dialect of an engine by experiments, or name that of a recorded trace."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from kgverify.api.dialect import EXAMPLES, propose_dialect, recognise_dialect
from kgverify.cli import options
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.output import is_typed
from kgverify.cli.progress import check_writable, make_result_console, print_lines, show_phase, write_json
from kgverify.engines.table import COMPILED
from kgverify.errors import UserError
from kgverify.testing.dialects.proposal import Proposal
from kgverify.verification.recorded_dialect import RecordedDialect

OF_ENGINE = "--engine", "--examples", "--seed"
OF_TRACE = "--graph", "--rules", "--limits"


def dialect(
    trace: Path | None = None,
    /,
    *,
    engine: options.EngineName = COMPILED,
    output: Annotated[Path | None, Parameter(alias="-o", metavar="FILE")] = None,
    examples: Annotated[int, Parameter(validator=validators.Number(gte=0))] = EXAMPLES,
    seed: int = 0,
    source: Annotated[options.GraphOptions, options.of_record("Graph of the trace, if it lacks its program")] = (
        options.GraphOptions()
    ),
    limits: Annotated[options.LimitOptions, options.OWN] = options.LimitOptions(),
) -> int:
    """Propose the dialect of an engine by experiments, and compare it with the reference in this dialect.

    The recorded steps of a trace are taken again instead, and the switches with which they fit are named.

    Args:
        trace: A recorded trace: a file, a folder of shards, or JSON lines.
        engine: The engine: compiled, reference, or your own as MODULE:NAME or FILE.py:NAME.
        output: The TOML file to write, for --limits dialect=FILE.
        examples: Generated problems on which the engine and the reference are compared.
        seed: The seed of these problems.
    """
    check_writable(None if output is None else str(output))
    for option in OF_TRACE if trace is None else OF_ENGINE:
        if is_typed(option):
            what = "a trace" if trace is None else "an engine"
            raise UserError(f"is for {what}", where=option, fix="leave it out, or name a trace instead of an engine")
    found: Proposal | RecordedDialect
    if trace is None:
        with show_phase("experiments", 0) as phase:
            found = propose_dialect(engine, examples=examples, seed=seed, progress=phase)
    else:
        with show_phase("taking steps again", 0):
            found = recognise_dialect(trace, graph=source.load_moved(), limits=limits.given_limits())
    console = make_result_console()
    print_lines(console, *str(found).splitlines())
    if output is not None:
        found.save(output)
        print_lines(console, f"written: {output}")
    write_json(found)
    return EXIT_CODES[found.verdict]
