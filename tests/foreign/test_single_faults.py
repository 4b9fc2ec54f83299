"""The stage of a step recorded with its clauses, found by the one fault that explains it, in several dialects."""

from functools import partial

import pytest

import kgverify as kv
from kgreference import Stages
from kgreference.resolvent import Kind, Matches
from kgreference.step import close, match_facts, match_rules, resolve
from kgverify.comparison.classify import Finding
from kgverify.comparison.inference.infer import name_in_dialect
from kgverify.dialects import Dialect, ReferenceEngine

OURS = Dialect()
NO_MEMORY = Dialect(memory="none", order="facts_first")
SETS = Dialect(memory="set", order="facts_first")
CLOSED_LAST = Dialect(filters=("prune", "revisit", "max_atoms", "max_resolvents", "close"))
NO_PRUNING = Dialect(filters=("revisit", "close", "max_atoms", "max_resolvents"), memory="none")
STACKED = Dialect(
    order="facts_first",
    is_reversed=True,
    filters=("prune", "duplicates", "close", "revisit", "max_atoms", "max_resolvents"),
    long_resolvents="truncate",
    stopping="where_no_terminal",
)
DIALECTS = (OURS, NO_MEMORY, SETS, CLOSED_LAST, NO_PRUNING)


def keep(matches, count):
    return Matches(*(column[:count] for column in matches))


def first_facts(situation, selected):
    return keep(match_facts(situation, selected), 3)


def no_last_rule(situation, selected):
    found = match_rules(situation, selected)
    return keep(found, max(1, len(found.origins) - 1))


def reverse_bodies(situation, rules, facts):
    """Put the atoms of long resolvents in the reverse order."""
    return [r._replace(atoms=r.atoms[::-1]) if len(r.atoms) > 2 else r for r in resolve(situation, rules, facts)]


def with_second_first(situation):
    goal = situation.goal
    return situation._replace(goal=(*goal[1:2], goal[0], *goal[2:]))


SELECT_SECOND = {
    "select": lambda situation: with_second_first(situation).goal[0],
    "resolve": lambda situation, rules, facts: resolve(with_second_first(situation), rules, facts),
}


def keep_all(situation, resolvents):
    return list(resolvents)


def keep_beside_proof(situation, resolvents):
    return list(resolvents) or close(situation, resolvents)


def read_empty_as_proof(situation, resolvents):
    return [r._replace(kind=Kind.TRUE) if r.kind is Kind.FALSE else r for r in close(situation, resolvents)]


def keep_last(situation, resolvents):
    return list(resolvents[-situation.limits.max_resolvents :])


FAULTS = {
    "select": (SELECT_SECOND, (OURS, NO_PRUNING)),
    "match_facts": ({"match_facts": first_facts}, DIALECTS),
    "match_rules": ({"match_rules": no_last_rule}, DIALECTS),
    "resolve": ({"resolve": reverse_bodies}, (NO_MEMORY, SETS, NO_PRUNING)),
    "prune": ({"prune": keep_all}, (OURS, NO_MEMORY, SETS, CLOSED_LAST)),
    "revisit": ({"revisit": keep_all}, (OURS, SETS, CLOSED_LAST)),
    "close": ({"close": keep_beside_proof}, (OURS, NO_MEMORY, SETS)),
    "limit": ({"limit_resolvents": keep_last}, (OURS, NO_MEMORY, CLOSED_LAST)),
}
CASES = [
    pytest.param(stage, stages, dialect, id=f"{stage}, {dialect}", marks=[pytest.mark.deep] * (dialect != dialects[0]))
    for stage, (stages, dialects) in FAULTS.items()
    for dialect in {
        str(each): each for each in (dialects[0], dialects[len(stage) % len(dialects)], dialects[-1])
    }.values()
]
"""Each stage in the first of its dialects, and with `-m deep` in up to two more."""


def record(path, stages, dialect, level="steps"):
    make = partial(ReferenceEngine, stages=Stages(**stages))
    limits = kv.Limits(max_resolvents=4, max_atoms=5, max_depth=8, dialect=dialect)
    options = kv.RecordingOptions(level=level)
    kv.record("countries", path, make, queries=3, corruptions=5, limits=limits, options=options)
    return path


@pytest.mark.parametrize(("stage", "stages", "dialect"), CASES)
def test_the_stage_of_a_single_fault_is_named_in_any_dialect(tmp_path, stage, stages, dialect):
    report = kv.compare("reference", record(tmp_path / "wrong.h5", stages, dialect))
    assert report.verdict is kv.Verdict.DIVERGE
    assert {cause.stage for cause in report.causes} == {stage}, str(report)


def test_a_stage_that_explains_a_step_is_named_where_none_explains_it(tmp_path):
    report = kv.compare("reference", record(tmp_path / "wrong.h5", {"match_rules": no_last_rule}, STACKED))
    assert {cause.stage for cause in report.causes} == {"match_rules"}
    first, *others = report.divergences
    unexplained = [Finding(each.kind, "4 facts missing", 0.5) for each in others]
    explained = Finding(first.kind, first.evidence, first.confidence)
    named, _ = name_in_dialect([first, *others], [explained, *unexplained], STACKED)
    assert {each.stage for each in named} == {"match_rules"}
    unnamed, findings = name_in_dialect(others, unexplained, STACKED)
    assert {each.stage for each in unnamed} == {"unknown"}
    # What holds only in the default dialect is not stated.
    assert {each.evidence for each in findings} == {
        "no stage is named: no fault of one stage explains the step in its dialect"
    }


def test_recorded_stages_are_compared_in_the_order_of_the_dialect(tmp_path):
    dialect = Dialect(filters=("revisit", "prune", "close", "max_atoms", "max_resolvents"))
    paths = []
    for name, stages in (("right", {}), ("wrong", {"revisit": keep_all})):
        paths.append(record(tmp_path / name, stages, dialect, level="deep"))
    report = kv.compare(*paths)
    # Pruning gets what `revisit` should have dropped.
    assert {(cause.stage, report.divergences[cause.first].field) for cause in report.causes} == {
        ("revisit", "stage.revisit")
    }


def test_an_empty_list_that_is_read_as_a_proof_is_a_false_proof_of_close(tmp_path):
    report = kv.compare("reference", record(tmp_path / "wrong.h5", {"close": read_empty_as_proof}, OURS))
    assert {(cause.stage, cause.kind.value) for cause in report.causes} == {("close", "false_proof")}


@pytest.mark.parametrize("is_fixed", [False, True])
def test_steps_taken_again_state_no_expected_proofs_and_no_loss(tmp_path, is_fixed):
    report = kv.compare("reference", record(tmp_path / "a.h5", {} if is_fixed else {"match_rules": no_last_rule}, OURS))
    assert report.verdict is (kv.Verdict.AGREE if is_fixed else kv.Verdict.DIVERGE)
    assert (report.attribution, report.ranking_rules, report.metrics.expected) == (None, None, {})
    notes = [each for each in report.notes if "proved" in each]
    assert notes == [each for each in notes if "are not stated" in each]
    assert len(notes) == 1 - is_fixed


def test_two_faults_in_one_step_are_not_explained_by_one(tmp_path):
    both = {"match_facts": first_facts, "resolve": reverse_bodies}
    report = kv.compare("reference", record(tmp_path / "wrong.h5", both, NO_PRUNING))
    assert report.verdict is kv.Verdict.DIVERGE
    assert {"match_facts", "resolve"} & {cause.stage for cause in report.causes}


class WithoutProbe:
    """The reference with a fault, which shows its resolvents and no stage."""

    stages = Stages()

    def __init__(self, program, limits, policy):
        engine = ReferenceEngine(program, limits, policy, stages=self.stages)
        self.info, self.prove, self.step = engine.info, engine.prove, engine.step


@pytest.mark.deep
@pytest.mark.parametrize(
    ("stage", "dialect"), [("select", OURS), ("match_facts", NO_MEMORY), ("revisit", SETS), ("match_rules", STACKED)]
)
def test_the_stage_of_an_engine_that_shows_none_is_named_in_its_dialect(stage, dialect):
    engine = type("Wrong", (WithoutProbe,), {"stages": Stages(**FAULTS[stage][0])})
    limits = kv.Limits(max_resolvents=4, max_atoms=5, max_depth=8, dialect=dialect)
    report = kv.verify("countries", engine, queries=3, corruptions=5, limits=limits)
    assert report.verdict is kv.Verdict.DIVERGE
    assert report.first_divergence.stage == stage, str(report)
