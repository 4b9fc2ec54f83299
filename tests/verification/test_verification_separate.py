"""Each divergence has evidence of its own; faults are separated by the rule of their stage; idle faults are named."""

from itertools import product

import pytest

from kgverify import Stage
from kgverify.comparison.classify import Finding, Surroundings
from kgverify.comparison.result import Divergence, Level
from kgverify.program.outcomes import DifferenceClass
from kgverify.verification import replay as module
from kgverify.verification.judgement import describe_idle
from kgverify.verification.replay import Seen, separate


def seen(stage: Stage, kind: DifferenceClass) -> Seen:
    divergence = Divergence(
        candidate=0,
        atom="",
        query=0,
        side="head",
        step=1,
        stage=stage.value,
        field="",
        level=Level.CHOICE,
        expected=0,
        actual=1,
        kind=kind,
    )
    return Seen(divergence, Finding(kind, "", 1.0), Surroundings(None, None, None, (), frozenset(), 0.0))


RULES = {
    (Stage.LIMIT, DifferenceClass.LIMIT): "_name_limit",
    (Stage.FINISH, DifferenceClass.OUTCOME): "_separate_outcomes",
    (Stage.RESOLVE, DifferenceClass.SUBSTITUTED): "_separate_changes",
}


def test_each_stage_and_class_is_separated_by_its_own_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_name_limit", lambda each: f"_name_limit {next(turns)}")
    for name in ("_separate_outcomes", "_separate_changes"):
        monkeypatch.setattr(module, name, lambda group, name=name: [f"{name} {each}" for each in ("a", "b")])
    for stage, kind in product(Stage, DifferenceClass):
        turns = iter("ab")
        rule = RULES.get((stage, kind))
        found = separate([seen(stage, kind), seen(stage, kind)])
        assert [each.situation for each in found] == ([f"{rule} a", f"{rule} b"] if rule else ["", ""]), (stage, kind)


@pytest.mark.parametrize(
    ("expected", "actual", "named"),
    [([], [], None), (["a"], ["a"], None), (["a"], [], "fault a"), (["a", "b"], ["b", "c"], "faults a, c")],
)
def test_a_fault_planted_in_one_side_alone_is_named_as_idle(
    expected: list[str], actual: list[str], named: str | None
) -> None:
    assert describe_idle(expected, actual) == (
        [] if named is None else [f"the planted {named} changed no step, outcome or rank"]
    )
