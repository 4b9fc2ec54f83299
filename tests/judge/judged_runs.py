"""Comparisons of every kind whose verdicts are known, printed line by line: a wrong edit of the judge must not pass them.

Usage: judged_runs.py [--untested]. With `--untested`, the comparison does not test itself.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "comparison"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from comparison_traces import with_header, with_header_error
from run_engines import FlakyEngine, ForeignEngine, TieBreakingEngine, countries_run, foreign_pipeline
from stream_pairs import CHANGES, base_trace, rename_constants, shuffle, store

from kgverify.engines.protocol import Positions
from kgverify.errors import InternalError, UserError
from kgverify.runs.run import reference_pipeline
from kgverify.trace.model.columns import Columns
from kgverify.verification.self_testing import self_test, stored_self_test, verify
from kgverify.verification.verify import compare_recorded

LEVELS = ("digests", "compact", "steps")


def switch_off() -> None:
    """Make every check of the self-test pass."""

    def pass_always(condition: bool, what: str) -> None:
        pass

    from kgverify.verification.self_testing import planted_runs

    for module in (self_test, stored_self_test, planted_runs):
        module.require = pass_always
    for name in ("plant_in_recorded", "plant_in_verification"):
        setattr(verify, name, lambda *arguments: None)
    from kgverify.verification import replay

    replay._check_evidence = lambda divergences, groups: None


class WrongAtDepth(ForeignEngine):
    """Two faults: dropped atoms are miscounted at one depth, and scores are wrong at another."""

    def __init__(self, run: Any) -> None:
        super().__init__(run, spoil)


def spoil(columns: Columns) -> Columns:
    dropped = columns.steps.dropped_atoms + (columns.steps.depth == 1)
    score = columns.resolvents.score.copy()
    owner = np.repeat(np.arange(len(columns.steps.depth)), columns.steps.num_resolvents)
    score[columns.steps.depth[owner] == 0] += np.where(columns.candidates.query[0] == 0, 0.0, 0.5)
    sums = columns.candidates.log_probability.copy()
    sums[:3] -= 300.0
    outcome = columns.candidates.outcome.copy()
    outcome[-2:] = (outcome[-2:] + 1) % 3
    return columns._replace(
        steps=columns.steps._replace(dropped_atoms=dropped.astype(np.uint32)),
        resolvents=columns.resolvents._replace(score=score),
        candidates=columns.candidates._replace(log_probability=sums, outcome=outcome),
    )


class WrongBehindTies(TieBreakingEngine):
    """Takes wrong steps where it is asked for single steps only."""

    def step(self, positions: Positions) -> Columns:
        columns = super().step(positions)
        outcome = columns.steps.outcome.copy()
        outcome[columns.steps.depth > 1] = 2
        return columns._replace(steps=columns.steps._replace(outcome=outcome))


def agreeing() -> Iterator[tuple[str, Any]]:
    """Yield the reports of comparisons that must agree, or be inconclusive for a known reason."""
    run = countries_run()
    reference = reference_pipeline(run)
    yield "free", verify.verify(run, reference, reference).report
    yield "lockstep", verify.verify(run, reference, reference, lockstep=True, check_determinism=False).report
    ties = foreign_pipeline(run, TieBreakingEngine(run, 1e-3))
    yield "ties", verify.verify(run, reference, ties, check_determinism=False, **accepted(1e-3)).report
    folder = Path(tempfile.mkdtemp())
    trace = base_trace()
    random = np.random.default_rng(1)
    for level in LEVELS:
        stored = [
            store(trace, folder / f"{level}-{i}", level=level, shard_steps=s) for i, s in enumerate((1 << 40, 60))
        ]
        yield level, compare_recorded(stored[0], stored[1]).report
        yield f"{level} in memory", compare_recorded(stored[0], trace).report
    error = with_header(with_header_error(trace, 1e-4), policy={"name": "theirs"}, engine={"precision": "bf16"})
    paths = [store(with_header(error, engine={"mode": str(i)}), folder / f"error-{i}") for i in range(2)]
    yield "error", compare_recorded(*paths).report
    shuffled = store(shuffle(trace, random), folder / "shuffled")
    yield "shuffled", compare_recorded(folder / "steps-0", shuffled).report
    renamed = store(rename_constants(trace, random), folder / "renamed")
    yield "renamed", compare_recorded(folder / "steps-0", renamed).report
    deep = [store(with_header(trace, engine={"mode": str(i)}), folder / f"deep-{i}", level="deep") for i in range(2)]
    yield "deep", compare_recorded(*deep).report


def diverging() -> Iterator[tuple[str, Any]]:
    """Yield the reports of comparisons that must not agree."""
    run = countries_run()
    reference = reference_pipeline(run)
    wrong = foreign_pipeline(run, WrongAtDepth(run))
    for lockstep in (False, True):
        yield f"wrong {lockstep}", verify.verify(run, reference, wrong, lockstep=lockstep).report
    flaky = foreign_pipeline(run, FlakyEngine(run))
    yield "flaky", verify.verify(run, reference, flaky).report
    yield "flaky steps", verify.verify(run, reference, flaky, lockstep=True).report
    ties = foreign_pipeline(run, WrongBehindTies(run, 1e-3))
    yield "ties", verify.verify(run, reference, ties, check_determinism=False, **accepted(1e-3)).report
    folder = Path(tempfile.mkdtemp())
    for error in (0.0, 1e-4):
        trace = base_trace(score_error=error)
        levels = [store(trace, folder / f"{level}{error}", level=level) for level in LEVELS]
        for number, change in enumerate(CHANGES * 6):
            changed = change(trace, np.random.default_rng(number))
            try:
                yield f"{number} {change.__name__} {error}", compare_recorded(trace, changed).report
            except UserError as problem:
                yield f"{number} {change.__name__} {error}", problem
            if number >= 3 * len(CHANGES) or error:
                continue
            for level, expected in zip(LEVELS, levels, strict=True):
                name = f"{number} {change.__name__} {level}"
                try:
                    actual = store(changed, folder / f"{name}.h5", level=level)
                    yield name, compare_recorded(expected, actual).report
                except UserError as problem:
                    yield name, problem


def accepted(error: float) -> dict[str, float]:
    """Return the option that accepts an error of scores, where there is one."""
    return {"score_error": error} if "score_error" in verify.verify.__kwdefaults__ else {}


def line_of(report: Any) -> str:
    if isinstance(report, UserError):
        return f"UserError {type(report).__name__}"
    report = msgspec.structs.replace(report, environment=None, self_test=None)
    numbers = msgspec.json.encode(report)
    import hashlib

    return f"{report.verdict.value} {len(report.divergences)} {hashlib.sha256(numbers).hexdigest()[:12]}"


def main() -> int:
    if "--untested" in sys.argv:
        switch_off()
    for name, report in agreeing() if "--diverging" not in sys.argv else diverging():
        try:
            print(name, line_of(report), flush=True)
        except InternalError as error:
            print("InternalError", error)
            return 70
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InternalError as error:
        print("InternalError", error)
        sys.exit(70)
