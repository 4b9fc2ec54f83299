"""How far a campaign is, for whoever watches it."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kgverify.testing.campaigns.corpus import Block


class Tally(NamedTuple):
    """How far a campaign is.

    phase:       `start`, `replay`, `try` or `shrink`
    done, total: reproducers, problems or shrinks; total 0 where seconds are the budget
    seconds:     of the phase so far
    resumed:     of the problems done, those of earlier campaigns
    at_work:     problems that processes have been given
    is_ending:   whether it was interrupted, and ends with what was begun
    candidates, steps, resolvents: compared so far
    differing:   problems that differ in the run of their block
    found:       signature to confirmed problems
    stages, classes: of these signatures, to confirmed problems
    features:    that occurred so far
    """

    phase: str
    done: int = 0
    total: int = 0
    seconds: float = 0.0
    resumed: int = 0
    at_work: int = 0
    is_ending: bool = False
    candidates: int = 0
    steps: int = 0
    resolvents: int = 0
    differing: int = 0
    found: Mapping[str, int] = {}
    stages: Mapping[str, int] = {}
    classes: Mapping[str, int] = {}
    features: frozenset[str] = frozenset()


Watch = Callable[[Tally], None]


class Counts:
    """What is in the blocks done, counted as they come."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.problems = self.candidates = self.steps = self.resolvents = self.differing = 0
        self.found: Counter[str] = Counter()
        self.stages: Counter[str] = Counter()
        self.classes: Counter[str] = Counter()
        self.features: set[str] = set()
        for block in blocks:
            self.add(block)

    def add(self, block: Block) -> None:
        """Count a block."""
        self.problems += block.num_problems
        self.candidates += block.num_candidates
        self.steps += block.num_steps
        self.resolvents += block.num_resolvents
        self.differing += block.num_differing
        self.features.update(name for name, count in block.features.items() if count)
        for each in block.sightings:
            self.found[str(each.signature)] += each.count
            self.stages[each.signature.stage or "none"] += each.count
            self.classes[each.signature.kind] += each.count

    def tally(self, *, total: int, seconds: float, resumed: int, at_work: int, is_ending: bool) -> Tally:
        """How far the trying of problems is."""
        return Tally(
            phase="try",
            done=self.problems,
            total=total,
            seconds=seconds,
            resumed=resumed,
            at_work=at_work,
            is_ending=is_ending,
            candidates=self.candidates,
            steps=self.steps,
            resolvents=self.resolvents,
            differing=self.differing,
            found=dict(self.found),
            stages=dict(self.stages),
            classes=dict(self.classes),
            features=frozenset(self.features),
        )
