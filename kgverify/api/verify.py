"""`kgverify.verify`: the main function."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from kgverify.api.inputs import running
from kgverify.arguments import checked
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.engines.table import COMPILED
from kgverify.program.limits import Limits
from kgverify.progress import Phase, TimedPhases, silent_phase
from kgverify.report.report import Report
from kgverify.runs.job import (
    EngineLike,
    Engines,
    GraphLike,
    Job,
    PolicyLike,
    Proofs,
    Queries,
    Source,
    choose_reference,
    encode_job,
    of_info,
    write_down,
)
from kgverify.verification.judgement import FULL, Effort
from kgverify.verification.verify import Verification
from kgverify.verification.verify import verify as verify_pipelines


@checked
def verify(
    graph: GraphLike,
    engine: EngineLike = COMPILED,
    *,
    reference: EngineLike | None = None,
    queries: int | Queries | None = 20,
    corruptions: int | str | None = None,
    seed: int | None = None,
    policy: PolicyLike = "shortest",
    limits: Limits | None = None,
    equality: Equality = DEFAULT_EQUALITY,
    save: str | Path | None = None,
) -> Report:
    """Compare an engine with a reference, step by step.

    Both engines prove the queries of a graph and their corruptions, and record every step. The first step of each
    candidate that differs is replayed stage by stage, and the report names the stage at fault.

    Args:
        graph: The name of an embedded graph (`"countries"`), a name under `$KGVERIFY_DATA`, `"random:SEED"`, the path of
            a folder or file, a `KnowledgeGraph`, or a dataset of PyKEEN.
        engine: The engine under test: `kgverify.Evaluator(...)`, `"compiled"`, `"reference"`, `"module:name"`,
            `"file.py:name"`, an engine, or a class or function that makes one of `(program, limits, policy)`. See
            `kgverify.Engine` and `kgverify.engine_of`. An engine may bring its own corruptions and ranks as methods
            `draw(graph, split, queries, num_corruptions, seed)` and `rank(candidates, triples, tolerance)`.
        reference: The engine to compare with, given in the same way, or `kgverify.Reference(...)`. If not given, kgverify's
            reference prover `"reference"`; for an engine that tells only outcomes, `"search"`, which finds any proof of at
            most `max_depth` clauses. `"model"` has no such bound.
        queries: Number of queries, from the beginning of the test split; None for all. Or `kgverify.Queries(...)`, which
            names another split as well.
        corruptions: Number of corruptions for each query and side, or `"all"` for every entity; 50 if not given.
        seed: Seed of the corruptions and of a random policy.
        policy: `"shortest"`, `"two_tower"` (random weights), `"trained"` (weights that come with kgverify), the path of a
            safetensors file, or a function (goal, resolvents) -> scores; docs/evaluating.md.
        limits: Limits of a derivation, with the dialect; `kgverify.Limits()` if not given.
        equality: What counts as equal, and the evidence that AGREE requires; `kgverify.Equality()` if not given.
        save: A folder for both traces and the report, for `kgverify show` and `kgverify report`.

    Returns:
        The report: `.verdict`, `.coverage`, `.first_divergence`, `.causes`, `.metrics`, `.to_html(path)`,
        `.to_json(path)`. `print(report)` prints it.

    Raises:
        UserError: If an argument is wrong, a file cannot be read, the device is not available, or an engine fails.

    Example:
        >>> import kgverify as kv
        >>> report = kv.verify("countries", kv.Evaluator(mode="eager"), queries=2, corruptions=5)
        >>> report.verdict
        <Verdict.AGREE: 'AGREE'>
        >>> faulty = kv.verify("countries", kv.Evaluator(mode="eager", faults="fact-cap"), queries=2, corruptions=5)
        >>> faulty.verdict.value, faulty.first_divergence.stage
        ('DIVERGE', 'match_facts')
    """
    chosen, sides = Queries.choose(queries, corruptions, seed), Engines(engine, reference)
    return verify_job(Job(Source(graph), chosen, sides, Proofs(limits, policy), equality), save=save)


def verify_job(
    job: Job,
    *,
    save: str | Path | None = None,
    command: str = "",
    phase: Phase = silent_phase,
    effort: Effort = FULL,
) -> Report:
    """Compare the engines of a job; see `verify`.

    Args:
        job: The job.
        save: A folder for both traces and the report.
        command: The command line that the report names as its origin.
        phase: A function of a title and a total that returns a context, which is called with the progress made.
        effort: The limits on the explanation of divergences.

    Returns:
        The report.

    Raises:
        UserError: As `verify`.
    """
    if save is None:
        return _verify(job, command, phase, effort)[0]
    from kgverify.verification.save import RunTimes, locked_run, save_verification

    started, phases = perf_counter(), TimedPhases(phase)
    with locked_run(save):
        report, found = _verify(job, command, phases, effort)
        times = RunTimes(perf_counter() - started, dict(phases.seconds))
        save_verification(replace(found, report=report), Path(save), times)
    return report


def _verify(job: Job, command: str, phase: Phase, effort: Effort) -> tuple[Report, Verification]:
    run, sides = job.make_run(), job.engines
    with ExitStack() as stack:
        with phase("building the engines", 0):
            actual = stack.enter_context(running(sides.engine, run))
            reference = choose_reference(sides.reference, actual.engine.info)
            expected = stack.enter_context(running(reference, run, where="reference"))
        found = verify_pipelines(run, expected, actual, equality=job.equality, effort=effort, phase=phase)
    made = found.report.environment
    written = zip((sides.engine, reference), (made.actual, made.expected), strict=True)
    engines = Engines(*(of_info(write_down(each, default=""), info) for each, info in written))
    proofs = replace(job.proofs, limits=run.limits)
    encoded = encode_job(replace(job, source=Source(run.graph), engines=engines, proofs=proofs))
    return found.report.with_traces(found, command=command, job=encoded), found
