"""Warnings about the splits of a graph: queries that train answers or cannot know, and names that look the same."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import numpy as np

from kgverify.errors import count_of
from kgverify.program.atom_table import AtomTable

_INVERSE: Final = re.compile(
    r"(?:[!~_-]|inv(?:erse)?[_:-])(?P<after>.+)|(?P<before>.+)(?:[_-]inv(?:erse)?|_reversed?|\^?-1)"
)
"""Names that data sets give the inverses of relations."""
_MAX_LISTED: Final = 10


def find_split_warnings(tables: Mapping[str, AtomTable], files: Mapping[str, str]) -> Iterator[str]:
    """Describe each split in one sentence, if an evaluation on it may mislead.

    Args:
        tables: The triples of train, valid and test.
        files: The names of their files, as warnings show them.
    """
    relations = {name for table in tables.values() for name in table.predicates}
    for split, table in tables.items():
        counts = Counter[str]() if split == "train" else _compare_with_train(table, tables["train"])
        counts[_INVERSES] = _count_inverses(table, relations)
        counts[_REPEATED] = 0 if split == "train" else table.find_repeated()[0]
        counts[_IN_VALID] = tables["valid"].count_common(table) if split == "test" else 0
        parts = [f"{counts[what]:,} {what}" for what in _ORDER if counts[what]]
        if parts:
            yield f"{files.get(split, split)}: of {count_of(len(table), 'triple')}, {', '.join(parts)}"


def _compare_with_train(table: AtomTable, train: AtomTable) -> Counter[str]:
    """Count the triples of a split that train contains, also reversed, and those with an entity that it lacks."""
    heads, tails = table.encode({}, train.constant_ids)[:, 1:].astype(np.int64).T
    size = len(train.constants)
    straight, turned = heads * size + tails, tails * size + heads
    is_known = (heads >= 0) & (tails >= 0)
    numbers = train.rows[:, 1].astype(np.int64) * size + train.rows[:, 2]
    found: dict[int, set[str]] = defaultdict(set)
    for i in np.flatnonzero(np.isin(numbers, np.concatenate((straight[is_known], turned[is_known])))).tolist():
        found[int(numbers[i])].add(train.predicates[train.rows[i, 0]])
    counts = Counter({_UNKNOWN: int((~is_known).sum())})
    for predicate, same, reverse in zip(table.rows[:, 0].tolist(), straight.tolist(), turned.tolist(), strict=True):
        relation, others = table.predicates[predicate], found.get(reverse, set())
        counts[_SAME] += relation in found.get(same, ())
        if others and same != reverse:
            is_named = relation in map(_invert, others)
            counts[_REVERSED if relation in others else _NAMED if is_named else _OTHER] += 1
    return counts


_SAME: Final = "also in train"
_REVERSED: Final = "reversed in train"
_OTHER: Final = "reversed in train under another relation"
_NAMED: Final = "reversed in train under the name of the inverse"
_UNKNOWN: Final = "with an entity that train lacks"
_IN_VALID: Final = "also in valid"
_REPEATED: Final = "listed more than once"
_INVERSES: Final = "under the name of an inverse relation"
_ORDER: Final = (_SAME, _REVERSED, _OTHER, _NAMED, _UNKNOWN, _IN_VALID, _REPEATED, _INVERSES)


def _invert(name: str) -> str:
    """Return the relation whose inverse a name denotes; empty for another name."""
    match = _INVERSE.fullmatch(name)
    return (match["after"] or match["before"]) if match else ""


def _count_inverses(table: AtomTable, relations: Collection[str]) -> int:
    is_inverse = np.array([_invert(name) in relations for name in table.predicates], np.bool_)
    return int(is_inverse[table.rows[:, 0]].sum()) if len(table) else 0


def find_similar_names(names: Collection[str], file: str) -> Iterator[str]:
    """Warn about names that differ in nothing that a reader sees: kinds of blanks, marks, and ways to write an accent."""
    similar: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if not name.isascii():
            similar[_fold(name)].append(name)
    num_listed = 0
    for folded, written in similar.items():
        if folded in names and folded not in written:
            written.append(folded)
        if len(written) > 1 and num_listed < _MAX_LISTED:
            num_listed += 1
            shown = " and ".join(map(ascii, written))
            yield f"{file}: names that differ in invisible characters: {shown}; each is another name"


def _fold(name: str) -> str:
    signs = (" " if unicodedata.category(sign) == "Zs" else sign for sign in unicodedata.normalize("NFC", name))
    return "".join(sign for sign in signs if unicodedata.category(sign) not in ("Cf", "Cc")).strip()
