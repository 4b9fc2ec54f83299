"""Shrink a failing problem to a minimal problem on which the engine fails in the same way.

Failing in the same way means that the first divergence has the same stage, field, class and situation (see
`Signature`), or that the exception has the same type. Its atom, its step and its values may change.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, starmap
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from kgverify.engines.protocol import Sizes
from kgverify.errors import UserError
from kgverify.graphs.vocabulary import NO_VOCABULARY
from kgverify.interrupts import OutOfTime, stop_after
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.limits import NUMBERS, OURS, SEARCHES, Dialect, Limits, Search
from kgverify.program.outcomes import Stage
from kgverify.program.program import NamedRule, render_named
from kgverify.ranking.draw import ALL
from kgverify.runs.delta_debugging import count_down, minimize
from kgverify.runs.run import Pipeline, Run
from kgverify.step.clauses import follow, is_named_variable, resolve
from kgverify.testing.checking.check import Checker, prepare_batches
from kgverify.testing.checking.failure import ENDS_RUN, REFUSED, Failure, Signature, fails_same_way
from kgverify.testing.checking.guard import EngineRefusal
from kgverify.testing.problems.merge import group_problems, merge
from kgverify.testing.problems.problem import (
    DEFAULT_SIZES,
    SHORTEST,
    VARIABLE_NAMES,
    Problem,
    list_names,
    list_predicates,
    list_variables,
    rename_variables,
    replace_symbols,
)

LARGEST_RUN: Final = 20_000
"""The largest number of facts, rules and unused symbols in one run; a single attempt may have more."""
MOST_WITH_IDS: Final = 12
"""The largest number of attempts that are also run alone if they agree in a common run, when ids matter."""
SMALL: Final = 6
"""The largest number of elements of a small problem."""
SHARE: Final = 0.9
"""The share of a budget that is spent on making a problem smaller. The rest is spent on making it easier to read."""
FEWEST_TOGETHER: Final = 3
"""The smallest number of attempts for which a common run pays off before any is run alone."""


T = TypeVar("T")


class OutOfBudget(Exception):
    """The limit on calls or seconds is reached."""


Progress = Callable[[str, Problem, int], None]
"""A callback after each pass, with its name, the problem so far and the calls so far."""


MAX_SECONDS: Final = 60.0
"""The default limit on the seconds of a shrink."""


def silent_progress(name: str, problem: Problem, calls: int) -> None:
    """Report nothing. Other processes receive budgets, so this is no lambda."""


class Budget(NamedTuple):
    """The limits on the runs of the engine under test and on the seconds of a shrink, and the callback after each pass."""

    max_calls: int = 2000
    seconds: float = MAX_SECONDS
    progress: Progress = silent_progress


DEFAULT_BUDGET: Final = Budget()


class Oracle:
    """Decides whether problems fail alone with a given signature, or with another form of it.

    A common run sifts many problems first.

    calls:    the runs of the engine under test so far; one run of many problems is one call
    share:    the share of the budget that may be used now
    smallest: the smallest failing problem so far, the first if several are equally small; None before any was found
    """

    def __init__(
        self,
        checker: Checker,
        signature: Signature,
        budget: Budget = DEFAULT_BUDGET,
        forms: Sequence[Signature] = (),
    ) -> None:
        self.calls = 0
        self.share = SHARE
        self.smallest: Problem | None = None
        self.signature = signature
        self.forms = (signature, *forms)
        self.budget = budget
        self._make = checker.make
        self._checker = replace(checker, make=self._counted)
        self._begin = time.perf_counter()
        self._judged: dict[Problem, Failure | None] = {}
        self._agreed: set[Problem] = set()
        self._declines_common = False

    @property
    def seconds(self) -> float:
        """The seconds since the oracle was made."""
        return time.perf_counter() - self._begin

    def judge(self, problem: Problem) -> Failure | None:
        """Return the failure of a problem that is run alone. OutOfBudget if the limit is reached."""
        if problem not in self._judged:
            with self._within_budget():
                self._judged[problem] = self.judge_alone(problem)
        return self._judged[problem]

    def judge_alone(self, problem: Problem) -> Failure | None:
        """Judge a problem without a memory or a budget."""
        return self._checker.judge(problem)

    def judge_together(self, problems: Sequence[Problem]) -> set[int]:
        """Return the indices of the problems that differ in a common run; all of them if an engine declines such a run."""
        (batch,) = prepare_batches(problems, self._checker.reference)
        try:
            return {each.number for each in self._checker.find_suspects(batch)}
        except EngineRefusal:
            self._declines_common = True
            return set(range(len(problems)))

    @property
    def refusals(self) -> list[str]:
        """The reasons why an engine declined problems, one for each problem."""
        every = self._judged.values()
        return [failure.message for failure in every if failure is not None and failure.signature.kind == REFUSED]

    @property
    def num_judged(self) -> int:
        """The number of problems that were run alone."""
        return len(self._judged)

    def has_refused(self, problem: Problem) -> bool:
        """Return whether a problem was judged, and an engine declined it."""
        failure = self._judged.get(problem)
        return failure is not None and failure.signature.kind == REFUSED

    def holds(self, problem: Problem) -> bool:
        """Return whether a problem, run alone, fails with the signature."""
        failure = self.judge(problem)
        is_held = failure is not None and any(fails_same_way(failure.signature, each) for each in self.forms)
        if is_held and (self.smallest is None or _extent(problem) < _extent(self.smallest)):
            self.smallest = problem
        return is_held

    def first(self, attempts: Sequence[Problem], control: Problem | None) -> Problem | None:
        """Return the first attempt that fails alone with the signature.

        control: a problem known to fail. Without it, attempts that agree in a common run count as agreeing alone
        """
        return next((attempts[i] for i in self.sift(attempts, control) if self.holds(attempts[i])), None)

    def drop_items(
        self, problem: Problem, items: Sequence[T], rebuild: Callable[[tuple[T, ...]], Problem | None]
    ) -> Problem:
        """Return a problem that fails with the signature, rebuilt from as few items as possible.

        rebuild: makes a problem of some items; None if that is impossible
        """

        def still_fails(kept: tuple[T, ...]) -> bool:
            return (built := rebuild(kept)) is not None and self.holds(built)

        every = tuple(items)
        kept = minimize(every, still_fails, _Sift(self, rebuild) if self.can_share else None)
        return problem if kept == every else rebuild(kept) or problem

    def sift(self, attempts: Sequence[Problem], control: Problem | None) -> Iterator[int]:
        """Yield the indices of the attempts that may fail: they differ in a common run, in which the control also differs.

        The runs are made one at a time, as the indices are consumed. If problems cannot be judged together, all are
        yielded except those known not to fail.
        """
        group: list[int] = []
        size = start = 0 if control is None else _weigh(control)
        for i, attempt in enumerate(attempts):
            if attempt in self._agreed or (attempt in self._judged and not self.holds(attempt)):
                continue
            weight = _weigh(attempt)
            if group and (size + weight > LARGEST_RUN or attempt.key != attempts[group[0]].key):
                yield from self._sift_group(attempts, group, control)
                group, size = [], start
            group.append(i)
            size += weight
        yield from self._sift_group(attempts, group, control) if group else ()

    @property
    def needs_batch(self) -> bool:
        """True if the failure occurs only in a batch, so that the sizes of the batch matter."""
        return self.signature.stage == Stage.RECYCLE

    @property
    def can_share(self) -> bool:
        """True if a failure can be recognized in a run with other problems.

        An exception or a hang ends the run for all problems, and a failure that occurs only in a batch depends on the
        others.
        """
        return self.signature.kind not in ENDS_RUN and not self.needs_batch

    def find_agreeing(self, attempts: Sequence[Problem], control: Problem) -> list[int]:
        """Return the indices of the attempts that agree in a common run, and so probably agree alone."""
        suspects = set(self.sift(attempts, control))
        return [i for i in range(len(attempts)) if i not in suspects or len(suspects) == len(attempts)]

    def _sift_group(self, attempts: Sequence[Problem], group: list[int], control: Problem | None) -> list[int]:
        problems = [attempts[i] for i in group]
        # The control runs between others, so that a fault in the last fact or rule of a run does not affect only the
        # control.
        middle = len(group) // 2
        if control is not None:
            problems.insert(middle, control)
        is_common = self.can_share and not self._declines_common and len(group_problems(problems)) == 1
        if not is_common or len(group) < FEWEST_TOGETHER:
            return group
        with self._within_budget():
            found = self.judge_together(problems)
        if control is None:
            return [i for member, i in enumerate(group) if member in found]
        if middle not in found:
            return group
        found = {at - (at > middle) for at in found if at != middle}
        suspects, others = (
            [i for member, i in enumerate(group) if (member in found) is which] for which in (True, False)
        )
        if control.vocabulary and control.size <= SMALL and len(group) <= MOST_WITH_IDS:
            # In a common run they have other ids, so agreement only makes a failure less likely.
            return suspects + others
        self._agreed.update(attempts[i] for i in others)
        return suspects

    @contextmanager
    def _within_budget(self) -> Iterator[None]:
        seconds = self.share * self.budget.seconds - self.seconds
        if self.calls >= int(self.share * self.budget.max_calls) or seconds <= 0:
            raise OutOfBudget
        try:
            with stop_after(seconds):
                yield
        except OutOfTime:
            raise OutOfBudget from None

    def _counted(self, run: Run, sizes: Sizes) -> Pipeline:
        self.calls += 1
        return self._make(run, sizes)


class _Sift(NamedTuple, Generic[T]):
    """A test of many rebuilt problems in one run."""

    oracle: Oracle
    rebuild: Callable[[tuple[T, ...]], Problem | None]

    def capacity(self, kept: tuple[T, ...]) -> int:
        """Return how many problems with about this number of items fit in one run, without the control."""
        control = self.rebuild(kept)
        return LARGEST_RUN // max(1, _weigh(control) if control else 1) - 1

    def find_suspects(self, attempts: Sequence[tuple[T, ...]], kept: tuple[T, ...]) -> Iterable[int]:
        """Yield the indices of the attempts that may fail with the signature."""
        built = {i: problem for i, left in enumerate(attempts) if (problem := self.rebuild(left)) is not None}
        indices = list(built)
        return (indices[k] for k in self.oracle.sift(list(built.values()), self.rebuild(kept)))


def _weigh(problem: Problem) -> int:
    """Return the share of a run's capacity that a problem takes."""
    return problem.size + len(problem.vocabulary)


def _extent(problem: Problem) -> tuple[int, int]:
    return problem.size, len(problem.queries) + len(problem.unranked)


CONSTANT_NAMES: Final = "abcdefghijklmno"
PREDICATE_NAMES: Final = "pqrstuvw"
MOST_IN_COMPANY: Final = 4
"""The largest number of queries for which single queries are replaced."""


def rename_plainly(problem: Problem) -> Problem:
    """Return the problem with constants a, b, c ..., predicates p, q, r ..., variables X, Y, Z ..."""
    renamed = replace_symbols(
        problem,
        dict(zip(problem.domain, list_names(CONSTANT_NAMES, "c"), strict=False)),
        dict(zip(list_predicates(problem.atoms()), list_names(PREDICATE_NAMES, "p"), strict=False)),
    )
    return replace(
        renamed,
        rules=tuple(NamedRule(head, tuple(body)) for head, *body in [rename_variables(r.atoms) for r in renamed.rules]),
        unranked=tuple(rename_variables([query])[0] for query in renamed.unranked),
    )


def resolve_named(goal: Sequence[NamedAtom], rule: NamedRule) -> list[NamedAtom]:
    """Return the body of a rule and the rest of a goal after a step, in names; nothing if the head does not match."""
    # Clauses that were read or renamed have no such variables.
    apart = rule.rename({each: Variable(f"{each.name}'") for each in list_variables(rule.atoms)})
    resolvent = resolve(goal, apart.clause_head, apart.body, is_variable=is_named_variable)
    return list(starmap(NamedAtom, resolvent or ()))


def ask_premise(problem: Problem, i: int) -> Iterator[Problem]:
    """Yield the problem without its i-th rule, whose queries are replaced by an atom of the rule's body."""
    queries = (*problem.queries, *problem.unranked)
    for atom in resolve_named(queries, problem.rules[i]) if len(queries) == 1 else ():
        goal = rename_variables([atom])[0]
        yield replace(problem.with_item("rules", i), queries=(), unranked=(goal,))


def assert_conclusion(problem: Problem, i: int, most: int) -> Iterator[Problem]:
    """Yield the problem with its i-th rule replaced by a fact that the rule may conclude."""
    rule = problem.rules[i]
    names = problem.domain[:most]
    predicate, first, second = rule.clause_head
    for a in [first] if isinstance(first, str) else names:
        for b in [second] if isinstance(second, str) else names:
            if first != second or a == b:
                yield replace(problem.with_item("rules", i), facts=(*problem.facts, NamedAtom(predicate, a, b)))


def unfold_rule(problem: Problem, i: int) -> Iterator[Problem]:
    """Yield the problem without its i-th rule, whose body replaces an atom of another rule that matches its head."""
    unfolded, num = problem.rules[i], len(problem.rules[i].body)
    for k, rule in enumerate(problem.rules):
        for j, atom in enumerate(rule.body if k != i else ()):
            others = rule.clause_head, *rule.body[:j], *rule.body[j + 1 :]
            if resolvent := resolve_named((atom, *others), unfolded):
                body, rest = resolvent[:num], resolvent[num:]
                head, *atoms = rename_variables([*rest[: j + 1], *body, *rest[j + 1 :]])
                yield problem.with_item("rules", k, NamedRule(head, tuple(atoms))).with_item("rules", i)


def merge_variables(problem: Problem, most: int) -> Iterator[Problem]:
    """Yield the problem with a variable of a rule or a query merged into another variable or into a constant."""
    names = problem.domain[:most]
    for i, rule in enumerate(problem.rules):
        variables = list_variables(rule.atoms)
        for k, variable in enumerate(variables):
            terms: list[Term] = [*variables[:k], *names]
            for term in terms:
                renamed = rule.rename({variable: term})
                yield problem.with_item("rules", i, NamedRule(renamed.clause_head, renamed.body))


def ask_fact(problem: Problem) -> Iterator[Problem]:
    """Yield the problem without its rules, with a query for one of its facts in which an argument may be a variable.

    The query is the only one, or replaces another query.
    """
    x = Variable(VARIABLE_NAMES[0])
    queries = [each for p, a, b in reversed(problem.facts) for each in (NamedAtom(p, x, b), NamedAtom(p, a, x))]
    for query in dict.fromkeys(queries):
        yield replace(problem, rules=(), queries=(), unranked=(query,), num_corruptions=0)
        # The query may replace one of several queries that fail only together.
        for i in range(len(problem.unranked)) if 1 < len(problem.unranked) <= MOST_IN_COMPANY else ():
            yield replace(problem.with_item("unranked", i, query), rules=())


Pass: TypeAlias = Callable[[Problem, Oracle], Problem]
"""A function that maps a failing problem to a problem of at most its size that fails in the same way, perhaps itself."""

MOST_FOR_PAIRS: Final = 16
"""The largest number of elements of a problem for which two things are changed at once; less if attempts run one by one."""
MOST_FOR_PAIRS_ALONE: Final = 10
MOST_MERGED: Final = 6
"""The largest number of constants that others are merged into, and from which conclusions are built."""


def lower_limits(problem: Problem, oracle: Oracle) -> Problem:
    """Lower each limit as far as possible; a limit that can become neither 1 nor one less is kept."""
    for name in ("max_depth", "max_resolvents", "max_atoms"):
        for is_end in (True, False):
            value = getattr(problem.limits, name)
            lower = (1, value - 1) if is_end else (2, value // 4, value // 2)
            attempts = [problem.with_number("limits", name, v) for v in dict.fromkeys(lower) if 1 <= v < value]
            found = oracle.first(attempts, problem)
            if found is None:
                break
            problem = found
    return problem


def list_searches(dialect: Dialect) -> Iterator[Dialect]:
    """Yield the dialect with a simpler search, the simplest first: one path, a default of another switch, a smaller number."""
    kind, size, seed = dialect.searching
    plain = {name: getattr(OURS, name) for name in SEARCHES}
    simpler = [plain, *({name: value} for name, value in plain.items() if name != "search")]
    numbers = [(num, seed) for num in (1, 2, 3, size // 2, size - 1) if 0 < num < size] + [(size, 0)]
    simpler += [{"search": str(Search(kind, *each))} for each in numbers]
    dialects = [msgspec.structs.replace(dialect, **each) for each in simpler] if kind != "greedy" else []
    yield from (each for each in dict.fromkeys(dialects) if each != dialect)


def simplify_search(problem: Problem, oracle: Oracle) -> Problem:
    """Simplify the search of the dialect as far as possible."""
    return _repeat(problem, oracle, lambda now: map(partial(_with_dialect, now), list_searches(now.limits.dialect)))


def _with_dialect(problem: Problem, dialect: Dialect) -> Problem:
    return replace(problem, limits=msgspec.structs.replace(problem.limits, dialect=dialect))


def drop_queries(problem: Problem, oracle: Oracle) -> Problem:
    """Reduce the queries to one with as few corruptions as possible, unranked if ranking does not matter."""
    if len(problem.queries) + len(problem.unranked) > 1:
        single = [replace(problem, queries=(), unranked=(query,)) for query in problem.unranked]
        single += [replace(problem, queries=(query,), unranked=()) for query in problem.queries]
        problem = oracle.first(single, problem) or problem
    if problem.queries:
        num = problem.num_corruptions
        fewer = [0, 1, 2, 4, 8] if num == ALL else [n for n in dict.fromkeys((0, 1, num // 2, num - 1)) if 0 <= n < num]
        problem = oracle.first([replace(problem, num_corruptions=n) for n in fewer], problem) or problem
        candidates = merge([problem]).list_candidates()
        unranked = [
            replace(problem, queries=(), unranked=(each,), num_corruptions=0) for each in dict.fromkeys(candidates)
        ]
        whole = replace(problem, queries=(), unranked=tuple(candidates), num_corruptions=0)
        problem = oracle.first([*unranked[:32], whole], problem) or problem
    if not problem.queries and problem.num_corruptions:
        problem = oracle.first([replace(problem, num_corruptions=0, seed=0)], problem) or problem
    return drop("queries", drop("unranked", problem, oracle), oracle)


def drop(field: str, problem: Problem, oracle: Oracle) -> Problem:
    """Remove as many items of a field as possible."""

    def rebuild(kept: tuple[tuple[int, Any], ...]) -> Problem | None:
        changed: dict[str, Any] = {field: tuple(item for _, item in kept)}
        left = {"queries": problem.queries, "unranked": problem.unranked} | changed
        return replace(problem, **changed) if left["queries"] or left["unranked"] else None

    return oracle.drop_items(problem, tuple(enumerate(getattr(problem, field))), rebuild)


def skip_rules(problem: Problem, oracle: Oracle) -> Problem:
    """Replace a rule by the query that it leads to, or by a fact that it concludes."""

    def attempts(now: Problem) -> Iterator[Problem]:
        if now.rules:
            yield from ask_fact(now)
        for i in range(len(now.rules)):
            yield from ask_premise(now, i)
            yield from unfold_rule(now, i)
        if len(now.rules) <= MOST_MERGED:
            for i in range(len(now.rules)):
                yield from assert_conclusion(now, i, MOST_MERGED)

    return _repeat(problem, oracle, attempts)


def merge_symbols(problem: Problem, oracle: Oracle) -> Problem:
    """Merge predicates and constants as far as possible."""
    problem = _merge(
        problem, oracle, lambda now: list_predicates(now.atoms()), lambda now, into: replace_symbols(now, {}, into)
    )
    return _merge(problem, oracle, lambda now: now.domain, merge_constants)


def merge_constants(problem: Problem, into: Mapping[str, str]) -> Problem:
    """Return the problem with constants merged into others; `into` may be a chain."""
    return replace_symbols(problem, {name: follow(name, into) for name in into}, {})


def _merge(
    problem: Problem,
    oracle: Oracle,
    list_symbols: Callable[[Problem], Sequence[str]],
    merge_into: Callable[[Problem, Mapping[str, str]], Problem],
) -> Problem:
    while True:
        names = list_symbols(problem)
        most = 1 if len(names) > 4 * MOST_MERGED else MOST_MERGED
        pairs = [(late, early) for i, late in enumerate(names) for early in names[: min(i, most)]]
        pairs.reverse()
        indices = list(oracle.sift([merge_into(problem, dict([pair])) for pair in pairs], problem))
        # The last pair of each symbol names the first symbol that it may become.
        into = list(dict(pairs[i] for i in indices).items())
        attempts = [merge_into(problem, dict(into[:n])) for n in count_down(len(into))]
        attempts += [merge_into(problem, dict([pairs[i]])) for i in indices]
        found = oracle.first(list(dict.fromkeys(attempts)), problem)
        if found is None:
            return problem
        problem = found


def merge_and_drop(problem: Problem, oracle: Oracle) -> Problem:
    """Merge symbols and drop an element at the same time, if neither is possible alone."""

    def attempts(now: Problem) -> Iterator[Problem]:
        pairs = [(late, early) for i, late in enumerate(now.domain) for early in now.domain[:i]]
        for merged in (*merge_variables(now, 2), *(merge_constants(now, dict([pair])) for pair in pairs)):
            yield from (each.problem for each in _without_one(merged))

    fits = 1 < problem.size <= (MOST_FOR_PAIRS if oracle.can_share else MOST_FOR_PAIRS_ALONE)
    return _repeat(problem, oracle, attempts) if fits else problem


def simplify_policy(problem: Problem, oracle: Oracle) -> Problem:
    """Replace the policy by one without weights or, if that fails, by a small one with the first seed."""
    policy = problem.policy
    if policy != SHORTEST:
        # Not fewer hidden units: a layer norm of only two units enlarges rounding errors.
        small = policy._replace(embedding=2, hidden=2, blocks=0)
        attempts = [SHORTEST, small._replace(seed=0), small, policy._replace(seed=0)]
        different = [replace(problem, policy=each) for each in attempts if each != policy]
        problem = oracle.first(different, problem) or problem
    return problem


def simplify_vocabulary(problem: Problem, oracle: Oracle) -> Problem:
    """Remove as many unused symbols as possible; first their names, if the engine accepts others."""
    if not problem.vocabulary:
        return problem
    hidden = problem.vocabulary.open(list_predicates(problem.atoms()), problem.domain)
    attempts = [replace(problem, vocabulary=each) for each in (NO_VOCABULARY, hidden) if each != problem.vocabulary]
    problem = oracle.first(attempts, problem) or problem
    if not problem.vocabulary.is_closed:
        for kind, at, num in list(problem.vocabulary.list_unused()):
            lowered = bisect_left(range(num), True, key=lambda n: oracle.holds(_with_unused(problem, kind, at, n)))
            problem = _with_unused(problem, kind, at, lowered)
    return problem


def drop_vocabulary(problem: Problem, oracle: Oracle) -> Problem:
    """Remove all unused symbols, if the failure remains."""
    plain = replace(problem, vocabulary=NO_VOCABULARY)
    return plain if problem.vocabulary and oracle.holds(plain) else problem


def _with_unused(problem: Problem, kind: str, at: int, num: int) -> Problem:
    return replace(problem, vocabulary=problem.vocabulary.with_unused(kind, at, num))


def reduce_slots(problem: Problem, oracle: Oracle) -> Problem:
    """Reduce the slots as far as possible if they matter, and use the default windows, which make attempts faster."""
    if not oracle.needs_batch:
        return problem
    plain = DEFAULT_SIZES._replace(slots=problem.sizes.slots, pool=problem.sizes.pool)
    if problem.sizes != plain:
        problem = oracle.first([replace(problem, sizes=plain)], problem) or problem

    def fewer(value: int) -> tuple[int, ...]:
        return (1, 2, value // 2, value - 1) if value > 1 else ()

    return _lower(problem, oracle, "sizes", "slots", fewer)


PASSES: Final[dict[str, Pass]] = {
    "simplify_search": simplify_search,
    "lower_limits": lower_limits,
    "reduce_slots": reduce_slots,
    "drop_queries": drop_queries,
    "drop_rules": partial(drop, "rules"),
    "drop_facts": partial(drop, "facts"),
    "drop_body_atoms": lambda problem, oracle: (
        _repeat(problem, oracle, lambda now: (each.problem for each in _without_one(now))) if problem.rules else problem
    ),
    "skip_rules": skip_rules,
    "merge_symbols": merge_symbols,
    # The next pass makes many attempts, and few of them fit in one run if they have many symbols.
    "simplify_vocabulary": simplify_vocabulary,
    "merge_and_drop": merge_and_drop,
    "drop_constants": partial(drop, "constants"),
    "simplify_policy": simplify_policy,
}
"""Passes that are repeated until no pass finds anything."""

LAST_PASSES: Final[dict[str, Pass]] = {
    "drop_vocabulary": drop_vocabulary,
    "simplify_sizes": lambda problem, oracle: _restore(problem, oracle, "sizes", DEFAULT_SIZES, Sizes._fields),
    "restore_limits": lambda problem, oracle: _restore(
        problem, oracle, "limits", Limits(dialect=problem.limits.dialect), NUMBERS
    ),
    "simplify_names": lambda problem, oracle: (
        problem if problem.vocabulary.is_closed else oracle.first([rename_plainly(problem)], problem) or problem
    ),
}
"""Passes that make a problem easier to read, but not smaller. The last of a budget is for them."""


def _restore(problem: Problem, oracle: Oracle, part: str, default: Limits | Sizes, names: Sequence[str]) -> Problem:
    """Set the numbers of a part to their defaults, all at once if possible, else one after the other."""
    if getattr(problem, part) == default:
        return problem
    whole: dict[str, Any] = {part: default}
    problem = oracle.first([replace(problem, **whole)], problem) or problem
    for name in names:
        value = getattr(default, name)
        if getattr(getattr(problem, part), name) != value:
            problem = oracle.first([problem.with_number(part, name, value)], problem) or problem
    return problem


def _lower(problem: Problem, oracle: Oracle, part: str, name: str, lower: Callable[[int], tuple[int, ...]]) -> Problem:
    """Lower a number of a part as far as possible; `lower` gives the numbers to try."""

    def attempts(now: Problem) -> Iterator[Problem]:
        value = getattr(getattr(now, part), name)
        yield from (now.with_number(part, name, each) for each in dict.fromkeys(lower(value)) if 0 <= each < value)

    return _repeat(problem, oracle, attempts)


def _repeat(problem: Problem, oracle: Oracle, attempts: Callable[[Problem], Iterator[Problem]]) -> Problem:
    while True:
        found = oracle.first(list(attempts(problem)), problem)
        if found is None:
            return problem
        problem = found


MOST_TRIED: Final = 40
"""The largest number of neighbours that are run alone before the search ends."""
MANY_FACTS: Final = 8
"""The nearest neighbours of a problem with more facts lack one fact; those of a smaller problem have another query."""


class Neighbour(NamedTuple):
    """A problem on which both sides agree, and its difference from the failing problem."""

    problem: Problem
    change: str


def find_neighbour(problem: Problem, oracle: Oracle) -> Neighbour | None:
    """Return the nearest problem, one change away, on which both sides agree; None if none was found."""
    neighbours = list(_neighbours(problem))
    indices = oracle.find_agreeing([each.problem for each in neighbours], problem)
    for i in indices[:MOST_TRIED]:
        if oracle.judge(neighbours[i].problem) is None:
            return neighbours[i]
    return None


def _neighbours(problem: Problem) -> Iterator[Neighbour]:
    yield from _other_numbers(problem)
    if len(problem.unranked) + len(problem.queries) > 1:
        yield from _without(problem, "unranked", "query")
    if len(problem.facts) > MANY_FACTS:
        yield from _without(problem, "facts", "fact")
    names, fresh = list(problem.domain), _fresh(problem)
    terms: list[Term] = [*names[:4], fresh]
    yield from _other_items(problem, "unranked", "query", 4, [*terms, Variable("X"), Variable("Y")])
    yield from _other_items(problem, "queries", "query", 4, terms)
    yield from _without(problem, "facts", "fact")
    yield from _without_body_atom(problem)
    for i, rule in enumerate(problem.rules):
        for j, atom in enumerate(rule.atoms):
            for other in _with_other_term(atom, [*list_variables(rule.atoms), Variable("V"), *names[:4]]):
                changed = rule.with_atoms([*rule.atoms[:j], other, *rule.atoms[j + 1 :]])
                text = f"{_instead('the body atom' if j else 'the head', other, atom)} of the rule {rule}"
                yield Neighbour(problem.with_item("rules", i, changed), text)
    yield from _other_items(problem, "facts", "fact", 2 * MANY_FACTS, terms)
    for predicate, a, b in product(list_predicates(problem.atoms()), *[[*names[:3], fresh]] * 2):
        if (fact := NamedAtom(predicate, a, b)) not in problem.facts:
            more = replace(problem, facts=(*problem.facts, fact))
            yield Neighbour(more, f"with the fact {render_named(fact)} as well")
    yield from _without(problem, "rules", "rule")
    for atom in problem.unranked[:1]:
        # A query for an added fact, since nothing is proved without facts.
        if isinstance(atom.first, str):
            query, fact = atom._replace(second=Variable("X")), atom._replace(second=fresh)
            text = f"with the fact {render_named(fact)}, and {_instead('the query', query, atom)}"
            yield Neighbour(replace(problem.with_item("unranked", 0, query), facts=(*problem.facts, fact)), text)
    if problem.policy != SHORTEST:
        yield Neighbour(replace(problem, policy=SHORTEST), "the policy is shortest")


_NUMBERS: Final[tuple[tuple[str, Limits | Sizes, Sequence[str], str], ...]] = (
    ("limits", Limits(), NUMBERS, "{} is"),
    ("sizes", DEFAULT_SIZES, Sizes._fields, "{}:"),
)
"""The parts of a problem that have numbers, with their defaults, their names, and a text that names a number."""
_TEXTS: Final = {
    "exclude_query": "the query may not serve as a fact in its own derivation",
}


def _other_numbers(problem: Problem) -> Iterator[Neighbour]:
    """Yield the problem with each number that is not the default replaced by one less, by one more, and by the default."""
    for part, default, names, title in _NUMBERS:
        for name in names:
            value, usual = getattr(getattr(problem, part), name), getattr(default, name)
            near = value + 1, value - 1
            shown = name if part == "limits" else name.replace("_", " ")
            text = _TEXTS.get(name, title.format(shown) + " {} instead of {}")
            for other in [usual] if isinstance(value, bool) else dict.fromkeys((*near, usual)):
                if value != usual and other >= min(usual, 1):
                    yield Neighbour(problem.with_number(part, name, other), text.format(other, value))
    for simpler in reversed([*list_searches(problem.limits.dialect)]):
        yield Neighbour(
            _with_dialect(problem, simpler), f"the dialect is {simpler} instead of {problem.limits.dialect}"
        )
    for kind, at, num in problem.vocabulary.list_unused():
        for other in dict.fromkeys((num - 1, num + 1, 0)):
            yield Neighbour(_with_unused(problem, kind, at, other), f"unused {kind}: {other} instead of {num}")


def _without_one(problem: Problem) -> Iterator[Neighbour]:
    """Yield the problem without one of its facts, rules and body atoms, each in turn."""
    yield from _without(problem, "facts", "fact")
    yield from _without(problem, "rules", "rule")
    yield from _without_body_atom(problem)


def _without_body_atom(problem: Problem) -> Iterator[Neighbour]:
    for i, rule in enumerate(problem.rules):
        for j, atom in enumerate(rule.body if len(rule.body) > 1 else ()):
            short = replace(rule, body=rule.body[:j] + rule.body[j + 1 :])
            yield Neighbour(problem.with_item("rules", i, short), f"without {render_named(atom)} in the rule {rule}")


def _without(problem: Problem, field: str, noun: str) -> Iterator[Neighbour]:
    """Yield the problem without one item of a field, each in turn; facts from last to first."""
    for i, item in list(enumerate(getattr(problem, field)))[:: -1 if field == "facts" else 1]:
        text = str(item) if isinstance(item, NamedRule) else render_named(item)
        yield Neighbour(problem.with_item(field, i), f"without the {noun} {text}")


def _other_items(problem: Problem, field: str, noun: str, most: int, terms: list[Term]) -> Iterator[Neighbour]:
    items: tuple[NamedAtom, ...] = getattr(problem, field)
    for i, atom in enumerate(items[:most]):
        for other in _with_other_term(atom, terms):
            if field != "facts" or other not in items:
                yield Neighbour(problem.with_item(field, i, other), _instead(f"the {noun}", other, atom))


def _with_other_term(atom: NamedAtom, terms: list[Term]) -> Iterator[NamedAtom]:
    for term in dict.fromkeys(terms):
        if term != atom.first:
            yield atom._replace(first=term)
    for term in dict.fromkeys(terms):
        if term != atom.second:
            yield atom._replace(second=term)


def _instead(what: str, other: NamedAtom, atom: NamedAtom) -> str:
    return f"{what} {render_named(other)} instead of {render_named(atom)}"


def _fresh(problem: Problem) -> str:
    names = ("d", "e", "f", *(f"c{i}" for i in range(len(problem.domain) + 1)))
    if problem.vocabulary.is_closed:
        names = (*problem.vocabulary.symbols.constants, *problem.domain[-1:])
    return next((name for name in names if name not in problem.domain), names[-1])


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The result of a shrink.

    failure:     the failure of the minimal problem, which fails alone
    neighbour:   the minimal problem with one change, on which both sides agree; None if none was found
    calls:       runs of the engine under test; one run of many problems is one call
    seconds:     the duration of the shrink
    is_finished: whether it ended before the limit on calls or seconds
    num_judged:  the number of problems that were run alone
    refusals:    the reasons why an engine declined problems, one for each problem
    needs_vocabulary: whether the problem, when it was minimal, was tried without its vocabulary, and did not fail
    """

    failure: Failure
    neighbour: Neighbour | None
    calls: int
    seconds: float
    is_finished: bool
    num_judged: int = 0
    refusals: tuple[str, ...] = ()
    needs_vocabulary: bool = False

    @property
    def problem(self) -> Problem:
        """The minimal problem."""
        return self.failure.problem

    @property
    def change(self) -> str:
        """The change after which both sides agree; empty if none is known."""
        return self.neighbour.change if self.neighbour is not None else ""


def shrink(failure: Failure, checker: Checker, budget: Budget = DEFAULT_BUDGET) -> Shrunk:
    """Return a minimal problem with the signature of a failure that the checker found. Deterministic, unless the seconds run out.

    If calls or seconds run out, the smallest problem found so far is the result.
    """
    return shrink_with(Oracle(checker, failure.signature, budget), failure)


def shrink_with(oracle: Oracle, failure: Failure) -> Shrunk:
    """Shrink like `shrink`, with the rest of an oracle's budget."""
    found, neighbour, is_finished, needs_vocabulary = failure, None, False, False
    try:
        for joined in [failure.problem] if failure.is_alone else join_problems(failure.group):
            if oracle.holds(joined):
                found = oracle.judge(joined) or found
                break
        else:
            raise UserError(
                f"does not fail again with the signature {failure.signature}",
                where="shrink",
                fix="give a failure that the same checker found",
            )
        for name, problem in _run_passes(found.problem, oracle):
            found = oracle.judge(problem) or found
            oracle.budget.progress(name, problem, oracle.calls)
        is_finished = True
    except OutOfBudget:
        # The limit was reached in the middle of a pass.
        if oracle.smallest is not None and oracle.smallest.size < found.problem.size:
            found = oracle.judge(oracle.smallest) or found
    oracle.share = 1.0
    try:
        for name, each in LAST_PASSES.items():
            problem = each(found.problem, oracle)
            found = oracle.judge(problem) or found
            needs_vocabulary = bool(problem.vocabulary)
            oracle.budget.progress(name, problem, oracle.calls)
        neighbour = find_neighbour(found.problem, oracle)
    except OutOfBudget:
        is_finished = False
    return Shrunk(
        failure=replace(found, index=failure.index),
        neighbour=neighbour,
        calls=oracle.calls,
        seconds=oracle.seconds,
        is_finished=is_finished,
        num_judged=oracle.num_judged,
        refusals=tuple(oracle.refusals),
        needs_vocabulary=needs_vocabulary,
    )


def join_problems(group: Sequence[Problem]) -> Iterator[Problem]:
    """Yield single problems that replace the several problems of a run: one with unranked candidates, and one with queries."""
    merged = merge(group)
    facts, rules, limits = tuple(merged.graph.train), merged.graph.rules, merged.run.limits
    common = Problem(
        facts=facts,
        rules=rules,
        unranked=tuple(merged.list_candidates()),
        limits=limits,
        policy=group[0].policy,
        num_corruptions=0,
        sizes=merged.sizes,
    )
    yield common
    ranked = tuple(query for query, is_ranked in zip(merged.graph.test, merged.is_ranked, strict=True) if is_ranked)
    if ranked:
        yield replace(common, queries=ranked, unranked=(), num_corruptions=group[0].num_corruptions)


def _run_passes(problem: Problem, oracle: Oracle) -> Iterator[tuple[str, Problem]]:
    """Yield the problem after each pass that changed it."""
    # A pass is not repeated on a problem that it did not change.
    idle: dict[str, Problem] = {}
    while any(idle.get(name) != problem for name in PASSES):
        for name in PASSES:
            if idle.get(name) == problem:
                continue
            smaller = PASSES[name](problem, oracle)
            if smaller == problem:
                idle[name] = problem
            else:
                problem = smaller
                yield name, problem
