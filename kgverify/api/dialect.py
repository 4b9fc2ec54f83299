"""`kgverify.dialects.propose_dialect`: the dialect of an engine, proposed by experiments."""

from dataclasses import replace

from kgverify.comparison.result import Verdict
from kgverify.conformance import check_engine
from kgverify.progress import Progress, no_progress
from kgverify.runs.engine_makers import AnyEngine
from kgverify.testing.dialects.proposal import Proposal, Verified
from kgverify.testing.dialects.propose import DialectSearch

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
            engine, examples=examples, seed=seed, dialect=proposal.dialect, laws=(), lockstep=proposal.has_steps
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
