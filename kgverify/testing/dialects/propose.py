"""Propose the dialect of an engine: ask it the questions of the experiments, and keep the dialects that fit its answers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from msgspec import structs

from kgverify.engines.load_engine import refuse_exit
from kgverify.errors import MissingDependency, UserError
from kgverify.program.atoms import NamedAtom
from kgverify.program.limits import FILTERS, OURS, VALUES, Dialect, Filter
from kgverify.program.outcomes import Outcome, Side
from kgverify.progress import Progress, no_progress
from kgverify.ranking.rank import Rank
from kgverify.runs.engine_makers import AnyEngine, MakePipeline, name_engine
from kgverify.testing.checking.check import Checker, prepare_batches
from kgverify.testing.checking.guard import OWN, find_explained
from kgverify.testing.dialects.experiments import (
    Answer,
    Experiment,
    ask,
    list_choices,
    list_controls,
    list_experiments,
    predict,
    project,
    vary,
)
from kgverify.testing.dialects.proposal import Finding, Proposal, Trial
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import Problem
from kgverify.trace.model.columns import Candidates

NO_MEMORY: Final = "none"
NEEDS: Final = {
    "memory": "revisit",
    "forgets_names": "revisit",
    "exempts_terminal": "revisit",
    "long_resolvents": "max_atoms",
}
"""The filter without which a switch means nothing."""
MOST_TRIED: Final = 300
"""Dialects that are tried on a problem."""


class Hypotheses:
    """A set of dialects, in which only the switches and filters matter that some experiment has used.

    dialects: the dialects; one without a memory has the memory `none` and no filter `revisit`
    used:     the names of these switches and filters
    """

    def __init__(self) -> None:
        self.dialects = [Dialect(filters=())]
        self.used: set[str] = set()

    def distinguish(self, uses: Iterable[str]) -> None:
        """Distinguish the values of further switches, and the places of further filters."""
        new = set(uses) - self.used
        self.used |= new
        for each in FILTERS:
            if each in new:
                self.dialects = [other for dialect in self.dialects for other in _place(dialect, each)]
        for name, values in VALUES.items():
            if name in new:
                self.dialects = [
                    structs.replace(dialect, **{name: value})
                    for dialect in self.dialects
                    for value in _meaningful(dialect, name, values)
                ]

    def keep(self, experiments: Sequence[Experiment], answers: Sequence[Answer], *, is_ordered: bool) -> int:
        """Keep the dialects that fit the most answers, if these are more than half of them. Return how many they fit."""
        uses = experiments[0].uses
        fits: dict[Dialect, int] = {}
        for dialect in {project(dialect, uses) for dialect in self.dialects}:
            fits[dialect] = sum(
                arrange(predict(each, dialect).lines, is_ordered) == arrange(answer.lines, is_ordered)
                for each, answer in zip(experiments, answers, strict=True)
            )
        most = max(fits.values())
        if 2 * most > len(answers):
            self.dialects = [dialect for dialect in self.dialects if fits[project(dialect, uses)] == most]
        return most

    def keep_counts(self, experiments: Sequence[Experiment], answers: Sequence[Answer]) -> bool:
        """Keep the dialects that fit the numbers dropped in every answer. Return whether there are any; else keep all."""
        remaining = self.dialects
        for experiment, answer in zip(experiments, answers, strict=True):
            found = {project(dialect, experiment.uses) for dialect in remaining}
            fitting = {dialect for dialect in found if predict(experiment, dialect).counts == answer.counts}
            remaining = [dialect for dialect in remaining if project(dialect, experiment.uses) in fitting]
        if remaining:
            self.dialects = remaining
        return bool(remaining)

    def keep_fitting(self, fits: Callable[[Dialect], bool]) -> bool:
        """Try the nearest dialects, and drop those that do not fit. Return whether any of them fits; if none does, keep all."""
        self.dialects.sort(key=_distance)
        tried, rest = self.dialects[:MOST_TRIED], self.dialects[MOST_TRIED:]
        fitting = [each for each in tried if fits(with_place_of_revisit(each))]
        if fitting:
            self.dialects = [*fitting, *rest]
        return bool(fitting)

    def is_forced(self, experiments: Sequence[Experiment]) -> bool:
        """Return whether no dialect leaves the policy a choice in any of the experiments."""
        found = {project(dialect, experiments[0].uses) for dialect in self.dialects}
        return all(predict(each, dialect).is_forced for each in experiments for dialect in found)

    @property
    def nearest(self) -> Dialect:
        """The dialect that is nearest to the default one, with the filter `revisit` where it has no memory."""
        return with_place_of_revisit(min(self.dialects, key=_distance))

    def values(self, name: str) -> list[object]:
        """Return the possible values of a switch, in order; all that it has if no experiment has used it."""
        if name not in self.used:
            return list(VALUES[name])
        found = {getattr(dialect, name) for dialect in self.dialects}
        return [value for value in VALUES[name] if value in found]


def arrange(lines: Sequence[str], is_ordered: bool) -> tuple[str, ...]:
    """Return the lines as they are compared."""
    return tuple(lines if is_ordered else sorted(lines))


def with_place_of_revisit(dialect: Dialect) -> Dialect:
    """Return the dialect with the filter `revisit` at its default place if it has no memory, where that does nothing."""
    if "revisit" in dialect.filters or dialect.memory != NO_MEMORY:
        return dialect
    at = int("prune" in dialect.filters[:1])
    return structs.replace(dialect, filters=(*dialect.filters[:at], "revisit", *dialect.filters[at:]))


def _place(dialect: Dialect, each: Filter) -> list[Dialect]:
    """Return the dialect without a filter, and with it at every place."""
    filters = dialect.filters
    without = structs.replace(dialect, memory=NO_MEMORY) if each == "revisit" else dialect
    placed = [(*filters[:at], each, *filters[at:]) for at in range(len(filters) + 1)]
    return [without, *(structs.replace(dialect, filters=order) for order in placed)]


def _meaningful(dialect: Dialect, name: str, values: tuple[object, ...]) -> list[object]:
    """Return the values of a switch that differ in their meaning."""
    if name in NEEDS and NEEDS[name] not in dialect.filters:
        return [getattr(dialect, name)]
    return [value for value in values if value != NO_MEMORY]


def _distance(dialect: Dialect) -> tuple[int, int]:
    """Return the number of switches that differ from the default dialect, and of pairs of filters in another order."""
    switches = sum(getattr(dialect, name) != getattr(OURS, name) for name in VALUES)
    filters = len(set(dialect.filters) ^ set(OURS.filters) - ({"revisit"} if dialect.memory == NO_MEMORY else set()))
    swapped = sum(FILTERS.index(a) > FILTERS.index(b) for a, b in combinations(dialect.filters, 2))
    return switches + filters, swapped


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
    return Finding(switch=name, value=values.pop(), trials=trials)


def _leave(name: str, reason: str, trials: tuple[Trial, ...] = ()) -> Finding:
    return Finding(switch=name, value=getattr(OURS, name), reason=reason, trials=trials)


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


_ORDER: Final = ("order", "is_reversed")
_UNSEEN: Final = ("exempts_terminal",)
"""Switches that make no difference in the derivations of any problem."""


class _Asked(NamedTuple):
    """An experiment with its variants that the engine answered, its answers, and why it answered no other.

    num_fitting: the answers that fit one of the dialects that were possible then
    is_used:     whether these answers decided anything
    """

    experiment: Experiment
    variants: list[Experiment]
    answers: list[Answer]
    error: str
    num_fitting: int = 0
    is_used: bool = True

    @property
    def is_contradictory(self) -> bool:
        """True if no dialect fits all answers."""
        return self.is_used and self.num_fitting < len(self.answers)


class DialectSearch:
    """The experiments with one engine, and what they have left possible.

    has_steps:  whether the engine takes steps from given goals
    is_greedy:  whether it makes the choices of the policy `shortest`, and returns to no other
    is_ordered: whether its resolvents are in an order that some dialect has
    """

    def __init__(self, engine: AnyEngine) -> None:
        """Take a specification, a name, or a class or function of (program, limits, policy).

        UserError if the engine cannot be made.
        """
        self._name = name_engine(engine)
        self._make = find_explained(engine, "--engine")
        self._hypotheses = Hypotheses()
        self._asked: list[_Asked] = []
        self._ranking: list[Finding] = []
        self._lessons: list[Problem] = []
        self.has_steps = self.is_greedy = self.is_ordered = True
        self.notes: list[str] = []

    @refuse_exit()
    def run(self, progress: Progress = no_progress) -> None:
        """Ask everything; `progress` is called with the number of experiments done.

        UserError if the engine answers no control question.
        """
        self._ask_controls()
        for experiment in list_experiments(has_steps=self.has_steps):
            self._learn(self._ask(experiment))
            progress(1)
        counted = [
            (variant, answer)
            for asked in self._asked
            for variant, answer in zip(asked.variants, asked.answers, strict=True)
            if answer.counts and asked.is_used and not asked.is_contradictory
        ]
        if counted and self.is_ordered and not self._hypotheses.keep_counts(*zip(*counted, strict=True)):
            self.notes.append("its numbers of dropped resolvents fit no dialect, and were not used")
        self._ranking = find_ranking(self._make)

    @refuse_exit()
    def learn_from(self, problem: Problem) -> bool:
        """Keep the dialects in which the engine agrees with the reference on a problem, and on those learned from before.

        The nearest dialects are tried, a bounded number; the others stay possible. Returns whether another dialect is
        proposed now; if none of those tried fits, nothing changes.
        """
        if not (self.is_greedy and self.is_ordered):
            return False
        before = self._complete(self._hypotheses.nearest)
        self._hypotheses.distinguish(name for name in (*FILTERS, *VALUES) if name not in (*RANKING, *_UNSEEN))
        lessons = [*self._lessons, problem]
        if not self._hypotheses.keep_fitting(lambda dialect: self._fits(self._complete(dialect), lessons)):
            self.notes.append("in no dialect that fits the experiments does it agree on the problem below")
            return False
        self._lessons = lessons
        return self._complete(self._hypotheses.nearest) != before

    def _fits(self, dialect: Dialect, problems: Sequence[Problem]) -> bool:
        """Return whether the engine agrees with the reference of a dialect on each of the problems, alone."""
        for problem in problems:
            limits = structs.replace(problem.limits, dialect=dialect)
            (batch,) = prepare_batches([replace(problem, limits=limits)])
            if Checker(self._make, lockstep=self.has_steps).find_suspects(batch):
                return False
        return True

    def _complete(self, dialect: Dialect) -> Dialect:
        """Return a dialect with the ranking that was found."""
        return structs.replace(dialect, **{each.switch: each.value for each in self._ranking})

    def _ask_controls(self) -> None:
        """Find out what the engine can be asked."""
        controls = [self._ask(each) for each in list_controls()]
        if not any(each.answers for each in controls):
            raise UserError(controls[0].error, where="", fix="repair the engine; kgverify check_engine shows more")
        wrong = [each for each in controls if _count_fitting(each) < len(each.answers)]
        if wrong:
            self.notes.append(
                f"it answers {wrong[0].answers[0]} to {wrong[0].experiment.asks!r} with"
                f" {'; '.join(wrong[0].experiment.lines)}, where every dialect answers"
                f" {predict(wrong[0].experiment, project(Dialect(), frozenset()))}"
            )
        first = self._ask(next(each for each in list_experiments(has_steps=True) if each.is_step))
        self.has_steps = bool(first.answers)
        if not self.has_steps:
            self.notes.append(f"it takes no steps from given goals, so outcomes decide: {first.error}")
            choices = [self._ask(each) for each in list_choices()]
            self.is_greedy = all(_count_fitting(each) == len(each.variants) for each in choices)
            if not self.is_greedy:
                self.notes.append(
                    "it does not end where the choices of the policy `shortest` end: it makes others, or returns to them."
                    " Only experiments without a choice decide, and no dialect describes it fully"
                )

    def _ask(self, experiment: Experiment) -> _Asked:
        variants, answers, error = [], [], ""
        for variant in vary(experiment):
            try:
                answers.append(ask(variant, self._make))
                variants.append(variant)
            except MissingDependency:
                raise
            except (UserError, NotImplementedError) as failure:
                error = failure.message if isinstance(failure, UserError) else str(failure)
        return _Asked(experiment, variants, answers, error or "")

    def _learn(self, asked: _Asked) -> None:
        """Keep the dialects that fit the answers."""
        self._hypotheses.distinguish(asked.experiment.uses)
        if asked.answers and not self.is_greedy and not self._hypotheses.is_forced(asked.variants):
            asked = asked._replace(is_used=False)
        elif asked.answers:
            num = self._hypotheses.keep(asked.variants, asked.answers, is_ordered=self.is_ordered)
            if num < len(asked.answers) and self.is_ordered and asked.experiment.about[0] in _ORDER:
                again = self._hypotheses.keep(asked.variants, asked.answers, is_ordered=False)
                if again == len(asked.answers):
                    self.is_ordered = False
                    self.notes.append(
                        "its resolvents are in an order that no dialect has: they were compared without their order"
                    )
            asked = asked._replace(num_fitting=num)
        self._asked.append(asked)

    def propose(self) -> Proposal:
        """Return the dialect that fits, which is not compared with the reference yet."""
        dialect = self._hypotheses.nearest
        switches = [name for name in Dialect.__struct_fields__ if name not in RANKING]
        findings = [*(self._conclude_about(name, dialect) for name in switches), *self._ranking]
        order = list(Dialect.__struct_fields__)
        return Proposal(
            engine=self._name,
            dialect=self._complete(dialect),
            has_steps=self.has_steps,
            findings=tuple(sorted(findings, key=lambda each: order.index(each.switch))),
            lessons=tuple(self._lessons),
            notes=tuple(self.notes),
        )

    def _conclude_about(self, name: str, dialect: Dialect) -> Finding:
        asked = [each for each in self._asked if each.experiment.about[0] == name]
        trials = tuple([self._describe(each, dialect) for each in asked])
        others = self._list_others(name, dialect)
        reason = self._explain(name, dialect, asked, others)
        return Finding(switch=name, value=getattr(dialect, name), others=others, reason=reason, trials=trials)

    def _list_others(self, name: str, dialect: Dialect) -> tuple[str, ...]:
        """Return the other values of a switch that are possible; of the filters, what is undecided about them."""
        if name != "filters":
            return tuple([show(value) for value in self._hypotheses.values(name) if value != getattr(dialect, name)])
        orders = [each.filters for each in self._hypotheses.dialects]
        applied = [each for each in FILTERS if all(each in order for order in orders)]
        pairs = [
            f"{first} before or after {second}"
            for first, second in combinations(applied, 2)
            if len({order.index(first) < order.index(second) for order in orders}) > 1
        ]
        unsure = [f"with or without {each}" for each in FILTERS if len({each in order for order in orders}) > 1]
        return (*unsure, *pairs)

    def _explain(self, name: str, dialect: Dialect, asked: Sequence[_Asked], others: Sequence[str]) -> str:
        """Return why a switch is undecided; empty if it is decided."""
        need = NEEDS.get(name, "")
        if (
            need
            and name != "memory"
            and (need not in dialect.filters or (need == "revisit" and dialect.memory == "none"))
        ):
            return "it has no meaning without " + ("a memory of visited goals" if need == "revisit" else "this limit")
        if name in _ORDER and not self.is_ordered:
            return "its resolvents are in an order that no dialect has"
        if not others:
            return ""
        if not asked and not self._shows_in_steps(name, dialect):
            return "no derivation shows a difference, since it ends with its first proof"
        failed = next((each.error for each in asked if each.error), "")
        if any(each.is_contradictory for each in asked):
            return "its answers contradict each other, or fit no value"
        if failed:
            return f"it fails: {failed}"
        if not self.has_steps and self._shows_in_steps(name, dialect):
            return "only steps show the difference, and the engine tells outcomes alone"
        if any(not each.is_used for each in asked):
            return "its outcomes depend on choices that are not those of the policy"
        if name == "filters" and self.has_steps and all("before or after" in each for each in others):
            # In these orders the filters do the same.
            return ""
        return "no experiment shows a difference in the dialect of this engine"

    def _shows_in_steps(self, name: str, dialect: Dialect) -> bool:
        experiments = [each for each in list_experiments(has_steps=True) if each.is_step and each.about[0] == name]
        return any(len(set(self._expect(each, dialect).values())) > 1 for each in experiments)

    def _expect(self, experiment: Experiment, dialect: Dialect) -> dict[str, Answer]:
        """Return the answer of each value that an experiment is about, where the others are those of the dialect."""
        return {
            value: predict(experiment, project(each, experiment.uses))
            for value, each in list_alternatives(experiment.about, dialect).items()
        }

    def _describe(self, asked: _Asked, dialect: Dialect) -> Trial:
        expected = self._expect(asked.experiment, dialect)
        if not any(answer.counts for answer in asked.answers):
            expected = {value: answer._replace(counts=()) for value, answer in expected.items()}
        alternatives = list_alternatives(asked.experiment.about, dialect)
        final = [predict(each, project(dialect, each.uses)).lines for each in asked.variants]
        fits = [
            arrange(lines, self.is_ordered) == arrange(answer.lines, self.is_ordered)
            for lines, answer in zip(final, asked.answers, strict=True)
        ]
        first = asked.variants[:1] == [asked.experiment]
        return Trial(
            about=" ".join(asked.experiment.about),
            program=tuple(asked.experiment.lines),
            question=asked.experiment.asks,
            expected={value: str(answer) for value, answer in expected.items()},
            proposed=next((value for value in expected if alternatives[value] == dialect), ""),
            answer=str(asked.answers[0]) if first else f"fails: {asked.error}",
            num_fitting=sum(fits),
            num_asked=len(vary(asked.experiment)),
            is_used=asked.is_used,
        )


def _count_fitting(asked: _Asked) -> int:
    """Return how many answers to a control question are those of every dialect."""
    plain = project(Dialect(), frozenset())
    return sum(predict(v, plain).lines == answer.lines for v, answer in zip(asked.variants, asked.answers, strict=True))


def list_alternatives(about: tuple[str, ...], dialect: Dialect) -> dict[str, Dialect]:
    """Return a dialect for each value that an experiment is about, in words."""
    name, *names = about
    if not names:
        return {show(value): structs.replace(dialect, **{name: value}) for value in VALUES[name]}
    first, *rest = [each for each in FILTERS if each in names]
    own = dialect.filters
    without = tuple([each for each in own if each != first])

    def put(at: int) -> tuple[Filter, ...]:
        return (*without[:at], first, *without[at:])

    if not rest:
        at = next((i for i, each in enumerate(without) if FILTERS.index(each) > FILTERS.index(first)), len(without))
        placed = {f"with {first}": own if first in own else put(at), f"without {first}": without}
    elif first not in own or rest[0] not in own:
        return {}
    else:
        # The proposed order stays as it is.
        at, is_before = without.index(rest[0]), own.index(first) < own.index(rest[0])
        placed = {
            f"{first}, {rest[0]}": own if is_before else put(at),
            f"{rest[0]}, {first}": put(at + 1) if is_before else own,
        }
    return {value: structs.replace(dialect, filters=order) for value, order in placed.items()}


def show(value: object) -> str:
    """Return a value as a dialect's file writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
