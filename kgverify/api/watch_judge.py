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
from kgverify.api.inputs import make_pipeline
from kgverify.comparison.classify import group_causes
from kgverify.comparison.compare import KEPT, Comparer, Options
from kgverify.comparison.equality import Equality
from kgverify.comparison.inference.infer import name_in_dialect
from kgverify.comparison.result import Divergence, Level
from kgverify.comparison.step_view import Names, outcome_name
from kgverify.engines.adapters.tensor import TensorEngine, read_call
from kgverify.engines.protocol import Positions, positions_of, take_position
from kgverify.evaluation.judge import Judge, derive_endings
from kgverify.files.writing import write_file
from kgverify.program.limits import DeclaredLimits
from kgverify.program.outcomes import Stage
from kgverify.progress import no_progress
from kgverify.runs.engine_makers import EngineSpec
from kgverify.runs.job import Engines, job_of
from kgverify.runs.pool import make_once
from kgverify.runs.retake import retake_steps
from kgverify.runs.run import Run, build_trace
from kgverify.trace.lines.import_lines import import_lines
from kgverify.trace.model.columns import CandidateSet, Columns, empty_columns, select_candidates, starts_of
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.score_tolerance import ScoreTolerance
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import read_trace
from kgverify.verification.recorded import RecordedComparison, compare_recorded
from kgverify.verification.rounding import bound_recorded
from kgverify.verification.save import locked_run, save_verification

MOST_SHOWN: Final = 16
"""The most divergent steps of a saved run; up to three times as many right steps stand beside them."""

ENDING: Final = "the ending of a candidate"
OF_BATCH: Final = "right alone, wrong in its batch"
CALL: Final = "call.npz"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that the judge needs, for its process.

    run:    the program, limits and policy; None if JSON lines bring their own program
    reader: an engine that reads the states of a watched `TensorEngine`
    save:   the folder of the saved runs; None for none
    tolerance: that of scores, if it was measured
    """

    run: Run | None
    info: EngineInfo
    reference: EngineSpec
    equality: Equality
    save: Path | None
    max_saved: int
    reader: TensorEngine | None
    tolerance: ScoreTolerance | None


class Sample(NamedTuple):
    """Rows of one call of an engine, as they were given and returned.

    kind:   `expand`: three arrays and a result; `steps`: positions and columns; `prove`: columns; `evaluate`: candidates with
            their endings; `alone`: columns of candidates whose endings differed; `lines`: a header and lines
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


class WatchedDivergence(NamedTuple):
    """Divergences of one cause that the judge of a watched engine found, as `on_divergence` receives them.

    stage:     the stage at fault; empty if only the ending of a candidate is known
    kind:      the class of the difference
    num:       the divergences of this cause so far
    call, row: the call of the engine, counted from 1, and the row in its batch
    first:     the first of them, in names
    run:       the saved run, for `kgverify show`, with `reproduce.py`; None if this cause has one already
    """

    stage: str
    kind: str
    num: int
    call: int
    row: int
    first: Divergence
    run: Path | None = None

    def __str__(self) -> str:
        """Return the divergence in a line."""
        first = self.first
        goal = f"goal {first.goal}" if first.goal else f"candidate {first.atom}"
        shown = f"; kgverify show {self.run}" if self.run else ""
        return (
            f"{self.stage or 'unknown stage'}: {self.kind}, in {first.field} at row {self.row} of call {self.call}; {goal}:"
            f" expected {first.expected}, actual {first.actual}; {self.num:,} so far{shown}"
        )


class Judged(NamedTuple):
    """The judgement of some samples.

    judged:   steps or, of an evaluation, candidates that were compared
    idle:     rows without a goal, or without the query that the dialect excludes
    unjudged: rows that the reference could not take
    suspects: candidates whose endings differ, and whose steps are therefore asked for
    """

    judged: int = 0
    idle: int = 0
    unjudged: int = 0
    near_ties: int = 0
    causes: tuple[WatchedDivergence, ...] = ()
    suspects: CandidateSet | None = None
    error: str = ""


class _Described(NamedTuple):
    """An engine of which only its info is here."""

    info: EngineInfo


class _Steps(NamedTuple):
    """Sampled steps, with the call and the row of each candidate."""

    positions: Positions
    columns: Columns
    call: NDArray[np.int64]
    row: NDArray[np.int64]


def judge(content: bytes, name: str, samples: Sequence[Sample]) -> list[Judged]:
    """Judge samples in this process; `content` and `name` come from `send_maker`."""
    made: SampleJudge = make_once(content, name)
    kinds = dict.fromkeys(each.kind for each in samples)
    return [each for kind in kinds for each in made.judge([each for each in samples if each.kind == kind])]


class SampleJudge:
    """A judge, made once in its process."""

    def __init__(self, setting: Setting) -> None:
        # The engine's own process comes first.
        with suppress(OSError):
            os.nice(19)
        self._setting, self._saved = setting, set[tuple[str, str]]()
        if setting.run is not None:
            self._pipeline = make_pipeline(setting.reference, setting.run, where="reference")

    def judge(self, samples: Sequence[Sample]) -> list[Judged]:
        """Judge samples of one kind together, or one by one if that fails."""
        kind = samples[0].kind
        work = {"lines": self._judge_lines, "evaluate": self._judge_endings}.get(kind, self._judge_steps)
        try:
            return [work(samples)]
        except Exception as error:
            if len(samples) > 1:
                return [judged for each in samples for judged in self.judge([each])]
            return [Judged(unjudged=samples[0].size, error=f"{type(error).__name__}: {error}")]

    def _judge_steps(self, samples: Sequence[Sample]) -> Judged:
        run = self._run
        steps: _Steps = _join([self._read(each) for each in samples])
        size, num = sum(each.size for each in samples), len(steps.row)
        if not num:
            return Judged(idle=size)
        candidates = steps.columns.candidates._replace(query=np.arange(num, dtype=np.int32))
        actual = self._build(steps.columns._replace(candidates=candidates))
        make: Any = lambda *_: self._pipeline.engine  # noqa: E731  made once
        expected, num_left = retake_steps(actual, make, DeclaredLimits(), run.policy, steps.positions)
        found = self._compare(expected, actual, steps, samples)
        if samples[0].kind != "alone":
            num_idle = size - num if samples[0].kind == "expand" else 0
            return found._replace(judged=len(actual.columns.steps.depth) - num_left, unjudged=num_left, idle=num_idle)
        if not found.causes:
            # Alone, these candidates are proved as they should be: what stood beside them changed them.
            first = self._describe(actual, candidates.atom[0], ENDING, OF_BATCH)
            cause = WatchedDivergence(Stage.RECYCLE.value, OF_BATCH, num, samples[0].number, int(steps.row[0]), first)
            found = found._replace(causes=(cause,))
        return found

    @property
    def _run(self) -> Run:
        assert self._setting.run is not None
        return self._setting.run

    def _build(self, columns: Columns) -> Trace:
        engine: Any = _Described(self._setting.info)
        return build_trace(self._run, engine, columns, None)

    def _describe(self, trace: Trace, atom: NDArray[np.int32], expected: str, actual: str) -> Divergence:
        """Return a divergence of the ending of a candidate."""
        predicate, first, second = atom.tolist()
        name, field = Names(trace).atom((predicate, first, second)), "candidates.outcome"
        about: Any = {"candidate": 0, "query": -1, "side": "", "step": -1, "stage": "", "level": Level.OUTCOME}
        return Divergence(**about, atom=name, field=field, expected=expected, actual=actual)

    def _read(self, sample: Sample) -> _Steps:
        rows = None
        if sample.kind == "expand":
            assert self._setting.reader is not None
            positions, columns = read_call(self._setting.reader, *sample.content)
            rows = columns.candidates.query.astype(np.int64)
        elif sample.kind == "steps":
            positions, columns = sample.content
        else:
            columns = sample.content
            positions = positions_of(columns)
        rows = np.arange(len(columns.candidates.query)) if rows is None else rows
        return _Steps(positions, columns, np.full(len(rows), sample.number), sample.first + sample.stride * rows)

    def _compare(self, expected: Trace, actual: Trace, steps: _Steps, samples: Sequence[Sample]) -> Judged:
        equality = self._setting.equality
        options = Options(kept=KEPT, explains=True, equality=equality, tolerance=self._setting.tolerance)
        comparer = Comparer(expected, actual, options)
        comparison = comparer.compare()
        tolerance = bound_recorded(comparer, comparison, equality.accepted_error)
        if tolerance is not None and self._setting.tolerance is None:
            comparer = Comparer(expected, actual, options._replace(tolerance=tolerance))
            comparison = comparer.compare()
        named = name_in_dialect(comparison.divergences, comparer.findings, self._run.limits.dialect)
        divergences, causes = group_causes(*named)
        right = np.setdiff1d(np.arange(len(steps.row)), [each.candidate for each in divergences])[: 3 * MOST_SHOWN]
        found = []
        for number, cause in enumerate(causes):
            members = [each for each in divergences if each.cause == number]
            at, first = members[0].candidate, members[0]
            folder = self._choose_folder(cause.stage, cause.kind.value)
            if folder is not None:
                rows = np.union1d(right, [each.candidate for each in members][:MOST_SHOWN])
                recorded = compare_recorded(
                    _select(expected, rows), _select(actual, rows), equality=equality, is_retaken=True
                )
                self._save(folder, recorded, steps, at, samples)
            where = int(steps.call[at]), int(steps.row[at])
            found.append(WatchedDivergence(cause.stage, cause.kind.value, len(members), *where, first, folder))
        return Judged(near_ties=len(comparison.near_ties), causes=tuple(found))

    def _choose_folder(self, stage: str, kind: str) -> Path | None:
        """Return the folder of a run of this cause; None if it has one, or there are enough."""
        save, setting = self._setting.save, self._setting
        if save is None or (stage, kind) in self._saved or len(self._saved) >= setting.max_saved:
            return None
        self._saved.add((stage, kind))
        return save / f"{stage}-{kind}"

    def _save(
        self, folder: Path, recorded: RecordedComparison, steps: _Steps, at: int, samples: Sequence[Sample]
    ) -> None:
        """Save a run for `kgverify show`, and the script that repeats one of its steps."""
        sample = next(each for each in samples if each.number == steps.call[at])
        atom = tuple(steps.columns.candidates.atom[at].tolist())
        method = "evaluate" if sample.kind == "alone" else "prove"
        call = f"{method}(kv.CandidateSet(*np.zeros((2, 1), np.int8), np.array([{atom}], np.int32)))"
        with locked_run(folder):
            save_verification(recorded, folder)
            if sample.kind == "expand":
                row = (int(steps.row[at]) - sample.first) // sample.stride
                np.savez(folder / CALL, *(each[row : row + 1] for each in sample.content[0]))
                call = "expand(*map(engine.to_arrays, np.load(Path(__file__).with_name('call.npz')).values()))"
            elif sample.kind == "steps":
                position = take_position(steps.positions, at)
                goals = np.split(position.atoms, starts_of(position.num_atoms)[1:-1])
                call = f"take_steps([{atom}], [{[tuple(map(tuple, goal.tolist())) for goal in goals]}])"
            script = _REPRODUCE.format(call=call, reference=self._setting.reference.name)
            write_file(folder / "reproduce.py", script)

    def _judge_endings(self, samples: Sequence[Sample]) -> Judged:
        actual, results = _join([each.content for each in samples]), None
        engine: Any = _Described(self._setting.info)
        endings = derive_endings(
            self._run, self._pipeline._replace(engine=engine), self._pipeline, actual.atom, no_progress
        )
        made: Any = Judge(self._run, results, self._pipeline, endings, rank_only=False)  # type: ignore[arg-type]
        found = made.compare_single(actual)
        judged = Judged(judged=len(actual.query), near_ties=int(found.is_near_tie.sum()))
        if not len(found.wrong):
            return judged
        at = int(found.wrong[0])
        sides = [
            f"{outcome_name(int(each.outcome[at]))}, {each.log_probability[at]:.6g}"
            for each in (found.expected, actual)
        ]
        first = self._describe(self._build(empty_columns()), actual.atom[at], *sides)
        cause = WatchedDivergence("", ENDING, len(found.wrong), samples[0].number, int(actual.query[at]), first)
        suspects = CandidateSet(*actual[:3]).take(found.wrong[:MOST_SHOWN])
        return judged._replace(causes=(cause,), suspects=suspects)

    def _judge_lines(self, samples: Sequence[Sample]) -> Judged:
        setting, found = self._setting, []
        text = samples[0].content[0] + "".join(line for each in samples for line in each.content[1])
        with tempfile.TemporaryDirectory(prefix="kgverify-watch-") as name:
            write_file(Path(name, "lines.jsonl"), text)
            import_lines(Path(name, "lines.jsonl"), Path(name, "trace"))
            trace = read_trace(Path(name, "trace"))
            given: dict[str, Any] = {"equality": setting.equality}
            if setting.run is not None:
                given["limits"] = DeclaredLimits(**msgspec.structs.asdict(setting.run.limits))
                given["job"] = job_of(setting.run, Engines()) if trace.facts is None else None
            report = compare(setting.reference.name, trace, **given)
            for cause in report.causes:
                folder, first = self._choose_folder(cause.stage, cause.kind.value), report.divergences[cause.first]
                if folder is not None:
                    compare(setting.reference.name, trace, **given, save=folder)
                    write_file(folder / "steps.jsonl", text)
                where = samples[0].number, first.candidate
                found.append(
                    WatchedDivergence(cause.stage, cause.kind.value, cause.num_divergences, *where, first, folder)
                )
            return Judged(len(trace.columns.steps.depth), near_ties=len(report.near_ties), causes=tuple(found))


def _select(trace: Trace, rows: NDArray[np.int64]) -> Trace:
    columns = select_candidates(trace.columns, rows)
    return replace(trace, columns=columns, digests=compute_digests(columns))


def _join(parts: Sequence[Any]) -> Any:
    """Concatenate records of arrays."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return type(parts[0])(*map(_join, zip(*parts, strict=True)))


_REPRODUCE: Final = '''"""Let an engine take the step that differed again: `reproduce(engine)` returns what its watch found."""

from pathlib import Path

import numpy as np

import kgverify as kv

__all__ = ["Path", "np"]


def reproduce(engine):
    with kv.watch(engine, share=1, save=None, reference={reference!r}) as watched:
        watched.{call}
    return watched.summary
'''
