"""Propose the dialect of an engine: run the experiments on it, and keep the dialects that fit its answers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from msgspec import structs

from kgverify.engines.load_engine import refuse_exit
from kgverify.errors import MissingDependency, UserError
from kgverify.program.atoms import NamedAtom
from kgverify.program.limits import FILTERS, OURS, RANKED, SEARCHES, UNSEEN, VALUES, Dialect, Filter, show_value
from kgverify.program.outcomes import Outcome, Side
from kgverify.progress import Progress, no_progress
from kgverify.ranking.rank import Rank
from kgverify.runs.engine_makers import AnyEngine, MakePipeline, name_engine
from kgverify.testing.checking.check import Checker, prepare_batches
from kgverify.testing.checking.guard import OWN, find_explained
from kgverify.testing.dialects.experiments import Answer, Experiment, ask, list_experiments, predict, project, vary
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
"""The filter without which a switch has no effect, for some switches."""
MOST_TRIED: Final = 300
"""The largest number of dialects that are tried on a problem."""

_ORDER: Final = ("order", "is_reversed")
_REPEATS: Final = 16
_NAMES: Final = "abcdefgh"
_NO_VALUE_FITS: Final = "its answers contradict each other, or fit no value"


class _Asked(NamedTuple):
    """An experiment with the variants that the engine answered, the answers, and the reason why it answered no others.

    num_fitting: the number of answers that fit one of the dialects that were possible at that time
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

    def count_fitting(self, dialect: Dialect, is_ordered: bool = True) -> int:
        """Return the number of answers that agree with a dialect."""
        pairs = zip(self.variants, self.answers, strict=True)
        return sum(
            _arrange(predict(variant, dialect).lines, is_ordered) == _arrange(answer.lines, is_ordered)
            for variant, answer in pairs
        )

    def fits_counts(self, dialect: Dialect) -> bool:
        """Return whether a dialect drops the numbers of resolvents that the engine reports."""
        pairs = zip(self.variants, self.answers, strict=True)
        return all(not answer.counts or predict(variant, dialect).counts == answer.counts for variant, answer in pairs)


def _arrange(lines: Sequence[str], is_ordered: bool) -> tuple[str, ...]:
    return tuple(lines if is_ordered else sorted(lines))


class Hypotheses:
    """A set of dialects.

    Only the switches and filters matter that some experiment has used.

    dialects: the dialects; a dialect without a memory has the memory `none` and no filter `revisit`
    used:     the names of the switches and filters that some experiment has used
    """

    def __init__(self) -> None:
        self.dialects = [Dialect(filters=())]
        self.used: set[str] = set()

    def distinguish(self, uses: Iterable[str]) -> None:
        """Distinguish the values of more switches, and the places of more filters."""
        new = set(uses) - self.used
        self.used |= new
        for name in (*FILTERS, *VALUES):
            if name in new:
                self.dialects = [other for dialect in self.dialects for other in _vary_dialect(dialect, name)]

    def count(self, experiment: Experiment, num_fitting: Callable[[Dialect], int]) -> dict[Dialect, int]:
        """Return the number of answers to an experiment that each dialect fits.

        Dialects that it cannot distinguish are tried once.
        """
        uses = experiment.uses | self.decided
        of_dialect = {dialect: project(dialect, uses) for dialect in self.dialects}
        fits = {each: num_fitting(each) for each in set(of_dialect.values())}
        return {dialect: fits[each] for dialect, each in of_dialect.items()}

    @property
    def decided(self) -> frozenset[str]:
        """The switches that have the same value in all dialects.

        An experiment need not name switches that are decided before it.
        """
        first = self.dialects[0]
        names = [name for name in VALUES if name in self.used]
        return frozenset(
            name for name in names if all(getattr(each, name) == getattr(first, name) for each in self.dialects)
        )

    def keep(self, asked: _Asked, is_ordered: bool) -> int:
        """Keep the dialects that fit the most answers, if they fit more than half.

        Return the number of answers that they fit.
        """
        fits = self.count(asked.experiment, lambda dialect: asked.count_fitting(dialect, is_ordered))
        most = max(fits.values())
        if 2 * most > len(asked.answers):
            self.dialects = [dialect for dialect in self.dialects if fits[dialect] == most]
        return most

    def keep_counts(self, every: Iterable[_Asked]) -> bool:
        """Keep the dialects that fit the numbers dropped in every answer, or all if none fits. Return whether any fits."""
        before = self.dialects
        for asked in every:
            fits = self.count(asked.experiment, asked.fits_counts)
            if not any(fits.values()):
                self.dialects = before
                return False
            self.dialects = [dialect for dialect in self.dialects if fits[dialect]]
        return True

    def keep_fitting(self, fits: Callable[[Dialect], bool]) -> bool:
        """Try the nearest dialects, and drop those that do not fit; drop none if all fail. Return whether any fits."""
        self.dialects.sort(key=_distance)
        tried, rest = self.dialects[:MOST_TRIED], self.dialects[MOST_TRIED:]
        fitting = [each for each in tried if fits(with_place_of_revisit(each))]
        if fitting:
            self.dialects = [*fitting, *rest]
        return bool(fitting)

    @property
    def nearest(self) -> Dialect:
        """The dialect nearest to the default dialect, with the filter `revisit` even if it has no memory."""
        return with_place_of_revisit(min(self.dialects, key=_distance))

    def values(self, name: str) -> list[object]:
        """Return the possible values of a switch, in order; all its values if no experiment has used it."""
        found = {getattr(dialect, name) for dialect in self.dialects}
        return [value for value in VALUES[name] if value in found or name not in self.used]


def with_place_of_revisit(dialect: Dialect) -> Dialect:
    """Add the filter `revisit` at its default place to a dialect without a memory, where the filter has no effect."""
    if "revisit" in dialect.filters or dialect.memory != NO_MEMORY:
        return dialect
    at = int("prune" in dialect.filters[:1])
    return structs.replace(dialect, filters=(*dialect.filters[:at], "revisit", *dialect.filters[at:]))


def _vary_dialect(dialect: Dialect, name: str) -> list[Dialect]:
    """Return the dialects with each meaningful value of a switch, or without a filter and with it at every place."""
    filters = dialect.filters
    if name not in FILTERS:
        has_meaning = name not in NEEDS or NEEDS[name] in filters
        values = [value for value in VALUES[name] if value != NO_MEMORY] if has_meaning else [getattr(dialect, name)]
        return [structs.replace(dialect, **{name: value}) for value in values]
    without = structs.replace(dialect, memory=NO_MEMORY) if name == "revisit" else dialect
    placed: Any = [(*filters[:at], name, *filters[at:]) for at in range(len(filters) + 1)]
    return [without, *(structs.replace(dialect, filters=order) for order in placed)]


def _distance(dialect: Dialect) -> tuple[int, int]:
    """Return the number of switches that differ from the default dialect, plus the number of filter pairs in another order."""
    switches = sum(getattr(dialect, name) != getattr(OURS, name) for name in VALUES)
    filters = len(set(dialect.filters) ^ set(OURS.filters) - ({"revisit"} if dialect.memory == NO_MEMORY else set()))
    swapped = sum(FILTERS.index(a) > FILTERS.index(b) for a, b in combinations(dialect.filters, 2))
    return switches + filters, swapped


Scored: TypeAlias = tuple[bool, float]
"""The outcome of a candidate, proved or not, and its log-probability."""
Ends: TypeAlias = tuple[float, float]
"""The optimistic and the pessimistic rank."""
Question: TypeAlias = tuple[list[Scored], dict[str, Ends]]
"""Candidates, the true triple first, and its rank for each value of a switch."""


def find_ranking(make: MakePipeline) -> list[Finding]:
    """Return the findings from the engine's own ranking. Nothing is decided without a ranking, or if it fails."""
    problem = Problem(facts=tuple([NamedAtom("p", "a", name) for name in _NAMES]), queries=(NamedAtom("p", "a", "a"),))
    merged = merge([problem])
    # An unproved candidate against proved ones of a lower log-probability.
    unproved: list[Question] = [
        ([(False, 0.0), (True, -1.0)], {"subtract_100": (2, 2), "log_probability": (1, 1)}),
        ([(True, -1.0), (False, 0.0)], {"subtract_100": (1, 1), "log_probability": (2, 2)}),
        ([(False, -1.0), (True, -2.0), (True, -0.5)], {"subtract_100": (3, 3), "log_probability": (2, 2)}),
    ]
    try:
        rank = make(merged.run, merged.sizes).rank
        if rank in OWN:
            return [_leave(name, "the engine brings no `rank`, so kgverify ranks") for name in RANKED]
        return [
            _find_ranked("unproved", rank, unproved),
            _find_ranked("ties", rank, [_ask_ties(*nums) for nums in ((2, 0), (4, 1), (6, 1))]),
        ]
    except MissingDependency:
        raise
    except (UserError, NotImplementedError) as error:
        return [_leave(name, f"it fails: {error}") for name in RANKED]


def _ask_ties(num_tied: int, num_above: int) -> Question:
    """Return a question about a candidate among equals."""
    low, high = 1.0 + num_above, 1.0 + num_above + num_tied
    middle = (low + high) / 2
    expected = {"realistic": (middle, middle), "optimistic": (low, low), "pessimistic": (high, high)}
    return [(True, -1.0)] * (1 + num_tied) + [(True, -0.5)] * num_above, expected


def _find_ranked(name: str, rank: Rank, questions: Sequence[Question]) -> Finding:
    """Return the finding of ranks about a switch. Each question is repeated, since the rule for ties may be random."""
    values, trials = set(VALUES[name]), []
    for scored, expected in questions:
        answers = [_rank(rank, scored) for _ in range(_REPEATS)]
        low, high = min(expected.values())[0], max(expected.values())[0]
        if name == "ties" and answers[0] == (low, high):
            return _leave(name, "it reports the optimistic and the pessimistic rank, and so leaves the rule open")
        if name == "ties" and len(set(answers)) > 1 and all(a == b and low <= a <= high for a, b in answers):
            expected = expected | {"random": answers[0]}
        values &= {value for value, ends in expected.items() if ends == answers[0]}
        trials.append(_describe_ranked(name, scored, expected, answers[0]))
    # Ranks that vary are random, whatever other rule fits the first draw.
    values = {"random"} if "random" in values else values
    if len(values) != 1:
        return _leave(name, _NO_VALUE_FITS, tuple(trials))
    return Finding(switch=name, value=values.pop(), trials=tuple(trials))


def _leave(name: str, reason: str, trials: tuple[Trial, ...] = ()) -> Finding:
    return Finding(switch=name, value=getattr(OURS, name), reason=reason, trials=trials)


def _describe_ranked(name: str, scored: Sequence[Scored], expected: dict[str, Ends], found: Ends) -> Trial:
    candidates = [f"{'proved' if is_proved else 'not proved'} {score:g}" for is_proved, score in scored]
    return Trial(
        about=name,
        program=(f"the true triple: {candidates[0]}", f"corruptions: {', '.join(candidates[1:])}"),
        question="what is the rank of the true triple?",
        expected={value: _show_ends(ends) for value, ends in expected.items()},
        proposed=next((value for value, ends in reversed(expected.items()) if ends == found), ""),
        answer=_show_ends(found),
        num_fitting=int(found in expected.values()),
        num_asked=1,
    )


def _show_ends(ends: Ends) -> str:
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


class DialectSearch:
    """The experiments with one engine, and the dialects that they leave possible.

    has_steps:  whether the engine takes steps from given goals
    is_greedy:  whether it makes the choices of the policy `shortest`, without backtracking to others
    is_ordered: whether its resolvents are in the order of some dialect
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
        """Run all experiments; `progress` is called with the number of finished experiments.

        UserError if the engine answers no control question.
        """
        self._ask_controls()
        for experiment in list_experiments("UNARY", "STEPS" if self.has_steps else "OUTCOMES"):
            self._learn(self._ask(experiment))
            progress(1)
        counted = [
            asked
            for asked in self._asked
            if asked.is_used and not asked.is_contradictory and any(answer.counts for answer in asked.answers)
        ]
        if self.is_ordered and not self._hypotheses.keep_counts(counted):
            self.notes.append("its numbers of dropped resolvents fit no dialect, and were not used")
        self._ranking = find_ranking(self._make)

    @refuse_exit()
    def learn_from(self, problem: Problem) -> bool:
        """Keep the dialects in which the engine agrees with the reference on a problem, and on the problems of earlier calls.

        A bounded number of nearest dialects are tried; the others stay possible. Returns whether the proposed dialect
        has changed. If no tried dialect fits, nothing changes.
        """
        if not (self.is_greedy and self.is_ordered):
            return False
        before = self._complete(self._hypotheses.nearest)
        self._hypotheses.distinguish(name for name in (*FILTERS, *VALUES) if name not in (*RANKED, *UNSEEN))
        lessons = [*self._lessons, problem]
        if not self._hypotheses.keep_fitting(lambda dialect: self._fits(self._complete(dialect), lessons)):
            self.notes.append("in no dialect that fits the experiments does it agree on the problem below")
            return False
        self._lessons = lessons
        return self._complete(self._hypotheses.nearest) != before

    def _fits(self, dialect: Dialect, problems: Sequence[Problem]) -> bool:
        """Return whether the engine agrees with the reference, in a dialect, on each problem by itself."""
        checker = Checker(self._make, lockstep=self.has_steps)
        changed = [replace(each, limits=structs.replace(each.limits, dialect=dialect)) for each in problems]
        return not any(checker.find_suspects(batch) for each in changed for batch in prepare_batches([each]))

    def _complete(self, dialect: Dialect) -> Dialect:
        """Return a dialect completed by the ranking found."""
        return structs.replace(dialect, **{each.switch: each.value for each in self._ranking})

    def _ask_controls(self) -> None:
        """Find out which questions the engine can answer."""
        controls = [self._ask(each) for each in list_experiments("CONTROLS")]
        if not any(each.answers for each in controls):
            raise UserError(controls[0].error, where="", fix="repair the engine; kgverify check_engine shows more")
        plain = project(OURS, frozenset())
        for wrong in [each for each in controls if each.count_fitting(plain) < len(each.answers)][:1]:
            self.notes.append(
                f"it answers {wrong.answers[0]} to {wrong.experiment.asks!r} with"
                f" {'; '.join(wrong.experiment.lines)}, where every dialect answers {predict(wrong.experiment, plain)}"
            )
        first = self._ask(list_experiments("STEPS")[0])
        self.has_steps = bool(first.answers)
        if self.has_steps:
            return
        self.notes.append(f"it takes no steps from given goals, so outcomes decide: {first.error}")
        choices = [self._ask(each) for each in list_experiments("CHOICES")]
        self.is_greedy = all(each.count_fitting(plain) == len(vary(each.experiment)) for each in choices)
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
        return _Asked(experiment, variants, answers, error)

    def _learn(self, asked: _Asked) -> None:
        """Keep the dialects that fit the answers."""
        hypotheses, experiment = self._hypotheses, asked.experiment
        hypotheses.distinguish(experiment.uses)
        if asked.answers and not self.is_greedy:
            # The engine's choice among several resolvents is unknown.
            forced = hypotheses.count(
                experiment, lambda dialect: all(predict(each, dialect).is_forced for each in asked.variants)
            )
            asked = asked._replace(is_used=all(forced.values()))
        if asked.answers and asked.is_used:
            num = hypotheses.keep(asked, self.is_ordered)
            may_be_order = num < len(asked.answers) and self.is_ordered and experiment.about[0] in _ORDER
            if may_be_order and hypotheses.keep(asked, is_ordered=False) == len(asked.answers):
                self.is_ordered = False
                self.notes.append(
                    "its resolvents are in an order that no dialect has: they were compared without their order"
                )
            asked = asked._replace(num_fitting=num)
        self._asked.append(asked)

    def propose(self) -> Proposal:
        """Return the dialect that fits; it has not been compared with the reference yet."""
        dialect, ranking = self._hypotheses.nearest, {each.switch: each for each in self._ranking}
        switches = [name for name in Dialect.__struct_fields__ if name not in SEARCHES]
        return Proposal(
            engine=self._name,
            dialect=self._complete(dialect),
            has_steps=self.has_steps,
            findings=tuple([ranking.get(name) or self._conclude_about(name, dialect) for name in switches]),
            lessons=tuple(self._lessons),
            notes=tuple(self.notes),
        )

    def _conclude_about(self, name: str, dialect: Dialect) -> Finding:
        asked = [each for each in self._asked if each.experiment.about[0] == name]
        others = self._list_others(name, dialect)
        return Finding(
            switch=name,
            value=getattr(dialect, name),
            others=others,
            reason=self._explain(name, dialect, asked, others),
            trials=tuple([self._describe(each, dialect) for each in asked]),
        )

    def _list_others(self, name: str, dialect: Dialect) -> tuple[str, ...]:
        """Return the other possible values of a switch; for the filters, the undecided questions about them."""
        if name != "filters":
            values = self._hypotheses.values(name)
            return tuple([show_value(value) for value in values if value != getattr(dialect, name)])
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
        """Return the reason why a switch is undecided; an empty text if it is decided."""
        need = NEEDS.get(name) if name != "memory" else None
        if need == "revisit" and (need not in dialect.filters or dialect.memory == NO_MEMORY):
            return "it has no meaning without a memory of visited goals"
        if need == "max_atoms" and need not in dialect.filters:
            return "it has no meaning without this limit"
        if name in _ORDER and not self.is_ordered:
            return "its resolvents are in an order that no dialect has"
        if not others:
            return ""
        is_shown_by_steps = self._shows_in_steps(name, dialect)
        failed = next((each.error for each in asked if each.error), "")
        reasons = {
            "no derivation shows a difference, since it ends with its first proof": not asked and not is_shown_by_steps,
            _NO_VALUE_FITS: any(each.is_contradictory for each in asked),
            f"it fails: {failed}": failed,
            "only steps show the difference, and the engine tells outcomes alone": not self.has_steps
            and is_shown_by_steps,
            "its outcomes depend on choices that are not those of the policy": not all(each.is_used for each in asked),
            # In these orders the filters have the same effect.
            "": self.has_steps and all("before or after" in each for each in others),
        }
        other = "no experiment shows a difference in the dialect of this engine"
        return next((reason for reason, holds in reasons.items() if holds), other)

    def _shows_in_steps(self, name: str, dialect: Dialect) -> bool:
        experiments = [each for each in list_experiments("STEPS") if each.about[0] == name]
        return any(len(set(self._expect(each, dialect).values())) > 1 for each in experiments)

    def _expect(self, experiment: Experiment, dialect: Dialect) -> dict[str, Answer]:
        """Return the answer for each value that an experiment distinguishes, if all other switches are as in the dialect."""
        uses = experiment.uses | self._hypotheses.decided
        return {
            value: predict(experiment, project(each, uses))
            for value, each in list_alternatives(experiment.about, dialect).items()
        }

    def _describe(self, asked: _Asked, dialect: Dialect) -> Trial:
        experiment = asked.experiment
        expected = self._expect(experiment, dialect)
        if not any(answer.counts for answer in asked.answers):
            expected = {value: answer._replace(counts=()) for value, answer in expected.items()}
        alternatives = list_alternatives(experiment.about, dialect)
        return Trial(
            about=" ".join(experiment.about),
            program=tuple(experiment.lines),
            question=experiment.asks,
            expected={value: str(answer) for value, answer in expected.items()},
            proposed=next((value for value in expected if alternatives[value] == dialect), ""),
            answer=str(asked.answers[0]) if asked.variants[:1] == [experiment] else f"fails: {asked.error}",
            num_fitting=asked.count_fitting(
                project(dialect, experiment.uses | self._hypotheses.decided), self.is_ordered
            ),
            num_asked=len(vary(experiment)),
            is_used=asked.is_used,
        )


def list_alternatives(about: tuple[str, ...], dialect: Dialect) -> dict[str, Dialect]:
    """Return a dialect for each value that an experiment distinguishes, keyed by the value in words."""
    name, *names = about
    if not names:
        return {show_value(value): structs.replace(dialect, **{name: value}) for value in VALUES[name]}
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
