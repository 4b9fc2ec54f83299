"""Read triples in the format that the file has: `relation(head,tail).`, a table, or N-Triples.

The first line that is neither blank nor a comment determines the format of the whole file. Every argument is a constant,
whatever its case. Comments are lines that begin with `%` or `#`.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from kgverify.graphs.facts import FUNCTIONAL, TABULAR, is_facts, parse_facts
from kgverify.graphs.formats import ntriples
from kgverify.graphs.formats.plain import parse_plain_facts
from kgverify.graphs.formats.reading import GivenColumns, Triples
from kgverify.graphs.formats.tables import NUM_SAMPLED_LINES, find_delimiter, parse_plain, parse_table
from kgverify.graphs.text_file import is_skipped, line_error, show, split_text
from kgverify.program.program import Source

_QUOTED: Final = re.compile(r"'(?:''|\\.|[^'])*'|\"(?:\"\"|\\.|[^\"])*\"")
_ATOM: Final = re.compile(r"[ \t]*[^ \t(][^(]*\(.*\)[ \t]*\.?[ \t]*|[^ \t(]+\([^)]*")
_CLOSED: Final = re.compile(r"\)[ \t]*\.?[ \t]*$")
_FOREIGN: Final = re.compile(
    r"[ \t]*(?:(?P<star><<.*)|(?P<pairs>[^\t]*,[^\t]*:[ ]*[+-])|"
    r"(?P<json>[\[{][ \t]*(?:\"[^\t]*)?)|(?P<xml><(?:\?xml|!doctype|rdf:)[^\t]*)|(?P<turtle>@?(?:prefix|base)[ ].*))$",
    re.IGNORECASE,
)
_FOREIGN_NAMES: Final = {
    "star": ntriples.RDF_STAR,
    "pairs": (
        "pairs of entities with + or -, as DeepPath and MINERVA sort them",
        "write the pairs with + as triples, head<TAB>relation<TAB>tail",
    ),
    "json": ("JSON", "write the triples as a table: head, relation and tail, separated by tabs"),
    "xml": ("XML", "convert RDF/XML to N-Triples, for example by `rapper -o ntriples`"),
    "turtle": ("Turtle", "convert it to N-Triples, for example by `rapper -i turtle -o ntriples`"),
}


def parse_triples(content: bytes, file: str, given: GivenColumns | None = None) -> Triples:
    """Parse the triples of a text in UTF-8; `given` are the columns of a table without a header row.

    UserError, with `file` and line, at the first line that is not a triple.
    """
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    texts = split_text(_take_lines(content).decode())
    if not any(_list_content(texts)):
        texts = split_text(content.decode())
    line, first = next(_list_content(texts), (0, ""))
    if match := _FOREIGN.match(first):
        name, fix = _FOREIGN_NAMES[match.lastgroup or ""]
        raise line_error(Source(file, line), f"{TABULAR} or {FUNCTIONAL}", f"{name}: {show(first)}", fix)
    has_tabs = first.count("\t") >= 2
    if ntriples.is_statement(first) or ntriples.is_quad(first) or (ntriples.begins_statement(first) and not has_tabs):
        return ntriples.parse_ntriples(split_text(content.decode()), file)
    is_functional = is_facts(first) if has_tabs else _is_functional(first)
    delimiter = "" if is_functional else find_delimiter(texts, file)
    plain = parse_plain(content, delimiter, texts[0], given) if delimiter else parse_plain_facts(content)
    if plain is not None:
        return plain
    texts = split_text(content.decode())
    return parse_table(texts, delimiter, file, given) if delimiter else parse_facts(list(enumerate(texts, 1)), file)


def _take_lines(content: bytes) -> bytes:
    """Return the first lines of a text: more than determine the format."""
    end = 0
    for _ in range(NUM_SAMPLED_LINES):
        end = content.find(b"\n", end) + 1
        if not end:
            return content
    return content[:end]


def _list_content(texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    return ((i, text) for i, text in enumerate(texts, 1) if not is_skipped(text) and text.strip(" \t"))


def _is_functional(text: str) -> bool:
    """Return whether a line has its first comma inside of parentheses, or is an atom or a directive without comma."""
    if is_facts(text):
        return True
    before, comma, _ = _QUOTED.sub("q", text).partition(",")
    if "(" in before and (_CLOSED.search(text) or not any(before.count(sign) == 2 for sign in ";|")):
        return before.count("(") > before.count(")") if comma else bool(_ATOM.fullmatch(before))
    return text.lstrip(" \t").startswith((":-", "?-", "/*"))
