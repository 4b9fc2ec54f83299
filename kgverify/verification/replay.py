"""The explanation of divergences: steps are replayed in both engines with every stage probed, then classified and grouped.

The earliest stage whose output differs is at fault.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from inspect import unwrap
from itertools import permutations
from typing import Any, Final, NamedTuple, cast

import msgspec
import numpy as np

from kgverify.comparison.classify import (
    Finding,
    Surroundings,
    classify,
    describe_recorded,
    find_surroundings,
    group_causes,
)
from kgverify.comparison.compare import Comparer
from kgverify.comparison.inference.infer import (
    adopt_guess,
    follows_inference,
    name_in_dialect,
    order_of_stages,
    prefer_one_stage,
)
from kgverify.comparison.inference.single_fault import StepProgram, explain_by_one_stage
from kgverify.comparison.inference.step_difference import StepDifference
from kgverify.comparison.locate import (
    first_difference,
    is_close,
    is_same_output,
    locate_difference,
    name_stage,
    starts_wrong,
)
from kgverify.comparison.modulo import NAMES, normalise_outputs, normalise_steps, rename_candidates
from kgverify.comparison.result import NOTHING_MORE, SCORES_BEFORE, Cause, Divergence
from kgverify.comparison.step_pair import StepPair
from kgverify.comparison.step_view import LISTING_STAGES, StepReader, StepView, Views, outcome_name
from kgverify.engines.adapters.stepwise import AtomIds, read_positions
from kgverify.engines.adapters.stepwise import Goal as PlainGoal
from kgverify.engines.adapters.taps import TAPPED, TapLog
from kgverify.engines.beams import in_beams
from kgverify.engines.protocol import (
    Engine,
    Positions,
    ProbedEngine,
    candidate_set,
    positions_of,
    take_position,
    take_positions,
)
from kgverify.errors import count_of
from kgverify.program.atoms import Atom, Goal, encode_variable
from kgverify.program.limits import Limits
from kgverify.program.outcomes import STEP_STAGES, DifferenceClass, GoalKind, Origin, Outcome, Stage
from kgverify.progress import Progress, no_progress
from kgverify.step.clauses import number_variables
from kgverify.step.plain_step import find_outcome
from kgverify.trace.model.column_reader import ColumnReader
from kgverify.trace.model.columns import Columns, starts_of
from kgverify.trace.model.score_tolerance import find_float_type, name_precision
from kgverify.trace.model.stage_items import StageOutputs, ends_alike
from kgverify.trace.model.trace import Trace
from kgverify.verification.judgement import FULL, Effort
from kgverify.verification.rounding import bound_tapped

ASSUMED_CONFIDENCE: Final = 0.5
"""The highest confidence in the class of a divergence that was not replayed."""

NOT_REPLAYED: Final = "the step was not replayed itself, its stage and class are those of others that differ alike"
INFERRED: Final = "the engine does not show this stage, which was inferred from its step"
NOT_REPEATED: Final = "the step gives other results when it is repeated: the engine does not repeat itself"
OTHERS: Final = 4
"""The number of other candidates whose steps are taken together with a step, to find out whether it depends on them."""
MAX_AGREEING: Final = 4
"""The steps on which both engines agree that show whether a tap is where its name says."""
MAX_TRIED: Final = 1_000
"""The candidates among which to seek such steps."""
MOST_SLOTS: Final = 256
"""The most slots to fill with such steps."""
FOREIGN: Final[dict[str, Any]] = {"kind": DifferenceClass.FOREIGN, "confidence": 0.8}
"""The class of a step that depends on other slots."""
INFERRED_SHARE: Final = 0.7
"""The factor by which inferring the stage reduces the confidence in a class."""

_NOT_OF_STEPS: Final = ("candidates.atom", "paths.")
"""The beginnings of fields that no single step shows."""

_Signature = tuple[str, str, bool, bool, DifferenceClass, str]


class Replayed(NamedTuple):
    """A divergence after its step was replayed.

    outputs: the two outputs of the stage at fault, if the replay shows them
    views:   the two steps that differ, if they are not the steps that were compared first
    like:    the divergence from which it takes stage and class, if it was not replayed itself
    is_inferred: whether the stage was inferred from the result of the step when the engine repeated it
    guesses:     the stages that explain the step by their fault alone, the likeliest first
    situation:   the origin of wrong scores, in words, if they belong to another step
    confirmed:   a sentence if the step is right once the output of the stage is replaced
    """

    divergence: Divergence
    outputs: tuple[Any, Any] | None = None
    views: tuple[StepView, StepView] | None = None
    like: "Replayed | None" = None
    is_inferred: bool = False
    guesses: Sequence[StepDifference] = ()
    situation: str = ""
    confirmed: str = ""


def _without_nan(view: StepView) -> StepView:
    """Return the step with 0 for each NaN score, since NaN is not equal to anything."""
    return view._replace(resolvents=tuple(r._replace(score=0.0) if r.score != r.score else r for r in view.resolvents))


def _move(divergence: Divergence, stage: Stage, **changes: Any) -> Divergence:
    """Return the divergence with another stage, and without the class that belonged to its old stage."""
    return msgspec.structs.replace(
        divergence, stage=stage.value, kind=DifferenceClass.UNCLASSIFIED, evidence="", confidence=0.0, **changes
    )


def _of_machinery(divergence: Divergence) -> Divergence:
    return _move(divergence, Stage.RECYCLE, is_replayed=True)


def _shows_stages(outputs: StageOutputs, until: Stage) -> bool:
    """Return whether outputs show every stage before `until`, except `select`, so that nothing has to be inferred."""
    return all(stage in outputs for stage in STEP_STAGES[: STEP_STAGES.index(until)] if stage is not Stage.SELECT)


def _ask_from(position: Positions, goal: PlainGoal) -> Positions:
    """Return a position with the query and the depth of another position, and a history that repeats one goal.

    The depth stays, since an engine may be wrong only from some depth on.
    """
    num = int(position.num_goals[0])
    sizes, atoms = np.full(num, len(goal), np.uint16), np.array(goal * num, np.int32)
    return position._replace(num_atoms=sizes, atoms=atoms.reshape(-1, 3))


def _make_unprovable(atom: AtomIds, num: int) -> list[AtomIds]:
    """Return atoms, each with a variable of its own, that no stage deletes from a goal that begins with an atom."""
    lowest = min(0, *atom[1:]) - 1
    return [(atom[0], term, term) for term in range(lowest, lowest - num, -1)]


def _choose_guesses(replayed: list[Replayed]) -> list[Replayed]:
    """Return the replayed divergences, each with the guess that fits the most of them."""
    guessed = [each for each in replayed if each.guesses]
    chosen = {}
    for each, guess in zip(guessed, prefer_one_stage([each.guesses for each in guessed]), strict=True):
        chosen[id(each)] = each._replace(divergence=adopt_guess(each.divergence, guess))
    found = []
    for each in replayed:
        like = chosen.get(id(each.like))
        if like is not None:
            stage = like.divergence.stage
            each = each._replace(divergence=msgspec.structs.replace(each.divergence, stage=stage), like=like)
        found.append(chosen.get(id(each), each))
    return found


def find_position(reader: ColumnReader, candidate: int, step: int) -> Positions:
    """Return the position before a step of a candidate."""
    return take_position(positions_of(reader.read_candidates(candidate, candidate + 1)), step)


class _Again:
    """A step that both engines take again from one position, alone.

    raw_views, raw_probes: the steps, and the outputs of their stages, as the engines return them; outputs only if both
                           engines show them
    views, probes:         the same in normal form, as they are compared
    """

    def __init__(self, comparer: Comparer, engines: tuple[Engine, Engine], position: Positions) -> None:
        self._comparer, self._engines, self.position = comparer, engines, position

    @cached_property
    def _columns(self) -> list[Columns]:
        return [engine.step(self.position) for engine in self._engines]

    @cached_property
    def raw_views(self) -> tuple[StepView, StepView]:
        expected, actual = (StepReader(columns).read(0) for columns in self._columns)
        return expected, actual

    @cached_property
    def views(self) -> tuple[StepView, StepView]:
        expected, actual = (StepReader(_normalise(self._comparer, columns)).read(0) for columns in self._columns)
        return expected, actual

    @cached_property
    def raw_probes(self) -> tuple[StageOutputs, StageOutputs] | None:
        expected, actual = self._engines
        if isinstance(expected, ProbedEngine) and isinstance(actual, ProbedEngine):
            return expected.probe(self.position), actual.probe(self.position)
        return None

    @cached_property
    def probes(self) -> tuple[StageOutputs, StageOutputs] | None:
        if self.raw_probes is None:
            return None
        modulo, has_origins = self._comparer.modulo, self._comparer.has_origins
        expected, actual = (
            normalise_outputs(outputs if has_origins else without_origins(outputs), modulo)
            for outputs in self.raw_probes
        )
        return expected, actual

    @property
    def shown(self) -> StageOutputs:
        """The outputs that the actual engine shows."""
        return {} if self.probes is None else self.probes[1]


def without_origins(outputs: StageOutputs) -> StageOutputs:
    """Return the outputs of stages as an engine gives them that knows neither clauses nor what a limit dropped."""
    changed = dict(outputs)
    for stage in (each for each in LISTING_STAGES if each in outputs):
        changed[stage] = tuple((*item[:-3], 0, 0, item[-1]) for item in outputs[stage])
    if Stage.LIMIT in outputs:
        listed = outputs[Stage.LIMIT][0]
        changed[Stage.LIMIT] = tuple((item[0], 0, 0, item[-1]) for item in listed), 0, 0
    return changed


def _normalise(comparer: Comparer, columns: Columns) -> Columns:
    """Return steps in normal form, as they are compared."""
    return normalise_steps(columns, comparer.modulo, comparer.not_compared) if comparer.modulo else columns


# Stages at fault after the first one


class StageFault(NamedTuple):
    """A stage that is wrong by itself: its correct output, as far as it can be inferred, and its actual output."""

    stage: Stage
    expected: Any
    actual: Any


def find_later_faults(
    culprit: Stage, expected: StageOutputs, actual: StageOutputs, limits: Limits, tolerance: float
) -> Iterator[StageFault]:
    """Yield the stages after the culprit that have a fault of their own. tolerance: of scores, absolute."""
    given = _Given(expected, actual, limits, tolerance)
    for stage in STEP_STAGES[STEP_STAGES.index(culprit) + 1 :]:
        if stage not in _JUDGES or stage not in expected:
            continue
        judge, read = _JUDGES[stage]
        # Not every engine shows every stage.
        if not all(each in side for side in ((actual,) if is_own(stage) else (expected, actual)) for each in read):
            continue
        fault = judge(given)
        if fault is not None:
            yield StageFault(stage, *fault)


def is_own(stage: Stage) -> bool:
    """Return whether a stage is judged only by the actual engine's outputs."""
    return stage in (Stage.CLOSE, Stage.LIMIT, Stage.CHOOSE, Stage.FINISH)


class _Given(NamedTuple):
    """The outputs of both engines in one step."""

    expected: StageOutputs
    actual: StageOutputs
    limits: Limits
    tolerance: float


_Judgement = tuple[Any, Any] | None


def _judge_items(stage: Stage, before: Stage | None) -> Callable[[_Given], _Judgement]:
    """Return the judge of a stage that maps resolvents one to one: it compares resolvents with the same clause and input."""

    def judge(given: _Given) -> _Judgement:
        left, right = _by_clause(given.expected[stage]), _by_clause(given.actual[stage])
        shared = [clause for clause in left if clause in right]
        if before is not None:
            inputs = [_by_clause(side[before]) for side in (given.expected, given.actual)]
            shared = [clause for clause in shared if inputs[0].get(clause) == inputs[1].get(clause)]
        differing = [clause for clause in shared if left[clause] != right[clause]]
        if not differing:
            return None
        return tuple(tuple((*clause, side[clause]) for clause in differing) for side in (left, right))  # type: ignore[return-value]

    return judge


def _judge_revisit(given: _Given) -> _Judgement:
    """Judge which of the common resolvents remain. An empty resolvent always remains, so pruned atoms must agree as well."""
    sides = given.expected, given.actual
    named, pruned, left = (
        [_by_clause(side[stage]) for side in sides] for stage in (Stage.RENAME, Stage.PRUNE, Stage.REVISIT)
    )
    shared = [
        clause
        for clause in named[0]
        if all(outputs[1].get(clause, None) == outputs[0][clause] for outputs in (named, pruned))
    ]
    kept = [tuple((*clause, named[0][clause]) for clause in shared if clause in side) for side in left]
    return _unless_equal(*kept)


def _judge_close(given: _Given) -> _Judgement:
    """Judge `close`: if pruning emptied a resolvent, only TRUE is listed; if there are no resolvents, FALSE."""
    pruned, left = _by_clause(given.actual[Stage.PRUNE]), given.actual[Stage.REVISIT]
    proof = next((item for item in left if pruned.get(item[:2]) == ()), None)
    if proof is not None:
        wanted: tuple[Any, ...] = ((int(GoalKind.TRUE), *proof[:2], ()),)
    elif not left:
        wanted = ((int(GoalKind.FALSE), 0, 0, ()),)
    else:
        wanted = tuple((int(GoalKind.GOAL), *item) for item in left)
    return _unless_equal(wanted, tuple(tuple(item) for item in given.actual[Stage.CLOSE]))


def _judge_limit(given: _Given) -> _Judgement:
    """Judge `limit`: it keeps the first resolvents with few enough atoms, else FALSE. Skip the output of a wrong `close`."""
    if _judge_close(given) is not None:
        return None
    closed = given.actual[Stage.CLOSE]
    if any(item[0] != GoalKind.GOAL for item in closed):
        return _unless_equal((closed, 0, 0), given.actual[Stage.LIMIT])
    fitting = [item for item in closed if len(item[3]) <= given.limits.max_atoms]
    kept = tuple(fitting[: given.limits.max_resolvents]) or ((int(GoalKind.FALSE), 0, 0, ()),)
    dropped = len(closed) - len(fitting), max(0, len(fitting) - given.limits.max_resolvents)
    return _unless_equal((kept, *dropped), given.actual[Stage.LIMIT])


def _judge_score(given: _Given) -> _Judgement:
    """Judge the scores of the resolvents that both engines have."""
    sides = []
    for outputs in (given.expected, given.actual):
        listed, scores = outputs[Stage.LIMIT][0], outputs[Stage.SCORE]
        if len(listed) != len(scores):
            return None
        sides.append(dict(zip(((item[0], item[3]) for item in listed), scores, strict=True)))
    left, right = sides
    differing = [item for item in left if item in right and not is_close(left[item], right[item], given.tolerance)]
    if not differing:
        return None
    return tuple(left[item] for item in differing), tuple(right[item] for item in differing)


def _judge_choose(given: _Given) -> _Judgement:
    """Judge the choice: it must be the first of the engine's own highest scores."""
    scores = given.actual[Stage.SCORE]
    if not scores or any(map(math.isnan, scores)):
        return None
    return _unless_equal(scores.index(max(scores)), given.actual[Stage.CHOOSE])


def _judge_finish(given: _Given) -> _Judgement:
    """Judge the outcome by the engine's own chosen resolvent and depth."""
    listed, choice = given.actual[Stage.LIMIT][0], given.actual[Stage.CHOOSE]
    if not 0 <= choice < len(listed):
        return None
    wanted = find_outcome(given.limits, GoalKind(listed[choice][0]), given.actual[Stage.ADVANCE][2])
    return _unless_equal(int(wanted), int(given.actual[Stage.FINISH]))


_JUDGES: Final[dict[Stage, tuple[Callable[[_Given], _Judgement], tuple[Stage, ...]]]] = {
    # The matching facts do not depend on the matching rules.
    Stage.MATCH_FACTS: (
        lambda given: _unless_equal(given.expected[Stage.MATCH_FACTS], given.actual[Stage.MATCH_FACTS]),
        (Stage.MATCH_FACTS,),
    ),
    Stage.RESOLVE: (_judge_items(Stage.RESOLVE, None), (Stage.RESOLVE,)),
    Stage.PRUNE: (_judge_items(Stage.PRUNE, Stage.RESOLVE), (Stage.RESOLVE, Stage.PRUNE)),
    Stage.RENAME: (_judge_items(Stage.RENAME, Stage.PRUNE), (Stage.PRUNE, Stage.RENAME)),
    Stage.REVISIT: (_judge_revisit, (Stage.PRUNE, Stage.RENAME, Stage.REVISIT)),
    Stage.CLOSE: (_judge_close, (Stage.PRUNE, Stage.REVISIT, Stage.CLOSE)),
    Stage.LIMIT: (_judge_limit, (Stage.PRUNE, Stage.REVISIT, Stage.CLOSE, Stage.LIMIT)),
    Stage.SCORE: (_judge_score, (Stage.LIMIT, Stage.SCORE)),
    Stage.CHOOSE: (_judge_choose, (Stage.SCORE, Stage.CHOOSE)),
    Stage.FINISH: (_judge_finish, (Stage.LIMIT, Stage.CHOOSE, Stage.ADVANCE, Stage.FINISH)),
}
"""The judge of each stage, and the stages whose outputs it reads."""


def _by_clause(items: Any) -> dict[tuple[int, int], Any]:
    return {(kind, origin): goal for kind, origin, goal in items}


def _unless_equal(expected: Any, actual: Any) -> _Judgement:
    return None if expected == actual else (expected, actual)


# Scores of other steps

MIN_STEPS: Final = 3
"""The number of wrong steps whose scores must belong to other steps before this is reported."""
MIN_SHARE: Final = 0.9
MIN_OF_ALL: Final = 0.25
"""The share of all steps with wrong scores for which this must hold."""
MAX_SPREAD: Final = 1e-4
"""The largest difference between two scores that count as equal, in standard deviations of the expected scores."""
MAX_COMMON: Final = 0.05
"""The largest share of steps that may begin with a score; more common scores, such as 0 for one resolvent, are ignored."""


class ScoreSource(NamedTuple):
    """The steps to which wrong scores belong: the class, the situation in words, and the evidence."""

    kind: DifferenceClass
    situation: str
    evidence: str


_BEFORE: Final = -1
_SAME: Final = 0
_FOUND: Final = {
    _BEFORE: (
        DifferenceClass.STALE,
        SCORES_BEFORE,
        "at the step before this one: scores of the call before",
    ),
    _SAME: (DifferenceClass.FOREIGN, "scores of another row", "at the same step: scores of another row of the batch"),
}


def find_score_source(
    expected: Columns,
    divergences: Sequence[Divergence],
    views: Mapping[tuple[int, int], tuple[StepView, StepView]],
    tolerance: float,
) -> ScoreSource | None:
    """Return the source of wrong scores, if nearly all are the expected scores of another candidate's step.

    expected: the columns of the expected run, in which steps taken together in a batch have the same number
    """
    num_wrong = sum(each.field == "resolvents.score" for each in divergences)
    if num_wrong < MIN_STEPS:
        return None
    starts, first_step = starts_of(expected.steps.num_resolvents), starts_of(expected.candidates.num_steps)
    scores = expected.resolvents.score.astype(np.float64)
    number = np.arange(first_step[-1]) - np.repeat(first_step[:-1], np.diff(first_step))
    listed = np.flatnonzero(np.diff(starts) > 0)
    order = listed[np.argsort(scores[starts[listed]], kind="stable")]
    firsts = scores[starts[order]]
    spread = float(np.std(scores[np.isfinite(scores)])) if np.isfinite(scores).any() else 0.0
    # A wide tolerance would match scores of other steps by chance.
    tolerance = min(tolerance, MAX_SPREAD * spread)
    num_known, num_found = dict.fromkeys(_FOUND, 0), dict.fromkeys(_FOUND, 0)
    for each in divergences:
        view = views.get((each.candidate, each.step))
        if each.field != "resolvents.score" or view is None or not view[1].resolvents:
            continue
        actual = np.array([r.score for r in view[1].resolvents])
        low, high = np.searchsorted(firsts, [actual[0] - tolerance, actual[0] + tolerance])
        if not np.isfinite(actual[0]) or high - low > MAX_COMMON * len(listed):
            continue
        num_known[_SAME] += 1
        # The call before the first one is not in the run.
        num_known[_BEFORE] += each.step > 0
        own = first_step[each.candidate] + each.step
        alike = (
            (row, scores[starts[row] : starts[row + 1]][: len(actual)])
            for row in order[low:high].tolist()
            if row != own
        )
        offsets = {
            int(number[row]) - each.step
            for row, others in alike
            if np.allclose(others, actual[: len(others)], rtol=0, atol=tolerance)
        }
        for offset in offsets & num_found.keys():
            num_found[offset] += 1
    for offset, num in num_found.items():
        if num >= MIN_STEPS and num >= MIN_SHARE * num_known[offset] and num >= MIN_OF_ALL * num_wrong:
            kind, situation, words = _FOUND[offset]
            counted = f"{num:,} of {num_known[offset]:,} steps are those expected of another candidate"
            return ScoreSource(kind, situation, f"the wrong scores of {counted} {words}")
    return None


# The separation of faults that share a stage and a class


class Seen(NamedTuple):
    """A divergence with its class, and with the data that decided its class."""

    divergence: Divergence
    finding: Finding
    around: Surroundings


def separate(seen: Sequence[Seen]) -> tuple[Finding, ...]:
    """Return the findings, with different situations for different faults of the same stage and class.

    Divergences of one stage and class have one cause unless two simple rules explain what one rule cannot: each of the two
    rules explains some divergences that the other does not, and together they explain every divergence exactly.
    """
    findings = [each.finding for each in seen]
    groups: dict[tuple[str, DifferenceClass, str], list[int]] = {}
    for i, each in enumerate(seen):
        key = each.divergence.stage, each.finding.kind, each.finding.situation
        groups.setdefault(key, []).append(i)
    for (stage, kind, _), members in groups.items():
        situations: Sequence[str] = ()
        group = [seen[i] for i in members]
        if stage == Stage.LIMIT and kind is DifferenceClass.LIMIT:
            situations = [_name_limit(each) for each in group]
        elif stage == Stage.FINISH and kind is DifferenceClass.OUTCOME:
            situations = _separate_outcomes(group)
        elif stage == Stage.RESOLVE and kind is DifferenceClass.SUBSTITUTED:
            situations = _separate_changes(group)
        named = Counter(filter(None, situations))
        if len(named) > 1:
            for i, situation in zip(members, situations, strict=True):
                words = filter(None, (findings[i].situation, situation or named.most_common(1)[0][0]))
                findings[i] = findings[i]._replace(situation=", ".join(words))
    return tuple(findings)


def _name_limit(seen: Seen) -> str:
    """Name the limit that drops more or fewer: `max_atoms` first, since `max_resolvents` counts what it leaves.

    Return an empty text if the divergence was not replayed and its recorded steps do not show the limit.
    """
    around = seen.around
    if around.outputs is not None:
        counts: list[tuple[int, ...]] = [tuple(output[1:]) for output in around.outputs]
    else:
        counts = [(step.dropped_atoms, step.dropped_resolvents) for step in around.steps]
    if len(counts) < 2:
        return ""
    for name, expected, actual in zip(("max_atoms", "max_resolvents"), *counts, strict=True):
        if expected != actual:
            return f"{'more' if actual > expected else 'fewer'} dropped by {name}"
    return "" if around.outputs is None else "as many dropped"


def _separate_outcomes(group: Sequence[Seen]) -> Sequence[str]:
    """Separate by the expected outcome, unless one rule explains all: a single actual outcome, or renumbered outcomes."""
    pairs = [_outcomes(each) for each in group]
    known = {pair for pair in pairs if pair is not None}
    # Two independent faults can look like a shift of two outcomes.
    is_shifted = len(known) > 2 and len({(a - e) % len(Outcome) for e, a in known}) == 1
    is_exchanged = all((a, e) in known for e, a in known)
    if is_shifted or is_exchanged or len({actual for _, actual in known}) == 1:
        return ()
    return [f"{outcome_name(pair[0])} expected" if pair else "" for pair in pairs]


def _outcomes(seen: Seen) -> tuple[int, int] | None:
    around = seen.around
    if around.outputs is not None:
        expected, actual = around.outputs
        return int(expected), int(actual)
    if around.expected is not None and around.actual is not None:
        return around.expected.outcome, around.actual.outcome
    return None


_Atoms = tuple[tuple[int, ...], ...]


class _Change(NamedTuple):
    """Atoms that the same clause produced on both sides.

    before: the rest of the goal, if the atoms are the rest of a resolvent; None if they are its body
    """

    expected: _Atoms
    actual: _Atoms
    before: _Atoms | None


class _ChangeRule(NamedTuple):
    """A rule by which atoms are changed."""

    situation: str
    explains: Callable[[_Change], bool]


def _separate_changes(group: Sequence[Seen]) -> Sequence[str]:
    """Separate steps by the rule that changes their atoms; return nothing if one rule explains all, or no two rules do."""
    changes = [_divide(each) for each in group]
    known = [each for each in changes if each]
    for rule in _CHANGE_RULES:
        if all(rule.explains(change) for step in known for change in step):
            return ()
    for pair in permutations(_CHANGE_RULES, 2):
        explained = [next((r.situation for r in pair if all(map(r.explains, step))), "") for step in known]
        is_whole = all(any(rule.explains(change) for rule in pair) for step in known for change in step)
        if is_whole and len(set(filter(None, explained))) > 1:
            # The situation of the first rule that explains a change of the step.
            return [
                next((rule.situation for rule in pair if any(map(rule.explains, step or ()))), "") for step in changes
            ]
    return ()


def _divide(seen: Seen) -> list[_Change] | None:
    """Return the changes in a replayed step, clause by clause: in the clause's body, and in the rest of the goal.

    Return None if they are unknown, or if clauses or numbers of atoms differ.
    """
    around = seen.around
    if around.outputs is None or around.expected is None or seen.divergence.is_assumed:
        return None
    left, right = ({tuple(item[-3:-1]): tuple(map(tuple, item[-1])) for item in side} for side in around.outputs)
    if left.keys() != right.keys() or any(len(left[clause]) != len(right[clause]) for clause in left):
        return None
    before = tuple(map(tuple, around.expected.goal[1:]))
    divided = []
    for clause, atoms in left.items():
        end = len(atoms) - len(before)
        divided.append(_Change(atoms[:end], right[clause][:end], None))
        divided.append(_Change(atoms[end:], right[clause][end:], before))
    return [each for each in divided if each.expected != each.actual]


def _is_instance(special: _Atoms, general: _Atoms) -> bool:
    """Return whether a substitution of variables turns the second atoms into the first."""
    bound: dict[int, int] = {}
    terms = ((left, right) for pair in zip(special, general, strict=True) for left, right in zip(*pair, strict=True))
    return all(left == (bound.setdefault(right, left) if right < 0 else right) for left, right in terms)


_CHANGE_RULES: Final = (
    _ChangeRule("the rest of the goal is left as it was", lambda c: c.actual == c.before),
    _ChangeRule("a variable is not replaced", lambda c: c.actual != c.before and _is_instance(c.expected, c.actual)),
    _ChangeRule("different variables become one", lambda c: _is_instance(c.actual, c.expected)),
)


# The explanation


class Explainer:
    """The explanation of a comparison's divergences: both engines repeat steps of the expected run.

    views:    both versions of the step of each divergence in a step
    lockstep: whether to find further faults after the first one in a step
    is_repeating: whether both engines repeat themselves; if not, nothing follows from a step that is right when repeated
    """

    def __init__(
        self,
        expected: Trace,
        comparer: Comparer,
        views: Views,
        engines: tuple[Engine, Engine],
        *,
        lockstep: bool = False,
        is_repeating: bool = True,
        effort: Effort = FULL,
    ) -> None:
        self._effort, self._is_repeating = effort, is_repeating
        self._trace, self._columns = expected, expected.columns
        self._limits = expected.header.limits.with_defaults()
        self._comparer = comparer
        self._names, self._tolerance = comparer.names, comparer.score_tolerance
        self._modulo = comparer.modulo
        self._views = views
        self._expected, self._actual = (in_beams(each, expected.columns) for each in engines)
        self._lockstep = lockstep
        self._reader = StepReader(self._normalise(expected.columns))
        self._alone: list[str] = []
        self._among: list[bool] = []

    def replay(self, divergences: tuple[Divergence, ...], progress: Progress = no_progress) -> list[Replayed]:
        """Name the stage of each divergence by replaying its step, or a whole derivation by itself.

        If a step is right when repeated alone, the batch machinery around it was wrong (`recycle`), or the state that the
        step before left (`advance`). A probe counts only if it ends as the engine's own step does; for an engine without
        such a probe, the stage is inferred from its step. In lockstep, a step may yield several divergences: one for each
        stage with a fault of its own, and one for the machinery if the step differs in another way in its batch.
        """
        seen: dict[_Signature, dict[tuple[str, DifferenceClass, str], Replayed]] = {}
        source = None
        if not self._lockstep:
            source = find_score_source(self._reader.columns, divergences, self._views, self._tolerance)
        replayed: list[Replayed] = []
        for i, divergence in enumerate(divergences):
            if source is not None and divergence.field == "resolvents.score":
                moved = _move(divergence, Stage.RECYCLE)
                moved = msgspec.structs.replace(moved, kind=source.kind, evidence=source.evidence, confidence=0.9)
                replayed.append(Replayed(moved, situation=source.situation))
            elif divergence.stage not in (*STEP_STAGES, Stage.RECYCLE) or divergence.field.startswith(_NOT_OF_STEPS):
                replayed.append(Replayed(divergence))
            else:
                alike = seen.setdefault(self._sign(divergence), {})
                is_many = not self._effort.replays(i) and len(alike) == 1
                replayed += self._assume(divergence, *alike.values()) if is_many else self._replay(divergence, alike)
            progress(int(self._effort.replays(i)))
        return _choose_guesses(replayed)

    def _assume(self, divergence: Divergence, like: Replayed) -> list[Replayed]:
        """Return a divergence with the stage of another divergence whose recorded steps differ in the same way."""
        stage = like.divergence.stage
        if stage == divergence.stage and divergence.kind is not DifferenceClass.UNCLASSIFIED:
            # Its class follows from its own resolvents.
            return [Replayed(divergence)]
        evidence = f"{describe_recorded(divergence, self._surround(Replayed(divergence)))}; {NOT_REPLAYED}"
        assumed = msgspec.structs.replace(divergence, stage=stage, is_assumed=True, evidence=evidence)
        return [Replayed(assumed, like=like)]

    def _sign(self, divergence: Divergence) -> _Signature:
        """Return a signature of a divergence from its recorded steps: stage, field, missing, extra, class, situation."""
        has_missing, has_extra = (value != NOTHING_MORE for value in (divergence.expected, divergence.actual))
        found = self.classify(Replayed(divergence))
        return divergence.stage, divergence.field, has_missing, has_extra, found.kind, found.situation

    def _replay(
        self, divergence: Divergence, alike: dict[tuple[str, DifferenceClass, str], Replayed]
    ) -> list[Replayed]:
        """Replay a divergence, and add the result to those of similar divergences."""
        is_whole = divergence.field.startswith("candidates.")
        found = Replayed(self._replay_candidate(divergence)) if is_whole else self._replay_step(divergence)
        named = self.classify(found)
        alike.setdefault((found.divergence.stage, named.kind, named.situation), found)
        if is_whole or not self._lockstep or found.outputs is None or starts_wrong(divergence):
            return [found]
        return [found, *self._find_behind(found.divergence)]

    def _replay_step(self, divergence: Divergence) -> Replayed:
        """Replay a step; if its goal was already wrong, first replay the step that produced the goal."""
        step = divergence.step
        for at in (step - 1, step) if step > 0 and starts_wrong(divergence) else (step,):
            found = self._judge_again(
                divergence, at, self._take_again(find_position(self._trace.reader, divergence.candidate, at))
            )
            if found is not None:
                return found
        return Replayed(self._judge_right_step(divergence))

    def _judge_again(self, divergence: Divergence, step: int, again: _Again) -> Replayed | None:
        """Judge a step that both engines have taken again; return None if it is right this time."""
        fault = self._find_shown(again)
        is_shown = fault is not None and _shows_stages(again.shown, fault.stage)
        if fault and is_shown and self._repeats(again.shown, divergence, step):
            return self._name(divergence, fault, again)
        if self._is_same(*again.views):
            # A recorded step does not show the goal that it leaves.
            return self._name(divergence, fault) if fault and fault.stage is Stage.ADVANCE else None
        own = normalise_outputs(again.views[1].outputs, self._modulo)
        if fault and is_shown and ends_alike(again.shown, own, 2 * self._tolerance):
            return self._name(divergence, fault, again)
        if self._depends_on_others(divergence, step, again.views[1]):
            found = _of_machinery(divergence)
            evidence = "the step lists other clauses alone than among others: it depends on other slots"
            return Replayed(msgspec.structs.replace(found, **FOREIGN, evidence=evidence))
        return self._infer(divergence, again)

    def _depends_on_others(self, divergence: Divergence, step: int, alone: StepView) -> bool:
        """Return whether a step that is wrong alone lists different clauses in some slot of a batch with other steps.

        A stage that fails to overwrite a part of its list may list the same clauses in both cases, if the old content is
        the same. So the step is taken again only if it lists other clauses than in its run, or a resolvent of no clause.
        """
        candidate = divergence.candidate
        views = self._views.get((candidate, step)) if step == divergence.step else None
        clauses = [r.clause for r in alone.resolvents]
        has_gap = any(r.kind == GoalKind.GOAL and r.origin_kind == Origin.NONE for r in alone.resolvents)
        is_other = views is not None and clauses != [r.clause for r in views[1].resolvents]
        if not self._comparer.has_origins or not (has_gap or is_other):
            return False
        if len(self._among) >= self._effort.alone:
            return all(self._among)
        group = self._trace.reader.read_candidates(max(0, candidate - OTHERS), candidate + 1)
        positions = positions_of(group)
        num, own = len(positions.depth), int(group.candidates.num_steps[:-1].sum()) + step
        slots = self._actual.info.layout.get("slots", OTHERS)
        times = 1 + -(-min(slots, MOST_SLOTS) // num)
        repeated = take_positions(positions, np.tile(np.arange(num), times))
        reader = StepReader(self._normalise(self._actual.step(repeated)))
        rows = range(own, num * times, num)
        self._among.append(any([r.clause for r in reader.read(row).resolvents] != clauses for row in rows))
        return self._among[-1]

    def _is_same(self, expected: StepView, actual: StepView) -> bool:
        """Return whether two steps from the same goal agree in everything that both engines know."""
        known = self._comparer.expected.fields & self._comparer.actual.fields
        counts = dict.fromkeys(
            (name for name in ("dropped_atoms", "dropped_resolvents") if f"steps.{name}" not in known), 0
        )
        unknown: dict[str, Any] = {} if self._comparer.has_origins else {"origin_kind": 0, "origin": 0}
        unknown |= {} if self._comparer.has_scores else {"score": 0.0}
        left, right = (
            side._replace(goal=(), depth=0, resolvents=tuple(r._replace(**unknown) for r in side.resolvents), **counts)
            for side in (expected, actual)
        )
        return locate_difference(left, right, self._names, False, self._tolerance) is None

    def _repeats(self, outputs: StageOutputs, divergence: Divergence, step: int) -> bool:
        """Return whether a probe ends like the recorded step of the actual engine's run."""
        views = self._views.get((divergence.candidate, step)) if step == divergence.step else None
        if views is None:
            return False
        return ends_alike(outputs, normalise_outputs(views[1].outputs, self._modulo), 2 * self._tolerance)

    def _infer(self, divergence: Divergence, again: _Again) -> Replayed:
        """Infer the stage from the step alone, for an engine that does not show its stages."""
        if not self._comparer.has_origins:
            # The resolvents were explained by the program, and taps may show some stages.
            place = divergence.candidate, divergence.step
            return self._narrow(divergence, again, self._comparer.guesses.get(place, ()))
        fault = self._find_shown(again)
        shown = fault.stage if fault is not None else None
        if shown not in (None, Stage.LIMIT) and not _shows_stages(again.shown, Stage.LIMIT):
            return Replayed(msgspec.structs.replace(divergence, stage=shown.value), is_inferred=True)
        guesses = self._explain_by_one_stage(again)
        if guesses:
            guesses = self._ask(again.position, guesses)
        is_reordered = bool(guesses) and (guesses[0].stage, guesses[0].kind) == (
            Stage.RESOLVE,
            DifferenceClass.REORDERED,
        )
        if is_reordered and again.probes is not None:
            # Rules and facts are each in order, and `limit` lists both.
            guesses = [guesses[0]._replace(stage=Stage.LIMIT)]
        named = adopt_guess(divergence, guesses[0]) if guesses else divergence
        return Replayed(named, is_inferred=True, guesses=guesses)

    def _narrow(self, divergence: Divergence, again: _Again, guesses: Sequence[StepDifference]) -> Replayed:
        """Name the first tapped stage that differs, or a stage before it that no tap shows if only this explains the step."""
        unknown, fault = Replayed(divergence, guesses=guesses), self._find_shown(again)
        own = normalise_outputs(again.views[1].outputs, self._modulo)
        if fault is None or not ends_alike(again.shown, own, 2 * self._tolerance):
            return unknown
        order = order_of_stages(self._limits.dialect)
        before = order[: order.index(fault.stage)]
        last = max((i for i, stage in enumerate(before, 1) if stage in again.shown), default=0)
        if not last and fault.stage is Stage.LIMIT:
            # No tap: the step shows its own list.
            return unknown
        left = [each for each in guesses if each.stage in (*before[last:], fault.stage)]
        if left and left[0].stage is not fault.stage:
            return unknown._replace(guesses=left, is_inferred=True)
        return self._name(divergence, fault, again)

    def _find_shown(self, again: _Again) -> StageFault | None:
        """Return the first stage that both engines show and whose outputs differ."""
        if again.probes is None:
            return None
        expected, shown = again.probes
        actual = {stage: output for stage, output in shown.items() if stage not in self._other_taps}
        tolerance = self._tolerance
        if Stage.SCORE in actual and not self._comparer.has_scores:
            tolerance += self._bound_tapped(again)
        stage = first_difference(expected, actual, tolerance, order_of_stages(self._limits.dialect))
        return None if stage is None else StageFault(stage, expected[stage], actual[stage])

    def _confirm(self, stage: Stage, again: _Again) -> str:
        """Replace the value of a tap by the expected one, and say so if the step is then right."""
        replace = getattr(unwrap(cast(Any, self._actual)), "replace_stage", None)
        if replace is None or again.raw_probes is None:
            return ""
        columns = replace(again.position, stage, again.raw_probes[0][stage])
        if columns is None or not self._is_same(again.views[0], StepReader(self._normalise(columns)).read(0)):
            return ""
        return "with the expected value in place of this one, the rest of the step is right"

    def _bound_tapped(self, again: _Again) -> float:
        """Return the bound on the rounding of scores that only a tap shows, measured in the step itself."""
        engine = self._actual
        if not isinstance(engine, ProbedEngine):
            return 0.0
        precision = name_precision(engine.info.precision)
        if precision == "float64" and find_float_type(np.array(again.shown[Stage.SCORE])) != "float64":
            precision = "float32"
        return bound_tapped(engine, lambda: engine.probe(again.position)[Stage.SCORE], precision)

    @cached_property
    def _other_taps(self) -> Set[Stage]:
        """The stages whose taps show something else: they differ in most of the steps whose resolvents agree."""
        log = getattr(unwrap(cast(Any, self._actual)), "tap_log", None)
        if not isinstance(log, TapLog):
            return frozenset()
        wrong = {each.candidate for each in self._comparer.comparison.divergences if each.step < 1}
        first_step, num_differing, num = self._reader.first_step, Counter[Stage](), 0
        for candidate in range(min(self._trace.reader.num_candidates, MAX_TRIED)):
            # A proof would hide a fault of an earlier stage.
            kinds = {each.kind for each in self._reader.read(first_step[candidate]).resolvents}
            if candidate in wrong or kinds != {GoalKind.GOAL} or num == MAX_AGREEING:
                continue
            expected, actual = self._take_again(find_position(self._trace.reader, candidate, 0)).probes or ({}, {})
            num += 1
            for stage in (each for each in TAPPED if each in expected and each in actual):
                num_differing[stage] += not is_same_output(stage, expected[stage], actual[stage], self._tolerance)
        log.other |= {stage for stage, times in num_differing.items() if 2 * times > num > 1}
        return log.other

    def _ask(self, position: Positions, guesses: list[StepDifference]) -> list[StepDifference]:
        """Return the guesses that fit the engine's steps from other goals, or else new guesses from these steps."""
        suspects = {r.clause for r in (*guesses[0].missing, *guesses[0].extra)}
        for goal, doubted in self._list_questions(position, guesses[0], {each.stage for each in guesses}):
            asked = self._take_again(_ask_from(position, goal))
            listed = [{r.clause: r.content for r in view.resolvents} for view in asked.views]
            if listed[0] == listed[1]:
                is_tried = bool(suspects & listed[0].keys())
                left = [each for each in guesses if not is_tried or each.stage not in doubted]
            else:
                found = self._explain_by_one_stage(asked)
                left = [each for each in guesses if each.stage in {other.stage for other in found}]
                if not left and guesses[0].stage in doubted:
                    left = [each._replace(evidence=f"from another goal: {each.evidence}") for each in found]
            guesses = left or guesses
        return guesses

    def _list_questions(
        self, position: Positions, guess: StepDifference, stages: set[Stage]
    ) -> Iterator[tuple[PlainGoal, tuple[Stage, ...]]]:
        """Yield goals to try, each with the stages that are not at fault if the engine's step from this goal is right.

        No atom after the selected one can be proved or was visited, so that only matching, resolving and limits matter.
        """
        _, ((*_, goal),) = read_positions(position)
        selected, most, inference = goal[0], self._limits.max_atoms, self._comparer.program.origins
        if most < 2 or inference is None:
            return
        yield (selected, *_make_unprovable(selected, 1)), (Stage.MATCH_RULES, Stage.MATCH_FACTS)
        if stages >= {Stage.PRUNE, Stage.RESOLVE}:
            free = (selected[0], encode_variable(0), encode_variable(1))
            yield (free, *_make_unprovable(free, 1)), (Stage.RESOLVE,)
        query = tuple(position.candidates.atom[0].tolist())
        fact = next((each for each in inference.clauses.facts if each != query), None)
        if fact is None:
            return
        changed = (*guess.missing, *guess.extra)
        if guess.stage is Stage.LIMIT:
            # A goal of the same length that, after pruning, has a resolvent as long as the limit allows.
            rules = inference.clauses.rules
            longest = max((len(rules[r.origin][1]) for r in changed if r.origin_kind == Origin.RULE), default=0)
            num_open = min(len(goal) - 1, most - longest)
            if num_open >= 0:
                yield (
                    (selected, *[fact] * (len(goal) - 1 - num_open), *_make_unprovable(selected, num_open)),
                    (guess.stage,),
                )
        elif guess.stage is Stage.RESOLVE and len(guess.missing) == len(guess.extra) == 1:
            # After a fact, nothing is resolved, and only `rename` can change a variable.
            left, right = (r.atoms for r in changed)
            same = [i for i, (atom, other) in enumerate(zip(left, right, strict=False)) if atom == other]
            rest = number_variables(left[: same[-1]] + left[same[-1] + 1 :] if same and len(left) >= most else left)
            if len(rest) < most:
                yield (fact, *rest), (guess.stage,)

    def _explain_by_one_stage(self, again: _Again) -> list[StepDifference]:
        """Return the stages that explain the step by their fault alone, the likeliest first."""
        inference = self._comparer.program.origins
        if inference is None:
            return []
        _, (goals,) = read_positions(again.position)
        predicate, first, second = again.position.candidates.atom[0].tolist()
        program = StepProgram(inference.clauses, self._limits, goals, (predicate, first, second))
        known = self._comparer.expected.fields & self._comparer.actual.fields
        return explain_by_one_stage(program, StepPair(*again.views, has_counts="steps.dropped_resolvents" in known))

    def _judge_right_step(self, divergence: Divergence) -> Divergence:
        """Name the stage for a step that is right when repeated: the machinery around it, or the step before.

        If the whole derivation, run alone, goes wrong at the same step, `advance` hands on a wrong state: for example,
        visited goals, which a repeated step receives anew. But the first visited goal is stored by `recycle`.
        """
        step = divergence.step
        if step < 1:
            return _of_machinery(divergence)
        if len(self._alone) >= self._effort.alone:
            is_of_state = set(self._alone) == {Stage.ADVANCE.value}
            return _move(divergence, Stage.ADVANCE) if is_of_state else _of_machinery(divergence)
        judged = self._judge_alone(divergence)
        self._alone.append(judged.stage)
        return judged

    def _judge_alone(self, divergence: Divergence) -> Divergence:
        """Name the stage for a step that is right when repeated, by running the whole derivation alone."""
        step, candidate = divergence.step, divergence.candidate
        alone = self._actual.prove(candidate_set(self._columns).take(np.array([candidate])))
        if int(alone.candidates.num_steps[0]) <= step:
            return _of_machinery(divergence)
        reader, first = StepReader(self._normalise(alone)), self._reader.first_step[candidate]
        expected, actual = self._reader.read(first + step), reader.read(step)
        is_first_wrong = all(
            locate_difference(self._reader.read(first + i), reader.read(i), self._names, i == 0, self._tolerance)
            is None
            for i in range(step)
        )
        difference = locate_difference(expected, actual, self._names, False, self._tolerance)
        if not is_first_wrong or difference is None:
            return _of_machinery(divergence)
        extra = {each.atoms for each in actual.resolvents} - {each.atoms for each in expected.resolvents}
        if self._reader.read(first).goal in extra:
            return _of_machinery(divergence)
        return _move(divergence, Stage.ADVANCE, is_replayed=True)

    def _take_again(self, position: Positions) -> _Again:
        return _Again(self._comparer, (self._expected, self._actual), position)

    def _normalise(self, columns: Columns) -> Columns:
        return _normalise(self._comparer, columns)

    def _find_later(self, culprit: Stage, again: _Again) -> list[StageFault]:
        """Return further faults of a step. A stage judged only by the engine's own outputs is judged in the engine's order."""
        found = [
            fault
            for is_normal, probes in ((False, again.raw_probes), (True, again.probes))
            for fault in (find_later_faults(culprit, *probes, self._limits, self._tolerance) if probes else ())
            if is_own(fault.stage) != is_normal
        ]
        return sorted(found, key=lambda fault: STEP_STAGES.index(fault.stage))

    def _name(self, divergence: Divergence, fault: StageFault, again: _Again | None = None) -> Replayed:
        """Name the stage at fault. again: the step, which is taken once more with the stage's expected output."""
        named = msgspec.structs.replace(name_stage(divergence, *fault, self._names), is_replayed=True)
        confirmed = self._confirm(fault.stage, again) if again is not None else ""
        return Replayed(named, (fault.expected, fault.actual), confirmed=confirmed)

    def _find_behind(self, first: Divergence) -> Iterator[Replayed]:
        """Yield the further faults of a step, after the first stage at fault."""
        if not follows_inference(self._limits.dialect):
            return
        again = self._take_again(find_position(self._trace.reader, first.candidate, first.step))
        if again.probes is None:
            return
        recorded, alone = again.raw_views[1], again.views[1]
        for fault in self._find_later(Stage(first.stage), again):
            right = recorded._replace(choice=fault.expected) if fault.stage is Stage.CHOOSE else alone
            wrong = recorded if fault.stage is Stage.CHOOSE else alone
            yield self._name(first, fault)._replace(views=(right, wrong))
        compared = self._views.get((first.candidate, first.step))
        if compared is None:
            return
        # If the step, wrong alone, differs in another way in its batch, the batch machinery is at fault as well.
        views = _without_nan(alone), _without_nan(compared[1])
        difference = locate_difference(*views, self._names, first.step == 0, self._tolerance)
        if difference is not None:
            other = msgspec.structs.replace(
                first, field=difference.field, expected=difference.expected, actual=difference.actual
            )
            yield Replayed(_of_machinery(other), views=(alone, compared[1]))

    def _replay_candidate(self, divergence: Divergence) -> Divergence:
        """Repeat a whole derivation alone, if all its steps agree but its result does not.

        If it also ends in this wrong way alone, the fault is in `finish`, not in `recycle`, unless it is still OPEN: then
        nothing ended it, and the loop around the steps stopped.
        """
        alone = np.array([divergence.candidate])
        expected = self._columns.candidates
        actual = self._actual.prove(candidate_set(self._columns).take(alone)).candidates
        if divergence.stage == Stage.RECYCLE:
            wanted, ends = (
                (count_of(int(side.num_steps[i]), "step"), outcome_name(int(side.outcome[i])))
                for side, i in ((expected, divergence.candidate), (actual, 0))
            )
            is_its_own = ends != wanted and divergence.actual in ends and actual.outcome[0] != Outcome.OPEN
            return _move(divergence, Stage.FINISH, is_replayed=True) if is_its_own else divergence
        sums = float(expected.log_probability[divergence.candidate]), float(actual.log_probability[0])
        agrees = (
            actual.outcome[0] == expected.outcome[divergence.candidate]
            and actual.is_limited[0] == expected.is_limited[divergence.candidate]
            and is_close(*sums, 1e-9 * max(1.0, abs(sums[0])) + 2 * self._tolerance * max(1, int(actual.num_steps[0])))
        )
        return _of_machinery(divergence) if agrees else divergence

    def group(
        self, replayed: list[Replayed], judge: Callable[[Finding], Finding]
    ) -> tuple[tuple[Divergence, ...], tuple[Cause, ...]]:
        """Return the divergences with their classes, and their causes. judge: a function that judges findings on ranks."""
        seen = [Seen(each.divergence, self.classify(each), self._surround(each)) for each in replayed]
        findings = tuple(
            judge(finding) if each.divergence.stage == Stage.RANK else finding
            for each, finding in zip(replayed, separate(seen), strict=True)
        )
        divergences = [each.divergence for each in replayed]
        return group_causes(*name_in_dialect(divergences, findings, self._limits.dialect))

    def classify(self, replayed: Replayed) -> Finding:
        """Return the class of one divergence."""
        if replayed.like is not None:
            found = self.classify(replayed.like)
            confidence = min(found.confidence, ASSUMED_CONFIDENCE)
            return found._replace(evidence=replayed.divergence.evidence, confidence=confidence)
        found = classify(replayed.divergence, self._surround(replayed))
        if not self._is_repeating and not replayed.situation and found.kind is DifferenceClass.FOREIGN:
            found = found._replace(evidence=NOT_REPEATED, confidence=ASSUMED_CONFIDENCE)
        if replayed.situation:
            return found._replace(situation=replayed.situation)
        if replayed.confirmed:
            found = found._replace(evidence=f"{found.evidence}; {replayed.confirmed}")
        if not replayed.is_inferred:
            return found
        return found._replace(
            evidence=f"{found.evidence}; {INFERRED}", confidence=round(INFERRED_SHARE * found.confidence, 2)
        )

    def _surround(self, replayed: Replayed) -> Surroundings:
        """Collect the context on which the class of a divergence depends."""
        divergence = replayed.divergence
        around = find_surroundings(
            divergence,
            self._reader,
            replayed.views or self._views.get((divergence.candidate, divergence.step)),
            error_bound=2 * self._tolerance,
            draw=self._comparer.draws.get((divergence.query, divergence.side), ""),
            has_scores=self._comparer.has_scores,
        )
        expected, actual = around.expected, around.actual
        is_wrong_goal = expected is not None and actual is not None and expected.goal != actual.goal
        goals = self._all_goals if is_wrong_goal else frozenset()
        return around._replace(outputs=replayed.outputs, other_goals=goals)

    @cached_property
    def _all_goals(self) -> frozenset[Goal]:
        """The goals of the expected derivations, and the queries of both sides."""
        goals = (self._reader.read(row).goal for row in range(len(self._columns.steps.depth)))
        queries = self._comparer.read_candidates(1).atom
        queries = rename_candidates(queries) if NAMES in self._modulo else queries
        return frozenset((*goals, *((Atom(*query),) for query in queries.tolist())))
