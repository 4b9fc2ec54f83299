"""Renderings are read back: every line states what the report as JSON states, and every leaf of it is stated, or listed."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import pytest
from columns import Recorded
from filled import NUM_CAUSES, SCHEMA, fill_evaluation
from invoked_commands import invoke
from readers import READERS, STYLES, Page, read_evaluation, read_narrow_tables, read_terminal
from reading import BENIGN, REQUIRED, find, is_default, leaves, pattern_of, read_lines
from rendered_runs import RUNS
from renderings import FILLED, MANY, OLD, Renderings

import kgverify as kv
from kgverify.errors import on_command_line

NOT_SHOWN = tomllib.loads(Path(__file__).with_name("not_shown.toml").read_text("utf-8"))


def is_listed(path: str, listed: list[str]) -> bool:
    return any(fnmatchcase(path, each) or fnmatchcase(path, f"{each}/*") for each in listed)


def listed_for(rendering: str) -> list[str]:
    lists = NOT_SHOWN[rendering]
    return [*(each for name in lists.get("also", []) for each in NOT_SHOWN[name]), *lists["not_shown"]]


@pytest.fixture(scope="module")
def renderings(tmp_path_factory: pytest.TempPathFactory) -> Renderings:
    return Renderings(tmp_path_factory.mktemp("renderings"))


@pytest.mark.parametrize("rendering", READERS)
@pytest.mark.parametrize("name", [*RUNS, *FILLED, MANY, OLD])
def test_every_line_states_what_the_report_states(renderings: Renderings, rendering: str, name: str):
    read = renderings[name].read(rendering)
    assert (read.wrong, read.unread) == ([], [])


def check_completeness(rendering: str, read: Sequence[tuple[dict[str, Any], set[str]]]) -> None:
    """Fail unless each leaf of some reports was stated in one of them, or is listed as not shown, and no other is listed.

    read: each report with its leaves that were stated
    """
    listed, partly = listed_for(rendering), NOT_SHOWN[rendering]["partly"]
    stated = set().union(*(paths for _, paths in read))
    every = {path for report, _ in read for path, value in leaves(report) if not is_default(value)}
    assert sorted(path for path in stated if is_listed(path, listed)) == []
    patterns = {pattern_of(path) for path in stated}
    missing = {path for path in every - stated if not is_listed(path, listed)}
    assert {
        pattern_of(path) for path in missing if not is_listed(path, partly) or pattern_of(path) not in patterns
    } == set()
    assert [
        each for each in NOT_SHOWN[rendering]["not_shown"] if not any(is_listed(path, [each]) for path in every)
    ] == []


@pytest.mark.parametrize("rendering", READERS)
def test_every_leaf_is_stated_or_listed_as_not_shown(renderings: Renderings, rendering: str):
    runs = [renderings[name] for name in FILLED]
    check_completeness(rendering, [(run.report, run.read(rendering).stated(run.report)) for run in runs])


def may_be_left_out(report: dict[str, Any], path: str, stated: set[str]) -> bool:
    """True if the value of a leaf is that of the other side, or if it is one that a real run may leave out."""
    value = find(report, path)
    of_other_side = path.replace("expected", "actual") if "expected" in path else path.replace("actual", "expected")
    if of_other_side in stated and find(report, of_other_side) == value:
        return True
    implied = [implied for each, implied in NOT_SHOWN["left_out"].items() if is_listed(path, [each])]
    return any(value == find(report, each[1:]) if each[0] == "=" else each in ("any", value) for each in implied)


@pytest.mark.parametrize("rendering", READERS)
def test_a_real_run_states_all_that_is_not_implied(renderings: Renderings, rendering: str):
    listed = [*listed_for(rendering), *NOT_SHOWN[rendering]["partly"]]
    for name in RUNS:
        run = renderings[name]
        stated = run.read(rendering).stated(run.report)
        left = {path for path, value in leaves(run.report) if not is_default(value)} - stated
        left = {path for path in left if not is_listed(path, listed)}
        assert [path for path in sorted(left) if not may_be_left_out(run.report, path, stated)] == [], name


def test_an_evaluation_prints_what_its_report_states():
    found = []
    for number, verdict in enumerate(("AGREE", "DIVERGE", "INCONCLUSIVE")):
        report = fill_evaluation(number)
        evaluation = msgspec.json.decode(json.dumps(report), type=kv.EvaluationReport)
        assert evaluation.is_sound == (verdict == "AGREE")
        read = read_lines("evaluation", read_evaluation(str(evaluation)), report | {"verdict": verdict})
        assert (read.wrong, read.unread) == ([], [])
        assert Page(evaluation._repr_html_()).root.text.split() == str(evaluation).split()
        found.append((report, read.stated(report)))
    check_completeness("evaluation", found)


ENUMERATIONS = {
    name: SCHEMA["$defs"][kind]["enum"]
    for name, kind in (("kind", "DifferenceClass"), ("level", "Level"), ("verdict", "Verdict"))
}


def change(path: str, value: Any) -> Any:
    """Return another value that a report may have at a path."""
    if path.endswith(("/cause", "/other_cause")):
        return (value + 1) % NUM_CAUSES
    members = ENUMERATIONS.get(path.rpartition("/")[2], ())
    if value in members:
        return members[members.index(value) - 1]
    for known in (BENIGN, REQUIRED):
        if value in known:
            return next(word for word in known if word != value)
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value / 2 if isinstance(value, float) else f"{value}x"


def with_changes(report: dict[str, Any], paths: list[str]) -> dict[str, Any]:
    """Return a report with other values at some paths. The first divergence is still one of the divergences."""
    changed = json.loads(json.dumps(report))
    for path in paths:
        above, _, name = path.rpartition("/")
        holder = find(changed, above)
        holder[int(name) if isinstance(holder, list) else name] = change(path, find(report, path))
    number = report["divergences"].index(report["first_cause"])
    first, at = changed["first_cause"], f"divergences/{number}/"
    if len(paths) > 1:
        # A value of the first divergence stands in two places, and is changed if it is not shown from either.
        listed = {path.split("/")[1] for path in paths if path.startswith("first_cause/")}
        listed &= {path.split("/")[2] for path in paths if path.startswith(at)}
        first = {name: first[name] if name in listed else value for name, value in report["first_cause"].items()}
    changed["first_cause"] = changed["divergences"][number] = first
    return changed


def without_summary(text: str) -> str:
    """Return a rendering without the copy of the report that a page has for programs, and without its pictures."""
    text = re.sub(r'(?s)<section id="pictures".*?</section>', "", text)
    return re.sub(r'<script type="application/json" id="summary">.*?</script>', "", text)


def scalars(report: dict[str, Any]) -> list[str]:
    return [path for path, value in leaves(report) if isinstance(value, str | int | float) and path != "format"]


def test_a_page_counts_the_divergences_of_a_cause_that_it_does_not_list(renderings: Renderings):
    further = []
    for name in RUNS:
        report, page = renderings[name].report, renderings[name].texts["html"]
        members = [sum(each["cause"] == i for each in report["divergences"]) for i in range(len(report["causes"]))]
        lists = re.findall(
            r"<h3>Also</h3>.*?<tbody>(.*?)</tbody></table></div>(?:<p class=\"soft\">… and ([\d,]+) more)?", page
        )
        shown = [(rows.count("<tr>"), int(num.replace(",", "") or 0)) for rows, num in lists]
        # The first divergence of a cause is shown in full.
        others = [num - 1 for num in members if num > 1]
        assert shown == [(min(num, 10), max(num - 10, 0)) for num in others], name
        further += [num for _, num in shown]
    assert any(further)


@pytest.mark.parametrize("rendering", READERS)
def test_leaves_that_are_listed_as_not_shown_change_nothing(renderings: Renderings, rendering: str):
    for name in FILLED:
        run = renderings[name]
        listed = [path for path in scalars(run.report) if is_listed(path, listed_for(rendering))]
        changed = run.render_other(with_changes(run.report, listed), rendering)
        assert without_summary(changed) == without_summary(run.texts[rendering])


@pytest.mark.parametrize(
    "rendering",
    [
        pytest.param(each, marks=pytest.mark.exhaustive if each in ("html", "markdown") else pytest.mark.deep)
        for each in READERS
    ],
)
def test_each_leaf_that_is_stated_changes_the_rendering(renderings: Renderings, rendering: str):
    run = renderings[FILLED[0]]
    stated, before = run.read(rendering).stated(run.report), run.texts[rendering]
    of_patterns = {pattern_of(path): path for path in reversed(scalars(run.report)) if path in stated}
    unchanged = [
        path for path in of_patterns.values() if run.render_other(with_changes(run.report, [path]), rendering) == before
    ]
    assert unchanged == []


OUTCOMES = ("OPEN", "PROVED", "FAILED", "DEPTH_LIMIT")
KINDS = ("GOAL", "TRUE", "FALSE", "STOP")
SIDES = ("expected", "actual")
RECORDED = ("limits", "outcomes", "extra candidates", "a wrong stage")


class Names:
    """The names of a recorded trace."""

    def __init__(self, trace: Recorded) -> None:
        self.predicates, self.constants = trace.names("predicates"), trace.names("constants")

    def atom(self, atom: Sequence[int]) -> str:
        terms = [self.constants[term] if term >= 0 else f"X{-1 - term}" for term in atom[1:]]
        return f"{self.predicates[atom[0]]}({', '.join(terms)})"

    def goal(self, atoms: Sequence[Sequence[int]]) -> str:
        return json.dumps([self.atom(atom) for atom in atoms])


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", RECORDED)
def test_tables_in_csv_have_the_values_of_the_columns(renderings: Renderings, name: str, side: str):
    run = renderings[name]
    trace = Recorded.read(run.folder / f"{side}.h5")
    names = Names(trace)
    outcomes = trace.column("candidates/outcome")
    assert [
        (each["query"], each["side"], each["atom"], each["outcome"]) for each in run.export(side, "candidates")
    ] == [
        (f"{query}", ("head", "tail")[side], names.atom(atom), OUTCOMES[outcomes[row]])
        for row, (query, side, atom) in enumerate(trace.candidates)
    ]
    steps = [(row, i, step) for row, listed in enumerate(trace.steps) for i, step in enumerate(listed)]
    columns = "candidate", "step", "depth", "num_resolvents", "dropped_atoms", "dropped_resolvents", "choice"
    assert [
        (*(int(each[column]) for column in columns), each["outcome"], each["goal"])
        for each in run.export(side, "steps")
    ] == [
        (
            row,
            i,
            step.depth,
            len(step.resolvents),
            *step.dropped,
            step.choice,
            OUTCOMES[step.outcome],
            names.goal(step.goal),
        )
        for row, i, step in steps
    ]
    columns = "candidate", "step", "resolvent", "is_chosen", "score", "kind", "goal"
    assert [tuple(each[column] for column in columns) for each in run.export(side, "resolvents")] == [
        (f"{row}", f"{i}", f"{k}", f"{k == step.choice}", f"{each.score}", KINDS[each.kind], names.goal(each.atoms))
        for row, i, step in steps
        for k, each in enumerate(step.resolvents)
    ]
    columns = "query", "side", "num_ranked", "optimistic", "pessimistic"
    ranks = zip(*(trace.columns[f"rankings/{column}"].tolist() for column in columns), strict=True)
    assert [tuple(each[column] for column in columns) for each in run.export(side, "rankings")] == [
        (f"{query}", ("head", "tail")[side], *map(str, rest)) for query, side, *rest in ranks
    ]


@pytest.mark.parametrize("name", RUNS)
def test_counts_of_causes_are_those_of_their_divergences(renderings: Renderings, name: str):
    report = renderings[name].report
    for number, cause in enumerate(report["causes"]):
        members = [each for each in report["divergences"] if each["cause"] == number]
        assert report["divergences"][cause["first"]] == members[0]
        for count, of in (("num_queries", "query"), ("num_candidates", "candidate"), ("num_divergences", "")):
            assert cause[count] == len({each[of] if of else i for i, each in enumerate(members)}), count
        assert cause["num_later"] == sum(each["later_steps"] for each in members)
        when = cause["when"] or {"num_wrong": 0, "tried": []}
        for each in when["tried"]:
            # Recall is a share of what is wrong, and what a precision counts includes that.
            num_both = each["recall"] * when["num_wrong"]
            assert num_both == pytest.approx(round(num_both))
            assert num_both / each["precision"] == pytest.approx(round(num_both / each["precision"]))


@pytest.mark.parametrize("name", RUNS)
def test_a_report_in_python_prints_what_the_terminal_shows(renderings: Renderings, name: str):
    report = renderings[name].made
    assert report.verdict.value in Page(report._repr_html_()).root.text
    both = renderings[name].texts["terminal"], copy_context().run(print_as_typed, report)
    words = [{*re.findall(r"\w+", STYLES.sub("", text).partition("\nnext\n")[0])} for text in both]
    assert words[0] == words[1]


def print_as_typed(report: kv.Report) -> str:
    on_command_line.set(True)
    return str(report)


@pytest.mark.parametrize("name", [*FILLED, "a wrong stage"])
def test_a_narrow_terminal_lists_the_cells_of_each_table(renderings: Renderings, name: str):
    run = renderings[name]
    wide = [line for line in read_terminal(run.texts["terminal"]) if re.match(r"(causes|metrics).* \| [^#]+ \|", line)]
    cells = [line for line in wide if " | condition: " not in line]
    assert cells
    assert [*read_narrow_tables(run.render("terminal", width=50))] == cells


def goal_of(row: Mapping[str, str]) -> str:
    """Return the goal in a row of a table as people read it."""
    return ", ".join(json.loads(row["goal"])) or row["kind"]


def score_of(row: Mapping[str, str]) -> str:
    return f"{float(row['score']):.6g}"


def cells(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    return re.split(" {2,}", line.strip())


def show(*words: object) -> list[str]:
    done = invoke(["show", *words])
    assert done.exit_code == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", ["limits", "a wrong stage"])
def test_show_prints_the_tables_of_a_trace(renderings: Renderings, name: str):
    run = renderings[name]
    path, candidates = run.folder / "actual.h5", run.export("actual", "candidates")
    steps, resolvents = run.export("actual", "steps"), run.export("actual", "resolvents")
    assert [cells(line)[:7] for line in show(path) if line[:1].isdigit()] == [
        [
            *(each[column] for column in ("candidate", "atom", "query", "side")),
            each["outcome"] + " limited" * (each["is_limited"] == "True"),
            each["num_steps"],
            f"{float(each['log_probability']):.4f}",
        ]
        for each in candidates[:20]
    ]
    of_candidate = [each for each in steps if each["candidate"] == "0"]
    chosen = {each["step"]: each for each in resolvents if each["candidate"] == "0" and each["is_chosen"] == "True"}
    assert [cells(line) for line in show(path, "--candidate", 0) if line[:1].isdigit()] == [
        [
            each["step"],
            goal_of(each),
            each["num_resolvents"],
            chosen[each["step"]]["clause"] or goal_of(chosen[each["step"]]),
        ]
        for each in of_candidate
    ]
    for each in of_candidate:
        *lines, last = show(path, "--candidate", 0, "--step", each["step"])
        goal = next(line for line in lines if line.startswith("goal"))
        assert goal.split(maxsplit=1) == ["goal", goal_of(each)]
        dropped = f"dropped {each['dropped_atoms']} by max_atoms, {each['dropped_resolvents']} by max_resolvents"
        assert last == f"chosen {each['choice']}, then {each['outcome']}; {dropped}"
        assert [cells(line) for line in lines if re.match(r"(->)? *\d", line)] == [
            [
                "-> " * (row["is_chosen"] == "True") + row["resolvent"],
                score_of(row),
                goal_of(row),
                *filter(None, [row["clause"]]),
            ]
            for row in resolvents
            if (row["candidate"], row["step"]) == ("0", each["step"])
        ]


@pytest.mark.parametrize("name", ["a wrong stage", "two wrong stages, lockstep", "extra candidates", "limits"])
def test_a_divergent_step_is_shown_as_the_traces_hold_it(renderings: Renderings, name: str):
    run = renderings[name]
    (_, *tables), cause = Page(run.texts["html"]).root.all("table"), run.report["causes"][0]
    table = next(each for each in tables if "side" in each.classes)
    shown = json.loads("\n".join(show(run.folder, "--divergence", cause["first"] + 1, "--json", "-")))
    divergence, derivation = shown["divergence"], shown["derivation"]
    assert divergence == run.report["divergences"][cause["first"]]
    rows = [[cell.text for cell in row.children] for row in table.all("tr") if "section" not in row.classes]
    text = show(run.folder, "--divergence", cause["first"] + 1)
    start = next(i for i, line in enumerate(text) if cells(line) == [*SIDES])
    end = text.index("stage by stage")
    for i, side in enumerate(SIDES):
        goal = [atoms[side] for atoms in derivation["goals"] if atoms[side]]
        listed = [pair[side] for pair in derivation["pairs"] if pair[side]]
        is_recorded = side == "expected" or not run.report["lockstep"]
        if is_recorded and name != "extra candidates":
            at = f"{divergence['candidate']}", f"{divergence['step']}"
            (step,) = (each for each in run.export(side, "steps") if (each["candidate"], each["step"]) == at)
            assert goal == json.loads(step["goal"])
            facts = {fact["name"]: fact[side] for fact in derivation["facts"]}
            columns = {"depth": "depth", "resolvents": "num_resolvents", "outcome": "outcome"}
            columns |= {f"dropped by max_{what}": f"dropped_{what}" for what in ("atoms", "resolvents")}
            assert {name: facts[name] for name in columns} == {name: step[column] for name, column in columns.items()}
            (limit,) = (each for each in shown["stages"] if each["stage"] == "limit")
            dropped = f"dropped {step['dropped_atoms']} by max_atoms, {step['dropped_resolvents']} by max_resolvents"
            assert limit[side] == [dropped] or limit["is_culprit"]
            recorded = [each for each in run.export(side, "resolvents") if (each["candidate"], each["step"]) == at]
            assert sorted(
                (each["place"], each["goal"], each["score"], each["clause"], each["is_chosen"]) for each in listed
            ) == [
                (
                    k,
                    goal_of(each),
                    score_of(each),
                    each["clause"],
                    each["is_chosen"] == "True",
                )
                for k, each in enumerate(recorded)
            ]
        page = [row[i + 1] for row in rows[1:] if row[i + 1] not in ("", "none")]
        facts = [fact[side] for fact in derivation["facts"]]
        assert page == [
            *goal,
            *(f"{each['score']}{each['goal']}{'chosen' * each['is_chosen']}by {each['clause']}" for each in listed),
            *facts,
        ]
        begins = [text[start].index(each) for each in SIDES]
        column = [line[begins[i] : [*begins, None][i + 1]].strip() for line in text[start + 1 : end]]
        printed = [
            f"{'* ' * each['is_chosen']}{each['goal']}   {each['score']}\nby {each['clause']}" for each in listed
        ]
        assert [line for line in column if line][: len(goal) + 2 * len(listed)] == "\n".join([*goal, *printed]).split(
            "\n"
        )
    stages = [cells(line.removeprefix("->")) for line in text[end + 1 :] if line.strip()]
    assert [stage[:2] for stage in stages] == [[each["stage"], each["mark"]] for each in shown["stages"]]
    for stage, each in zip(stages, shown["stages"], strict=True):
        single = [each[side][0] for side in SIDES if len(each[side]) == 1]
        if len(single) == 2:
            parts = single[: 1 + (single[0] != single[1])]
            assert stage[2:] == [cell for part in parts for cell in cells(part)]


def test_the_explanation_of_a_divergence_is_that_of_its_cause(renderings: Renderings):
    run = renderings["tensors"]
    every = show(run.folder, "--explain")
    divergences = run.report["divergences"]
    for number in (1, len(divergences)):
        lines = show(run.folder, "--explain", "--divergence", number)
        assert lines[0].startswith(f"#{divergences[number - 1]['cause'] + 1} ")
        start = every.index(lines[0])
        assert every[start : start + len(lines)] == lines
    done = invoke(["show", run.folder, "--explain", "--divergence", len(divergences) + 1])
    assert (done.exit_code, f"from 1 to {len(divergences)}" in done.stderr) == (2, True)
