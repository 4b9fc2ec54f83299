"""Every trace that follows the format gets an answer, whatever its level, columns, variables, program and judge."""

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pytest
from run_engines import needs_compiler

import kgverify as kv
from kgverify import Columns, Equality, Trace, Verdict
from kgverify.dialects import ReferenceEngine
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.header import ClauseTexts

GOLDEN: Final = Path(kv.__file__).parents[1] / "traces" / "countries-deep.h5"
NUM_CANDIDATES: Final = 9
NUM_SHARES: Final = 211
"""The number of tests among which the cases are divided. It is prime, so that each test has every value of every property."""

NECESSARY: Final = {"candidates.query", "candidates.side", "candidates.atom"}
COUNTS: Final = {"steps.num_atoms", "steps.num_resolvents", "resolvents.num_atoms"}
UNKNOWN: Final = (
    (),
    *((column,) for column in sorted(KNOWLEDGE_GRAPH.compared_names - NECESSARY - COUNTS)),
    ("resolvents.origin", "resolvents.origin_kind"),
    ("steps.choice", "resolvents.score"),
)
CHANGED: Final = {
    "nothing": set(),
    "choice": {"steps.choice"},
    "atom": {"resolvents.atoms"},
    "outcome": {"candidates.outcome"},
    "resolvent": {"steps.num_resolvents"},
}
"""The columns in which traces of other content differ. The further resolvents are made by a fact that no program has."""


class Case(NamedTuple):
    """A judged trace, and its judge: the same trace with or without its program, one of level `steps`, or an engine."""

    level: str
    unknown: tuple[str, ...]
    variables: str
    program: str
    content: str
    judge: str


CASES: Final = tuple(
    Case(*each)
    for each in product(
        ("digests", "steps", "deep"),
        UNKNOWN,
        ("canonical", "own"),
        ("known", "unknown", "another"),
        CHANGED,
        ("trace", "trace without program", "steps", "reference", "engine"),
    )
)


@cache
def golden() -> Trace:
    return kv.open_trace(GOLDEN).load()


def change(columns: Columns, content: str) -> Columns:
    candidates, steps, resolvents = columns.candidates, columns.steps, columns.resolvents
    if content == "choice":
        return columns._replace(steps=steps._replace(choice=steps.choice + np.int32(1)))
    if content == "outcome":
        return columns._replace(candidates=candidates._replace(outcome=(candidates.outcome + 1) % 4))
    if content == "atom":
        atoms = resolvents.atoms.copy()
        atoms[0] = 2, 3, 4
        return columns._replace(resolvents=resolvents._replace(atoms=atoms))
    if content == "another candidate":
        atom = candidates.atom.copy()
        atom[3] = atom[4]
        return columns._replace(candidates=candidates._replace(atom=atom))
    if content == "empty goal":
        num_atoms = steps.num_atoms.copy()
        num_atoms[:2] = num_atoms[0] - 1, num_atoms[1] + 1
        return columns._replace(steps=steps._replace(num_atoms=num_atoms))
    if content == "resolvent":
        ends = np.cumsum(steps.num_resolvents, dtype=np.int64)
        further = {"kind": 0, "num_atoms": 1, "origin_kind": 2, "origin": 5000, "score": -9.0}
        made = {name: np.insert(getattr(resolvents, name), ends, value) for name, value in further.items()}
        atoms = np.insert(resolvents.atoms, np.cumsum([0, *resolvents.num_atoms.tolist()])[ends], (2, 3, 4), axis=0)
        more = steps._replace(num_resolvents=steps.num_resolvents + np.uint32(1))
        return columns._replace(steps=more, resolvents=resolvents._replace(atoms=atoms, **made))
    return columns


def write(path: Path, case: Case) -> Path:
    trace = golden()
    engine = msgspec.structs.replace(
        trace.header.engine, name=path.stem, unknown=case.unknown, variables=case.variables
    )
    clauses, texts, digest = kv.Clauses(), ClauseTexts(), {"another": "0" * 64}.get(case.program, "")
    if case.program == "known":
        clauses = kv.Clauses(trace.facts, trace.fact_lines, trace.rules)
        texts, digest = trace.header.clauses, trace.header.program_sha256
    header = msgspec.structs.replace(trace.header, engine=engine, program_sha256=digest, clauses=texts, recording="")
    if case.content == "long goals":
        header = msgspec.structs.replace(header, limits=msgspec.structs.replace(header.limits, max_atoms=1))
    columns = change(select_candidates(trace.columns, np.arange(NUM_CANDIDATES)), case.content)
    storage = kv.Storage(level=case.level)
    with kv.TraceWriter(path, header, trace.symbols, clauses=clauses, storage=storage) as writer:
        writer.append(columns)
    return path


def judge(case: Case, folder: Path) -> kv.Report | None:
    """Return the report; None if a file was refused."""
    sound = case._replace(content="nothing")
    others: dict[str, Any] = {
        "trace": lambda: write(folder / "expected.h5", sound._replace(program="known")),
        "trace without program": lambda: write(folder / "expected.h5", sound._replace(program="unknown")),
        "steps": lambda: write(folder / "expected.h5", Case("steps", (), "canonical", "known", "nothing", "")),
        "reference": lambda: "reference",
        "engine": lambda: ReferenceEngine,
    }
    try:
        actual = write(folder / "actual.h5", case)
        return kv.compare(others[case.judge](), actual, equality=Equality(minimum="none"))
    except kv.UserError:
        return None


@pytest.mark.sample(1, deep=4)
@pytest.mark.parametrize("share", range(NUM_SHARES))
def test_every_combination_of_what_the_format_allows_has_a_sound_answer(share: int, tmp_path: Path):
    seen = set()
    for case in CASES[share::NUM_SHARES]:
        report = judge(case, tmp_path)
        seen.add(None if report is None else report.verdict)
        if report is None:
            continue
        if report.verdict is Verdict.AGREE:
            assert CHANGED[case.content] <= {*report.coverage.not_compared}, case
            assert (case.program, case.judge) not in {("another", "trace"), ("another", "steps")}, case
        if report.verdict is Verdict.DIVERGE:
            assert case.content != "nothing", case
        if case == Case("steps", (), "canonical", "known", "nothing", case.judge):
            assert report.verdict is Verdict.AGREE, case
    assert seen == {None, *Verdict}


@pytest.mark.parametrize("judge_of", ["trace", "trace without program"])
def test_a_resolvent_of_a_fact_that_no_program_has_is_a_divergence(judge_of: str, tmp_path: Path):
    report = judge(Case("steps", (), "canonical", "unknown", "resolvent", judge_of), tmp_path)
    assert report is not None
    assert report.verdict is Verdict.DIVERGE
    assert "by fact 5000" in str(report)


def test_a_deep_trace_with_a_goal_without_atoms_is_judged_by_an_engine(tmp_path: Path):
    report = judge(Case("deep", (), "canonical", "known", "empty goal", "reference"), tmp_path)
    assert report is not None
    assert report.verdict is Verdict.DIVERGE
    assert "1 recorded step starts from a goal with a hole or without atoms, and was not judged" in " ".join(
        str(report).split()
    )


def test_a_candidate_that_begins_with_another_goal_than_its_atom_earns_no_agreement(tmp_path: Path):
    report = judge(Case("steps", (), "canonical", "known", "another candidate", "reference"), tmp_path)
    assert report is not None
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "1 candidates begin with another goal than the atom to prove" in " ".join(report.reasons)


@pytest.mark.parametrize("mode", ["eager", pytest.param("native", marks=needs_compiler)])
def test_a_goal_that_is_longer_than_its_limit_is_judged_by_the_reference_and_refused_by_buffers(
    mode: str, tmp_path: Path
):
    path = write(tmp_path / "actual.h5", Case("steps", (), "canonical", "known", "long goals", ""))
    assert kv.compare("reference", path).verdict is Verdict.DIVERGE
    with pytest.raises(kv.UserError, match="a step exceeds its limits"):
        kv.compare(kv.Evaluator(mode=mode), path)
