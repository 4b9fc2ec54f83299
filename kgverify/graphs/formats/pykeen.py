"""Take the triples out of PyKEEN's objects in memory, by their attributes: PyKEEN itself is not imported."""

from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeAlias

from kgverify.errors import UserError
from kgverify.graphs.formats.reading import Triples
from kgverify.program.atoms import NamedAtom


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
