"""Read rules in the arrow, Prolog, AnyBURL and AMIE formats, file by file.

The first line that contains the sign of a format (`->`, `:-`, `<=`, `=>`) determines the format of the whole file. Comments
are lines that begin with `%` or `#` and contain no tab, and text between `/*` and `*/`. Except in AMIE's format, `%` or `#`
after a rule begins a comment as well. Negation, disjunction, conditions, lists and functions are errors: a rule is a definite
clause without functions.

The format decides which names are variables. A variable that is also a constant of the graph has two meanings, and is an
error unless the user chooses one.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from kgverify.errors import UserError, count_of, suggest
from kgverify.graphs.formats.reading import AS_WRITTEN, Reading, is_skipped, line_error, show, split_lines
from kgverify.graphs.grammar import BLANKS, NO_BODY, NUMBER, RANGE, ClauseReader, RawAtom, RawTerm
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.program import NamedRule, Source

_Lines: TypeAlias = Sequence[tuple[int, str]]


class Rules(NamedTuple):
    """The rules of a file, in order, and warnings about what was left out."""

    rules: tuple[NamedRule, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Context:
    """The file being read, the names in the triples and domains of the graph, and notes taken while reading.

    has_ids: whether the triples are written in ids, which dictionaries name
    titles:  the fields of the title row
    widths:  the numbers of fields of the rules
    notes:   the names or rules that were read differently from what the format says, or left out, by kind
    warnings: about lines that were skipped
    """

    file: str
    constants: Collection[str]
    predicates: Collection[str]
    reading: Reading
    has_ids: bool = False
    titles: list[str] = field(default_factory=list)
    widths: set[int] = field(default_factory=set)
    notes: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    warnings: list[str] = field(default_factory=list)


class _RawRule(NamedTuple):
    """A rule as written; `is_variable` decides which bare names are variables."""

    source: Source
    clause_head: RawAtom
    body: Sequence[RawAtom]
    is_variable: Callable[[str], object]
    name: str = ""
    confidence: float | None = None
    counts: tuple[int, int] | None = None


def parse_rules(
    text: str,
    file: str,
    *,
    constants: Collection[str] = frozenset(),
    predicates: Collection[str] = frozenset(),
    reading: Reading = AS_WRITTEN,
    has_ids: bool = False,
) -> Rules:
    """Parse the rules of a text, in order, each with `file` and its line.

    Args:
        text: The rules.
        file: The name of the file.
        constants: The constants of the graph, which no variable may be.
        predicates: The predicates of the graph.
        reading: Whether rules that cannot be used are left out, and the meaning of a variable that is a constant.
        has_ids: Whether the triples are written in ids: numbers in rules may then be ids.

    Raises:
        UserError: With file and line, at the first line that is not a rule of the file's format.
    """
    context = _Context(file, constants, predicates, reading, has_ids)
    lines = split_lines(text)
    uncommented = list(_drop_comments(lines, file)) if "/*" in text else lines
    parse = _find_parser(lines, uncommented, context)
    rules: list[NamedRule] = []
    unusable: list[str] = []
    # AMIE has no quotes, so any name may begin like a comment.
    for item in () if parse is None else parse(lines if parse is _AMIE else uncommented, context):
        try:
            if isinstance(item, UserError):
                raise item
            rules.append(_build_rule(item, context))
        except UserError as error:
            if not reading.skip_rules:
                fix = f"{error.fix}; or leave such rules out: --graph skip_rules=true"
                raise UserError(error.message, where=error.where, fix=fix) from None
            unusable.append(f"{error.where}: left out: {error.message}")
    warnings = context.warnings
    warnings += [f"{file}: {kind}: {len(set(each)):,}, such as {each[0]!r}" for kind, each in context.notes.items()]
    if unusable:
        left_out = f"left out {count_of(len(unusable), 'rule')}, and kept {len(rules):,}"
        warnings += [f"{file}: --graph skip_rules=true {left_out}", *unusable[:_MAX_LISTED]]
        warnings += [f"{file}: and {num:,} more" for num in (len(unusable) - _MAX_LISTED,) if num > 0]
    return Rules(tuple(rules), tuple(warnings if rules else [*warnings, f"{file}: no rule in it"]))


def _find_parser(lines: _Lines, uncommented: _Lines, context: _Context) -> "_Parser | None":
    """Return the parser for the format of the first line with a sign; None for a file without rules.

    UserError for a template, for a comment that may be a rule, and for another format.
    """
    _check_comments(uncommented, context)
    content = [(number, line) for number, line in uncommented if not _is_comment(line)]
    # Any name in an AMIE file may begin like a comment.
    content = content or [(number, line) for number, line in lines if not is_skipped(line) and _AMIE_ARROW.search(line)]
    if not content:
        return None
    number, line = content[0]
    if _PATHS.match(line) or _IDS.fullmatch(line):
        found = f"{show(line)}, a path of relations or of their ids, as RNNLogic, RulE, NCRL and Neural-LP write rules"
        fix = "write each rule with names, as in b1(X,Z), b2(Z,Y) -> h(X,Y), and the inverse of a relation as b(Y,X)"
        raise line_error(Source(context.file, number), "a rule with atoms", found, fix)
    for texts in ([_QUOTED.sub("q", line) for _, line in content], [line for _, line in content]):
        if parse := next((parse for text in texts for sign, parse in _SIGNS if sign.search(text)), None):
            return parse
    expected = "a rule in the arrow, Prolog, AnyBURL or AMIE format"
    raise line_error(Source(context.file, number), expected, show(line), "write b1(X,Z), b2(Z,Y) -> h(X,Y)")


_MAX_LISTED: Final = 20
# `0.98 (0.2)  uncle <-- brother, father`, and the ids of a head and a body with a score: `12 4 30 0.98`.
_PATHS = re.compile(r".*<--")
_IDS = re.compile(rf"[ \t]*{NUMBER}(?:[ \t,]+{NUMBER})+[ \t]*")
# NTP's templates, which begin like a comment.
_TEMPLATE = re.compile(r"[ \t]*+#[0-9]++\(")
_QUOTED = re.compile(r"""(?<!\w)(?:'[^'\n]*+'|"[^"\n]*+")""")


def _check_comments(lines: _Lines, context: _Context) -> None:
    """Raise UserError for a template, which begins like a comment, and for a comment that may be a rule."""
    for number, line in lines:
        if _TEMPLATE.match(line):
            fix = "replace each #1, #2, ... by a predicate"
            raise line_error(Source(context.file, number), "a rule", f"the template {show(line)}", fix)
        if _is_comment(line) and _begins_with_name(line.strip(BLANKS), context.constants, context.predicates):
            fix = "write a blank after the sign of a comment; quote the predicate of a rule; write a tab and metrics after AMIE"
            found = f"{show(line)}, which may be either"
            raise line_error(Source(context.file, number), "a rule or a comment", found, fix)


def _is_comment(line: str) -> bool:
    return not line.strip() or line.lstrip(BLANKS).startswith(("%", "#"))


def _begins_with_name(line: str, constants: Collection[str], predicates: Collection[str]) -> bool:
    """Return whether a line begins like an atom with a predicate of the graph, or an AMIE rule with one of its constants."""
    is_amie = "\t" not in line and _AMIE_ARROW.search(line)
    return _begins_with(line, predicates) or bool(
        is_amie and (_SPACES.split(line)[0] in constants or line.split(" ")[0] in constants)
    )


def _drop_comments(lines: _Lines, file: str) -> Iterator[tuple[int, str]]:
    """Blank out `/* */` comments that begin at the start of a line."""
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


_Item: TypeAlias = _RawRule | UserError
"""A rule as written, or the error about it."""


def _line_by_line(parse_line: "Callable[[str, Source, _Context], Iterator[_Item]]") -> "_Parser":
    """Return a parser for files with one rule per line, which continues after a line that is not a rule."""

    def parse(lines: _Lines, context: _Context) -> Iterator[_Item]:
        for number, text in lines:
            try:
                yield from () if is_skipped(text) else parse_line(text, Source(context.file, number), context)
            except UserError as error:
                yield error

    return parse


def _build_rule(raw: _RawRule, context: _Context) -> NamedRule:
    """Build a rule; each bare `_` that is a variable is a different variable.

    UserError for a bare name with two meanings, and for a bare text that is not a name in Prolog, unless the graph has it.
    """
    atoms = (raw.clause_head, *raw.body)
    written = {term.text for atom in atoms for term in (atom.first, atom.second)}
    fresh = (name for name in map("_{}".format, count(1)) if name not in written)
    settled: list[str] = []

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
        is_variable = "(" not in text and bool(raw.is_variable(text))
        if is_variable and is_known:
            is_variable = _settle(text, raw.source, context)
            settled.extend([text] * (not is_variable))
        if not (_VARIABLE.fullmatch(text) if is_variable else is_known or not _NO_NAME.search(text)):
            fix = "quote the name if it is a constant; rules have neither lists nor arithmetic"
            raise line_error(raw.source, _A_TERM, show(text), suggest(text, context.constants) or fix)
        if not is_variable:
            _check_id(text, context.constants, raw.source, context)
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
        _check_id(atom.predicate, context.predicates, raw.source, context)
    head, *body = [NamedAtom(atom.predicate, read(atom.first), read(atom.second)) for atom in atoms]
    if settled:
        terms = [term for atom in (head, *body) for term in (atom.first, atom.second)]
        _note_mixed(settled, dict.fromkeys(term.name for term in terms if isinstance(term, Variable)), context)
    if len(body) > _MAX_BODY:
        expected = f"a body of at most {_MAX_BODY:,} atoms, as traces count them"
        raise line_error(raw.source, expected, f"{len(body):,}", "divide the rule with a predicate of its own")
    return NamedRule(head, tuple(body), raw.name, raw.confidence, raw.source, raw.counts)


def _settle(name: str, source: Source, context: _Context) -> bool:
    """Return whether to read a name with two meanings as a variable. UserError if the user did not choose."""
    if context.reading.rule_variables is None:
        fix = "give --graph rule_variables=graph to read such names as constants, or rule_variables=format as variables"
        found = f"{show(name)}, which is a variable in this format and a constant of the graph"
        raise line_error(source, "a name with one meaning", found, fix)
    is_variable = context.reading.rule_variables == "format"
    kind = f"variables that are constants of the graph, read as {'variables' if is_variable else 'constants'}"
    context.notes[f"--graph rule_variables={context.reading.rule_variables}: {kind}"].append(name)
    return is_variable


def _note_mixed(constants: Collection[str], variables: Iterable[str], context: _Context) -> None:
    """Note a rule's variables that look like constants, if other variables of the format were read as constants in it."""
    for name in variables:
        is_like = any(name[0] == other[0] for other in constants)
        if len(name.lstrip("?_")) > 1 and (is_like or not _LETTER_AND_DIGITS.fullmatch(name)):
            kind = "--graph rule_variables=graph: names that the graph lacks, read as variables beside such constants"
            context.notes[kind].append(name)


def _check_id(name: str, known: Collection[str], source: Source, context: _Context) -> None:
    """Raise UserError for a number that may be an id of the graph's dictionaries."""
    if context.has_ids and name.isdecimal() and name not in known:
        fix = "write its name as the dictionaries beside the triples have it"
        raise line_error(source, "a name of the graph", f"{show(name)}, which may be an id", fix)


_MAX_BODY: Final = (1 << 16) - 2
_A_TERM = "a constant or a variable"
_VARIABLE = re.compile(r"\??\w+")
_NO_NAME = re.compile(rf"^\?|[\[\]{{}}|+*=<>\\^;!`]|{RANGE}")
_NO_PREDICATE = re.compile(rf"[ \t;|&^!=<>\\\[\]{{}}]|^-.|^:|^[^:]*:[ \t]*{NUMBER}[ \t]*:")


def _parse_number(text: str) -> float | None:
    """Parse a finite decimal number; return None for any other text."""
    number = float(text) if re.fullmatch(NUMBER, text) else math.inf
    return number if math.isfinite(number) else None


def _read_confidence(text: str, source: Source) -> float:
    """Parse the confidence on a rule's line. UserError if it is not a number."""
    number = _parse_number(text.strip())
    if number is None:
        raise line_error(source, "a number as confidence", show(text.strip()), "write a number such as 0.8")
    return number


_LETTER_AND_DIGITS = re.compile(r"[A-Za-z][0-9]*")
_COLON_FIELD = re.compile(r"([^:('\"]*):(?!//)")


def _parse_arrow(text: str, source: Source, context: _Context) -> Iterator[_Item]:
    """Parse an arrow rule: `name:confidence:b1(X,Z), b2(Z,Y) -> h(X,Y)`.

    Name and confidence may be missing, each with its colon. A bare argument is

    - a variable if it begins with `?` or `_`, or is a letter a to z or A to Z, alone or followed by digits;
    - a constant if the graph has it; anything else is an error, since a misspelt constant would silently prove nothing.

    A quoted name is a constant. UserError for a line that is not an arrow rule.
    """
    if _is_comment(text):
        return

    def is_variable(term: str) -> bool:
        if term.startswith(("?", "_")) or _LETTER_AND_DIGITS.fullmatch(term):
            return True
        if term[0].isupper() and context.reading.rule_variables == "format":
            return True
        if term in context.constants:
            return False
        raise line_error(
            source,
            "a variable (X, ?x, x1) or a constant of the graph",
            show(term),
            suggest(term, context.constants)
            or f"write ?{term} for a variable, '{term}' in quotes for a constant that the graph lacks",
        )

    name, confidence, rest = _split_prefix(text, source, context)
    clause = ClauseReader("forward", rest, source).read_clause()
    if clause.weight is not None and confidence is not None:
        fix = "leave one of them out"
        raise line_error(source, "one confidence", f"two, {confidence:g} and {clause.weight:g}", fix)
    confidence = clause.weight if confidence is None else confidence
    yield _RawRule(source, clause.clause_head, clause.body, is_variable, name, confidence)


def _split_prefix(text: str, source: Source, context: _Context) -> tuple[str, float | None, str]:
    """Split a line into name, confidence and clause. A predicate may contain colons; in doubt the graph decides."""
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


def _parse_prolog(lines: _Lines, context: _Context) -> Iterator[_Item]:
    """Parse Prolog rules: `h(X,Y) :- b1(X,Z), b2(Z,Y).`, which may share a line or span several lines.

    A bare argument that begins with an upper-case letter or `_` is a variable, and each bare `_` is a different variable.
    Everything else is a constant. The dot at the end of a line may be missing. A weight (`0.9::h(X,Y) :- ...`,
    `0.9 h(X,Y) :- ...`) becomes the rule's confidence; declarations such as `:- dynamic b1/2.` are skipped. Both cause a
    warning. UserError at the first clause that is not a rule.
    """
    reader = ClauseReader("rules", "\n".join(text for _, text in lines), Source(context.file, 1))
    while True:
        try:
            if not reader.skip_to_clause():
                break
            clause = reader.read_clause()
        except UserError as error:
            begin, end = reader.leave_out()
            is_long = context.reading.skip_rules and end > begin
            rest = f"; left out up to line {end}, where a clause ends" if is_long else ""
            yield UserError(error.message + rest, where=error.where, fix=error.fix)
        else:
            source = Source(context.file, clause.line)
            yield _RawRule(source, clause.clause_head, clause.body, _is_prolog_variable, "", clause.weight)
    context.warnings.extend(reader.describe_ignored())


def _is_prolog_variable(term: str) -> bool:
    return term[0].isupper() or term[0] == "_"


_is_anyburl_variable = re.compile(r"[A-Z]").fullmatch
_is_count = re.compile(r"[0-9]{1,18}").fullmatch
_COMMA_COLUMNS = re.compile(r"[0-9][0-9.]*[ ]*[,;]")
_ITSELF = RawTerm("me_myself_i", False)
_ANYBURL_FORMAT = "predicted<TAB>support<TAB>confidence<TAB>h(X,Y) <= b1(X,A), b2(A,Y)"


def _parse_anyburl(text: str, source: Source, context: _Context) -> Iterator[_Item]:
    """Parse an AnyBURL rule: `predicted<TAB>support<TAB>confidence<TAB>h(X,Y) <= b1(X,A), b2(A,Y)`, or without the numbers.

    A bare argument is a variable if it is a single upper-case letter A to Z, else a constant. `me_myself_i` stands for the
    other argument of its atom. A title row may name other columns. UserError for a line that is not an AnyBURL rule.
    """
    fields = text.split("\t")
    rules = [field for field in fields if "<=" in field]
    if not rules and "(" not in text and (fields == context.titles or not context.widths | set(context.titles)):
        context.titles[:] = fields
        context.warnings.append(f"{source}: the title row {show(text)} skipped")
        return
    if _COMMA_COLUMNS.match(text):
        raise line_error(source, _ANYBURL_FORMAT, show(text), "separate the columns by tabs rather than by commas")
    context.widths.add(len(fields))
    titles = context.titles or [""] * (4 if len(fields) == 4 else 1)
    column = next((i for i, title in enumerate(titles) if "conf" in title.lower()), 2 if not context.titles else -1)
    if len(rules) != 1 or len(fields) != len(titles) or len(context.widths) > 1:
        fix = "separate four fields by single tabs; or name other columns, among them the confidence, in a title row"
        raise line_error(source, _ANYBURL_FORMAT, f"{count_of(len(fields), 'field')} in {show(text)}", fix)
    if rules[0].rstrip(" .").endswith("<="):
        context.notes["rules without a body left out, which AnyBURL applies to every entity"].append(rules[0])
        return
    clause = ClauseReader("backward", rules[0], source).read_clause()
    head, *body = (_read_anyburl_atom(atom, source, context) for atom in (clause.clause_head, *clause.body))
    confidence = _read_confidence(fields[column], source) if 0 <= column < len(fields) else None
    numbers = [fields[i].strip() for i in _find_counts(titles)]
    counts = (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 and all(map(_is_count, numbers)) else None
    yield _RawRule(source, head, body, _is_anyburl_variable, confidence=confidence, counts=counts)


def _find_counts(titles: Sequence[str]) -> Sequence[int]:
    """Return the columns of the predictions and of the right ones; nothing if a title row names other columns."""
    if titles == [""] * 4:
        return 0, 1
    lower = [title.lower() for title in titles]
    return [lower.index(name) for name in ("predicted", "support") if name in lower]


def _read_anyburl_atom(atom: RawAtom, source: Source, context: _Context) -> RawAtom:
    """Return an atom as AnyBURL means it. AnyBURL has no quotes, so quotes around a name of the graph belong to the name."""

    def keep_quotes(text: str, known: Collection[str]) -> str:
        return next((each for each in (f"'{text}'", f'"{text}"') if each in known), text)

    first, second = (
        term._replace(text=keep_quotes(term.text, context.constants)) if term.is_quoted else term
        for term in (atom.first, atom.second)
    )
    if _ITSELF in (first, second):
        if first == second or _ITSELF.text in context.constants:
            fix = "write the other argument of the atom twice; AnyBURL means it by this name"
            raise line_error(source, _A_TERM, show(_ITSELF.text), fix)
        first = second = second if first == _ITSELF else first
    predicate = keep_quotes(atom.predicate, context.predicates) if atom.is_quoted else atom.predicate
    return atom._replace(predicate=predicate, first=first, second=second)


_AMIE_ARROW = re.compile(r"(?:^| )=>(?: |$)")

_COMPARISON = re.compile(r"[!=<>\\≠≤≥]+")
_SPACES = re.compile(r" {2,}")
_AMIE_ATOMS = "atoms of three names, such as ?a  rel  ?b"
_COMMA_METRICS = re.compile(r"[,;][-+]?[0-9][-+0-9.eE]*(?:[,;]\?\w+)?$")
_NUMBER_FIELD = re.compile(rf"[,;]{NUMBER}[,;]")
_TABS_FIX = "separate the rule and its metrics by tabs, as AMIE writes them, rather than by commas"
_AMIE_FORMAT = "?a  rel  ?b   ?b  rel2  ?c   => ?a  head  ?c"


def _parse_amie(text: str, source: Source, context: _Context) -> Iterator[_Item]:
    """Parse an AMIE rule: `?a  rel  ?b   ?b  rel2  ?c   => ?a  head  ?c`, then the metrics, separated by tabs.

    A name that begins with `?` is a variable, any other a constant. Atoms are separated by two or more spaces, so that
    names may contain single spaces; in a rule without double spaces, single spaces separate. The confidence is in the
    column `Std Confidence` of the header; without a header, it is the second metric, or the only one. Lines with neither `=>`
    nor `?`, which AMIE writes before and after the rules, are skipped. A name that the graph has only with angle brackets, or
    only without, is read as that name. UserError for a line with `?` or `=>` that is not an AMIE rule.
    """
    if "?" not in text and not _AMIE_ARROW.search(text):
        context.titles[:] = context.titles or [title.strip().lower() for title in text.split("\t") if "\t" in text]
        return
    clause, *metrics = text.split("\t")
    sides = _AMIE_ARROW.split(clause)
    if len(sides) != 2:
        raise line_error(source, _AMIE_FORMAT, show(clause), f"write {_AMIE_FORMAT}")
    if not metrics and _COMMA_METRICS.search(clause) and clause.rsplit(" ", 1)[-1] not in context.constants:
        raise line_error(source, f"{_AMIE_FORMAT}, then metrics after tabs", show(clause), _TABS_FIX)
    if not sides[0].strip(" "):
        raise line_error(source, *NO_BODY)
    body, clause_heads = (_parse_amie_atoms(side.strip(" "), source, context) for side in sides)
    if len(clause_heads) != 1:
        found = f"{len(clause_heads)} in {show(sides[1].strip(' '))}"
        raise line_error(source, "one atom after '=>'", found, f"write {_AMIE_FORMAT}")
    is_named, column = "std confidence" in context.titles, min(1, len(metrics) - 1)
    column = context.titles.index("std confidence") - 1 if is_named else column
    confidence = _read_confidence(metrics[column].replace(",", "."), source) if 0 <= column < len(metrics) else None
    yield _RawRule(source, clause_heads[0], body, _is_amie_variable, confidence=confidence)


def _is_amie_variable(term: str) -> bool:
    return term.startswith("?")


def _parse_amie_atoms(text: str, source: Source, context: _Context) -> list[RawAtom]:
    names = _split_amie_names(text, source)
    known = (context.constants, context.predicates, context.constants) * (len(names) // 3)
    for name, others in zip(names, known, strict=True):
        if _NUMBER_FIELD.search(name) and name not in others:
            raise line_error(source, _AMIE_ATOMS, f"the name {show(name)}, which the graph lacks", _TABS_FIX)
    for predicate in names[1::3]:
        if _COMPARISON.fullmatch(predicate) and predicate not in context.predicates:
            fix = "leave the condition out: a rule consists of atoms"
            raise line_error(source, "a relation", f"the condition {show(predicate)}", fix)
    names = [_respell(name, others, context) for name, others in zip(names, known, strict=True)]
    terms = [RawTerm(name, not _is_amie_variable(name)) for name in names]
    return [RawAtom(names[i + 1], terms[i], terms[i + 2], is_quoted=True) for i in range(0, len(names), 3)]


def _split_amie_names(text: str, source: Source) -> list[str]:
    """Return the names of the atoms, three for each atom. UserError for any other text."""
    names = _SPACES.split(text)
    if len(names) % 3 or any(name.startswith("?") and " " in name for name in names):
        names = [name for name in text.split(" ") if name]
    elif mixed := next((name for name in names if " ?" in name), ""):
        raise line_error(source, _AMIE_ATOMS, f"the name {show(mixed)}", f"write {_AMIE_FORMAT}")
    if not names or len(names) % 3 or any(name.startswith("?") for name in names[1::3]):
        raise line_error(source, _AMIE_ATOMS, f"{len(names)} names in {show(text)}", f"write {_AMIE_FORMAT}")
    return names


def _respell(name: str, known: Collection[str], context: _Context) -> str:
    """Return a name as the graph has it: AMIE may write a name without the angle brackets of the triples."""
    other = name[1:-1] if name.startswith("<") and name.endswith(">") else f"<{name}>"
    if name in known or other not in known or _is_amie_variable(name):
        return name
    context.notes["names read with or without angle brackets, as the triples have them"].append(name)
    return other


_Parser: TypeAlias = Callable[[_Lines, _Context], Iterator[_Item]]
_AMIE: Final = _line_by_line(_parse_amie)
_ANYBURL: Final = _line_by_line(_parse_anyburl)

_SIGNS: Final[tuple[tuple[re.Pattern[str], _Parser], ...]] = (
    (re.compile(r"^[^\t]*\t[^\t]*\t[^\t]*\t.*<="), _ANYBURL),
    (_AMIE_ARROW, _AMIE),
    (re.compile(r"(?:^|\)|\*/)\s*:-"), _parse_prolog),
    (re.compile(r"->"), _line_by_line(_parse_arrow)),
    (re.compile(r"\)\s*<="), _ANYBURL),
)
