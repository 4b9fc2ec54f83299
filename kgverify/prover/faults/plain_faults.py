"""Faults of the plain step: each function takes the place of a sound stage, which is its first argument."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from kgverify.prover.faults.fault import FACT_CAP, Carrier, replaces
from kgverify.step.plain_step import Situation

replaces_plain: Final = partial(replaces, carrier=Carrier.PLAIN)


@replaces_plain("fact-cap", "match_facts")
def cap_facts(sound: Callable[..., list[int]], situation: Situation, selected: Any) -> list[int]:
    """Try only the first `FACT_CAP` facts of each predicate."""
    tried = situation.clauses.facts_of(selected[0])[:FACT_CAP]
    return [fact for fact in sound(situation, selected) if fact in tried]


@replaces_plain("query-pruned", "prune")
@replaces_plain("query-matched", "match_facts")
def forget_excluded(sound: Callable[..., Any], situation: Situation, *given: Any) -> Any:
    """Treat the query like any other fact."""
    return sound(situation._replace(excluded=None), *given)


@replaces_plain("no-revisit-check", "revisit")
def skip_check(sound: Callable[..., Any], situation: Situation, resolvents: Sequence[Any]) -> Sequence[Any]:
    """Let derivations walk in circles."""
    return resolvents


@replaces_plain("last-argmax", "choose")
def choose_last(sound: Callable[..., int], situation: Situation, scores: Sequence[float]) -> int:
    """Choose the highest index of equal scores."""
    return len(scores) - 1 - sound(situation, scores[::-1])
