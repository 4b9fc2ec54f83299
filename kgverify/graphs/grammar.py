"""The grammar of atoms and clauses: facts, Prolog rules, and single rules with an arrow in either direction.

A name is quoted (`'a b'`, `"a, b"`) or bare. In quotes, a backslash before a quote or a backslash, and a doubled quote, stand
for the character itself. A bare argument ends at a comma or at the closing parenthesis; it may hold balanced parentheses. A
bare predicate ends at its parenthesis; it holds no operator (`:-`, `->`, `<=`, `=>`). Neither holds a tab, nor includes the
blanks around it. `%` and `#` begin a comment wherever no argument does; `/* */` surrounds one.

The parser is LALR(1) and no terminal repeats ambiguously, so that time and memory are linear in the text.
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

from kgverify.errors import count_of
from kgverify.graphs.text_file import line_error, show
from kgverify.program.program import Source

if TYPE_CHECKING:
    from lark import Lark, Token, UnexpectedInput

BLANKS: Final = " \t"
NUMBER: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"

RANGE: Final = r"^-?[0-9]+\.\.-?\w+$"
"""A range of numbers, as answer set programs write them: `1..3`."""

Form: TypeAlias = Literal["facts", "rules", "forward", "backward"]

_MAX_PARENTHESES = 8  # A name with more of them, one in another, needs quotes.


def _nest_parentheses() -> str:
    inner = r"[^()\t\n]*+"
    for _ in range(_MAX_PARENTHESES - 1):
        inner = rf"(?>(?:[^()\t\n]++|\({inner}\))*)"
    return rf"\({inner}\)"


_BLOCK = r"\/\*(?>(?:[^*]++|\*(?!\/))*)\*\/"
_LAYOUT = rf"(?>(?:[ \t]*+(?>(?:{_BLOCK}[ \t]*+)*)(?:[%#][^\n]*+)?\n)*)"

# Groups repeat in `(?>...)`, not possessively: Python 3.11.0 to 3.11.4 match such a group wrongly where it can backtrack.
# The lexer looks only for the terminals that the parser allows next; of these the one with the higher number wins.
_GRAMMAR = rf"""
facts: (_NL | fact (_END | _NL) | DIRECTIVE)*
fact: WEIGHT? atom
rules: (_NL | rule (_END | _NL) | DIRECTIVE)*
rule: WEIGHT? atom (_NECK (body | _EMPTY))?
forward: WEIGHT? body? _FORWARD atom _END?
backward: atom _BACKWARD (body | _EMPTY)? _END?
body: atom (_COMMA atom)*
atom: predicate _OPEN terms _CLOSE
terms: term | terms SEPARATOR term
predicate: PREDICATE | QUOTED | NEGATION
term: NAME | QUOTED

DIRECTIVE.3: /[:?]-(?>(?:'[^'\n]*+'|"[^"\n]*+"|[^'".]|\.(?![ \t\n%]))*)\./
WEIGHT.3: /{NUMBER}(?:[ \t]*+::|[ \t]++(?=[^ \t\n(]))/
NEGATION.3: /\\\+|(?:not|Not|NOT|naf)(?=[ \t]++[^ \t\n(])|[~!¬]/
PREDICATE.2: /(?![ \t\n()'",.%#\\;~!¬]|\/\*)(?>(?:[^(),\t\n:<=\/-]++|:(?!-)|-(?!>)|<(?!=)|=(?!>)|\/(?!\*))+)/
NAME.2: /(?![ \t'"]|\/\*)(?>(?:[^(),\t\n\/]++|\/(?!\*)|{_nest_parentheses()})+)/
QUOTED.3: /'(?>(?:''|\\.|[^'\\\n])*)'|"(?>(?:""|\\.|[^"\\\n])*)"/
_EMPTY.3: /\.(?=[ \t]*+(?:[%#\n]|\Z))/
_END: "."
_NECK: /:-{_LAYOUT}/
_FORWARD: "->"
_BACKWARD: "<="
_COMMA: /,{_LAYOUT}/
_OPEN: /\((?>(?:[ \t]*+\n)*)/
SEPARATOR: /,(?>(?:[ \t]*+\n)*)/
_CLOSE: ")"
_NL: /\n[ \t\n]*+(?!,|:-)/
_CONTINUED: /\n[ \t\n]*+(?=,|:-)/
_BLANKS: /[ \t]++/
_COMMENT: /[%#][^\n]*+/
_BLOCK: /{_BLOCK}/
%ignore _CONTINUED
%ignore _BLANKS
%ignore _COMMENT
%ignore _BLOCK
"""


NO_BODY: Final = (
    "at least one body atom",
    "an empty body",
    "move the atom to the facts if it has no variables, or give the rule a body",
)


class RawTerm(NamedTuple):
    """An argument as written; a quoted one is a constant."""

    text: str
    is_quoted: bool


class RawAtom(NamedTuple):
    """A predicate, quoted or bare, with its two arguments as written and its line."""

    predicate: str
    first: RawTerm
    second: RawTerm
    is_quoted: bool = False
    line: int = 0


class Clause(NamedTuple):
    """A fact, which has no body, or a rule, with the line where it begins."""

    line: int
    clause_head: RawAtom
    body: Sequence[RawAtom] = ()
    weight: float | None = None


class Directive(NamedTuple):
    """A Prolog directive that adds no clause, with its line."""

    line: int
    text: str


class _Refusal(Exception):
    """A text that the grammar recognises and kgverify does not support."""

    def __init__(self, line: int, expected: str, found: str, fix: str) -> None:
        super().__init__(expected)
        self.line = line
        self.reason = expected, found, fix


class _Incomplete(Exception):
    """A text that ends within a clause, a comment or a directive."""


class _Predicate(NamedTuple):
    name: str
    is_quoted: bool
    line: int


def parse_clause(form: Literal["forward", "backward"], text: str, source: Source) -> Clause:
    """Parse a line that is one rule: `body -> head` or `head <= body`. UserError if it is not."""
    (clause,) = _parse(form, text, source)
    assert isinstance(clause, Clause)
    return clause


def parse_clauses(
    form: Literal["facts", "rules"], lines: Sequence[tuple[int, str]], file: str, start: int, position: int = 0
) -> tuple[list[Clause | Directive], int]:
    """Parse the clauses that begin in line `start` of the numbered lines, at `position`; return them and the line after them.

    A clause ends at its dot or with its line. It continues in the next line after `:-`, `(` and `,`, and a rule if that line
    begins with `:-` or `,`. UserError at the first line that is not of this form.
    """
    size = 1
    while True:
        end = min(start + size, len(lines))
        while form == "rules" and end < len(lines) and _CONTINUES.match(lines[end][1]):
            end += 1
        text = "".join(f"{line}\n" for _, line in lines[start:end])[position:]
        try:
            return _parse(form, text, Source(file, lines[start][0]), is_whole=end == len(lines)), end
        except _Incomplete:
            size *= 2  # What is parsed again is then no more than what is parsed.


def describe_ignored(file: str, ignored: Sequence[Clause | Directive]) -> Iterator[str]:
    """Describe what proving leaves out, in one warning of each kind for a file: the weights of clauses, and directives."""
    weighted = [item.line for item in ignored if isinstance(item, Clause)]
    directives = [item for item in ignored if isinstance(item, Directive)]
    if weighted:
        number = count_of(len(weighted), "weight")
        yield f"{file}:{weighted[0]}: {number}, the first on this line; weights play no part in proving"
    if directives:
        number = count_of(len(directives), "directive")
        yield f"{file}:{directives[0].line}: skipped {number}, the first {show(directives[0].text)}"


_CONTINUES = re.compile(r"[ \t]*+(?:,|:-|$)")


def _parse(form: Form, text: str, source: Source, *, is_whole: bool = True) -> list[Clause | Directive]:
    """Parse a text that begins at `source`; `_Incomplete` if it ends too early and is not the whole text."""
    from lark.exceptions import UnexpectedInput

    try:
        parsed = _build_parser().parse(text, start=form)
        found = [parsed] if isinstance(parsed, Clause) else [_check_item(item) for item in parsed.children]
    except _Refusal as refusal:
        raise line_error(Source(source.file, source.line + refusal.line - 1), *refusal.reason) from None
    except UnexpectedInput as error:
        is_open = _is_end(error) or text.startswith(("/*", ":-", "?-"), error.pos_in_stream or 0)
        if is_open and not is_whole:
            raise _Incomplete from None
        line, *reason = _explain(error, form, text)
        raise line_error(Source(source.file, source.line + line - 1), *reason) from None
    return [item._replace(line=source.line + item.line - 1) for item in found]


@cache
def _build_parser() -> "Lark":
    # Plain files need no parser, and lark takes longer to import than most graphs to load.
    from lark import Lark, Transformer, v_args

    @v_args(inline=True)
    class Builder(Transformer[Any, Any]):
        """Build each part as soon as it is parsed; no method calls another part's, so that none recurses."""

        def predicate(self, token: "Token") -> _Predicate:
            return _Predicate(*_read_name(token), line=token.line or 1)

        def term(self, token: "Token") -> RawTerm:
            return RawTerm(*_read_name(token))

        def terms(self, *parts: Any) -> list[RawTerm]:
            if len(parts) == 1:
                return [parts[0]]
            terms: list[RawTerm]
            terms, separator, term = parts
            terms.append(term)
            if len(terms) > _MAX_ARGUMENTS:
                raise _Refusal(separator.line or 1, _TWO, f"more than {_MAX_ARGUMENTS}", _TWO_FIX)
            return terms

        def atom(self, predicate: _Predicate, terms: list[RawTerm]) -> RawAtom:
            name, is_quoted, line = predicate
            if name == "not" and not is_quoted and len(terms) == 1:
                raise _Refusal(line, "an atom", "the negation 'not(...)'", _NEGATION_FIX)
            if len(terms) != 2:
                unary = f"write a unary atom with its argument twice, as in {name}({terms[0].text},{terms[0].text})"
                raise _Refusal(line, _TWO, f"{len(terms)} in {show(name)}", unary if len(terms) == 1 else _TWO_FIX)
            if not (name and all(term.text for term in terms)):
                raise _Refusal(line, "a name", f"an empty name in quotes, in {show(name)}", "fill in the name")
            if not is_quoted and (weight := _HIDDEN_WEIGHT.match(name)):
                raise _Refusal(
                    line,
                    "a number such as 0.9 before '::'",
                    show(weight[0]),
                    "write the weight as a number, or leave it out; quote the predicate if this is its name",
                )
            return RawAtom(name, terms[0], terms[1], is_quoted, line)

        def body(self, *atoms: RawAtom) -> list[RawAtom]:
            return list(atoms)

        def fact(self, *parts: Any) -> Clause:
            return _build_clause(parts)

        def rule(self, *parts: Any) -> Clause:
            clause = _build_clause(parts)
            if not clause.body:
                raise _Refusal(clause.line, *NO_BODY)
            return clause

        forward = backward = rule

    return Lark(
        _GRAMMAR,
        parser="lalr",
        start=list(get_args(Form)),
        transformer=Builder(),
        lexer_callbacks={"NEGATION": _refuse_negation},
    )


def _build_clause(parts: Sequence[Any]) -> Clause:
    clause_head = next(part for part in parts if isinstance(part, RawAtom))
    body = next((part for part in parts if isinstance(part, list)), ())
    weight = _read_weight(parts[0], clause_head) if isinstance(parts[0], str) else None
    return Clause(clause_head.line, clause_head, body, weight)


_MAX_ARGUMENTS = 100  # More are not read to the end.
_TWO = "two arguments"
_TWO_FIX = "write every atom with two arguments; quote a name that contains a comma"
# Weights that ProbLog computes or learns (`1/3::`, `P::`, `t(_)::`, `?::`).
_HIDDEN_WEIGHT = re.compile(r"(?:[0-9.][^:]*|\?|[A-Z_][A-Za-z0-9_]*)::")
_NEGATION_FIX = (
    "leave the negated atom out, or state its opposite as a predicate; quote the predicate if this is its name"
)


def _refuse_negation(token: "Token") -> "Token":
    found = "a cut or a negation, '!'" if token == "!" else f"the negation {show(str(token))}"
    raise _Refusal(token.line or 1, "an atom", found, _NEGATION_FIX)


def _read_weight(token: str, clause_head: RawAtom) -> float:
    """Read the number before a clause. A name may begin with a number too, so that some need quotes."""
    weight = float(token.removesuffix("::"))
    is_doubtful = weight > 1 or (" " in clause_head.predicate and not clause_head.is_quoted)
    if not math.isfinite(weight) or (is_doubtful and not token.endswith("::")):
        raise _Refusal(
            clause_head.line,
            "predicate(first,second), or a weight from 0 to 1 before it",
            show(f"{token} {clause_head.predicate}(".replace("  ", " ")),
            f"write {token.strip()}:: before the clause if this is its weight; quote the predicate if this is its name",
        )
    return weight


def _read_name(token: "Token") -> tuple[str, bool]:
    """Return a name without its quotes or the blanks around it, and whether it was quoted."""
    if token.type != "QUOTED":
        return token.strip(BLANKS), False
    text, quote = str(token[1:-1]), token[0]
    if escape := _ESCAPE.search(text):
        raise _Refusal(
            token.line or 1,
            "a backslash before a quote or another backslash",
            f"{show(escape[1])} in {show(str(token))}",
            r"write \\ for a backslash; a name holds no tab and no line end",
        )
    return re.sub(rf"[{quote}\\]([\\'\"])", r"\1", text), True


# Escapes that stand for another character in Prolog.
_ESCAPE = re.compile(r"(?<!\\)(?>(?:\\\\)*)(\\[A-Za-z0-9])")
_SPECIFICATION = r"(?:\w++|'[^'\n]++')\s*+/\s*+[0-9]++"
_HARMLESS = re.compile(
    rf""":-\s*+(?:(?:dynamic|discontiguous|multifile|table)[\s(\[]++{_SPECIFICATION}(?>(?:\s*+,\s*+{_SPECIFICATION})*)[\s)\]]*+
    |style_check\s*+\(\s*+[+-]?\w++\s*+\)\s*+|use_module\s*+\(\s*+library\s*+\(\s*+\w++\s*+\)\s*+\)\s*+
    |module\s*+\(\s*+\w++\s*+,\s*+\[[^\]]*+\]\s*+\)\s*+)\.""",
    re.VERBOSE,
)


def _check_item(item: Any) -> Clause | Directive:
    """Return a clause as it is and a token as a directive."""
    if isinstance(item, Clause):
        return item
    if not _HARMLESS.fullmatch(item):
        fix = "leave the directive out: kgverify reads facts and rules, and runs nothing"
        raise _Refusal(item.line, "a fact, a rule or a declaration such as ':- dynamic p/2.'", show(str(item)), fix)
    return Directive(item.line, " ".join(item.split()))


def _explain(error: "UnexpectedInput", form: Form, text: str) -> tuple[int, str, str, str]:
    """Return the line of a syntax error, what was expected and found there, and a fix."""
    is_end = _is_end(error)
    position = len(text.rstrip()) if is_end else error.pos_in_stream or 0
    line = text.count("\n", 0, position) + 1
    rest = "" if is_end else text[position:].partition("\n")[0].strip(BLANKS)
    found = show(rest) if rest else "the end of the line"
    # The states of the parser say what may come next, its stack what came before.
    expected: set[str] = getattr(error, "expected", None) or getattr(error, "allowed", None) or set()
    stack = error.state.value_stack
    if rest.startswith("/*"):
        return line, "'*/' after '/*'", found, "close the comment"
    if "DIRECTIVE" in expected and rest.startswith((":-", "?-")):
        return line, "'.' at the end of a directive", found, "end the directive with a dot"
    if "NAME" in expected and rest.startswith(("'", '"')):
        return line, f"a closing {rest[0]}", found, "close the quote"
    if "NAME" in expected or "_CLOSE" in expected:
        predicate = show(next(item.name for item in reversed(stack) if isinstance(item, _Predicate)))
        if "NAME" in expected and rest and not rest.startswith("("):
            return line, "a name", f"an empty argument of {predicate}", "give the argument a name"
        fix = "close the parenthesis" + "; quote a name with an unusual one, or with a comment sign" * bool(rest)
        return line, f"a closing ')' after the arguments of {predicate}", found, fix
    if "_OPEN" in expected or "PREDICATE" in expected:
        if "_OPEN" in expected:
            rest = text[stack[-1].start_pos :].partition("\n")[0].strip(BLANKS)
            found = show(rest)
            if form != "facts" and _COMPARISON.match(rest):
                return line, _ATOM, found, "leave the condition out: a rule consists of atoms predicate(first,second)"
        if _is_number(rest):
            return line, _ATOM, found, _WEIGHT_FIX
        fix = f"write every atom as {_ATOM}" + "; quote a predicate with unusual characters" * ("(" in rest)
        return line, _ATOM, found, fix
    types = {getattr(item, "type", "") for item in stack[-8:]}
    after, fix = _AFTER_ATOM[form, bool(types & {"_NECK", "_FORWARD", "_BACKWARD"})]
    if rest.startswith((";", "|")):
        fix = "write one clause for each alternative"
    elif _is_number(rest):
        fix = _WEIGHT_FIX
    elif rest.startswith("::"):
        fix = "write the weight as a number, or leave it out"
    elif form == "facts" and rest.startswith((":-", "->", "<-")):
        fix = "move the rules to a file of their own, such as rules.pl"
    return line, after, found, fix


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(NUMBER, text))


_ATOM = "predicate(first,second)"
_WEIGHT_FIX = "write a weight before its clause, as in 0.9::h(X,Y) :- b(X,Y)."
_COMPARISON = re.compile(r"[^(]*?(?:[=<>\\]| is )")
_BACKWARD_FIX = "write h(X,Y) <= b1(X,Z), b2(Z,Y)"
_PROLOG_FIX = "write h(X,Y) :- b1(X,Z), b2(Z,Y)."
# By the form, and whether the sign of the rule came before the atom.
_AFTER_ATOM = {
    ("facts", False): ("the end of the line after relation(head,tail).", "write one triple a line"),
    ("rules", False): ("':-' after the rule's head", _PROLOG_FIX),
    ("rules", True): ("',' or the end of the rule after an atom", _PROLOG_FIX),
    ("forward", False): ("',' or '->' after an atom", "write b1(X,Z), b2(Z,Y) -> h(X,Y)"),
    ("forward", True): ("the end of the rule", "write one rule a line"),
    ("backward", False): ("'<=' after the rule's head", _BACKWARD_FIX),
    ("backward", True): ("',' or the end of the rule after an atom", _BACKWARD_FIX),
}


def _is_end(error: "UnexpectedInput") -> bool:
    token = getattr(error, "token", None)
    return token is not None and token.type == "$END"
