"""JSON lines become a trace that holds what they hold and nothing more; an error names the line."""

import json
import re
from pathlib import Path

import pytest
from trace_builders import read, run

from kgverify import DeclaredLimits, Program, Symbols, UserError, Verdict
from kgverify.kinds import KNOWLEDGE_GRAPH, compare
from kgverify.trace.model.columns import PATHS

PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
STEP = {"goal": [["p", "a", "b"]], "successors": []}


def imported(folder, *lines):
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (folder / "steps.jsonl").write_bytes(text.encode(errors="surrogateescape"))
    done = run("import", folder / "steps.jsonl", "-o", folder / "out.h5", "--overwrite")
    trace = read(folder / "out.h5")
    unknown = done["warnings"].partition("unknown: ")[2].split()
    assert {each.strip(",") for each in unknown} == KNOWLEDGE_GRAPH.optional - PATHS - trace.fields
    counts = (len(trace.columns.candidates.atom), "candidate"), (len(trace.columns.steps.depth), "step")
    assert ", ".join(f"{num} {what}{'s' * (num != 1)}" for num, what in counts) in " ".join(done["warnings"].split())
    return trace


def test_the_example_of_the_page_is_read(tmp_path):
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    trace = imported(tmp_path, example)
    assert trace.columns.candidates.outcome.tolist() == [1]
    assert trace.columns.resolvents.kind.tolist() == [0, 0, 1]
    assert trace.fields & KNOWLEDGE_GRAPH.optional == {"candidates.outcome", "steps.choice", "steps.outcome"}
    assert (trace.header.limits, trace.header.policy.name, trace.facts) == (DeclaredLimits(), "", None)


def test_the_outcome_of_a_candidate_is_that_of_its_last_step(tmp_path):
    one, two = {"candidate": ["p", "a", "b"]}, {"candidate": ["p", "b", "a"]}
    trace = imported(tmp_path, one, STEP, STEP, {"end": "FAILED"}, two, {"end": "PROVED"}, one, STEP)
    assert trace.columns.steps.outcome.tolist() == [0, 2, 0]
    assert trace.columns.candidates.outcome.tolist() == [2, 1, 0]


def test_candidates_without_steps_tell_outcomes_alone(tmp_path):
    trace = imported(tmp_path, *({"candidate": ["p", "a", name], "outcome": "PROVED"} for name in "bc"))
    assert trace.header.engine.unknown == ("candidates.num_steps",)
    assert trace.columns.candidates.outcome.tolist() == [1, 1]


def test_goals_and_successors_are_enough(tmp_path):
    trace = imported(tmp_path, STEP, STEP)
    assert not trace.fields & KNOWLEDGE_GRAPH.optional
    assert trace.columns.candidates.num_steps.tolist() == [1, 1]
    assert trace.columns.candidates.atom.tolist() == [[0, 0, 1]] * 2
    assert compare(tmp_path / "out.h5", tmp_path / "out.h5").verdict is Verdict.AGREE


def test_every_field_is_stored(tmp_path):
    header = {
        "trace": 1,
        "engine": {"name": "mine", "variables": "canonical"},
        "limits": {"max_depth": 3},
        "policy": {"name": "best", "sha256": "ab"},
        "run": {"graph": "toy", "num_queries": 1},
        "predicates": ["p", "q"],
        "constants": ["a", "b"],
        "facts": [["p", "a", "b"]],
        "rules": [[["q", "X", "?y"], ["p", "?y", "X"]]],
        "uppercase_variables": True,
    }
    candidate = {"candidate": ["q", "a", "X"], "query": 7, "side": "tail", "is_limited": True, "log_probability": -0.5}
    candidate["is_true"] = True
    step = {"goal": [["q", 0, "Z"], ["p", "?x", "b"]], "depth": 2, "outcome": "FAILED", "choice": None}
    step |= {"dropped_atoms": 1, "dropped_resolvents": 2}
    step["successors"] = [
        {"goal": [["p", "B", 900], None], "rule": 0, "score": 0.25},
        {"kind": "TRUE", "goal": [[7, "a", "a"]], "fact": 0, "score": "nan"},
        {"kind": "STOP", "score": "-inf"},
    ]
    trace = imported(tmp_path, header, "", candidate, step, {"end": "FAILED"})
    steps, resolvents = trace.columns.steps, trace.columns.resolvents
    assert steps.goal_atoms.tolist() == [[1, 0, -1], [0, -2, 1]]
    assert (resolvents.kind.tolist(), resolvents.num_atoms.tolist()) == ([0, 1, 3], [2, 1, 0])
    assert resolvents.atoms.tolist() == [[0, -1, 900], [-1, 0, 0], [7, 0, 0]]
    assert (resolvents.origin_kind.tolist(), resolvents.origin.tolist()) == ([1, 2, 0], [0, 0, 0])
    assert str(resolvents.score.tolist()) == "[0.25, nan, -inf]"
    found = steps.depth, steps.choice, steps.outcome, steps.dropped_atoms, steps.dropped_resolvents
    assert [column.tolist() for column in found] == [[2], [-1], [2], [1], [2]]
    c = trace.columns.candidates
    assert (c.query[0], c.side[0], c.outcome[0], c.is_limited[0], c.log_probability[0]) == (7, 1, 2, 1, -0.5)
    assert trace.labels.tolist() == [1]
    assert trace.header.limits == DeclaredLimits(max_depth=3)
    assert (trace.header.policy.name, trace.header.run.graph) == ("best", "toy")
    assert trace.header.clauses.rules == ("q(X0, X1) <- p(X1, X0)",)
    assert trace.facts.tolist() == [[0, 0, 1]]
    sha256 = Program(trace.symbols, trace.facts, trace.rules, (), (), ()).sha256
    again = imported(tmp_path, header | {"program_sha256": sha256}, candidate, step)
    assert (again.header.program_sha256, again.symbols) == (sha256, Symbols(("p", "q"), ("a", "b")))


def test_variables_keep_their_names_across_the_steps_of_a_candidate_unless_they_are_canonical(tmp_path):
    def goal(name):
        return {"goal": [["p", name, "?x"]], "successors": []}

    lines = {"candidate": ["p", "?y", "?x"]}, goal("?x"), goal("?z"), {"candidate": ["p", "?z", "?z"]}, goal("?z")
    assert imported(tmp_path, *lines).columns.steps.goal_atoms[:, 1:].tolist() == [[-2, -2], [-3, -2], [-1, -2]]
    header = {"trace": 1, "engine": {"name": "mine", "variables": "canonical"}}
    canonical = imported(tmp_path, header, *lines)
    assert canonical.columns.steps.goal_atoms[:, 1:].tolist() == [[-1, -1], [-1, -2], [-1, -2]]


def test_many_lines_are_written_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr("kgverify.trace.lines.import_lines._BATCH", 7)
    for lines in ([STEP] * 40, [{"candidate": ["p", "a", "b"]}, STEP, STEP, STEP] * 15):
        trace = imported(tmp_path, *lines)
        assert len(trace.columns.steps.depth) == sum("goal" in line for line in lines)


LISTED = {"trace": 1, "predicates": ["p", "parent"], "facts": [["p", "a", "b"]], "rules": [[["p", "?x", "?y"]] * 2]}
WRONG = {
    "not JSON": ("{", "not JSON"),
    "not UTF-8": ("\udc80", "not JSON"),
    "a list": ("[1]", "expected an object with one of"),
    "a field of no line": ('{"gaol": []}', "(?s)expected an object.*did you mean 'goal'"),
    "a misspelt field": ({"goal": [], "succesors": []}, "'goal'.*succesors"),
    "no successors": ({"goal": []}, "missing required field `successors`"),
    "two arguments": ({"goal": [["p", "a"]], "successors": []}, "length 3"),
    "a wrong type": (STEP | {"choice": "1"}, r"`int.*got `str` - at `\$.choice`"),
    "a large number": (STEP | {"depth": 70_000}, "65535"),
    "no such outcome": (STEP | {"outcome": "WON"}, "WON"),
    "no such kind": (STEP | {"successors": ["MAYBE"]}, "MAYBE"),
    "a header again": ({"trace": 1}, "not the first line"),
    "an end without a candidate": ({"end": "PROVED"}, "no candidate"),
    "a field now and then": (STEP | {"depth": 1}, "has no 'depth', and line 3 has"),
    "a score now and then": (STEP | {"successors": [{"score": 1}, []]}, "has no 'score', and line 3 has"),
    "one of two counts": (STEP | {"dropped_atoms": 1}, "has no 'dropped_atoms'|without 'dropped_resolvents'"),
    "an unlisted name": ({"goal": [["q", "a", "b"]], "successors": []}, "'q', which is not among the predicates"),
    "a misspelt name": (
        {"goal": [["parnet", "a", "b"]], "successors": []},
        "(?s)'parnet', which is not among the predicates.*did you mean 'parent'",
    ),
    "no such rule": (STEP | {"successors": [{"rule": 1}]}, "names rule 1, and the first line lists 1"),
    "two clauses": (STEP | {"successors": [{"rule": 0, "fact": 0}]}, "of a rule and a fact"),
}
BEGINNINGS = {
    "another version": ({"trace": 2}, "2"),
    "a limit of 0": ({"trace": 1, "limits": {"max_depth": 0}}, "max_depth is 0"),
    "a name twice": ({"trace": 1, "predicates": ["q", "p", "p", "r"]}, "lists the name 'p' twice"),
    "a variable in a fact": ({"trace": 1, "facts": [["p", "?x", "a"]]}, "variable in the fact"),
    "a rule without a body": ({"trace": 1, "rules": [[["p", "?x", "a"]]]}, "length >= 2"),
    "names and ids": ({"goal": [["p", 1, "a"]], "successors": []}, "constants by name and by id"),
    "variables and ids": ({"goal": [["p", -1, "?a"]], "successors": []}, "variables by name and by id"),
}


@pytest.mark.parametrize("clause", ["rule", "fact"])
def test_the_fix_of_a_wrong_number_names_the_largest_that_is_right(tmp_path, clause):
    def lines(number):
        return LISTED, STEP | {"successors": [{clause: number}]}

    with pytest.raises(UserError, match=f"names {clause} 5, and the first line lists 1") as caught:
        imported(tmp_path, *lines(5))
    (largest,) = re.findall(r"count from 0, up to (\d+)", str(caught.value))
    assert len(imported(tmp_path, *lines(int(largest))).columns.steps.depth) == 1
    with pytest.raises(UserError):
        imported(tmp_path, *lines(int(largest) + 1))


@pytest.mark.parametrize("name", [*WRONG, *BEGINNINGS])
def test_a_wrong_line_is_named(tmp_path, name):
    line, match = (WRONG | BEGINNINGS)[name]
    lines, place = ([LISTED, STEP, line], "[23]") if name in WRONG else ([line], "1")
    with pytest.raises(UserError, match=match) as caught:
        imported(tmp_path, *lines)
    assert re.search(rf"steps\.jsonl:{place}: ", str(caught.value))
    assert "fix: " in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["steps.jsonl"]
