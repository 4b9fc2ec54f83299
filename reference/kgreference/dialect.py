"""The dialect of an engine: the choices in which correct engines may differ.

Every choice has a name, a rule, and a default, as in docs/semantics.md. The examples are programs of two lines.
Lower-case arguments are constants, and X, Y, Z are variables.
"""

import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final


class Unification(StrEnum):
    """The unification of the selected atom with the head of a clause that is standardized apart.

    COMPLETE: the most general unifier.
    ONE_PASS: the two argument pairs in order. A variable of the clause is bound to the term of the goal; else a
        variable of the goal is bound to the constant of the clause; two different constants fail. A variable bound to
        two different terms fails, even if the terms unify. Bindings are applied to each other, so that a success has
        the most general unifier. The two options differ only if a clause head repeats a variable.

    Example:
        p(X, X) <- q(X, X)
        From the goal p(a, Y), COMPLETE gives q(a, a); ONE_PASS binds X to a and to Y, and fails.
    """

    COMPLETE = "complete"
    ONE_PASS = "one_pass"


class Memory(StrEnum):
    """The comparison of a resolvent with the visited goals of the derivation, including the current one.

    NONE: nothing is dropped.
    SEQUENCE: equal atoms in the same order.
    SET: the same atoms, regardless of their order and number of occurrences.

    Example:
        p(X, Y) <- q(Y, X), p(Y, X)
        p(X, Y) <- p(X, Y)
        From the goal p(a, b), where "p(b, a), q(b, a)" was visited, the rules give "q(b, a), p(b, a)" and "p(a, b)".
        NONE keeps both, SEQUENCE drops the second, SET drops both.
    """

    NONE = "none"
    SEQUENCE = "sequence"
    SET = "set"


class Filter(StrEnum):
    """A stage after `resolve` that removes or changes resolvents.

    An engine applies its filters in its own order.

    PRUNE: facts other than the excluded atom are deleted from each resolvent.
    REVISIT: resolvents that the memory identifies with visited goals are dropped.
    DUPLICATES: only the first is kept of resolvents that are equal up to renaming, in the same order of atoms.
    CLOSE: only the first proof is kept, if there is one; FALSE is the only resolvent, if there is no other.
    MAX_ATOMS: resolvents of more than ``max_atoms`` atoms are rejected or truncated, and counted.
    MAX_RESOLVENTS: all except the first ``max_resolvents`` are dropped, and counted.

    Example:
        p(X, Y) <- q(X, Y), r(X, Y)
        q(a, b)
        From the goal p(a, b) with ``max_atoms`` 1, PRUNE before MAX_ATOMS leaves r(a, b), and the opposite order FALSE.
        In the same way, CLOSE before MAX_RESOLVENTS finds a proof beyond the limit, and after it loses that proof.

        p(X, Y) <- q(X, Z)
        p(X, Y) <- q(X, W)
        From the goal p(a, b), both rules give q(a, Z) up to renaming; DUPLICATES keeps that of the first.
    """

    PRUNE = "prune"
    REVISIT = "revisit"
    DUPLICATES = "duplicates"
    CLOSE = "close"
    MAX_ATOMS = "max_atoms"
    MAX_RESOLVENTS = "max_resolvents"


_STAGES: Final = {
    Filter.DUPLICATES: "remove_duplicates",
    Filter.MAX_ATOMS: "limit_atoms",
    Filter.MAX_RESOLVENTS: "limit_resolvents",
}
"""The stages whose names differ from those of their filters."""


class LongResolvents(StrEnum):
    """The treatment of resolvents of more than ``max_atoms`` atoms. Both count in ``dropped_atoms``.

    REJECT: they are dropped.
    TRUNCATE: they lose their last atoms. This is unsound: a proof may prove less than the query.

    Example:
        p(X, Y) <- q(X, Y), r(X, Y)
        From the goal p(a, b) with ``max_atoms`` 1, REJECT gives FALSE and TRUNCATE q(a, b).
    """

    REJECT = "reject"
    TRUNCATE = "truncate"


class Order(StrEnum):
    """The order of the resolvents of rules and of facts.

    Example:
        p(X, Y) <- q(X, Y)
        p(a, b)
        From the goal "p(a, X), r(X, X)", RULES_FIRST gives "q(a, X), r(X, X)" and then "r(b, b)"; FACTS_FIRST the
        opposite.
    """

    RULES_FIRST = "rules_first"
    FACTS_FIRST = "facts_first"


class Exclusion(StrEnum):
    """The rule for queries that may not serve as a fact in their own derivation.

    A query with variables excludes nothing.

    ALWAYS: every query.
    POSITIVES_ONLY: a test triple, but not a corruption of one.
    NEVER: no query. This is the same as ``exclude_query`` off in the limits, which excludes nothing in any dialect.

    Example:
        p(a, b)
        q(a, b)
        The query p(a, b) fails with ALWAYS and is proved with NEVER. With POSITIVES_ONLY it fails as a test triple and is
        proved as the corruption of another one, p(a, c).
    """

    ALWAYS = "always"
    POSITIVES_ONLY = "positives_only"
    NEVER = "never"


class Stopping(StrEnum):
    """The rule for offering, after the other resolvents, an action that ends the derivation as FAILED.

    NEVER: it is not offered, and a step without resolvents is FALSE.
    WHERE_NO_TERMINAL: it is offered unless TRUE or FALSE is among the resolvents, so also if the filters after `close`
        leave nothing. Some engines call the action Endf.

    Example:
        p(X, Y) <- q(X, Y)
        From the goal p(a, b), NEVER offers q(a, b), and WHERE_NO_TERMINAL q(a, b) and stopping. From q(a, b), both offer FALSE.
    """

    NEVER = "never"
    WHERE_NO_TERMINAL = "where_no_terminal"


class Unproved(StrEnum):
    """The ranking score of a candidate that is not proved.

    SUBTRACT_100: its log-probability minus 100 nats.
    LOG_PROBABILITY: its log-probability, as if it were proved.

    Example:
        p(X, Y) <- q(X, Y)
        q(a, b)
        p(a, c) fails with log-probability 0: it scores -100 with SUBTRACT_100, and otherwise 0, like the proved p(a, b).
    """

    SUBTRACT_100 = "subtract_100"
    LOG_PROBABILITY = "log_probability"


class Ties(StrEnum):
    """The rank of a test triple among corruptions of equal score.

    OPTIMISTIC: before all of them. PESSIMISTIC: after all of them. REALISTIC: the mean of both.
    RANDOM: a place from the first of these to the last, drawn by the engine.

    Example:
        p(a, b)
        p(a, c)
        If p(a, b) scores like two corruptions and no other is above, its rank is 1, 3 or 2; with RANDOM it is any of these.
    """

    OPTIMISTIC = "optimistic"
    REALISTIC = "realistic"
    PESSIMISTIC = "pessimistic"
    RANDOM = "random"


class Merge(StrEnum):
    """The treatment of kept children that are the same goal. Only `beam` and `all` merge.

    NONE: each of them is followed. MAX: the one with the best place is followed, with the highest of their
        log-probabilities. SUM: it is followed with the logarithm of the sum of their probabilities.

    Example:
        p(X, Y) <- q(X, Y)
        p(X, Y) <- r(X, Y)
        q(X, Y) <- s(X, Y)
        r(X, Y) <- s(X, Y)
        From p(a, b), a search that keeps everything reaches s(a, b) twice, each time with probability 1/2. NONE follows
        it twice with 1/2, MAX once with 1/2, and SUM once with 1.
    """

    NONE = "none"
    MAX = "max"
    SUM = "sum"


class Aggregate(StrEnum):
    """The log-probability of a candidate with several proofs.

    MAX: the highest of the proofs. SUM: the logarithm of the sum of their probabilities. NOISY_OR: the logarithm of the
        probability that one of independent proofs holds.

    Example:
        p(X, Y) <- q(X, Y)
        p(X, Y) <- r(X, Y)
        q(X, Y) <- s(X, X)
        r(X, Y) <- s(Y, Y)
        s(a, a)
        s(b, b)
        Two proofs of p(a, b) have probability 1/2 each. The candidate has 1/2 with MAX, 1 with SUM, 3/4 with NOISY_OR.
    """

    MAX = "max"
    SUM = "sum"
    NOISY_OR = "noisy_or"


_SEARCH: Final = re.compile(r"greedy|(beam|all)\(0*[1-9][0-9]*\)|sample\(0*[1-9][0-9]*, *[0-9]+\)")


@dataclass(frozen=True)
class Dialect:
    """The choices of one engine, each with the default of docs/semantics.md.

    unification:    the unification of the selected atom with a clause head
    order:          the order of rules and facts
    is_reversed:    whether the clauses of each kind are tried from the last to the first
    exclusion:      the exclusion of the query as a fact
    filters:        the filters, in the order in which they are applied; a filter that is not listed is not applied
    long_resolvents: the treatment of resolvents with too many atoms, by the filter MAX_ATOMS
    memory:         the memory of visited goals, for the filter REVISIT
    forgets_names:  whether visited goals are compared up to renaming. If not, a variable keeps its name in the
        derivation, and the variables of a clause are new, so a resolvent with a new variable was never visited. If two
        variables of the goal become equal, the name of the second argument is kept.
    exempts_terminal: whether REVISIT keeps a resolvent without atoms even if the goal without atoms was visited. A
        derivation ends with the first such goal, so the difference shows only if a memory outlasts a derivation.
    stopping:      the offer of stopping
    skips_unary:    whether a step is not counted if its only resolvent is a goal: ``depth`` does not change, and only
        that goal is offered, which counts as visited. At most ``max_depth`` steps in a row are not counted.
    unproved:       the ranking score of unproved candidates
    ties:           the rank among equal scores
    search:         the paths that are followed: `greedy`, `beam(k)`, `sample(n, seed)` or `all(limit)`
    merge:          the treatment of kept children that are the same goal
    aggregate:      the log-probability of a candidate with several proofs

    Raises ValueError if a filter occurs twice, for a search of another form or size, for `merge` with a search that
    merges nothing, and for `aggregate` with the greedy search.

    Example of `is_reversed`:
        p(a, b)
        p(a, c)
        From the goal "p(a, X), q(X, X)", the resolvents are q(b, b), q(c, c); with ``is_reversed``, q(c, c), q(b, b).

    Example of `forgets_names`:
        p(X, Y) <- p(X, Z)
        From the goal p(a, X), the resolvent p(a, Z) is dropped as visited; unless ``forgets_names``, it is kept.

    Example of `exempts_terminal`:
        p(a, b)
        From the goal p(a, X), the proof is dropped if the goal without atoms was visited; with ``exempts_terminal``, it is kept.

    Example of `skips_unary`:
        p(X, Y) <- q(X, Y)
        q(X, Y) <- r(X, Y)
        From p(a, b), the goal r(a, b) has depth 2; with ``skips_unary``, 0.
    """

    unification: Unification = Unification.COMPLETE
    order: Order = Order.RULES_FIRST
    is_reversed: bool = False
    exclusion: Exclusion = Exclusion.ALWAYS
    filters: tuple[Filter, ...] = (
        Filter.PRUNE,
        Filter.REVISIT,
        Filter.CLOSE,
        Filter.MAX_ATOMS,
        Filter.MAX_RESOLVENTS,
    )
    long_resolvents: LongResolvents = LongResolvents.REJECT
    memory: Memory = Memory.SEQUENCE
    forgets_names: bool = True
    exempts_terminal: bool = False
    stopping: Stopping = Stopping.NEVER
    skips_unary: bool = False
    unproved: Unproved = Unproved.SUBTRACT_100
    ties: Ties = Ties.REALISTIC
    search: str = "greedy"
    merge: Merge = Merge.NONE
    aggregate: Aggregate = Aggregate.MAX

    def __post_init__(self) -> None:
        """Reject a filter that occurs twice, and a search with switches that do not fit."""
        repeated = [name for name, num in Counter(self.filters).items() if num > 1]
        if repeated:
            raise ValueError(f"a filter is applied once, found {', '.join(repeated)} more often")
        if not _SEARCH.fullmatch(self.search):
            raise ValueError(f"expected greedy, beam(k), sample(n, seed) or all(limit) above 0, found {self.search}")
        if self.search.startswith(("greedy", "sample")) and self.merge is not Merge.NONE:
            raise ValueError(f"only beam and all merge goals, found merge {self.merge} with {self.search}")
        if self.search == "greedy" and self.aggregate is not Aggregate.MAX:
            raise ValueError(f"the greedy search has one derivation, found aggregate {self.aggregate}")

    @cached_property
    def search_numbers(self) -> tuple[str, int, int]:
        """The name of the search; its number of paths, or of children for `all`; and the seed of samples. Both default to 1."""
        name, *numbers = re.findall("[a-z0-9]+", self.search)
        size, seed = map(int, [*numbers, 1, 1][:2])
        return name, size, seed

    @cached_property
    def filter_stages(self) -> tuple[str, ...]:
        """The names of the stages after `resolve`, in order. Renaming precedes the comparison with visited goals."""
        names = [_STAGES.get(each, str(each)) for each in self.filters]
        names.insert(names.index("revisit") if "revisit" in names else len(names), "rename")
        return tuple(names)


OURS: Final = Dialect()
"""The dialect of docs/semantics.md."""
