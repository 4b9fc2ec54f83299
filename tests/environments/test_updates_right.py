"""Right updates of random shapes, algorithms and float types are reported as right."""

import copy
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from update_implementations import Agent, estimate, make_buffer, make_optimizer, train

import kgverify as kv

TYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def draw_algorithm(draw: np.random.Generator) -> Any:
    """Return a random algorithm."""
    lr, decay = 10.0 ** draw.uniform(-4, -1), float(draw.choice([0.0, 0.01]))
    if draw.random() < 0.6:
        eps, decoupled = float(draw.choice([1e-8, 1e-5])), bool(draw.random() < 0.5)
        optimizer: Any = kv.Adam(lr=lr, eps=eps, weight_decay=decay, decoupled=decoupled)
    else:
        momentum = float(draw.choice([0.0, 0.9]))
        optimizer = kv.SGD(
            lr=lr, momentum=momentum, nesterov=bool(momentum and draw.random() < 0.5), weight_decay=decay
        )
    common = {
        "gamma": float(draw.choice([0.9, 0.99, 1.0])),
        "optimizer": optimizer,
        "max_grad_norm": [None, 0.5][draw.integers(2)],
        "entropy_coefficient": float(draw.choice([0.0, 0.01])),
        "value_scale": float(draw.choice([0.5, 1.0])),
        "reduction": ["mean", "mean", "sum"][draw.integers(3)],
    }
    if draw.random() < 0.2:
        return kv.Reinforce(bootstrap="always", **common)
    normalize = ["minibatch", "never", "buffer"][draw.integers(3)]
    value_clip = [None, 0.2][draw.integers(2)]
    return kv.PPO(
        lam=float(draw.choice([0.0, 0.95, 1.0])), normalize_advantages=normalize, value_clip=value_clip, **common
    )


def verify_right(seed: int, float_type: str, num_epochs: int = 1, num_batches: int = 1) -> kv.UpdateReport:
    """Verify a right update that is random."""
    draw = np.random.default_rng(seed)
    algorithm = draw_algorithm(draw)
    agent = Agent(seed, int(draw.choice([4, 16]))).to(TYPES[float_type])
    before = copy.deepcopy(agent)
    masked = bool(draw.random() < 0.5)
    buffer = make_buffer(agent, seed, int(draw.integers(4, 40)), int(draw.integers(1, 6)), masked)
    optimizer = make_optimizer(algorithm.optimizer, agent)
    theirs = train(agent, buffer, algorithm, num_epochs, num_batches, optimizer=optimizer, seed=seed)
    return kv.verify_update(buffer, theirs, algorithm=algorithm, policy=before)


# In float16, Adam's second moment underflows.
@pytest.mark.parametrize("float_type", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.deep)])
def test_a_right_update_agrees(seed: int, float_type: str) -> None:
    report = verify_right(seed, float_type)
    assert report.verdict is kv.Verdict.AGREE, str(report)
    assert min(report.compared[stage] for stage in ("advantage", "choose", "gradient")) > 0


def verify_right_advantages(seed: int, float_type: str) -> kv.UpdateReport:
    """Verify right advantages of a random buffer, some with rewards and values of very different sizes."""
    draw = np.random.default_rng(seed)
    shape = int(draw.integers(1, 200)), int(draw.integers(1, 9))
    ends = draw.random(shape)
    sizes = 10.0 ** draw.uniform(-3, 3, 3)
    drawn = [
        draw.normal(size=each) * size
        for each, size in zip((shape, shape, shape, shape[1:]), (*sizes, sizes[1]), strict=True)
    ]
    names = ("reward", "value", "final_value", "last_value")
    buffer = {name: torch.tensor(each).to(TYPES[float_type]) for name, each in zip(names, drawn, strict=True)}
    buffer |= {"terminated": torch.tensor(ends < 0.05), "truncated": torch.tensor((ends > 0.03) & (ends < 0.1))}
    algorithm = kv.PPO(gamma=float(draw.choice([0.9, 0.99, 1.0])), lam=float(draw.choice([0.0, 0.5, 0.95, 1.0])))
    advantages = estimate(buffer, algorithm.gamma, algorithm.lam)
    theirs = {"advantages": advantages, "returns": advantages + buffer["value"]}
    return kv.verify_update(buffer, theirs, algorithm=algorithm)


@pytest.mark.parametrize("float_type", TYPES)
def test_right_advantages_agree(float_type: str) -> None:
    for seed in range(20):
        report = verify_right_advantages(seed, float_type)
        assert report.verdict is kv.Verdict.AGREE, f"{seed}: {report}"


class Actor(torch.nn.Module):
    """A policy in the way of Stable-Baselines3, whose distribution checks its probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(5, 5)

    def evaluate_actions(self, observation: Any, action: Any) -> Any:
        logits, value = self.net(observation).split((4, 1), -1)
        choice = torch.distributions.Categorical(probs=logits.softmax(-1))
        return value, choice.log_prob(action), choice.entropy()


@pytest.mark.parametrize("float_type", ["float32", "bfloat16"])
def test_choices_of_one_slot_by_a_distribution_of_torch_agree(float_type: str) -> None:
    torch.manual_seed(0)
    actor = Actor().to(TYPES[float_type])
    observation, zeros = torch.randn(6, 5).to(TYPES[float_type]), torch.zeros(6)
    value, log_probability, _ = actor.evaluate_actions(observation, zeros.long())
    buffer = {"reward": zeros, "terminated": zeros, "truncated": zeros, "last_value": 0.0, "observation": observation}
    buffer |= {"action": zeros.long(), "value": value[:, 0], "log_probability": log_probability}
    report = kv.verify_update(buffer, {}, algorithm=kv.PPO(), policy=actor)
    assert report.verdict is kv.Verdict.AGREE, str(report)
    assert report.compared["choose"] > 6


@pytest.mark.deep
def test_the_advantages_of_torchrl_agree() -> None:
    functional = pytest.importorskip("torchrl.objectives.value.functional")
    agent = Agent(3)
    buffer = make_buffer(agent, 3, 40, 5)
    done = buffer["terminated"] | buffer["truncated"]
    following = torch.cat((buffer["value"][1:], buffer["last_value"][None]))
    following = torch.where(done, buffer["final_value"], following)
    flags = (done, buffer["terminated"])
    columns = [each.T[..., None] for each in (buffer["value"], following, buffer["reward"], *flags)]
    for estimate_them in (functional.generalized_advantage_estimate, functional.vec_generalized_advantage_estimate):
        advantages, returns = (each[..., 0].T for each in estimate_them(0.99, 0.95, *columns))
        theirs = {"advantages": advantages, "returns": returns}
        report = kv.verify_update(buffer, theirs, algorithm=kv.PPO(gamma=0.99, lam=0.95))
        assert report.verdict is kv.Verdict.AGREE, str(report)
        assert report.compared["advantage"] == 400


@pytest.mark.exhaustive
@pytest.mark.timeout(0)
@pytest.mark.parametrize("float_type", ["float32", "bfloat16"])
@pytest.mark.parametrize("verify", [verify_right, verify_right_advantages])
def test_ten_thousand_right_updates_raise_no_alarm(verify: Any, float_type: str) -> None:
    verdicts = Counter(verify(seed, float_type).verdict for seed in range(10_000))
    assert not verdicts[kv.Verdict.DIVERGE], verdicts
