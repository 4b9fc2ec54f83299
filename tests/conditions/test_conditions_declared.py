"""Features that an engine declares itself."""

from typing import Any, ClassVar

import numpy as np
import pytest

import kgverify as kv

pytestmark = pytest.mark.usefixtures("experiments")


class Lanes(kv.StagedEngine):
    """An engine that loses the rules of every step in lane 2 of 3."""

    declared: ClassVar[Any] = None

    def take_steps(self, queries, visited):
        self._lanes = getattr(self, "_lanes", [])
        taken = []
        for i, (query, goals) in enumerate(zip(queries, visited, strict=True)):
            self.lane = i % 3
            if len(goals) == 1:
                self._lanes.append(self.lane)
            taken.append(self.take_step(query, goals))
        return taken

    def resolve(self, goal, excluded):
        for clause in self.clauses_for(goal, excluded):
            if clause.head[1] in (goal[0][1], -1) and clause.head[2] in (goal[0][2], -2, -1) and not clause.body:
                yield clause, goal[1:]
            elif clause.body and self.lane != 2 and max(clause.head[1:]) < 0 and clause.head[1] != clause.head[2]:
                bound = {clause.head[1]: goal[0][1], clause.head[2]: goal[0][2]}
                yield clause, [(p, bound.get(a, a), bound.get(b, b)) for p, a, b in clause.body] + list(goal[1:])

    def features(self, columns):
        if self.declared is not None:
            return self.declared
        lanes = np.array(self._lanes[-len(columns.candidates.atom) :])
        return {"lane": lanes, "is in the last lane": lanes == 2}


def report_of(declared: Any) -> kv.Report:
    engine = type("Lanes", (Lanes,), {"declared": declared})
    return kv.verify(
        "countries",
        engine,
        queries=4,
        corruptions=10,
        limits=kv.Limits(max_depth=1),
        equality=kv.Equality(determinism=False),
    )


def test_a_condition_is_stated_in_a_feature_that_the_engine_declares():
    found = report_of(None).causes[0]
    assert "with is in the last lane" in found.condition or "whose lane is 2" in found.condition, found.condition
    assert found.when.is_exact


@pytest.mark.parametrize("declared", [[1, 2], {"lane": [1, 2]}, {"lane": ["a"]}, {3: [1]}, {"a\n": [1]}])
def test_features_that_are_not_numbers_by_name_are_refused(declared: Any):
    with pytest.raises(kv.UserError, match="expected"):
        report_of(declared)


def test_an_exception_in_features_is_reported_with_its_line():
    def fail(self, columns):
        raise ValueError("my mistake")

    engine = type("Fails", (Lanes,), {"features": fail})
    with pytest.raises(
        kv.UserError, match=r"its `features` failed: ValueError: my mistake \(.*py:\d+ in fail\)"
    ) as raised:
        kv.verify("countries", engine, queries=1, corruptions=1)
    assert "Fails" in raised.value.where
    assert "features(columns: Columns) -> dict" in raised.value.fix
