"""A program for each fault in which it manifests, as small as possible."""

import re
from typing import NamedTuple

import msgspec

from kgverify import KnowledgeGraph, Limits
from kgverify.program.atoms import NamedAtom, parse_atoms
from kgverify.program.limits import OURS
from kgverify.program.program import NamedRule
from kgverify.prover.faults.plant import FAULTS
from kgverify.runs.run import Run, load_policy


class Case(NamedTuple):
    """A program of lines with facts, or a rule each; queries; and the sizes with which a fault shows in it."""

    program: str
    test: str
    limits: Limits = Limits()
    num_corruptions: int = 0
    slots: int = 2
    policy: str = "shortest"

    def run(self) -> Run:
        lines = self.program.splitlines()
        facts = atoms_of(" ".join(line for line in lines if "<-" not in line))
        rules = [atoms_of(line) for line in lines if "<-" in line]
        graph = KnowledgeGraph(
            "made up",
            train=facts,
            test=atoms_of(self.test),
            rules=tuple(NamedRule(rule[0], rule[1:]) for rule in rules),
        )
        policy = load_policy(self.policy, graph, self.limits, 0)
        return Run(graph, self.limits, policy, num_queries=100, num_corruptions=self.num_corruptions)


def atoms_of(text: str) -> tuple[NamedAtom, ...]:
    return parse_atoms(" ".join(re.findall(r"\w+\(\w+,\w+\)", text.replace(" ", ""))))


WALKS = Case(
    """
    edge(c0, c1) edge(c1, c2) edge(c1, c3) edge(c2, c3) edge(c3, c4) edge(c3, c5) edge(c5, c6) edge(c4, c2)
    walk(c6, c1) walk(c4, c4) walk(c2, c6) last(c6, c0)
    walk(X, Y) <- edge(X, Z), walk(Z, Y)
    walk(X, Y) <- walk(Y, X)
    walk(X, Y) <- edge(Y, Z), walk(X, Z)
    last(X, Y) <- edge(X, Z), last(Z, Y)
    """,
    "walk(c0, c4) last(c3, c0) walk(c1, c5)",
    Limits(max_depth=7),
    num_corruptions=3,
    slots=5,
)
"""24 candidates for 5 slots: some proved, some failed, some at the depth limit."""

SHARED_VARIABLES = Case(
    """
    p(X, Y) <- q(X, Z), t(Z, Y)
    h(X, Y) <- p(Z, Y), s(Z, W), u(W, V)
    q(a, b)
    """,
    "h(a, b)",
)
SIX_EDGES = """
e(a, b) e(a, c) e(a, d) e(a, f) e(a, g) e(a, i)
h(X, Y) <- e(X, Z), l(Z, Y)
"""
LONG_BODY = Case(
    """
    h(X, Y) <- p(X, Z), q(Z, Y), p(Z, X), q(Y, Z)
    p(a, c)
    """,
    "h(a, b)",
)
PATHS = Case(
    """
    e(i, j)
    a(X, Y) <- b(X, Y)
    a(X, Y) <- c(X, Y)
    b(X, Y) <- f(X, Y)
    b(X, Y) <- g(X, Y)
    c(X, Y) <- g(X, Y)
    d(X, Y) <- e(X, Y)
    g(X, Y) <- k(X, Y)
    f(X, Y) <- c(X, Y)
    g(X, Y) <- b(X, Y)
    g(X, Y) <- d(X, Y)
    """,
    "a(i, j)",
    Limits(max_depth=6),
)
"""Paths that tie, meet in one goal, and end at different depths: every fault of a search shows, in its dialect."""
WEIGHTED = WALKS._replace(policy="two_tower", test="walk(c0, c4)")

CASES = {
    "repeated-head-variable": Case("h(X, X) <- q(X, Y) \n q(a, b)", "h(a, b)"),
    "fact-cap": Case(
        "h(X, Y) <- e(X, Z), l(Z, Y) \n" + " ".join(f"e(a, m{i})" for i in range(60)) + " l(m54, b)", "h(a, b)"
    ),
    "query-matched": Case("h(a, b) \n h(X, Y) <- q(X, Y)", "h(a, b)"),
    "repeated-goal-variable": Case("h(X, Y) <- r(Z, Z) \n r(a, b) r(b, a)", "h(a, b)"),
    "sequential-substitution": Case("h(X, Y) <- p(Z, Y), s(X, Z) \n p(X, X) <- q(X, X) \n s(a, a)", "h(a, b)"),
    "captured-variables": SHARED_VARIABLES,
    "overlapping-variables": SHARED_VARIABLES,
    "query-pruned": Case("h(a, b) \n h(X, Y) <- h(X, Y), q(X, Y)", "h(a, b)"),
    "gap-after-pruning": Case("h(X, Y) <- f(X, Y), g(X, Y) \n f(a, b)", "h(a, b)"),
    "packed-fact-keys": Case(
        "h(X, Y) <- r(X, Y) \n" + " ".join(f"e(c{i}, c{i + 1})" for i in range(300)) + " r(c1, c0)", "h(c0, c256)"
    ),
    "offset-renaming": SHARED_VARIABLES,
    "order-blind-hash": Case("h(X, Y) <- s(X, Z), t(X, Y) \n t(X, Y) <- t(X, Y), s(X, Z) \n s(a, c)", "h(a, b)"),
    "scatter-collision": Case(SIX_EDGES, "h(a, b)", Limits(max_resolvents=4)),
    "any-atom-proves": Case("h(X, Y) <- f(X, Y), g(X, Y) \n f(a, b)", "h(a, b)"),
    "max-atoms-off-by-one": Case(SIX_EDGES, "h(a, b)", Limits(max_atoms=2)),
    "max-resolvents-off-by-one": Case(SIX_EDGES, "h(a, b)", Limits(max_resolvents=4)),
    "truncated-goals": LONG_BODY._replace(limits=Limits(max_atoms=3)),
    "facts-before-rules": Case("h(X, Y) <- p(X, Z), q(Z, Y) \n p(X, Y) <- r(X, Y) \n p(a, c) r(a, d)", "h(a, b)"),
    "bf16-scores": LONG_BODY,
    "tf32-scores": WEIGHTED,
    "stale-weights": WEIGHTED,
    "stale-excluded-atom": Case("h(a, b) h(c, d) \n h(X, Y) <- q(X, Y)", "h(a, b) h(c, d)", slots=1),
    "visited-leak": Case(
        "h(X, Y) <- m(X, Z), n(Z, Y) \n g(X, Y) <- k(X, Y) \n k(X, Y) <- m(X, Z), n(Z, Y) \n m(a, a)",
        "h(a, b) g(a, b)",
        slots=4,
    ),
    "optimistic-ties": Case("q(c, d)", "h(a, b)", num_corruptions=2),
    "no-push-down": Case(
        "h(X, Y) <- e(X, Z), l(Z, W), m(W, Y) \n e(a, b) e(a, c) l(b, g) m(g, d)", "h(a, d)", num_corruptions=3
    ),
    "padding-ranked": WALKS._replace(num_corruptions=6),
}
"""The case of each fault; one that is not listed manifests in `WALKS`."""


def case_of(fault: str) -> Case:
    dialect = FAULTS[fault].dialect
    if dialect == OURS:
        return CASES.get(fault, WALKS)
    return PATHS._replace(limits=msgspec.structs.replace(PATHS.limits, dialect=dialect))
