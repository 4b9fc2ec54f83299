"""Makers of engines: the sizes that a batch gets, names that are loaded, and functions that an engine brings along."""

import sys

import pytest

from kgverify import Problem, UserError
from kgverify.dialects import ReferenceEngine
from kgverify.engines import load_engine
from kgverify.engines.load_engine import load_factory
from kgverify.engines.protocol import Sizes
from kgverify.laws import compiled_maker
from kgverify.program.atoms import NamedAtom
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.engine_makers import adapt_pipeline
from kgverify.testing.checking.guard import find_supported
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import PolicySpec

FACT = NamedAtom("p", "a", "b")


def test_a_folder_is_searched_first_and_later_last(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", ["elsewhere"])
    with load_engine._searched_first(str(tmp_path)):
        assert sys.path == [str(tmp_path), "elsewhere"]
    assert sys.path == ["elsewhere", str(tmp_path)]


def test_the_evaluator_gets_the_sizes_of_the_batch():
    sizes = Sizes(slots=3, atoms=1, resolvents=2, match_window=5, score_window=199, pool=7)
    merged = merge([Problem(facts=(FACT,), queries=(FACT,), sizes=sizes)])
    layout = compiled_maker()(merged.run, merged.sizes).engine.info.layout
    limits = merged.run.limits
    assert (layout["slots"], layout["match_window"], layout["score_window"]) == (3, 5, 199)
    assert layout["atoms"] == limits.max_atoms + 1
    assert layout["resolvents"] == limits.max_resolvents + 2


def test_an_engine_draws_and_ranks_by_its_own_functions_if_it_has_them():
    merged = merge([Problem(facts=(FACT,), queries=(FACT,))])

    class Own(ReferenceEngine):
        def draw(self, *args):
            raise NotImplementedError

        rank = draw

    plain, own = (kind(merged.graph.program, merged.run.limits, merged.run.policy) for kind in (ReferenceEngine, Own))
    assert adapt_pipeline(plain)[1:3] == (draw_candidates, rank_candidates)
    assert adapt_pipeline(own)[1:3] == (own.draw, own.rank)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("engine.py:make", "no such file 'engine.py'"),
        ("folder/engine.py:make", "there is no file 'engine.py'"),
        ("folder/engine:make", "cannot make the engine 'folder/engine:make'"),
        ("engine", "cannot make the engine 'engine'"),
        (":make", "cannot make the engine ':make'"),
        ("engine:", "cannot make the engine 'engine:'"),
    ],
)
def test_a_name_without_an_engine_is_an_error(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        load_factory(name, "--engine")


def test_a_file_becomes_a_module_under_an_identifier_of_its_own(tmp_path):
    for name in ("unusual_engine", "my-engine", "json"):
        path = tmp_path / f"{name}.py"
        path.write_text("def make(program, limits, policy): ...\n")
        made = load_factory(f"{path}:make", "--engine")
        assert made.__module__.isidentifier()
        assert made is load_factory(f"{path}:make", "--engine")
        assert (made.__module__ == name) == (name == "unusual_engine")
        del sys.modules[made.__module__]


@pytest.mark.parametrize(
    ("error", "supported"),
    [
        (NotImplementedError("no weights"), []),
        # A mistake of the user, such as a policy of a type that the engine lacks; every engine has `shortest`.
        (UserError("no weights", where="policy", fix="none"), [0, 2]),
        # A crash, which the problems show.
        (ValueError("no weights"), [0, 1, 2]),
    ],
)
def test_problems_of_a_policy_that_an_engine_refuses_are_not_supported(error, supported):
    made: list[str] = []

    def make(run, sizes):
        made.append(run.policy.name)
        raise error

    shortest = Problem(queries=(FACT,))
    network = Problem(queries=(FACT,), policy=PolicySpec("two_tower"))
    assert find_supported(make, [shortest, network, shortest]) == supported
    # Once for each policy.
    assert made == ["shortest", "two_tower"]
