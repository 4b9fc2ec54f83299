"""The catalogue: every fault manifests, where the truth says and in the stage that it names; none does unasked."""

import subprocess
import sys
from collections.abc import Sequence
from functools import cache

import msgspec
import numpy as np
import pytest
from fault_programs import CASES, WALKS, WIDE, Case, case_of, needs_data

from benchmarks.scoreboard import OF_NO_STEP, Truth, find_truth
from kgverify import Limits, Stage, UserError, load_graph
from kgverify.comparison.locate import first_difference
from kgverify.program.outcomes import STEP_STAGES, DifferenceClass, Outcome
from kgverify.prover.faults.fault import PLANTERS, Carrier
from kgverify.prover.faults.plant import COMPOSITES, FAULTS, find_faults, plant_faults
from kgverify.ranking.rank import RANK_TOLERANCE
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Pipeline, Run, reference_pipeline
from kgverify.trace.model.columns import Columns, Rankings
from kgverify.verification.replay import find_position

SCORE_TOLERANCE = 1e-6
"""Above what float32 and float64 differ by on these programs, below what any fault of `score` does."""


def judge(run: Run, names: Sequence[str], slots: int) -> Pipeline:
    return evaluator_pipeline(run, faults=names, mode="eager", device="cpu", slots=slots)


def evaluate(run: Run, pipeline: Pipeline) -> tuple[Columns, Rankings | None]:
    candidates = pipeline.draw(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    columns = pipeline.engine.prove(candidates)
    if not np.isfinite(columns.candidates.log_probability).all():
        return columns, None
    return columns, pipeline.rank(columns.candidates, run.triples, RANK_TOLERANCE)


def is_same(first: tuple[Columns, Rankings | None], second: tuple[Columns, Rankings | None]) -> bool:
    if (first[1] is None) != (second[1] is None):
        return False
    levels = [(*first[0], *([first[1]] if first[1] else [])), (*second[0], *([second[1]] if second[1] else []))]
    return all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for level, other in zip(*levels, strict=True)
        for a, b in zip(level, other, strict=True)
    )


@cache
def sound_of(case: Case) -> tuple[Columns, Rankings | None]:
    run = case.run()
    return evaluate(run, judge(run, [], case.slots))


@cache
def faulty_of(name: str) -> tuple[Columns, Rankings | None]:
    run = case_of(name).run()
    return evaluate(run, judge(run, [name], case_of(name).slots))


@cache
def expected_of(case: Case) -> Columns:
    run = case.run()
    return evaluate(run, reference_pipeline(run))[0]


class Truths(dict[str, Truth]):
    """The ground truth of each fault, found when it is first asked for."""

    def __missing__(self, name: str) -> Truth:
        case = case_of(name)
        self[name] = find_truth(case.run(), [name], slots=case.slots)
        return self[name]


@pytest.fixture(scope="module")
def truths() -> Truths:
    return Truths()


@pytest.mark.sample(6, deep=6)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_manifests_in_its_program_and_the_truth_says_so(name: str, truths: Truths):
    assert not is_same(sound_of(case_of(name)), faulty_of(name))
    assert truths[name].has_manifested


@pytest.mark.parametrize("case", dict.fromkeys((WALKS, *CASES.values())))
def test_without_a_fault_nothing_manifests(case: Case):
    assert find_truth(case.run(), [], slots=case.slots) == Truth({}, (), (), ())


@pytest.mark.sample(6, deep=6)
@pytest.mark.parametrize("name", FAULTS)
def test_the_truth_lists_exactly_the_candidates_that_come_out_otherwise(name: str, truths: Truths):
    """A difference of a candidate begins at the step that the truth names: before it the two evaluators agree."""
    truth = truths[name]
    if truth.missing or truth.extra:
        # Other candidates were drawn or reported, and each derivation is right.
        assert not truth.first_step
    else:
        assert first_differences(sound_of(case_of(name))[0], faulty_of(name)[0]) == truth.first_step


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name", ["proof-ends-batch", "overwritten-output", "step-budget", "sticky-outcome", "fact-cap"]
)
def test_where_steps_take_several_ticks_the_truth_is_as_exact(name: str):
    run = WIDE.run()
    faulty, _ = evaluate(run, judge(run, [name], WIDE.slots))
    truth = find_truth(run, [name], slots=WIDE.slots)
    assert truth.first_step == first_differences(sound_of(WIDE)[0], faulty)
    assert truth.has_manifested


def first_differences(sound: Columns, faulty: Columns) -> dict[int, int]:
    """Return the first differing step of each candidate that differs."""
    found = {}
    steps = [split_steps(columns) for columns in (sound, faulty)]
    for i, (right, given) in enumerate(zip(*steps, strict=True)):
        differing = (n for n, (a, b) in enumerate(zip(right, given, strict=False)) if a != b)
        step = next(differing, min(len(right), len(given)) if len(right) != len(given) else None)
        ends = [
            (int(c.candidates.outcome[i]), int(c.candidates.is_limited[i]), repr(c.candidates.log_probability[i]))
            for c in (sound, faulty)
        ]
        if step is not None:
            found[i] = step
        elif ends[0] != ends[1]:
            found[i] = OF_NO_STEP
    return found


def split_steps(columns: Columns) -> list[list[tuple[object, ...]]]:
    """Everything recorded of each step of each candidate, by plain loops."""
    steps, resolvents = columns.steps, columns.resolvents
    goal_atoms, atoms = iter(steps.goal_atoms.tolist()), iter(resolvents.atoms.tolist())
    rows = iter(range(len(resolvents.kind)))
    found, at = [], 0
    for num in columns.candidates.num_steps.tolist():
        derivation = []
        for i in range(at, at + num):
            listed: list[object] = [[next(goal_atoms) for _ in range(steps.num_atoms[i])]]
            listed += [
                (
                    *(int(c[row]) for c in (resolvents.kind, resolvents.origin_kind, resolvents.origin)),
                    repr(resolvents.score[row]),
                    [next(atoms) for _ in range(resolvents.num_atoms[row])],
                )
                for row in (next(rows) for _ in range(steps.num_resolvents[i]))
            ]
            fields = (steps.depth, steps.dropped_atoms, steps.dropped_resolvents, steps.choice, steps.outcome)
            derivation.append((*(int(field[i]) for field in fields), listed))
        found.append(derivation)
        at += num
    return found


@pytest.mark.sample(6, deep=6)
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.stage in STEP_STAGES])
def test_a_replay_of_the_first_wrong_step_finds_the_stage_of_the_catalogue(name: str, truths: Truths):
    """Move a step whose goal is wrong already to the step before, which made it.

    One exception: no stage shows a log-probability, so that a wrong sum is read off the traces.
    """
    case, truth = case_of(name), truths[name]
    run = case.run()
    if name == "log-probability-after-end":
        assert set(truth.first_step.values()) == {OF_NO_STEP}
        return
    expected, actual = reference_pipeline(run).engine, judge(run, [name], case.slots).engine
    columns = expected_of(case)
    tolerance = 0.0 if case.policy == "shortest" else SCORE_TOLERANCE
    stages = set()
    for candidate, step in truth.first_step.items():
        for at in (step, step - 1):
            position = find_position(columns, candidate, at)
            stage = first_difference(expected.probe(position), actual.probe(position), tolerance)
            if stage is not None or at == 0:
                break
        stages.add(stage)
    assert stages == {FAULTS[name].stage}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.stage is Stage.RECYCLE])
def test_a_fault_of_the_pool_is_in_no_step_taken_alone(name: str, truths: Truths):
    case = case_of(name)
    run = case.run()
    expected, actual = reference_pipeline(run).engine, judge(run, [name], case.slots).engine
    columns = expected_of(case)
    for candidate, step in list(truths[name].first_step.items())[:5]:
        for at in range(max(0, step - 1), min(step + 1, int(columns.candidates.num_steps[candidate]))):
            position = find_position(columns, candidate, at)
            assert first_difference(expected.probe(position), actual.probe(position), 0.0) is None


def test_faults_compose_in_order_and_each_once():
    names = [fault.name for fault in find_faults(["last-argmax", "v10", "fact-cap", "last-argmax"])]
    assert names == ["last-argmax", *COMPOSITES["v10"].parts]
    run = WALKS.run()
    both = judge(run, ["rule-cap", "sticky-outcome"], WALKS.slots)
    assert both.engine.info.faults == ("rule-cap", "sticky-outcome")
    alone = [find_truth(run, [name], slots=WALKS.slots).first_step for name in ("rule-cap", "sticky-outcome")]
    together = find_truth(run, ["rule-cap", "sticky-outcome"], slots=WALKS.slots).first_step
    assert together != alone[0]
    assert together != alone[1]
    # A step that the cap spoils is spoilt in any company.
    assert {key: together[key] for key in alone[0]} == alone[0]


def test_every_fault_can_be_planted_on_top_of_every_other():
    case = WALKS._replace(test="walk(c0, c4)", num_corruptions=1)
    run = case.run()
    names = list(FAULTS)
    columns, _ = evaluate(run, judge(run, names, slots=3))
    assert len(columns.candidates.query)
    reverse, _ = evaluate(run, judge(run, names[::-1], slots=3))
    assert len(reverse.candidates.query)


def test_the_catalogue_says_of_each_fault_what_a_reader_needs():
    assert len(FAULTS) >= 36
    plant_faults(WALKS.run().limits, WALKS.run().policy, ())
    assert PLANTERS[Carrier.TENSORS].keys() | PLANTERS[Carrier.ANY].keys() == FAULTS.keys()
    assert PLANTERS[Carrier.PLAIN].keys() < PLANTERS[Carrier.TENSORS].keys()
    for name, fault in FAULTS.items():
        assert name == fault.name
        assert all((fault.breaks, fault.seen_in, fault.needs))
        assert fault.stage in Stage
        assert fault.expected_kind is not DifferenceClass.UNCLASSIFIED
    for composite in COMPOSITES.values():
        assert set(composite.parts) <= FAULTS.keys()
    assert not COMPOSITES.keys() & FAULTS.keys()


def test_an_unknown_name_is_refused_with_the_nearest_among_faults_and_composites():
    for wrong, right in (("first-compile", "first-compiled"), ("fact-caps", "fact-cap")):
        with pytest.raises(UserError, match=f"unknown fault '{wrong}'") as caught:
            find_faults([wrong])
        assert caught.value.fix == f"did you mean {right!r}?"
    with pytest.raises(UserError) as caught:
        find_faults(["zzz"])
    assert caught.value.fix == "choose one that `kgverify diff --fault list` shows"


def test_the_list_names_every_fault_and_needs_no_torch():
    code = (
        "import sys; sys.argv = ['kgverify', 'diff', '--fault', 'list', '--json', '-']\n"
        "from kgverify.cli import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "False"
    listed = msgspec.json.decode(done.stdout)
    assert [each["name"] for each in listed["faults"]] == list(FAULTS)
    assert [each["name"] for each in listed["composites"]] == list(COMPOSITES)
    assert "stale-resolvents" in done.stderr


@pytest.mark.data
@needs_data
def test_on_family_v10_proves_nothing():
    run = Run(load_graph("family"), num_queries=10, num_corruptions=2)
    sound, _ = evaluate(run, judge(run, [], slots=16))
    faulty, _ = evaluate(run, judge(run, ["v10"], slots=16))
    assert (sound.candidates.outcome == Outcome.PROVED).any()
    assert not (faulty.candidates.outcome == Outcome.PROVED).any()


def test_the_first_compiled_evaluator_has_false_proofs_and_loses_true_ones():
    """The fact cap keeps lists short, and so hides most overflows: with few resolvents both show."""
    run = Run(load_graph("countries"), Limits(max_resolvents=4), num_queries=4, num_corruptions=5)
    (sound, _), (faulty, _) = (evaluate(run, judge(run, names, slots=44)) for names in ([], ["first-compiled"]))
    is_proved = [columns.candidates.outcome == Outcome.PROVED for columns in (sound, faulty)]
    assert (is_proved[1] & ~is_proved[0]).any()
    assert (is_proved[0] & ~is_proved[1]).any()
