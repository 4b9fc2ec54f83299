"""Read rules in the arrow, Prolog, AnyBURL and AMIE formats, file by file.

The first line that contains the sign of a format (`->`, `:-`, three tabs and `<=`, `=>`) determines the format of the whole
file. Comments are lines that begin with `%` or `#` and hold no tab, what stands between `/*` and `*/`, and, but for AMIE, the
rest of a line after a rule from `%` or `#` on. Negation, disjunction, conditions, lists and functions are errors: a rule is a
definite clause without functions.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count
from typing import Final, Literal, NamedTuple, TypeAlias

from kgverify.errors import UserError, suggest
from kgverify.graphs.grammar import (
    BLANKS,
    NO_BODY,
    NUMBER,
    Clause,
    Directive,
    Form,
    RawAtom,
    RawTerm,
    describe_ignored,
    parse_clause,
    parse_clauses,
)
from kgverify.graphs.text_file import is_skipped, line_error, show, split_lines
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.program import NamedRule, Source

_Lines: TypeAlias = Sequence[tuple[int, str]]


class Rules(NamedTuple):
    """The rules of a file, in order, and warnings about what was left out."""

    rules: tuple[NamedRule, ...]
    warnings: tuple[str, ...] = ()


class _Context(NamedTuple):
    """The name of the file, and the names that the triples and the domains of the graph hold."""

    file: str
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
) -> Rules:
    """Parse the rules of a text, in order, each with `file` and its line.

    constants, predicates: the names of the graph, by which the arrow format distinguishes a constant from a variable
        and a predicate with colons from a rule's name
    UserError, with file and line, at the first line that is not a rule of the file's format.
    """
    lines = split_lines(text)
    no_rule = f"{file}: no rule in it"
    uncommented = list(_drop_comments(lines, file)) if "/*" in text else lines
    for number, line in uncommented:
        if _TEMPLATE.match(line):
            fix = "replace each #1, #2, ... by a predicate"
            raise line_error(Source(file, number), "a rule", f"the template {show(line)}", fix)
    content = [(number, line) for number, line in uncommented if not _is_comment(line)]
    # All names of an AMIE file may begin as a comment does.
    content = content or [(number, line) for number, line in lines if not is_skipped(line) and _AMIE_ARROW.search(line)]
    if not content:
        return Rules((), (no_rule,))
    parse = _find_format(_QUOTED.sub("q", line) for _, line in content) or _find_format(line for _, line in content)
    if parse is None:
        number, line = content[0]
        expected = "a rule in the arrow, Prolog, AnyBURL or AMIE format"
        raise line_error(Source(file, number), expected, show(line), "write b1(X,Z), b2(Z,Y) -> h(X,Y)")
    context = _Context(file, constants, predicates)
    # AMIE has no quotes, so that any name may begin as a comment does.
    parsed = list(_build_rules(parse(lines if parse is _parse_amie else uncommented, context), context))
    rules = tuple(each for each in parsed if isinstance(each, NamedRule))
    warnings = [each for each in parsed if isinstance(each, str)]
    return Rules(rules, tuple(warnings if rules else [*warnings, no_rule]))


# NTP's templates, which begin as a comment does.
_TEMPLATE = re.compile(r"[ \t]*+#[0-9]++\(")
_QUOTED = re.compile(r"""(?<!\w)(?:'[^'\n]*+'|"[^"\n]*+")""")


def _find_format(lines: Iterable[str]) -> "_Parser | None":
    """Return the parser of the format that the first line with a sign has."""
    return next((parse for line in lines for sign, parse in _SIGNS if sign.search(line)), None)


def _is_comment(line: str) -> bool:
    return not line.strip() or line.lstrip(BLANKS).startswith(("%", "#"))


def _drop_comments(lines: _Lines, file: str) -> Iterator[tuple[int, str]]:
    """Blank out `/* */` comments that begin where a line does."""
    start = 0
    for number, line in lines:
        position = 0
        while position < len(line) and (start or _BEGIN_COMMENT.match(line, position)):
            start = start or number
            end = line.find("*/", position)
            position = len(line) if end < 0 else end + 2
            start = start if end < 0 else 0
        yield number, line[position:]
    if start:
        raise line_error(Source(file, start), "'*/' after '/*'", "the end of the file", "close the comment")


_BEGIN_COMMENT = re.compile(r"[ \t]*+/\*")


def _build_rules(raw_rules: Iterator[_RawRule | str], context: _Context) -> Iterator[NamedRule | str]:
    for raw in raw_rules:
        yield raw if isinstance(raw, str) else _build_rule(raw, context)


def _build_rule(raw: _RawRule, context: _Context) -> NamedRule:
    """Build a rule; each bare `_` that is a variable is a different one.

    UserError for a bare name that has, in Prolog, another meaning than that of a name, and that the graph does not have.
    """
    atoms = (raw.clause_head, *raw.body)
    written = {term.text for atom in atoms for term in (atom.first, atom.second)}
    fresh = (name for name in map("_{}".format, count(1)) if name not in written)

    def read(term: RawTerm) -> Term:
        text = term.text
        if term.is_quoted:
            return text
        is_known = text in context.constants
        if "(" in text and not is_known:
            raise line_error(
                raw.source,
                _A_TERM,
                f"the compound term {show(text)}",
                "rewrite the rule without functions; quote the name if it is a constant",
            )
        is_variable = ("(" not in text) and raw.is_variable(text)
        if not (_VARIABLE.fullmatch(text) if is_variable else is_known or not _NO_NAME.search(text)):
            fix = "quote the name if it is a constant; rules have neither lists nor arithmetic"
            raise line_error(raw.source, _A_TERM, show(text), suggest(text, context.constants) or fix)
        if not is_variable:
            return text
        return Variable(next(fresh) if text == "_" else text)

    for atom in atoms:
        if not atom.is_quoted and atom.predicate not in context.predicates and _NO_PREDICATE.search(atom.predicate):
            found = f"{show(atom.predicate)}, which no triple has"
            fix = suggest(atom.predicate, context.predicates) or (
                "quote the predicate if this is its name; name and confidence come before a rule with an arrow, "
                "as in r1:0.8:b(X,Y) -> h(X,Y)"
            )
            raise line_error(raw.source, "a predicate", found, fix)
    head, *body = [NamedAtom(atom.predicate, read(atom.first), read(atom.second)) for atom in atoms]
    if len(body) > _MAX_BODY:
        expected = f"a body of at most {_MAX_BODY:,} atoms, as traces count them"
        raise line_error(raw.source, expected, f"{len(body):,}", "divide the rule with a predicate of its own")
    return NamedRule(head, tuple(body), raw.name, raw.confidence, raw.source)


_MAX_BODY: Final = (1 << 16) - 2
_A_TERM = "a constant or a variable"
_VARIABLE = re.compile(r"\??\w+")
_NO_NAME = re.compile(r"^\?|[\[\]{}|+*=<>\\^;!`]")
_NO_PREDICATE = re.compile(rf"[ \t;|&^!=<>\\\[\]{{}}]|^-.|^:|^[^:]*:[ \t]*{NUMBER}[ \t]*:")


def _parse_number(text: str) -> float | None:
    """Parse a finite decimal number; return None for any other text."""
    number = float(text) if re.fullmatch(NUMBER, text) else math.inf
    return number if math.isfinite(number) else None


def _read_confidence(text: str, source: Source) -> float:
    """Parse the confidence of a rule's line. UserError if it is not a number."""
    number = _parse_number(text.strip())
    if number is None:
        raise line_error(source, "a number as confidence", show(text.strip()), "write a number such as 0.8")
    return number


def _empty_body(source: Source) -> UserError:
    """Return the error of a rule without body."""
    return line_error(source, *NO_BODY)


_NAME = r"[\w/?][\w/.-]*+"
_PLAIN_ATOM = rf"[ \t]*+(\w[\w/.-]*+)[ \t]*+\([ \t]*+({_NAME})[ \t]*+,[ \t]*+({_NAME})[ \t]*+\)[ \t]*+"
_ATOM = _PLAIN_ATOM.replace("(\\w", "(?:\\w").replace(f"({_NAME})", _NAME)
_BODY = rf"{_ATOM}(?>(?:,{_ATOM})*)"
# What most rules are; the grammar reads them in the same way, only slower. Tests compare both.
_PLAIN = {
    "rules": re.compile(rf"(?P<head>{_ATOM}):-(?P<body>{_BODY})\.[ \t]*+"),
    "forward": re.compile(rf"(?P<body>{_BODY})->(?P<head>{_ATOM})\.?[ \t]*+"),
    "backward": re.compile(rf"(?P<head>{_ATOM})<=(?P<body>{_BODY})\.?[ \t]*+"),
}
_FIND_ATOMS = re.compile(_PLAIN_ATOM).findall


def read_plain(form: Form, text: str, source: Source) -> list[Clause]:
    """Read a line of rules of word characters alone without the grammar; return none of them for any other line."""
    clauses: list[Clause] = []
    position = 0
    while position < len(text) and (position == 0 or form == "rules"):
        match = _PLAIN[form].match(text, position)
        if match is None:
            return []
        head, *body = [
            RawAtom(predicate, RawTerm(first, False), RawTerm(second, False), False, source.line)
            for predicate, first, second in _FIND_ATOMS(match["head"]) + _FIND_ATOMS(match["body"])
        ]
        clauses.append(Clause(source.line, head, body))
        position = match.end()
    return clauses if position == len(text) else []


def _parse_one(form: Literal["forward", "backward"], text: str, source: Source) -> Clause:
    plain = read_plain(form, text, source)
    clause = plain[0] if plain else parse_clause(form, text, source)
    return clause


_LETTER_AND_DIGITS = re.compile(r"[a-z][0-9]*")
_COLON_FIELD = re.compile(r"([^:('\"]*):(?!//)")


def _parse_arrow(lines: _Lines, context: _Context) -> Iterator[_RawRule]:
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
        is_known = term in context.constants
        if term[0].isupper():
            return len(term) == 1 or not is_known
        if is_known:
            return False
        # Each rule is built before the next line is read, so this is the line of the term.
        raise line_error(
            source,
            "a variable (X, ?x, x1) or a constant of the graph",
            show(term),
            suggest(term, context.constants)
            or f"write ?{term} for a variable, '{term}' in quotes for a constant that the graph lacks",
        )

    for number, text in lines:
        if _is_comment(text):
            continue
        source = Source(context.file, number)
        name, confidence, rest = _split_prefix(text, source, context)
        clause = _parse_one("forward", rest, source)
        if clause.weight is not None and confidence is not None:
            fix = "leave one of them out"
            raise line_error(source, "one confidence", f"two, {confidence:g} and {clause.weight:g}", fix)
        confidence = clause.weight if confidence is None else confidence
        yield _RawRule(source, clause.clause_head, clause.body, is_variable, name, confidence)


def _split_prefix(text: str, source: Source, context: _Context) -> tuple[str, float | None, str]:
    """Split a line into name, confidence and clause. A predicate may hold colons itself: in doubt the graph decides."""
    text = text.strip(" \t")
    if not (first := _COLON_FIELD.match(text)) or _begins_with(text, context.predicates):
        return "", None, text
    name, after_name = first[1].strip(), text[first.end() :]
    if second := _COLON_FIELD.match(after_name):
        field, after_field = second[1].strip(), after_name[second.end() :]
        if not field and not name.isdigit() and (weight := _parse_number(name)) is not None:
            return "", weight, after_field  # As in ProbLog, 0.9::b(X,Y) -> h(X,Y).
        if not field or _parse_number(field) is not None:
            return name, _parse_number(field), after_field
    if _parse_number(name) is not None:
        return "", _parse_number(name), after_name
    if second and not _begins_with(after_name, context.predicates):
        _read_confidence(second[1], source)
    return name, None, after_name


def _begins_with(clause: str, predicates: Collection[str]) -> bool:
    predicate, parenthesis, _ = clause.partition("(")
    return bool(parenthesis) and predicate.strip(" \t") in predicates


def _parse_prolog(lines: _Lines, context: _Context) -> Iterator[_RawRule | str]:
    """Parse Prolog rules: `h(X,Y) :- b1(X,Z), b2(Z,Y).`, several on a line or one on several lines.

    A bare argument that begins with an upper-case letter or `_` is a variable, and each `_` a different one; everything else
    is a constant. The dot at the end of a line may be missing. A weight (`0.9::h(X,Y) :- ...`, `0.9 h(X,Y) :- ...`) becomes the
    rule's confidence; declarations such as `:- dynamic b1/2.` are skipped; both with a warning. UserError at the first clause
    that is not a rule.
    """
    weighted: list[int] = []
    directives: list[Directive] = []
    index = 0
    while index < len(lines):
        number, text = lines[index]
        found: list[Clause | Directive] = []
        if plain := read_plain("rules", text, Source(context.file, number)):
            found += plain
            index += 1
        elif _is_comment(text):
            index += 1
        else:
            found, index = parse_clauses("rules", lines, context.file, index)
        for clause in found:
            if isinstance(clause, Directive):
                directives.append(clause)
                continue
            source = Source(context.file, clause.line)
            if clause.weight is not None:
                weighted.append(clause.line)
            yield _RawRule(source, clause.clause_head, clause.body, _is_prolog_variable, "", clause.weight)
    yield from describe_ignored(context.file, weighted, directives)


def _is_prolog_variable(term: str) -> bool:
    return term[0].isupper() or term[0] == "_"


_ANYBURL_VARIABLE = re.compile(r"[A-Z][0-9]*")
_ITSELF = RawTerm("me_myself_i", False)
_ANYBURL_FORMAT = "predicted<TAB>support<TAB>confidence<TAB>h(X,Y) <= b1(X,A), b2(A,Y)"


def _parse_anyburl(lines: _Lines, context: _Context) -> Iterator[_RawRule]:
    """Parse AnyBURL rules: `predicted<TAB>support<TAB>confidence<TAB>h(X,Y) <= b1(X,A), b2(A,Y)`.

    A bare argument is a variable if it is one upper-case letter A to Z, alone or followed by digits; else it is a constant.
    UserError at the first line that is not an AnyBURL rule.
    """
    for number, text in lines:
        if is_skipped(text):
            continue
        source, fields = Source(context.file, number), text.split("\t")
        if len(fields) != 4:
            found = f"{len(fields)} field{'s' * (len(fields) != 1)} in {show(text)}"
            raise line_error(source, _ANYBURL_FORMAT, found, "separate four fields by single tabs")
        clause = _parse_one("backward", fields[3], source)
        for atom in (clause.clause_head, *clause.body):
            if _ITSELF in (atom.first, atom.second):
                fix = "write the variable of the atom twice: AnyBURL means by this name the atom's other argument"
                raise line_error(source, _A_TERM, show(_ITSELF.text), fix)
        confidence = _read_confidence(fields[2], source)
        yield _RawRule(source, clause.clause_head, clause.body, _is_anyburl_variable, confidence=confidence)


def _is_anyburl_variable(term: str) -> bool:
    return bool(_ANYBURL_VARIABLE.fullmatch(term))


_AMIE_ARROW = re.compile(r"(?:^| )=>(?: |$)")

_COMPARISON = re.compile(r"[!=<>\\≠≤≥]+")
_SPACES = re.compile(r" {2,}")
_AMIE_ATOMS = "atoms of three names, such as ?a  rel  ?b"
_AMIE_FORMAT = "?a  rel  ?b   ?b  rel2  ?c   => ?a  head  ?c"


def _parse_amie(lines: _Lines, context: _Context) -> Iterator[_RawRule]:
    """Parse AMIE rules: `?a  rel  ?b   ?b  rel2  ?c   => ?a  head  ?c`, then the metrics, separated by tabs.

    A name that begins with `?` is a variable, any other a constant. Atoms are separated by two or more spaces, so that
    names may hold single ones; if a rule has none, single spaces separate. The confidence is the column `Std Confidence` of
    the header; without a header the second metric, or the only one. Lines with neither `=>` nor `?`, which AMIE writes before
    and after the rules, are skipped. UserError at the first line with `?` or `=>` that is not an AMIE rule.
    """
    header: list[str] = []
    for number, text in lines:
        source = Source(context.file, number)
        if is_skipped(text):
            continue
        if "?" not in text and not _AMIE_ARROW.search(text):
            header = header or [column.strip().lower() for column in text.split("\t") if "\t" in text]
            continue
        clause, *metrics = text.split("\t")
        sides = _AMIE_ARROW.split(clause)
        if len(sides) != 2:
            raise line_error(source, _AMIE_FORMAT, show(clause), f"write {_AMIE_FORMAT}")
        if not sides[0].strip(" "):
            raise _empty_body(source)
        body, clause_heads = (_parse_amie_atoms(side.strip(" "), source, context) for side in sides)
        if len(clause_heads) != 1:
            found = f"{len(clause_heads)} in {show(sides[1].strip(' '))}"
            raise line_error(source, "one atom after '=>'", found, f"write {_AMIE_FORMAT}")
        confidence = _pick_confidence(metrics, header, source)
        yield _RawRule(source, clause_heads[0], body, lambda _: True, confidence=confidence)


def _parse_amie_atoms(text: str, source: Source, context: _Context) -> list[RawAtom]:
    names = _SPACES.split(text)
    if len(names) % 3 or any(name.startswith("?") and " " in name for name in names):
        names = [name for name in text.split(" ") if name]
    elif mixed := next((name for name in names if " ?" in name), ""):
        raise line_error(source, _AMIE_ATOMS, f"the name {show(mixed)}", f"write {_AMIE_FORMAT}")
    if not names or len(names) % 3 or any(name.startswith("?") for name in names[1::3]):
        found = f"{len(names)} names in {show(text)}"
        raise line_error(source, _AMIE_ATOMS, found, f"write {_AMIE_FORMAT}")
    for predicate in names[1::3]:
        if _COMPARISON.fullmatch(predicate) and predicate not in context.predicates:
            fix = "leave the condition out: a rule consists of atoms"
            raise line_error(source, "a relation", f"the condition {show(predicate)}", fix)
    terms = [RawTerm(name, not name.startswith("?")) for name in names]
    return [RawAtom(names[i + 1], terms[i], terms[i + 2], is_quoted=True) for i in range(0, len(names), 3)]


def _pick_confidence(metrics: Sequence[str], header: Sequence[str], source: Source) -> float | None:
    if "std confidence" in header:
        column = header.index("std confidence") - 1
    else:
        column = min(1, len(metrics) - 1)
    if not 0 <= column < len(metrics):
        return None
    return _read_confidence(metrics[column].replace(",", "."), source)


_Parser: TypeAlias = Callable[[_Lines, _Context], Iterator[_RawRule | str]]

_SIGNS: Final[tuple[tuple[re.Pattern[str], _Parser], ...]] = (
    (re.compile(r"^[^\t]*\t[^\t]*\t[^\t]*\t.*<="), _parse_anyburl),
    (_AMIE_ARROW, _parse_amie),
    (re.compile(r"(?:^|\)|\*/)\s*:-"), _parse_prolog),
    (re.compile(r"->"), _parse_arrow),
)
