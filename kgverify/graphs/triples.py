"""Read triples: `head<TAB>relation<TAB>tail` or `relation(head,tail).`, in one of the two formats.

The first line that is neither blank nor a comment determines the format of the whole file. Names survive exactly. In the
tabular format that includes blanks at their ends. Every argument is a constant, whatever its case. Comments are lines that
begin with `%` or `#`; in the tabular format such a line is a row if it holds a tab.
"""

from collections.abc import Iterable, Sequence

from kgverify.graphs.facts import PLAIN, TABULAR, Facts, parse_facts
from kgverify.graphs.text_file import is_skipped, line_error, show, split_lines
from kgverify.program.atoms import NamedAtom
from kgverify.program.program import Source


def parse_triples(text: str, file: str) -> Facts:
    """Parse the triples of a text. UserError, with `file` and line, at the first line that is not a triple."""
    lines = split_lines(text)
    if not _is_tabular(lines):
        return parse_facts(lines, file)
    found = list(_parse_tabular(lines, file))
    return Facts(tuple(atom for _, atom in found), tuple(number for number, _ in found))


def _is_tabular(lines: Sequence[tuple[int, str]]) -> bool:
    rows = [text for _, text in lines if "\t" in text or not is_skipped(text)]
    first = next((text for text in rows if not text.lstrip(" ").startswith(("%", "#"))), "")
    if not first:
        return bool(rows)
    return first.count("\t") >= 2 or ("\t" in first and not PLAIN.fullmatch(first))


def _parse_tabular(lines: Sequence[tuple[int, str]], file: str) -> Iterable[tuple[int, NamedAtom]]:
    for number, text in lines:
        fields = text.split("\t")
        if len(fields) == 3 and all(fields):
            head_entity, relation, tail_entity = fields
            yield number, NamedAtom(relation, head_entity, tail_entity)
        elif not is_skipped(text):
            source = Source(file, number)
            if len(fields) == 3:
                raise line_error(source, TABULAR, f"an empty name in {show(text)}", "fill in the empty field")
            raise line_error(
                source,
                TABULAR,
                f"{len(fields)} field{'s' * (len(fields) != 1)} in {show(text)}",
                "separate three names by single tabs, in every line of the file",
            )
