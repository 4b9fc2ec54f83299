"""The switches of the ranking, found by what the engine's own `rank` returns for candidates made up for it."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from kgverify.errors import MissingDependency, UserError
from kgverify.program.atoms import NamedAtom
from kgverify.program.dialect import OURS
from kgverify.program.outcomes import Outcome, Side
from kgverify.ranking.rank import Rank
from kgverify.runs.engine_makers import MakePipeline
from kgverify.testing.checking.guard import OWN
from kgverify.testing.dialects.proposal import Finding, Trial
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import Problem
from kgverify.trace.model.columns import Candidates

RANKING: Final = ("unproved", "ties")
"""The switches that this module finds."""
_REPEATS: Final = 16
_NAMES: Final = "abcdefgh"

Scored: TypeAlias = tuple[bool, float]
"""The outcome of a candidate, proved or not, and its log-probability."""
Ends: TypeAlias = tuple[float, float]
"""The optimistic and the pessimistic rank."""


def find_ranking(make: MakePipeline) -> list[Finding]:
    """Return what the engine's own ranking shows; nothing is decided without one, or where it fails."""
    problem = Problem(facts=tuple([NamedAtom("p", "a", name) for name in _NAMES]), queries=(NamedAtom("p", "a", "a"),))
    merged = merge([problem])
    try:
        rank = make(merged.run, merged.sizes).rank
        if rank in OWN:
            return [_leave(name, "the engine brings no `rank`, so kgverify ranks") for name in RANKING]
        return [_find_unproved(rank), _find_ties(rank)]
    except MissingDependency:
        raise
    except (UserError, NotImplementedError) as error:
        return [_leave(name, f"it fails: {error}") for name in RANKING]


def _find_unproved(rank: Rank) -> Finding:
    """Rank an unproved candidate against proved ones of a lower log-probability."""
    questions: list[tuple[list[Scored], dict[str, Ends]]] = [
        ([(False, 0.0), (True, -1.0)], {"subtract_100": (2, 2), "log_probability": (1, 1)}),
        ([(True, -1.0), (False, 0.0)], {"subtract_100": (1, 1), "log_probability": (2, 2)}),
        ([(False, -1.0), (True, -2.0), (True, -0.5)], {"subtract_100": (3, 3), "log_probability": (2, 2)}),
    ]
    return _decide("unproved", [(scored, expected, _rank(rank, scored)) for scored, expected in questions])


def _find_ties(rank: Rank) -> Finding:
    """Rank a candidate among equal ones, several times, since the rule may be a random one."""
    questions = []
    for num_tied, num_above in ((2, 0), (4, 1), (6, 1)):
        scored = [(True, -1.0)] * (1 + num_tied) + [(True, -0.5)] * num_above
        low, high = 1.0 + num_above, 1.0 + num_above + num_tied
        middle = (low + high) / 2
        expected = {"realistic": (middle, middle), "optimistic": (low, low), "pessimistic": (high, high)}
        found = [_rank(rank, scored) for _ in range(_REPEATS)]
        if found[0] == (low, high):
            return _leave("ties", "it reports the optimistic and the pessimistic rank, and so leaves the rule open")
        if len(set(found)) > 1 and all(a == b and low <= a <= high for a, b in found):
            expected["random"] = found[0]
        questions.append((scored, expected, found[0]))
    return _decide("ties", questions)


def _decide(name: str, questions: Sequence[tuple[Sequence[Scored], dict[str, Ends], Ends]]) -> Finding:
    fits = [{value for value, ends in expected.items() if ends == found} for _, expected, found in questions]
    trials = tuple([_describe(name, *question) for question in questions])
    values = set.intersection(*fits)
    # What varies is random, whatever else the first draw fits.
    values = {"random"} if "random" in values else values
    if len(values) != 1:
        return _leave(name, "its answers contradict each other, or fit no value", trials)
    return Finding(switch=name, value=values.pop(), is_decided=True, trials=trials)


def _leave(name: str, reason: str, trials: tuple[Trial, ...] = ()) -> Finding:
    return Finding(switch=name, value=getattr(OURS, name), is_decided=False, reason=reason, trials=trials)


def _describe(name: str, scored: Sequence[Scored], expected: dict[str, Ends], found: Ends) -> Trial:
    candidates = [f"{'proved' if is_proved else 'not proved'} {score:g}" for is_proved, score in scored]
    return Trial(
        about=name,
        program=(f"the true triple: {candidates[0]}", f"corruptions: {', '.join(candidates[1:])}"),
        question="what is the rank of the true triple?",
        expected={value: _show(ends) for value, ends in expected.items()},
        proposed=next((value for value, ends in reversed(expected.items()) if ends == found), ""),
        answer=_show(found),
        num_fitting=int(found in expected.values()),
        num_asked=1,
    )


def _show(ends: Ends) -> str:
    return " to ".join(f"{end:g}" for end in dict.fromkeys(ends))


def _rank(rank: Rank, scored: Sequence[Scored]) -> Ends:
    """Return the rank of the first candidate. UserError for another number of ranks."""
    num = len(scored)
    atoms = np.array([(0, 0, i) for i in range(num)], np.int32)
    zeros: Any = np.zeros(num, np.int32)
    candidates = Candidates(
        zeros,
        np.full(num, Side.TAIL, np.int8),
        atoms,
        np.zeros(num, np.uint32),
        np.array([Outcome.PROVED if is_proved else Outcome.FAILED for is_proved, _ in scored], np.int8),
        np.zeros(num, np.uint8),
        np.array([score for _, score in scored], np.float64),
    )
    ranks = rank(candidates, atoms[:1], 0.0)
    if len(ranks.optimistic) != 1:
        raise UserError(
            f"expected one rank, found {len(ranks.optimistic)}",
            where="rank",
            fix="return a row for each query and side",
        )
    return float(ranks.optimistic[0]), float(ranks.pessimistic[0])
