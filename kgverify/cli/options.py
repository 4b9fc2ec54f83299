"""The options that several commands share: the fields of the records that Python takes as well, with their help texts.

A record whose options have other names on the command line, or other defaults, is extended here; a group leaves out the fields
that only Python or other commands take.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from cyclopts import Group, Parameter
from rich.table import Table

from kgverify.cli.output import CatalogueAsked, is_typed
from kgverify.cli.progress import make_result_console, print_warning, show_phase, write_json
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.engines.table import COMPILED, REFERENCE, find_class, make_entry
from kgverify.errors import UserError, check_known
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import load_graph
from kgverify.program.limits import OURS, SEARCHES, DeclaredLimits, Dialect, Limits, read_dialect
from kgverify.report.render.screen import FittedTable
from kgverify.runs.job import EngineLike, Engines, Job, Proofs, Queries, Reference, Source, choose_reference
from kgverify.runs.run import MOST

CATALOGUE: Final = "list"
"""The word that `--fault` takes instead of a name, to print the catalogue."""
DEFAULT_GRAPH: Final = "countries"

_PAIRS: Final = re.compile(r",(?=\w+=)")
_VALUES: Final[Mapping[Any, tuple[Any, str, str]]] = {
    int: (Annotated[int, msgspec.Meta(ge=0)], "a whole number", "give for example 6"),
    float: (float, "a number", "give for example 2"),
    bool: (bool, "true or false", "give one of the two"),
}
"""The types of values that are not texts: the type that reads one, its name, and how to write one."""

Kinds = Mapping[str, Callable[[str], Any]]
"""The keys of an option, each with the type of its value, or a function that reads the value."""


def parse_pairs(texts: Sequence[str], kinds: Kinds, where: str) -> dict[str, Any]:
    """Return the pairs of `key=value,key=value`. UserError for an unknown key, and for a wrong value or none."""
    pairs: dict[str, Any] = {}
    for text in (part for each in texts for part in _PAIRS.split(each)):
        key, sign, value = text.partition("=")
        key = key.strip().replace("-", "_")
        check_known(key, kinds, "key", where)
        if not sign or not value:
            raise UserError(f"{key} needs a value", where=where, fix=f"give {key}=VALUE")
        kind, name, fix = _VALUES.get(kinds[key], (None, "", ""))
        try:
            pairs[key] = kinds[key](value) if kind is None else msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError:
            raise UserError(f"expected {name}, found {value!r}", where=key, fix=fix) from None
    return pairs


TUNED: Final[Kinds] = {"precision": str, "slots": int, "memory": str}
_FILES: Final[Kinds] = dict.fromkeys(("train", "valid", "test", "domains", "rule_variables", "columns"), str) | {
    "skip_rules": bool
}
_LIMITS: Final[Kinds] = dict.fromkeys(("max_depth", "max_atoms", "max_resolvents"), int) | {
    "exclude_query": bool,
    "dialect": lambda text: read_dialect(Path(text)),
    **dict.fromkeys(SEARCHES, str),
}
KEYS: Final = {"--graph": _FILES, "--limits": _LIMITS, "--tune": TUNED}
"""The keys of each option that takes pairs."""


def parse_dialect(text: str) -> Dialect:
    """Return the dialect of a TOML file, or the one with the search of `search=beam(4),merge=sum`. UserError for another text."""
    if "=" not in text:
        return read_dialect(Path(text))
    return Dialect(**parse_pairs([text], dict.fromkeys(SEARCHES, str), "dialect"))


def of_record(title: str | None, place: int = 0, *, without: Collection[str] = ()) -> Parameter:
    """Make a record a group of options with a title, in an order, without some fields."""
    parse = re.compile(f"^(?!(?:{'|'.join(without)})$)") if without else None
    if title is None:
        return Parameter(name="*", parse=parse)
    return Parameter(name="*", parse=parse, group=Group(title, sort_key=place))


def list_faults() -> list[str]:
    """Return the names that `--fault` takes."""
    faults, composites = make_entry(COMPILED).catalogue()
    return [*(fault.name for fault, _ in faults), *(each.name for each in composites), CATALOGUE]


# Shells complete the names that are listed; any other text is taken as well.
EngineName = Annotated[
    Literal["compiled", "reference", "search", "model"] | str, Parameter(metavar="ENGINE", show_choices=False)
]
Faults = Annotated[
    Sequence[str] | str,
    Parameter(name="--fault", choices=list_faults(), show_choices=False, negative=""),
]


@dataclass(frozen=True)
class QueryOptions(Queries):
    """The queries."""

    number: Annotated[int | None, Parameter(name="--queries")] = 20


@dataclass(frozen=True)
class AllQueryOptions(QueryOptions):
    """The queries, all of them."""

    number: Annotated[int | None, Parameter(name="--queries")] = None
    corruptions: int | str = "all"


@dataclass(frozen=True)
class EvaluatorOptions(find_class(COMPILED)):  # type: ignore[misc]  # the class that the table of engines names
    """The compiled evaluator.

    Attributes:
        tune: precision=float32, bf16x3, fp16 or bf16: that of the policy's matrix products, docs/evaluating.md; slots=N:
            derivations that are proved at the same time; memory=8GiB: the maximum of an evaluation's batch.
    """

    precision: Annotated[str, Parameter(parse=False)] = "float32"
    slots: Annotated[int | None, Parameter(parse=False)] = None
    memory: Annotated[int | str | None, Parameter(parse=False)] = None
    faults: Faults = ()
    work: Annotated[object, Parameter(parse=False)] = None
    tune: Annotated[tuple[str, ...], Parameter(metavar="KEY=VALUE,...")] = ()

    def __post_init__(self) -> None:
        for name, value in parse_pairs(self.tune, TUNED, "tune").items():
            object.__setattr__(self, name, value)
        if CATALOGUE in self.faults:
            raise CatalogueAsked
        super().__post_init__()

    @property
    def options(self) -> dict[str, Any]:
        """The options of the evaluator that differ from their defaults, by name."""
        return {name: value for name, value in super().options.items() if name != "tune"}


@dataclass(frozen=True)
class EngineOptions:
    """The two engines.

    Attributes:
        engine: The engine under test: compiled, reference, or your own as MODULE:NAME or FILE.py:NAME.
        reference: The engine to compare with, given in the same way; or search or model, for an engine that tells only outcomes.
    """

    engine: EngineName = COMPILED
    reference: EngineName | None = None


@dataclass(frozen=True)
class OtherEngineOptions:
    """The engines that replace those of a file.

    Attributes:
        engine: Replaces the engine under test: compiled, reference, or your own as MODULE:NAME or FILE.py:NAME.
        reference: Replaces the engine to compare with, given in the same way.
        trust: Import the code of third parties' engines that the file names.
    """

    engine: EngineName | None = None
    reference: EngineName | None = None
    trust: Annotated[bool, Parameter(negative="")] = False


@dataclass(frozen=True)
class GraphOptions:
    """The graph.

    Attributes:
        graph: An embedded graph's name, countries if not given, a name under $KGVERIFY_DATA, or a path. KEY=VALUE, beside
            it or instead, replaces a part: train (repeatable), valid, test or domains=FILE; rule_variables=format or graph,
            skip_rules=true, columns=head,tail,relation; docs/graphs.md.
        rules: A file of rules that replaces those of the graph.
    """

    graph: Annotated[
        tuple[Literal["countries"] | str, ...], Parameter(metavar="NAME|KEY=VALUE", show_choices=False)
    ] = ()
    rules: Path | None = None

    @property
    def is_given(self) -> bool:
        """True if a graph is named, or its facts."""
        name, files = self._read()
        return name is not None or "train" in files

    def _read(self) -> tuple[str | None, dict[str, Any]]:
        """Return the name of the graph, and its files."""
        pairs = [text for text in self.graph if text.partition("=")[0] in _FILES and "=" in text]
        names = [text for text in self.graph if text not in pairs]
        if len(names) > 1:
            raise UserError(f"expected one graph, found {', '.join(names)}", where="graph", fix="give one of them")
        files = parse_pairs([text for text in pairs if not text.startswith("train=")], _FILES, "graph")
        if trains := [text.removeprefix("train=") for text in pairs if text.startswith("train=")]:
            files["train"] = trains
        if self.rules is not None:
            files["rules"] = self.rules
        return next(iter(names), None), files

    def load(self) -> KnowledgeGraph:
        """Load the graph, and print its warnings. UserError if it cannot be read."""
        name, files = self._read()
        with show_phase("reading the graph", 0):
            loaded = load_graph(DEFAULT_GRAPH if name is None and "train" not in files else name, **files)
        for warning in loaded.warnings:
            print_warning(warning)
        return loaded

    def load_moved(self) -> KnowledgeGraph | None:
        """Load the graph; None if nothing is given. UserError for files of no graph."""
        if self.is_given:
            return self.load()
        if self.graph or self.rules:
            where = "graph" if self.graph else "rules"
            raise UserError("belongs to no graph", where=where, fix="give --graph NAME or --graph train=FILE as well")
        return None


@dataclass(frozen=True)
class LimitOptions:
    """The limits of a derivation.

    Attributes:
        limits: Limits of a derivation: max_depth=20,max_atoms=6,max_resolvents=120,exclude_query=true, dialect=FILE, a
            TOML file, and search=beam(8), merge=sum, aggregate=sum; docs/semantics.md.
    """

    limits: Annotated[tuple[str, ...], Parameter(metavar="KEY=VALUE,...")] = ()

    def read_limits(self) -> Limits:
        """Return the limits. UserError for an unknown one."""
        return self.given_limits().with_defaults()

    def given_limits(self) -> DeclaredLimits:
        """Return the limits that are given; the others are unknown. UserError for an unknown one."""
        given = parse_pairs(self.limits, _LIMITS, "limits")
        if switches := {name: given.pop(name) for name in SEARCHES if name in given}:
            given["dialect"] = msgspec.structs.replace(given.get("dialect", OURS), **switches)
        return DeclaredLimits(**given)


@dataclass(frozen=True)
class ProofOptions(LimitOptions):
    """The policy and the limits of the proofs.

    Attributes:
        policy: shortest, two_tower (random weights), trained (weights that come with kgverify), or a safetensors file.
        limits: Limits of a derivation: max_depth=20,max_atoms=6,max_resolvents=120,exclude_query=true, dialect=FILE, a
            TOML file, and search=beam(8), merge=sum, aggregate=sum; docs/semantics.md.
    """

    policy: Annotated[
        Literal["shortest", "two_tower", "trained"] | str, Parameter(metavar="TEXT", show_choices=False)
    ] = "shortest"


GRAPH: Final = of_record("Graph and queries", 1)
PROOFS: Final = of_record("Proofs", 2)
EVALUATOR: Final = of_record("Compiled evaluator", 3)
SMALL_EVALUATOR: Final = of_record("Compiled evaluator", 3, without=("tune",))
EQUALITY: Final = of_record("Comparison", 4)
OWN: Final = of_record(None)
RECORDING: Final = of_record(None, without=("as_reference", "scheduler"))
EVALUATION: Final = of_record(None, without=("check", "warn"))
FUZZING: Final = of_record(None, without=("dialect", "today"))


SHARED_KEYS: Final = frozenset(
    field.name
    for record in (EngineOptions, GraphOptions, Queries, ProofOptions, EvaluatorOptions, Equality, Reference)
    for field in fields(record)
) - {"number", "work", *TUNED} | {"queries", "fault"}
"""The keys that a configuration file may hold outside of the table of a command."""


@dataclass(frozen=True)
class JobOptions:
    """The graph, the queries, and their proofs."""

    source: Annotated[GraphOptions, GRAPH] = GraphOptions()
    queries: Annotated[QueryOptions, GRAPH] = QueryOptions()
    proofs: Annotated[ProofOptions, PROOFS] = ProofOptions()

    def make(self, engines: Engines = Engines(), equality: Equality = DEFAULT_EQUALITY) -> Job:
        """Return the job that the options describe; loads the graph."""
        queries, limits, loaded = self.queries, self.proofs.given_limits(), self.source.load()
        num = len(loaded.queries(queries.split))
        if queries.number is not None and num < queries.number <= MOST and is_typed("--queries"):
            print_warning(f"--queries {queries.number}: the split {queries.split} has {num:,}, and all are taken")
        return Job(Source(loaded), queries, engines, Proofs(limits, self.proofs.policy), equality)


@dataclass(frozen=True)
class AllJobOptions(JobOptions):
    """The graph, all queries, and their proofs."""

    queries: Annotated[AllQueryOptions, GRAPH] = AllQueryOptions()


@dataclass(frozen=True)
class SideOptions:
    """The two engines, and the options of the compiled evaluator."""

    engines: Annotated[EngineOptions, OWN] = EngineOptions()
    evaluator: Annotated[EvaluatorOptions, EVALUATOR] = EvaluatorOptions()

    def make(self, work: Reference = Reference()) -> Engines:
        """Return both engines. UserError for options of an engine that is on neither side.

        Faults are planted in the engine under test, or in the reference if only that is the evaluator.
        """
        names = self.engines
        refuse_options(self.evaluator, names.engine, choose_reference(names.reference))
        options = self.evaluator.options
        sides: list[EngineLike | None] = [names.engine, names.reference]
        for i, name in enumerate(sides):
            if name == COMPILED:
                sides[i] = make_entry(COMPILED, **options)
                options = {key: value for key, value in options.items() if key != "faults"}
        if names.reference == REFERENCE or (names.reference is None and work != Reference()):
            sides[1] = work
        elif work != Reference():
            where = "jobs" if work.scheduler is None else "scheduler"
            raise UserError(
                f"is for the reference, and {names.reference} proves in this process", where=where, fix="leave it out"
            )
        return Engines(sides[0] or COMPILED, sides[1])


@dataclass(frozen=True)
class SmallSideOptions(SideOptions):
    """The two engines, and the options of the compiled evaluator on generated problems."""

    evaluator: Annotated[EvaluatorOptions, SMALL_EVALUATOR] = EvaluatorOptions()


def find_typed(names: Iterable[str]) -> str | None:
    """Return the first of some fields whose option the user typed, instead of leaving its default, or None."""
    others = {"number": "--queries", "faults": "--fault"} | dict.fromkeys(TUNED, "--tune")
    return next((name for name in names if is_typed(f"--{name.replace('_', '-')}", others.get(name, ""))), None)


def refuse_options(evaluator: EvaluatorOptions, *engines: str) -> None:
    """Raise UserError for options of the evaluator that were typed, though none of the engines is the evaluator."""
    if COMPILED not in engines and (name := find_typed(evaluator.options)):
        raise UserError(
            "faults are planted in the compiled evaluator alone"
            if name == "faults"
            else f"is an option of the compiled evaluator, which does not run: {' and '.join(dict.fromkeys(engines))}",
            where=name,
            fix="leave it out, or use --engine compiled",
        )


def print_catalogue() -> None:
    """Print the catalogue of faults."""
    faults, composites = make_entry(COMPILED).catalogue()
    table = Table(
        "name", "stage", "breaks", "seen in", "carried by", title=f"{len(faults)} faults", row_styles=("", "dim")
    )
    rows = [
        (fault.name, fault.stage.value, fault.breaks, fault.seen_in, ", ".join(carriers)) for fault, carriers in faults
    ]
    composed_table = Table("name", "faults", "breaks", "seen in", title=f"{len(composites)} composites")
    composed_rows = [(each.name, ", ".join(each.parts), each.breaks, each.seen_in) for each in composites]
    make_result_console().print(FittedTable(table, rows), FittedTable(composed_table, composed_rows))
    shown = "name", "stage", "breaks", "seen_in", "expected_kind", "needs", "dialect"
    listed = [{name: getattr(fault, name) for name in shown} | {"carried_by": carriers} for fault, carriers in faults]
    of_composites = "name", "parts", "breaks", "seen_in"
    composed = [{name: getattr(each, name) for name in of_composites} for each in composites]
    write_json({"faults": listed, "composites": composed})
