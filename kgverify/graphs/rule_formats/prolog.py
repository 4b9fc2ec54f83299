"""Prolog rules: `h(X,Y) :- b1(X,Z), b2(Z,Y).`

A bare argument that begins with an upper-case letter or `_` is a variable, each `_` one of its own;
everything else is a constant. The final dot may be missing. A line that ends in `:-` or `,` goes on in the
next.
"""

import re
from collections.abc import Iterator, Sequence

from kgverify.graphs.rule_formats.build import OPERATORS, Vocabulary, build_rule, empty_body
from kgverify.graphs.scanner import Scanner
from kgverify.graphs.text_file import Line, line_error, show
from kgverify.program.program import NamedRule, Source

_END = re.compile(r"\.?[ \t]*(?:%.*)?")
_FIX = "write h(X,Y) :- b1(X,Z), b2(Z,Y)."


def parse_prolog(lines: Sequence[Line], file: str, vocabulary: Vocabulary) -> list[NamedRule]:
    """Return the rules of the lines. UserError at the first clause that is no rule."""
    return [_parse_clause(text, Source(file, number), vocabulary) for number, text in _join(lines)]


def _join(lines: Sequence[Line]) -> Iterator[Line]:
    number, clause = 0, ""
    for line in lines:
        number, clause = (number, f"{clause} {line.text}") if clause else line
        if not clause.rstrip().endswith((":-", ",")):
            yield Line(number, clause)
            clause = ""
    if clause:
        yield Line(number, clause)


def _parse_clause(text: str, source: Source, vocabulary: Vocabulary) -> NamedRule:
    scanner = Scanner(text, source, OPERATORS)
    clause_head = scanner.take_atom()
    if _END.fullmatch(scanner.rest):
        raise empty_body(source)
    if not scanner.take(":-"):
        raise line_error(source, "':-' after the rule's head", show(scanner.rest), _FIX)
    if _END.fullmatch(scanner.rest):
        raise empty_body(source)
    body = scanner.take_atoms()
    if not _END.fullmatch(scanner.rest):
        raise line_error(source, "',' or the end of the rule after an atom", show(scanner.rest), _FIX)
    return build_rule(
        clause_head,
        body,
        is_variable=lambda term: term[0].isupper() or term[0] == "_",
        vocabulary=vocabulary,
        source=source,
    )
