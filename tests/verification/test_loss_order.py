"""Causes stand in the order of the loss that they explain."""

import kgverify as kv


def test_the_cause_that_explains_most_of_the_loss_comes_first():
    engine = kv.Evaluator(mode="eager", faults=("fact-cap", "facts-before-rules", "optimistic-ties"))
    report = kv.verify("countries", engine, queries=6, corruptions=10)
    shares = {each.cause: each.share for each in report.attribution.shares}
    assert len(report.causes) > 1
    assert sorted(shares) == [*range(len(report.causes))]
    assert [*shares.values()] == sorted(shares.values(), reverse=True)
    assert {each.cause for each in report.divergences} == {*shares}
