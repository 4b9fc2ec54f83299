"""The front door to updates: advantages, losses, gradients and weights computed again in float64, and the first that differs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import numpy as np

from kgverify.codes import Code, Coded
from kgverify.comparison.result import Divergence, Level, Verdict
from kgverify.environments.advantages import ROUNDINGS, Floats, Steps, list_mistakes, list_return_mistakes, set_up
from kgverify.environments.algorithms import PPO
from kgverify.environments.protocol import to_array
from kgverify.environments.trajectory import Stage
from kgverify.errors import UserError, check_known
from kgverify.program.outcomes import DifferenceClass
from kgverify.trace.model.score_tolerance import UNIT_ROUNDOFF, name_precision

_REQUIRED: Final = ("reward", "value", "terminated", "truncated")
_OPTIONAL: Final = ("final_value", "last_value", "log_probability", "action", "observation", "mask", "valid")
_STEP: Final = ("index", "losses", "gradients", "scaled_gradients", "parameters")
_THEIRS: Final = ("advantages", "returns", *_STEP, "minibatches", "optimizer_state", "earlier_parameters")
_TERMS: Final = ("policy", "value", "entropy", "total")
_METHODS: Final = {"evaluate_actions": (1, 0, 2), "get_action_and_value": (1, 3, 2)}
"""The methods that evaluate a policy: the places of log-probability, value and entropy in what each returns."""
MOST_EXPLANATIONS: Final = 3
MARGIN: Final = 4.0
"""The ratio of the rounding of a mistaken computation to that of the right one, at most."""


class UpdateReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="kgverify update 1"):
    """The result of verifying an update.

    divergences:  the first number of each stage that differs, the first stage first; later stages may follow from it
    compared:     the numbers compared in each stage whose bound of rounding is smaller than they are
    not_compared: the reason why something was not compared, by its name
    precision:    the float type of each stage whose rounding is accepted
    reasons:      the reasons for an inconclusive verdict
    """

    verdict: Verdict
    divergences: tuple[Divergence, ...] = ()
    compared: dict[str, int] = {}
    not_compared: dict[str, str] = {}
    precision: dict[str, str] = {}
    reasons: tuple[Coded, ...] = ()

    @property
    def first_divergence(self) -> Divergence | None:
        """The first divergence; None without divergences."""
        return next(iter(self.divergences), None)

    def __str__(self) -> str:
        """Return the report as text."""
        counts = [f"{stage} ({count:,} numbers, {self.precision[stage]})" for stage, count in self.compared.items()]
        lines = [f"{self.verdict.value}   compared: {', '.join(counts) or 'nothing'}"]
        lines += [f"  because {reason}" for reason in self.reasons]
        for each in self.divergences:
            lines.append(f"  {each.stage}: {each.field}, {each.atom}")
            lines.append(f"    expected {each.expected}, actual {each.actual}: {each.evidence}")
        lines += [f"  not compared: {name}: {reason}" for name, reason in self.not_compared.items()]
        return "\n".join(lines)


def verify_update(
    buffer: Mapping[str, Any],
    theirs: Mapping[str, Any],
    *,
    algorithm: PPO,
    policy: Any = None,
    evaluate: Callable[..., Any] | None = None,
    on_policy: bool = True,
    precision: str | None = None,
) -> UpdateReport:
    """Compute an update again in float64 from a buffer of steps, and name the first number of theirs that differs.

    Each stage is judged from their own results of the stages before: the returns from their advantages, the losses and
    gradients from their advantages and returns, the weights from their gradients. A number that differs by no more than the
    rounding of its float type is right. A number that differs is explained if one of many known mistakes gives all of theirs.

    Args:
        buffer: Arrays or tensors [T, N], T steps of N slots, or [T]. Required: `reward`; `value`, of the observation before the
            action; `terminated` and `truncated`, whether this step ended the episode. Optional: `final_value`, of the
            observation that ended an episode; `last_value` [N], of the observation after the last step; `log_probability` and
            `action`; `observation` [T, N, ...], an array or a mapping or tuple of arrays; `mask` [T, N, A], the legal actions;
            `valid`, whether the row counts, False for a row that only reset its slot.
        theirs: What they computed, as far as it is known: `advantages` [T, N], before they are normalised; `returns` [T, N];
            `losses`, the terms `policy`, `value`, `entropy` (positive) and `total`; `gradients` by name of the weight, and
            `scaled_gradients` after their norm was limited; `parameters` after the step, by name. The rows of the step are all,
            or `index`, t · N + n each. Instead of these five, `minibatches` is a list of mappings with them, one for each step
            of the optimizer. `optimizer_state` holds its state before the update by name of the weight: `step`, `exp_avg`,
            `exp_avg_sq` or `momentum_buffer`; without it, the first step is the first of all. `earlier_parameters` is a list of
            the weights of earlier updates, the last one last; they are only used in explanations.
        algorithm: `PPO(...)` or `Reinforce(...)`.
        policy: The torch module as it was before the update. It has the method `evaluate_actions(observation, action)` ->
            value, log-probability, entropy, as in Stable-Baselines3, or `get_action_and_value(observation, action)` -> action,
            log-probability, entropy, value, as in CleanRL; the mask follows as third argument, if there is one. The rows are
            the first axis. Without a policy, only advantages and returns are compared.
        evaluate: A function of (module, observation, action, mask) -> log-probability, value, entropy, for other policies.
        on_policy: Whether this policy filled the buffer, so that its log-probabilities and values are compared, too.
        precision: The coarsest type of their computation, such as `bfloat16` or `tf32`, if it is not the type of their arrays.

    Returns:
        The report. The verdict is INCONCLUSIVE if nothing was compared.

    Raises:
        UserError: If a key is unknown, a required array is missing, or a shape does not fit.

    Example:
        >>> import kgverify as kv
        >>> buffer = {"reward": [1.0, 1.0], "value": [0.5, 0.5], "terminated": [0, 1], "truncated": [0, 0]}
        >>> report = kv.verify_update(buffer, {"advantages": [1.49, 0.5]}, algorithm=kv.PPO(gamma=1.0, lam=1.0))
        >>> print(report.first_divergence.expected, report.first_divergence.actual)
        1.5 1.49
    """
    _check_names(buffer, theirs, policy)
    check = _Check(buffer, precision)
    check.judge_advantages(theirs, algorithm)
    if policy is not None:
        check.judge_training(theirs, algorithm, policy, evaluate or _find_method(policy), on_policy)
    return check.report()


def _check_names(buffer: Mapping[str, Any], theirs: Mapping[str, Any], policy: Any) -> None:
    weights = dict(policy.named_parameters()) if policy is not None else {}
    batches = theirs.get("minibatches", ())
    known: list[tuple[Any, Iterable[str], str]] = [
        (buffer, (*_REQUIRED, *_OPTIONAL), "buffer"),
        (theirs, _THEIRS, "theirs"),
    ]
    known += [(each, _STEP, f"minibatch {number}") for number, each in enumerate(batches)]
    for batch in (theirs, *batches):
        known.append((batch.get("losses") or {}, _TERMS, "losses"))
        known += [(batch.get(name) or {}, weights, name) for name in _STEP[2:] if weights]
    known += [(each, weights, "earlier_parameters") for each in theirs.get("earlier_parameters", ()) if weights]
    for mapping, names, where in known:
        for name, value in mapping.items():
            check_known(str(name), names, "key", where)
            if names is weights and value is not None and tuple(value.shape) != tuple(weights[name].shape):
                message = f"{name} has the shape {list(value.shape)}, expected {list(weights[name].shape)}"
                raise UserError(message, where=where, fix="record it as torch has it")
    for name in (*_REQUIRED, *(("observation", "action") if policy is not None else ())):
        if buffer.get(name) is None:
            raise UserError(f"{name} is missing", where="buffer", fix=f"add buffer[{name!r}], an array [T, N]")


def _find_method(policy: Any) -> Callable[..., Any]:
    name = next((each for each in _METHODS if hasattr(policy, each)), "")
    if not name:
        message = f"{type(policy).__name__} has neither evaluate_actions nor get_action_and_value"
        raise UserError(message, where="policy", fix="give evaluate=, a function that evaluates the policy")

    def evaluate(module: Any, observation: Any, action: Any, mask: Any) -> tuple[Any, ...]:
        found = getattr(module, name)(observation, action, *(() if mask is None else (mask,)))
        return tuple(found[i] for i in _METHODS[name])

    return evaluate


class _Check:
    """The verification of one update: the buffer, and what was found."""

    def __init__(self, buffer: Mapping[str, Any], precision: str | None) -> None:
        self._buffer, self._shape = buffer, (*to_array(buffer["reward"]).shape, 1)[:2]
        if precision is not None:
            check_known(precision, (*UNIT_ROUNDOFF, "float16", "bfloat16"), "float type", "precision")
        self._declared = precision
        self._divergences: list[Divergence] = []
        self._compared: dict[str, int] = {}
        self._not_compared: dict[str, str] = {}
        self._precision: dict[str, str] = {}
        self._valid = self._read(buffer, "valid", 1.0) != 0
        self._steps = Steps(
            self._read(buffer, "reward"),
            self._read(buffer, "value"),
            self._read(buffer, "terminated") != 0,
            self._read(buffer, "truncated") != 0,
            self._read(buffer, "final_value"),
            self._read(buffer, "last_value", shape=self._shape[1:]),
        )

    def _read(
        self, given: Mapping[str, Any], name: str, default: float = np.nan, shape: tuple[int, ...] = ()
    ) -> Floats:
        """Return an array as float64 [T, N], or of another shape; `default` everywhere if it is not given."""
        shape = shape or self._shape
        if given.get(name) is None:
            return np.full(shape, default)
        array = to_array(given[name]).astype(np.float64)
        if array.size != np.prod(shape) or array.shape[:1] not in ((), shape[:1]):
            message = f"the shape is {list(array.shape)}, expected {list(shape)}"
            raise UserError(message, where=name, fix="give T steps of N slots")
        return array.reshape(shape)

    def report(self) -> UpdateReport:
        """Return the report of what was judged."""
        for stage in [stage for stage, count in self._compared.items() if not count]:
            self._not_compared[stage] = f"every number is smaller than the rounding of {self._precision[stage]}"
        compared = {stage: count for stage, count in self._compared.items() if count}
        verdict = Verdict.DIVERGE if self._divergences else Verdict.AGREE if compared else Verdict.INCONCLUSIVE
        nothing = Code.NOTHING_COMPARED.mark("nothing was compared: give theirs, and the policy for losses")
        return UpdateReport(
            verdict=verdict, divergences=tuple(self._divergences), compared=compared, not_compared=self._not_compared,
            precision=self._precision, reasons=(nothing,) if verdict is Verdict.INCONCLUSIVE else (),
        )  # fmt: skip

    def find_unit(self, stage: str, *given: Any, arrays: Iterable[Any] = ()) -> float:
        """Return the unit roundoff of the coarsest type among some arrays, unless a type was declared."""
        names = [_name_type(each) for each in (*given, *arrays) if each is not None]
        self._precision[stage] = name_precision(self._declared or max(names, key=UNIT_ROUNDOFF.__getitem__))
        return UNIT_ROUNDOFF[self._precision[stage]]

    def judge_advantages(self, theirs: Mapping[str, Any], algorithm: PPO) -> None:
        """Compare their advantages, and their returns from their own advantages."""
        steps, terms = self._steps, (algorithm.gamma, algorithm.lam, algorithm.bootstrap)
        right = set_up(steps, *terms)
        actual = {"advantage": self._read(theirs, "advantages"), "return": self._read(theirs, "returns")}
        unit = self.find_unit("advantage", theirs.get("advantages"), theirs.get("returns"), self._buffer["value"])
        bound = right.bound(unit) + ROUNDINGS * unit * np.abs(steps.value)
        advantage = right.solve()
        if theirs.get("advantages") is not None:
            # Where the next advantage is theirs, only the rows that go wrong by themselves differ.
            after = np.concatenate((actual["advantage"][1:], np.zeros((1, self._shape[1]))))
            local = right._replace(decay=0.0).solve() + np.where(right.goes_on, right.decay * after, 0.0)
            self._judge("advantage", advantage, bound, actual, list_mistakes(steps, *terms), local)
            advantage = actual["advantage"]
        if theirs.get("returns") is not None:
            listed = list_return_mistakes(steps, advantage, algorithm.gamma, right)
            self._judge("return", advantage + steps.value, bound, actual, listed)

    def _judge(
        self, name: str, expected: Floats, bound: Floats, actual: Any, mistakes: Any, local: Floats | None = None
    ) -> None:
        listed = lambda: ((words, {name: each}) for words, each in mistakes)  # noqa: E731
        known = np.where(self._valid, expected, np.nan)
        one = {"expected": {name: known}, "bounds": {name: bound}, "actual": actual, "mistakes": listed}
        stage = SimpleNamespace(name="advantage", minibatch=None, null=None, **one)
        self.judge(stage, local)

    def judge_training(
        self, theirs: Mapping[str, Any], algorithm: PPO, policy: Any, evaluate: Callable[..., Any], on_policy: bool
    ) -> None:
        """Compare the choices in the buffer, and each step of the optimizer until one differs."""
        from kgverify.torch.losses import Training

        advantage = self._read(theirs, "advantages")
        returns = advantage + self._steps.value if theirs.get("returns") is None else self._read(theirs, "returns")
        recorded = {
            "old_log_probability": self._read(self._buffer, "log_probability"), "old_value": self._steps.value,
            "advantage": advantage, "returns": returns, "is_valid": self._valid,
        }  # fmt: skip
        training = Training(self._buffer, theirs, recorded, algorithm, policy, evaluate, self.find_unit)
        for stage in training.list_stages(on_policy):
            # Without an explanation, a later step may show the mistake more clearly.
            last = next((each for each in self._divergences if each.candidate < 0 and each.confidence), None)
            if last is not None and stage.minibatch != last.step:
                self._not_compared["later minibatches"] = f"minibatch {last.step} differs"
                break
            self.judge(stage)
        self._judge_rows(theirs, algorithm)

    def _judge_rows(self, theirs: Mapping[str, Any], algorithm: PPO) -> None:
        """Report a minibatch in which a row appears twice."""
        for number, batch in enumerate(theirs.get("minibatches", ()) if not algorithm.with_replacement else ()):
            rows, counts = np.unique(to_array(batch.get("index", ())), return_counts=True)
            if (counts > 1).any():
                row, count = int(rows[counts > 1][0]), int(counts[counts > 1][0])
                evidence = f"row {row} appears {count} times; rows of a minibatch are drawn without replacement"
                self._add(-1, number, "update", "index", 1.0, float(count), evidence, True)
                return

    def judge(self, stage: Any, local: Floats | None = None) -> None:
        """Compare the numbers of a stage, and keep its first difference with the explanation.

        local: what is expected from their own number of the next row, to find the rows that go wrong by themselves
        """
        sides = (stage.expected, stage.bounds, stage.actual)
        expected, bounds, actual = ({name: to_array(each[name]) for name in stage.expected} for each in sides)
        differs = {}
        for name, each in expected.items():
            is_known = np.isfinite(each)
            effect = np.abs(each - (to_array(stage.null[name]) if stage.null else 0.0))
            count = int((is_known & (bounds[name] < effect)).sum())
            self._compared[stage.name] = self._compared.get(stage.name, 0) + count
            if not is_known.all():
                reason = "rows that do not count, or that depend on what is not given"
                self._not_compared.setdefault(f"{name}, in part", reason)
            differs[name] = is_known & ~(np.abs(actual[name] - each) <= bounds[name])
        name = next((name for name, each in differs.items() if each.any()), "")
        if not name or any(each.stage == stage.name for each in self._divergences):
            return
        shown, wrong = expected[name], differs[name]
        if local is not None and (apart := wrong & ~(np.abs(actual[name] - local) <= bounds[name])).any():
            shown, wrong = local, apart
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        values = float(shown[index]), float(actual[name][index])
        why = _explain(expected, bounds, actual, differs, stage.mistakes())
        size = f"differs by {abs(values[1] - values[0]):.3g}, bound {float(bounds[name][index]):.2g}"
        evidence = f"{size}; {why or 'no known mistake gives these numbers'}"
        slot, step, field = -1, stage.minibatch, name
        if step is None:
            step, slot = index
        elif index:
            field = f"{name}[{', '.join(map(str, index))}]"
        self._add(slot, step, stage.name, field, *values, evidence, bool(why))

    def _add(
        self, slot: int, step: int, stage: str, field: str, expected: float, actual: float, evidence: str, is_known: bool
    ) -> None:  # fmt: skip
        place = f"minibatch {step}" if slot < 0 else f"slot {slot}, step {step}"
        self._divergences.append(Divergence(
            candidate=slot, atom=place, query=-1, side="", step=step, stage=Stage(stage), field=field,
            level=Level.TOLERANCE, expected=expected, actual=actual, kind=DifferenceClass.NUMBER,
            evidence=evidence, confidence=float(is_known),
        ))  # fmt: skip


def _explain(expected: Any, bounds: Any, actual: Any, differs: Any, mistakes: Iterable[tuple[str, Any]]) -> str:
    """Return the mistakes that give all of their numbers; otherwise, those that give the differing ones; or empty."""
    found: dict[bool, dict[str, float]] = {True: {}, False: {}}
    for words, values in chain(mistakes, _find_factor(expected, actual)):
        gaps = {True: 0.0, False: 0.0}
        for name, each in expected.items():
            other, known = to_array(values[name]), np.isfinite(each)
            # A mistake rounds other numbers: its bound is that of the tensor, for numbers of its own size.
            size = np.abs(other[known]).max(initial=0.0) / max(np.abs(each[known]).max(initial=0.0), 1e-300)
            bound = MARGIN * max(1.0, float(size)) * bounds[name][known].max(initial=1e-300)
            for is_all, rows in ((True, known), (False, differs[name])):
                gap = np.nan_to_num(np.abs(other - actual[name])[rows] / bound, nan=np.inf).max(initial=0.0)
                gaps[is_all] = max(gaps[is_all], float(gap))
        for is_all, gap in gaps.items():
            if gap <= 1:
                found[is_all][words] = gap
    for is_all, what in ((True, "equals the one computed"), (False, "the numbers that differ equal those computed")):
        least = min(found[is_all].values(), default=0.0)
        fitting = [words for words, gap in found[is_all].items() if gap <= 2 * least + 0.1]
        if fitting:
            return f"{what} {' or '.join(fitting[:MOST_EXPLANATIONS])}"
    return ""


def _find_factor(expected: Any, actual: Any) -> Iterator[tuple[str, Any]]:
    """Yield the expected numbers times a factor, if there are several numbers."""
    known = {name: np.isfinite(each) & np.isfinite(actual[name]) for name, each in expected.items()}
    sides = [np.concatenate([each[name][known[name]] for name in expected]) for each in (expected, actual)]
    squares = float(sides[0] @ sides[0])
    if len(sides[0]) > 1 and squares:
        factor = float(sides[0] @ sides[1]) / squares
        yield f"times {factor:.6g}", {name: factor * each for name, each in expected.items()}


def _name_type(value: Any) -> str:
    """Return the float type of an array; float32 for numbers in float64 that were computed in it."""
    name = str(getattr(value, "dtype", "float64")).removeprefix("torch.")
    if name == "float64":
        numbers = to_array(value).astype(np.float64)
        return "float32" if (numbers == numbers.astype(np.float32)).all() else "float64"
    return name_precision(name)
