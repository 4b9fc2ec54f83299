"""Search generated problems for the first that shows a fault, and for the laws that a fault breaks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from kgverify import Problem
from kgverify.laws import Law, compiled_maker, draw_problems
from kgverify.laws.law import find_violations
from kgverify.program.limits import OURS, Dialect
from kgverify.runs.engine_makers import MakePipeline
from kgverify.testing.checking.check import Batch, Checker, prepare_batches
from kgverify.testing.checking.failure import Failure
from kgverify.testing.problems.merge import group_problems

FIRST_ROUND = 16
FIRST_ROUND_OF_LAWS = 64
"""Problems of the first round; each further one has twice as many, up to `LARGEST_ROUND`."""
LARGEST_ROUND = 512
MOST_PROBLEMS = 2000
REPLICAS = ("made-by-clause", "complete-step", "score-formula")
"""Laws that compute resolvents or scores again, as another prover would."""


class Search(NamedTuple):
    """The number of problems up to the first that fails, or of all, and its confirmed failure; None if none fails."""

    examples: int
    failure: Failure | None

    @property
    def is_found(self) -> bool:
        """True if some problem fails."""
        return self.failure is not None


class ProblemStream:
    """The problems of a seed in growing rounds; the reference proves each round once, for any number of searches."""

    def __init__(self, seed: int, max_examples: int = MOST_PROBLEMS, dialect: Dialect = OURS) -> None:
        self._seed, self._dialect = seed, dialect
        self._max_examples = max_examples
        self._rounds: list[tuple[int, list[Batch]]] = []

    def rounds(self) -> Iterator[tuple[int, list[Batch]]]:
        """Yield the index of the first problem of each round, and the round's batches."""
        first, size, number = 0, FIRST_ROUND, 0
        while first < self._max_examples:
            if number == len(self._rounds):
                count = min(size, self._max_examples - first)
                problems = list(islice(draw_problems(self._seed, first, self._dialect), count))
                self._rounds.append((count, prepare_batches(problems)))
            count, batches = self._rounds[number]
            yield first, batches
            first, size, number = first + count, min(2 * size, LARGEST_ROUND), number + 1

    def search_fault(self, fault: str) -> Search:
        """Search for a fault of the eager evaluator, or of the plain one in other dialects, by its name in the catalogue."""
        return self.search(compiled_maker(faults=[fault], mode="eager" if self._dialect == OURS else "plain"))

    def search(self, make_pipeline: MakePipeline) -> Search:
        """Search for the first problem on which a pipeline differs from the reference."""
        for first, batches in self.rounds():
            suspects = [suspect for batch in batches for suspect in Checker(make_pipeline).find_suspects(batch)]
            if suspects:
                earliest = min(suspects, key=lambda suspect: suspect.number)
                failure = Checker(make_pipeline).confirm(earliest)
                return Search(first + earliest.number + 1, replace(failure, index=first + failure.index))
        return Search(self._max_examples, None)


def find_breakers(
    make_pipeline: MakePipeline, laws: Sequence[Law], *, seed: int = 0, most_problems: int = MOST_PROBLEMS
) -> dict[str, int]:
    """Return, for each law that is broken, how many decoded problems of a seed it took.

    The problems are drawn in growing rounds. The search ends with the first round in which a law is broken that computes
    no resolvents or scores again, or any law if all of them do.
    """
    found: dict[str, int] = {}
    done, size = 0, FIRST_ROUND_OF_LAWS
    decisive = {law.name for law in laws if law.name not in REPLICAS} or {law.name for law in laws}
    while done < most_problems and not found.keys() & decisive:
        problems = list(islice(draw_problems(seed, done), min(size, most_problems - done)))
        for indices in group_problems(problems):
            group = [problems[i] for i in indices]
            for violation in find_violations(make_pipeline, group, laws, indices):
                number = done + violation.index + 1
                found[violation.law] = min(number, found.get(violation.law, number))
        done, size = done + len(problems), min(2 * size, LARGEST_ROUND)
    return found


def failure_of(problem: Problem, fault: str = "last-fact-lost") -> Failure:
    """Return the failure of a problem that a faulty evaluator shows."""
    failure = Checker(compiled_maker(faults=[fault])).judge(problem)
    assert failure is not None
    return failure
