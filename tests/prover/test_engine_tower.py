"""Towers of chosen goals only, into buffers of the caller; without a GPU in Triton's interpreter."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from kgverify import Limits, UserError, load_graph
from kgverify.engines.policy import Policy, make_two_tower
from kgverify.prover.stages.choose import build_parameters, score_two_tower, tower
from kgverify.prover.state import PAD
from kgverify.prover.tower.launch import draw_goals

pytest.importorskip("triton", reason="Triton is not installed")

from kgverify.prover.execution.device import count_processors
from kgverify.prover.tower import embed
from kgverify.prover.tower.launch import build_tower_parameters, build_tower_score, launch_tower
from kgverify.prover.tower.portable import CONTEST, EXACT, score_contests

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LIMITS = Limits()
UNTOUCHED = 77.0
PRECISION = "bf16x3"
CLOSE = 1e-3


def make_policy(hidden: int = 64) -> Policy:
    return make_two_tower(load_graph("countries").program, LIMITS, seed=1, embedding=50, hidden=hidden, blocks=2)


def draw(policy: Policy, seed: int, num_goals: int) -> Tensor:
    return draw_goals(policy, LIMITS.max_atoms, seed, DEVICE, num_goals)


def count_of(number: int) -> Tensor:
    return torch.tensor([number], dtype=torch.int32, device=DEVICE)


def test_only_the_rows_of_an_index_before_the_count_are_written() -> None:
    policy = make_policy()
    goals = draw(policy, 0, 300)
    index = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:200].to(DEVICE, torch.int32)
    out = torch.full((300, 64), UNTOUCHED, device=DEVICE)
    parameters = build_tower_parameters(policy, PRECISION, DEVICE)
    launch_tower(parameters, goals, out, PRECISION, index=index, count=count_of(150))
    expected = tower(build_parameters(policy, DEVICE, torch.float64), goals)
    is_written = torch.zeros(300, dtype=torch.bool, device=DEVICE)
    is_written[index[:150].long()] = True
    assert (out - expected)[is_written].abs().max() < CLOSE
    assert (out[~is_written] == UNTOUCHED).all()


@pytest.mark.parametrize(("precision", "bound"), [("fp16", 1e-2), ("bf16", 8e-2)])
@pytest.mark.parametrize("number", [0, 1, 15, 16, 45, 60])
def test_the_input_layer_is_computed_for_the_goals_of_an_index(precision: str, bound: float, number: int) -> None:
    policy = make_policy()
    goals = draw(policy, 2, 70)
    index = torch.randperm(70, generator=torch.Generator().manual_seed(number))[:50].to(DEVICE, torch.int32)
    parameters = build_tower_parameters(policy, precision, DEVICE)
    out = torch.full((50, 64), UNTOUCHED, dtype=parameters[3].dtype, device=DEVICE)
    arguments = goals, index, count_of(number), len(index), goals.shape[1]
    embed.launch(parameters, arguments, out, has_index=True, has_count=True)

    weights = {name: np.asarray(array, np.float64) for name, array in policy.weights.items()}
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
def test_chosen_rows_are_scored_against_the_goals_of_their_slots(dtype: torch.dtype) -> None:
    policy = make_policy()
    goals, resolvents = draw(policy, 0, 30), draw(policy, 1, 300)
    slots = torch.arange(300, device=DEVICE) % 30
    index = torch.arange(299, -1, -2, dtype=torch.int32, device=DEVICE)
    parameters = build_tower_parameters(policy, PRECISION, DEVICE)
    features = torch.empty((30, 64), device=DEVICE)
    launch_tower(parameters, goals, features, PRECISION)
    out = torch.full((300,), UNTOUCHED, device=DEVICE)
    launch_tower(parameters, resolvents, out, PRECISION, index=index, against=(features, slots.to(dtype)))
    expected = score_two_tower(build_parameters(policy, DEVICE, torch.float64), goals, resolvents, slots)
    assert (out - expected)[1::2].abs().max() < CLOSE
    assert (out[::2] == UNTOUCHED).all()


def test_exact_scores_are_those_of_float64() -> None:
    policy = make_policy()
    goals, resolvents = draw(policy, 0, 3), draw(policy, 1, 8)
    slots = torch.arange(8, device=DEVICE, dtype=torch.int32) % 3
    index = torch.randperm(8, generator=torch.Generator().manual_seed(0)).to(DEVICE, torch.int32)
    parameters = build_tower_parameters(policy, EXACT, DEVICE)
    features = torch.zeros((3, 64), dtype=torch.float64, device=DEVICE)
    launch_tower(parameters, goals, features, EXACT)
    exact = build_parameters(policy, DEVICE, torch.float64)
    assert torch.allclose(features, tower(exact, goals), atol=1e-12)
    out = torch.full((8,), UNTOUCHED, dtype=torch.float64, device=DEVICE)
    launch_tower(parameters, resolvents, out, EXACT, index=index, count=count_of(6), against=(features, slots))
    expected = score_two_tower(exact, goals, resolvents, slots.long())
    assert torch.allclose(out[index[:6].long()], expected[index[:6].long()], atol=1e-12)
    assert (out[index[6:].long()] == UNTOUCHED).all()


@pytest.mark.parametrize(("precision", "bound"), [(EXACT, 1e-12), ("float32", 1e-4)])
@pytest.mark.parametrize("number", [0, 1, 4, 7, 40])
def test_resolvents_of_contests_are_scored_against_their_goals(number: int, precision: str, bound: float) -> None:
    policy = make_policy()
    goals, resolvents = draw(policy, 0, 9), draw(policy, 1, 40)
    rng = np.random.default_rng(number)
    rows, slot_of, wanted = rng.permutation(40), {}, np.full((40, CONTEST), -1)
    for contest, own in enumerate(np.split(rows, np.cumsum(rng.integers(1, CONTEST, 30))[:13])):
        wanted[contest, 0] = rng.integers(0, 9)
        own = own[: CONTEST - 1]
        wanted[contest, rng.permutation(CONTEST - 1)[: len(own)] + 1] = own
        slot_of |= dict.fromkeys(own.tolist() if contest < number else [], wanted[contest, 0])
    out = torch.full((40,), UNTOUCHED, dtype=torch.float64, device=DEVICE)
    contests = torch.tensor(wanted, dtype=torch.int32, device=DEVICE)
    parameters = build_tower_parameters(policy, precision, DEVICE)
    score_contests(parameters, goals, resolvents, contests, count_of(min(number, 14)), out, precision)
    exact = build_parameters(policy, DEVICE, torch.float64)
    scored = torch.tensor(sorted(slot_of), dtype=torch.int64, device=DEVICE)
    slots = torch.tensor([slot_of[row] for row in scored.tolist()], dtype=torch.int64, device=DEVICE)
    expected = score_two_tower(exact, goals, resolvents[scored], slots)
    assert len(scored) >= min(number, 10)
    assert torch.allclose(out[scored], expected, atol=bound, rtol=0)
    out[scored] = UNTOUCHED
    assert (out == UNTOUCHED).all()


def test_a_resolvent_has_the_same_exact_score_at_every_place() -> None:
    policy = make_policy()
    goals, resolvents = draw(policy, 0, 1), draw(policy, 1, 1).expand(200, -1, -1).contiguous()
    contests = torch.arange(-1, 199, dtype=torch.int32).reshape(-1, CONTEST)
    contests[:, 0] = 0
    out = torch.zeros(200, dtype=torch.float64, device=DEVICE)
    parameters = build_tower_parameters(policy, EXACT, DEVICE)
    score_contests(parameters, goals, resolvents, contests.to(DEVICE), count_of(50), out, EXACT)
    assert len(out[contests[:, 1:].flatten().long()].unique()) == 1


@pytest.mark.parametrize("name", ["embedding.constant", "block.0.bias"])
def test_weights_that_float16_cannot_hold_are_refused(name: str) -> None:
    policy = make_policy()
    large = replace(policy, weights={**policy.weights, name: policy.weights[name] + np.float32(1e5)})
    build_tower_parameters(large, "bf16", DEVICE)
    with pytest.raises(UserError, match="too large for precision 'fp16'"):
        build_tower_parameters(large, "fp16", DEVICE)


@pytest.mark.parametrize("number", [0, 1, 64, 1000])
def test_a_count_without_an_index_is_of_the_first_rows(number: int) -> None:
    policy = make_policy()
    goals = draw(policy, 2, 140)
    out = torch.full((140, 64), UNTOUCHED, device=DEVICE)
    parameters = build_tower_parameters(policy, PRECISION, DEVICE)
    launch_tower(parameters, goals, out, PRECISION, count=count_of(number))
    expected = tower(build_parameters(policy, DEVICE, torch.float64), goals)
    assert torch.allclose(out[:number].double(), expected[:number], atol=CLOSE)
    assert (out[number:] == UNTOUCHED).all()


@pytest.mark.sample(2)
@pytest.mark.parametrize(("hidden", "blocks"), [(1, 1), (8, 2), (100, 1), (32, 0)])
@pytest.mark.parametrize("precision", ["bf16x3", EXACT])
def test_other_widths_are_padded(hidden: int, blocks: int, precision: str) -> None:
    program = load_graph("countries").program
    policy = make_two_tower(program, LIMITS, seed=1, embedding=5, hidden=hidden, blocks=blocks)
    goals = draw(policy, 0, 20)
    parameters = build_tower_parameters(policy, precision, DEVICE)
    dtype = torch.float64 if precision == EXACT else torch.float32
    out = torch.empty((20, parameters[0].shape[1]), dtype=dtype, device=DEVICE)
    launch_tower(parameters, goals, out, precision)
    expected = tower(build_parameters(policy, DEVICE, torch.float64), goals)
    assert (out[:, :hidden] - expected).abs().max() < (1e-10 if precision == EXACT else 5e-3)
    assert (out[:, hidden:] == 0).all()
    scores = torch.empty(20, dtype=torch.float32, device=DEVICE)
    slots = torch.arange(20, dtype=torch.int32, device=DEVICE)
    launch_tower(parameters, goals, scores, precision, against=(out, slots))
    assert torch.allclose(scores.double(), (expected**2).sum(1) / hidden**0.5, atol=2e-2)


@pytest.mark.parametrize(("precision", "bound"), [("bf16", 0.1), ("fp16", 2e-2), ("bf16x3", CLOSE)])
@pytest.mark.parametrize("is_many", [False, True])
def test_a_width_of_256_is_scored_to_its_precision(precision: str, bound: float, is_many: bool) -> None:
    """The size with a special kernel on Hopper, with smaller tiles for fewer rows; some blocks of rows are all padding."""
    if is_many and DEVICE.type == "cpu":
        pytest.skip("every number of rows has the same tiles on a CPU")
    num = 300 * count_processors(DEVICE) if is_many else 300
    policy = make_policy(256)
    goals, resolvents = draw(policy, 0, 30), draw(policy, 1, num)
    slots = torch.arange(num, device=DEVICE) % 30
    is_padding = torch.arange(num, device=DEVICE) < 260
    resolvents[is_padding] = PAD
    score = build_tower_score(precision)
    scores = score(build_tower_parameters(policy, precision, DEVICE), goals, resolvents, slots)
    expected = score_two_tower(build_parameters(policy, DEVICE, torch.float64), goals, resolvents, slots)
    assert (scores - expected)[~is_padding].abs().max() < bound
