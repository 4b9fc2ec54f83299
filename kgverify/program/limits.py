"""The limits of a derivation and the options of its semantics."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kgverify.arguments import check_fields
from kgverify.errors import UserError
from kgverify.program.dialect import OURS, Dialect

MAX_ATOMS: Final = 31
MAX_RESOLVENTS: Final = 1 << 20
MAX_DEPTH: Final = (1 << 16) - 1

NUMBERS: Final = ("max_depth", "max_atoms", "max_resolvents", "exclude_query")
"""The fields of limits except for the dialect."""


class DeclaredLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits that the header of a trace declares; None where they are unknown. The fields are those of `Limits`."""

    max_depth: int | None = None
    max_atoms: int | None = None
    max_resolvents: int | None = None
    exclude_query: bool | None = None
    dialect: Dialect | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name, value, most in (
            ("max_depth", self.max_depth, MAX_DEPTH),
            ("max_atoms", self.max_atoms, MAX_ATOMS),
            ("max_resolvents", self.max_resolvents, MAX_RESOLVENTS),
        ):
            if value is not None and not 1 <= value <= most:
                raise UserError(
                    f"{name} is {value}, expected 1 to {most}",
                    where=name,
                    fix=f"choose a {name} from 1 to {most}",
                )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeclaredLimits) and msgspec.structs.astuple(self) == msgspec.structs.astuple(other)

    def __hash__(self) -> int:
        return hash(msgspec.structs.astuple(self))

    def with_defaults(self) -> "Limits":
        """Return the limits with the default of each unknown one."""
        return Limits(**{name: value for name, value in msgspec.structs.asdict(self).items() if value is not None})

    def describe(self) -> str:
        """Return the limits as text; the default dialect is not named."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.dialect == OURS:
            del values["dialect"]
        return ", ".join(f"{name}={'unknown' if value is None else value}" for name, value in values.items())

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of the limits that are unknown."""
        return tuple(name for name in self.__struct_fields__ if getattr(self, name) is None)


class Limits(DeclaredLimits, frozen=True, forbid_unknown_fields=True):
    """The limits of a derivation. Defaults: the sizes published for GPU evaluators.

    max_depth:      resolution steps before DEPTH_LIMIT (1 to 65535)
    max_atoms:      atoms of a resolvent (1 to 31)
    max_resolvents: resolvents of a step (1 to 1048576)
    exclude_query:  whether the query may not serve as a fact in its own derivation
    dialect:        the choices in which engines that are right differ; a `kgverify.program.dialect.Dialect`

    Example:
        >>> import kgverify as kv
        >>> kv.Limits(max_depth=3).max_atoms
        6
        >>> kv.Limits(max_depth=0)
        Traceback (most recent call last):
        ...
        kgverify.errors.UserError: max_depth: max_depth is 0, expected 1 to 65535
        fix: choose a max_depth from 1 to 65535
    """

    max_depth: int = 20
    max_atoms: int = 6
    max_resolvents: int = 120
    exclude_query: bool = True
    dialect: Dialect = OURS


def declare_limits(limits: DeclaredLimits | Mapping[str, Any] | None, where: str) -> DeclaredLimits:
    """Return the limits that a mapping names, a `Limits` if it names all. UserError for a name that no limit has."""
    if isinstance(limits, DeclaredLimits):
        return limits
    try:
        declared = DeclaredLimits(**(limits or {}))
    except TypeError as error:
        names = ", ".join(DeclaredLimits.__struct_fields__)
        raise UserError(f"limits: {error}", where=where, fix=f"choose from {names}") from None
    return declared if declared.unknown else declared.with_defaults()
