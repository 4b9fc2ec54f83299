"""Small traces to write, damage and compare."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from invoked_commands import invoke

import kgverify as kv
from kgverify.cli.entries import ENTRIES
from kgverify.escaping import make_visible
from kgverify.program.atoms import Atom
from kgverify.trace.model.columns import Resolvents, StageItems, Steps, no_stage_items, select_candidates
from kgverify.trace.model.header import ClauseTexts, InputFile
from kgverify.trace.model.stage_items import encode_stage_outputs

NUM_PREDICATES, NUM_CONSTANTS, NUM_FACTS, NUM_RULES = 5, 40, 12, 3

SYMBOLS = kv.Symbols(("locatedIn", "grenzt_an_ü", "p2", "p3", ""), tuple(f"entität {i}" for i in range(NUM_CONSTANTS)))
FACTS = np.array([[i % NUM_PREDICATES, i, i + 1] for i in range(NUM_FACTS)], np.int32)
RULES = tuple(kv.Rule(Atom(i, -1, -2), (Atom(i + 1, -1, -3), Atom(i + 2, -3, -2))[: 1 + i]) for i in range(NUM_RULES))
HEADER = kv.Header(
    engine=kv.EngineInfo("synthetic", mode="eager", layout={"slots": 7}, versions={"numpy": "2"}),
    limits=kv.Limits(max_depth=9),
    policy=kv.PolicyInfo("shortest"),
    program_sha256=kv.Program(SYMBOLS, FACTS, RULES, (), (), ()).sha256,
    run=kv.RunInfo(graph="toy", num_queries=3),
    inputs=(InputFile("train.txt", "cd" * 32),),
    clauses=ClauseTexts(rules=("r0", "r1", "r2"), rule_sources=("rules.txt:1",) * 3, facts_file="train.txt"),
)
FACT_LINES = np.arange(1, NUM_FACTS + 1, dtype=np.int32)
PROGRAM: dict[str, Any] = {"facts": FACTS, "fact_lines": FACT_LINES, "rules": RULES}
RANKINGS = kv.Rankings(
    np.array([0, 0, 1], np.int32),
    np.array([0, 1, 0], np.int8),
    np.array([3, 3, 2], np.uint32),
    np.array([1.0, 2, 1]),
    np.array([1.0, 3, 2]),
)


OUTPUTS = [
    {
        kv.Stage.SELECT: (1, 2, -1),
        kv.Stage.MATCH_RULES: (0, 2),
        kv.Stage.MATCH_FACTS: (),
        kv.Stage.RESOLVE: ((1, 0, ((1, 2, -1), (0, -1, 3))), (1, 2, ())),
        kv.Stage.PRUNE: ((1, 0, ((-(2**31), 0, 0),)),),
        kv.Stage.RENAME: (),
        kv.Stage.REVISIT: ((1, 0, ((1, 2, -1),)),),
        kv.Stage.CLOSE: ((0, 1, 0, ((1, 2, -1),)), (2, 0, 0, ())),
        kv.Stage.LIMIT: (((1, 2, 1, ()),), 3, 4),
        kv.Stage.SCORE: (0.5, float("-inf"), -0.0),
        kv.Stage.CHOOSE: -1,
        kv.Stage.ADVANCE: (1, ((0, 0, 0),), 7),
        kv.Stage.FINISH: 3,
    },
    {},
    {kv.Stage.MATCH_FACTS: (5,), kv.Stage.FINISH: 0},
]
"""The outputs of the stages of three steps."""


def make_columns(
    seed: int, num_candidates: int, *, score_dtype: type = np.float64, has_stages: bool = False
) -> kv.Columns:
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
    return kv.Columns(
        kv.Candidates(
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


def make_malformed(columns: kv.Columns, seed: int = 0) -> kv.Columns:
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
) -> kv.Columns:
    """One candidate with one step; a resolvent of no atoms is TRUE."""

    def column(dtype: str, *values: float) -> np.ndarray:
        return np.array(values, dtype)

    n = len(resolvents)
    atoms = np.array(goal, np.int32)
    made = np.array([atom for resolvent in resolvents for atom in resolvent], np.int32).reshape(-1, 3)
    steps = column("u2", 0), column("u2", len(goal)), column("u4", n), column("u4", 0), column("u4", 0)
    kinds, sizes = column("u1", *(not each for each in resolvents)), column("u2", *map(len, resolvents))
    ends = column("i1", outcome), column("u1", 0), column("f8", 0)
    return kv.Columns(
        kv.Candidates(column("i4", 0), column("i1", 2), atoms[:1], column("u4", 1), *ends),
        Steps(*steps, column("i4", choice), column("i1", outcome), atoms),
        Resolvents(kinds, sizes, np.ones(n, np.uint8), np.zeros(n, np.int32), np.zeros(n), made),
    )


def assert_same_columns(actual: kv.Columns, expected: kv.Columns) -> None:
    """Bit for bit, NaN included."""
    for actual_level, expected_level in zip(actual, expected, strict=True):
        for name in expected_level._fields:
            a, b = getattr(actual_level, name), getattr(expected_level, name)
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), name


def assert_same_trace(actual: kv.Trace, expected: kv.Trace) -> None:
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
    path: Path | str,
    *,
    header: kv.Header = HEADER,
    symbols: kv.Symbols = SYMBOLS,
    part: kv.Part | None = None,
    **options: Any,
) -> kv.TraceWriter:
    """Open a writer with the options of any of its records."""
    header = header if part is None else msgspec.structs.replace(header, part=part)
    grouped = dict(options)
    for name, record in (("clauses", kv.Clauses), ("storage", kv.Storage)):
        names = [field.name for field in fields(record) if field.name in grouped]
        grouped[name] = record(**{each: grouped.pop(each) for each in names})
    return kv.TraceWriter(path, header, symbols, **grouped)


def append(writer: kv.TraceWriter, columns: kv.Columns, end: int | None = None, batch: int = 1) -> None:
    """Append the candidates that a writer does not have, up to one of them, in batches."""
    end = len(columns.candidates.query) if end is None else end
    for begin in range(writer.num_appended, end, batch):
        writer.append(rows(columns, begin, min(begin + batch, end)))


def write_shards(
    path: Path, columns: kv.Columns, rankings: kv.Rankings | None = None, batch: int = 1, **options: Any
) -> None:
    """Write a trace in shards of 20 steps, or resume it."""
    with open_writer(path, **{"shard_steps": 20, **options}) as writer:
        append(writer, columns, batch=batch)
        if rankings is not None:
            writer.set_rankings(rankings)


def write_file(path: Path | str, columns: kv.Columns, rankings: kv.Rankings | None = None, **options: Any) -> kv.Trace:
    """Write a trace in one go, with the options of any of a writer's records; return what is read from it."""
    with open_writer(path, **options) as writer:
        writer.append(columns)
        if rankings is not None:
            writer.set_rankings(rankings)
    return read(path)


def read(path: Path | str) -> kv.Trace:
    return kv.open_trace(path, is_lazy=True).load()


def read_mapped(path: Path | str) -> kv.Columns:
    """Read a trace that stays on disk, down to every value and digest, candidate by candidate."""
    mapped = kv.open_trace(path)
    mapped.verify_content()
    for candidate in range(mapped.num_candidates):
        mapped.read_candidates(candidate, candidate + 1)
    return mapped.read_candidates(0, mapped.num_candidates)


def rows(columns: kv.Columns, *bounds: int) -> kv.Columns:
    """Return the candidates of a range."""
    return take(columns, np.arange(*bounds))


def take(columns: kv.Columns, chosen: Any) -> kv.Columns:
    """Return the candidates with the given rows."""
    return select_candidates(columns, np.asarray(chosen))


def run(command: str, *words: object) -> dict[str, Any]:
    """Run `kgverify trace`; return its JSON, if it has one, and its exit code. UserError with its output if it fails."""
    has_json = command not in ENTRIES["trace"].without_json
    done = invoke(["trace", command, *words, *(("--json", "-") if has_json else ())])
    if done.exit_code in (2, 74):
        raise kv.UserError(done.stderr, where=str(words[0]), fix="-")
    assert done.exit_code in (0, 1), done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    report = json.loads(lines[-1]) if lines else {}
    printed = " ".join(done.stderr.split())
    assert [line for line in list_printed(command, report) if " ".join(make_visible(line).split()) not in printed] == []
    return {"code": done.exit_code, "warnings": done.stderr if has_json else done.output, **report}


def list_printed(command: str, report: dict[str, Any]) -> list[str]:
    """Return what `kgverify trace` prints beside its JSON."""

    def count(each: dict[str, Any]) -> str:
        nums = [(each[f"num_{what}s"], what) for what in ("candidate", "step")]
        return ", ".join(f"{num:,} {what}{'s' * (num != 1)}" for num, what in nums if num is not None)

    notes = [f"note: {note}" for note in report.get("notes", ())]
    if command == "repair":
        lost = [
            f"lost from {each['name']}: {count(each) or 'an unknown amount'} ({each['reason']})"
            for each in report["losses"]
        ]
        original = [f"the unrepaired trace: {report['original']}"] * bool(report["original"])
        what = "repaired" if report["is_changed"] else "nothing to repair"
        return [*lost, *notes, *original, f"{report['path']}: {what}, {count(report)} kept"]
    if command == "check":
        parts = [
            f"{each['name']} {each['problem'] or 'ok'}{count(each) and f', {count(each)}'}" for each in report["parts"]
        ]
        root = f", root {report['root']}" if report["root"] else ""
        return [*parts, *notes, f"{report['path']}: {report['state']}, {count(report)} readable{root}"]
    return [f": {count(report)}, root {report['root']}"] if command == "join" else []


def edit_manifest(folder: Path, **changes: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))


def flip(path: Path, at: int, bit: int = 4) -> None:
    """Change a bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    path.write_bytes(content)
