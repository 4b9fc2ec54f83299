"""`kgverify bisect`: find the commit at which an engine began to diverge."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from kgverify.api.bisect import TIMEOUT
from kgverify.api.bisect import bisect as find_commit
from kgverify.cli import options
from kgverify.cli.command_line import warnings_afterwards
from kgverify.cli.output import settings
from kgverify.cli.progress import make_result_console, print_lines, print_note, typed_command, write_json
from kgverify.comparison.equality import Equality
from kgverify.report.next_steps import NextStep, name_commands, show_run
from kgverify.report.render.terminal import print_report
from kgverify.runs.job import Reference


@warnings_afterwards()
def bisect(
    good: str,
    bad: str = "HEAD",
    /,
    *,
    sides: Annotated[options.SideOptions, options.OWN] = options.SideOptions(),
    job: Annotated[options.JobOptions, options.OWN] = options.JobOptions(),
    equality: Annotated[Equality, options.EQUALITY] = Equality(),
    work: Annotated[Reference, options.OWN] = Reference(),
    cause: Annotated[str | None, Parameter(metavar="STAGE")] = None,
    timeout: Annotated[float, Parameter(metavar="SECONDS", validator=validators.Number(gt=0))] = TIMEOUT,
    save: Path | None = None,
) -> int:
    """Find the commit at which an engine in this git repository began to diverge.

    Each commit is written into a folder in .git, and compared as by `kgverify diff`, in a new process; the working tree, the
    index and the branches stay as they are. The engine, and a reference in the repository, are those of the commit; the graph,
    the rules, the policy and the limits are those of now. Commits without a verdict are skipped. After Ctrl-C, the same command
    resumes. Exit code 0: found; 3: skipped commits leave several.

    Args:
        good: A commit at which the engine does not diverge.
        bad: A later commit at which it diverges; HEAD if not given.
        cause: The cause to look for: that of the bad commit's first divergence if not given; the first one with a stage, such as
            match_facts; or any.
        timeout: The time limit for a commit, in seconds; a slower one is skipped.
        save: Save both traces and the report of the commit in a folder.
    """
    made = job.make(sides.make(work), equality)
    try:
        watch = None if settings.is_quiet else print_note
        result = find_commit(made, good, bad, cause=cause or "", timeout=timeout, save=save, watch=watch)
    except KeyboardInterrupt:
        print_note("the judged commits are saved; to resume, run:", typed_command())
        raise
    steps = [] if save is None else [show_run(save)]
    steps.append(NextStep(does="what changed", command=("git", "show", result.candidates[0].name)))
    console = make_result_console()
    print_lines(console, *str(result).split("\n"))
    if not settings.is_quiet:
        console.print()
        print_report(result.report, console, next_commands=name_commands(steps))
    write_json(result, steps)
    return 0 if result.commit else 3
