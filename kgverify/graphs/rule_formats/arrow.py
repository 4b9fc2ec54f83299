"""Arrow rules: `name:confidence:b1(X,Z), b2(Z,Y) -> h(X,Y)`.

Name and confidence may be missing, each with its colon. A bare argument is

- a variable if it begins with `?` or `_`, or is a lower-case letter a to z, alone or followed by digits;
- if it begins with an upper-case letter: a constant if it is longer than one sign and the graph has that
  constant (`Germany`), else a variable;
- a constant if the graph has it; anything else is an error, since a misspelt constant would silently prove
  nothing.

A quoted name is a constant.
"""

import re
from collections.abc import Collection, Sequence

from kgverify.errors import suggest
from kgverify.graphs.rule_formats.build import (
    OPERATORS,
    Vocabulary,
    build_rule,
    check_end,
    empty_body,
    parse_number,
    read_confidence,
)
from kgverify.graphs.scanner import Scanner
from kgverify.graphs.text_file import Line, line_error, show
from kgverify.program.program import NamedRule, Source

_LETTER_AND_DIGITS = re.compile(r"[a-z][0-9]*")
_COLON_FIELD = re.compile(r"([^:('\"]*):")


def parse_arrow(lines: Sequence[Line], file: str, vocabulary: Vocabulary) -> list[NamedRule]:
    """Return the rules of the lines. UserError at the first line that is no arrow rule."""
    return [_parse_line(text, Source(file, number), vocabulary) for number, text in lines]


def _parse_line(text: str, source: Source, vocabulary: Vocabulary) -> NamedRule:
    name, confidence, clause = _split_prefix(text, source, vocabulary)
    scanner = Scanner(clause, source, OPERATORS)
    if scanner.take("->"):
        raise empty_body(source)
    body = scanner.take_atoms()
    if not scanner.take("->"):
        found = show(scanner.rest) if scanner.rest else "the end of the line"
        raise line_error(source, "',' or '->' after an atom", found, "write b1(X,Z), b2(Z,Y) -> h(X,Y)")
    clause_head = scanner.take_atom()
    check_end(scanner, source)

    def is_variable(term: str) -> bool:
        if term.startswith(("?", "_")) or _LETTER_AND_DIGITS.fullmatch(term):
            return True
        is_known = term in vocabulary.constants
        if term[0].isupper():
            return len(term) == 1 or not is_known
        if is_known:
            return False
        raise line_error(
            source,
            "a variable (X, ?x, x1) or a constant of the graph",
            show(term),
            suggest(term, vocabulary.constants)
            or f"write ?{term} for a variable, '{term}' in quotes for a constant that the graph lacks",
        )

    return build_rule(
        clause_head,
        body,
        is_variable=is_variable,
        vocabulary=vocabulary,
        source=source,
        name=name,
        confidence=confidence,
    )


def _split_prefix(text: str, source: Source, vocabulary: Vocabulary) -> tuple[str, float | None, str]:
    """Name, confidence and clause. A predicate may hold colons itself: in doubt the graph decides."""
    text = text.strip(" \t")
    if not (first := _COLON_FIELD.match(text)) or _begins_with(text, vocabulary.predicates):
        return "", None, text
    name, after_name = first[1].strip(), text[first.end() :]
    if second := _COLON_FIELD.match(after_name):
        field, after_field = second[1].strip(), after_name[second.end() :]
        if not field:
            return name, None, after_field
        if parse_number(field) is not None:
            return name, parse_number(field), after_field
    if parse_number(name) is not None:
        return "", parse_number(name), after_name
    if second and not _begins_with(after_name, vocabulary.predicates):
        read_confidence(second[1], source)
    return name, None, after_name


def _begins_with(clause: str, predicates: Collection[str]) -> bool:
    predicate, parenthesis, _ = clause.partition("(")
    return bool(parenthesis) and predicate.strip(" \t") in predicates
