"""Traces of programs whose facts are in an order of their own, and of derivations that count no depth."""

import json

import pytest

import kgverify as kv
from kgverify.trace.lines.import_lines import import_lines

FACTS = [["parent", "ann", "cal"], ["parent", "cal", "eve"], ["likes", "bob", "cal"], ["parent", "ann", "bob"]]
"""Ascending ids would put the last fact second."""

RULE = [["grand", "?x", "?z"], ["parent", "?x", "?y"], ["parent", "?y", "?z"]]
LIMITS = {"max_depth": 9, "max_atoms": 6, "max_resolvents": 9, "exclude_query": True}
NO_PRUNING = {"filters": ["revisit", "close", "max_atoms", "max_resolvents"]}
NAMES = {"constants": ["ann", "bob", "cal", "eve"], "predicates": ["parent", "likes", "grand"]}
HEADER = {"trace": 1, "engine": "mine", "policy": "shortest"}
SCORE = {"score": -1.0}


def write(folder, name, lines):
    (folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    import_lines(folder / "lines.jsonl", folder / name)
    return folder / name


def derivation(facts, order=("cal", "bob"), **header):
    """Return the lines of a derivation that tries the children of Ann in an order."""
    number = {tuple(fact): i for i, fact in enumerate(facts)}
    children = [{"goal": [["parent", each, "eve"]], "fact": number["parent", "ann", each], **SCORE} for each in order]
    rule = {"goal": [["parent", "ann", "?0"], ["parent", "?0", "eve"]], "rule": 0, "score": -2 - 1 / 64}
    chosen = order[0]
    proof = {"kind": "TRUE", "fact": number["parent", "cal", "eve"], "score": 0.0}
    last = {"kind": "FALSE", "score": 0.0} if chosen == "bob" else proof
    return [
        {
            "trace": 1,
            "engine": "mine",
            "facts": facts,
            "rules": [RULE],
            "limits": {**LIMITS, "dialect": NO_PRUNING},
            "policy": "shortest",
            **header,
        },
        {"candidate": ["grand", "ann", "eve"]},
        {"goal": [["grand", "ann", "eve"]], "successors": [rule], "choice": 0, "outcome": "OPEN"},
        {"goal": rule["goal"], "successors": children, "choice": 0, "outcome": "OPEN"},
        {
            "goal": children[0]["goal"],
            "successors": [last],
            "choice": 0,
            "outcome": "FAILED" if chosen == "bob" else "PROVED",
        },
        {"end": "FAILED" if chosen == "bob" else "PROVED"},
    ]


def test_the_reference_tries_facts_in_the_order_of_the_trace(tmp_path):
    report = kv.compare("reference", write(tmp_path, "mine.h5", derivation(FACTS)))
    assert report.verdict is kv.Verdict.AGREE, str(report)
    assert report.coverage.steps == 3


@pytest.mark.parametrize("has_origins", [True, False])
def test_facts_tried_in_another_order_than_that_of_the_trace_are_a_divergence(tmp_path, has_origins):
    lines = derivation(FACTS, order=("bob", "cal"))
    if not has_origins:
        for line in lines[2:-1]:
            for each in line["successors"]:
                each.pop("fact", None)
                each.pop("rule", None)
    report = kv.compare("reference", write(tmp_path, "mine.h5", lines))
    found = report.first_divergence
    assert (found.step, found.stage, found.kind.value) == (1, "match_facts", "reordered")
    assert "fact parent(ann, cal)" in found.expected[0]
    assert "fact parent(ann, bob)" in found.actual[0]


def test_origins_of_traces_that_list_their_facts_in_other_orders_are_the_same_facts(tmp_path):
    paths = [
        write(
            tmp_path,
            f"{i}.h5",
            derivation(facts, constants=["ann", "bob", "cal", "eve"], predicates=["parent", "likes", "grand"]),
        )
        for i, facts in enumerate((FACTS, FACTS[::-1]))
    ]
    report = kv.compare(*paths)
    assert report.verdict is kv.Verdict.AGREE, str(report)
    assert "resolvents.origin" not in report.coverage.not_compared


def loop(num_steps, outcome, **header):
    """Return the lines of a derivation that turns in a circle, without depths."""
    goals = [[["p", "a", "b"]], [["p", "b", "a"]]]
    taken = []
    for i in range(num_steps):
        end = outcome if i == num_steps - 1 else "OPEN"
        taken.append({"goal": goals[i % 2], "successors": [goals[(i + 1) % 2]], "choice": 0, "outcome": end})
    return [
        {
            "trace": 1,
            "engine": "mine",
            "facts": [["q", "a", "b"], ["q", "c", "d"]],
            "rules": [[["p", "?x", "?y"], ["p", "?y", "?x"]]],
            "limits": {**LIMITS, "max_depth": 4, "dialect": {"memory": "none"}},
            "policy": "shortest",
            **header,
        },
        {"candidate": goals[0][0]},
        *taken,
    ]


@pytest.mark.parametrize(
    ("num_steps", "outcome", "verdict"), [(4, "DEPTH_LIMIT", "AGREE"), (5, "DEPTH_LIMIT", "DIVERGE")]
)
def test_a_derivation_without_depths_counts_its_steps(tmp_path, num_steps, outcome, verdict):
    path = write(tmp_path, "mine.h5", loop(num_steps, outcome))
    report = kv.compare("reference", path, equality=kv.Equality(minimum={}))
    assert report.verdict.value == verdict, str(report)
    if verdict == "DIVERGE":
        assert (report.first_divergence.step, report.first_divergence.stage) == (3, "finish")


def test_a_step_without_depth_from_the_middle_may_end_at_the_depth_limit(tmp_path):
    lines = loop(1, "DEPTH_LIMIT")
    lines[1]["candidate"] = ["p", "c", "d"]
    report = kv.compare("reference", write(tmp_path, "mine.h5", lines), equality=kv.Equality(minimum={}))
    assert report.verdict is kv.Verdict.AGREE, str(report)


def test_a_goal_that_was_not_chosen_is_a_fault_of_advance(tmp_path):
    lines = derivation(FACTS)
    lines[4] = {**lines[4], "goal": [["parent", "bob", "eve"]], "successors": [{"kind": "FALSE", "score": 0.0}]}
    lines[4]["outcome"] = lines[5]["end"] = "FAILED"
    report = kv.compare("reference", write(tmp_path, "mine.h5", lines))
    found = report.first_divergence
    assert report.verdict is kv.Verdict.DIVERGE
    assert (found.step, found.stage, found.field) == (2, "advance", "steps.goal_atoms")
    assert (found.expected, found.actual) == ("parent(cal, eve)", "parent(bob, eve)")
