"""The timeline of a run, checked against the rules of the Trace Event Format."""

import json
from collections import defaultdict
from pathlib import Path

import pytest
from report_runs import SavedRun

NEEDED = {
    "M": {"name", "pid", "tid", "ts", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "i": {"name", "cat", "pid", "tid", "ts", "s", "args"},
}
"""The fields that an event of each phase has, besides `ph`."""


def draw(run: SavedRun) -> dict:
    found = json.loads(run.render("--perfetto", "-"))
    assert found["displayTimeUnit"] in ("ms", "ns")
    return found


def of_phase(timeline: dict, phase: str, category: str = "") -> list[dict]:
    return [each for each in timeline["traceEvents"] if each["ph"] == phase and each.get("cat", "") == category]


def check_nesting(slices: list[dict]) -> None:
    """Fail unless slices of a thread follow each other or lie inside each other, an outer one before its inner ones."""
    open_until: list[int] = []
    for each in sorted(slices, key=lambda each: each["ts"]):
        open_until = [end for end in open_until if end > each["ts"]]
        open_until.append(each["ts"] + each["dur"])
        assert open_until == sorted(open_until, reverse=True)
        assert len(open_until) <= 2


def test_every_event_has_what_the_format_asks_for(any_run: SavedRun):
    timeline = draw(any_run)
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
    tracks = [each for each in of_phase(timeline, "M") if each["name"] == "thread_name"]
    named = {(each["pid"], each["tid"]) for each in tracks}
    assert named == threads.keys()
    # Like candidates and steps, slots are counted from 0; a thread has the number of its slot plus 1.
    assert all(each["args"] == {"name": f"slot {each['tid'] - 1}"} for each in tracks)
    assert {pid for pid, _ in named}.isdisjoint(tid for _, tid in named)


def test_a_long_run_is_cut_and_keeps_the_candidates_with_divergences(faulty: SavedRun, monkeypatch: pytest.MonkeyPatch):
    divergent = {each.candidate for each in faulty.report.divergences}
    traces = faulty.report.traces
    lengths = [*map(max, traces.expected.columns.candidates.num_steps, traces.actual.columns.candidates.num_steps)]
    monkeypatch.setattr("kgverify.report.render.perfetto.MOST_STEPS", sum(lengths[row] for row in divergent))
    timeline = draw(faulty)
    assert {each["args"]["candidate"] for each in of_phase(timeline, "X", "derivation")} == divergent
    assert timeline["otherData"]["left out"].startswith(f"{len(lengths) - len(divergent)} candidates")


def test_names_of_a_graph_are_escaped_and_the_method_writes_what_the_command_prints(hostile: SavedRun, tmp_path: Path):
    raw = hostile.report.to_perfetto(tmp_path / "mine.json").read_text("utf-8")
    assert not any(each in raw for each in ("\x1b", "\x00", "\u202e", "##["))
    assert json.loads(raw)["traceEvents"] == draw(hostile)["traceEvents"]
