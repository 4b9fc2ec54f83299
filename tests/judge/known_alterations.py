"""Known alterations: traces of generated problems of which one column is altered, and everything that the judge says of them.

Each altered trace is checked, searched for contradictions, hashed, and compared with the sound one at its level.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from judge_answers.pairs import at_level

from kgverify import UserError
from kgverify.comparison.compare import Comparer, Options
from kgverify.comparison.recorded.evidence import withhold_agreement
from kgverify.laws import draw_problems
from kgverify.runs.run import build_trace
from kgverify.testing.checking.check import prepare_batches
from kgverify.testing.problems.problem import SHORTEST
from kgverify.trace.model.digests import compute_digests, root_digest
from kgverify.trace.model.trace import Trace
from kgverify.trace.model.validate import check_columns
from kgverify.verification.record import prove_deep

PATH: Final = Path(__file__).with_suffix(".json")
SEED: Final = 13
NUM_DRAWN: Final = 40
NUM_KEPT: Final = 4
"""The traces that are altered: those with most resolvents of the ones drawn."""
LEVELS: Final = ("steps", "compact", "deep", "digests")
"""The levels at which traces are compared: of these, every other one for each alteration."""

Values = Any
Alteration = Callable[[Values, int, random.Random], None]


def _set(change: Callable[[Any], Any]) -> Alteration:
    def alter(values: Values, row: int, rng: random.Random) -> None:
        values[row] = change(values[row])

    return alter


def _exchange(values: Values, row: int, rng: random.Random) -> None:
    other = rng.randrange(len(values))
    values[row], values[other] = values[other], values[row]


ALTERATIONS: Final[Mapping[str, Alteration]] = {
    "one more": _set(lambda value: value + 1),
    "one less": _set(lambda value: value - 1),
    "none": _set(lambda value: 0),
    "many": _set(lambda value: 99),
    "exchanged": _exchange,
    "turned": lambda values, row, rng: values.__setitem__(slice(None), values[::-1].copy()),
}


@cache
def sound_traces() -> tuple[Trace, ...]:
    """Return deep traces of generated problems."""
    problems = (replace(each, policy=SHORTEST) for each in islice(draw_problems(SEED), NUM_DRAWN))
    batches = prepare_batches(list(problems))
    largest = sorted(batches, key=lambda each: -len(each.columns.resolvents.kind))[:NUM_KEPT]
    return tuple(
        build_trace(
            each.merged.run,
            each.pipeline.engine,
            prove_deep(each.pipeline.engine, each.pipeline.draw_for(each.merged.run)),
            each.rankings,
        )
        for each in largest
    )


def columns_of(trace: Trace) -> list[str]:
    """Return the names of the columns, of the levels that deep traces have."""
    return [f"{group}.{name}" for group, level in trace.columns._asdict().items() for name in level._fields]


@cache
def column_names() -> tuple[str, ...]:
    """Return the names of the columns."""
    return tuple(columns_of(sound_traces()[0]))


def known_alterations() -> dict[str, Any]:
    """Return what the judge says of the alterations of each column."""
    return {name: judge_alterations(name) for name in column_names()}


def judge_alterations(column: str) -> dict[str, Any]:
    """Return what the judge says of the alterations of a column: the numbers of verdicts, and a hash of every detail."""
    rng, details = random.Random(column), hashlib.sha256()
    found: Counter[str] = Counter()
    for number, name in enumerate(ALTERATIONS):
        trace = sound_traces()[(number + len(column)) % NUM_KEPT]
        for level in LEVELS[number % 2 :: 2]:
            altered = _alter(trace, column, ALTERATIONS[name], rng)
            for text in _judge(trace, altered, level):
                details.update(f"{name}: {text}\n".encode())
                found[text.partition(" ")[0]] += 1
    return {"found": dict(sorted(found.items())), "sha256": details.hexdigest()[:16]}


def _alter(trace: Trace, column: str, alteration: Alteration, rng: random.Random) -> Trace:
    group, name = column.split(".")
    level = getattr(trace.columns, group)
    values = getattr(level, name).copy()
    if len(values):
        with np.errstate(over="ignore"):
            alteration(values.reshape(-1), rng.randrange(values.size), rng)
    return replace(trace, columns=trace.columns._replace(**{group: level._replace(**{name: values})}))


def _judge(sound: Trace, altered: Trace, level: str) -> Iterator[str]:
    """Yield the refusal, or what the comparison says of a trace that keeps its digests, and of one that has right ones."""
    assert sound.facts is not None
    try:
        check_columns(altered.columns, "altered", num_rules=len(sound.rules or ()), num_facts=len(sound.facts))
    except UserError as error:
        yield f"refused {error}"
        return
    expected = at_level(sound, level)
    for actual in (altered, replace(altered, digests=compute_digests(altered.columns))):
        comparer = Comparer(expected, at_level(actual, level), Options(explains=True))
        compared = withhold_agreement(comparer.compare(), comparer)
        yield f"{compared.verdict.value} {msgspec.json.encode(compared).decode()} {comparer.findings!r}"
    yield f"digest {root_digest(altered.columns.candidates, compute_digests(altered.columns).sequence):x}"
