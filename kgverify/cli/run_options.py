"""The options that say what is run, which the commands that run an engine share."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Final

from kgverify.cli import options
from kgverify.cli.options import naming_options, parse_corruptions
from kgverify.cli.progress import make_error_console
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.runs.run import Run, load_policy


@dataclass(frozen=True)
class GraphOptions:
    """Where the queries come from."""

    graph: options.Graph = "countries"
    rules: options.Rules = None
    split: options.Split = "test"


@dataclass(frozen=True)
class ProofOptions:
    """How candidates are proved."""

    seed: options.Seed = 0
    policy: options.PolicySpec = "shortest"
    max_depth: options.MaxDepth = options.DEFAULT_LIMITS.max_depth
    max_atoms: options.MaxAtoms = options.DEFAULT_LIMITS.max_atoms
    max_resolvents: options.MaxResolvents = options.DEFAULT_LIMITS.max_resolvents
    exclude_query: options.ExcludeQuery = options.DEFAULT_LIMITS.exclude_query


@dataclass(frozen=True)
class RunOptions:
    """What is run."""

    source: GraphOptions
    queries: options.Queries
    corruptions: options.Corruptions
    proofs: ProofOptions

    def build(self) -> Run:
        """The run that the options describe. Prints the graph's warnings. UserError for what does not fit."""
        source, proofs = self.source, self.proofs
        loaded = load_graph(source.graph, rules=source.rules)
        for warning in loaded.warnings:
            make_error_console().print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
        with naming_options():
            limits = Limits(proofs.max_depth, proofs.max_atoms, proofs.max_resolvents, proofs.exclude_query)
            loaded.queries(source.split)
        return Run(
            graph=loaded,
            limits=limits,
            policy=load_policy(proofs.policy, loaded, limits, proofs.seed),
            split=source.split,
            num_queries=self.queries,
            num_corruptions=parse_corruptions(self.corruptions),
            seed=proofs.seed,
        )


_GROUPS: Final = (GraphOptions, ProofOptions, RunOptions)


def with_run_options(
    *, queries: int = 20, corruptions: str = "50", policy: str = "shortest"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Where a command has a parameter of a type above, its command line has the options of that type, by these defaults."""
    defaults = {"queries": queries, "corruptions": corruptions, "policy": policy}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        groups = {name: each.annotation for name, each in signature.parameters.items() if each.annotation in _GROUPS}
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

        # What typer reads the command line from.
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _spell_out(group: type, defaults: Mapping[str, Any]) -> Iterator[inspect.Parameter]:
    """A parameter for each option of a group."""
    for field in fields(group):
        if field.type in _GROUPS:
            yield from _spell_out(field.type, defaults)
        else:
            default = defaults.get(field.name, field.default)
            yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type)


def _gather(group: type, values: dict[str, Any]) -> Any:
    """A group of its options, which are taken out of the values."""
    return group(
        **{
            field.name: _gather(field.type, values) if field.type in _GROUPS else values.pop(field.name)
            for field in fields(group)
        }
    )
