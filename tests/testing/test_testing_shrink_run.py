"""Shrinking on a graph: the proof slice leaves out most facts, keeps what a cap counts, and few runs are taken."""

from typing import Any

import pytest
from problem_text import atoms_of, problem_of

import kgverify as kv
from kgverify import UserError


def report_on(
    graph: Any, fault: str, *, policy: str = "shortest", lockstep: bool = False, corruptions: int = 3, seed: int = 0
) -> kv.Report:
    return kv.verify(
        graph,
        kv.Evaluator(mode="eager", device="cpu", faults=fault, slots=4),
        queries=1,
        corruptions=corruptions,
        policy=policy,
        seed=seed,
        equality=kv.Equality(lockstep=lockstep, determinism=False),
    )


def assert_fails_alike(shrunk: kv.ShrunkRun) -> None:
    made = shrunk.reproducer
    assert kv.replay(made).is_same
    assert kv.replay(made, "compiled").verdict is kv.Verdict.AGREE


@pytest.mark.deep
@pytest.mark.parametrize(
    ("fault", "policy", "lockstep", "size"),
    [
        ("fact-cap", "shortest", False, 51),
        ("rest-not-substituted", "shortest", True, 4),
        ("stale-weights", "two_tower", False, 2),
        ("queries-beyond-slots", "shortest", False, 0),
    ],
)
def test_a_divergence_on_a_graph_shrinks_to_little(fault, policy, lockstep, size):
    shrunk = kv.shrink(report_on("countries", fault, policy=policy, lockstep=lockstep))
    assert shrunk.removed > 0.8
    assert shrunk.problem.size <= size
    assert shrunk.reproducer.lockstep == lockstep
    assert_fails_alike(shrunk)
    if size == 51:
        # Of a long problem, the first and the last lines are shown.
        program = [f"   {line}" for line in str(shrunk.problem).splitlines()]
        shown = [*program[:12], f"   ... {len(program) - 24} lines", *program[-12:]]
        assert "\n".join(shown) in str(shrunk)


@pytest.fixture(scope="module")
def lost() -> tuple[kv.Report, kv.ShrunkRun]:
    report = report_on("countries", "last-fact-lost", seed=3)
    return report, kv.shrink(report)


@pytest.mark.deep
def test_the_difference_and_the_agreeing_neighbour_are_saved_beside_each_other(lost, tmp_path):
    _, shrunk = lost
    assert "compared with" not in str(shrunk)
    assert f"both sides agree with one change: {shrunk.reproducer.neighbour}" in str(shrunk)
    fails, agrees = shrunk.save_pair(tmp_path / "step.kg")
    assert kv.replay(fails).is_same
    again = kv.replay(agrees)
    assert again.verdict is kv.Verdict.AGREE
    assert (again.reproducer.candidate, again.reproducer.expected, again.reproducer.neighbour) == ("", (), "")
    assert again.reproducer.notes[0].startswith("both sides agree; they differ without one change: ")


def test_the_chosen_divergence_is_shrunk_against_the_chosen_reference(lost):
    report, _ = lost
    other = kv.shrink(report, len(report.divergences), reference="compiled", max_calls=20)
    assert "compared with compiled" in str(other)
    train = len(kv.load_graph("countries").train)
    assert other.removed == 1 - len(other.sliced.facts) / train
    sizes = [
        f"{len(of.facts)} fact{'s' * (len(of.facts) != 1)}, {len(of.rules)} rule"
        for of in (other.sliced, other.problem)
    ]
    assert f"   slice      {sizes[0]}" in str(other)
    assert f"   ({other.removed:.1%} of the facts removed)\n   minimum    {sizes[1]}" in str(other)
    assert other.shrunk.calls <= 20
    assert other.problem.seed == report.run.seed == 3
    assert kv.replay(other.reproducer).is_same


def test_a_divergence_that_the_engine_does_not_show_is_an_error(lost):
    with pytest.raises(UserError, match="no part of the graph was found") as caught:
        kv.shrink(lost[0], 2, engine="compiled")
    assert caught.value.where == "divergence 2"


@pytest.mark.deep
def test_a_fact_that_only_the_judged_engine_matches_is_kept():
    (rule,) = problem_of("r(X, Y) <- s(Z, Z), q(X, Y); ? r(a, b)").rules
    graph = kv.KnowledgeGraph(
        "loops",
        train=atoms_of("s(c, d) q(a, e) " + " ".join(f"q(e{i}, e)" for i in range(20))),
        test=atoms_of("r(a, b)"),
        rules=(rule,),
    )
    shrunk = kv.shrink(report_on(graph, "repeated-goal-variable", corruptions=0), graph=graph)
    assert shrunk.removed > 0.8
    assert len(shrunk.problem.facts) == 1
    assert_fails_alike(shrunk)


@pytest.fixture(scope="module")
def far_apart() -> tuple[kv.KnowledgeGraph, kv.Report]:
    """A graph where r(c10, c44) leads to s(c11, c44), and 11 * 256 + 44 = 10 * 256 + 300, which stands for s(c10, c300)."""
    (rule,) = problem_of("r(X, Y) <- q(X, Z), s(Z, Y); ? r(a, b)").rules
    facts = " ".join(f"q(c{i}, c{i + 1})" for i in range(400))
    graph = kv.KnowledgeGraph(
        "far apart",
        train=atoms_of(f"{facts} s(c10, c300) s(c1, c2)"),
        test=atoms_of("r(c10, c44)"),
        rules=(rule,),
    )
    return graph, report_on(graph, "packed-fact-keys", corruptions=0)


@pytest.mark.parametrize(
    "calls", [pytest.param(28, marks=pytest.mark.deep), pytest.param(300, marks=pytest.mark.exhaustive)]
)
def test_out_of_calls_the_smallest_found_so_far_is_given_though_it_be_the_whole_graph(far_apart, calls):
    graph, report = far_apart
    shrunk = kv.shrink(report, graph=graph, max_calls=calls)
    assert shrunk.shrunk.calls <= calls
    assert_fails_alike(shrunk)
    assert shrunk.shrunk.is_finished == (calls == 300)
    if calls == 300:
        # Certain ids are needed: a part of the graph keeps them.
        assert shrunk.removed > 0.9
        assert shrunk.problem.size <= 6
        assert shrunk.problem.vocabulary != kv.Vocabulary()
