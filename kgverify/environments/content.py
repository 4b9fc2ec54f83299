"""The content of a report on two environments: the data that every rendering reads."""

import msgspec

from kgverify.codes import Coded
from kgverify.comparison.result import Cause, Coverage, Divergence, NearTie, SelfTest, Verdict
from kgverify.environments.rows import Window
from kgverify.environments.shrink import Shrunk


class EnvironmentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One side: its name, its mode of autoreset, and what it exercised.

    episodes:   the episodes that ended
    terminated, truncated: the episodes that ended so
    resets:     the episodes that began after another one of the same slot
    rewards:    the steps with a reward other than 0
    """

    name: str
    autoreset: str = ""
    episodes: int = 0
    terminated: int = 0
    truncated: int = 0
    resets: int = 0
    rewards: int = 0


class EnvironmentContent(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The data of a report; `kgverify.EnvironmentReport` documents the result of a comparison.

    divergences: the first difference of each slot, in the order of slots; in lockstep, each step that differs
    causes:      the divergences grouped, with the condition of each
    near_ties:   the steps whose end a last place of the state decides; they are not divergences
    rounding:    in words, how many numbers differ by rounding, and the bound
    lockstep:    whether each step was taken from the expected state
    slots, steps, seed: what was driven: the slots, the actions of each, and the seed of the first slot
    windows:     the rows around the first divergences
    shrunk:      the smallest comparison found that shows the first divergence; None if none was sought
    """

    verdict: Verdict
    coverage: Coverage
    expected: EnvironmentInfo
    actual: EnvironmentInfo
    divergences: tuple[Divergence, ...] = ()
    causes: tuple[Cause, ...] = ()
    near_ties: tuple[NearTie, ...] = ()
    reasons: tuple[Coded, ...] = ()
    notes: tuple[str, ...] = ()
    rounding: str = ""
    lockstep: bool = False
    slots: int = 0
    steps: int = 0
    seed: int = 0
    minimum: dict[str, int] = {}
    self_test: SelfTest | None = None
    windows: tuple[Window, ...] = ()
    shrunk: Shrunk | None = None
    command: str = ""

    @property
    def first_divergence(self) -> Divergence | None:
        """The divergence with the smallest number of actions before it; None without divergences."""
        return min(self.divergences, key=lambda each: (each.step, each.candidate), default=None)
