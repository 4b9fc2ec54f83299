"""A program that knows only the JSON finds the lines of planted faults: `pytest -m exhaustive tests/agents`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from planted_faults import FAULTS

HERE = Path(__file__).parent
OPTIONS = "--graph kin --split train --queries 7 --corruptions 8 --limits max_resolvents=3,max_atoms=3"
COMMAND = [sys.executable, "-m", "kgverify", *f"diff --engine small_engine.py:Small {OPTIONS} --json -".split()]
MIN_REPAIRED = 18


def plant(text: str, function: str, line: str, replacement: str) -> str:
    """Return the engine with a fault in one line of a function."""
    before, start, after = text.partition(f"    def {function}(")
    assert after.count(line) >= 1
    return before + start + after.replace(line, replacement, 1)


@pytest.mark.exhaustive
def test_a_program_that_knows_only_the_json_repairs_planted_faults(tmp_path: Path):
    shutil.copytree(HERE / "kin", tmp_path / "kin")
    engine = tmp_path / "small_engine.py"
    right = (HERE / engine.name).read_text(encoding="utf-8")
    engine.write_text(right, encoding="utf-8")
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "right"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    found = {}
    for name, fault in FAULTS.items():
        engine.write_text(plant(right, *fault), encoding="utf-8")
        words = [sys.executable, HERE / "repair_from_json.py", *COMMAND]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (name, done.stderr)
        found[name] = json.loads(done.stdout)
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
    repaired = [name for name, each in found.items() if each["after"] == "AGREE"]
    at_once = [name for name in repaired if len(found[name]["tried"]) == 1]
    print(f"repaired: {len(repaired)} of {len(FAULTS)}, {len(at_once)} of them at the first place")
    for name, each in found.items():
        print(f"{each['after']:12} {name}: {each['code']} {each['tried']}")
    assert {each["before"] for each in found.values()} == {"DIVERGE"}
    assert len(repaired) >= MIN_REPAIRED
