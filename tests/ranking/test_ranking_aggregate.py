"""Ranks by the confidences of rules: those of PyClause, and of the reference on random programs."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_engines import needs_data

import kgverify as kv
from kgverify.evaluation import aggregate
from kgverify.evaluation.joins import Joins
from kgverify.program.atoms import Variable

STORED = Path(__file__).parent / "pyclause"
METHODS = ("max", "max-plus", "noisy-or")
UNCHECKED = {"check": 0, "minimum": "none"}


def evaluate(graph: kv.KnowledgeGraph, method: str, **options: Any) -> kv.EvaluationReport:
    return kv.evaluate(graph, options=kv.EvaluationOptions(aggregate=method, **options))


def load_mined(name: str, tmp_path: Path) -> tuple[kv.KnowledgeGraph, Any]:
    """Return a graph with the rules that were mined for it, and the stored ranks."""
    stored = np.load(STORED / f"{name}.npz")
    (tmp_path / "mined.txt").write_bytes(stored["rules"].tobytes())
    return kv.load_graph(name, rules=tmp_path / "mined.txt"), stored


@needs_data
@pytest.mark.parametrize(
    ("name", "method"),
    [
        *(("countries_s3", method) for method in METHODS),
        *(pytest.param(name, "max-plus", marks=pytest.mark.deep) for name in ("family", "wn18rr")),
        *(
            pytest.param(name, method, marks=pytest.mark.exhaustive)
            for name in ("family", "wn18rr")
            for method in ("max", "noisy-or")
        ),
    ],
)
def test_ranks_are_those_of_pyclause(name: str, method: str, tmp_path: Path):
    graph, stored = load_mined(name, tmp_path)
    ranks = evaluate(graph, method, num_unseen=5, **UNCHECKED).rankings
    expected = stored[method.replace("-", "_")].reshape(-1, 2)
    assert len(expected) == 2 * len(graph.test)
    assert np.array_equal(expected, np.stack((ranks.optimistic, ranks.pessimistic), 1))


def make_graph(seed: int) -> kv.KnowledgeGraph:
    """Return a small graph with random rules: with constants, free variables, loops, and equal confidences."""
    rng = random.Random(seed)
    constants, predicates = [f"c{i}" for i in range(rng.randint(3, 9))], [f"p{i}" for i in range(rng.randint(1, 3))]

    def atoms(num: int, terms: list[Any]) -> tuple[kv.NamedAtom, ...]:
        return tuple(kv.NamedAtom(rng.choice(predicates), rng.choice(terms), rng.choice(terms)) for _ in range(num))

    terms = [*map(Variable, "XYAB"), rng.choice(constants)]
    rules = [
        kv.NamedRule(*atoms(1, terms), atoms(rng.randint(1, 3), terms), confidence=rng.choice((0, 0.25, 0.5, 0.9, 1)))
        for _ in range(rng.randint(1, 12))
    ]
    train, test = atoms(rng.randint(5, 40), constants), atoms(rng.randint(2, 6), constants)
    return kv.KnowledgeGraph(f"random {seed}", train=train, test=test, rules=tuple(rules))


@pytest.mark.parametrize("method", METHODS)
def test_the_reference_gives_the_same_ranks_on_random_programs(method: str):
    num_predicted = 0
    for seed in range(20):
        report = evaluate(make_graph(seed), method, check=10_000, minimum="none")
        assert report.check is not None
        assert report.check.rankings.num_checked == report.num_rankings
        assert report.verdict is kv.Verdict.AGREE, (seed, report.check.differences)
        num_predicted += report.true_outcomes["proved"]
    assert num_predicted > 30


@pytest.mark.deep
@needs_data
def test_a_join_that_lets_two_variables_meet_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(aggregate, "Joins", lambda *atoms, has_identity: Joins(*atoms))
    report = evaluate(load_mined("family", tmp_path)[0], "max")
    assert report.verdict is kv.Verdict.DIVERGE
    assert report.check is not None
    assert report.check.differences


RULES = (("0.5", "p(X,Z), p(Z,Y) -> q(X,Y)"), ("0.75", "p(Y,X) -> q(X,Y)"))


def make_files(tmp_path: Path, rules: str) -> kv.KnowledgeGraph:
    """Return a graph of which q(b, a) is predicted by both rules, q(b, c) by the second and q(a, c) by the first."""
    (tmp_path / "rules.txt").write_text(rules)
    (tmp_path / "train.txt").write_text("p(a,b).\np(c,b).\np(b,d).\np(d,a).\n")
    (tmp_path / "test.txt").write_text("q(b,a).\nq(b,c).\nq(a,d).\nq(a,c).\n")
    return kv.load_graph(**{name: tmp_path / f"{name}.txt" for name in ("train", "test", "rules")})


def test_strengths_are_those_of_the_rules_that_predict(tmp_path: Path):
    graph = make_files(tmp_path, "\n".join(f"{number}:{rule}" for number, rule in RULES))
    found = {method: evaluate(graph, method, minimum="none", check=500) for method in METHODS}
    strengths = {
        method: [float(np.exp(each.log_probability)) for each in report.ranks[1::2]] for method, report in found.items()
    }
    assert strengths["max"] == strengths["max-plus"] == pytest.approx([0.75, 0.75, 0.75, 1])
    assert strengths["noisy-or"] == pytest.approx([0.875, 0.75, 0.875, 1])
    assert [each.outcome for each in found["max"].ranks[1::2]] == ["PROVED", "PROVED", "PROVED", "FAILED"]
    text = str(found["noisy-or"])
    assert "rule confidences, aggregated by noisy-or" in text
    assert "each applied once, its body matched in facts alone, different variables for different constants" in text


def test_unseen_predictions_lower_a_confidence_by_the_counts_of_its_rule(tmp_path: Path):
    lines = "".join(
        f"{num}\t{true}\t{true / num}\t{rule}\n"
        for num, true, rule in ((4, 3, "q(X,Y) <= p(Y,X)"), (2, 2, "q(X,Y) <= p(X,Y)"))
    )
    graph = make_files(tmp_path, lines)
    for num_unseen, strength in ((0, 0.75), (5, 3 / 9)):
        report = evaluate(graph, "max", num_unseen=num_unseen, **UNCHECKED)
        assert np.exp(report.ranks[1].log_probability) == pytest.approx(strength)
    without = make_files(tmp_path, "0.5:p(Y,X) -> q(X,Y)")
    with pytest.raises(kv.UserError, match="num_unseen needs the numbers of predictions"):
        evaluate(without, "max", num_unseen=5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": "reference"}, "leave engine and its options out"),
        ({"engine": kv.Evaluator(mode="plain")}, "leave engine and its options out"),
        ({"policy": "trained"}, "leave policy out"),
        ({"limits": kv.Limits(max_depth=3)}, "leave limits out"),
        ({"save": "run"}, "leave save out"),
        ({"corruptions": 5}, "ranks among all corruptions"),
    ],
)
def test_what_an_aggregation_cannot_use_is_refused(changes: dict[str, Any], words: str, tmp_path: Path):
    graph = make_files(tmp_path, "0.5:p(Y,X) -> q(X,Y)")
    with pytest.raises(kv.UserError) as refused:
        kv.evaluate(graph, **changes, options=kv.EvaluationOptions(aggregate="max"))
    assert words in str(refused.value)
    with pytest.raises(kv.UserError, match="expected a confidence from 0 to 1, found none"):
        evaluate(make_files(tmp_path, "p(Y,X) -> q(X,Y)"), "max")
    with pytest.raises(kv.UserError, match="changes nothing without aggregate"):
        kv.EvaluationOptions(num_unseen=5)


def test_confidences_that_were_not_used_are_reported(tmp_path: Path):
    """A confidence of 1 is that of a rule without one."""
    run = partial(kv.evaluate, engine="reference", queries=1, corruptions=2, options=kv.EvaluationOptions(**UNCHECKED))
    words = "the confidences of {} were read and not used: --aggregate ranks by them"
    assert words.format(2) in str(run(make_files(tmp_path, "\n".join(f"{number}:{rule}" for number, rule in RULES))))
    assert words.format(1) in str(run(make_files(tmp_path, f"0.5:{RULES[0][1]}\n1:{RULES[1][1]}")))
    assert "not used" not in str(run("countries"))
