from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgverify.program.atom_table import AtomTable, sort_rows
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
    assert predicates == list(Counter(atom.predicate for atom in atoms))
    assert constants == list(Counter(term for atom in atoms for term in atom[1:]))
    assert [table.names_in(i) for i in range(3)] == [{str(atom[i]) for atom in atoms} for i in range(3)]


@given(ATOMS)
def test_names_are_encoded_and_unknown_ones_get_no_id(atoms: tuple[NamedAtom, ...]) -> None:
    ids = dict(zip("gfedc", range(5), strict=True))
    expected = [[ids.get(str(name), -1) for name in atom] for atom in atoms]
    assert AtomTable.of(atoms).encode(ids, ids).tolist() == expected


def test_an_atom_with_a_variable_has_no_place_in_a_table() -> None:
    with pytest.raises(KeyError):
        AtomTable.of((NamedAtom("r", "a", Variable("X")),))


@pytest.mark.parametrize("num_constants", [4, 1 << 31])
def test_rows_are_sorted_whether_or_not_their_numbers_fit_64_bits(num_constants: int) -> None:
    rows = np.random.default_rng(0).integers(0, 4, (50, 3)).astype(np.int32)
    unique, first = sort_rows(rows, num_constants)
    assert unique.tolist() == sorted(map(list, set(map(tuple, rows.tolist()))))
    assert rows[first].tolist() == unique.tolist()
