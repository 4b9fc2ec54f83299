"""Stage and class of single differences between two steps: by one faulty stage where clauses are recorded, else by inference.

Steps are written as text: `paX` is the atom p(a, X), `#XX` a hole, `2[qdc rab]` what rule 2 leaves, `pab[rbX]` what the fact
p(a, b) leaves, `[rbX]` a resolvent of an unknown clause; `!` and `?` say that it counts as TRUE or as a goal nevertheless.
"""

import random
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from problem_text import graph_of

from kgverify import Limits, Stage
from kgverify.comparison.inference.infer import prefer_one_stage
from kgverify.comparison.inference.origins import OriginInference
from kgverify.comparison.inference.single_fault import ALONE, StepProgram, explain_by_one_stage, has_stage
from kgverify.comparison.inference.step_difference import (
    GUESSED,
    OPEN,
    Given,
    LimitsSeen,
    StepDifference,
    explain_difference,
)
from kgverify.comparison.step_pair import StepPair
from kgverify.comparison.step_view import ResolventView, StepView
from kgverify.dialects import Dialect
from kgverify.program.atoms import Atom
from kgverify.program.limits import FILTERS
from kgverify.program.outcomes import DifferenceClass, GoalKind, Origin
from kgverify.step import plain_step
from kgverify.step.clauses import Clauses, number_variables
from kgverify.step.plain_step import SOUND, Resolvent, Situation, Stages, Taken

PROGRAM = graph_of(
    "p(a, b); p(a, c); p(a, d); q(b, a); q(b, c); r(c, a); r(c, d);"
    "p(X, Y) <- q(X, Z), p(Z, Y); p(X, X) <- r(X, Y); q(X, Y) <- q(Y, X); q(X, Y) <- p(X, Y); ! q(b, c)"
).program
FACTS = PROGRAM.facts.tolist()
NAMED = {
    "R0": "0[qaX pXY rYZ]",
    "R1": "1[raX raY]",
    "F0": "pab[rbX]",
    "F1": "pac[rcX]",
    "F2": "pad[rdX]",
    "ALL": "R0 R1 F0 F1 F2",
}
"""The resolvents of START by each clause."""
START = "paX rXY"
KINDS = {"!": GoalKind.TRUE, "?": GoalKind.GOAL}
ENDS = {"TRUE": GoalKind.TRUE, "FALSE": GoalKind.FALSE, "STOP": GoalKind.STOP, "UNKNOWN": 9}


def atoms_of(text: str) -> tuple[Atom, ...]:
    terms = {**{name: i for i, name in enumerate("abcd")}, **{name: -1 - i for i, name in enumerate("XYZW")}, "z": 900}
    return tuple(Atom("pqr".find(p), terms[first], terms[second]) for p, first, second in text.split())


def resolvents_of(text: str, has_clauses: bool = True) -> tuple[ResolventView, ...]:
    found: list[ResolventView] = []
    for clause, mark, atoms, name in re.findall(r"(\w*)([!?]?)\[([^]]*)\]|(\w+)", text):
        if name in NAMED:
            found += resolvents_of(NAMED[name], has_clauses)
            continue
        kind = ENDS[name] if name else KINDS[mark] if mark else GoalKind.GOAL if atoms else GoalKind.TRUE
        origin = (Origin.NONE, 0)
        if clause and has_clauses:
            is_rule = clause.isdigit()
            origin = (Origin.RULE, int(clause)) if is_rule else (Origin.FACT, FACTS.index([*atoms_of(clause)[0]]))
        found.append(ResolventView(kind, atoms_of(atoms), *origin, 0.0))
    return tuple(found)


def options_of(text: str) -> dict[str, str]:
    """Read `query=pab; max_atoms=2`."""
    return dict(each.strip().split("=") for each in text.split(";") if each.strip())


def rows_of(text: str) -> list[Any]:
    """Return the rows of a table: what is expected and actual, options, and what is said."""
    rows = [[each.strip() for each in line.split("|")] for line in text.strip().splitlines() if line[0] != "#"]
    return [pytest.param(*row, id=" ".join(row)) for row in rows]


def explain(expected: str, actual: str, options: str) -> list[StepDifference]:
    """Explain a step from the last of the goals by one stage; `dropped` are the numbers of both sides."""
    given = options_of(options)
    memory, dropped = given.pop("memory", None), given.pop("dropped", "0,0 to 0,0")
    dialect = Dialect(memory=memory) if memory else Dialect(order=given.pop("order", "rules_first"))
    goals = [atoms_of(each) for each in given.pop("goals", START).split("/")]
    (query,) = atoms_of(given.pop("query", "rbb"))
    has_origins = not given.pop("origins", "")
    limits = Limits(dialect=dialect, **{name: int(value) for name, value in given.items()})
    program = StepProgram(Clauses(PROGRAM, exclude_query=True, dialect=dialect), limits, goals, query)
    counts = [map(int, each.split(",")) for each in dropped.replace("unknown", "0,0 to 0,0").split("to")]
    sides = (
        StepView(0, goals[-1], resolvents_of(side), *numbers, 0, 0)
        for side, numbers in zip((expected, actual), counts, strict=True)
    )
    return explain_by_one_stage(program, StepPair(*sides, has_origins=has_origins, has_counts=dropped != "unknown"))


ONE_STAGE = """
# The same resolvents in another order name who orders them.
ALL | F0 F1 F2 R0 R1 |  | resolve reordered: rules and facts are put together in another order
ALL | R0 F0 R1 F1 F2 |  | resolve reordered: rules and facts are put together in another order
ALL | F2 F1 F0 R1 R0 |  | resolve reordered: the whole list is reversed
ALL | R0 R1 F2 F1 F0 |  | match_facts reordered: the facts are tried in the reverse order
ALL | R1 R0 F0 F1 F2 |  | match_rules reordered: the rules are tried in the reverse order
ALL | R0 R1 F1 F0 F2 |  | match_facts reordered: the facts are tried in another order
ALL | R1 F0 R0 F1 F2 |  | match_rules reordered: the rules are tried in another order
2[qdc rab] 3[pcd rab] | 3[pcd rab] 2[qdc rab] | goals=qcd pac rab | match_rules reordered: the whole list is reversed
rca[qaX] rcd[qdX] | rcd[qdX] rca[qaX] | goals=rcX qXY | match_facts reordered: the whole list is reversed
# Clauses that are lost or added are counted.
ALL | R0 R1 F0 F1 |  | match_facts missing: 1 fact missing, none extra
ALL | R0 R1 |  | match_facts missing: 3 facts missing, none extra
ALL | R1 F0 F1 F2 |  | match_rules missing: 1 rule missing, none extra
ALL | R1 F0 F1 |  | match_rules missing: 2 clauses missing, none extra
ALL | ALL qba[raX] |  | match_facts extra: 1 fact extra, none missing
ALL | R0 R1 F0 F1 qba[raX] |  | match_facts substituted: 1 fact missing, 1 extra
R0 R1 F1 F2 | ALL | query=pab | match_facts extra: 1 fact extra, none missing
R0 R1 F1 F2 | ALL | query=pab; origins=none | match_facts extra: 1 fact extra, none missing
# Equal lists of which other numbers were dropped. In the last, a rule or a fact may be the one that was not made.
R0 R1 | R0 R1 | dropped=0,3 to 0,2; max_resolvents=2 | match_facts missing: COUNTS (0, 3), actual (0, 2): 1 resolvent lost \
before the limits
R0 R1 | R0 R1 | dropped=0,3 to 0,4; max_resolvents=2 | limit limit: COUNTS (0, 3), actual (0, 4)
R0 R1 | R0 R1 | dropped=0,3 to 0,0; max_resolvents=2 | limit limit: COUNTS (0, 3), actual (0, 0)
R0 | R0 | dropped=0,4 to 0,3; max_resolvents=1 | limit limit: COUNTS (0, 4), actual (0, 3)
# An end in the place of another.
FALSE | TRUE | goals=raX | close false_proof: TRUE stands for an empty list
FALSE | | goals=raX | close missing: the list ends with no end, expected FALSE
FALSE | FALSE FALSE | goals=raX | close extra: the list ends with FALSE, FALSE, expected FALSE
FALSE | STOP | goals=raX | close outcome: the list ends with STOP, expected FALSE
# Proofs.
pab[] | pab![pab] | goals=paX | prune malformed: atoms left beside TRUE: 1
pab[] | pab![pab #XX] | goals=paX | prune malformed: atoms left beside TRUE: 2
pab[] | pab![pab raX] | goals=paX | close malformed: atoms left beside TRUE: 2
pab[] | pad[] | goals=paX | close substituted: the last proof is kept, not the first
pab[] | 0[qaX pXY] 1[raX] pab[] pac[] pad[] | goals=paX | close extra: resolvents beside a proof stay
# The resolvents of another atom (r c a binds X to c, and p a c is pruned), and of an earlier goal.
ALL | rca[] |  | select substituted: atom 2 of the goal is selected
ALL | 2[qXa] 3[paX] | goals=qaX / rda / paX rXY | advance stale: the resolvents are those of the step 2 before this one
# Goals visited before.
2[rab] 3[rab] | FALSE | goals=rab / qab pac rab; memory=none | match_rules missing: 2 rules missing, none extra
3[pXY raa] | 2[qXY raa] 3[pXY raa] qba[raa] qbc[raa] | goals=raa / qXY raa | revisit extra: goals visited before stay
3[pXY raa] | 3[pXY raa] qba[raa] qbc[raa] | goals=raa / qXY raa | revisit extra: only the current goal is not visited again
3[pXY raa] | 3[pXY raa] qbc[raa] | goals=raa / qXY raa | revisit extra: of the resolvents that are goals visited before, \
1 of 3 stay
2[qXY raa] 3[pXY raa] qba[raa] qbc[raa] | 3[pXY raa] | goals=raa / qXY raa; memory=none | match_rules missing: 3 clauses \
missing, none extra
ALL | R1 F0 F1 F2 | goals=pXY rYZ qaX / paX rXY | revisit missing: visited goals are compared as by the memory set
R1 F0 F1 F2 | ALL | goals=pXY rYZ qaX / paX rXY; memory=set | revisit extra: goals visited before stay
# Other atoms of the same clause. Pruning deletes the second atom of these goals.
2[qdc rab] 3[pcd rab] | 2[qdc pac rab] 3[pcd rab] | goals=qcd pac rab | prune extra: 1 atom extra after pruning
2[qdc rab] 3[pcd rab] | 2[qdc] 3[pcd rab] | goals=qcd pac rab | prune missing: 1 atom missing after pruning
2[qdc rab] 3[pcd rab] | 2[qdc #XX rab] 3[pcd rab] | goals=qcd pac rab | prune malformed: holes stay where facts were deleted
2[qdc rab] 3[pcd rab] | 2[rab qdc] 3[pcd rab] | goals=qcd pac rab | prune substituted: the atoms that pruning leaves are in \
another order
2[qdc rab] 3[pcd rab] | 2[rab] 3[pcd rab] | goals=qcd pac rab | prune missing: 1 atom missing after pruning
2[qdc rab] 3[pcd rab] | 2[qcd rab] 3[pcd rab] | goals=qcd pac rab | resolve substituted: the same clause gave different atoms
2[qdc rab] 3[pcd rab] | 2[qdc pac rab] 3[pcd pac rab] | goals=qcd pac rab | prune extra: atoms that are facts stay
ALL | 0[qaX rYZ] R1 F0 F1 F2 | goals=paX pab rXY | prune missing: 1 atom missing after pruning
# The limits. One less was dropped in the second, so that one was not made, and FALSE is no proof.
R0 R1 F0 | R1 F0 F1 | dropped=0,2 to 0,2; max_resolvents=3 | limit limit: 3 of 5 resolvents are kept, and others than the first 3
R0 R1 F0 | R1 F0 F1 | dropped=0,2 to 0,1; max_resolvents=3 | match_rules missing: 1 rule missing, none extra
R0 R1 F0 | TRUE | dropped=0,2 to 0,2; max_resolvents=3 | close false_proof: TRUE stands where a list is longer than max_resolvents
R0 R1 F0 | FALSE | dropped=0,2 to 0,0; max_resolvents=3 | match_rules missing: 5 clauses missing, none extra
ALL | R1 F0 F1 F2 | dropped=0,0 to 1,0; max_atoms=3 | limit limit: resolvents of max_atoms atoms are dropped
R1 F0 F1 F2 | ALL | dropped=1,0 to 0,0; max_atoms=2 | limit limit: resolvents of one atom more than max_atoms stay
F0 F1 F2 | ALL | dropped=2,0 to 0,0; max_atoms=1 | limit limit: resolvents of more than max_atoms atoms stay
R1 F0 F1 F2 | 0[qaX pXY] R1 F0 F1 F2 | dropped=1,0 to 1,0; max_atoms=2 | limit limit: resolvents of more than max_atoms atoms \
are cut
""".replace("\\\n", "").replace("COUNTS", "dropped (by max_atoms, by max_resolvents): expected")


@pytest.mark.parametrize(("expected", "actual", "options", "said"), rows_of(ONE_STAGE))
def test_one_stage_explains_a_step(expected: str, actual: str, options: str, said: str):
    found = explain(expected, actual, options)[0]
    assert f"{found.stage} {found.kind}: {found.evidence}" == f"{said}; {ALONE}"


SEVERAL_STAGES = """
pab[] | 0[qaX pXY] 1[raX] | goals=paX | match_facts missing, close outcome, revisit extra
2[] | FALSE | goals=qab | match_rules missing, close missing, revisit missing
2[] | FALSE | goals=qab; origins=none | match_rules proof_lost, close proof_lost, revisit proof_lost
F0 F1 | F1 F2 | order=facts_first; dropped=unknown; max_resolvents=2 | limit limit, match_facts missing, match_facts reordered
ALL | R1 F0 F1 F2 | dropped=unknown; max_atoms=3 | match_rules missing, limit limit
ALL | R1 F0 F1 F2 | goals=rdd / paX rXY | match_rules missing, revisit missing
# Without origins, any clause may have made it. The program does not give the other lists, or the goal has no atoms.
FALSE | TRUE | goals=raX; origins=none |
FALSE | TRUE | goals= |
pab[] pac[] | pad[] | goals=paX |
pab[] | pab[] | goals=paX |
"""


@pytest.mark.parametrize(("expected", "actual", "options", "names"), rows_of(SEVERAL_STAGES))
def test_several_stages_may_explain_a_step_the_likeliest_first_or_none(
    expected: str, actual: str, options: str, names: str
):
    found = explain(expected, actual, options)
    assert ", ".join(f"{each.stage} {each.kind}" for each in found) == names


def test_an_empty_list_is_rather_that_of_lost_clauses_than_of_an_earlier_dead_end():
    found = [f"{each.stage} {each.kind}" for each in explain("ALL", "FALSE", f"goals=raX / {START}")]
    assert (found[0], found[-1]) == ("match_rules missing", "advance stale")


def keep_all(situation: Situation, resolvents: list[Resolvent]) -> list[Resolvent]:
    return list(resolvents)


def keep_one_for_each_first_atom(situation: Situation, resolvents: list[Resolvent]) -> list[Resolvent]:
    firsts = {number_variables(each.atoms)[:1]: each for each in reversed(resolvents)}
    return [each for each in resolvents if firsts[number_variables(each.atoms)[:1]] is each]


def overlook_late_proofs(situation: Situation, resolvents: list[Resolvent]) -> list[Resolvent]:
    found = plain_step.close(situation, resolvents[: situation.limits.max_resolvents])
    return found if found[0].kind is GoalKind.TRUE else list(resolvents)


def confuse_new_variables(situation: Situation, rules: list[int], facts: list[int]) -> list[Resolvent]:
    """Resolve, with the goal's first variable in the place of each new one."""
    lowest = min((term for _, *terms in situation.goal for term in terms), default=0)
    return [
        each._replace(
            atoms=tuple((p, *(-1 if lowest < 0 and t < lowest else t for t in terms)) for p, *terms in each.atoms)
        )
        for each in plain_step.resolve(situation, rules, facts)
    ]


def keep_last(situation: Situation, resolvents: list[Resolvent]) -> tuple[list[Resolvent], int]:
    most = situation.limits.max_resolvents
    return list(resolvents[-most:]), max(0, len(resolvents) - most)


def remember_current(situation: Situation, resolvents: list[Resolvent]) -> list[Resolvent]:
    return plain_step.revisit(situation._replace(visited=situation.visited[-1:]), resolvents)


WRONG_STAGES = {
    "match_facts": {"match_facts": lambda situation, selected: plain_step.match_facts(situation, selected)[:1]},
    "match_rules": {"match_rules": lambda situation, selected: plain_step.match_rules(situation, selected)[:1]},
    "resolve": {"resolve": confuse_new_variables},
    "prune": {"prune": keep_all},
    "revisit": {"revisit": remember_current},
    "revisit, by duplicates": {"remove_duplicates": keep_one_for_each_first_atom},
    "close": {"close": overlook_late_proofs},
    "limit": {"limit_resolvents": keep_last},
    "limit, by max_atoms": {"limit_atoms": lambda s, found: plain_step.limit_atoms(s, found, s.limits.max_atoms - 1)},
}
LINKED = graph_of(
    "p(a, b); p(a, c); p(a, d); p(b, d); q(b, a); q(b, c); q(a, c); r(c, a); r(c, d); r(a, b);"
    "p(X, Y) <- q(X, Z), p(Z, Y); p(X, X) <- r(X, Y); p(X, Y) <- q(X, Z), r(Z, Y); q(X, Y) <- q(Y, X); q(X, Y) <- p(X, Y);"
    "q(X, Y) <- r(X, Z), q(Z, Y); r(X, Y) <- p(Y, X); r(X, Y) <- q(X, Z), r(Z, Y); ! q(b, c); ! p(b, c); ! r(b, a)"
).program


def take_wrongly(dialect: Dialect, stages: Stages, *, is_known: bool) -> Iterator[tuple[StepProgram, StepPair]]:
    """Yield a few steps in which a fault shows, each from a derivation that went right until then."""
    rng, limits = random.Random(0), Limits(max_atoms=3, max_resolvents=4, dialect=dialect)
    clauses = Clauses(LINKED, exclude_query=True, dialect=dialect)

    def view(goal: Any, taken: Taken) -> StepView:
        listed = [
            ResolventView(r.kind, number_variables(r.atoms), *(r.clause if is_known else (0, 0)), 0.0)
            for r in taken.resolvents
        ]
        return StepView(0, goal, tuple(listed), taken.dropped_atoms, taken.dropped_resolvents, 0, 0)

    found: list[StepPair] = []
    for _ in range(100):
        if len(found) == 3:
            return
        query = (rng.randrange(3), rng.randrange(4), rng.randrange(4))
        goals, pair = [(query,)], None
        while pair is None and len(goals) < 7:
            situation = Situation(clauses, limits, clauses.excluded(query), goals)
            right, wrong = (plain_step.take_step(situation, each).taken.taken for each in (SOUND, stages))
            both = StepPair(view(goals[-1], right), view(goals[-1], wrong), has_origins=is_known, has_counts=is_known)
            if both.read(0) != both.read(1):
                pair = both
            open_goals = [each.atoms for each in right.resolvents if not each.kind]
            if pair is not None or not open_goals:
                break
            goals.append(rng.choice(open_goals))
        if pair is not None:
            found.append(pair)
            yield StepProgram(clauses, limits, goals, query), pair


OTHER_DIALECTS = [
    *(
        Dialect(filters=tuple({first: second, second: first}.get(name, name) for name in FILTERS))
        for first, second in combinations(FILTERS, 2)
    ),
    Dialect(
        filters=("prune", "duplicates", "close", "max_atoms", "max_resolvents"), memory="none", order="facts_first"
    ),
    Dialect(filters=FILTERS, is_reversed=True, long_resolvents="truncate", stopping="where_no_terminal"),
    Dialect(forgets_names=False, exclusion="positives_only", unification="one_pass", skips_unary=True),
]


@pytest.mark.sample(6)
@pytest.mark.parametrize("dialect", OTHER_DIALECTS, ids=str)
def test_the_stage_at_fault_is_named_or_listed_in_every_dialect(dialect: Dialect):
    num_named = 0
    for name, stages in WRONG_STAGES.items():
        for is_known in (True, False):
            steps = take_wrongly(dialect, SOUND._replace(**stages), is_known=is_known)
            guesses = [found for program, pair in steps if (found := explain_by_one_stage(program, pair))]
            for each in prefer_one_stage(guesses):
                num_named += 1
                stage, _, filter_at_fault = name.partition(", by ")
                assert stage in (each.stage.value, *re.findall(r"\w+", each.evidence)), (name, is_known, each)
                assert has_stage(dialect, each.stage), each
                assert each.stage.value != "revisit" or dialect.memory != "none" or "duplicates" in each.evidence
                assert filter_at_fault != "duplicates" or "duplicates" in each.evidence or each.stage.value != "revisit"
    assert num_named > 10


def test_facts_that_no_listed_resolvent_has_are_not_said_to_stay():
    found = explain("pab[]", "0[qaX pXY] 1[raX]", "goals=paX; max_resolvents=2")
    assert not any(each.evidence.partition(";")[0] == "atoms that are facts stay" for each in found)


def guess(stage: str) -> StepDifference:
    return StepDifference(Stage(stage), DifferenceClass.MISSING, "", 0.5, (), ())


@pytest.mark.parametrize(
    ("guesses", "chosen"),
    [
        # The only stage that explains both steps, though it is not the likeliest of either.
        (["limit prune", "match_facts prune"], "prune prune"),
        (["limit", "limit match_facts"], "limit limit"),
        (["limit prune", "match_facts prune", "close prune"], "prune prune prune"),
        # No stage explains both.
        (["limit prune", "match_facts"], "limit match_facts"),
        # Two stages do: the likelier one, and of equally likely ones the earlier.
        (["limit prune", "prune limit", "limit prune"], "limit limit limit"),
        (["limit prune", "prune limit"], "prune prune"),
    ],
)
def test_several_steps_have_one_stage_if_it_explains_them_all(guesses: list[str], chosen: str):
    found = prefer_one_stage([[guess(name) for name in each.split()] for each in guesses])
    assert [each.stage.value for each in found] == chosen.split()


GRAPH = graph_of(
    "p(a, b); p(a, c); p(a, d); q(b, c); r(c, d);"
    "p(X, Y) <- q(X, Z), p(Z, Y); p(X, X) <- r(X, Y); q(X, Y) <- q(Y, X); ! q(b, c)"
)


def infer(expected: str, actual: str, options: str, graph: Any = GRAPH, query: str = "qbc") -> list[StepDifference]:
    """Explain a step of which no clauses are known; `earlier` are the resolvents of the steps before, `full` a limit."""
    given = options_of(options)
    *before, goal = (atoms_of(each) for each in given.get("goals", START).split("/"))
    earlier = resolvents_of(given.get("earlier", "ALL"), has_clauses=False)
    full = int(given.get("full", 0))
    seen = LimitsSeen(frozenset({full} - {0}), frozenset(), full or 9, 9)
    origins = OriginInference(Clauses(graph.program, exclude_query=True)).at(goal, atoms_of(query)[0])
    sides = (StepView(0, goal, resolvents_of(side, has_clauses=False), 0, 0, 0, 0) for side in (expected, actual))
    steps = tuple(StepView(0, each, earlier, 0, 0, 0, 0) for each in before)
    return explain_difference(StepPair(*sides), Given(origins, steps, (seen, seen), (3, 4)))


INFERRED = """
ALL | R0 R1 F0 F1 | | match_facts missing
ALL | R1 F0 F1 F2 | | match_rules missing
R0 R1 F0 F1 | ALL | | match_facts extra
ALL | | | close missing
F0 F1 F2 | | | match_facts missing
F0 F1 F2 | FALSE | | match_facts missing
FALSE | | | close missing
 | FALSE | | close extra
ALL | FALSE FALSE | | close outcome
# Proofs that are lost, false or malformed.
TRUE | ALL | | close proof_lost
TRUE | FALSE | | close proof_lost
ALL | TRUE | | close false_proof
ALL | ALL TRUE | | close false_proof
ALL | ![raX] | | close false_proof
TRUE | TRUE ALL | | close outcome
TRUE | ![raX] | | close malformed
TRUE | ![pab] | | prune malformed
# What is no resolvent.
ALL | ALL ?[] | | limit malformed
ALL | R0 R1 F0 F1 ?[] | | prune malformed
ALL | ALL UNKNOWN | | close malformed
ALL | R0 R1 F0 F1 [#aa rdX] | | prune malformed
ALL | ALL [rzX] | | resolve malformed
ALL [rzX] | ALL | | resolve malformed
ALL | R0 R1 F0 F1 [#aa rdX] UNKNOWN | | prune malformed
# Other orders, names and atoms.
ALL | R0 R1 F2 F1 F0 | | match_facts reordered
ALL | R1 R0 F0 F1 F2 | | match_rules reordered
ALL | F2 F1 F0 R1 R0 | | resolve reordered
R0 | [qaY pYZ rZX] | | rename renamed
R0 | [pXY qaX rYZ] | | resolve substituted
R0 | [qaX pXY rXZ] | | resolve substituted
F0 F1 F2 | F0 F1 [rXY] | | resolve substituted
ALL | ALL [rbc qcc] | | resolve unsound
ALL | R0 R1 F0 F1 [rbc qcc] | | resolve unsound
# Pruning too little or too much, and a query that is not a fact.
[qba rab] | [qba pac rab] | goals=qab pac rab | prune extra
[qba rab] | [rab] | goals=qab pac rab | prune missing
FALSE | [rab] | goals=qbc rab | match_facts extra: the query
# A goal visited before; of two, either may stay in the place of the other.
R0 R1 F0 F1 | ALL | goals=rdX / paX rXY | revisit extra
ALL | R0 R1 F0 F1 | goals=rdX / paX rXY | revisit missing
R0 R1 F0 F1 | R0 R1 F0 F2 | goals=rcX / rdX / paX rXY | revisit substituted: 1 resolvent missing, 1 extra: they
ALL | [qcc] | goals=raa / paX rXY; earlier=[qcc] | advance stale
# Full lists. In the second, the actual side goes on behind a fact that it lacks; in the third, facts were lost before.
R0 R1 F0 | F2 F1 F0 | full=3 | limit limit
R0 R1 F0 | R0 R1 F1 | full=3 | match_facts missing
R0 R1 F0 F1 | R0 R1 F2 | full=4 | match_facts missing: 2 facts missing, none extra, 1 let in by the limit in their place
"""


@pytest.mark.parametrize(("expected", "actual", "options", "said"), rows_of(INFERRED))
def test_a_difference_has_a_stage_and_a_class(expected: str, actual: str, options: str, said: str):
    found = infer(expected, actual, options)[0]
    names, _, evidence = said.partition(": ")
    assert f"{found.stage} {found.kind}" == names, found.evidence
    assert found.evidence
    assert evidence in found.evidence
    assert 0 < found.confidence <= 1


def test_what_a_rule_and_a_fact_both_make_is_lost_by_either():
    graph = graph_of("q(a, b); q(b, a); q(X, Y) <- q(Y, X); ! q(a, a)")
    # The only predicate of this graph has the number 0.
    found = infer("[paX] [paX]", "[paX]", "goals=pab paX", graph, "paa")[0]
    assert (found.kind.value, found.confidence) == ("missing", OPEN)


def test_what_no_clause_makes_is_a_guess_where_it_is_missing():
    found = infer("ALL [rbc qcc]", "ALL", "")[0]
    assert (found.kind.value, found.confidence) == ("missing", GUESSED)


@pytest.mark.parametrize(
    ("fact", "expected", "actual", "said"),
    [
        (
            "r(c, d)",
            "[qaY pYX rXc] [rbc] [rcc]",
            "TRUE",
            "close false_proof: TRUE stands where 3 other resolvents are expected",
        ),
        (
            "r(c, d)",
            "[rbc] [rcc]",
            "TRUE [rcc]",
            "prune false_proof: TRUE stands where 1 of 2 other resolvents is expected",
        ),
        ("r(d, c)", "[rbc] [rcc] TRUE", "TRUE [rcc] TRUE", "prune missing: other atoms are missing in 1 resolvent"),
    ],
)
def test_pruning_too_much_or_close_may_have_made_true(fact: str, expected: str, actual: str, said: str):
    graph = graph_of(f"p(a, b); p(a, c); p(a, d); q(b, c); {fact}; p(X, Y) <- q(X, Z), p(Z, Y); ! q(b, c)")
    first, *others = infer(expected, actual, "goals=paX rXc", graph)
    assert f"{first.stage} {first.kind}: {first.evidence}".startswith(said)
    assert " facts would make it if pruning deletes 1 ground atom that the facts lack" in first.evidence
    assert {first.stage, *(each.stage for each in others)} == {Stage.CLOSE, Stage.PRUNE}
