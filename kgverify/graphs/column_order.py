"""Doubts about the columns of tables without a header row: a first row that may be one, and columns in another order."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

from kgverify.errors import count_of
from kgverify.graphs.formats.parsed import Triples
from kgverify.graphs.text_file import line_error
from kgverify.program.atom_table import AtomTable
from kgverify.program.atoms import NamedAtom
from kgverify.program.program import Source

_DEFAULT: Final = (0, 1, 2)
_MIN_ROWS: Final = 10
_MIN_DOUBTFUL_ROWS: Final = 3
_MAX_SINGLE: Final = 0.1
_MIN_RATIO: Final = 4


def check_columns(splits: Mapping[str, Triples], files: Mapping[str, str]) -> Iterator[str]:
    """Warn about first rows that may be headers.

    UserError for a first row that is most probably one, and for splits whose columns may be in different orders.

    Args:
        splits: The triples of each split.
        files: The name of the file of each split.
    """
    tables = {split: files[split] for split, triples in splits.items() if triples.is_table and triples.atoms}
    headers = {split: splits[split].header for split in tables}
    named = [split for split in tables if headers[split] not in (None, _DEFAULT)]
    for split in tables:
        if named and headers[split] is None:
            source = Source(tables[split], splits[split].lines[0])
            found = f"none, while that of {tables[named[0]]} is in another order than head, relation, tail"
            raise line_error(
                source, "a header row", found, f"add the header row of {tables[named[0]]}, if it is that of this"
            )
        if headers[split] is None:
            yield from _check_first_row(split, splits, tables[split])


def _check_first_row(split: str, splits: Mapping[str, Triples], file: str) -> Iterator[str]:
    """Warn about a first row of which no name occurs in another row, while those of almost every other row do.

    UserError instead if there are enough rows to be sure. A few rows may all be about different things: then a warning is
    enough.
    """
    first, following = splits[split].atoms[0], splits[split].atoms[1:]
    parts = [each.atoms[each.is_table and each.header is None :] for each in splits.values()]
    if not any(map(len, parts)) or any(_shares_name(first, atom) for atom in chain(following, *parts)):
        return
    others = list(chain(*parts))
    relations = Counter(atom.predicate for atom in others)
    entities = Counter(term for atom in others for term in (atom.first, atom.second))
    alone = sum(relations[p] == 1 and entities[a] == 1 and entities[b] == 1 for p, a, b in others)
    if len(others) >= _MIN_DOUBTFUL_ROWS and alone > _MAX_SINGLE * len(others):
        return
    source = Source(file, splits[split].lines[0])
    found = f"{first.first!r}, {first.predicate!r}, {first.second!r}, which occur nowhere else and may be a header row"
    if len(others) < _MIN_ROWS or not following:
        yield f"{source}: read as a triple: {found}"
        return
    fix = "remove the line if it is a header row; if it is a triple, put it after another one"
    raise line_error(source, "a triple", found, fix)


def _shares_name(first: NamedAtom, other: NamedAtom) -> bool:
    return first.predicate == other.predicate or not {first.first, first.second}.isdisjoint((other.first, other.second))


def find_unlikely_order(triples: AtomTable, train: AtomTable, file: str) -> Iterator[str]:
    """Warn about a table without a header row whose names say that its columns are not head, relation and tail."""
    relations = triples.names_in(0)
    # Names that are both head and tail are entities.
    if not relations or (triples.has_common_arguments() if triples is train else train.names_in(0) & relations):
        return
    heads, tails = triples.names_in(1), triples.names_in(2)
    for word, few, other in (("first", heads, tails), ("third", tails, heads)):
        if triples is not train:
            is_likely = few <= train.names_in(0)
        else:
            # Few names that are neither head nor tail are relations.
            is_likely = (few.isdisjoint(relations) and not other.isdisjoint(relations)) or (
                _MIN_RATIO * len(few) <= len(relations) and 2 * len(few) <= len(other)
            )
        if is_likely:
            yield (
                f"{file}: the {word} column may be the relation, with {count_of(len(few), 'name')}, rather than the second, "
                f"with {len(relations):,}; the order is head, relation, tail, unless a header row names another"
            )
            return
