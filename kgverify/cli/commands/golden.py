"""`kgverify golden`: compare an engine with a golden file."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from kgverify.api.golden import golden_job
from kgverify.cli import options
from kgverify.cli.command_line import warnings_afterwards
from kgverify.cli.commands.diff import show_result
from kgverify.cli.output import is_typed
from kgverify.cli.progress import show_phase, typed_command
from kgverify.comparison.equality import Equality
from kgverify.files.writing import check_folder
from kgverify.runs.job import Reference


@warnings_afterwards()
def golden(
    file: Path,
    /,
    *,
    sides: Annotated[options.SideOptions, options.OWN] = options.SideOptions(),
    job: Annotated[options.JobOptions, options.OWN] = options.JobOptions(),
    equality: Annotated[Equality, options.EQUALITY] = Equality(),
    work: Annotated[Reference, options.OWN] = Reference(),
    update: Annotated[bool, Parameter(negative="")] = False,
    save: Path | None = None,
) -> int:
    """Compare an engine with a golden file: a small text file to commit, with a digest for each candidate.

    A missing file is written from the reference, and the exit code is 3. The graph, the queries, the limits and the policy are
    those of the file, unless they are given; a file of another program or of other candidates is inconclusive.

    Args:
        file: The golden file.
        update: Write the file again from the reference, say how many candidates changed, and then compare.
        save: Save both traces and the report in a folder.
    """
    if save is not None:
        check_folder(save)
    # What is typed, or set in a configuration file, replaces what the golden file says.
    given: dict[str, Any] = {"limits": job.proofs.given_limits()}
    for record in (job.queries, job.proofs):
        for each in fields(record):
            option = "--queries" if each.name == "number" else f"--{each.name}"
            if each.name != "limits" and (is_typed(option) or getattr(record, each.name) != each.default):
                given[each.name] = getattr(record, each.name)
    if (moved := job.source.load_moved()) is not None:
        given["graph"] = moved
    report = golden_job(
        file, sides.make(work), given, equality, update=update, save=save, command=typed_command(), phase=show_phase
    )
    return show_result(report, save, sides.engines, has_lockstep=not equality.lockstep)
