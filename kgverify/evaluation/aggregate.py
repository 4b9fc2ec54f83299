"""Ranks by the confidences of rules, as AnyBURL and PyClause compute them, without proofs.

Each rule is applied once, its body is matched in the facts alone, and different variables stand for different constants, none of
them a constant of the rule. A candidate is as strong as the rules that predict it; candidates that no rule predicts tie below.
"""

import math
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.evaluation.joins import Joins
from kgverify.evaluation.parts import ChoiceStatistics, PartResult, Sample
from kgverify.program.outcomes import Outcome, Side
from kgverify.program.program import Program
from kgverify.progress import Progress
from kgverify.ranking.draw import BOTH_SIDES, count_eligible, may_be_drawn
from kgverify.runs.run import Run
from kgverify.trace.model.columns import empty_columns

Aggregate: TypeAlias = Literal["max", "max-plus", "noisy-or"]
"""The way in which the confidences of the rules that predict a candidate become its strength.

max: the highest one; max-plus: all of them, compared one by one from the highest on; noisy-or: 1 - (1 - c1)(1 - c2)...
"""

METHODS: Final[tuple[str, ...]] = get_args(Aggregate)


def read_confidences(program: Program, num_unseen: int) -> NDArray[np.float64]:
    """Return the confidence of each rule, float64 [R]: with a number of unseen predictions, right / (predictions + unseen).

    UserError for a rule without a confidence from 0 to 1, or without the counts that `num_unseen` needs.
    """
    found = []
    for rule in program.named_rules:
        confidence, where = rule.confidence, str(rule.source) or "rules"
        if num_unseen:
            if rule.counts is None:
                fix = "write rules as AnyBURL does, predicted<TAB>support<TAB>confidence<TAB>rule; or leave num_unseen out"
                raise UserError(f"num_unseen needs the numbers of predictions of {rule}", where=where, fix=fix)
            confidence = rule.counts[1] / (rule.counts[0] + num_unseen)
        if confidence is None or not 0 <= confidence <= 1:
            what = "none" if confidence is None else f"{confidence:g}"
            fix = "write it before the rule, 0.8:b(X,Y) -> h(X,Y); or leave aggregate out"
            raise UserError(f"expected a confidence from 0 to 1, found {what}", where=where, fix=fix)
        found.append(confidence)
    if not found:
        raise UserError("aggregate needs rules with confidences, found no rule", where="rules", fix="give --rules FILE")
    return np.array(found, np.float64)


class _Predictions(NamedTuple):
    """The predictions for one predicate and side, ascending by source and answer.

    key:      int64 [n]    source * number of constants + answer
    order:    int64 [n]    the place of its strength; equal strengths are equal
    strength: float64 [n]  the strength as a probability
    """

    key: NDArray[np.int64]
    order: NDArray[np.int64]
    strength: NDArray[np.float64]


class RuleRanker:
    """The ranks of a run's queries by an aggregation of its rules."""

    def __init__(self, run: Run, method: Aggregate, confidences: NDArray[np.float64]) -> None:
        self._run, self._method, self._confidences = run, method, confidences
        program = run.graph.program
        self._size = max(1, len(program.symbols.constants))
        self._joins = Joins(program.facts.astype(np.int64), self._size, has_identity=True)

    def rank(self, progress: Progress) -> PartResult:
        """Rank every query on both sides among all of its corruptions."""
        triples = self._run.triples[: len(self._run.queries)]
        num = 2 * len(triples)
        query, side = np.repeat(np.arange(len(triples)), 2), np.tile(np.array(BOTH_SIDES, np.int64), len(triples))
        num_eligible = count_eligible(self._run.graph, triples[query], side)
        above, tied, num_predicted = (np.zeros(num, np.int64) for _ in range(3))
        is_predicted, strength = np.zeros(num, np.bool_), np.ones(num)
        for predicate in np.unique(triples[:, 0]).tolist():
            rows = np.flatnonzero(triples[:, 0] == predicate)
            for each in BOTH_SIDES:
                found, is_drawn = self._predict(predicate, each, np.unique(triples[rows, 2 - each]))
                first = triples[rows, 2 - each].astype(np.int64) * self._size
                true = first + triples[rows, 1 + each]
                bounds = np.searchsorted(found.key, (first, first + self._size, true)).T.tolist()
                for row, key, (begin, end, own) in zip(2 * rows + each, true.tolist(), bounds, strict=True):
                    order = found.order[begin:end][is_drawn[begin:end]]
                    num_predicted[row] = len(order)
                    above[row], tied[row] = len(order), num_eligible[row] - len(order)
                    if own < end and found.key[own] == key:
                        is_predicted[row], strength[row] = True, found.strength[own]
                        above[row] = (order > found.order[own]).sum()
                        tied[row] = (order == found.order[own]).sum()
                progress(len(rows))
        num_outcomes = np.zeros((num, len(Outcome)), np.uint32)
        num_outcomes[:, Outcome.PROVED] = num_predicted + is_predicted
        num_outcomes[:, Outcome.FAILED] = num_eligible - num_predicted + ~is_predicted
        optimistic: NDArray[np.float64] = 1.0 + above.astype(np.float64)
        return PartResult(
            query=query.astype(np.int32),
            side=side.astype(np.int8),
            num_ranked=(num_eligible + 1).astype(np.uint32),
            optimistic=optimistic,
            pessimistic=optimistic + tied.astype(np.float64),
            outcome=np.where(is_predicted, Outcome.PROVED, Outcome.FAILED).astype(np.int8),
            log_probability=np.log(strength),
            num_outcomes=num_outcomes,
            num_limited=np.zeros(num, np.uint32),
            drawn=np.zeros(num, np.uint64),
            sample=_NO_SAMPLE,
            choices=ChoiceStatistics(),
        )

    def _predict(
        self, predicate: int, side: Side, sources: NDArray[np.int32]
    ) -> tuple[_Predictions, NDArray[np.bool_]]:
        """Return the predictions for some sources, and which of them are corruptions."""
        keys, rules = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for number, (head, body) in enumerate(self._run.graph.program.rules):
            kept = head[2 - side]
            if head[0] != predicate or not self._confidences[number] or (kept >= 0 and kept not in sources):
                continue
            bindings = {kept: sources.astype(np.int64)} if kept < 0 else None
            heads = [
                each[:, (2 - side, 1 + side)] @ (self._size, 1) for each in self._joins.apply(head, body, bindings)
            ]
            keys.append(np.unique(np.concatenate([keys[0], *heads])))
            rules.append(np.full(len(keys[-1]), number))
        key, confidence = np.concatenate(keys), self._confidences[np.concatenate(rules)]
        # The rules of each prediction, the highest confidence first.
        rows = np.lexsort((-confidence, key))
        distinct, first, count = np.unique(key[rows], return_index=True, return_counts=True)
        order, strength = _order(confidence[rows], first, count, self._method)
        atom = np.full((len(distinct), 3), predicate, np.int32)
        atom[:, 2 - side], atom[:, 1 + side] = np.divmod(distinct, self._size)
        is_drawn = may_be_drawn(self._run.graph, atom, np.full(len(atom), int(side)))
        return _Predictions(distinct, order, strength), is_drawn


def _order(
    confidence: NDArray[np.float64], first: NDArray[np.int64], count: NDArray[np.int64], method: Aggregate
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the order and the strength of predictions, each with `count` confidences from `first` on, descending."""
    highest: NDArray[np.float64] = confidence[first]
    if method == "max":
        return _number(highest), highest
    if method == "noisy-or":
        # Added one by one, from the highest on, equal confidences give equal sums.
        logs = [-math.log1p(-each) if each < 1 else math.inf for each in confidence.tolist()]
        doubt = np.bincount(np.repeat(np.arange(len(first)), count), logs, len(first))
        return _number(doubt), -np.expm1(-doubt)
    # From the last confidence of each prediction to the first: the order of the rest decides between equal ones.
    level = _number(confidence)
    order = np.zeros(len(first), np.int64)
    for place in range(int(count.max(initial=0)) - 1, -1, -1):
        rows = np.flatnonzero(count > place)
        order[rows] = _number(level[first[rows] + place] * (order.max() + 1) + order[rows]) + 1
    return order, highest


def _number(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the place of each value among the distinct values, ascending."""
    numbers: NDArray[np.int64] = np.unique(values, return_inverse=True)[1].astype(np.int64)
    return numbers


_NO_SAMPLE: Final = Sample(np.zeros(0, np.uint64), np.zeros(0, np.bool_), empty_columns().candidates)
