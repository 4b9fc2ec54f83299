"""What must hold before two traces can be compared; each failure makes the verdict INCONCLUSIVE."""

from kgverify.trace.model.trace import Trace


def check_preconditions(expected: Trace, actual: Trace) -> tuple[str, ...]:
    """Why the two traces cannot decide anything together; empty if they can.

    An empty program or policy hash, which a third party may leave out, is taken for equal.
    """
    reasons = []
    for trace, role in ((expected, "expected"), (actual, "actual")):
        if not trace.is_complete:
            reasons.append(f"the {role} trace is not complete: {trace.source or 'its recording did not finish'}")
    e, a = expected.header, actual.header
    if e.limits != a.limits:
        reasons.append(f"the limits differ: expected {_limits(expected)}, actual {_limits(actual)}")
    if e.program_sha256 and a.program_sha256 and e.program_sha256 != a.program_sha256:
        reasons.append("the programs differ: facts, rules or the numbering of symbols")
    hashes = e.policy.sha256, a.policy.sha256
    if e.policy.name != a.policy.name or (all(hashes) and hashes[0] != hashes[1]):
        reasons.append(f"the policies differ: expected {_policy(expected)}, actual {_policy(actual)}")
    for field in ("graph", "split", "num_queries", "num_corruptions", "seed"):
        values = getattr(e.run, field), getattr(a.run, field)
        if values[0] != values[1] and all(trace.header.run.graph for trace in (expected, actual)):
            reasons.append(f"the runs differ in {field}: expected {values[0]!r}, actual {values[1]!r}")
    tolerances = e.run.rank_tolerance, a.run.rank_tolerance
    if tolerances[0] != tolerances[1] and expected.rankings is not None and actual.rankings is not None:
        reasons.append(f"the runs differ in rank_tolerance: expected {tolerances[0]}, actual {tolerances[1]}")
    return tuple(reasons)


def _limits(trace: Trace) -> str:
    limits = trace.header.limits
    return ", ".join(f"{field}={getattr(limits, field)}" for field in limits.__struct_fields__)


def _policy(trace: Trace) -> str:
    policy = trace.header.policy
    return f"{policy.name} {policy.sha256[:12]}".strip()
