"""The conformance suite for engines: laws and equivalence over a bounded set of problems, with a readable report."""

import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
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
from kgverify.comparison.result import Verdict
from kgverify.engines.load_engine import pass_on, refuse_exit
from kgverify.engines.policy import SHORTEST
from kgverify.engines.table import REFERENCE
from kgverify.errors import UserError, count_of
from kgverify.escaping import make_visible
from kgverify.files.writing import make_folders
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
)
from kgverify.testing.checking.check import ALONE, Checker, verify_problems
from kgverify.testing.checking.failure import CRASH, UNDECIDED, Failure, label_lines
from kgverify.testing.checking.guard import check_made, find_supported, make_once
from kgverify.testing.problems.decode import SCOPE_MINIMUM, draw_problems, list_scope
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.text_format import make_reproducer, saving_bugs, write_reproducer
from kgverify.testing.shrinking.shrink import Budget, shrink

EXAMPLES: Final = 300
"""The default number of problems of a check."""
SECONDS: Final = 60.0
"""The default time in seconds after which a check begins no further round."""
FIRST_PART: Final = 16
"""The number of problems in the first round. If a round takes less than `PART_SECONDS`, the next has twice as many."""
LARGEST_PART: Final = 512
PART_SECONDS: Final = 5.0
SHRINK_CALLS: Final = 600
SHRINK_SECONDS: Final = 15.0
MOST_FRAMES: Final = 4
"""The maximum number of stack frames of a crash that a report shows."""
MOST_LINES: Final = 24
"""The maximum number of lines of a problem that a report shows."""


class NotConforming(AssertionError):
    """An error for an engine that differs from its reference or breaks a law. Its text is the report."""

    def __init__(self, report: "Conformance") -> None:
        self.report = report
        super().__init__(str(report))


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """The result of a check.

    num_problems: the number of checked problems
    num_skipped:  the number of problems with a policy that the engine does not support
    reference:    the name of the engine to compare with
    laws:         the names of the checked laws
    left_out:     the reason for each law that was not checked: it does not hold in the dialect or for a foreign reference, or
                  needs columns that the engine does not know
    dialect:      the dialect of the generated problems
    failure:      the shrunk first problem on which the engine differs from the reference
    neighbour:    the change in that problem after which both sides agree, or the law holds; empty if it is unknown
    exception:    the engine's exception on that problem, with its traceback
    exercise:     the reference's exercise on the problems on which both agree
    minimum:      the exercise that is required of all problems together
    violations:   one violation for each broken law
    """

    engine: str
    num_problems: int
    num_skipped: int
    laws: tuple[str, ...]
    failure: Failure | None
    violations: tuple[Violation, ...]
    reference: str = REFERENCE
    left_out: Mapping[str, str] = field(default_factory=dict)
    dialect: Dialect = OURS
    neighbour: str = ""
    exception: BaseException | None = None
    exercise: Exercise = NOT_EXERCISED
    minimum: Minimum = field(default_factory=lambda: MINIMUM)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons why the check is inconclusive if it found nothing wrong."""
        if not self.num_problems:
            return ("nothing was checked",)
        return explain_missing({"": self.exercise}, self.minimum)

    @property
    def verdict(self) -> Verdict:
        """DIVERGE if something is wrong, INCONCLUSIVE if too little was exercised."""
        if self.failure is not None and self.failure.signature.kind == UNDECIDED:
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
        """Raise NotConforming unless the engine conforms."""
        if not self.is_conforming:
            raise NotConforming(self) from self.exception

    def __repr__(self) -> str:
        """Return the first line of the text."""
        return f"<Conformance {str(self).partition(chr(10))[0]}>"

    def __str__(self) -> str:
        """Return the first cause, the broken laws, and the problem that shows the failure."""
        is_own = self.reference == REFERENCE
        skipped = f", {self.num_skipped} skipped for their policy or limits" if self.num_skipped else ""
        if not self.num_problems:
            return _join(f"{self.engine}: nothing was checked{skipped}")
        checked = f"{count_of(self.num_problems, 'problem')}, {count_of(len(self.laws), 'law')}{skipped}"
        checked = checked if is_own else f"compared with {self.reference}, {checked}"
        checked = checked if self.dialect == OURS else f"dialect {self.dialect}; {checked}"
        without = [
            f"laws not checked, since {reason}: {', '.join(name for name in self.left_out if self.left_out[name] == reason)}"
            for reason in dict.fromkeys(self.left_out.values())
        ]
        exercised = f"exercised: {describe_exercise(self.exercise)}"
        if self.is_conforming:
            return _join(f"{self.engine} {'conforms' if is_own else 'agrees'}: {checked}", *without, exercised)
        if self.problem is None:
            return _join(f"{self.engine}: {checked}", f"inconclusive: {'; '.join(self.reasons)}", *without, exercised)
        first = f"{self.engine} does not {'conform' if is_own else 'agree'}: {checked}"
        cause = self._describe_violations() if self.failure is None else self._describe_failure(self.failure)
        return _join(first, *without, "", *cause)

    def _describe_failure(self, failure: Failure) -> list[str]:
        lines = describe_failure(failure)
        frames = _list_frames(self.exception)[:MOST_FRAMES] if self.exception is not None else []
        lines += [f"{'' if i else 'raised at:':<10} {frame}" for i, frame in enumerate(frames)]
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
    reference: AnyEngine = REFERENCE,
    examples: int | None = None,
    seed: int = 0,
    seconds: float = SECONDS,
    problems: Sequence[Problem] | None = None,
    dialect: Dialect | None = None,
    laws: Sequence[Law] | None = None,
    lockstep: bool = True,
    minimum: str | Minimum | None = None,
) -> Conformance:
    """Check an engine against a reference and against the laws, until something is wrong.

    If an engine raises UserError or NotImplementedError for a policy, problems with that policy are skipped. Laws that do not
    hold in the dialect are not checked, nor those that do not hold for any prover if the reference is not kgverify's; the
    result lists them with the reason.

    Args:
        factory: A class or function that makes the engine of (program, limits, policy); or a function that makes a
            pipeline of (run, sizes); or the name of one, `module:name` or `file.py:name`. An engine may bring its own
            corruptions and ranks as methods `draw` and `rank`.
        reference: The engine to compare with, given in the same way; kgverify's reference prover if not given.
        examples: Number of generated problems; if not given, 300, or none beside `problems`.
        seed: Seed of the generated problems.
        seconds: Seconds after which no further round of problems begins; at least one round is checked.
        problems: Problems that are checked before the generated ones.
        dialect: The dialect of the engine, in which problems are generated; if not given, the attribute `dialect` of the
            class or function, and the default dialect if it has none.
        laws: The laws to check; all that hold for the reference if not given.
        lockstep: Compare every step from the expected goal as well.
        minimum: The exercise that all problems together require, as for `kgverify.verify`; below it nothing is decided.

    Returns:
        The result: `.verdict`, `.is_conforming`, `.problem` (the smallest failing one), `.raise_if_broken()`. `print` shows it.

    Raises:
        UserError: If the factory makes no engine.

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
    required = parse_minimum(minimum)
    checker = Checker(find_maker(factory, "engine"), find_maker(reference, "reference"), lockstep)
    own = find_dialect(factory) if dialect is None else dialect
    num = (0 if problems is not None else EXAMPLES) if examples is None else examples
    every = [*(problems or ()), *islice(draw_problems(seed, 0, own), num)]
    is_own = follows_semantics(reference)
    makers = {"engine": checker.make} if is_own else {"engine": checker.make, "reference": checker.reference}
    for problem in [each for each in every if each.policy.name == SHORTEST.name][:1]:
        for where, make in makers.items():
            check_made(make, where, problem)
    supported = set.intersection(*(set(find_supported(make, every)) for make in makers.values()))
    kept = [every[i] for i in sorted(supported)]
    chosen, left_out = _choose_laws(checker.make, kept, laws, is_own=is_own)
    return _shrink(
        checker,
        chosen,
        Conformance(
            engine=name_engine(factory),
            reference=name_engine(reference),
            left_out=left_out,
            dialect=own,
            num_skipped=len(every) - len(kept),
            laws=tuple(law.name for law in chosen),
            minimum=required,
            **_check_rounds(checker, kept, chosen, seconds),
        ),
    )


def _check_rounds(checker: Checker, problems: Sequence[Problem], laws: Sequence[Law], seconds: float) -> dict[str, Any]:
    """Check problems in rounds until something is wrong or the time is over, and return the result's fields."""
    begun, done, size = monotonic(), 0, FIRST_PART
    failures: list[Failure] = []
    violations: list[Violation] = []
    exercise = NOT_EXERCISED
    while done < len(problems) and not failures and not violations and (not done or monotonic() - begun < seconds):
        part, at = problems[done : done + size], monotonic()
        failures, counted = checker.check(part, most=1)
        exercise = exercise.plus(counted)
        if all(each.divergence is not None for each in failures):
            # An exception would break every law.
            violations = check_laws(checker.make, part, laws, most=1, confirms=not failures)
        failures = [replace(each, index=done + each.index) for each in failures]
        violations = [replace(each, index=done + each.index) for each in violations]
        done += len(part)
        if monotonic() - at < PART_SECONDS:
            size = min(2 * size, LARGEST_PART)
    return {
        "num_problems": done,
        "failure": next(iter(failures), None),
        "violations": tuple(violations),
        "exercise": exercise,
    }


def _shrink(checker: Checker, laws: Sequence[Law], found: Conformance) -> Conformance:
    """Return the result with its failure, or else its first violation, shrunk. If it does not recur, keep it unchanged."""
    failure, violations = found.failure, found.violations
    with suppress(UserError):
        if failure is not None and failure.signature.kind != UNDECIDED:
            shrunk = shrink(failure, checker, Budget(SHRINK_CALLS, SHRINK_SECONDS))
            found = replace(found, failure=shrunk.failure, neighbour=shrunk.change)
        elif failure is None and violations:
            law = next(law for law in laws if law.name == violations[0].law)
            shrunk, first = shrink_violation(
                violations[0], checker.make, law=law, max_calls=SHRINK_CALLS, seconds=SHRINK_SECONDS
            )
            found = replace(found, violations=(first, *violations[1:]), neighbour=shrunk.change)
    if found.failure is None or found.failure.signature.kind != CRASH:
        return found
    return replace(found, exception=_find_exception(found.failure, checker))


def check_scope(
    factory: AnyEngine,
    scope: str,
    *,
    reference: AnyEngine = REFERENCE,
    dialect: Dialect | None = None,
    minimum: str | Minimum | None = None,
) -> Conformance:
    """Compare an engine with a reference on every problem of a scope, free-running and without laws.

    UserError for an unknown scope, and as for `check_engine`.
    """
    own = find_dialect(factory) if dialect is None else dialect
    return check_engine(
        factory,
        reference=reference,
        problems=list_scope(scope, own),
        seconds=inf,
        dialect=own,
        laws=(),
        lockstep=False,
        minimum=parse_minimum(minimum, default=SCOPE_MINIMUM),
    )


def save_reproducer(
    report: Conformance,
    path: Path,
    engine: EngineSpec,
    *,
    reference: EngineSpec = PLAIN,
    lockstep: bool = True,
) -> None:
    """Write the problem of a report as a reproducer, which `kgverify replay` runs again.

    UserError for a report without a problem, and if the file cannot be written.
    """
    if report.failure is not None:
        # A problem that fails only together with others is written unchanged.
        alone = replace(report.failure, group=(report.failure.problem,))
        made = make_reproducer(alone, engine, reference=reference, lockstep=lockstep, neighbour=report.neighbour)
    elif report.violations:
        made = make_law_reproducer(report.violations[0], engine, reference=reference, neighbour=report.neighbour)
    else:
        raise UserError("the engine conforms", where=str(path), fix="save the report of one that does not")
    make_folders(path.parent)
    write_reproducer(made, path)


def _choose_laws(
    make_pipeline: MakePipeline, problems: Sequence[Problem], laws: Sequence[Law] | None, *, is_own: bool
) -> tuple[list[Law], dict[str, str]]:
    """Return the laws to check, and the other laws with the reason why they are not checked.

    laws:   the laws that the user asks for; None for all
    is_own: whether the reference is kgverify's
    """
    dialects: list[Dialect | None] = [*dict.fromkeys(problem.limits.dialect for problem in problems)] or [OURS]
    incomplete = ""
    if laws is None and not is_own:
        dialects = [None]
    elif laws is None and not _shows_all(make_pipeline, problems[:1]):
        dialects, incomplete = [None], "the engine does not record all that they need"
    every = list(LAWS.values()) if laws is None else laws
    # A law that holds in one of several dialects is checked in that dialect.
    reasons = {law.name: [law.explain_absence(each) for each in dialects] for law in every}
    left_out = {name: incomplete or each[0] for name, each in reasons.items() if all(each)}
    return [law for law in every if law.name not in left_out], left_out


def _shows_all(make_pipeline: MakePipeline, problems: Sequence[Problem]) -> bool:
    """Return whether an engine knows every column and, unless names are kept, numbers variables canonically, as laws need."""
    forgets = all(problem.limits.dialect.forgets_names for problem in problems)
    try:
        made = [make_once(make_pipeline, problem) for problem in problems]
    except BaseException as error:
        pass_on(error)
        # Checking the problems will report this crash.
        return True
    return not any(info.unknown or (info.variables != "canonical" and forgets) for info in made)


def _find_exception(failure: Failure, checker: Checker) -> BaseException | None:
    """Return the exception of an engine on a crashing problem; None if it does not occur again."""
    try:
        verify_problems(merge(failure.group, checker.reference), checker.make, ALONE[True])
    except BaseException as error:
        pass_on(error)
        return error
    return None


def describe_failure(failure: Failure) -> list[str]:
    """Return lines with the first cause of a failure, both values with names, and the problem."""
    divergence = failure.divergence
    if divergence is None:
        lines = [f"{failure.signature.kind}: {failure.signature.situation}"]
        lines += [f"   {line}" for line in failure.message.splitlines()]
    else:
        where = f" at step {divergence.step}" if divergence.step >= 0 else ""
        lines = [f"first divergence: {divergence.stage}{where}", f"   candidate   {divergence.atom}"]
        lines += [f"   goal        {divergence.goal}"] if divergence.goal else []
        lines += [f"   field       {divergence.field}"]
        lines += [f"   difference  {divergence.kind.value}: {divergence.evidence}"]
        for title, value in (("expected", divergence.expected), ("actual", divergence.actual)):
            values = value if isinstance(value, list) else list(filter(None, [str(value)]))
            lines += label_lines(title, values or ["nothing"])
    if not failure.is_alone:
        lines.append(f"   only in one run with {count_of(len(failure.group) - 1, 'other problem')}")
    return [*lines, "problem:", *_problem_lines(failure.problem)]


def _list_frames(error: BaseException) -> list[str]:
    """Return the stack frames of an exception below the last one of kgverify, the innermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parent)
    first = max((i for i, frame in enumerate(frames) if frame.filename.startswith(ours)), default=-1)
    return [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in reversed(frames[first + 1 :])]


def _problem_lines(problem: Problem) -> list[str]:
    """Return the problem as lines of text, cut in the middle if it is long."""
    lines = [f"   {line}" for line in str(problem).splitlines()]
    if len(lines) > MOST_LINES:
        half = MOST_LINES // 2
        lines[half:-half] = [f"   ... {len(lines) - 2 * half} lines more"]
    return lines
