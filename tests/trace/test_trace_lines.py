"""JSON lines become a trace: what they hold, nothing more; and what is wrong in one is said with its line."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from kgverify import UserError, Verdict
from kgverify.cli import main
from kgverify.comparison.compare import compare
from kgverify.comparison.step_view import StepReader
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.program.atoms import Atom
from kgverify.program.limits import DeclaredLimits
from kgverify.program.program import Program, Rule, Symbols
from kgverify.trace.lines.import_lines import import_lines
from kgverify.trace.read.trace_file import read_trace

PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
STEP = {"goal": [["p", "a", "b"]], "successors": []}


def imported(folder, *lines, **options):
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (folder / "steps.jsonl").write_text(text)
    done = import_lines(folder / "steps.jsonl", folder / "out.h5", **options)
    trace = read_trace(folder / "out.h5")
    assert (done.num_candidates, done.num_steps) == (
        len(trace.columns.candidates.query),
        len(trace.columns.steps.depth),
    )
    assert set(done.unknown) == KNOWLEDGE_GRAPH.optional - trace.fields
    return trace


def test_the_page_s_example_is_read(tmp_path):
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    trace = imported(tmp_path, example)
    assert trace.columns.candidates.outcome.tolist() == [1]
    assert trace.columns.resolvents.kind.tolist() == [0, 0, 1]
    assert trace.fields & KNOWLEDGE_GRAPH.optional == {"candidates.outcome", "steps.choice"}
    assert (trace.header.limits, trace.header.policy.name, trace.facts) == (DeclaredLimits(), "", None)


def test_goals_and_successors_are_enough(tmp_path):
    trace = imported(tmp_path, STEP, STEP)
    assert not trace.fields & KNOWLEDGE_GRAPH.optional
    assert trace.columns.candidates.num_steps.tolist() == [1, 1]
    assert trace.columns.candidates.atom.tolist() == [[0, 0, 1]] * 2
    assert compare(tmp_path / "out.h5", tmp_path / "out.h5").verdict is Verdict.AGREE


def test_every_field_is_stored(tmp_path):
    rule = Rule(Atom(1, -1, -2), (Atom(0, -2, -1),))
    symbols, facts = Symbols(("p", "q"), ("a", "b")), np.array([[0, 0, 1]], np.int32)
    sha256 = Program(symbols, facts, (rule,), (), (), ()).sha256
    header = {
        "trace": 1,
        "engine": {"name": "mine", "variables": "canonical"},
        "limits": {"max_depth": 3},
        "policy": {"name": "best", "sha256": "ab"},
        "run": {"graph": "toy", "num_queries": 1},
        "program_sha256": sha256,
        "predicates": ["p", "q"],
        "constants": ["a", "b"],
        "facts": [["p", "a", "b"]],
        "rules": [[["q", "X", "?y"], ["p", "?y", "X"]]],
        "uppercase_variables": True,
    }
    candidate = {"candidate": ["q", "a", "X"], "query": 7, "side": "tail", "is_limited": True, "log_probability": -0.5}
    step = {"goal": [["q", 0, -1], ["p", "?x", "b"]], "depth": 2, "outcome": "FAILED", "choice": None}
    step |= {"dropped_atoms": 1, "dropped_resolvents": 2}
    step["successors"] = [
        {"goal": [["p", "B", 900], None], "rule": 0, "score": 0.25},
        {"kind": "TRUE", "goal": [[7, "a", "a"]], "fact": 0, "score": "nan"},
        {"kind": "STOP", "score": "-inf"},
    ]
    step["goal"][0][2] = "Z"
    trace = imported(tmp_path, header, "", candidate, step, {"end": "FAILED"})
    view = StepReader(trace.columns).read(0)
    assert view.goal == ((1, 0, -1), (0, -2, 1))
    assert [each.content for each in view.resolvents] == [
        (0, ((0, -1, 900), (-1, 0, 0))),
        (1, ((7, 0, 0),)),
        (3, ()),
    ]
    assert [each.clause for each in view.resolvents] == [(1, 0), (2, 0), (0, 0)]
    assert str([each.score for each in view.resolvents]) == "[0.25, nan, -inf]"
    assert (view.depth, view.choice, view.outcome, view.dropped_atoms, view.dropped_resolvents) == (2, -1, 2, 1, 2)
    c = trace.columns.candidates
    assert (c.query[0], c.side[0], c.outcome[0], c.is_limited[0], c.log_probability[0]) == (7, 1, 2, 1, -0.5)
    assert trace.header.limits == DeclaredLimits(max_depth=3)
    assert (trace.header.policy.name, trace.header.run.graph, trace.header.program_sha256) == ("best", "toy", sha256)
    assert trace.header.clauses.rules == ("q(X0, X1) <- p(X1, X0)",)
    assert trace.facts.tolist() == [[0, 0, 1]]


def test_variables_keep_their_names_across_the_steps_of_a_candidate_unless_they_are_canonical(tmp_path):
    def goal(name):
        return {"goal": [["p", name, "?x"]], "successors": []}

    lines = {"candidate": ["p", "?y", "?x"]}, goal("?x"), goal("?z"), {"candidate": ["p", "?z", "?z"]}, goal("?z")
    own = imported(tmp_path, *lines)
    assert own.columns.steps.goal_atoms[:, 1:].tolist() == [[-2, -2], [-3, -2], [-1, -2]]
    header = {"trace": 1, "engine": {"name": "mine", "variables": "canonical"}}
    canonical = imported(tmp_path, header, *lines)
    assert canonical.columns.steps.goal_atoms[:, 1:].tolist() == [[-1, -1], [-1, -2], [-1, -2]]


def test_many_lines_are_written_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr("kgverify.trace.lines.import_lines._BATCH", 7)
    for lines in ([STEP] * 40, [{"candidate": ["p", "a", "b"]}, STEP, STEP, STEP] * 15):
        trace = imported(tmp_path, *lines, shard_steps=10)
        assert len(trace.columns.steps.depth) == sum("goal" in line for line in lines)
        (tmp_path / "out.h5").rename(tmp_path / f"{len(lines)}")


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
    "no such rule": (STEP | {"successors": [{"rule": 1}]}, "names rule 1, and the first line lists 1"),
    "two clauses": (STEP | {"successors": [{"rule": 0, "fact": 0}]}, "of a rule and a fact"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_is_named(tmp_path, name):
    line, match = WRONG[name]
    header = {"trace": 1, "predicates": ["p"], "facts": [["p", "a", "b"]], "rules": [[["p", "?x", "?y"]] * 2]}
    text = line if isinstance(line, str) else json.dumps(line)
    lines = [json.dumps(header), json.dumps(STEP), text]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UserError, match=match) as caught:
        import_lines(tmp_path / "a.jsonl", tmp_path / "out.h5")
    assert re.fullmatch(r".*a\.jsonl:[23]", caught.value.where)
    assert caught.value.fix
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        ([{"trace": 2}], "2"),
        ([{"trace": 1, "limits": {"max_depth": 0}}], "max_depth is 0"),
        ([{"trace": 1, "predicates": ["p", "p"]}], "lists the name 'p' twice"),
        ([{"trace": 1, "facts": [["p", "?x", "a"]]}], "variable in the fact"),
        ([{"trace": 1, "rules": [[["p", "?x", "a"]]]}], "length >= 2"),
        ([{"goal": [["p", 1, "a"]], "successors": []}], "constants by name and by id"),
        ([{"goal": [["p", -1, "?a"]], "successors": []}], "variables by name and by id"),
    ],
)
def test_a_wrong_beginning_is_named(tmp_path, lines, match):
    with pytest.raises(UserError, match=match) as caught:
        imported(tmp_path, *lines)
    assert caught.value.where.endswith("steps.jsonl:1")


def test_the_command_imports_and_reads_standard_input(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.jsonl").write_text(json.dumps(STEP))
    monkeypatch.chdir(tmp_path)
    for arguments, code in (
        (["a.jsonl", "-o", "a.h5"], 0),
        (["a.jsonl", "-o", "a.h5"], 2),
        (["b.jsonl", "-o", "b.h5"], 2),
    ):
        monkeypatch.setattr("sys.argv", ["kgverify", "trace", "import", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        assert (caught.value.code or 0) == code
    printed = capsys.readouterr()
    assert "a.h5: 1 candidate, 1 step; unknown: candidates.is_limited" in printed.out
    assert "already exists" in printed.err
    assert "cannot be read" in printed.err
    np.testing.assert_array_equal(read_trace(tmp_path / "a.h5").columns.steps.goal_atoms, [[0, 0, 1]])
