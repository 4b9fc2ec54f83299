"""Drive two environments with the same actions, compare what they return, and judge."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kgverify.codes import Code, Coded
from kgverify.comparison.exercise.exercise import Minimum, advise_minimum, parse_minimum
from kgverify.comparison.result import Verdict
from kgverify.environments.compare import Compared, compare_sides, eps_of
from kgverify.environments.drive import Drive, Follower, Leader, Plan, Recorded
from kgverify.environments.protocol import (
    Acted,
    ActionSpace,
    Autoreset,
    Environment,
    Observed,
    Policy,
    RandomPolicy,
    flatten,
)
from kgverify.environments.report import EnvironmentInfo, EnvironmentReport
from kgverify.environments.side import Side
from kgverify.environments.trajectory import StepKind, Trajectories, first_actions
from kgverify.errors import UserError, count_of
from kgverify.progress import Phase, silent_phase
from kgverify.trace.model.columns import are_equal

MOST_REPEATED: Final = 50
"""The actions that are taken again in each slot, to see whether an environment repeats itself."""

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
    """

    slots: int = 16
    steps: int = 200
    seed: int = 0
    policies: tuple[Any, Any] = (None, None)
    tolerance: float | None = None
    lockstep: bool | None = None
    minimum: Minimum = field(default_factory=lambda: ENDED)


class CalledPolicy(Policy):
    """A user's function of the observation, and of the mask if there is one.

    It returns actions, or a mapping with `action`, and `log_probability`, `value` and `hidden` where it has them.
    """

    def __init__(self, function: Callable[..., Any], space: ActionSpace) -> None:
        self._function, self._space = function, space

    def act(self, slots: NDArray[np.int64], numbers: NDArray[np.int64], observed: Observed) -> Acted:
        """Call the function."""
        observation = observed.leaves[""] if list(observed.leaves) == [""] else dict(observed.leaves)
        found = self._function(observation, *(() if observed.mask is None else (observed.mask,)))
        told: Mapping[str, Any] = found if isinstance(found, Mapping) else {"action": found}
        if odd := sorted(told.keys() - {"action", "log_probability", "value", "hidden"}):
            raise UserError(
                f"returned {odd[0]!r}, expected action, log_probability, value or hidden",
                where="policy",
                fix="return the actions, or a mapping with these names",
            )
        arrays = {name: dict(flatten(each)) for name, each in told.items()}
        actions = arrays["action"][""].astype(self._space.dtype).reshape(len(slots), *self._space.shape)
        numbers_of = {
            name: arrays[name][""].reshape(len(slots)) for name in ("log_probability", "value") if name in told
        }
        return Acted(actions, numbers_of.get("log_probability"), numbers_of.get("value"), arrays.get("hidden"))


class Ran(NamedTuple):
    """Two sides that took the same actions, with what was seen on the way.

    changed: the expected side from changed states
    unsteady: the roles of the sides that did not repeat themselves
    """

    expected: Side
    actual: Side
    changed: tuple[Side, ...]
    unsteady: tuple[str, ...]
    lockstep: bool


def compare_environments(
    expected: Open | Side, actual: Open | Side, comparing: Comparing = Comparing(), phase: Phase = silent_phase
) -> tuple[EnvironmentReport, Compared]:
    """Compare two environments, or an environment with a recorded run whose actions it takes.

    UserError for environments that cannot take the same actions.
    """
    ran, found = _run_and_compare(expected, actual, comparing, phase)
    return judge(ran, found, comparing), found


def _run_and_compare(
    expected: Open | Side, actual: Open | Side, comparing: Comparing, phase: Phase
) -> tuple[Ran, Compared]:
    if isinstance(expected, Side) and isinstance(actual, Side):
        ran = Ran(expected, actual, (), (), lockstep=False)
        return ran, compare_sides(expected, actual, tolerance=comparing.tolerance)
    with ExitStack() as stack:
        opened = [
            side
            if isinstance(side, Side)
            else stack.enter_context(closing(side(_count_slots(expected, actual, comparing))))
            for side in (expected, actual)
        ]
        runner = _Runner(opened, comparing, phase)
        ran = runner.run()
        found = compare_sides(ran.expected, ran.actual, tolerance=comparing.tolerance, lockstep=ran.lockstep)
        if ran.lockstep and found.comparison.divergences and comparing.tolerance is None:
            ran = ran._replace(changed=runner.change_states(ran))
            found = compare_sides(ran.expected, ran.actual, ran.changed, lockstep=True)
        return ran, found


def _count_slots(expected: Open | Side, actual: Open | Side, comparing: Comparing) -> int:
    recorded = next((side for side in (expected, actual) if isinstance(side, Side)), None)
    return comparing.slots if recorded is None else len(recorded.columns.candidates.slot)


class _Runner:
    """Runs two sides with the same actions: those that the leading side's policy chooses, or recorded ones."""

    def __init__(self, opened: Sequence[Environment | Side], comparing: Comparing, phase: Phase) -> None:
        self._opened, self._comparing, self._phase = opened, comparing, phase
        recorded = next((side for side in opened if isinstance(side, Side)), None)
        self._space = next(side.actions for side in opened if isinstance(side, Environment))
        if recorded is None:
            seeds, steps = np.arange(comparing.slots, dtype=np.int64) + comparing.seed, comparing.steps
        else:
            seeds = recorded.columns.candidates.seed
            steps = min(np.bincount(_owners(recorded.columns), minlength=len(seeds)).tolist(), default=0)
        self._plan = Plan(seeds, steps, None if recorded is None else recorded.columns.candidates.slot)
        spaces = [side.actions for side in opened if isinstance(side, Environment)]
        if any(space.shape != spaces[0].shape or space.is_discrete != spaces[0].is_discrete for space in spaces):
            raise UserError(
                f"the actions have the shapes {' and '.join(str(list(space.shape)) for space in spaces)}",
                where="actions",
                fix="compare environments that take the same actions",
            )
        self.lockstep = self._choose_lockstep(opened)

    def _choose_lockstep(self, opened: Sequence[Environment | Side]) -> bool:
        live = [side for side in opened if isinstance(side, Environment)]
        can = len(live) == 2 and all(side.has_states for side in live)
        can = can and live[0].autoreset is live[1].autoreset is not Autoreset.NEXT_STEP
        if self._comparing.lockstep and not can:
            raise UserError(
                "a side cannot take a step from the other's state",
                where="lockstep",
                fix="give both sides a state that can be set, and one mode of autoreset that is not next_step",
            )
        return can if self._comparing.lockstep is None else self._comparing.lockstep

    def run(self) -> Ran:
        """Run both sides, and the beginning of each again."""
        leader: Leader | Recorded
        recorded = next((side for side in self._opened if isinstance(side, Side)), None)
        policies = [self._make_policy(each) for each in self._comparing.policies]
        if recorded is None:
            lead = policies[0] or RandomPolicy(self._space, self._plan.seeds.tolist())
            leader = Leader(lead, len(self._plan.seeds))
        else:
            columns = first_actions(recorded.columns, self._plan.num_steps)
            leader = Recorded(columns, self._space)
        sides, unsteady = [], []
        for role, opened, policy in zip(("expected", "actual"), self._opened, policies, strict=True):
            if isinstance(opened, Side):
                sides.append(replace(opened, columns=first_actions(opened.columns, self._plan.num_steps)))
                continue
            leads = isinstance(leader, Leader) and role == "expected"
            chooser = leader if leads else Follower(leader, policy, lockstep=self.lockstep)
            with self._phase(f"{role}: {opened.name}", self._plan.num_steps * opened.num_slots) as progress:
                side = _drive(opened, self._plan, chooser, progress)
            sides.append(side)
            short = self._plan._replace(num_steps=min(self._plan.num_steps, MOST_REPEATED))
            again = Follower(leader, policy, lockstep=self.lockstep and not leads)
            repeated = _drive(opened, short, again).columns
            if not are_equal(repeated, first_actions(side.columns, short.num_steps), equal_nan=True):
                unsteady.append(role)
        self._leader = leader
        return Ran(sides[0], sides[1], (), tuple(unsteady), self.lockstep)

    def change_states(self, ran: Ran) -> tuple[Side, ...]:
        """Run the expected side again, from states that differ in the last place of the coarser of both types."""
        opened = self._opened[0]
        assert isinstance(opened, Environment)
        types = {each for side in (ran.expected, ran.actual) for each in side.dtypes.get("states", ())}
        change = max(map(eps_of, types), default=0.0)
        return tuple(
            _drive(opened, self._plan, Follower(self._leader, lockstep=True, change=change, seed=number))
            for number in range(NUM_CHANGED if change else 0)
        )

    def _make_policy(self, given: Any) -> Policy | None:
        return given if given is None or isinstance(given, Policy) else CalledPolicy(given, self._space)


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
    if not any(side.truncated for side in sides):
        notes.append("no episode was truncated, so nothing is known of what follows a truncation")
    unknown = ran.expected.columns_known ^ ran.actual.columns_known
    if named := sorted(name.removeprefix("steps.") for name in unknown if "num_" not in name):
        notes.append(f"not compared, since one side does not have it: {', '.join(named)}")
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
        slots=len(ran.expected.columns.candidates.slot),
        steps=comparing.steps,
        seed=comparing.seed,
        minimum=dict(comparing.minimum),
        self_test=comparison.self_test,
    )


def _list_missing(sides: Sequence[EnvironmentInfo], minimum: Minimum) -> list[Coded]:
    short = []
    for name, number in minimum.items():
        least = min(_evidence(side)[name] for side in sides)
        if least < number:
            short.append(f"{least:,} {EVIDENCE[name]}, {number:,} required")
    rest = {name: number for name, number in minimum.items() if min(_evidence(side)[name] for side in sides) >= number}
    advice = f"take more steps, or {advise_minimum(rest)}"
    return [Code.TOO_LITTLE_EXERCISED.mark(f"too little was exercised: {'; '.join(short)}; {advice}")] if short else []


def _evidence(side: EnvironmentInfo) -> dict[str, int]:
    return {"ended": side.episodes, "resets": side.resets, "truncated": side.truncated, "rewards": side.rewards}


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


def _owners(columns: Trajectories) -> NDArray[np.int64]:
    """Return the candidate of each action: int64 [actions]."""
    owner = np.repeat(np.arange(len(columns.candidates.slot)), columns.candidates.num_steps)
    actions: NDArray[np.int64] = owner[columns.steps.kind == StepKind.STEP]
    return actions


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
