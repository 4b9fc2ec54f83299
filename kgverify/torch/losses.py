"""Losses, gradients and updates of weights in float64, the effect of rounding on them, and mistakes that are made in them."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.utils._pytree import tree_map

from kgverify.torch.arithmetic import other_arithmetic

Tensors: TypeAlias = Mapping[str, Tensor]
Mistakes: TypeAlias = Iterable[tuple[str, Tensors]]

NUM_DRAWS: Final = 8
MARGIN: Final = 16.0
"""The ratio of a bound to the root mean square of the changes that random rounding errors make.

The root of 8 squares is smaller than a third of its mean in 1 of 10,000 cases. The bound is then still 5 standard deviations.
"""
GIVEN: Final = ("losses", "gradients", "scaled_gradients", "parameters")
RECORDED: Final = ("old_log_probability", "old_value", "advantage", "returns")


class Rows(NamedTuple):
    """The rows of a minibatch.

    log_probability, value, entropy: float64 [B]  by the weights before the step, with their graph
    old_log_probability, old_value, advantage, returns: float64 [B]  as recorded
    is_valid: bool [B]   the rows that count
    whole:    the recorded columns and `is_valid` of the whole buffer, [T·N] each
    chosen:   int64 [B]  the rows of the minibatch among them
    shape:    T, N, and the number of actions, 1 if it is unknown
    """

    log_probability: Tensor
    value: Tensor
    entropy: Tensor
    old_log_probability: Tensor
    old_value: Tensor
    advantage: Tensor
    returns: Tensor
    is_valid: Tensor
    whole: Tensors
    chosen: Tensor
    shape: tuple[int, int, int]


class Stage(NamedTuple):
    """The numbers of a stage, to be compared.

    name:      `choose`, `loss`, `gradient` or `update`
    minibatch: the number of the step; None if the numbers are [T, N]
    expected, bounds, actual: the numbers by name, with bounds on their rounding errors
    mistakes:  yields the numbers that a mistake gives, with the mistake in words: "computed" + words
    null:      the numbers without any effect; 0 if None
    """

    name: str
    minibatch: int | None
    expected: Mapping[str, Any]
    bounds: Mapping[str, Any]
    actual: Mapping[str, Any]
    mistakes: Callable[[], Iterable[tuple[str, Mapping[str, Any]]]]
    null: Mapping[str, Any] | None = None


def as_tensor(value: Any) -> Tensor:
    """Return an array or a tensor as one on the CPU; float64 if its numbers are floats."""
    tensor = torch.as_tensor(value).detach().cpu().clone()
    return tensor.double() if tensor.is_floating_point() else tensor


def as_tensors(values: Any) -> dict[str, Tensor]:
    """Return the float64 tensors of a mapping, without those that are None."""
    return {name: as_tensor(each).double() for name, each in (values or {}).items() if each is not None}


def measure(compute: Callable[[int], Tensors], unit: float) -> tuple[Tensors, Tensors]:
    """Return the numbers that a function computes, and bounds on their rounding errors, by name.

    compute: a function of the number of the draw, 0 for exact arithmetic, that returns the same shapes each time
    unit:    the unit roundoff of the type
    """
    exact = {name: each.detach().clone() for name, each in compute(0).items()}
    squares = {name: torch.zeros_like(each) for name, each in exact.items()}
    is_checked = Distribution._validate_args
    # With rounding errors, probabilities do not add up to 1.
    Distribution.set_default_validate_args(False)
    try:
        for seed in range(1, NUM_DRAWS + 1):
            with other_arithmetic(unit, seed), torch.enable_grad():
                drawn = compute(seed)
            for name, each in drawn.items():
                squares[name] += (each.detach() - exact[name]).square() / NUM_DRAWS
    finally:
        Distribution.set_default_validate_args(is_checked)
    # A single number may have been lucky; the other numbers of its tensor went through the same operations.
    common = {name: torch.maximum(each, each.mean()).sqrt() for name, each in squares.items()}
    return exact, {name: MARGIN * each + 2 * unit * exact[name].abs() for name, each in common.items()}


class Training:
    """The steps of an optimizer on a buffer, computed again with a float64 copy of the policy on the CPU.

    buffer, theirs: as `kgverify.verify_update` takes them
    recorded:  float64 [T, N]  the columns `RECORDED` and `is_valid`
    evaluate:  a function of (module, observation, action, mask) -> log-probability, value, entropy
    find_unit: a function of a stage and some arrays that returns the unit roundoff of their type
    """

    def __init__(
        self, buffer: Any, theirs: Any, recorded: Any, algorithm: Any, policy: Any, evaluate: Any, find_unit: Any
    ) -> None:
        self._buffer, self._theirs, self._algorithm, self._evaluate = buffer, theirs, algorithm, evaluate
        self._module = copy.deepcopy(policy).cpu().double()
        self._weights = dict(self._module.named_parameters())
        self.shape: Any = tuple(recorded["is_valid"].shape)
        self._find_unit = partial(find_unit, arrays=[buffer["value"], *policy.parameters()])
        self._whole = {name: torch.as_tensor(each).reshape(-1) for name, each in recorded.items()}
        self._rows = torch.arange(self._whole["is_valid"].numel())
        axes = as_tensor(buffer["reward"]).dim()

        def flatten(value: Any) -> Tensor:
            tensor = as_tensor(value)
            return tensor.reshape(len(self._rows), *tensor.shape[axes:])

        inputs = [buffer.get(name) for name in ("observation", "action", "mask")]
        self._inputs = [None if each is None else tree_map(flatten, each) for each in inputs]
        earlier = [as_tensors(each) for each in theirs.get("earlier_parameters", ())]
        self._earlier = [
            (f"the weights of {i} update{'s' * (i > 1)} before", each) for i, each in enumerate(earlier[::-1], 1)
        ]
        state = {name: as_tensors(each) for name, each in (theirs.get("optimizer_state") or {}).items()}
        self._states = [{name: dict(state.get(name, {})) for name in self._weights} for _ in range(NUM_DRAWS + 1)]

    def _load(self, values: Tensors) -> None:
        with torch.no_grad():
            for name, each in values.items():
                self._weights[name].copy_(each)

    def _compute_by(self, others: Iterable[tuple[str, Tensors]], compute: Callable[[], Tensors]) -> Mistakes:
        """Yield the numbers that other weights give, and load the present ones again."""
        now = {name: each.detach().clone() for name, each in self._weights.items()}
        for words, other in others:
            self._load(other)
            yield f"with {words}", compute()
        self._load(now)

    def _run(self, chosen: Tensor, use_mask: bool = True) -> tuple[Tensor, ...]:
        """Return log-probability, value and entropy of some rows; entropy 0 if the policy has none."""
        inputs = [None if each is None else tree_map(lambda leaf: leaf[chosen], each) for each in self._inputs]
        # A policy that expects a mask gets one that allows every action.
        mask = inputs[2] if use_mask or inputs[2] is None else torch.ones_like(inputs[2])
        found = self._evaluate(self._module, *inputs[:2], mask)
        return tuple(torch.zeros(len(chosen)).double() if each is None else each.reshape(-1) for each in found)

    def _differentiate(self, total: Tensor) -> dict[str, Tensor]:
        """Return the gradient of each weight that is not frozen; 0 for one that the loss does not use."""
        trained = {name: each for name, each in self._weights.items() if each.requires_grad}
        found = torch.autograd.grad(
            total, [*trained.values()], retain_graph=True, materialize_grads=True, allow_unused=True
        )
        return dict(zip(trained, found, strict=True))

    def list_stages(self, on_policy: bool) -> Iterator[Stage]:
        """Yield the choices in the buffer if this policy made them, and then the losses, gradients and weights of each step."""
        batches = self._theirs.get("minibatches", [self._theirs])
        weights = {name: each.detach().clone() for name, each in self._weights.items()}
        if on_policy:
            yield self._find_choices(batches)
        gradients: dict[str, Tensor] = {}
        for number, batch in enumerate(batches):
            given = {name: as_tensors(batch.get(name)) for name in GIVEN}
            self._load(weights)
            yield from self._find_losses(number, batch, given, gradients)
            gradients = given["scaled_gradients"] or given["gradients"]
            trained = {name for name, each in self._weights.items() if each.requires_grad}
            # A gradient that is None is known.
            if any((batch.get(name) or {}).keys() >= trained for name in ("gradients", "scaled_gradients")):
                yield from self._find_update(number, batch, given, weights)
            self._earlier.insert(0, ("the weights before the previous step", weights))
            if not given["parameters"].keys() >= weights.keys():
                break
            weights = weights | given["parameters"]

    def _find_choices(self, batches: Any) -> Stage:
        """Return the log-probabilities and values by the policy before the update."""
        rows, shape = self._rows, self.shape

        def compute(seed: int, chosen: Tensor = rows, use_mask: bool = True) -> dict[str, Tensor]:
            found = self._run(chosen, use_mask)
            return {name: each.reshape(shape) for name, each in zip(("log_probability", "value"), found, strict=False)}

        def list_mistakes() -> Mistakes:
            after = [as_tensors(each.get("parameters")) for each in batches]
            others = [(f"the weights after minibatch {i}", each) for i, each in enumerate(after)]
            yield from self._compute_by([*self._earlier, *others], partial(compute, 0))
            places = {"next step": shape[1], "previous step": -shape[1], "next slot": 1, "previous slot": -1}
            for words, by in places.items():
                yield f"with the observation and action of the {words}", compute(0, (rows + by) % len(rows))
            yield "without the mask", compute(0, use_mask=False)
            right = compute(0)
            yield "as a probability", right | {"log_probability": right["log_probability"].exp()}

        unit = self._find_unit("choose", self._buffer.get("log_probability"))
        expected, bounds = measure(compute, unit)
        valid = self._whole["is_valid"].reshape(shape)
        # An array that is not given is NaN.
        actual = {name: self._whole[f"old_{name}"].reshape(shape) for name in expected}
        known = {name: valid & ~each.isnan().all() for name, each in actual.items()}
        expected = {name: torch.where(known[name], each, torch.nan) for name, each in expected.items()}
        return Stage("choose", None, expected, bounds, actual, list_mistakes)

    def _find_losses(self, number: int, batch: Any, given: Any, before: Tensors) -> Iterator[Stage]:
        """Yield the terms of the loss and the gradients of a step."""
        algorithm, losses, gradients = self._algorithm, given["losses"], given["gradients"]
        chosen = self._rows if batch.get("index") is None else torch.as_tensor(batch["index"]).long().reshape(-1)
        mask = self._inputs[2]

        def evaluate(use_mask: bool = True) -> Rows:
            recorded = {name: each[chosen] for name, each in self._whole.items()}
            recorded |= dict(zip(("log_probability", "value", "entropy"), self._run(chosen, use_mask), strict=True))
            shape = (*self.shape, 1 if mask is None else mask.shape[-1])
            return Rows(whole=self._whole, chosen=chosen, shape=shape, **recorded)

        def compute(seed: int) -> dict[str, Tensor]:
            terms = compute_losses(algorithm, evaluate())
            return terms | self._differentiate(terms["total"])

        def list_mistakes() -> Mistakes:
            yield from list_loss_mistakes(algorithm, evaluate())
            yield "without the mask", compute_losses(algorithm, evaluate(use_mask=False))
            yield from self._compute_by(self._earlier, lambda: compute_losses(algorithm, evaluate()))

        def list_gradients() -> Mistakes:
            if before:
                added = {name: right[name] + each for name, each in before.items()}
                yield "with those of the previous minibatch added: they were not set to zero", added
                yield "in the previous minibatch", before
            yield from _list_scaled(algorithm, right)
            for words, terms in list_mistakes():
                if terms["total"].requires_grad:
                    yield f"of the loss {words}", self._differentiate(terms["total"])

        def list_scaled() -> Mistakes:
            yield from _list_scaled(algorithm, used)
            for words, each in list_gradients() if used is right else ():
                yield words, scale_down(algorithm, {**right, **each})

        arrays = (batch.get("losses") or {}).values()
        expected, bounds = measure(compute, self._find_unit("loss", *arrays))
        unit = self._find_unit("gradient", *arrays)
        right = {name: each for name, each in expected.items() if name in self._weights}
        for name in (each for each in ("policy", "value", "entropy", "total") if each in losses):
            is_sum = name == "total" and len(losses) == 4
            one = {name: total_of(algorithm, losses) if is_sum else expected[name]}
            yield Stage("loss", number, one, bounds, losses, list_mistakes)
        yield Stage("gradient", number, {name: right[name] for name in gradients}, bounds, gradients, list_gradients)
        if given["scaled_gradients"]:
            used = gradients if gradients.keys() >= right.keys() else right
            scaled, rounding = measure(lambda seed: scale_down(algorithm, used), unit)
            if used is right:
                rounding = {name: each + 2 * bounds[name] for name, each in rounding.items()}
            actual = given["scaled_gradients"]
            yield Stage("gradient", number, {name: scaled[name] for name in actual}, rounding, actual, list_scaled)

    def _find_update(self, number: int, batch: Any, given: Any, weights: dict[str, Tensor]) -> Iterator[Stage]:
        """Yield the weights after a step from their gradients."""
        algorithm, rule = self._algorithm, self._algorithm.optimizer
        _, raw, scaled, actual = (given[name] for name in GIVEN)
        if rule is None or not actual:
            return
        before = {name: dict(each) for name, each in self._states[0].items()}

        def compute(seed: int) -> dict[str, Tensor]:
            return take_step(rule, weights, scaled or scale_down(algorithm, raw), self._states[seed])

        expected, bounds = measure(compute, self._find_unit("update", *batch["parameters"].values()))
        used = scaled or scale_down(algorithm, raw)
        mistakes = partial(list_update_mistakes, algorithm, weights, raw or scaled, used, before, self._earlier)
        yield Stage("update", number, {name: expected[name] for name in actual}, bounds, actual, mistakes, weights)


def compute_losses(algorithm: Any, rows: Rows) -> dict[str, Tensor]:
    """Return the terms `policy`, `value`, `entropy` and `total` of an algorithm's loss."""
    advantage, keep, clip = rows.advantage, rows.is_valid, algorithm.clip
    if algorithm.normalize_advantages != "never":
        whole = rows.whole["advantage"][rows.whole["is_valid"]]
        over = whole if algorithm.normalize_advantages == "buffer" else advantage[keep]
        spread = ((over - over.mean()).square().sum() / max(over.numel() - algorithm.normalize_ddof, 1)).sqrt()
        advantage = (advantage - over.mean()) / (spread + algorithm.normalize_eps)
    surrogate = rows.log_probability * advantage
    if clip is not None:
        ratio = (rows.log_probability - rows.old_log_probability).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    error = (rows.value - rows.returns).square()
    if algorithm.value_clip is not None:
        moved = (rows.value - rows.old_value).clamp(-algorithm.value_clip, algorithm.value_clip)
        clipped = (rows.old_value + moved - rows.returns).square()
        error = torch.maximum(error, clipped) if algorithm.value_clip_larger else clipped
    reduce = torch.mean if algorithm.reduction == "mean" else torch.sum
    policy, value, entropy = (reduce(each[..., keep]) for each in (surrogate, error, rows.entropy))
    return _add_up(algorithm, {"policy": -policy, "value": algorithm.value_scale * value, "entropy": entropy})


def total_of(algorithm: Any, terms: Tensors) -> Tensor:
    """Return the total of the terms of a loss."""
    bonus = algorithm.entropy_coefficient * terms["entropy"]
    total: Tensor = terms["policy"] + algorithm.value_coefficient * terms["value"] - bonus
    return total


def _add_up(algorithm: Any, terms: Tensors, **others: Tensor) -> dict[str, Tensor]:
    changed = {**terms, **others}
    return changed | {"total": total_of(algorithm, changed)}


def list_loss_mistakes(algorithm: Any, rows: Rows) -> Mistakes:
    """Yield the terms that a mistake gives: of a field of the algorithm, a column of the rows, or a term."""

    def take(**changes: Any) -> dict[str, Tensor]:
        columns = {name: each for name, each in changes.items() if name in Rows._fields}
        fields = {name: each for name, each in changes.items() if name not in columns}
        return compute_losses(replace(algorithm, **fields), rows._replace(**columns))

    value, entropy, scale, clip = (
        getattr(algorithm, name) for name in ("value_coefficient", "entropy_coefficient", "value_scale", "clip")
    )
    old, new, now, target = rows.old_log_probability, rows.log_probability, rows.value.detach(), rows.returns
    changes: dict[str, dict[str, Any]] = {
        "with the sign of the entropy bonus exchanged": {"entropy_coefficient": -entropy},
        "with an entropy coefficient of 1": {"entropy_coefficient": 1.0},
        "with the two coefficients exchanged": {"value_coefficient": entropy, "entropy_coefficient": value},
        "with a value coefficient of 1": {"value_coefficient": 1.0},
        "with the value loss halved": {"value_scale": scale / 2},
        "with the value loss doubled": {"value_scale": scale * 2},
        "with advantages normalised over the minibatch": {"normalize_advantages": "minibatch"},
        "with advantages normalised over the whole buffer": {"normalize_advantages": "buffer"},
        "with advantages not normalised": {"normalize_advantages": "never"},
        "with the sum of squares of advantages divided by the number of rows": {"normalize_ddof": 0},
        "with the sum of squares of advantages divided by the number of rows less 1": {"normalize_ddof": 1},
        "with the sum over rows in place of the mean": {"reduction": "sum"},
        "with the mean over rows in place of the sum": {"reduction": "mean"},
        "without the value clip": {"value_clip": None},
        "with the clip of the ratio as value clip": {"value_clip": clip},
        "with a value clip of 1e-8": {"value_clip": 1e-8},
        "with only the clipped value loss": {"value_clip_larger": False},
        "with the new values in place of the recorded ones in the value clip": {"old_value": now},
        "with old log-probabilities by the new weights: the ratio is 1": {"old_log_probability": new.detach()},
        "with the ratio inverted": {"log_probability": old, "old_log_probability": new},
        "without the old log-probabilities": {"old_log_probability": 0 * old},
        "with probabilities in place of log-probabilities": {
            "log_probability": new.exp(),
            "old_log_probability": old.exp(),
        },
        "with the sign of the advantages exchanged": {"advantage": -rows.advantage},
        "with returns in place of advantages": {"advantage": target},
        "with advantages through which the gradient flows": {"advantage": target - rows.value},
        "with advantages by the new values": {"advantage": target - now},
        "with advantages in place of returns in the value loss": {"returns": rows.advantage},
        "with recorded values in place of returns in the value loss": {"returns": rows.old_value},
        "with returns from the new values in the value loss": {"returns": rows.advantage + now},
        "with the negative log-probability as the entropy": {"entropy": -new},
        "with the entropy in bits": {"entropy": rows.entropy / math.log(2)},
        "over the rows that do not count, too": {"is_valid": torch.ones_like(rows.is_valid)},
    }
    pairs = {"log-probabilities": {"log_probability": new[:, None], "old_log_probability": old[:, None]}}
    pairs |= {"new values": {"value": rows.value[:, None]}, "returns": {"returns": target[:, None]}}
    changes |= {
        f"with a column of {words} against rows: the mean over all pairs": each for words, each in pairs.items()
    }
    if clip is not None:
        ratio = (new - old).exp()
        changes["without clipping the ratio"] = {"clip": math.inf}
        changes["with log-probabilities in place of the ratio"] = {"clip": None}
        changes["with only the clipped surrogate"] = {"clip": None, "log_probability": ratio.clamp(1 - clip, 1 + clip)}
        changes["with the difference of log-probabilities as the ratio"] = {"clip": None, "log_probability": new - old}
    grid = rows.whole["advantage"].reshape(rows.shape[:2])
    for words, axis in (("each step", 1), ("each slot", 0)):
        scaled = (grid - grid.mean(axis, keepdim=True)) / (grid.std(axis, keepdim=True) + algorithm.normalize_eps)
        own = {"advantage": scaled.reshape(-1)[rows.chosen], "normalize_advantages": "never"}
        changes[f"with advantages normalised over {words}"] = own
    size, (t, n, num_actions) = len(rows.whole["advantage"]), rows.shape
    for words, other in (
        ("of the next step", (rows.chosen + n) % size),
        ("of the previous step", (rows.chosen - n) % size),
        ("of the next slot", (rows.chosen + 1) % size),
        ("of the previous slot", (rows.chosen - 1) % size),
        ("of the buffer's rows [T, N] read as [N, T]", (rows.chosen % t) * n + rows.chosen // t),
        ("of the first rows of the buffer", torch.arange(len(rows.chosen)) % size),
        ("of the next row of the minibatch", rows.chosen.roll(-1)),
    ):
        columns = {name: rows.whole[name][other] for name in RECORDED}
        changes |= {f"with the {name} {words}": {name: column} for name, column in columns.items()}
        changes[f"with all recorded columns {words}"] = columns
    for words, change in changes.items():
        yield words, take(**change)
    right = take()
    smaller = take(value_clip=None)["value"] + take(value_clip_larger=False)["value"] - right["value"]
    larger = -take(advantage=-rows.advantage)["policy"]
    huber = scale * 2 * torch.nn.functional.smooth_l1_loss(rows.value, target, reduction=algorithm.reduction)
    yield "with the smaller value loss in place of the larger one", _add_up(algorithm, right, value=smaller)
    yield "with the larger surrogate in place of the smaller one", _add_up(algorithm, right, policy=larger)
    yield "with the smooth L1 loss of values", _add_up(algorithm, right, value=huber)
    factors = {"with the opposite sign": -1.0, "left out": 0.0, "halved": 0.5, "doubled": 2.0}
    sizes = {"rows of the minibatch": len(rows.chosen), "steps": t, "slots": n, "rows": size, "actions": num_actions}
    for words, number in sizes.items():
        factors |= {f"multiplied by the number of {words}": number, f"divided by the number of {words}": 1 / number}
    for name in ("policy", "value", "entropy"):
        for words, factor in factors.items():
            yield f"with the {name} term {words}", _add_up(algorithm, right, **{name: factor * right[name]})


def scale_down(algorithm: Any, gradients: Tensors) -> dict[str, Tensor]:
    """Return the gradients with a limited norm over all of them, as torch.nn.utils.clip_grad_norm_ computes it."""
    most = algorithm.max_grad_norm
    if most is None:
        return dict(gradients)
    norm = _norm_of(gradients)
    return {name: each * (most / (norm + 1e-6)).clamp(max=1.0) for name, each in gradients.items()}


def _norm_of(gradients: Tensors) -> Tensor:
    return torch.stack([each.square().sum() for each in gradients.values()]).sum().sqrt()


def _list_scaled(algorithm: Any, right: Tensors) -> Mistakes:
    most = algorithm.max_grad_norm
    if most is None or not right:
        return
    norm = _norm_of(right)
    yield "scaled down to the largest norm", scale_down(algorithm, right)
    yield "not scaled down to the largest norm", right
    rules: dict[str, Callable[[Tensor], Tensor]] = {
        "scaled down each by itself": lambda each: scale_down(algorithm, {"": each})[""],
        "clipped number by number at the largest norm": lambda each: each.clamp(-most, most),
        "scaled up to the largest norm, too": lambda each: each * (most / norm),
        "divided by their norm": lambda each: each / norm,
    }
    for words, rule in rules.items():
        yield words, {name: rule(each) for name, each in right.items()}


def take_step(
    optimizer: Any, weights: Tensors, gradients: Tensors, states: dict[str, dict[str, Any]]
) -> dict[str, Tensor]:
    """Return the weights after a step of an optimizer, and replace its states: those that torch keeps, by weight.

    A weight without a gradient stays as it is.
    """
    return {
        name: _move(optimizer, each, gradients[name], states[name]) if name in gradients else each
        for name, each in weights.items()
    }


def _move(optimizer: Any, weight: Any, gradient: Any, state: dict[str, Any]) -> Any:
    step, lr = float(state.get("step", 0.0)) + 1, optimizer.lr
    if getattr(optimizer, "decoupled", False):
        weight = weight * (1 - lr * optimizer.weight_decay)
    else:
        gradient = gradient + optimizer.weight_decay * weight
    if not hasattr(optimizer, "betas"):
        if optimizer.momentum:
            last = state.get("momentum_buffer")
            kept = gradient if last is None else optimizer.momentum * last + (1 - optimizer.dampening) * gradient
            state |= {"momentum_buffer": kept}
            gradient = gradient + optimizer.momentum * kept if optimizer.nesterov else kept
        return weight - lr * gradient
    (first, second), zero = optimizer.betas, torch.zeros_like(weight)
    mean = first * state.get("exp_avg", zero) + (1 - first) * gradient
    square = second * state.get("exp_avg_sq", zero) + (1 - second) * gradient.square()
    state |= {"step": step, "exp_avg": mean, "exp_avg_sq": square}
    root = (square / (1 - second**step)).sqrt() + optimizer.eps
    return weight - lr / (1 - first**step) * mean / root


def list_update_mistakes(
    algorithm: Any, weights: Tensors, raw: Tensors, scaled: Tensors, states: Any, earlier: Any
) -> Mistakes:
    """Yield the weights after a step in which a mistake was made.

    raw, scaled: the gradients before and after their norm was limited
    states:  the states of the optimizer before the step
    earlier: other weights from which the step may have started, in words and as numbers
    """
    rule = algorithm.optimizer

    def take(
        gradients: Tensors = scaled, rule: Any = rule, weights: Tensors = weights, shift: float = 0.0, extra: float = 0.0
    ) -> dict[str, Tensor]:  # fmt: skip
        own = {name: each | {"step": max(0.0, float(each.get("step", 0.0)) + shift)} for name, each in states.items()}
        for each in own.values() if extra else ():
            correction = (1 - rule.betas[1] ** (each["step"] + 1)) / rule.betas[1]
            each["exp_avg_sq"] = each.get("exp_avg_sq", 0.0) + extra * correction
        return take_step(rule, weights, gradients, own)

    yield "without the step: they are unchanged", weights
    yield "with the sign of the gradients exchanged", take({name: -each for name, each in scaled.items()})
    for words, gradients in _list_scaled(algorithm, raw):
        yield f"from gradients {words}", take(gradients)
    frozen = {name: each * (1 - rule.lr * rule.weight_decay) for name, each in weights.items() if name not in scaled}
    yield "with weight decay of frozen weights, too", take() | frozen
    for words, other in earlier:
        yield f"from {words}", take(weights={**weights, **other})
    twice = {name: dict(each) for name, each in states.items()}
    yield "with two steps", take_step(rule, take_step(rule, weights, scaled, twice), scaled, twice)
    fresh: dict[str, dict[str, Any]] = {name: {} for name in weights}
    yield "without the optimizer's state of earlier steps", take_step(rule, weights, scaled, fresh)
    changes: dict[str, dict[str, Any]] = {"without weight decay": {"weight_decay": 0.0}}
    for factor in (10.0, 0.1, 2.0, 0.5):
        changes[f"with {factor:g} times the learning rate"] = {"lr": rule.lr * factor}
    if hasattr(rule, "betas"):
        words = "weight decay on the gradients" if rule.decoupled else "decoupled weight decay"
        changes[f"with {words}"] = {"decoupled": not rule.decoupled}
        changes["with both betas exchanged"] = {"betas": rule.betas[::-1]}
        changes |= {f"with eps {eps:g}": {"eps": eps} for eps in (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3)}
        yield "without the correction of bias", take(shift=1e9)
        yield "with the number of the step one too large", take(shift=1)
        yield "with the number of the step standing still at 1", take(shift=-1e9)
        # The second moment before the step that makes sqrt(v) + 0 the root of v + eps.
        yield "with eps under the square root", take(rule=replace(rule, eps=0.0), extra=rule.eps)
    else:
        changes |= {"without momentum": {"momentum": 0.0}, "without dampening": {"dampening": 0.0}}
        changes["with the other kind of momentum (Nesterov's or not)"] = {"nesterov": not rule.nesterov}
    for words, change in changes.items():
        yield words, take(rule=replace(rule, **change))
    descended = {name: each - rule.lr * scaled.get(name, 0 * each) for name, each in weights.items()}
    yield "by plain gradient descent", descended
