"""A table of atoms reads like the tuple of its atoms, and its sorts give what Python's give."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgverify.program import atom_table
from kgverify.program.atom_table import AtomTable, is_numbered, order_numbers, sort_rows
from kgverify.program.atoms import NamedAtom

NAMES = st.sampled_from("abcdefg")
ATOMS = st.lists(st.builds(NamedAtom, NAMES, NAMES, NAMES), max_size=12).map(tuple)


@given(ATOMS, ATOMS)
def test_a_table_reads_and_counts_like_the_tuple_of_its_atoms(
    atoms: tuple[NamedAtom, ...], others: tuple[NamedAtom, ...]
) -> None:
    table = AtomTable.of((*others, *atoms))[len(others) :]
    assert table == atoms
    assert (tuple(table), len(table), hash(table)) == (atoms, len(atoms), hash(atoms))
    assert [table[i] for i in range(-len(atoms), len(atoms))] == [*atoms, *atoms]
    assert table[::-2] == atoms[::-2]
    assert table + others == atoms + AtomTable.of(others) == atoms + others
    assert atoms[:-1] != table or not atoms
    row = next((i for i, atom in enumerate(atoms) if atom in atoms[:i]), -1)
    assert table.find_repeated() == (len(atoms) - len(set(atoms)), row)
    assert table.count_common(AtomTable.of(others)) == len(set(atoms) & set(others))
    predicates, constants = table.names_by_appearance()
    assert list(predicates) == list(Counter(atom.predicate for atom in atoms))
    assert list(constants) == list(Counter(term for atom in atoms for term in atom[1:]))
    names = [{str(atom[i]) for atom in atoms} for i in range(3)]
    assert [table.names_in(i) for i in range(3)] == names
    assert table.has_common_arguments() == (not names[1].isdisjoint(names[2]))
    ids = dict(zip("gfedc", range(5), strict=True))
    assert table.encode(ids, ids).tolist() == [[ids.get(str(name), -1) for name in atom] for atom in atoms]


@pytest.mark.parametrize(("most", "part"), [(0, 1 << 16), (3, 1), (1 << 17, 7), ((1 << 31) - 1, 1 << 16)])
def test_rows_are_sorted_whether_or_not_their_numbers_fit_64_bits(
    most: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atom_table, "_PART", part)
    random = np.random.default_rng(0)
    rows = random.choice(np.unique([0, most // 3, most // 2, most]), (300, 3)).astype(np.int32)
    # A table of counts has a place for each predicate.
    rows[:, 0] = random.integers(0, min(most, 40) + 1, 300)
    for each in (rows, rows[:0]):
        unique, first = sort_rows(each)
        every = list(map(tuple, each.tolist()))
        assert list(map(tuple, unique.tolist())) == sorted(set(every))
        assert first.tolist() == [every.index(row) for row in sorted(set(every))]


@given(st.lists(st.sampled_from([-1, 0, 1, 2, 3, 1 << 40, (1 << 63) - 1]), max_size=12))
def test_equal_numbers_keep_their_order_and_numbers_by_first_occurrence_are_recognised(numbers: list[int]) -> None:
    plain = [number for number in numbers if number >= 0]
    assert order_numbers(np.array(plain, np.int64)).tolist() == sorted(range(len(plain)), key=plain.__getitem__)
    small = [number for number in numbers if number < 4]
    size = max(small, default=-1) + 1
    column = np.array(small, np.int32)[:, None]
    assert is_numbered(column, size) == (list(dict.fromkeys(small)) == list(range(size)))
    assert not is_numbered(column, size + 1)
