"""The protocol of a program's least model, by which an evaluation leaves out candidates that cannot be proved."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class LeastModel(Protocol):
    """Every ground atom that follows from a program (van Emden and Kowalski 1976)."""

    @property
    def num_atoms(self) -> int:
        """The number of ground atoms, facts included."""
        ...

    def read_keys(self) -> NDArray[np.int64]:
        """Return the keys `(predicate * C + first) * C + second` of the atoms, ascending; C is the number of constants."""
        ...

    def contains(self, atoms: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return whether each atom, int32 [n, 3], follows, bool [n]; for an atom with variables, whether an instance does."""
        ...

    def select_entities(self, atoms: NDArray[np.int32], side: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Find the entities that, put in one argument of an atom, int32 [n, 3], make an atom that follows.

        Returns their number for each atom, int64 [n], and the entities, int32, ascending for each atom.
        side: 0 for the first argument, 1 for the second
        """
        ...
