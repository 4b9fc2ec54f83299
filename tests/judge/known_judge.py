"""The judge of known pairs: a comparison of recorded traces as `kv.compare` makes it."""

from pathlib import Path
from typing import Any

import numpy as np

from kgverify import Report
from kgverify.comparison.compare import Comparer, Options
from kgverify.comparison.exercise.exercise import NO_MINIMUM, Exercised
from kgverify.report.content import Outcomes
from kgverify.trace.model.trace import Trace
from kgverify.verification.judgement import LITTLE, count_outcomes, judge_exercise
from kgverify.verification.rebuild import Rebuilder
from kgverify.verification.recorded import judge_recorded


def judge_known(expected: Trace | Path, actual: Trace | Path, **options: Any) -> tuple[Comparer, Report]:
    """Compare a known pair like `compare_recorded`."""
    comparer = Comparer(expected, actual, Options(rebuilding=Rebuilder, explains=True, **options))
    comparer.compare()
    return comparer, judge_recorded(comparer, NO_MINIMUM, effort=LITTLE)


def exercise_known(comparer: Comparer) -> Exercised:
    """Return what both sides of a known pair exercised."""
    codes = [source.gather_column("outcome", np.arange(source.num_candidates)) for source in comparer.sources]
    return judge_exercise(comparer.comparison, comparer.recorded, Outcomes(*map(count_outcomes, codes)), NO_MINIMUM)[1]
