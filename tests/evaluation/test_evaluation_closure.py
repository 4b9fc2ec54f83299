"""The check of a least model finds every atom that is missing, and every one that has no reason."""

from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from altered_results import find_removed_atom
from numpy.typing import NDArray

from kgreference import least_model
from kgverify import load_graph
from kgverify.engines.reference.engine import build_reference_program
from kgverify.evaluation import closure
from kgverify.evaluation.closure import check_model
from kgverify.laws import draw_problems
from kgverify.program.program import Program


def find_keys(program: Program) -> NDArray[np.int64]:
    """The keys of the reference's model."""
    size = max(1, len(program.symbols.constants))
    atoms = np.array(sorted(least_model(build_reference_program(program))), np.int64).reshape(-1, 3)
    return (atoms[:, 0] * size + atoms[:, 1]) * size + atoms[:, 2]


def count_checked(program: Program, most: int) -> int:
    """Check the reference's model, and the model without some of its atoms; return how many were left out."""
    keys, size = find_keys(program), max(1, len(program.symbols.constants))
    whole = check_model(program, keys)
    assert (len(whole.missing), len(whole.unsupported), whole.is_closed) == (0, 0, True)
    assert whole.num_atoms == len(keys)
    for removed in keys[:: max(1, len(keys) // most)][:most]:
        found = check_model(program, keys[keys != removed])
        # The last step of its shortest derivation does not need it.
        atom = [removed // size**2, removed // size % size, removed % size]
        assert atom in found.missing.tolist()
        assert not found.is_closed
    return min(len(keys), most)


def programs(num: int) -> list[Program]:
    return [
        Program.from_names(each.facts, each.rules, (*each.queries, *each.unranked))
        for each in islice(draw_problems(7), num)
    ]


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_an_atom_that_is_missing_from_the_model_is_found(chunk: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(closure, "_CHUNK", chunk)
    assert sum(count_checked(program, 4) for program in programs(40)) > 100


@pytest.mark.exhaustive
def test_an_atom_that_is_missing_from_the_model_is_found_in_many_programs():
    assert sum(count_checked(program, 20) for program in programs(1500)) > 5000


def test_an_atom_without_a_reason_is_found():
    num = 0
    for program in programs(40):
        keys, size = find_keys(program), len(program.symbols.constants)
        others = np.setdiff1d(np.arange(len(program.symbols.predicates) * size**2), keys)
        heads = {rule.clause_head.predicate for rule in program.rules}
        free = [int(each) for each in others if each // size**2 not in heads]
        for added in free[:2]:
            found = check_model(program, np.append(keys, added))
            assert [added // size**2, added // size % size, added % size] in found.unsupported.tolist()
            num += 1
    assert num > 10


def test_the_numbers_of_atoms_exceed_32_bits():
    # A number would be 140,000 * 70,000 + 3, if it were computed in the 32 bits of a constant.
    program: Any = SimpleNamespace(
        symbols=SimpleNamespace(constants=range(70_000)), facts=np.array([[1, 69_999, 3]], np.int32), rules=()
    )
    found = check_model(program, np.array([(70_000 + 69_999) * 70_000 + 3]))
    assert (found.missing.tolist(), found.unsupported.tolist(), found.num_atoms) == ([], [], 1)
    assert find_removed_atom(program, np.array([(70_000 + 69_999) * 70_000 + 3]), 5) == 0


def test_only_a_derived_atom_is_removed_to_test_the_check():
    program = load_graph("countries").program
    weights = len(program.symbols.constants) ** np.array([2, 1, 0])
    assert find_removed_atom(program, program.facts @ weights, 3) == 0
    assert find_removed_atom(program, find_keys(program), 3) == 1


def test_a_model_that_is_too_large_is_not_called_closed():
    program = load_graph("countries").program
    found = check_model(program, find_keys(program), most_rows=1000)
    assert (found.is_complete, found.is_closed) == (False, False)
