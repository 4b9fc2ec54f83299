"""The conditions of faults in engines that show no stages: what is said where other readings fit, and features of their own."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from problem_text import BRANCHING, LOOPED, RINGS

import kgverify as kv
from kgverify.engines.plain.engine import PlainEngine
from kgverify.program.outcomes import Origin
from kgverify.step.plain_step import SOUND, Stages, match_facts, prune, resolve, score, score_shortest
from kgverify.verification.recorded import compare_recorded

LAST = 16


def hidden(stages: Stages = SOUND, **others: Any) -> type[PlainEngine]:
    """Return an engine with these stages that shows none of them."""

    def make(self: PlainEngine, program: Any, limits: Any, policy: Any) -> None:
        PlainEngine.__init__(self, program, limits, policy, stages=stages)
        self.info = replace(self.info, name="mine", mode="")

    return type("Mine", (PlainEngine,), {"__init__": make, "probe": None, **others})


def causes_of(engine: type[PlainEngine], **limits: int) -> Any:
    report = kv.verify(
        RINGS,
        engine,
        queries=8,
        corruptions=3,
        limits=kv.Limits(**({"max_depth": 6} | limits)),
        equality=kv.Equality(determinism=False, minimum={}),
    )
    return report.causes


def test_steps_behind_a_wrong_score_that_changes_no_choice_count_as_well():
    def score(situation, resolvents):
        # Multiples of 1/16 stay as they are: those with 0 or 4 variables.
        return [round(each * 16) / 16 for each in score_shortest(situation.goal, resolvents)]

    (cause,) = causes_of(hidden(SOUND._replace(score=score)))
    assert cause.stage == "score"
    assert cause.when.num_wrong > cause.num_divergences
    assert "on these the same as resolvents with 1 or more variables" in cause.condition


@pytest.mark.usefixtures("experiments")
def test_causes_that_one_simpler_condition_explains_are_one():
    def delete(situation, resolvents):
        # The id of padding is that of the last constant.
        return [
            each._replace(atoms=tuple(atom for atom in each.atoms if atom[1] != LAST))
            for each in prune(situation, resolvents)
        ]

    (cause,) = causes_of(hidden(SOUND._replace(prune=delete)))
    assert cause.stage == "prune"
    assert "whose argument 1 is the constant with the largest id" in cause.condition


@pytest.mark.usefixtures("experiments")
def test_the_engines_own_numbers_are_features():
    # Its predicates have the numbers 2, 0 and 1, and a key of 8 bits loses the facts of number 1.
    numbers = np.array([2, 0, 1]), np.arange(17) * 100

    def match(situation, selected):
        return [i for i in match_facts(situation, selected) if numbers[0][situation.clauses.facts[i][0]] < 2]

    (cause, *_) = causes_of(hidden(SOUND._replace(match_facts=match), numbers=numbers))
    assert "on these the same as facts whose predicate has the engine's number 2 or more" in cause.condition
    assert cause.when.experiment.verdict == "confirmed"


def test_a_condition_of_one_clause_says_so():
    def limit(situation, resolvents):
        return [each for each in resolvents if each.clause != (Origin.RULE, 0) or situation.depth], 0

    (cause, *_) = causes_of(hidden(SOUND._replace(limit_atoms=limit)))
    assert "all of them by one clause, so another property of it may be the reason" in cause.condition


@pytest.mark.usefixtures("experiments")
def test_a_limit_that_counts_resolvents_that_another_one_drops_is_described():
    beyond = 0

    def cap(situation, resolvents):
        nonlocal beyond
        listed = resolvents[: situation.limits.max_resolvents]
        beyond = len(resolvents) - len(listed)
        short = [each for each in listed if len(each.atoms) <= situation.limits.max_atoms]
        return short, len(listed) - len(short)

    def count(situation, resolvents):
        return list(resolvents), beyond

    causes = causes_of(hidden(SOUND._replace(limit_atoms=cap, limit_resolvents=count)), max_atoms=2, max_resolvents=2)
    assert {cause.stage for cause in causes} == {"limit"}
    assert "beyond max_resolvents only if resolvents of more than max_atoms atoms count" in causes[0].condition


def count_variables(atoms):
    return len({term for _, *terms in atoms for term in terms if term < 0})


def keep_max_resolvents_of_each_kind(situation, resolvents):
    kept = [
        each
        for kind in (Origin.RULE, Origin.FACT)
        for each in [r for r in resolvents if r.origin_kind == kind][: situation.limits.max_resolvents]
    ]
    return kept, len(resolvents) - len(kept)


def leave_the_rest_of_the_goal(situation, rules, facts):
    return [
        each._replace(atoms=(*each.atoms[: len(each.atoms) - len(situation.goal) + 1], *situation.goal[1:]))
        for each in resolve(situation, rules, facts)
    ]


def count_variables_of_the_goal(situation, resolvents):
    return [
        -(len(each.atoms) + count_variables(situation.goal) / 64) if each.atoms else known
        for known, each in zip(score(situation, resolvents), resolvents, strict=True)
    ]


def replace_pruned_atoms_with_the_last(situation, resolvents):
    changed = []
    for each in resolvents:
        atoms, at = list(each.atoms), 0
        while at < len(atoms):
            if atoms[at] in situation.clauses.fact_index and atoms[at] != situation.excluded:
                atoms[at] = atoms[-1]
                atoms.pop()
            else:
                at += 1
        changed.append(each._replace(atoms=tuple(atoms)))
    return changed


def drop_long_resolvents_before_pruning(situation, resolvents):
    return prune(situation, [each for each in resolvents if len(each.atoms) <= situation.limits.max_atoms])


def put_facts_first(situation, rules, facts):
    return sorted(resolve(situation, rules, facts), key=lambda each: -each.origin_kind)


def remember_the_first_goals(situation, resolvents):
    return [each for each in resolvents if not each.atoms or each.atoms not in situation.visited[:3]]


@pytest.mark.usefixtures("experiments")
@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (
            {"limit_resolvents": keep_max_resolvents_of_each_kind},
            "beyond max_resolvents only if those of rules and those of facts count together",
        ),
        ({"resolve": leave_the_rest_of_the_goal}, "that change if the rest of the goal stays as it was"),
        ({"score": count_variables_of_the_goal}, "with another number of variables than their goal"),
        ({"prune": replace_pruned_atoms_with_the_last}, "if the last one takes the place of each fact to prune"),
        (
            {"prune": drop_long_resolvents_before_pruning},
            "make more than max_atoms atoms before pruning, but not after it",
        ),
        ({"resolve": put_facts_first}, "whose list changes if the resolvents of facts come before those of rules"),
        (
            {"revisit": remember_the_first_goals},
            'the true bound of "number of the goal visited" may be any from 3 to 4',
        ),
    ],
)
def test_what_provers_confuse_is_described(stages: dict[str, Any], words: str):
    limits = {"max_resolvents": 2} if "limit_resolvents" in stages else {}
    report = kv.verify(
        LOOPED,
        hidden(SOUND._replace(**stages)),
        queries=6,
        corruptions=2,
        limits=kv.Limits(**({"max_depth": 8, "max_atoms": 3} | limits)),
        equality=kv.Equality(determinism=False, minimum={}),
    )
    assert any(words in cause.condition for cause in report.causes)
    if stages != {"prune": drop_long_resolvents_before_pruning}:
        # A missing resolvent does not show that pruning lost it.
        assert {cause.stage for cause in report.causes} == {name.partition("_")[0] for name in stages}


def test_what_follows_from_the_default_dialect_alone_is_not_said_of_traces_of_an_unknown_one():
    limits = {"max_depth": 8, "max_atoms": 3}
    report = kv.verify(
        LOOPED,
        hidden(SOUND._replace(prune=drop_long_resolvents_before_pruning)),
        queries=6,
        corruptions=2,
        limits=kv.Limits(**limits),
        equality=kv.Equality(determinism=False, minimum={}),
    )
    traces = report.traces.expected, report.traces.actual
    unknown = [
        dataclasses.replace(each, header=replace(each.header, limits=kv.DeclaredLimits(**limits))) for each in traces
    ]
    for pair, is_known in ((traces, True), (unknown, False)):
        (cause,) = compare_recorded(*pair).report.causes
        assert cause.when.tried
        said = [cause.condition, *(each.words for each in cause.when.tried)]
        assert any("before pruning, but not after it" in words for words in said) == is_known


@pytest.mark.usefixtures("experiments")
def test_a_fault_of_one_of_two_indexes_is_stated_without_numbers_that_happen_to_fit():
    def match(situation, selected):
        found = [*match_facts(situation, selected)]
        return found[1:] if selected[1] < 0 <= selected[2] else found

    report = kv.verify(
        BRANCHING,
        hidden(SOUND._replace(match_facts=match)),
        queries=8,
        corruptions=3,
        limits=kv.Limits(max_depth=6),
        equality=kv.Equality(determinism=False, minimum={}),
    )
    where = "that match first and where the selected atom's second argument is a constant and where the selected atom's"
    assert f"the facts {where} first argument is a variable are missing" in report.causes[0].condition
