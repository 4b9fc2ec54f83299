"""A user's mistake exits with 2, says where it is and how to fix it, hides our stack, and leaves every file as it was."""

import json
from pathlib import Path

import pytest
from invoked_commands import EAGER, SMALL, invoke

from kgverify.cli.command_line import list_commands, list_options, make_app

ENGINES = Path(__file__).with_name("two_engines.py")

# A command line, the place that the error names, and words of the message or the fix.
REFUSED = [
    ("diff --graph countris", "countris", "did you mean 'countries'?"),
    ("diff --rules none.pl", "none.pl", ""),
    ("diff --policy shortst", "--policy", "did you mean 'shortest'?"),
    ("diff --policy none.safetensors", "none.safetensors", "safetensors"),
    ("diff --fault fact-cup", "--fault", "did you mean 'fact-cap'?"),
    ("diff --mode egaer", "--mode", "eager"),
    ("diff --device tpu", "--device", "cpu"),
    ("diff --tune slots=0 --mode eager", "--tune slots", "slots >= 1"),
    ("diff --corruptions foo", "--corruptions", "all"),
    ("diff --corruptions -2", "--corruptions", "0 or more"),
    (f"diff --corruptions {10**400}", "--corruptions", "at most 2,147,483,647 corruptions, found more"),
    ("diff --queries nan", "--queries", ""),
    (f"diff --queries {10**20}", "--queries", "at most 2,147,483,647 queries, found more"),
    (f"diff --jobs {10**20}", "--jobs", ""),
    ("diff --seed -1 --policy two_tower", "--seed", ""),
    ("diff --split tset", "--split", "did you mean 'test'?"),
    ("diff --limits max_depth=0", "--limits max_depth", "from 1 to"),
    ("diff one.h5", "one.h5", "kgverify diff EXPECTED.h5 ACTUAL.h5"),
    ("diff one.h5 two.h5", "one.h5", "check the path"),
    ("diff one.h5 two.h5 --fault fact-cap", "--fault", "leave"),
    ("diff one.h5 two.h5 --jobs 2", "--jobs", "leave it out"),
    ("diff one.h5 two.h5 --engine two_engines:Fast", "--engine", ""),
    ("diff --jobs 2 --scheduler tcp://127.0.0.1:1", "--scheduler", "one of the two"),
    ("diff --engine two_engines:Fast --mode eager", "--mode", ""),
    ("diff --engine two_engines:Fast --fault fact-cap", "--fault", ""),
    ("diff --engine two_engines:Fast --tune precision=bf16", "--tune precision", ""),
    ("diff --engine two_engines:Fast --reference two_engines:Slow --jobs 2", "--jobs", ""),
    # Of two mistakes, the one about the output is found first.
    ("diff --graph nowhere --json none/report.json", "none/report.json", "cannot be written"),
    ("diff --graph nowhere --json .", ".", "cannot be written"),
    ("diff --graph nowhere --save text", "text", "give a folder, or a path where one can be created"),
    ("diff --graph nowhere --save text/below", "text/below", "give a folder, or a path where one can be created"),
    ("record -o x.h5", "--engine", ""),
    ("record --engine compiled --jobs 2 -o x.h5", "--jobs", "leave it out"),
    ("record --engine referenc -o x.h5", "--engine", "did you mean 'reference'?"),
    ("record --engine none.py:Engine -o x.h5", "--engine", "check the path"),
    ("record --engine reference -o none/x.h5", "none/x.h5", "create none first"),
    ("record --engine reference --graph nowhere -o x.h5 --json none/x.json", "none/x.json", "cannot be written"),
    ("record --engine reference --split vaild -o x.h5", "--split", "did you mean 'valid'?"),
    ("record --engine reference --level depe -o x.h5", "--level", "deep"),
    ("record --engine two_engines:Fast --mode eager -o x.h5", "--mode", ""),
    ("record --engine two_engines:Fast --reference two_engines:Slow -o x.h5", "--reference", ""),
    ("evaluate --rank-only --fault no-push-down", "--rank-only", "leave --rank-only out"),
    ("evaluate --tune memory=lots", "--tune memory", "8GiB"),
    ("evaluate --tune memory=1KiB --mode eager", "--tune memory", "more memory"),
    ("evaluate --tune memory='8 apples'", "--tune memory", ""),
    ("evaluate --tune precision=fp8", "--tune precision", "float32"),
    ("evaluate --save /dev/null/run", "/dev/null/run", "a folder"),
    ("evaluate --engine two_engines:Fast --tune memory=1GiB", "--tune memory", ""),
    ("evaluate --engine two_engines:Fast --rank-only", "--rank-only", ""),
    ("evaluate --engine reference --tune precision=bf16", "--tune precision", "is an option of the compiled evaluator"),
    ("evaluate --engine two_engines:Fast --fault fact-cap", "--fault", ""),
    ("dialect --graph countries", "--graph", "is for a trace"),
    ("dialect trace.h5 --engine reference", "--engine", "is for an engine"),
    ("fuzz --mode fast", "--mode", "unknown value 'fast'"),
    ("fuzz --fault nothing", "--fault", "unknown value 'nothing'"),
    ("fuzz --engine m:f --fault fact-cap", "--fault", "planted in the compiled evaluator"),
    ("fuzz --engine two_engines:Fast --mode fused", "--mode", ""),
    ("fuzz --seconds soon", "--seconds", "expected a time, found 'soon'"),
    ("fuzz --seconds 0s", "--seconds", "expected a time"),
    ("fuzz --seconds 1.5h", "--seconds", "expected a time"),
    ("fuzz --seconds 1m1h", "--seconds", "expected a time"),
    ("show none.h5 --step 1", "--step", "--candidate"),
    ("show text", "text", ""),
    ("show trace.h5 --candidate 0 --step -1", "", "found -1"),
    ("show trace.h5 --divergence 1", "--divergence", "a trace has no divergences"),
    ("show digests.h5 --candidate 0 --step 0", "", "record it again at level steps"),
    ("show empty", "empty", "holds neither report.json of a saved run nor manifest.json of a trace"),
    ("show broken", "broken/report.json", ""),
    ("show run --divergence 0", "--divergence", "expected a divergence from 1 to 5, found 0"),
    ("show run --candidate 0", "run", "expected.h5"),
    ("show agrees", "agrees", "no divergences to step through: AGREE"),
    ("shrink none", "none/report.json", "--save"),
    ("shrink run --divergence 99999", "--divergence", "there is no divergence 99999"),
    ("shrink run --graph no-such-graph", "no-such-graph", "no such graph"),
    ("shrink run --graph random:1", "--graph", "holds other facts or rules"),
    ("shrink run -o no/such/folder/x.kg", "no/such/folder/x.kg", "cannot be written"),
    ("shrink run --calls 0", "--divergence 1", "no part of the graph was found"),
    ("shrink theirs", "", "--engine MODULE:FUNCTION"),
    ("shrink typed", "", "was read from standard input"),
    ("shrink typed --seconds 1", "", "; or give --graph"),
    ("replay trace.h5 --json -", "--json", "replay has no result as JSON"),
    ("report run --html no/x.html", "no/x.html", "give a path in a folder that exists"),
    ("report run --markdown - --json -", "", "only one format"),
    ("trace convert trace.h5 digests.h5", "digests.h5", "--overwrite"),
    ("trace convert trace.h5 x.h5 --level step", "--level", "steps"),
    ("trace export trace.h5 --candidates 0,99 --to a.jsonl", "--candidates", "expected candidates from 0 to"),
    ("trace export trace.h5 --candidates 2- --to a.jsonl", "--candidates", "numbers and ranges"),
    ("trace export trace.h5 --candidates '' --to a.jsonl", "--candidates", "numbers and ranges"),
    ("trace export trace.h5 --candidates 3-1 --to a.jsonl", "--candidates", "expected candidates"),
    ("trace export trace.h5 --to no/folder/a.csv", "no/folder/a.csv", "cannot be written"),
    ("audit step x.py:step --inputs x.py:make", "FILE.py:STEP", "no such file"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two levels, a run that diverges and one that agrees, and files that hold neither."""
    folder = tmp_path_factory.mktemp("refusals")
    for name, level in (("trace", "steps"), ("digests", "digests")):
        record = ["record", "--engine", "reference", *SMALL, "--level", level, "-o", f"{name}.h5"]
        assert invoke(record, folder).exit_code == 0
    diff = ["diff", *SMALL, *EAGER, "--no-determinism"]
    assert invoke([*diff, "--fault", "last-fact-lost", "--save", "run"], folder).exit_code == 1
    assert invoke([*diff, "--save", "agrees"], folder).exit_code == 0
    report = json.loads((folder / "run" / "report.json").read_text())
    theirs = json.loads(json.dumps(report))
    theirs["environment"]["actual"]["name"] = "theirs"
    theirs["job"]["engine"] = {"name": ""}
    typed = {**report, "job": {**report["job"], "graph": {"spec": "-"}}}
    for name, content in (("broken", {}), ("theirs", theirs), ("typed", typed)):
        (folder / name).mkdir()
        (folder / name / "report.json").write_text(json.dumps(content))
        for trace in ("expected.h5", "actual.h5"):
            (folder / name / trace).symlink_to(folder / "run" / trace)
    (folder / "empty").mkdir()
    (folder / "text").write_text("no trace")
    (folder / "two_engines.py").write_text(ENGINES.read_text())
    return folder


def list_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts]


@pytest.mark.parametrize(("words", "where", "what"), REFUSED, ids=[words[:60] for words, *_ in REFUSED])
def test_a_mistake_is_reported_with_its_location_and_its_fix(folder: Path, words: str, where: str, what: str):
    before = list_files(folder)
    done = invoke(words, folder, COLUMNS="120")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith(f"error: {where}")
    assert done.stderr.splitlines()[-1].startswith("fix: ")
    assert what in " ".join(done.stderr.split())
    assert list_files(folder) == before


# A value for each option of `diff` that only a run of both engines uses, and the options that two recorded traces use.
OF_ENGINES = {
    "--engine": "reference", "--reference": "reference", "--mode": "plain", "--device": "cpu", "--fault": "fact-cap",
    "--tune": "slots=8", "--graph": "countries", "--rules": "rules.txt", "--queries": 2, "--corruptions": 3, "--seed": 1,
    "--split": "test", "--limits": "max_depth=3", "--policy": "shortest", "--jobs": 2, "--scheduler": "tcp://127.0.0.1:1",
    "--lockstep": None,
}  # fmt: skip
OF_TRACES = {"--save", "--determinism", "--minimum", "--score-error", "--modulo", "--allow-dialects"}


def test_two_recorded_traces_refuse_every_option_that_they_do_not_use(folder: Path):
    (command,) = list_commands(make_app("diff")).values()
    names = {each.name for each in list_options(command)}
    assert {name for name in names if name.startswith("-")} == OF_ENGINES.keys() | OF_TRACES
    given = [name if value is None else f"{name}={value}" for name, value in OF_ENGINES.items()]
    for option in given:
        done = invoke(["diff", "trace.h5", "trace.h5", option], folder)
        assert (done.exit_code, done.stdout) == (2, ""), option
        assert "applies only if kgverify runs both engines" in done.stderr, option


@pytest.mark.parametrize("words", ["diff --nonsense", "diff --queries many", "report", "", "trace", "audit"])
def test_what_is_no_command_line_exits_with_2_and_a_group_prints_whole_summaries(words: str):
    done = invoke(words, COLUMNS="120")
    assert done.exit_code == 2
    assert "Traceback" not in done.stderr
    lines = done.output.splitlines()
    assert lines
    if words in ("", "trace", "audit"):
        assert lines[0].startswith(f"Usage: kgverify {words}".strip())
        assert "COMMAND" in lines[0]
        assert [line for line in lines[1:] if line.endswith("...")] == []
