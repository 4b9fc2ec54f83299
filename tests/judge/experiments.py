"""The problems of experiments, as a report words them."""

import re
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from columns import FACT, RULE, Atom, Clause, Goal, Recorded

UNKNOWN_GOAL: Goal = ((-9, -9, -9),)
"""A goal that stands for those visited before that the words do not name: no resolvent equals it."""


class Problem(NamedTuple):
    """A step to take: its goal, its depth, the query, and those goals visited before that are named, by number from 1.

    clause: the clause that it is about; None for the whole step
    """

    goal: Goal
    depth: int
    query: Atom
    named: dict[int, Goal]
    clause: Clause | None = None

    @property
    def visited(self) -> list[Goal]:
        """The goals visited before this one and with it, in order."""
        num = max((self.depth, *self.named))
        return [*(self.named.get(number, UNKNOWN_GOAL) for number in range(1, num + 1)), self.goal]


Take = Callable[[list[Problem]], tuple[Recorded, Recorded]]
"""A function that takes a step with both engines from each problem, and returns it as a candidate of its own."""


class ProblemReader:
    """A reader of problems with the names of a trace."""

    def __init__(self, trace: Recorded) -> None:
        self._trace = trace
        self._ids = {
            kind: {name: i for i, name in enumerate(trace.names(kind))} for kind in ("predicates", "constants")
        }
        predicate, constant = (
            "|".join(map(re.escape, sorted(names, key=len, reverse=True))) for names in self._ids.values()
        )
        argument = rf"(X\d+|{constant})"
        self._atom = re.compile(rf"({predicate})\({argument}, {argument}\)")

    @cached_property
    def _problem(self) -> re.Pattern[str]:
        atom = re.sub(r"(?<!\\)\((?!\?)", "(?:", self._atom.pattern)
        goal = rf"{atom}(?:, {atom})*"
        return re.compile(
            rf"(?:(?P<clause>.+) for )?(?P<goal>{goal}) \(depth (?P<depth>\d+), query (?P<query>{atom})"
            rf"(?P<named>(?:, goal \d+ was {goal})*)\)"
        )

    def read(self, words: str) -> Problem | None:
        """Return a problem; None for words of another form, or of a clause that the trace does not have."""
        found = self._problem.fullmatch(words)
        if found is None:
            return None
        named = re.split(r", goal (\d+) was ", found["named"])[1:]
        problem = Problem(
            self._read_goal(found["goal"]),
            int(found["depth"]),
            self._read_goal(found["query"])[0],
            {int(number): self._read_goal(goal) for number, goal in zip(named[::2], named[1::2], strict=True)},
        )
        if found["clause"] is None:
            return problem
        clause = self._read_clause(found["clause"])
        return clause and problem._replace(clause=clause)

    def _read_goal(self, text: str) -> Goal:
        constants = self._ids["constants"]
        return tuple(
            (self._ids["predicates"][p], *(constants[t] if t in constants else -1 - int(t[1:]) for t in terms))
            for p, *terms in self._atom.findall(text)
        )

    def _read_clause(self, text: str) -> Clause | None:
        if fact := re.match(rf"fact {self._atom.pattern}", text):
            atom = self._read_goal(fact[0])[0]
            return next(((FACT, i) for i, each in enumerate(self._trace.facts) if each == atom), None)
        rules = self._trace.header["clauses"]["rules"]
        return next(
            ((RULE, i) for i, rule in enumerate(rules) if text in (rule, f"rule {i}") or text.startswith(f"{rule} [")),
            None,
        )
