"""Read N-Triples: one statement `<subject> <predicate> <object> .` per line.

The name of an IRI is the IRI without its angle brackets. A blank node is named `_:label`. The name of a literal is its
canonical N-Triples form, such as `"5"^^<http://www.w3.org/2001/XMLSchema#integer>`, so it differs from every IRI's name and
fits on one line. Source: https://www.w3.org/TR/n-triples/, except that IRIs may be relative.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from kgverify.errors import UserError
from kgverify.graphs.formats.reading import Triples, line_error, show
from kgverify.program.atoms import NamedAtom
from kgverify.program.program import Source

_FORM: Final = "<subject> <predicate> <object> ."
_BLANKS: Final = r"[ \t]*"
_CODE: Final = r"\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}"
_IRI: Final = rf"<((?:[^\x00-\x20<>\"{{}}|^`\\]|{_CODE})+)>"
_NODE: Final = r"(_:[^\W_]?[\w:][\w.:\-\u00b7]*(?<!\.)|_:\w)"
_LITERAL: Final = rf"\"((?:[^\"\\\n\r]|\\[tbnrf\"'\\]|{_CODE})*)\"(?:(@[a-zA-Z]+(?:-[a-zA-Z0-9]+)*)|\^\^{_IRI})?"
_STATEMENT: Final = re.compile(
    rf"{_BLANKS}(?:{_IRI}|{_NODE}){_BLANKS}{_IRI}{_BLANKS}(?:{_IRI}|{_NODE}|{_LITERAL}){_BLANKS}\.{_BLANKS}(?:#.*)?"
)
_QUAD: Final = re.compile(
    rf"{_BLANKS}(?:{_IRI}|{_NODE}){_BLANKS}{_IRI}{_BLANKS}(?:{_IRI}|{_NODE}|{_LITERAL}){_BLANKS}(?:{_IRI}|{_NODE}){_BLANKS}\..*"
)
RDF_STAR: Final = (
    "a quoted triple of RDF-star",
    "leave out the statements about other statements, those with <<, and save the rest as N-Triples",
)
"""The name of a line with `<<` in an error, and the fix."""
_BEGINNING: Final = re.compile(rf"{_BLANKS}(?:<[^<>\t]*>[ \t]*|_:\S+[ \t]+)<[^<>]*>")
_ESCAPE: Final = re.compile(rf"{_CODE}|\\.")
_CHARACTERS: Final = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f"}
_CANONICAL: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


def is_statement(text: str) -> bool:
    """Return whether a line is a statement of N-Triples or N-Quads, or begins like one and is not a row of a table."""
    begins = text.count("\t") < 2 and _BEGINNING.match(text)
    return bool(begins or _STATEMENT.fullmatch(text) or _QUAD.fullmatch(text))


def parse_ntriples(texts: Sequence[str], file: str) -> Triples:
    """Parse statements. UserError, with `file` and line, at the first line that is not a statement."""
    found = list(_parse(texts, file))
    return Triples(tuple(atom for _, atom in found), tuple(line for line, _ in found))


def _parse(texts: Sequence[str], file: str) -> Iterator[tuple[int, NamedAtom]]:
    for line, text in enumerate(texts, 1):
        if match := _STATEMENT.fullmatch(text):
            try:
                yield line, _build(match)
            except ValueError as error:
                fix = "write the code point of a character that UTF-8 can hold"
                raise line_error(Source(file, line), "a character", str(error), fix) from error
        elif text.strip(" \t") and not text.lstrip(" \t").startswith("#"):
            raise _not_a_statement(text, Source(file, line))


def _build(match: re.Match[str]) -> NamedAtom:
    subject, subject_node, predicate, iri, node, literal, language, datatype = match.groups()
    if literal is not None:
        suffix = language or (f"^^<{_unescape(datatype)}>" if datatype else "")
        last = f'"{_unescape(literal).translate(_CANONICAL)}"{suffix}'
    else:
        last = _unescape(iri) if iri else node or ""
    return NamedAtom(_unescape(predicate), _unescape(subject) if subject else subject_node or "", last)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(match: re.Match[str]) -> str:
    """Return the character of an escape. ValueError for a code point without a character."""
    sign = match[0][1]
    if sign not in "uU":
        return _CHARACTERS.get(sign, sign)
    code = int(match[0].lstrip("\\uU"), 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ValueError(f"the escape {match[0]}")
    return chr(code)


def _not_a_statement(text: str, source: Source) -> UserError:
    found, fix = show(text), "write one statement a line, with its dot"
    if re.match(r"[ \t]*(?:@(?:prefix|base)\b|(?:prefix|base)[ \t])|.*[;,][ \t]*$", text, re.IGNORECASE):
        fix = "this is Turtle: convert it to N-Triples, for example by `rapper -i turtle -o ntriples`"
    elif _QUAD.fullmatch(text):
        found = f"an N-Quads statement with a graph: {found}"
        fix = "leave the graphs out, for example by `rapper -i nquads -o ntriples`"
    elif re.search(r"(?:^|[ \t>])<<", text):
        found, fix = f"{RDF_STAR[0]}: {found}", RDF_STAR[1]
    return line_error(source, _FORM, found, fix)
