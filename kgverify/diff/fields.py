"""Which columns two traces share, and bringing both into one numbering of names."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kgverify.logic.outcomes import Origin
from kgverify.logic.program import Symbols
from kgverify.trace.columns import Columns, Resolvents
from kgverify.trace.digests import compute_digests
from kgverify.trace.trace import Trace


def column_names(columns: Columns) -> frozenset[str]:
    """Every column of a trace: `steps.choice` and so on."""
    return frozenset(f"{level}.{field}" for level in columns._fields for field in getattr(columns, level)._fields)


def share_fields(expected: Trace, actual: Trace) -> tuple[Trace, Trace, tuple[str, ...]]:
    """Blank in each trace the columns that the other lacks; and the names of those columns."""
    every = column_names(expected.columns)
    lacking = tuple(sorted((every - expected.fields) | (every - actual.fields)))
    if not lacking:
        return expected, actual, ()
    return _blank(expected, lacking), _blank(actual, lacking), lacking


def _blank(trace: Trace, fields: tuple[str, ...]) -> Trace:
    columns = trace.columns
    for name in fields:
        level, field = name.split(".")
        zeros = np.zeros_like(getattr(getattr(columns, level), field))
        columns = columns._replace(**{level: getattr(columns, level)._replace(**{field: zeros})})
    return replace(trace, columns=columns, digests=compute_digests(columns))


def share_symbols(expected: Trace, actual: Trace) -> Trace:
    """The actual trace in the expected one's ids, name by name; names that only it has get further ids."""
    if expected.symbols == actual.symbols:
        return actual
    predicates, predicate_map = _merge(expected.symbols.predicates, actual.symbols.predicates)
    constants, constant_map = _merge(expected.symbols.constants, actual.symbols.constants)

    def convert(atoms: NDArray[np.int32]) -> NDArray[np.int32]:
        converted = atoms.copy()
        converted[:, 0] = predicate_map[atoms[:, 0]]
        for column in (1, 2):
            is_constant = atoms[:, column] >= 0
            converted[is_constant, column] = constant_map[atoms[is_constant, column]]
        return converted

    c = actual.columns
    columns = Columns(
        c.candidates._replace(atom=convert(c.candidates.atom)),
        c.steps._replace(goal_atoms=convert(c.steps.goal_atoms)),
        c.resolvents._replace(atoms=convert(c.resolvents.atoms)),
    )
    facts = None if actual.facts is None else convert(actual.facts)
    fields = actual.fields
    if facts is None or expected.facts is None:
        # Facts are numbered by the order of ids, which is another one here.
        fields -= {"resolvents.origin_kind", "resolvents.origin"}
    else:
        columns = columns._replace(resolvents=_number_facts(columns.resolvents, facts, expected.facts))
    return replace(
        actual,
        symbols=Symbols(predicates, constants),
        columns=columns,
        digests=compute_digests(columns),
        facts=facts,
        fields=fields,
    )


def _number_facts(resolvents: Resolvents, facts: NDArray[np.int32], expected: NDArray[np.int32]) -> Resolvents:
    """Origins that are facts, by their place among the expected facts; -1 for a fact that is not among them."""
    places = {fact: i for i, fact in enumerate(map(tuple, expected.tolist()))}
    numbers = np.array([places.get(tuple(fact), -1) for fact in facts.tolist()] or [-1], np.int32)
    is_fact = resolvents.origin_kind == Origin.FACT
    origin = resolvents.origin.copy()
    origin[is_fact] = numbers[resolvents.origin[is_fact]]
    return resolvents._replace(origin=origin)


def _merge(expected: tuple[str, ...], actual: tuple[str, ...]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    ids = {name: i for i, name in enumerate(expected)}
    mapping = [ids.setdefault(name, len(ids)) for name in actual]
    return tuple(ids), np.array(mapping or [0], np.int32)
