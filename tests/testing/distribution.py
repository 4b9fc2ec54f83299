"""The distribution of generated problems: their features, their sizes, and those of their derivations."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from problem_features import ALL_FEATURES, FEATURES_BY_TITLE, count_features

from kgverify import Problem
from kgverify.testing.checking.check import Batch, prepare_batches


@dataclass(frozen=True)
class Distribution:
    """The frequency of each feature, and the length and width of derivations.

    problems:   feature to the number of problems in which it occurs; every feature is listed
    num_problems, num_candidates, num_steps, num_resolvents: totals
    sizes:      facts + rules + body atoms of each problem
    steps:      of each candidate
    resolvents: of each step
    """

    problems: dict[str, int]
    num_problems: int
    num_candidates: int
    num_steps: int
    num_resolvents: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    resolvents: tuple[int, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """The features that never occur."""
        return tuple(name for name, count in self.problems.items() if not count)

    def render(self) -> str:
        """Render the distribution as a table of text."""
        width = max(map(len, ALL_FEATURES))
        lines = [
            f"{self.num_problems:,} problems, {self.num_candidates:,} candidates, {self.num_steps:,} steps,"
            f" {self.num_resolvents:,} resolvents",
            "",
            f"{'':{width}}   mean    p50    p99    max",
            *(
                f"{name:{width}} {_spread(values)}"
                for name, values in (
                    ("facts, rules and body atoms of a problem", self.sizes),
                    ("steps of a candidate", self.steps),
                    ("resolvents of a step", self.resolvents),
                )
            ),
        ]
        for title, features in FEATURES_BY_TITLE.items():
            lines += ["", f"{title:{width}} problems   share"]
            for name in features:
                count = self.problems[name]
                lines.append(f"{name:{width}} {count:8,} {count / max(1, self.num_problems):7.1%}")
        return "\n".join(lines) + "\n"


def measure_distribution(problems: Sequence[Problem], alone: Sequence[Batch] = ()) -> Distribution:
    """Run the problems together on the reference, and count features, steps and resolvents, also of those run alone."""
    batches = [*prepare_batches(problems), *alone]
    columns = [batch.expected.columns for batch in batches]
    return Distribution(
        problems=count_features(batches),
        num_problems=len(problems) + len(alone),
        num_candidates=sum(len(each.candidates.query) for each in columns),
        num_steps=sum(len(each.steps.depth) for each in columns),
        num_resolvents=sum(len(each.resolvents.kind) for each in columns),
        sizes=tuple(problem.size for problem in problems),
        steps=tuple(chain.from_iterable(each.candidates.num_steps.tolist() for each in columns)),
        resolvents=tuple(chain.from_iterable(each.steps.num_resolvents.tolist() for each in columns)),
    )


def _spread(values: Sequence[int]) -> str:
    numbers = np.array(values or (0,))
    return f"{numbers.mean():6.1f} {np.median(numbers):6.0f} {np.percentile(numbers, 99):6.0f} {numbers.max():6d}"
