"""The dialect of an engine, proposed by experiments: it is that of the engine, or what is undecided is said."""

import random
import re
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest
import slow
from second_engine import SecondEngine, exclude_positives
from textbook import Textbook

import kgreference
import kgverify as kv
from kgverify.dialects import Dialect, Proposal, ReferenceEngine, propose_dialect, read_dialect
from kgverify.testing.dialects.experiments import list_experiments, predict, vary
from kgverify.testing.dialects.propose import Hypotheses, _Asked

FILTERS = tuple(map(str, kgreference.Filter))
VALUES = {
    name: get_args(kind) or (False, True)
    for name, kind in Dialect.__annotations__.items()
    if name not in ("filters", "search", "merge", "aggregate")
}
BATCHED = Dialect(
    unification="one_pass",
    filters=("prune", "close", "max_resolvents", "revisit", "max_atoms"),
    memory="set",
    exempts_terminal=True,
    stopping="where_no_terminal",
)


class BlackBox(kv.OutcomeEngine):
    """Gives the outcomes of the reference in a dialect."""

    def __init__(self, program, limits, policy, *, dialect):
        self.inner = ReferenceEngine(program, msgspec.structs.replace(limits, dialect=dialect), policy)
        super().__init__(program, limits, policy)

    def prove(self, candidates, progress=lambda num: None):
        self._proved = self.inner.prove(candidates).candidates.outcome == 1
        return super().prove(candidates, progress)

    def decide_all(self, queries):
        return self._proved.tolist()


class Ranked(ReferenceEngine):
    """The reference with a ranking of its own."""

    ranking = Dialect()
    draw_rank = random.Random(0).randint

    def rank(self, candidates, triples, tolerance):
        is_proved = candidates.outcome == 1
        scores = candidates.log_probability - 100 * ~is_proved * (self.ranking.unproved == "subtract_100")
        above, tied = (scores > scores[0]).sum(), (scores == scores[0]).sum() - 1
        ties = {"optimistic": 0, "realistic": tied / 2, "pessimistic": tied, "random": self.draw_rank(0, tied)}
        ranks = np.array([1.0 + above + ties[self.ranking.ties]])
        return kv.Rankings(candidates.query[:1], candidates.side[:1], np.array([len(scores)], np.uint32), ranks, ranks)


def draw_dialect(rng: random.Random) -> Dialect:
    """Draw a dialect that an engine can have without a `rank` and without knowing the positives."""
    filters = rng.sample(FILTERS, len(FILTERS))
    kept = tuple(each for each in filters if rng.random() < (0.25 if each == "duplicates" else 0.85))
    switches = {name: rng.choice(values) for name, values in VALUES.items() if name not in ("unproved", "ties")}
    switches["exclusion"] = rng.choice(("always", "never"))
    return Dialect(filters=kept, **switches)


def judge(truth: Dialect, proposal: Proposal) -> dict[str, str]:
    """Return for each switch whether it is `right`, `undecided`, or wrong; a wrong one is described."""
    remembers = truth.memory != "none" and "revisit" in truth.filters
    results = {}
    for finding in proposal.findings:
        value = getattr(truth, finding.switch)
        if finding.switch == "filters":
            is_fitting = fits(truth.filters, proposal, finding.others, remembers)
        else:
            if finding.switch == "memory" and not remembers:
                value = "none"
            is_fitting = value == finding.value or str(value).lower() in finding.others
            is_fitting |= "no meaning" in finding.reason
        results[finding.switch] = "right" if finding.is_decided else "undecided"
        if not is_fitting:
            results[finding.switch] = f"{finding.switch} is {finding.value}, known as {value}"
    return results


def fits(filters: tuple[str, ...], proposal: Proposal, others: tuple[str, ...], remembers: bool) -> bool:
    """Return whether filters are those proposed, or others that are left open."""
    unsure = {each.removeprefix("with or without ") for each in others}
    ignored = unsure if remembers and proposal.dialect.memory != "none" else {*unsure, "revisit"}
    known = [each for each in filters if each not in ignored]
    found = [each for each in proposal.dialect.filters if each not in ignored]
    return set(known) == set(found) and all(
        (found.index(a) < found.index(b)) == (known.index(a) < known.index(b))
        or {f"{a} before or after {b}", f"{b} before or after {a}"} & set(others)
        for a, b in combinations(known, 2)
    )


@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.deep) for seed in (1, 2)]])
def test_the_dialect_of_a_random_engine_is_found(seed: int):
    dialect = draw_dialect(random.Random(seed))
    proposal = propose_dialect(partial(SecondEngine, dialect=dialect), examples=20)
    found = judge(dialect, proposal)
    assert not set(found.values()) - {"right", "undecided"}
    assert list(found.values()).count("right") >= 9 - (dialect.memory == "none")
    assert proposal.verdict.value == "AGREE", str(proposal)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("switch", "value"), [("unproved", "subtract_100"), *[("ties", value) for value in VALUES["ties"]]]
)
def test_the_ranking_of_an_engine_is_found(switch: str, value: str):
    dialect = Dialect(**{switch: value})
    found = judge(dialect, propose_dialect(type("Ranked", (Ranked,), {"ranking": dialect}), examples=0))
    assert (found["unproved"], found["ties"]) == ("right", "right")


@pytest.mark.deep
def test_an_engine_that_excludes_only_positive_queries_is_found():
    found = judge(Dialect(exclusion="positives_only"), propose_dialect(exclude_positives, examples=0))
    assert not set(found.values()) - {"right", "undecided"}
    assert found["exclusion"] == "right"


@pytest.mark.deep
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
    class Slips(Textbook):
        def close(self, resolvents):
            # One of three programs swaps the arguments.
            is_odd = self.program.symbols.constants[:2] == ("b", "a")
            return list(resolvents)[:1] if is_odd and len(resolvents) == 2 else super().close(resolvents)

    proposal = propose_dialect(Slips, examples=0)
    assert (proposal.dialect.is_reversed, proposal.dialect.order) == (False, "rules_first")
    assert "2 of 3 programs fit" in str(proposal)


def test_an_order_that_no_dialect_has_is_named():
    class Sorted(Textbook):
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
    class Limited(Textbook):
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


@pytest.mark.deep
def test_a_difference_in_the_proposed_dialect_is_reported():
    class LosesFacts(Textbook):
        def clauses_for(self, goal, excluded):
            clauses = super().clauses_for(goal, excluded)
            return [each for each in clauses if each.body] + [each for each in clauses if not each.body][:3]

    proposal = propose_dialect(LosesFacts, examples=12)
    assert proposal.verdict.value == "DIVERGE"
    assert "first divergence: match_facts" in str(proposal)
    assert "in no dialect that fits the experiments" in str(proposal)


def test_the_answers_that_are_shown_are_those_of_the_program_that_is_shown():
    proposal = propose_dialect(type("Ranked", (Ranked,), {"ranking": Dialect()}), examples=0)
    trials = [trial for finding in proposal.findings for trial in finding.trials if trial.proposed]
    assert len(trials) > 10
    for trial in trials:
        assert (trial.answer, trial.num_fitting) == (trial.expected[trial.proposed], trial.num_asked)
        assert (
            f"{'the engine':<28} {trial.answer}   ({trial.num_asked} of {trial.num_asked} programs fit)"
            in "\n".join(trial.lines())
        )
    of_ranks = [trial for trial in trials if trial.about in ("unproved", "ties")]
    assert {trial.about for trial in of_ranks} == {"unproved", "ties"}
    for trial in of_ranks:
        # In some dialect, the true triple is the last of all.
        last = max(float(rank) for answer in trial.expected.values() for rank in answer.split(" to "))
        assert [line.partition(": ")[0] for line in trial.program] == ["the true triple", "corruptions"]
        assert last == 1 + len(trial.program[1].split(", "))


def test_the_proposal_is_written_with_what_is_undecided(tmp_path: Path):
    proposal = propose_dialect(slow.Slow, examples=5)
    proposal.save(tmp_path / "slow.toml")
    assert read_dialect(tmp_path / "slow.toml") == proposal.dialect
    text = (tmp_path / "slow.toml").read_text()
    assert "agrees with the reference in this dialect on 5 generated problems" in text
    undecided = re.findall(r"(?m)^# undecided: (\w+): (.+)$", text)
    assert undecided == [(each.switch, each.describe()) for each in proposal.undecided]
    assert ("exempts_terminal", "no derivation shows a difference, since it ends with its first proof") in [
        (switch, reason.partition(" (")[0]) for switch, reason in undecided
    ]
    assert any(not each.others for each in proposal.undecided)


def test_half_of_the_answers_decide_nothing_and_the_counts_of_every_answer_must_fit():
    experiment = next(each for each in list_experiments("STEPS") if predict(each, Dialect(filters=())).counts)
    variants = [*vary(experiment)[:2]]
    hypotheses = Hypotheses()
    hypotheses.distinguish(experiment.uses)
    before = list(hypotheses.dialects)
    answers = [predict(each, before[0]) for each in variants]
    slip = answers[1]._replace(lines=("nothing",))
    assert hypotheses.keep(_Asked(experiment, variants, [answers[0], slip], ""), is_ordered=True) == 1
    assert hypotheses.dialects == before
    for counts, fits in ((answers[1].counts, True), ((9, 9), False)):
        asked = _Asked(experiment, variants, [answers[0], answers[1]._replace(counts=counts)], "")
        assert asked.fits_counts(before[0]) is fits
