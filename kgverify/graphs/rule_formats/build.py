"""What the formats share: from atoms as they were written to a rule with variables and constants."""

import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from kgverify.errors import UserError
from kgverify.graphs.scanner import RawAtom, RawTerm, Scanner
from kgverify.graphs.text_file import line_error, show
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.program import NamedRule, Source

OPERATORS: Final = ("->", ":-", "<=", "=>")

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


class Vocabulary(NamedTuple):
    """The names that the triples and the domains of the graph hold."""

    constants: Collection[str] = frozenset()
    predicates: Collection[str] = frozenset()


def build_rule(
    clause_head: RawAtom,
    body: Sequence[RawAtom],
    *,
    is_variable: Callable[[str], bool],
    vocabulary: Vocabulary,
    source: Source,
    name: str = "",
    confidence: float | None = None,
) -> NamedRule:
    """Return a rule whose bare names `is_variable` divides into variables and constants.

    Each bare `_` that is a variable is one of its own. UserError for a bare constant that looks like a
    compound term.
    """
    written = {term.text for atom in (clause_head, *body) for term in (atom.first, atom.second)}
    num_anonymous = 0

    def read(term: RawTerm) -> Term:
        nonlocal num_anonymous
        if term.is_quoted:
            return term.text
        if "(" in term.text and term.text not in vocabulary.constants:
            raise line_error(
                source,
                "a constant or a variable",
                f"the compound term {show(term.text)}",
                "rewrite the rule without functions; quote the name if it is a constant",
            )
        if "(" not in term.text and is_variable(term.text):
            if term.text != "_":
                return Variable(term.text)
            num_anonymous += 1
            while f"_{num_anonymous}" in written:
                num_anonymous += 1
            return Variable(f"_{num_anonymous}")
        return term.text

    def read_atom(atom: RawAtom) -> NamedAtom:
        return NamedAtom(atom.predicate, read(atom.first), read(atom.second))

    return NamedRule(read_atom(clause_head), tuple(map(read_atom, body)), name, confidence, source)


def parse_number(text: str) -> float | None:
    """Return a finite decimal number, or None if the text is anything else."""
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def read_confidence(text: str, source: Source) -> float:
    """Return the confidence that stands in a rule's line. UserError if it is no number."""
    number = parse_number(text.strip())
    if number is None:
        raise line_error(source, "a number as confidence", show(text.strip()), "write a number such as 0.8")
    return number


def check_end(scanner: Scanner, source: Source) -> None:
    """UserError unless only a final dot, or nothing, is left of the line."""
    scanner.take(".")
    if rest := scanner.rest:
        raise line_error(source, "the end of the rule", show(rest), "write one rule a line")


def empty_body(source: Source) -> UserError:
    """Return the error of a rule without body."""
    return line_error(
        source,
        "at least one body atom",
        "an empty body",
        "move the atom to the facts, or give the rule a body",
    )
