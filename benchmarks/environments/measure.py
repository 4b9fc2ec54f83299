"""The differs of environments and of updates, scored on faults whose answer is known and on pairs that are both right."""

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import gymnasium
import numpy as np
import torch
from torch import Tensor

import kgverify
from benchmarks import Figure, make_parser, print_figures, print_header, print_row
from benchmarks.environments.faults import FAULTS, Fault
from benchmarks.environments.history import HISTORY, HistoricalDefect
from benchmarks.environments.learning import Buffer, Policy, Ppo, Reinforce, Settings, Terms
from benchmarks.environments.pairs import PAIRS, Pair, make_one
from benchmarks.environments.prover import CLAUSES, make_seeds
from benchmarks.environments.update_faults import UPDATE_FAULTS, UpdateFault, make_buffer

NUM_SLOTS: Final = 32
NUM_STEPS: Final = 200
STEPS_OF_PAIR: Final = 100_000
SLOTS_OF_PAIR: Final = 32
STEPS_OF_ROLLOUT: Final = 16

Row = tuple[list[object], list[bool]]
"""The cells of a row, and whether each of its figures is met."""


def declare_tensors(make: Any, num_actions: int = len(CLAUSES)) -> kgverify.EnvironmentSpec:
    """Declare what an environment on tensors does not tell: its actions, and seeds as a tensor."""
    return kgverify.EnvironmentSpec(make, actions=num_actions, queries=make_seeds(1 << 16))


# Faults of environments


def describe(report: Any) -> tuple[str, str, str]:
    """Return verdict, stage and condition of a report, empty if there is none."""
    first = report.first_divergence
    condition = str(report.causes[0].condition) if report.causes else ""
    return report.verdict.value, first.stage if first else "", condition


def measure_fault(fault: Fault) -> Row:
    """Compare both sides of a planted fault."""
    declared = declare_tensors if fault.environment == "prover" else kgverify.EnvironmentSpec
    report = kgverify.verify_env(declared(fault.right), declared(fault.wrong), slots=NUM_SLOTS, steps=NUM_STEPS)
    verdict, stage, condition = describe(report)
    is_found = verdict == "DIVERGE"
    shrunk = getattr(report, "shrunk", None)
    size = f"{shrunk.slots} slots, {shrunk.steps} steps" if shrunk else ""
    is_small = bool(shrunk) and shrunk.slots <= 3 and shrunk.steps <= 5
    cells: list[object] = [fault.environment, fault.name, verdict, fault.stage, stage, fault.condition, condition, size]
    return cells, [is_found, is_found and stage == fault.stage, is_small]


# Historical defects


def act_by_schedule(weights: list[Mapping[str, Tensor]]) -> Callable[..., dict[str, Any]]:
    """Return a policy whose weights are replaced by the next ones after each rollout; the last ones stay."""
    policies = [Policy() for _ in weights]
    for policy, each in zip(policies, weights, strict=True):
        policy.load_state_dict(each)
    generator = np.random.default_rng(0)
    calls = iter(range(NUM_STEPS * 1000))

    def act(observation: Mapping[str, Any], mask: Any) -> dict[str, Any]:
        policy = policies[min(next(calls) // STEPS_OF_ROLLOUT, len(policies) - 1)]
        with torch.no_grad():
            logits, value = policy({name: torch.as_tensor(column) for name, column in observation.items()})
        legal = torch.as_tensor(np.asarray(mask))
        log_probabilities = logits.masked_fill(~legal, -1e9).log_softmax(-1).numpy()
        action = (log_probabilities + generator.gumbel(size=log_probabilities.shape)).argmax(-1)
        chosen = np.take_along_axis(log_probabilities, action[:, None], 1)[:, 0]
        return {"action": action, "log_probability": chosen, "value": value.numpy()}

    return act


def verify_defect(defect: HistoricalDefect) -> tuple[str, str, str]:
    """Return verdict, stage and condition: of the environments, of the policies, or of the updates."""
    right, wrong = defect.right(), defect.wrong()
    if type(right.learner) is not type(wrong.learner):
        report = verify_learner(wrong.learner, make_buffer())
        first = report.first_divergence
        return report.verdict.value, first.stage if first else "", first.evidence if first else ""
    sides = [declare_tensors(lambda _num_slots, side=side: side.environment) for side in (right, wrong)]
    policy = None
    if type(right.collector) is not type(wrong.collector):
        weights = [copy.deepcopy(right.learner.policy.state_dict())]
        for _ in range(3):
            right.learner.update(make_buffer())
            weights.append(copy.deepcopy(right.learner.policy.state_dict()))
        policy = (act_by_schedule(weights), act_by_schedule(weights[:1]))
    return describe(kgverify.verify_env(*sides, slots=NUM_SLOTS, steps=64, policy=policy))


def measure_defect(defect: HistoricalDefect) -> Row:
    """Compare both sides of a historical defect."""
    verdict, stage, condition = verify_defect(defect)
    cells: list[object] = [defect.row, defect.name, verdict, defect.stage, stage, defect.condition, condition]
    return cells, [verdict == "DIVERGE", stage == defect.stage]


# Right pairs


def get_cart(env: Any) -> dict[str, Any]:
    """Return the state of Gymnasium's single CartPole within its time limit."""
    return {"motion": np.array(env.unwrapped.state), "elapsed": np.array(env.get_wrapper_attr("_elapsed_steps"))}


def set_cart(env: Any, state: Mapping[str, Any]) -> None:
    """Set it."""
    env.unwrapped.state, env.unwrapped.steps_beyond_terminated = np.array(state["motion"]), None
    env.set_wrapper_attr("_elapsed_steps", int(state["elapsed"]))


def get_carts(env: Any) -> dict[str, Any]:
    """Return the state of Gymnasium's `CartPoleVectorEnv`, a row for each slot."""
    return {"motion": env.state.T.copy(), "elapsed": env.steps.copy()}


def set_carts(env: Any, state: Mapping[str, Any]) -> None:
    """Set it."""
    env.state, env.steps = np.array(state["motion"]).T.copy(), np.array(state["elapsed"], np.int32)


def declare(pair: Pair) -> tuple[Any, Any]:
    """Return both sides of a pair, with the declarations of what legitimately differs."""
    left: Any = partial(pair.left, 1) if pair.is_single else pair.left
    if pair.kind == "tensors":
        num_actions = 2 if "CartPole" in pair.name else len(CLAUSES)
        return declare_tensors(left, num_actions), declare_tensors(pair.right, num_actions)
    if "seeding" in pair.declared:
        single = partial(make_one, "CartPole-v1", 30)
        return (
            kgverify.EnvironmentSpec(single, state=(get_cart, set_cart)),
            kgverify.EnvironmentSpec(pair.right, seeds="own", state=(get_carts, set_carts)),
        )
    if pair.num_slots == 1:
        # With one slot, the seed of the run is the seed of the slot.
        return kgverify.EnvironmentSpec(left, seeds="run"), kgverify.EnvironmentSpec(pair.right, seeds="run")
    return left, pair.right


def measure_pair(pair: Pair, num_steps: int = STEPS_OF_PAIR) -> Row:
    """Compare both sides of a right pair."""
    num_slots = pair.num_slots or (512 if pair.kind == "tensors" else SLOTS_OF_PAIR)
    began = time.process_time()
    report = kgverify.verify_env(*declare(pair), slots=num_slots, steps=-(-num_steps // num_slots))
    verdict, stage, _ = describe(report)
    seconds = f"{time.process_time() - began:.0f}"
    cells: list[object] = [pair.name, num_slots, -(-num_steps // num_slots), verdict, stage, seconds]
    return cells, [verdict == "AGREE"]


# Updates


def name_algorithm(learner: Ppo) -> Any:
    """Return the declaration of a learner's algorithm."""
    settings: Settings = learner.settings
    terms: dict[str, Any] = {
        "gamma": settings.discount,
        "lam": settings.trace_decay,
        "value_clip": settings.value_clip or None,
        "value_coefficient": settings.value_weight,
        "entropy_coefficient": settings.entropy_weight,
        "max_grad_norm": settings.max_norm,
        "optimizer": kgverify.Adam(lr=settings.learning_rate, weight_decay=settings.weight_decay, decoupled=True),
        "bootstrap": "always",
    }
    if isinstance(learner, Reinforce):
        return kgverify.Reinforce(**terms)
    return kgverify.PPO(clip=settings.clip, **terms)


def evaluate(policy: Any, observation: Any, action: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probability, value and entropy of some rows."""
    logits, value = policy(observation)
    log_probabilities = logits.masked_fill(~mask, -1e9).log_softmax(-1)
    chosen = log_probabilities.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)
    return chosen, value, -(log_probabilities.exp() * log_probabilities).sum(-1)


def _pick(terms: Terms, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): each for name, each in terms.items() if name.startswith(prefix)}


def verify_learner(learner: Ppo, buffer: Buffer) -> Any:
    """Verify one update of a learner on a buffer."""
    policy = copy.deepcopy(learner.policy)
    first, *minibatches = learner.update(buffer)
    theirs = {
        "advantages": first["advantage"],
        "returns": first["target"],
        "minibatches": [
            {
                "index": terms["rows"],
                "losses": {
                    "policy": terms["loss.policy"],
                    "value": terms["loss.value"],
                    "entropy": -terms["loss.entropy"],
                },
                "scaled_gradients": _pick(terms, "gradient."),
                "parameters": _pick(terms, "update."),
            }
            for terms in minibatches
        ],
    }
    return kgverify.verify_update(
        buffer._asdict(),
        theirs,
        algorithm=name_algorithm(learner),
        policy=policy,
        evaluate=evaluate,
        on_policy=isinstance(learner, Reinforce),
    )


def measure_update(fault: UpdateFault) -> Row:
    """Verify the right and the wrong learner of a fault."""
    buffer = make_buffer()
    right, wrong = (verify_learner(make(), buffer) for make in (fault.right, fault.wrong))
    first = wrong.first_divergence
    named = f"{first.stage}.{first.field}" if first and first.stage == "loss" else first.stage if first else ""
    is_right = named.startswith(fault.term)
    evidence = first.evidence if first else ""
    cells: list[object] = [fault.name, right.verdict.value, wrong.verdict.value, fault.term, named, evidence]
    return cells, [right.verdict.value == "AGREE", wrong.verdict.value == "DIVERGE", is_right]


PARTS: Final[dict[str, tuple[Iterable[Any], Callable[[Any], Row], tuple[str, ...], tuple[tuple[str, float], ...]]]] = {
    "history": (
        HISTORY,
        measure_defect,
        ("row", "defect", "verdict", "true stage", "stage", "true condition", "condition"),
        (("found", 1.0), ("stage", 1.0)),
    ),
    "faults": (
        FAULTS,
        measure_fault,
        ("environment", "fault", "verdict", "true stage", "stage", "true condition", "condition", "shrunk to"),
        (("found", 1.0), ("stage", 0.95), ("at most 3 slots and 5 steps", 0.9)),
    ),
    "pairs": (PAIRS, measure_pair, ("pair", "slots", "steps", "verdict", "stage", "CPU time, s"), (("agree", 1.0),)),
    "updates": (
        UPDATE_FAULTS,
        measure_update,
        ("fault", "right side", "verdict", "true term", "term", "evidence"),
        (("right side agrees", 1.0), ("found", 1.0), ("term", 0.95)),
    ),
}
"""The cases of each part, the function that measures one, the titles of its table, and its figures with their targets."""


def run_environments(words: list[str]) -> int:
    """Score the differs of environments and updates on cases whose answer is known.

        python -m benchmarks environments
        python -m benchmarks environments pairs --only CartPole

    `history`: defects that a project had. `faults`: planted in four environments. `pairs`: two right environments for
    100,000 steps each. `updates`: planted in advantages, losses, gradients and updates.
    """
    parser = make_parser(run_environments)
    parser.add_argument("part", nargs="?", default="all", choices=(*PARTS, "all"))
    parser.add_argument("--only", default="", help="a part of the names of the cases to measure")
    options = parser.parse_args(words)
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    figures = []
    for name in PARTS if options.part == "all" else (options.part,):
        cases, measure, titles, targets = PARTS[name]
        print_header(*titles)
        results: list[list[bool]] = []
        for case in (case for case in cases if options.only in case.name):
            try:
                cells, met = measure(case)
            except kgverify.UserError as error:
                cells, met = [case.name, f"UserError: {error}".replace("\n", " ")], [False] * len(targets)
            print_row(*cells, *[""] * (len(titles) - len(cells)))
            results.append(met)
        columns = zip(*results, strict=True) if results else ()
        figures += [
            Figure(f"{name}: {title}", sum(column), len(results), target)
            for (title, target), column in zip(targets, columns, strict=bool(results))
        ]
    return print_figures(figures)
