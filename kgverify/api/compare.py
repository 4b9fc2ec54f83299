"""`kgverify.compare`: two recorded traces."""

from collections.abc import Collection
from pathlib import Path

from kgverify.api.inputs import check_score_error
from kgverify.comparison.exercise.minimum import Minimum, parse_minimum
from kgverify.comparison.modulo.policy import parse_modulo
from kgverify.engines.protocol import Progress, no_progress
from kgverify.report.report import Report
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import TraceFile
from kgverify.verification.save import locked_run, save_verification
from kgverify.verification.verify import compare_recorded


def compare(
    expected: str | Path | TraceFile | Trace,
    actual: str | Path | TraceFile | Trace,
    *,
    save: str | Path | None = None,
    score_error: float | None = None,
    modulo: str | Collection[str] | None = None,
    minimum: str | Minimum | None = None,
    progress: Progress = no_progress,
) -> Report:
    """Compare two recorded traces, step by step. No engine runs, and torch is not needed.

    Args:
        expected: The trace to compare with: the path of a file or of a folder of shards, or what `kgverify.open_trace` or
            its `load` returned.
        actual: The trace to judge.
        save: A folder for copies of both traces and the report, for `kgverify show` and `kgverify report`.
        score_error: An error of the actual trace's scores to accept, in nats, instead of the judge's bound.
        modulo: The kinds of differences that are benign, as in `"names,order"`: `"names"` of variables, the `"order"` of the
            resolvents of a step, `"duplicates"` of a resolvent. They are counted apart, and the comparison goes on. `"none"`
            for no kind; if not given, names are benign where an engine numbers variables its own way.
        minimum: The exercise that AGREE requires of both sides, as `{"proved": 1, "rules": 1, "choices": 1}` (the default) or
            `"proved=1,rules=1"`: candidates proved, rules used, steps with more than one resolvent. Below it the verdict is
            INCONCLUSIVE. `{}` requires nothing.
        progress: A function that is called with the number of bytes compared since its last call.

    Returns:
        The report, as `kgverify.verify` returns it. Only traces recorded with `level="deep"` name the stage at fault from
        what the stages gave; for others it is inferred from the recorded steps.

    Raises:
        UserError: If a trace cannot be read, or is damaged.

    Example:
        >>> import kgverify as kv
        >>> _ = kv.record("countries", "reference.h5", "reference", queries=2, corruptions=5)
        >>> _ = kv.record("countries", "compiled.h5", mode="eager", queries=2, corruptions=5)
        >>> kv.compare("reference.h5", "compiled.h5").verdict.value
        'AGREE'
    """
    with locked_run(save):
        recorded = compare_recorded(
            expected,
            actual,
            score_error=check_score_error(score_error),
            modulo=parse_modulo(modulo),
            minimum=parse_minimum(minimum),
            progress=progress,
        )
        if save is not None:
            save_verification(recorded, Path(save))
        return recorded.report.with_traces(recorded)
