"""A step of both sides, as every renderer shows it: side by side, with an arrow at the culprit, and stage by stage.

The view side by side shows the previous steps, and the step's goals, resolvents and other values.

A trace of level `deep` contains the output of each stage. Any other trace contains the result of the step, from which the
outputs of some stages can be inferred. The stage at fault shows the values of the divergence, from the replay if the step was
replayed. A replay also shows that the stages before it agree. Differences in the stages after it are consequences.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import SequenceMatcher
from enum import StrEnum
from functools import partial
from itertools import groupby, zip_longest
from typing import Any, Final, NamedTuple

from kgverify.comparison.align import align_candidates
from kgverify.comparison.comparable import ComparablePair, Numbering, lockstep_columns
from kgverify.comparison.locate import is_close, is_same_output, render_output
from kgverify.comparison.modulo import normalise
from kgverify.comparison.result import NO_CANDIDATE, Divergence
from kgverify.comparison.step_view import Names, StepReader, StepView, canonical, outcome_name
from kgverify.errors import count_of
from kgverify.program.outcomes import STEP_STAGES, GoalKind, Origin, Stage
from kgverify.report.content import ReportContent
from kgverify.report.proof_tree import Tree, build_tree, read_bodies
from kgverify.report.wording import clip, value_lines
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.paths import has_paths
from kgverify.trace.model.stage_items import StageOutputs, StageReader
from kgverify.trace.model.trace import Trace

NUM_BEFORE: Final = 3
"""The number of steps shown before the divergent one."""

MOST_PAIRS: Final = 40
"""The maximum number of lines of resolvents shown for a step."""

MOST_IN_TREE: Final = 200
"""The number of steps in a proof tree, counted from the beginning of the derivation."""

MOST_MATCHED: Final = 400
"""The maximum number of resolvents of a side aligned by longest common runs; more are aligned only by clause."""


class SideStep(NamedTuple):
    """A step of one side, with the names and the fields of its trace.

    read_outputs: returns the recorded outputs of the step's stages
    """

    view: StepView
    names: Names
    fields: Collection[str]
    read_outputs: Callable[[], StageOutputs]


class Sides(NamedTuple):
    """A step of both sides; None if a side has no such step.

    is_same_way: whether both sides made the same choices before this step, so that their steps can be compared
    """

    expected: SideStep | None
    actual: SideStep | None
    is_same_way: bool


class _Side:
    """The steps of one side."""

    def __init__(self, columns: Columns, names: Names, trace: Trace) -> None:
        self.steps, self.stages = StepReader(columns), StageReader(columns)
        self.names, self.fields, self.bodies = names, trace.fields, read_bodies(trace)

    def rows(self, candidate: int | None) -> range:
        """Return the rows of a candidate's steps; an empty range if the side lacks the candidate."""
        if candidate is None or not 0 <= candidate < len(self.steps.first_step) - 1:
            return range(0)
        return range(*self.steps.first_step[candidate : candidate + 2])

    def read(self, rows: range) -> SideStep | None:
        """Return the step in the first row of a range; None for an empty range."""
        if not rows:
            return None
        return SideStep(self.steps.read(rows[0]), self.names, self.fields, partial(self.stages.read, rows[0]))


class StepBefore(NamedTuple):
    """A step before the divergent one."""

    step: int
    goal: str
    clause: str
    agrees: bool


class Atoms(NamedTuple):
    """A line with an atom of each side's goal; None if a side has no atom there."""

    expected: str | None
    actual: str | None

    @property
    def differs(self) -> bool:
        """True if the two sides differ here."""
        return self.expected != self.actual


class Line(NamedTuple):
    """A resolvent: its position in the step, its atoms, its clause, and its score."""

    place: int
    goal: str
    clause: str
    score: str
    is_chosen: bool


MARKS: Final = {
    "same": "",
    "missing": "− missing",
    "extra": "+ extra",
    "changed": "≠ changed",
    "moved": "↕ moved",
    "score": "≠ score",
}
"""The words beside two resolvents, by the mark of their pair."""


class Pair(NamedTuple):
    """A line with a resolvent of one side or both.

    mark:       `same`, `missing`, `extra`, `changed` (the same clause, other atoms), `moved` or `score`; `hidden` stands for
                `num_hidden` lines that are not shown; `num_differing` of them differ
    is_culprit: whether the arrow points here
    """

    mark: str
    expected: Line | None = None
    actual: Line | None = None
    is_culprit: bool = False
    num_hidden: int = 0
    num_differing: int = 0


class Fact(NamedTuple):
    """Another value of the step: the number of dropped resolvents, the choice, the outcome."""

    name: str
    expected: str
    actual: str
    is_culprit: bool = False

    @property
    def differs(self) -> bool:
        """True if the two sides differ here."""
        return self.expected != self.actual


class Derivation(NamedTuple):
    """A divergence side by side.

    note: the reason why a side, or the difference, is not shown; empty if everything is shown
    goal_is_culprit: whether the arrow points to the goals
    """

    before: tuple[StepBefore, ...]
    step: int
    goals: tuple[Atoms, ...] = ()
    goal_is_culprit: bool = False
    pairs: tuple[Pair, ...] = ()
    facts: tuple[Fact, ...] = ()
    note: str = ""


class DerivationReader:
    """A reader that aligns both sides of divergences, and of any other step, by candidate and step of the expected trace.

    `divergences_at` contains the divergences of each candidate and step. `has_stepped` is true if the actual steps come
    from lockstep.

    lockstep: whether the report describes a lockstep comparison
    stepped:  in lockstep, the actual engine's steps from the expected goals, each a candidate with one step, in the order
              of the expected steps; None if they were not saved: then the actual engine's own run is used
    modulo:   the kinds of differences that are benign; steps are read in normal form
    """

    def __init__(
        self,
        expected: Trace,
        actual: Trace,
        divergences: Iterable[Divergence] = (),
        *,
        lockstep: bool = False,
        stepped: Trace | None = None,
        modulo: Collection[str] = (),
    ) -> None:
        pair = ComparablePair(expected, actual, modulo=frozenset(modulo))
        self.score_tolerance = pair.score_tolerance
        self._expected = _Side(pair.expected.columns, pair.names, expected)
        self._actual = _Side(pair.actual.columns, pair.actual_names, actual)
        self._actual_of = align_rows(pair.expected.columns, pair.actual.columns)
        self._stepped_of: dict[int, int] = {}
        self._agreed: dict[int, tuple[int, bool]] = {}
        self._lockstep = lockstep
        self.has_stepped = lockstep and stepped is not None
        self.has_paths = has_paths(pair.expected.columns)
        if lockstep and stepped is not None:
            shared = Numbering(pair.expected, stepped).convert(1, stepped)
            columns = normalise(shared.columns, pair.modulo, pair.not_compared)
            self._actual = _Side(columns, Names(shared), stepped)
            self._stepped_of = align_rows(lockstep_columns(pair.expected.columns), columns)
        self.divergences_at: dict[tuple[int, int], list[Divergence]] = {}
        for each in divergences:
            self.divergences_at.setdefault((each.candidate, each.step), []).append(each)

    def actual_candidate(self, divergence: Divergence) -> int | None:
        """Return the row of a divergence's candidate in the actual trace, or None if it is missing there."""
        if divergence.expected == NO_CANDIDATE:
            return divergence.candidate
        return self._actual_of.get(divergence.candidate)

    def num_steps(self, divergence: Divergence) -> tuple[int, int]:
        """Return the number of steps of the candidate on each side; zeros if the expected side lacks it."""
        if divergence.expected == NO_CANDIDATE:
            return 0, 0
        expected = len(self._expected.rows(divergence.candidate))
        actual = self._actual.rows(self._actual_of.get(divergence.candidate))
        return expected, expected if self.has_stepped else len(actual)

    def sides(self, candidate: int, step: int) -> Sides:
        """Return the step of both sides."""
        is_same_way = self.has_stepped or self._agree_before(candidate, step)
        return Sides(*self._read_both(candidate, step), is_same_way)

    def trees(self, divergence: Divergence) -> tuple[Tree, Tree]:
        """Return the proof tree of each side as `build_tree` does; in lockstep, only the expected tree."""
        num_steps = min(max(self.num_steps(divergence)), MOST_IN_TREE)
        steps = [self._read_both(divergence.candidate, step) for step in range(num_steps)]
        expected, actual = (
            build_tree([step.view for both in steps if (step := both[i]) is not None], side.names, side.bodies)
            for i, side in enumerate((self._expected, self._actual))
        )
        return expected, () if self.has_stepped else actual

    def read(self, divergence: Divergence) -> Derivation | None:
        """Return the divergence side by side; None if it is not in a derivation."""
        candidate = divergence.candidate
        is_of_candidate = divergence.field.startswith("candidates.") and divergence.field != "candidates.atom"
        if (divergence.step < 0 and not is_of_candidate) or divergence.expected == NO_CANDIDATE:
            return None
        step = divergence.step if divergence.step >= 0 else self.num_steps(divergence)[0]
        own = self._expected
        before = read_before(own.steps, own.names, candidate, step, self.divergences_at)
        if divergence.step < 0:
            return Derivation(before, divergence.step, note="every step agrees; the summary of the candidate does not")
        expected, actual, is_reached = self.sides(candidate, divergence.step)
        if self._lockstep and not self.has_stepped and expected and actual and actual.view.goal != expected.view.goal:
            is_reached = False
        note = ""
        if not is_reached:
            actual = None
            note = (
                "The actual engine took this step from the expected goal. Its own run diverged earlier, so the saved trace"
                " does not contain the step. The difference is shown above."
            )
        elif expected is None or actual is None:
            note = f"The {'actual' if actual is None else 'expected'} derivation has no such step."
        return self._derive(step, expected, actual, note, divergence)._replace(before=before)

    def read_step(self, candidate: int, step: int) -> Derivation:
        """Return any step side by side, without an arrow, even if the two sides made different choices before it."""
        expected, actual, is_same_way = self.sides(candidate, step)
        note = ""
        if expected is None or actual is None:
            note = f"The {'actual' if actual is None else 'expected'} side has no such step."
        elif not is_same_way:
            note = "The two derivations diverged before this step: differences here are consequences."
        return self._derive(step, expected, actual, note)

    def _derive(
        self,
        step: int,
        expected: SideStep | None,
        actual: SideStep | None,
        note: str,
        divergence: Divergence | None = None,
    ) -> Derivation:
        """Align both sides, with an arrow for a divergence unless there is a note."""
        goals, pairs = _align_goals(expected, actual), _align_resolvents(expected, actual, self.score_tolerance)
        facts = zip(_FACTS, _facts_of(expected), _facts_of(actual), strict=True)
        found = Derivation((), step, tuple(goals), pairs=pairs, facts=tuple(Fact(*row) for row in facts), note=note)
        if divergence is not None and divergence.field.startswith("paths."):
            found = found._replace(note=note or "All paths of the level decide what differs, which is shown above.")
        elif divergence is not None and not note:
            found = _point_at_culprit(divergence, found)
        return found._replace(pairs=_shorten(found.pairs))

    def _read_both(self, candidate: int, step: int) -> tuple[SideStep | None, SideStep | None]:
        expected = self._expected.rows(candidate)[step : step + 1] if step >= 0 else range(0)
        if self.has_stepped:
            actual = self._actual.rows(self._stepped_of.get(expected[0]) if expected else None)
        else:
            actual = self._actual.rows(self._actual_of.get(candidate))[step : step + 1] if step >= 0 else range(0)
        return self._expected.read(expected), self._actual.read(actual)

    def _agree_before(self, candidate: int, step: int) -> bool:
        if candidate not in self._actual_of:
            return False
        # The number of first steps known to agree, and whether the next step is known to differ.
        num, has_ended = self._agreed.get(candidate, (0, False))
        while num < step and not has_ended:
            left, right = (side.view if side else None for side in self._read_both(candidate, num))
            has_ended = left is None or right is None or left.goal != right.goal or left.chosen != right.chosen
            num += not has_ended
        self._agreed[candidate] = num, has_ended
        return num >= step


def read_derivations(
    report: ReportContent, expected: Trace, actual: Trace, stepped: Trace | None = None
) -> DerivationReader:
    """Return a reader of the divergences of a report. stepped: as in `DerivationReader`."""
    return DerivationReader(
        expected, actual, report.divergences, lockstep=report.lockstep, stepped=stepped, modulo=report.modulo
    )


def align_rows(expected: Columns, actual: Columns) -> dict[int, int]:
    """Return the actual row of each candidate that both sides have, by its expected row."""
    left, right = (CandidateSet(*columns.candidates[:3]) for columns in (expected, actual))
    found = align_candidates(left, right)
    return dict(zip(found.expected.tolist(), found.actual.tolist(), strict=True))


def read_before(
    reader: StepReader, names: Names, candidate: int, step: int, divergent: Collection[tuple[int, int]] = ()
) -> tuple[StepBefore, ...]:
    """Return the last steps of a candidate before a step. divergent: the steps that differ."""
    if not 0 <= candidate < len(reader.first_step) - 1:
        return ()
    begin, end = reader.first_step[candidate : candidate + 2]
    before = reader.read_path(candidate, min(step, end - begin))[-NUM_BEFORE:]
    return tuple(describe_step(each, view, names, (candidate, each) not in divergent) for each, view in before)


def describe_step(step: int, view: StepView, names: Names, agrees: bool) -> StepBefore:
    """Describe a step in one line: its goal, and the clause that made the next goal."""
    chosen = view.resolvents[view.choice] if 0 <= view.choice < len(view.resolvents) else None
    by = names.clause(*chosen.clause) or names.goal(chosen.atoms, chosen.kind) if chosen else "nothing"
    return StepBefore(step, clip(names.goal(view.goal)), clip(by), agrees)


def _align_goals(expected: SideStep | None, actual: SideStep | None) -> Iterable[Atoms]:
    left, right = (
        [clip(side.names.atom(atom)) for atom in side.view.goal] if side else [] for side in (expected, actual)
    )
    blocks = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    return [Atoms(*pair) for _, a, b, c, d in blocks for pair in zip_longest(left[a:b], right[c:d])]


def _align_resolvents(expected: SideStep | None, actual: SideStep | None, tolerance: float) -> tuple[Pair, ...]:
    resolvents = [side.view.resolvents if side else () for side in (expected, actual)]
    keys = [[(r.content, r.clause) for r in side] for side in resolvents]
    counts = [Counter(side) for side in keys]
    # A side that is not shown has no missing resolvents.
    marks = ("missing", "extra") if expected and actual else ("same", "same")
    pairs = []
    for i, j in _match(*keys):
        left, right = _line(expected, i), _line(actual, j)
        if i is None or j is None:
            own = int(i is None)
            key = keys[own][(i if j is None else j) or 0]
            mark = "moved" if counts[1 - own][key] >= counts[own][key] else marks[own]
        elif keys[0][i] != keys[1][j]:
            mark = "changed"
        else:
            scores = resolvents[0][i].score, resolvents[1][j].score
            mark = "same" if is_close(*scores, tolerance) else "score"
            if mark == "score" and left and right and left.score == right.score:
                left, right = left._replace(score=repr(scores[0])), right._replace(score=repr(scores[1]))
        pairs.append(Pair(mark, left, right))
    return tuple(pairs)


def _line(side: SideStep | None, index: int | None) -> Line | None:
    if side is None or index is None:
        return None
    r, names = side.view.resolvents[index], side.names
    score = f"{r.score:.6g}" if "resolvents.score" in side.fields else ""
    is_chosen = index == side.view.choice and "steps.choice" in side.fields
    return Line(index, clip(names.goal(r.atoms, r.kind)), clip(names.clause(*r.clause)), score, is_chosen)


def _match(left: Sequence[Any], right: Sequence[Any]) -> list[tuple[int | None, int | None]]:
    """Pair indices: equal resolvents share a line, and so do resolvents of the same clause; all others have their own line."""
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
    """Pair, in order, unequal resolvents of the same clause. Resolvents that the other side has elsewhere stay unpaired."""
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


_FACTS: Final = {
    "depth": "depth",
    "resolvents": "num_resolvents",
    "dropped by max_atoms": "dropped_atoms",
    "dropped by max_resolvents": "dropped_resolvents",
    "chosen": "choice",
    "outcome": "outcome",
}
"""The other values of a step, each with its column."""


def _facts_of(side: SideStep | None) -> Sequence[str]:
    if side is None:
        return ("—",) * len(_FACTS)
    step = side.view
    chosen = "no resolvent" if step.chosen is None else clip(side.names.goal(step.chosen[1], step.chosen[0]))
    counts = (step.depth, len(step.resolvents), step.dropped_atoms, step.dropped_resolvents)
    texts = (*(f"{count:,}" for count in counts), f"{step.choice}: {chosen}", outcome_name(step.outcome))
    known = (f"steps.{column}" in side.fields for column in _FACTS.values())
    return [text if is_known else "unknown" for text, is_known in zip(texts, known, strict=True)]


_TARGETS: Final[dict[str, tuple[int | str, ...]]] = {
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
"""The targets of the arrow by the field of a divergence: the goals, or the index of a fact."""


def _point_at_culprit(divergence: Divergence, found: Derivation) -> Derivation:
    """Point the arrow at the field of the divergence, or at the first difference if that field is equal."""
    pair = next((i for i, pair in enumerate(found.pairs) if pair.mark != "same"), None)
    differing: list[int | str] = ["goal"] if any(atoms.differs for atoms in found.goals) else []
    differing += ["pair"] if pair is not None else []
    differing += [i for i, fact in enumerate(found.facts) if fact.differs]
    target = next((each for each in (*_TARGETS.get(divergence.field, ()), *differing) if each in differing), None)
    if target is None:
        return found._replace(
            note="In its own run the actual engine took this step as expected, so the saved trace does not show the"
            " difference: it depends on the steps that run beside it. The difference is shown above."
        )
    if target == "goal":
        return found._replace(goal_is_culprit=True)
    if target == "pair":
        return found._replace(pairs=tuple(each._replace(is_culprit=i == pair) for i, each in enumerate(found.pairs)))
    return found._replace(facts=tuple(each._replace(is_culprit=i == target) for i, each in enumerate(found.facts)))


def _shorten(pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """Keep at most `MOST_PAIRS` lines: first the culprit and the chosen resolvents, then differences, then agreeing lines."""
    if len(pairs) <= MOST_PAIRS:
        return pairs

    def importance(i: int) -> tuple[bool, bool, bool, int]:
        pair = pairs[i]
        is_chosen = any(line.is_chosen for line in (pair.expected, pair.actual) if line)
        return not pair.is_culprit, not is_chosen, pair.mark == "same", i

    kept = set(sorted(range(len(pairs)), key=importance)[:MOST_PAIRS])
    shown: list[Pair] = []
    for is_kept, places in groupby(range(len(pairs)), key=kept.__contains__):
        members = [pairs[i] for i in places]
        differing = sum(pair.mark != "same" for pair in members)
        shown += members if is_kept else [Pair("hidden", num_hidden=len(members), num_differing=differing)]
    return tuple(shown)


INPUT: Final = "(input)"
"""The first line of a walk: the goal that the step begins with. It is not a stage."""


RECORDED: Final = "recorded"
"""The note of outputs that both traces contain."""


class Mark(StrEnum):
    """The result of comparing a stage of both sides."""

    AGREES = "agrees"
    DIFFERS = "differs"
    FOLLOWS = "follows"
    NOT_HELD = "not held"


class StageLine(NamedTuple):
    """A stage of a step.

    expected, actual: the output of each side's stage, item by item; empty if a trace does not contain it
    note:             the source of the lines, or the reason why they are missing
    is_culprit:       whether the divergence was found here
    """

    stage: str
    mark: Mark
    expected: tuple[str, ...]
    actual: tuple[str, ...]
    note: str
    is_culprit: bool = False


_WALK: Final = (INPUT, *STEP_STAGES)
_OF_ONE_PATH: Final = (Stage.CHOOSE, Stage.ADVANCE, Stage.FINISH)


def walk_stages(
    reader: DerivationReader,
    candidate: int,
    step: int,
    divergence: Divergence | None,
    others: Sequence[Divergence] = (),
) -> tuple[StageLine, ...]:
    """Return the stages of a step, its input first.

    divergence: the divergence found at this step, if any
    others:     in lockstep, further divergences of the step, at other stages
    """
    expected, actual, is_same_way = reader.sides(candidate, step)
    if expected is None or actual is None:
        return (_of_divergence(divergence),) if divergence else ()
    following = reader.sides(candidate, step + 1)
    # In lockstep, the next actual step begins with the expected goal.
    sides = (expected, following.expected), (actual, None if reader.has_stepped else following.actual)
    outputs = expected.read_outputs(), actual.read_outputs()
    culprit = _index_of_culprit(divergence, expected.view.goal == actual.view.goal)
    is_of_step = culprit < len(_WALK)
    faults = _list_faults(divergence if is_of_step else None, others, culprit)
    num_replayed = 0
    if divergence is not None and divergence.is_replayed and is_of_step:
        # The replay showed that the stages before the first stage at fault agree.
        num_replayed = min(map(_WALK.index, faults.keys() & set(_WALK)))
    has_differed = not is_same_way or not is_of_step
    lines = []
    for index, stage in enumerate(_WALK):
        line = faults.get(stage) or _compare(stage, sides, outputs, reader.score_tolerance)
        if stage not in faults:
            if divergence is not None and not is_same_way:
                # The actual engine's other steps say nothing about the divergent step.
                line = _hide(line, "the saved traces do not contain the actual side of this step")._replace(actual=())
            line = _judge(line, index, culprit, num_replayed, has_differed)
        has_differed |= line.mark is Mark.DIFFERS
        lines.append(line)
    if reader.has_paths:
        # The children that are kept take the place of a choice.
        lines = [line for line in lines if line.stage not in _OF_ONE_PATH or line.stage in faults]
    if divergence is not None and not is_of_step:
        lines.append(_of_divergence(divergence))
    return tuple(lines)


_Sides = tuple[tuple[SideStep, SideStep | None], ...]
"""The step of each side, with the next step if the trace contains it."""


def _judge(line: StageLine, index: int, culprit: int, num_replayed: int, has_differed: bool) -> StageLine:
    """Mark a stage by its context: the replay settled it, a later stage causes its difference, or it is a consequence."""
    if 0 < index < num_replayed:
        return line._replace(mark=Mark.AGREES, note="both outputs were equal when the step was replayed")
    if line.mark is Mark.DIFFERS and index < culprit < len(_WALK) and line.note != RECORDED:
        return _hide(line, "a later stage causes the difference; a trace does not show more of this one")
    return line._replace(mark=Mark.FOLLOWS) if line.mark is Mark.DIFFERS and has_differed else line


def _list_faults(divergence: Divergence | None, others: Sequence[Divergence], culprit: int) -> dict[str, StageLine]:
    """Return the lines of the stages at fault: the culprit's, and those of the step's other divergences."""
    faults = {each.stage: _of_divergence(each)._replace(is_culprit=False) for each in others}
    for stage, line in faults.items():
        faults[stage] = line._replace(note=f"at fault as well, a divergence of its own; {line.note}")
    return faults | ({_WALK[culprit]: _of_divergence(divergence, _WALK[culprit])} if divergence else {})


def _hide(line: StageLine, note: str) -> StageLine:
    return line._replace(mark=Mark.NOT_HELD, note=note)


def _index_of_culprit(divergence: Divergence | None, is_same_goal: bool) -> int:
    """Return the index of the culprit in a walk: -1 without a culprit, or the walk's length if it is no stage of a step."""
    if divergence is None:
        return -1
    if divergence.stage == Stage.ADVANCE and (not is_same_goal or divergence.field.startswith("steps.")):
        # The previous step made the goal that this step begins with.
        return 0
    return _WALK.index(divergence.stage) if divergence.stage in _WALK else len(_WALK)


def _of_divergence(divergence: Divergence, shown_as: str = "") -> StageLine:
    is_of_stage = divergence.field.startswith("stage.")
    note = f"{'recorded' if is_of_stage else 'inferred from the traces'}; only the differences"
    if divergence.is_replayed:
        note = "replayed alone, the step is as expected: the fault depends on the steps that run beside it"
        note = "replayed; only the differences" if is_of_stage else note
    if shown_as == INPUT:
        note = f"the output of {divergence.stage} in the step before; {note}"
    values = tuple(value_lines(divergence.expected)), tuple(value_lines(divergence.actual))
    return StageLine(shown_as or divergence.stage, Mark.DIFFERS, *values, note=note, is_culprit=True)


def _compare(stage: str, sides: _Sides, outputs: Sequence[StageOutputs], tolerance: float) -> StageLine:
    """Compare the outputs of a stage, as recorded by both sides, or else as inferred from the traces."""
    left, right = (each.get(Stage(stage)) if stage != INPUT else None for each in outputs)
    if left is not None and right is not None:
        is_same, note = is_same_output(Stage(stage), left, right, tolerance), RECORDED
        shown = [
            tuple(map(clip, render_output(Stage(stage), each, side.names)))
            for each, (side, _) in zip((left, right), sides, strict=True)
        ]
        return StageLine(stage, Mark.AGREES if is_same else Mark.DIFFERS, shown[0], shown[1], note)
    if stage == Stage.SCORE:
        return _compare_scores([side for side, _ in sides], tolerance)
    inferred = [_infer(stage, *side) for side in sides]
    keys = [each[0] for each in inferred if each is not None]
    mark = Mark.NOT_HELD
    if len(keys) == len(inferred) and stage != Stage.SELECT:
        mark = Mark.AGREES if keys[0] == keys[1] else Mark.DIFFERS
    shown = [each[1] if each else () for each in inferred]
    return StageLine(stage, mark, shown[0], shown[1], _NOTES.get(stage, ""))


def _infer(stage: str, side: SideStep, following: SideStep | None) -> tuple[Any, tuple[str, ...]] | None:
    """Infer the output of a stage from the result of its step: a key to compare, and lines to show. None if it is unknown."""
    step, names = side.view, side.names
    found = step.resolvents
    match stage:
        case Stage.SELECT:
            return step.goal[:1], tuple(clip(names.atom(atom)) for atom in step.goal[:1])
        case Stage.MATCH_RULES | Stage.MATCH_FACTS if "resolvents.origin" in side.fields:
            kind = Origin.RULE if stage == Stage.MATCH_RULES else Origin.FACT
            clauses = [r.clause for r in found if r.origin_kind == kind]
            return clauses, tuple(clip(names.clause(*clause)) for clause in clauses)
        case Stage.RESOLVE:
            # The results of each clause, regardless of variable names and order.
            return Counter((r.kind, canonical(r.atoms), r.clause) for r in found), ()
        case Stage.RENAME:
            return [(r.content, r.clause) for r in found], tuple(clip(names.resolvent(r)) for r in found)
        case Stage.CLOSE:
            text = _describe_closing(step)
            return text, (text,)
        case Stage.LIMIT if "steps.dropped_atoms" in side.fields:
            counts = step.dropped_atoms, step.dropped_resolvents
            return counts, (f"dropped {counts[0]:,} by max_atoms, {counts[1]:,} by max_resolvents",)
        case Stage.CHOOSE:
            text = "no resolvent" if step.chosen is None else clip(names.goal(step.chosen[1], step.chosen[0]))
            return (step.choice, step.chosen), (f"{step.choice}: {text}",)
        case Stage.ADVANCE if following is not None:
            goal, depth = following.view.goal, following.view.depth
            return (goal, depth), (clip(names.goal(goal)), f"depth {depth}")
        case Stage.FINISH:
            return step.outcome, (outcome_name(step.outcome),)
        case _ if stage == INPUT:
            return (step.goal, step.depth), (*(clip(names.atom(a)) for a in step.goal), f"depth {step.depth}")
    return None


def _describe_closing(step: StepView) -> str:
    kinds = {r.kind for r in step.resolvents}
    if GoalKind.TRUE in kinds:
        return (
            "TRUE alone" if len(step.resolvents) == 1 else f"TRUE among {count_of(len(step.resolvents), 'resolvent')}"
        )
    if kinds == {GoalKind.FALSE} and not (step.dropped_atoms or step.dropped_resolvents):
        return "FALSE: no resolvent is left"
    return "nothing to close"


_NOTES: Final[dict[str, str]] = {
    INPUT: "the goal that the step begins with",
    Stage.SELECT: "a trace does not contain the selected atom; by definition it is the first one of the goal",
    Stage.MATCH_RULES: "the rules whose resolvents `limit` kept",
    Stage.MATCH_FACTS: "the facts whose resolvents `limit` kept",
    Stage.RESOLVE: "the resolvents below, compared regardless of their order and the names of their variables",
    Stage.PRUNE: "a trace does not contain the deleted atoms",
    Stage.RENAME: "the resolvents that `limit` kept",
    Stage.REVISIT: "a trace does not contain the resolvents that were dropped because they had been visited",
    Stage.CLOSE: "inferred from the kinds of the resolvents",
    Stage.ADVANCE: "the goal of the next step, if the trace contains one",
}


def _compare_scores(sides: Sequence[SideStep], tolerance: float) -> StageLine:
    """Compare the scores of the resolvents that both sides have, and show all that are known."""
    scores = [
        {(r.content, r.clause): r.score for r in side.view.resolvents} if "resolvents.score" in side.fields else None
        for side in sides
    ]
    left, right = (
        tuple(f"{r.score!r} for {clip(side.names.goal(r.atoms, r.kind))}" for r in side.view.resolvents if known)
        for side, known in zip(sides, scores, strict=True)
    )
    expected, actual = scores
    mark, note = Mark.NOT_HELD, "a trace does not contain scores"
    if expected is not None and actual is not None:
        shared, note = expected.keys() & actual.keys(), "the two sides have no resolvent in common"
        if shared:
            is_same = all(is_close(expected[key], actual[key], tolerance) for key in shared)
            mark = Mark.AGREES if is_same else Mark.DIFFERS
            note = f"compared for the {len(shared):,} resolvents that both sides have"
    return StageLine(Stage.SCORE, mark, left, right, note)


class StepDocument(NamedTuple):
    """A step of a derivation, as every renderer shows it.

    derivation: both sides, side by side; None if the divergence is not in a derivation
    stages:     the stages on both sides; empty if there is no step
    """

    step: int
    derivation: Derivation | None
    stages: tuple[StageLine, ...]


def read_document(reader: DerivationReader, divergence: Divergence, step: int) -> StepDocument:
    """Return a step of the derivation to which a divergence belongs, side by side and stage by stage."""
    at = divergence.candidate, step
    is_divergent = step == divergence.step
    # In lockstep, other steps of the candidate may be separate divergences.
    found = reader.divergences_at.get(at, [])
    own = divergence if is_divergent else next(iter(found), None)
    derivation = reader.read(divergence) if is_divergent else reader.read_step(*at)
    stages: tuple[StageLine, ...] = ()
    if step >= 0 and max(reader.num_steps(divergence)):
        stages = walk_stages(reader, *at, own, [each for each in found if each is not own])
    return StepDocument(step, derivation, stages)
