"""Read triples in the format that the file has: `relation(head,tail).`, a table, or N-Triples.

The first line that is neither blank nor a comment determines the format of the whole file. Names survive exactly. In the
functional format a name with commas, a leading quote or unbalanced parentheses needs quotes, which are not part of it. Every
argument is a constant, whatever its case. Comments are lines that begin with `%` or `#`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from kgverify.graphs.formats import ntriples
from kgverify.graphs.formats.parsed import Triples
from kgverify.graphs.formats.tables import find_delimiter, parse_table
from kgverify.graphs.scanner import Scanner
from kgverify.graphs.text_file import is_skipped, line_error, show, split_text
from kgverify.program.atoms import NamedAtom
from kgverify.program.program import Source

_PLAIN = re.compile(
    r"""[ \t]*([^ \t()'",%#\\][^()'",\\]*?)[ \t]*"""
    r"""\([ \t]*([^()'",\\]+?)[ \t]*,[ \t]*([^()'",\\]+?)[ \t]*\)[ \t]*\.?[ \t]*"""
)
_END = re.compile(r"\.?[ \t]*(?:[%#].*)?")
_QUOTED: Final = re.compile(r"'(?:''|\\.|[^'])*'|\"(?:\"\"|\\.|[^\"])*\"")
_ATOM: Final = re.compile(r"[ \t]*[^ \t(][^(]*\(.*\)[ \t]*\.?[ \t]*|[^ \t(]+\([^)]*")
_CLOSED: Final = re.compile(r"\)[ \t]*\.?[ \t]*$")
_FOREIGN: Final = re.compile(
    r"[ \t]*(?:(?P<json>[\[{][ \t]*(?:\"[^\t]*)?)|(?P<xml><(?:\?xml|!doctype|rdf:)[^\t]*)|(?P<turtle>@(?:prefix|base)\b.*))$",
    re.IGNORECASE,
)
_FOREIGN_NAMES: Final = {
    "json": ("JSON", "write the triples as a table: head, relation and tail, separated by tabs"),
    "xml": ("XML", "convert RDF/XML to N-Triples, for example by `rapper -o ntriples`"),
    "turtle": ("Turtle", "convert it to N-Triples, for example by `rapper -i turtle -o ntriples`"),
}
_TABULAR = "head<TAB>relation<TAB>tail"
_FUNCTIONAL = "relation(head,tail)."


def parse_triples(text: str, file: str) -> Triples:
    """Parse the triples of a text. UserError, with `file` and line, at the first line that is not a triple."""
    texts = split_text(text)
    content = ((i, text) for i, text in enumerate(texts, 1) if not is_skipped(text) and text.strip(" \t"))
    line, first = next(content, (0, ""))
    if match := _FOREIGN.match(first):
        name, fix = _FOREIGN_NAMES[match.lastgroup or ""]
        raise line_error(Source(file, line), f"{_TABULAR} or {_FUNCTIONAL}", f"{name}: {show(first)}", fix)
    has_tabs = first.count("\t") >= 2
    if ntriples.is_statement(first) or (ntriples.begins_statement(first) and not has_tabs):
        return ntriples.parse_ntriples(texts, file)
    delimiter = "" if not has_tabs and _is_functional(first) else find_delimiter(texts, file)
    if delimiter:
        return parse_table(texts, delimiter, file)
    found = list(_parse_functional(list(enumerate(texts, 1)), file))
    return Triples(tuple(atom for _, atom in found), tuple(number for number, _ in found))


def _is_functional(text: str) -> bool:
    """Return whether a line has its first comma inside of parentheses, or is an atom or a directive without comma."""
    if _PLAIN.fullmatch(text):
        return True
    before, comma, _ = _QUOTED.sub("q", text).partition(",")
    if "(" in before and (_CLOSED.search(text) or not any(before.count(sign) == 2 for sign in ";|")):
        return before.count("(") > before.count(")") if comma else bool(_ATOM.fullmatch(before))
    return text.lstrip(" \t").startswith(":-")


def _parse_functional(lines: Sequence[tuple[int, str]], file: str) -> Iterable[tuple[int, NamedAtom]]:
    for number, text in lines:
        if match := _PLAIN.fullmatch(text):
            yield number, NamedAtom(*match.groups())
        elif text.strip() and not text.lstrip(" \t").startswith(("%", "#")):
            yield number, _parse_atom(text, Source(file, number))


def _parse_atom(text: str, source: Source) -> NamedAtom:
    if "(" not in text:
        raise line_error(
            source,
            f"{_TABULAR} or {_FUNCTIONAL}",
            show(text),
            "write one triple a line, in the same format for the whole file",
        )
    scanner = Scanner(text, source)
    predicate, first, second = scanner.take_atom()
    if not _END.fullmatch(scanner.rest):
        raise line_error(
            source, f"the end of the line after {_FUNCTIONAL}", show(scanner.rest), "write one triple a line"
        )
    return NamedAtom(predicate, first.text, second.text)
