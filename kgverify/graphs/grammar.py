"""The grammar of atoms and clauses: facts, Prolog rules, and rules with an arrow in either direction.

A name is quoted (`'a b'`, `"a, b"`) or bare. In quotes, a backslash before a quote or another backslash makes it a
plain character, and so does doubling a quote. A bare argument ends at a comma or at the closing parenthesis; it may contain
balanced parentheses. A bare predicate ends at its parenthesis; it contains no operator (`:-`, `->`, `<=`, `=>`). Neither
contains a tab or the blanks around it. `%` and `#` begin a comment except where an argument may begin; `/* */` surrounds one.

A clause ends at its dot or with its line. It continues on the next line after `:-`, `(` and `,`, and if that line begins
with `:-` or `,`. No pattern repeats ambiguously or is tried again, so time and memory are linear in the length of the text.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from kgverify.errors import UserError, count_of
from kgverify.graphs.formats.reading import line_error, show
from kgverify.program.program import Source

BLANKS: Final = " \t"
NUMBER: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"

RANGE: Final = r"^-?[0-9]+\.\.-?\w+$"
"""A range of numbers, as answer set programs write them: `1..3`."""

Form: TypeAlias = Literal["facts", "rules", "forward", "backward"]

_MAX_PARENTHESES: Final = 8  # A name with more nested parentheses needs quotes.


def _nest_parentheses() -> str:
    inner = r"[^()\t\n]*+"
    for _ in range(_MAX_PARENTHESES - 1):
        inner = rf"(?>(?:[^()\t\n]++|\({inner}\))*)"
    return rf"\({inner}\)"


# Groups repeat in `(?>...)`, not possessively: Python 3.11.0 to 3.11.4 match such a group wrongly if it can backtrack.
_BLOCK: Final = r"/\*(?>(?:[^*]++|\*(?!/))*)\*/"
_LAYOUT: Final = rf"(?>(?:[ \t]*+(?>(?:{_BLOCK}[ \t]*+)*)(?:[%#][^\n]*+)?\n)*)"
_BLANKS_AND_BLOCKS: Final = re.compile(rf"(?>(?:[ \t]++|{_BLOCK})*)")
_IN_LINE: Final = rf"(?>(?:[ \t]++|{_BLOCK}|[%#][^\n]*+)*)"
_SKIPPED_IN_LINE: Final = re.compile(_IN_LINE)
_SKIPPED: Final = re.compile(rf"(?>(?:[ \t]++|{_BLOCK}|[%#][^\n]*+|\n[ \t\n]*+(?=,|:-))*)")
_DIRECTIVE: Final = re.compile(r"""[:?]-(?>(?:'[^'\n]*+'|"[^"\n]*+"|[^'".]|\.(?![ \t\n%]|\Z))*)\.""")
_WEIGHT: Final = re.compile(rf"({NUMBER})(?:[ \t]*+(::)|[ \t]++(?=[^ \t\n(]))")
_NEGATION: Final = re.compile(r"\\\+|(?:not|Not|NOT|naf)(?=[ \t]++[^ \t\n(])|[~!¬]")
QUOTED: Final = r"""'(?>(?:''|\\.|[^'\\\n])*)'|"(?>(?:""|\\.|[^"\\\n])*)\""""
_PREDICATE: Final = re.compile(
    rf"""{QUOTED}|(?![ \t\n()'",.%#\\;~!¬]|/\*)(?>(?:[^(),\t\n:<=/-]++|:(?!-)|-(?!>)|<(?!=)|=(?!>)|/(?!\*))+)"""
)
_TERM: Final = re.compile(rf"""{QUOTED}|(?![ \t\n'"]|/\*)(?>(?:[^(),\t\n/]++|/(?!\*)|{_nest_parentheses()})+)""")
_OPEN: Final = re.compile(r"[ \t]*+\((?>(?:[ \t]*+\n)*)")
_SEPARATOR: Final = re.compile(r"[ \t]*+,(?>(?:[ \t]*+\n)*)")
_CLOSE: Final = re.compile(r"[ \t]*+\)")
_NECK: Final = re.compile(rf"[ \t]*+:-{_LAYOUT}")
_COMMA: Final = re.compile(rf"[ \t]*+,{_LAYOUT}")
_FORWARD: Final = re.compile(r"[ \t]*+->")
_BACKWARD: Final = re.compile(r"[ \t]*+<=")
_EMPTY: Final = re.compile(r"[ \t]*+(?:\.(?=[ \t]*+(?:[%#\n]|\Z))|\Z)")
_END_OF_LINE: Final = re.compile(rf"[ \t]*+\.?{_IN_LINE}\Z")
_ENDS: Final = {
    "facts": re.compile(r"[ \t]*+(?:\.|\n|\Z)"),
    "rules": re.compile(r"[ \t]*+(?:\.|\n(?![ \t\n]*+(?:,|:-))|\Z)"),
    "forward": _END_OF_LINE,
    "backward": _END_OF_LINE,
}

# The form of most atoms. The patterns above read such atoms in the same way, but slower. Tests compare both.
_BARE: Final = r"(?![\[{])[^ \t\n()'\",\\;]++(?>(?: ++[^ \t\n()'\",\\;]++)*)"
_IN_QUOTES: Final = r"'[^'\\\n]++'(?!')|\"[^\"\\\n]++\"(?!\")"
_WORD: Final = r"(?>(?:[^ \t\n()'\",\\:<=>]++|:(?![-:]))+)"
_WORDS: Final = rf"(?!(?:not|Not|NOT|naf)[ \t]|\?-|[.%#~!¬;-]|{NUMBER}[ \t]){_WORD}(?>(?: ++{_WORD})*)"
_ARGUMENTS: Final = r"[ \t]*+\([ \t]*+({0})[ \t]*+,[ \t]*+({0})[ \t]*+\)"
_PLAIN_ATOM: Final = re.compile(rf"[ \t]*+({_WORDS}|{_IN_QUOTES}){_ARGUMENTS.format(f'{_BARE}|{_IN_QUOTES}')}")

NO_BODY: Final = (
    "at least one body atom",
    "an empty body",
    "move the atom to the facts if it has no variables, or give the rule a body",
)


class RawTerm(NamedTuple):
    """An argument as written; a quoted argument is a constant."""

    text: str
    is_quoted: bool


class RawAtom(NamedTuple):
    """A predicate, quoted or bare, with its two arguments as written."""

    predicate: str
    first: RawTerm
    second: RawTerm
    is_quoted: bool = False


class Clause(NamedTuple):
    """A fact, which has no body, or a rule, with the line where it begins."""

    line: int
    clause_head: RawAtom
    body: Sequence[RawAtom] = ()
    weight: float | None = None


class ClauseReader:
    """The clauses of a text of whole lines, in order. position: the position of the next character."""

    def __init__(self, form: Form, text: str, source: Source) -> None:
        self.text, self.position, self._begin = text, 0, 0
        self._form, self._source, self._counted = form, source, 0
        self._skipped = _SKIPPED if form == "rules" else _SKIPPED_IN_LINE
        self._has_blocks = "/*" in text
        self._weights: list[int] = []
        self._directives: list[tuple[int, str]] = []

    def locate(self, position: int | None = None) -> Source:
        """Return the file and the line of a position, by default the current one."""
        position, (file, line) = self.position if position is None else position, self._source
        if position < self._counted:
            return Source(file, line - self.text.count("\n", position, self._counted))
        self._source = Source(file, line + self.text.count("\n", self._counted, position))
        self._counted = position
        return self._source

    def skip_to_clause(self) -> bool:
        """Skip blank lines, comments and declarations; return whether a clause follows. UserError for another directive."""
        while True:
            self._skip()
            self._begin = self.position
            is_directive = self.text.startswith((":-", "?-"), self.position)
            if is_directive and (match := _DIRECTIVE.match(self.text, self.position)):
                if not _HARMLESS.fullmatch(match[0]):
                    expected = "a fact, a rule or a declaration such as ':- dynamic p/2.'"
                    fix = "leave the directive out: kgverify reads facts and rules, and runs nothing"
                    raise self._error(expected, show(match[0]), fix)
                self._directives.append((self.locate().line, " ".join(match[0].split())))
                self.position = match.end()
            elif self.text.startswith("\n", self.position):
                self.position += 1
            elif is_directive:
                found = show(self.find_rest())
                raise self._error("'.' at the end of a directive", found, "end the directive with a dot")
            else:
                return self.position < len(self.text)

    def read_clause(self) -> Clause:
        """Return the fact or the rule at the position. UserError for any other text."""
        self._skip()
        begin, weight = self.position, None
        if self._form != "backward" and (weight := _WEIGHT.match(self.text, begin)):
            self.position = weight.end()
        if self._form == "forward":
            body = [] if self.text.startswith("->", self.position) else self._read_atoms()
            if not self._take(_FORWARD):
                raise self._wrong_end(has_sign=False)
            head = self._read_atom()
        else:
            head, sign = self._read_atom(), _SIGNS.get(self._form)
            has_sign = sign is not None and self._take(sign)
            body = self._read_atoms() if has_sign and not self._take(_EMPTY) else []
            if self._form == "backward" and not has_sign:
                raise self._wrong_end(has_sign=False)
        if not self._take(_ENDS[self._form]):
            raise self._wrong_end(has_sign=bool(body))
        line = self.locate(begin).line
        if not body and self._form != "facts":
            raise self._error(*NO_BODY, begin)
        number = self._read_weight(weight, head, begin) if weight else None
        self._weights += [line] * (number is not None)
        return Clause(line, head, body, number)

    def leave_out(self) -> tuple[int, int]:
        """Skip a clause that cannot be read, and return the lines where it begins and ends."""
        start = self.text.rfind("\n", 0, self._begin) + 1
        end = _NO_CLAUSE.match(self.text, start) or _CLOSED.search(self.text, start)
        self.position = end.end() if end else len(self.text)
        return self.locate(start).line, self.locate().line

    def describe_ignored(self) -> Iterator[str]:
        """Describe what proving ignores in a file, with one warning for the weights of clauses and one for directives."""
        file = self._source.file
        if self._weights:
            number = count_of(len(self._weights), "weight")
            yield f"{file}:{self._weights[0]}: {number}, the first on this line; weights play no part in proving"
        if self._directives:
            number, (line, first) = count_of(len(self._directives), "directive"), self._directives[0]
            yield f"{file}:{line}: skipped {number}, the first {show(first)}"

    def _skip(self) -> None:
        self.position = self._skipped.match(self.text, self.position).end()  # type: ignore[union-attr]

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match a pattern here or after blanks and comments, and move the position behind the match."""
        match, begin = pattern.match(self.text, self.position), self.position
        if match is None:
            self._skip()
            match = pattern.match(self.text, self.position) if self.position > begin else None
        if match:
            self.position = match.end()
        return match

    def _read_atoms(self) -> list[RawAtom]:
        atoms = [self._read_atom()]
        while self._take(_COMMA):
            atoms.append(self._read_atom())
        return atoms

    def _read_atom(self) -> RawAtom:
        match = _PLAIN_ATOM.match(self.text, self.position)
        if match is None or (self._has_blocks and "/*" in match[0]):
            return self._read_any_atom()
        self.position = match.end()
        predicate, first, second = [
            RawTerm(name[1:-1], True) if name[0] in "'\"" else RawTerm(name, False) for name in match.groups()
        ]
        return RawAtom(predicate.text, first, second, predicate.is_quoted)

    def _read_any_atom(self) -> RawAtom:
        self._skip()
        begin = self.position
        if match := _NEGATION.match(self.text, begin):
            found = "a cut or a negation, '!'" if match[0] == "!" else f"the negation {show(match[0])}"
            raise self._error("an atom", found, _NEGATION_FIX)
        if not self._take(_PREDICATE):
            raise self._no_atom(begin, has_name=False)
        name, is_quoted = self._read_name(begin)
        if not self._take(_OPEN):
            raise self._no_atom(begin, has_name=True)
        terms = self._read_terms(show(name))
        if self.text.startswith("::", self.position):
            raise self._wrong_end(has_sign=False)
        if name == "not" and not is_quoted and len(terms) == 1:
            raise self._error("an atom", "the negation 'not(...)'", _NEGATION_FIX, begin)
        if len(terms) != 2:
            unary = f"write a unary atom with its argument twice, as in {name}({terms[0].text},{terms[0].text})"
            raise self._error(_TWO, f"{len(terms)} in {show(name)}", unary if len(terms) == 1 else _TWO_FIX, begin)
        if not (name and all(term.text for term in terms)):
            raise self._error("a name", f"an empty name in quotes, in {show(name)}", "fill in the name", begin)
        if not is_quoted and (weight := _HIDDEN_WEIGHT.match(name)):
            fix = "write the weight as a number, or leave it out; quote the predicate if this is its name"
            raise self._error("a number such as 0.9 before '::'", show(weight[0]), fix, begin)
        return RawAtom(name, terms[0], terms[1], is_quoted)

    def _read_terms(self, predicate: str) -> list[RawTerm]:
        terms: list[RawTerm] = []
        while not terms or self._take(_SEPARATOR):
            if len(terms) == _MAX_ARGUMENTS:
                raise self._error(_TWO, f"more than {_MAX_ARGUMENTS}", _TWO_FIX)
            # Here a name may begin with the sign of a comment.
            begin = self.position = _BLANKS_AND_BLOCKS.match(self.text, self.position).end()  # type: ignore[union-attr]
            if match := _TERM.match(self.text, begin):
                self.position = match.end()
                terms.append(RawTerm(*self._read_name(begin)))
                continue
            rest = self.find_rest(begin)
            if rest.startswith(("'", '"')):
                raise self._error(f"a closing {rest[0]}", show(rest), "close the quote")
            if rest and not rest.startswith(("(", "/*")):
                raise self._error("a name", f"an empty argument of {predicate}", "give the argument a name")
            break
        if not self._take(_CLOSE):
            rest = self.find_rest()
            fix = "close the parenthesis" + "; quote a name with an unusual one, or with a comment sign" * bool(rest)
            found = show(rest) if rest else _AT_END
            raise self._error(f"a closing ')' after the arguments of {predicate}", found, fix)
        return terms

    def _read_name(self, begin: int) -> tuple[str, bool]:
        """Return the name that ends here, without its quotes or the blanks around it, and whether it is quoted."""
        written = self.text[begin : self.position]
        if written[0] not in "'\"":
            return written.strip(BLANKS), False
        text, quote = written[1:-1], written[0]
        if escape := _ESCAPE.search(text):
            raise self._error(
                "a backslash before a quote or another backslash",
                f"{show(escape[1])} in {show(written)}",
                r"write \\ for a backslash; a name holds no tab and no line end",
                begin,
            )
        return re.sub(rf"[{quote}\\]([\\'\"])", r"\1", text), True

    def _read_weight(self, match: re.Match[str], clause_head: RawAtom, begin: int) -> float:
        """Return the number before a clause. A name may begin with a number as well; some of these names need quotes."""
        weight = float(match[1])
        is_doubtful = weight > 1 or (" " in clause_head.predicate and not clause_head.is_quoted)
        if not math.isfinite(weight) or (is_doubtful and not match[2]):
            raise self._error(
                "predicate(first,second), or a weight from 0 to 1 before it",
                show(f"{match[0]} {clause_head.predicate}(".replace("  ", " ")),
                f"write {match[0].strip()}:: before the clause if this is its weight; quote the predicate if this is its name",
                begin,
            )
        return weight

    def find_rest(self, begin: int | None = None) -> str:
        """Return the rest of the line from a position, by default the current one."""
        begin = self.position if begin is None else begin
        end = self.text.find("\n", begin)
        return self.text[begin : len(self.text) if end < 0 else end].strip(BLANKS)

    def _error(self, expected: str, found: str, fix: str, position: int | None = None) -> UserError:
        """Return the error for a position, by default the current one."""
        if position is None and self.text.startswith("/*", self.position):
            expected, found, fix = "'*/' after '/*'", show(self.find_rest()), "close the comment"
        at = min(self.position, len(self.text.rstrip())) if position is None else position
        return line_error(self.locate(at), expected, found, fix)

    def _no_atom(self, begin: int, *, has_name: bool) -> UserError:
        """Return the error for a text without the form of an atom. has_name: whether it begins with a name."""
        rest = self.find_rest(begin)
        fix = f"write every atom as {_ATOM}" + "; quote a predicate with unusual characters" * ("(" in rest)
        if has_name and self._form != "facts" and _COMPARISON.match(rest):
            fix = f"leave the condition out: a rule consists of atoms {_ATOM}"
        elif re.fullmatch(NUMBER, rest):
            fix = _WEIGHT_FIX
        return self._error(_ATOM, show(rest) if rest else _AT_END, fix)

    def _wrong_end(self, *, has_sign: bool) -> UserError:
        """Return the error for what follows an atom. has_sign: whether the sign of the rule came before it."""
        expected, fix = _AFTER_ATOM[self._form, has_sign]
        rest = self.find_rest()
        known = [*_FIXES, *([_RULE_FIX] if self._form == "facts" else [])]
        fix = next((each for pattern, each in known if pattern.match(rest)), fix)
        return self._error(expected, show(rest) if rest else _AT_END, fix)


_AT_END: Final = "the end of the line"
_MAX_ARGUMENTS: Final = 100  # Longer lists are not read to the end.
_TWO: Final = "two arguments"
_TWO_FIX: Final = "write every atom with two arguments; quote a name that contains a comma"
# Weights that ProbLog computes or learns (`1/3::`, `P::`, `t(_)::`, `?::`).
_HIDDEN_WEIGHT: Final = re.compile(r"(?:[0-9.][^:]*|\?|[A-Z_][A-Za-z0-9_]*)::")
_NEGATION_FIX: Final = (
    "leave the negated atom out, or state its opposite as a predicate; quote the predicate if this is its name"
)
# The escapes that Prolog replaces by another character.
_ESCAPE: Final = re.compile(r"(?<!\\)(?>(?:\\\\)*)(\\[A-Za-z0-9])")
_SPECIFICATION: Final = r"(?:\w++|'[^'\n]++')\s*+/\s*+[0-9]++"
_HARMLESS: Final = re.compile(
    rf""":-\s*+(?:(?:dynamic|discontiguous|multifile|table)[\s(\[]++{_SPECIFICATION}(?>(?:\s*+,\s*+{_SPECIFICATION})*)[\s)\]]*+
    |style_check\s*+\(\s*+[+-]?\w++\s*+\)\s*+|use_module\s*+\(\s*+library\s*+\(\s*+\w++\s*+\)\s*+\)\s*+
    |module\s*+\(\s*+\w++\s*+,\s*+\[[^\]]*+\]\s*+\)\s*+)\.""",
    re.VERBOSE,
)
# The end of a clause, and a line that does not begin a clause, such as a tool's message.
_CLOSED: Final = re.compile(r"^[^%#\n]*\.[ \t]*(?:[%#].*)?$|^[ \t]*$", re.MULTILINE)
_NO_CLAUSE: Final = re.compile(r"[^()\n]*[^()\s:,;-][ \t]*$", re.MULTILINE)
_ATOM: Final = "predicate(first,second)"
_WEIGHT_FIX: Final = "write a weight before its clause, as in 0.9::h(X,Y) :- b(X,Y)."
_COMPARISON: Final = re.compile(r"[^(]*?(?:[=<>\\]| is )")
_BACKWARD_FIX: Final = "write h(X,Y) <= b1(X,Z), b2(Z,Y)"
_PROLOG_FIX: Final = "write h(X,Y) :- b1(X,Z), b2(Z,Y)."
_FIXES: Final = (
    (re.compile("[;|]"), "write one clause for each alternative"),
    (re.compile(rf"{NUMBER}\Z"), _WEIGHT_FIX),
    (re.compile("::"), "write the weight as a number, or leave it out"),
)
"""Mistakes after an atom, and the fix of each."""
_RULE_FIX: Final = (re.compile(":-|->|<-"), "move the rules to a file of their own, such as rules.pl")
_SIGNS: Final = {"rules": _NECK, "backward": _BACKWARD}
_AFTER_ATOM: Final = {
    ("facts", False): ("the end of the line after relation(head,tail).", "write one triple a line"),
    ("rules", False): ("':-' after the rule's head", _PROLOG_FIX),
    ("rules", True): ("',' or the end of the rule after an atom", _PROLOG_FIX),
    ("forward", False): ("',' or '->' after an atom", "write b1(X,Z), b2(Z,Y) -> h(X,Y)"),
    ("forward", True): ("the end of the rule", "write one rule a line"),
    ("backward", False): ("'<=' after the rule's head", _BACKWARD_FIX),
    ("backward", True): ("',' or the end of the rule after an atom", _BACKWARD_FIX),
}
"""The expected text after an atom, and the fix, by the form of the rule and whether its sign came before the atom."""
