"""The least model on the device is the one that clingo's grounding finds."""

import os
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from engine_checks import program_of

from kgverify import Program, UserError, load_graph
from kgverify.laws import draw_problems
from kgverify.prover.program import relations
from kgverify.prover.program.least_model import _BYTES_OF_ATOM, LeastModel
from kgverify.testing.problems.merge import merge

Ids = tuple[int, int, int]


def model_of(program: Program, device: str = "cpu", **options: int) -> set[Ids]:
    model = LeastModel(program, device=device, **options)
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

    def render(atom: Ids) -> str:
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


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device is available")
    return str(request.param)


@pytest.mark.parametrize(
    ("facts", "rules", "num_atoms"),
    [
        ("", "p(X,Y) q(X,Y)", 0),
        ("p(a,b)", "", 1),
        ("e(a,b) e(b,c) e(c,d)", "t(X,Y) e(X,Y); t(X,Z) t(X,Y) t(Y,Z)", 9),
        # A variable of the head alone stands for every constant.
        ("e(a,b)", "t(X,Y) e(X,Z); u(Y,Y) e(X,X); v(W,Y) e(X,Z); w(Y,Y) e(X,Z)", 9),
        # Constants, repeated variables and bodies without a common variable are joined.
        (
            "e(a,b) e(b,b) e(b,c) f(c,a) f(a,a)",
            "g(X,b) e(X,X) f(Y,a); h(X,Y) e(X,Z) f(V,Y) e(b,W); i(a,X) e(a,b) f(X,X);"
            "j(X,Y) e(X,b) e(b,Y) f(Z,Z) e(U,V); k(X,Y) e(X,Z) e(Z,V) f(V,Y) e(Z,Z);"
            "l(X,W) e(X,Y) e(Y,Z) f(Z,W) e(X,Z) f(W,W)",
            None,
        ),
    ],
)
def test_the_model_of_a_program_is_the_one_that_clingo_grounds(
    facts: str, rules: str, num_atoms: int | None, device: str
) -> None:
    program = program_of(facts, rules, constants=["a"])
    model = model_of(program, device)
    assert model == ground(program)
    assert num_atoms is None or len(model) == num_atoms


def test_generated_programs_and_countries_have_the_models_that_clingo_grounds(device: str) -> None:
    num_derived = 0
    for program in [*small_programs(9, 100), load_graph("countries").program]:
        model = model_of(program, device)
        assert model == ground(program)
        num_derived += len(model) > len(program.facts)
    assert num_derived > 30


def test_joins_by_products_of_matrices_have_the_rows_of_joins_by_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = " ".join(f"e(c{i},c{i + 1})" for i in range(30)) + " d(c0,c0) d(c3,c9)"
    rules = "t(X,Y) e(X,Y); t(X,Z) e(X,Y) t(Y,Z); s(X,Y) t(X,U) t(U,V) t(V,W) t(W,Y);"
    rules += "r(X,Y) t(V,X) s(V,W) t(W,Y); r(X,X) t(X,U) s(U,X); r(X,Z) s(Y,X) t(Z,Y) d(X,X)"
    program = program_of(facts, rules)
    shared: list[Any] = []
    compose = relations._compose
    monkeypatch.setattr(relations, "_compose", lambda *given: shared.append(given[2]) or compose(*given))
    sorted_model = model_of(program, most_rows=100)
    assert not shared
    assert model_of(program) == sorted_model == ground(program)
    assert len(set(shared)) > 2


def test_tables_taken_in_parts_change_nothing() -> None:
    # So little memory that a table has 64 rows; the model itself takes less.
    small = [(program, model) for program in small_programs(3, 60) if len(model := model_of(program)) < 200]
    assert len(small) > 40
    for program, model in small:
        assert model_of(program, memory_budget=1 << 14) == model


def test_the_entities_that_give_an_atom_that_follows_are_those_whose_atoms_follow() -> None:
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


def test_an_atom_with_variables_follows_where_an_instance_does() -> None:
    program = program_of("e(a,b) e(b,b) f(a,c)", "t(X,Z) e(X,Y) f(Y,Z)", "t(a,a)")
    model = LeastModel(program, device="cpu")
    e, f, t = (program.symbols.predicate_ids[name] for name in "eft")
    yes = [(e, 0, 1), (e, -1, -1), (f, 0, -1), (e, -1, -2)]
    no = [(e, 0, 0), (f, -1, -1), (f, 1, -1), (f, -1, 1), (t, -1, -2)]
    assert model.contains(np.array(yes + no, np.int32)).tolist() == [True] * len(yes) + [False] * len(no)
    assert model.contains(np.zeros((0, 3), np.int32)).tolist() == []


@pytest.mark.parametrize(
    ("facts", "rules", "num_constants", "num_atoms"),
    [
        ("e(a,a)", "t(X,Y) e(Z,Z); u(X,Y) e(Z,Z)", 9, 1 + 2 * 10**2),
        ("p(a,b) p(b,c) p(c,d)", "r(X,Z) p(X,Y) p(Y,Z); r(X,Z) r(X,Y) p(Y,Z)", 0, 6),
        ("e(a,a)", "t(X,Y) e(Z,Z)", 300, 1 + 301**2),
    ],
)
def test_a_model_may_have_as_many_atoms_as_fit(facts: str, rules: str, num_constants: int, num_atoms: int) -> None:
    program = program_of(facts, rules, constants=[f"c{i}" for i in range(num_constants)])
    budget = {"most_rows": 1 << 20}
    assert len(model_of(program, memory_budget=num_atoms * _BYTES_OF_ATOM, **budget)) == num_atoms
    for most in (num_atoms - 1, num_atoms // 2):
        with pytest.raises(UserError, match=f"the least model has more than {most:,} atoms"):
            model_of(program, memory_budget=most * _BYTES_OF_ATOM, **budget)


@pytest.mark.data
@pytest.mark.skipif("KGVERIFY_DATA" not in os.environ, reason="KGVERIFY_DATA is not set")
def test_family_has_55715_atoms_in_seven_rounds() -> None:
    graph = load_graph("family")
    model = LeastModel(graph.program, device="cpu")
    assert (model.num_atoms, model.num_rounds) == (55_715, 7)
    assert 0.95 < model.contains(graph.queries("test")).mean() < 0.97
