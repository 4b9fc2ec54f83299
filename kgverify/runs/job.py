"""A job: everything that determines a comparison, in one record."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias

import msgspec

from kgverify.arguments import check_fields
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.engines.adapters.outcome import OUTCOMES, OutcomeEngine
from kgverify.engines.load_engine import load_factory
from kgverify.engines.plain.choice import PLAIN as PLAIN_MODE
from kgverify.engines.policy import SHORTEST, Policy
from kgverify.engines.protocol import Engine
from kgverify.engines.table import COMPILED, REFERENCE, SEARCH, EngineMaker
from kgverify.errors import UserError
from kgverify.files.reading import STANDARD_INPUT
from kgverify.files.remote import names_url
from kgverify.graphs.formats.ids import PykeenObject
from kgverify.graphs.graph import GraphFiles, KnowledgeGraph
from kgverify.graphs.load import load_graph
from kgverify.program.limits import DeclaredLimits, Limits, declare_limits
from kgverify.report.content import ReportContent
from kgverify.runs.engine_makers import EAGER, PLAIN, EngineSpec, find_limits
from kgverify.runs.run import MOST, Run, load_policy
from kgverify.trace.model.header import EngineInfo

GraphLike: TypeAlias = str | Path | KnowledgeGraph | PykeenObject
"""The name of a graph, its path, the graph itself, or a dataset or triples factory of PyKEEN."""

ALL: Final = "all"
MOST_JOBS: Final = 1024

Split: TypeAlias = Literal["train", "valid", "test"]
"""A split of a graph."""


@dataclass(frozen=True)
class Source:
    """The graph, and a file of rules that replaces the graph's rules."""

    graph: GraphLike | GraphFiles = "countries"
    rules: str | Path | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def load(self) -> KnowledgeGraph:
        """Load the graph. UserError if it cannot be read."""
        if isinstance(self.graph, GraphFiles):
            return load_graph(**msgspec.structs.asdict(self.graph))
        if not isinstance(self.graph, KnowledgeGraph):
            return load_graph(self.graph, rules=self.rules)
        if self.rules is not None:
            raise UserError(
                "this graph is loaded already", where="rules", fix="load it with load_graph(..., rules=...)"
            )
        return self.graph


@dataclass(frozen=True)
class Queries:
    """The candidates of a run: queries and their corruptions.

    Attributes:
        number: Number of queries, from the beginning of the split; None for all.
        corruptions: Corruptions for each query and side; `all` for every entity.
        split: The split whose triples are the queries.
        seed: Seed of the corruptions, and of the weights of a random policy.

    UserError for an unknown split.

    Example:
        >>> import kgverify as kv
        >>> report = kv.verify("countries", "reference", queries=kv.Queries(1, corruptions=3, split="valid"))
        >>> report.run.split
        'valid'
    """

    number: int | None = 20
    corruptions: int | str = 50
    split: Split = "test"
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def choose(cls, queries: "int | Queries | None", corruptions: int | str | None, seed: int | None) -> "Queries":
        """Build queries from arguments. If corruptions or seed is None, keep that of `queries`."""
        chosen = queries if isinstance(queries, Queries) else cls(queries)
        return replace(
            chosen,
            corruptions=chosen.corruptions if corruptions is None else corruptions,
            seed=chosen.seed if seed is None else seed,
        )

    @property
    def num_corruptions(self) -> int:
        """The number of corruptions; -1 for all. UserError if it is not a number."""
        given = self.corruptions
        if given == ALL:
            return -1
        if isinstance(given, str) and given.isdecimal():
            return int(given)
        if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
            return given
        raise UserError(
            f"expected a number or `all`, found {given!r}", where="corruptions", fix="give 0 or more, or all"
        )


@dataclass(frozen=True)
class Reference:
    """kgverify's reference prover, and where it proves.

    Attributes:
        jobs: Processes in which kgverify's reference prover proves; 1 means this process. If not given, it proves thousands
            of candidates on all cores.
        scheduler: The address of a dask scheduler, whose workers prove instead; docs/evaluating.md.

    UserError for both at once.

    Example:
        >>> import kgverify as kv
        >>> two = kv.Reference(jobs=2)
        >>> kv.verify("countries", "reference", reference=two, queries=1, corruptions=3).verdict.value
        'AGREE'
    """

    jobs: int | None = None
    scheduler: str | None = None

    name: ClassVar[str] = REFERENCE

    def __post_init__(self) -> None:
        check_fields(self)
        if self.jobs is not None and not 1 <= self.jobs <= MOST_JOBS:
            raise UserError(f"expected 1 to {MOST_JOBS}, found {self.jobs}", where="jobs", fix="give another number")
        if self.jobs is not None and self.scheduler is not None:
            raise UserError(
                "the workers of the scheduler prove, and jobs would start processes here as well",
                where="scheduler",
                fix="give one of the two",
            )


EngineLike: TypeAlias = str | EngineSpec | EngineMaker | Reference | Callable[..., Any] | Engine
"""A name in the table of engines, `module:name` or `file.py:name`, an engine, or its factory of (program, limits, policy)."""


@dataclass(frozen=True)
class Engines:
    """The engine under test, and the engine to compare it with; None for the one that fits the engine under test."""

    engine: EngineLike = COMPILED
    reference: EngineLike | None = None


PolicyLike: TypeAlias = str | Policy | Callable[[Any, Any], Any]
"""The name of a policy, the path of its weights, a policy, or a function (goal, resolvents) -> scores; docs/evaluating.md."""


@dataclass(frozen=True)
class Proofs:
    """The limits of both engines, and the policy that chooses the steps.

    A limit that is not given is the smallest that an engine declares, or that of `Limits()`.
    """

    limits: DeclaredLimits | None = None
    policy: PolicyLike = SHORTEST

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Job:
    """A comparison: the graph and rules, the candidates, the engines, how they prove, and what counts as equal.

    Example:
        >>> import kgverify as kv
        >>> job = kv.Job(kv.Source("countries"), kv.Queries(2, corruptions=5))
        >>> job.make_run().num_queries
        2
    """

    source: Source = Source()
    queries: Queries = Queries()
    engines: Engines = Engines()
    proofs: Proofs = Proofs()
    equality: Equality = DEFAULT_EQUALITY

    def __post_init__(self) -> None:
        check_fields(self)

    def make_run(self) -> Run:
        """Load the graph and the policy. UserError if they cannot be read or do not match."""
        graph, queries, given = self.source.load(), self.queries, self.proofs.policy
        limits = self.proofs.limits or DeclaredLimits()
        if limits.unknown:
            # A stored job has all of them, so that no engine is loaded here that only a file names.
            limits = limits.completed(
                declare_limits(find_limits(self.engines.engine, self.engines.reference), "engine")
            )
        limits = limits.with_defaults()
        graph.queries(queries.split)
        return Run(
            graph=graph,
            limits=limits,
            policy=load_policy(given, graph, limits, queries.seed) if isinstance(given, str) else _as_policy(given),
            split=queries.split,
            num_queries=MOST if queries.number is None else queries.number,
            num_corruptions=queries.num_corruptions,
            seed=queries.seed,
        )


def job_of(run: Run, engines: Engines, equality: Equality = DEFAULT_EQUALITY) -> Job:
    """Return the job of a loaded run."""
    corruptions = ALL if run.num_corruptions < 0 else run.num_corruptions
    queries = Queries(run.num_queries, corruptions, run.split, run.seed)  # type: ignore[arg-type]  # checked by the record
    return Job(Source(run.graph), queries, engines, Proofs(run.limits, run.policy), equality)


def choose_reference(named: EngineLike | None, engine: object = None) -> Any:
    """Return the reference that the user names; else `search` for an engine that tells only outcomes, or the reference prover.

    engine: the engine's info or its class; None if both are unknown
    """
    is_class = isinstance(engine, type) and issubclass(engine, OutcomeEngine)
    return named or (SEARCH if is_class or getattr(engine, "mode", "") == OUTCOMES else REFERENCE)


def _as_policy(given: Policy | Callable[[Any, Any], Any]) -> Policy:
    return given if isinstance(given, Policy) else Policy.of_function(given)


class WrittenRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The candidates of a job and how they are proved, as plain values."""

    graph: GraphFiles
    queries: Queries
    limits: Limits
    policy: str

    @classmethod
    def of(cls, job: Job, **further: Any) -> Self:
        """Write a job down; `further` are the fields of a subclass. A graph or policy made in Python becomes a name."""
        graph, policy = job.source.load(), job.proofs.policy
        return cls(
            graph=graph.loaded or GraphFiles(graph.name),
            queries=job.queries,
            limits=(job.proofs.limits or DeclaredLimits()).with_defaults(),
            policy=policy if isinstance(policy, str) else _as_policy(policy).name,
            **further,
        )

    def make_job(self, engines: Engines = Engines(), equality: Equality = DEFAULT_EQUALITY) -> Job:
        """Return the job."""
        return Job(Source(self.graph), self.queries, engines, Proofs(self.limits, self.policy), equality)


class _WrittenJob(WrittenRun, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A job as plain values. The name of an engine made in Python is empty."""

    engine: EngineSpec
    reference: EngineSpec
    equality: Equality


def encode_job(job: Job) -> dict[str, Any]:
    """Return a job as the plain values that a report stores."""
    engines = (
        write_down(job.engines.engine, default=""),
        write_down(choose_reference(job.engines.reference), default=""),
    )
    written = _WrittenJob.of(job, engine=engines[0], reference=engines[1], equality=job.equality)
    encoded: dict[str, Any] = msgspec.to_builtins(written)
    return encoded


def read_job(report: ReportContent) -> Job:
    """Return the job of a report. If the report compares two recorded traces, its engines are those that the traces name.

    UserError if the report was altered.
    """
    if report.job is None:
        infos = report.environment.actual, report.environment.expected
        return Job(Source(report.run.graph), engines=Engines(*map(_find_own, infos)))
    try:
        found = msgspec.convert(report.job, _WrittenJob)
    except msgspec.ValidationError as error:
        raise UserError(f"is not a job of kgverify: {error}", where="the run's job", fix="run it again") from None
    return found.make_job(Engines(found.engine, found.reference), found.equality)


def load_run_graph(report: ReportContent) -> KnowledgeGraph:
    """Load the graph of a report's job. UserError if it is not found, or was not a file on this machine."""
    return load_named_graph(read_job(report).source, "the run's graph")


def load_named_graph(source: Source, where: str) -> KnowledgeGraph:
    """Load a graph that a file names, not the user. UserError if it is not found, or was not a file on this machine."""
    files = msgspec.structs.asdict(source.graph).values() if isinstance(source.graph, GraphFiles) else (source.graph,)
    named = [each for value in files for each in (value if isinstance(value, tuple) else (value,))]
    if STANDARD_INPUT in named:
        # Standard input is read only if the user typed `-`, and cannot be read twice.
        raise UserError("was read from standard input", where=where, fix="write it to a file")
    if any(names_url(each) for each in named if isinstance(each, str)):
        # A stranger's file could make this machine contact any other machine.
        raise UserError("was read from a URL", where=where, fix="name it with --graph")
    return source.load()


def _find_own(info: EngineInfo) -> EngineSpec:
    """Return the kgverify engine that recorded a trace; for any other engine, a specification without a name."""
    if info.name == REFERENCE:
        return PLAIN
    return of_info(EngineSpec(COMPILED if info.name in (COMPILED, PLAIN_MODE) else ""), info)


def of_info(spec: EngineSpec, info: EngineInfo) -> EngineSpec:
    """Return the specification of a made engine, with the chosen mode and device."""
    return EngineSpec(spec.name, info.mode, info.device, info.faults) if spec.name == COMPILED else spec


def write_down(engine: EngineLike, where: str = "engine", *, default: str | None = None) -> EngineSpec:
    """Return the engine as a specification from which other processes and reproducers make it again.

    default: the name to use if the engine cannot be imported by its own name; without it, raise UserError
    """
    if isinstance(engine, EngineSpec):
        return engine
    if isinstance(engine, str):
        return EngineSpec(engine)
    if isinstance(engine, Reference):
        return PLAIN
    if isinstance(engine, EngineMaker):
        options = engine.options
        return EngineSpec(engine.name, **{name: options[name] for name in vars(EAGER) if name in options})
    path = getattr(engine, "__qualname__", "")
    name = f"{getattr(engine, '__module__', '')}:{path}"
    if path and "<" not in path:
        with suppress(UserError):
            if load_factory(name, "engine") is engine:
                return EngineSpec(name)
    if default is not None:
        return EngineSpec(default)
    raise UserError(
        "expected an engine that can be imported by its name",
        where=where,
        fix="define the class or function at the top level of a module",
    )
