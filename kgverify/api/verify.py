"""`kgverify.verify`: the main job."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter

from kgverify.api.inputs import (
    EngineLike,
    GraphLike,
    make_run,
    make_sides,
    name_again,
)
from kgverify.comparison.exercise.minimum import Minimum, parse_minimum
from kgverify.comparison.modulo.policy import parse_modulo
from kgverify.engines.policy import Policy
from kgverify.program.limits import Limits
from kgverify.progress import Phase, TimedPhases, silent_phase
from kgverify.report.content import EngineNames
from kgverify.report.report import Report
from kgverify.trace.model.score_error import parse_score_error
from kgverify.verification.save import RunTimes, locked_run, save_verification
from kgverify.verification.verify import Verification
from kgverify.verification.verify import verify as verify_pipelines


def verify(
    graph: GraphLike,
    engine: EngineLike = "compiled",
    *,
    reference: EngineLike = "reference",
    rules: str | Path | None = None,
    split: str = "test",
    queries: int = 20,
    corruptions: int | str = 50,
    seed: int = 0,
    policy: str | Policy = "shortest",
    limits: Limits | None = None,
    mode: str = "auto",
    device: str = "auto",
    precision: str = "float32",
    slots: int | None = None,
    faults: str | Sequence[str] = (),
    lockstep: bool = False,
    determinism: bool = True,
    score_error: float | str | None = None,
    modulo: str | Collection[str] | None = None,
    minimum: str | Minimum | None = None,
    fresh_cache: bool = False,
    jobs: int = 1,
    scheduler: str | None = None,
    save: str | Path | None = None,
    command: str = "",
    phase: Phase = silent_phase,
) -> Report:
    """Compare an engine with a reference, step by step.

    Both engines prove the queries of a graph and their corruptions, and record every step. The first step of each
    candidate that differs is replayed stage by stage, and the report names the stage at fault.

    Args:
        graph: The name of an embedded graph (`"countries"`), a name under `$KGVERIFY_DATA`, `"random:SEED"`, the path of
            a folder or file, a `KnowledgeGraph`, or a dataset of PyKEEN.
        engine: The engine under test: `"compiled"`, `"reference"`, `"module:name"`, `"file.py:name"`, an engine, or a
            class or function that makes one of `(program, limits, policy)`. See `kgverify.Engine` and
            `kgverify.engine_of`. An engine may bring its own corruptions and ranks as methods `draw(graph, split, queries,
            num_corruptions, seed)` and `rank(candidates, triples, tolerance)`.
        reference: The engine to compare with, given in the same way; kgverify's reference prover if not given.
        rules: A file of rules that replaces those of the graph.
        split: The split whose triples are the queries: `"train"`, `"valid"` or `"test"`.
        queries: Number of queries, from the beginning of the split.
        corruptions: Number of corruptions for each query and side, or `"all"` for every entity.
        seed: Seed of the corruptions and of a random policy.
        policy: `"shortest"`, `"two_tower"` (random weights), `"trained"` (weights that come with kgverify), the path of a
            safetensors file, or a policy.
        limits: Limits of a derivation; `Limits()` if not given.
        mode: Mode of the compiled evaluator: `"auto"`, `"eager"`, `"fused"`, or a mode of `torch.compile`.
        device: Device of the compiled evaluator: `"auto"`, `"cpu"` or `"cuda"`.
        precision: Precision of the compiled evaluator's policy, such as `"float32"`; others need CUDA.
        slots: Derivations that the compiled evaluator proves at the same time.
        faults: Faults to plant in the compiled evaluator; `kgverify faults list` lists them. They are planted in the
            engine under test, or in the reference if only that is compiled.
        lockstep: Start every step from the expected goal, so that independent faults are listed one by one.
        determinism: Let each engine prove a sample again. An engine that does not repeat itself makes the verdict INCONCLUSIVE.
        score_error: An error of the engine's scores to accept instead of the judge's bound: in nats, or a float type such as
            `"float16"`, whose errors count as rounding.
        modulo: The kinds of differences that are benign, as in `"names,order"`: `"names"` of variables, the `"order"` of the
            resolvents of a step, `"duplicates"` of a resolvent. They are counted apart, and the comparison goes on. `"none"`
            for no kind; if not given, names are benign where an engine numbers variables its own way.
        minimum: The exercise that AGREE requires of both sides, as `{"proved": 1, "rules": 1, "choices": 1}` (the default) or
            `"proved=1,rules=1"`: candidates proved, rules used, steps with more than one resolvent. Below it the verdict is
            INCONCLUSIVE. `{}` requires nothing.
        fresh_cache: Compile into empty caches, which are deleted afterwards.
        jobs: Processes in which kgverify's reference prover proves.
        scheduler: Address of a dask scheduler whose workers prove for kgverify's reference prover.
        save: A folder for both traces and the report, for `kgverify show` and `kgverify report`.
        command: The command line that the report names as its origin.
        phase: A function of a title and a total that returns a context, which is called with the progress made.

    Returns:
        The report: `.verdict`, `.coverage`, `.first_divergence`, `.causes`, `.metrics`, `.to_html(path)`,
        `.to_json(path)`. `print(report)` prints it.

    Raises:
        UserError: If an argument is wrong, a file cannot be read, the device is not available, or an engine fails.

    Example:
        >>> import kgverify as kv
        >>> report = kv.verify("countries", mode="eager", queries=2, corruptions=5)
        >>> report.verdict
        <Verdict.AGREE: 'AGREE'>
        >>> faulty = kv.verify("countries", mode="eager", queries=2, corruptions=5, faults="fact-cap")
        >>> faulty.verdict.value, faulty.first_divergence.stage
        ('DIVERGE', 'match_facts')
    """
    accepted = parse_score_error(score_error)
    benign, required = parse_modulo(modulo), parse_minimum(minimum)
    started, phases = perf_counter(), TimedPhases(phase)
    with locked_run(save):
        run = make_run(
            graph,
            rules=rules,
            split=split,
            queries=queries,
            corruptions=corruptions,
            seed=seed,
            policy=policy,
            limits=limits,
        )
        with _empty_caches() if fresh_cache else nullcontext():
            sides = make_sides(
                engine,
                reference,
                run,
                jobs=jobs,
                scheduler=scheduler,
                mode=mode,
                device=device,
                precision=precision,
                slots=slots,
                faults=faults,
            )
            with sides as (expected, actual):
                found = verify_pipelines(
                    run,
                    expected,
                    actual,
                    lockstep=lockstep,
                    check_determinism=determinism,
                    score_error=accepted,
                    modulo=benign,
                    minimum=required,
                    phase=phases,
                )
        engines = EngineNames(name_again(reference), name_again(engine))
        report = found.report.with_traces(found, command=command, engines=engines)
        if save is not None:
            times = RunTimes(perf_counter() - started, dict(phases.seconds))
            save_verification(Verification(report, found.expected, found.actual, found.stepped), Path(save), times)
        return report


def _empty_caches() -> AbstractContextManager[None]:
    from kgverify.prover.execution.caches import fresh_caches

    return fresh_caches()
