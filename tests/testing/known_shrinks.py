"""Known shrinks: generated problems that fail by a rule of their text, and every attempt to make them smaller.

Here a problem fails if it has something, such as a fact p(a, a), and no engine runs. So the passes of the shrinker are judged
apart from the engines, in milliseconds. After an intended change, `python tests/testing/known_shrinks.py` writes the
hashes again.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from kgverify import Equality, KnowledgeGraph, Limits, Problem, Stage
from kgverify.laws import draw_problems
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Run, reference_pipeline
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.failure import CRASH, Failure, Signature
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import SHORTEST
from kgverify.testing.shrinking.shrink import Budget, Oracle, shrink_with
from kgverify.testing.shrinking.shrink_run import Slicer, shrink_keeping_ids
from kgverify.verification.judgement import LITTLE
from kgverify.verification.verify import verify

PATH: Final = Path(__file__).with_suffix(".json")
SEED: Final = 17
NUM_DRAWN: Final = 400
NUM_KEPT: Final = 4
"""The problems that are shrunk for each rule: the first ones drawn that fail by it."""
MOST_CALLS: Final = 600

IN_STEP: Final = Signature("prune", "resolvents.atoms", "missing")
IN_BATCH: Final = Signature("recycle", "steps.depth", "foreign")
IN_CRASH: Final = Signature("", "", CRASH, "ValueError")

Fails = Callable[[Problem], bool]


def _has_long_rule(problem: Problem) -> bool:
    return problem.limits.max_atoms >= 2 and any(len(rule.body) >= 2 for rule in problem.rules)


FAILS: Final[Mapping[str, tuple[Signature, Fails]]] = {
    "a fact p(a, a)": (IN_STEP, lambda problem: any(a == b for _, a, b in problem.facts)),
    "three facts of a predicate": (
        IN_STEP,
        lambda problem: any(sum(f.predicate == g.predicate for f in problem.facts) > 2 for g in problem.facts),
    ),
    "a long rule": (IN_STEP, _has_long_rule),
    "two rules": (IN_STEP, lambda problem: len(problem.rules) > 1 and problem.limits.max_resolvents > 1),
    "three constants and depth": (
        IN_STEP,
        lambda problem: len(problem.domain) > 2 and problem.limits.max_depth > 2,
    ),
    "an open query": (
        IN_STEP,
        lambda problem: any(isinstance(each.second, Variable) for each in problem.unranked),
    ),
    "a ranked query": (IN_STEP, lambda problem: bool(problem.queries) and problem.num_corruptions not in (0, 1)),
    "a query with corruptions": (IN_STEP, lambda problem: bool(problem.queries) and problem.num_corruptions != 0),
    "a network": (IN_STEP, lambda problem: problem.policy != SHORTEST and bool(problem.facts)),
    "a network of its seed": (IN_STEP, lambda problem: problem.policy.seed > 0 and bool(problem.rules)),
    "unused symbols": (IN_STEP, lambda problem: sum(problem.spread[:2]) > 100),
    "two slots": (IN_BATCH, lambda problem: problem.sizes.slots > 1 and len(problem.unranked) > 1),
    "two predicates in a batch": (
        IN_BATCH,
        lambda problem: len({fact.predicate for fact in problem.facts}) > 1 and problem.sizes.slots > 2,
    ),
    "a crash": (IN_CRASH, lambda problem: len(problem.facts) > 1 and len(problem.rules) > 0),
}


class RuledOracle(Oracle):
    """An oracle that asks a rule instead of engines, and keeps every problem that it was asked about."""

    def __init__(self, signature: Signature, fails: Fails, *, max_calls: int = MOST_CALLS) -> None:
        super().__init__(Checker(_make_no_engine), signature, Budget(max_calls, 3600.0))
        self.fails = fails
        self.asked: list[str] = []

    def judge_alone(self, problem: Problem) -> Failure | None:
        """Return a failure with the oracle's signature if the rule says so."""
        self.calls += 1
        self.asked.append(repr(problem))
        if not self.fails(problem):
            return None
        return Failure(index=0, problem=problem, group=(problem,), signature=self.signature)

    def judge_together(self, problems: Sequence[Problem]) -> set[int]:
        """Return the indices of the problems that fail, as if a common run changed nothing."""
        self.calls += 1
        self.asked.append(repr(len(problems)))
        return {i for i, problem in enumerate(problems) if self.fails(problem)}


def _make_no_engine(run: Any, sizes: Any) -> Any:
    raise AssertionError("no engine is asked")


def shrink_kept(name: str) -> Iterator[tuple[Problem, RuledOracle, Any]]:
    """Yield the minimal problem of each kept one of a rule, the oracle that was asked, and the whole result."""
    signature, fails = FAILS[name]
    drawn = islice((each for each in islice(draw_problems(SEED), NUM_DRAWN) if fails(each)), NUM_KEPT)
    for number, problem in enumerate(drawn):
        oracle = RuledOracle(signature, fails, max_calls=(MOST_CALLS, 40)[number == NUM_KEPT - 1])
        failure = Failure(index=number, problem=problem, group=(problem,), signature=signature)
        shrunk = shrink_with(oracle, failure)
        yield shrunk.problem, oracle, shrunk


def answer_to(name: str) -> str:
    """Return the sizes of the minimal problems of a rule, and a hash of all attempts."""
    digest, sizes = hashlib.sha256(), []
    for problem, oracle, shrunk in shrink_kept(name):
        sizes.append(problem.size)
        texts = (*oracle.asked, str(problem), shrunk.change, f"{shrunk.calls} {shrunk.is_finished}")
        digest.update("\n".join(texts).encode())
    return f"{sizes} {digest.hexdigest()[:16]}"


def keep_ids(first: int, second: int, num: int = 40) -> tuple[Problem, RuledOracle]:
    """Shrink, with fixed ids, a chain of facts that fails if a constant is as far from another as in the whole."""
    names = [f"c{i}" for i in range(num)]
    facts = tuple(NamedAtom("q" if i % 3 else "r", a, b) for i, (a, b) in enumerate(pairwise(names)))
    ends = NamedAtom("s", names[first], names[second])
    other = NamedAtom("s", names[second], names[first])
    problem = Problem(facts=(*facts, ends, other), unranked=(NamedAtom("s", names[first], Variable("X")),))
    distance = second - first

    def fails(attempt: Problem) -> bool:
        program = merge([attempt]).graph.program
        ids = program.symbols.constant_ids
        is_there = {ends, other} <= set(attempt.facts)
        return is_there and ids[names[second]] - ids[names[first]] == distance and facts[first] in attempt.facts

    oracle = RuledOracle(IN_STEP, fails)
    return shrink_keeping_ids(problem, (ends,), oracle), oracle


KEPT_IDS: Final = ((0, 1), (0, 39), (3, 30), (10, 11), (5, 38), (37, 39))


def answer_with_ids() -> str:
    """Return the sizes of problems shrunk with fixed ids, and a hash of all attempts."""
    digest, sizes = hashlib.sha256(), []
    for first, second in KEPT_IDS:
        problem, oracle = keep_ids(first, second)
        sizes.append((problem.size, *problem.spread))
        digest.update("\n".join((*oracle.asked, str(problem))).encode())
    return f"{sizes} {digest.hexdigest()[:16]}"


def _make_graph() -> KnowledgeGraph:
    """Return chains of facts, repeated ones among them, and rules whose derivations select p(X, X) as well."""
    chain = tuple(NamedAtom("q", f"c{i}", f"c{i + 1}") for i in range(9))
    others = tuple(NamedAtom("q", f"d{i}", "d0") for i in range(70))
    loops = tuple(NamedAtom("s", a, b) for a, b in (("c3", "c3"), ("c5", "c6"), ("c7", "c7")))
    x, y, z = map(Variable, "XYZ")
    rules = (
        NamedRule(NamedAtom("p", x, y), (NamedAtom("q", x, y),), "direct", 0.5),
        NamedRule(NamedAtom("p", x, y), (NamedAtom("q", x, z), NamedAtom("p", z, y))),
        NamedRule(NamedAtom("t", x, y), (NamedAtom("s", z, z), NamedAtom("q", x, y))),
        NamedRule(NamedAtom("u", x, y), (NamedAtom("t", y, x), NamedAtom("s", x, z))),
        NamedRule(NamedAtom("v", x, y), (NamedAtom("q", z, y), NamedAtom("s", z, z))),
        NamedRule(NamedAtom("v", x, y), (NamedAtom("v", y, x),)),
    )
    test = (
        NamedAtom("p", "c0", "c3"),
        NamedAtom("t", "c1", "c2"),
        NamedAtom("u", "c2", "c5"),
        NamedAtom("v", "c0", "c2"),
    )
    valid = (NamedAtom("p", "c0", "c9"),)
    return KnowledgeGraph("chains", train=(*others, *chain, *loops, chain[1]), valid=valid, test=test, rules=rules)


GRAPH: Final = _make_graph()
FAULTS: Final = ("last-fact-lost", "swapped-arguments")
STAGES: Final = (Stage.RECYCLE.value, Stage.RANK.value)
"""The stages that a divergence is given, in addition to its own."""


def answer_of_slices(fault: str) -> str:
    """Return the number of slices of some divergences of an engine with a fault, and their hash."""
    run = Run(GRAPH, Limits(max_depth=5), num_queries=4, num_corruptions=9)
    actual = evaluator_pipeline(run, faults=[fault], mode="eager", slots=4)
    verification = verify(run, reference_pipeline(run), actual, effort=LITTLE, equality=Equality(determinism=False))
    divergences = verification.report.divergences
    slicer, digest, num = Slicer(verification, GRAPH), hashlib.sha256(), 0
    for each in (divergences[0], divergences[-1]):
        digest.update(repr(slicer.touched(each)).encode())
        for stage in (each.stage, *STAGES):
            for attempts in slicer.slices(msgspec.structs.replace(each, stage=stage)):
                num += len(attempts)
                digest.update(repr(attempts).encode())
    return f"{num} {digest.hexdigest()[:16]}"


ANSWERS: Final[Mapping[str, Callable[[], str]]] = {
    **{name: partial(answer_to, name) for name in FAILS},
    "fixed ids": answer_with_ids,
    **{f"slices of {fault}": partial(answer_of_slices, fault) for fault in FAULTS},
}


def main() -> int:
    answers = {name: answer() for name, answer in ANSWERS.items()}
    PATH.write_bytes(msgspec.json.format(msgspec.json.encode(answers), indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
