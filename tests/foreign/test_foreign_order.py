"""Traces of programs whose facts are in an order of their own, and of derivations that count no depth."""

import json

import pytest
from invoked_commands import invoke

import kgverify as kv

FACTS = [["parent", "ann", "cal"], ["parent", "cal", "eve"], ["likes", "bob", "cal"], ["parent", "ann", "bob"]]
"""Ascending ids would put the last fact second."""
RULE = [["grand", "?x", "?z"], ["parent", "?x", "?y"], ["parent", "?y", "?z"]]
NO_PRUNING = {"filters": ["revisit", "close", "max_atoms", "max_resolvents"]}
SYMBOLS = {"constants": ["ann", "bob", "cal", "eve"], "predicates": ["parent", "likes", "grand"]}


def header(facts, rules, dialect, max_depth=9, **others):
    limits = {"max_depth": max_depth, "max_atoms": 6, "max_resolvents": 9, "exclude_query": True, "dialect": dialect}
    return {
        "trace": 1,
        "engine": "mine",
        "policy": "shortest",
        "facts": facts,
        "rules": rules,
        "limits": limits,
        **others,
    }


def compare(folder, expected, *traces, **equality):
    """Compare traces, written as lines and imported, with the reference or with each other."""
    paths = []
    for i, lines in enumerate(traces):
        (folder / f"{i}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert invoke(["trace", "import", folder / f"{i}.jsonl", "-o", folder / f"{i}.h5"]).exit_code == 0
        paths.append(folder / f"{i}.h5")
    return kv.compare(*expected, *paths, equality=kv.Equality(**equality))


def derivation(facts, order=("cal", "bob"), **others):
    """Return the lines of a derivation that tries the children of Ann in an order."""
    number = {tuple(fact): i for i, fact in enumerate(facts)}
    children = [
        {"goal": [["parent", each, "eve"]], "fact": number["parent", "ann", each], "score": -1.0} for each in order
    ]
    rule = {"goal": [["parent", "ann", "?0"], ["parent", "?0", "eve"]], "rule": 0, "score": -2 - 1 / 64}
    last, end = {"kind": "TRUE", "fact": number["parent", "cal", "eve"], "score": 0.0}, "PROVED"
    if order[0] == "bob":
        last, end = {"kind": "FALSE", "score": 0.0}, "FAILED"
    return [
        header(facts, [RULE], NO_PRUNING, **others),
        {"candidate": ["grand", "ann", "eve"]},
        {"goal": [["grand", "ann", "eve"]], "successors": [rule], "choice": 0, "outcome": "OPEN"},
        {"goal": rule["goal"], "successors": children, "choice": 0, "outcome": "OPEN"},
        {"goal": children[0]["goal"], "successors": [last], "choice": 0, "outcome": end},
        {"end": end},
    ]


def test_the_reference_tries_facts_in_the_order_of_the_trace(tmp_path):
    report = compare(tmp_path, ["reference"], derivation(FACTS))
    assert (report.verdict, report.coverage.steps) == (kv.Verdict.AGREE, 3), str(report)


@pytest.mark.parametrize("has_origins", [True, False])
def test_facts_tried_in_another_order_than_that_of_the_trace_are_a_divergence(tmp_path, has_origins):
    lines = derivation(FACTS, order=("bob", "cal"))
    if not has_origins:
        for line in lines[2:-1]:
            line["successors"] = [
                {name: value for name, value in each.items() if name not in ("fact", "rule")}
                for each in line["successors"]
            ]
    found = compare(tmp_path, ["reference"], lines).first_divergence
    assert (found.step, found.stage, found.kind.value) == (1, "match_facts", "reordered")
    assert "fact parent(ann, cal)" in found.expected[0]
    assert "fact parent(ann, bob)" in found.actual[0]


def test_origins_of_traces_that_list_their_facts_in_other_orders_are_the_same_facts(tmp_path):
    report = compare(tmp_path, [], *(derivation(facts, **SYMBOLS) for facts in (FACTS, FACTS[::-1])))
    assert report.verdict is kv.Verdict.AGREE, str(report)
    assert "resolvents.origin" not in report.coverage.not_compared


def loop(num_steps, candidate=("p", "a", "b")):
    """Return the lines of a derivation that turns in a circle, without depths, until it reaches the depth limit."""
    goals = [[["p", "a", "b"]], [["p", "b", "a"]]]
    rule = [["p", "?x", "?y"], ["p", "?y", "?x"]]
    return [
        header([["q", "a", "b"], ["q", "c", "d"]], [rule], {"memory": "none"}, max_depth=4),
        {"candidate": candidate},
        *(
            {
                "goal": goals[i % 2],
                "successors": [goals[(i + 1) % 2]],
                "choice": 0,
                "outcome": "DEPTH_LIMIT" if i == num_steps - 1 else "OPEN",
            }
            for i in range(num_steps)
        ),
    ]


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        (loop(4), "AGREE"),
        (loop(5), "DIVERGE"),
        # A step from the middle may end at the depth limit.
        (loop(1, ("p", "c", "d")), "AGREE"),
    ],
)
def test_a_derivation_without_depths_counts_its_steps(tmp_path, lines, verdict):
    report = compare(tmp_path, ["reference"], lines, minimum={})
    assert report.verdict.value == verdict, str(report)
    if verdict == "DIVERGE":
        assert (report.first_divergence.step, report.first_divergence.stage) == (3, "finish")


def test_a_goal_that_was_not_chosen_is_a_fault_of_advance(tmp_path):
    lines = derivation(FACTS)
    lines[4] = {**lines[4], "goal": [["parent", "bob", "eve"]], "successors": [{"kind": "FALSE", "score": 0.0}]}
    lines[4]["outcome"] = lines[5]["end"] = "FAILED"
    report = compare(tmp_path, ["reference"], lines)
    found = report.first_divergence
    assert report.verdict is kv.Verdict.DIVERGE
    assert (found.step, found.stage, found.field) == (2, "advance", "steps.goal_atoms")
    assert (found.expected, found.actual) == ("parent(cal, eve)", "parent(bob, eve)")
