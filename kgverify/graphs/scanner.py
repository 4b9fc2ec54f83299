"""A scanner for atoms `predicate(first, second)` in a line.

A name is quoted (`'a b'`, `"a, b"`) or bare. In quotes, a backslash before a quote or a backslash, and a doubled quote, stand
for the character itself. A bare argument ends at a comma or at the closing parenthesis; it may hold balanced parentheses. A
bare name does not include the blanks around it.
"""

import re
from typing import NamedTuple

from kgverify.graphs.text_file import line_error, show
from kgverify.program.program import Source

_BLANKS = " \t"
_QUOTES = ("'", '"')
_SIGNS = re.compile(r"[(),]")


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

    @property
    def found(self) -> str:
        """The rest of the line, as an error shows it."""
        return show(self.rest) if self.rest else "the end of the line"

    def take(self, sign: str) -> bool:
        """Take a text if it comes next; return whether it did."""
        self._skip_blanks()
        is_next = self._text.startswith(sign, self._position)
        self._position += len(sign) * is_next
        return is_next

    def expect(self, sign: str, expected: str, fix: str) -> None:
        """Take a text. UserError if it does not come next."""
        if not self.take(sign):
            raise line_error(self._source, expected, self.found, fix)

    def take_atom(self) -> RawAtom:
        """Take an atom. UserError if the next text is not an atom with two arguments."""
        predicate = self._take_predicate()
        terms = [self._take_term(predicate)]
        while self.take(","):
            terms.append(self._take_term(predicate))
        self.expect(")", f"a closing ')' after the arguments of {predicate!r}", "close the parenthesis")
        if len(terms) != 2:
            raise line_error(
                self._source,
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
        found, fix = self.found, "write every atom as predicate(first,second)"
        if self.rest.startswith(_QUOTES):
            predicate = self._take_quoted()
            is_valid = self.take("(")
        else:
            predicate, parenthesis, _ = self._text[self._position :].partition("(")
            self._position += len(predicate) + 1
            predicate = predicate.strip(_BLANKS)
            is_valid = bool(parenthesis) and not any(sign in predicate for sign in (",", ")", *self._operators))
            fix += "; quote a predicate with unusual characters" if parenthesis else ""
        if not predicate or not is_valid:
            raise line_error(self._source, "predicate(first,second)", found, fix)
        return predicate

    def _take_term(self, predicate: str) -> RawTerm:
        self._skip_blanks()
        if self._text.startswith(_QUOTES, self._position):
            term = RawTerm(self._take_quoted(), True)
        else:
            start, depth, end = self._position, 0, len(self._text)
            for sign in _SIGNS.finditer(self._text, start):
                if depth == 0 and sign[0] != "(":
                    end = sign.start()
                    break
                depth += {"(": 1, ")": -1}.get(sign[0], 0)
            self._position = end
            term = RawTerm(self._text[start:end].strip(_BLANKS), False)
        if not term.text and self.rest:
            raise line_error(self._source, "a name", f"an empty argument of {predicate!r}", "give the argument a name")
        return term

    def _take_quoted(self) -> str:
        self._skip_blanks()
        quote = self._text[self._position]
        # Possessive: a backslash before a quote never becomes a character by itself.
        match = re.compile(rf"{quote}((?:{quote}{quote}|\\[\\'\"]|[^{quote}])*+){quote}").match(
            self._text, self._position
        )
        if match is None:
            raise line_error(self._source, f"a closing {quote}", show(self._text[self._position :]), "close the quote")
        self._position = match.end()
        return re.sub(rf"[{quote}\\]([\\'\"])", r"\1", match[1])
