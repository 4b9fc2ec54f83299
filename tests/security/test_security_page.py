"""SECURITY.md names tests and commands that exist, is linked, and is in the source distribution."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_the_page_names_tests_that_exist():
    named = re.findall(r"`(tests/[^`]+)`", PAGE)
    assert named
    for each in named:
        assert (ROOT / each).exists(), each


def test_the_page_is_linked_and_distributed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "SECURITY.md" in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert project["project"]["urls"]["Homepage"] + "/security" in PAGE
    for page in ("README.md", "docs/fuzzing.md", "docs/your-engine.md"):
        assert "SECURITY.md" in (ROOT / page).read_text(encoding="utf-8"), page
