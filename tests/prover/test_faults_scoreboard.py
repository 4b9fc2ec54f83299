"""The scoreboard: the report against the ground truth, no alarm without a fault, and a log from which a run resumes."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.scoreboard import (
    Arena,
    Scores,
    Stand,
    arenas_of,
    figures,
    print_scores,
    score_faults,
    sound_arenas,
    table,
)
from kgverify import UserError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def stand() -> Stand:
    return Stand(arenas_of("random:4")[0])


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name", ["rule-cap", "stale-resolvents", "overwritten-output", "stream-per-chunk", "optimistic-ties"]
)
def test_step_and_stage_are_those_of_the_truth(stand: Stand, name: str):
    trial = stand.try_faults([name])
    assert trial.is_manifest
    assert trial.verdict == "DIVERGE"
    assert trial.num_steps == trial.num_wrong > 0
    assert trial.num_stages == trial.num_divergences > 0


def test_a_fault_that_does_nothing_leaves_the_traces_equal(stand: Stand):
    trial = stand.try_faults(["padding-ranked"])
    assert (trial.is_manifest, trial.is_same, trial.verdict) == (False, True, "AGREE")
    assert (trial.num_wrong, trial.num_divergences) == (0, 0)


@pytest.mark.exhaustive
def test_without_a_fault_there_is_no_alarm():
    arenas = list(sound_arenas(["countries", "random:1"], 12, seed=3))
    assert len({(arena.limits, arena.policy, arena.slots, arena.seed) for arena in arenas}) == 12
    for arena in arenas:
        trial = Stand(arena).try_faults([])
        assert (trial.verdict, trial.is_manifest, trial.num_divergences) == ("AGREE", False, 0), arena


@pytest.mark.exhaustive
def test_lockstep_lists_both_faults_of_a_pair(stand: Stand):
    for faults in (
        ("rule-cap", "last-argmax"),
        ("stream-per-chunk", "rule-cap"),
        ("optimistic-ties", "stale-resolvents"),
    ):
        pair = stand.try_pair(faults)
        assert pair.is_visible
        assert pair.is_listed, pair.found


@pytest.mark.deep
def test_a_fault_that_another_hides_is_not_counted_as_missed(stand: Stand):
    assert not stand.try_pair(("rule-cap", "padding-ranked")).is_visible


@pytest.mark.exhaustive
def test_what_the_log_holds_is_not_tried_again(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    finished: list[int] = []
    first = score_faults(["random:4"], ["rule-cap"], num_sound=2, num_pairs=1, log=log, progress=finished.append)
    assert sum(finished) == 3 + 2 + 0
    lines = log.read_bytes().splitlines()
    # The last task is lost, and the partial line of a kill.
    log.write_bytes(b"\n".join(lines[:-1]) + b"\n{")
    again = score_faults(["random:4"], ["rule-cap"], num_sound=2, num_pairs=1, log=log)
    assert again == first
    assert len(log.read_bytes().splitlines()) == len(lines)
    log.write_text("nonsense\n")
    with pytest.raises(UserError, match="is not the log of a scoreboard"):
        score_faults(["random:4"], ["rule-cap"], log=log)


@pytest.mark.deep
def test_the_figures_count_what_is_missed(capsys: pytest.CaptureFixture[str]):
    stand = Stand(Arena(graph="random:4"))
    good = stand.try_faults(["rule-cap"])
    bad = msgspec.structs.replace(good, verdict="AGREE", num_steps=0, num_stages=0, num_kinds=0, found=())
    by_name = {each.name: each for each in figures(Scores(trials=[good, bad], sound=[bad]))}
    assert (by_name["stage exact"].num, by_name["stage exact"].of) == (good.num_stages, 2 * good.num_divergences)
    assert not by_name["faults that manifest: detected"].is_met
    assert by_name["class of the largest cause"].num == 1
    alarm = msgspec.structs.replace(good, faults=())
    assert not any(each.is_met for each in figures(Scores(sound=[alarm])))
    assert " stage class" in table(Scores(trials=[bad]))[1][0][-1]
    print_scores(Scores(trials=[good, bad]))
    assert "| stage exact |" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_the_script_prints_the_scoreboard_and_its_exit_code_says_whether_the_targets_are_met(tmp_path: Path):
    command = "-m benchmarks scoreboard --graph random:4 --fault rule-cap --sound 2 --pairs 0 --jobs 1"
    done = subprocess.run(
        [sys.executable, *command.split(), "--json", str(tmp_path / "s.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| no fault: no alarm | 2 of 2 (100 %) | 100% |" in done.stdout
    assert len(msgspec.json.decode((tmp_path / "s.json").read_bytes(), type=Scores).trials) == 3
