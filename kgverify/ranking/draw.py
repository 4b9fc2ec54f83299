"""The draw of corruptions for many queries at once: keys of whole blocks, without known triples, of which the lowest win."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import local
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.graphs.graph import KnowledgeGraph, find_predicate
from kgverify.program.outcomes import Side
from kgverify.threads import count_threads
from kgverify.trace.model.columns import expand_rows, starts_of

BLOCK: Final = 1 << 18
"""The keys computed at once: few calls of numpy, on arrays that fit into a cache."""
_FEW: Final = 1 << 12
"""Rows times entities below which groups are joined, and known triples below which all are sorted."""
_MANY: Final = 1 << 24
"""The keys for which threads are worth their start."""

_HIGHEST: Final = np.uint64(2**64 - 1)
_GOLDEN, _FIRST, _SECOND = (np.uint64(each) for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Group(NamedTuple):
    """Rows with the entities that each may draw, and those of them that are excluded.

    rows:   int64 [r]     indices of the rows
    domain: int32 [E]     the entities of the argument, ascending; int32 [r, E] for rows of several arguments, filled up with
                          excluded ones
    starts: int64 [r + 1]; column: int64 [starts[r]]: the indices in the domain of the excluded entities, row by row
    """

    rows: NDArray[np.int64]
    domain: NDArray[np.int32]
    starts: NDArray[np.int64]
    column: NDArray[np.int64]

    @property
    def num_entities(self) -> int:
        """The number of entities of each row, those excluded among them."""
        num: int = self.domain.shape[-1]
        return num

    @property
    def num_eligible(self) -> NDArray[np.int64]:
        """The number of entities that each row may be drawn from: int64 [r]."""
        return self.num_entities - np.diff(self.starts)

    def split(self, size: int) -> Iterator["Group"]:
        """Yield groups of at most `size` rows."""
        for begin in range(0, len(self.rows), size):
            yield self.take(np.arange(begin, min(begin + size, len(self.rows)))) if len(self.rows) > size else self

    def take(self, rows: NDArray[np.int64]) -> "Group":
        """Return the given rows of the group."""
        column = self.column[expand_rows(self.starts, rows)]
        domain = self.domain if self.domain.ndim == 1 else self.domain[rows]
        return Group(self.rows[rows], domain, starts_of(np.diff(self.starts)[rows]), column)

    @property
    def excluded_row(self) -> NDArray[np.int64]:
        """The row of each element of `column`."""
        return np.repeat(np.arange(len(self.rows)), np.diff(self.starts))


def group_rows(graph: KnowledgeGraph, triple: NDArray[np.int32], side: NDArray[np.int64]) -> Iterator[Group]:
    """Return the rows by predicate and side, with what is known of each. Small groups are joined."""
    small: list[Group] = []
    num_rows = most = 0
    for group in _group_by_argument(graph, triple, side):
        rows, entities = num_rows + len(group.rows), max(most, group.num_entities)
        if rows * entities > _FEW:
            yield from _join(small)
            small, rows, entities = [], len(group.rows), group.num_entities
        if rows * entities > _FEW:
            yield group
            num_rows = most = 0
        else:
            small.append(group)
            num_rows, most = rows, entities
    yield from _join(small)


def _join(groups: list[Group]) -> Iterator[Group]:
    """Return groups as one, in which the domains have one length."""
    if len(groups) < 2:
        yield from groups
        return
    num_rows = np.array([len(group.rows) for group in groups])
    num_entities = np.array([group.num_entities for group in groups])
    of_group = np.repeat(np.arange(len(groups)), num_rows)
    is_filled = np.arange(num_entities.max()) < num_entities[:, None]
    domains = np.zeros(is_filled.shape, np.int32)
    domains[is_filled] = np.concatenate([group.domain for group in groups])
    is_excluded = ~is_filled[of_group]
    num_known = np.concatenate([np.diff(group.starts) for group in groups])
    rows = np.repeat(np.arange(len(of_group)), num_known)
    is_excluded[rows, np.concatenate([group.column for group in groups])] = True
    all_rows = np.concatenate([group.rows for group in groups])
    yield Group(all_rows, domains[of_group], starts_of(is_excluded.sum(1)), np.nonzero(is_excluded)[1])


def _group_by_argument(graph: KnowledgeGraph, triple: NDArray[np.int32], side: NDArray[np.int64]) -> Iterator[Group]:
    if not len(triple):
        return
    code = triple[:, 0].astype(np.int64) * 2 + side
    known = graph.known_triples
    order = np.argsort(code, kind="stable")
    codes, first = np.unique(code[order], return_index=True)
    ends = [*first[1:].tolist(), len(order)]
    for value, first_row, end_row in zip(codes.tolist(), first.tolist(), ends, strict=True):
        rows = order[first_row:end_row]
        predicate, of_side = divmod(value, 2)
        domain = graph.argument_domain(predicate, Side(of_side))
        begin, end = find_predicate(known, predicate)
        wanted = triple[rows, 2 - of_side]
        by_kept = known[begin:end]
        if of_side == Side.HEAD:
            if end - begin > _FEW:
                # Only triples that share the tail of a row matter; sorting all of a predicate would take longer.
                by_kept = by_kept[np.isin(by_kept[:, 2], wanted)]
            by_kept = by_kept[np.argsort(by_kept[:, 2], kind="stable")]
        kept = by_kept[:, 2 - of_side]
        starts = np.searchsorted(kept, wanted, "left").astype(np.int64)
        counts = np.searchsorted(kept, wanted, "right") - starts
        offsets = starts_of(counts)
        excluded = by_kept[np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1]), 1 + of_side]
        column = np.searchsorted(domain, excluded)
        yield Group(rows, domain, offsets, column)


def count_eligible(graph: KnowledgeGraph, triple: NDArray[np.int32], side: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the entities that each row may be drawn from: int64 [Q]."""
    num = np.zeros(len(triple), np.int64)
    for group in group_rows(graph, triple, side):
        num[group.rows] = group.num_eligible
    return num


def draw_entities(
    graph: KnowledgeGraph,
    triple: NDArray[np.int32],
    key: NDArray[np.uint64],
    side: NDArray[np.int64],
    num_corruptions: int | None,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the number of entities that each row draws, int64 [Q], and the entities, int32, row by row, ascending in each.

    triple, key, side: int32 [Q, 3], uint64 [Q], int64 [Q]  known triples, a key of (seed, query, side), and the side of each
    num_corruptions:   None for all eligible entities
    """
    counts = np.zeros(len(triple), np.int64)
    whole: list[Group] = []
    drawn: list[Group] = []
    for group in group_rows(graph, triple, side):
        num_eligible = group.num_eligible
        most = np.iinfo(np.int64).max if num_corruptions is None else num_corruptions
        takes_all = num_eligible <= most
        counts[group.rows] = np.minimum(num_eligible, most)
        size = max(1, BLOCK // max(1, group.num_entities))
        if takes_all.any():
            whole += group.take(np.flatnonzero(takes_all)).split(size)
        if num_corruptions and not takes_all.all():
            drawn += group.take(np.flatnonzero(~takes_all)).split(size)
    parts = [np.zeros(0, np.int32), *map(_take_all, whole), *_draw_blocks(drawn, key, num_corruptions or 0)]
    rows = np.concatenate([np.zeros(0, np.int64), *(block.rows for block in (*whole, *drawn))])
    entities = np.concatenate(parts)
    if (rows[1:] < rows[:-1]).any():
        entities = entities[expand_rows(starts_of(counts[rows]), np.argsort(rows))]
    return counts, entities


def _take_all(block: Group) -> NDArray[np.int32]:
    shape = len(block.rows), block.num_entities
    is_eligible = np.ones(shape, np.bool_)
    is_eligible[block.excluded_row, block.column] = False
    taken: NDArray[np.int32] = np.broadcast_to(block.domain, shape)[is_eligible]
    return taken


def _draw_blocks(blocks: Sequence[Group], key: NDArray[np.uint64], num: int) -> Iterator[NDArray[np.int32]]:
    """Draw the entities of each block, several blocks at a time if there are many keys."""
    sizes = [len(block.rows) * block.num_entities for block in blocks]
    most = max(BLOCK, *sizes, 0)
    own = local()

    def draw(block: Group) -> NDArray[np.int32]:
        if not hasattr(own, "buffers"):
            own.buffers = np.empty(most, np.uint64), np.empty(most, np.uint64)
        return _draw(block, key[block.rows], num, own.buffers)

    num_threads = count_threads() if sum(sizes) >= _MANY else 1
    if num_threads == 1:
        yield from map(draw, blocks)
        return
    # numpy lets other threads run while it computes keys.
    with ThreadPoolExecutor(num_threads) as threads:
        yield from threads.map(draw, blocks)


def _draw(
    block: Group, row_key: NDArray[np.uint64], num: int, buffers: tuple[NDArray[np.uint64], NDArray[np.uint64]]
) -> NDArray[np.int32]:
    """Draw the `num` entities of lowest key of each row; each row has more than `num`.

    The keys of a row differ, since splitmix64 is a permutation. Only keys below a limit that about `num` of them pass are
    considered; a row in which too few pass is considered as a whole.
    """
    num_rows, num_entities = shape = len(block.rows), block.num_entities
    key, shifted = (buffer[: num_rows * num_entities].reshape(shape) for buffer in buffers)
    np.bitwise_xor(row_key[:, None], block.domain.astype(np.uint64), out=key)
    np.add(key, _GOLDEN, out=key)
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        np.right_shift(key, np.uint64(shift), out=shifted)
        np.bitwise_xor(key, shifted, out=key)
        np.multiply(key, factor, out=key)
    excluded_row = block.excluded_row
    key[excluded_row, block.column] = _HIGHEST

    # The last step, `key ^ key >> 31`, keeps the 31 upper bits, and the limit has no others.
    share = (num + 4 * num**0.5 + 8) / block.num_eligible
    limit = (np.minimum(share, 1) * (2**31 - 1)).astype(np.uint64) << np.uint64(33)
    passing = np.flatnonzero(key < limit[:, None])
    num_passing = np.diff(np.searchsorted(passing, np.arange(num_rows + 1) * num_entities))
    is_short = num_passing < num
    if is_short.any():
        passes = key < limit[:, None]
        passes[is_short] = True
        passes[excluded_row, block.column] = False
        passing = np.flatnonzero(passes)
        num_passing = np.count_nonzero(passes, axis=1)
    priority = key.ravel()[passing]
    priority ^= priority >> np.uint64(31)
    padded = np.full((num_rows, int(num_passing.max())), _HIGHEST)
    padded[np.arange(padded.shape[1]) < num_passing[:, None]] = priority
    highest_drawn = np.partition(padded, num - 1, axis=1)[:, num - 1]
    row = np.repeat(np.arange(num_rows), num_passing)
    is_drawn = priority <= highest_drawn[row]
    column = passing[is_drawn] - row[is_drawn] * num_entities
    drawn: NDArray[np.int32] = np.broadcast_to(block.domain, shape)[row[is_drawn], column]
    return drawn
