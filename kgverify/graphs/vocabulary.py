"""A vocabulary: the symbols of a program in the order of their ids, whether they occur in it or not."""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Final, TypeAlias

from kgverify.errors import UserError, count_of
from kgverify.graphs.graph import GraphFiles, KnowledgeGraph
from kgverify.program.program import Symbols

Items: TypeAlias = tuple[str | int, ...]
"""Names, and numbers of unused symbols between them."""

FILLER: Final = "~"
"""The prefix of unused symbols, repeated if a vocabulary itself has such names."""
MOST_SHOWN: Final = 12
"""The largest number of names and numbers of either kind in a text."""
MAX_UNUSED: Final = 1 << 22
"""The largest number of unused symbols of either kind."""


@dataclass(frozen=True)
class Vocabulary:
    """The symbols of a problem in the order of their ids: names, and numbers of unused symbols between them.

    predicates, constants: a number stands for that many unused symbols, whose names do not matter
    is_closed: whether no other symbol may occur; otherwise, other symbols are numbered after these
    graph:     the files of the graph that has exactly these symbols; None if they are not those of such a graph

    UserError for a name that occurs twice, and for a wrong number.

    Example:
        >>> import kgverify as kv
        >>> ids = kv.Vocabulary(predicates=("p",), constants=("a", 254, "b"))
        >>> ids.symbols.constant_ids["b"], len(ids)
        (255, 257)
    """

    predicates: Items = ()
    constants: Items = ()
    is_closed: bool = False
    graph: GraphFiles | None = None

    def __post_init__(self) -> None:
        for kind, items in (("predicates", self.predicates), ("constants", self.constants)):
            numbers = [item for item in items if isinstance(item, int)]
            if numbers and not 0 < min(numbers) <= sum(numbers) <= MAX_UNUSED:
                message = (
                    f"expected numbers of 1 to {MAX_UNUSED:,} unused symbols, found {min(numbers)} to {sum(numbers)}"
                )
                raise UserError(message, where=f"vocabulary.{kind}", fix="give fewer, or leave out a 0")
            if len(set(items) - set(numbers)) + len(numbers) < len(items):
                raise UserError("a name occurs twice", where=f"vocabulary.{kind}", fix="give each symbol once")

    @classmethod
    def of(cls, graph: KnowledgeGraph) -> "Vocabulary":
        """Return the symbols of a graph, as an engine knows them that was trained on it: no others can occur."""
        symbols = graph.program.symbols
        made = cls(symbols.predicates, symbols.constants, is_closed=True, graph=graph.loaded)
        vars(made)["symbols"] = symbols
        return made

    def __hash__(self) -> int:
        # A graph has many symbols, and few vocabularies are compared.
        return hash((len(self.predicates), len(self.constants), self.is_closed))

    def __len__(self) -> int:
        """Return the number of symbols."""
        return len(self.symbols.predicates) + len(self.symbols.constants)

    @cached_property
    def symbols(self) -> Symbols:
        """The symbols, with names for the unused ones."""
        return Symbols(tuple(_name_all(self.predicates)), tuple(_name_all(self.constants)))

    @cached_property
    def digest(self) -> str:
        """A digest of the names in order."""
        names = "\n".join((*self.symbols.predicates, "", *self.symbols.constants))
        return hashlib.sha256(names.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def open(self, predicates: Collection[str], constants: Collection[str]) -> "Vocabulary":
        """Return the same numbers for these symbols, without the names of the others; further symbols may occur."""
        return Vocabulary(_hide(self.predicates, predicates), _hide(self.constants, constants))

    def rename(self, predicates: Mapping[str, str], constants: Mapping[str, str]) -> "Vocabulary":
        """Return the vocabulary with names replaced; a symbol whose new name occurs before becomes an unused one.

        The symbols of a closed vocabulary keep their names.
        """
        if self.is_closed or not self:
            return self
        return Vocabulary(_rename(self.predicates, predicates), _rename(self.constants, constants))

    def list_unused(self) -> Iterator[tuple[str, int, int]]:
        """Yield each number of unused symbols, after its kind, `constants` or `predicates`, and its index there."""
        for kind in ("constants", "predicates"):
            items: Items = getattr(self, kind)
            yield from ((kind, at, item) for at, item in reversed([*enumerate(items)]) if isinstance(item, int))

    def with_unused(self, kind: str, at: int, num: int) -> "Vocabulary":
        """Return the vocabulary with another number of unused symbols at an index."""
        items: Items = getattr(self, kind)
        changed: Any = {kind: items[:at] + (num,) * (num > 0) + items[at + 1 :]}
        return replace(self, **changed)

    def __str__(self) -> str:
        """Return the symbols as text: all of a graph by their numbers, or each name and each number."""
        if self.is_closed:
            sizes = (len(self.symbols.predicates), "predicate"), (len(self.symbols.constants), "constant")
            name = f" {self.graph.spec or self.graph.train[0]}" if self.graph is not None else ""
            return f"the graph{name}'s {' and '.join(count_of(*each) for each in sizes)}"
        kinds = (("predicates", self.predicates), ("constants", self.constants))
        return "; ".join(f"{title} {_describe(items)}" for title, items in kinds if items)


NO_VOCABULARY: Final = Vocabulary()


def free_prefix(prefix: str, names: Collection[str], more: str) -> str:
    """Return the prefix, followed by `more` as often as necessary, so that no name begins with it."""
    taken = tuple(names)
    while any(name.startswith(prefix) for name in taken):
        prefix += more
    return prefix


def _name_all(items: Items) -> Iterator[str]:
    prefix, number = free_prefix(FILLER, [item for item in items if isinstance(item, str)], FILLER), 0
    for item in items:
        num = item if isinstance(item, int) else 1
        yield from [item] if isinstance(item, str) else (f"{prefix}{i}" for i in range(number, number + num))
        number += num


def _describe(items: Items) -> str:
    shown = [f"{item:,} unused" if isinstance(item, int) else item for item in items[:MOST_SHOWN]]
    return ", ".join(shown) + (f" and {len(items) - len(shown):,} more" if len(items) > len(shown) else "")


def _hide(items: Items, used: Collection[str]) -> Items:
    """Return the items with numbers in place of unused names, and each run of numbers as one."""
    known: dict[Any, None] = dict.fromkeys(used)
    hidden: list[str | int] = []
    for is_name, run in groupby(items, key=known.__contains__):
        some = list(run)
        hidden += some if is_name else [sum(item if isinstance(item, int) else 1 for item in some)]
    return tuple(hidden)


def _rename(items: Items, names: Mapping[str, str]) -> Items:
    renamed: list[str | int] = []
    seen: set[str] = set()
    for item in items:
        if isinstance(item, str):
            name = names.get(item, item)
            item = 1 if name in seen else name
            seen.add(name)
        renamed.append(item)
    return tuple(renamed)
