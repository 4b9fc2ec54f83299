"""The parts of a dialect that laws presume, each with the reason for which a law is not checked in other dialects."""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from kgverify.program.dialect import OURS, Dialect


class Presumption(NamedTuple):
    """A condition on the dialect.

    holds_in: whether a dialect fulfils it
    reason:   the reason for which a law that presumes it is not checked in another dialect
    """

    holds_in: Callable[[Dialect], bool]
    reason: str


Presumptions: TypeAlias = tuple[Presumption, ...]

UNKNOWN: Final = "the semantics of the reference are unknown"
"""The reason for which most laws are not checked where no dialect is known."""

COUNTS_EVERY_STEP: Final = Presumption(
    lambda dialect: not dialect.skips_unary, "the depth does not count steps with one resolvent"
)
NEVER_STOPS: Final = Presumption(lambda dialect: dialect.stopping == "never", "stopping is offered beside resolvents")
FORGETS_NAMES: Final = Presumption(lambda dialect: dialect.forgets_names, "variables keep their names in a derivation")
REJECTS: Final = Presumption(
    lambda dialect: dialect.long_resolvents == "reject" or "max_atoms" not in dialect.filters,
    "long resolvents are truncated",
)
PRUNES: Final = Presumption(lambda dialect: "prune" in dialect.filters, "facts are not deleted from resolvents")
PRUNES_FIRST: Final = Presumption(
    lambda dialect: dialect.filters[:1] == ("prune",), "other filters are applied before facts are deleted"
)
KNOWS_EXCLUDED: Final = Presumption(
    lambda dialect: dialect.exclusion != "positives_only", "only the query of a positive is excluded"
)
PROOF_ALONE: Final = Presumption(
    lambda dialect: _is_last(dialect, "close", "prune"), "other resolvents stand beside a proof"
)
PROOF_BEFORE_LIMITS: Final = Presumption(
    lambda dialect: (
        "close" in dialect.filters
        and ("max_resolvents" not in dialect.filters or _is_last(dialect, "max_resolvents", "close"))
    ),
    "max_resolvents may drop a proof",
)
LIMITS_LAST: Final = Presumption(
    lambda dialect: dialect.filters[-3:] == ("close", "max_atoms", "max_resolvents"),
    "the limits are not the last filters, max_atoms before max_resolvents, after close",
)
OUR_FILTERS: Final = Presumption(
    lambda dialect: dialect.filters == OURS.filters, f"the filters are not {', '.join(OURS.filters)}"
)
OUR_CLAUSES: Final = Presumption(
    lambda dialect: (
        (dialect.unification, dialect.order, dialect.is_reversed) == (OURS.unification, OURS.order, OURS.is_reversed)
    ),
    "clauses match or are ordered otherwise",
)
OUR_MEMORY: Final = Presumption(
    lambda dialect: dialect.memory == "sequence", "visited goals are not compared as sequences"
)
DROPS_VISITED: Final = Presumption(
    lambda dialect: (
        dialect.memory != "none"
        and _is_last(dialect, "revisit", "prune", *(["max_atoms"] if dialect.long_resolvents != "reject" else []))
    ),
    "a visited goal may be left, or made after the comparison with visited goals",
)
PUSHES_DOWN: Final = Presumption(
    lambda dialect: dialect.unproved == "subtract_100", "candidates that are not proved are ranked like others"
)


def _is_last(dialect: Dialect, name: str, *others: str) -> bool:
    """Return whether a dialect has a filter, and applies none of some others after it."""
    return name in dialect.filters and {*others}.isdisjoint(dialect.filters[dialect.filters.index(name) + 1 :])
