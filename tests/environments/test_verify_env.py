"""The public names compare environments, recorded ones, and those of policies and given actions."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from placed_walks import Huge, MovedResets, NaNs, Walk, declare, hostile, late, other_reward, right

import kgverify as kv

SMALL = {"slots": 3, "steps": 40}


def test_equal_environments_agree_and_a_wrong_one_is_named_with_the_rows_before_it():
    agreeing = kv.verify_env(right, declare("twin"), **SMALL)
    assert agreeing.verdict is kv.Verdict.AGREE, str(agreeing)
    assert (agreeing.windows, agreeing.reasons) == ((), ())
    report = kv.verify_env(declare("first"), late, **SMALL, minimum="truncated=1")
    first = report.first_divergence
    assert (report.verdict, first.stage, first.field, first.expected, first.actual) == (
        kv.Verdict.DIVERGE, "end", "truncated", "true", "false",
    )  # fmt: skip
    (window,) = (each for each in report.windows if report.divergences[each.divergence] is first)
    assert [row.step for row in window.rows] == [first.step - 3, first.step - 2, first.step - 1, first.step]
    assert [row.expected == row.actual for row in window.rows] == [True, True, True, False]
    assert dict(zip(window.columns, window.rows[-1].expected, strict=True))["ends"] == "truncated"
    text = str(report)
    assert "3 slots, 40 actions each, seeds from 0" in text
    assert re.search(rf"step {first.step} expected +step {first.step} actual", text)
    assert re.search(r"expected: first: \d+ episodes ended \(\d+ terminated, \d+ truncated\), \d+ resets", text)


def test_a_recorded_environment_is_read_as_it_was_and_drives_another_one(tmp_path: Path):
    path = kv.freeze_env(right, tmp_path / "walk.h5", **SMALL)
    assert path.read_bytes() == kv.freeze_env(right, tmp_path / "again.h5", **SMALL).read_bytes()
    assert path.stat().st_size < 16_000
    assert kv.verify_env(path, right).verdict is kv.Verdict.AGREE
    assert kv.verify_env(right, path).verdict is kv.Verdict.AGREE
    assert kv.verify_env(path, str(path)).verdict is kv.Verdict.AGREE
    report = kv.verify_env(path, other_reward)
    assert (report.first_divergence.stage, report.slots, report.steps) == ("reward", 3, 40)
    saved = kv.verify_env(path, other_reward, save=tmp_path / "run")
    assert kv.verify_env(tmp_path / "run" / "expected.h5", tmp_path / "run" / "actual.h5").divergences
    assert saved.divergences == report.divergences
    with pytest.raises(kv.UserError, match="other slots or seeds"):
        kv.verify_env(path, kv.freeze_env(right, tmp_path / "more.h5", slots=4, steps=40))
    with pytest.raises(kv.UserError, match="already recorded"):
        kv.freeze_env(path, tmp_path / "third.h5")


def test_a_policy_acts_and_the_choice_of_a_second_one_is_compared():
    def go_right(observation):
        return {"action": np.ones(len(observation["at"]), np.int64), "value": observation["at"] * 2.0}

    def stay_away(observation):
        return {**go_right(observation), "value": observation["at"] * 2.0 + (observation["at"] == 2)}

    assert kv.verify_env(right, right, policy=go_right, **SMALL).verdict is kv.Verdict.AGREE
    report = kv.verify_env(right, right, policy=(go_right, stay_away), **SMALL)
    assert (report.first_divergence.stage, report.first_divergence.field) == ("choose", "value")
    actions = np.ones((9, 2), np.int64)
    given = kv.verify_env(right, other_reward, actions=actions)
    assert (given.slots, given.steps, given.first_divergence.stage) == (2, 9, "reward")
    for wrong, message in (
        ({"policy": lambda _: np.ones((2, 2))}, r"policy: action has the shape \[2, 2\], expected \[3\]"),
        ({"policy": lambda _: {"value": 1}}, "policy: it returned no action"),
        ({"policy": lambda _: 1 // 0}, "policy: it raised ZeroDivisionError"),
        ({"policy": (go_right,) * 3}, "policy: expected one policy or two"),
        ({"actions": np.ones(3)}, r"actions: found the shape \[3\]"),
        ({"actions": actions, "policy": go_right}, "actions are given as well as a policy"),
        ({"slots": 0}, "slots: expected at least 1"),
        ({"minimum": "solved=1"}, "solved"),
    ):
        with pytest.raises(kv.UserError, match=message):
            kv.verify_env(right, right, **{**SMALL, **wrong})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Raises", r"Raises: step: .*ValueError: no .*step"),
        ("FewRows", r"shape \[2\], expected 3 rows"),
        ("OtherShape", r"reward: .* shape \[2, 3\]"),
        ("Objects", "type object, expected numbers"),
    ],
)
def test_a_hostile_environment_is_an_error_that_says_where(name: str, message: str):
    for sides in ((right, hostile[name]), (hostile[name], right)):
        with pytest.raises(kv.UserError, match=message) as caught:
            kv.verify_env(*sides, **SMALL)
        assert caught.value.fix
        assert not re.search(r"[\x1b\x07]|^::", str(caught.value), re.MULTILINE)


def test_nan_rewards_huge_observations_and_names_with_control_characters_are_compared_and_escaped(tmp_path: Path):
    nans = kv.EnvironmentSpec(NaNs(), autoreset="disabled", actions=2)
    assert kv.verify_env(nans, nans, **SMALL).verdict is kv.Verdict.AGREE
    assert kv.verify_env(right, nans, **SMALL).first_divergence.actual == "nan"
    huge = [kv.EnvironmentSpec(Huge(reward=each), autoreset="disabled", actions=2) for each in (1.0, 2.0)]
    first = kv.verify_env(*huge, slots=2, steps=20).first_divergence
    assert (first.step, first.field) == (3, "observation[999]")
    name = "a\n::error::FORGED\x1b[5m<script>"
    report = kv.verify_env(
        declare(name, part=name), declare(name, part=name, reward=3.0), **SMALL, save=tmp_path / name
    )
    page = (tmp_path / name / "report.html").read_text(encoding="utf-8")
    for text in (str(report), page):
        assert not re.search(r"\x1b|^::error", text, re.MULTILINE)
        assert r"a\n::error::FORGED\x1b[5m" in text
    assert "<script" not in page


@pytest.mark.deep
def test_no_environment_library_is_loaded_for_a_batch_on_arrays():
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import kgverify as kv, placed_walks
assert kv.verify_env(placed_walks.right, placed_walks.right, slots=2, steps=30).verdict.value == "AGREE"
print(sorted({{"torch", "gymnasium", "torchrl", "tensordict"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_states_of_other_parts_and_other_actions_are_refused_and_other_observations_are_not():
    other = kv.EnvironmentSpec(Walk("wide"), autoreset="disabled", actions=2)
    with pytest.raises(kv.UserError, match="different parts"):
        kv.verify_env(right, other, **SMALL)
    notes = kv.verify_env(right, other, **SMALL, lockstep=False).notes
    assert "numbers of other names are compared, in their order: observation.at with observation.steps" in " ".join(
        notes
    )
    with pytest.raises(kv.UserError, match="actions"):
        kv.verify_env(right, kv.EnvironmentSpec(Walk(), autoreset="disabled"), **SMALL)


def test_a_side_of_other_actions_takes_those_of_the_expected_one_and_the_report_says_so():
    other = kv.EnvironmentSpec(Walk(), autoreset="disabled", actions=3)
    text = "the actions differ, 0 to 1 and 0 to 2, and both sides took those of the expected one"
    assert text in kv.verify_env(right, other, **SMALL).notes
    assert text not in kv.verify_env(right, declare("twin"), **SMALL).notes


def test_the_end_that_a_last_place_decides_does_not_make_later_resets_rounding():
    # At 3, a last place decides whether the walk ends, so that changed states begin other episodes.
    moved = kv.EnvironmentSpec(MovedResets(), autoreset="disabled", actions=2)
    report = kv.verify_env(right, moved, slots=6, steps=60, lockstep=True)
    resets = [each for each in report.divergences if each.stage == "autoreset"]
    assert len(resets) == report.expected.resets
    assert report.rounding == ""
