"""AnyBURL rules: `predicted<TAB>support<TAB>confidence<TAB>h(X,Y) <= b1(X,A), b2(A,Y)`.

A bare argument is a variable if it is one upper-case letter A to Z, alone or followed by digits; else it is a
constant.
"""

import re
from collections.abc import Sequence

from kgverify.graphs.rule_formats.build import (
    OPERATORS,
    Vocabulary,
    build_rule,
    check_end,
    empty_body,
    read_confidence,
)
from kgverify.graphs.scanner import Scanner
from kgverify.graphs.text_file import Line, line_error, show
from kgverify.program.program import NamedRule, Source

_VARIABLE = re.compile(r"[A-Z][0-9]*")
_FORMAT = "predicted<TAB>support<TAB>confidence<TAB>h(X,Y) <= b1(X,A), b2(A,Y)"


def parse_anyburl(lines: Sequence[Line], file: str, vocabulary: Vocabulary) -> list[NamedRule]:
    """Return the rules of the lines. UserError at the first line that is no AnyBURL rule."""
    return [_parse_line(text, Source(file, number), vocabulary) for number, text in lines]


def _parse_line(text: str, source: Source, vocabulary: Vocabulary) -> NamedRule:
    fields = text.split("\t")
    if len(fields) != 4:
        found = f"{len(fields)} field{'s' * (len(fields) != 1)} in {show(text)}"
        raise line_error(source, _FORMAT, found, "separate four fields by single tabs")
    scanner = Scanner(fields[3], source, OPERATORS)
    clause_head = scanner.take_atom()
    if not scanner.take("<="):
        found = show(scanner.rest) if scanner.rest else "the end of the line"
        raise line_error(source, "'<=' after the rule's head", found, f"write {_FORMAT}")
    if not scanner.rest.rstrip("."):
        raise empty_body(source)
    body = scanner.take_atoms()
    check_end(scanner, source)
    return build_rule(
        clause_head,
        body,
        is_variable=lambda term: bool(_VARIABLE.fullmatch(term)),
        vocabulary=vocabulary,
        source=source,
        confidence=read_confidence(fields[2], source),
    )
