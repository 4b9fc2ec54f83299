"""The class of a divergence, with its evidence, derived from the two steps and the steps around them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from kgverify.comparison.result import DIGEST, NO_CANDIDATE, PROOF_CLASSES, Cause, Divergence, count_candidates
from kgverify.comparison.step_pair import StepPair, judge_counts
from kgverify.comparison.step_view import StepReader, StepView, canonical
from kgverify.errors import count_of
from kgverify.program.atoms import Goal, as_goal
from kgverify.program.outcomes import DifferenceClass, GoalKind, Origin, Stage
from kgverify.trace.model.score_tolerance import name_rounding

SCORE_ROUNDING = 2.0**-6
"""Scores whose difference, relative to the larger score, is below this look like the rounding of a short float."""

FALSE_PROOF, PROOF_LOST = PROOF_SITUATIONS = "a false proof", "a proof is lost"
"""The situations of differences in stages whose outputs the engines show."""


class Surroundings(NamedTuple):
    """The two steps of a divergence, and the context on which its class depends.

    expected, actual: None if a side has no such step
    outputs:          both outputs of the culprit stage, if the step was replayed or they were recorded
    earlier:          the candidate's steps before this one
    is_first:         whether it is the first step of its derivation
    other_goals:      goals of other derivations
    error_bound:      the largest gap between two scores that rounding explains
    draw:             the evidence that the candidates of this query and side were drawn differently
    has_scores:       whether both sides know their scores
    is_replayed:      whether the engines took the step again
    """

    expected: StepView | None
    actual: StepView | None
    outputs: tuple[Any, Any] | None = None
    earlier: tuple[StepView, ...] = ()
    is_first: bool = False
    other_goals: frozenset[Goal] = frozenset()
    error_bound: float = 0.0
    draw: str = ""
    has_scores: bool = True
    is_replayed: bool = False

    @property
    def steps(self) -> list[StepView]:
        """The steps that exist, the expected one first."""
        return [step for step in (self.expected, self.actual) if step is not None]

    def outputs_of(self, stage: Stage) -> tuple[Any, Any]:
        """Return both outputs of a stage: as the engines showed them, or as far as the recorded steps show them."""
        if self.outputs is not None:
            return self.outputs
        expected, actual = (step.outputs[stage] for step in self.steps)
        return expected, actual


class Finding(NamedTuple):
    """A class with its evidence, a confidence from 0 to 1, and the situation in which it was found."""

    kind: DifferenceClass
    evidence: str
    confidence: float
    situation: str = ""


def find_surroundings(
    divergence: Divergence,
    reader: StepReader,
    views: tuple[StepView | None, StepView | None] | None,
    *,
    error_bound: float,
    draw: str = "",
    has_history: bool = True,
    has_scores: bool = True,
) -> Surroundings:
    """Collect the context that decides the class of a divergence, except stage outputs and goals of other derivations.

    reader:      reads the expected steps
    views:       both steps, if the divergence is in a step
    draw:        the evidence that the candidates of its query and side were drawn differently
    has_history: whether the steps before it belong to the same candidate; in lockstep they do not
    has_scores:  whether both traces have scores
    """
    candidate, step = divergence.candidate, divergence.step
    expected, actual = views or (None, None)
    if divergence.field == "candidates.num_steps":
        has_step = step < int(reader.columns.candidates.num_steps[candidate])
        expected, actual = reader.read(reader.first_step[candidate] + step) if has_step else None, None
    is_of_both = expected is not None and actual is not None and has_history
    return Surroundings(
        expected,
        actual,
        earlier=reader.read_earlier(candidate, step) if is_of_both else (),
        is_first=step == 0 and has_history,
        error_bound=error_bound,
        draw=draw if divergence.stage == Stage.CORRUPT else "",
        has_scores=has_scores,
    )


def classify(divergence: Divergence, around: Surroundings) -> Finding:
    """Return the class of a divergence; UNCLASSIFIED would be a defect of kgverify."""
    stage = Stage(divergence.stage)
    if divergence.kind is not DifferenceClass.UNCLASSIFIED and around.outputs is None:
        # The resolvents were explained without origins, which decides the stage and the class together.
        return Finding(divergence.kind, divergence.evidence, divergence.confidence)
    of_candidate = next((finding for holds, finding in _classify_candidate(divergence, around) if holds), None)
    if of_candidate is not None:
        return of_candidate
    if around.expected is None or around.actual is None:
        return Finding(DifferenceClass.UNCLASSIFIED, "one side has no such step", 0.0)
    copied = _copied(around)
    if copied is not None and stage is not Stage.LIMIT:
        return copied
    rule = _RULES.get(stage)
    if rule is None:
        return Finding(DifferenceClass.UNCLASSIFIED, f"no rule for stage {stage.value}", 0.0)
    return rule(stage, around._replace(is_replayed=divergence.is_replayed))


def describe_recorded(divergence: Divergence, around: Surroundings) -> str:
    """Describe the difference that two recorded steps show by themselves, whichever stage made it."""
    expected, actual = around.expected, around.actual
    is_of_list = divergence.field.startswith("resolvents.") and divergence.field != "resolvents.score"
    if expected is None or actual is None or not is_of_list:
        return classify(divergence, around).evidence
    missing, extra = map(len, StepPair(expected, actual).only)
    if not missing and not extra:
        return "the same resolvents in a different order, in the recorded step"
    return f"{count_of(missing, 'resolvent')} missing, {extra:,} extra, in the recorded step"


def _classify_candidate(divergence: Divergence, around: Surroundings) -> Sequence[tuple[bool, Finding]]:
    """Return the classes of differences in ranks and in whole candidates, each with whether it applies to a divergence."""
    field, stage = divergence.field, divergence.stage
    is_atom, is_count, is_of_candidate = (
        field.startswith(name) for name in ("candidates.atom", "candidates.num_steps", "candidates.")
    )
    is_outcome = field == "candidates.outcome" or stage == Stage.RECYCLE
    kind = DifferenceClass.OUTCOME if is_outcome else DifferenceClass.NUMBER
    is_early_end = is_count and around.actual is None and around.expected is not None
    digests = "the digests of the step differ, and a trace without goals does not show more"
    summary = "every step agrees; the summary of the candidate does not"
    return (
        (
            stage == Stage.RANK,
            Finding(DifferenceClass.RANK, "the expected side ranks the same candidates differently", 1.0),
        ),
        (is_atom and bool(around.draw), Finding(DifferenceClass.SUBSTITUTED, around.draw, 1.0)),
        (
            is_atom and divergence.expected == NO_CANDIDATE,
            Finding(DifferenceClass.EXTRA, "the expected side does not have this candidate", 1.0),
        ),
        (is_atom, Finding(DifferenceClass.MISSING, "the actual side does not have this candidate", 1.0)),
        (is_early_end, Finding(DifferenceClass.MISSING, "the derivation stops while it is OPEN", 1.0)),
        (is_count, Finding(DifferenceClass.EXTRA, "the derivation continues after its end", 1.0)),
        (field == DIGEST, Finding(DifferenceClass.CONTENT, digests, 0.5)),
        (
            is_of_candidate and stage == Stage.FINISH,
            Finding(kind, "the steps of a side are unknown: any stage may be at fault", 0.1),
        ),
        (is_of_candidate, Finding(kind, summary, 0.9)),
    )


def _copied(around: Surroundings) -> Finding | None:
    """Find an earlier step that has the actual resolvents."""
    expected, actual = around.steps
    if expected.goal != actual.goal:
        return None
    contents = [r.content for r in actual.resolvents]
    if contents and contents != [r.content for r in expected.resolvents] and contents[0][0] == GoalKind.GOAL:
        for back, step in enumerate(reversed(around.earlier), 1):
            if step.goal != actual.goal and [r.content for r in step.resolvents] == contents:
                return Finding(
                    DifferenceClass.STALE, f"the resolvents are those of the step {back} before this one", 0.95
                )
    return None


def _of_matches(stage: Stage, around: Surroundings) -> Finding:
    expected, actual = (Counter[int](output) for output in around.outputs_of(stage))
    missing, added = (expected - actual).total(), actual - expected
    extra, repeated = added.total(), sum(num for clause, num in added.items() if expected[clause])
    is_repeated = any(atom.first < 0 and atom.first == atom.second for atom in around.steps[0].goal[:1])
    situation = "a repeated variable is selected" if is_repeated else ""
    what = "rule" if stage is Stage.MATCH_RULES else "fact"
    if missing or extra:
        return Finding(*judge_counts(missing, extra, what, repeated), 0.7 if missing and extra else 1.0, situation)
    dropped = _of_dropped(around)
    if dropped is not None:
        return dropped._replace(situation=situation)
    return Finding(DifferenceClass.REORDERED, f"the same {what}s in a different order", 1.0)


def _of_dropped(around: Surroundings) -> Finding | None:
    """Classify recorded steps that differ in the number of resolvents before the limits apply."""
    num = [
        sum(r.kind == GoalKind.GOAL for r in step.resolvents) + step.dropped_atoms + step.dropped_resolvents
        for step in around.steps
    ]
    if around.outputs is not None or num[0] == num[1]:
        return None
    kind = DifferenceClass.MISSING if num[0] > num[1] else DifferenceClass.EXTRA
    evidence = f"{count_of(abs(num[0] - num[1]), 'resolvent')} {kind.value} among those that the limits drop"
    return Finding(kind, evidence, 0.9)


def _of_resolvents(stage: Stage, around: Surroundings) -> Finding:
    """Compare lists of resolvents, whose items are (..., origin kind, origin, atoms)."""
    expected, actual = map(list, around.outputs_of(stage))
    missing, extra = Counter(expected) - Counter(actual), Counter(actual) - Counter(expected)
    if not missing and not extra:
        dropped = _of_dropped(around) if expected == actual else None
        return dropped or Finding(DifferenceClass.REORDERED, "the same resolvents in a different order", 1.0)
    situation = _proof_situation(expected, actual) if stage is Stage.CLOSE else ""
    left, right = ({item[-3:-1]: item[-1] for item in side} for side in (missing, extra))
    shared = left.keys() & right.keys()
    if shared and stage is not Stage.CLOSE:
        first = min(shared)
        # Tapped resolvents do not tell their clauses.
        clause = "a clause" if first == (Origin.NONE, 0) else "the same clause"
        return _of_atoms(stage, left[first], right[first], clause)
    if not shared and (not missing or not extra):
        kind = DifferenceClass.MISSING if missing else DifferenceClass.EXTRA
        num = count_of((missing or extra).total(), "resolvent")
        return Finding(kind, f"{num} {kind.value}", 0.95, situation)
    if stage is Stage.CLOSE:
        what = "the same clause closes the goal differently" if shared else "the goal is closed differently"
        return Finding(DifferenceClass.OUTCOME, what, 0.9, situation)
    return Finding(*judge_counts(missing.total(), extra.total(), "resolvent"), 0.6)


def _of_atoms(stage: Stage, expected: Any, actual: Any, clause: str) -> Finding:
    """Compare the atoms that a clause produced on both sides. clause: its words in the evidence."""
    if canonical(as_goal(expected)) == canonical(as_goal(actual)):
        return Finding(DifferenceClass.RENAMED, f"{clause} gave the same atoms with different variables", 1.0)
    # Padding counted as an atom is extra only if everything else is equal.
    left, right = (sum(atom[0] >= 0 for atom in side) for side in (expected, actual))
    gained = right - left or len(actual) - len(expected)
    if stage is Stage.PRUNE and gained:
        kind = DifferenceClass.EXTRA if gained > 0 else DifferenceClass.MISSING
        return Finding(kind, f"{count_of(abs(gained), 'atom')} {kind.value} after pruning", 0.95)
    return Finding(DifferenceClass.SUBSTITUTED, f"{clause} gave different atoms", 0.95)


def _of_limit(stage: Stage, around: Surroundings) -> Finding:
    (expected, *dropped), (actual, *own) = around.outputs_of(stage)
    if around.outputs is not None and dropped == own and Counter(expected) == Counter(actual):
        return Finding(DifferenceClass.REORDERED, "the same resolvents are kept, in a different order", 1.0)
    evidence = f"dropped (by max_atoms, by max_resolvents): expected {tuple(dropped)}, actual {tuple(own)}"
    if dropped == own:
        evidence = f"{count_of(len(actual), 'resolvent')} left, expected {len(expected)}"
    return Finding(DifferenceClass.LIMIT, evidence, 0.95, _proof_situation(expected, actual))


def _proof_situation(expected: Sequence[Any], actual: Sequence[Any]) -> str:
    has_proof = [any(item[0] == GoalKind.TRUE for item in side) for side in (expected, actual)]
    if has_proof == [False, True]:
        return FALSE_PROOF
    return PROOF_LOST if has_proof == [True, False] else ""


def _of_scores(stage: Stage, around: Surroundings) -> Finding:
    pairs = list(zip(*around.outputs_of(stage), strict=False))
    if any(a != a for _, a in pairs):
        return Finding(DifferenceClass.NUMBER, "a score is NaN", 1.0, "NaN")
    if any(e != a and inf in (abs(e), abs(a)) for e, a in pairs):
        return Finding(DifferenceClass.NUMBER, "a score is infinite, and the other side's is not the same", 1.0)
    worst = max((abs(e - a) / max(abs(e), abs(a)) for e, a in pairs if e != a), default=0.0)
    if worst > SCORE_ROUNDING:
        return Finding(DifferenceClass.NUMBER, f"scores differ by up to {worst:.1e}, relative", 0.9)
    words = f"scores differ by at most {worst:.1e}, relative"
    expected, actual = (np.array(side, np.float64) for side in zip(*pairs, strict=True))
    if short := name_rounding(expected, actual):
        words += f": the actual scores are the expected ones rounded to {short}, up or down"
        return Finding(DifferenceClass.ROUNDING, words, 0.7)
    words += ": as little as a coarser float type or slightly different weights would change them"
    return Finding(DifferenceClass.NUMBER, words, 0.6)


def _of_choice(stage: Stage, around: Surroundings) -> Finding:
    expected, actual = around.steps
    if expected.chosen is None or actual.chosen is None:
        return Finding(DifferenceClass.NUMBER, "the choice is not the index of a resolvent", 0.9)
    if not around.has_scores:
        return Finding(DifferenceClass.CONTENT, "another resolvent is chosen, and no scores say why", 0.5)
    gap = expected.resolvents[expected.choice].score - expected.resolvents[actual.choice].score
    own_gap = actual.resolvents[expected.choice].score - actual.resolvents[actual.choice].score
    if gap == 0 or own_gap == 0:
        return Finding(DifferenceClass.TIE, "the two choices have equal scores", 1.0)
    if gap <= around.error_bound:
        return Finding(DifferenceClass.ROUNDING, f"the gap of the scores, {gap:.2e}, is inside the error bound", 1.0)
    return Finding(DifferenceClass.NUMBER, f"the chosen resolvent scores {gap:.3g} below the highest", 0.8)


def _of_goal(stage: Stage, around: Surroundings) -> Finding:
    expected, actual = around.steps
    cause = "the state that steps before it left" if stage is Stage.ADVANCE else "other slots"
    words = "the recorded outputs of the stages agree, and the step differs: the fault lies outside of the stages"
    if around.is_replayed:
        words = f"the step run alone gives the expected output: it depends on {cause}"
    alone = Finding(DifferenceClass.FOREIGN, words, 0.8 if around.is_replayed else 0.5)
    rules = (
        (
            expected.goal == actual.goal and expected.depth != actual.depth,
            Finding(DifferenceClass.STALE, f"depth {actual.depth}, expected {expected.depth}", 0.9),
        ),
        (expected.goal == actual.goal, alone),
        (
            any(step.goal == actual.goal for step in around.earlier),
            Finding(DifferenceClass.STALE, "the goal is that of an earlier step", 0.95),
        ),
        (
            actual.goal in around.other_goals,
            Finding(DifferenceClass.FOREIGN, "the goal is that of another derivation", 0.95),
        ),
        (
            canonical(expected.goal) == canonical(actual.goal),
            Finding(DifferenceClass.RENAMED, "the goal has different variables", 0.95),
        ),
    )
    right = "query" if around.is_first else "chosen resolvent"
    otherwise = Finding(DifferenceClass.SUBSTITUTED, f"the goal is not the {right}", 0.8)
    return next((finding for holds, finding in rules if holds), otherwise)


_RULES: Final[Mapping[Stage, Callable[[Stage, Surroundings], Finding]]] = {
    **dict.fromkeys((Stage.MATCH_RULES, Stage.MATCH_FACTS), _of_matches),
    **dict.fromkeys((Stage.RESOLVE, Stage.PRUNE, Stage.RENAME, Stage.REVISIT, Stage.CLOSE), _of_resolvents),
    Stage.LIMIT: _of_limit,
    Stage.SCORE: _of_scores,
    Stage.CHOOSE: _of_choice,
    Stage.FINISH: lambda stage, around: Finding(
        DifferenceClass.OUTCOME, "the same resolvent was chosen, with a different outcome", 1.0
    ),
    **dict.fromkeys((Stage.ADVANCE, Stage.RECYCLE, Stage.SELECT), _of_goal),
}
"""The rule that classifies the differences of each stage in a step."""


def group_causes(
    divergences: tuple[Divergence, ...], findings: tuple[Finding, ...]
) -> tuple[tuple[Divergence, ...], tuple[Cause, ...]]:
    """Return the divergences with class and cause filled in, and the causes.

    Lost and false proofs are first, then the causes with the most candidates. Divergences with the same stage, class and
    situation have the same cause.
    """
    groups: dict[tuple[str, str, str], list[int]] = {}
    for i, (divergence, finding) in enumerate(zip(divergences, findings, strict=True)):
        groups.setdefault((divergence.stage, finding.kind.value, finding.situation), []).append(i)

    def size(members: list[int]) -> int:
        return count_candidates(divergences[i] for i in members)

    def is_of_proof(key: tuple[str, str, str]) -> bool:
        return key[1] in PROOF_CLASSES or key[2] in PROOF_SITUATIONS

    ordered = sorted(groups.items(), key=lambda item: (not is_of_proof(item[0]), -size(item[1]), item[1][0]))
    numbered = list(divergences)
    causes = []
    for number, ((stage, _, situation), members) in enumerate(ordered):
        own = [divergences[i] for i in members]
        for i in members:
            kind, evidence, confidence, _ = findings[i]
            numbered[i] = msgspec.structs.replace(
                divergences[i], kind=kind, evidence=evidence, confidence=confidence, cause=number
            )
        causes.append(
            Cause(
                stage=stage,
                kind=findings[members[0]].kind,
                code=findings[members[0]].kind.code,
                situation=situation,
                num_candidates=size(members),
                num_queries=len({each.query for each in own}),
                num_divergences=len(members),
                num_assumed=sum(each.is_assumed for each in own),
                num_later=sum(each.later_steps for each in own),
                first=members[0],
            )
        )
    return tuple(numbered), tuple(causes)
