"""Towers of chosen goals into buffers of the caller, to their precision; without a GPU in Triton's interpreter."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from engine_checks import CPU, DEVICE
from torch import Tensor

from kgverify import Limits, Policy, UserError, load_graph
from kgverify.engines.policy import make_two_tower
from kgverify.prover.stages.choose import build_parameters, score_two_tower, tower
from kgverify.prover.state import PAD
from kgverify.prover.tower.launch import PRECISIONS, draw_goals

pytest.importorskip("triton", reason="Triton is not installed")

from kgverify.prover.execution.device import count_processors
from kgverify.prover.tower import embed
from kgverify.prover.tower.hopper import _has_room, can_launch
from kgverify.prover.tower.launch import build_tower_parameters, build_tower_score, launch_tower
from kgverify.prover.tower.portable import CONTEST, EXACT, score_contests

LIMITS = Limits()
UNTOUCHED = 77.0
BOUNDS = {"float32": 1e-4, "bf16x3": 1e-3, "bf16": 0.1, "fp16": 2e-2, EXACT: 1e-12}


def make_policy(hidden: int = 64, embedding: int = 50, blocks: int = 2) -> Policy:
    program = load_graph("countries").program
    return make_two_tower(program, LIMITS, seed=1, embedding=embedding, hidden=hidden, blocks=blocks)


POLICY = make_policy()


def draw(seed: int, num_goals: int, policy: Policy = POLICY) -> Tensor:
    return draw_goals(policy, LIMITS.max_atoms, seed, DEVICE, num_goals)


def ints(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int32, device=DEVICE)


def exact(policy: Policy = POLICY) -> Any:
    return build_parameters(policy, DEVICE, torch.float64)


def untouched(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, UNTOUCHED, dtype=dtype, device=DEVICE)


def permute(num: int, seed: int = 0) -> Tensor:
    return ints(torch.randperm(num, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize(
    ("precision", "has_index", "number"),
    [("bf16x3", True, 35), ("bf16x3", False, 64), ("bf16x3", False, 1000), (EXACT, True, 6), (EXACT, False, 0)],
)
def test_only_the_rows_of_an_index_before_the_count_are_written(precision: str, has_index: bool, number: int) -> None:
    num = 140 if precision != EXACT else 8
    goals, index = draw(0, num), permute(num)[: num - 1]
    out = untouched(num, 64, dtype=torch.float64 if precision == EXACT else torch.float32)
    parameters = build_tower_parameters(POLICY, precision, DEVICE)
    given = {"index": index} if has_index else {}
    launch_tower(parameters, goals, out, precision, count=ints([number]), **given)
    is_written = torch.zeros(num, dtype=torch.bool, device=DEVICE)
    is_written[(index if has_index else torch.arange(num, device=DEVICE))[:number].long()] = True
    difference = (out - tower(exact(), goals)).abs()
    assert torch.equal(difference.amax(1) < BOUNDS[precision], is_written)
    assert (out[~is_written] == UNTOUCHED).all()


@pytest.mark.parametrize(("precision", "bound"), [("fp16", 1e-2), ("bf16", 8e-2)])
@pytest.mark.parametrize("number", [0, 1, 16, 45, 60])
def test_the_input_layer_is_computed_for_the_goals_of_an_index(precision: str, bound: float, number: int) -> None:
    goals, index = draw(2, 70), permute(70, number)[:50]
    parameters = build_tower_parameters(POLICY, precision, DEVICE)
    out = untouched(50, 64, dtype=parameters[3].dtype)
    arguments = goals, index, ints([number]), len(index), goals.shape[1]
    embed.launch(parameters, arguments, out, has_index=True, has_count=True)

    weights = {name: np.asarray(array, np.float64) for name, array in POLICY.weights.items()}
    constants, variables = weights["embedding.constant"], weights["embedding.variable"]
    for place, goal in enumerate(index[:number].tolist()):
        atoms = [atom for atom in goals[goal].tolist() if atom[0] != PAD]
        rows = [
            weights["embedding.predicate"][predicate]
            + sum(sign * (constants[a] if a >= 0 else variables[-1 - a]) for sign, a in ((1, first), (-1, second)))
            for predicate, first, second in atoms
        ]
        expected = weights["input.weight"] @ np.mean(rows, axis=0) + weights["input.bias"]
        assert np.abs(out[place].double().cpu().numpy() - expected).max() < bound
    assert (out[number:] == UNTOUCHED).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("precision", ["bf16x3", EXACT])
def test_chosen_rows_are_scored_against_the_goals_of_their_slots(precision: str, dtype: torch.dtype) -> None:
    num, kind = (300, torch.float32) if precision != EXACT else (9, torch.float64)
    goals, resolvents = draw(0, 30), draw(1, num)
    slots = torch.arange(num, device=DEVICE) % 30
    parameters = build_tower_parameters(POLICY, precision, DEVICE)
    features, out = untouched(30, 64, dtype=kind), untouched(num, dtype=kind)
    launch_tower(parameters, goals, features, precision)
    index = ints(torch.arange(num - 1, -1, -2))
    launch_tower(parameters, resolvents, out, precision, index=index, against=(features, slots.to(dtype)))
    expected = score_two_tower(exact(), goals, resolvents, slots)
    is_chosen = torch.zeros(num, dtype=torch.bool, device=DEVICE)
    is_chosen[index.long()] = True
    assert (out - expected)[is_chosen].abs().max() < BOUNDS[precision]
    assert (out[~is_chosen] == UNTOUCHED).all()


@pytest.mark.parametrize("precision", [EXACT, "float32"])
@pytest.mark.parametrize("number", [0, 1, 7, 40])
def test_resolvents_of_contests_are_scored_against_their_goals(number: int, precision: str) -> None:
    goals, resolvents = draw(0, 9), draw(1, 40)
    rng = np.random.default_rng(number)
    rows, slot_of, wanted = rng.permutation(40), {}, np.full((40, CONTEST), -1)
    for contest, own in enumerate(np.split(rows, np.cumsum(rng.integers(1, CONTEST, 30))[:13])):
        wanted[contest, 0] = rng.integers(0, 9)
        own = own[: CONTEST - 1]
        wanted[contest, rng.permutation(CONTEST - 1)[: len(own)] + 1] = own
        slot_of |= dict.fromkeys(own.tolist() if contest < number else [], wanted[contest, 0])
    out = untouched(40, dtype=torch.float64)
    parameters = build_tower_parameters(POLICY, precision, DEVICE)
    score_contests(parameters, goals, resolvents, ints(wanted), ints([min(number, 14)]), out, precision)
    scored = torch.tensor(sorted(slot_of), dtype=torch.int64, device=DEVICE)
    slots = torch.tensor([slot_of[row] for row in scored.tolist()], dtype=torch.int64, device=DEVICE)
    expected = score_two_tower(exact(), goals, resolvents[scored], slots)
    assert len(scored) >= min(number, 10)
    assert torch.allclose(out[scored], expected, atol=BOUNDS[precision], rtol=0)
    out[scored] = UNTOUCHED
    assert (out == UNTOUCHED).all()


def test_a_resolvent_has_the_same_exact_score_at_every_place() -> None:
    goals, resolvents = draw(0, 1), draw(1, 1).expand(200, -1, -1).contiguous()
    contests = ints(torch.arange(-1, 199).reshape(-1, CONTEST))
    contests[:, 0] = 0
    out = torch.zeros(200, dtype=torch.float64, device=DEVICE)
    parameters = build_tower_parameters(POLICY, EXACT, DEVICE)
    score_contests(parameters, goals, resolvents, contests, ints([50]), out, EXACT)
    assert len(out[contests[:, 1:].flatten().long()].unique()) == 1


@pytest.mark.parametrize("name", ["embedding.constant", "block.0.bias"])
def test_weights_that_float16_cannot_hold_are_refused(name: str) -> None:
    large = replace(POLICY, weights={**POLICY.weights, name: POLICY.weights[name] + np.float32(1e5)})
    build_tower_parameters(large, "bf16", DEVICE)
    with pytest.raises(UserError, match="too large for precision 'fp16'"):
        build_tower_parameters(large, "fp16", DEVICE)


@pytest.mark.parametrize(
    ("hidden", "blocks", "precision"), [(1, 1, "bf16x3"), (8, 2, EXACT), (100, 1, "bf16x3"), (32, 0, EXACT)]
)
def test_other_widths_are_padded(hidden: int, blocks: int, precision: str) -> None:
    policy = make_policy(hidden, 5, blocks)
    goals = draw(0, 20, policy)
    parameters = build_tower_parameters(policy, precision, DEVICE)
    out = untouched(20, parameters[0].shape[1], dtype=torch.float64 if precision == EXACT else torch.float32)
    launch_tower(parameters, goals, out, precision)
    expected = tower(exact(policy), goals)
    assert (out[:, :hidden] - expected).abs().max() < (1e-10 if precision == EXACT else 5e-3)
    assert (out[:, hidden:] == 0).all()
    scores = torch.empty(20, dtype=torch.float32, device=DEVICE)
    launch_tower(parameters, goals, scores, precision, against=(out, ints(torch.arange(20))))
    assert torch.allclose(scores.double(), (expected**2).sum(1) / hidden**0.5, atol=2e-2)


@pytest.mark.parametrize(
    ("precision", "hidden", "is_many"),
    [
        *((each, 64, False) for each in PRECISIONS),
        ("bf16", 256, False),
        ("fp16", 256, False),
        ("fp16", 256, True),
        ("bf16x3", 256, True),
    ],
)
def test_a_kernel_scores_as_the_stage_does_to_its_precision(precision: str, hidden: int, is_many: bool) -> None:
    """A width of 256 has a special kernel on Hopper, with smaller tiles for fewer rows; some blocks of rows are all padding."""
    if is_many and DEVICE == CPU:
        pytest.skip("every number of rows has the same tiles on a CPU")
    num = 300 * count_processors(DEVICE) if is_many else 300
    policy = make_policy(hidden)
    goals, resolvents = draw(0, 30, policy), draw(1, num, policy)
    slots = torch.arange(num, device=DEVICE) % 30
    is_padding = torch.arange(num, device=DEVICE) < (260 if hidden == 256 else 0)
    resolvents[is_padding] = PAD
    scores = build_tower_score(precision)(build_tower_parameters(policy, precision, DEVICE), goals, resolvents, slots)
    difference = (scores - score_two_tower(exact(policy), goals, resolvents, slots))[~is_padding].abs().max()
    assert difference < ({"float32": 1e-5, "bf16x3": 3e-4} if hidden == 64 else BOUNDS).get(
        precision, BOUNDS[precision]
    )
    if precision == "bf16":
        assert difference > 1e-3


@pytest.mark.parametrize(
    ("precision", "rows", "weights", "low"),
    [
        ("float32", torch.float32, torch.float32, 0),
        ("float64", torch.float64, torch.float32, 0),
        ("bf16", torch.bfloat16, torch.bfloat16, 0),
        ("fp16", torch.float16, torch.float16, 0),
        ("bf16x3", torch.float32, torch.bfloat16, 1),
    ],
)
def test_weights_have_the_types_of_their_precision(
    precision: str, rows: torch.dtype, weights: torch.dtype, low: int
) -> None:
    made = build_tower_parameters(make_policy(256, 4, 1), precision, torch.device("meta"))
    assert (made[0].dtype, made[3].dtype, made[4].numel() > 0) == (rows, weights, bool(low))
    assert can_launch(made, precision) == (precision in ("bf16", "fp16"))
    assert not can_launch(build_tower_parameters(make_policy(128, 4, 1), precision, CPU), precision)
    assert not can_launch((*made[:3], made[3][:0], *made[4:]), precision)


def test_the_vectors_of_as_many_blocks_are_kept_as_fit_shared_memory() -> None:
    # Of 227 KiB, 1 KiB is kept. 128 states and 4 slices of 64 rows take 512 bytes a row; a block has three vectors of 1 KiB.
    assert [_has_room(num) for num in range(16)] == [num <= 11 for num in range(16)]
