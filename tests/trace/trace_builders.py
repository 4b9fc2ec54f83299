"""Small traces to write, damage and compare."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from invoked_commands import invoke

import kgverify as kv
from kgverify import (
    Candidates,
    Clauses,
    Columns,
    EngineInfo,
    Header,
    Limits,
    PolicyInfo,
    Program,
    Rankings,
    Rule,
    RunInfo,
    Stage,
    Storage,
    Symbols,
    Trace,
    TraceWriter,
)
from kgverify.program.atoms import Atom
from kgverify.program.outcomes import STEP_STAGES
from kgverify.trace.model.columns import Resolvents, StageItems, Steps, no_stage_items, select_candidates
from kgverify.trace.model.header import ClauseTexts, InputFile
from kgverify.trace.model.stage_items import encode_stage_outputs

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
PROGRAM: dict[str, Any] = {"facts": FACTS, "fact_lines": FACT_LINES, "rules": RULES}
RANKINGS = Rankings(
    np.array([0, 0, 1], np.int32),
    np.array([0, 1, 0], np.int8),
    np.array([3, 3, 2], np.uint32),
    np.array([1.0, 2, 1]),
    np.array([1.0, 3, 2]),
)


OUTPUTS = [
    {
        Stage.SELECT: (1, 2, -1),
        Stage.MATCH_RULES: (0, 2),
        Stage.MATCH_FACTS: (),
        Stage.RESOLVE: ((1, 0, ((1, 2, -1), (0, -1, 3))), (1, 2, ())),
        Stage.PRUNE: ((1, 0, ((-(2**31), 0, 0),)),),
        Stage.RENAME: (),
        Stage.REVISIT: ((1, 0, ((1, 2, -1),)),),
        Stage.CLOSE: ((0, 1, 0, ((1, 2, -1),)), (2, 0, 0, ())),
        Stage.LIMIT: (((1, 2, 1, ()),), 3, 4),
        Stage.SCORE: (0.5, float("-inf"), -0.0),
        Stage.CHOOSE: -1,
        Stage.ADVANCE: (1, ((0, 0, 0),), 7),
        Stage.FINISH: 3,
    },
    {},
    {Stage.MATCH_FACTS: (5,), Stage.FINISH: 0},
]
"""The outputs of the stages of three steps."""


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
    """Return the outputs of stages of random steps, some of which recorded none."""
    chosen = np.random.default_rng(seed).integers(0, len(OUTPUTS), num_steps)
    return encode_stage_outputs(OUTPUTS[each] for each in chosen)


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


def open_writer(
    path: Path | str, *, header: Header = HEADER, symbols: Symbols = SYMBOLS, **options: Any
) -> TraceWriter:
    """Open a writer with the options of any of its records."""
    grouped = dict(options)
    for name, record in (("clauses", Clauses), ("storage", Storage)):
        names = [field.name for field in fields(record) if field.name in grouped]
        grouped[name] = record(**{each: grouped.pop(each) for each in names})
    return TraceWriter(path, header, symbols, **grouped)


def write_file(path: Path | str, columns: Columns, rankings: Rankings | None = None, **options: Any) -> Trace:
    """Write a trace in one go, with the options of any of a writer's records; return what is read from it."""
    with open_writer(path, **options) as writer:
        writer.append(columns)
        if rankings is not None:
            writer.set_rankings(rankings)
    return read(path)


def read(path: Path | str) -> Trace:
    return kv.open_trace(path, is_lazy=True).load()


def read_mapped(path: Path | str) -> Columns:
    """Read a trace that stays on disk, down to every value and digest, candidate by candidate."""
    mapped = kv.open_trace(path)
    mapped.verify_content()
    for candidate in range(mapped.num_candidates):
        mapped.read_candidates(candidate, candidate + 1)
    return mapped.read_candidates(0, mapped.num_candidates)


def rows(columns: Columns, *bounds: int) -> Columns:
    """Return the candidates of a range."""
    return select_candidates(columns, np.arange(*bounds))


def take(columns: Columns, chosen: Any) -> Columns:
    """Return the candidates with the given rows."""
    return select_candidates(columns, np.asarray(chosen))


def first_item(columns: Columns, stage: Stage) -> int:
    """Return the first item that a stage gave."""
    return int(np.flatnonzero(columns.stages.stage == list(STEP_STAGES).index(stage) + 1)[0])


def run(command: str, *words: object) -> dict[str, Any]:
    """Run `kgverify trace`; return its JSON and its exit code. UserError with what it prints if it ends with 2."""
    done = invoke(["trace", command, *words, "--json", "-"])
    if done.exit_code == 2:
        raise kv.UserError(done.stderr, where=str(words[0]), fix="-")
    assert done.exit_code in (0, 1), done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return {"code": done.exit_code, "warnings": done.stderr, **(json.loads(lines[-1]) if lines else {})}


def edit_manifest(folder: Path, **changes: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))


def flip(path: Path, at: int, bit: int = 4) -> None:
    """Change a bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    path.write_bytes(content)
