"""Stepping through a saved run: by lines, or one divergence at a time."""

import json
from pathlib import Path

import jsonschema
import pytest
from invoked_commands import EAGER, invoke

import kgverify as kv

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text("utf-8"))
RUN = ("--queries", "3", "--corruptions", "6", "--no-determinism", *EAGER)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    assert invoke(["diff", *RUN, "--fault", "fact-cap", "--save", "run"], folder).exit_code == 1
    return folder / "run"


def step_through(folder: Path, *script: str) -> list[str]:
    """Return the views printed for a script of commands, the first one before any of them."""
    finished = invoke(["show", folder], typed="".join(f"{line}\n" for line in script), COLUMNS="120")
    assert (finished.exit_code, finished.stderr) == (0, "")
    return finished.stdout.split("\n> ")


def test_a_run_opens_at_its_first_divergence_with_the_step_side_by_side(run_dir: Path):
    (first,) = step_through(run_dir)
    assert first.startswith("\ndivergence 1 of 30   cause 1 of 1: match_facts (missing)\n")
    assert "candidate 0: locatedInCR(armenia, asia)   query 0, head side" in first
    assert "step 1 of 4 expected, 2 actual   <- diverges here" in first
    assert "step 0  agrees  locatedInCR(armenia, asia)  by locatedInCR(X, Z)" in first
    assert "-> − missing  * locatedInCR(iran, asia)   -1" in first
    lines = [line.split() for line in first[first.index("stage by stage") :].splitlines()]
    marks = {line[0 if line[0] != "->" else 1]: line for line in lines if len(line) > 1}
    assert marks["match_facts"][:3] == ["->", "match_facts", "differs"]
    assert "level outcome: the difference changes the outcome of a candidate, not only its steps" in first
    assert (marks["select"][1], marks["match_rules"][1]) == ("agrees", "agrees")
    assert marks["rename"][1] == marks["close"][1] == marks["finish"][1] == "follows"
    assert marks["prune"][1:3] == marks["revisit"][1:3] == ["not", "held"]


FEW_A = "d needs the number of a divergence, 1 to 30"
FEW_C = "c needs the number of a cause, 1 to 1"
# The keys typed, and texts of the views after some of them.
MOVES = {
    "from divergence to divergence": (
        ["p", "n", "n", "p", "d 30", "n", "q", "n"],
        {1: "this is the first divergence", 2: "divergence 2 ", 3: "divergence 3 ", 4: "divergence 2 "}
        | {5: "divergence 30 ", 6: "this is the last divergence"},
    ),
    "through the steps": (
        ["b", "b", "f", "f", "f", "f", "o"],
        {1: "step 0 of 4 expected, 2 actual   (before the divergent step 1)", 2: "this is the first step"}
        | {4: "step 2 of 4 expected, 2 actual   (after the divergent step 1)\n"}
        | {6: "neither side has a further step", 7: "<- diverges here"},
    ),
    "through the stages": (
        ["s", "s", "s", "s", "S", "S", "S", "S", "o", "S"],
        {1: "stage (input)", 2: "stage select", 3: "stage match_rules", 4: "-> stage match_facts"}
        | {5: "stage match_rules", 8: "stage by stage", 10: "stage finish"},
    ),
    "into the proof tree and out of it": (
        ["t", "t", "t", "b", "t", "s"],
        {1: "step 1    neighborOf(armenia, X0)   by fact neighborOf(armenia, iran)", 2: "resolvents"}
        | {3: "a fact      locatedInCR(pakistan, asia)", 4: "resolvents", 6: "stage (input)"},
    ),
    "through what was found": (
        ["/ ARMENIA tail", "p", "n", "/no such words", "n", "/armenia", "/", "p"],
        {1: " of 30 divergences; n and p go through these", 2: "this is the first divergence"}
        | {4: "no divergence contains all these words", 7: "n and p go through all divergences again"},
    ),
    "nowhere by mistake": (
        ["x", "d", "d 31", "d 0", "c 2", "c one", "h", "", "c 1"],
        {1: "unknown command 'x'; h lists them", 2: FEW_A, 3: FEW_A, 4: FEW_A, 5: FEW_C, 6: FEW_C}
        | {7: "next divergence", 8: "divergence 1 of 30"},
    ),
}


@pytest.mark.parametrize("move", MOVES)
def test_keys_move(run_dir: Path, move: str):
    script, shown = MOVES[move]
    views = step_through(run_dir, *script)
    read = script[: script.index("q") + 1] if "q" in script else script
    assert len(views) == 1 + sum(map(bool, read))
    assert {number: text for number, text in shown.items() if text not in views[number]} == {}


def test_a_stage_shows_only_the_differences_and_a_missing_step_is_named(run_dir: Path):
    views = step_through(run_dir, "s", "s", "s", "s", "f", "f")
    assert "- fact neighborOf(armenia, iran) [train.txt:382]" in views[4]
    assert "replayed; only the differences" in views[4]
    assert "The actual side has no such step." in step_through(run_dir, "f")[1]


def test_one_divergence_is_printed_and_written(command, run_dir: Path):
    finished = command("show", run_dir, "--divergence", 2)
    assert finished.exit_code == 0
    assert finished.stdout.startswith("\ndivergence 2 of 30 ")
    assert "> " not in finished.stdout.replace("-> ", "")
    data = json.loads(command("show", run_dir, "--divergence", 2, "--json", "-").stdout)
    report = json.loads((run_dir / "report.json").read_text())
    assert (data["number"], data["divergence"]) == (2, report["divergences"][1])
    (culprit,) = (stage for stage in data["stages"] if stage["is_culprit"])
    assert (culprit["stage"], culprit["expected"]) == ("match_facts", report["divergences"][1]["expected"])
    assert {pair["mark"] for pair in data["derivation"]["pairs"]} == {"missing", "extra"}


def check(text: str, name: str) -> dict:
    """Return a result whose schema is the definition of a name."""
    data = json.loads(text)
    schema = {"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]}
    jsonschema.validate(data, schema, jsonschema.Draft202012Validator)
    return data


def test_the_json_of_a_run_leads_to_the_code_and_to_commands_that_run(command, run_dir: Path):
    report = json.loads((run_dir / "report.json").read_text())
    shown = check(command("show", run_dir, "--json", "-").stdout, "ShownDivergence")
    assert shown["divergence"] == report["first_cause"]
    assert shown["cause"] == report["causes"][0]
    assert shown["cause"]["code"] == "KG101"
    code, *commands = shown["next"]
    assert (code["file"], code["line"]) == (shown["cause"]["source"]["file"], shown["cause"]["source"]["line"])
    text = Path(kv.__file__).parent.parent.joinpath(code["file"]).read_text("utf-8").splitlines()
    assert "def cap_facts(" in "".join(text[code["line"] - 1 :][:3])
    assert text[code["last_line"] - 1].strip().startswith("return ")
    for step in commands[:2]:
        _, *words = step["command"]
        assert check(command(*words).stdout, "ShownCandidateStep")["step"] == report["first_cause"]["step"]
    assert commands[-1]["command"] == ["kgverify", "shrink", str(run_dir), "--divergence", "1", "--python"]


def test_what_is_printed_of_causes_is_written(command, run_dir: Path):
    done = command("show", run_dir, "--explain", "--json", "-")
    shown = check(done.stdout, "ShownCauses")
    assert shown["causes"] == json.loads((run_dir / "report.json").read_text())["causes"]
    step = shown["next"][-1]
    assert f"{' '.join(step['command']).removesuffix(' --json -')} {step['does']}" in done.stderr
