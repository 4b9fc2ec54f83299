"""A divergent step of both sides, aligned: the steps before it, the goals, the resolvents, and where the culprit is."""

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

from kgverify.comparison.locate import is_close
from kgverify.comparison.result import NO_CANDIDATE, Divergence
from kgverify.comparison.step_view import Names, ResolventView, StepView, outcome_name
from kgverify.report.sides import SidesReader
from kgverify.report.wording import clip
from kgverify.trace.model.trace import Trace

NUM_BEFORE: Final = 3
"""Steps shown before the divergent one."""

MOST_PAIRS: Final = 40
"""Lines of resolvents shown for a step."""

MOST_MATCHED: Final = 400
"""Resolvents a side that are aligned by longest common runs; of more only those that the other side lacks are told."""


class StepBefore(NamedTuple):
    """A step before the divergent one, as both sides took it."""

    step: int
    goal: str
    clause: str
    agrees: bool


class Atoms(NamedTuple):
    """An atom of either goal in one line; None where a side has none."""

    expected: str | None
    actual: str | None

    @property
    def differs(self) -> bool:
        """Whether the two sides differ here."""
        return self.expected != self.actual


class Line(NamedTuple):
    """A resolvent: its place in its step, what it is, what made it, and its score."""

    place: int
    goal: str
    clause: str
    score: str
    is_chosen: bool


class Pair(NamedTuple):
    """A resolvent of either side in one line.

    mark:       `same`, `missing`, `extra`, `changed` (the same clause, other atoms), `moved` or `score`; `hidden` stands for
                `num_hidden` lines that are not shown, `num_differing` of them different
    is_culprit: whether the arrow points here
    """

    mark: str
    expected: Line | None = None
    actual: Line | None = None
    is_culprit: bool = False
    num_hidden: int = 0
    num_differing: int = 0


class Fact(NamedTuple):
    """Something else of the step: how many were dropped, which was chosen, how it ended."""

    name: str
    expected: str
    actual: str
    is_culprit: bool = False

    @property
    def differs(self) -> bool:
        """Whether the two sides differ here."""
        return self.expected != self.actual


class Derivation(NamedTuple):
    """A divergence side by side.

    note: why a side, or the difference, is not shown; empty if all is
    goal_is_culprit: whether the arrow points to the goals
    """

    before: tuple[StepBefore, ...]
    step: int
    goals: tuple[Atoms, ...] = ()
    goal_is_culprit: bool = False
    pairs: tuple[Pair, ...] = ()
    facts: tuple[Fact, ...] = ()
    note: str = ""

    @property
    def size(self) -> int:
        """Characters of all its texts and, about, of what surrounds them in a page."""
        texts: list[str | None] = [self.note]
        for each in self.before:
            texts += [each.goal, each.clause]
        for atoms in self.goals:
            texts += atoms
        for pair in self.pairs:
            for line in (pair.expected, pair.actual):
                texts += [line.goal, line.clause, line.score] if line else [None]
        for fact in self.facts:
            texts += fact[1:3]
        return sum(len(text or "") + 80 for text in texts)


class DerivationReader:
    """Aligns the two sides of divergences, and of any other step.

    lockstep: whether the report is of a lockstep comparison; stepped: as in `SidesReader`
    """

    def __init__(
        self,
        expected: Trace,
        actual: Trace,
        divergences: Iterable[Divergence],
        *,
        lockstep: bool,
        stepped: Trace | None = None,
    ) -> None:
        self.sides = SidesReader(expected, actual, stepped if lockstep else None)
        self._lockstep = lockstep
        self._divergent = {(each.candidate, each.step) for each in divergences}

    def read(self, divergence: Divergence) -> Derivation | None:
        """The divergence side by side; None where it is of no derivation."""
        candidate = divergence.candidate
        is_of_candidate = divergence.field.startswith("candidates.") and divergence.field != "candidates.atom"
        if (divergence.step < 0 and not is_of_candidate) or divergence.expected == NO_CANDIDATE:
            return None
        num_steps = self.sides.num_steps(candidate)[0]
        before = self.steps_before(candidate, divergence.step if divergence.step >= 0 else num_steps)
        if divergence.step < 0:
            return Derivation(before, divergence.step, note="every step agrees; what is told of the whole does not")
        expected, actual, is_reached = self.sides.read(candidate, divergence.step)
        if self._lockstep and not self.sides.has_stepped and expected and actual and actual.goal != expected.goal:
            is_reached = False
        note = ""
        if not is_reached:
            actual = None
            note = (
                "The actual engine took this step from the expected goal; its own run went another way before, so that"
                " the saved trace does not have the step. What differs stands above."
            )
        elif expected is None or actual is None:
            note = f"The {'actual' if actual is None else 'expected'} derivation has no such step."
        return self._align(divergence, before, expected, actual, note)

    def read_step(self, candidate: int, step: int) -> Derivation:
        """Any step side by side, whichever way the two sides came to it; no arrow."""
        expected, actual, is_same_way = self.sides.read(candidate, step)
        note = ""
        if expected is None or actual is None:
            note = f"The {'actual' if actual is None else 'expected'} side has no such step."
        elif not is_same_way:
            note = "The two derivations parted before this step: what differs here is a consequence."
        goals = tuple(_align_goals(expected, actual, self.sides.names))
        pairs = _align_resolvents(expected, actual, self.sides.names, self.sides.score_tolerance)
        facts = tuple(_facts(expected, actual, self.sides.names))
        return Derivation((), step, goals, pairs=_shorten(pairs), facts=facts, note=note)

    def steps_before(self, candidate: int, step: int) -> tuple[StepBefore, ...]:
        """The last steps before a step, as the expected side took them."""
        end = min(step, self.sides.num_steps(candidate)[0])
        return tuple(self._step_before(candidate, number) for number in range(max(0, step - NUM_BEFORE), end))

    def _step_before(self, candidate: int, step: int) -> StepBefore:
        view = self.sides.read_expected(candidate, step)
        return describe_step(step, view, self.sides.names[0], (candidate, step) not in self._divergent)

    def _align(
        self,
        divergence: Divergence,
        before: tuple[StepBefore, ...],
        expected: StepView | None,
        actual: StepView | None,
        note: str,
    ) -> Derivation:
        names = self.sides.names
        goals = tuple(_align_goals(expected, actual, names))
        pairs = _align_resolvents(expected, actual, names, self.sides.score_tolerance)
        facts = tuple(_facts(expected, actual, names))
        if note:
            return Derivation(before, divergence.step, goals, pairs=_shorten(pairs), facts=facts, note=note)
        is_goal, pairs, facts = _point_at_culprit(divergence, goals, pairs, facts)
        arrows = [is_goal, *(pair.is_culprit for pair in pairs), *(fact.is_culprit for fact in facts)]
        if not any(arrows):
            note = (
                "In its own run the actual engine took this step as expected, so that the saved trace does not show the"
                " difference: it comes of what ran beside it. What differs stands above."
            )
            return Derivation(before, divergence.step, goals, pairs=_shorten(pairs), facts=facts, note=note)
        return Derivation(before, divergence.step, goals, is_goal, _shorten(pairs), facts)


def describe_step(step: int, view: StepView, names: Names, agrees: bool) -> StepBefore:
    """A step in one line: its goal, and the clause by which the next one was made."""
    chosen = view.resolvents[view.choice] if 0 <= view.choice < len(view.resolvents) else None
    by = names.clause(*chosen.clause) or names.goal(chosen.atoms, chosen.kind) if chosen else "nothing"
    return StepBefore(step, clip(names.goal(view.goal)), clip(by), agrees)


def _align_goals(expected: StepView | None, actual: StepView | None, names: tuple[Names, Names]) -> Iterable[Atoms]:
    left = [clip(names[0].atom(atom)) for atom in expected.goal] if expected else []
    right = [clip(names[1].atom(atom)) for atom in actual.goal] if actual else []
    if expected is None or actual is None:
        return [*(Atoms(atom, None) for atom in left), *(Atoms(None, atom) for atom in right)]
    aligned = []
    for tag, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag in ("equal", "replace"):
            length = max(b - a, d - c)
            columns = [[*part, *[None] * (length - len(part))] for part in (left[a:b], right[c:d])]
            aligned += [Atoms(*pair) for pair in zip(*columns, strict=True)]
        else:
            aligned += [Atoms(atom, None) for atom in left[a:b]] + [Atoms(None, atom) for atom in right[c:d]]
    return aligned


def _align_resolvents(
    expected: StepView | None, actual: StepView | None, names: tuple[Names, Names], tolerance: float
) -> tuple[Pair, ...]:
    left, right = (step.resolvents if step else () for step in (expected, actual))
    keys = [[(r.content, r.clause) for r in side] for side in (left, right)]
    counts = [Counter(side) for side in keys]
    # On a side that is not shown nothing is missing.
    marks = ("missing", "extra") if expected and actual else ("same", "same")
    pairs = []
    for i, j in _match(*keys):
        lines = (
            _line(expected, i, names[0]) if expected and i is not None else None,
            _line(actual, j, names[1]) if actual and j is not None else None,
        )
        if i is None:
            key = keys[1][j or 0]
            pairs.append(Pair("moved" if counts[0][key] >= counts[1][key] else marks[1], None, lines[1]))
        elif j is None:
            key = keys[0][i]
            pairs.append(Pair("moved" if counts[1][key] >= counts[0][key] else marks[0], lines[0], None))
        elif keys[0][i] != keys[1][j]:
            pairs.append(Pair("changed", *lines))
        else:
            pairs.append(Pair(*_compare_scores(left[i], right[j], lines, tolerance)))
    return tuple(pairs)


def _compare_scores(
    expected: ResolventView, actual: ResolventView, lines: tuple[Line | None, Line | None], tolerance: float
) -> tuple[str, Line | None, Line | None]:
    if is_close(expected.score, actual.score, tolerance) or lines[0] is None or lines[1] is None:
        return "same", *lines
    if lines[0].score == lines[1].score:
        return "score", lines[0]._replace(score=repr(expected.score)), lines[1]._replace(score=repr(actual.score))
    return "score", *lines


def _line(step: StepView, index: int, names: Names) -> Line:
    r = step.resolvents[index]
    goal, clause = clip(names.goal(r.atoms, r.kind)), clip(names.clause(*r.clause))
    return Line(index, goal, clause, f"{r.score:.6g}", index == step.choice)


def _match(left: Sequence[Any], right: Sequence[Any]) -> list[tuple[int | None, int | None]]:
    """Pairs of indices: equal ones on one line, the same clause on one line, everything else by itself."""
    start = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    tail = 0
    while tail < min(len(left), len(right)) - start and left[-1 - tail] == right[-1 - tail]:
        tail += 1
    ends = len(left) - tail, len(right) - tail
    matched: list[tuple[int | None, int | None]] = [(i, i) for i in range(start)]
    if max(ends) - start > MOST_MATCHED:
        blocks = [("replace", 0, ends[0] - start, 0, ends[1] - start)]
    else:
        blocks = SequenceMatcher(None, left[start : ends[0]], right[start : ends[1]], autojunk=False).get_opcodes()  # type: ignore[assignment]
    for tag, a, b, c, d in blocks:
        rows, columns = range(start + a, start + b), range(start + c, start + d)
        if tag == "equal":
            matched += zip(rows, columns, strict=True)
        else:
            matched += _match_by_clause(left, right, rows, columns)
    matched += [(ends[0] + i, ends[1] + i) for i in range(tail)]
    return matched


def _match_by_clause(
    left: Sequence[Any], right: Sequence[Any], rows: range, columns: range
) -> list[tuple[int | None, int | None]]:
    """Of what is not equal in order: what the other side has elsewhere stands by itself, the rest meets by its clause."""
    elsewhere = {left[i] for i in rows} & {right[j] for j in columns}
    waiting: dict[Any, list[int]] = {}
    for j in reversed(columns):
        if right[j] not in elsewhere:
            waiting.setdefault(right[j][1], []).append(j)
    matched: list[tuple[int | None, int | None]] = []
    taken: set[int | None] = set()
    for i in rows:
        others = waiting.get(left[i][1]) if left[i] not in elsewhere else None
        partner = others.pop() if others else None
        taken.add(partner)
        matched.append((i, partner))
    return matched + [(None, j) for j in columns if j not in taken]


def _facts(expected: StepView | None, actual: StepView | None, names: tuple[Names, Names]) -> Iterable[Fact]:
    columns = [_facts_of(step, each) for step, each in zip((expected, actual), names, strict=True)]
    labels = ("depth", "resolvents", "dropped for their atoms", "dropped for their place", "chosen", "outcome")
    return [Fact(*row) for row in zip(labels, *columns, strict=True)]


def _facts_of(step: StepView | None, names: Names) -> tuple[str, ...]:
    if step is None:
        return ("—",) * 6
    chosen = "no resolvent" if step.chosen is None else clip(names.goal(step.chosen[1], step.chosen[0]))
    counts = (step.depth, len(step.resolvents), step.dropped_atoms, step.dropped_resolvents)
    return (*(f"{count:,}" for count in counts), f"{step.choice}: {chosen}", outcome_name(step.outcome))


def _point_at_culprit(
    divergence: Divergence, goals: tuple[Atoms, ...], pairs: tuple[Pair, ...], facts: tuple[Fact, ...]
) -> tuple[bool, tuple[Pair, ...], tuple[Fact, ...]]:
    """Put the arrow where the field of the divergence is; if nothing differs there, at the first difference."""
    # In the order of facts: places of the arrow; a number is a fact, `goal` and `pair` speak for themselves.
    wanted: dict[str, tuple[int | str, ...]] = {
        "steps.goal_atoms": ("goal",),
        "stage.select": ("goal",),
        "steps.depth": (0,),
        "stage.limit": (2, 3),
        "steps.dropped_atoms": (2,),
        "steps.dropped_resolvents": (3,),
        "steps.choice": (4,),
        "stage.choose": (4,),
        "stage.finish": (5,),
        "steps.outcome": (5,),
    }
    for place in (*wanted.get(divergence.field, ()), "goal", "pair", *range(len(facts))):
        if place == "goal" and any(atoms.differs for atoms in goals):
            return True, pairs, facts
        if place == "pair":
            found = next((i for i, pair in enumerate(pairs) if pair.mark != "same"), None)
            if found is not None:
                marked = pairs[found]._replace(is_culprit=True)
                return False, (*pairs[:found], marked, *pairs[found + 1 :]), facts
        if isinstance(place, int) and facts[place].differs:
            fact = facts[place]._replace(is_culprit=True)
            return False, pairs, (*facts[:place], fact, *facts[place + 1 :])
    return False, pairs, facts


def _shorten(pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """At most `MOST_PAIRS` lines: the culprit and the chosen first, what differs next, then what agrees near the top."""
    if len(pairs) <= MOST_PAIRS:
        return pairs

    def importance(i: int) -> tuple[bool, bool, bool, int]:
        pair = pairs[i]
        is_chosen = any(line.is_chosen for line in (pair.expected, pair.actual) if line)
        return not pair.is_culprit, not is_chosen, pair.mark == "same", i

    kept = sorted(sorted(range(len(pairs)), key=importance)[:MOST_PAIRS])
    shown: list[Pair] = []
    after = 0
    for i in [*kept, len(pairs)]:
        left_out = pairs[after:i]
        if left_out:
            differing = sum(pair.mark != "same" for pair in left_out)
            shown.append(Pair("hidden", num_hidden=len(left_out), num_differing=differing))
        shown += pairs[i : i + 1]
        after = i + 1
    return tuple(shown)
