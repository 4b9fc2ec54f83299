"""`kgverify.golden`: compare an engine with a golden file, which holds a digest for each candidate."""

from collections.abc import Collection
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import msgspec

from kgverify.api.verify import verify_job
from kgverify.arguments import checked
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.engines.table import COMPILED
from kgverify.program.limits import DeclaredLimits
from kgverify.progress import Phase, silent_phase
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
    load_named_graph,
)
from kgverify.verification.golden import Golden, GoldenFile


@checked
def golden(
    path: str | Path,
    engine: EngineLike = COMPILED,
    *,
    graph: GraphLike | None = None,
    reference: EngineLike | None = None,
    queries: int | Queries | None = None,
    corruptions: int | str | None = None,
    seed: int | None = None,
    policy: PolicyLike | None = None,
    limits: DeclaredLimits | None = None,
    equality: Equality = DEFAULT_EQUALITY,
    save: str | Path | None = None,
    update: bool = False,
) -> Report:
    """Compare an engine with a golden file: a small text file to commit, with a digest of the steps of each candidate.

    The engine proves the candidates of the file. Where all digests agree, the reference does not run; it proves the candidates
    that differ, and decides. A missing file is written from the reference, and the verdict is INCONCLUSIVE.

    Args:
        path: The golden file.
        engine: The engine under test, as for `kgverify.verify`.
        graph: The graph; as this and all following arguments, that of the file if not given, and that of `kgverify.verify`
            if there is no file. A graph with another program than the file's makes the verdict INCONCLUSIVE, and so do other
            queries, limits and policies.
        reference: The engine from which the file is written, and which decides.
        queries: Number of queries, or `kgverify.Queries(...)`; `Queries(None)` for all.
        corruptions: Number of corruptions for each query and side, or `"all"`.
        seed: Seed of the corruptions and of a random policy.
        policy: The policy, as for `kgverify.verify`; a function must be given each time.
        limits: The limits of a derivation.
        equality: What counts as equal, and the evidence that AGREE requires; `kgverify.Equality()` if not given.
        save: A folder for both traces and the report, for `kgverify show` and `kgverify report`.
        update: Write the file again, then compare.

    Returns:
        The report, as `kgverify.verify` returns it. Scores are compared only for the candidates whose digests differ.

    Raises:
        UserError: As `kgverify.verify`; and if the file is not a golden file.

    Example:
        >>> import kgverify as kv
        >>> new = kv.golden("countries.golden", kv.Evaluator(mode="eager"), queries=2, corruptions=5)
        >>> new.verdict.value, new.reasons[0].partition(",")[0]
        ('INCONCLUSIVE', 'countries.golden was missing')
        >>> kv.golden("countries.golden", kv.Evaluator(mode="eager")).verdict.value
        'AGREE'
        >>> faulty = kv.golden("countries.golden", kv.Evaluator(mode="eager", faults="fact-cap"))
        >>> faulty.verdict.value, faulty.first_divergence.stage
        ('DIVERGE', 'match_facts')
    """
    given = {"corruptions": corruptions, "seed": seed, "graph": graph, "policy": policy}
    named = {name for name, value in given.items() if value is not None}
    if isinstance(queries, Queries):
        named |= {field.name for field in fields(Queries)}
    elif queries is not None:
        named.add("number")
    chosen = Queries.choose(20 if queries is None else queries, corruptions, seed)
    proofs = Proofs(limits, "shortest" if policy is None else policy)
    source = Source("countries" if graph is None else graph)
    job = Job(source, chosen, Engines(engine, reference), proofs, equality)
    return golden_job(job, path, given=named, update=update, save=save)


def golden_job(
    job: Job,
    path: str | Path,
    *,
    given: Collection[str],
    update: bool = False,
    save: str | Path | None = None,
    command: str = "",
    phase: Phase = silent_phase,
) -> Report:
    """Compare the engine of a job with a golden file; see `golden`. UserError as there.

    given: the fields of the job that the user named: `graph`, `policy`, and those of `Queries`. If there is a file, it has the
           others, and the limits that the job leaves open.
    """
    stored = Golden(Path(path), update=update)
    if stored.file is not None:
        job = _complete(job, stored.file, str(path), given)
    return verify_job(job, save=save, command=command, phase=phase, judge=partial(stored.verify, job))


def _complete(job: Job, file: GoldenFile, where: str, given: Collection[str]) -> Job:
    """Return a job with everything that the user did not name as in the file."""
    named = {field.name: getattr(job.queries, field.name) for field in fields(Queries) if field.name in given}
    limits = msgspec.structs.asdict(job.proofs.limits or DeclaredLimits())
    own = {name: value for name, value in limits.items() if value is not None}
    return replace(
        job,
        source=job.source if "graph" in given else Source(load_named_graph(Source(file.graph), where)),
        queries=replace(file.queries, **named),
        proofs=Proofs(
            msgspec.structs.replace(file.limits, **own), job.proofs.policy if "policy" in given else file.policy
        ),
    )
