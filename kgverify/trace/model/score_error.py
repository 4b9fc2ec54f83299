"""The rounding error of scores that a comparison accepts: the judge's bound, not what an engine declares about itself."""

from typing import Final, NamedTuple

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
"""The least bound, in nats: that of the reference, which adds up in another order than other engines in float64."""

ROUNDINGS_UNKNOWN: Final = 512
"""The roundings of a number of the size of 1 nat that are accepted where no bound was computed from a policy's weights."""


MOST_SUMS: Final = 1 << 20
MOST_ROUNDINGS: Final = 1 << 14
"""The roundings of the largest score, of sums and of their factors, that the error of a sound network may collect.

Networks of up to 1,024 neurons and 8 blocks, with ill-conditioned weights, have bounds of 2^17 and 2^12.
"""


class ScoreTolerance(NamedTuple):
    """The largest difference between two scores that count as equal, and notes about errors that an engine declared.

    The error of each side is what its engine declares, up to the judge's bound.
    """

    value: float
    notes: tuple[str, ...] = ()


def name_precision(precision: str) -> str:
    """Return a known name of a precision: that of float32 for one that is unknown."""
    name = _OTHER_NAMES.get(precision, precision)
    return name if name in UNIT_ROUNDOFF else "float32"


def bound_score_error(policy: PolicyInfo, precision: str) -> float:
    """Return the judge's bound on the error of scores in a precision, in nats.

    `shortest` has no rounding. Other bounds are computed from the weights when the policy is used, and recorded with it.
    """
    if policy.name == "shortest" and not policy.score_errors:
        return 0.0
    name = name_precision(precision)
    return max(0.0, policy.score_errors.get(name, max(LEAST, ROUNDINGS_UNKNOWN * UNIT_ROUNDOFF[name])))


def explain_bound(policy: PolicyInfo, precision: str, size: float) -> float:
    """Return the largest bound on score errors that a header may name: a file can declare any.

    size: the largest score that was recorded, in nats
    """
    if policy.name == "shortest":
        return 0.0
    unit = UNIT_ROUNDOFF[name_precision(precision)]
    sums = min(unit, UNIT_ROUNDOFF["float32"])
    return max(LEAST, (MOST_SUMS * sums + MOST_ROUNDINGS * unit) * max(1.0, size))


def accept_score_error(engine: EngineInfo, policy: PolicyInfo) -> float:
    """Return the error of an engine's scores to accept: what it declares, up to the judge's bound."""
    return min(engine.score_error, bound_score_error(policy, engine.precision))


def judge_tolerance(expected: Header, actual: Header, accepted: float | None = None) -> ScoreTolerance:
    """Return the tolerance of scores between two sides; both bounds are those of the expected side's policy.

    accepted: the error of the actual side that the user accepts, instead of the judge's bound
    """
    policy, total, notes = expected.policy, 0.0, []
    for role, engine in (("expected", expected.engine), ("actual", actual.engine)):
        bound, declared = bound_score_error(policy, engine.precision), engine.score_error
        source = f"the judge's bound is {bound:.3g}, {_describe_source(policy, engine.precision)}"
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


def _describe_source(policy: PolicyInfo, precision: str) -> str:
    if policy.name == "shortest" and not policy.score_errors:
        return "since the scores of `shortest` are exact"
    if name_precision(precision) in policy.score_errors:
        return f"computed from the policy's weights for {name_precision(precision)}"
    return f"{ROUNDINGS_UNKNOWN} roundings of 1 nat in {name_precision(precision)}, since the weights are unknown"
