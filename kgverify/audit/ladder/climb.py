"""The climb from eager upwards, to the first rung on which a function no longer does what it does in eager."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kgverify.audit.audited_function import Subject
from kgverify.audit.ladder.observation import DeviceLost, Difference, compare_observations
from kgverify.audit.ladder.rungs import EAGER, RUNGS, Rung, Watched, watch
from kgverify.audit.properties.syncs import Reads
from kgverify.errors import UserError


class Deviation(NamedTuple):
    """A call that differs from eager. call: its name, such as `repeated call 2`."""

    call: str
    difference: Difference


class Climb(NamedTuple):
    """The result of a rung. num_calls: compared calls; seconds: with compilation; is_lost: whether the device was lost."""

    rung: Rung
    deviations: tuple[Deviation, ...]
    num_calls: int
    seconds: float
    is_lost: bool = False


class Ladder(NamedTuple):
    """A subject on every rung. unsteady: how eager differs from itself; then no rung is compared."""

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
    """Compare every rung with eager, which is first run twice. begin: receives the name of each rung."""
    begin(EAGER.name)
    expected = watch(subject, EAGER, repetitions=repetitions)
    if all(observation.error for _, observation in expected.items()):
        raise UserError(
            f"already fails in eager: {expected.fresh[0].error}",
            where=subject.name,
            fix="check the function and the arguments that make_inputs makes",
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
    return Ladder(tuple(unsteady), tuple(climbs))


def find_deviations(expected: Watched, actual: Watched) -> list[Deviation]:
    """List the deviations, call by call."""
    return [
        Deviation(call, difference)
        for (call, before), (_, after) in zip(expected.items(), actual.items(), strict=True)
        for difference in compare_observations(before, after)
    ]


def find_smallest_part(
    subject: Subject, rung: Rung, begin: Callable[[str], None] = lambda name: None
) -> Subject | None:
    """Return the smallest part that deviates by itself on this rung; None if no part does."""
    found = []
    for part in subject.parts.values():
        begin(part.name)
        expected = watch(part, EAGER)
        if find_deviations(expected, watch(part, rung, expected)):
            found.append(part)
    return min(found, key=_count_operators, default=None)


def _count_operators(subject: Subject) -> int:
    """Count the operators of one call in eager."""
    reads = Reads(subject.function)
    with reads:
        subject.function(*subject.inputs(0))
    return reads.num_operations
