"""The evaluators prove known candidates as the reference does, and a mistake in an evaluator is noticed."""

import sys
from collections.abc import Callable
from typing import Any

import known_proofs
import numpy as np
import pytest

from kgverify.errors import InternalError
from kgverify.program.outcomes import Outcome
from kgverify.prover.native import engine
from kgverify.prover.native.library import why_not_available

needs_compiler = pytest.mark.skipif(why_not_available() is not None, reason="the native evaluator needs a compiler")

Change = Callable[[Any], Any]


def _count_all_choices_twice(ran: Any) -> Any:
    return ran._replace(counts=(*ran.counts[:6], 2 * ran.counts[6], ran.counts[7]))


def _forget_choices_made_again(ran: Any) -> Any:
    return ran._replace(counts=(*ran.counts[:7], 0))


def _clear_limited_at_the_depth_limit(ran: Any) -> Any:
    columns = dict(ran.columns)
    columns["candidates/is_limited"] *= columns["candidates/outcome"] != Outcome.DEPTH_LIMIT
    return ran._replace(columns=columns)


def _lower_max_resolvents(limits: Any) -> Any:
    limits.max_resolvents -= 1
    return limits


@needs_compiler
def test_the_native_evaluator_proves_known_candidates():
    known_proofs.check_native_proofs.__wrapped__()


def test_stages_prove_known_candidates():
    pytest.importorskip("torch", reason="stages need torch")
    known_proofs.check_tensor_proofs.__wrapped__()


@needs_compiler
@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("_copy", _count_all_choices_twice, "number of choices"),
        ("_copy", _forget_choices_made_again, "number of choices made again"),
        ("_copy", lambda ran: ran._replace(smallest_gap=0.01), "smallest gap"),
        ("_copy", _clear_limited_at_the_depth_limit, "column is_limited"),
        ("limit_numbers", _lower_max_resolvents, "column"),
    ],
)
def test_a_mistake_in_the_native_evaluator_is_a_bug(
    name: str, change: Change, what: str, monkeypatch: pytest.MonkeyPatch
):
    right = getattr(engine, name)
    monkeypatch.setattr(engine, name, lambda *given: change(right(*given)))
    with pytest.raises(InternalError, match=f"the native evaluator proves known candidates with a wrong {what}"):
        known_proofs.check_native_proofs.__wrapped__()


def test_a_mistake_in_the_stages_is_a_bug(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch", reason="stages need torch")
    from kgverify.prover.tick import tick

    def gather(*given: Any) -> Any:
        items, held = right(*given)
        # A clause is tried again where more than 1,023 were tried before.
        return items._replace(clause=items.clause - (given[2].cursor[items.slot] > 1023).long()), held

    right = tick.gather_items
    monkeypatch.setattr(tick, "gather_items", gather)
    with pytest.raises(InternalError, match="known candidates"):
        known_proofs.check_tensor_proofs.__wrapped__()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("recycle", lambda found: (found[0], found[1]._replace(query=found[1].query % 65_536))),
        ("rename", lambda found: found.clamp(min=-24)),
        ("rescore", lambda found: (found[0], found[1] | True, found[2])),
    ],
)
def test_a_mistake_in_a_stage_is_a_bug(name: str, change: Change, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch", reason="stages need torch")
    import known_stages

    right = getattr(known_stages, name)
    known_stages.check_known_stages.__wrapped__()
    monkeypatch.setattr(known_stages, name, lambda *given: change(right(*given)))
    with pytest.raises(InternalError, match=f"the stage {name} gives wrong outputs"):
        known_stages.check_known_stages.__wrapped__()


def test_only_loaded_evaluators_are_tested(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "kgverify.prover.native.engine")
    monkeypatch.delitem(sys.modules, "kgverify.prover.engine", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert known_proofs.list_proof_checks() == {}


def test_known_candidates_have_rare_choices():
    run = known_proofs.build_close_run()
    gaps = [gap for each in run.gaps for gap in each]
    assert sum(gap < 1e-6 for gap in gaps) > 5
    assert min(gap for gap in gaps if gap > 1e-6) > 1e-3
    counts = run.expected.steps.num_resolvents
    assert np.isin([2, 3], counts).all()
    outcomes, is_limited = run.expected.candidates.outcome, run.expected.candidates.is_limited
    assert (is_limited[outcomes == Outcome.DEPTH_LIMIT] != 0).any()
