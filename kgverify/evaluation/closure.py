"""The check of a least model: whether the rules conclude exactly its atoms.

If the model contains the facts and every conclusion from its atoms, nothing that follows is missing (van Emden and Kowalski
1976). If every atom that is not a fact is a conclusion, every atom is supported. The check shares no code with the model: it
applies every rule once to the whole model, by sorting and searching numpy arrays.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.evaluation.joins import Joins
from kgverify.program.program import Program
from kgverify.ranking.draw import number_atoms

MOST_ROWS: Final = 1 << 26
"""The maximum number of rows of all joins together. At this limit the check stops and is incomplete."""


class ModelCheck(NamedTuple):
    """The result of the check.

    missing:     int64 [m, 3]  atoms that follow in one step from the model but are not in it
    unsupported: int64 [u, 3]  atoms of the model that are neither facts nor conclusions; empty if the check is incomplete
    num_atoms:   the number of atoms of the model
    num_rows:    the number of rows of all joins
    is_complete: whether every rule was applied to the whole model
    """

    missing: NDArray[np.int64]
    unsupported: NDArray[np.int64]
    num_atoms: int
    num_rows: int
    is_complete: bool

    @property
    def is_closed(self) -> bool:
        """True if the model certainly contains everything that follows."""
        return self.is_complete and not len(self.missing)


def check_model(program: Program, keys: NDArray[np.int64], most_rows: int = MOST_ROWS) -> ModelCheck:
    """Check a model of the program, given as the keys `(predicate * C + first) * C + second`; C is the number of constants."""
    size = max(1, len(program.symbols.constants))
    keys = np.unique(keys)
    predicate, rest = np.divmod(keys, size * size)
    atoms = np.column_stack((predicate, *np.divmod(rest, size)))
    facts = program.facts.astype(np.int64)
    concluded = [number_atoms(facts, size)]
    joins = Joins(atoms, size, most_rows)
    for rule in program.rules:
        concluded += [np.unique(number_atoms(heads, size)) for heads in joins.apply(rule.clause_head, rule.body)]
        if joins.is_exhausted:
            break
    every = np.unique(np.concatenate(concluded))
    missing = every[~np.isin(every, keys, assume_unique=True)]
    unsupported = keys[:0] if joins.is_exhausted else keys[~np.isin(keys, every, assume_unique=True)]
    return ModelCheck(
        _decode(missing, size), _decode(unsupported, size), len(keys), joins.num_rows, not joins.is_exhausted
    )


def _decode(keys: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    return np.column_stack((keys // size**2, keys // size % size, keys % size))
