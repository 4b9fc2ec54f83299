"""A knowledge graph: triples of three splits, rules, domains and their sources."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.codes import Coded
from kgverify.errors import UserError, count_of, suggest
from kgverify.escaping import ShownAsText, escape_notebook, make_visible
from kgverify.program.atom_table import AtomTable, number_rows, sort_rows
from kgverify.program.atoms import NamedAtom
from kgverify.program.outcomes import Side
from kgverify.program.program import NO_SYMBOLS, NamedRule, Program, Symbols, render_named

Split: TypeAlias = Literal["train", "valid", "test"]

_ROW: Final = np.dtype((np.void, 12))
"""The data type of a triple as raw bytes."""
MOST_LISTED: Final = 10
"""The number of rules, and of triples of each split, that a notebook shows."""


class GraphFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The arguments of `load_graph` as texts, so that a graph can be loaded again."""

    spec: str | None = None
    train: tuple[str, ...] = ()
    valid: str | None = None
    test: str | None = None
    rules: str | None = None
    domains: str | None = None
    rule_variables: str | None = None
    skip_rules: bool = False
    columns: str | None = None


class GraphFile(NamedTuple):
    """A source file of the graph: its name without its folder, and the sha256 of its bytes."""

    name: str
    sha256: str


def find_predicate(triples: NDArray[np.int32], predicate: int) -> tuple[int, int]:
    """Return the bounds of a predicate's rows in sorted triples, int32 [n, 3]."""
    # `np.searchsorted` would copy the whole column.
    column: Any = triples[:, 0]
    return bisect_left(column, predicate), bisect_left(column, predicate + 1)


def _expand_ranges(low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the integers of all ranges, int64, one range after the other."""
    counts = high - low
    return np.repeat(high - np.cumsum(counts), counts) + np.arange(counts.sum())


@dataclass(frozen=True, eq=False, repr=False)
class KnowledgeGraph(ShownAsText):
    """Triples, rules and domains by name; `program` has them by id. Its arrays are read-only.

    train, valid, test: ground atoms in file order, repetitions included
    domains:            the constants of each declared domain
    files:              the files that were read, in the order train, valid, test, rules, domains
    fact_lines:         the line of each train atom in `facts_file`
    warnings:           probable mistakes that do not prevent loading
    loaded:             the arguments with which `load_graph` loaded it; None for a graph made in Python
    first_symbols:      the symbols that are numbered before all others; the others are numbered by first appearance

    Example:
        >>> import kgverify as kv
        >>> graph = kv.load_graph("countries")
        >>> graph.name, len(graph.test), len(graph.rules)
        ('countries', 24, 3)
        >>> print(graph)
        countries: 999 train, 24 valid, 24 test, 3 rules, 3 domains
    """

    name: str
    train: Sequence[NamedAtom]
    valid: Sequence[NamedAtom] = ()
    test: Sequence[NamedAtom] = ()
    rules: tuple[NamedRule, ...] = ()
    domains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    files: tuple[GraphFile, ...] = ()
    facts_file: str = ""
    fact_lines: Sequence[int] = ()
    warnings: tuple[Coded, ...] = ()
    loaded: GraphFiles | None = None
    first_symbols: Symbols = NO_SYMBOLS

    @property
    def choices(self) -> tuple[str, ...]:
        """The warnings about reading options and about rules left out, which reports repeat."""
        return tuple(warning for warning in self.warnings if ": --" in warning or "without a body left out" in warning)

    @property
    def has_splits(self) -> bool:
        """True if a split has triples; a program without a graph has none."""
        return any(getattr(self, split) for split in get_args(Split))

    def __str__(self) -> str:
        """Return the name, and the numbers of triples, rules and domains."""
        splits = (f"{len(getattr(self, split)):,} {split}" for split in get_args(Split))
        counts = (*splits, count_of(len(self.rules), "rule"), count_of(len(self.domains), "domain"))
        return f"{make_visible(self.name)}: {', '.join(counts)}"

    def _repr_html_(self) -> str:
        """Return the numbers, and the first rules and triples, for a notebook."""
        return escape_notebook("\n".join(self._listed()))

    def _listed(self) -> Iterator[str]:
        yield str(self)
        for title, items in (("rules", self.rules), *((split, getattr(self, split)) for split in get_args(Split))):
            if items:
                yield f"\n{title}"
            for each in items[:MOST_LISTED]:
                yield f"  {make_visible(str(each) if isinstance(each, NamedRule) else render_named(each))}"
            if len(items) > MOST_LISTED:
                yield f"  ... and {len(items) - MOST_LISTED:,} more"

    @cached_property
    def program(self) -> Program:
        """The program whose facts are train; it knows every symbol of every split and domain."""
        return Program.from_names(
            facts=self.train,
            rules=self.rules,
            queries=(*self.valid, *self.test),
            constants=(constant for constants in self.domains.values() for constant in constants),
            facts_file=self.facts_file,
            fact_lines=self.fact_lines or None,
            first_symbols=self.first_symbols,
        )

    def queries(self, split: str) -> NDArray[np.int32]:
        """Return the triples of a split in file order: int32 [n, 3] predicate, head, tail. UserError if it has none."""
        if split not in get_args(Split):
            raise UserError(
                f"expected train, valid or test, found {split!r}",
                where="split",
                fix=suggest(split, get_args(Split)) or "choose one of the three splits",
            )
        rows = self._find_rows(split)
        if not len(rows):
            raise UserError(
                f"expected {split} triples, found none",
                where=self.name,
                fix=f"add a {split} file to the graph's folder, or give one with {split}",
            )
        return rows

    @cached_property
    def known_triples(self) -> NDArray[np.int32]:
        """All triples of train, valid and test: int32 [K, 3] predicate, head, tail; unique, ascending."""
        facts, size = self.program.facts, len(self.program.symbols.constants)
        others, _ = sort_rows(np.concatenate([self._find_rows("valid"), self._find_rows("test")]))
        if (len(self.program.symbols.predicates) + 1) * size**2 >= 2**63:
            known, _ = sort_rows(np.concatenate([facts, others]))
        else:
            # The facts are sorted, so the few other triples are inserted between them.
            numbers, wanted = number_rows(facts, size), number_rows(others, size)
            after = np.searchsorted(numbers, wanted)
            is_new = np.ones(len(others), np.bool_)
            is_new[after < len(facts)] = numbers[after[after < len(facts)]] != wanted[after < len(facts)]
            # numpy inserts single values several times faster than rows.
            single, added = (np.ascontiguousarray(rows).view(_ROW).ravel() for rows in (facts, others[is_new]))
            known = np.insert(single, after[is_new], added).view(np.int32).reshape(-1, 3)
        known.setflags(write=False)
        return known

    def argument_domain(self, predicate_id: int, side: Side) -> NDArray[np.int32]:
        """Return the constants that may be an argument of a predicate: int32 [n], ascending.

        They are the union of the declared domains that contain a constant seen there in train, valid or test. They are all
        constants if no domain is declared, or if some constant seen there is in no domain. Source: docs/semantics.md, corrupt.
        """
        if side not in (Side.HEAD, Side.TAIL):
            raise ValueError(f"expected Side.HEAD or Side.TAIL, found {side!r}")
        key = (predicate_id, Side(side))
        if key not in self._kept:
            self._kept[key] = self._infer_domain(*key)
        return self._kept[key]

    def _infer_domain(self, predicate_id: int, side: Side) -> NDArray[np.int32]:
        if not self.domains:
            return self._all_constants
        known = self.known_triples
        begin, end = find_predicate(known, predicate_id)
        seen = known[begin:end, 1 + side]
        starts, domains, members = self._domain_members
        low, high = starts[seen], starts[seen + 1]
        if (low == high).any():
            return self._all_constants
        holding = frozenset(np.unique(domains[_expand_ranges(low, high)]).tolist())
        if holding not in self._kept:
            found = np.unique(np.concatenate([self._all_constants[:0], *(members[i] for i in holding)]))
            found.setflags(write=False)
            self._kept[holding] = found
        return self._kept[holding]

    @cached_property
    def _all_constants(self) -> NDArray[np.int32]:
        every = np.arange(len(self.program.symbols.constants), dtype=np.int32)
        every.setflags(write=False)
        return every

    @cached_property
    def _domain_members(self) -> tuple[NDArray[np.int64], NDArray[np.int32], list[NDArray[np.int32]]]:
        """The domains of each constant, as offsets, int64 [C + 1], and domain indices; and the constants of each domain."""
        ids = self.program.symbols.constant_ids
        members = [np.array([ids[name] for name in names], np.int32) for names in self.domains.values()]
        every = np.concatenate(members)
        order = np.argsort(every, kind="stable")
        domains = np.repeat(np.arange(len(members), dtype=np.int32), [len(each) for each in members])
        return np.searchsorted(every[order], np.arange(len(ids) + 1)), domains[order], members

    def _find_rows(self, split: str) -> NDArray[np.int32]:
        if split not in self._kept:
            symbols = self.program.symbols
            self._kept[split] = AtomTable.of(getattr(self, split)).encode(symbols.predicate_ids, symbols.constant_ids)
            self._kept[split].setflags(write=False)
        return self._kept[split]

    @cached_property
    def _kept(self) -> dict[object, NDArray[np.int32]]:
        """The cached answers: triples in ids by split; constants by predicate and side, and by domain indices."""
        return {}
