"""Read triples of ids, whose names are in two further files: OpenKE's `train2id.txt`, and saved triples of PyKEEN.

OpenKE keeps names in `entity2id.txt` and `relation2id.txt` (the number of lines, then name and id), and triples in the order
head, tail, relation, after their number. PyKEEN keeps names in `entity_to_id.tsv.gz` and `relation_to_id.tsv.gz` (id and
label), and triples in `numeric_triples.tsv.gz`, in the order head, relation, tail; its `base.pth` is never opened. Objects of
PyKEEN in memory are read by their attributes: PyKEEN itself is not imported.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from kgverify.errors import UserError
from kgverify.graphs.formats.reading import Triples
from kgverify.graphs.text_file import TextFile, line_error, show, split_text
from kgverify.program.atoms import NamedAtom
from kgverify.program.program import Source

OPENKE_SUFFIX: Final = "2id"
OPENKE_NAMES: Final = ("entity2id", "relation2id")
PYKEEN_TRIPLES: Final = "numeric_triples"
PYKEEN_NAMES: Final = ("entity_to_id", "relation_to_id")
_MOST_DIGITS: Final = 18


class _Row(NamedTuple):
    """A line with its fields."""

    line: int
    fields: list[str]


class _Names(NamedTuple):
    """The name of each id, and the file that holds them."""

    file: str
    ids: Mapping[int, str]


def parse_openke(triples: TextFile, entities: TextFile, relations: TextFile) -> Triples:
    """Parse the triples of an OpenKE file by the names of two others. UserError at the first line that is wrong."""
    names = [_read_names(file, _read_openke_names(file)) for file in (entities, relations)]
    listed = [_Row(i, text.split()) for i, text in enumerate(split_text(triples.text), 1) if text.strip()]
    rows = _drop_count(listed, triples.name, "triple")
    named = _name_ids(triples.name, rows, "head tail relation", names)
    is_train = triples.name.lower().startswith("train")  # Few other triples may fit by chance.
    if (
        rows
        and is_train
        and all(int(row.fields[1]) in names[1].ids and int(row.fields[2]) in names[0].ids for row in rows)
    ):
        doubt = "read as head, tail, relation; by their ids, the columns may also be head, relation, tail"
        named = named._replace(warnings=(f"{Source(triples.name, rows[0].line)}: {doubt}",))
    return named


def parse_pykeen(triples: TextFile, entities: TextFile, relations: TextFile) -> Triples:
    """Parse saved triples of PyKEEN by the labels of two other files. UserError at the first line that is wrong."""
    names = [_read_names(file, _read_pykeen_names(file)) for file in (entities, relations)]
    header, *rows = [_Row(i, text.split("\t")) for i, text in enumerate(split_text(triples.text), 1)] or [_Row(1, [])]
    if header.fields != ["head", "relation", "tail"]:
        raise _wrong_row(triples.name, header, "the header row head<TAB>relation<TAB>tail")
    return _name_ids(triples.name, rows, "head<TAB>relation<TAB>tail", names)


def _read_openke_names(file: TextFile) -> Iterator[tuple[int, str, str]]:
    """Return the line, the id and the name of each row."""
    rows = [
        _Row(i, [part.strip(" \t") for part in line.rsplit("\t" if "\t" in line else " ", 1)])
        for i, text in enumerate(split_text(file.text), 1)
        if (line := text.strip(" \t"))
    ]
    for row in _drop_count(rows, file.name, "name"):
        if len(row.fields) != 2 or not row.fields[0]:
            raise _wrong_row(file.name, row, "name<TAB>id")
        yield row.line, row.fields[1], row.fields[0]


def _read_pykeen_names(file: TextFile) -> Iterator[tuple[int, str, str]]:
    """Return the line, the id and the label of each row."""
    reader = csv.reader(split_text(file.text), delimiter="\t", strict=True)
    try:
        for i, fields in enumerate(reader, 1):
            if len(fields) != 2 or not all(fields) or reader.line_num != i:
                raise _wrong_row(file.name, _Row(i, fields), "id<TAB>label")
            if i > 1:
                yield i, fields[0], fields[1]
            elif fields != ["id", "label"]:
                raise _wrong_row(file.name, _Row(i, fields), "the header row id<TAB>label")
    except csv.Error as error:
        raise line_error(
            Source(file.name, reader.line_num), "id<TAB>label", str(error), "save the triples with PyKEEN again"
        ) from error


def _drop_count(rows: Sequence[_Row], file: str, noun: str) -> Sequence[_Row]:
    """Return the rows after the line with their number. UserError if it is another number."""
    if not rows or len(rows[0].fields) != 1 or (number := _parse_id(rows[0].fields[0])) is None:
        return rows
    if number != len(rows) - 1:
        raise line_error(
            Source(file, rows[0].line),
            f"the number of {noun}s below, {len(rows) - 1:,}",
            f"{number:,}",
            "the file may be cut off: get it again, or correct the number",
        )
    return rows[1:]


def _read_names(file: TextFile, rows: Iterable[tuple[int, str, str]]) -> _Names:
    """Return the names of ids. UserError for another id of the same name, or another name of the same id."""
    ids: dict[int, str] = {}
    lines: dict[int | str, int] = {}
    for line, written, name in rows:
        number = _parse_id(written)
        if number is None:
            raise line_error(Source(file.name, line), "an id", show(written), "give each name a whole number from 0")
        for each, found in ((number, f"the id {number}"), (name, f"the name {show(name)}")):
            if (earlier := lines.setdefault(each, line)) != line:
                found += f" of line {earlier}"
                raise line_error(Source(file.name, line), "a new id and a new name", found, "give each name one id")
        ids[number] = name
    return _Names(file.name, ids)


def _name_ids(file: str, rows: Sequence[_Row], form: str, names: Sequence[_Names]) -> Triples:
    """Return triples of ids with the names of entities and relations."""
    words = form.replace("<TAB>", " ").split()
    for row in rows:
        if len(row.fields) != 3:
            raise _wrong_row(file, row, form)

    def look_up(row: _Row, word: str) -> str:
        name_file, ids = names[word == "relation"]
        written = row.fields[words.index(word)]
        number = _parse_id(written)
        if number is None or number not in ids:
            fix = f"write the columns in the order {', '.join(words)}, with ids that {name_file} lists"
            raise line_error(Source(file, row.line), f"an id of {name_file} as {word}", show(written), fix)
        return ids[number]

    atoms = tuple(NamedAtom(*(look_up(row, word) for word in ("relation", "head", "tail"))) for row in rows)
    return Triples(atoms, tuple(row.line for row in rows))


def _parse_id(text: str) -> int | None:
    """Return a number written in ASCII digits; None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _wrong_row(file: str, row: _Row, expected: str) -> UserError:
    return line_error(Source(file, row.line), expected, show("\t".join(row.fields)), "correct the line")


class TriplesFactory(Protocol):
    """PyKEEN's `TriplesFactory`: triples of ids, and the id of each label.

    mapped_triples: int64 [n, 3] head, relation, tail
    """

    mapped_triples: Any
    entity_to_id: Mapping[str, int]
    relation_to_id: Mapping[str, int]


class Dataset(Protocol):
    """PyKEEN's `Dataset`: a triples factory for each split; `validation` may be None."""

    training: Any
    validation: Any
    testing: Any


PykeenObject: TypeAlias = TriplesFactory | Dataset

_SPLITS: Final = {"train": "training", "valid": "validation", "test": "testing"}


def read_pykeen(given: PykeenObject) -> tuple[str, dict[str, Triples]]:
    """Return the name of a PyKEEN dataset or factory, and the triples of each split. UserError for another object."""
    name = type(given).__name__
    if hasattr(given, "training"):
        factories = {split: getattr(given, attribute, None) for split, attribute in _SPLITS.items()}
    else:
        factories = {"train": given}
    return name, {split: _read_factory(each, name) for split, each in factories.items() if each is not None}


def _read_factory(factory: Any, name: str) -> Triples:
    if not hasattr(factory, "mapped_triples"):
        raise UserError(
            f"expected the name or the path of a graph, a PyKEEN dataset or triples factory, found {name}",
            where="graph",
            fix="give load_graph a name, a path, a Dataset or a TriplesFactory",
        )
    if not hasattr(factory, "entity_to_id") or not hasattr(factory, "relation_to_id"):
        raise UserError(
            f"expected triples with labels, found ids alone in {type(factory).__name__}",
            where=name,
            fix="give a TriplesFactory, which knows the label of each id",
        )
    entities = {number: str(label) for label, number in factory.entity_to_id.items()}
    relations = {number: str(label) for label, number in factory.relation_to_id.items()}
    rows = factory.mapped_triples.tolist()
    try:
        atoms = tuple(NamedAtom(relations[r], entities[h], entities[t]) for h, r, t in rows)
    except KeyError as error:
        raise UserError(
            f"expected a label for each id, found none for {error}",
            where=name,
            fix="give each entity and each relation of the triples a label",
        ) from error
    return Triples(atoms, ())
