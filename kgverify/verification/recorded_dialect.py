"""The dialect in which a program gives the steps of a recorded trace."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from kgverify.comparison.inference.infer import ProgramInference, find_program
from kgverify.comparison.inference.other_dialect import (
    DialectFit,
    Shown,
    describe_changes,
    find_queries,
    read_steps,
)
from kgverify.comparison.result import Verdict
from kgverify.comparison.step_view import Names
from kgverify.errors import UserError, count_of
from kgverify.escaping import make_visible
from kgverify.files.writing import write_file
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.limits import DeclaredLimits, Dialect, render_dialect
from kgverify.program.program import Rule, Symbols, encode_atoms
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.schema import has_goals
from kgverify.trace.model.trace import Trace

UNDECLARED: Final = DeclaredLimits()
MOST_STEPS: Final = 2_000
"""The most steps to examine; they belong to candidates from everywhere in the trace."""


@dataclass(frozen=True, kw_only=True)
class RecordedDialect:
    """The dialect with which most steps of a trace agree. `print` shows it; `save` writes it for `--limits dialect=FILE`.

    dialect:      the declared one, changed in as few switches as possible
    changes:      the changed switches, in words; others that give as many steps are `alternatives`
    num_steps:    the steps examined, of `num_recorded`
    num_fitting:  the steps among them that the dialect gives; num_declared: those that the declared dialect gives
    first_misfit: the first step that it does not give, as lines of text
    """

    source: str
    dialect: Dialect
    changes: str
    alternatives: tuple[str, ...]
    num_recorded: int
    num_steps: int
    num_fitting: int
    num_declared: int
    first_misfit: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """AGREE if all steps fit, DIVERGE if some do not, INCONCLUSIVE without steps."""
        if not self.num_steps:
            return Verdict.INCONCLUSIVE
        return Verdict.DIVERGE if self.first_misfit else Verdict.AGREE

    def save(self, path: str | Path) -> None:
        """Write the dialect as a TOML file. UserError if it cannot be written."""
        write_file(path, f"# Of {make_visible(self.source)}: {self._summary()}.\n{render_dialect(self.dialect)}")

    def _summary(self) -> str:
        what = " or ".join(f"`{each}`" for each in (self.changes, *self.alternatives)) if self.changes else ""
        how_many = "all" if not self.first_misfit else f"{self.num_fitting:,} of"
        fitting = f"{how_many} {count_of(self.num_steps, 'step')} fit {what or 'the declared dialect'}"
        return fitting + f"; {self.num_declared:,} fit the declared dialect" * bool(self.changes)

    def __str__(self) -> str:
        """Return the switches, and the first step that does not fit."""
        examined = f"{self.num_steps:,} of {count_of(self.num_recorded, 'recorded step')} examined"
        lines = [f"DIALECT   {self.source}   {examined}", self._summary() if self.num_steps else "nothing was examined"]
        return "\n".join(map(make_visible, [*lines, *self.first_misfit]))


def find_dialect(
    trace: Trace, graph: KnowledgeGraph | None = None, limits: DeclaredLimits = UNDECLARED
) -> RecordedDialect:
    """Return the dialect of a trace. See `kgverify.dialects.recognise_dialect`."""
    has_program = find_program([trace]) is not None
    if graph is not None:
        if has_program:
            raise UserError("the trace holds its program", where="graph", fix="leave it out")
        trace = adopt_program(trace, graph)
    inference = ProgramInference(find_program([trace])).origins
    if inference is None or not has_goals(trace.header.level) or "steps.goal_atoms" not in trace.fields:
        raise UserError(
            "does not hold its goals and its program, from which steps are taken again",
            where=trace.source,
            fix="record it at level steps, and name its graph with --graph, in Python graph=",
        )
    given = {name: value for name in limits.__struct_fields__ if (value := getattr(limits, name)) is not None}
    declared = DeclaredLimits(**{name: getattr(trace.header.limits, name) for name in limits.__struct_fields__} | given)
    candidates = trace.columns.candidates
    num_recorded = int(candidates.num_steps.sum(dtype=np.int64))
    rows = np.arange(0, len(candidates.num_steps), max(1, -(-num_recorded // MOST_STEPS)))
    shown = Shown(
        has_program and {"resolvents.origin", "resolvents.origin_kind"} <= trace.fields,
        {"steps.dropped_atoms", "steps.dropped_resolvents"} <= trace.fields,
        "steps.depth" in trace.fields,
        trace.header.engine.variables == "own",
    )
    steps = read_steps(select_candidates(trace.columns, rows), find_queries(candidates, rows), shown)
    fit = DialectFit(inference.clauses, declared.with_defaults(), list(islice(steps, MOST_STEPS)), shown)
    best = fit.find_best()
    own = fit.declared.dialect
    changes = describe_changes(own, best.dialect)
    others = best.alternatives[1:] if changes in best.alternatives else ()
    return RecordedDialect(
        source=trace.source,
        dialect=best.dialect,
        changes=changes,
        alternatives=others,
        num_recorded=num_recorded,
        num_steps=len(fit.steps),
        num_fitting=len(fit.steps) - len(best.misfits),
        num_declared=len(fit.steps) - len(fit.declared.misfits),
        first_misfit=tuple(
            line
            for number in best.misfits[:1]
            for line in _describe_misfit(fit, number, best.dialect, rows.tolist(), Names(trace))
        ),
    )


def _describe_misfit(
    fit: DialectFit, number: int, dialect: Dialect, rows: Sequence[int], names: Names
) -> Iterator[str]:
    """Yield a step that a dialect does not give. rows: the rows of the candidates in the trace."""
    given, recorded = fit.give(number, dialect), fit.steps[number]
    step = recorded.step
    own = [(each.kind, each.atoms) for each in step.resolvents]
    candidate = f"candidate {rows[recorded.candidate]}, {names.atom(recorded.query)}"
    yield f"first step that does not fit: {candidate}, step {len(recorded.earlier)}"
    yield f"   goal        {names.goal(step.goal)}"
    for title, listed in (("the dialect", [key[:2] for key in given.keys]), ("recorded", own)):
        yield f"   {title:<11} {'; '.join(names.goal(atoms, kind) for kind, atoms in listed)}"  # type: ignore[arg-type]


def adopt_program(trace: Trace, graph: KnowledgeGraph) -> Trace:
    """Return a trace with the facts and rules of a graph, in the ids of the trace; new names follow its own."""
    known = graph.program.symbols
    symbols = Symbols(
        tuple(dict.fromkeys((*trace.symbols.predicates, *known.predicates))),
        tuple(dict.fromkeys((*trace.symbols.constants, *known.constants))),
    )
    ids = symbols.predicate_ids, symbols.constant_ids
    # The facts are tried in the order of the graph's own ids.
    predicates, constants = (
        np.array([own[name] for name in names], np.int32)
        for own, names in zip(ids, (known.predicates, known.constants), strict=True)
    )
    facts = np.stack([predicates[graph.program.facts[:, 0]], *constants[graph.program.facts[:, 1:]].T], axis=1)
    rules = [encode_atoms(rule.atoms, *ids) for rule in graph.rules]
    return replace(trace, symbols=symbols, facts=facts, rules=tuple([Rule(atoms[0], atoms[1:]) for atoms in rules]))
