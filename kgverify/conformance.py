"""The conformance suite for engines: laws and equivalence over a bounded set of problems, with a readable report."""

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, Final

from kgverify.arguments import checked
from kgverify.comparison.exercise.exercise import (
    MINIMUM,
    NOT_EXERCISED,
    Exercise,
    Minimum,
    explain_missing,
    parse_minimum,
)
from kgverify.comparison.result import Divergence, Verdict
from kgverify.engines.load_engine import pass_on, refuse_exit
from kgverify.engines.policy import SHORTEST
from kgverify.engines.table import REFERENCE
from kgverify.errors import UserError, count_of, cut_middle
from kgverify.escaping import ShownAsText, make_visible
from kgverify.files.writing import make_folders
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.interrupts import OutOfTime, stop_after
from kgverify.laws.catalogue import LAWS
from kgverify.laws.law import Law, Violation, check_laws
from kgverify.laws.replay import make_law_reproducer, shrink_violation
from kgverify.program.limits import OURS, Dialect
from kgverify.report.wording import describe_exercise
from kgverify.runs.engine_makers import (
    PLAIN,
    AnyEngine,
    EngineSpec,
    MakePipeline,
    find_dialect,
    find_maker,
    follows_semantics,
    name_engine,
    name_with_place,
)
from kgverify.runs.job import Source, choose_reference
from kgverify.testing.checking.check import Checker, Suspect, count_agreeing, prepare_batch
from kgverify.testing.checking.failure import (
    HOW_TO_SUPPORT,
    REFUSED,
    UNDECIDED,
    Failure,
    describe_refusals,
    label_lines,
)
from kgverify.testing.checking.guard import (
    EngineRefusal,
    check_made,
    find_refused,
    make_once,
    skip_refused,
)
from kgverify.testing.checking.timed_work import SHARE, Group, work_in_time
from kgverify.testing.problems.decode import draw_problems
from kgverify.testing.problems.fit import find_supports, fit_problems
from kgverify.testing.problems.merge import group_problems
from kgverify.testing.problems.neighbourhood import cut_problems
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.text_format import make_reproducer, saving_bugs, write_reproducer
from kgverify.testing.shrinking.shrink import Budget, shrink
from kgverify.trace.model.header import EngineInfo

EXAMPLES: Final = 300
"""The default number of problems of a check."""
SECONDS: Final = 60.0
"""The default time of a check in seconds."""
COMPARING: Final = 0.5
"""The share of the time until which problems are compared, if laws are checked as well."""
JUDGING: Final = 0.8
"""The share of the time until which laws are checked. The rest is for confirming and shrinking."""
MOST_CUT: Final = 1_000
"""The largest number of problems that are made from the queries of a graph."""
FIRST_PART: Final = 16
"""The number of problems in the first round; the next has twice as many."""
LARGEST_PART: Final = 512
SHRINK_CALLS: Final = 600
SHRINK_SECONDS: Final = 15.0
MOST_LINES: Final = 24
"""The maximum number of lines of a problem that a report shows."""


class NotConforming(AssertionError):
    """An error for an engine that differs from its reference or breaks a law.

    report: the result of a check on generated problems, which is then the text; None for other checks
    """

    def __init__(self, found: "Conformance | str") -> None:
        self.report = None if isinstance(found, str) else found
        super().__init__(str(found))


@dataclass(frozen=True, kw_only=True, repr=False)
class Conformance(ShownAsText):
    """The result of a check.

    num_problems: the number of checked problems
    num_skipped:  the number of problems that an engine refused when it was made: for their policy, names or rules
    refusals:     the number of these problems by reason
    reference:    the name of the engine to compare with
    laws:         the names of the checked laws
    left_out:     the reason for each law that was not checked: it does not hold in the dialect or for a foreign reference, or
                  needs columns that the engine does not know
    dialect:      the dialect of the generated problems
    failure:      the shrunk first problem on which the engine differs from the reference
    neighbour:    the change in that problem after which both sides agree, or the law holds; empty if it is unknown
    exercise:     the reference's exercise on the problems on which both agree
    minimum:      the exercise that is required of all problems together
    violations:   one violation for each broken law
    title:        the name of the engine with its file and line, if they are known
    stopped:      what was examined before the time was over; empty if everything was
    """

    engine: str
    num_problems: int
    num_skipped: int
    laws: tuple[str, ...]
    failure: Failure | None
    violations: tuple[Violation, ...]
    refusals: Mapping[str, int] = field(default_factory=dict)
    reference: str = REFERENCE
    left_out: Mapping[str, str] = field(default_factory=dict)
    dialect: Dialect = OURS
    neighbour: str = ""
    exercise: Exercise = NOT_EXERCISED
    minimum: Minimum = field(default_factory=lambda: MINIMUM)
    title: str = ""
    stopped: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons why the check is inconclusive if it found nothing wrong."""
        if not self.num_problems:
            return (f"nothing was checked{f'; {HOW_TO_SUPPORT}' if self.num_skipped else ''}",)
        return explain_missing({"": self.exercise}, self.minimum)

    @property
    def verdict(self) -> Verdict:
        """DIVERGE if something is wrong, INCONCLUSIVE if too little was exercised."""
        if self.failure is not None and self.failure.signature.kind in (REFUSED, UNDECIDED):
            return Verdict.INCONCLUSIVE
        if self.failure is not None or self.violations:
            return Verdict.DIVERGE
        return Verdict.INCONCLUSIVE if self.reasons else Verdict.AGREE

    @property
    def is_conforming(self) -> bool:
        """True if enough was exercised, and nothing is wrong."""
        return self.verdict is Verdict.AGREE

    @property
    def problem(self) -> Problem | None:
        """The problem that the report shows; None if nothing is wrong."""
        if self.failure is not None:
            return self.failure.problem
        return self.violations[0].problem if self.violations else None

    def raise_if_broken(self) -> None:
        """Raise NotConforming unless the engine conforms; warn if the time ended before everything was examined."""
        if not self.is_conforming:
            # The text names the lines of the engine; the trace of the exception has many more of kgverify.
            raise NotConforming(self) from None
        if self.stopped:
            warnings.warn(f"{self.engine}: {self.stopped}", stacklevel=3)

    def __str__(self) -> str:
        """Return the first cause, the broken laws, and the problem that shows the failure."""
        is_own = self.reference == REFERENCE
        engine = self.title or self.engine
        num = self.num_problems + self.num_skipped
        skipped = f", {describe_refusals(self.refusals, self.num_skipped, num)}" if self.num_skipped else ""
        stopped = [self.stopped] * bool(self.stopped)
        if not self.num_problems:
            advice = [f"fix: {HOW_TO_SUPPORT}"] * bool(self.num_skipped)
            return _join(f"{engine}: nothing was checked{skipped}", *stopped, *advice)
        checked = f"{count_of(self.num_problems, 'problem')}, {count_of(len(self.laws), 'law')}{skipped}"
        checked = checked if is_own else f"compared with {self.reference}, {checked}"
        checked = checked if self.dialect == OURS else f"dialect {self.dialect}; {checked}"
        reasons = Counter(self.left_out.values())
        without = [f"{count_of(num, 'law')} not checked, since {reason}" for reason, num in reasons.items()]
        exercised = f"exercised: {describe_exercise(self.exercise)}"
        if self.is_conforming:
            return _join(f"{engine} {'conforms' if is_own else 'agrees'}: {checked}", *stopped, *without, exercised)
        if self.problem is None:
            why = f"inconclusive: {'; '.join(self.reasons)}"
            return _join(f"{engine}: {checked}", why, *stopped, *without, exercised)
        first = f"{engine} does not {'conform' if is_own else 'agree'}: {checked}"
        cause = self._describe_violations() if self.failure is None else self._describe_failure(self.failure)
        return _join(first, *stopped, *without, "", *cause)

    def _describe_failure(self, failure: Failure) -> list[str]:
        lines = describe_failure(failure)
        lines += [f"agrees if: {self.neighbour}"] if self.neighbour else []
        broken = ", ".join(each.law for each in self.violations)
        return [*lines, "", f"laws broken: {broken}"] if broken else lines

    def _describe_violations(self) -> list[str]:
        first, *others = self.violations
        lines = str(first).splitlines()
        lines += [f"holds if: {self.neighbour}"] if self.neighbour else []
        return [*lines, "", f"other laws broken: {', '.join(each.law for each in others)}"] if others else lines


def _join(*lines: str) -> str:
    return "\n".join(map(make_visible, lines))


@saving_bugs()
@refuse_exit()
@checked
def check_engine(
    factory: AnyEngine,
    *,
    reference: AnyEngine | None = None,
    examples: int | None = None,
    seed: int = 0,
    seconds: float = SECONDS,
    problems: Sequence[Problem] | None = None,
    graph: KnowledgeGraph | str | Path | None = None,
    dialect: Dialect | None = None,
    laws: Sequence[Law] | None = None,
    lockstep: bool = True,
    minimum: str | Minimum | None = None,
) -> Conformance:
    """Check an engine against a reference and against the laws, until something is wrong or the time is over.

    Problems that an engine refuses when it is made, with UserError or NotImplementedError, are skipped and counted. Laws that
    do not hold in the dialect are not checked, nor those that do not hold for any prover if the reference is not kgverify's;
    the result lists them with the reason.

    Args:
        factory: A class or function that makes the engine of (program, limits, policy); or a function that makes a
            pipeline of (run, sizes); or the name of one, `module:name` or `file.py:name`. An engine may bring its own
            corruptions and ranks as methods `draw` and `rank`.
        reference: The engine to compare with, given in the same way. If not given, kgverify's reference prover, or `"search"`
            for an engine that tells only outcomes.
        examples: Number of generated problems; if not given, 300, or none beside `problems`.
        seed: Seed of the generated problems.
        seconds: The time for everything. The result states what was examined until then. A problem that takes more than a
            tenth of it is left; only native code that does not return, and other threads, cannot be interrupted.
        problems: Problems that are checked before the generated ones.
        graph: A graph, its name or its path: the neighbourhoods of its test queries, with its rules, are checked first.
        dialect: The dialect of the engine, in which problems are generated; if not given, the attribute `dialect` of the
            class or function, and the default dialect if it has none.
        laws: The laws to check; all that hold for the reference if not given.
        lockstep: Compare every step from the expected goal as well.
        minimum: The exercise that all problems together require, as for `kgverify.verify`; below it nothing is decided.

    Returns:
        The result: `.verdict`, `.is_conforming`, `.problem` (the smallest failing one), `.raise_if_broken()`. `print` shows it.

    Raises:
        UserError: If the factory makes no engine, or the graph cannot be read.

    Example:
        >>> import kgverify as kv
        >>> @kv.engine_of
        ... def fails(goal, clauses):
        ...     return []
        >>> kv.check_engine(fails, examples=20).is_conforming
        False
    """
    if examples is not None and examples < 1:
        raise UserError(f"expected 1 example or more, found {examples}", where="examples", fix="give 1 or more")
    if "hypothesis" in sys.modules and sys.modules["hypothesis"].currently_in_test_context():
        raise UserError(
            "it draws and shrinks problems of its own, and would do so for each example of @given",
            where=name_engine(factory),
            fix="inside of @given(strategies.problems()), call kv.assert_agrees(engine, problem)",
        )
    begun, required, make = monotonic(), parse_minimum(minimum), find_maker(factory, "engine")
    own = find_dialect(factory) if dialect is None else dialect
    num = (0 if problems is not None else EXAMPLES) if examples is None else examples
    cut = () if graph is None else islice(cut_problems(Source(graph).load(), own), MOST_CUT)
    every = [*(problems or ()), *cut, *islice(draw_problems(seed, 0, own), num)]
    sides = [factory, *([] if reference is None else [reference])]
    makers = [make, *(find_maker(each, "reference") for each in sides[1:])]
    supports = find_supports(sides, makers, None if graph is None else Source(graph).load())
    every = fit_problems(every, supports, seed)
    simple = [each for each in every if each.policy.name == SHORTEST.name][:1]
    for problem in simple:
        check_made(make, "engine", problem)
    info = _make_info(make, every)
    other: AnyEngine = choose_reference(reference, info)
    checker = Checker(make, find_maker(other, "reference"), lockstep)
    is_own = follows_semantics(other)
    for problem in simple if not is_own else ():
        check_made(checker.reference, "reference", problem)
    chosen, left_out = _choose_laws(info, every, laws, is_own=is_own)
    found = Conformance(
        engine=name_engine(factory),
        title=name_with_place(factory),
        reference=name_engine(other),
        left_out=left_out,
        dialect=own,
        minimum=required,
        **_check_in_time(checker, every, chosen, begun, seconds),
    )
    return _shrink(checker, chosen, found, seconds - (monotonic() - begun))


def _check_in_time(
    checker: Checker, problems: Sequence[Problem], laws: Sequence[Law], begun: float, seconds: float
) -> dict[str, Any]:
    """Check problems until something is wrong or the time is over, and return the result's fields."""
    compared: list[Group] = []
    judged: list[Group] = []
    suspects: list[Suspect] = []
    violations: list[Violation] = []
    refused: dict[int, str] = {}
    failure, exercise = None, NOT_EXERCISED

    def left(share: float) -> float:
        return share * seconds - (monotonic() - begun)

    def compare(group: Group) -> bool:
        nonlocal exercise
        batch = prepare_batch(group, [problems[i] for i in group], checker.reference)
        try:
            found = checker.find_suspects(batch)
        except EngineRefusal as refusal:
            parts = skip_refused((checker.make, checker.reference), problems, group, str(refusal), refused)
            return all(compare(part) for part in parts)
        exercise = exercise.plus(count_agreeing(batch, found))
        suspects.extend(found)
        compared.append(group)
        return not found

    def judge(group: Group) -> bool:
        check = partial(check_laws, checker.make, [problems[i] for i in group], laws, most=1)
        found = check(confirms=False, is_quick=True) if failure is None else []
        if found or failure is not None:
            found = check(confirms=failure is None) or found
        violations.extend(replace(each, index=group[each.index]) for each in found)
        judged.append(group)
        return not found

    slow = work_in_time(_list_groups(problems), left(COMPARING if laws else JUDGING), compare, SHARE * seconds)
    if suspects:
        failure = _confirm(min(suspects, key=lambda each: each.number), checker, left(1.0))
    if laws and (failure is None or failure.divergence is not None):
        # An exception would break every law.
        work_in_time(compared if failure is None else compared[-1:], left(JUDGING), judge, SHARE * seconds)
    num, num_judged = (sum(map(len, groups)) for groups in (compared, judged))
    is_cut = not suspects and (num + len(refused) < len(problems) or (num_judged < num and laws and not violations))
    by_laws = f", {num_judged:,} of them checked by laws" if laws and num_judged < num else ""
    took = f"; {count_of(len(slow), 'problem')} took more than {SHARE:.0%} of the time" if slow else ""
    return {
        "num_problems": num,
        "num_skipped": len(refused),
        "refusals": Counter(refused.values()),
        "laws": tuple(law.name for law in laws) if judged or not is_cut else (),
        "failure": failure,
        "violations": tuple(violations),
        "exercise": exercise,
        "stopped": f"stopped after {monotonic() - begun:.0f} of {seconds:g} s: {num:,} of {len(problems):,} problems compared"
        f"{by_laws}{took}"
        if is_cut
        else "",
    }


def _list_groups(problems: Sequence[Problem]) -> Iterator[Group]:
    """Yield the problems that share a run, by their indices, in rounds of more and more problems."""
    begin, size = 0, FIRST_PART
    while begin < len(problems):
        yield from ([begin + i for i in group] for group in group_problems(problems[begin : begin + size]))
        begin, size = begin + size, min(2 * size, LARGEST_PART)


def _confirm(suspect: Suspect, checker: Checker, seconds: float) -> Failure:
    """Return the failure of a problem that differs in its run."""
    try:
        with stop_after(seconds):
            return checker.confirm(suspect)
    except OutOfTime:
        return suspect.leave_open("the time ended before the difference was confirmed")


def _shrink(checker: Checker, laws: Sequence[Law], found: Conformance, left: float) -> Conformance:
    """Return the result with its failure, or else its first violation, shrunk. If it does not recur, keep it unchanged.

    left: the seconds that are left
    """
    failure, violations, seconds = found.failure, found.violations, min(SHRINK_SECONDS, left)
    with suppress(UserError):
        if failure is not None and failure.signature.kind not in (REFUSED, UNDECIDED):
            shrunk = shrink(failure, checker, Budget(SHRINK_CALLS, seconds))
            found = replace(found, failure=shrunk.failure, neighbour=shrunk.change)
        elif failure is None and violations:
            law = next(law for law in laws if law.name == violations[0].law)
            shrunk, first = shrink_violation(
                violations[0], checker.make, law=law, max_calls=SHRINK_CALLS, seconds=seconds
            )
            found = replace(found, violations=(first, *violations[1:]), neighbour=shrunk.change)
    return found


def save_reproducer(report: Conformance, path: Path, engine: EngineSpec, *, reference: EngineSpec = PLAIN) -> None:
    """Write the problem of a report as a reproducer, which `kgverify replay` runs again.

    UserError for a report without a problem, and if the file cannot be written.
    """
    if report.failure is not None:
        # A problem that fails only together with others is written unchanged.
        alone = replace(report.failure, group=(report.failure.problem,))
        made = make_reproducer(alone, engine, reference=reference, lockstep=True, neighbour=report.neighbour)
    elif report.violations:
        made = make_law_reproducer(report.violations[0], engine, reference=reference, neighbour=report.neighbour)
    else:
        raise UserError("the engine conforms", where=str(path), fix="save the report of one that does not")
    make_folders(path.parent)
    write_reproducer(made, path)


def _choose_laws(
    info: EngineInfo | None, problems: Sequence[Problem], laws: Sequence[Law] | None, *, is_own: bool
) -> tuple[list[Law], dict[str, str]]:
    """Return the laws to check, and the other laws with the reason why they are not checked.

    laws:   the laws that the user asks for; None for all
    is_own: whether the reference is kgverify's
    """
    dialects: list[Dialect | None] = [*dict.fromkeys(problem.limits.dialect for problem in problems)] or [OURS]
    incomplete = ""
    if laws is None and any(problem.vocabulary.is_closed for problem in problems):
        # Most laws compare with a program of other names or sizes.
        return [], dict.fromkeys(LAWS, "the engine knows only some names")
    if laws is None and not _shows_all(info, problems[:1]):
        dialects, incomplete = [None], "the engine does not record all that they need"
    elif laws is None and not is_own:
        dialects = [None]
    every = list(LAWS.values()) if laws is None else laws
    # A law that holds in one of several dialects is checked in that dialect.
    reasons = {law.name: [law.explain_absence(each) for each in dialects] for law in every}
    left_out = {name: incomplete or each[0] for name, each in reasons.items() if all(each)}
    return [law for law in every if law.name not in left_out], left_out


def _make_info(make_pipeline: MakePipeline, problems: Sequence[Problem]) -> EngineInfo | None:
    """Return the info of the engine that is made for the first problem; None if it cannot be made, which checking reports."""
    try:
        refused = find_refused([make_pipeline], problems[:FIRST_PART])
        kept = (problem for i, problem in enumerate(problems) if i not in refused)
        return next((make_once(make_pipeline, problem) for problem in kept), None)
    except BaseException as error:
        pass_on(error)
        return None


def _shows_all(info: EngineInfo | None, problems: Sequence[Problem]) -> bool:
    """Return whether an engine knows every column and, unless names are kept, numbers variables canonically, as laws need."""
    forgets = all(problem.limits.dialect.forgets_names for problem in problems)
    return info is None or not (info.unknown or (info.variables != "canonical" and forgets))


def describe_failure(failure: Failure) -> list[str]:
    """Return lines with the first cause of a failure, both values with names, and the problem."""
    divergence = failure.divergence
    if divergence is None:
        lines = [f"{failure.signature.kind}: {failure.signature.situation}"]
        lines += [f"   {line}" for line in failure.message.splitlines()]
    else:
        lines = describe_first(divergence)
    if not failure.is_alone:
        lines.append(f"   only in one run with {count_of(len(failure.group) - 1, 'other problem')}")
    return [*lines, "problem:", *_problem_lines(failure.problem)]


def describe_first(divergence: Divergence) -> list[str]:
    """Return lines with the first divergence, and both values with names."""
    where = f" at step {divergence.step}" if divergence.step >= 0 else ""
    lines = [f"first divergence: {divergence.stage}{where}", f"   candidate   {divergence.atom}"]
    lines += [f"   goal        {divergence.goal}"] if divergence.goal else []
    lines += [f"   field       {divergence.field}"]
    lines += [f"   difference  {divergence.kind.value}: {divergence.evidence}"]
    for title, value in (("expected", divergence.expected), ("actual", divergence.actual)):
        values = value if isinstance(value, list) else list(filter(None, [str(value)]))
        lines += label_lines(title, values or ["nothing"])
    return lines


def _problem_lines(problem: Problem) -> list[str]:
    """Return the problem as lines of text, cut in the middle if it is long."""
    return [f"   {line}" for line in cut_middle(str(problem).splitlines(), MOST_LINES)]
