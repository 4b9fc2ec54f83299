"""The explanation of divergences: they are replayed, classified and grouped by cause."""

from functools import cached_property

from kgverify.comparison.classify import Finding, classify, find_surroundings, group_causes
from kgverify.comparison.compare import Comparer
from kgverify.comparison.result import Cause, Comparison, Divergence
from kgverify.comparison.step_view import StepReader, StepView
from kgverify.engines.protocol import Engine
from kgverify.program.atoms import Atom, Goal
from kgverify.trace.model.trace import Trace
from kgverify.verification.replay import Lockstep, Replayed, replay_divergences

Views = dict[tuple[int, int], tuple[StepView, StepView]]


class Explainer:
    """The explanation of a comparison's divergences. `views` holds both steps of each divergence that belongs to a step."""

    def __init__(self, expected: Trace, comparer: Comparer, views: Views) -> None:
        self._expected = expected
        self._comparer = comparer
        self._views = views
        self._reader = StepReader(expected.columns)

    def replay(
        self, comparison: Comparison, engines: tuple[Engine, Engine], *, lockstep: bool = False
    ) -> list[Replayed]:
        """Name the stages of the divergences by replay; in lockstep, also the faults behind the first stage at fault."""
        observed = {key: actual for key, (_, actual) in self._views.items()}
        return replay_divergences(
            comparison.divergences,
            self._expected.columns,
            engines,
            self._comparer.names,
            self._comparer.score_tolerance,
            Lockstep(observed, self._expected.header.limits) if lockstep else None,
        )

    def group(self, replayed: list[Replayed]) -> tuple[tuple[Divergence, ...], tuple[Cause, ...]]:
        """Return the divergences with their classes, and their causes."""
        findings = tuple(self.classify(each) for each in replayed)
        return group_causes(tuple(each.divergence for each in replayed), findings)

    def classify(self, replayed: Replayed) -> Finding:
        """Return the class of one divergence."""
        if replayed.like is not None:
            found = self.classify(replayed.like)
            return found._replace(evidence=f"assumed to be like {replayed.like.divergence.atom}: {found.evidence}")
        divergence = replayed.divergence
        around = find_surroundings(
            divergence,
            self._reader,
            replayed.views or self._views.get((divergence.candidate, divergence.step)),
            error_bound=2 * self._comparer.score_tolerance,
            draw=self._comparer.draws.get((divergence.query, divergence.side), ""),
        )
        expected, actual = around.expected, around.actual
        is_wrong_goal = expected is not None and actual is not None and expected.goal != actual.goal
        goals = self._all_goals if is_wrong_goal else frozenset()
        return classify(divergence, around._replace(outputs=replayed.outputs, other_goals=goals))

    @cached_property
    def _all_goals(self) -> frozenset[Goal]:
        """The goals of the expected derivations, and the queries of both sides."""
        goals = (self._reader.read(row).goal for row in range(len(self._expected.columns.steps.depth)))
        queries = self._comparer.actual.columns.candidates.atom.tolist()
        return frozenset((*goals, *((Atom(*query),) for query in queries)))
