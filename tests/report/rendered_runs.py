"""Small saved runs of each verdict and each kind of engine, which are rendered and read back."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from problem_text import graph_of

import kgverify as kv
from kgverify.engines.plain.engine import PlainEngine
from kgverify.step.plain_step import SOUND, match_facts, match_rules, score_shortest

GRAPH: Final = graph_of(
    "p(a, b); p(b, c); p(c, d); p(a, d); q(b, a); q(d, b); p(d, a);"
    "q(X, Y) <- p(Y, X); q(X, Z) <- p(X, Y), p(Y, Z); q(X, Y) <- q(Y, X); q(X, Z) <- q(X, Y), p(Y, Z);"
    "! q(a, c); ! q(c, b); ! q(d, a)",
    "letters",
)
SIZE: Final = {"queries": 3, "corruptions": 3, "limits": kv.Limits(max_depth=5, max_atoms=3, max_resolvents=6)}


def _wrong(name: str, *, error: float = 0.0, **stages: Any) -> type:
    """Return an engine with some stages of its own."""

    class Wrong(PlainEngine):
        def __init__(self, program: Any, limits: Any, policy: Any) -> None:
            super().__init__(program, limits, policy, stages=SOUND._replace(**stages))
            self.info = kv.EngineInfo(name, mode="python", score_error=error)

    return Wrong


NO_FIRST_RULE: Final = _wrong("no first rule", match_rules=lambda *given: match_rules(*given)[1:])
TWO_STAGES: Final = _wrong(
    "two stages",
    match_rules=lambda *given: match_rules(*given)[:-1],
    match_facts=lambda *given: match_facts(*given)[1:],
)
REVERSED: Final = _wrong("reversed", match_rules=lambda *given: match_rules(*given)[::-1])
NOISY: Final = _wrong(
    "noisy",
    error=1e-3,
    score=lambda situation, resolvents: [
        each + 1e-4 * i for i, each in enumerate(score_shortest(situation.goal, resolvents))
    ],
)


class KnowsFacts(kv.OutcomeEngine):
    """Proves what is a fact."""

    def decide(self, query: tuple[str, str, str]) -> bool:
        return query in self.facts


class GivesUp(kv.TensorEngine):
    """Fails in every first step."""

    encoding, arrays = kv.Encoding(true=98, false=99), "numpy"

    def expand(self, states: Any, next_variable: Any, excluded: Any) -> Any:
        successors = np.zeros((len(states), 1, 1, 3), np.int64)
        successors[:, 0, 0, 0] = 99
        return successors, np.ones(len(states), np.int64), next_variable


TIGHT: Final = kv.Limits(max_depth=2, max_atoms=1, max_resolvents=1)
"""Limits that drop something in these runs."""


def _verify(engine: Any, limits: kv.Limits = SIZE["limits"], **options: Any) -> Callable[[Path], kv.Report]:
    equality = kv.Equality(**{"determinism": False, "minimum": {}, **options})
    return lambda folder: kv.verify(GRAPH, engine, equality=equality, save=folder, **SIZE | {"limits": limits})


def _compare(expected: Any, actual: Any, num_corruptions: int = 3) -> Callable[[Path], kv.Report]:
    """Return a function that compares the recorded traces of two engines."""

    def compare(folder: Path) -> kv.Report:
        paths = [folder.with_name(f"{folder.name}-{side}.h5") for side in ("expected", "actual")]
        for path, engine, number in zip(paths, (expected, actual), (3, num_corruptions), strict=True):
            kv.record(GRAPH, path, engine, **SIZE | {"corruptions": number})
        return kv.compare(*paths, save=folder)

    return compare


def _compare_texts(expected: tuple[str, str], actual: tuple[str, str]) -> Callable[[Path], kv.Report]:
    """Return a function that compares two files of ranks, each given as its suffix and its text."""

    def compare(folder: Path) -> kv.Report:
        paths = []
        for side, (suffix, text) in (("ours", expected), ("theirs", actual)):
            paths.append(folder.with_name(f"{folder.name}-{side}{suffix}"))
            paths[-1].write_text(text)
        return kv.compare(*paths, save=folder, job=kv.Job(kv.Source(GRAPH)))

    return compare


_RANKS: Final = "query,side,rank\n0,tail,{}\n1,tail,{}\n2,tail,{}\n"
RUNS: Final[Mapping[str, Callable[[Path], kv.Report]]] = {
    "agree": _verify("reference", determinism=True, minimum=None),
    "too little exercised": _verify("reference", minimum={"proved": 1000}),
    "a wrong stage": _verify(NO_FIRST_RULE),
    "two wrong stages, lockstep": _verify(TWO_STAGES, lockstep=True),
    "near-ties": _verify(NOISY, score_error=1e-3),
    "limits": _verify(REVERSED, TIGHT),
    "benign": _verify(REVERSED, modulo="order"),
    "tensors": _verify(GivesUp),
    "outcomes": _verify(KnowsFacts),
    "recorded": _compare(NO_FIRST_RULE, "reference"),
    "extra candidates": _compare("reference", NO_FIRST_RULE, num_corruptions=2),
    "ranks": _compare_texts((".csv", _RANKS.format(1, 2, 5)), (".csv", _RANKS.format(2, 3, 6))),
}
