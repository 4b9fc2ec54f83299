"""The draw of corruptions for many queries at once: each row takes its entities of lowest key, without known triples."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import local
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.graphs.graph import KnowledgeGraph, find_predicate
from kgverify.program.outcomes import Side
from kgverify.threads import count_threads
from kgverify.trace.model.columns import CandidateSet, expand_rows, starts_of

BLOCK: Final = 1 << 18
"""The number of keys computed at once: few numpy calls, on arrays that fit into a cache."""
_FEW: Final = 1 << 12
"""The number of rows times entities below which groups are joined, and of known triples below which all are sorted."""
_MANY: Final = 1 << 24
"""The number of keys that justifies starting threads."""

_HIGHEST: Final = np.uint64(2**64 - 1)
_GOLDEN, _FIRST, _SECOND = (np.uint64(each) for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Group(NamedTuple):
    """Rows with the entities of their arguments, and the excluded entities of each row.

    rows:   int64 [r]     indices of the rows
    domain: int32 [E]     the entities of the argument, ascending; int32 [r, E] for rows with different arguments, padded with
                          excluded entities
    starts: int64 [r + 1]; column: int64 [starts[r]]: the indices in the domain of the excluded entities, row by row
    """

    rows: NDArray[np.int64]
    domain: NDArray[np.int32]
    starts: NDArray[np.int64]
    column: NDArray[np.int64]

    @property
    def num_entities(self) -> int:
        """The number of entities of each row, including the excluded ones."""
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
    """Group the rows by predicate and side, with the known triples of each. Join small groups."""
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
    """Join groups into one, in which all domains have the same length."""
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
                # Only triples that share the tail of a row matter. Sorting all triples of a predicate would take longer.
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
    """Return the number of entities that each row draws, int64 [Q], and the entities, int32, row by row, each ascending.

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
    """Draw the `num` entities of lowest key in each row; each row has more than `num`.

    The keys of a row differ, since splitmix64 is a permutation. Only keys below a limit are considered; the
    limit is such that about `num` keys pass. If too few keys of a row pass, the whole row is considered.
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

    # The last step, `key ^ key >> 31`, keeps the 31 upper bits, and the limit has only these bits.
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


ALL: Final = -1
"""The number of corruptions that stands for every eligible entity."""

Draw = Callable[[KnowledgeGraph, str, Sequence[int], int, int], CandidateSet]
"""(graph, split, queries, number of corruptions, seed) -> candidates."""

BOTH_SIDES: Final = (Side.HEAD, Side.TAIL)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the splitmix64 step (Steele, Lea and Flood 2014) to each element, modulo 2^64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def find_eligible_entities(graph: KnowledgeGraph, triple: NDArray[np.int32], side: Side) -> NDArray[np.int32]:
    """Return the entities of the argument's domain that give neither the triple nor a known triple: int32 [n], ascending."""
    entities = graph.argument_domain(int(triple[0]), side)
    known = graph.known_triples
    kept_column = 2 if side == Side.HEAD else 1
    begin, end = find_predicate(known, int(triple[0]))
    of_predicate = known[begin:end]
    taken = of_predicate[of_predicate[:, kept_column] == triple[kept_column], 1 + side]
    return np.setdiff1d(entities, np.append(taken, triple[1 + side]), assume_unique=True)


def draw_candidates(
    graph: KnowledgeGraph,
    split: str,
    queries: Sequence[int],
    num_corruptions: int,
    seed: int,
    sides: Sequence[Side] = BOTH_SIDES,
) -> CandidateSet:
    """Draw the candidates of the given queries: for each query and side the true triple, then its corruptions by entity.

    The draw depends only on (seed, query, side). It takes the eligible entities of lowest key, or all if there are too few.
    UserError for a query that the split does not have, or a negative number of corruptions other than `ALL`.
    """
    query, side = _rows(graph, split, queries, num_corruptions, sides)
    triple = graph.queries(split)[query]
    key = np.full(len(query), seed & (2**64 - 1), np.uint64)
    for word in (query, side):
        key = mix(key) ^ word.astype(np.uint64)
    num_wanted = None if num_corruptions == ALL else num_corruptions
    num_drawn, entities = draw_entities(graph, triple, mix(key), side, num_wanted)
    counts = num_drawn + 1
    is_corruption = np.ones(int(counts.sum()), np.bool_)
    is_corruption[np.cumsum(counts) - counts] = False
    all_sides = np.repeat(side.astype(np.int8), counts)
    atom = np.repeat(triple, counts, axis=0)
    atom[is_corruption, 1 + all_sides[is_corruption]] = entities
    return CandidateSet(np.repeat(query.astype(np.int32), counts), all_sides, atom)


def list_excluded(
    group: Group, triple: NDArray[np.int32], side: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the known triples that a group excludes, int32 [m, 3], and their rows in the triples, int64 [m]."""
    row = group.excluded_row
    entities = group.domain[group.column] if group.domain.ndim == 1 else group.domain[row, group.column]
    return group.rows[row], put_entities(triple[group.rows[row]], side[group.rows[row]], entities)


def add_known(graph: KnowledgeGraph, triples: NDArray[np.int32], drawn: CandidateSet) -> CandidateSet:
    """Add the known triples that a draw left out, to be ranked as if nothing was filtered. triples: those of the split."""
    keys = np.unique(drawn.query.astype(np.int64) * 2 + drawn.side)
    query, side = np.divmod(keys, 2)
    parts = [drawn]
    for group in group_rows(graph, triples[query], side):
        of, atom = list_excluded(group, triples[query], side)
        is_other = (atom != triples[query[of]]).any(1)
        parts.append(CandidateSet(query[of].astype(np.int32), side[of].astype(np.int8), atom).take(is_other))
    return CandidateSet(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def draw_eligible(
    graph: KnowledgeGraph, triple: NDArray[np.int32], side: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """List every corruption of triples on their sides.

    Take int32 [n, 3] and int64 [n]. Return the number for each triple, int64 [n], and the corruptions, int32 [m, 3].
    """
    num, entities = draw_entities(graph, triple, np.zeros(len(side), np.uint64), side, None)
    atom, is_head = np.repeat(triple, num, axis=0), np.repeat(side == Side.HEAD, num)
    np.copyto(atom[:, 1], entities, where=is_head)
    np.copyto(atom[:, 2], entities, where=~is_head)
    return num, atom


def put_entities(triple: NDArray[np.int32], side: NDArray[np.int64], entities: NDArray[np.int32]) -> NDArray[np.int32]:
    """Replace the argument of a side, int64 [n], by an entity, int32 [n], in each triple, int32 [n, 3]."""
    atom = triple.copy()
    atom[:, 1] = np.where(side == Side.HEAD, entities, triple[:, 1])
    atom[:, 2] = np.where(side == Side.TAIL, entities, triple[:, 2])
    return atom


def may_be_drawn(graph: KnowledgeGraph, atom: NDArray[np.int32], side: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether atoms, int32 [n, 3], are corruptions on sides, int64 [n]: with an entity of the domain, and not known."""
    size = len(graph.program.symbols.constants)
    known, number = number_atoms(graph.known_triples, size), number_atoms(atom, size)
    nearest = np.searchsorted(known, number).clip(max=max(0, len(known) - 1))
    is_drawn = known[nearest] != number if len(known) else np.ones(len(atom), np.bool_)
    codes, of = np.unique(atom[:, 0].astype(np.int64) * 2 + side, return_inverse=True)
    for i, code in enumerate(codes.tolist()):
        is_member = np.zeros(size, np.bool_)
        is_member[graph.argument_domain(code // 2, Side(code % 2))] = True
        rows = np.flatnonzero(of == i)
        is_drawn[rows] &= is_member[atom[rows, 1 + code % 2]]
    return is_drawn


def number_atoms(atom: NDArray[np.integer], num_constants: int) -> NDArray[np.int64]:
    """Return a number for each ground atom, int [n, 3], that sorts in the same way: int64 [n]."""
    wide = atom.astype(np.int64)
    numbers: NDArray[np.int64] = (wide[:, 0] * num_constants + wide[:, 1]) * num_constants + wide[:, 2]
    return numbers


def count_candidates(
    graph: KnowledgeGraph, split: str, queries: Sequence[int], num_corruptions: int
) -> NDArray[np.int64]:
    """Count the candidates that `draw_candidates` returns for each query: int64 [n]. UserError as there."""
    query, side = _rows(graph, split, queries, num_corruptions, BOTH_SIDES)
    most = np.iinfo(np.int64).max if num_corruptions == ALL else num_corruptions
    num = np.minimum(count_eligible(graph, graph.queries(split)[query], side), most)
    total: NDArray[np.int64] = (num + 1).reshape(-1, len(BOTH_SIDES)).sum(1)
    return total


def _rows(
    graph: KnowledgeGraph, split: str, queries: Sequence[int], num_corruptions: int, sides: Sequence[Side]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the query and the side of each ranking: int64."""
    num_queries = len(graph.queries(split))
    if num_corruptions < ALL:
        raise UserError(
            f"expected a number of corruptions of 0 or more, or all, found {num_corruptions}",
            where="corruptions",
            fix="give 0 or more, or `all`",
        )
    chosen = np.array(queries, np.int64)
    unknown = chosen[(chosen < 0) | (chosen >= num_queries)]
    if len(unknown):
        raise UserError(
            f"expected a query from 0 to {num_queries - 1}, found {unknown[0]}",
            where=f"{graph.name}, split {split}",
            fix="choose a query that the split has",
        )
    return np.repeat(chosen, len(sides)), np.tile(np.array(sides, np.int64), len(chosen))
