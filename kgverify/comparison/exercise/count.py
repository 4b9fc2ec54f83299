"""Counting what steps exercise: in all steps of a trace, or in blocks drawn evenly from a large trace."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.comparable import MemorySource, StepSource, has_steps
from kgverify.comparison.exercise.exercise import MOST_UNUSED, NO_MINIMUM, Exercise, Minimum, find_missing
from kgverify.comparison.step_view import outcome_name
from kgverify.program.outcomes import STEP_STAGES, GoalKind, Origin, Outcome, Stage
from kgverify.program.program import Program, Rule
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, Columns, StageItems, starts_of
from kgverify.trace.model.header import NUM_STEPS, EngineInfo, unknown_columns
from kgverify.trace.model.paths import has_paths

COUNTED_STEPS: Final = 1 << 14
"""The number of steps to count in a larger trace on disk: comparing all its steps is faster than counting in them."""

_NUM_BLOCKS: Final = 16

_BEFORE_LIMIT: Final = "resolvents before the limit"
_LONGEST_GOAL: Final = "atoms of a goal"

_DROPPED: Final = {"max_atoms": "dropped_atoms", "max_resolvents": "dropped_resolvents"}


def count_exercise(source: StepSource, outcomes: Mapping[str, int], minimum: Minimum = NO_MINIMUM) -> Exercise:
    """Return what a trace exercises. After a sample, a large trace is read only until the minimum is reached.

    outcomes: the number of candidates with each outcome
    """
    shell = source.shell()
    clauses = Clauses(shell.rules, shell.header.clauses.rules, shell.facts)
    is_of_steps = has_steps(source.header.engine) and NUM_STEPS in source.fields
    is_known = "candidates.outcome" in source.fields
    num_steps = source.num_steps if is_of_steps else None
    count = ExerciseCount(source.fields, clauses, num_steps, outcomes if is_known else None)
    if not is_of_steps or not source.num_candidates:
        return count.result()
    if isinstance(source, MemorySource):
        for begin, end in source.split():
            # Rows read from a source lack the outputs of stages, which show `revisit`.
            count.add(source.trace.reader.read_candidates(begin, end))
            source.trace.release()
        return count.result()
    for number, (begin, end) in enumerate(_draw_blocks(source)):
        if number % _NUM_BLOCKS == 0 and number and not find_missing(count.result(), minimum):
            break
        count.add(source.read_rows(np.arange(begin, end)))
    return count.result()


def count_columns(columns: Columns, program: Program, engine: EngineInfo) -> Exercise:
    """Return what columns in memory, made by an engine from a program, exercise."""
    fields = KNOWLEDGE_GRAPH.compared_names - unknown_columns(engine)
    num_steps = len(columns.steps.depth) if has_steps(engine) else None
    values, counts = np.unique(columns.candidates.outcome, return_counts=True)
    named = dict(zip(map(outcome_name, values.tolist()), counts.tolist(), strict=True))
    outcomes = named if "candidates.outcome" in fields else None
    count = ExerciseCount(fields, Clauses(program.rules, program.rule_texts, program.facts), num_steps, outcomes)
    if num_steps is not None:
        count.add(columns)
    return count.result()


def _draw_blocks(source: StepSource) -> Iterable[tuple[int, int]]:
    """Return ranges of candidates: a single range of all, or first the ranges to count in, drawn evenly, and then the rest."""
    num_candidates, num_steps = source.num_candidates, source.num_steps
    if num_steps <= COUNTED_STEPS:
        return [(0, num_candidates)]
    size = max(1, num_candidates * COUNTED_STEPS // (num_steps * _NUM_BLOCKS))
    begins = np.arange(0, num_candidates, size)
    drawn = np.unique(np.linspace(0, len(begins) - 1, _NUM_BLOCKS).astype(np.int64))
    order = np.concatenate((begins[drawn], np.delete(begins, drawn)))
    return ((begin, min(begin + size, num_candidates)) for begin in map(int, order))


class Clauses(NamedTuple):
    """The clauses of a program; None or empty if unknown."""

    rules: tuple[Rule, ...] | None
    texts: tuple[str, ...]
    facts: NDArray[np.int32] | None

    @property
    def num_facts(self) -> int | None:
        """The number of facts."""
        return None if self.facts is None else len(self.facts)

    @property
    def num_rules(self) -> int | None:
        """The number of rules."""
        return len(self.rules) if self.rules is not None else len(self.texts) or None

    @property
    def most_matches(self) -> int | None:
        """The largest number of clauses that one predicate has, and so that an atom can match."""
        if self.rules is None or self.facts is None:
            return None
        num = Counter(self.facts[:, 0].tolist()) + Counter(rule.clause_head.predicate for rule in self.rules)
        return max(num.values(), default=1)


class ExerciseCount:
    """A counter of what some candidates with their steps exercise."""

    def __init__(
        self, fields: Collection[str], clauses: Clauses, num_steps: int | None, outcomes: Mapping[str, int] | None
    ) -> None:
        """Begin to count.

        fields:              the columns that are known, such as `steps.choice`
        num_steps, outcomes: those of all candidates; None if unknown
        """
        self._clauses = clauses
        self._known = frozenset(fields)
        self._num_steps = num_steps
        self._outcomes = outcomes
        self._num_counted = 0
        self._counts: dict[str, int] = {}
        self._largest: dict[str, int] = {}
        self._used: dict[Origin, NDArray[Any]] = {}

    def add(self, columns: Columns) -> None:
        """Add candidates with all their steps."""
        steps, resolvents = columns.steps, columns.resolvents
        num_steps, num_resolvents = len(steps.depth), steps.num_resolvents
        self._num_counted += num_steps
        has_several = has_paths(columns)
        self._see("max_depth", steps.depth.astype(np.int64) + 1 if has_several else columns.candidates.num_steps)
        is_hit = {limit: getattr(steps, name) > 0 for limit, name in _DROPPED.items() if self._knows(f"steps.{name}")}
        for limit, is_seen in is_hit.items():
            self._add(limit, is_seen)
        if is_hit.keys() == _DROPPED.keys():
            self._add(Stage.LIMIT, np.logical_or(*is_hit.values()))
        if not self._knows("steps.num_resolvents"):
            return
        self._see("max_resolvents", num_resolvents)
        self._see(_LONGEST_GOAL, steps.num_atoms)
        self._see(_BEFORE_LIMIT, num_resolvents.astype(np.int64) + steps.dropped_resolvents)
        self._add(Stage.CHOOSE, num_resolvents > 1)
        of_step = np.repeat(np.arange(num_steps, dtype=np.int32), num_resolvents)
        kind, origin_kind = resolvents.kind, resolvents.origin_kind

        def add(stage: Stage, is_seen: NDArray[np.bool_]) -> None:
            steps_seen = np.zeros(num_steps, np.bool_)
            steps_seen[of_step[is_seen]] = True
            self._add(stage, steps_seen)

        if has_several:
            child = columns.paths.child
            add(Stage.TOP_K, child == -1)
            add(Stage.MERGE, child < -1)
            is_proof = (child >= 0) & (kind == GoalKind.TRUE)
            owner = np.repeat(np.arange(len(columns.candidates.query)), columns.candidates.num_steps)[of_step]
            add(Stage.AGGREGATE, is_proof & (np.bincount(owner, is_proof, len(columns.candidates.query))[owner] > 1))
        if self._knows("resolvents.kind"):
            is_true = kind == GoalKind.TRUE
            add(Stage.RESOLVE, (kind == GoalKind.GOAL) | is_true)
            add(Stage.CLOSE, is_true | (kind == GoalKind.FALSE))
        if self._knows("resolvents.score") and num_steps:
            score, starts = resolvents.score, starts_of(num_resolvents)
            first = np.minimum(starts[:-1], max(0, len(score) - 1))
            add(Stage.SCORE, score != score[first][of_step] if len(score) else np.zeros(0, np.bool_))
        if self._knows("resolvents.num_atoms", "resolvents.atoms"):
            self._see("max_atoms", resolvents.num_atoms)
            ends = starts_of(resolvents.num_atoms)[starts_of(num_resolvents)[1:]]
            predicate, first, second = resolvents.atoms.T
            # Variables are negative numbers, and a hole has a negative predicate.
            num_variables = np.zeros(len(predicate) + 1, np.int32)
            np.cumsum((predicate >= 0) & ((first | second) < 0), out=num_variables[1:])
            self._add(Stage.RENAME, np.diff(num_variables[ends], prepend=0) > 0)
        if self._knows("resolvents.origin_kind", "resolvents.origin"):
            for stage, origin in ((Stage.MATCH_RULES, Origin.RULE), (Stage.MATCH_FACTS, Origin.FACT)):
                add(stage, origin_kind == origin)
                self._use(origin, resolvents.origin[origin_kind == origin])
            lengths = self._body_lengths()
            if lengths is not None and self._knows("steps.num_atoms", "resolvents.num_atoms", "resolvents.kind"):
                index = np.clip(resolvents.origin, 0, max(0, len(lengths) - 1))
                num_made = (steps.num_atoms.astype(np.int32) - 1)[of_step]
                num_made += np.where(origin_kind == Origin.RULE, lengths[index] if len(lengths) else 0, 0)
                is_made = (origin_kind != Origin.NONE) & ((kind == GoalKind.GOAL) | (kind == GoalKind.TRUE))
                add(Stage.PRUNE, is_made & (resolvents.num_atoms < num_made))
        self._add_revisits(columns.stages)

    def _knows(self, *names: str) -> bool:
        return self._known.issuperset(names)

    def _add_revisits(self, items: StageItems) -> None:
        """Count the steps in which `revisit` dropped something, which only the outputs of stages show."""
        number, num_steps = STEP_STAGES.index(Stage.REVISIT) + 1, len(items.told)
        both = (1 << (number - 1)) | (1 << (number - 2))
        if not num_steps or not bool(((items.told & both) == both).all()):
            return
        of_step = np.repeat(np.arange(num_steps), items.num_items)
        before, after = (
            np.bincount(of_step[items.stage == each], minlength=num_steps) for each in (number - 1, number)
        )
        self._add(Stage.REVISIT, after < before)

    def result(self) -> Exercise:
        """Return the counts so far."""
        outcomes, clauses = self._outcomes, self._clauses
        limits = {name: self._counts[name] for name in _DROPPED if name in self._counts}
        if outcomes is not None:
            limits["max_depth"] = outcomes.get(Outcome.DEPTH_LIMIT.name, 0)
        rules, unused = self._count_rules()
        facts = self._used.get(Origin.FACT)
        largest = dict(self._largest)
        before = largest.pop(_BEFORE_LIMIT, 0), largest.pop(_LONGEST_GOAL, 0)
        lengths = self._body_lengths()
        enough = {"max_resolvents": clauses.most_matches or before[0]}
        if lengths is not None and len(lengths):
            enough["max_atoms"] = before[1] - 1 + int(lengths.max())
        return Exercise(
            outcomes=None if outcomes is None else dict(outcomes),
            steps=self._num_steps,
            counted=self._num_counted,
            choices=self._counts.get(Stage.CHOOSE),
            stages={stage.value: self._counts[stage] for stage in Stage if stage in self._counts},
            limits=limits,
            largest=largest,
            enough={name: num for name, num in enough.items() if limits.get(name)},
            rules=rules,
            num_rules=clauses.num_rules,
            facts=None if facts is None else len(facts),
            num_facts=clauses.num_facts,
            unused_rules=unused,
        )

    def _count_rules(self) -> tuple[int | None, tuple[str, ...]]:
        """Return the number of rules that made a resolvent, and the first unused rules as text."""
        used = self._used.get(Origin.RULE)
        if used is None:
            return None, ()
        texts = self._clauses.texts
        unused = np.setdiff1d(np.arange(self._clauses.num_rules or 0), used)[:MOST_UNUSED].tolist()
        return len(used), tuple(texts[i] if i < len(texts) else f"rule {i}" for i in unused)

    def _body_lengths(self) -> NDArray[np.int32] | None:
        rules = self._clauses.rules
        return None if rules is None else np.array([len(body) for _, body in rules], np.int32)

    def _use(self, origin: Origin, clauses: NDArray[np.int32]) -> None:
        """Mark clauses as used. Ignore an index that no clause has."""
        num = self._clauses.num_rules if origin is Origin.RULE else self._clauses.num_facts
        if num is None:
            found: NDArray[Any] = np.unique(clauses)
        else:
            found = np.flatnonzero(np.bincount(clauses[(clauses >= 0) & (clauses < num)]))
        self._used[origin] = np.union1d(self._used.get(origin, np.zeros(0, np.int64)), found)

    def _add(self, name: str, is_seen: NDArray[np.bool_]) -> None:
        self._counts[name] = self._counts.get(name, 0) + int(np.count_nonzero(is_seen))

    def _see(self, limit: str, numbers: NDArray[Any]) -> None:
        self._largest[limit] = max(self._largest.get(limit, 0), int(numbers.max(initial=0)))
