"""The limits of a derivation and the options of its semantics."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from kgverify.arguments import check_fields
from kgverify.errors import UserError, check_known, suggest
from kgverify.files.reading import read_toml
from kgverify.files.writing import write_file

Filter: TypeAlias = Literal["prune", "revisit", "duplicates", "close", "max_atoms", "max_resolvents"]

_PAGE: Final = "docs/semantics.md explains each switch of a dialect"


class Search(NamedTuple):
    """The derivations that are followed for a candidate.

    kind: `greedy`, `beam`, `sample` or `all`
    size: how many paths a level keeps at most; the number of samples
    seed: the seed of the samples
    """

    kind: str = "greedy"
    size: int = 1
    seed: int = 0

    def __str__(self) -> str:
        """Return the text that `parse_search` reads."""
        numbers = {"greedy": "", "sample": f"({self.size}, {self.seed})"}
        return self.kind + numbers.get(self.kind, f"({self.size})")


_SEARCH: Final = re.compile(r"(greedy)|(?:(beam|all)\((\d{1,9})\)|(sample)\((\d{1,9}), *(\d{1,19})\))")


def parse_search(text: object) -> Search:
    """Return the search of this text: `greedy`, `beam(8)`, `sample(16, 0)`, `all(1000)`. UserError for another text."""
    found = _SEARCH.fullmatch(text) if isinstance(text, str) else None
    greedy, kind, size, sample, num, seed = found.groups() if found else [None] * 6
    search = Search(greedy or kind or sample or "", int(size or num or 1), int(seed or 0))
    if not search.kind or not search.size:
        raise UserError(
            f"search is {text!r}, expected greedy, beam(k), sample(n, seed) or all(limit), k, n and limit from 1 to"
            " 999999999",
            where="search",
            fix="write, for example, beam(8), sample(16, 0) or all(1000)",
        )
    return search


class Dialect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The choices of an engine, each with the default of docs/semantics.md.

    unification:     how the selected atom is unified with a clause head
    order:           the order of the resolvents of rules and of facts
    is_reversed:     whether the clauses of each kind are tried from the last to the first
    exclusion:       whether a query is excluded as a fact in its own derivation
    filters:         the filters, in the order in which they are applied; a filter that is not listed is not applied
    long_resolvents: how the filter `max_atoms` treats resolvents with too many atoms
    memory:          how the filter `revisit` remembers visited goals
    forgets_names:   whether visited goals are compared up to renaming
    exempts_terminal: whether `revisit` keeps a resolvent without atoms
    stopping:        whether the policy is offered an action that ends the derivation as FAILED
    skips_unary:     whether a step is not counted if its only resolvent is a goal
    unproved:        the ranking score of unproved candidates
    ties:            the rank among equal scores
    search:          the derivations that are followed: `greedy`, `beam(k)`, `sample(n, seed)` or `all(limit)`
    merge:           how a beam merges paths with the same goal
    aggregate:       how the proofs of a candidate give its log-probability

    UserError for a value that a switch does not support, and for a filter that occurs twice.

    Example:
        >>> import kgverify as kv
        >>> from kgverify.program.limits import Dialect
        >>> kv.Limits(dialect=Dialect(unification="one_pass", memory="set")).dialect.order
        'rules_first'
        >>> Dialect(memory="sets")
        Traceback (most recent call last):
        ...
        kgverify.errors.UserError: memory: memory is 'sets', expected sequence, none or set
        fix: did you mean 'set'?
    """

    unification: Literal["complete", "one_pass"] = "complete"
    order: Literal["rules_first", "facts_first"] = "rules_first"
    is_reversed: bool = False
    exclusion: Literal["always", "positives_only", "never"] = "always"
    filters: tuple[Filter, ...] = ("prune", "revisit", "close", "max_atoms", "max_resolvents")
    long_resolvents: Literal["reject", "truncate"] = "reject"
    memory: Literal["sequence", "none", "set"] = "sequence"
    forgets_names: bool = True
    exempts_terminal: bool = False
    stopping: Literal["never", "where_no_terminal"] = "never"
    skips_unary: bool = False
    unproved: Literal["subtract_100", "log_probability"] = "subtract_100"
    ties: Literal["realistic", "optimistic", "pessimistic", "random"] = "realistic"
    search: str = "greedy"
    merge: Literal["none", "max", "sum"] = "none"
    aggregate: Literal["max", "sum", "noisy_or"] = "max"

    def __post_init__(self) -> None:
        kind = self.searching.kind
        for name, kinds in (("merge", ("beam", "all")), ("aggregate", ("beam", "sample", "all"))):
            if kind not in kinds and getattr(self, name) != _SEARCHING[name][0]:
                raise UserError(
                    f"{name} is {getattr(self, name)!r}, and search {kind} has nothing to {name}",
                    where=name,
                    fix=f"leave it out, or search by {' or '.join(kinds)}",
                )
        for name, values in (VALUES | _SEARCHING).items():
            found = getattr(self, name)
            if found not in values or type(found) is not type(values[0]):
                raise _bad_value(name, found, values)
        if not isinstance(self.filters, (tuple, list)):
            raise _bad_value("filters", self.filters, (FILTERS,))
        msgspec.structs.force_setattr(self, "filters", tuple(self.filters))
        for each in self.filters:
            if each not in FILTERS:
                raise _bad_value("filters", each, FILTERS)
            if self.filters.count(each) > 1:
                raise UserError(f"applies {each} more than once", where="filters", fix="name each filter once")

    @property
    def searching(self) -> Search:
        """The search, parsed."""
        return parse_search(self.search)

    @property
    def of_step(self) -> "Dialect":
        """The same dialect without the switches of a search."""
        return msgspec.structs.replace(self, **{name: getattr(OURS, name) for name in SEARCHES})

    def __str__(self) -> str:
        """Return the switches that differ from the default: `unification one_pass, memory set`; or `default`."""
        changed = [name for name in self.__struct_fields__ if getattr(self, name) != getattr(OURS, name)]
        return ", ".join(f"{name} {show_value(getattr(self, name))}" for name in changed) or "default"


FILTERS: Final[tuple[Filter, ...]] = get_args(Filter)
"""Every filter of a dialect."""

_KINDS: Final = {name: get_args(kind) or (False, True) for name, kind in Dialect.__annotations__.items()}

_SEARCHING: Final[dict[str, tuple[Any, ...]]] = {name: _KINDS[name] for name in ("merge", "aggregate")}

SEARCHES: Final = ("search", *_SEARCHING)
"""The switches of a search."""

VALUES: Final[dict[str, tuple[Any, ...]]] = {
    name: values for name, values in _KINDS.items() if name not in ("filters", *SEARCHES)
}
"""The values of each switch of a single derivation, except `filters`. If they are names, the default comes first."""

RANKED: Final = ("unproved", "ties")
"""The switches that affect only ranks."""

UNSEEN: Final = ("exempts_terminal",)
"""The switches that no derivation shows, since a derivation ends with its first proof."""

OURS: Final = Dialect()
"""The dialect of docs/semantics.md, the default of kgverify's own provers."""


def describe_differences(expected: Dialect, actual: Dialect) -> list[str]:
    """Return a sentence for each switch in which two dialects differ.

    Example:
        >>> from kgverify.program.limits import Dialect, describe_differences
        >>> describe_differences(Dialect(), Dialect(memory="set"))
        ['memory is sequence in the expected dialect and set in the actual one']
    """
    return [
        f"{name} is {show_value(old)} in the expected dialect and {show_value(new)} in the actual one"
        for name in Dialect.__struct_fields__
        if (old := getattr(expected, name)) != (new := getattr(actual, name))
    ]


def read_dialect(path: Path) -> Dialect:
    """Read a dialect from a TOML file. Switches that the file omits have their defaults.

    UserError if the file cannot be read, or does not hold a dialect.
    """
    where, found = str(path), read_toml(path, purpose="a dialect, as TOML", fix=_PAGE)
    for name in found:
        check_known(name, Dialect.__struct_fields__, "switch", where)
    try:
        return Dialect(**found)
    except UserError as error:
        raise UserError(error.message, where=f"{where}: {error.where}", fix=error.fix) from None


def write_dialect(dialect: Dialect, path: Path) -> None:
    """Write a dialect as a TOML file. UserError if it cannot be written."""
    write_file(path, render_dialect(dialect))


def render_dialect(dialect: Dialect) -> str:
    """Render a dialect as TOML, with every switch."""
    lines = ["# The dialect of an engine, for --limits dialect=FILE. docs/semantics.md explains each switch."]
    for name in Dialect.__struct_fields__:
        value = getattr(dialect, name)
        if isinstance(value, tuple):
            lines.append(f"{name} = [{', '.join(map(_quote, value))}]")
        else:
            lines.append(f"{name} = {show_value(value) if isinstance(value, bool) else _quote(value)}")
    return "\n".join(lines) + "\n"


def _quote(value: str) -> str:
    return f'"{value}"'


def show_value(value: Any) -> str:
    """Return the value of a switch as messages and files show it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


def _bad_value(name: str, found: object, values: tuple[Any, ...]) -> UserError:
    *most, last = map(show_value, values)
    expected = f"{', '.join(most)} or {last}" if most else f"names from {last}"
    return UserError(
        f"{name} is {found!r}, expected {expected}",
        where=name,
        fix=(suggest(found, map(str, values)) if isinstance(found, str) else "") or _PAGE,
    )


MAX_ATOMS: Final = 31
MAX_RESOLVENTS: Final = 1 << 20
MAX_DEPTH: Final = (1 << 16) - 1

NUMBERS: Final = ("max_depth", "max_atoms", "max_resolvents", "exclude_query")
"""The fields of limits except for the dialect."""


class DeclaredLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits that the header of a trace declares; None if unknown. The fields are those of `Limits`."""

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

    def completed(self, others: "DeclaredLimits") -> "DeclaredLimits":
        """Return the limits; an unknown one is that of others."""
        own = msgspec.structs.asdict(self)
        return msgspec.structs.replace(others, **{name: each for name, each in own.items() if each is not None})

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
    dialect:        the choices in which correct engines may differ; a `kgverify.program.limits.Dialect`

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
    """Return the limits in a mapping: a `Limits` if the mapping is complete. UserError for a name that is not a limit."""
    if isinstance(limits, DeclaredLimits):
        return limits
    try:
        declared = DeclaredLimits(**(limits or {}))
    except TypeError as error:
        names = ", ".join(DeclaredLimits.__struct_fields__)
        raise UserError(f"limits: {error}", where=where, fix=f"choose from {names}") from None
    return declared if declared.unknown else declared.with_defaults()
