"""Laws that hold for every prover of the semantics: they judge an engine without a reference.

>>> from kgverify.laws import LAWS, check_laws
>>> sorted(LAWS)[:3]
['alone', 'begins-at-candidate', 'candidate-order']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgverify.laws.catalogue import LAWS, find_law
    from kgverify.laws.law import Law, Violation, check_laws
    from kgverify.laws.shrinking import shrink_violation
    from kgverify.laws.statements.machinery_laws import same_as

__all__ = ["LAWS", "Law", "Violation", "check_laws", "find_law", "same_as", "shrink_violation"]

_MODULES = {
    "LAWS": "catalogue",
    "find_law": "catalogue",
    "Law": "law",
    "Violation": "law",
    "check_laws": "law",
    "shrink_violation": "shrinking",
    "same_as": "statements.machinery_laws",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
