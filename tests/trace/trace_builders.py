"""Small traces to write, damage and compare."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kgverify import EngineInfo, Limits, Stage, TraceWriter
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.program.atoms import Atom
from kgverify.program.outcomes import STEP_STAGES
from kgverify.program.program import Program, Rule, Symbols
from kgverify.trace.model.codec import uncounted
from kgverify.trace.model.columns import (
    NO_DIGESTS,
    Candidates,
    Columns,
    Digests,
    Rankings,
    Resolvents,
    StageItems,
    Steps,
    no_stage_items,
)
from kgverify.trace.model.digests import compute_sequence
from kgverify.trace.model.header import ClauseTexts, Header, InputFile, PolicyInfo, RunInfo, unknown_columns
from kgverify.trace.model.schema import has_goals, parse_level
from kgverify.trace.model.stage_items import encode_stage_outputs
from kgverify.trace.model.trace import NOTHING_UNKNOWN, Trace
from kgverify.trace.write.writer import Clauses, Storage, write_again

NUM_PREDICATES, NUM_CONSTANTS, NUM_FACTS, NUM_RULES = 5, 40, 12, 3

SYMBOLS = Symbols(("locatedIn", "grenzt_an_ü", "p2", "p3", ""), tuple(f"entität {i}" for i in range(NUM_CONSTANTS)))
FACTS = np.array([[i % NUM_PREDICATES, i, i + 1] for i in range(NUM_FACTS)], np.int32)
RULES = tuple(Rule(Atom(i, -1, -2), (Atom(i + 1, -1, -3), Atom(i + 2, -3, -2))[: 1 + i]) for i in range(NUM_RULES))
HEADER = Header(
    engine=EngineInfo("synthetic", mode="eager", layout={"slots": 7}, versions={"numpy": "2"}),
    limits=Limits(max_depth=9),
    policy=PolicyInfo("shortest"),
    program_sha256=Program(SYMBOLS, FACTS, RULES, (), (), ()).sha256,
    run=RunInfo(graph="toy", num_queries=3),
    inputs=(InputFile("train.txt", "cd" * 32),),
    clauses=ClauseTexts(rules=("r0", "r1", "r2"), rule_sources=("rules.txt:1",) * 3, facts_file="train.txt"),
)
FACT_LINES = np.arange(1, NUM_FACTS + 1, dtype=np.int32)
RANKINGS = Rankings(
    np.array([0, 0, 1], np.int32),
    np.array([0, 1, 0], np.int8),
    np.array([3, 3, 2], np.uint32),
    np.array([1.0, 2, 1]),
    np.array([1.0, 3, 2]),
)


def make_columns(
    seed: int, num_candidates: int, *, score_dtype: type = np.float64, has_stages: bool = False
) -> Columns:
    """Random candidates: ragged at every level, steps without candidates and goals of no atoms included."""
    random = np.random.default_rng(seed)

    def atoms(counts: np.ndarray) -> np.ndarray:
        total = int(counts.sum())
        arguments = random.integers(-4, NUM_CONSTANTS, (total, 2))
        return np.column_stack([random.integers(0, NUM_PREDICATES, total), arguments]).astype(np.int32)

    num_steps = random.integers(0, 5, num_candidates).astype(np.uint32)
    t = int(num_steps.sum())
    num_resolvents = random.integers(0, 6, t).astype(np.uint32)
    r = int(num_resolvents.sum())
    goal_sizes = random.integers(0, 5, t).astype(np.uint16)
    kind = random.choice(np.array([0, 0, 0, 1, 2], np.uint8), r)
    sizes = np.where(kind == 0, random.integers(0, 5, r), 0).astype(np.uint16)
    return Columns(
        Candidates(
            random.integers(0, 99, num_candidates).astype(np.int32),
            random.integers(0, 3, num_candidates).astype(np.int8),
            atoms(np.array([num_candidates])),
            num_steps,
            random.integers(0, 4, num_candidates).astype(np.int8),
            random.integers(0, 2, num_candidates).astype(np.uint8),
            random.normal(size=num_candidates),
        ),
        Steps(
            random.integers(0, 20, t).astype(np.uint16),
            goal_sizes,
            num_resolvents,
            random.integers(0, 3, t).astype(np.uint32),
            random.integers(0, 3, t).astype(np.uint32),
            random.integers(-1, 6, t).astype(np.int32),
            random.integers(0, 4, t).astype(np.int8),
            atoms(goal_sizes),
        ),
        Resolvents(
            kind,
            sizes,
            random.integers(0, 3, r).astype(np.uint8),
            random.integers(0, NUM_RULES, r).astype(np.int32),
            random.normal(size=r).astype(score_dtype),
            atoms(sizes),
        ),
        make_stages(seed, t) if has_stages else no_stage_items(),
    )


def make_malformed(columns: Columns, seed: int = 0) -> Columns:
    """The same with what only a wrong engine makes: holes, ids without names, kinds with atoms, terminal actions."""
    random = np.random.default_rng(seed)

    def damage(atoms: np.ndarray) -> np.ndarray:
        damaged = atoms.copy()
        where = random.random(len(atoms))
        damaged[where < 0.2] = -1, 0, 0
        damaged[(where >= 0.2) & (where < 0.3), 0] = NUM_PREDICATES + 2
        damaged[(where >= 0.3) & (where < 0.4), 1] = 2**31 - 1
        return damaged

    resolvents = columns.resolvents
    kind = random.integers(0, 4, len(resolvents.kind)).astype(np.uint8)
    return columns._replace(
        candidates=columns.candidates._replace(
            query=np.arange(len(columns.candidates.query), dtype=np.int32), atom=damage(columns.candidates.atom)
        ),
        steps=columns.steps._replace(goal_atoms=damage(columns.steps.goal_atoms)),
        resolvents=resolvents._replace(kind=kind, atoms=damage(resolvents.atoms)),
    )


def make_stages(seed: int, num_steps: int) -> StageItems:
    """Random outputs of random stages, some of them empty."""
    random = np.random.default_rng(seed)

    def number(most: int) -> int:
        return int(random.integers(most))

    def goal(most: int = 4) -> tuple[tuple[int, int, int], ...]:
        rows = (random.integers(-4, NUM_CONSTANTS, 2).tolist() for _ in range(number(most)))
        return tuple((-(2**31) if number(9) == 0 else number(NUM_PREDICATES), a, b) for a, b in rows)

    def items(kinds: int = 0) -> tuple:
        made = ((number(3), number(NUM_RULES), goal()) for _ in range(number(4)))
        return tuple((number(kinds), *each) if kinds else each for each in made)

    give = {
        Stage.SELECT: lambda: (number(NUM_PREDICATES), number(NUM_CONSTANTS), -1),
        Stage.MATCH_RULES: lambda: tuple(random.integers(0, NUM_RULES, number(4)).tolist()),
        Stage.MATCH_FACTS: lambda: tuple(random.integers(0, NUM_FACTS, number(4)).tolist()),
        Stage.CLOSE: lambda: items(3),
        Stage.LIMIT: lambda: (items(3), 0, 0),
        Stage.SCORE: lambda: tuple(random.normal(size=number(4)).tolist()),
        Stage.CHOOSE: lambda: number(4) - 1,
        Stage.ADVANCE: lambda: (number(3), goal(), number(20)),
        Stage.FINISH: lambda: number(4),
    }
    return encode_stage_outputs(
        {stage: give.get(stage, items)() for stage in STEP_STAGES if number(5)} for _ in range(num_steps)
    )


def one_step(
    goal: list[tuple[int, int, int]],
    resolvents: list[list[tuple[int, int, int]]],
    *,
    choice: int = 0,
    outcome: int = 0,
) -> Columns:
    """One candidate with one step; a resolvent of no atoms is TRUE."""

    def atoms(goals: list[list[tuple[int, int, int]]]) -> np.ndarray:
        return np.array([a for g in goals for a in g], np.int32).reshape(-1, 3)

    n = len(resolvents)
    return Columns(
        Candidates(
            np.zeros(1, np.int32),
            np.full(1, 2, np.int8),
            atoms([goal])[:1],
            np.ones(1, np.uint32),
            np.array([outcome], np.int8),
            np.zeros(1, np.uint8),
            np.zeros(1),
        ),
        Steps(
            np.zeros(1, np.uint16),
            np.array([len(goal)], np.uint16),
            np.array([n], np.uint32),
            np.zeros(1, np.uint32),
            np.zeros(1, np.uint32),
            np.array([choice], np.int32),
            np.array([outcome], np.int8),
            atoms([goal]),
        ),
        Resolvents(
            np.array([not g for g in resolvents], np.uint8),
            np.array([len(g) for g in resolvents], np.uint16),
            np.ones(n, np.uint8),
            np.zeros(n, np.int32),
            np.zeros(n),
            atoms(resolvents),
        ),
    )


def assert_same_columns(actual: Columns, expected: Columns) -> None:
    """Bit for bit, NaN included."""
    for actual_level, expected_level in zip(actual, expected, strict=True):
        for name in expected_level._fields:
            a, b = getattr(actual_level, name), getattr(expected_level, name)
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), name


def assert_same_trace(actual: Trace, expected: Trace) -> None:
    """Everything but the source and the id of the recording."""
    assert_same_columns(actual.columns, expected.columns)
    assert msgspec.structs.replace(actual.header, recording="") == msgspec.structs.replace(
        expected.header, recording=""
    )
    for name in ("symbols", "fields", "is_complete", "root"):
        assert getattr(actual, name) == getattr(expected, name), name
    for a, b in zip(actual.digests, expected.digests, strict=True):
        np.testing.assert_array_equal(a, b)
    for name in ("rankings", "facts", "fact_lines"):
        a, b = getattr(actual, name), getattr(expected, name)
        assert (a is None) == (b is None), name
        if a is not None:
            for x, y in zip(a, b, strict=True):
                np.testing.assert_array_equal(x, y)


def group_options(options: dict[str, Any]) -> dict[str, Any]:
    """Sort the options of a writer into the records that it takes."""
    grouped = dict(options)
    for name, record in (("clauses", Clauses), ("storage", Storage)):
        names = [field.name for field in fields(record) if field.name in grouped]
        grouped[name] = record(**{each: grouped.pop(each) for each in names})
    return grouped


def open_writer(path: Path | str, header: Header, symbols: Symbols, **options: Any) -> TraceWriter:
    """Open a writer with the options of any of its records."""
    return TraceWriter(path, header, symbols, **group_options(options))


def write_file(
    path: Path | str,
    header: Header,
    symbols: Symbols,
    columns: Columns,
    rankings: Rankings | None = None,
    **options: Any,
) -> None:
    """Write a trace as one file, without an id of its recording, with the options of any of a writer's records."""
    grouped = group_options(options)
    clauses, storage = grouped["clauses"], grouped["storage"]
    absent = frozenset(storage.absent) | (KNOWLEDGE_GRAPH.optional & unknown_columns(header.engine))
    level = parse_level(storage.level or header.level, str(path))
    header = msgspec.structs.replace(header, level=level.value, absent=tuple(uncounted(level, absent)))
    digests = [compute_sequence(columns, absent)] * 3 if not has_goals(level) else NO_DIGESTS
    trace = Trace(
        header=header,
        symbols=symbols,
        columns=columns,
        digests=Digests(*digests),
        rankings=rankings,
        facts=clauses.facts,
        fact_lines=clauses.fact_lines,
        fields=frozenset(field.name for field in KNOWLEDGE_GRAPH.columns) - absent,
        is_complete=True,
        source=str(path),
        rules=clauses.rules,
        unknown=grouped.get("unknown", NOTHING_UNKNOWN),
    )
    write_again(trace, Path(path), is_archived=storage.is_archived)
