"""`kgverify golden`: compare an engine with a golden file."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kgverify.api.golden import golden_job
from kgverify.cli import options
from kgverify.cli.command_line import warnings_afterwards
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.output import is_typed
from kgverify.cli.progress import make_result_console, show_phase, typed_command, write_json
from kgverify.comparison.equality import Equality
from kgverify.files.writing import check_folder
from kgverify.report.render.terminal import print_report
from kgverify.runs.job import Job, Proofs, Queries, Reference, Source


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
    default = options.JobOptions()
    named = {
        each.name
        for each in fields(Queries)
        if is_typed("--queries" if each.name == "number" else f"--{each.name}")
        or getattr(job.queries, each.name) != getattr(default.queries, each.name)
    }
    if is_typed("--policy") or job.proofs.policy != default.proofs.policy:
        named.add("policy")
    moved = job.source.load_moved()
    if moved is not None:
        named.add("graph")
    source = Source("countries" if moved is None else moved)
    proofs = Proofs(job.proofs.given_limits(), job.proofs.policy)
    made = Job(source, job.queries, sides.make(work), proofs, equality)
    report = golden_job(made, file, given=named, update=update, save=save, command=typed_command(), phase=show_phase)
    commands = {} if save is not None else {typed_command("--save", "run"): "then step through it: kgverify show run"}
    print_report(report, make_result_console(), next_commands=commands)
    write_json(report)
    return EXIT_CODES[report.verdict]
