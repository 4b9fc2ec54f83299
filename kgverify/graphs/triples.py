"""Read triples in the format of their file: `relation(head,tail).`, a table, or N-Triples.

The first line that is neither blank nor a comment determines the format of the whole file. Every argument is a constant,
whatever its case. Comments are lines that begin with `%` or `#`.

In functional form, as in Prolog, a fact ends at its dot or with its line, so a line may contain several facts. The weight of a
fact (`0.9::r(a,b).`, `0.9 r(a,b).`) is ignored, and declarations (`:- dynamic r/2.`) are skipped, each with a warning. Rules,
negation and other directives are errors.
"""

import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import islice
from typing import Final

from kgverify.errors import UserError
from kgverify.graphs.formats import ntriples
from kgverify.graphs.formats.fields import NUM_SAMPLED_LINES, find_delimiter
from kgverify.graphs.formats.plain import parse_plain_facts
from kgverify.graphs.formats.reading import GivenColumns, Triples, is_skipped, line_error, show, split_text
from kgverify.graphs.formats.tables import parse_plain, parse_table
from kgverify.graphs.grammar import QUOTED, RANGE, Clause, ClauseReader
from kgverify.program.atoms import NamedAtom
from kgverify.program.program import Source

TABULAR: Final = "head<TAB>relation<TAB>tail"
FUNCTIONAL: Final = "relation(head,tail)."

_QUOTED_OR_OPEN: Final = re.compile(rf"{QUOTED}|(['\"].*)")
_ATOM: Final = re.compile(r"[ \t]*+[^ \t(][^(]*\(.*\)[ \t]*+(?:\.[ \t]*+)?|[^ \t(]+\([^)]*")
_CLOSED: Final = re.compile(r"\)[ \t]*+(?:\.[ \t]*+)?$")
_FOREIGN: Final = re.compile(
    r"[ \t]*+(?:(?P<star><<.*)|(?P<pairs>[^\t,]*,[^\t]*:[ ]*[+-])|"
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
    texts = split_text(b"".join(islice(BytesIO(content), NUM_SAMPLED_LINES)).decode())
    found = next(_list_content(texts), None)
    if found is None:
        texts = split_text(content.decode())
        found = next(_list_content(texts), None)
    line, first = found or (0, "")
    if match := _FOREIGN.match(first):
        name, fix = _FOREIGN_NAMES[match.lastgroup or ""]
        raise line_error(Source(file, line), f"{TABULAR} or {FUNCTIONAL}", f"{name}: {show(first)}", fix)
    if ntriples.is_statement(first):
        return ntriples.parse_ntriples(split_text(content.decode()), file)
    is_functional = is_facts(first) if first.count("\t") >= 2 else _is_functional(first)
    delimiter = "" if is_functional else find_delimiter(texts, file)
    plain = parse_plain(content, delimiter, texts[0], given) if delimiter else parse_plain_facts(content)
    if plain is not None:
        return plain
    text = content.decode()
    return parse_table(split_text(text), delimiter, file, given) if delimiter else parse_facts(text, file)


def _list_content(texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    return ((i, text) for i, text in enumerate(texts, 1) if text.strip(" \t") and not is_skipped(text))


def _is_functional(text: str) -> bool:
    """Return whether a line has its first comma inside parentheses, or is an atom or a directive without a comma."""
    if is_facts(text):
        return True
    before, comma, _ = _QUOTED_OR_OPEN.sub(lambda match: match[1] or "q", text).partition(",")
    if "(" in before and (_CLOSED.search(text) or not any(before.count(sign) == 2 for sign in ";|")):
        return before.count("(") > before.count(")") if comma else bool(_ATOM.fullmatch(before))
    return text.lstrip(" \t").startswith((":-", "?-", "/*"))


_NO_CONSTANTS: Final = (
    (re.compile("[^,]*,"), "a name", "the compound term ", "quote a name that contains a comma"),
    (
        re.compile(RANGE),
        "a constant",
        "",
        "write one fact for each number of the range; quote the name if it is a constant",
    ),
    # Functions, lists, sets and alternatives.
    (
        re.compile(r"[a-z](?:\w*[^\W_])?\(|[\[{]|[^;]*;"),
        "a constant",
        "",
        "quote the name if it is a constant; facts have neither functions, lists nor alternatives",
    ),
)
"""The refused beginnings of unquoted arguments: the pattern, what was expected, what was found, and the fix."""


def parse_facts(text: str, file: str) -> Triples:
    """Parse the facts of a text. UserError, with `file` and line, at the first text that is not a fact."""
    atoms: list[NamedAtom] = []
    lines: list[int] = []
    reader = ClauseReader("facts", text, Source(file, 1))
    while reader.skip_to_clause():
        line, atom = _read_fact(reader, file)
        lines.append(line)
        atoms.append(atom)
    return Triples(tuple(atoms), tuple(lines), tuple(reader.describe_ignored()))


def is_facts(line: str) -> bool:
    """Return whether a line can be read as one or more whole facts; its tabs are then between names, not inside them."""
    reader, num = ClauseReader("facts", line, Source("", 1)), 0
    try:
        while "(" in line and reader.skip_to_clause():
            reader.read_clause()
            num += 1
    except UserError:
        return False
    return num > 0


def _read_fact(reader: ClauseReader, file: str) -> tuple[int, NamedAtom]:
    """Return the line and the atom of the next fact."""
    begin = reader.position
    try:
        clause = reader.read_clause()
    except UserError:
        rest = reader.find_rest(begin)
        if any(sign in rest for sign in ("(", ":-", "?-", "/*")):
            raise
        fix = "write one triple a line, in the same format for the whole file"
        raise line_error(reader.locate(begin), f"{TABULAR} or {FUNCTIONAL}", show(rest), fix) from None
    return clause.line, _build_fact(clause, file)


def _build_fact(clause: Clause, file: str) -> NamedAtom:
    predicate, first, second, is_quoted = clause.clause_head
    source = Source(file, clause.line)
    if clause.weight is not None and clause.weight <= 0:
        raise line_error(source, "a triple that holds", f"the weight {clause.weight:g}", "remove such triples")
    if not is_quoted and predicate.startswith("-") and predicate != "-":
        fix = "remove negated facts; quote the predicate if this is its name"
        raise line_error(source, "a predicate", f"the negation {show(predicate)}", fix)
    for term in (each.text for each in (first, second) if not each.is_quoted):
        for pattern, expected, found, fix in _NO_CONSTANTS:
            if pattern.match(term):
                raise line_error(source, expected, f"{found}{show(term)}", fix)
    return NamedAtom(predicate, first.text, second.text)
