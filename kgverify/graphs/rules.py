"""Read rules in the arrow, Prolog, AnyBURL and AMIE formats, file by file.

The first line that contains the sign of a format (`->`, `:-`, three tabs and `<=`, `=>`) determines the format of the whole
file. Comments are lines that begin with `%` or `#` and hold no tab.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from kgverify.errors import UserError, suggest
from kgverify.graphs.scanner import RawAtom, RawTerm, Scanner
from kgverify.graphs.text_file import is_skipped, line_error, show, split_lines
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.program import NamedRule, Source

OPERATORS: Final = ("->", ":-", "<=", "=>")

_Lines: TypeAlias = Sequence[tuple[Source, str]]


class _Vocabulary(NamedTuple):
    """The names that the triples and the domains of the graph hold."""

    constants: Collection[str]
    predicates: Collection[str]


class _RawRule(NamedTuple):
    """A rule as written; `is_variable` decides which bare names are variables."""

    source: Source
    clause_head: RawAtom
    body: Sequence[RawAtom]
    is_variable: Callable[[str], bool]
    name: str = ""
    confidence: float | None = None


def parse_rules(
    text: str,
    file: str,
    *,
    constants: Collection[str] = frozenset(),
    predicates: Collection[str] = frozenset(),
) -> tuple[NamedRule, ...]:
    """Parse the rules of a text, in order, each with `file` and its line.

    constants, predicates: the names of the graph, by which the arrow format distinguishes a constant from a variable
        and a predicate with colons from a rule's name
    UserError, with file and line, at the first line that is not a rule of the file's format.
    """
    lines = [(Source(file, number), line) for number, line in split_lines(text) if not is_skipped(line)]
    for _, line in lines:
        for sign, parse in _SIGNS:
            if sign.search(line):
                raw_rules = parse(lines, _Vocabulary(constants, predicates))
                return tuple(_build_rule(each, constants) for each in raw_rules)
    if not lines:
        return ()
    source, line = lines[0]
    expected = "a rule in the arrow, Prolog, AnyBURL or AMIE format"
    raise line_error(source, expected, show(line), "write b1(X,Z), b2(Z,Y) -> h(X,Y)")


def _build_rule(raw: _RawRule, constants: Collection[str]) -> NamedRule:
    """Build a rule; each bare `_` that is a variable is a different one.

    UserError for a bare constant that looks like a compound term.
    """
    atoms = (raw.clause_head, *raw.body)
    written = {term.text for atom in atoms for term in (atom.first, atom.second)}
    fresh = (name for name in map("_{}".format, count(1)) if name not in written)

    def read(term: RawTerm) -> Term:
        if term.is_quoted:
            return term.text
        if "(" in term.text:
            if term.text in constants:
                return term.text
            raise line_error(
                raw.source,
                "a constant or a variable",
                f"the compound term {show(term.text)}",
                "rewrite the rule without functions; quote the name if it is a constant",
            )
        if not raw.is_variable(term.text):
            return term.text
        return Variable(next(fresh) if term.text == "_" else term.text)

    head, *body = [NamedAtom(atom.predicate, read(atom.first), read(atom.second)) for atom in atoms]
    return NamedRule(head, tuple(body), raw.name, raw.confidence, raw.source)


_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def _parse_number(text: str) -> float | None:
    """Parse a finite decimal number; return None for any other text."""
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None


def _read_confidence(text: str, source: Source) -> float:
    """Parse the confidence of a rule's line. UserError if it is not a number."""
    number = _parse_number(text.strip())
    if number is None:
        raise line_error(source, "a number as confidence", show(text.strip()), "write a number such as 0.8")
    return number


def _check_end(scanner: Scanner, source: Source) -> None:
    """Raise UserError unless the rest of the line is empty or a final dot."""
    scanner.take(".")
    if rest := scanner.rest:
        raise line_error(source, "the end of the rule", show(rest), "write one rule a line")


def _empty_body(source: Source) -> UserError:
    """Return the error of a rule without body."""
    fix = "move the atom to the facts, or give the rule a body"
    return line_error(source, "at least one body atom", "an empty body", fix)


_LETTER_AND_DIGITS = re.compile(r"[a-z][0-9]*")
_COLON_FIELD = re.compile(r"([^:('\"]*):")


def _parse_arrow(lines: _Lines, vocabulary: _Vocabulary) -> Iterator[_RawRule]:
    """Parse arrow rules: `name:confidence:b1(X,Z), b2(Z,Y) -> h(X,Y)`.

    Name and confidence may be missing, each with its colon. A bare argument is

    - a variable if it begins with `?` or `_`, or is a lower-case letter a to z, alone or followed by digits;
    - if it begins with an upper-case letter: a constant if it has several characters and the graph has that constant
      (`Germany`), else a variable;
    - a constant if the graph has it; anything else is an error, since a misspelt constant would silently prove nothing.

    A quoted name is a constant. UserError at the first line that is not an arrow rule.
    """

    def is_variable(term: str) -> bool:
        if term.startswith(("?", "_")) or _LETTER_AND_DIGITS.fullmatch(term):
            return True
        is_known = term in vocabulary.constants
        if term[0].isupper():
            return len(term) == 1 or not is_known
        if is_known:
            return False
        # Each rule is built before the next line is read, so this is the line of the term.
        raise line_error(
            source,
            "a variable (X, ?x, x1) or a constant of the graph",
            show(term),
            suggest(term, vocabulary.constants)
            or f"write ?{term} for a variable, '{term}' in quotes for a constant that the graph lacks",
        )

    for source, text in lines:
        name, confidence, clause = _split_prefix(text, source, vocabulary)
        scanner = Scanner(clause, source, OPERATORS)
        if scanner.take("->"):
            raise _empty_body(source)
        body = scanner.take_atoms()
        scanner.expect("->", "',' or '->' after an atom", "write b1(X,Z), b2(Z,Y) -> h(X,Y)")
        clause_head = scanner.take_atom()
        _check_end(scanner, source)
        yield _RawRule(source, clause_head, body, is_variable, name, confidence)


def _split_prefix(text: str, source: Source, vocabulary: _Vocabulary) -> tuple[str, float | None, str]:
    """Split a line into name, confidence and clause. A predicate may hold colons itself: in doubt the graph decides."""
    text = text.strip(" \t")
    if not (first := _COLON_FIELD.match(text)) or _begins_with(text, vocabulary.predicates):
        return "", None, text
    name, after_name = first[1].strip(), text[first.end() :]
    if second := _COLON_FIELD.match(after_name):
        field, after_field = second[1].strip(), after_name[second.end() :]
        if not field or _parse_number(field) is not None:
            return name, _parse_number(field), after_field
    if _parse_number(name) is not None:
        return "", _parse_number(name), after_name
    if second and not _begins_with(after_name, vocabulary.predicates):
        _read_confidence(second[1], source)
    return name, None, after_name


def _begins_with(clause: str, predicates: Collection[str]) -> bool:
    predicate, parenthesis, _ = clause.partition("(")
    return bool(parenthesis) and predicate.strip(" \t") in predicates


_PROLOG_END = re.compile(r"\.?[ \t]*(?:%.*)?")
_PROLOG_FIX = "write h(X,Y) :- b1(X,Z), b2(Z,Y)."


def _parse_prolog(lines: _Lines, vocabulary: _Vocabulary) -> Iterator[_RawRule]:
    """Parse Prolog rules: `h(X,Y) :- b1(X,Z), b2(Z,Y).`, one a clause.

    A bare argument that begins with an upper-case letter or `_` is a variable, and each `_` a different one; everything else
    is a constant. The final dot may be missing. A line that ends in `:-` or `,` continues in the next one. UserError at the
    first clause that is not a rule.
    """
    for source, text in _join_lines(lines):
        scanner = Scanner(text, source, OPERATORS)
        clause_head = scanner.take_atom()
        if not _PROLOG_END.fullmatch(scanner.rest):
            scanner.expect(":-", "':-' after the rule's head", _PROLOG_FIX)
        if _PROLOG_END.fullmatch(scanner.rest):
            raise _empty_body(source)
        body = scanner.take_atoms()
        if not _PROLOG_END.fullmatch(scanner.rest):
            raise line_error(source, "',' or the end of the rule after an atom", scanner.found, _PROLOG_FIX)
        yield _RawRule(source, clause_head, body, lambda term: term[0].isupper() or term[0] == "_")


def _join_lines(lines: _Lines) -> Iterator[tuple[Source, str]]:
    source, clause = Source("", 0), ""
    for line in lines:
        source, clause = (source, f"{clause} {line[1]}") if clause else line
        if not clause.rstrip().endswith((":-", ",")):
            yield source, clause
            clause = ""
    if clause:
        yield source, clause


_ANYBURL_VARIABLE = re.compile(r"[A-Z][0-9]*")
_ANYBURL_FORMAT = "predicted<TAB>support<TAB>confidence<TAB>h(X,Y) <= b1(X,A), b2(A,Y)"


def _parse_anyburl(lines: _Lines, vocabulary: _Vocabulary) -> Iterator[_RawRule]:
    """Parse AnyBURL rules: `predicted<TAB>support<TAB>confidence<TAB>h(X,Y) <= b1(X,A), b2(A,Y)`.

    A bare argument is a variable if it is one upper-case letter A to Z, alone or followed by digits; else it is a constant.
    UserError at the first line that is not an AnyBURL rule.
    """
    for source, text in lines:
        fields = text.split("\t")
        if len(fields) != 4:
            found = f"{len(fields)} field{'s' * (len(fields) != 1)} in {show(text)}"
            raise line_error(source, _ANYBURL_FORMAT, found, "separate four fields by single tabs")
        scanner = Scanner(fields[3], source, OPERATORS)
        clause_head = scanner.take_atom()
        scanner.expect("<=", "'<=' after the rule's head", f"write {_ANYBURL_FORMAT}")
        if not scanner.rest.rstrip("."):
            raise _empty_body(source)
        body = scanner.take_atoms()
        _check_end(scanner, source)
        confidence = _read_confidence(fields[2], source)
        yield _RawRule(source, clause_head, body, _is_anyburl_variable, confidence=confidence)


def _is_anyburl_variable(term: str) -> bool:
    return bool(_ANYBURL_VARIABLE.fullmatch(term))


_AMIE_ARROW = re.compile(r"(?:^|\s)=>(?:\s|$)")

_SPACES = re.compile(r" {2,}")
_AMIE_FORMAT = "?a  rel  ?b   ?b  rel2  ?c   => ?a  head  ?c"


def _parse_amie(lines: _Lines, vocabulary: _Vocabulary) -> Iterator[_RawRule]:
    """Parse AMIE rules: `?a  rel  ?b   ?b  rel2  ?c   => ?a  head  ?c`, then the metrics, separated by tabs.

    A name that begins with `?` is a variable, any other a constant. Atoms are separated by two or more spaces, so that
    names may hold single ones; if a rule has none, single spaces separate. The confidence is the column `Std Confidence` of
    the header; without a header the second metric, or the only one. Lines with neither `=>` nor `?`, which AMIE writes before
    and after the rules, are skipped. UserError at the first line with `?` or `=>` that is not an AMIE rule.
    """
    header: list[str] = []
    for source, text in lines:
        if "?" not in text and not _AMIE_ARROW.search(text):
            header = header or [column.strip().lower() for column in text.split("\t") if "\t" in text]
            continue
        clause, *metrics = text.split("\t")
        sides = _AMIE_ARROW.split(clause)
        if len(sides) != 2:
            raise line_error(source, _AMIE_FORMAT, show(clause), f"write {_AMIE_FORMAT}")
        if not sides[0].strip():
            raise _empty_body(source)
        body, clause_heads = (_parse_amie_atoms(side.strip(), source) for side in sides)
        if len(clause_heads) != 1:
            found = f"{len(clause_heads)} in {show(sides[1].strip())}"
            raise line_error(source, "one atom after '=>'", found, f"write {_AMIE_FORMAT}")
        confidence = _pick_confidence(metrics, header, source)
        yield _RawRule(source, clause_heads[0], body, lambda _: True, confidence=confidence)


def _parse_amie_atoms(text: str, source: Source) -> list[RawAtom]:
    names = _SPACES.split(text)
    if len(names) % 3 or any(name.startswith("?") and " " in name for name in names):
        names = text.split()
    if not names or len(names) % 3 or any(name.startswith("?") for name in names[1::3]):
        found = f"{len(names)} names in {show(text)}"
        raise line_error(source, "atoms of three names, such as ?a  rel  ?b", found, f"write {_AMIE_FORMAT}")
    terms = [RawTerm(name, not name.startswith("?")) for name in names]
    return [RawAtom(names[i + 1], terms[i], terms[i + 2]) for i in range(0, len(names), 3)]


def _pick_confidence(metrics: Sequence[str], header: Sequence[str], source: Source) -> float | None:
    if "std confidence" in header:
        column = header.index("std confidence") - 1
    else:
        column = min(1, len(metrics) - 1)
    if not 0 <= column < len(metrics):
        return None
    return _read_confidence(metrics[column].replace(",", "."), source)


_Parser: TypeAlias = Callable[[_Lines, _Vocabulary], Iterator[_RawRule]]

_SIGNS: Final[tuple[tuple[re.Pattern[str], _Parser], ...]] = (
    (re.compile(r"^[^\t]*\t[^\t]*\t[^\t]*\t.*<="), _parse_anyburl),
    (_AMIE_ARROW, _parse_amie),
    (re.compile(r"\)\s*:-"), _parse_prolog),
    (re.compile(r"->"), _parse_arrow),
)
