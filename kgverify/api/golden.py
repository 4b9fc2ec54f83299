"""`kgverify.golden`: compare an engine with a golden file, which holds a digest for each candidate."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

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
from kgverify.verification.golden import Golden


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
    given: dict[str, Any] = {"number": queries, "corruptions": corruptions, "seed": seed}
    given |= {"graph": graph, "policy": policy, "limits": limits}
    given = {name: value for name, value in given.items() if value is not None}
    if isinstance(queries, Queries):
        given |= vars(Queries.choose(queries, corruptions, seed))
    return golden_job(path, Engines(engine, reference), given, equality, update=update, save=save)


def golden_job(
    path: str | Path,
    engines: Engines,
    given: Mapping[str, Any],
    equality: Equality = DEFAULT_EQUALITY,
    *,
    update: bool = False,
    save: str | Path | None = None,
    command: str = "",
    phase: Phase = silent_phase,
) -> Report:
    """Compare an engine with a golden file; see `golden`. UserError as there.

    given: `graph`, `policy`, `limits` and the fields of `Queries` that the user gave; the others are those of the file
    """
    stored = Golden(Path(path), update=update)
    job = Job() if stored.file is None else stored.file.make_job()
    graph = given["graph"] if "graph" in given else load_named_graph(job.source, str(path))
    limits = given.get("limits", DeclaredLimits()).completed(job.proofs.limits or DeclaredLimits())
    proofs = Proofs(limits, given.get("policy", job.proofs.policy))
    queries = replace(job.queries, **{each: value for each, value in given.items() if hasattr(job.queries, each)})
    job = Job(Source(graph), queries, engines, proofs, equality)
    return verify_job(job, save=save, command=command, phase=phase, judge=partial(stored.verify, job))
