"""Write `docs/llms.txt` and `docs/agents.md` from the pages, the commands and the schema: `python tools/write_agents.py`."""

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import yaml

from kgverify.cli.entries import ENTRIES

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONFIGURATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
SITE = yaml.safe_load(CONFIGURATION)
LOOP = DOCS / "site" / "agents.md"
"""The part of the page that is written by hand. `{{ name }}` stands for a part that is made."""


def read(page: str) -> str:
    """Return the text of a page."""
    return (DOCS / page).read_text(encoding="utf-8")


def list_nav(entries: list[Any], section: str = "Start here") -> Iterator[tuple[str, str, str]]:
    """Yield the section, the title and the file of each page of the navigation."""
    for entry in entries:
        ((title, of),) = entry.items()
        if isinstance(of, str):
            yield section, title, of
        else:
            yield from list_nav(of, title)


def write_llms() -> str:
    """Return `llms.txt`, in the form of llmstxt.org."""
    lines = [f"# {SITE['site_name']}", "", f"> {SITE['site_description']}", ""]
    lines += [
        "Coding agents: read `For coding agents` first. With `--json -` a command prints JSON, which says what is next."
    ]
    current = ""
    for section, title, page in list_nav(SITE["nav"]):
        if section != current:
            current = section
            lines += ["", f"## {section}", ""]
        address = f"{SITE['site_url']}{'' if page == 'index.md' else page.removesuffix('.md') + '/'}"
        purpose = " ".join(strip_links(read(page).split("\n\n")[1]).split())
        lines.append(f"- [{title}]({address}): {purpose}")
    schema = f"{SITE['site_url']}report.schema.json"
    lines += ["", "## For programs", ""]
    return "\n".join([*lines, f"- [JSON schema]({schema}): reports, and every other result that has `next`.", ""])


def strip_links(text: str) -> str:
    """Return a text with the words of its links alone."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def list_codes() -> Iterator[str]:
    """Yield the rows of the table of codes, from the sections of docs/verdicts.md."""
    yield from ("| code | finding |", "|---|---|")
    for code, text in re.findall(r"^#### (KG\d+)\n\n(.*)$", read("verdicts.md"), re.MULTILINE):
        finding = re.match(r"(?:`\w+`\. )?.*?\.(?= |$)", strip_links(text))[0]
        yield f"| [{code}](verdicts.md#{code.lower()}) | {finding} |"


def list_results() -> Iterator[str]:
    """Yield the rows of the table of results with `next`, from the schema."""
    yield from (
        "| result | JSON |",
        "|---|---|",
        "| a report of `kgverify diff` | [Report](reference.md#json-report) |",
    )
    definitions = json.loads(read("report.schema.json"))["$defs"]
    for name, each in definitions.items():
        if "next" in each.get("properties", {}):
            first = each["description"].split("\n")[0].rstrip(".")
            yield f"| {first[0].lower()}{first[1:]} | [{name}](reference.md#json-{name.lower()}) |"


def list_commands() -> Iterator[str]:
    """Yield the rows of the table of commands."""
    yield from ("| command | does |", "|---|---|")
    for name, entry in ENTRIES.items():
        yield f"| `kgverify {name}` | {entry.summary} |"


def list_exit_codes() -> Iterator[str]:
    """Yield the table of verdicts of docs/verdicts.md."""
    yield re.search(r"^\| verdict \|.*?(?=\n\n)", read("verdicts.md"), re.MULTILINE | re.DOTALL)[0]


def write_agents() -> str:
    """Return the page for coding agents."""
    made = {"codes": list_codes, "results": list_results, "commands": list_commands, "exit_codes": list_exit_codes}
    text = LOOP.read_text(encoding="utf-8")
    return re.sub(r"\{\{ (\w+) \}\}", lambda found: "\n".join(made[found[1]]()), text)


def write_pages() -> dict[str, str]:
    """Return the texts, by the names of their files in `docs`."""
    return {"llms.txt": write_llms(), "agents.md": write_agents()}


if __name__ == "__main__":
    (DOCS / "agents.md").write_text(write_agents(), encoding="utf-8")
    (DOCS / "llms.txt").write_text(write_llms(), encoding="utf-8")
