"""The options that several commands share, with their help texts, and groups of them: the queries, the proofs, the engine."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, TypeGuard

import msgspec
import typer

from kgverify.cli import completion
from kgverify.cli.help import EVALUATOR, PROOFS, QUERIES
from kgverify.cli.output import QUIET, set_quiet
from kgverify.cli.progress import is_typed, print_note, print_warning, show_phase
from kgverify.comparison.equality import Equality
from kgverify.comparison.exercise.minimum import MINIMUM, describe_minimum
from kgverify.engines.table import COMPILED, REFERENCE, make_entry
from kgverify.errors import UserError
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.dialect import OURS, read_dialect
from kgverify.program.limits import DeclaredLimits, Limits
from kgverify.runs.job import EngineLike, Engines, Job, Proofs, Queries, Reference, Source
from kgverify.runs.run import MOST, Run

MOST_JOBS: Final = 1024

Graph = Annotated[
    str,
    typer.Option(
        help="An embedded graph's name, a name under $KGVERIFY_DATA, or a path.",
        show_default=True,
        autocompletion=completion.complete_graph,
        rich_help_panel=QUERIES,
    ),
]
Train = Annotated[
    list[Path] | None,
    typer.Option(help="A file of facts that replaces those of the graph; repeat it for more.", rich_help_panel=QUERIES),
]
Valid = Annotated[
    Path | None,
    typer.Option(help="A file of triples that replaces the valid split of the graph.", rich_help_panel=QUERIES),
]
Test = Annotated[
    Path | None,
    typer.Option(help="A file of triples that replaces the test split of the graph.", rich_help_panel=QUERIES),
]
Rules = Annotated[
    Path | None, typer.Option(help="A file of rules that replaces those of the graph.", rich_help_panel=QUERIES)
]
Domains = Annotated[
    Path | None, typer.Option(help="A file of domains that replaces those of the graph.", rich_help_panel=QUERIES)
]
RuleVariables = Annotated[
    str | None,
    typer.Option(
        help="How to read a rule's variable that is a constant: `format` or `graph`.", rich_help_panel=QUERIES
    ),
]
SkipRules = Annotated[
    bool, typer.Option("--skip-rules", help="Leave out and list rules that cannot be used.", rich_help_panel=QUERIES)
]
Columns = Annotated[
    str | None,
    typer.Option(help="The columns of tables without a header row, e.g. head,tail,relation.", rich_help_panel=QUERIES),
]
Split = Annotated[
    str,
    typer.Option(
        help="The split whose triples are the queries: train, valid or test.",
        autocompletion=completion.complete_split,
        rich_help_panel=QUERIES,
    ),
]
QueriesOption = Annotated[
    int, typer.Option(help="Number of queries, from the beginning of the split.", rich_help_panel=QUERIES)
]
Corruptions = Annotated[
    str, typer.Option(help="Corruptions for each query and side; `all` for every entity.", rich_help_panel=QUERIES)
]
Seed = Annotated[int, typer.Option(help="Seed of the corruptions and of a random policy.", rich_help_panel=PROOFS)]
PolicySpec = Annotated[
    str,
    typer.Option(
        "--policy",
        help="shortest, two_tower (random weights), trained (weights that come with kgverify), or a safetensors file.",
        autocompletion=completion.complete_policy,
        rich_help_panel=PROOFS,
    ),
]
MaxDepth = Annotated[int, typer.Option(help="Maximum steps of a derivation.", rich_help_panel=PROOFS)]
MaxAtoms = Annotated[int, typer.Option(help="Maximum atoms of a resolvent.", rich_help_panel=PROOFS)]
MaxResolvents = Annotated[int, typer.Option(help="Maximum resolvents of a step.", rich_help_panel=PROOFS)]
ExcludeQuery = Annotated[
    bool, typer.Option(help="Do not use the query as a fact in its own derivation.", rich_help_panel=PROOFS)
]
DialectFile = Annotated[
    Path | None,
    typer.Option(
        "--dialect",
        metavar="FILE",
        help="The dialect of the proofs, as TOML: docs/semantics.md.",
        rich_help_panel=PROOFS,
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="ENGINE",
        help="The engine under test: compiled, reference, or your own as MODULE:NAME or FILE.py:NAME.",
        autocompletion=completion.complete_engine,
    ),
]
ReferenceOption = Annotated[
    str,
    typer.Option(
        metavar="ENGINE",
        help="The engine to compare with: reference, compiled, or your own as MODULE:NAME or FILE.py:NAME.",
        autocompletion=completion.complete_engine,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="Device of the compiled evaluator: auto, cpu or cuda.",
        autocompletion=completion.complete_device,
        rich_help_panel=EVALUATOR,
    ),
]
Mode = Annotated[
    str,
    typer.Option(
        help="Mode of the compiled evaluator: auto, native, fused, eager, default, reduce-overhead,"
        " max-autotune or plain.",
        autocompletion=completion.complete_mode,
        rich_help_panel=EVALUATOR,
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        help="Precision of the policy's matrix products: float32, or on CUDA bf16x3, fp16 or bf16.",
        autocompletion=completion.complete_precision,
        rich_help_panel=EVALUATOR,
    ),
]
Slots = Annotated[
    int | None,
    typer.Option(help="Derivations that the compiled evaluator proves at the same time.", rich_help_panel=EVALUATOR),
]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        help="Plant a fault in the compiled evaluator, e.g. fact-cap.",
        autocompletion=completion.complete_fault,
        rich_help_panel=EVALUATOR,
    ),
]
Jobs = Annotated[int, typer.Option(min=1, max=MOST_JOBS, help="Processes in which kgverify's reference prover proves.")]
Scheduler = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="A dask scheduler whose workers prove; docs/machines.md."),
]
AcceptChanged = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-changed",
        metavar="NAME",
        help="Resume although this code changed, e.g. helper.py; may be repeated.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import the code of third parties' engines that the file names.", show_default=False),
]
Quiet = Annotated[
    bool,
    typer.Option(
        *QUIET, help="Print the line of the verdict alone, and no progress.", callback=set_quiet, show_default=False
    ),
]
JsonPath = Annotated[
    str | None, typer.Option("--json", metavar="PATH", help="Write the result as JSON; - for standard output.")
]
MinimumSpec = Annotated[
    str | None,
    typer.Option(
        "--minimum",
        metavar="ITEMS",
        help="The exercise that AGREE requires: candidates proved, rules used, steps with more than one resolvent; none."
        f" If not given: {describe_minimum(MINIMUM)}.",
    ),
]

DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class GraphOptions:
    """The graph, and files that replace its own."""

    graph: Graph = "countries"
    train: Train = None
    valid: Valid = None
    test: Test = None
    rules: Rules = None
    domains: Domains = None
    rule_variables: RuleVariables = None
    skip_rules: SkipRules = False
    columns: Columns = None

    def files(self) -> dict[str, Any]:
        """Return the files and how they are read, as `load_graph` takes them."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "graph"}

    def load(self) -> KnowledgeGraph:
        """Load the graph, and print its warnings."""
        from kgverify.graphs.load import load_graph

        is_complete = bool(self.train) and not is_typed("--graph")
        with show_phase("reading the graph", 0):
            loaded = load_graph(None if is_complete else self.graph, **self.files())
        if loaded.is_stored:
            print_note(f"{loaded.name}: taken from the cache of graphs, where the same code stored it", style="dim")
        for warning in loaded.warnings:
            print_warning(warning)
        return loaded


@dataclass(frozen=True)
class SourceOptions:
    """The source of the queries."""

    files: GraphOptions
    split: Split = "test"


@dataclass(frozen=True)
class ProofOptions:
    """The policy and the limits of the proofs."""

    seed: Seed = 0
    policy: PolicySpec = "shortest"
    max_depth: MaxDepth = DEFAULT_LIMITS.max_depth
    max_atoms: MaxAtoms = DEFAULT_LIMITS.max_atoms
    max_resolvents: MaxResolvents = DEFAULT_LIMITS.max_resolvents
    exclude_query: ExcludeQuery = DEFAULT_LIMITS.exclude_query
    dialect: DialectFile = None

    def limits(self) -> Limits:
        """Return the limits, with the dialect of the file."""
        return make_limits(self.max_depth, self.max_atoms, self.max_resolvents, self.exclude_query, self.dialect)

    def typed_limits(self) -> DeclaredLimits:
        """Return the limits that were typed; the others are unknown."""
        every = msgspec.structs.asdict(self.limits())
        options = {name: f"--{name.replace('_', '-')}" for name in every}
        words = {name: (option, f"--no-{option[2:]}") for name, option in options.items()}
        return DeclaredLimits(**{name: every[name] for name, typed in words.items() if any(map(is_typed, typed))})


def make_limits(
    max_depth: int, max_atoms: int, max_resolvents: int, exclude_query: bool = True, dialect: Path | None = None
) -> Limits:
    """Return the limits that options give."""
    spoken = OURS if dialect is None else read_dialect(dialect)
    return Limits(max_depth, max_atoms, max_resolvents, exclude_query, spoken)


@dataclass(frozen=True)
class RunOptions:
    """The candidates and how they are proved."""

    source: SourceOptions
    queries: QueriesOption
    corruptions: Corruptions
    proofs: ProofOptions

    def job(self, engines: Engines | None = None, equality: Equality | None = None) -> Job:
        """Return the job that the options describe; loads the graph."""
        proofs, source = self.proofs, self.source
        loaded = source.files.load()
        num = len(loaded.queries(source.split))
        if num < self.queries <= MOST and is_typed("--queries"):
            print_warning(f"--queries {self.queries}: the split {source.split} has {num:,}, and all are taken")
        return Job(
            Source(loaded),
            Queries(self.queries, self.corruptions, source.split, proofs.seed),
            Engines() if engines is None else engines,
            Proofs(proofs.limits(), proofs.policy),
            Equality() if equality is None else equality,
        )

    def build(self) -> Run:
        """Return the run that the options describe. UserError for options that do not fit together."""
        return self.job().make_run()


@dataclass(frozen=True)
class EngineOptions:
    """The compiled evaluator."""

    device: Device = "auto"
    mode: Mode = "auto"
    precision: Precision = "float32"
    slots: Slots = None
    fault: Faults = None

    def engines(
        self, engine: str, reference: str, *, jobs: int = 1, scheduler: str | None = None, **further: Any
    ) -> Engines:
        """Return both engines, with the options of the evaluator. UserError for options of an engine that is on neither side.

        Faults are planted in the engine under test, or in the reference if only that is the evaluator.
        further: options of the evaluator that only this command has
        """
        options = further | {name: getattr(self, name) for name in ("mode", "device", "precision", "slots")}
        faults = tuple(self.fault or ())
        if COMPILED not in (engine, reference):
            self._refuse_options(options | {"faults": faults}, engine, reference)
        sides: list[EngineLike] = []
        for name in (engine, reference):
            if name == COMPILED:
                sides.append(make_entry(COMPILED, **options, faults=faults))
                faults = ()
            else:
                sides.append(name)
        if reference == REFERENCE:
            sides[1] = Reference(jobs, scheduler)
        elif jobs != 1 or scheduler is not None:
            where = "jobs" if scheduler is None else "scheduler"
            raise UserError(
                f"is for the reference, and {reference} proves in this process", where=where, fix="leave it out"
            )
        return Engines(*sides)

    def _refuse_options(self, options: dict[str, Any], engine: str, reference: str) -> None:
        names = " and ".join(dict.fromkeys((engine, reference)))
        for name, value in options.items():
            if value not in (None, (), False, "auto", "float32"):
                what = "faults are planted in the compiled evaluator alone"
                raise UserError(
                    what
                    if name == "faults"
                    else f"is an option of the compiled evaluator, which does not run: {names}",
                    where=name,
                    fix="leave it out, or use --engine compiled",
                )


def with_run_options(
    *, queries: int = 20, corruptions: str = "50"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of each parameter whose type is a dataclass, with defaults for those that have none."""
    defaults = {"queries": queries, "corruptions": corruptions}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        groups = {name: each.annotation for name, each in signature.parameters.items() if _is_group(each.annotation)}
        parameters: list[inspect.Parameter] = []
        for name, parameter in signature.parameters.items():
            if name in groups:
                parameters += _spell_out(groups[name], defaults)
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @wraps(command)
        def run(**values: Any) -> None:
            for name, group in groups.items():
                values[name] = _gather(group, values)
            command(**values)

        # Typer reads the options from the signature.
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _is_group(annotation: Any) -> TypeGuard[type]:
    return isinstance(annotation, type) and is_dataclass(annotation)


def _spell_out(group: type, defaults: Mapping[str, Any]) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each option of a group."""
    for field in fields(group):
        if _is_group(field.type):
            yield from _spell_out(field.type, defaults)
        else:
            default = defaults.get(field.name) if field.default is MISSING else field.default
            yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type)


def _gather(group: type, values: dict[str, Any]) -> Any:
    """Return a group made of its options, which are removed from the values."""
    return group(
        **{
            field.name: _gather(field.type, values) if _is_group(field.type) else values.pop(field.name)
            for field in fields(group)
        }
    )
