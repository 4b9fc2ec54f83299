"""Interventions: the figures of the report against those of an engine with the expected steps in place of its wrong ones."""

from pathlib import Path

import pytest

import kgverify as kv
from kgverify.report.wording import describe_repair
from tests.textbook import Textbook

RUN = {"queries": 4, "corruptions": 6, "equality": kv.Equality(determinism=False, minimum={})}
MRR = "both.realistic.mean_reciprocal_rank"


class Loses(Textbook):
    """An engine that loses every fifth fact."""

    def resolve(self, goal, excluded):
        return [
            (clause, atoms) for clause, atoms in super().resolve(goal, excluded) if clause.body or clause.origin % 5
        ]


class Misjudges(Loses):
    """An engine that loses every fifth fact, and scores some goals wrongly."""

    def take_step(self, query, visited):
        taken = super().take_step(query, visited)
        changed = [
            each._replace(score=each.score - 3 * (len(each.atoms) == 1 and each.origin % 3 == 0))
            for each in taken.resolvents
        ]
        return taken._replace(resolvents=changed)


class Given(Misjudges):
    """The same engine with the right step wherever its list is wrong."""

    def __init__(self, program, limits, policy):
        super().__init__(program, limits, policy)
        self._right = Textbook(program, limits, policy)

    def take_step(self, query, visited):
        own, right = super().take_step(query, visited), self._right.take_step(query, visited)
        is_same = [each.atoms for each in own.resolvents] == [each.atoms for each in right.resolvents]
        return own if is_same else right


def causes_of(report, stage):
    return [each for each in report.causes if each.stage == stage]


@pytest.fixture(scope="module")
def misjudged():
    return kv.verify("countries", Misjudges, **RUN)


def test_a_single_fault_is_healed_wherever_it_shows_and_the_metric_is_restored():
    report = kv.verify("countries", Loses, **RUN)
    (cause,) = report.causes
    repair = cause.repair
    assert (repair.num_tried, repair.num_healed, repair.elsewhere) == (cause.num_candidates, cause.num_candidates, "")
    assert 0 < repair.num_once < repair.num_healed < repair.num_steps
    assert repair.metric == pytest.approx(report.metrics.expected[MRR], abs=1e-12)
    assert report.metrics.actual[MRR] < repair.metric


def test_as_many_candidates_are_healed_as_in_an_engine_that_is_given_the_right_steps(misjudged):
    (cause,) = causes_of(misjudged, "match_facts")
    repair = cause.repair
    assert repair.num_tried == cause.num_candidates
    assert repair.num_healed < repair.num_tried
    assert repair.elsewhere
    given = kv.verify("countries", Given, **RUN)
    assert {each.stage for each in given.divergences} == {"score"}
    members = {each.candidate for each in misjudged.divergences if each.stage == "match_facts"}
    left = {each.candidate for each in given.divergences}
    assert repair.num_tried - repair.num_healed == len(left & members)


def test_the_sentence_states_the_figures(misjudged, tmp_path):
    for cause in misjudged.causes:
        sentence = describe_repair(cause)
        assert f" {cause.repair.num_once:,} of {cause.repair.num_tried:,} candidates end" in sentence
        page = Path(misjudged.to_html(tmp_path / "report.html")).read_text()
        assert all(sentence in " ".join(text.split()) for text in (page, str(misjudged)))
