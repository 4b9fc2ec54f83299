"""Builds that record their steps and builds that do not end alike; otherwise the wrong one is named."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.command_script import run_words
from benchmarks.observer import (
    DIGESTS,
    RECORDED,
    UNRECORDED,
    Build,
    End,
    Standard,
    _CountedEngine,
    audit_observer,
    compare_with_standard,
    find_end,
    judge_builds,
    main,
)
from kgverify.audit.report import ReportBuilder
from kgverify.engines.endings import Results
from kgverify.errors import UserError
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Outcome
from kgverify.prover.layout import choose_layout
from kgverify.prover.stages import recycle
from kgverify.prover.stages.choose import SCORES
from kgverify.prover.stages.stage_functions import build_stages
from kgverify.prover.state import Derivations, Pool
from kgverify.ranking.corrupt import draw_candidates
from kgverify.runs.run import Run

GRAPH = load_graph("countries")
RUN = Run(GRAPH, limits=Limits(max_depth=4, max_atoms=4, max_resolvents=16), num_queries=2, num_corruptions=2)


def results(*outcomes: int, nats: float = -1.0) -> Results:
    num = len(outcomes)
    return Results(np.array(outcomes, np.int32), np.zeros(num, np.bool_), np.full(num, nats))


def standard(*outcomes: int, close: int | None = None, allowed: float = 0.0) -> Standard:
    num = len(outcomes)
    return Standard(results(*outcomes), np.arange(num) == close, np.full(num, allowed), 100)


def judge(of: Standard, *ends: End) -> list[str]:
    builds, report = [compare_with_standard(end, of) for end in ends], ReportBuilder()
    judge_builds(builds, ends, of, report)
    return [finding.finding for finding in report.findings]


PROVED, FAILED = Outcome.PROVED, Outcome.FAILED


def test_builds_that_end_alike_and_as_eager_does_are_no_finding():
    assert judge(standard(1, 2), End("m", RECORDED, results(1, 2)), End("m", UNRECORDED, results(1, 2))) == []


@pytest.mark.parametrize(
    ("probed", "unprobed", "what"),
    [
        ((1, 2), (1, 1), "recording hides a defect"),
        ((1, 1), (1, 2), "recording brings in a defect"),
        ((2, 2), (1, 1), "recording changes a defect"),
        ((2, 2), (2, 2), "without recording the same"),
    ],
)
def test_the_wrong_build_is_named(probed: tuple[int, ...], unprobed: tuple[int, ...], what: str):
    ends = End("default", RECORDED, results(*probed)), End("default", UNRECORDED, results(*unprobed))
    (finding,) = judge(standard(1, 2), *ends)
    assert finding.startswith("mode default")
    assert what in finding


def test_digests_are_a_separate_build():
    ends = [End("fused", how, results(1, 2)) for how in (RECORDED, UNRECORDED)]
    (finding,) = judge(standard(1, 2), *ends, End("fused", DIGESTS, results(2, 2)))
    assert "with digests 1 candidates end unlike eager (candidate 0 ends FAILED" in finding


def test_a_build_that_raises_is_reported_with_its_error():
    ends = End("m", RECORDED, results(1)), End("m", UNRECORDED, None, "IndexError: out of range")
    (finding,) = judge(standard(1), *ends)
    assert "without it raises IndexError: out of range" in finding


def test_log_probabilities_count_bit_for_bit_but_for_rounding_of_products():
    other = results(1, nats=-1.0 - 1e-9)
    assert judge(standard(1), End("m", RECORDED, results(1)), End("m", UNRECORDED, other))
    assert not judge(standard(1, allowed=1e-6), End("m", RECORDED, results(1)), End("m", UNRECORDED, other))
    assert compare_with_standard(End("m", UNRECORDED, other), standard(1, allowed=1e-6)).num_rounded == 1


def test_what_follows_a_close_choice_is_counted_apart():
    end = End("m", UNRECORDED, results(1, 1))
    assert judge(standard(1, 2, close=1), End("m", RECORDED, results(1, 2)), end) == []
    build = compare_with_standard(end, standard(1, 2, close=1))
    assert build == Build(mode="m", recording=UNRECORDED, num_close=1)


def shift_in_place(waiting: Pool, derivations: Derivations) -> tuple[Pool, Derivations]:
    """Hands every slot's log-probability to the next one, in the buffer it stands in."""
    values = derivations.log_probability
    values[1:] = values[:-1].clone()
    return recycle.recycle(waiting, derivations)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_miscompiled_stage_that_recording_hides_is_found():
    """Recording on a CPU runs `recycle` by itself, eagerly; without recording it is compiled with the tick."""
    stages = build_stages(SCORES["shortest"])._replace(recycle=shift_in_place)
    report = audit_observer(RUN, modes=("default",), device="cpu", slots=4, stages=stages)
    (finding,) = report.findings
    assert finding.where == "mode default"
    assert "recording hides a defect" in finding.finding
    assert [
        (row["mode"], row["num_differing"] == 0 and not row["error"]) for row in report.sections["builds"].rows
    ] == [
        ("eager", True),
        ("eager", True),
        ("default", True),
        ("default", False),
    ]


def test_a_build_that_never_ends_is_given_up():
    layout = choose_layout(RUN.limits, slots=4, pool=32)
    engine = _CountedEngine(GRAPH.program, RUN.limits, RUN.policy, mode="eager", device="cpu", layout=layout)
    drawn = draw_candidates(GRAPH, RUN.split, RUN.queries, RUN.num_corruptions, RUN.seed)
    for how in (RECORDED, UNRECORDED):
        end = find_end("eager", how, engine, drawn, 2)
        assert end.results is None
        assert "no end after 2" in end.error


def test_an_unknown_mode_is_a_mistake_of_the_user():
    with pytest.raises(UserError, match="unknown mode 'quick'"):
        audit_observer(RUN, modes=("quick",), device="cpu", slots=4)


def test_the_command_finds_nothing_in_the_evaluator(tmp_path: Path, capsys):
    path = tmp_path / "observer.json"
    options = ["--queries", "1", "--corruptions", "2", "--device", "cpu", "--mode", "eager", "--json", str(path)]
    assert run_words(main, options) == 0
    assert capsys.readouterr().out.startswith("clean   compiled evaluator on countries")
    report = json.loads(path.read_text())
    assert [(row["mode"], row["recording"]) for row in report["sections"]["builds"]["rows"]] == [
        ("eager", RECORDED),
        ("eager", UNRECORDED),
    ]
    assert "CUDA" in report["unmeasured"][-1]["reason"]


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_mode_of_a_gpu_ends_alike_with_and_without_recording():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    report = audit_observer(RUN, device="cuda", slots=4)
    assert report.is_clean, report.findings
    assert {row["recording"] for row in report.sections["builds"].rows if row["mode"] == "fused"} == {
        RECORDED,
        UNRECORDED,
        DIGESTS,
    }
