"""Two traces made comparable: they share a numbering of names, their columns, and a definition of equality.

A trace without goals cannot be renumbered, and its digests cannot be recomputed. Such a trace stays as it is. The other
trace, if it has goals, adopts its numbering and drops the columns that its digests do not count.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, Union

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.codes import Code, Coded
from kgverify.comparison.modulo import DUPLICATES, NAMES, NOTHING, ORDER, Modulo, describe_modulo, hash_goals, normalise
from kgverify.comparison.result import DIGEST, FieldRule
from kgverify.comparison.step_view import UNNAMED, Names
from kgverify.program.atoms import Atom, Goal, as_goal
from kgverify.program.limits import NUMBERS, describe_differences
from kgverify.program.outcomes import Origin, Outcome, Stage
from kgverify.program.program import Rule, Symbols
from kgverify.trace.model.columns import (
    NO_DIGESTS,
    Candidates,
    CandidateSet,
    Columns,
    Digests,
    Range,
    Resolvents,
    StageItems,
    are_neighbours,
    empty_columns,
    expand_rows,
    no_stage_items,
    starts_of,
)
from kgverify.trace.model.digests import COUNTED, Words, compute_digests
from kgverify.trace.model.header import NUM_STEPS, SEARCHED, EngineInfo
from kgverify.trace.model.paths import find_levels, has_paths
from kgverify.trace.model.schema import EqualityRule, TraceLevel, has_goals
from kgverify.trace.model.score_tolerance import ScoreError, judge_tolerance
from kgverify.trace.model.trace import Trace

if TYPE_CHECKING:
    from kgverify.comparison.stored_columns import FileSource
    from kgverify.trace.read.trace_file import Member, TraceFile


VERIFIED_STEPS: Final = 1 << 14
"""The largest number of steps of a trace whose values and digests are all verified, since this takes longer than comparing. Of a
larger trace, as many steps are verified, spread over it."""

_OF_STEPS: Final = frozenset({NUM_STEPS, "candidates.is_limited"})


class MemorySource:
    """A trace in memory, or mapped into it. It has the same methods as `FileSource`."""

    faults: tuple[str, ...] = ()
    is_verified = True

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.header, self.fields, self.rankings = trace.header, trace.fields, trace.rankings
        self.schema = trace.schema
        rows = trace.schema.count_rows(trace.columns)
        self.num_candidates, self.num_steps = rows["candidates"], rows["steps"]
        self.members: Sequence[Member] = ()

    def shell(self, *, has_candidates: bool = False) -> Trace:
        """Return the trace without its steps, and without its candidates unless they are wanted."""
        columns = self.trace.reader.read_steps(0, 0)
        if has_candidates:
            columns = columns._replace(candidates=self.trace.columns.candidates)
        return replace(self.trace, columns=columns, digests=NO_DIGESTS)

    @property
    def labels(self) -> NDArray[Any] | None:
        """The labels of true triples, [N], 0 for other candidates; None if the trace has none."""
        return self.trace.labels

    @property
    def block_steps(self) -> int:
        """The steps to read at a time."""
        return self.trace.reader.block_steps

    def split(self) -> Iterator[Range]:
        """Yield ranges of candidates."""
        return self.trace.reader.split()

    def gather_column(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows of a column of the candidates, in any order."""
        return self.read_column(name)[rows]

    def read_column(self, name: str) -> NDArray[Any]:
        """Return a whole column of the candidates."""
        column: NDArray[Any] = getattr(self.trace.columns.candidates, name)
        return column

    def read_rows(self, rows: NDArray[np.int64]) -> Columns:
        """Return candidates with all their steps, without the outputs of stages, which do not affect the verdict."""
        columns = self._read(rows)
        return columns._replace(stages=no_stage_items()) if self.schema.deep else columns

    def load(self, columns: Columns, rows: NDArray[np.int64]) -> Trace:
        """Return some candidates as a trace, including the outputs of stages."""
        if self._is_all(rows):
            return self.trace
        steps = expand_rows(starts_of(self.trace.columns.candidates.num_steps), rows)
        digests = Digests(*(words[steps] for words in self.trace.digests))
        return replace(self.trace, columns=self._read(rows) if self.schema.deep else columns, digests=digests)

    def stored_digests(self, rows: NDArray[np.int64]) -> Words | None:
        """Return no digests: in memory, they were computed from the columns."""
        return None

    def _read(self, rows: NDArray[np.int64]) -> Columns:
        if self._is_all(rows):
            return self.trace.columns
        if are_neighbours(rows):
            return self.trace.reader.read_candidates(int(rows[0]), int(rows[-1]) + 1)
        return self.trace.reader.gather_candidates(rows)

    def _is_all(self, rows: NDArray[np.int64]) -> bool:
        return len(rows) == self.num_candidates and are_neighbours(rows)


StepSource: TypeAlias = Union[MemorySource, "FileSource"]
"""A trace in the form in which a comparison reads it."""
TraceLike: TypeAlias = Union[Trace, "TraceFile", Path, str]
"""A trace in memory, an open trace, or the path of a trace."""


def open_source(trace: TraceLike) -> StepSource:
    """Return a source for a trace in memory, an open trace, or a path. UserError if the file is refused."""
    if isinstance(trace, Trace):
        return MemorySource(trace)
    from kgverify.comparison.stored_columns import FileSource

    return FileSource(trace)


def wants_content(sources: tuple[StepSource, StepSource], verifies_content: bool | None) -> list[bool]:
    """Return whether to verify every value of each source. None means: if it has few steps.

    The digests of a trace with goals are always verified if the other trace has no goals: then only digests can be compared.
    """
    keeps = [has_goals(source.header.level) for source in sources]
    return [
        (source.num_steps <= VERIFIED_STEPS if verifies_content is None else verifies_content)
        or (own and not all(keeps))
        for source, own in zip(sources, keeps, strict=True)
    ]


def has_steps(engine: EngineInfo) -> bool:
    """Return whether an engine shows its steps."""
    return NUM_STEPS not in engine.unknown


def searches(engine: EngineInfo) -> bool:
    """Return whether an engine searches for any proof, so that what it does not prove does not follow."""
    return engine.mode == SEARCHED and not has_steps(engine)


def drop_unknown_steps(sources: tuple[StepSource, StepSource]) -> tuple[StepSource, StepSource]:
    """Return both sides without steps if one of them does not show its steps; otherwise, return them unchanged."""
    if all(has_steps(source.header.engine) for source in sources):
        return sources
    left, right = (
        _without_steps(source)
        if NUM_STEPS in source.fields or source.num_steps or searches(source.header.engine)
        else source
        for source in sources
    )
    return left, right


def describe_unknown_steps(sources: tuple[StepSource, StepSource]) -> list[str]:
    """Return a note about the extent of the comparison if one side does not show its steps."""
    hidden = dict.fromkeys(source.header.engine.name for source in sources if not has_steps(source.header.engine))
    if not hidden:
        return []
    has_scores = all("candidates.log_probability" in source.fields for source in sources)
    compared = "ranks and scores were compared" if has_scores else "ranks were compared, and no scores"
    return [
        f"the steps of {' and '.join(hidden)} are unknown: outcomes (PROVED or not), {compared}; any stage may be at fault"
    ]


def _without_steps(source: StepSource) -> MemorySource:
    trace = source.shell(has_candidates=True)
    every = trace.columns.candidates
    is_proved = every.outcome == Outcome.PROVED
    candidates = every._replace(
        num_steps=np.zeros_like(every.num_steps),
        outcome=np.where(is_proved, Outcome.PROVED, Outcome.FAILED).astype(np.int8),
        is_limited=np.zeros_like(every.is_limited),
    )
    return MemorySource(
        replace(
            trace,
            header=msgspec.structs.replace(trace.header, level=TraceLevel.STEPS.value),
            columns=empty_columns()._replace(candidates=candidates),
            digests=NO_DIGESTS,
            fields=frozenset(name for name in trace.fields if name.startswith("candidates.")) - _OF_STEPS,
        )
    )


Convert = Callable[[NDArray[np.int32]], NDArray[np.int32]]
"""A function that translates the ids in atoms of one trace into the ids of the other trace."""

_OF_RESOLVENTS: Final = ("kind", "num_atoms", "origin_kind", "origin", "score", "atoms", "order")

_OF_RUN: Final = {
    "graph": "the graph",
    "split": "the split",
    "num_queries": "the number of queries",
    "num_corruptions": "the number of corruptions",
    "seed": "the seed",
}
"""The fields of a run that must be equal, with their readable names."""

_FORGIVEN: Final[Mapping[str, Modulo]] = {
    DIGEST: frozenset([NAMES, ORDER, DUPLICATES]),
    "candidates.atom": frozenset([NAMES]),
    "candidates.log_probability": frozenset([DUPLICATES]),
    "steps.goal_atoms": frozenset([NAMES]),
    "steps.choice": frozenset([ORDER, DUPLICATES]),
    "steps.num_resolvents": frozenset([DUPLICATES]),
    **{f"resolvents.{name}": frozenset([ORDER, DUPLICATES]) for name in _OF_RESOLVENTS},
    "resolvents.atoms": frozenset([NAMES, ORDER, DUPLICATES]),
}
"""The kinds of benign differences that each field may show."""


class ClauseIds(NamedTuple):
    """The facts, int32 [F, 3], and the rules of a trace, as far as it holds them."""

    facts: NDArray[np.int32] | None
    rules: tuple[Rule, ...] | None


class Numbering:
    """The common numbering of two traces, name by name, built once and used for any part of them.

    The actual trace adopts the expected trace's ids; names that only the actual trace has get further ids. If only the
    expected trace has goals, it adopts the actual trace's ids. If neither has goals, their digests cannot be compared, and
    `reasons` says so.

    is_same: whether both traces number their names and facts alike as recorded
    """

    def __init__(self, expected: Trace, actual: Trace) -> None:
        is_kept = [has_goals(trace.header.level) for trace in (expected, actual)]
        self._side = 0 if is_kept == [True, False] else 1
        has_same_names = expected.symbols == actual.symbols
        self.is_same = has_same_names and (
            expected.facts is None or actual.facts is None or np.array_equal(expected.facts, actual.facts)
        )
        self.reasons: tuple[Coded, ...] = ()
        if self.is_same:
            return
        if not has_same_names and not any(is_kept):
            self.reasons = (
                Code.ONLY_DIGESTS.mark(
                    "the traces number their names differently, and the digests of goals that were not kept cannot be"
                    " renumbered"
                ),
            )
        kept, moved = (expected, actual) if self._side else (actual, expected)
        predicates, self._predicate_map = _merge(kept.symbols.predicates, moved.symbols.predicates)
        constants, self._constant_map = _merge(kept.symbols.constants, moved.symbols.constants)
        self._symbols = Symbols(predicates, constants)
        self._facts = self._own_facts = None if moved.facts is None else self._convert_atoms(moved.facts)
        self._fact_map = None
        if self._facts is not None and kept.facts is not None:
            self._facts, self._fact_map = _merge_facts(kept.facts, self._facts)

    @property
    def kept_sides(self) -> tuple[int, ...]:
        """The sides whose ids stay as they are."""
        return (0, 1) if self.is_same else (1 - self._side,)

    def clauses_of(self, side: int, trace: Trace) -> ClauseIds:
        """Return the facts and the rules of a side's trace, in the common ids and in its own order; None if it has none."""
        convert = self.converter(side)
        if convert is None or trace.rules is None:
            return ClauseIds(trace.facts if convert is None else self._own_facts, trace.rules)
        rules = [convert(np.array((head, *body), np.int32)).tolist() for head, body in trace.rules]
        return ClauseIds(
            self._own_facts, tuple(Rule(Atom(*head), tuple(Atom(*atom) for atom in body)) for head, *body in rules)
        )

    def converter(self, side: int) -> Convert | None:
        """Return the function that converts atoms of a side (0: expected, 1: actual), or None if its ids stay."""
        return None if self.is_same or side != self._side else self._convert_atoms

    def convert(self, side: int, trace: Trace) -> Trace:
        """Convert a side's trace, or some of its candidates, to the common ids."""
        if self.converter(side) is None:
            return trace
        columns = self.convert_columns(side, trace.columns)
        # Facts are numbered in the order of ids, and the ids change here.
        lost = {"resolvents.origin_kind", "resolvents.origin"} if self._fact_map is None else set()
        return replace(
            trace,
            symbols=self._symbols,
            columns=columns,
            digests=compute_digests(columns) if has_goals(trace.header.level) else trace.digests,
            facts=self._facts,
            fact_lines=None,
            fields=trace.fields - lost,
        )

    def convert_columns(self, side: int, c: Columns) -> Columns:
        """Convert columns of a side to the common ids. Drop the outputs of stages if their facts cannot be renumbered."""
        convert = self.converter(side)
        if convert is None:
            return c
        resolvents, stages = c.resolvents._replace(atoms=convert(c.resolvents.atoms)), no_stage_items()
        if self._fact_map is not None:
            resolvents = resolvents._replace(origin=self._convert_origins(resolvents, self._fact_map))
            atoms, is_atom = c.stages.atoms.copy(), c.stages.atoms[:, 0] >= 0
            atoms[is_atom] = convert(atoms[is_atom])
            stages = c.stages._replace(atoms=atoms, origin=self._convert_origins(c.stages, self._fact_map))
        candidates = c.candidates._replace(atom=convert(c.candidates.atom))
        return Columns(
            candidates, c.steps._replace(goal_atoms=convert(c.steps.goal_atoms)), resolvents, stages, c.paths
        )

    def _convert_atoms(self, atoms: NDArray[np.int32]) -> NDArray[np.int32]:
        is_hole = atoms[:, 0] < 0
        numbers = self._predicate_map, self._constant_map, self._constant_map
        names = self._symbols.predicates, self._symbols.constants, self._symbols.constants
        columns = (_renumber(atoms[:, i], ids, len(of)) for i, (ids, of) in enumerate(zip(numbers, names, strict=True)))
        converted = np.column_stack(list(columns))
        converted[is_hole] = atoms[is_hole]
        return converted

    @staticmethod
    def _convert_origins(made_by: Resolvents | StageItems, fact_map: NDArray[np.int32]) -> NDArray[np.int32]:
        is_fact = made_by.origin_kind == Origin.FACT
        origin = made_by.origin.copy()
        origin[is_fact] = fact_map[origin[is_fact]]
        return origin


def _renumber(values: NDArray[np.int32], ids: NDArray[np.int32], num_names: int) -> NDArray[np.int32]:
    """Convert ids to the common numbering of `num_names` names; keep variables, and mark ids that have no name."""
    converted = values.copy()
    is_named = (values >= 0) & (values < len(ids))
    converted[is_named] = ids[values[is_named]]
    converted[(values >= len(ids)) & (values < num_names)] |= UNNAMED
    return converted


def _merge_facts(expected: NDArray[np.int32], facts: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the expected facts, followed by the facts that only `facts` has, and the index of each of `facts` there."""
    numbers: dict[tuple[int, ...], int] = {}
    for i, fact in enumerate(map(tuple, expected.tolist())):
        numbers.setdefault(fact, i)
    further: dict[tuple[int, ...], int] = {}
    indices = []
    for fact in map(tuple, facts.tolist()):
        known = numbers.get(fact)
        indices.append(further.setdefault(fact, len(expected) + len(further)) if known is None else known)
    merged = np.concatenate([expected, np.array([*further], np.int32).reshape(-1, 3)])
    return merged, np.array(indices or [-1], np.int32)


def _merge(expected: tuple[str, ...], actual: tuple[str, ...]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    ids = {name: i for i, name in enumerate(expected)}
    mapping = [ids.setdefault(name, len(ids)) for name in actual]
    return tuple(ids), np.array(mapping, np.int32)


class ComparablePair:
    """Two traces in memory, or the same part of two traces, made comparable.

    expected, actual: the traces in one numbering, in normal form, without the columns that only one trace has, and with
                      digests that can be compared
    full:             the traces in the same numbering and form, with all their columns
    raw:              like `expected` and `actual`, but not in normal form
    not_compared:     the columns that one trace lacks
    by_digest:        whether steps are compared by stored digests, because a trace keeps no goals
    reasons:          why the two traces cannot decide anything together; empty if they can
    tolerance:        the tolerance of scores, with notes about declared errors
    score_tolerance:  the largest difference between two scores that count as equal

    accepted: the error of the actual scores to accept, in nats, or a tolerance; None: the judge's bound
    modulo:   the kinds of differences that are benign
    """

    def __init__(
        self,
        expected: Trace,
        actual: Trace,
        numbering: Numbering | None = None,
        *,
        accepted: ScoreError = None,
        modulo: Modulo = NOTHING,
    ) -> None:
        self.modulo, self.schema = modulo, expected.schema
        numbering = numbering or Numbering(expected, actual)
        self.full = numbering.convert(0, expected), numbering.convert(1, actual)
        # Traces of single derivations do not miss the columns of paths.
        found = self.full[0].fields | self.full[1].fields
        every = frozenset(each.name for each in self.schema.compared if each.name in found or not each.of_search)
        self.not_compared = tuple(sorted((every - self.full[0].fields) | (every - self.full[1].fields)))
        reasons: list[Coded] = []
        if all(has_goals(trace.header.level) for trace in (expected, actual)):
            self.by_digest = False
            recorded = self.full
            self.expected, self.actual = self.raw = self._blank(recorded)
            if modulo:
                self.full = self._normalise(recorded[0]), self._normalise(recorded[1])
                self.expected, self.actual = self._blank(self.full)
        else:
            reasons += [*numbering.reasons, *_find_uncounted_columns(self.full)]
            self.by_digest = not reasons
            self.expected, self.actual = self.raw = self._prepare_for_digests()
        self.reasons = (*check_preconditions(expected, actual), *reasons)
        self.tolerance = judge_tolerance(expected.header, actual.header, accepted)
        self.score_tolerance = self.tolerance.value
        self.names = Names(self.expected)
        self.actual_names = Names(self.actual)

    def _blank(self, traces: tuple[Trace, Trace]) -> tuple[Trace, Trace]:
        expected, actual = (_blank_and_digest(trace, self.not_compared) for trace in traces)
        return expected, actual

    def _normalise(self, trace: Trace) -> Trace:
        has_scores = "resolvents.score" in trace.fields
        columns = normalise(trace.columns, self.modulo, self.not_compared, has_scores=has_scores)
        return replace(trace, columns=columns, digests=compute_digests(columns))

    def _prepare_for_digests(self) -> tuple[Trace, Trace]:
        uncounted = _uncounted(self.full[0]) | _uncounted(self.full[1])
        traces = [
            _blank_and_digest(trace, tuple(uncounted))
            if has_goals(trace.header.level) and uncounted & trace.fields
            else trace
            for trace in self.full
        ]
        if not self.by_digest:
            # Digests that cannot be compared are set to zeros. `reasons` makes the verdict INCONCLUSIVE.
            zeros = [trace.digests._replace(sequence=np.zeros_like(trace.digests.sequence)) for trace in traces]
            traces = [replace(trace, digests=digests) for trace, digests in zip(traces, zeros, strict=True)]
        expected, actual = (replace(t, columns=_blank(t, self.not_compared, removes_atoms=True)) for t in traces)
        return expected, actual

    @cached_property
    def compared_fields(self) -> tuple[str, ...]:
        """The columns that are compared, and the digest if it replaces goals."""
        compared = {
            each.name for each in self.schema.compared if not each.of_search or each.name in self.full[0].fields
        }
        compared -= set(self.not_compared)
        return tuple(sorted(compared | {DIGEST} if self.by_digest else compared))

    @property
    def has_origins(self) -> bool:
        """True if both traces record the clauses that made their resolvents."""
        return not {"resolvents.origin_kind", "resolvents.origin"} & set(self.not_compared)

    @property
    def has_scores(self) -> bool:
        """True if both traces have scores."""
        return "resolvents.score" not in self.not_compared

    def equality(self) -> tuple[FieldRule, ...]:
        """Return the rule of equality of each field that is compared."""
        tolerance = self.score_tolerance
        rules = {DIGEST: "equal: 64 bits of goal, resolvents, counts, choice, outcome and depth"}
        for each in self.schema.compared:
            if each.rule is EqualityRule.SUM:
                rules[each.name] = f"within {tolerance:.3g} a step" if tolerance else "within 1e-9, relative"
            elif each.rule is EqualityRule.SCORE and tolerance:
                rules[each.name] = f"within {tolerance:.3g}"
            elif each.stage == Stage.CHOOSE and tolerance:
                rules[each.name] = f"equal, unless the scores' gap is at most {2 * tolerance:.3g}"
        for field in self.compared_fields:
            kinds = _FORGIVEN.get(field, NOTHING) & self.modulo
            if kinds:
                rules[field] = f"{rules.get(field, 'equal')} up to {describe_modulo(kinds)}"
        return tuple(FieldRule(field, rules.get(field, "equal")) for field in self.compared_fields)

    def leaves_open(self, field: str) -> bool:
        """Return whether a difference in a field may be benign, but no goals are recorded to decide it."""
        return self.by_digest and bool(_FORGIVEN.get(field, NOTHING) & self.modulo)

    def explain_undecided(self, num: int, num_open: int) -> list[Coded]:
        """Explain why digests alone cannot decide, given the number of divergences in a digest, and of undecided ones.

        Scores have an error bound, and no trace shows which choices it excuses. No digest ignores all benign differences.
        """
        if num_open:
            return [
                Code.ONLY_DIGESTS.mark(
                    f"{num_open} candidates differ, which {describe_modulo(self.modulo)} may explain; a trace without goals"
                    " does not show whether they do: record both at level steps"
                )
            ]
        if not num or not self.score_tolerance or any(map(is_decidable, self.full)):
            return []
        return [
            Code.ONLY_DIGESTS.mark(
                f"the digests of {num} candidates differ, which scores within their error bound {self.score_tolerance:.3g}"
                " may explain; neither trace keeps the goals that would decide it: record one at level steps"
            )
        ]


def lockstep_columns(columns: Columns) -> Columns:
    """Turn each step of a trace into a candidate with one step, for a comparison in lockstep; in a search, each level."""
    if has_paths(columns):
        owners, begins = find_levels(columns)
        num = len(owners)
        levels = Candidates(
            *CandidateSet(*columns.candidates[:3]).take(owners),
            np.diff(begins, append=len(columns.steps.depth)).astype(np.uint32),
            np.zeros(num, np.int8),
            np.zeros(num, np.uint8),
            np.zeros(num),
        )
        return columns._replace(candidates=levels)
    owner = np.repeat(np.arange(len(columns.candidates.query)), columns.candidates.num_steps)
    candidates = columns.candidates._replace(
        query=columns.candidates.query[owner],
        side=columns.candidates.side[owner],
        atom=columns.candidates.atom[owner],
        num_steps=np.ones(len(owner), np.uint32),
        outcome=columns.steps.outcome,
        is_limited=((columns.steps.dropped_atoms > 0) | (columns.steps.dropped_resolvents > 0)).astype(np.uint8),
        log_probability=np.zeros(len(owner)),
    )
    return columns._replace(candidates=candidates)


def is_decidable(trace: Trace) -> bool:
    """Return whether the trace by itself can distinguish a near-tie from a divergence."""
    return has_goals(trace.header.level) and "resolvents.score" in trace.fields


def counts_alike(expected: Trace, actual: Trace) -> bool:
    """Return whether the stored digests of both traces count the same columns."""
    return _uncounted(expected) == _uncounted(actual)


def _blank_and_digest(trace: Trace, fields: tuple[str, ...]) -> Trace:
    """Set some columns to zeros and recompute the digests."""
    if not fields:
        return trace
    columns = counted = _blank(trace, fields)
    if "steps.choice" in fields:
        # Digests count unknown values as 0.
        counted = columns._replace(steps=columns.steps._replace(choice=np.zeros_like(columns.steps.choice)))
    return replace(trace, columns=columns, digests=compute_digests(counted, trace.schema))


def _blank(trace: Trace, fields: tuple[str, ...], *, removes_atoms: bool = False) -> Columns:
    """Set some columns to zeros, and choices to -1. If wanted, remove atoms instead, and resolvents that are not counted."""
    schema, columns = trace.schema, trace.columns
    if removes_atoms and "steps.num_resolvents" in fields:
        columns = columns._replace(resolvents=empty_columns().resolvents)
    for name in fields:
        values = schema.values(columns, name)
        is_removed = removes_atoms and schema.column_of[name.replace(".", "/")].rows not in schema.groups
        zeros = np.full_like(values[:0] if is_removed else values, -1 if name == "steps.choice" else 0)
        columns = schema.replaced(columns, name, zeros)
    return columns


def _uncounted(trace: Trace) -> frozenset[str]:
    """Return the columns that the trace's digests count as 0."""
    if has_goals(trace.header.level):
        return COUNTED - trace.fields
    return COUNTED & frozenset(trace.header.absent)


def _find_uncounted_columns(traces: tuple[Trace, Trace]) -> list[Coded]:
    """Describe the columns that one trace's digests count and the other trace does not have."""
    uncounted = [_uncounted(trace) for trace in traces]
    return [
        Code.ONLY_DIGESTS.mark(
            f"the digests of {trace.source or 'one trace'} count {', '.join(sorted(other - own))},"
            " which the other trace does not have"
        )
        for trace, own, other in zip(traces, uncounted, reversed(uncounted), strict=True)
        if other - own and not has_goals(trace.header.level)
    ]


def check_preconditions(expected: Trace, actual: Trace) -> tuple[Coded, ...]:
    """Explain why the two traces cannot be compared; return nothing if they can. Each reason makes the verdict INCONCLUSIVE.

    Values that are unknown in one header count as equal: `note_unknown` names them.
    """
    e, a = expected.header, actual.header
    reasons = [
        Code.INCOMPLETE.mark(f"the {role} trace is not complete: {trace.source or 'its recording did not finish'}")
        for trace, role in ((expected, "expected"), (actual, "actual"))
        if not trace.is_complete
    ]
    if _differ_where_known([(getattr(e.limits, name), getattr(a.limits, name)) for name in NUMBERS], None):
        limits = f"expected {e.limits.describe()}, actual {a.limits.describe()}"
        reasons.append(Code.OTHER_LIMITS.mark(f"the limits differ: {limits}"))
    if _differ_where_known([(e.program_sha256, a.program_sha256)], ""):
        reasons.append(Code.OTHER_PROGRAM.mark("the programs differ: facts, rules or the numbering of symbols"))
    # Weights are meaningless without a policy.
    policies = [(e.policy.name, a.policy.name), (e.policy.sha256, a.policy.sha256)]
    if all(policies[0]) and _differ_where_known(policies, ""):
        names = f"expected {_policy(expected)}, actual {_policy(actual)}"
        reasons.append(Code.OTHER_POLICY.mark(f"the policies differ: {names}"))
    fields = [field for field in _OF_RUN if field not in (*e.run.unknown, *a.run.unknown)]
    if expected.rankings is not None and actual.rankings is not None:
        fields.append("rank_tolerance")
    for field in fields:
        values = getattr(e.run, field), getattr(a.run, field)
        if values[0] != values[1]:
            text = f"the runs differ in {field}: expected {values[0]!r}, actual {values[1]!r}"
            reasons.append(Code.OTHER_RUN.mark(text))
    return tuple(reasons)


def _differ_where_known(pairs: Sequence[tuple[Any, Any]], unknown: Any) -> bool:
    """Return whether two values differ although both are known."""
    return any(left != right and unknown not in (left, right) for left, right in pairs)


def compare_dialects(expected: Trace, actual: Trace) -> list[Coded]:
    """Return a sentence for each switch in which the dialects of two traces differ; return none if a dialect is unknown."""
    limits = expected.header.limits, actual.header.limits
    left, right = limits[0].dialect, limits[1].dialect
    if left is None or right is None:
        return []
    if not any(each.exclude_query for each in limits):
        # No dialect excludes anything in this case.
        left = msgspec.structs.replace(left, exclusion=right.exclusion)
    return [Code.OTHER_DIALECT.mark(f"the dialects differ: {each}") for each in describe_differences(left, right)]


def note_unknown(expected: Trace, actual: Trace) -> tuple[str, ...]:
    """Return notes about limits, program, policy and run that were not compared because a header does not know them."""
    sides: dict[str, list[str]] = {}
    # Facts and rules are compared themselves.
    has_program = all(trace.facts is not None and trace.rules is not None for trace in (expected, actual))
    for trace, role in ((expected, "expected"), (actual, "actual")):
        header = trace.header
        unknown = ["the dialect" if name == "dialect" else f"the limit {name}" for name in header.limits.unknown]
        unknown += [] if header.program_sha256 or has_program else ["the program"]
        unknown += [] if header.policy.name else ["the policy"]
        of_run = [_OF_RUN[name] for name in header.run.unknown]
        unknown += ["the run"] if len(of_run) == len(_OF_RUN) else of_run
        for each in unknown:
            sides.setdefault(each, []).append(role)
    groups: dict[str, list[str]] = {}
    for each, roles in sides.items():
        groups.setdefault(" and the ".join(roles), []).append(each)
    return tuple(f"not compared, since unknown to the {who} trace: {', '.join(what)}" for who, what in groups.items())


def _policy(trace: Trace) -> str:
    policy = trace.header.policy
    return f"{policy.name} {policy.sha256[:12]}".strip()


def find_goals(
    expected: StepSource, actual: StepSource, numbering: Numbering, wanted: frozenset[Goal]
) -> frozenset[Goal]:
    """Return the wanted goals that are the goal of an expected step, or the query of an actual candidate."""
    if not wanted:
        return wanted
    known = np.unique(_hash_views(wanted))
    found: set[Goal] = set()
    for begin, end in expected.split():
        columns = expected.read_rows(np.arange(begin, end))
        atoms, starts = columns.steps.goal_atoms, starts_of(columns.steps.num_atoms)
        hits = np.flatnonzero(np.isin(hash_goals(atoms, starts), known))
        found |= {as_goal(atoms[starts[i] : starts[i + 1]].tolist()) for i in hits.tolist()} & wanted
    convert = numbering.converter(1)
    queries = any(len(goal) == 1 for goal in wanted)
    for begin in range(0, actual.num_candidates, 1 << 16) if queries else ():
        atoms = actual.gather_column("atom", np.arange(begin, min(begin + (1 << 16), actual.num_candidates)))
        if convert is not None:
            atoms = convert(atoms)
        hits = np.flatnonzero(np.isin(hash_goals(atoms, np.arange(len(atoms) + 1)), known))
        found |= {as_goal(atoms[i : i + 1].tolist()) for i in hits.tolist()} & wanted
    return frozenset(found)


def _hash_views(goals: frozenset[Goal]) -> Words:
    counts = np.array([len(goal) for goal in goals], np.int64)
    atoms = np.array([tuple(atom) for goal in goals for atom in goal], np.int32).reshape(-1, 3)
    return hash_goals(atoms, starts_of(counts))
