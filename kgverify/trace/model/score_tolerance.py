"""The rounding error of scores that a comparison accepts: the judge's bound, not the engine's own declaration."""

from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError, suggest
from kgverify.program.outcomes import GoalKind
from kgverify.trace.model.columns import Resolvents
from kgverify.trace.model.header import EngineInfo, Header, PolicyInfo

UNIT_ROUNDOFF: Final = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "bf16x3": 2.0**-16,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
}
"""The largest relative error of rounding a number to each precision."""

_OTHER_NAMES: Final = {"float16": "fp16", "bfloat16": "bf16"}

LEAST: Final = 1e-9
"""The smallest bound, in nats, for the reference: it adds numbers in another order than other engines in float64."""

ROUNDINGS_UNKNOWN: Final = 512
"""The error that is accepted if no bound was computed from a policy's weights, in roundings of a number of 1 nat."""


MOST_SUMS: Final = 1 << 20
MOST_ROUNDINGS: Final = 1 << 14
"""The largest error of a sound network, in roundings of the largest score: those of sums, and those of their factors.

Networks of up to 1,024 neurons and 8 blocks, with ill-conditioned weights, have bounds of 2^17 and 2^12.
"""


MAX_SIZE: Final = 1e4
"""The ratio to the median size above which a number is not a score, but marks a masked entry."""

OWN_ENGINES: Final = frozenset({"reference", "compiled", "native", "plain"})
"""The names of kgverify's engines, whose bounds follow from the policy's weights."""


class ScoreTolerance(NamedTuple):
    """The largest difference between two scores that count as equal.

    value:      in nats
    notes:      about errors that an engine declared
    float_type: the coarser of the two float types
    unit:       one unit in the last place of that type, at the median size of a score, in nats; 0 if it was not computed
    evidence:   the source of the bound of each side, in words
    """

    value: float
    notes: tuple[str, ...] = ()
    float_type: str = ""
    unit: float = 0.0
    evidence: tuple[str, ...] = ()

    def describe(self, difference: float) -> str:
        """Describe a difference of scores: `1.2e-07 nats (2 ulps of float32)`."""
        if not self.unit:
            return f"{difference:.2g} nats"
        ulps = difference / self.unit
        return f"{difference:.2g} nats ({ulps:,.0f} {'ulp' if round(ulps) == 1 else 'ulps'} of {self.float_type})"


ScoreError: TypeAlias = float | str | ScoreTolerance | None
"""The error to accept: of the actual scores, in nats or by float type; or a tolerance of both sides; or None to find it."""


def parse_score_error(text: str | float | None) -> str | float | None:
    """Parse an error in nats, or the name of a float type. UserError for anything else."""
    fix = "give the largest rounding error of a score to accept, in nats, or a float type such as float16"
    if text is None:
        return None
    if isinstance(text, str):
        name = _OTHER_NAMES.get(text.lower(), text.lower())
        if name in UNIT_ROUNDOFF:
            return name
        try:
            text = float(text)
        except ValueError:
            known = suggest(name, [*UNIT_ROUNDOFF, *_OTHER_NAMES])
            raise UserError(
                f"expected a number or a float type, found {text!r}", where="score_error", fix=known or fix
            ) from None
    if not 0 <= text < float("inf"):
        raise UserError(f"expected a number of at least 0, found {text}", where="score_error", fix=fix)
    return text


def find_float_type(scores: NDArray[np.floating]) -> str:
    """Return the coarsest float type that can represent every finite score, whatever the type of the array."""
    return next((name for name in ("bf16", "fp16", "float32") if _fits(scores, name)), "float64")


def name_float32(engine: EngineInfo) -> EngineInfo:
    """Change the precision of an engine from float64, which is also the default, to float32, the type of its scores."""
    return msgspec.structs.replace(engine, precision="float32") if engine.precision == "float64" else engine


def name_coarser_type(expected: NDArray[np.floating], actual: NDArray[np.floating]) -> str:
    """Return the short float type that represents all actual scores but not all expected ones; empty if no type does."""
    return next((name for name in ("bf16", "fp16") if _fits(actual, name) and not _fits(expected, name)), "")


def name_rounding(expected: NDArray[np.floating], actual: NDArray[np.floating]) -> str:
    """Return the short float type to which the expected scores, in pairs with the actual ones, were rounded; empty for none.

    A score that the type represents stays as it is, and any other changes by less than a unit in the last place.
    """
    gap = np.abs(np.asarray(actual, np.float64) - expected)
    for name in ("bf16", "fp16"):
        unit = 2 * UNIT_ROUNDOFF[name] * np.exp2(np.floor(np.log2(np.maximum(np.abs(expected), 2.0**-100))))
        is_changed = np.array([not _fits(each, name) for each in np.atleast_1d(expected)])
        if is_changed.any() and _fits(actual, name) and bool((gap < np.where(is_changed, unit, 2.0**-1000)).all()):
            return name
    return ""


def _fits(scores: NDArray[np.floating], float_type: str) -> bool:
    values = np.asarray(scores, np.float64)
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        short = values.astype(np.float32)
        if float_type == "fp16":
            return bool((values.astype(np.float16) == values).all())
        is_exact = bool((short == values).all())
    return is_exact and (float_type != "bf16" or not (short.view(np.uint32) & 0xFFFF).any())


def size_of_unit(scores: NDArray[np.floating], float_type: str) -> float:
    """Return one unit in the last place of a float type at the median size of the scores, in nats; 0 without scores."""
    sizes = _sizes(scores)
    unit = 2 * UNIT_ROUNDOFF[name_precision(float_type)]
    return unit * float(2.0 ** np.floor(np.log2(np.median(sizes)))) if len(sizes) else 0.0


def bound_by_type(resolvents: Resolvents, float_type: str) -> float:
    """Return a weak bound on the error of scores of which only the float type is known: some roundings of a large score."""
    sizes = _sizes_of_goals(resolvents)
    # Numbers such as -1e9 mark masked entries and are not scores.
    sizes = sizes[sizes <= MAX_SIZE * np.median(sizes)] if len(sizes) else sizes
    return ROUNDINGS_UNKNOWN * UNIT_ROUNDOFF[float_type] * float(np.quantile(sizes, 0.99)) if len(sizes) else 0.0


def size_typically(resolvents: Resolvents) -> float:
    """Return the median size of a score of a goal; 0 without scores."""
    sizes = _sizes_of_goals(resolvents)
    return float(np.median(sizes)) if len(sizes) else 0.0


def _sizes_of_goals(resolvents: Resolvents) -> NDArray[np.float64]:
    """Return the sizes of the scores of goals, or of all scores if no goal has one: terminal actions have scores of any size."""
    sizes = _sizes(resolvents.score[resolvents.kind == GoalKind.GOAL])
    return sizes if len(sizes) else _sizes(resolvents.score)


def _sizes(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the absolute values of the scores that are finite and not 0."""
    sizes = np.abs(np.asarray(scores, np.float64))
    return sizes[np.isfinite(sizes) & (sizes > 0)]


def name_precision(precision: str) -> str:
    """Return the known name of a precision; float32 for an unknown precision."""
    name = _OTHER_NAMES.get(precision, precision)
    return name if name in UNIT_ROUNDOFF else "float32"


def name_unit(unit: float) -> str:
    """Return the float type whose rounding error, relative to the number, is at most `unit`."""
    return next(name for name, each in UNIT_ROUNDOFF.items() if each == unit)


def bound_score_error(policy: PolicyInfo, precision: str) -> float:
    """Return the judge's bound on the error of scores in a precision, in nats.

    Policy `shortest` rounds nothing. Other bounds are computed from the weights when the policy is used, and recorded.
    """
    if policy.name == "shortest" and not policy.score_errors:
        return 0.0
    name = name_precision(precision)
    return max(0.0, policy.score_errors.get(name, max(LEAST, ROUNDINGS_UNKNOWN * UNIT_ROUNDOFF[name])))


def explain_bound(policy: PolicyInfo, precision: str, size: float) -> float:
    """Return the largest bound on score errors that is plausible in a header: a file could declare any bound.

    size: the largest recorded score, in nats
    """
    if policy.name == "shortest":
        return 0.0
    unit = UNIT_ROUNDOFF[name_precision(precision)]
    sums = min(unit, UNIT_ROUNDOFF["float32"])
    return max(LEAST, (MOST_SUMS * sums + MOST_ROUNDINGS * unit) * max(1.0, size))


def accept_score_error(engine: EngineInfo, policy: PolicyInfo) -> float:
    """Return the error of an engine's scores to accept: the declared error, up to the judge's bound."""
    return min(engine.score_error, bound_score_error(policy, engine.precision))


def judge_tolerance(expected: Header, actual: Header, accepted: ScoreError = None) -> ScoreTolerance:
    """Return the tolerance of scores between two sides; both bounds come from the expected side's policy.

    accepted: the error of the actual side that the user accepts, instead of the judge's bound
    """
    if isinstance(accepted, ScoreTolerance):
        return accepted
    if isinstance(accepted, str):
        accepted = bound_score_error(expected.policy, accepted)
    policy, total, notes = expected.policy, 0.0, []
    for role, engine in (("expected", expected.engine), ("actual", actual.engine)):
        bound, declared = bound_score_error(policy, engine.precision), engine.score_error
        source = f"the judge's bound is {bound:.3g}, {describe_source(policy, engine.precision)}"
        if role == "actual" and accepted is not None:
            total += accepted
            notes.append(
                f"the user accepts an error of the actual scores of {accepted:.3g} nats; {source};"
                f" the engine declares {declared:.3g}"
            )
            continue
        total += min(declared, bound)
        if declared > bound:
            notes.append(
                f"the {role} engine declares a score error of {declared:.3g} nats, which is not accepted: {source}"
                f" (--score-error {declared:.3g} would accept it)"
            )
    if policy.name != "shortest" and not policy.score_errors:
        unknown = f"the policy {policy.name!r}" if policy.name else "the policy"
        notes.append(
            f"scores within {total:.3g} nats count as equal: kgverify does not know {unknown}, and accepts the errors that the"
            f" engines declare, up to {ROUNDINGS_UNKNOWN} roundings of 1 nat (--score-error accepts another one of the actual"
            " side)"
        )
    return ScoreTolerance(total, tuple(notes))


def describe_source(policy: PolicyInfo, precision: str) -> str:
    """Describe the source of `bound_score_error`."""
    if policy.name == "shortest" and not policy.score_errors:
        return "since the scores of `shortest` are exact"
    if name_precision(precision) in policy.score_errors:
        return f"computed from the policy's weights for {name_precision(precision)}"
    return f"{ROUNDINGS_UNKNOWN} roundings of 1 nat in {name_precision(precision)}, since the weights are unknown"


def round_up(number: float) -> float:
    """Round a positive number up to two digits."""
    digit = 10.0 ** (np.floor(np.log10(number)) - 1)
    return float(f"{np.ceil(number / digit * (1 - 1e-9)) * digit:.1e}")
