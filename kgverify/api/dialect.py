"""`kgverify.dialects`: the dialect of an engine, proposed by experiments, or of a recorded trace."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kgverify.comparison.result import Verdict
from kgverify.conformance import check_engine
from kgverify.engines.table import REFERENCE
from kgverify.files.reading import open_descriptor
from kgverify.program.limits import DeclaredLimits, declare_limits
from kgverify.progress import Progress, no_progress
from kgverify.runs.engine_makers import AnyEngine
from kgverify.runs.job import GraphLike, Source
from kgverify.testing.dialects.proposal import Proposal, Verified
from kgverify.testing.dialects.propose import DialectSearch
from kgverify.trace.lines.import_lines import import_lines
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import read_trace
from kgverify.verification.recorded_dialect import RecordedDialect, find_dialect

EXAMPLES = 300
"""The default number of generated problems on which the engine is compared with the reference."""
MOST_LESSONS = 12
"""The maximum number of generated problems used to decide what the experiments leave open."""


def propose_dialect(
    engine: AnyEngine, *, examples: int = EXAMPLES, seed: int = 0, progress: Progress = no_progress
) -> Proposal:
    """Propose the dialect of an engine by experiments, and compare the engine with the reference in this dialect.

    Each experiment is a program of a few lines, to which dialects have different answers. The engine need not know its clauses,
    its scores, or even its steps; what its answers cannot show is left undecided.

    Args:
        engine: `"module:name"`, `"file.py:name"`, `"compiled"`, `"reference"`, or a class or function of
            `(program, limits, policy)`.
        examples: Number of generated problems on which both are compared; 0 for none.
        seed: Seed of these problems.
        progress: A function that is called with the number of experiments done.

    Returns:
        The proposal: `.dialect`, `.findings` (for each switch its value, and why it is undecided), `.verdict` (of the
        comparison) and `.save(file)`, which writes the dialect for `--limits dialect=FILE`. `print` shows it.

    Raises:
        UserError: If the engine cannot be made, or answers nothing.

    Example:
        >>> import kgverify as kv
        >>> from kgverify.dialects import propose_dialect
        >>> class Plain(kv.StagedEngine):
        ...     "kgverify's semantics."
        >>> proposal = propose_dialect(Plain, examples=20)
        >>> proposal.dialect.unification, proposal.verdict.value
        ('complete', 'AGREE')
    """
    search = DialectSearch(engine)
    search.run(progress)
    while True:
        proposal = search.propose()
        if examples < 1:
            return proposal
        found = check_engine(
            engine,
            reference=REFERENCE,
            examples=examples,
            seed=seed,
            dialect=proposal.dialect,
            laws=(),
            lockstep=proposal.has_steps,
        )
        failure = found.failure
        if failure is None or not failure.is_alone or len(proposal.lessons) == MOST_LESSONS:
            break
        if not search.learn_from(failure.problem):
            break
    text = "" if found.verdict is Verdict.AGREE else str(found)
    notes = tuple(search.notes)
    return replace(
        proposal, notes=notes, verified=Verified(verdict=found.verdict, num_problems=found.num_problems, text=text)
    )


def recognise_dialect(
    trace: str | Path | Trace,
    *,
    graph: GraphLike | None = None,
    limits: DeclaredLimits | Mapping[str, Any] | None = None,
) -> RecordedDialect:
    """Return the dialect in which a program gives the recorded steps of a trace: the declared one, or one with other switches.

    Each step is taken again from its recorded goal. If some steps do not fit the declared dialect, one switch after another
    changes, as long as more steps fit.

    Args:
        trace: A trace: a file, a folder of shards, JSON lines, or what `load` of `kgverify.open_trace` returned.
        graph: The graph of the facts and rules, for a trace without them.
        limits: The limits, with the declared dialect; those that are left out are the trace's, or the defaults.

    Returns:
        The result: `.dialect`, `.changes`, `.num_fitting` of `.num_steps`, `.verdict` (AGREE if all steps fit), and
        `.save(file)`, which writes the dialect for `--limits dialect=FILE`. `print` shows it.

    Raises:
        UserError: If the trace cannot be read, or holds no goals, or no program is known.

    Example:
        >>> import kgverify as kv
        >>> from kgverify.dialects import Dialect, recognise_dialect
        >>> limits = kv.Limits(dialect=Dialect(stopping="where_no_terminal"))
        >>> _ = kv.record("countries", "stops.h5", "reference", queries=1, corruptions=2, limits=limits)
        >>> recognise_dialect("stops.h5", limits={"dialect": Dialect()}).changes
        'stopping = where_no_terminal'
    """
    declared = declare_limits(limits, "limits")
    loaded = None if graph is None else Source(graph).load()
    if isinstance(trace, Trace):
        return find_dialect(trace, loaded, declared)
    path = Path(trace)
    if not path.is_file() or not _holds_lines(path):
        return find_dialect(read_trace(path), loaded, declared)
    with tempfile.TemporaryDirectory(prefix="kgverify-dialect-") as folder:
        import_lines(path, Path(folder, "trace"))
        return find_dialect(replace(read_trace(Path(folder, "trace")), source=str(path)), loaded, declared)


def _holds_lines(path: Path) -> bool:
    with open_descriptor(path, purpose="a trace") as descriptor:
        return os.pread(descriptor, 64, 0).lstrip()[:1] == b"{"
