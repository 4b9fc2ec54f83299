from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgverify.program import atom_table
from kgverify.program.atom_table import AtomTable, is_numbered, order_numbers, sort_rows
from kgverify.program.atoms import NamedAtom, Variable

NAMES = st.sampled_from("abcdefg")
ATOMS = st.lists(st.builds(NamedAtom, NAMES, NAMES, NAMES), max_size=12).map(tuple)


@given(ATOMS)
def test_a_table_reads_like_the_tuple_of_its_atoms(atoms: tuple[NamedAtom, ...]) -> None:
    table = AtomTable.of(atoms)
    assert table == atoms
    assert atoms == table
    assert (tuple(table), len(table), hash(table)) == (atoms, len(atoms), hash(atoms))
    assert [table[i] for i in range(-len(atoms), len(atoms))] == [*atoms, *atoms]
    assert table[::-2] == atoms[::-2]
    assert table + atoms == atoms + table == atoms + atoms
    assert atoms[:-1] != table or not atoms


@given(ATOMS, ATOMS)
def test_what_a_table_counts_is_what_sets_of_atoms_count(
    atoms: tuple[NamedAtom, ...], others: tuple[NamedAtom, ...]
) -> None:
    table = AtomTable.of((*others, *atoms))[len(others) :]
    num_repeated, row = table.find_repeated()
    assert num_repeated == len(atoms) - len(set(atoms))
    assert row == next((i for i, atom in enumerate(atoms) if atom in atoms[:i]), -1)
    assert table.count_common(AtomTable.of(others)) == len(set(atoms) & set(others))
    predicates, constants = table.names_by_appearance()
    assert list(predicates) == list(Counter(atom.predicate for atom in atoms))
    assert list(constants) == list(Counter(term for atom in atoms for term in atom[1:]))
    assert [table.names_in(i) for i in range(3)] == [{str(atom[i]) for atom in atoms} for i in range(3)]
    assert table.has_common_arguments() == (not table.names_in(1).isdisjoint(table.names_in(2)))


@given(ATOMS)
def test_names_are_encoded_and_unknown_ones_get_no_id(atoms: tuple[NamedAtom, ...]) -> None:
    ids = dict(zip("gfedc", range(5), strict=True))
    expected = [[ids.get(str(name), -1) for name in atom] for atom in atoms]
    assert AtomTable.of(atoms).encode(ids, ids).tolist() == expected


def test_an_atom_with_a_variable_has_no_place_in_a_table() -> None:
    with pytest.raises(KeyError):
        AtomTable.of((NamedAtom("r", "a", Variable("X")),))


@pytest.mark.parametrize("most", [0, 3, 1 << 17, (1 << 31) - 1], ids="{:,}".format)
@pytest.mark.parametrize("part", [1, 7, 1 << 16])
def test_rows_are_sorted_whether_or_not_their_numbers_fit_64_bits(
    most: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atom_table, "_PART", part)
    random = np.random.default_rng(0)
    values = np.unique([0, most // 3, most // 2, most])
    rows = random.choice(values, (300, 3)).astype(np.int32)
    # A table of counts has a place for each predicate.
    rows[:, 0] = random.integers(0, min(most, 40) + 1, 300)
    unique, first = sort_rows(rows)
    every = list(map(tuple, rows.tolist()))
    assert list(map(tuple, unique.tolist())) == sorted(set(every))
    assert first.tolist() == [every.index(row) for row in sorted(set(every))]


@given(st.lists(st.sampled_from([0, 1, 2, 1 << 40, (1 << 63) - 1]), max_size=12))
def test_equal_numbers_keep_their_order(numbers: list[int]) -> None:
    assert order_numbers(np.array(numbers, np.int64)).tolist() == sorted(range(len(numbers)), key=numbers.__getitem__)


def test_no_rows_are_sorted_rows() -> None:
    unique, first = sort_rows(np.zeros((0, 3), np.int32))
    assert (unique.shape, first.shape) == ((0, 3), (0,))


@given(st.lists(st.integers(-1, 4), max_size=8))
def test_numbers_are_in_the_order_of_their_first_occurrence_or_not(numbers: list[int]) -> None:
    size = max(numbers, default=-1) + 1
    expected = list(dict.fromkeys(numbers)) == list(range(size))
    column = np.array(numbers, np.int32)[:, None]
    assert is_numbered(column, size) == expected
    assert not is_numbered(column, size + 1)
