"""The timeline of a run, checked against the rules of the Trace Event Format."""

import json
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from invoked_commands import invoke
from report_runs import change

from kgverify import UserError
from kgverify.report.render import perfetto
from kgverify.report.render.perfetto import STEP, render_perfetto
from kgverify.verification.save import save_verification
from kgverify.verification.verify import Verification

NEEDED = {
    "M": {"name", "pid", "tid", "ts", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "i": {"name", "cat", "pid", "tid", "ts", "s", "args"},
}
"""The fields that an event of each phase has, besides `ph`."""


def draw(verification: Verification) -> dict:
    found = json.loads(render_perfetto(verification.report, verification.expected, verification.actual))
    assert found["displayTimeUnit"] in ("ms", "ns")
    return found


def of_phase(timeline: dict, phase: str, category: str = "") -> list[dict]:
    return [each for each in timeline["traceEvents"] if each["ph"] == phase and each.get("cat", "") == category]


def check_nesting(slices: list[dict]) -> None:
    """Fail unless the slices of one thread follow each other or lie inside each other, an outer one before its inner ones."""
    open_until: list[int] = []
    for each in sorted(slices, key=lambda each: each["ts"]):
        while open_until and open_until[-1] <= each["ts"]:
            open_until.pop()
        assert not open_until or each["ts"] + each["dur"] <= open_until[-1]
        open_until.append(each["ts"] + each["dur"])
        assert len(open_until) <= 2


@pytest.mark.parametrize("name", ["faulty", "agreeing", "in_lockstep", "hostile"])
def test_every_event_has_what_the_format_asks_for(request, name):
    timeline = draw(request.getfixturevalue(name))
    threads = defaultdict(list)
    for event in timeline["traceEvents"]:
        assert event.keys() == {"ph", *NEEDED[event["ph"]]}
        numbers = [event[key] for key in ("pid", "tid", "ts", "dur") if key in event]
        assert all(type(number) is int and number >= 0 for number in numbers)
        assert isinstance(event["args"], dict)
        assert event.get("s", "t") == "t"
        if event["ph"] == "X":
            assert event["dur"] > 0
            threads[event["pid"], event["tid"]].append(event)
    for slices in threads.values():
        check_nesting(slices)
    named = {(each["pid"], each["tid"]) for each in of_phase(timeline, "M") if each["name"] == "thread_name"}
    assert named == threads.keys()
    assert {pid for pid, _ in named}.isdisjoint(tid for _, tid in named)


@pytest.mark.parametrize("name", ["faulty", "agreeing", "hostile"])
def test_all_derivations_steps_and_divergences_are_drawn(request, name):
    verification = request.getfixturevalue(name)
    timeline = draw(verification)
    traces = verification.expected, verification.actual
    pids = sorted({each["pid"] for each in of_phase(timeline, "X", "step")})
    steps = Counter(each["pid"] for each in of_phase(timeline, "X", "step"))
    assert [steps[pid] for pid in pids] == [len(trace.columns.steps.depth) for trace in traces]
    assert len(of_phase(timeline, "X", "derivation")) == sum(len(trace.columns.candidates.query) for trace in traces)
    marks = of_phase(timeline, "i", "divergence")
    assert len(marks) == 2 * len(verification.report.divergences)
    begins = {
        (each["pid"], each["args"]["candidate"]): (each["tid"], each["ts"])
        for each in of_phase(timeline, "X", "derivation")
    }
    for (_, candidate), place in begins.items():
        assert {begins[pid, candidate] for pid in pids} == {place}
    for mark in marks:
        divergence = verification.report.divergences[mark["args"]["divergence"] - 1]
        tid, begin = begins[mark["pid"], divergence.candidate]
        assert mark["tid"] == tid
        assert 0 <= mark["ts"] - begin <= max(0, divergence.step) * STEP


def test_slots_are_those_of_the_engine_and_none_waits_while_a_candidate_does(agreeing):
    derivations = of_phase(draw(agreeing), "X", "derivation")
    one_side = [each for each in derivations if each["pid"] == derivations[0]["pid"]]
    slots = {each["tid"] for each in one_side}
    assert len(slots) == min(agreeing.actual.header.engine.layout["slots"], len(one_side))
    begins = [each["ts"] for each in sorted(one_side, key=lambda each: each["args"]["candidate"])]
    assert begins == sorted(begins)
    for slot in slots:
        in_slot = sorted((each["ts"], each["ts"] + each["dur"]) for each in one_side if each["tid"] == slot)
        assert all(end == begin for (_, end), (begin, _) in pairwise(in_slot))


def test_in_lockstep_the_expected_side_is_marked(in_lockstep):
    timeline = draw(in_lockstep)
    marks = of_phase(timeline, "i", "divergence")
    assert len(marks) == len(in_lockstep.report.divergences)
    assert {mark["pid"] for mark in marks} == {min(each["pid"] for each in timeline["traceEvents"])}


def test_a_long_run_is_cut_and_keeps_the_candidates_with_divergences(faulty, monkeypatch):
    divergent = {each.candidate for each in faulty.report.divergences}
    lengths = perfetto._longest(faulty.expected, faulty.actual)
    monkeypatch.setattr(perfetto, "MOST_STEPS", sum(lengths[row] for row in divergent))
    timeline = draw(faulty)
    assert {each["args"]["candidate"] for each in of_phase(timeline, "X", "derivation")} == divergent
    assert timeline["otherData"]["left out"].startswith(f"{len(lengths) - len(divergent)} candidates")


def test_names_of_a_graph_are_escaped(hostile):
    raw = render_perfetto(hostile.report, hostile.expected, hostile.actual).decode()
    assert not any(each in raw for each in ("\x1b", "\x00", "\u202e", "##["))


def test_the_command_and_the_method_write_the_same_file(faulty, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_verification(faulty, tmp_path / "run")
    done = invoke(["report", "run", "--perfetto"])
    assert (done.exit_code, "wrote perfetto.json" in done.output) == (0, True)
    written = json.loads((tmp_path / "perfetto.json").read_text())
    assert json.loads(faulty.report.with_traces(faulty).to_perfetto("mine.json").read_text()) == written
    with pytest.raises(UserError, match="without its traces") as caught:
        change(faulty.report).to_perfetto("other.json")
    assert "--perfetto" in caught.value.fix
