"""The test of a condition by intervention: steps from goals that the run did not reach, or other runs of the same candidates.

Goals are constructed from the goals of the run: with fewer or more atoms, other constants, variables instead of constants,
and selected atoms that match the clauses next to the boundary. For each goal, the condition predicts what goes wrong. Both
engines then take the step. For a condition on candidates, the same candidates run again: alone, shuffled or reversed.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress, islice, zip_longest
from random import Random
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.comparable import has_steps
from kgverify.comparison.step_view import StepReader, content_of
from kgverify.conditions.batch import Candidate, CandidateReader
from kgverify.conditions.features import Feature, read_values
from kgverify.conditions.find import Found
from kgverify.conditions.instances import Cases, Fault, Instance, SeenStep, Unit, canonical, collect_labelled
from kgverify.engines.protocol import Engine, make_positions
from kgverify.program.atoms import as_goal
from kgverify.program.fact_index import Ids
from kgverify.program.outcomes import Origin, Stage
from kgverify.step.clauses import Atoms, number_variables
from kgverify.trace.model.columns import CandidateSet

MOST_BASES: Final = 10
"""The most steps of a run, of each class, from which goals are constructed."""

MOST_GOALS: Final = 240
"""The most problems to construct."""

MOST_DRAWN: Final = 120
"""The most problems to draw from the whole program."""

MOST_DEPTH: Final = 24
MOST_ATOMS: Final = 6
"""The largest depth that is drawn, and the largest number of atoms in a visited goal if the run does not limit it."""

MOST_MATCHES: Final = 500
"""The number of clauses of a predicate above which a drawn atom gets a constant, so that few of them match."""

MOST_FACTS: Final = 20_000
"""The most facts of a predicate that are searched for facts next to a boundary."""

MOST_AT_BOUNDARY: Final = 8
MOST_AT_RANDOM: Final = 6
"""The most facts of each class to select next to a boundary, and the number of random constants to try."""

MOST_ELSEWHERE: Final = 2
"""The number of other predicates to select for each step."""

MOST_QUERIES: Final = 3
"""The number of other queries to try for each step."""

MOST_VISITED: Final = 4
MOST_RESOLVENTS: Final = 64
SHARE_VISITED: Final = 0.15
"""The most resolvents to turn into goals that were visited before, and the most to choose from; and the share of the drawn
problems in which this is done although nothing known depends on it."""

FEWEST_IN_RUN: Final = 96
MOST_IN_RUN: Final = 320
"""The number of candidates in a further run: two for each slot, within these bounds."""


class Tried(NamedTuple):
    """The instances of constructed goals, or of further runs.

    cases:     the instances, labelled by the results of both engines
    predicted: bool [n]  the classes that the condition predicts
    is_one_sided: whether instances were left out that went wrong outside the condition: another cause may be the reason
    """

    cases: Cases
    predicted: NDArray[np.bool_]
    is_one_sided: bool = False

    @property
    def observed(self) -> NDArray[np.bool_]:
        """A mask of the instances that went wrong: bool [n]."""
        return np.array([each.is_wrong for each in self.cases.instances], np.bool_)


class Rerun(NamedTuple):
    """A further run of some candidates.

    wrong:      the numbers of the candidates that differ, counted in this run
    candidates: a reader of the candidates
    own:        the features that the engine declares for this run
    """

    wrong: Collection[int]
    candidates: CandidateReader
    own: Sequence[Feature]


class Engines(NamedTuple):
    """Both engines, for experiments.

    sides:     the expected and the actual engine
    run_again: a function that runs some rows of the candidates in a given order; None if the engine returns other candidates
    """

    sides: tuple[Engine, Engine]
    run_again: Callable[[NDArray[np.int64]], Rerun | None]

    def try_batches(self, found: Found, hidden: Collection[int], seed: int) -> Tried | str:
        """Run candidates again, in other numbers and orders, and compare the results with the predictions of a condition.

        hidden: rows that go wrong because of another cause
        """
        rng, every = Random(seed), found.cases.instances
        known = [each.candidate.row for each in every if each.candidate.row not in hidden]
        wrong = [each.candidate.row for each in every if each.is_wrong]
        num_slots = int(self.sides[1].info.layout.get("slots", 0))
        some = sorted(rng.sample(known, min(len(known), max(FEWEST_IN_RUN, min(MOST_IN_RUN, 2 * num_slots)))))
        orders = [
            [wrong[rng.randrange(len(wrong))]],
            some[::-1],
            rng.sample(some, rng.randint(min(2, len(some)), len(some))),
        ]
        instances: list[Instance] = []
        predicted = []
        reason = "other runs of these candidates cannot be compared"
        for rows in orders if len(known) > 1 else ():
            again = self.run_again(np.array(rows, np.int64))
            if again is None:
                return reason
            own = {each.name: each for each in again.own}
            read = [
                Instance(Unit.CANDIDATE, i in again.wrong, (seed, len(rows), i), again.candidates.read(i))
                for i in range(len(rows))
            ]
            table = found.table._replace(features=tuple(own.get(each.name, each) for each in found.table.features))
            holds = table.predict(found.condition, read)
            if holds is None:
                return reason
            instances += read
            predicted.append(holds)
        if not instances:
            return reason
        return Tried(found.cases._replace(instances=tuple(instances)), np.concatenate(predicted))

    def try_steps(self, fault: Fault, found: Found, seed: int, *, is_one_sided: bool) -> Tried | str:
        """Take steps with both engines from goals constructed for a condition. is_one_sided: as in `Tried`."""
        if not all(has_steps(engine.info) for engine in self.sides):
            return "an engine tells no steps"
        if any(found.table.features[i].is_declared for i in found.condition.used):
            return "it tests a feature that the engine declares for its own run"
        of_visits = {Stage.REVISIT, Stage.LIMIT}
        visits = fault.stage in of_visits or any(
            of_visits & found.table.features[i].stages for i in found.condition.used
        )
        problems = list(_construct(found, Random(seed), visits=visits))
        steps = self._take(problems) if problems else []
        if found.cases.unit in (Unit.FACT, Unit.RULE):
            # A step of several proofs lists only one of them, and so does not show which clauses were used.
            steps = [each for each in steps if not each.is_proved or sum(not a for a in each.kept.values()) == 1]
        differing = [step for step in steps if _differs(step, fault)]
        # A step that agrees does not need an actual side.
        agreeing = [replace(step, actual=None) for step in steps if not _differs(step, fault)]
        cases = _label(fault, found.cases, differing, agreeing)
        holds = found.table.predict(found.condition, cases.instances) if cases.instances else None
        if holds is None:
            return "no goal could be constructed"
        if is_one_sided:
            is_kept = holds | ~Tried(cases, holds).observed
            cases = cases._replace(instances=tuple(compress(cases.instances, is_kept)))
            holds = holds[is_kept]
        return Tried(cases, holds, is_one_sided)

    def _take(self, problems: Sequence["_Problem"]) -> list[SeenStep]:
        """Take a step with both engines from each problem."""
        candidates = [each.candidate for each in problems]
        positions = make_positions(
            CandidateSet(
                np.array([each.query for each in candidates], np.int32),
                np.array([each.side for each in candidates], np.int8),
                np.array([each.atom for each in candidates], np.int32).reshape(-1, 3),
            ),
            np.array([each.depth for each in problems]),
            [(*each.earlier, each.goal) for each in problems],
        )
        readers = [StepReader(engine.step(positions)) for engine in self.sides]
        steps = []
        for i, (step, candidate, goal, visited, depth) in enumerate(problems):
            origins = step.run.infer(as_goal(goal), candidate.atom)
            expected, actual = (reader.read(i) for reader in readers)
            if canonical(expected.goal) == canonical(actual.goal) == number_variables(goal):
                earlier = tuple(map(as_goal, visited))
                steps.append(SeenStep(step.run, candidate, depth, expected, actual, origins, earlier))
        return steps


def _label(fault: Fault, cases: Cases, differing: Sequence[SeenStep], agreeing: Sequence[SeenStep]) -> Cases:
    """Return the instances of steps that have the unit and the words of `cases`; there may be none."""
    unit = cases.unit
    if unit not in (Unit.FACT, Unit.RULE):
        return next(
            (each for each in fault.collect(differing, agreeing) if each.unit is unit), cases._replace(instances=())
        )

    def is_alike(found: Cases) -> bool:
        return (found.unit, found.wrong) == (unit, cases.wrong) and any(each.is_wrong for each in found.instances)

    # Steps in which something else goes wrong still contain clauses that are used correctly.
    own = [step for step in differing if any(map(is_alike, fault.collect([step])))]
    hidden = [step for step in differing if step not in own]
    kind = Origin.FACT if unit is Unit.FACT else Origin.RULE
    right = [(step, [c for c in step.changes.shared if c[0] == kind]) for step in (*agreeing, *hidden)]
    every = fault.collect(own, agreeing, hidden) if own else ()
    return next(filter(is_alike, every), cases._replace(instances=collect_labelled(unit, (), right).instances))


def _differs(step: SeenStep, fault: Fault) -> bool:
    """Return whether the sides of a step differ in resolvents, scores, choice or outcome.

    The numbers of dropped resolvents matter only for `limit`, since they depend on all other stages.
    """
    expected, actual = step.expected, step.actual
    assert actual is not None
    # A difference in nothing but the numbers of variables is one of `rename`.
    listed = [
        [
            (
                each.content if fault.stage is Stage.RENAME else content_of(each),
                each.clause if step.run.has_origins else None,
            )
            for each in side.resolvents
        ]
        for side in (expected, actual)
    ]
    if listed[0] != listed[1]:
        return True
    if (expected.choice, expected.outcome) != (actual.choice, actual.outcome):
        return True
    dropped = [(side.dropped_atoms, side.dropped_resolvents) for side in (expected, actual)]
    if fault.stage is Stage.LIMIT and step.run.has_counts and dropped[0] != dropped[1]:
        return True
    pairs = zip(expected.resolvents, actual.resolvents, strict=True)
    return step.run.has_scores and any(not abs(e.score - a.score) <= fault.tolerance for e, a in pairs)


# Goals


class _Problem(NamedTuple):
    """A step of the run with another goal, and perhaps with another depth or query.

    earlier: the goals visited before
    """

    step: SeenStep
    candidate: Candidate
    goal: Atoms
    earlier: tuple[Atoms, ...]
    depth: int


def _construct(found: Found, rng: Random, *, visits: bool) -> Iterator[_Problem]:
    """Yield new problems, each once, made from the steps of the run in turn.

    visits: whether it may matter which goals were visited before
    """
    cases = found.cases
    seen: set[object] = {
        (each.candidate.atom, each.step.goal, each.step.expected.depth) for each in cases.instances if each.step
    }
    most = len(seen) + MOST_GOALS
    bases = _choose_bases(cases)
    drawn = islice(_draw(bases, rng, visits=visits), MOST_DRAWN)
    for group in zip_longest(*(_vary(step, found, rng, visits=visits) for step in bases), *[drawn] * len(bases)):
        for problem in filter(None, group):
            limits = problem.step.run.limits
            key = problem.candidate.atom, problem.goal, problem.depth
            is_within = limits.max_atoms is None or len(problem.goal) <= limits.max_atoms
            is_within &= limits.max_depth is None or problem.depth < limits.max_depth
            if is_within and problem.goal and problem.depth >= 0 and key not in seen:
                seen.add(key)
                yield problem
        if len(seen) >= most:
            return


def _draw_depth(step: SeenStep, rng: Random) -> int:
    """Return the depth of a step, the first one, the last one before max_depth, or any between them."""
    own, most = step.expected.depth, step.run.limits.max_depth
    last = MOST_DEPTH if most is None else max(0, most - 1)
    return rng.choice((own, own, 0, rng.randint(0, last), min(last, MOST_DEPTH)))


def _draw(bases: Sequence[SeenStep], rng: Random, *, visits: bool) -> Iterator[_Problem]:
    """Yield problems whose goals do not depend on what the run has met: clauses, constants and variables drawn at random."""
    clauses = bases[0].run.inference.clauses if bases and bases[0].run.inference is not None else None
    if clauses is None or not clauses.facts:
        return
    known, rules = clauses.predicates_of_facts, clauses.rules

    def draw_atom(predicate: int) -> Ids:
        facts = clauses.facts_of(predicate)
        _, a, b = clauses.facts[facts[rng.randrange(len(facts))] if facts else rng.randrange(len(clauses.facts))]
        return predicate, a, b

    while True:
        step, goal = bases[rng.randrange(len(bases))], [draw_atom(known[rng.randrange(len(known))])]
        if rules and rng.random() < 0.7:
            head, body = rules[rng.randrange(len(rules))]
            _, *terms = draw_atom(head[0])
            own = {variable: term for variable, term in zip(head[1:], terms, strict=True) if variable < 0}
            bound = dict(rng.sample([*own.items()], rng.randint(0, len(own))))
            goal = [*_bind((head,), bound)] if rng.random() < 0.3 else [*_bind(body, bound)][rng.randrange(len(body)) :]
        else:
            p, a, b = goal[0]
            goal = [(p, a if rng.random() < 0.6 else -1, b if rng.random() < 0.4 else -rng.randint(1, 2))]
        if rng.random() < 0.3:
            # A fact in front of other atoms leaves them as they are.
            goal.insert(rng.choice((0, len(goal))), draw_atom(known[rng.randrange(len(known))]))
        if rng.random() < 0.2:
            # Two variables become one.
            goal = [*_bind(tuple(goal), {-2: -1})]
        for i in range(rng.choice((0, 0, 0, 1, 2, 4))):
            # Further atoms share variables with the first ones, bring others, or have none.
            p, a, b = draw_atom(known[rng.randrange(len(known))])
            goal.append((p, rng.choice((a, a, -1, -4 - 2 * i)), rng.choice((b, b, -1, -5 - 2 * i))))
        p, a, b = goal[0]
        num = len(clauses.facts_of(p)) + len(clauses.rules_of(p))
        if a < 0 and b < 0 and num > MOST_MATCHES:
            goal[0] = (p, draw_atom(p)[1], b)
        numbered, depth = number_variables(iter(goal)), _draw_depth(step, rng)
        earlier = _remember(step, numbered, rng, depth, visits=visits and rng.random() < 0.5)
        yield _Problem(step, step.candidate, numbered, earlier, depth)


def _choose_bases(cases: Cases) -> list[SeenStep]:
    """Return some steps of both classes with different goals, evenly spread over the sizes of goals, the smallest first."""
    chosen: list[SeenStep] = []
    for is_wrong in (True, False):
        steps: dict[Atoms, SeenStep] = {}
        for each in cases.instances:
            if each.is_wrong is is_wrong and each.step is not None:
                steps.setdefault(each.step.goal, each.step)
        ordered = sorted(steps.values(), key=lambda step: (len(step.expected.goal), step.number))
        chosen += ordered[:: max(1, -(-len(ordered) // MOST_BASES))]
    return chosen


def _vary(step: SeenStep, found: Found, rng: Random, *, visits: bool) -> Iterator[_Problem]:
    """Yield the problems made from one step, alternately by selecting other facts and by editing its structure."""
    if step.run.inference is None or not step.expected.goal:
        return
    goal, depth, here = step.goal, step.expected.depth, step.candidate
    earlier = tuple(map(canonical, step.earlier))
    facts = _choose_facts(step, found, rng)
    others = [(here, edit) for edit in _restructure(goal, facts, rng)]
    # A query that is a fact must not prove itself.
    clauses = step.run.inference.clauses
    queries = rng.sample(facts, min(MOST_QUERIES, len(facts)))
    # What a query excludes shows best if it would be the last to match.
    alike = (clauses.facts_like(_like(goal[0], query), None)[-1:] for query in queries)
    queries += [clauses.facts[i] for each in alike for i in each]
    others += [
        (
            here._replace(atom=query, is_fact=query in clauses.fact_index),
            (_like(goal[0], query), query, *(goal[1:] or goal)),
        )
        for query in dict.fromkeys(queries)
    ]
    if visits:
        for _ in range(MOST_VISITED):
            at = _draw_depth(step, rng)
            yield _Problem(step, here, goal, _remember(step, goal, rng, at, visits=True), at)
    # Only a few edits are tried for each step, so each step gets different ones.
    rng.shuffle(others)
    edits = chain.from_iterable(zip_longest(((here, edit) for edit in _select(goal, facts)), others))
    shifts = [shift for shift in (-1, 1, -2, 2) if -depth <= shift]
    for i, (candidate, edit) in enumerate(filter(None, edits)):
        yield _Problem(step, candidate, number_variables(iter(edit)), earlier, depth)
        if i < len(shifts):
            at = depth + shifts[i]
            yield _Problem(step, here, goal, _remember(step, goal, rng, at), at)


def _remember(step: SeenStep, goal: Atoms, rng: Random, depth: int, *, visits: bool = False) -> tuple[Atoms, ...]:
    """Return earlier goals for a goal, one for each step: those of a known step, and perhaps some that resemble resolvents.

    visits: whether resolvents must be among them
    """
    goals = [each for each in dict.fromkeys(map(canonical, step.earlier)) if each != goal][:depth]
    facts = step.run.inference.clauses.facts if step.run.inference is not None else ()
    # A derivation visits no goal twice.
    for p, a, _ in rng.sample(facts, min(len(facts), 4 * depth)):
        if len(goals) < depth and (further := ((p, a, -1),)) not in (*goals, goal):
            goals.append(further)
    depth = len(goals)
    if not depth or not (visits or rng.random() < SHARE_VISITED):
        return tuple(goals)
    origins = step.run.infer(as_goal(goal), step.candidate.atom)
    most = step.run.limits.max_atoms or MOST_ATOMS
    every = {} if origins is None else origins.made
    made = [*islice((atoms for atoms in every if 0 < len(atoms) <= most), MOST_RESOLVENTS)]
    for atoms in rng.sample(made, min(len(made), MOST_VISITED, depth)):
        last, (p, a, b) = atoms[:-1], atoms[-1]
        edits = atoms[::-1], last or atoms, (*atoms, goal[0])[:most], (*last, (p, b, a)), (atoms[-1], *last)
        visited = number_variables(iter(atoms if rng.random() < 0.5 else rng.choice(edits)))
        if visited not in (*goals, goal):
            goals[rng.randrange(depth)] = visited
    return tuple(goals)


def _select(goal: Atoms, facts: Sequence[Ids]) -> Iterator[Atoms]:
    """Yield goals whose selected atom matches other facts."""
    selected, rest = goal[0], goal[1:]
    for i, (p, a, b) in enumerate(facts):
        yield (_like(selected, (p, a, b)), *rest)
        if selected[1] < 0 and selected[2] < 0:
            # No argument is bound: binding one selects fewer clauses.
            yield _bind(goal, {selected[1]: a})
            yield _bind(goal, {selected[2]: b})
        elif i % 3 == 1 and min(selected[1:]) < 0:
            # Bind the other argument instead, or both.
            yield ((p, a, selected[1]) if selected[1] < 0 else (p, selected[2], b), *rest)
        elif i % 3 == 2:
            yield ((p, a, b), *rest)


def _restructure(goal: Atoms, facts: Sequence[Ids], rng: Random) -> Iterator[Atoms]:
    """Yield goals with other atoms: fewer, more, in another order, with other variables, or with variables for constants."""
    selected, rest = goal[0], goal[1:]
    fresh = min(0, *(term for atom in goal for term in atom[1:])) - 1
    if rest:
        yield goal[:1]
        yield (*rest, selected)
        yield (selected, *_bind(rest, {-i: fresh - i for i in range(1, -fresh)}))
        yield (*goal, (rest[-1][0], fresh, fresh - 1))
        yield goal[:-1]
    for p, a, b in rng.sample(facts, min(2, len(facts))):
        yield (*goal, (p, b, a))
        yield (*goal, (p, a, b))
        yield (selected, (p, a, b), *(rest or goal))
        yield (*goal, (p, b, a), (p, a, a))
        yield (*goal, (p, b, a), (p, a, a), (p, b, b))
    yield (*goal, selected)
    p, a, b = selected
    for bound, other, is_second in ((a, b, False), (b, a, True)):
        if bound >= 0:
            yield ((p, other, fresh) if is_second else (p, fresh, other), *rest)
        if bound >= 0 or other < 0:
            yield ((p, other, other), *rest)


def _like(atom: Ids, fact: Ids) -> Ids:
    """Return an atom that a fact matches, with variables where another atom has them."""
    p, a, b = fact
    return (p, a if atom[1] >= 0 else atom[1], b if atom[2] >= 0 else atom[2])


def _bind(atoms: Atoms, bound: Mapping[int, int]) -> Atoms:
    return tuple((p, bound.get(a, a), bound.get(b, b)) for p, a, b in atoms)


def _choose_facts(step: SeenStep, found: Found, rng: Random) -> list[Ids]:
    """Return facts: next to the boundary of a condition on facts, then others of the predicate, then of other predicates."""
    inference, selected = step.run.inference, step.goal[0]
    assert inference is not None
    clauses = inference.clauses
    indices = list(clauses.facts_of(selected[0]))[:MOST_FACTS]
    if not indices:
        # The predicate has only rules: choose constants at random.
        every = clauses.facts
        return [(selected[0], *every[rng.randrange(len(every))][1:]) for _ in range(MOST_AT_RANDOM)] if every else []
    chosen: list[int] = []
    singles_out = False
    tested = [found.table.features[i].of for i in found.condition.used]
    if found.cases.unit is Unit.FACT and any(Unit.STEP not in each for each in tested):
        values = _read_facts(indices, step, found)
        held = found.condition.holds(values)
        chosen, singles_out = _next_to_boundary(values, found), bool(held.all() or not held.any())
    num = min(MOST_AT_RANDOM, len(indices))
    spread = [i * (len(indices) - 1) // max(1, num - 1) for i in range(num)]
    spread = rng.sample((*spread, *rng.sample(range(len(indices)), num)), 2 * num)
    elsewhere = [
        facts[i]
        for predicate in (rng.choice(clauses.predicates_of_facts) for _ in range(MOST_ELSEWHERE))
        if predicate != selected[0] and (facts := clauses.facts_of(predicate))
        for i in {0, rng.randrange(len(facts)), len(facts) - 1}
    ]
    # What a condition on facts predicts for other predicates is tried as often.
    beyond = [
        those[i]
        for predicate in (clauses.predicates_of_facts if chosen else ())
        if predicate != selected[0] and (those := list(clauses.facts_of(predicate))[:MOST_FACTS])
        for i in _next_to_boundary(_read_facts(those, step, found), found)[: MOST_AT_BOUNDARY // 2]
    ]
    mixed = zip_longest([indices[i] for i in (*chosen, *spread)], beyond)
    within = [i for pair in mixed for i in pair if i is not None]
    # A condition that singles out predicates is refuted only by other predicates, which are then tried as often.
    tried = chain.from_iterable(zip_longest(within, elsewhere)) if singles_out else (*within, *elsewhere)
    return [clauses.facts[i] for i in dict.fromkeys(i for i in tried if i is not None)]


def _read_facts(facts: Sequence[int], step: SeenStep, found: Found) -> NDArray[np.float64]:
    """Return the values of facts in a step: float64 [n, F], with NaN where the condition does not test a feature."""
    known = [Instance(Unit.FACT, False, i, step.candidate, step, (Origin.FACT, i)) for i in facts]
    return read_values(found.table.features, known, found.condition.used)


def _next_to_boundary(values: NDArray[np.float64], found: Found) -> list[int]:
    """Return the rows of values at which a condition begins or ceases to hold, in the order of each feature that it tests."""
    condition = found.condition
    if np.isnan(values[:, condition.used]).any():
        return []
    chosen: list[int] = []
    for part, other in zip(condition.parts, condition.parts[::-1], strict=True):
        # Try each of two conditions only where the other one does not hold.
        held = part.holds(values)
        is_open = np.ones_like(held) if other is part else ~other.holds(values)
        for test in part.tests:
            x = values[:, test.feature]
            if test.beyond is not None:
                low, high = sorted((test.value, test.beyond))
                between = np.flatnonzero((x > low) & (x < high) & is_open)
                between = between[np.argsort(x[between], kind="stable")]
                chosen += between[:: max(1, -(-len(between) // MOST_AT_BOUNDARY))].tolist()
            order = np.argsort(x, kind="stable")
            order = order[is_open[order]]
            flips = np.flatnonzero(np.diff(held[order].astype(np.int8)))[: MOST_AT_BOUNDARY // 2]
            chosen += [int(order[i]) for flip in flips.tolist() for i in (flip, flip + 1)]
    return chosen


def choose_pair(tried: Tried, found: Found) -> list[Instance]:
    """Return an instance that goes wrong and one that does not, next to the boundary and with the smallest goals."""
    condition, instances = found.condition, tried.cases.instances
    values = read_values(found.table.features, instances, condition.used)

    def distance(row: int) -> tuple[float, int]:
        """Return the distance of an instance from the boundary, and the size of its goal or of its run."""
        step = instances[row].step
        size = len(step.expected.goal) if step is not None else instances[row].candidate.num_in_run
        return sum(abs(float(values[row, test.feature]) - test.value) for test in condition.tests), size

    is_right = tried.predicted == tried.observed
    classes = (np.flatnonzero(is_right & (tried.predicted == is_wrong)).tolist() for is_wrong in (True, False))
    return [instances[min(rows, key=distance)] for rows in classes if rows]
