"""One step of a derivation: a function for each stage of docs/semantics.md, in the dialect of the limits, and their composition.

Every function is pure. The reference prover has its own step, which shares no code with this one.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from kgverify.program.fact_index import Ids
from kgverify.program.limits import Dialect, Filter, Limits
from kgverify.program.outcomes import ENDS, GoalKind, Origin, Outcome, Stage
from kgverify.step.clauses import Atoms, Clauses, is_permutation, number_variables


class Resolvent(NamedTuple):
    """A resolvent and the clause that made it; TRUE and FALSE have no atoms.

    score: higher is better; 0 for TRUE and FALSE
    """

    atoms: Atoms
    origin_kind: Origin
    origin: int
    kind: GoalKind = GoalKind.GOAL
    score: float = 0.0

    @property
    def clause(self) -> tuple[int, int]:
        """The kind and the number of the clause that made it."""
        return int(self.origin_kind), self.origin


FALSE: Final = Resolvent((), Origin.NONE, 0, GoalKind.FALSE)
"""The dead end, which no clause makes."""

STOP: Final = FALSE._replace(kind=GoalKind.STOP)
"""The end of a derivation, which the policy may choose if the dialect offers it."""


class Taken(NamedTuple):
    """The resolvents of a step, and the numbers of those that the limits dropped."""

    resolvents: Sequence[Resolvent]
    dropped_atoms: int = 0
    dropped_resolvents: int = 0


class TakenStep(NamedTuple):
    """A step of a derivation, with its choice and outcome. depth: the counted steps before it."""

    goal: Atoms
    depth: int
    taken: Taken
    choice: int
    outcome: Outcome
    log_probability: float
    is_uncounted: bool = False

    @property
    def next_depth(self) -> int:
        """The counted steps up to this one."""
        return self.depth + (not self.is_uncounted)


SCORE_OF_STOPPING: Final = -64.0
"""The score of stopping by the policy `shortest`, below that of any goal."""

Scores: TypeAlias = Callable[[Atoms, Sequence[Resolvent]], Sequence[float]]
"""A policy: the score of each resolvent of a goal, all in canonical variables."""


def score_shortest(goal: Atoms, resolvents: Sequence[Resolvent]) -> list[float]:
    """Return the scores of the policy `shortest`: fewer atoms score higher, then fewer variables."""
    return [
        SCORE_OF_STOPPING
        if each.kind is GoalKind.STOP
        else -(len(each.atoms) + len({t for _, *terms in each.atoms for t in terms if t < 0}) / 64)
        for each in resolvents
    ]


class Situation(NamedTuple):
    """The inputs of a step.

    clauses:  the clauses of the program, in the dialect of the limits
    excluded: the fact that the derivation may not use, if any
    visited:  the goals of the derivation, the current one last; canonical if the dialect forgets names
    depth:    the counted steps before this one
    may_skip: whether the step may remain uncounted, in a dialect that skips steps
    """

    clauses: Clauses
    limits: Limits
    excluded: Ids | None
    visited: Sequence[Atoms]
    depth: int = 0
    scores: Scores = score_shortest
    may_skip: bool = True

    @property
    def goal(self) -> Atoms:
        """The goal of the step."""
        return self.visited[-1]

    @property
    def dialect(self) -> Dialect:
        """The dialect of the step."""
        return self.limits.dialect


def select(situation: Situation) -> Ids:
    """Return the leftmost atom."""
    return situation.goal[0]


def match_rules(situation: Situation, selected: Ids) -> list[int]:
    """Return the rules whose heads unify with the selected atom, in the order of the dialect."""
    clauses = situation.clauses
    found = [i for i in clauses.rules_of(selected[0]) if clauses.resolve((selected,), Origin.RULE, i) is not None]
    return found[::-1] if situation.dialect.is_reversed else found


def match_facts(situation: Situation, selected: Ids) -> list[int]:
    """Return the facts that unify with the selected atom, without the excluded one, in the order of the dialect."""
    found = situation.clauses.facts_like(selected, situation.excluded)
    return found[::-1] if situation.dialect.is_reversed else found


def resolve(situation: Situation, rules: Sequence[int], facts: Sequence[int]) -> list[Resolvent]:
    """Return the resolvent of the goal and each clause, in the order of the dialect."""
    goal, dialect = situation.goal, situation.dialect
    # If names are kept, the variables of a clause are new to the derivation.
    known = () if dialect.forgets_names else [atom for each in situation.visited for atom in each]
    by_rules, by_facts = [(Origin.RULE, i) for i in rules], [(Origin.FACT, i) for i in facts]
    made = by_rules + by_facts if dialect.order == "rules_first" else by_facts + by_rules
    results = ((kind, i, situation.clauses.resolve(goal, kind, i, known)) for kind, i in made)
    return [Resolvent(atoms, kind, i) for kind, i, atoms in results if atoms is not None]


def prune(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Delete every atom that is a fact and not the excluded atom."""
    facts, excluded = situation.clauses.fact_index, situation.excluded
    kept = (tuple([atom for atom in each.atoms if atom not in facts or atom == excluded]) for each in resolvents)
    return list(map(_put, resolvents, kept))


def rename(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Make the variables of each resolvent canonical, unless the dialect keeps names."""
    return _rename(resolvents) if situation.dialect.forgets_names else list(resolvents)


def _rename(resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    return [_put(each, number_variables(each.atoms)) for each in resolvents]


def _put(resolvent: Resolvent, atoms: Atoms) -> Resolvent:
    """Return a resolvent with these atoms; most stages leave most resolvents as they are, and making one takes longer."""
    return resolvent if atoms == resolvent.atoms else resolvent._replace(atoms=atoms)


def revisit(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Drop every resolvent that counts as a visited goal in the memory of the dialect."""
    dialect = situation.dialect
    visited = set(situation.visited) if dialect.memory != "none" else set()
    sets = {frozenset(goal) for goal in visited} if dialect.memory == "set" else set()

    def is_visited(atoms: Atoms) -> bool:
        if atoms in visited or frozenset(atoms) in sets:
            return bool(atoms) or not dialect.exempts_terminal
        is_renamed = bool(sets) and dialect.forgets_names
        return is_renamed and any(is_permutation(tuple(set(atoms)), tuple(each)) for each in sets)

    return [each for each in resolvents if not is_visited(each.atoms)]


def remove_duplicates(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Keep the first of the resolvents that are equal up to renaming."""
    firsts: dict[tuple[int, Atoms], Resolvent] = {}
    for each in resolvents:
        firsts.setdefault((each.kind, number_variables(each.atoms)), each)
    return list(firsts.values())


def close(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Return only the first proof, if there is one; only FALSE, if there is no resolvent."""
    marked = mark_proofs(resolvents)
    return [each for each in marked if each.kind == GoalKind.TRUE][:1] or marked or [FALSE]


def mark_proofs(resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Return the resolvents, with TRUE in place of every goal without atoms."""
    return [each if each.atoms or each.kind else each._replace(kind=GoalKind.TRUE) for each in resolvents]


def limit_atoms(
    situation: Situation, resolvents: Sequence[Resolvent], most: int | None = None
) -> tuple[list[Resolvent], int]:
    """Drop or truncate the resolvents of more than `most` atoms, by default `max_atoms`, and count them."""
    most = situation.limits.max_atoms if most is None else most
    num_long = sum(len(each.atoms) > most for each in resolvents)
    if situation.dialect.long_resolvents == "truncate":
        return [each._replace(atoms=each.atoms[:most]) for each in resolvents], num_long
    return [each for each in resolvents if len(each.atoms) <= most], num_long


def limit_resolvents(
    situation: Situation, resolvents: Sequence[Resolvent], most: int | None = None
) -> tuple[list[Resolvent], int]:
    """Keep the first `most` resolvents, by default `max_resolvents`, and count the others."""
    most = situation.limits.max_resolvents if most is None else most
    return list(resolvents[:most]), max(0, len(resolvents) - most)


def offer_stop(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Add STOP if the dialect offers it. Return only FALSE if there is nothing else."""
    offers = situation.dialect.stopping == "where_no_terminal" and all(not each.kind for each in resolvents)
    return [*resolvents, STOP] if offers else list(resolvents) or [FALSE]


def score(situation: Situation, resolvents: Sequence[Resolvent]) -> list[float]:
    """Return a score for each resolvent. A resolvent that is terminal and has no alternative gets 0."""
    if len(resolvents) == 1 and resolvents[0].kind:
        return [0.0]
    return list(map(float, situation.scores(number_variables(situation.goal), _rename(resolvents))))


def choose(situation: Situation, scores: Sequence[float]) -> int:
    """Return the index of the highest score; the lowest one among equal scores."""
    return scores.index(max(scores))


def advance(situation: Situation, scores: Sequence[float], choice: int) -> float:
    """Return the term to add to the log-probability, in nats."""
    return log_softmax(scores, choice)


def log_softmax(scores: Sequence[float], choice: int) -> float:
    """Return the log-probability of the choice of the highest score, in nats."""
    return -math.log(math.fsum([math.exp(each - scores[choice]) for each in scores]))


def finish(situation: Situation, chosen: Resolvent, depth: int) -> Outcome:
    """Return the outcome after some counted steps."""
    return find_outcome(situation.limits, chosen.kind, depth)


def find_outcome(limits: Limits, kind: GoalKind, depth: int) -> Outcome:
    """Return the outcome of a chosen resolvent of a kind after some counted steps."""
    is_last = depth >= limits.max_depth
    return ENDS.get(kind, Outcome.DEPTH_LIMIT if is_last else Outcome.OPEN)


Keeps: TypeAlias = Callable[[Situation, Sequence[Resolvent]], list[Resolvent]]
"""A stage that returns some of the resolvents that it receives, perhaps changed."""

Drops: TypeAlias = Callable[[Situation, Sequence[Resolvent]], tuple[list[Resolvent], int]]
"""A stage that counts the resolvents that it drops."""


class Stages(NamedTuple):
    """The functions of a step.

    Each may be replaced.

    Example:
        Stages(choose=lambda situation, scores: 0) chooses the first resolvent.
    """

    select: Callable[[Situation], Ids] = select
    match_rules: Callable[[Situation, Ids], list[int]] = match_rules
    match_facts: Callable[[Situation, Ids], list[int]] = match_facts
    resolve: Callable[[Situation, Sequence[int], Sequence[int]], list[Resolvent]] = resolve
    prune: Keeps = prune
    rename: Keeps = rename
    revisit: Keeps = revisit
    remove_duplicates: Keeps = remove_duplicates
    close: Keeps = close
    limit_atoms: Drops = limit_atoms
    limit_resolvents: Drops = limit_resolvents
    offer_stop: Keeps = offer_stop
    score: Callable[[Situation, Sequence[Resolvent]], list[float]] = score
    choose: Callable[[Situation, Sequence[float]], int] = choose
    advance: Callable[[Situation, Sequence[float], int], float] = advance
    finish: Callable[[Situation, Resolvent, int], Outcome] = finish


SOUND: Final = Stages()
"""The stages of this module."""


class Filtered(NamedTuple):
    """The resolvents after each filter, by stage, and the resolvents that the step offers."""

    after: Mapping[Stage, Sequence[Resolvent]]
    taken: Taken
    is_uncounted: bool


def filter_resolvents(situation: Situation, resolvents: Sequence[Resolvent], stages: Stages = SOUND) -> Filtered:
    """Apply the filters of the dialect, in its order; renaming precedes the comparison with visited goals."""
    functions: dict[Filter | str, Keeps] = {
        "prune": stages.prune,
        "rename": stages.rename,
        "revisit": stages.revisit,
        "duplicates": stages.remove_duplicates,
        "close": stages.close,
    }
    limits: dict[Filter | str, Drops] = {"max_atoms": stages.limit_atoms, "max_resolvents": stages.limit_resolvents}
    order: list[Filter | str] = list(situation.dialect.filters)
    order.insert(order.index("revisit") if "revisit" in order else len(order), "rename")
    after, dropped = {"resolve": resolvents}, dict.fromkeys(limits, 0)
    for name in order:
        if not (resolvents and resolvents[0].kind == GoalKind.FALSE):
            if name in limits:
                resolvents, dropped[name] = limits[name](situation, resolvents)
            else:
                resolvents = functions[name](situation, resolvents)
        after[name] = resolvents
    resolvents = mark_proofs(resolvents)
    is_unary = len(resolvents) == 1 and not resolvents[0].kind
    is_uncounted = situation.dialect.skips_unary and situation.may_skip and is_unary
    offered = resolvents if is_uncounted else stages.offer_stop(situation, resolvents)
    # A filter that is not applied passes the resolvents on unchanged.
    after = {"prune": after["resolve"], "revisit": after["rename"], "close": resolvents} | after
    shown = {stage: after[stage.value] for stage in _FILTER_STAGES} | {Stage.LIMIT: offered}
    return Filtered(shown, Taken(offered, *dropped.values()), is_uncounted)


_FILTER_STAGES: Final = (Stage.RESOLVE, Stage.PRUNE, Stage.RENAME, Stage.REVISIT, Stage.CLOSE)


class Step(NamedTuple):
    """A step with the output of every stage."""

    selected: Ids
    rules: list[int]
    facts: list[int]
    filtered: Filtered
    taken: TakenStep


def take_step(situation: Situation, stages: Stages = SOUND) -> Step:
    """Take one step."""
    selected = stages.select(situation)
    rules, facts = stages.match_rules(situation, selected), stages.match_facts(situation, selected)
    filtered = filter_resolvents(situation, stages.resolve(situation, rules, facts), stages)
    return Step(selected, rules, facts, filtered, choose_resolvent(situation, filtered, stages))


def choose_resolvent(situation: Situation, filtered: Filtered, stages: Stages = SOUND) -> TakenStep:
    """Complete a step: the stages from `score` to `finish`."""
    offered = filtered.taken.resolvents
    scores = stages.score(situation, offered)
    choice = stages.choose(situation, scores)
    scored = [each._replace(score=number) for each, number in zip(offered, scores, strict=True)]
    depth = situation.depth + (not filtered.is_uncounted)
    return TakenStep(
        situation.goal,
        situation.depth,
        filtered.taken._replace(resolvents=scored),
        choice,
        stages.finish(situation, offered[choice], depth),
        stages.advance(situation, scores, choice),
        filtered.is_uncounted,
    )


def derive(situation: Situation, stages: Stages = SOUND) -> Iterator[TakenStep]:
    """Take steps until the derivation ends."""
    num_uncounted, most = 0, situation.limits.max_depth
    visited = list(situation.visited)
    while True:
        taken = take_step(situation._replace(visited=visited, may_skip=num_uncounted < most), stages).taken
        yield taken
        if taken.outcome is not Outcome.OPEN:
            return
        num_uncounted = num_uncounted + 1 if taken.is_uncounted else 0
        visited.append(taken.taken.resolvents[taken.choice].atoms)
        situation = situation._replace(depth=taken.next_depth)


def retake_step(situation: Situation, stages: Stages = SOUND) -> Step:
    """Take a step of a derivation, given its visited goals. Earlier steps may be uncounted."""
    step = take_step(situation, stages)
    most, visited = situation.limits.max_depth, situation.visited
    if not step.taken.is_uncounted or len(visited) <= most + situation.depth:
        return step
    # After max_depth uncounted steps in a row, one is counted.
    num_uncounted = 0
    for end in range(len(visited) - 1, 0, -1):
        if not take_step(situation._replace(visited=visited[:end]), stages).taken.is_uncounted:
            break
        num_uncounted += 1
    return take_step(situation._replace(may_skip=num_uncounted % (most + 1) < most), stages)


def show_stages(step: Step) -> dict[Stage, Any]:
    """Return the output of each stage, in the form that is used to compare engines."""
    after, taken = step.filtered.after, step.taken
    chosen = taken.taken.resolvents[taken.choice]
    return {
        Stage.SELECT: step.selected,
        Stage.MATCH_RULES: tuple(step.rules),
        Stage.MATCH_FACTS: tuple(step.facts),
        **show_filters(after, taken.taken),
        Stage.SCORE: tuple([each.score for each in taken.taken.resolvents]),
        Stage.CHOOSE: taken.choice,
        Stage.ADVANCE: (int(chosen.kind), chosen.atoms, taken.next_depth),
        Stage.FINISH: int(taken.outcome),
    }


def show_filters(after: Mapping[Stage, Sequence[Resolvent]], taken: Taken) -> dict[Stage, Any]:
    """Return the outputs of the stages from `resolve` to `limit`; only `rename` shows the numbers of variables."""
    return {
        **{stage: tuple(map(_show, _rename(after[stage]))) for stage in (Stage.RESOLVE, Stage.PRUNE)},
        **{stage: tuple(map(_show, after[stage])) for stage in (Stage.RENAME, Stage.REVISIT)},
        # Some dialects rename after `close`.
        Stage.CLOSE: tuple(map(_show_kind, _rename(after[Stage.CLOSE]))),
        Stage.LIMIT: (tuple(map(_show_kind, after[Stage.LIMIT])), taken.dropped_atoms, taken.dropped_resolvents),
    }


def _show(resolvent: Resolvent) -> tuple[int, int, Atoms]:
    return int(resolvent.origin_kind), resolvent.origin, resolvent.atoms


def _show_kind(resolvent: Resolvent) -> tuple[int, int, int, Atoms]:
    return int(resolvent.kind), *_show(resolvent)
