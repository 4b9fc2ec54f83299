"""A scanner for atoms `predicate(first, second)` in a line.

A name is quoted (`'a b'`, `"a, b"`) or bare. In quotes, a backslash before a quote or a backslash, and a doubled quote, stand
for the character itself. A bare argument ends at a comma or at the closing parenthesis; it may hold balanced parentheses. A
bare name does not include the blanks around it.
"""

from typing import NamedTuple

from kgverify.errors import UserError
from kgverify.graphs.text_file import line_error, show
from kgverify.program.program import Source

_BLANKS = " \t"
_QUOTES = "'\""
_ATOM = "predicate(first,second)"


class RawTerm(NamedTuple):
    """An argument as written; a quoted one is a constant."""

    text: str
    is_quoted: bool


class RawAtom(NamedTuple):
    """A predicate with its two arguments as written."""

    predicate: str
    first: RawTerm
    second: RawTerm


class Scanner:
    """A position in a line, which every method that takes something advances.

    operators: text that a bare predicate must not contain, such as `->`; a quoted one may
    """

    def __init__(self, text: str, source: Source, operators: tuple[str, ...] = ()) -> None:
        self._text = text
        self._source = source
        self._operators = operators
        self._position = 0

    @property
    def rest(self) -> str:
        """The rest of the line, without the blanks around it."""
        return self._text[self._position :].strip(_BLANKS)

    def take(self, sign: str) -> bool:
        """Take a text if it comes next; return whether it did."""
        self._skip_blanks()
        if not self._text.startswith(sign, self._position):
            return False
        self._position += len(sign)
        return True

    def take_atom(self) -> RawAtom:
        """Take an atom. UserError if the next text is not an atom with two arguments."""
        predicate = self._take_predicate()
        terms = [self._take_term(predicate)]
        while self.take(","):
            terms.append(self._take_term(predicate))
        if not self.take(")"):
            found = show(self.rest) if self.rest else "the end of the line"
            raise self._error(f"a closing ')' after the arguments of {predicate!r}", found, "close the parenthesis")
        if len(terms) != 2:
            raise self._error(
                "two arguments",
                f"{len(terms)} in {predicate!r}",
                "write every atom with two arguments; quote a name that contains a comma",
            )
        return RawAtom(predicate, *terms)

    def take_atoms(self) -> list[RawAtom]:
        """Take one or more atoms separated by commas."""
        atoms = [self.take_atom()]
        while self.take(","):
            atoms.append(self.take_atom())
        return atoms

    def _skip_blanks(self) -> None:
        while self._text[self._position : self._position + 1] in (" ", "\t"):
            self._position += 1

    def _take_predicate(self) -> str:
        rest = self.rest
        found = show(rest) if rest else "the end of the line"
        if rest[:1] and rest[0] in _QUOTES:
            predicate = self._take_quoted()
            if not predicate or not self.take("("):
                raise self._error(_ATOM, found, "write every atom as predicate(first,second)")
            return predicate
        end = self._text.find("(", self._position)
        if end < 0:
            raise self._error(_ATOM, found, "write every atom as predicate(first,second)")
        predicate = self._text[self._position : end].strip(_BLANKS)
        if not predicate or any(sign in predicate for sign in (",", ")", *self._operators)):
            raise self._error(
                _ATOM,
                found,
                "write every atom as predicate(first,second); quote a predicate with unusual characters",
            )
        self._position = end + 1
        return predicate

    def _take_term(self, predicate: str) -> RawTerm:
        self._skip_blanks()
        if self._text[self._position : self._position + 1] in tuple(_QUOTES):
            term = RawTerm(self._take_quoted(), True)
        else:
            start, depth = self._position, 0
            while self._position < len(self._text):
                sign = self._text[self._position]
                if sign in ",)" and depth == 0:
                    break
                depth += (sign == "(") - (sign == ")")
                self._position += 1
            term = RawTerm(self._text[start : self._position].strip(_BLANKS), False)
        if not term.text and self.rest:
            raise self._error("a name", f"an empty argument of {predicate!r}", "give the argument a name")
        return term

    def _take_quoted(self) -> str:
        self._skip_blanks()
        start, quote, signs = self._position, self._text[self._position], []
        position = start + 1
        while position < len(self._text):
            pair = self._text[position : position + 2]
            if pair == quote * 2 or (pair[0] == "\\" and pair[1:] in ("\\", "'", '"')):
                signs.append(pair[1])
                position += 2
            elif pair[0] == quote:
                self._position = position + 1
                return "".join(signs)
            else:
                signs.append(pair[0])
                position += 1
        raise self._error(f"a closing {quote}", show(self._text[start:]), "close the quote")

    def _error(self, expected: str, found: str, fix: str) -> UserError:
        return line_error(self._source, expected, found, fix)
