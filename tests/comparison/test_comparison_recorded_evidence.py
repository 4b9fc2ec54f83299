"""Two recorded traces agree only where their agreement is evidence: each reason to doubt it is named."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison_traces import (
    column_of,
    number_backwards,
    small_lockstep_trace,
    small_trace,
    with_column,
    with_columns,
    with_element,
    with_header,
)
from stream_pairs import store

import kgverify as kv
from kgverify import Equality, Report, UserError, Verdict
from kgverify.comparison.comparable import open_source
from kgverify.comparison.recorded import evidence
from kgverify.program.outcomes import Outcome
from kgverify.trace.maintain.check import check_trace
from kgverify.trace.model.columns import Candidates, select_candidates, starts_of
from kgverify.trace.model.score_tolerance import explain_bound
from kgverify.trace.model.trace import Trace
from kgverify.verification.recorded import compare_recorded


def judge(expected: Any, actual: Any, **options: Any) -> Report:
    return compare_recorded(expected, actual, **options).report


def other(trace: Trace) -> Trace:
    """The same trace, as another engine would have recorded it."""
    return with_header(trace, engine={"mode": "other"})


def assert_withheld(expected: Any, actual: Any, reason: str, **options: Any) -> None:
    report = judge(expected, actual, **options)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert any(reason in each for each in report.reasons), report.reasons


@pytest.mark.parametrize("shard_steps", [1 << 40, 60], ids=["file", "shards"])
def test_a_recording_does_not_agree_with_itself(tmp_path: Path, shard_steps: int):
    first = store(small_trace(), tmp_path / "first", shard_steps=shard_steps)
    (tmp_path / "link").symlink_to(first)
    (shutil.copytree if first.is_dir() else shutil.copy)(first, tmp_path / "copy")
    for name in ("first", "link", "copy"):
        assert_withheld(first, tmp_path / name, "the same recording twice")
    if first.is_file():
        os.link(first, tmp_path / "hard")
        assert_withheld(tmp_path / "hard", first, "the same recording twice")
    assert_withheld(small_trace(), small_trace(), "the same recording twice")
    again = store(small_trace(), tmp_path / "again", shard_steps=shard_steps)
    assert judge(first, again).verdict is Verdict.AGREE
    assert judge(first, store(other(small_trace()), tmp_path / "other")).verdict is Verdict.AGREE


def test_a_trace_with_a_colon_in_its_path_is_no_engine(tmp_path: Path):
    first = store(small_trace(), tmp_path / "first:1.h5")
    again = store(other(small_trace()), tmp_path / "again:2.h5")
    assert kv.compare(str(first), str(again)).verdict is Verdict.AGREE


def test_one_recording_of_two_engines_is_no_copy():
    one, two = (with_header(each, recording="id") for each in (small_trace(), other(small_trace())))
    assert judge(one, two).verdict is Verdict.AGREE
    assert_withheld(one, with_header(two, engine={"mode": one.header.engine.mode}), "the same recording twice")


def last_steps(trace: Trace) -> np.ndarray:
    return starts_of(trace.columns.candidates.num_steps)[1:] - 1


def with_choice(trace: Trace) -> Trace:
    """A copy in which a step that is not the last takes another of its resolvents than the next step's goal."""
    steps = trace.columns.steps
    row = next(i for i in range(len(steps.depth)) if steps.num_resolvents[i] > 1 and i not in last_steps(trace))
    return with_element(trace, "steps.choice", row, lambda choice: (choice + 1) % int(steps.num_resolvents[row]))


def candidate_with(trace: Trace, num_steps: int) -> int:
    return int(np.argmax(trace.columns.candidates.num_steps >= num_steps))


def with_bare_candidate(trace: Trace, outcome: Outcome) -> Trace:
    """A copy with one more candidate, that has no step."""
    rows = trace.columns.candidates
    bare = rows._replace(num_steps=rows.num_steps * 0, outcome=np.full_like(rows.outcome, outcome))
    more = Candidates(*(np.concatenate((own, new[-1:])) for own, new in zip(rows, bare, strict=True)))
    return replace(trace, columns=trace.columns._replace(candidates=more))


CONTRADICTIONS = {
    "end OPEN": lambda t: with_element(
        with_element(t, "candidates.outcome", candidate_with(t, 3), lambda _: 0),
        "steps.outcome",
        int(last_steps(t)[candidate_with(t, 3)]),
        lambda _: 0,
    ),
    "not that of their last step": lambda t: with_element(t, "candidates.outcome", 3, lambda value: 3 - value),
    "ended their derivation, and others follow": lambda t: with_element(
        t, "steps.outcome", int(last_steps(t)[candidate_with(t, 3)]) - 1, lambda _: 1
    ),
    "does not follow the step before": lambda t: with_element(
        t, "steps.depth", int(last_steps(t)[candidate_with(t, 3)]), lambda depth: depth - 1
    ),
    "deeper than max_depth": lambda t: with_header(t, limits=type(t.header.limits)(max_depth=3)),
    "DEPTH_LIMIT, or do not": lambda t: with_header(t, limits=type(t.header.limits)(max_depth=19)),
    "more than max_atoms 1": lambda t: with_header(t, limits=type(t.header.limits)(max_atoms=1)),
    "more than max_resolvents 2": lambda t: with_header(t, limits=type(t.header.limits)(max_resolvents=2)),
    "not one of their resolvents": lambda t: with_element(t, "steps.choice", 2, lambda _: 900),
    "the resolvent they chose does not give": lambda t: with_element(
        t, "steps.outcome", int(last_steps(t)[0]), lambda value: 3 - value
    ),
    "begin with a goal that the step before did not choose": with_choice,
    "marked as limited": lambda t: with_element(t, "candidates.is_limited", 0, lambda flag: 1 - flag),
    "log-probability that is not that of their choices": lambda t: with_element(
        t, "candidates.log_probability", 2, lambda value: value - 0.01
    ),
}


def ranked_of_more(trace: Trace) -> Trace:
    rankings = trace.rankings
    assert rankings is not None
    return replace(trace, rankings=rankings._replace(num_ranked=rankings.num_ranked + np.uint32(9)))


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome.OPEN, "end OPEN"),
        (Outcome.PROVED, "PROVED or DEPTH_LIMIT without a step"),
        (Outcome.DEPTH_LIMIT, "PROVED or DEPTH_LIMIT without a step"),
    ],
)
def test_a_candidate_without_a_step_has_not_ended_so(outcome: Outcome, text: str):
    wrong = with_bare_candidate(small_trace(), outcome)
    assert_withheld(wrong, other(wrong), text)


@pytest.mark.parametrize("text", CONTRADICTIONS)
def test_traces_that_contradict_themselves_alike_do_not_agree(text: str, tmp_path: Path):
    wrong = CONTRADICTIONS[text](small_trace())
    assert_withheld(wrong, other(wrong), text)
    # The check of a trace names the same.
    notes = check_trace(store(wrong, tmp_path / "wrong.h5")).notes
    assert any(text in note for note in notes)


def test_a_contradiction_of_one_side_leaves_a_divergence():
    wrong = with_choice(small_trace())
    report = judge(small_trace(), wrong)
    assert report.verdict is Verdict.DIVERGE
    assert any("the actual trace contradicts itself" in note for note in report.notes)


def test_rankings_of_more_candidates_than_there_are_contradict_them():
    wrong = ranked_of_more(small_trace())
    assert_withheld(wrong, other(wrong), "rankings are of more candidates than the trace has")


def test_sound_traces_contradict_nothing():
    assert check_contradictions(small_trace()) == []
    assert check_contradictions(small_lockstep_trace()) == []


def check_contradictions(trace: Trace) -> list[str]:
    found = evidence.Contradictions()
    found.add(trace.columns, trace.header, trace.fields)
    return found.describe()


def test_a_report_tells_the_run_of_the_expected_trace():
    header = small_trace().header
    actual = with_header(small_trace(), run={"seed": 7}, limits={"max_depth": 3}, policy={"name": "theirs"})
    report = judge(small_trace(), actual)
    assert (report.run, report.limits, report.policy) == (header.run, header.limits, header.policy)
    assert report.run != actual.header.run


@pytest.mark.parametrize("role", [0, 1])
def test_rankings_of_one_side_are_named(role: int):
    bare = other(replace(small_trace(), rankings=None))
    pair = (bare, small_trace()) if role == 0 else (small_trace(), bare)
    report = judge(*pair)
    assert (report.verdict, report.coverage.not_compared) == (Verdict.AGREE, ("rankings",))


def test_most_candidates_must_be_different_ones():
    columns = select_candidates(small_trace().columns, np.zeros(6, np.int64))
    trace = replace(with_columns(small_trace(), columns), rankings=None)
    assert_withheld(trace, other(trace), "5 of 6 candidates are further recordings of others")
    # Steps of one derivation are candidates of their own, and no repetitions.
    alone = small_lockstep_trace()
    assert judge(alone, other(alone)).verdict is Verdict.AGREE


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("policy", ["shortest", "theirs"])
def test_an_error_of_scores_that_no_arithmetic_explains_is_not_accepted(policy: str, precision: str):
    trace = with_header(small_trace(), engine={"score_error": 1e6, "precision": precision})
    trace = with_header(trace, policy={"name": policy})
    wrong = other(with_element(trace, "resolvents.score", 7, lambda score: score + 100))
    wrong = with_header(wrong, policy={"score_errors": trace.header.policy.score_errors})
    assert_withheld(trace, wrong, "no arithmetic of precision")
    # What a user accepts is a decision of the user's.
    accepted = judge(trace, wrong, equality=Equality(score_error=1e6))
    assert not any("arithmetic" in reason for reason in accepted.reasons)


def test_scores_that_are_all_infinite_explain_no_error():
    trace = with_header(small_trace(), engine={"score_error": 1e6})
    trace = with_header(trace, policy={"name": "theirs"})
    trace = with_column(trace, "resolvents.score", np.full_like(column_of(trace, "resolvents.score"), -np.inf))
    assert_withheld(trace, other(trace), "no arithmetic of precision")


def test_an_error_beyond_the_bound_is_named():
    trace = with_header(small_trace(), engine={"score_error": 1e6})
    trace = with_header(trace, policy={"name": "theirs", "score_errors": {}})
    assert_withheld(trace, other(trace), "declares a score error of 1e+06 nats, which its arithmetic does not explain")


def test_the_bounds_of_a_sound_network_are_explained():
    policy = with_header(small_trace(), policy={"name": "two_tower"}).header.policy
    # Those of a network with 8 blocks of 1,024 neurons.
    for precision, bound in {"float64": 1e-9, "float32": 0.0077, "bf16x3": 0.0077, "tf32": 0.11, "bf16": 15.0}.items():
        assert bound <= explain_bound(policy, precision, 1.0)


def test_other_facts_of_an_unknown_program_are_named():
    trace = with_header(small_trace(), program_sha256="")
    assert trace.facts is not None
    facts = trace.facts.copy()
    facts[0, 2] += 1
    assert_withheld(trace, other(replace(trace, facts=facts)), "facts are those of one trace alone")


def test_rules_are_compared_name_by_name():
    trace = with_header(small_trace(), program_sha256="")
    backwards = number_backwards(other(trace))
    assert judge(trace, backwards).verdict is Verdict.AGREE
    assert judge(trace, replace(backwards, rules=None)).verdict is Verdict.AGREE
    facts = trace.facts.copy()
    facts[:, 0] = len(trace.symbols.predicates) - 1 - facts[:, 0]
    assert judge(trace, replace(backwards, rules=None, facts=facts)).verdict is Verdict.AGREE
    changed = (backwards.rules[1], backwards.rules[0], *backwards.rules[2:])
    assert_withheld(trace, replace(backwards, rules=changed), "rules that the traces hold are not the same")


@pytest.mark.parametrize("is_stored", [False, True])
def test_outputs_of_stages_are_compared_where_the_steps_agree(tmp_path: Path, is_stored: bool):
    trace = with_header(small_trace(), level="deep")
    number = trace.columns.stages.number.copy()
    number[np.flatnonzero(trace.columns.stages.stage == 10)[4]] += 0.5
    spoiled = replace(trace, columns=trace.columns._replace(stages=trace.columns.stages._replace(number=number)))
    pair: list[Any] = [trace, other(spoiled), other(trace), other(with_header(trace, level="steps"))]
    if is_stored:
        pair = [store(each, tmp_path / str(i), level=each.header.level) for i, each in enumerate(pair)]
    assert_withheld(pair[0], pair[1], "`score`")
    assert judge(pair[0], pair[2]).verdict is Verdict.AGREE
    report = judge(pair[0], pair[3])
    assert report.verdict is Verdict.AGREE
    assert "the outputs of the stages were not compared: the actual trace has none" in report.notes


def test_a_large_trace_is_checked_in_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evidence, "_WINDOWS", 2)
    monkeypatch.setattr(evidence, "_WINDOW_STEPS", 4)
    monkeypatch.setattr(evidence, "_WINDOW_CANDIDATES", 3)
    wrong = with_element(small_trace(), "candidates.outcome", 9, lambda value: 3 - value)
    first, second = (store(each, tmp_path / str(i)) for i, each in enumerate((wrong, other(wrong))))
    assert_withheld(first, second, "not that of their last step (first: candidate 9)", verifies_content=False)
    report = judge(*(store(each, tmp_path / f"s{i}") for i, each in enumerate((small_trace(), other(small_trace())))))
    assert report.verdict is Verdict.AGREE
    assert not any(note.startswith(evidence.SAMPLED) for note in report.notes)
    num = len(small_trace().columns.candidates.query)
    assert [begin for begin, _ in evidence._sample(open_source(first))] == [0, num - 1]
    searched = [rows.tolist() for rows in evidence._rows_to_search(open_source(first))]
    assert searched == [[0, 1, 2], [num - 3, num - 2, num - 1]]


def test_an_excerpt_is_the_candidate_that_diverges_first():
    trace = small_trace()
    wrong = with_element(trace, "steps.choice", 30, lambda value: value + 1)
    compared = compare_recorded(trace, wrong)
    (found,) = compared.report.divergences
    excerpt = compared.excerpt()
    assert excerpt is not None
    assert excerpt.columns.candidates.atom.tolist() == [trace.columns.candidates.atom[found.candidate].tolist()]
    assert compare_recorded(trace, other(trace)).excerpt() is None


@pytest.mark.parametrize("name", ["steps/outcome", "resolvents/kind", "candidates/side"])
@pytest.mark.parametrize("verifies_content", [False, True])
def test_codes_that_do_not_exist_are_refused_wherever_they_stand(tmp_path: Path, name: str, verifies_content: bool):
    from kgverify.trace.hdf5.writing import write_arrays
    from kgverify.trace.read.data_file import DataFile

    paths = []
    for i, trace in enumerate((small_trace(), other(small_trace()))):
        arrays = DataFile(store(trace, tmp_path / f"{i}.h5")).load_arrays()
        arrays[name] = arrays[name].copy()
        arrays[name][5] = 9
        arrays.pop("digests/sequence", None)
        paths.append(tmp_path / f"wrong-{i}.h5")
        write_arrays(paths[-1], arrays, "test")
    with pytest.raises(UserError, match="expected a code of"):
        judge(*paths, verifies_content=verifies_content)
    assert check_trace(paths[0]).state == "damaged"
