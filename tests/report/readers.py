"""Readers of each rendering: they return its lines as people see them, with the headings and titles that belong to each."""

import base64
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import unescape
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import unquote
from xml.etree import ElementTree

_VOID: Final = {"meta", "link", "br", "img", "input", "hr", "col"}
STYLES: Final = re.compile(r"\x1b\[[0-9;]*m")
_PLOTTED: Final = re.compile(r" *(\S+) ([#. ]+) ([\d,]+ / [\d,]+)")
"""A value of a feature, with bars and the numbers that they stand for."""
_GROUPS: Final = ("evidence", "ranks", "exercise", "metrics", "notes")
"""Titles of lines that other renderings have without a title."""
_HEADS: Final = (
    *("stage", "difference", "candidates", "queries", "later steps", "MRR lost", "MRR if repaired alone", "first"),
    *("both", "head", "tail"),
)
"""The heads of the tables of a terminal."""
_GAP: Final = re.compile(r" {2,}")


def fold(text: str) -> str:
    """Return a text with its listed values on the line of their title, separated by slashes."""
    return text.replace(":\n  ", ": ").replace("\n  ", " / ")


def _table(title: str, heads: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Yield a line for each cell with a text: the title of the table, the name of the row, the head of the column, the cell."""
    for name, cells in rows:
        yield from (
            f"{title.lower()} | {name} | {head}: {cell}" for head, cell in zip(heads, cells, strict=True) if cell
        )


def read_terminal(text: str) -> Iterator[str]:
    """Yield the lines of a wide terminal, of tables a line for each cell, and the lines of a value as one line."""
    lines = [STYLES.sub("", line).rstrip() for line in text.splitlines()]
    for block in "\n".join(lines).split("\n\n"):
        title, _, rest = block.partition("\n")
        if title == "causes" or title.startswith("metrics"):
            yield from _read_columns(title.partition(":")[0], rest.split("\n"))
        else:
            yield from (line.strip() for line in re.sub(r"\n {10,}(?=\S)", " / ", block).split("\n") if line)


def _read_columns(title: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield a line for each cell of a table, whose columns begin below their heads, and the lines after it."""
    heads = [(match.start(), match[0]) for match in re.finditer(r"\S+(?: \S+)*", lines[0])]
    columns = heads[1:] if heads[0][0] == 0 else heads
    num_rows = 0
    for line in lines[1:]:
        name = _GAP.split(line)[0]
        if not name:
            yield f"{title} | {num_rows} | condition: {line.strip()}"
        elif title == "causes" and not name.isdecimal():
            yield line
        else:
            num_rows += 1
            ends = [start for start, _ in columns[1:]]
            cells = [line[start:end].strip() for (start, _), end in zip(columns, [*ends, None], strict=True)]
            yield from _table(title, [head for _, head in columns], [(name, cells)])


def read_narrow_tables(text: str) -> Iterator[str]:
    """Yield the lines that `read_terminal` yields of tables, from a terminal so narrow that tables are lists."""
    for block in STYLES.sub("", text).split("\n\n"):
        title, _, rest = block.partition("\n")
        if title != "causes" and not title.startswith("metrics"):
            continue
        name = ""
        for line in rest.splitlines():
            shown = re.fullmatch(rf"  ({'|'.join(_HEADS)}) +(.*?) *", line)
            if line[:1].strip():
                name = line.rstrip()
            elif shown and name:
                yield f"{title.partition(':')[0]} | {name} | {shown[1]}: {shown[2]}"


def read_markdown(text: str) -> Iterator[str]:
    """Yield the lines of Markdown as GitHub shows them."""
    title, heads, num_rows = "", None, 0
    text = re.sub(r"(?ms)^(`{3,})text\n(.*?)\n\1$", lambda found: f"\x00{fold(found[2])}".replace("\n", "\x00"), text)
    for line in text.splitlines():
        if line.startswith("\x00"):
            yield line[1:].replace("\x00", "\n")
        elif line.startswith("### "):
            title, heads, num_rows = line[4:], None, 0
        elif line.startswith("|"):
            cells = [_plain(cell) for cell in line.strip("|").split("|")]
            if heads is None:
                heads = cells
            elif set(line) - set("|-: "):
                num_rows += 1
                name, rest = (cells[0], cells[1:]) if not heads[0] else (f"{num_rows}", cells)
                yield from _table(title, heads[-len(rest) :], [(name, rest)])
        elif line.strip():
            yield _plain(line.removeprefix("- ").removeprefix("## "))


def _plain(text: str) -> str:
    text = re.sub(r"<!--.*?-->|\*\*|`", "", text).replace("<br>", "\n").replace("→", "->")
    return re.sub(r"\\(\W)", r"\1", unescape(text)).strip()


class Element:
    """An element of a page."""

    def __init__(self, tag: str, about: Mapping[str, str | None]) -> None:
        self.tag, self.about, self.children = tag, dict(about), list[Element | str]()

    @property
    def classes(self) -> list[str]:
        """The classes of the element."""
        return (self.about.get("class") or "").split()

    @property
    def text(self) -> str:
        """The text that is shown, with a break after each piece of code of a value."""
        if self.tag in ("script", "style", "template", "noscript", "svg") or "vh" in self.classes:
            return ""
        if self.tag == "br":
            return "\n"
        text = "".join(each if isinstance(each, str) else each.text for each in self.children)
        return f"{text}\n" if self.tag == "summary" else text

    def all(self, *tags: str) -> Iterator["Element"]:
        """Yield the elements below that have one of some tags, or all elements, in order."""
        for each in self.children:
            if isinstance(each, Element):
                if not tags or each.tag in tags:
                    yield each
                yield from each.all(*tags)


class Page(HTMLParser):
    """The elements of a page; fails where elements overlap."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]
        self.feed(text)
        self.close()
        assert self._open == [self.root]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        element = Element(tag, dict(attrs))
        self._open[-1].children.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def read_html(text: str) -> Iterator[str]:
    """Yield the lines of the page, and those of the list that its script shows."""
    page = Page(text).root
    (body,) = page.all("body")
    yield f"title: {next(page.all('title')).text}"
    yield from _read_elements(body, "")
    texts = {each.about["id"]: "".join(map(str, each.children)) for each in page.all("script") if "id" in each.about}
    if "divergence-data" in texts:
        listed, stepped = (
            json.loads(zlib.decompress(base64.b64decode(texts[name]))) for name in ("divergence-data", "step-data")
        )
        for name, column in listed["columns"].items():
            is_text = name not in ("candidate", "query", "step", "later_steps", "cause")
            yield from (
                f"list | {i} | {name}: {listed['texts'][code] if is_text else code}" for i, code in enumerate(column, 1)
            )
        for index, shown in stepped["divergences"].items():
            sides = {side: " / ".join(shown[side]) for side in ("expected", "actual")}
            parts = {name: shown[name] for name in ("found", "condition")} | sides
            yield from (f"steps | {int(index) + 1} | {name}: {part}" for name, part in parts.items() if part)
    for name, value in json.loads(texts["summary"]).items():
        yield f"summary | {name}: {json.dumps(value)}"


def _read_elements(element: Element, title: str) -> Iterator[str]:
    """Yield the lines of what an element contains."""
    term = ""
    for each in element.children:
        if (
            isinstance(each, str)
            or "vh" in each.classes
            or each.about.get("id") in ("viewer", "viewer-state", "glossary", "pictures")
        ):
            continue
        if each.tag in ("h2", "h3"):
            title = each.text
            yield f"heading: {title.lower()}"
        elif each.tag == "dt":
            term = each.text or term
        elif each.tag == "dd":
            yield _join(each) if term in _GROUPS else f"{term}: {_join(each)}"
        elif each.tag == "table":
            yield from _read_table(each, title)
        elif "source" in each.classes:
            yield each.text.rstrip("\n")
        elif each.tag in ("p", "li", "h1", "span", "footer", "pre", "code", "button"):
            yield _join(each)
        elif each.classes == ["values"]:
            sides = [list(side.all("strong", "code")) for side in each.all("div")]
            yield "\n".join(f"{name.text}: {' / '.join(line.text for line in lines)}" for name, *lines in sides)
        elif each.tag not in ("script", "style", "noscript"):
            yield from _read_elements(each, title)


def _join(element: Element) -> str:
    return " ".join(element.text.split())


def _read_cell(cell: Element) -> str:
    """Return the text of a cell; of two values in the colours of the sides the expected one comes first."""
    sides = {each.classes[0]: each.text for each in cell.all("span") if each.classes in (["e"], ["a"])}
    if sides:
        return f"{sides['e']} -> {sides['a']}"
    return " / ".join(filter(None, (line.strip() for line in cell.text.split("\n"))))


def _read_table(table: Element, title: str) -> Iterator[str]:
    """Yield a line for each cell; the panel below a row is read as a page."""
    heads: list[str] = []
    num_rows = 0
    if "difference" in table.classes:
        sides = {"left": "expected", "right": "actual"}
        shown = [each for each in table.all("td") if len(each.classes) == 1 and each.classes[0] in sides]
        yield from (f"{title.lower()} | {sides[each.classes[0]]}: {each.text}" for each in shown)
    if "side" in table.classes:
        return
    inner = {id(row) for each in table.all("table") for row in each.all("tr")}
    for row in table.all("tr"):
        cells = [each for each in row.children if isinstance(each, Element)]
        if not heads and all(each.tag == "th" for each in cells):
            heads = [each.text for each in cells]
        elif "group" in cells[0].classes:
            yield f"group: {cells[0].text}"
        elif "detail" in row.classes:
            yield from _read_elements(cells[0], title)
        elif "condition" in row.classes:
            yield from (f"{title.lower()} | {num_rows} | condition: {_join(each)}" for each in row.all("div"))
        elif id(row) not in inner:
            num_rows += 1
            is_named = cells[0].about.get("scope") == "row"
            name = cells[0].text if is_named else f"{num_rows}"
            rest = cells[1:] if is_named else cells
            shown = heads[-len(rest) :] if heads else [""] * len(rest)
            yield from _table(title, shown, [(name, [_read_cell(cell) for cell in rest])])


def read_junit(text: str) -> Iterator[str]:
    """Yield the lines of the properties and the test cases."""
    (suite,) = ElementTree.fromstring(text)
    yield f"suite: {suite.get('name')}"
    yield from (f"suite | {name}: {suite.get(name)}" for name in ("tests", "failures", "errors", "skipped"))
    for each in suite.iter("property"):
        title = "" if each.get("name") in _GROUPS else f"{each.get('name')}: "
        yield from (f"{title}{line}" for line in (each.get("value") or "").split("\n"))
    for case in suite.iter("testcase"):
        yield f"{case.get('classname')} | {case.get('name')}: {', '.join(each.tag for each in case) or 'passed'}"
        for each in case:
            parts = {"type": each.get("type"), "message": each.get("message"), "text": fold(each.text or "").strip()}
            yield from (f"{each.tag} | {name}: {part}" for name, part in parts.items() if part)


def read_annotations(text: str) -> Iterator[str]:
    """Yield the titles and the lines of the annotations."""
    for line in text.splitlines():
        command, file, number, title, message = re.fullmatch(
            r"::(\w+) (?:file=([^,]*),line=(\d+),)?title=([^:]*)::(.*)", line
        ).groups()
        if file:
            yield f"{command} | at {unquote(file)}:{number}"
        yield f"{command} | title: {unquote(title)}"
        if command == "error":
            yield f"{command} | text: {fold(unquote(message))}"
        else:
            yield from unquote(message).split("\n")


def read_explanation(text: str) -> Iterator[str]:
    """Yield the lines of `kgverify show --explain`: each with the number of its cause and its title, listed ones numbered."""
    cause, title, number = "", "", 0
    for line in STYLES.sub("", text).splitlines():
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            cause = line[1:].partition(" ")[0]
            yield line
        elif indent == 2 or not title:
            title, number = line.strip().partition(":")[0], 0
            if not line.endswith(":"):
                yield f"{cause} | {line.strip()}"
        else:
            number += 1
            plotted = _PLOTTED.fullmatch(line)
            if plotted:
                value, bars, counts = plotted.groups()
                yield f"{cause} | plot | {number}: {value} | {bars.count('#')} {bars.count('.')} | {counts}"
            else:
                yield f"{cause} | {title} | {number}: {line.strip()}"


def read_evaluation(text: str) -> Iterator[str]:
    """Yield the lines of an evaluation as it is printed: what is folded, or listed beside a title, is one line."""
    text = re.sub(r"\n {5,}(?=\S)", " ", text)
    head, _, rest = text.partition("\nrealistic ranks ")
    table, _, rest = rest.partition("\n\n")
    yield from (line.strip() for line in head.replace("; to accept", "\nto accept").splitlines() if line)
    yield from _read_columns("realistic ranks", f"realistic ranks {table}".splitlines())
    yield from (_GAP.sub(" ", line.strip()) if line[:1].strip() else line.strip() for line in rest.splitlines() if line)


READERS: Final[Mapping[str, Callable[[str], Iterator[str]]]] = {
    "terminal": read_terminal,
    "html": read_html,
    "markdown": read_markdown,
    "junit": read_junit,
    "github": read_annotations,
    "explain": read_explanation,
}
