"""Hooks of the documentation site: links to what lies outside of `docs`, and tables that are made from the code.

A page asks for a table by a comment: `<!-- commands -->`, `<!-- features -->`, or `<!-- step_laws -->` with the name of a module.
"""

import re
from collections.abc import Iterator
from typing import Any

import typer.main
from typer.testing import CliRunner

LINK = re.compile(r"\]\((?:\.\./)+([^)]+)\)")
TABLE = re.compile(r"<!-- (commands|features|\w+_laws) -->")


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Point links such as `../SECURITY.md` to the repository, and write the tables that the page asks for."""
    return write_tables(LINK.sub(lambda match: f"]({config.repo_url}/blob/main/{match[1]})", markdown))


def write_tables(markdown: str) -> str:
    """Replace each comment that asks for a table by the table."""
    return TABLE.sub(lambda match: "\n".join(_write_table(match[1])), markdown)


def _write_table(name: str) -> Iterator[str]:
    if name == "commands":
        return _describe_commands()
    return _list_features() if name == "features" else _state_laws(name)


def _state_laws(module: str) -> Iterator[str]:
    from kgverify.laws import LAWS

    yield from ("| law | statement |", "|---|---|")
    for law in LAWS.values():
        if law.find.__module__ == f"kgverify.laws.statements.{module}":
            yield f"| `{law.name}` | {law.statement} |"


def _list_features() -> Iterator[str]:
    from kgverify.conditions.features import Unit, read_features

    yield from ("| feature | unit | of | preferred at |", "|---|---|---|---|")
    for feature in read_features():
        of = ", ".join(unit.value for unit in Unit if unit in feature.of)
        stages = ", ".join(sorted(stage.value for stage in feature.stages)) or "-"
        yield f"| {feature.name} | {feature.unit or 'yes or no'} | {of} | {stages} |"


def _describe_commands() -> Iterator[str]:
    from kgverify.cli.app import app

    runner = CliRunner()
    for words in _list_commands(typer.main.get_command(app)):
        shown = runner.invoke(app, [*words, "--help"], prog_name="kgverify", env={"COLUMNS": "110", "TERM": "dumb"})
        title = f"## {' '.join(words)}" if words else "## kgverify"
        yield f"{title}\n\n```text\n{shown.output.strip()}\n```\n"


def _list_commands(command: Any, *words: str) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from _list_commands(inner, *words, name)
