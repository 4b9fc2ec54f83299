"""The files to copy: what the page shows, and commands that kgverify has."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from kgverify.cli.command_line import list_options, make_app
from kgverify.cli.entries import ENTRIES
from kgverify.cli.output import take_settings

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("github-workflow.yml", "pre-commit-config.yaml")
COMMANDS = make_app(*ENTRIES)


def find_commands(text: str) -> list[list[str]]:
    return [shlex.split(line) for line in re.findall(r"(?:run:|entry:) (kgverify .*)", text)]


def test_the_page_shows_the_files():
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks == [(ROOT / "examples" / "ci" / name).read_text(encoding="utf-8") for name in COPIED]


@pytest.mark.parametrize("name", COPIED)
def test_the_commands_of_a_file_exist(name: str):
    text = (ROOT / "examples" / "ci" / name).read_text(encoding="utf-8")
    assert yaml.safe_load(text)
    commands = find_commands(text)
    assert commands
    for _, command, *words in commands:
        known = {option for each in list_options(COMMANDS[command]) for option in each.names}
        assert {word for word in take_settings(words) if word.startswith("-")} <= known


def test_the_container_is_the_one_of_the_dockerfile():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert "pip install --no-cache-dir -e '.[test]'" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
