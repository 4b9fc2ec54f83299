"""The environments with planted faults: right versions agree with Gymnasium's, and each fault shows."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("gymnasium")
pytest.importorskip("torchrl")

from gymnasium.vector import AutoresetMode

from benchmarks.environments.cartpole import CartPole
from benchmarks.environments.faults import FAULTS, STAGES, Fault, make_carts, make_grids
from benchmarks.environments.gridworld import GridWorld
from benchmarks.environments.history import HISTORY, HistoricalDefect
from benchmarks.environments.learning import Buffer, find_difference, list_rows
from benchmarks.environments.pairs import PAIRS
from benchmarks.environments.play import list_differences, play
from benchmarks.environments.update_faults import TERMS, UPDATE_FAULTS, UpdateFault, make_buffer

NUM_SLOTS = 32
NUM_STEPS = 200


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize(
    "kind, make, judged", [("cartpole", make_carts, CartPole), ("gridworld", make_grids, GridWorld)]
)
def test_a_batched_environment_equals_one_environment_run_often(
    kind: str, make: Any, judged: Any, mode: AutoresetMode
) -> None:
    expected, actions = play(kind, make(NUM_SLOTS, mode), NUM_SLOTS, 60)
    actual, _ = play(kind, judged(NUM_SLOTS, autoreset_mode=mode), NUM_SLOTS, 60, actions=actions)
    assert any(step["truncated"].any() for step in expected[1:])
    assert list_differences(expected, actual) == []


def test_the_table_has_ten_faults_for_each_of_four_environments() -> None:
    assert Counter(fault.environment for fault in FAULTS) == dict.fromkeys(
        ("prover", "cartpole", "gridworld", "lander"), 10
    )
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.stage for fault in FAULTS} <= set(STAGES)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_shows_and_the_right_side_repeats_itself(fault: Fault) -> None:
    expected, actions = play(fault.environment, fault.right(NUM_SLOTS), NUM_SLOTS, NUM_STEPS)
    again, _ = play(fault.environment, fault.right(NUM_SLOTS), NUM_SLOTS, NUM_STEPS, actions=actions)
    actual, _ = play(fault.environment, fault.wrong(NUM_SLOTS), NUM_SLOTS, NUM_STEPS, actions=actions)
    assert list_differences(expected, again) == []
    assert list_differences(expected, actual) != []


def test_the_history_has_seven_rows() -> None:
    assert {defect.row for defect in HISTORY} == set(range(1, 8))


@pytest.mark.exhaustive
@pytest.mark.parametrize("defect", HISTORY, ids=[defect.name for defect in HISTORY])
def test_a_historical_defect_shows_in_the_training_or_in_its_environment(defect: HistoricalDefect) -> None:
    right, wrong = defect.right(), defect.wrong()
    expected, actual = (list_rows(training.run()) for training in (right, wrong))
    assert find_difference(expected, list_rows(defect.right().run())) is None
    played, actions = play("prover", right.environment, NUM_SLOTS, 30)
    changed, _ = play("prover", wrong.environment, NUM_SLOTS, 30, actions=actions)
    assert find_difference(expected, actual) or list_differences(played, changed)


@pytest.mark.parametrize("name", ["float32-float64 TensorCartPole", "float32-float64 Prover"])
def test_a_pair_of_precisions_differs_by_rounding_only(name: str) -> None:
    (pair,) = (pair for pair in PAIRS if pair.name == name)
    kind = "prover" if "Prover" in name else "cartpole tensors"
    expected, actions = play(kind, pair.left(NUM_SLOTS), NUM_SLOTS, 40)
    actual, _ = play(kind, pair.right(NUM_SLOTS), NUM_SLOTS, 40, actions=actions)
    assert list_differences(expected, actual) != []
    assert all(
        np.allclose(step[column], other[column], rtol=0, atol=1e-5)
        for step, other in zip(expected, actual, strict=True)
        for column in step
    )


@pytest.fixture(scope="module")
def buffer() -> Buffer:
    return make_buffer()


@pytest.mark.deep
@pytest.mark.parametrize("fault", UPDATE_FAULTS, ids=[fault.name for fault in UPDATE_FAULTS])
def test_the_first_difference_of_an_update_holds_the_true_term_and_no_term_before_it(
    fault: UpdateFault, buffer: Buffer
) -> None:
    expected, again, actual = (
        list_rows([(buffer, make().update(buffer))]) for make in (fault.right, fault.right, fault.wrong)
    )
    assert find_difference(expected, again) is None
    difference = find_difference(expected, actual)
    assert difference
    columns = {name for name in difference[1] if name.startswith(TERMS)}
    if "rows" in difference[1]:
        assert fault.term == "update"
        return
    assert any(name.startswith(fault.term) for name in columns)
    earlier = TERMS[: TERMS.index(fault.term)]
    assert not any(name.startswith(earlier) for name in columns)
