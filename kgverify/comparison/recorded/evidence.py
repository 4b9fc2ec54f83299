"""Checks of two recorded traces as evidence: reasons why their agreement would mean less than it seems to.

Anybody may have written a trace. Its declarations about itself are checked against its content, since two traces with the
same errors agree. Each reason turns AGREE into INCONCLUSIVE; a divergence remains a divergence.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.codes import Code, Coded
from kgverify.comparison.align import ROWS, SourceCandidates
from kgverify.comparison.comparable import VERIFIED_STEPS, MemorySource, StepSource, has_steps
from kgverify.comparison.compare import Comparer
from kgverify.comparison.equal_columns import has_same_bytes
from kgverify.comparison.locate import first_difference
from kgverify.comparison.modulo import normalise_outputs
from kgverify.comparison.result import ROLES, Comparison, Verdict
from kgverify.comparison.stored_columns import FileSource
from kgverify.errors import count_of
from kgverify.program.outcomes import STEP_STAGES, Stage
from kgverify.trace.files.manifest import MANIFEST
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, CandidateSet, are_equal, cut_rows, starts_of
from kgverify.trace.model.consistency import Contradictions, count_repeated, describe_rankings
from kgverify.trace.model.digests import Words
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.score_tolerance import bound_score_error, explain_bound
from kgverify.trace.model.stage_items import StageReader
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import TraceFile

SAMPLED: Final = "checked in the"
"""The beginning of a note that says that only a sample of a trace was checked."""

_WINDOWS: Final = 64
"""The number of windows, spread over its candidates, in which a trace is sampled if it is too large to be verified whole."""

_WINDOW_STEPS: Final = VERIFIED_STEPS // _WINDOWS
_WINDOW_CANDIDATES: Final = 256
"""The candidates of each window that are searched for repetitions."""


def withhold_agreement(comparison: Comparison, comparer: Comparer, *, is_retaken: bool = False) -> Comparison:
    """Make AGREE inconclusive if the traces are not good evidence for it, and note their contradictions with any verdict.

    is_retaken: whether the expected steps were taken from the goals of the actual trace, whose contradictions they share

    UserError if the sample of a trace that is too large to be verified whole is damaged.
    """
    contradictions, notes = _check_sources(comparer, ROLES[is_retaken:])
    if len({source.rankings is None for source in comparer.sources}) == 2:
        lacking = (*comparison.coverage.not_compared, "rankings")
        coverage = msgspec.structs.replace(comparison.coverage, not_compared=lacking)
        comparison = msgspec.structs.replace(comparison, coverage=coverage)
    if comparison.verdict is Verdict.DIVERGE:
        return msgspec.structs.replace(
            comparison, notes=(*comparison.notes, *_judge_programs(comparer), *contradictions, *notes)
        )
    # Both sides have the same steps only if the derivations agree.
    stages, stage_notes = _judge_stages(comparer) if comparison.verdict is Verdict.AGREE else ([], [])
    repeated, repeated_notes = _judge_repeated(comparer)
    reasons = (
        *_find_same_recording(comparer.recorded),
        *_judge_programs(comparer),
        *contradictions,
        *_judge_score_errors(comparer),
        *repeated,
        *stages,
    )
    return msgspec.structs.replace(
        comparison,
        verdict=Verdict.INCONCLUSIVE if reasons else comparison.verdict,
        reasons=(*comparison.reasons, *reasons),
        notes=(*comparison.notes, *_note_copy(comparer.recorded), *notes, *repeated_notes, *stage_notes),
    )


def _find_same_recording(recorded: tuple[StepSource, StepSource]) -> list[Coded]:
    left, right = (source.trace for source in recorded)
    same = "the same recording twice"
    if left is right:
        return [Code.SAME_RECORDING.mark(f"{same}: a trace was compared with itself")]
    headers = left.header, right.header
    if headers[0].recording and all(
        getattr(headers[0], name) == getattr(headers[1], name) for name in ("recording", "engine")
    ):
        return [Code.SAME_RECORDING.mark(f"{same}: both traces are copies of recording {headers[0].recording}")]
    if not isinstance(left, TraceFile) or not isinstance(right, TraceFile):
        return []
    if left.path.samefile(right.path):
        where = "folder" if left.path.is_dir() else "file"
        return [Code.SAME_RECORDING.mark(f"{same}: both paths lead to one {where}")]
    return []


def _note_copy(recorded: tuple[StepSource, StepSource]) -> list[str]:
    left, right = (source.trace for source in recorded)
    if not isinstance(left, TraceFile) or not isinstance(right, TraceFile) or not _is_copy(left, right):
        return []
    return [
        "the traces hold the same bytes, and no id of their recording: they are copies, or a deterministic engine left both"
    ]


def _is_copy(left: TraceFile, right: TraceFile) -> bool:
    """Return whether two traces on disk have the same files with the same datasets."""
    if left.path.is_dir() != right.path.is_dir():
        return False
    if left.path.is_dir():
        manifests = [trace.path / MANIFEST for trace in (left, right)]
        return all(each.is_file() for each in manifests) and manifests[0].read_bytes() == manifests[1].read_bytes()
    sums = [{name: stored.checksum for name, stored in trace.files[0].stored.items()} for trace in (left, right)]
    sizes = [trace.path.stat().st_size for trace in (left, right)]
    return sizes[0] == sizes[1] and sums[0] == sums[1]


def _judge_programs(comparer: Comparer) -> list[Coded]:
    """Compare the facts and rules themselves: the hash of the program may be unknown, and is not verified without rules."""
    expected, actual = comparer.programs
    reasons = []
    if expected.facts is not None and actual.facts is not None and not has_same_bytes(expected.facts, actual.facts):
        facts = [set(map(tuple, trace.facts.tolist())) for trace in (expected, actual) if trace.facts is not None]
        if others := len(facts[0] ^ facts[1]):
            reasons.append(Code.OTHER_PROGRAM.mark(f"the programs differ in {count_of(others, 'fact')}"))
    has_rules = expected.rules is not None and actual.rules is not None
    if has_rules and expected.rules != actual.rules:
        text = "the programs differ: the rules that the traces hold are not the same"
        reasons.append(Code.OTHER_PROGRAM.mark(text))
    return reasons


def _check_sources(comparer: Comparer, roles: Sequence[str]) -> tuple[list[Coded], list[str]]:
    """Return the contradictions inside the traces of some roles, and a note about each trace that was only sampled."""
    reasons, notes = [], []
    for role in roles:
        source = comparer.sources[ROLES.index(role)]
        found = Contradictions()
        if isinstance(source, MemorySource) or source.is_verified:
            for rows in (np.arange(*each) for each in source.split()):
                found.add(source.read_rows(rows), source.header, source.fields, rows)
        else:
            sampled = _sample(source)
            starts = starts_of(source.gather_column("num_steps", sampled))
            for rows in (sampled[begin:end] for begin, end in cut_rows(starts, source.block_steps)):
                columns = source.load(source.read_rows(rows), rows).columns
                found.add(columns, source.header, source.fields, rows)
            found = _check_ends(source, found)
            notes.append(
                f"{SAMPLED} {role} trace: the ends of all candidates, and every value, digest and step of {len(sampled):,}"
                f" candidates at {_WINDOWS} places"
            )
        texts = found.describe()
        if source.rankings is not None and not source.faults and source.shell().is_complete:
            texts += describe_rankings(source.rankings, SourceCandidates(source, None).blocks())
        reasons += [Code.CONTRADICTION.mark(f"the {role} trace contradicts itself: {text}") for text in texts]
    return reasons, notes


def _sample(source: FileSource) -> NDArray[np.int64]:
    """Return windows of candidates spread over a trace; each has about `_WINDOW_STEPS` steps, or is a single candidate."""
    begins = np.unique(np.linspace(0, max(0, source.num_candidates - 1), _WINDOWS).astype(np.int64)).tolist()
    windows = []
    for begin, limit in zip(begins, [*begins[1:], source.num_candidates], strict=True):
        rows = np.arange(begin, min(limit, begin + _WINDOW_STEPS))
        sums = np.cumsum(source.gather_column("num_steps", rows))
        windows.append(rows[: max(1, int(np.searchsorted(sums, _WINDOW_STEPS)))])
    return np.concatenate(windows)


def _check_ends(source: FileSource, sampled: Contradictions) -> Contradictions:
    """Return the contradictions at the ends of all candidates, and the contradictions of other kinds from the sample."""
    found, first = Contradictions(), 0
    for file in source.trace.files:
        for begin in range(0, file.num_candidates, ROWS):
            candidates = file.candidate_columns(begin, min(begin + ROWS, file.num_candidates))
            ended = None
            if "steps.outcome" in source.fields:
                ends = file.offsets("candidates/num_steps").at(begin) + np.cumsum(candidates.num_steps, dtype=np.int64)
                # A candidate without steps gets a value that is never used.
                rows = np.maximum(ends - 1, 0)
                ended = file.take("steps/outcome", rows) if file.num_steps else np.zeros(len(ends), np.int8)
            found.add_ends(candidates, ended, source.fields, first + begin)
        first += file.num_candidates
    found.found = {**sampled.found, **found.found}
    return found


def _judge_score_errors(comparer: Comparer) -> list[Coded]:
    """Return reasons why the arithmetic does not justify the tolerance of scores, unless the user accepts an error."""
    if comparer.accepted is not None or "resolvents.score" in comparer.not_compared:
        return []
    policy = comparer.sources[0].header.policy
    reasons = []
    for role, source in zip(ROLES, comparer.sources, strict=True):
        engine = source.header.engine
        bound = bound_score_error(policy, engine.precision)
        explained = explain_bound(policy, engine.precision, 1.0)
        if bound > explained:
            explained = explain_bound(policy, engine.precision, _largest_score(comparer.sources[0]))
        if min(bound, engine.score_error) > explained:
            reasons.append(
                f"the expected trace's header names {bound:.3g} nats as the bound on score errors, and no arithmetic of"
                f" precision {engine.precision} explains more than {explained:.3g} for scores of this size"
            )
        elif engine.score_error > bound:
            reasons.append(
                f"the {role} engine declares a score error of {engine.score_error:.3g} nats, which its arithmetic does not"
                f" explain: the judge's bound for precision {engine.precision} is {bound:.3g}"
            )
    return [*map(Code.SCORE_ERROR.mark, reasons)]


def _largest_score(source: StepSource) -> float:
    """Return the largest absolute value of a finite score."""
    largest = 0.0
    for begin, end in source.split():
        scores = source.read_rows(np.arange(begin, end)).resolvents.score
        largest = max(largest, float(np.abs(scores[np.isfinite(scores)]).max(initial=0.0)))
    return largest


def _judge_repeated(comparer: Comparer) -> tuple[list[Coded], list[str]]:
    """Return a reason if most candidates repeat another one, including its first step, and a note if some do."""
    source = comparer.sources[0]
    num, repeated = 0, 0
    for rows in _rows_to_search(source):
        candidates = CandidateSet(*(source.gather_column(name, rows) for name in CandidateSet._fields))
        num += len(rows)
        repeated += count_repeated(candidates, _first_digests(source, rows))
    if not repeated:
        return [], []
    text = f"{repeated:,} of {num:,} candidates are further recordings of others among them"
    return ([Code.REPEATED_CANDIDATES.mark(text)], []) if 2 * repeated >= num else ([], [text])


def _rows_to_search(source: StepSource) -> Iterator[NDArray[np.int64]]:
    every = source.num_candidates
    if source.is_verified or every <= _WINDOWS * _WINDOW_CANDIDATES:
        yield np.arange(every)
        return
    for begin in np.linspace(0, every - _WINDOW_CANDIDATES, _WINDOWS).astype(np.int64).tolist():
        yield np.arange(begin, begin + _WINDOW_CANDIDATES)


def _first_digests(source: StepSource, rows: NDArray[np.int64]) -> Words | None:
    """Return the digest of each candidate's first step, 0 if it has no step; None if digests are not stored."""
    counts = source.gather_column("num_steps", rows)
    words = source.trace.digests.sequence if isinstance(source, MemorySource) else source.stored_digests(rows)
    if words is None or len(words) != int(counts.sum(dtype=np.int64)):
        return None
    first = np.zeros(len(rows), np.uint64)
    first[counts > 0] = words[starts_of(counts)[:-1][counts > 0]]
    return first


def _judge_stages(comparer: Comparer) -> tuple[list[Coded], list[str]]:
    """Compare the recorded stage outputs of steps that agree; note if only one trace has them."""
    is_deep = [
        source.header.level == TraceLevel.DEEP
        and has_steps(source.header.engine)
        and (isinstance(source, FileSource) or len(source.trace.columns.stages.told) > 0)
        for source in comparer.recorded
    ]
    if not all(is_deep):
        text = f"the outputs of the stages were not compared: the {ROLES[is_deep.index(False)]} trace has none"
        return [], [text] if any(is_deep) else []
    if comparer.is_in_order and comparer.has_same_numbering and _has_same_stages(comparer):
        return [], []
    num, first = 0, ""
    told, left_out = [0, 0], [0, 0]
    for begin, end in comparer.sources[0].split():
        if begin == end:
            continue
        traces = comparer.load_pairs(np.arange(begin, end))
        bits = [trace.columns.stages.told for trace in traces]
        for side, (own, other) in enumerate((bits, bits[::-1])):
            told[side] |= int(np.bitwise_or.reduce(own))
            left_out[side] |= int(np.bitwise_or.reduce(other & ~own))
        if not are_equal(*(trace.columns.stages for trace in traces), equal_nan=True):
            for candidate, step, stage in _compare_stages(traces, comparer):
                num += 1
                first = first or f"candidate {begin + candidate}, step {step}, `{stage.value}`"
    reasons, notes = _explain_untold(told, left_out)
    if num:
        reasons = [f"{num:,} steps agree, but not the recorded outputs of their stages (first: {first})", *reasons]
    return [*map(Code.STAGE_OUTPUTS.mark, reasons)], notes


def _compare_stages(traces: tuple[Trace, Trace], comparer: Comparer) -> Iterator[tuple[int, int, Stage]]:
    """Yield the candidate, the step and the first differing stage for each step whose recorded outputs differ."""
    readers = [StageReader(trace.columns) for trace in traces]
    starts = starts_of(traces[0].columns.candidates.num_steps)
    for row in range(int(starts[-1])):
        outputs = [normalise_outputs(reader.read(row), comparer.modulo) for reader in readers]
        stage = first_difference(outputs[0], outputs[1], comparer.score_tolerance)
        if stage is not None:
            candidate = int(np.searchsorted(starts, row, side="right")) - 1
            yield candidate, row - int(starts[candidate]), stage


def _explain_untold(told: Sequence[int], left_out: Sequence[int]) -> tuple[list[str], list[str]]:
    """Return a reason for each trace that leaves out outputs at only some steps, or a note if it never shows them.

    told: the stages that each trace shows at some step, as bits; left_out: stages that only the other trace shows at a step
    """
    reasons: list[str] = []
    notes: list[str] = []
    for role, own, gone in zip(ROLES, told, left_out, strict=True):
        for bits, texts, text in (
            (gone & own, reasons, "leaves out, at some steps, outputs that it shows at others"),
            (gone & ~own, notes, "does not show outputs that the other trace shows"),
        ):
            if stages := [f"`{stage.value}`" for i, stage in enumerate(STEP_STAGES) if bits >> i & 1]:
                texts.append(f"not all outputs of stages were compared: the {role} trace {text}: {', '.join(stages)}")
    return reasons, notes


def _has_same_stages(comparer: Comparer) -> bool:
    if not all(isinstance(source, FileSource) for source in comparer.sources):
        return False
    left, right = (
        [file.stored[name].checksum for file in source.trace.files for name in KNOWLEDGE_GRAPH.deep]
        for source in comparer.sources
        if isinstance(source, FileSource)
    )
    return left == right
