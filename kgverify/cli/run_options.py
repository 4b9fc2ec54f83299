"""Groups of options that several commands share: the queries, the proofs, and the engine."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Any, TypeGuard

from kgverify.api.inputs import make_run
from kgverify.cli import options
from kgverify.cli.progress import print_warning
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.runs.run import Run


@dataclass(frozen=True)
class GraphOptions:
    """The source of the queries."""

    graph: options.Graph = "countries"
    rules: options.Rules = None
    split: options.Split = "test"

    def load(self) -> KnowledgeGraph:
        """Load the graph, and print its warnings."""
        loaded = load_graph(self.graph, rules=self.rules)
        for warning in loaded.warnings:
            print_warning(warning)
        return loaded


@dataclass(frozen=True)
class ProofOptions:
    """The policy and the limits of the proofs."""

    seed: options.Seed = 0
    policy: options.PolicySpec = "shortest"
    max_depth: options.MaxDepth = options.DEFAULT_LIMITS.max_depth
    max_atoms: options.MaxAtoms = options.DEFAULT_LIMITS.max_atoms
    max_resolvents: options.MaxResolvents = options.DEFAULT_LIMITS.max_resolvents
    exclude_query: options.ExcludeQuery = options.DEFAULT_LIMITS.exclude_query


@dataclass(frozen=True)
class RunOptions:
    """The candidates and how they are proved."""

    source: GraphOptions
    queries: options.Queries
    corruptions: options.Corruptions
    proofs: ProofOptions

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that `verify`, `record` and `make_run` have in common; loads the graph."""
        proofs = self.proofs
        loaded = self.source.load()
        return {
            "graph": loaded,
            "split": self.source.split,
            "queries": self.queries,
            "corruptions": self.corruptions,
            "seed": proofs.seed,
            "policy": proofs.policy,
            "limits": Limits(proofs.max_depth, proofs.max_atoms, proofs.max_resolvents, proofs.exclude_query),
        }

    def build(self) -> Run:
        """Return the run that the options describe. UserError for options that do not fit together."""
        return make_run(**self.arguments())


@dataclass(frozen=True)
class EngineOptions:
    """The compiled evaluator."""

    device: options.Device = "auto"
    mode: options.Mode = "auto"
    precision: options.Precision = "float32"
    slots: options.Slots = None
    fault: options.Faults = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that `verify`, `record` and `make_pipeline` have in common."""
        return {
            "device": self.device,
            "mode": self.mode,
            "precision": self.precision,
            "slots": self.slots,
            "faults": self.fault or (),
        }


def with_run_options(
    *, queries: int = 20, corruptions: str = "50", policy: str = "shortest"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of each parameter whose type is a dataclass, with these defaults."""
    defaults = {"queries": queries, "corruptions": corruptions, "policy": policy}

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
            default = defaults.get(field.name, field.default)
            yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type)


def _gather(group: type, values: dict[str, Any]) -> Any:
    """Return a group made of its options, which are removed from the values."""
    return group(
        **{
            field.name: _gather(field.type, values) if _is_group(field.type) else values.pop(field.name)
            for field in fields(group)
        }
    )
