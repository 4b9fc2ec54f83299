"""The least model on the device is the one that the reference, and clingo's grounding, find."""

import os
from itertools import islice

import numpy as np
import pytest
import torch
from random_programs import program_of

from kgverify import UserError, load_graph
from kgverify.laws import draw_problems
from kgverify.program.program import Program
from kgverify.prover.program import relations
from kgverify.prover.program.least_model import _BYTES_OF_ATOM, LeastModel
from kgverify.prover.program.relations import _parts
from kgverify.testing.problems.merge import merge

Ids = tuple[int, int, int]


def model_of(program: Program, **options: int) -> set[Ids]:
    model = LeastModel(program, device="cpu", **options)
    size = len(program.symbols.constants)
    keys = model.keys.tolist()
    assert keys == sorted(set(keys))
    assert model.num_atoms == len(keys)
    return {(key // size**2, key // size % size, key % size) for key in keys}


def ground(program: Program) -> set[Ids]:
    """Compute it by clingo: the grounding of a definite program is its least model."""
    try:
        import clingo
    except ImportError:
        if os.environ.get("CI"):
            pytest.fail("clingo is not installed")
        pytest.skip("clingo is not installed")

    def term(number: int) -> str:
        return str(number) if number >= 0 else f"V{-1 - number}"

    def render(atom: tuple[int, int, int]) -> str:
        return f"a({atom[0]},{term(atom[1])},{term(atom[2])})"

    lines = [f"c(0..{len(program.symbols.constants) - 1})."]
    lines += [f"{render(fact)}." for fact in program.facts.tolist()]
    for head, body in program.rules:
        conditions = [*map(render, body), *(f"c({term(number)})" for number in head[1:] if number < 0)]
        lines.append(f"{render(head)} :- {', '.join(conditions)}.")
    control = clingo.Control(["--warn=none"])
    control.add("base", [], "\n".join(lines))
    control.ground([("base", [])])
    atoms = [each.symbol for each in control.symbolic_atoms if each.symbol.name == "a"]
    return {tuple(argument.number for argument in symbol.arguments) for symbol in atoms}


def small_programs(seed: int, num: int) -> list[Program]:
    """Draw programs of so few constants that clingo grounds a product of them quickly."""
    programs = (merge([problem]).run.graph.program for problem in draw_problems(seed))
    return list(islice((each for each in programs if len(each.symbols.constants) <= 16), num))


def test_a_chain_of_two_rules_is_closed():
    program = program_of("e(a, b)\ne(b, c)\ne(c, d)\nt(X, Y) <- e(X, Y)\nt(X, Z) <- t(X, Y), t(Y, Z)")
    model = LeastModel(program, device="cpu")
    assert (model.num_atoms, model.num_rounds) == (3 + 6, 3)


def test_joins_by_products_of_matrices_have_the_rows_of_joins_by_sorting(monkeypatch):
    facts = "\n".join(f"e(c{i}, c{i + 1})" for i in range(30)) + "\nd(c0, c0)\nd(c3, c9)"
    rules = "t(X, Y) <- e(X, Y)\nt(X, Z) <- e(X, Y), t(Y, Z)\ns(X, Y) <- t(X, U), t(U, V), t(V, W), t(W, Y)"
    rules += "\nr(X, Y) <- t(V, X), s(V, W), t(W, Y)\nr(X, X) <- t(X, U), s(U, X)\nr(X, Z) <- s(Y, X), t(Z, Y), d(X, X)"
    program = program_of(f"{facts}\n{rules}")
    shared = []
    compose = relations._compose
    monkeypatch.setattr(relations, "_compose", lambda *given: shared.append(given[2]) or compose(*given))
    sorted_model = model_of(program, most_rows=100)
    assert not shared
    assert model_of(program) == sorted_model == ground(program)
    assert len(set(shared)) > 2


def test_the_entities_that_give_an_atom_that_follows_are_those_whose_atoms_follow():
    num_found = 0
    for program in small_programs(7, 6):
        model, size = LeastModel(program, device="cpu"), len(program.symbols.constants)
        asked = np.array([(p, c, c) for p in range(len(program.symbols.predicates)) for c in range(size)], np.int32)
        for side in (0, 1):
            num, entities = model.select_entities(asked, side)
            found = np.repeat(asked, num, axis=0)
            found[:, 1 + side] = entities
            every = np.repeat(asked, size, axis=0)
            every[:, 1 + side] = np.tile(np.arange(size), len(asked))
            np.testing.assert_array_equal(found, every[model.contains(every)])
            num_found += len(found)
    assert num_found > 50


def test_a_variable_of_the_head_alone_stands_for_every_constant():
    program = program_of("e(a, b)\nt(X, Y) <- e(X, Z)\nu(Y, Y) <- e(X, X)\nv(W, Y) <- e(X, Z)\nw(Y, Y) <- e(X, Z)")
    assert model_of(program) == ground(program)
    assert len(model_of(program)) == 1 + 2 + 0 + 4 + 2


def test_constants_repeated_variables_and_bodies_apart_are_joined():
    program = program_of(
        "e(a, b)\ne(b, b)\ne(b, c)\nf(c, a)\nf(a, a)\n"
        "g(X, b) <- e(X, X), f(Y, a)\nh(X, Y) <- e(X, Z), f(V, Y), e(b, W)\ni(a, X) <- e(a, b), f(X, X)\n"
        "j(X, Y) <- e(X, b), e(b, Y), f(Z, Z), e(U, V)\nk(X, Y) <- e(X, Z), e(Z, V), f(V, Y), e(Z, Z)\n"
        "l(X, W) <- e(X, Y), e(Y, Z), f(Z, W), e(X, Z), f(W, W)"
    )
    assert model_of(program) == ground(program)
    assert len({atom[0] for atom in model_of(program)}) == len(program.symbols.predicates)


def test_generated_programs_have_the_models_that_clingo_grounds():
    num_derived = 0
    for program in small_programs(9, 150):
        model = model_of(program)
        assert model == ground(program)
        num_derived += len(model) > len(program.facts)
    assert num_derived > 50


def test_tables_taken_in_parts_change_nothing():
    programs = small_programs(3, 60)
    whole = [model_of(program) for program in programs]
    # So little that a table has 64 rows; the model itself takes less.
    least = [
        model_of(program, memory_budget=1 << 14)
        for program, model in zip(programs, whole, strict=True)
        if len(model) < 200
    ]
    assert least == [model for model in whole if len(model) < 200]
    assert len(least) > 40


def test_an_atom_with_variables_follows_where_an_instance_does():
    program = program_of("e(a, b)\ne(b, b)\nf(a, c)\nt(X, Z) <- e(X, Y), f(Y, Z)", queries="t(a, a)")
    model = LeastModel(program, device="cpu")
    e, f, t = (program.symbols.predicate_ids[name] for name in "eft")
    a, b = 0, 1
    atoms = [
        (e, a, b),
        (e, a, a),
        (e, -1, -1),
        (f, -1, -1),
        (f, a, -1),
        (f, b, -1),
        (f, -1, b),
        (t, -1, -2),
        (e, -1, -2),
    ]
    found = model.contains(np.array(atoms, np.int32))
    assert found.tolist() == [True, False, True, False, True, False, False, False, True]
    assert model.contains(np.zeros((0, 3), np.int32)).tolist() == []


def test_a_program_without_facts_or_without_rules_has_a_model():
    assert model_of(program_of("p(X, Y) <- q(X, Y)", constants=["a"])) == set()
    assert model_of(program_of("p(a, b)")) == {(0, 0, 1)}


def test_a_model_beyond_its_memory_is_an_error_with_a_fix():
    rules = "t(X, Y) <- e(Z, Z)"
    program = program_of(f"e(a, a)\n{rules}", constants=[f"c{i}" for i in range(300)])
    with pytest.raises(UserError, match="the least model has more than"):
        LeastModel(program, device="cpu", memory_budget=1 << 20)
    assert LeastModel(program, device="cpu").num_atoms == 1 + 301**2


def test_the_atoms_of_all_predicates_count_against_the_memory():
    program = program_of("e(a, a)\nt(X, Y) <- e(Z, Z)\nu(X, Y) <- e(Z, Z)", constants=[f"c{i}" for i in range(9)])
    num_atoms = 1 + 2 * 10**2
    bytes_of_atom = 64
    for most in (num_atoms - 100, num_atoms - 1):
        with pytest.raises(UserError, match=f"more than {most} atoms"):
            LeastModel(program, device="cpu", memory_budget=most * bytes_of_atom)
    assert LeastModel(program, device="cpu", memory_budget=num_atoms * bytes_of_atom).num_atoms == num_atoms


def test_countries_has_the_model_that_clingo_grounds():
    program = load_graph("countries").program
    assert model_of(program) == ground(program)


@pytest.mark.cuda
def test_on_cuda_the_model_is_the_same():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is available")
    program = load_graph("countries").program
    keys = (LeastModel(program, device=device).keys.tolist() for device in ("cpu", "cuda"))
    assert next(keys) == next(keys)


@pytest.mark.data
@pytest.mark.skipif("KGVERIFY_DATA" not in os.environ, reason="KGVERIFY_DATA is not set")
def test_family_has_55715_atoms_in_seven_rounds():
    graph = load_graph("family")
    model = LeastModel(graph.program, device="cpu")
    assert (model.num_atoms, model.num_rounds) == (55_715, 7)
    assert 0.95 < model.contains(graph.queries("test")).mean() < 0.97


def test_rows_are_split_at_a_bound_of_which_a_single_row_may_exceed_it():
    total = torch.tensor([2, 3, 9, 10, 12, 20])
    parts = list(_parts(total, 4))
    assert parts == [(0, 2), (2, 3), (3, 5), (5, 6)]
    assert list(_parts(total, 20)) == [(0, 6)]
    assert list(_parts(total[:0], 4)) == []


def test_a_model_may_have_as_many_atoms_as_fit() -> None:
    program = program_of("p(a, b)\np(b, c)\np(c, d)\nr(X, Z) <- p(X, Y), p(Y, Z)\nr(X, Z) <- r(X, Y), p(Y, Z)")
    num = len(model_of(program))
    assert num == 6
    assert len(model_of(program, memory_budget=num * _BYTES_OF_ATOM)) == num
    with pytest.raises(UserError, match=f"more than {num - 1} atoms"):
        model_of(program, memory_budget=(num - 1) * _BYTES_OF_ATOM, most_rows=1 << 20)
