"""The known-answer test of the judge: known pairs, compared before any verdict is given.

A second comparison, which shares no code with the one that decides, must find the same in each pair, and everything that the
report says about it must be what `answers.json` has. A wrong answer is an InternalError: there is no verdict. Before two engines
agree, what finds differences is tested alone; what explains them is tested as well once there is something to explain.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from judge_answers.pairs import (
    DIFFERENCES,
    ERROR,
    LONG,
    at_level,
    blank,
    make_rankings,
    make_trace,
    pair_of,
    renumber,
    take,
    with_header,
)
from judge_answers.rare_pairs import rare_pairs
from second_opinion import can_be_checked, check_by_second, compare_again

from kgverify import Equality, Report
from kgverify.comparison.comparable import lockstep_columns
from kgverify.comparison.compare import Comparer, Options
from kgverify.garbage_collection import without_garbage_collection
from kgverify.program.program import Symbols
from kgverify.trace.model.trace import Trace
from kgverify.verification.planted_changes import require

ANSWERS: Final = "answers.json"

JudgeRecorded = Callable[..., tuple[Comparer, Report]]
"""Compares two recorded traces, with the options of `Comparer`, and reports everything that it found."""

_ONE: Final = {"block_steps": 1, "piece_bytes": 1}
_FEW: Final = {"block_steps": 7, "piece_bytes": 64}


class Known(NamedTuple):
    """A known pair, and the options with which it is compared."""

    name: str
    expected: Trace | Path
    actual: Trace | Path
    options: Mapping[str, Any] = MappingProxyType({})


def _some(number: int, *more: int) -> list[int]:
    """Return some of the differences, others for each number."""
    return [*range(number, len(DIFFERENCES), 9), *more, 0]


def known_pairs(*, is_recorded: bool) -> Iterator[Known]:
    """Yield the known pairs: those for any comparison, and those for what only recorded traces may lack or order otherwise."""
    yield Known("each difference, in one block", *pair_of(range(len(DIFFERENCES))))
    yield Known("differences that errors excuse, in one block", *pair_of(range(32, 56), error=ERROR))
    yield Known("a candidate a block", *pair_of([0, *range(32, 42, 2), *range(66, 76)], error=ERROR), _ONE)
    yield Known("two candidates a block, in float32", *pair_of(_some(1, 47), error=ERROR, dtype=np.float32), _FEW)
    for name, (rows, options) in _ALIKE.items():
        yield Known(name, *pair_of(rows, error=ERROR), options)
    yield Known("a sum beside a long derivation", *pair_of((0, 1), error=ERROR, differences=LONG))
    yield Known("two precisions", *pair_of((3,), error=ERROR, dtype=np.float32, differences=LONG))
    expected, actual = pair_of(_some(7, 54))
    left, right = (make_trace(lockstep_columns(each.columns), rankings=None) for each in (expected, actual))
    yield Known("lockstep", left, right, {"lockstep": True})
    if is_recorded:
        yield Known("a few are listed", *pair_of(_some(2, 47, 49), error=ERROR), {**_FEW, "kept": 3})
        yield Known("a long derivation", *pair_of((2,), differences=LONG))
        for number, (name, fields) in enumerate(_LACKING.items(), 3):
            expected, actual = pair_of(_some(number, 46, 51, 52), error=ERROR)
            yield Known(f"without {name}", expected, blank(actual, actual.fields - fields), _FEW)
        yield from _of_other_candidates(*pair_of(range(24)))
        yield from _without_goals()
        yield from _headers(*pair_of((0, 32), error=ERROR))
        yield from _rankings(*pair_of((0, 2, 4, 60, 61), error=ERROR))
        yield from (Known(*pair) for pair in rare_pairs())


def _of_other_candidates(expected: Trace, actual: Trace) -> Iterator[Known]:
    """Yield pairs with candidates in another order, or with other names or numbers."""
    reordered = take(actual, [*range(20, 1, -2), 21, 22, 1, 0, 5, 5, 3, 9])
    own = reordered.columns.candidates
    moved = own._replace(query=np.where(np.arange(len(own.query)) % 9 == 2, own.query + 50, own.query).astype(np.int32))
    expected = take(expected, [*range(2, 23), 3])
    other = replace(reordered, columns=reordered.columns._replace(candidates=moved))
    yield Known("another order", expected, other, _FEW)
    swapped = own.atom.copy()
    swapped[:9:4, 1:] = swapped[:9:4, :0:-1]
    columns = reordered.columns._replace(candidates=own._replace(atom=swapped))
    yield Known("other candidates", expected, replace(reordered, columns=columns), {**_FEW, "kept": 4})
    # The shares of more than eight causes are drawn, which takes longer.
    expected, actual = pair_of(range(11))
    query, atom = actual.columns.candidates.query.copy(), actual.columns.candidates.atom.copy()
    query[9], atom[0, 1:], atom[1, 1] = 50, atom[0, :0:-1], 99
    columns = actual.columns._replace(candidates=actual.columns.candidates._replace(query=query, atom=atom))
    yield Known("others in place", expected, replace(actual, columns=columns), _FEW)
    columns = actual.columns._replace(candidates=actual.columns.candidates._replace(query=query))
    yield Known("another query", expected, replace(actual, columns=columns))
    expected, actual = pair_of((0, 9, 4))
    own = actual.columns.candidates
    columns = actual.columns._replace(candidates=own._replace(atom=own.atom[:, (0, 2, 1)]))
    yield Known("another draw, twice", expected, take(replace(actual, columns=columns), [0, 0, 1, 2]))
    fewer = Symbols(actual.symbols.predicates, actual.symbols.constants[:400])
    yield Known("fewer names", expected, replace(actual, symbols=fewer), _FEW)
    # Nine causes, whose shares are drawn.
    expected, actual = pair_of(_some(6, 25, 47), error=ERROR)
    yield Known("other numbers", expected, renumber(actual), _FEW)
    yield Known("other numbers, without facts", expected, renumber(take(actual, range(6)), has_facts=False))


_ALIKE: Final[Mapping[str, tuple[Sequence[int], Mapping[str, Any]]]] = {
    "scores that differ in bits": ((0, 32, 0, 0), _FEW),
    "the last differs": ((0, 0, 0, 61), {}),
    "one score": ((0, 34), {}),
    "the same kinds of two steps": ((13, 0, 13, 14), {}),
    "nothing in common": ((60, 61), {}),
    "near-ties alone": ((47, 0, 49), _FEW),
}
_LACKING: Final = {
    "dropped counts": {"steps.dropped_atoms", "steps.dropped_resolvents"},
    "scores": {"resolvents.score", "candidates.log_probability"},
    "clauses": {"resolvents.origin_kind", "resolvents.origin"},
}


def _without_goals() -> Iterator[Known]:
    """Yield pairs of which a trace keeps no goals."""
    few = (0, 1, 9, 13, 19, 23, 30, 34, 42, 54, 59, 63, 67, 0)
    left, right = pair_of(few)
    for level, other in (("compact", "compact"), ("digests", "digests"), ("steps", "digests"), ("compact", "steps")):
        yield Known(f"{level} and {other}", at_level(left, level), at_level(right, other), _FEW)
    e, a = pair_of((0, 42, 47, 49, 51, 52, 0), error=ERROR)
    yield Known("steps and compact, with errors", e, at_level(a, "compact"), _FEW)
    yield Known("digests, with errors", at_level(e, "digests"), at_level(a, "digests"), _FEW)
    e, a = (at_level(each, "digests") for each in pair_of((0, 42, 0), error=ERROR))
    yield Known("one digest, with errors", e, a)
    # Digests that were not computed from these columns.
    left, right = pair_of((1, 13, 13, 28, 30, 0, 42, 54, 0))
    right = replace(right, digests=left.digests)
    yield Known("equal digests", at_level(left, "compact"), at_level(right, "compact"))
    counts = at_level(blank(left, left.fields - {"steps.dropped_atoms"}), "digests")
    yield Known(
        "digests of other counts", at_level(left, "digests"), with_header(counts, absent=("steps.dropped_atoms",))
    )
    yield Known("digests of other numbers", at_level(left, "digests"), renumber(at_level(right, "digests")))


def _headers(expected: Trace, actual: Trace) -> Iterator[Known]:
    """Yield pairs that cannot be compared, or that declare more than the judge accepts."""
    header = actual.header
    change = msgspec.structs.replace
    run = change(header.run, graph="g", split="valid", num_queries=1, num_corruptions=2, seed=3, rank_tolerance=0.5)
    others: dict[str, dict[str, Any]] = {
        "limits": {"limits": change(header.limits, max_atoms=3)},
        "program": {"program_sha256": "cd" * 32},
        "policy": {"policy": change(header.policy, name="other")},
        "weights": {"policy": change(header.policy, sha256="ef" * 32)},
        "run": {"run": run},
        "run of an unknown graph": {"run": change(run, graph="")},
        "error": {"engine": change(header.engine, score_error=99.0, precision="bf16")},
    }
    sha = with_header(expected, policy=change(expected.header.policy, sha256="ab" * 32))
    for name, changes in others.items():
        yield Known(f"another {name}", sha, with_header(actual, **changes))
    yield Known("an accepted error", expected, actual, {"equality": Equality(score_error=1e-9)})
    yield Known("not complete", expected, replace(actual, is_complete=False))


def _rankings(expected: Trace, actual: Trace) -> Iterator[Known]:
    """Yield pairs with other ranks: right and wrong ones, by rounding, of groups that differ, and of one side alone."""
    assert expected.rankings is not None
    ranks = (
        make_rankings((0, 0, 2, 1.0, 2.0), (0, 1, 1, 1.0, 1.0), (1, 0, 2, 2.0, 2.0), (15, 0, 2, 2.0, 2.0)),
        make_rankings((0, 0, 1, 1.0, 1.0), (0, 1, 1, 1.0, 2.0), (1, 0, 2, 2.0, 2.0)),
        make_rankings(
            (0, 0, 2, 1.0, 1.0), (0, 1, 1, 1.0, 2.0), (1, 0, 2, 2.0, 2.0), (15, 0, 2, 1.0, 2.0), (9, 2, 1, 1, 1)
        ),
    )
    pessimistic = expected.rankings._replace(pessimistic=expected.rankings.pessimistic + 0.5)
    for number, rankings in enumerate((*ranks, pessimistic)):
        yield Known(f"ranks {number}", expected, replace(actual, rankings=rankings), {"kept": 2} if number == 1 else {})
        same = replace(expected, rankings=rankings)
        yield Known(f"ranks {number} of the same candidates", expected, same)


class Answer(msgspec.Struct, frozen=True):
    """A known answer.

    verdict, divergences, near_ties, causes: the verdict, and the numbers of what was found
    sha256: of the whole report, without the environment
    """

    verdict: str
    divergences: int
    near_ties: int
    causes: int
    sha256: str


def answer_of(report: Report, folder: str = "\0") -> Answer:
    """Return the answer that a report gives, whatever the folder is called in which the traces lie."""
    fields = msgspec.to_builtins(msgspec.structs.replace(report, environment=None, self_test=None))
    # The job says nothing about the comparison.
    del fields["job"]
    content = msgspec.json.encode(fields)
    # Each file that is written is a recording of its own.
    content = re.sub(rb"copies of recording \w[\w-]*", b"copies of a recording", content.replace(folder.encode(), b""))
    digest = hashlib.sha256(content).hexdigest()
    found = len(report.divergences), len(report.near_ties), len(report.causes)
    return Answer(report.verdict.value, *found, digest[:16])


def unexplained_answers(exercise: Callable[[Comparer], object]) -> Iterator[tuple[str, Answer]]:
    """Yield the answers of the comparison alone, which explains nothing, for the known pairs in memory.

    exercise: returns what both sides exercised

    InternalError if the second comparison disagrees with one.
    """
    for known in known_pairs(is_recorded=False):
        if known.options == _ONE:
            # Traces in memory are one block.
            continue
        comparer = Comparer(known.expected, known.actual, Options(**known.options))
        found = comparer.compare()
        _compare_again(known, comparer)
        digest = hashlib.sha256(msgspec.json.encode((found, exercise(comparer)))).hexdigest()
        counts = len(found.divergences), len(found.near_ties), 0
        yield f"{known.name}: unexplained", Answer(found.verdict.value, *counts, digest[:16])


@cache
def read_answers() -> dict[str, Answer]:
    """Read the known answers."""
    text = resources.files("judge_answers").joinpath(ANSWERS).read_bytes()
    return msgspec.json.decode(text, type=dict[str, Answer])


def require_known(name: str, given: Answer) -> None:
    """InternalError unless an answer is the known one."""
    known = read_answers().get(name)
    require(known == given, f"the known pair {name!r} has the answer {known}, and was given {given}")


def _compare_again(known: Known, comparer: Comparer) -> None:
    """InternalError unless the second comparison finds the same in a known pair, if it can judge it."""
    if can_be_checked(comparer):
        assert isinstance(known.expected, Trace)
        assert isinstance(known.actual, Trace)
        second = compare_again(known.expected, known.actual, comparer.score_tolerance, lockstep=comparer.lockstep)
        check_by_second(comparer.comparison, second, f"the known pair {known.name!r}")


def known_answers(judge: JudgeRecorded, *, is_recorded: bool) -> Iterator[tuple[str, Answer]]:
    """Yield the answers of a judge for the known pairs. InternalError if the second comparison disagrees with one."""
    for known in known_pairs(is_recorded=is_recorded):
        comparer, report = judge(known.expected, known.actual, **known.options)
        _compare_again(known, comparer)
        yield known.name, answer_of(report)


@cache
@without_garbage_collection()
def check_known_pairs(judge: JudgeRecorded, *, is_recorded: bool) -> None:
    """InternalError unless each known pair is compared as the second comparison does, and explained as known."""
    for name, answer in known_answers(judge, is_recorded=is_recorded):
        require_known(name, answer)


@cache
@without_garbage_collection()
def check_known_differences(exercise: Callable[[Comparer], object]) -> None:
    """InternalError unless the known pairs in memory are compared as the second comparison does, and as known.

    exercise: as for `unexplained_answers`
    """
    for name, answer in unexplained_answers(exercise):
        require_known(name, answer)
