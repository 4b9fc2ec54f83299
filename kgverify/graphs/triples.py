"""Read triples: `head<TAB>relation<TAB>tail` or `relation(head,tail).`, in one of the two formats.

The first line that is neither blank nor a comment determines the format of the whole file. Names survive exactly. In the
tabular format that includes blanks at their ends; in the functional one a name with commas, a leading quote or unbalanced
parentheses needs quotes, which are not part of it. Every argument is a constant, whatever its case. Comments are lines that
begin with `%` or `#`; in the tabular format such a line is a row if it holds a tab.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kgverify.graphs.scanner import Scanner
from kgverify.graphs.text_file import is_skipped, line_error, show, split_lines
from kgverify.program.atoms import NamedAtom
from kgverify.program.program import Source

_PLAIN = re.compile(
    r"""[ \t]*([^ \t()'",%#\\][^()'",\\]*?)[ \t]*"""
    r"""\([ \t]*([^()'",\\]+?)[ \t]*,[ \t]*([^()'",\\]+?)[ \t]*\)[ \t]*\.?[ \t]*"""
)
_END = re.compile(r"\.?[ \t]*(?:[%#].*)?")
_TABULAR = "head<TAB>relation<TAB>tail"
_FUNCTIONAL = "relation(head,tail)."


class Triples(NamedTuple):
    """The triples of a file as ground atoms, in file order, and the line of each."""

    atoms: tuple[NamedAtom, ...]
    lines: tuple[int, ...]


def parse_triples(text: str, file: str) -> Triples:
    """Parse the triples of a text. UserError, with `file` and line, at the first line that is not a triple."""
    lines = split_lines(text)
    parse = _parse_tabular if _is_tabular(lines) else _parse_functional
    found = list(parse(lines, file))
    return Triples(tuple(atom for _, atom in found), tuple(number for number, _ in found))


def _is_tabular(lines: Sequence[tuple[int, str]]) -> bool:
    rows = [text for _, text in lines if "\t" in text or not is_skipped(text)]
    first = next((text for text in rows if not text.lstrip(" ").startswith(("%", "#"))), "")
    if not first:
        return bool(rows)
    return first.count("\t") >= 2 or ("\t" in first and not _PLAIN.fullmatch(first))


def _parse_tabular(lines: Sequence[tuple[int, str]], file: str) -> Iterable[tuple[int, NamedAtom]]:
    for number, text in lines:
        fields = text.split("\t")
        if len(fields) == 3 and all(fields):
            head_entity, relation, tail_entity = fields
            yield number, NamedAtom(relation, head_entity, tail_entity)
        elif not is_skipped(text):
            source = Source(file, number)
            if len(fields) == 3:
                raise line_error(source, _TABULAR, f"an empty name in {show(text)}", "fill in the empty field")
            raise line_error(
                source,
                _TABULAR,
                f"{len(fields)} field{'s' * (len(fields) != 1)} in {show(text)}",
                "separate three names by single tabs, in every line of the file",
            )


def _parse_functional(lines: Sequence[tuple[int, str]], file: str) -> Iterable[tuple[int, NamedAtom]]:
    for number, text in lines:
        if match := _PLAIN.fullmatch(text):
            yield number, NamedAtom(*match.groups())
        elif text.strip() and not text.lstrip(" \t").startswith(("%", "#")):
            yield number, _parse_atom(text, Source(file, number))


def _parse_atom(text: str, source: Source) -> NamedAtom:
    if "(" not in text:
        raise line_error(
            source,
            f"{_TABULAR} or {_FUNCTIONAL}",
            show(text),
            "write one triple a line, in the same format for the whole file",
        )
    scanner = Scanner(text, source)
    predicate, first, second = scanner.take_atom()
    if not _END.fullmatch(scanner.rest):
        raise line_error(
            source, f"the end of the line after {_FUNCTIONAL}", show(scanner.rest), "write one triple a line"
        )
    return NamedAtom(predicate, first.text, second.text)
