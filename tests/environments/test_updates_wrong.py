"""Mistakes planted in updates are found in their stage and term, and explained in words."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from update_implementations import Agent, estimate, make_buffer, make_optimizer, train

import kgverify as kv

PPO = kv.PPO(
    gamma=0.99,
    lam=0.9,
    value_clip=0.1,
    entropy_coefficient=0.01,
    max_grad_norm=0.5,
    optimizer=kv.Adam(lr=1e-2, eps=1e-5),
)
AGENT = Agent(7, 6)
BUFFER = make_buffer(AGENT, 5, masked=True)


def verify(
    change: Callable[[dict[str, Any]], None] | None = None,
    fault: Any = None,
    algorithm: Any = PPO,
    trained: Any = None,
    num_batches: int = 1,
) -> kv.UpdateReport:
    """Verify an update in which a fault was planted: in what was recorded, in the rows, or in the algorithm."""
    agent = copy.deepcopy(AGENT)
    rule = (trained or algorithm).optimizer
    theirs = train(agent, BUFFER, trained or algorithm, 1, num_batches, fault, make_optimizer(rule, agent))
    if change is not None:
        change(theirs)
    return kv.verify_update(BUFFER, theirs, algorithm=algorithm, policy=copy.deepcopy(AGENT))


def check(report: kv.UpdateReport, stage: str, field: str, words: str) -> None:
    """Check the stage, the field and the explanation of the first divergence."""
    first = report.first_divergence
    assert first is not None
    assert (first.stage, first.field.partition("[")[0], words in first.evidence) == (stage, field, True), str(report)


def flip(buffer: dict[str, Any], **columns: Any) -> torch.Tensor:
    """Return advantages from a buffer with other columns."""
    return estimate(buffer | columns, PPO.gamma, PPO.lam)


def nothing_ends(**kept: Any) -> dict[str, Any]:
    return {name: torch.zeros_like(BUFFER[name]) for name in ("terminated", "truncated")} | kept


ADVANTAGES = {
    "with truncation as termination": lambda: flip(BUFFER, final_value=torch.zeros_like(BUFFER["final_value"])),
    "across the end of episodes": lambda: flip(BUFFER, **nothing_ends()),
    "as if truncation did not end the episode": lambda: flip(BUFFER, **nothing_ends(terminated=BUFFER["terminated"])),
    "with the done flag of the next row": lambda: flip(BUFFER, **{
        name: torch.cat((BUFFER[name][1:], torch.zeros(1, 4, dtype=torch.bool))) for name in ("terminated", "truncated")
    }),
    "with gamma and lambda exchanged": lambda: estimate(BUFFER, PPO.lam, PPO.gamma),
    "without the value after the last step": lambda: flip(BUFFER, last_value=torch.zeros(4)),
    "with the reward of the previous row": lambda: flip(
        BUFFER, reward=torch.cat((torch.zeros(1, 4), BUFFER["reward"][:-1]))
    ),
    "along the slots in place of the steps": lambda: estimate(
        {name: each.T for name, each in BUFFER.items() if each.shape == (12, 4)}
        | {"last_value": torch.cat((BUFFER["value"][1:, 0], BUFFER["last_value"][-1:]))},
        PPO.gamma,
        PPO.lam,
    ).T,
    "normalised": lambda: (lambda each: (each - each.mean()) / (each.std() + 1e-8))(flip(BUFFER)),
}  # fmt: skip


@pytest.mark.parametrize("words", ADVANTAGES)
def test_a_wrong_advantage_is_explained(words: str) -> None:
    theirs = {"advantages": ADVANTAGES[words]()}
    check(kv.verify_update(BUFFER, theirs, algorithm=PPO), "advantage", "advantage", words)


def test_the_row_that_goes_wrong_by_itself_is_named() -> None:
    advantages = flip(BUFFER)
    values = BUFFER["value"].clone()
    values[8, 2] += 1
    # The advantage of row 8 and, by its next value, that of row 7 go wrong; those before only follow.
    wrong = advantages.clone()
    wrong[:, 2] = flip(BUFFER, value=values)[:, 2]
    first = kv.verify_update(BUFFER, {"advantages": wrong}, algorithm=PPO).first_divergence
    assert first is not None
    ended = bool((BUFFER["terminated"] | BUFFER["truncated"])[7, 2])
    assert (first.candidate, first.step) == (2, 8 if ended else 7)


def test_wrong_returns_from_right_advantages_are_named() -> None:
    advantages = flip(BUFFER)
    theirs = {"advantages": advantages, "returns": advantages}
    report = kv.verify_update(BUFFER, theirs, algorithm=PPO)
    check(report, "advantage", "return", "as the advantages, without the value")


def exchange(**columns: str) -> Callable[[dict[str, Any]], None]:
    return lambda rows: rows.update({name: rows[other].detach() for name, other in columns.items()})


FAULTS: dict[str, tuple[str, Any]] = {
    "with old log-probabilities by the new weights": ("policy", exchange(log_probability="new")),
    "with advantages in place of returns": ("value", exchange(**{"return": "advantage"})),
    "the mean over all pairs": ("value", lambda rows: rows.update(now=rows["now"][:, None])),
    "as the entropy": ("entropy", lambda rows: rows.update(entropy=-rows["new"])),
}


@pytest.mark.deep
@pytest.mark.parametrize("words", FAULTS)
def test_a_wrong_term_is_explained(words: str) -> None:
    term, fault = FAULTS[words]
    report = verify(fault=fault, num_batches=2)
    check(report, "loss", term, words)
    assert {each.stage for each in report.divergences} <= {"loss", "gradient"}, "the update is right by its gradients"


@pytest.mark.deep
def test_a_wrong_term_that_is_zero_shows_in_its_gradient() -> None:
    # In the first minibatch the ratio is 1, and normalised advantages add up to 0.
    report = verify(fault=lambda rows: rows.update(advantage=-rows["advantage"]))
    check(report, "gradient", "trunk.0.weight", "of the loss with the sign of the advantages exchanged")


def with_fields(**fields: Any) -> kv.PPO:
    return replace(PPO, **fields)


FIELDS: dict[str, tuple[str, str, Any]] = {
    "with the sign of the entropy bonus exchanged": ("loss", "total", {"entropy_coefficient": -0.01}),
    "with advantages not normalised": ("loss", "policy", {"normalize_advantages": "never"}),
    "with a value clip of 1e-8": ("loss", "value", {"value_clip": 1e-8}),
    "with the value loss doubled": ("loss", "value", {"value_scale": 1.0}),
    "with the value loss halved": ("loss", "value", {"value_scale": 0.25}),
    "with 10 times the learning rate": ("update", "", {"optimizer": kv.Adam(lr=1e-1, eps=1e-5)}),
    "with eps 1e-08": ("update", "", {"optimizer": kv.Adam(lr=1e-2, eps=1e-8)}),
    "not scaled down": ("gradient", "", {"max_grad_norm": None}),
    "with decoupled weight decay": ("update", "", {"optimizer": kv.Adam(lr=1e-2, eps=1e-5, weight_decay=0.1, decoupled=True)}),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", FIELDS)
def test_a_wrong_setting_is_explained(words: str) -> None:
    stage, field, fields = FIELDS[words]
    right = PPO
    if "decay" in words:
        right = with_fields(optimizer=kv.Adam(lr=1e-2, eps=1e-5, weight_decay=0.1))
    report = verify(algorithm=right, trained=with_fields(**fields), num_batches=2)
    explained = [each for each in report.divergences if words in each.evidence]
    assert explained, str(report)
    assert explained[0].stage == stage
    assert explained[0].field == field or not field


@pytest.mark.deep
def test_gradients_that_were_not_set_to_zero_are_explained() -> None:
    def add(theirs: dict[str, Any]) -> None:
        first, second = theirs["minibatches"][:2]
        # The norm of a gradient is limited in place.
        gradients = second["gradients"]
        gradients.update({name: each + gradients[name] for name, each in first["scaled_gradients"].items()})

    report = verify(add, num_batches=2)
    check(report, "gradient", "trunk.0.weight", "they were not set to zero")
    assert report.first_divergence is not None
    assert report.first_divergence.step == 1


def test_weights_that_do_not_move_are_explained() -> None:
    def freeze(theirs: dict[str, Any]) -> None:
        theirs["minibatches"][0]["parameters"] = {name: each.detach() for name, each in AGENT.named_parameters()}

    check(verify(freeze), "update", "trunk.0.weight", "without the step: they are unchanged")


def test_choices_by_the_weights_of_an_earlier_update_are_explained() -> None:
    earlier = Agent(99, 6)
    with torch.no_grad():
        _, stale, _, values = earlier.get_action_and_value(BUFFER["observation"], BUFFER["action"], BUFFER["mask"])
    buffer = BUFFER | {"log_probability": stale, "value": values}
    theirs = {"earlier_parameters": [dict(earlier.named_parameters()), dict(AGENT.named_parameters())]}
    report = kv.verify_update(buffer, theirs, algorithm=PPO, policy=AGENT)
    check(report, "choose", "log_probability", "with the weights of 2 updates before")
    assert report.first_divergence is not None
    assert (report.first_divergence.candidate, report.first_divergence.step) == (0, 0)


def test_rows_that_depend_on_an_unknown_value_are_not_compared() -> None:
    buffer = {name: each for name, each in BUFFER.items() if name not in ("final_value", "last_value")}
    report = kv.verify_update(buffer, {"advantages": flip(BUFFER)}, algorithm=PPO)
    assert report.verdict is kv.Verdict.AGREE
    assert report.compared["advantage"] < 48
    assert report.not_compared


def test_nothing_compared_is_inconclusive() -> None:
    report = kv.verify_update(BUFFER, {}, algorithm=PPO)
    assert report.verdict is kv.Verdict.INCONCLUSIVE
    assert "nothing was compared" in str(report)


def test_a_wrong_key_is_named_with_the_right_one() -> None:
    with pytest.raises(kv.UserError, match="did you mean 'advantages'"):
        kv.verify_update(BUFFER, {"advantage": np.zeros((12, 4))}, algorithm=PPO)
    with pytest.raises(kv.UserError, match="truncated is missing"):
        kv.verify_update({"reward": [1], "value": [1], "terminated": [0]}, {}, algorithm=PPO)
    with pytest.raises(kv.UserError, match=r"\[3\], expected \[12, 4\]"):
        kv.verify_update(BUFFER, {"advantages": np.zeros(3)}, algorithm=PPO)
    with pytest.raises(kv.UserError, match="gamma"):
        kv.PPO(gamma=99.0)


def test_a_row_drawn_twice_into_a_minibatch_is_named() -> None:
    theirs = {"minibatches": [{"index": [3, 5]}, {"index": [1, 7, 7]}]}
    first = kv.verify_update(BUFFER, theirs, algorithm=PPO, policy=AGENT).first_divergence
    assert first is not None
    assert (first.stage, first.field, first.step) == ("update", "index", 1)
    assert "row 7 appears 2 times" in first.evidence


def test_an_update_smaller_than_the_rounding_of_a_weight_is_not_compared() -> None:
    agent = copy.deepcopy(AGENT).bfloat16()
    gradients = {name: torch.ones_like(each) for name, each in agent.named_parameters()}
    theirs = {"gradients": gradients, "parameters": dict(agent.named_parameters())}
    algorithm = with_fields(optimizer=kv.SGD(lr=1e-8))
    report = kv.verify_update(BUFFER, theirs, algorithm=algorithm, policy=agent, on_policy=False)
    assert report.verdict is kv.Verdict.INCONCLUSIVE
    assert "smaller than the rounding of bf16" in report.not_compared["update"]
