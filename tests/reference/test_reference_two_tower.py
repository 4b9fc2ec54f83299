"""The neural policy: the same bits for goals alone and together, and weights that are refused; a judge computes its scores."""

import numpy as np
import pytest
from judges.scores import make_weights

from kgreference import STOP, Atom, Kind, OriginKind, Resolvent, two_tower
from kgreference.two_tower import LEAST_ROWS, MOST_ROWS, TwoTower, multiplies_rows_alike

WIDTH, DIMENSION, NUM_BLOCKS = 6, 5, 2


def draw_weights(width, dimension):
    return make_weights(np.random.default_rng(0), width, dimension, NUM_BLOCKS, num_symbols=12)


@pytest.fixture
def weights():
    return draw_weights(WIDTH, DIMENSION)


def resolvent_of(*atoms):
    return Resolvent(Kind.GOAL, atoms, OriginKind.RULE, 0)


GOAL = (Atom(0, 1, 2),)
RESOLVENTS = [
    resolvent_of(Atom(1, 1, -1), Atom(2, -1, 2)),
    resolvent_of(Atom(2, -1, -2), Atom(1, -3, -4)),
    resolvent_of(Atom(0, 3, 3), Atom(1, 0, -1), Atom(1, -1, -1)),
]


def test_a_resolvent_without_atoms_scores_0(weights):
    policy = TwoTower(weights)
    assert policy.scores(GOAL, [*RESOLVENTS, STOP]) == [*policy.scores(GOAL, RESOLVENTS), 0.0]
    with pytest.raises(ValueError, match="no step starts from it"):
        policy.tower(())


def test_a_score_does_not_depend_on_other_scores_or_on_the_cache(weights):
    together = TwoTower(weights).scores(GOAL, RESOLVENTS)
    alone = [TwoTower(weights).scores(GOAL, [resolvent])[0] for resolvent in RESOLVENTS]
    without_cache = TwoTower(weights, cache_size=1)
    assert together == alone == without_cache.scores(GOAL, RESOLVENTS)
    bounded = TwoTower(weights, cache_size=2)
    assert [bounded.scores(GOAL, RESOLVENTS) for _ in range(3)] == [together] * 3
    assert len(bounded._cache) <= 2


@pytest.mark.parametrize(("width", "dimension"), [(6, 5), (32, 16), (256, 250)])
def test_goals_computed_together_have_the_bits_of_each_alone(width, dimension):
    policy = TwoTower(draw_weights(width, dimension), cache_size=1)
    rng = np.random.default_rng(1)
    goals = [
        tuple(Atom(int(p), int(a), int(b)) for p, a, b in rng.integers((0, -12, -12), (3, 4, 4), (1 + i % 6, 3)))
        for i in range(MOST_ROWS + 11)
    ]
    alone = [policy.tower(goal) for goal in goals]
    for num in (2, 7, 8, 9, 16, 17, 40, MOST_ROWS, MOST_ROWS + 1, len(goals)):
        together = policy._find_towers(goals[-num:])
        assert set(together) == set(goals[-num:])
        assert all((together[goal] == tower).all() for goal, tower in zip(goals[-num:], alone[-num:], strict=True))


@pytest.mark.parametrize("most", [0, LEAST_ROWS])
def test_goals_are_computed_in_smaller_numbers_where_a_product_depends_on_the_number_of_rows(
    monkeypatch, weights, most
):
    resolvents = [resolvent_of(Atom(i % 3, i % 4, -1 - i)) for i in range(12)]
    expected = TwoTower(weights).scores(GOAL, resolvents)
    sizes = []
    apply_network = TwoTower._apply_network
    monkeypatch.setattr(two_tower, "multiplies_rows_alike", lambda num, *_: num <= most)
    monkeypatch.setattr(
        TwoTower, "_apply_network", lambda self, rows: sizes.append(rows.any(axis=1).sum()) or apply_network(self, rows)
    )
    assert TwoTower(weights).scores(GOAL, resolvents) == expected
    assert sizes == ([8, 5] if most else [1] * 13)


def test_a_product_that_depends_on_the_place_of_a_row_is_noticed(monkeypatch):
    assert multiplies_rows_alike(LEAST_ROWS, WIDTH, DIMENSION)

    class Uneven(np.ndarray):
        """A matrix whose product with its last row is rounded otherwise."""

        def __matmul__(self, other):
            product = np.asarray(self) @ np.asarray(other)
            product[-1] = np.nextafter(product[-1], 9.0)
            return product

    tile = np.tile
    monkeypatch.setattr(np, "tile", lambda *given: tile(*given).view(Uneven))
    assert not multiplies_rows_alike.__wrapped__(LEAST_ROWS, WIDTH, DIMENSION)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("embedding.variable", None, r"lack embedding\.variable"),
        ("block.1.norm.bias", None, r"block\.1\.norm\.bias"),
        ("block.1.bias", np.zeros(3), r"block\.1\.bias has shape"),
        ("input.bias", np.full(WIDTH, np.nan), "not finite"),
        ("block.1.bias", np.array([0.0] * (WIDTH - 1) + [np.inf]), r"block\.1\.bias holds a number that is not finite"),
    ],
)
def test_weights_that_are_missing_misshapen_or_not_finite_are_refused(weights, name, value, message):
    others = {each: array for each, array in weights.items() if each != name}
    with pytest.raises(ValueError, match=message):
        TwoTower(others if value is None else others | {name: value})


def test_a_symbol_without_a_row_is_an_error(weights):
    with pytest.raises(IndexError):
        TwoTower(weights).scores((Atom(0, 12, 0),), RESOLVENTS)
