"""Hooks of the documentation site: links to what lies outside of `docs`, and the help of every command."""

import re
from collections.abc import Iterator
from typing import Any

import typer.main
from typer.testing import CliRunner

LINK = re.compile(r"\]\((?:\.\./)+([^)]+)\)")
COMMANDS = "<!-- commands -->"


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Point links such as `../SECURITY.md` to the repository, and write the commands where the page asks for them."""
    linked = LINK.sub(lambda match: f"]({config.repo_url}/blob/main/{match[1]})", markdown)
    return linked.replace(COMMANDS, "\n\n".join(_describe_commands())) if COMMANDS in linked else linked


def _describe_commands() -> Iterator[str]:
    from kgverify.cli.app import app

    runner = CliRunner()
    for words in _list_commands(typer.main.get_command(app)):
        shown = runner.invoke(app, [*words, "--help"], prog_name="kgverify", env={"COLUMNS": "110", "TERM": "dumb"})
        title = f"## {' '.join(words)}" if words else "## kgverify"
        yield f"{title}\n\n```text\n{shown.output.strip()}\n```"


def _list_commands(command: Any, *words: str) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from _list_commands(inner, *words, name)
