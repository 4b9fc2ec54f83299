"""Which columns two traces share, and bringing both into one numbering of names."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kgverify.program.outcomes import Origin
from kgverify.program.program import Symbols
from kgverify.trace.model.columns import Columns, Resolvents, StageItems, no_stage_items
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.trace import Trace


def column_names(columns: Columns) -> frozenset[str]:
    """Every column that traces are compared by: `steps.choice` and so on."""
    compared = (level for level in columns._fields if level != "stages")
    return frozenset(f"{level}.{field}" for level in compared for field in getattr(columns, level)._fields)


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
    return actual if expected.symbols == actual.symbols else SymbolMap(expected, actual).convert(actual)


class SymbolMap:
    """From the ids of one trace to those of another, by name; made once, whatever part of the trace is converted."""

    def __init__(self, expected: Trace, actual: Trace) -> None:
        predicates, self._predicate_map = _merge(expected.symbols.predicates, actual.symbols.predicates)
        constants, self._constant_map = _merge(expected.symbols.constants, actual.symbols.constants)
        self._symbols = Symbols(predicates, constants)
        self._facts = None if actual.facts is None else self.convert_atoms(actual.facts)
        self._numbers = None
        if self._facts is not None and expected.facts is not None:
            self._numbers = _number_facts(self._facts, expected.facts)

    def convert_atoms(self, atoms: NDArray[np.int32]) -> NDArray[np.int32]:
        """int32 [n, 3]: atoms of the actual trace in the expected one's ids."""
        converted = atoms.copy()
        converted[:, 0] = self._predicate_map[atoms[:, 0]]
        for column in (1, 2):
            is_constant = atoms[:, column] >= 0
            converted[is_constant, column] = self._constant_map[atoms[is_constant, column]]
        return converted

    def convert(self, actual: Trace) -> Trace:
        """The actual trace, or some candidates of it, in the expected one's ids."""
        c = actual.columns
        columns = Columns(
            c.candidates._replace(atom=self.convert_atoms(c.candidates.atom)),
            c.steps._replace(goal_atoms=self.convert_atoms(c.steps.goal_atoms)),
            c.resolvents._replace(atoms=self.convert_atoms(c.resolvents.atoms)),
            self._convert_items(c.stages),
        )
        fields = actual.fields
        if self._numbers is None:
            # Facts are numbered by the order of ids, which is another one here.
            fields -= {"resolvents.origin_kind", "resolvents.origin"}
        else:
            origin = self._convert_origins(c.resolvents)
            columns = columns._replace(resolvents=columns.resolvents._replace(origin=origin))
        return replace(
            actual,
            symbols=self._symbols,
            columns=columns,
            digests=compute_digests(columns),
            facts=self._facts,
            fields=fields,
        )

    def _convert_items(self, items: StageItems) -> StageItems:
        """What the stages gave; nothing where it names facts that cannot be found again."""
        if self._numbers is None:
            return no_stage_items()
        atoms, is_atom = items.atoms.copy(), items.atoms[:, 0] >= 0
        atoms[is_atom] = self.convert_atoms(atoms[is_atom])
        return items._replace(atoms=atoms, origin=self._convert_origins(items))

    def _convert_origins(self, made_by: Resolvents | StageItems) -> NDArray[np.int32]:
        assert self._numbers is not None
        is_fact = made_by.origin_kind == Origin.FACT
        origin = made_by.origin.copy()
        origin[is_fact] = self._numbers[origin[is_fact]]
        return origin


def _number_facts(facts: NDArray[np.int32], expected: NDArray[np.int32]) -> NDArray[np.int32]:
    """The place of each fact among the expected facts; -1 for a fact that is not among them."""
    places = {fact: i for i, fact in enumerate(map(tuple, expected.tolist()))}
    return np.array([places.get(tuple(fact), -1) for fact in facts.tolist()] or [-1], np.int32)


def _merge(expected: tuple[str, ...], actual: tuple[str, ...]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    ids = {name: i for i, name in enumerate(expected)}
    mapping = [ids.setdefault(name, len(ids)) for name in actual]
    return tuple(ids), np.array(mapping or [0], np.int32)
