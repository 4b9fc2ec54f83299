"""Laws and their violations, and the check of laws on many problems."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from zlib import crc32

from kgverify.engines.load_engine import pass_on
from kgverify.errors import InternalError, UserError, count_of
from kgverify.escaping import make_visible
from kgverify.laws.case import Case, Finding
from kgverify.program.limits import OURS, RANKED, UNSEEN, Dialect
from kgverify.runs.delta_debugging import halve
from kgverify.runs.engine_makers import MakePipeline
from kgverify.testing.checking.failure import LAW, Failure, Signature
from kgverify.testing.problems.merge import group_problems, merge
from kgverify.testing.problems.problem import Problem

NUM_SAMPLES: Final = 4
"""The number of samples of candidates among which quick laws are spread: one would overlook what depends on the candidate."""


@dataclass(frozen=True, eq=False)
class Presumption:
    """A condition on the dialect.

    reason: the reason why a law with this presumption is not checked in a dialect that violates it
    values: the allowed values of each switch
    fits:   a function that tests the rest of the condition on a dialect
    """

    reason: str
    values: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    fits: Callable[[Dialect], bool] = lambda dialect: True

    def holds_in(self, dialect: Dialect) -> bool:
        """Return whether a dialect fulfils the condition."""
        return self.fits(dialect) and all(getattr(dialect, name) in values for name, values in self.values.items())


Presumptions: TypeAlias = tuple[Presumption, ...]

UNKNOWN: Final = "the semantics of the reference are unknown"
"""The reason why most laws are not checked if the dialect is unknown."""


def _is_last(dialect: Dialect, name: str, *others: str) -> bool:
    """Return whether a dialect has a filter, and applies certain other filters only before it."""
    return name in dialect.filters and {*others}.isdisjoint(dialect.filters[dialect.filters.index(name) + 1 :])


COUNTS_EVERY_STEP: Final = Presumption("the depth does not count steps with one resolvent", {"skips_unary": (False,)})
NEVER_STOPS: Final = Presumption("stopping is offered beside resolvents", {"stopping": ("never",)})
FORGETS_NAMES: Final = Presumption("variables keep their names in a derivation", {"forgets_names": (True,)})
REJECTS: Final = Presumption(
    "long resolvents are truncated",
    {"long_resolvents": ("reject", "truncate")},
    lambda dialect: dialect.long_resolvents == "reject" or "max_atoms" not in dialect.filters,
)
KNOWS_EXCLUDED: Final = Presumption("only the query of a positive is excluded", {"exclusion": ("always", "never")})
OUR_CLAUSES: Final = Presumption(
    "clauses match or are ordered otherwise",
    {name: (getattr(OURS, name),) for name in ("unification", "order", "is_reversed")},
)
OUR_MEMORY: Final = Presumption("visited goals are not compared as sequences", {"memory": ("sequence",)})
PUSHES_DOWN: Final = Presumption(
    "candidates that are not proved are ranked like others", {"unproved": ("subtract_100",)}
)
DROPS_VISITED: Final = Presumption(
    "a visited goal may be left, or made after the comparison with visited goals",
    {"memory": ("sequence", "set")},
    lambda dialect: _is_last(
        dialect, "revisit", "prune", *(["max_atoms"] if dialect.long_resolvents != "reject" else [])
    ),
)
PRUNES: Final = Presumption("facts are not deleted from resolvents", fits=lambda dialect: "prune" in dialect.filters)
PRUNES_FIRST: Final = Presumption(
    "other filters are applied before facts are deleted", fits=lambda dialect: dialect.filters[:1] == ("prune",)
)
PROOF_ALONE: Final = Presumption(
    "other resolvents stand beside a proof", fits=lambda dialect: _is_last(dialect, "close", "prune")
)
PROOF_BEFORE_LIMITS: Final = Presumption(
    "max_resolvents may drop a proof",
    fits=lambda dialect: (
        "close" in dialect.filters
        and ("max_resolvents" not in dialect.filters or _is_last(dialect, "max_resolvents", "close"))
    ),
)
LIMITS_LAST: Final = Presumption(
    "the limits are not the last filters, max_atoms before max_resolvents, after close",
    fits=lambda dialect: dialect.filters[-3:] == ("close", "max_atoms", "max_resolvents"),
)
OUR_FILTERS: Final = Presumption(
    f"the filters are not {', '.join(OURS.filters)}", fits=lambda dialect: dialect.filters == OURS.filters
)

_KNOWN: Final = {"filters", *RANKED, *UNSEEN}.union(
    *(each.values for each in list(globals().values()) if isinstance(each, Presumption))
)
"""The switches that laws take into account.

A law whose presumptions hold is true for all values of these switches; every other switch must have its default.
"""

MOST_VIOLATIONS = 10
"""The default number of violations of one law that are confirmed."""

Find: TypeAlias = Callable[[Case], Iterator[Finding]]


@dataclass(frozen=True)
class Law:
    """A statement that holds for every prover of a dialect that meets its presumptions.

    statement:  the law in words
    find:       yields the violations in a case
    runs_again: whether the law runs the engine again: on one candidate of each problem if a check is quick, and not if
                candidates are lost or duplicated
    presumes:   conditions on the dialect; None for a law that holds for provers of any semantics
    """

    name: str
    statement: str
    find: Find
    runs_again: bool = True
    presumes: Presumptions | None = ()

    def holds_in(self, dialect: Dialect | None) -> bool:
        """Return whether the law holds for provers of a dialect; None stands for unknown semantics."""
        return not self.explain_absence(dialect)

    def explain_absence(self, dialect: Dialect | None) -> str:
        """Return the reason why the law is not checked in a dialect; an empty text if it holds there."""
        if self.presumes is None:
            return ""
        if dialect is None:
            return UNKNOWN
        reasons = [each.reason for each in self.presumes if not each.holds_in(dialect)]
        unknown = [name for name in Dialect.__struct_fields__ if name not in _KNOWN]
        reasons += [f"no law knows another {name}" for name in unknown if getattr(dialect, name) != getattr(OURS, name)]
        return next(iter(reasons), "")

    def check(
        self, make_pipeline: MakePipeline, problems: Sequence[Problem], *, most: int = MOST_VIOLATIONS
    ) -> list["Violation"]:
        """Return the violations of this law by the pipeline under test."""
        return check_laws(make_pipeline, problems, [self], most=most)


def law(statement: str, **options: Any) -> Callable[[Find], Law]:
    """Return a decorator that turns a function into a law.

    For example, `_fact_order` finds the violations of `fact-order`.

    options: fields of the law
    """
    return lambda find: Law(find.__name__.strip("_").replace("_", "-"), statement, find, **options)


@dataclass(frozen=True, kw_only=True)
class Violation(Failure):
    """A problem on which an engine breaks a law: a failure whose signature names the law.

    candidate, goal: in names; empty if the violation is not about a candidate
    step:            -1 if the violation is not about a step
    expected, actual: the value that the law requires, and the value found
    """

    statement: str
    candidate: str = ""
    step: int = -1
    goal: str = ""
    expected: str
    actual: str

    @property
    def law(self) -> str:
        """The law's name."""
        return self.signature.situation

    @property
    def stage(self) -> str:
        """The stage that the law is about; empty for an exception."""
        return self.signature.stage

    @property
    def field(self) -> str:
        """The name of the value that differs."""
        return self.signature.field

    @property
    def lines(self) -> list[str]:
        """The statement, the candidate with its step, the goal and the two values as text."""
        step = f", step {self.step}" if self.step >= 0 else ""
        place = [("candidate", self.candidate and self.candidate + step), ("goal", self.goal)]
        values = [("field", self.field), ("expected", self.expected), ("actual", self.actual)]
        labelled = (*(each for each in place if each[1]), *values)
        return [f"   {self.statement}", *(f"   {label:<11} {value}" for label, value in labelled)]

    def __str__(self) -> str:
        """Return the law, the step that breaks it, the two values and the problem as text."""
        lines = [f"law broken: {self.law} ({self.stage or 'exception'})", *self.lines]
        if len(self.group) > 1:
            lines.append(f"   only in one run with {count_of(len(self.group) - 1, 'other problem')}")
        problem = (f"   {line}" for line in str(self.problem).splitlines())
        return "\n".join(map(make_visible, [*lines, "problem:", *problem]))


def check_laws(
    make_pipeline: MakePipeline,
    problems: Sequence[Problem],
    laws: Sequence[Law],
    *,
    most: int = MOST_VIOLATIONS,
    confirms: bool = True,
    is_quick: bool = False,
) -> list[Violation]:
    """Return the violations of the laws by the pipeline under test.

    The problems share as few runs as possible. A law is not checked on problems of a dialect where it does not hold.
    The first `most` violations of each law are returned. Unless `confirms` is off, each problem is also tried alone, so
    that the violation is as small as possible.

    is_quick: whether laws that run the engine again do so for one candidate of each problem
    """
    found: list[Violation] = []
    for indices in group_problems(problems):
        found += find_violations(make_pipeline, [problems[i] for i in indices], laws, indices, is_quick)
    confirmed: list[Violation] = []
    for law in laws:
        violations = sorted((each for each in found if each.law == law.name), key=lambda each: each.index)
        confirmed += [
            _confirm(law, each, make_pipeline) if confirms and len(each.group) > 1 else each
            for each in violations[:most]
        ]
    return confirmed


def find_violations(
    make_pipeline: MakePipeline,
    problems: Sequence[Problem],
    laws: Sequence[Law],
    indices: Sequence[int],
    is_quick: bool = False,
) -> Iterator[Violation]:
    """Yield at most one violation of each law for each of the problems, which must be able to share a run."""
    case = Case(merge(problems), make_pipeline)
    for law in laws:
        # A law that holds for provers of unknown semantics holds in every dialect.
        if not law.holds_in(case.limits.dialect):
            continue
        try:
            # Do not yield here: an exception that ends the caller's loop is not the engine's.
            is_whole = not (law.runs_again and is_quick) or bool(case.misplaced)
            some = case if is_whole else case.sample(crc32(law.name.encode()) % NUM_SAMPLES)
            found = _find(law, some)
        except InternalError:
            raise
        except BaseException as error:
            pass_on(error)
            middle = len(problems) // 2
            if middle:
                for part in (slice(0, middle), slice(middle, None)):
                    yield from find_violations(make_pipeline, problems[part], [law], indices[part], is_quick)
                continue
            text = f"{type(error).__name__}: {error.message if isinstance(error, UserError) else error}"
            yield _describe(law, Finding(-1, -1, None, "exception", "none", text), 0, indices, tuple(problems))
        else:
            for member, finding in found.items():
                yield _describe(law, finding, member, indices, tuple(problems), some)


def _find(law: Law, case: Case) -> dict[int, Finding]:
    """Return the first finding of a law in each problem that breaks it."""
    case.columns  # noqa: B018  what every law looks at; an engine's exception belongs to no law in particular
    found: dict[int, Finding] = {}
    if law.runs_again and case.misplaced:
        return found
    for finding in law.find(case):
        found.setdefault(case.problem_of(finding), finding)
    return found


def _describe(
    law: Law,
    finding: Finding,
    member: int,
    indices: Sequence[int],
    problems: tuple[Problem, ...],
    case: Case | None = None,
) -> Violation:
    """Return the violation that one of the problems shows. case: None if the finding is about no candidate."""
    candidate = goal = ""
    if case is not None and 0 <= finding.candidate < len(case.derivations):
        candidate = case.atom_name(case.columns.candidates.atom[finding.candidate])
        steps = case.derivations[finding.candidate]
        goal = case.names.goal(steps[finding.step].goal) if 0 <= finding.step < len(steps) else ""
    return Violation(
        statement=law.statement,
        index=indices[member],
        problem=problems[member],
        group=problems,
        signature=Signature(finding.stage or "", finding.field, LAW, law.name),
        message=f"expected {finding.expected}, found {finding.actual}",
        candidate=candidate,
        step=finding.step,
        goal=goal,
        expected=str(finding.expected),
        actual=str(finding.actual),
    )


def _confirm(law: Law, violation: Violation, make_pipeline: MakePipeline) -> Violation:
    """Return the violation of the problem alone, if it occurs there; else of the smallest group that halving finds."""

    def attempt(problems: Sequence[Problem]) -> Violation | None:
        return next(find_violations(make_pipeline, problems, [law], [violation.index] * len(problems)), None)

    alone = attempt([violation.problem])
    if alone is not None:
        return alone
    group = halve(violation.group, lambda half: attempt(half) is not None)
    return attempt(group) or violation if len(group) < len(violation.group) else violation
