"""How many generated problems it takes to find a fault."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from kgverify.faults.catalogue import find_fault
from kgverify.faults.fault import Fault
from kgverify.testing.checking.check import Batch, confirm, find_suspects, prepare_batches
from kgverify.testing.checking.failure import Failure
from kgverify.testing.checking.pipelines import MakePipeline, compiled_maker
from kgverify.testing.problems.decode import draw_problems

FIRST_ROUND: Final = 16
"""Problems of the first round; each further one has twice as many, up to `LARGEST_ROUND`."""
LARGEST_ROUND: Final = 512
MOST_EXAMPLES: Final = 2000
"""Problems tried unless another number is given."""


class Hunt(NamedTuple):
    """What a hunt came to.

    examples: problems up to the first that fails, that one included; all tried where none does
    failure:  that problem, confirmed; None where none fails
    """

    examples: int
    failure: Failure | None

    @property
    def is_found(self) -> bool:
        """Whether some problem fails."""
        return self.failure is not None


class Ground:
    """The problems of a seed in rounds, each proved by the reference once, however many faults are hunted on it."""

    def __init__(self, seed: int, max_examples: int = MOST_EXAMPLES) -> None:
        self._seed = seed
        self._max_examples = max_examples
        self._rounds: list[tuple[int, list[Batch]]] = []

    def rounds(self) -> Iterator[tuple[int, list[Batch]]]:
        """The place of the first problem of each round, and the round's batches."""
        first, size, number = 0, FIRST_ROUND, 0
        while first < self._max_examples:
            if number == len(self._rounds):
                count = min(size, self._max_examples - first)
                problems = list(islice(draw_problems(self._seed, first), count))
                self._rounds.append((count, prepare_batches(problems)))
            count, batches = self._rounds[number]
            yield first, batches
            first, size, number = first + count, min(2 * size, LARGEST_ROUND), number + 1

    def hunt(self, fault: str | Fault) -> Hunt:
        """Hunt a fault of the eager evaluator, by its name in the catalogue or as it is. UserError for an unknown one."""
        planted = find_fault(fault) if isinstance(fault, str) else fault
        return self.hunt_pipeline(compiled_maker(faults=[planted]))

    def hunt_pipeline(self, make_pipeline: MakePipeline) -> Hunt:
        """Hunt whatever makes a pipeline differ from the reference."""
        for first, batches in self.rounds():
            suspects = [suspect for batch in batches for suspect in find_suspects(batch, make_pipeline)]
            if suspects:
                earliest = min(suspects, key=lambda suspect: suspect.number)
                failure = confirm(earliest, make_pipeline)
                return Hunt(first + earliest.number + 1, replace(failure, index=first + failure.index))
        return Hunt(self._max_examples, None)


def hunt(fault: str | Fault, seed: int = 0, max_examples: int = MOST_EXAMPLES) -> Hunt:
    """Decode problems of a seed, in growing rounds, until the evaluator with a fault differs from the reference."""
    return Ground(seed, max_examples).hunt(fault)
