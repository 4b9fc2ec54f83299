"""Engines that search, on lists of goals and on padded tensors: sound ones agree, and what they hold is recorded as it is."""

import math
from itertools import islice

import msgspec
import numpy as np
import pytest

import kgverify as kv
from kgverify import CandidateSet, Columns, Dialect, Kept, Level, Limits, Outcome, Path, Program, UserError
from kgverify.engines.beams import take_again
from kgverify.engines.plain.engine import PlainEngine
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import positions_of
from kgverify.program.atoms import parse_atoms
from kgverify.program.program import parse_rules
from kgverify.step.clauses import Clauses
from kgverify.step.plain_step import Situation
from kgverify.step.search import take_level
from kgverify.testing.problems.decode import draw_problems

PROGRAM = Program.from_names(
    parse_atoms("q(a,b) q(a,c) q(d,b) r(c,b) r(b,e) r(a,d)"),
    [*parse_rules("p(X,Y) q(X,Z) r(Z,Y)"), *parse_rules("p(X,Y) r(X,Z) p(Z,Y)")],
)
UNKNOWN = {"origin_kind", "origin", "dropped_atoms", "dropped_resolvents", "is_limited"}
"""The columns unknown to an engine that returns only successors."""


def search(text="beam(2)", **switches):
    return Limits(max_depth=6, dialect=Dialect(search=text, **switches))


def make_queries(program, atoms):
    predicates, constants = program.symbols.predicate_ids, program.symbols.constant_ids
    ids = [(predicates[p], *(constants[term] for term in terms)) for p, *terms in atoms]
    num = len(ids)
    return CandidateSet(np.arange(num, dtype=np.int32), np.full(num, 2, np.int8), np.array(ids, np.int32))


QUERIES = make_queries(PROGRAM, parse_atoms("p(a,e) p(c,e)"))


class Padded(kv.TensorEngine):
    """The levels of the plain search, on padded arrays; TRUE is predicate 900, FALSE 901, variables begin at 1000."""

    searches = ("beam", "sample", "all")
    arrays = "numpy"
    encoding = kv.Encoding(true=900, false=901, first_variable=1000)

    def take_level(self, states, next_variable, excluded, visited, log_probabilities):
        assert (visited[:, -1] == states).all()
        (num, size), number = log_probabilities.shape, visited.shape[1] - 1
        parents, choices, merged = np.full((3, num, size), -1)
        sums, lists = np.full((num, size), -np.inf), [() for _ in states]
        clauses = Clauses(self.program, exclude_query=self.limits.exclude_query, dialect=self.limits.dialect)
        for q in range(num):
            goals = {p: list(map(read_goal, visited[q * size + p])) for p in range(size) if states[q * size + p].any()}
            if not goals:
                continue
            beam = [Path(p, goals[p], float(log_probabilities[q, p]), number) for p in goals]
            (query,) = beam[0].visited[0]
            found = take_level(Situation(clauses, self.limits, clauses.excluded(query), [(query,)]), number, beam)
            for path, taken in zip(beam, found.taken, strict=True):
                lists[q * size + path.place] = taken.resolvents
            for each in found.kept:
                at = q, each.place
                parents[at], choices[at], merged[at], sums[at] = each.parent, each.choice, each.merged_into, each[3]
        successors = np.zeros((len(lists), max(map(len, lists)), states.shape[1], 3), np.int64)
        scores = np.zeros(successors.shape[:2])
        for row, resolvents in enumerate(lists):
            for i, each in enumerate(resolvents):
                successors[row, i, 0, 0] = (0, 900, 901)[each.kind]
                scores[row, i] = each.score
                for j, (p, *terms) in enumerate(each.atoms):
                    successors[row, i, j] = p + 1, *(t + 1 if t >= 0 else 999 - t for t in terms)
        return {
            "successors": successors,
            "counts": np.array(list(map(len, lists))),
            "next_variable": next_variable + 9,
            "parents": parents,
            "choices": choices,
            "scores": scores,
            "log_probabilities": sums,
            "merged": merged,
        }


def read_goal(rows):
    return tuple((p - 1, *(t - 1 if t < 1000 else 999 - t for t in terms)) for p, *terms in rows.tolist() if p)


def change(edit):
    """Return the engine with the result of each level edited, given its number, the result and the arguments."""

    class Changed(Padded):
        def take_level(self, *given):
            result = super().take_level(*given)
            return edit(given[3].shape[1] - 1, result, given) or result

    return Changed


@kv.engine_of(terms=True, search=True)
def Lists(goals, log_probabilities, program):
    every, children = [], []
    for i, goal in enumerate(goals):
        found = [each for each in find_successors(goal, program) if each not in map(number_names, program.visited[i])]
        found = [True] if () in found else [e for e in found if len(e) <= program.limits.max_atoms]
        found = found[: program.limits.max_resolvents] or [False]
        scores = [0.0 if isinstance(each, bool) else -len(each) - count_names(each) / 64 for each in found]
        total = math.log(math.fsum(math.exp(score - max(scores)) for score in scores))
        every.append(list(zip(found, scores, strict=True)))
        children += [(max(scores) + total - score - log_probabilities[i], i, j) for j, score in enumerate(scores)]
    children.sort(key=lambda child: child[0])
    return every, [child[1:] for child in children[: program.limits.dialect.searching.size]]


def find_successors(goal, program):
    for clause in (*((head, *body) for head, body in program.rules), *((fact,) for fact in program.facts)):
        atoms = [goal[0], *program.rename(*clause), *goal[1:]]
        for i in (1, 2):
            old, new = sorted((atoms[0][i], atoms[1][i]), key=lambda term: term[0] != "?")
            atoms = [tuple(new if t == old and t[0] == "?" else t for t in atom) for atom in atoms]
        if atoms[0] == atoms[1]:
            yield number_names([atom for atom in atoms[2:] if atom not in program.facts])


def number_names(goal):
    names = {}
    return tuple((p, *(names.setdefault(t, f"?{len(names)}") if t[0] == "?" else t for t in ts)) for p, *ts in goal)


def count_names(goal):
    return len({term for _, *terms in goal for term in terms if term[0] == "?"})


def find_differing(expected, actual):
    """Return the columns that differ, up to the numbers of variables and rounding."""
    found = []
    for group, columns in expected._asdict().items():
        for name, left in columns._asdict().items():
            right = getattr(getattr(actual, group), name)
            if name in ("atoms", "goal_atoms"):
                left, right = np.maximum(left, -1), np.maximum(right, -1)
            if name not in UNKNOWN and not (left.shape == right.shape and np.allclose(left, right, atol=1e-9)):
                found.append(f"{group}.{name}")
    return found


def prove(make, limits, program=PROGRAM, queries=QUERIES) -> Columns:
    return make(program, limits, SHORTEST).prove(queries)


def rows_of(columns, candidate=0):
    """Return the place, the parent and the goal of each path of a candidate."""
    goals = np.split(columns.steps.goal_atoms, np.cumsum(columns.steps.num_atoms)[:-1])
    owner = np.repeat(np.arange(len(columns.candidates.query)), columns.candidates.num_steps)
    rows = zip(
        columns.paths.place.tolist(), columns.paths.parent.tolist(), map(np.ndarray.tolist, goals), owner, strict=True
    )
    return [row[:3] for row in rows if row[3] == candidate]


@pytest.mark.parametrize(
    ("text", "switches"),
    [
        ("beam(1)", {}),
        ("beam(3)", {"aggregate": "noisy_or"}),
        ("beam(4)", {"merge": "sum", "aggregate": "sum"}),
        ("sample(3, 7)", {"aggregate": "sum"}),
        ("all(7)", {"merge": "max"}),
    ],
)
def test_sound_engines_agree_with_the_plain_search_also_from_given_beams(text, switches):
    places, merged, outcomes = set(), 0, set()
    for problem in islice(draw_problems(5), 12):
        if problem.policy.name != "shortest" or not problem.queries:
            continue
        limits = msgspec.structs.replace(problem.limits, max_depth=4, dialect=Dialect(search=text, **switches))
        program = Program.from_names([*problem.facts, *problem.queries], problem.rules)
        queries = make_queries(program, problem.queries)
        plain = PlainEngine(program, limits, SHORTEST)
        expected = plain.prove(queries)
        engines = [Padded(program, limits, SHORTEST)]
        if "merge" not in switches and text.startswith("beam"):
            engines.append(Lists(program, limits, SHORTEST))
        for engine in engines:
            assert find_differing(expected, engine.prove(queries)) == []
            assert find_differing(take_again(plain, expected), take_again(engine, expected)) == []
        places |= {*expected.paths.place.tolist()}
        merged += int((expected.paths.child < -1).sum())
        outcomes |= {*expected.candidates.outcome.tolist()}
    assert (len(places) > 1, merged > 0) == (text != "beam(1)", "merge" in switches)
    assert {Outcome.PROVED, Outcome.FAILED} <= outcomes


def hold(number, result, given):
    """Return the result with the goals that a sound engine holds after a level; the first of them is another goal."""
    rows = np.arange(len(given[0])) // 2 * 2 + result["parents"].ravel()
    held = result["successors"][rows, result["choices"].ravel()]
    if number == 0:
        held[0] = 0
        held[0, 0], held[2, 0] = (1, 4, 5), (900, 0, 0)
    return result | {"next_states": held}


def test_a_goal_that_the_engine_holds_is_recorded_in_place_of_the_child():
    expected, actual = prove(Padded, search()), prove(change(hold), search())
    # The path has the same parent, whose successors are what they were.
    assert rows_of(expected)[:2] == [(0, -1, [[2, 0, 4]]), (0, 0, [[0, 0, -1], [1, -1, 4]])]
    assert rows_of(actual)[:2] == [(0, -1, [[2, 0, 4]]), (0, 0, [[0, 3, 4]])]
    assert actual.paths.child[:2].tolist() == [0, 1]
    # The other query has an end in place of its first child.
    assert expected.candidates.outcome.tolist() == [Outcome.PROVED, Outcome.FAILED]
    assert actual.candidates.outcome.tolist() == [Outcome.PROVED, Outcome.PROVED]
    assert find_differing(expected, prove(change(lambda number, *given: hold(7, *given)), search())) == []


def test_a_path_from_the_rows_of_another_query_is_recorded_without_a_parent():
    def mix(number, result, given):
        if number == 0:
            result["parents"][1, 0] = -2

    def mix_ends(number, result, given):
        if number == 1:
            result["parents"][1, 0], result["choices"][1, 0] = -2, 0

    actual = prove(change(mix), search())
    assert rows_of(actual, 1)[:3] == [
        (0, -1, [[2, 2, 4]]),
        (0, -1, [[0, 0, -1], [1, -1, 4]]),
        (1, 0, [[1, 2, -1], [2, -1, 4]]),
    ]
    assert actual.paths.child[actual.steps.num_resolvents[: len(rows_of(actual))].sum() :][:2].tolist() == [-1, 1]
    for edit in (mix, mix_ends):
        assert prove(change(edit), search()).candidates.outcome.tolist() == [Outcome.PROVED, Outcome.PROVED]
    assert rows_of(prove(Padded, search()))[2:] == rows_of(prove(change(mix_ends), search()))[2:]


def test_a_child_that_is_not_listed_is_recorded_without_a_parent():
    def cut(number, result, given):
        result["counts"][0] -= number == 0

    def miss(number, result, given):
        result["choices"][0, 0] += 5 * (number == 0)

    def lengthen(number, result, given):
        result["counts"][0] += 3 * (number == 0)

    stale, missing = prove(change(cut), search()), prove(change(miss), search())
    assert rows_of(stale)[2] == (1, -1, [[1, 0, -1], [2, -1, 4]])
    assert (stale.steps.num_resolvents[0], stale.paths.child[0]) == (1, 0)
    assert rows_of(missing)[1] == (0, -1, [])
    long = prove(change(lengthen), search())
    assert (long.steps.num_resolvents[0], long.resolvents.num_atoms[2], long.paths.child[2]) == (3, 0, -1)


def test_a_search_that_keeps_nothing_has_failed():
    def drop(number, result, given):
        result["parents"][:] = result["choices"][:] = -1

    ends = prove(change(drop), search()).candidates
    assert (ends.outcome.tolist(), ends.num_steps.tolist()) == ([Outcome.FAILED] * 2, [1, 1])


def test_what_an_engine_does_not_return_is_computed_from_its_scores_or_unknown():
    def leave_out(*names):
        return change(lambda number, result, given: {n: value for n, value in result.items() if n not in names})

    expected = prove(Padded, search("beam(3)"))
    torch = pytest.importorskip("torch")

    class OnTorch(Padded):
        arrays, batch_size = "torch", 4

        def take_level(self, *given):
            result = super().take_level(*(array.numpy() for array in given))
            return {name: torch.from_numpy(value) for name, value in result.items()}

    for make in (leave_out("log_probabilities", "merged"), OnTorch):
        assert find_differing(expected, prove(make, search("beam(3)"))) == []
    scores = {"resolvents.score"}
    sums = {"candidates.log_probability", "paths.log_probability", "paths.child_log_probability"}
    for names, unknown in (((), set()), (("scores",), scores), (("scores", "log_probabilities"), scores | sums)):
        info = leave_out(*names)(PROGRAM, search(), SHORTEST).info
        assert {*info.unknown} & (scores | sums) == unknown
        assert info.mode == "numpy"


def test_an_engine_may_combine_its_proofs_in_its_own_way():
    def aggregate(self, query, ended):
        assert {each.level for each in ended} <= {*range(6)}
        return Outcome.DEPTH_LIMIT, float(len(ended))

    ends = prove(type("Own", (Padded,), {"aggregate": aggregate}), search()).candidates
    assert ends.outcome.tolist() == [Outcome.DEPTH_LIMIT] * 2
    assert ends.log_probability.min() >= 1


def test_a_step_from_a_goal_is_a_level_of_one_path():
    expected = prove(PlainEngine, search())
    positions = positions_of(expected)
    steps = [make(PROGRAM, search(), SHORTEST).step(positions) for make in (PlainEngine, Padded, Lists)]
    for each in steps[1:]:
        assert not {"resolvents.atoms", "resolvents.score", "steps.goal_atoms"} & {*find_differing(steps[0], each)}


def test_a_function_on_lists_sees_its_own_names_and_the_goals_of_each_path():
    seen = []

    @kv.engine_of(terms=True, search=True)
    def walk(goals, log_probabilities, program):
        seen.append((goals, log_probabilities, [*map(list, program.visited)], program.rename(("r", "?W", "a"))[0][1]))
        if len(seen) > 1:
            return [[(False, 0.0)] for _ in goals], [(1, 0)]
        return [[([("q", "?W", "b")], 1.0), ([("q", "a", "?V")], 1.0), (None, 0.5)]], [(0, 1), (0, 0)]

    queries = make_queries(PROGRAM, parse_atoms("p(a,e)"))
    columns = prove(walk, search(), queries=queries)
    query, first, second = (("p", "a", "e"),), (("q", "a", "?V"),), (("q", "?W", "b"),)
    half = -math.log(2 + math.exp(-0.5))
    assert seen == [
        ([query], [0.0], [[query]], "?W.1"),
        ([first, second], [half] * 2, [[query, first], [query, second]], "?W.2"),
    ]
    assert columns.paths.child.tolist() == [1, 0, -1, -1, 0]
    assert columns.candidates.outcome.tolist() == [Outcome.FAILED]


def test_engines_refuse_searches_that_they_do_not_declare():
    for make, limits in (
        (Padded, Limits()),
        (Lists, search("sample(2, 0)")),
        (kv.StepwiseEngine, search()),
        (kv.TensorEngine, search()),
    ):
        with pytest.raises(NotImplementedError, match="the search "):
            make(PROGRAM, limits, SHORTEST)


def with_level(take):
    return type("Own", (kv.SearchEngine,), {"take_level": take})


def with_children(*kept):
    failing = kv.Resolvent((), kv.Origin.NONE, 0, kv.GoalKind.FALSE)
    return with_level(lambda self, query, beam: Level([kv.Taken([failing] * 2) for _ in beam], kept))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            change(lambda number, result, given: result | {"choice": result["counts"]}),
            r"choice given, and the search is beam\(2\)",
        ),
        (change(lambda number, result, given: result | {"parents": None}), "parents is NoneType"),
        (
            change(lambda number, result, given: result | {"merged": result["merged"][:, :1]}),
            r"merged has shape \[2, 1\], expected \[2, 2\]",
        ),
        (kv.engine_of(terms=True, search=True)(lambda goals, sums, program: []), r"found \[\]"),
        (
            kv.engine_of(terms=True, search=True)(lambda goals, sums, program: ([[(True, 0)]], [(0, 7)])),
            "keeps resolvent 7 of the path at place 0",
        ),
        (with_level(lambda self, query, beam: Level([], [])), "expected the resolvents of 1 path, found 0"),
        (with_level(lambda self, query, beam: None), "expected a Level, found None"),
        (
            type("Lost", (with_level(None),), {"take_levels": lambda self, queries, beams: []}),
            r"Lost.take_levels: expected \d+ levels?, found 0",
        ),
        (with_children(Kept(0, 0, 5, 0.0), Kept(0, 1, 2, 0.0)), r"places \[5, 2\], which do not ascend"),
        (with_children(Kept(0, 0, 1, 0.0), Kept(0, 1, 1, 0.0)), "do not ascend"),
        (with_children(Kept(0, 0, -1, 0.0)), "do not ascend from 0"),
        (with_children(Kept(0, 0, 2**40, 0.0)), "do not ascend"),
        (with_children(Kept(0, 0, 0, 0.0), Kept(0, 1, 1, 0.0, -7)), "into place -7: not a valid place"),
        (with_level(lambda self, query, beam: Level([kv.Taken([])], [Kept(0, 0, 0, 0.0)])), "keeps resolvent 0"),
    ],
)
def test_a_level_of_the_wrong_form_is_refused(make, message):
    with pytest.raises(UserError, match=message):
        prove(make, search())


def test_results_of_searches_are_refused_elsewhere():
    def expand(self, states, next_variable, excluded):
        empty = np.zeros((len(states), 1, 1, 3), int)
        return {
            "successors": empty,
            "counts": next_variable,
            "next_variable": next_variable,
            "parents": next_variable[:, None],
        }

    with pytest.raises(UserError, match="parents given, and the search is greedy"):
        prove(type("Greedy", (kv.TensorEngine,), {"arrays": "numpy", "expand": expand}), Limits())
    for options in ({"search": True}, {"terms": True, "search": True, "memory": "sets"}):
        with pytest.raises(UserError, match="search belongs to functions on terms"):
            kv.engine_of(find_successors, **options)


@pytest.mark.parametrize("modulo", ["order", "names,duplicates"])
def test_the_order_of_resolvents_cannot_be_ignored_in_a_search(modulo: str):
    limits = Limits(dialect=Dialect(search="beam(2)"))
    with pytest.raises(UserError, match="the order of resolvents decides which children a search keeps"):
        kv.verify(
            "countries", "reference", queries=1, corruptions=1, limits=limits, equality=kv.Equality(modulo=modulo)
        )
