"""A user's mistake is reported with its location and a fix; sizes that cannot fit are refused, never cut."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_checks import eager
from random_programs import candidates_of, program_of

import kgverify as kv
from kgverify import Limits, UserError
from kgverify.dialects import Dialect, ReferenceEngine
from kgverify.engines.policy import SHORTEST, Policy, make_two_tower
from kgverify.engines.protocol import positions_of
from kgverify.errors import InternalError
from kgverify.program.program import Program, Symbols
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution import compilation as compile_module
from kgverify.prover.execution.compilation import resolve_mode
from kgverify.prover.execution.device import resolve_device
from kgverify.prover.execution_choice import choose_layout
from kgverify.prover.program.tables import build_tables
from kgverify.prover.state import Layout

PROGRAM = program_of("p(a, b)\np(b, c)\nr(X, Z) <- p(X, Y), p(Y, Z)", queries="r(a, c)")
LIMITS = Limits(max_atoms=3, max_resolvents=10)


@pytest.mark.parametrize(
    ("size", "needed"),
    [
        ({"atoms": 2}, 3),
        ({"resolvents": 9}, 10),
        ({"score_window": 9}, 10),
        ({"slots": 0}, 1),
        ({"match_window": 0}, 1),
        ({"pool": 0}, 1),
    ],
)
def test_a_layout_that_cannot_hold_what_the_limits_allow_is_refused(size: dict[str, int], needed: int) -> None:
    (name,) = size
    with pytest.raises(UserError, match=rf"{name}.*at least {needed}(.|\n)*fix: choose {name} >= {needed}"):
        choose_layout(LIMITS, **size)


def test_another_dialect_is_refused() -> None:
    with pytest.raises(UserError, match=r"dialect: the compiled evaluator supports the default dialect alone"):
        CompiledEngine(PROGRAM, Limits(dialect=Dialect(ties="random")), SHORTEST, mode="eager", device="cpu")


def test_a_layout_made_by_hand_is_checked_like_any_other() -> None:
    too_small = Layout(slots=2, atoms=1, resolvents=10, match_window=8, score_window=10, pool=4)
    with pytest.raises(UserError, match=r"atoms is 1"):
        CompiledEngine(PROGRAM, LIMITS, SHORTEST, mode="eager", device="cpu", layout=too_small)


def test_buffers_beyond_the_memory_budget_are_refused_before_they_are_allocated() -> None:
    with pytest.raises(UserError, match=r"GiB, more than 8 GiB(.|\n)*fewer slots"):
        choose_layout(Limits(max_resolvents=1 << 20), slots=4096)


def test_the_memory_budget_counts_two_buffers_of_goals_visited_and_of_clauses_kept() -> None:
    # Two of 12 bytes an atom, for 6 atoms of 20 goals and the current one, and of 8 bytes a clause, for 120 and a sink.
    most = (8 << 30) // (2 * (12 * 6 * (20 + 1) + 8 * (120 + 1)))
    assert choose_layout(Limits(), slots=most).slots == most
    with pytest.raises(UserError, match="more than 8 GiB"):
        choose_layout(Limits(), slots=most + 1)


def drop(policy: Policy, name: str) -> dict[str, np.ndarray]:
    return {key: value for key, value in policy.weights.items() if key != name}


@pytest.mark.parametrize("engine", [CompiledEngine, ReferenceEngine])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda policy: drop(policy, "input.bias"), "input.bias"),
        (
            lambda policy: {**policy.weights, "embedding.constant": policy.weights["embedding.constant"][:-1]},
            "constant",
        ),
        (
            lambda policy: {**policy.weights, "embedding.variable": policy.weights["embedding.variable"][:5]},
            "at least 6",
        ),
        (lambda policy: {**policy.weights, "input.bias": policy.weights["input.bias"] * np.nan}, "NaN"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused(
    engine: type, damage: Callable[[Policy], dict[str, np.ndarray]], message: str
) -> None:
    policy = make_two_tower(PROGRAM, LIMITS, seed=0, embedding=8, hidden=8)
    with pytest.raises(UserError, match=message):
        engine(PROGRAM, LIMITS, Policy("two_tower", damage(policy)))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UserError, match="unknown policy 'longest'"):
        CompiledEngine(PROGRAM, LIMITS, Policy("longest"), mode="eager")


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(UserError, match=r"unknown mode 'fast'(.|\n)*eager"):
        CompiledEngine(PROGRAM, LIMITS, SHORTEST, mode="fast", device="cpu")


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(UserError, match="unknown device 'abacus'"):
        CompiledEngine(PROGRAM, LIMITS, SHORTEST, mode="eager", device="abacus")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_cuda_device_is_reported() -> None:
    with pytest.raises(UserError, match=r"no CUDA device(.|\n)*--device cpu"):
        resolve_device("cuda")
    assert resolve_device("auto").type == "cpu"


def test_without_a_compiler_auto_is_eager_and_any_other_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "find_compiler", lambda: None)
    cpu = torch.device("cpu")
    assert resolve_mode("auto", cpu) == "eager"
    assert resolve_mode("eager", cpu) == "eager"
    with pytest.raises(UserError, match="needs a C\\+\\+ compiler"):
        resolve_mode("default", cpu)


def with_constants(num_constants: int) -> Program:
    """A program that claims a number of constants, without their names."""
    return replace(PROGRAM, symbols=Symbols(PROGRAM.symbols.predicates, range(num_constants)))


def test_keys_that_do_not_fit_63_bits_are_refused() -> None:
    with pytest.raises(UserError, match="do not fit the 63-bit keys"):
        build_tables(with_constants(2**31), 3, torch.device("cpu"))


def test_the_largest_keys_that_fit_find_their_facts() -> None:
    """Two predicates and 1.7 * 10^9 constants make keys close to 2^63; no table has a row per constant."""
    num_constants = 1_700_000_000
    assert 3 * num_constants**2 < 2**63 < 4 * num_constants**2
    program = with_constants(num_constants)
    last = num_constants - 1
    program = replace(program, facts=np.array([[0, 0, 1], [1, last - 1, last], [1, last, last]], np.int32))
    rows = np.array([[1, last, last], [1, last - 1, last], [1, last, last - 1], [0, 0, 1], [1, last, -1]], np.int32)
    candidates = candidates_of(PROGRAM, "p(a, b), p(a, b), p(a, b), p(a, b), p(a, b)")._replace(atom=rows)
    outcome = eager(program, Limits(exclude_query=False)).prove(candidates).candidates.outcome
    assert outcome.tolist() == [1, 1, 2, 1, 1]


def test_a_position_beyond_the_limits_is_a_bug_of_the_caller() -> None:
    candidates = candidates_of(PROGRAM, "r(a, c)")
    positions = positions_of(eager(PROGRAM, LIMITS).prove(candidates))
    engine = eager(PROGRAM, Limits(max_atoms=1))
    with pytest.raises(InternalError, match="does not fit"):
        engine.step(
            positions._replace(num_atoms=np.full_like(positions.num_atoms, 2), atoms=positions.atoms.repeat(2, 0))
        )


def test_the_evaluator_on_tensors_refuses_another_dialect():
    with pytest.raises(UserError, match="supports the default dialect alone, found memory set"):
        kv.verify("countries", kv.Evaluator(mode="eager"), queries=1, limits=Limits(dialect=Dialect(memory="set")))
