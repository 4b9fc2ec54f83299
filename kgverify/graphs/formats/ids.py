"""Read triples of ids, which two more files name: OpenKE's `train2id.txt`, and triples that PyKEEN saved.

OpenKE keeps names in `entity2id.txt` and `relation2id.txt` (a count, then a name and an id on each line), and triples, after
their count, in the order head, tail, relation. PyKEEN keeps names in `entity_to_id.tsv.gz` and `relation_to_id.tsv.gz` (id and
label), and triples in `numeric_triples.tsv.gz`, in the order head, relation, tail; its `base.pth` is never opened. PyKEEN
objects in memory are read through their attributes: PyKEEN itself is not imported.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from kgverify.errors import UserError
from kgverify.graphs.formats.reading import TextFile, Triples, line_error, show, split_lines
from kgverify.program.atoms import NamedAtom
from kgverify.program.program import Source

_MOST_DIGITS: Final = 18

_Rows: TypeAlias = Sequence[tuple[int, list[str]]]
"""The line and the fields of each row."""
_Names: TypeAlias = tuple[str, Mapping[int, str]]
"""A file that names ids, and the name of each id."""


class IdFormat(NamedTuple):
    """A format of triples of ids.

    stem:  the names of its files, in lower case and without suffixes
    names: the names, written likewise, of the files that name entities and relations
    parse: parses the triples with these two files; UserError at the first invalid line
    """

    stem: re.Pattern[str]
    names: tuple[str, str]
    parse: Callable[[TextFile, TextFile, TextFile], Triples]


def parse_openke(triples: TextFile, entities: TextFile, relations: TextFile) -> Triples:
    """Parse the triples of an OpenKE file with the names from two other files. UserError at the first invalid line."""
    names = [_read_names(file, _read_openke_names(file)) for file in (entities, relations)]
    listed = [(line, text.split()) for line, text in split_lines(triples.text) if text.strip()]
    rows = _drop_count(listed, triples.name, "triple")
    named = _name_ids(triples.name, rows, "head tail relation", names)
    is_train = triples.name.lower().startswith("train")  # A small file of other triples may fit by chance.
    fits = all(int(second) in names[1][1] and int(third) in names[0][1] for _, (_, second, third) in rows)
    if rows and is_train and fits:
        doubt = "read as head, tail, relation; by their ids, the columns may also be head, relation, tail"
        named = named._replace(warnings=(f"{Source(triples.name, rows[0][0])}: {doubt}",))
    return named


def parse_pykeen(triples: TextFile, entities: TextFile, relations: TextFile) -> Triples:
    """Parse triples that PyKEEN saved, with the labels from two other files. UserError at the first invalid line."""
    names = [_read_names(file, _read_pykeen_names(file)) for file in (entities, relations)]
    header, *rows = [(line, text.split("\t")) for line, text in split_lines(triples.text)] or [(1, [])]
    if header[1] != ["head", "relation", "tail"]:
        raise _wrong_row(triples.name, *header, "the header row head<TAB>relation<TAB>tail")
    return _name_ids(triples.name, rows, "head<TAB>relation<TAB>tail", names)


OPENKE: Final = IdFormat(re.compile(r".*2id"), ("entity2id", "relation2id"), parse_openke)
PYKEEN: Final = IdFormat(re.compile("numeric_triples"), ("entity_to_id", "relation_to_id"), parse_pykeen)


def _read_openke_names(file: TextFile) -> Iterator[tuple[int, str, str]]:
    """Return the line, the id and the name of each row."""
    lines = [(number, text.strip(" \t")) for number, text in split_lines(file.text)]
    rows = [(number, line.rsplit("\t" if "\t" in line else " ", 1)) for number, line in lines if line]
    for number, fields in _drop_count(rows, file.name, "name"):
        if len(fields) != 2 or not fields[0].strip(" \t"):
            raise _wrong_row(file.name, number, fields, "name<TAB>id")
        yield number, fields[1].strip(" \t"), fields[0].strip(" \t")


def _read_pykeen_names(file: TextFile) -> Iterator[tuple[int, str, str]]:
    """Return the line, the id and the label of each row."""
    reader = csv.reader((text for _, text in split_lines(file.text)), delimiter="\t", strict=True)
    try:
        for i, fields in enumerate(reader, 1):
            if len(fields) != 2 or not all(fields) or reader.line_num != i:
                raise _wrong_row(file.name, i, fields, "id<TAB>label")
            if i > 1:
                yield i, fields[0], fields[1]
            elif fields != ["id", "label"]:
                raise _wrong_row(file.name, i, fields, "the header row id<TAB>label")
    except csv.Error as error:
        fix = "save the triples with PyKEEN again"
        raise line_error(Source(file.name, reader.line_num), "id<TAB>label", str(error), fix) from error


def _drop_count(rows: _Rows, file: str, noun: str) -> _Rows:
    """Return the rows after the line with their count. UserError if the count is wrong."""
    if not rows or len(rows[0][1]) != 1 or (number := _parse_id(rows[0][1][0])) is None:
        return rows
    if number != len(rows) - 1:
        expected = f"the number of {noun}s below, {len(rows) - 1:,}"
        fix = "the file may be cut off: get it again, or correct the number"
        raise line_error(Source(file, rows[0][0]), expected, f"{number:,}", fix)
    return rows[1:]


def _read_names(file: TextFile, rows: Iterable[tuple[int, str, str]]) -> _Names:
    """Return the name of each id. UserError for a name with two ids, or an id with two names."""
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
    return file.name, ids


def _name_ids(file: str, rows: _Rows, form: str, names: Sequence[_Names]) -> Triples:
    """Replace the ids in triples by the names of entities and relations."""
    words, atoms = form.replace("<TAB>", " ").split(), []
    for line, fields in rows:
        if len(fields) != 3:
            raise _wrong_row(file, line, fields, form)
        found = {}
        for word, written in zip(words, fields, strict=True):
            name_file, ids = names[word == "relation"]
            number = _parse_id(written)
            if number is None or number not in ids:
                fix = f"write the columns in the order {', '.join(words)}, with ids that {name_file} lists"
                raise line_error(Source(file, line), f"an id of {name_file} as {word}", show(written), fix)
            found[word] = ids[number]
        atoms.append(NamedAtom(found["relation"], found["head"], found["tail"]))
    return Triples(tuple(atoms), tuple(line for line, _ in rows))


def _parse_id(text: str) -> int | None:
    """Return a number written in ASCII digits; None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _wrong_row(file: str, line: int, fields: Sequence[str], expected: str) -> UserError:
    return line_error(Source(file, line), expected, show("\t".join(fields)), "correct the line")


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
