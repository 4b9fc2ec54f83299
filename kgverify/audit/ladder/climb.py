"""From eager upwards: the first rung on which a subject no longer does what it does in eager."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kgverify.audit.ladder.observation import DeviceLost, Difference, find_differences
from kgverify.audit.ladder.rungs import EAGER, RUNGS, Rung, Watched, watch
from kgverify.audit.properties.syncs import Reads
from kgverify.audit.audited_function import Subject
from kgverify.errors import UserError


class Deviation(NamedTuple):
    """A call that did something else than in eager. call: in words, such as `repeated call 2`"""

    call: str
    difference: Difference


class Climb(NamedTuple):
    """A rung. num_calls: compared; seconds: compilation included; is_lost: the device, so that no other rung could be tried"""

    rung: Rung
    deviations: tuple[Deviation, ...]
    num_calls: int
    seconds: float
    is_lost: bool = False


class Ladder(NamedTuple):
    """A subject on every rung.

    unsteady: how eager differs from itself; where it does, nothing can be said of the other rungs
    """

    subject: str
    unsteady: tuple[Deviation, ...]
    climbs: tuple[Climb, ...]

    @property
    def first(self) -> Climb | None:
        """The lowest rung that deviates."""
        return next((climb for climb in self.climbs if climb.deviations), None)


def climb(
    subject: Subject,
    *,
    rungs: Sequence[Rung] = RUNGS,
    repetitions: int = 2,
    begin: Callable[[str], None] = lambda name: None,
) -> Ladder:
    """Every rung against eager. begin: told of each rung. Eager is looked at twice before anything is compared with it."""
    begin(EAGER.name)
    expected = watch(subject, EAGER, repetitions=repetitions)
    if all(observation.error for _, observation in expected.items()):
        raise UserError(
            f"fails in eager already: {expected.fresh[0].error}",
            where=subject.name,
            fix="look at the function and the arguments that make_inputs makes",
        )
    unsteady = find_deviations(expected, watch(subject, EAGER, repetitions=repetitions))
    climbs = []
    for rung in rungs if not unsteady else ():
        if rung is EAGER:
            continue
        begin(rung.name)
        began = time.perf_counter()
        try:
            actual = watch(subject, rung, expected, repetitions=repetitions)
        except DeviceLost as error:
            lost = Deviation("some call", Difference("error", "", f"the device was lost: {error}"))
            climbs.append(Climb(rung, (lost,), 0, time.perf_counter() - began, is_lost=True))
            break
        deviations = find_deviations(expected, actual)
        num_calls = sum(1 for _ in actual.items())
        climbs.append(Climb(rung, tuple(deviations), num_calls, time.perf_counter() - began))
    return Ladder(subject.name, tuple(unsteady), tuple(climbs))


def find_deviations(expected: Watched, actual: Watched) -> list[Deviation]:
    """Call by call."""
    return [
        Deviation(call, difference)
        for (call, before), (_, after) in zip(expected.items(), actual.items(), strict=True)
        for difference in find_differences(before, after)
    ]


def deviates(subject: Subject, rung: Rung) -> bool:
    """Whether it does on this rung."""
    expected = watch(subject, EAGER)
    return bool(find_deviations(expected, watch(subject, rung, expected)))


def find_smallest_part(
    subject: Subject, rung: Rung, begin: Callable[[str], None] = lambda name: None
) -> Subject | None:
    """The part that deviates by itself on this rung, the smallest of several; None where none does."""
    found = []
    for part in subject.parts.values():
        begin(part.name)
        if deviates(part, rung):
            found.append(part)
    return min(found, key=_count_operators, default=None)


def _count_operators(subject: Subject) -> int:
    """Of one call in eager."""
    reads = Reads(subject.function)
    with reads:
        subject.function(*subject.inputs(0))
    return reads.num_operations
