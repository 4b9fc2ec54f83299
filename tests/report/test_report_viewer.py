"""The data of the viewer: all divergences, and the steps of the first ones within the limits that the page states."""

import base64
import json
import zlib
from typing import Any

import pytest
from report_runs import change, enlarged, with_many_causes, without_causes

from kgverify.report.render import html
from kgverify.report.render.html import build_viewer
from kgverify.report.stepper import Stepper
from kgverify.verification.verify import Verification


def read(data: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(data)))


def view(verification: Verification, report=None) -> tuple[Any, Any]:
    report, run = report or verification.report, verification
    stepper = Stepper(report, run.expected, run.actual, run.stepped)
    made = build_viewer(report, stepper.reader)
    return read(made["divergences"]), read(made["steps"])


def test_the_list_has_every_divergence_and_each_has_all_of_its_steps(faulty: Verification):
    listed, stepped = view(faulty)
    divergences = faulty.report.divergences
    atoms = [listed["texts"][code] for code in listed["columns"]["atom"]]
    assert atoms == [each.atom for each in divergences]
    assert listed["columns"]["step"] == [each.step for each in divergences]
    assert sorted(map(int, stepped["divergences"])) == list(range(len(divergences)))
    for index, found in stepped["divergences"].items():
        steps = [stepped["steps"][number] for number in found["steps"]]
        assert [number for number, *_ in steps] == list(range(max(found["num_steps"])))
        own = divergences[int(index)].step
        assert [number for number, mark, *_ in steps if mark == "differs"] == [own]
        assert {mark for number, mark, *_ in steps if number < own} <= {"agrees"}
        assert [line[0] for line in steps[own][3] if line[5]] == ["match_facts"]


def test_in_lockstep_the_divergences_of_a_candidate_share_their_other_steps(in_lockstep: Verification):
    first = in_lockstep.report.divergences[1].candidate
    own = tuple(each for each in in_lockstep.report.divergences if each.candidate == first)
    report = change(without_causes(in_lockstep.report), divergences=own, first_cause=own[0])
    _, stepped = view(in_lockstep, report)
    (num_steps,) = {tuple(each["num_steps"]) for each in stepped["divergences"].values()}
    assert len(stepped["steps"]) <= num_steps[0] + len(own)
    marks = {stepped["steps"][number][1] for each in stepped["divergences"].values() for number in each["steps"]}
    assert marks <= {"agrees", "differs"}


def test_the_limits_hold_and_the_first_of_each_cause_comes_first(faulty: Verification, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(html, "MOST_LISTED", 40)
    monkeypatch.setattr(html, "MOST_STEPPED", 4)
    monkeypatch.setattr(html, "MOST_STEPS", 3)
    report = with_many_causes(faulty.report, 50)
    last = change(report.causes[0], first=39), change(report.causes[0], first=45), change(report.causes[0], first=7)
    listed, stepped = view(faulty, change(report, causes=last))
    assert len(listed["columns"]["candidate"]) == 40
    assert list(stepped["divergences"]) == ["39", "7", "0", "1"]
    for index, found in stepped["divergences"].items():
        numbers = [stepped["steps"][number][0] for number in found["steps"]]
        assert 0 < len(numbers) <= 3
        assert report.divergences[int(index)].step in numbers
    monkeypatch.setattr(html, "STEP_BUDGET", 1)
    assert len(view(faulty, enlarged(faulty.report, 5))[1]["divergences"]) == 1
