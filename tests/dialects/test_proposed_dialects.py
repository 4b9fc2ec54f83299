"""The dialect of an engine, proposed by experiments."""

import random
from functools import partial
from pathlib import Path

import pytest
import slow
from known_dialects import BATCHED, BlackBox, Known, Staged, draw_dialect, judge, list_engines, try_engine
from second_engine import SecondEngine

import kgverify as kv
from kgverify.dialects import propose_dialect, read_dialect
from kgverify.program.limits import OURS
from kgverify.runs.engine_makers import make_reference
from kgverify.testing.dialects.experiments import (
    ask,
    list_experiments,
    predict,
    project,
    vary,
)

EXPERIMENTS = list_experiments("UNARY", "STEPS", "OUTCOMES")


def check_dependence(rng: random.Random, num: int) -> None:
    for experiment in EXPERIMENTS:
        for _ in range(num):
            dialect, variant = draw_dialect(rng), rng.choice(vary(experiment))
            full, projected = ask(variant, make_reference, dialect), predict(variant, project(dialect, experiment.uses))
            assert (full.lines, full.counts) == (projected.lines, projected.counts), (experiment.lines, str(dialect))


@pytest.mark.deep
def test_the_answer_to_an_experiment_depends_on_what_it_uses_alone():
    check_dependence(random.Random(0), 1)


@pytest.mark.exhaustive
def test_the_answer_to_an_experiment_depends_on_what_it_uses_alone_in_many_dialects():
    check_dependence(random.Random(1), 500)


def test_every_dialect_gives_the_same_answer_to_a_control_question():
    rng = random.Random(0)
    for experiment in list_experiments("CONTROLS", "CHOICES"):
        answers = {ask(experiment, make_reference, draw_dialect(rng)).lines for _ in range(4)}
        assert answers == {predict(experiment, project(OURS, frozenset())).lines}


@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.deep) for seed in (1, 2)]])
def test_the_dialect_of_a_random_engine_is_found(seed: int):
    dialect = draw_dialect(random.Random(seed))
    known = Known("random", partial(SecondEngine, dialect=dialect), dialect)
    found, verdict, report = try_engine(known, 20)
    assert not set(found.values()) - {"right", "undecided"}
    assert list(found.values()).count("right") >= 9 - (dialect.memory == "none")
    assert verdict == "AGREE", report


@pytest.mark.exhaustive
def test_outcomes_alone_decide_what_they_show():
    proposal = propose_dialect(partial(BlackBox, dialect=BATCHED), examples=0)
    found = judge(Known("", None, BATCHED), proposal)
    assert set(found.values()) == {"right", "undecided"}
    assert {name for name, each in found.items() if each == "right"} >= {"unification", "order", "exclusion"}
    reasons = {each.switch: each.reason for each in proposal.undecided}
    assert reasons["stopping"] == "only steps show the difference, and the engine tells outcomes alone"
    assert reasons["unproved"] == "the engine brings no `rank`, so kgverify ranks"
    assert "it takes no steps" in proposal.notes[0]


def test_a_generated_problem_decides_what_outcomes_of_the_experiments_do_not():
    proposal = propose_dialect(partial(BlackBox, dialect=BATCHED), examples=40)
    assert proposal.verdict.value == "AGREE"
    assert proposal.dialect.memory == "set"
    assert "decided by a generated problem" in str(proposal)
    assert proposal.lessons[0].limits.dialect != proposal.dialect


@pytest.mark.deep
def test_an_engine_that_returns_to_other_choices_is_named():
    class Searches(kv.OutcomeEngine):
        def decide(self, query):
            return query[0] in "pg"

    proposal = propose_dialect(Searches, examples=0)
    assert any("where every dialect answers not proved" in note for note in proposal.notes)
    assert any("no dialect describes it fully" in note for note in proposal.notes)


def test_an_accidental_answer_does_not_decide():
    class Slips(Staged):
        def close(self, resolvents):
            # One of three programs swaps the arguments.
            is_odd = self.program.symbols.constants[:2] == ("b", "a")
            return list(resolvents)[:1] if is_odd and len(resolvents) == 2 else super().close(resolvents)

    proposal = propose_dialect(Slips, examples=0)
    assert (proposal.dialect.is_reversed, proposal.dialect.order) == (False, "rules_first")
    assert "2 of 3 programs fit" in str(proposal)


def test_an_order_that_no_dialect_has_is_named():
    class Sorted(Staged):
        def limit(self, resolvents):
            taken = super().limit(resolvents)
            return taken._replace(
                resolvents=sorted(taken.resolvents, key=lambda each: hash((each.atoms, len(each.atoms))))
            )

    proposal = propose_dialect(Sorted, examples=0)
    undecided = {each.switch for each in proposal.undecided}
    assert undecided >= {"order", "is_reversed"}
    assert proposal.dialect.unification == "complete"
    assert any("compared without their order" in note for note in proposal.notes)


def test_an_engine_that_fails_decides_nothing_where_it_fails():
    class Limited(Staged):
        def clauses_for(self, goal, excluded):
            if self.limits.max_atoms < 6:
                raise ValueError("goals have six atoms")
            return super().clauses_for(goal, excluded)

    proposal = propose_dialect(Limited, examples=0)
    (finding,) = [each for each in proposal.findings if each.switch == "filters"]
    assert "with or without max_atoms" in finding.others
    assert "goals have six atoms" in finding.reason
    assert proposal.dialect.memory == "sequence"


def test_an_engine_that_answers_nothing_is_refused():
    class Broken(kv.StepwiseEngine):
        def take_step(self, query, visited):
            raise ValueError("not today")

    with pytest.raises(kv.UserError, match="not today"):
        propose_dialect(Broken)


@pytest.mark.parametrize(
    "known", [each for each in list_engines() if each.name.startswith("ranks")], ids=lambda e: e.name
)
@pytest.mark.deep
def test_the_ranking_of_an_engine_is_found(known: Known):
    found, _, _ = try_engine(known, 0)
    assert (found["unproved"], found["ties"]) == ("right", "right")


def test_a_difference_in_the_proposed_dialect_is_reported():
    class LosesFacts(Staged):
        def clauses_for(self, goal, excluded):
            clauses = super().clauses_for(goal, excluded)
            return [each for each in clauses if each.body] + [each for each in clauses if not each.body][:3]

    proposal = propose_dialect(LosesFacts, examples=60)
    assert proposal.verdict.value == "DIVERGE"
    assert "first divergence: match_facts" in str(proposal)
    assert "in no dialect that fits the experiments" in str(proposal)


def test_the_proposal_is_written_with_what_is_undecided(tmp_path: Path):
    proposal = propose_dialect(slow.Slow, examples=5)
    proposal.save(tmp_path / "slow.toml")
    assert read_dialect(tmp_path / "slow.toml") == proposal.dialect
    text = (tmp_path / "slow.toml").read_text()
    assert "agrees with the reference in this dialect on 5 generated problems" in text
    assert "# undecided: exempts_terminal: no derivation shows a difference" in text
