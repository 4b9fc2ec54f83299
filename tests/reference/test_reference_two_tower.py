"""The neural policy, against the formula written out in plain Python and against torch's own layers."""

import math
import warnings

import numpy as np
import pytest

from kgreference import STOP, Atom, Kind, Limits, OriginKind, Program, Resolvent, Rule, derive
from kgreference.two_tower import TwoTower

WIDTH, DIMENSION, NUM_BLOCKS = 6, 5, 2


@pytest.fixture
def weights():
    rng = np.random.default_rng(0)
    shapes = {
        "embedding.predicate": (3, DIMENSION),
        "embedding.constant": (4, DIMENSION),
        "embedding.variable": (12, DIMENSION),
        "input.weight": (WIDTH, DIMENSION),
        "input.bias": (WIDTH,),
    }
    for block in range(NUM_BLOCKS):
        shapes[f"block.{block}.weight"] = (WIDTH, WIDTH)
        for vector in ("bias", "norm.weight", "norm.bias"):
            shapes[f"block.{block}.{vector}"] = (WIDTH,)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def resolvent_of(*atoms):
    return Resolvent(Kind.GOAL, atoms, OriginKind.RULE, 0)


GOAL = (Atom(0, 1, 2),)
RESOLVENTS = [
    resolvent_of(Atom(1, 1, -1), Atom(2, -1, 2)),
    resolvent_of(Atom(2, -1, -2)),
    resolvent_of(Atom(0, 3, 3), Atom(1, 0, -1), Atom(1, -1, -1)),
]


def dot(left, right):
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


def tower_by_hand(weights, atoms):
    w = {name: array.astype(float).tolist() for name, array in weights.items()}

    def argument(term):
        return w["embedding.variable"][-1 - term] if term < 0 else w["embedding.constant"][term]

    rows = [
        [p + f - s for p, f, s in zip(w["embedding.predicate"][a[0]], argument(a[1]), argument(a[2]), strict=True)]
        for a in atoms
    ]
    embedding = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    x = [dot(row, embedding) + bias for row, bias in zip(w["input.weight"], w["input.bias"], strict=True)]
    for block in range(sum(name.endswith(".norm.bias") for name in w)):
        matrix, bias = w[f"block.{block}.weight"], w[f"block.{block}.bias"]
        x = [value + max(0.0, dot(matrix[i], x) + bias[i]) for i, value in enumerate(x)]
        mean = math.fsum(x) / len(x)
        variance = math.fsum((value - mean) ** 2 for value in x) / len(x)
        scale, shift = w[f"block.{block}.norm.weight"], w[f"block.{block}.norm.bias"]
        x = [(value - mean) / math.sqrt(variance + 1e-5) * scale[i] + shift[i] for i, value in enumerate(x)]
    return x


def test_scores_follow_the_formula(weights):
    goal = tower_by_hand(weights, GOAL)
    expected = [dot(goal, tower_by_hand(weights, r.atoms)) / math.sqrt(WIDTH) for r in RESOLVENTS]
    assert TwoTower(weights).scores(GOAL, RESOLVENTS) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_resolvent_without_atoms_scores_0(weights):
    policy = TwoTower(weights)
    assert policy.scores(GOAL, [*RESOLVENTS, STOP]) == [*policy.scores(GOAL, RESOLVENTS), 0.0]
    with pytest.raises(ValueError, match="no step starts from it"):
        policy.tower(())


def test_a_network_without_blocks_is_its_input_layer(weights):
    plain = {name: array for name, array in weights.items() if not name.startswith("block.")}
    assert TwoTower(plain).num_blocks == 0
    assert TwoTower(plain).tower(GOAL) == pytest.approx(tower_by_hand(plain, GOAL), rel=1e-12)


def test_a_block_is_the_layer_norm_of_torch(weights):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch")
    w = {name: torch.tensor(array, dtype=torch.float64) for name, array in weights.items()}
    x = torch.nn.functional.linear(
        w["embedding.predicate"][0] + w["embedding.constant"][1] - w["embedding.constant"][2],
        w["input.weight"],
        w["input.bias"],
    )
    for block in range(NUM_BLOCKS):
        linear = torch.nn.functional.linear(x, w[f"block.{block}.weight"], w[f"block.{block}.bias"])
        x = torch.nn.functional.layer_norm(
            x + torch.relu(linear), (WIDTH,), w[f"block.{block}.norm.weight"], w[f"block.{block}.norm.bias"]
        )
    assert TwoTower(weights).tower(GOAL) == pytest.approx(x.numpy(), rel=1e-12)


def test_a_score_does_not_depend_on_other_scores_or_on_the_cache(weights):
    together = TwoTower(weights).scores(GOAL, RESOLVENTS)
    alone = [TwoTower(weights).scores(GOAL, [resolvent])[0] for resolvent in RESOLVENTS]
    without_cache = TwoTower(weights, cache_size=1)
    assert together == alone == without_cache.scores(GOAL, RESOLVENTS)
    bounded = TwoTower(weights, cache_size=2)
    assert [bounded.scores(GOAL, RESOLVENTS) for _ in range(3)] == [together] * 3
    assert len(bounded._cache) <= 2


def test_a_derivation_takes_the_resolvent_that_the_network_prefers(weights):
    rules = [Rule(Atom(0, -1, -2), (Atom(1, -1, -2),)), Rule(Atom(0, -1, -2), (Atom(2, -2, -1),))]
    program = Program(["p", "q", "r"], ["a", "b", "c", "d"], [], rules)
    policy = TwoTower(weights)
    step = derive(program, Limits(), policy, Atom(0, 1, 2)).steps[0]
    assert step.scores == policy.scores(GOAL, step.after_limit)
    assert step.scores[step.choice] == max(step.scores)
    assert step.log_probability == pytest.approx(-math.log(1 + math.exp(min(step.scores) - max(step.scores))))


def test_weights_of_a_wrong_shape_are_refused(weights):
    with pytest.raises(ValueError, match=r"lack embedding\.variable"):
        TwoTower({name: array for name, array in weights.items() if name != "embedding.variable"})
    with pytest.raises(ValueError, match=r"block\.1\.bias has shape"):
        TwoTower(weights | {"block.1.bias": np.zeros(3)})
    with pytest.raises(ValueError, match=r"block\.1\.norm\.bias"):
        TwoTower({name: array for name, array in weights.items() if name != "block.1.norm.bias"})
    with pytest.raises(ValueError, match="not finite"):
        TwoTower(weights | {"input.bias": np.full(WIDTH, np.nan)})
    with pytest.raises(ValueError, match=r"block\.1\.bias holds a number that is not finite"):
        TwoTower(weights | {"block.1.bias": np.array([0.0] * (WIDTH - 1) + [np.inf])})


def test_a_symbol_without_a_row_is_an_error(weights):
    with pytest.raises(IndexError):
        TwoTower(weights).scores((Atom(0, 4, 0),), RESOLVENTS)
