"""Known pairs: small traces that differ in everything in which traces can differ, one candidate for each difference."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from kgverify import (
    Candidates,
    Columns,
    EngineInfo,
    Header,
    Limits,
    PolicyInfo,
    Program,
    Rankings,
    Rule,
    RunInfo,
    Symbols,
    Trace,
    TraceLevel,
)
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.program.atoms import Atom
from kgverify.trace.model.columns import Digests, Resolvents, Steps, no_stage_items, select_candidates
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import ClauseTexts
from kgverify.trace.model.schema import has_goals

ERROR: Final = 2.0**-10
"""The error of scores that half of the pairs declare, in nats."""

ONE: Final = {"block_steps": 1, "piece_bytes": 1}
FEW: Final = {"block_steps": 7, "piece_bytes": 64}


class Known(NamedTuple):
    """A known pair, and the options with which it is compared."""

    name: str
    expected: Trace
    actual: Trace
    options: Mapping[str, Any] = MappingProxyType({})


Edits = Mapping[str, Any]
"""New values by path: `1.made.0.score` is the score of the first resolvent of the second step."""

_NAN, _INF = math.nan, math.inf
_NUM_CONSTANTS: Final = 600
_SYMBOLS: Final = Symbols(("p", "q", "r"), tuple(f"c{i}" for i in range(_NUM_CONSTANTS)))
_FACTS: Final = np.array([[i % 3, i, i + 1] for i in range(24)], np.int32)
_RULES: Final = tuple(Rule(Atom(i, -1, -2), (Atom(1, -1, -3), Atom(2, -3, -2))) for i in range(3))


def make_step(number: int) -> dict[str, Any]:
    """Return a step with three resolvents, of which the second is chosen: two goals and, in the third step, TRUE."""
    made = [
        {"kind": 0, "atoms": [(1, 300 + number, -1), (2, -1, 7)], "by": (1, 0), "score": -1.5},
        {"kind": 0, "atoms": [(1, -1, -2), (2, -2, 40)], "by": (1, 1), "score": -0.5},
        {"kind": 0, "atoms": [(0, 5, -1)], "by": (2, 3), "score": -0.75},
        {"kind": 1, "atoms": [], "by": (2, 4), "score": -2.0},
    ]
    return {
        "goal": [(0, 10 + number, -1), (2, -1, 20)],
        "depth": number,
        "made": made,
        "dropped_atoms": 1,
        "dropped_resolvents": 2,
        "choice": 1,
        "outcome": 0 if number < 2 else 2,
    }


def make_resolvents(*replaced: tuple[int, str, Any]) -> list[dict[str, Any]]:
    """Return the resolvents of the second step, with some values replaced."""
    made: list[dict[str, Any]] = make_step(1)["made"]
    for number, name, value in replaced:
        made[number][name] = value
    return made


_FALSE: Final = {"kind": 2, "atoms": [], "by": (0, 0), "score": 0.0}
_LONG: Final = {"steps": [make_step(1) | {"goal": [], "made": [_FALSE], "choice": 0, "depth": i} for i in range(258)]}

DIFFERENCES: Final[Sequence[tuple[Edits, Edits]]] = (
    ({}, {}),
    ({}, {"1.depth": 2}),
    ({}, {"1.depth": 0}),
    ({}, {"1.goal.0": (0, 11 + 256, -1)}),
    ({}, {"0.goal.1": (2, -1, 21)}),
    ({}, {"1.goal.1": (2, -2, 20)}),
    ({}, {"1.goal": [(0, 11, -1)]}),
    ({}, {"1.goal": [(0, 10, -1), (2, -1, 20)]}),
    ({}, {"2.goal": [(0, 77, -1)]}),
    ({}, {"1.made.1.atoms": [(1, -1, -2), (2, -2, 41)]}),
    ({}, {"1.made.0.atoms": [(1, 301, -2), (2, -2, 7)]}),
    ({}, {"1.made.0.atoms": [(1, 301, -1)]}),
    ({}, {"1.made.1.atoms": [(1, -1, -1), (2, -1, 40)]}),
    ({}, {"1.made.3.kind": 2}),
    ({}, {"1.made.3": {"kind": 2, "atoms": [], "by": (0, 0), "score": -2.0}}),
    ({}, {"1.made": make_resolvents()[:2]}),
    ({}, {"1.made": [*make_resolvents(), make_resolvents()[0]]}),
    ({"1.made": [*make_resolvents(), make_resolvents()[0]]}, {}),
    ({"1.made": [*make_resolvents(), make_resolvents()[0]]}, {"1.made": [*make_resolvents(), make_resolvents()[1]]}),
    ({}, {"1.made": [make_resolvents()[2], *make_resolvents()[:2], make_resolvents()[3]], "1.choice": 2}),
    ({}, {"1.made": [make_resolvents()[1], make_resolvents()[0], *make_resolvents()[2:]]}),
    ({}, {"1.made": make_resolvents()[:3], "1.dropped_resolvents": 3}),
    ({}, {"1.made": make_resolvents()[1:], "1.dropped_resolvents": 2, "1.choice": 0, "1.dropped_atoms": 0}),
    ({}, {"1.made.0.by": (1, 2)}),
    ({}, {"1.made.0.by": (2, 0)}),
    ({}, {"1.made.2.by": (2, 5), "1.made.3.by": (2, 3)}),
    ({"1.made": [_FALSE], "1.choice": 0}, {"1.made": [make_resolvents()[0]], "1.choice": 0}),
    ({}, {"1.made": [_FALSE], "1.choice": 0}),
    ({}, {"1.dropped_atoms": 2}),
    ({}, {"1.dropped_atoms": 0}),
    ({}, {"1.dropped_resolvents": 3}),
    ({}, {"1.dropped_resolvents": 0, "2.dropped_resolvents": 9}),
    ({}, {"1.made.0.score": -1.5 + 1e-7}),
    ({}, {"1.made.0.score": -1.5 - ERROR, "2.made.3.score": -2.0 + ERROR}),
    ({}, {"2.made.3.score": -2.0 + 1.25 * ERROR}),
    ({}, {"0.made.0.score": -1.5 - 1.25 * ERROR}),
    ({}, {"0.made.0.score": -1.5 + 3.0}),
    ({"1.made.0.score": _NAN}, {"1.made.0.score": _NAN}),
    ({}, {"1.made.0.score": _NAN}),
    ({"1.made.0.score": -_INF}, {"1.made.0.score": -_INF}),
    ({"1.made.0.score": -_INF}, {"1.made.0.score": _INF}),
    ({"1.made.0.score": -_INF}, {}),
    ({}, {"1.choice": 0}),
    ({}, {"1.choice": -1}),
    ({}, {"1.choice": 257}),
    ({"1.choice": 9}, {"1.choice": 8}),
    ({"1.made.2.score": -0.5}, {"1.made.2.score": -0.5, "1.choice": 2}),
    ({"1.made.2.score": -0.5}, {"1.made.2.score": -0.5 + ERROR, "1.choice": 2}),
    ({"1.made.2.score": -0.5}, {"1.made.2.score": -0.5 + ERROR, "1.choice": 2, "1.outcome": 1}),
    ({"1.made.2.score": -0.5}, {"1.made.2.score": -0.5 + ERROR, "1.choice": 2, "2.outcome": 1}),
    ({"1.made.2.score": -0.5 - ERROR}, {"1.made.2.score": -0.5, "1.choice": 2, "1.made.1.score": -0.5 - ERROR}),
    (
        {"1.made.2.score": -0.5 - 2 * ERROR},
        {"1.made.2.score": -0.5 - ERROR, "1.made.1.score": -0.5 - ERROR, "1.choice": 2},
    ),
    ({"1.made.2.score": -0.5 - 3 * ERROR}, {"1.made.2.score": -0.5 - 3 * ERROR, "1.choice": 2}),
    (
        {"1.made": make_resolvents((0, "score", -0.5), (0, "atoms", make_resolvents()[1]["atoms"]))},
        {"1.made": make_resolvents((0, "score", -0.5), (0, "atoms", make_resolvents()[1]["atoms"])), "1.choice": 0},
    ),
    ({}, {"1.outcome": 1}),
    ({"1.outcome": 2}, {"1.outcome": 1}),
    ({}, {"2.outcome": 3, "outcome": 3}),
    ({}, {"2.made.0.by": (1, 2), "outcome": 1}),
    ({}, {"steps": [make_step(0), make_step(1)]}),
    ({"steps": [make_step(0)]}, {}),
    ({"steps": []}, {"steps": []}),
    ({"steps": []}, {"steps": [make_step(0)]}),
    ({}, {"outcome": 1}),
    ({"outcome": 3}, {}),
    ({}, {"is_limited": 0}),
    ({"is_limited": 0}, {}),
    ({}, {"log_probability": -1.5 + 2e-9}),
    ({}, {"log_probability": -1.5 + 1e-7}),
    ({}, {"log_probability": -1.5 - 5 * ERROR}),
    ({}, {"log_probability": -1.5 - 7 * ERROR}),
    ({"log_probability": -_INF}, {"log_probability": -_INF}),
    ({"log_probability": -_INF}, {}),
    ({}, {"log_probability": -_INF}),
    ({}, {"log_probability": _NAN}),
    ({"log_probability": _NAN}, {"log_probability": _NAN}),
    (
        {"1.made": [make_resolvents()[0], _FALSE], "1.choice": 0},
        {"1.made": [make_resolvents((0, "by", (1, 2)))[0], _FALSE, _FALSE], "1.choice": 0},
    ),
    ({}, {}),
)
"""The edits of the expected and of the actual candidate, the same before them; differences.toml has what is said of each."""

LONG: Final[Sequence[tuple[Edits, Edits]]] = (
    (_LONG, _LONG),
    ({}, {"log_probability": -1.5 - 7 * ERROR}),
    (_LONG, {**_LONG, "257.outcome": 1}),
    ({"1.made.0.score": -1.1}, {"1.made.0.score": -1.1}),
)
"""The same, beside derivations of more steps than a byte counts."""


def _candidate(number: int, edits: Edits) -> dict[str, Any]:
    candidate: dict[str, Any] = {
        "query": number // 4,
        "side": (0, 0, 1, 2)[number % 4],
        "atom": (number % 3, number, 500 - number),
        "steps": [make_step(i) for i in range(3)],
        "outcome": 2,
        "is_limited": 1,
        "log_probability": -1.5,
    }
    for path, value in sorted(edits.items(), key=lambda item: item[0] != "steps"):
        *keys, last = path.split(".")
        place: Any = candidate if not keys else candidate["steps"]
        for key in keys:
            place = place[int(key) if key.isdigit() else key]
        # Only the steps of a candidate are edited further.
        place[int(last) if last.isdigit() else last] = list(map(dict, value)) if last == "steps" else value
    return candidate


def _encode(candidates: Sequence[Any], dtype: Any) -> Columns:
    """Return the columns of candidates."""
    steps = [step for each in candidates for step in each["steps"]]
    made = [each for step in steps for each in step["made"]]

    def atoms(goals: Iterator[Any]) -> Any:
        return np.array([atom for goal in goals for atom in goal], np.int32).reshape(-1, 3)

    def column(items: Sequence[Any], name: str, kind: Any) -> Any:
        return np.array([each[name] for each in items], kind)

    return Columns(
        Candidates(
            column(candidates, "query", np.int32),
            column(candidates, "side", np.int8),
            column(candidates, "atom", np.int32).reshape(-1, 3),
            np.array([len(each["steps"]) for each in candidates], np.uint32),
            column(candidates, "outcome", np.int8),
            column(candidates, "is_limited", np.uint8),
            column(candidates, "log_probability", np.float64),
        ),
        Steps(
            column(steps, "depth", np.uint16),
            np.array([len(each["goal"]) for each in steps], np.uint16),
            np.array([len(each["made"]) for each in steps], np.uint32),
            column(steps, "dropped_atoms", np.uint32),
            column(steps, "dropped_resolvents", np.uint32),
            column(steps, "choice", np.int32),
            column(steps, "outcome", np.int8),
            atoms(each["goal"] for each in steps),
        ),
        Resolvents(
            column(made, "kind", np.uint8),
            np.array([len(each["atoms"]) for each in made], np.uint16),
            np.array([each["by"][0] for each in made], np.uint8),
            np.array([each["by"][1] for each in made], np.int32),
            column(made, "score", dtype),
            atoms(each["atoms"] for each in made),
        ),
        no_stage_items(),
    )


def make_rankings(*rows: tuple[int, int, int, float, float]) -> Rankings:
    """Return rankings from rows of query, side, number of candidates, optimistic and pessimistic rank."""
    query, side, num_ranked, optimistic, pessimistic = zip(*rows, strict=True)
    return Rankings(
        np.array(query, np.int32),
        np.array(side, np.int8),
        np.array(num_ranked, np.uint32),
        np.array(optimistic, np.float64),
        np.array(pessimistic, np.float64),
    )


_RANKINGS: Final = make_rankings((0, 0, 2, 1.0, 1.0), (0, 1, 2, 1.0, 2.0), (1, 0, 2, 2.0, 2.0), (15, 0, 2, 1.0, 2.0))


def make_trace(columns: Columns, *, error: float = 0.0, precision: str = "float64", rankings: Rankings | None) -> Trace:
    """Return a trace with columns and the digests that follow from them."""
    header = Header(
        engine=EngineInfo("known", precision=precision, score_error=error),
        limits=Limits(max_depth=300),
        policy=PolicyInfo("known", score_errors=dict.fromkeys(("float64", "float32"), error)),
        program_sha256=Program(_SYMBOLS, _FACTS, _RULES, (), (), ()).sha256,
        run=RunInfo("known", num_queries=20, num_corruptions=1, rank_tolerance=1e-3),
        clauses=ClauseTexts(
            rules=("r0", "r1", "r2"),
            rule_sources=("rules.txt:1", "rules.txt:2", "rules.txt:3"),
            facts_file="train.txt",
        ),
    )
    names = [f"{group}.{name}" for group in Columns._fields[:-1] for name in getattr(columns, group)._fields]
    return Trace(
        header=header,
        symbols=_SYMBOLS,
        columns=columns,
        digests=compute_digests(columns),
        rankings=rankings,
        facts=_FACTS,
        fact_lines=np.arange(1, len(_FACTS) + 1, dtype=np.int32),
        fields=frozenset(names),
        is_complete=True,
        source="",
        rules=_RULES,
    )


def pair_of(
    rows: Sequence[int],
    *,
    error: float = 0.0,
    dtype: Any = np.float64,
    differences: Sequence[tuple[Edits, Edits]] = DIFFERENCES,
    is_one_query: bool = False,
) -> tuple[Trace, Trace]:
    """Return both traces with some of the differences, of which the actual one has scores of a type.

    is_one_query: whether candidates are numbered by their position, four of each query, else by their difference
    """
    numbers = range(len(rows)) if is_one_query else rows
    sides = [
        [_candidate(number, differences[i][side]) for number, i in zip(numbers, rows, strict=True)] for side in (0, 1)
    ]
    dtypes = np.float64, dtype
    expected, actual = (
        make_trace(_encode(side, kind), error=error if i else 0.0, precision=np.dtype(kind).name, rankings=_RANKINGS)
        for i, (side, kind) in enumerate(zip(sides, dtypes, strict=True))
    )
    policy = msgspec.structs.replace(expected.header.policy, score_errors=actual.header.policy.score_errors)
    return replace(expected, header=msgspec.structs.replace(expected.header, policy=policy)), actual


def with_header(trace: Trace, **changes: Any) -> Trace:
    """Return a trace with other fields in its header."""
    return replace(trace, header=msgspec.structs.replace(trace.header, **changes))


def at_level(trace: Trace, level: str) -> Trace:
    """Return a trace as it is read at a level that keeps less: its digests stay."""
    fields = trace.fields & KNOWLEDGE_GRAPH.columns_kept(TraceLevel(level))
    columns = blank(trace, fields).columns
    if not has_goals(level):
        steps, resolvents = columns.steps, columns.resolvents
        columns = columns._replace(
            steps=steps._replace(goal_atoms=steps.goal_atoms[:0], num_atoms=steps.num_atoms * 0),
            resolvents=resolvents._replace(atoms=resolvents.atoms[:0], num_atoms=resolvents.num_atoms * 0),
        )
    if "resolvents.kind" not in fields:
        none: Any = columns.resolvents
        columns = columns._replace(resolvents=Resolvents(*(column[:0] for column in none)))
    zeros = np.zeros_like(trace.digests.sequence)
    digests = trace.digests if has_goals(level) else Digests(trace.digests.sequence, zeros, zeros)
    return replace(with_header(trace, level=level), columns=columns, digests=digests, fields=fields)


def blank(trace: Trace, fields: frozenset[str]) -> Trace:
    """Return a trace without some columns, which are zeros."""
    columns = trace.columns
    for name in trace.fields - fields:
        group, field = name.split(".")
        level: Any = getattr(columns, group)
        columns = columns._replace(**{group: level._replace(**{field: np.zeros_like(getattr(level, field))})})
    return replace(trace, columns=columns, fields=fields)


def take(trace: Trace, rows: Sequence[int]) -> Trace:
    """Return some candidates of a trace, in any order, once or twice."""
    columns = select_candidates(trace.columns, np.array(rows, np.int64))
    return replace(trace, columns=columns, digests=compute_digests(columns))


def renumber(trace: Trace, *, has_facts: bool = True) -> Trace:
    """Return a trace that numbers its names in another order, and has two names more."""
    num = len(trace.symbols.constants)
    order = (np.arange(num) * 7 + 3) % num
    constants = [*(trace.symbols.constants[i] for i in order.tolist()), "c0'", "c1'"]
    number_of = np.argsort(order)

    def convert(atoms: Any) -> Any:
        converted = atoms.copy()
        converted[:, 0] = 2 - atoms[:, 0]
        for i in (1, 2):
            is_constant = atoms[:, i] >= 0
            converted[is_constant, i] = number_of[atoms[is_constant, i]]
        return converted

    c = trace.columns
    atom = convert(c.candidates.atom)
    atom[-2:, 2] = num, num + 1
    facts = convert(_FACTS)
    by_id = np.lexsort(facts.T[::-1])
    place = np.argsort(by_id).astype(np.int32)
    is_fact = c.resolvents.origin_kind == 2
    origin = c.resolvents.origin.copy()
    origin[is_fact] = place[origin[is_fact]]
    columns = c._replace(
        candidates=c.candidates._replace(atom=atom),
        steps=c.steps._replace(goal_atoms=convert(c.steps.goal_atoms)),
        resolvents=c.resolvents._replace(atoms=convert(c.resolvents.atoms), origin=origin),
    )
    return replace(
        trace,
        symbols=Symbols(trace.symbols.predicates[::-1], tuple(constants)),
        columns=columns,
        digests=compute_digests(columns),
        facts=facts[by_id] if has_facts else None,
        fact_lines=trace.fact_lines if has_facts else None,
    )
