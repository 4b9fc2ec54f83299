"""Hooks of the documentation site: links to what lies outside of `docs`, and tables that are made from the code.

A page asks for a table by a comment: `<!-- commands -->`, `<!-- features -->`, or `<!-- step_laws -->` with the name of a module.
"""

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

LINK = re.compile(r"\]\((?:\.\./)+([^)]+)\)")
TABLE = re.compile(r"<!-- (commands|features|faults|report_schema|\w+_laws) -->")


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Point links such as `../SECURITY.md` to the repository, and write the tables that the page asks for."""
    return write_tables(LINK.sub(lambda match: f"]({config.repo_url}/blob/main/{match[1]})", markdown))


def write_tables(markdown: str) -> str:
    """Replace each comment that asks for a table by the table."""
    return TABLE.sub(lambda match: "\n".join(_write_table(match[1])), markdown)


def _write_table(name: str) -> Iterator[str]:
    makers = {
        "commands": _describe_commands,
        "features": _list_features,
        "faults": _list_faults,
        "report_schema": _describe_schema,
    }
    return makers[name]() if name in makers else _state_laws(name)


def _list_faults() -> Iterator[str]:
    from kgverify.prover.faults.plant import COMPOSITES, FAULTS, find_carriers

    yield from ("| fault | stage | breaks | seen in | carried by |", "|---|---|---|---|---|")
    for fault in FAULTS.values():
        carriers = ", ".join(find_carriers(fault.name))
        yield f"| `{fault.name}` | `{fault.stage.value}` | {fault.breaks} | {fault.seen_in} | {carriers} |"
    yield from ("", "### Composites", "", "| composite | faults | breaks | seen in |", "|---|---|---|---|")
    for each in COMPOSITES.values():
        parts = ", ".join(f"`{part}`" for part in each.parts)
        yield f"| `{each.name}` | {parts} | {each.breaks} | {each.seen_in} |"


def _describe_schema() -> Iterator[str]:
    schema = json.loads((Path(__file__).parents[1] / "report.schema.json").read_text(encoding="utf-8"))
    for name, each in schema["$defs"].items():
        fields = each.get("properties", {})
        statement, meanings = read_description(each.get("description", ""), fields)
        yield f"### {name} {{ #json-{name.lower()} }}\n\n{statement}\n"
        if each.get("enum"):
            yield f"Values: {', '.join(f'`{value}`' for value in each['enum'])}.\n"
        if fields:
            yield from ("| field | type | meaning |", "|---|---|---|")
            for field, of in fields.items():
                meaning = meanings.get(field, "").replace("|", "\\|")
                yield f"| `{field}` | {_name_type(of)} | {meaning} |"
            yield ""


def read_description(text: str, fields: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return the statement of a docstring, and the meaning that it gives to each field, by name, in words of JSON."""
    first, *lines = re.sub(r"\bNone\b", "null", text).split("\n")
    statement, meanings, named = [first], dict[str, str](), list[str]()
    for line in dedent("\n".join(lines)).split("\n"):
        found = re.match(r"(\w+(?:, \w+)*): +(\S.*)", line)
        if found and not set(found[1].split(", ")) - set(fields):
            named, meaning = found[1].split(", "), found[2]
            # Another field may follow on the same line.
            own, name, other = re.fullmatch(r"(.*?)(?:; (\w+): (.*))?", meaning).groups()  # type: ignore[union-attr]
            meanings |= dict.fromkeys(named, own if name in fields else meaning)
            if name in fields:
                named, meanings[name] = [name], other
        elif line.startswith("  ") and named:
            meanings |= {each: f"{meanings[each]} {line.strip()}" for each in named}
        elif line.strip():
            statement.append(line.strip())
    return " ".join(statement), meanings


def _name_type(of: Any) -> str:
    if "anyOf" in of:
        return " or ".join(_name_type(each) for each in of["anyOf"])
    if "$ref" in of:
        name = of["$ref"].rpartition("/")[2]
        return f"[{name}](#json-{name.lower()})"
    if "enum" in of:
        return ", ".join(f"`{value}`" for value in of["enum"])
    kind = of.get("type", "any")
    if kind == "array":
        items = of.get("prefixItems") or [of["items"]] if of.get("items") or of.get("prefixItems") else []
        return f"array of {', '.join(_name_type(each) for each in items)}" if items else "array"
    if kind == "object" and isinstance(of.get("additionalProperties"), dict):
        return f"object of {_name_type(of['additionalProperties'])}"
    return str(kind)


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
    from kgverify.cli.command_line import list_commands, make_app, render_command_help
    from kgverify.cli.entries import ENTRIES, render_help

    yield f"### kgverify\n\n```text\n{render_help()}\n```\n"
    app = make_app(*ENTRIES)
    for words in list_commands(app):
        yield f"### kgverify {' '.join(words)}\n\n```text\n{render_command_help(app, words)}\n```\n"
