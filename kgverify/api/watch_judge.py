"""The judge of a watched engine, in another process: it takes the sampled steps again by the reference, and compares."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.api.compare import compare
from kgverify.api.inputs import make_engine
from kgverify.comparison.classify import group_causes
from kgverify.comparison.compare import KEPT, Comparer, Options
from kgverify.comparison.equality import Equality
from kgverify.comparison.inference.infer import name_in_dialect
from kgverify.comparison.result import Divergence, Level
from kgverify.comparison.step_view import Names, outcome_name
from kgverify.engines.adapters.encoding import Encoding
from kgverify.engines.adapters.stepwise import Memory
from kgverify.engines.adapters.tensor import TensorEngine, read_call
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Positions, positions_of, take_positions
from kgverify.evaluation.judge import Judge as JudgeOfEndings
from kgverify.evaluation.judge import derive_endings
from kgverify.files.writing import make_folders, write_file
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.limits import DeclaredLimits, Limits
from kgverify.program.outcomes import Stage
from kgverify.program.program import Program
from kgverify.progress import no_progress
from kgverify.runs.job import EngineLike, Job
from kgverify.runs.pool import make_once
from kgverify.runs.retake import retake_steps
from kgverify.runs.run import Pipeline, Run, build_trace, with_reference_ranking
from kgverify.trace.lines.import_lines import import_lines
from kgverify.trace.model.columns import (
    Candidates,
    CandidateSet,
    Columns,
    concatenate,
    join_candidates,
    select_candidates,
)
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import read_trace
from kgverify.verification.recorded import compare_recorded
from kgverify.verification.rounding import bound_recorded
from kgverify.verification.save import locked_run, save_verification

MOST_SHOWN: Final = 16
"""The most divergent steps of a saved run; up to three times as many right steps stand beside them."""

CALL: Final = "call.npz"

_ENDINGS: Final = "the ending of a candidate"
_ALONE: Final = "differs in the batch that ran, and not alone"


class TensorForm(NamedTuple):
    """The attributes of a `TensorEngine` with which its states are read."""

    encoding: Encoding
    memory: Memory
    max_atoms: int | None
    max_depth: int | None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that the judge needs, for its process.

    program: None for JSON lines, which bring their own or name that of `job`
    save:    the folder of the saved runs; None for none
    """

    program: Program | None
    limits: Limits | DeclaredLimits
    policy: Policy
    info: EngineInfo
    reference: EngineLike
    equality: Equality
    save: Path | None
    max_saved: int
    form: TensorForm | None = None
    job: Job | None = None


class Sample(NamedTuple):
    """Rows of one call of an engine, as they were given and returned.

    kind:   `expand`: three arrays and a result; `steps`: positions and columns; `prove`: columns; `evaluate`: candidates with
            their endings; `alone`: columns of candidates whose endings differed; `lines`: lines of text
    number: the call, counted from 1
    first, stride: the first row, and the distance to the next one
    size:   the number of rows
    """

    kind: str
    number: int
    first: int
    stride: int
    size: int
    content: Any


class FoundCause(NamedTuple):
    """Divergences of one cause in a batch of samples. folder: the saved run; None if this cause has one already."""

    stage: str
    kind: str
    num: int
    first: Divergence
    call: int
    row: int
    folder: Path | None


class Judged(NamedTuple):
    """The judgement of some samples.

    num_judged:   steps or, of an evaluation, candidates that were compared
    num_idle:     rows without a goal, or without the query that the dialect excludes
    num_unjudged: rows that the reference could not take
    suspects:     candidates whose endings differ, and whose steps are therefore asked for
    """

    num_judged: int = 0
    num_idle: int = 0
    num_unjudged: int = 0
    num_near_ties: int = 0
    causes: tuple[FoundCause, ...] = ()
    suspects: CandidateSet | None = None
    error: str = ""


class _Described(NamedTuple):
    """An engine of which only its info is here."""

    info: EngineInfo


class _Steps(NamedTuple):
    """Sampled steps, each as a candidate, with the call and the row of each."""

    positions: Positions
    columns: Columns
    call: NDArray[np.int64]
    row: NDArray[np.int64]


def judge(content: bytes, name: str, samples: Sequence[Sample]) -> list[Judged]:
    """Judge samples in this process; `content` and `name` come from `send_maker`."""
    made: SampleJudge = make_once(content, name)
    return made.judge(samples)


class SampleJudge:
    """A judge, made once in its process."""

    def __init__(self, setting: Setting) -> None:
        # The engine's own process comes first.
        with suppress(OSError):
            os.nice(19)
        self._setting, self._saved = setting, set[tuple[str, str]]()
        self._reference_name: Any = getattr(setting.reference, "name", setting.reference)
        if setting.program is None:
            return
        graph = KnowledgeGraph("watched", ())
        # As for the program of a trace.
        graph.__dict__["program"] = setting.program
        self._run = Run(graph, DeclaredLimits(**msgspec.structs.asdict(setting.limits)).with_defaults(), setting.policy)
        self._reference = make_engine(
            setting.reference, setting.program, self._run.limits, setting.policy, where="reference"
        )
        if setting.form is not None:
            # Only the names and the limits of the policy matter here: the steps are recorded.
            self._reader = TensorEngine(setting.program, self._run.limits, Policy("shortest"))
            self._reader.arrays, self._reader.encoding = "numpy", setting.form.encoding
            self._reader.memory = setting.form.memory
            self._reader.max_atoms, self._reader.max_depth = setting.form.max_atoms, setting.form.max_depth

    def judge(self, samples: Sequence[Sample]) -> list[Judged]:
        """Judge samples: those of one kind together, and one by one if that fails."""
        kinds = dict.fromkeys(each.kind for each in samples)
        groups = [[each for each in samples if each.kind == kind] for kind in kinds]
        judged = []
        while groups:
            group = groups.pop(0)
            try:
                judged.append(self._judge(group))
            except Exception as error:
                if len(group) > 1:
                    groups += [[each] for each in group]
                else:
                    judged.append(Judged(num_unjudged=group[0].size, error=f"{type(error).__name__}: {error}"))
        return judged

    def _judge(self, samples: Sequence[Sample]) -> Judged:
        kind = samples[0].kind
        if kind == "lines":
            return self._judge_lines(samples)
        if kind == "evaluate":
            return self._judge_endings(samples)
        parts = [self._read(each) for each in samples]
        size = sum(each.size for each in samples)
        steps = _Steps(*map(_join, zip(*parts, strict=True)))
        num = len(steps.columns.candidates.query)
        steps = steps._replace(
            columns=steps.columns._replace(
                candidates=steps.columns.candidates._replace(query=np.arange(num, dtype=np.int32))
            )
        )
        num_steps = len(steps.columns.steps.depth)
        if not num:
            return Judged(num_idle=size)
        setting = self._setting
        actual = build_trace(self._run, _Described(setting.info), steps.columns, None)  # type: ignore[arg-type]
        expected, num_left = retake_steps(
            actual, lambda *_: self._reference, DeclaredLimits(), self._run.policy, steps.positions
        )
        found = self._compare(expected, actual, steps, samples)
        found = found._replace(num_judged=num_steps - num_left, num_unjudged=num_left)
        if kind != "alone":
            return found._replace(num_idle=size - num if kind == "expand" else 0)
        if found.causes:
            return found._replace(num_judged=0)
        # Alone, these candidates are proved as they should be: their surroundings changed them.
        first = _describe_ending(Names(actual), steps.columns.candidates.atom[0], "", "")
        first = msgspec.structs.replace(first, stage=Stage.RECYCLE.value, expected=_ENDINGS, actual=_ALONE)
        cause = FoundCause(Stage.RECYCLE.value, _ALONE, num, first, samples[0].number, int(steps.row[0]), None)
        return Judged(causes=(cause,))

    def _read(self, sample: Sample) -> _Steps:
        if sample.kind == "expand":
            given, result = sample.content
            positions, columns = read_call(self._reader, given, result)
        elif sample.kind == "steps":
            positions, columns = sample.content
        else:
            columns = sample.content
            positions = positions_of(columns)
        rows = sample.first + sample.stride * columns.candidates.query.astype(np.int64)
        if sample.kind in ("prove", "alone"):
            rows = sample.first + sample.stride * np.arange(len(columns.candidates.query))
        return _Steps(positions, columns, np.full(len(rows), sample.number), rows)

    def _compare(self, expected: Trace, actual: Trace, steps: _Steps, samples: Sequence[Sample]) -> Judged:
        options = Options(kept=KEPT, explains=True, equality=self._setting.equality)
        comparer = Comparer(expected, actual, options)
        comparison = comparer.compare()
        tolerance = bound_recorded(comparer, comparison, self._setting.equality.accepted_error)
        if tolerance is not None:
            comparer = Comparer(expected, actual, options._replace(tolerance=tolerance))
            comparison = comparer.compare()
        dialect = self._run.limits.dialect
        divergences, _ = group_causes(*name_in_dialect(comparison.divergences, comparer.findings, dialect))
        by_cause: dict[tuple[str, str], list[Divergence]] = {}
        for each in divergences:
            by_cause.setdefault((each.stage, each.kind.value), []).append(each)
        wrong = {each.candidate for each in divergences}
        causes = []
        for key, members in by_cause.items():
            rows = [each.candidate for each in members][:MOST_SHOWN]
            right = [row for row in range(len(steps.row)) if row not in wrong][: 3 * MOST_SHOWN]
            folder = self._save(key, expected, actual, np.array(sorted({*rows, *right})))
            first = members[0]
            call, row = int(steps.call[first.candidate]), int(steps.row[first.candidate])
            if folder is not None:
                self._write_reproducer(folder, samples, steps, call, row, first)
            causes.append(FoundCause(*key, len(members), first, call, row, folder))
        return Judged(num_near_ties=len(comparison.near_ties), causes=tuple(causes))

    def _save(self, key: tuple[str, str], expected: Trace, actual: Trace, rows: NDArray[np.int64]) -> Path | None:
        """Save the steps of some rows as a run, for `kgverify show`; None if this cause has one, or there are enough."""
        save = self._setting.save
        if save is None or key in self._saved or len(self._saved) >= self._setting.max_saved:
            return None
        self._saved.add(key)
        sides = [_select(each, rows) for each in (expected, actual)]
        folder = save / "-".join(key).replace(" ", "-")
        recorded = compare_recorded(*sides, equality=self._setting.equality, is_retaken=True)
        make_folders(folder)
        with locked_run(folder):
            save_verification(recorded, folder)
        return folder

    def _write_reproducer(
        self, folder: Path, samples: Sequence[Sample], steps: _Steps, call: int, row: int, first: Divergence
    ) -> None:
        sample = next(each for each in samples if each.number == call)
        at = slice((row - sample.first) // sample.stride, (row - sample.first) // sample.stride + 1)
        if sample.kind == "expand":
            given, _ = sample.content
            names = ("states", "next_variable", "excluded")
            np.savez(folder / CALL, **dict(zip(names, (each[at] for each in given), strict=True)))
            lines = _EXPAND
        else:
            atom = steps.columns.candidates.atom[first.candidate].tolist()
            method = "evaluate" if sample.kind == "alone" else "prove"
            lines = _PROVE.format(atom=atom, method=method)
            if sample.kind == "steps":
                positions = take_positions(steps.positions, np.array([first.candidate]))
                ends = np.cumsum(positions.num_atoms).tolist()
                atoms = [tuple(each) for each in positions.atoms.tolist()]
                goals = [tuple(atoms[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
                lines = _STEPS.format(query=tuple(atom), visited=goals)
        write_file(folder / "reproduce.py", _REPRODUCE.format(lines=lines, reference=self._reference_name))

    def _judge_endings(self, samples: Sequence[Sample]) -> Judged:
        actual: Candidates = join_candidates([each.content for each in samples])
        reference = with_reference_ranking(self._reference)
        pipeline: Pipeline = reference._replace(engine=_Described(self._setting.info))  # type: ignore[arg-type]
        endings = derive_endings(self._run, pipeline, reference, actual.atom, no_progress)
        results: Any = None
        found = JudgeOfEndings(self._run, results, reference, endings, rank_only=False).compare_single(actual)
        if not len(found.wrong):
            return Judged(num_judged=len(actual.query), num_near_ties=int(found.is_near_tie.sum()))
        rows = found.wrong
        names = Names(build_trace(self._run, _Described(self._setting.info), concatenate([]), None))  # type: ignore[arg-type]
        at = int(rows[0])
        sides = [
            f"{outcome_name(int(each.outcome[at]))}, {each.log_probability[at]:.6g}"
            for each in (found.expected, actual)
        ]
        first = _describe_ending(names, actual.atom[at], *sides)
        cause = FoundCause("", _ENDINGS, len(rows), first, samples[0].number, int(actual.query[at]), None)
        suspects = CandidateSet(*actual[:3]).take(rows[:MOST_SHOWN])
        return Judged(len(actual.query), num_near_ties=int(found.is_near_tie.sum()), causes=(cause,), suspects=suspects)

    def _judge_lines(self, samples: Sequence[Sample]) -> Judged:
        setting = self._setting
        with tempfile.TemporaryDirectory(prefix="kgverify-watch-") as name:
            lines = "".join(line for each in samples for line in each.content[1])
            Path(name, "lines.jsonl").write_text(samples[0].content[0] + lines, encoding="utf-8")
            import_lines(Path(name, "lines.jsonl"), Path(name, "trace"))
            trace = read_trace(Path(name, "trace"))
            job = setting.job if trace.facts is None else None
            limits = DeclaredLimits(**msgspec.structs.asdict(setting.limits))
            report = compare(self._reference_name, trace, equality=setting.equality, limits=limits, job=job)
            num_steps = len(trace.columns.steps.depth)
            causes = []
            for cause in report.causes:
                first, key, folder = report.divergences[cause.first], (cause.stage, cause.kind.value), None
                if setting.save is not None and key not in self._saved and len(self._saved) < setting.max_saved:
                    self._saved.add(key)
                    folder = setting.save / "-".join(key).replace(" ", "-")
                    compare(self._reference_name, trace, equality=setting.equality, limits=limits, job=job, save=folder)
                    write_file(folder / "steps.jsonl", samples[0].content[0] + lines)
                causes.append(
                    FoundCause(*key, cause.num_divergences, first, samples[0].number, first.candidate, folder)
                )
        return Judged(num_steps, num_near_ties=len(report.near_ties), causes=tuple(causes))


def _describe_ending(names: Names, atom: NDArray[np.int32], expected: str, actual: str) -> Divergence:
    """Return a divergence of the ending of a candidate."""
    predicate, first, second = atom.tolist()
    return Divergence(
        candidate=0,
        atom=names.atom((predicate, first, second)),
        query=-1,
        side="",
        step=-1,
        stage="",
        field="candidates.outcome",
        level=Level.OUTCOME,
        expected=expected,
        actual=actual,
    )


def _select(trace: Trace, rows: NDArray[np.int64]) -> Trace:
    columns = select_candidates(trace.columns, rows)
    return replace(trace, columns=columns, digests=compute_digests(columns))


def _join(parts: Sequence[Any]) -> Any:
    """Concatenate arrays, columns or positions."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    if isinstance(parts[0], Columns):
        return concatenate(parts)
    return type(parts[0])(*map(_join, zip(*parts, strict=True)))


_REPRODUCE: Final = '''"""Ask the engine again for the step that differed, and judge it: call `reproduce` with the engine."""

from pathlib import Path

import numpy as np

import kgverify as kv


def reproduce(engine):
    with kv.watch(engine, share=1, save=None, reference={reference!r}) as watched:
{lines}
    return watched.summary
'''

_EXPAND: Final = """        with np.load(Path(__file__).with_name("call.npz")) as call:
            given = [call[name] for name in ("states", "next_variable", "excluded")]
        if engine.arrays == "torch":
            import torch

            given = [torch.from_numpy(each).to(engine.device) for each in given]
        elif engine.arrays != "numpy":
            given = map(engine.arrays, given)
        watched.expand(*given)"""

_STEPS: Final = "        watched.take_steps([{query}], [{visited}])"

_PROVE: Final = """        zeros = np.zeros(1, np.int32)
        watched.{method}(kv.CandidateSet(zeros, zeros.astype(np.int8), np.array([{atom}], np.int32)))"""
