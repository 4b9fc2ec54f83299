"""Drive two environments with the same actions, compare what they return, and judge."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.codes import Code, Coded
from kgverify.comparison.exercise.exercise import Minimum, advise_minimum, parse_minimum
from kgverify.comparison.result import Verdict
from kgverify.environments.causes import describe_causes
from kgverify.environments.compare import Compared, compare_sides, eps_of
from kgverify.environments.content import EnvironmentInfo
from kgverify.environments.drive import Drive, Follower, Leader, Plan, Recorded
from kgverify.environments.protocol import (
    Acted,
    ActionSpace,
    Autoreset,
    Environment,
    Leaves,
    Observed,
    Policy,
    RandomPolicy,
    Seeding,
    flatten,
    to_array,
)
from kgverify.environments.report import EnvironmentReport
from kgverify.environments.shrink import Case, Shrinker, Shrunk, Tried
from kgverify.environments.side import Side
from kgverify.environments.trajectory import GROUPS, StepKind, Trajectories, first_actions, without_numbers
from kgverify.errors import UserError, count_of, describe_error
from kgverify.progress import Phase, silent_phase
from kgverify.trace.model.columns import are_equal, count_where, starts_of

MOST_REPEATED: Final = 50
"""The actions that are taken again in each slot, to see whether an environment repeats itself."""

MOST_NAMED: Final = 4
"""The maximum number of pairs of names in a note."""

NUM_FURTHER: Final = 6
FEW_WRONG: Final = 100
MOST_AFTER: Final = 10
"""The comparisons with other seeds if the wrong rows of a cause are few and no exact condition is found; how many rows are few;
and the actions after the first difference."""

NUM_CHANGED: Final = 2
"""The runs from changed states that measure what rounding does."""

EVIDENCE: Final = {
    "ended": "episodes that ended",
    "resets": "episodes that followed another one",
    "truncated": "episodes that were truncated",
    "rewards": "steps with a reward",
}
"""The items of evidence, with their meanings."""

ENDED: Final[Minimum] = MappingProxyType({"ended": 1, "resets": 1})
"""The default minimum of evidence."""

Open: TypeAlias = Callable[[int], Environment]
"""A function that makes an environment of a number of slots."""


@dataclass(frozen=True)
class Comparing:
    """The size of a comparison, and the rules of it.

    slots, steps, seed: the slots, the actions of each, and the seed of the first slot; the others count up from it
    policies:  the policy that leads, and the one of the actual side, which only shows its choice; None for random actions
    tolerance: the relative difference of two floats that counts as rounding; None for a derived one
    lockstep:  whether to take each step from the expected state; None if both sides allow it
    minimum:   the evidence that AGREE requires
    shrinks:   whether to look for the smallest comparison that shows the first difference
    """

    slots: int = 16
    steps: int = 200
    seed: int = 0
    policies: tuple[Any, Any] = (None, None)
    tolerance: float | None = None
    lockstep: bool | None = None
    minimum: Minimum = field(default_factory=lambda: ENDED)
    shrinks: bool = True

    def __post_init__(self) -> None:
        for name, least in (("slots", 1), ("steps", 1), ("seed", 0), ("tolerance", 0.0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise UserError(f"expected at least {least:g}, found {value}", where=name, fix="give a larger number")


class GivenActions(Policy):
    """Actions that are given: [steps, slots, ...].

    states: the states from which the first ones are taken, [slots, ...] each by name; None for those of the reset
    low:    the least action, if an action that is not legal gives way to one that is; None if it is taken
    """

    def __init__(self, actions: Any, states: Mapping[str, Any] | None = None, low: Any = None) -> None:
        self._actions, self._low = to_array(actions), low
        self.states = None if states is None else {name: to_array(each) for name, each in states.items()}
        if self._actions.ndim < 2 or not self._actions.size or self._actions.dtype.kind not in "biuf":
            raise UserError(
                f"found the shape {list(self._actions.shape)} of {self._actions.dtype}, expected numbers [steps, slots, ...]",
                where="actions",
                fix="give an action for each step and each slot",
            )
        self.steps, self.slots = self._actions.shape[:2]

    def act(self, slots: NDArray[np.int64], numbers: NDArray[np.int64], observed: Observed) -> Acted:
        """Return the given actions."""
        actions = self._actions[numbers, slots]
        if self._low is not None and observed.mask is not None and actions.ndim == 1:
            legal = observed.mask[np.arange(len(actions)), actions - self._low]
            actions = np.where(legal, actions, observed.mask.argmax(axis=1) + self._low).astype(actions.dtype)
        if self.states is None or numbers.any():
            return Acted(actions)
        return Acted(actions, states={name: each[slots] for name, each in self.states.items()})


class CalledPolicy(Policy):
    """A user's function of the observation, and of the mask if there is one.

    It returns actions, or a mapping with `action`, and `log_probability`, `value` and `hidden` where it has them.
    """

    def __init__(self, function: Callable[..., Any], space: ActionSpace) -> None:
        self._function, self._space = function, space

    def act(self, slots: NDArray[np.int64], numbers: NDArray[np.int64], observed: Observed) -> Acted:
        """Call the function."""
        observation = observed.leaves[""] if list(observed.leaves) == [""] else dict(observed.leaves)
        try:
            found = self._function(observation, *(() if observed.mask is None else (observed.mask,)))
        except Exception as error:
            raise UserError(f"it raised {describe_error(error)}", where="policy", fix="repair the function") from error
        told: Mapping[str, Any] = found if isinstance(found, Mapping) else {"action": found}
        if odd := sorted(told.keys() - {"action", "log_probability", "value", "hidden"}):
            raise UserError(
                f"returned {odd[0]!r}, expected action, log_probability, value or hidden",
                where="policy",
                fix="return the actions, or a mapping with these names",
            )
        arrays = {name: dict(flatten(each)) for name, each in told.items()}
        if "action" not in arrays:
            raise UserError("it returned no action", where="policy", fix="return the actions")

        def read(name: str, *shape: int) -> NDArray[Any] | None:
            array = arrays.get(name, {"": None}).get("", np.zeros(0))
            if array is not None and array.size != len(slots) * math.prod(shape):
                raise UserError(
                    f"{name} has the shape {list(array.shape)}, expected {[len(slots), *shape]}",
                    where="policy",
                    fix="return one for each slot",
                )
            return None if array is None else array.reshape(len(slots), *shape)

        actions: Any = read("action", *self._space.shape)
        return Acted(actions.astype(self._space.dtype), read("log_probability"), read("value"), arrays.get("hidden"))


class Ran(NamedTuple):
    """Two sides that took the same actions, with what was seen on the way.

    unsteady: the roles of the sides that did not repeat themselves
    begins_alike: whether the same seeds begin the same episodes on both sides
    space:   the space of actions; None if both were recorded
    states:  the states from which the leader's actions were taken; empty if they are not shown
    ranges:  the least and the greatest action of both sides, in words, if they differ
    """

    expected: Side
    actual: Side
    unsteady: tuple[str, ...]
    lockstep: bool
    begins_alike: bool = True
    space: ActionSpace | None = None
    states: Sequence[Sequence[Leaves]] = ()
    ranges: tuple[str, ...] = ()


def compare_environments(
    expected: Open | Side, actual: Open | Side, comparing: Comparing = Comparing(), phase: Phase = silent_phase
) -> tuple[EnvironmentReport, Compared]:
    """Compare two environments, or an environment with a recorded run whose actions it takes.

    UserError for environments that cannot take the same actions.
    """
    ran, found = _run_and_compare(expected, actual, comparing, phase)
    report = judge(ran, found, comparing)
    if report.divergences:
        sides = None if isinstance(expected, Side) or isinstance(actual, Side) else (expected, actual)
        divergences, causes = describe_causes(found, lockstep=ran.lockstep)
        first = causes[0]
        is_open = first.when is not None and not first.when.is_exact and first.when.num_wrong <= FEW_WRONG
        if sides is not None and is_open:
            further = _run_further(sides, comparing, divergences[first.first].step + MOST_AFTER)
            divergences, causes = describe_causes(found, further, lockstep=ran.lockstep)
        report = msgspec.structs.replace(report, divergences=divergences, causes=causes)
        if comparing.shrinks and sides is not None:
            shrunk = _shrink(report, ran, found, sides, comparing)
            odd = shrunk is not None and not shrunk.repeats
            notes = (
                *report.notes,
                *(["the smallest comparison does not repeat itself: a side is not deterministic"] * odd),
            )
            report = msgspec.structs.replace(report, shrunk=shrunk, notes=notes)
    return report, found


def _run_further(sides: tuple[Open, Open], comparing: Comparing, steps: int) -> list[Compared]:
    """Compare the sides with other seeds and the same number of slots: an instance of some causes is found once a slot."""
    policies = comparing.policies if not isinstance(comparing.policies[0], GivenActions) else (None, None)
    size = replace(comparing, steps=min(steps, comparing.steps), policies=policies)
    seeds = (comparing.seed + comparing.slots * number for number in range(1, NUM_FURTHER + 1))
    return [_run_and_compare(*sides, replace(size, seed=seed), silent_phase)[1] for seed in seeds]


def _shrink(
    report: EnvironmentReport, ran: Ran, found: Compared, sides: tuple[Open, Open], comparing: Comparing
) -> Shrunk | None:
    """Return the smallest comparison that shows the first difference; None for policies, whose actions are their own."""
    leader, follower = comparing.policies
    is_free = leader is None or (isinstance(leader, GivenActions) and leader.states is None)
    if not is_free or follower is not None or ran.space is None or report.first_divergence is None:
        return None
    space = ran.space

    def note(case: Case, ran: Ran, found: Compared) -> Tried:
        taken = ran.expected.columns.actions.number.reshape(*case.actions.shape[:2], *space.shape)
        return Tried(case._replace(actions=taken.astype(space.dtype)), found, ran.states)

    def run(case: Case) -> Tried:
        size = replace(comparing, slots=len(case.actions), steps=case.actions.shape[1], seed=case.seed)
        policy = GivenActions(case.actions.swapaxes(0, 1), case.states, space.low)
        again = replace(size, policies=(policy, None), lockstep=ran.lockstep)
        return note(case, *_run_and_compare(*sides, again, silent_phase))

    whole = Case(comparing.seed, np.zeros((comparing.slots, comparing.steps)))
    return Shrinker(report.first_divergence, space, run, note(whole, ran, found)).shrink()


def _run_and_compare(
    expected: Open | Side, actual: Open | Side, comparing: Comparing, phase: Phase
) -> tuple[Ran, Compared]:
    if isinstance(expected, Side) and isinstance(actual, Side):
        both = [(side.columns.candidates.slot, side.columns.candidates.seed) for side in (expected, actual)]
        if not all(map(np.array_equal, *both)):
            raise UserError(
                "the two recorded runs have other slots or seeds",
                where="slots",
                fix="record both with the same number of slots and the same seed",
            )
        ran = Ran(expected, actual, (), lockstep=False)
        return ran, compare_sides(expected, actual, tolerance=comparing.tolerance)
    recorded = next((side for side in (expected, actual) if isinstance(side, Side)), None)
    slots = comparing.slots if recorded is None else len(recorded.columns.candidates.slot)
    with ExitStack() as stack:
        opened = [
            side if isinstance(side, Side) else stack.enter_context(closing(side(slots))) for side in (expected, actual)
        ]
        runner = _Runner(opened, recorded, comparing, phase)
        ran = runner.run()
        found = compare_sides(ran.expected, ran.actual, tolerance=comparing.tolerance, lockstep=ran.lockstep)
        if ran.lockstep and found.comparison.divergences and comparing.tolerance is None:
            found = compare_sides(ran.expected, ran.actual, runner.change_states(ran), lockstep=True)
        return ran, found


def record_environment(opened: Open, comparing: Comparing, phase: Phase = silent_phase) -> Side:
    """Drive an environment with the actions of a policy, and return what it returned. UserError for one that fails."""
    with closing(opened(comparing.slots)) as environment:
        plan = _plan(comparing)
        leader = Leader(_lead(comparing.policies[0], environment.actions, plan), comparing.slots)
        with phase(environment.name, comparing.steps * comparing.slots) as progress:
            return _drive(environment, plan, leader, progress)


def _as_policy(given: Any, space: ActionSpace) -> Policy | None:
    return given if given is None or isinstance(given, Policy) else CalledPolicy(given, space)


def _lead(given: Any, space: ActionSpace, plan: Plan) -> Policy:
    return _as_policy(given, space) or RandomPolicy(space, plan.seeds.tolist())


def _plan(comparing: Comparing) -> Plan:
    return Plan(np.arange(comparing.slots, dtype=np.int64) + comparing.seed, comparing.steps)


class _Runner:
    """Runs two sides with the same actions: those that the leading side's policy chooses, or recorded ones."""

    def __init__(
        self, opened: Sequence[Environment | Side], recorded: Side | None, comparing: Comparing, phase: Phase
    ) -> None:
        self._opened, self._recorded, self._comparing, self._phase = opened, recorded, comparing, phase
        self._live = [side for side in opened if isinstance(side, Environment)]
        self._plan = _plan(comparing)
        if recorded is not None:
            num_steps = min(_count_actions(recorded.columns).tolist(), default=0)
            candidates = recorded.columns.candidates
            self._plan = Plan(candidates.seed, num_steps, candidates.slot)
        spaces = [side.actions for side in self._live]
        self._space = spaces[0]
        if any(space.shape != spaces[0].shape or space.is_discrete != spaces[0].is_discrete for space in spaces):
            raise UserError(
                f"the actions have the shapes {' and '.join(str(list(space.shape)) for space in spaces)}",
                where="actions",
                fix="compare environments that take the same actions",
            )
        is_same = all(
            np.array_equal(*both)
            for each in spaces
            for both in ((each.low, spaces[0].low), (each.high, spaces[0].high))
        )
        self._ranges = () if is_same else tuple(f"{each.low.min():g} to {each.high.max():g}" for each in spaces)
        _agree_on_seeds(self._live)
        self._has_states = len(self._live) == 2 and all(side.has_states for side in self._live)
        self._lockstep = self._choose_lockstep()

    def _choose_lockstep(self) -> bool:
        if self._comparing.lockstep and not self._has_states:
            raise UserError(
                "a side cannot take a step from the other's state",
                where="lockstep",
                fix="give both sides a state that can be set, by the attributes or functions in `state`",
            )
        chosen = self._has_states if self._comparing.lockstep is None else self._comparing.lockstep
        ways = [side.seeding for side in self._live]
        self._begins_alike = (len(set(ways)) == 1 and Seeding.OWN not in ways) or len(ways) == 1
        if not self._begins_alike and not chosen:
            raise UserError(
                f"the sides draw the beginnings of their episodes in different ways: {' and '.join(ways)}",
                where="seeds",
                fix="declare the same seeds for both, such as seeds='episode', or give both a state that can be set",
            )
        return chosen

    def run(self) -> Ran:
        """Run both sides, and the beginning of each again."""
        policies = [_as_policy(each, self._space) for each in self._comparing.policies]
        leader: Leader | Recorded
        if self._recorded is None:
            leader = Leader(_lead(policies[0], self._space, self._plan), len(self._plan.seeds))
        else:
            leader = Recorded(first_actions(self._recorded.columns, self._plan.num_steps), self._space)
        sides, unsteady = [], []
        for role, opened, policy in zip(("expected", "actual"), self._opened, policies, strict=True):
            if isinstance(opened, Side):
                sides.append(replace(opened, columns=first_actions(opened.columns, self._plan.num_steps)))
                continue
            leads = self._recorded is None and role == "expected"
            chooser = leader if leads else Follower(leader, policy, lockstep=self._lockstep)
            with self._phase(f"{role}: {opened.name}", self._plan.num_steps * opened.num_slots) as progress:
                side = _drive(opened, self._plan, chooser, progress)
            sides.append(side)
            short = self._plan._replace(num_steps=min(self._plan.num_steps, MOST_REPEATED))
            again = Follower(leader, policy, lockstep=self._lockstep and not leads)
            repeated = _drive(opened, short, again).columns
            if not are_equal(repeated, first_actions(side.columns, short.num_steps), equal_nan=True):
                unsteady.append(role)
        self._leader = leader
        sides = [self._drop_resets(side) for side in sides]
        states = leader.states if self._has_states else ()
        return Ran(
            sides[0], sides[1], tuple(unsteady), self._lockstep, self._begins_alike, self._space, states, self._ranges
        )

    def change_states(self, ran: Ran) -> tuple[Side, ...]:
        """Run the expected side again, from states that differ in the last place of the coarser of both types."""
        opened = self._opened[0]
        assert isinstance(opened, Environment)
        types = {each for side in (ran.expected, ran.actual) for each in side.dtypes.get("states", ())}
        change = max(map(eps_of, types), default=0.0)
        choosers = [
            Follower(self._leader, lockstep=True, change=change, seed=number)
            for number in range(NUM_CHANGED if change else 0)
        ]
        return tuple(self._drop_resets(_drive(opened, self._plan, each)) for each in choosers)

    def _drop_resets(self, side: Side) -> Side:
        if self._begins_alike:
            return side
        is_reset = side.columns.steps.kind == StepKind.RESET
        return replace(side, columns=without_numbers(side.columns, GROUPS, is_reset))


def judge(ran: Ran, found: Compared, comparing: Comparing) -> EnvironmentReport:
    """Return the report of a comparison."""
    comparison = found.comparison
    sides = [_describe_side(side) for side in (ran.expected, ran.actual)]
    reasons: list[Coded] = list(comparison.reasons)
    notes = []
    for role in ran.unsteady:
        text = f"the {role} side does not repeat itself after a reset with the same seeds"
        if role == "actual" and comparison.divergences:
            notes.append(text)
        else:
            reasons.append(Code.NOT_DETERMINISTIC.mark(text))
    if found.drifts:
        drifted = min(found.drifts, key=lambda each: each.step)
        text = (
            f"rounding grows in {count_of(len(found.drifts), 'slot')}, first in {drifted.atom} at step {drifted.step}"
            f" ({drifted.field}), and what follows was not compared:"
            " declare a state that can be set on both sides, or a tolerance"
        )
        if comparison.divergences:
            notes.append(text)
        else:
            reasons.append(Code.DRIFT.mark(text))
    if not comparison.divergences:
        reasons += _list_missing(sides, comparing.minimum)
    if not ran.begins_alike:
        notes.append("not compared, since the sides begin their episodes differently: what a reset returned")
    if not any(side.truncated for side in sides):
        notes.append("no episode was truncated, so nothing is known of what follows a truncation")
    if ran.ranges:
        notes.append(f"the actions differ, {' and '.join(ran.ranges)}, and both sides took those of the expected one")
    unknown = ran.expected.columns_known ^ ran.actual.columns_known
    if named := sorted(re.sub(r"^steps\.|\.number$", "", name) for name in unknown if "num_" not in name):
        notes.append(f"not compared, since one side does not have it: {', '.join(named)}")
    for group in sorted(ran.expected.names.keys() & ran.actual.names.keys()):
        pairs = zip(ran.expected.names[group], ran.actual.names[group], strict=False)
        if other := [f"{one} with {two}" for one, two in pairs if one != two]:
            notes.append(f"numbers of other names are compared, in their order: {', '.join(other[:MOST_NAMED])}")
    candidates = ran.expected.columns.candidates
    verdict = Verdict.INCONCLUSIVE if reasons else Verdict.DIVERGE if comparison.divergences else Verdict.AGREE
    return EnvironmentReport(
        verdict=verdict,
        coverage=comparison.coverage,
        expected=sides[0],
        actual=sides[1],
        divergences=comparison.divergences,
        near_ties=comparison.near_ties,
        reasons=tuple(reasons),
        notes=tuple(notes),
        rounding=found.rounding.describe(),
        lockstep=ran.lockstep,
        slots=len(candidates.slot),
        steps=int(_count_actions(ran.expected.columns).max(initial=0)),
        seed=int(candidates.seed[0]) if len(candidates.seed) else 0,
        minimum=dict(comparing.minimum),
        self_test=comparison.self_test,
        windows=found.windows,
    )


def _agree_on_seeds(live: Sequence[Environment]) -> None:
    """Give each episode a seed on both sides, if one side has it so and the caller resets both."""
    kinds = {side.seeding for side in live}
    if kinds == {Seeding.SLOT, Seeding.EPISODE} and all(side.autoreset is Autoreset.DISABLED for side in live):
        for side in live:
            side.seeding = Seeding.EPISODE


def _list_missing(sides: Sequence[EnvironmentInfo], minimum: Minimum) -> list[Coded]:
    attributes = {"ended": "episodes"}
    least = {name: min(getattr(side, attributes.get(name, name)) for side in sides) for name in minimum}
    short = [
        f"{least[name]:,} {EVIDENCE[name]}, {num:,} required" for name, num in minimum.items() if least[name] < num
    ]
    rest = {name: number for name, number in minimum.items() if least[name] >= number}
    advice = f"take more steps, or {advise_minimum(rest)}"
    return [Code.TOO_LITTLE_EXERCISED.mark(f"too little was exercised: {'; '.join(short)}; {advice}")] if short else []


def _describe_side(side: Side) -> EnvironmentInfo:
    steps, candidates = side.columns.steps, side.columns.candidates
    return EnvironmentInfo(
        name=side.name,
        autoreset=side.autoreset,
        episodes=int((steps.terminated | steps.truncated).astype(bool).sum()),
        terminated=int(steps.terminated.astype(bool).sum()),
        truncated=int(steps.truncated.astype(bool).sum()),
        resets=int((steps.kind == StepKind.RESET).sum()) - int((candidates.num_steps > 0).sum()),
        rewards=int((steps.reward != 0).sum()),
    )


def _count_actions(columns: Trajectories) -> NDArray[np.int64]:
    """Return the number of actions of each candidate: int64 [N]."""
    return count_where(columns.steps.kind == StepKind.STEP, starts_of(columns.candidates.num_steps))


def _drive(environment: Environment, plan: Plan, chooser: Any, progress: Any = None) -> Side:
    drive = Drive(environment, plan, chooser)
    for num in drive.steps():
        if progress is not None:
            progress(num)
    return Side(
        environment.name,
        drive.trajectories(),
        drive.names,
        drive.dtypes,
        frozenset(drive.known),
        environment.autoreset.value,
    )


def parse_evidence(declared: str | Minimum | None) -> Minimum:
    """Parse the minimum of evidence that a user declares: `"ended=1,truncated=1"`. UserError for an unknown item."""
    return parse_minimum(declared, "minimum", ENDED, EVIDENCE)
