"""`TensorEngine`: states are handed on as the engine left them; unsound ones are recorded, misshapen ones refused."""

import random
from collections.abc import Mapping

import numpy as np
import pytest
import torch

import kgverify as kv
from kgverify import CandidateSet, Program, UserError
from kgverify.engines.adapters import encoding
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import make_positions, positions_of
from kgverify.program.atoms import parse_atoms
from kgverify.program.outcomes import GoalKind, Outcome
from kgverify.program.program import parse_rules
from kgverify.trace.model.columns import empty_columns

PROGRAM = Program.from_names(parse_atoms("p(a,b) q(b,c)"), parse_rules("p(X,Y) q(Y,X)"))
# In the default encoding: p 1, q 2, a 1, b 2, c 3, the first variable 4; TRUE 3, FALSE 4, STOP 5.
ENCODING = kv.Encoding(true=3, false=4, stop=(5,))
QUERY = CandidateSet(np.array([0], np.int32), np.array([2], np.int8), np.array([[0, 0, 1]], np.int32))
OWN_QUERY = [1, 1, 2]
STOPS = [[[4, 0, 0]]]


def make(expand, *, program=PROGRAM, limits=None, **options):
    body = {"encoding": ENCODING, "arrays": "numpy", "expand": expand, **options}
    return type("Made", (kv.TensorEngine,), body)(program, limits or kv.Limits(), SHORTEST)


def scripted(*results, **options):
    """Return an engine that gives the results one after the other, and the arguments of its calls."""
    calls = []

    def expand(self, states, next_variable, excluded):
        calls.append((states.copy(), next_variable.copy(), excluded.copy()))
        result = results[min(len(calls), len(results)) - 1]
        if isinstance(result, Mapping):
            return dict(result)
        successors, *others = result
        successors = np.array([successors])
        count, following, *rest = [*others, *(successors.shape[1], 9)[len(others) :]]
        return successors, np.array([count]), np.array([following]), *(np.array([each]) for each in rest)

    return make(expand, **options), calls


def resolvents(columns):
    """Return the kind and the atoms of each resolvent."""
    ends = np.cumsum(columns.resolvents.num_atoms)
    parts = np.split(columns.resolvents.atoms, ends[:-1]) if len(ends) else []
    return [(GoalKind(k).name, part.tolist()) for k, part in zip(columns.resolvents.kind, parts, strict=True)]


def test_a_state_is_handed_on_as_the_engine_left_it():
    first = [[[2, 7, 2], [1, 7, 9]], [[2, 1, 2], [2, 2, 2]]]
    engine, calls = scripted((first, 2, 31), (STOPS,))
    columns = engine.prove(QUERY)
    assert [each.tolist() for each in calls[0]] == [[[OWN_QUERY, *[[0, 0, 0]] * 5]], [4], [[OWN_QUERY]]]
    # The second successor has fewer variables; its atoms, numbers and next variable arrive as they were.
    states, following, _ = calls[1]
    assert states[0].tolist() == [*first[1], *[[0, 0, 0]] * 4]
    assert following.tolist() == [31]
    assert columns.candidates.num_steps.tolist() == [2]
    # Variables keep their own numbers in the record: 7 is the fourth, 9 the sixth.
    assert resolvents(columns)[0] == ("GOAL", [[1, -4, 1], [0, -4, -6]])
    assert engine.info.variables == "own"
    assert "resolvents.origin" in engine.info.unknown


@pytest.mark.parametrize(
    ("successors", "count", "expected"),
    [
        ([[[1, 1, 2], [0, 0, 0], [2, 2, 3]]], 1, [("GOAL", [[0, 0, 1], [-1, 0, 0], [1, 1, 2]])]),
        ([[[3, 0, 0], [2, 2, 3]]], 1, [("TRUE", [[1, 1, 2]])]),
        ([[[2, 2, 3], [0, 0, 0], [4, 1, 1]]], 1, [("FALSE", [[1, 1, 2]])]),
        ([[[5, 0, 0]]], 1, [("STOP", [])]),
        ([[[0, 0, 0]]], 1, [("GOAL", [])]),
        ([[[4, 0, 0]]], 3, [("FALSE", []), ("GOAL", [])]),
        ([[[4, 0, 0]]], 0, []),
        ([[[4, 0, 0]]], -7, []),
        ([[[9, 1, 2]]], 1, [("GOAL", [[2 + 9, 0, 1]])]),
        ([[[2, 0, 1]]], 1, [("GOAL", [[1, 3 + 0, 0]])]),
        ([[[-2, -1, 1]]], 1, [("GOAL", [[2 + (1 << 29) + 2, 3 + (1 << 29) + 1, 0]])]),
    ],
)
def test_an_unsound_state_is_recorded_as_it_is(successors, count, expected):
    engine, _ = scripted((successors, count), (STOPS,), max_depth=1)
    columns = engine.prove(QUERY)
    assert resolvents(columns) == expected
    if not expected:
        assert columns.steps.choice.tolist() == [-1]
        assert columns.candidates.outcome.tolist() == [Outcome.FAILED]


def test_a_recorded_state_is_encoded_as_it_was():
    successors = [[[1, 1, 2], [0, 0, 0], [9, 2, 0], [-2, 6, 3]]]
    engine, calls = scripted((successors, 1), (STOPS,), batch_size=1)
    columns = engine.prove(QUERY)
    engine.step(positions_of(columns))
    assert calls[3][0][0, :4].tolist() == successors[0]


@pytest.mark.parametrize(
    "encoding",
    [
        kv.Encoding(true=90, false=91, order="apb"),
        kv.Encoding(true=-5, false=-6, padding=-9, predicates=0, constants=0),
        kv.Encoding(true=90, false=91, first_variable=-1, constants={"a": 7, "b": 2, "c": 40}),
        kv.Encoding(false=91, predicates={"p": 3, "q": 1}, first_variable=500),
    ],
    ids=["order", "padding", "negative variables", "names"],
)
def test_atoms_come_back_in_every_encoding(encoding):
    engine = make(lambda self, *arguments: None, encoding=encoding)
    atoms = np.array([[0, 0, 1], [1, -1, 2], [1, -3, -2]])
    encoded = engine.encode([tuple(atom) for atom in atoms.tolist()])
    assert engine._translate.decode(encoded[None]).atoms.tolist() == atoms.tolist()


def test_a_program_without_constants_is_encoded():
    program = Program.from_names([], parse_rules("p(X,Y) p(Y,X)"))
    translation = encoding.Translation(kv.Encoding(predicates=3, true=90, false=91, first_variable=7), program)
    atoms = np.array([[[0, -1, -2], [0, 4, -1]]])
    assert translation.encode(atoms).tolist() == [[[3, 7, 8], [3, 4, 7]]]
    assert translation.decode(translation.encode(atoms)).atoms.tolist() == atoms[0].tolist()


@pytest.mark.parametrize("numbers", [0, 1, {"a": 7, "b": 3}])
def test_a_number_of_no_name_comes_back_and_the_largest_ones_as_one(numbers):
    names = encoding._Numbers("constants", numbers, ("a", "b"))
    given = np.array([sign * (2**power + more) for sign in (-1, 1) for power in range(41) for more in (-1, 0, 1)])
    kept = np.clip(given, -encoding._LARGEST, encoding._LARGEST)
    ids = names.decode(kept)
    assert (names.encode(ids).tolist(), ids.min() >= 0, ids.max() < 2**31 - 2) == (kept.tolist(), True, True)
    translation = encoding.Translation(kv.Encoding(true=90, false=91, first_variable=-1), PROGRAM)
    decoded = translation.decode(np.stack((given, abs(given), given * 0 + 1), axis=1)[:, None])
    assert decoded.atoms.max() < 2**31
    assert translation.encode(decoded.atoms).tolist() == np.stack((kept, abs(kept), kept * 0 + 1), axis=1).tolist()


def test_a_step_from_recorded_goals_has_the_next_variable_that_they_leave():
    engine, calls = scripted(([[[1, 4, 2], [2, 4, 5]]], 1, 6), ([[[2, 1, 3]]], 1, 6), (STOPS,), batch_size=1)
    columns = engine.prove(QUERY)
    assert columns.candidates.num_steps.tolist() == [3]
    del calls[:]
    engine.step(positions_of(columns))
    # The query has no variables; of those of a goal visited earlier the numbers stay in use.
    assert [following.tolist() for _, following, _ in calls] == [[4], [6], [6]]


class OnlyDlpack:
    """An array that knows nothing but DLPack, as those of JAX."""

    def __init__(self, array):
        self.__dlpack__, self.__dlpack_device__, self._size = array.__dlpack__, array.__dlpack_device__, len(array)

    def __len__(self):
        return self._size


@pytest.mark.parametrize("arrays", ["torch", "numpy", OnlyDlpack])
def test_arrays_of_any_library_are_read(arrays):
    wrap = {"torch": torch.from_numpy, "numpy": np.asarray, OnlyDlpack: OnlyDlpack}[arrays]
    result = wrap(np.array([STOPS])), wrap(np.ones(1, np.int64)), wrap(np.ones(1, np.int64))
    assert resolvents(make(lambda self, *_: result, arrays=arrays).prove(QUERY)) == [("FALSE", [])]


ROW = np.zeros((1, 1, 1, 3), np.int64)
ONE = np.ones(1, np.int64)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "found NoneType"),
        ((ROW, ONE), "found tuple of 2"),
        ((ROW[0], ONE, ONE), r"successors has shape \[1, 1, 3\], expected \[1, n, n, 3\]"),
        ((ROW.astype(float), ONE, ONE), "successors has dtype float64, expected integers"),
        ((ROW, ONE[:0], ONE), r"counts has shape \[0\], expected \[1\]"),
        ((ROW, ONE, 4), "next_variable is int"),
        ((ROW, ONE, ONE, np.ones((1, 2))), r"scores has shape \[1, 2\], expected \[1, 1\]"),
        ((ROW, ONE, ONE, np.ones((1, 1), int)), "scores has dtype int64, expected floats"),
        ({"successors": ROW, "counts": ONE}, "found a mapping with successors, counts"),
        ({"successors": ROW, "counts": ONE, "next_variable": ONE, "success": ONE}, "success is given, and done is not"),
    ],
)
def test_a_result_of_another_form_is_refused_with_the_signature(result, message):
    engine = make(lambda self, *arguments: result)
    with pytest.raises(UserError, match=message) as caught:
        engine.prove(QUERY)
    assert "-> successors [B, S, M, 3], counts [B], next_variable [B]" in caught.value.fix
    assert caught.value.where == "Made.expand"


def test_scores_and_choices_of_the_engine_are_recorded_and_followed():
    goals = [[[2, 1, 2]], [[2, 2, 3]], [[2, 3, 3]]]
    engine, calls = scripted((goals, 3, 9, [0.5, 2.0, 1.0]), (STOPS, 1, 9, [0.0]))
    columns = engine.prove(QUERY)
    assert columns.resolvents.score[:3].tolist() == [0.5, 2.0, 1.0]
    assert engine.info.mode == "numpy, choices by kgverify from its scores"
    assert columns.steps.choice.tolist() == [1, 0]
    assert calls[1][0][0, 0].tolist() == [2, 2, 3]
    scores = np.array([0.5, 2.0, 1.0])
    assert columns.candidates.log_probability[0] == pytest.approx(2.0 - np.log(np.exp(scores).sum()))

    engine, _ = scripted((goals, 3, 9, [0.5, np.nan, 1.0], 1), (STOPS, 1, 9, [0.0], 0))
    columns = engine.prove(QUERY)
    assert np.isnan(columns.resolvents.score[1])
    assert columns.steps.choice.tolist() == [1, 0]
    assert np.isnan(columns.candidates.log_probability[0])
    assert engine.info.mode == "numpy"
    engine, _ = scripted((goals, 3, 9, [0.5, np.nan, 1.0]), (STOPS, 1, 9, [0.0]))
    assert engine.prove(QUERY).steps.choice.tolist() == [2, 0], "NaN is the lowest score"
    engine, _ = scripted((goals, 3, 9, [0.5, 2.0, 1.0]), (STOPS,))
    with pytest.raises(UserError, match="scores given in some calls only"):
        engine.prove(QUERY)


@pytest.mark.parametrize(
    ("predicate", "more", "outcome", "choice"),
    [
        (3, {"choice": 0}, Outcome.PROVED, 0),
        # A choice that does not exist ends the derivation.
        (2, {"choice": 5}, Outcome.FAILED, 5),
        # The engine says itself when a derivation ends.
        (2, {"done": 1, "success": 1}, Outcome.PROVED, 0),
        (2, {"done": 1, "success": 0}, Outcome.FAILED, 0),
    ],
)
def test_the_engine_may_choose_without_scores_and_end_a_derivation(predicate, more, outcome, choice):
    given = {"successors": ROW + np.array([predicate, 1, 1]), "counts": ONE, "next_variable": ONE}
    engine = make(lambda self, *arguments: given | {name: value * ONE for name, value in more.items()})
    columns = engine.prove(QUERY)
    assert columns.candidates.outcome.tolist() == [outcome]
    assert columns.steps.choice.tolist() == [choice]
    unknown = {"resolvents.score", "candidates.log_probability"} <= set(engine.info.unknown)
    assert unknown is ("choice" in more)


def test_the_environment_rejects_what_is_too_long_or_was_visited():
    long = [[[2, 1, 1]] * 3, [OWN_QUERY, OWN_QUERY, [0, 0, 0]], [[2, 1, 1], [2, 2, 2], [0, 0, 0]]]
    query, other = [0, 0, 1], [[1, 0, 0], [1, 1, 1]]
    expected = {"none": [[query, query], other], "sets": [other], "goals": [[query, query], other]}
    for memory, found in expected.items():
        engine, _ = scripted((long,), max_atoms=2, memory=memory, max_depth=1)
        assert [atoms for _, atoms in resolvents(engine.prove(QUERY))] == found
    engine, _ = scripted((long[:2],), max_atoms=2, memory="sets", max_depth=1)
    assert resolvents(engine.prove(QUERY)) == [("FALSE", [])]


def wanderer(given, **options):
    """Return an engine whose successors follow from the atoms of a state alone: of any kind, as many as it says or fewer."""

    def expand(self, states, next_variable, excluded):
        assert (next_variable >= ENCODING_OF_FOUR.first_variable).all()
        num, size = len(states), 3
        successors = np.zeros((num, size, 3, 3), np.int64)
        result = {"counts": np.zeros(num, np.int64), "next_variable": next_variable + 1}
        result |= {"scores": np.zeros((num, size)), "choice": np.zeros(num, np.int64), "done": np.zeros(num, np.bool_)}
        for i, state in enumerate(states.tolist()):
            rng = random.Random(repr([row for row in state if any(row)]))
            result["counts"][i] = rng.choice((0, 2, 3, 3, 3, 4))
            result["choice"][i] = rng.choice((-1, 0, 1, 2, 2, 3))
            result["done"][i] = rng.random() < 0.1
            result["scores"][i] = [rng.randrange(3) for _ in range(size)]
            for successor in successors[i]:
                for row in successor[: rng.choice((1, 1, 2, 3))]:
                    row[:] = rng.choice((1, 2)), rng.randrange(1, 9), rng.randrange(1, 9)
                if "done" not in given and rng.random() < 0.1:
                    successor[0, 0] = rng.choice((3, 4, 5))
        return {"successors": successors} | {name: result[name] for name in ("counts", "next_variable", *given)}

    options = {"encoding": ENCODING_OF_FOUR, "max_atoms": 2 if "choice" not in given else 3, "max_depth": 6, **options}
    return make(expand, **options)


ENCODING_OF_FOUR = kv.Encoding(true=3, false=4, stop=(5,), first_variable=6)


@pytest.mark.parametrize(
    ("given", "memory"),
    [((), "none"), (("scores",), "sets"), (("choice",), "goals"), (("scores", "choice", "done"), "sets")],
)
def test_derivations_do_not_depend_on_each_other_and_hand_on_what_they_chose(given, memory):
    numbers = np.arange(24, dtype=np.int32)
    atoms = np.stack((numbers % 2, numbers // 2 % 3, numbers // 6 % 3), axis=1)
    candidates = CandidateSet(numbers, np.full(24, 2, np.int8), atoms)
    columns = wanderer(given, memory=memory).prove(candidates)
    assert len({*columns.candidates.num_steps.tolist()}) > 2
    assert len({*columns.steps.choice.tolist()}) > 2
    assert len(wanderer(given).prove(candidates.take(slice(0, 0))).steps.depth) == 0
    alone = wanderer(given, memory=memory, batch_size=1).prove(candidates)
    stepped = wanderer(given, memory=memory).step(positions_of(columns))
    for others, groups in ((alone, columns), (stepped, columns[1:])):
        for group, other in zip(groups, others[len(others) - len(groups) :], strict=True):
            for name, found, wanted in zip(group._fields, other, group, strict=True):
                assert found.dtype == wanted.dtype, name
                assert np.array_equal(found, wanted), name

    goals = np.split(columns.steps.goal_atoms, np.cumsum(columns.steps.num_atoms)[:-1])
    made = np.split(columns.resolvents.atoms, np.cumsum(columns.resolvents.num_atoms)[:-1])
    first = np.cumsum(columns.steps.num_resolvents) - columns.steps.num_resolvents
    for row in np.flatnonzero(columns.steps.depth[1:] > 0).tolist():
        chosen = made[int(first[row]) + int(columns.steps.choice[row])]
        assert goals[row + 1].tolist() == chosen.tolist()
    for name, column in (("steps", columns.steps), ("candidates", columns.candidates)):
        for field, values in column._asdict().items():
            assert values.dtype == getattr(getattr(empty_columns(), name), field).dtype, field


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"order": "pba "}, "pab"),
        ({"predicates": {"p": 1}}, "number every name"),
        ({"predicates": {"p": 1, "q": 1}}, "a number of its own"),
        ({"true": 1}, "mean one thing each"),
        ({"true": 0}, "mean one thing each"),
        ({"first_variable": 2}, "above those of the constants"),
        ({"constants": {"a": 7, "b": 9, "c": 8}, "first_variable": 9}, "above those of the constants"),
    ],
)
def test_an_encoding_that_cannot_be_is_refused(options, fix):
    with pytest.raises(UserError) as caught:
        make(lambda self, *_: None, encoding=kv.Encoding(**options)).prove(QUERY)
    assert fix in caught.value.fix


class Scored(kv.TensorEngine):
    """Has two successors of each state, which are proofs, with scores of float32."""

    arrays = "numpy"
    error = ""

    def expand(self, states, next_variable, excluded):
        if self.error:
            raise LookupError(self.error)
        num = len(states)
        scores = np.zeros((num, 2), np.float32)
        return np.zeros((num, 2, 1, 3), np.int64), np.full(num, 2), next_variable, scores


def test_a_recording_states_what_the_engine_returns_although_its_header_comes_first(tmp_path):
    kv.record("countries", tmp_path / "scored.h5", Scored, queries=1, corruptions=1)
    engine = kv.open_trace(tmp_path / "scored.h5").load().header.engine
    assert (engine.precision, engine.mode) == ("float32", "numpy, choices by kgverify from its scores")
    assert kv.compare(tmp_path / "scored.h5", Scored).coverage.candidates == 4
    fails = type("Fails", (Scored,), {"error": "no room"})
    with pytest.raises(UserError, match="no room"):
        kv.record("countries", tmp_path / "fails.h5", fails, queries=1, corruptions=1)


class Holds(kv.TensorEngine):
    """Proves facts alone, in states of three rows."""

    arrays, max_atoms, max_depth = "numpy", 3, 7

    def expand(self, states, next_variable, excluded):
        assert states.shape[1] == self.max_atoms
        return np.zeros_like(states)[:, None], np.zeros(len(states), int), next_variable


def test_a_run_has_the_limits_that_its_engines_declare():
    few = {"queries": 1, "corruptions": 1}
    report = kv.verify("countries", Holds, **few)
    assert report.verdict.value == "DIVERGE"
    assert (report.limits.max_atoms, report.limits.max_depth, report.limits.max_resolvents) == (3, 7, 120)
    assert report.job["limits"]["max_atoms"] == 3
    smaller = type("Smaller", (Holds,), {"max_atoms": 2})
    assert kv.verify("countries", "reference", reference=smaller, **few).limits.max_atoms == 2
    with pytest.raises(UserError, match="declares max_atoms = 3, and the limit max_atoms is 6") as caught:
        kv.verify("countries", Holds, limits=kv.Limits(max_depth=7), **few)
    assert "--limits max_atoms=3" in caught.value.fix
    # Generated problems fit as well, so that the engine is never given more.
    assert kv.check_engine(Holds, examples=40, laws=[]).failure.divergence is not None


def test_a_goal_that_does_not_fit_the_declared_rows_is_not_a_mistake_of_the_engine():
    engine = Holds(PROGRAM, kv.Limits(), SHORTEST)
    goal = make_positions(QUERY, np.array([1], np.uint16), [[((0, 0, 1),), ((0, 0, 1),) * 4]])
    with pytest.raises(UserError, match="a goal of 4 atoms was given, and a state has 3 rows"):
        engine.step(goal)


def test_an_attribute_that_hides_a_method_of_kgverify_is_refused():
    def setup(self):
        self.step = lambda states: states

    with pytest.raises(UserError, match=r"Made: sets self\.step, a method that kgverify calls"):
        make(lambda self, *arrays: arrays, setup=setup)
