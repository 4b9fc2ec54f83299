"""The plain evaluator as an engine: it agrees with the reference, and its planted faults are found in their stages."""

from itertools import islice

import pytest

import kgverify as kv
from kgverify import Report, UserError
from kgverify.dialects import Dialect
from kgverify.laws import compiled_maker, draw_problems
from kgverify.program.limits import OURS
from kgverify.prover.faults.fault import PLANTERS, Carrier
from kgverify.prover.faults.plant import FAULTS, choose_carrier
from kgverify.testing.checking.check import Checker

PLAIN = kv.Evaluator(mode="plain")
DIALECTS = [
    OURS,
    Dialect(exclusion="positives_only", skips_unary=True),
    Dialect(memory="set", stopping="where_no_terminal", unproved="log_probability"),
    Dialect(forgets_names=False, order="facts_first", filters=("close", "revisit", "prune", "max_resolvents")),
]


def verify(evaluator: kv.Evaluator = PLAIN, **options) -> Report:
    return kv.verify("countries", evaluator, queries=2, corruptions=8, **options)


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
@pytest.mark.parametrize("lockstep", [False, True])
def test_it_agrees_with_the_reference(dialect: Dialect, lockstep: bool):
    limits = kv.Limits(max_depth=8, max_resolvents=9, dialect=dialect)
    report = verify(limits=limits, equality=kv.Equality(lockstep=lockstep))
    assert report.verdict.value == "AGREE", str(report)
    assert report.environment.actual.mode == "plain"


def test_it_scores_with_weights():
    report = verify(policy="two_tower")
    assert report.verdict.value == "AGREE", str(report)
    assert report.environment.actual.precision == "float64"


@pytest.mark.parametrize("name", [name for name in FAULTS if name in PLANTERS[Carrier.PLAIN]])
def test_its_faults_are_found_in_their_stages(name: str):
    fault, make = FAULTS[name], compiled_maker(mode="plain", faults=[name])
    failures = Checker(make).check(list(islice(draw_problems(0), 200)), most=2)[0]
    assert failures
    assert {failure.signature.stage for failure in failures} == {fault.stage.value}


def test_fact_cap_is_found_as_in_the_evaluator_on_tensors():
    report = verify(kv.Evaluator(mode="plain", faults="fact-cap"))
    assert (report.first_divergence.stage, report.environment.actual.faults) == ("match_facts", ("fact-cap",))


def test_faults_around_an_evaluator_need_no_stage():
    report = verify(kv.Evaluator(mode="plain", faults="no-push-down"))
    assert {each.stage for each in report.divergences} == {"rank"}


@pytest.mark.parametrize(
    ("mode", "name", "modes"),
    [
        ("plain", "bf16-scores", "eager, default, reduce-overhead or max-autotune"),
        ("native", "bf16-scores", "eager, default, reduce-overhead or max-autotune"),
        ("native", "last-argmax", "eager, default, reduce-overhead, max-autotune or plain"),
    ],
)
def test_a_mode_that_does_not_carry_a_fault_names_those_that_do(mode: str, name: str, modes: str):
    with pytest.raises(UserError, match=f"mode '{mode}' does not carry the fault '{name}'") as caught:
        choose_carrier([FAULTS[name]], mode)
    assert caught.value.fix == f"choose the mode {modes}"


@pytest.mark.parametrize(("option", "value"), [("device", "cuda"), ("precision", "bf16")])
def test_it_runs_on_the_cpu_in_float64_alone(option: str, value: str):
    with pytest.raises(UserError, match=f"mode 'plain' has no {option} {value}"):
        verify(kv.Evaluator(**{"mode": "plain", option: value}))
