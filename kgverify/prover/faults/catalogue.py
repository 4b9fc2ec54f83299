"""The catalogue of faults, by name, and of composites: systems that had several of them at once.

It is `catalogue.toml`, and can be read without torch: `kgverify.prover.faults.plant` imports the functions that plant the faults.
"""

from collections.abc import Sequence
from importlib.resources import files

import msgspec

from kgverify.errors import UserError, suggest
from kgverify.prover.faults.fault import Composite, Fault


class _Catalogue(msgspec.Struct, forbid_unknown_fields=True):
    faults: list[Fault]
    composites: list[Composite]


_CATALOGUE = msgspec.toml.decode(
    files("kgverify.prover.faults").joinpath("catalogue.toml").read_bytes(), type=_Catalogue
)

FAULTS: dict[str, Fault] = {fault.name: fault for fault in _CATALOGUE.faults}
COMPOSITES: dict[str, Composite] = {composite.name: composite for composite in _CATALOGUE.composites}


def find_faults(names: Sequence[str]) -> tuple[Fault, ...]:
    """Return the faults of the names in order, each once, composites expanded. UserError for an unknown name."""
    known = (*FAULTS, *COMPOSITES)
    for name in names:
        if name not in known:
            raise _unknown(name, known)
    parts = (part for name in names for part in (COMPOSITES[name].parts if name in COMPOSITES else (name,)))
    return tuple(FAULTS[part] for part in dict.fromkeys(parts))


def _unknown(name: str, known: Sequence[str] | dict[str, Fault]) -> UserError:
    return UserError(
        f"unknown fault {name!r}",
        where="faults",
        fix=suggest(name, known) or "choose one that `kgverify diff --fault list` shows",
    )
