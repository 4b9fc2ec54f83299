"""Read triples in the format that the file has: `relation(head,tail).`, a table, or N-Triples.

The first line that is neither blank nor a comment determines the format of the whole file. Every argument is a constant,
whatever its case. Comments are lines that begin with `%` or `#`.

In functional form, as in Prolog, a fact ends at its dot or with its line, so that a line may hold several. The weight of a fact
(`0.9::r(a,b).`, `0.9 r(a,b).`) is left out, and declarations (`:- dynamic r/2.`) are skipped, each with a warning. Rules,
negation and other directives are errors.
"""

import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import islice
from typing import Final

from kgverify.errors import UserError
from kgverify.graphs.formats import ntriples
from kgverify.graphs.formats.plain import parse_plain_facts
from kgverify.graphs.formats.reading import GivenColumns, Triples
from kgverify.graphs.formats.tables import NUM_SAMPLED_LINES, find_delimiter, parse_plain, parse_table
from kgverify.graphs.grammar import (
    BLANKS,
    NUMBER,
    RANGE,
    Clause,
    Directive,
    RawAtom,
    RawTerm,
    describe_ignored,
    parse_clauses,
)
from kgverify.graphs.text_file import is_skipped, line_error, show, split_text
from kgverify.program.atoms import NamedAtom
from kgverify.program.program import Source

TABULAR: Final = "head<TAB>relation<TAB>tail"
FUNCTIONAL: Final = "relation(head,tail)."

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
    texts = split_text(b"".join(islice(BytesIO(content), NUM_SAMPLED_LINES)).decode())
    if not any(_list_content(texts)):
        texts = split_text(content.decode())
    line, first = next(_list_content(texts), (0, ""))
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
    texts = split_text(content.decode())
    return parse_table(texts, delimiter, file, given) if delimiter else parse_facts(list(enumerate(texts, 1)), file)


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


_BARE = r"(?![\[{])[^ \t()'\",\\;]++(?>(?: ++[^ \t()'\",\\;]++)*)"
_IN_QUOTES = r"'[^'\\]++'(?!')|\"[^\"\\]++\"(?!\")"
_WORD = r"(?>(?:[^ \t()'\",\\:<=>]++|:(?![-:]))+)"
_PREDICATE = rf"(?!(?:not|Not|NOT|naf)[ \t]|\?-|[.%#~!¬;-]|{NUMBER}[ \t]){_WORD}(?>(?: ++{_WORD})*)"
_ARGUMENTS = r"[ \t]*+\([ \t]*+({0})[ \t]*+,[ \t]*+({0})[ \t]*+\)[ \t]*+"
# What most lines are, and most facts of other lines; the grammar reads them in the same way, only slower. Tests compare both.
PLAIN: Final = re.compile(rf"[ \t]*+({_PREDICATE}){_ARGUMENTS.format(_BARE)}\.?[ \t]*+")
SIMPLE: Final = re.compile(
    rf"[ \t]*+(?:(0?\.[0-9]++|[01](?:\.0)?)[ \t]*+::[ \t]*+)?({_PREDICATE}|{_IN_QUOTES})"
    rf"{_ARGUMENTS.format(f'{_BARE}|{_IN_QUOTES}')}(?:\.[ \t]*+|\Z)"
)

_RANGE: Final = re.compile(RANGE)
_NO_NAME: Final = re.compile(r"[a-z](?:\w*[^\W_])?\(|[\[{]|[^;]*;")
"""Functions, lists, sets and alternatives, at the beginning of an argument without quotes."""


def parse_facts(lines: Sequence[tuple[int, str]], file: str) -> Triples:
    """Parse the facts of numbered lines. UserError, with `file` and line, at the first that is not a fact."""
    atoms: list[NamedAtom] = []
    numbers: list[int] = []
    ignored: list[Clause | Directive] = []
    match_plain = PLAIN.fullmatch
    has_comments = any("/*" in text for _, text in lines)
    end = 0
    for index, (number, text) in enumerate(lines):
        if index < end:
            continue
        has_comment = has_comments and "/*" in text
        if (match := match_plain(text)) and not has_comment and ".." not in text:
            atoms.append(NamedAtom(*match.groups()))
            numbers.append(number)
        elif text.strip(BLANKS) and not text.lstrip(BLANKS).startswith(("%", "#")):
            if not any(sign in text for sign in ("(", ":-", "?-", "/*")):
                found, fix = show(text), "write one triple a line, in the same format for the whole file"
                raise line_error(Source(file, number), f"{TABULAR} or {FUNCTIONAL}", found, fix)
            clauses, position = ([], 0) if has_comment else read_simple(number, text)
            if position < len(text):
                others, end = parse_clauses("facts", lines, file, index, position)
                clauses += others
            for clause in clauses:
                if isinstance(clause, Clause):
                    atoms.append(_build_fact(clause, file))
                    numbers.append(clause.line)
                if isinstance(clause, Directive) or clause.weight is not None:
                    ignored.append(clause)
    return Triples(tuple(atoms), tuple(numbers), tuple(describe_ignored(file, ignored)))


def read_simple(number: int, text: str) -> tuple[list[Clause | Directive], int]:
    """Read the facts at the beginning of a line whose names hold no escapes; return them and the position after them."""
    clauses: list[Clause | Directive] = []
    position = 0
    while position < len(text):
        if (match := SIMPLE.match(text, position)) is None:
            break
        weight, *names = match.groups()
        predicate, first, second = (
            RawTerm(name[1:-1], True) if name[0] in "'\"" else RawTerm(name, False) for name in names
        )
        atom = RawAtom(predicate.text, first, second, predicate.is_quoted, number)
        clauses.append(Clause(number, atom, (), float(weight) if weight else None))
        position = match.end()
    return clauses, position


def is_facts(line: str) -> bool:
    """Return whether a line can be read as one or more whole facts; its tabs then stand between names, and not in them."""
    if PLAIN.fullmatch(line):
        return True
    _, position = read_simple(1, line)
    try:
        return "(" in line and bool(position == len(line) or parse_clauses("facts", [(1, line)], "", 0, position)[0])
    except UserError:
        return False


def _build_fact(clause: Clause, file: str) -> NamedAtom:
    predicate, first, second, is_quoted, _ = clause.clause_head
    source = Source(file, clause.line)
    if clause.weight is not None and clause.weight <= 0:
        raise line_error(source, "a triple that holds", f"the weight {clause.weight:g}", "remove such triples")
    if not is_quoted and re.match("-.", predicate):
        fix = "remove negated facts; quote the predicate if this is its name"
        raise line_error(source, "a predicate", f"the negation {show(predicate)}", fix)
    for term in (first, second):
        if term.is_quoted:
            continue
        if "," in term.text:
            found, fix = f"the compound term {show(term.text)}", "quote a name that contains a comma"
            raise line_error(source, "a name", found, fix)
        if _RANGE.match(term.text):
            fix = "write one fact for each number of the range; quote the name if it is a constant"
            raise line_error(source, "a constant", show(term.text), fix)
        if _NO_NAME.match(term.text):
            fix = "quote the name if it is a constant; facts have neither functions, lists nor alternatives"
            raise line_error(source, "a constant", show(term.text), fix)
    return NamedAtom(predicate, first.text, second.text)
