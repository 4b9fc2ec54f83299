"""Known reports: generated problems, proved by the reference and by wrong engines of many kinds, compared at several levels.

A wrong engine is the reference in another dialect, with other limits or with another program, that claims to be like the
first one. What the whole report says, the page of each divergence and the listing of each trace are known by their hashes.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from judge_answers.answers import answer_of
from judge_answers.pairs import at_level, blank
from known_judge import judge_known
from rich.console import Console

from kgverify import Equality, Problem
from kgverify.dialects import Dialect
from kgverify.laws import draw_problems
from kgverify.program.limits import FILTERS, OURS
from kgverify.report.render.terminal import draw_text, print_report
from kgverify.report.step_document import DerivationReader
from kgverify.report.steps import TraceView, render_derivation, render_step, render_trace
from kgverify.runs.run import build_trace
from kgverify.testing.checking.check import prepare_batches
from kgverify.testing.problems.decode import put_in_dialect
from kgverify.testing.problems.problem import SHORTEST
from kgverify.trace.model.columns import are_equal
from kgverify.trace.model.schema import has_goals
from kgverify.trace.model.trace import Trace
from kgverify.verification.record import prove_deep

PATH: Final = Path(__file__).with_suffix(".json")
SEED: Final = 7
NUM_TRIED: Final = 40
NUM_KEPT: Final = 2
"""The problems kept for each kind of wrong engine, of those tried: the first ones that differ."""

UNKNOWN: Final = frozenset({"resolvents.origin_kind", "resolvents.origin"})
FOREIGN: Final = UNKNOWN | {"resolvents.score", "steps.depth", "steps.dropped_atoms", "candidates.log_probability"}
"""The columns that an engine of somebody else may not know."""

Change = Callable[[Problem], Problem]


class Shown(NamedTuple):
    """The level of a pair, the columns that the actual trace lacks, and the options of the judge."""

    level: str
    lacking: frozenset[str] = frozenset()
    options: Mapping[str, Any] = {}


SHOWN: Final = {
    "steps": Shown("steps"),
    "foreign": Shown("steps", FOREIGN),
    "deep": Shown("deep"),
    "compact": Shown("compact", UNKNOWN),
    "ordered": Shown("steps", frozenset(), {"equality": Equality(modulo=("order",))}),
    "benign": Shown("steps", UNKNOWN, {"equality": Equality(modulo=("order", "duplicates"))}),
}


def _limit(name: str, more: int) -> Change:
    def change(problem: Problem) -> Problem:
        limit = max(1, getattr(problem.limits, name) + more)
        return replace(problem, limits=msgspec.structs.replace(problem.limits, **{name: limit}))

    return change


def _without_last(field: str) -> Change:
    return lambda problem: replace(problem, **{field: getattr(problem, field)[:-1]})


DIALECTS: Final[Mapping[str, Dialect]] = {
    "one pass": Dialect(unification="one_pass"),
    "facts first": Dialect(order="facts_first"),
    "reversed": Dialect(is_reversed=True),
    "own fact": Dialect(exclusion="never"),
    **{f"no {name}": Dialect(filters=tuple(each for each in OURS.filters if each != name)) for name in OURS.filters},
    "duplicates": Dialect(filters=(*OURS.filters, *(each for each in FILTERS if each not in OURS.filters))),
    "late prune": Dialect(filters=(*OURS.filters[1:], OURS.filters[0])),
    "truncated": Dialect(long_resolvents="truncate"),
    "no memory": Dialect(memory="none"),
    "set": Dialect(memory="set"),
    "names kept": Dialect(forgets_names=False),
    "stopping": Dialect(stopping="where_no_terminal"),
    "unary": Dialect(skips_unary=True),
}
CHANGES: Final[Mapping[str, Change]] = {
    "less depth": _limit("max_depth", -1),
    "fewer atoms": _limit("max_atoms", -1),
    "more resolvents": _limit("max_resolvents", 1),
    "fewer resolvents": _limit("max_resolvents", -1),
    "last fact": _without_last("facts"),
    "last rule": _without_last("rules"),
}
KINDS: Final = (*DIALECTS, *CHANGES)


def find_differing(kind: str) -> Iterator[str]:
    """Yield the names of the first problems on which a kind of wrong engine differs, each with how it is shown."""
    shown = KINDS.index(kind)
    kept = 0
    for number, problem in enumerate(islice(draw_problems(SEED, 0, DIALECTS.get(kind, OURS)), NUM_TRIED)):
        right, wrong = (_record(each, "steps") for each in _pair(kind, problem))
        if kept < NUM_KEPT and not are_equal(right.columns, wrong.columns):
            yield f"{kind}: {number}, {[*SHOWN][(shown + kept) % len(SHOWN)]}"
            kept += 1


def answer_to(name: str) -> str:
    """Return the answer of the judge to the pair of a name: verdict, divergences, causes, and hashes of report and pages."""
    kind, _, rest = name.partition(": ")
    number, how = rest.split(", ")
    level, lacking, options = SHOWN[how]
    problem = next(islice(draw_problems(SEED, int(number), DIALECTS.get(kind, OURS)), 1))
    expected, actual = (_record(each, level) for each in _pair(kind, problem))
    actual = _pretend(actual, expected)
    actual = blank(actual, actual.fields - lacking)
    report = judge_known(expected, actual, **options)[1]
    here = msgspec.structs.replace(report.environment, self_test="")
    report = msgspec.structs.replace(report, environment=here)
    answer = answer_of(report)
    found = f"{answer.verdict} {answer.divergences} {answer.causes}"
    return f"{found} {answer.sha256} {_hash(_pages(report, expected, actual))}"


def _pair(kind: str, problem: Problem) -> tuple[Problem, Problem]:
    # Scores of networks differ in their last bits from one machine to another.
    problem = replace(problem, policy=SHORTEST)
    right = put_in_dialect(problem, OURS)
    return right, problem if kind in DIALECTS else CHANGES[kind](right)


def _record(problem: Problem, level: str) -> Trace:
    (batch,) = prepare_batches([problem])
    columns = (
        prove_deep(batch.pipeline.engine, batch.pipeline.draw_for(batch.merged.run))
        if level == "deep"
        else batch.columns
    )
    return at_level(build_trace(batch.merged.run, batch.pipeline.engine, columns, batch.rankings), level)


def _pretend(actual: Trace, expected: Trace) -> Trace:
    """Return a trace that claims to be of the same program, limits and dialect as another one."""
    header = msgspec.structs.replace(
        expected.header, engine=msgspec.structs.replace(actual.header.engine, name="wrong")
    )
    program = {name: getattr(expected, name) for name in ("facts", "fact_lines", "rules")}
    return replace(actual, header=header, **program)


def _pages(report: Any, expected: Trace, actual: Trace) -> Iterator[str]:
    """Yield the report as text, the divergences side by side, and the listings of both traces."""
    yield _words(draw_text(lambda console: print_report(report, console, expected=expected)))
    reader = DerivationReader(expected, actual, report.divergences, lockstep=False, modulo=report.modulo)
    for divergence in report.divergences[:6]:
        yield msgspec.json.encode(reader.read(divergence)).decode()
    for trace in (expected, actual):
        view = TraceView(trace)
        yield _text(render_trace(view))
        for candidate in range(min(3, view.num_candidates)) if has_goals(trace.header.level) else ():
            yield _text(render_derivation(view.derivation(candidate)))
            if view.candidate(candidate)["num_steps"]:
                yield _text(render_step(view.candidate(candidate) | view.step(candidate, 0)))


def _text(page: Any) -> str:
    text = StringIO()
    Console(file=text, width=120, color_system=None).print(page)
    return _words(text.getvalue())


def _words(text: str) -> str:
    """Return a text without its layout, which depends on the version of a library."""
    return " ".join(text.split())


def _hash(texts: Iterator[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
