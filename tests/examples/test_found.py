"""Every entry of docs/found.md has a script that shows the defect, and every script has an entry."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "examples" / "found").glob("*.py"))
MOST_LINES = 20
RUN = """
import contextlib, io, json, runpy, sys
for path in sys.argv[1:]:
    output, code = io.StringIO(), 0
    with contextlib.redirect_stdout(output):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
    print(json.dumps([path, code, output.getvalue()]))
"""
"""Runs scripts in one process, since some packages take seconds to import."""


def test_the_page_links_each_script_once():
    links = re.findall(r"\]\(\.\./examples/found/(\w+\.py)\)", (ROOT / "docs" / "found.md").read_text())
    assert sorted(links) == [path.name for path in SCRIPTS]


def packages_of(path):
    """The packages that a script needs beside the standard library, numpy and torch; the first is the one it is about."""
    source = path.read_text()
    names = re.findall(r"^(?:from|import) (\w+)|distribution\(\"(\w+)\"\)", source, re.MULTILINE)
    known = {"numpy", "torch", *sys.stdlib_module_names}
    return [name for pair in names for name in pair if name and name not in known] or ["torch"]


PACKAGES = sorted({packages_of(path)[0] for path in SCRIPTS})


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_and_does_without_kgverify(path):
    source = path.read_text()
    assert "kgverify" not in source
    assert len(source.splitlines()) <= MOST_LINES


@pytest.mark.parametrize(
    "package",
    [pytest.param(name, marks=pytest.mark.exhaustive) if name in ("pykeen", "torch") else name for name in PACKAGES],
)
def test_the_scripts_of_a_package_show_their_defects(package):
    paths = [str(path) for path in SCRIPTS if packages_of(path)[0] == package]
    needed = {name for path in map(Path, paths) for name in packages_of(path)}
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    ran = subprocess.run([sys.executable, "-c", RUN, *paths], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    results = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert [path for path, _, _ in results] == paths
    for path, code, output in results:
        assert code == 1, (path, output)
        assert "expected: " in output, path
        assert "found: " in output, path
