"""A run as a timeline for ui.perfetto.dev and chrome://tracing, in the JSON of the Trace Event Format.

A process is a side, a thread is a slot, a slice is a derivation with its steps inside, and an instant event is a divergence.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapreplace
from typing import Any, Final

import msgspec

from kgverify.comparison.comparable import Numbering
from kgverify.comparison.result import NO_CANDIDATE, Divergence
from kgverify.comparison.step_view import Names, StepReader, outcome_name, side_name
from kgverify.escaping import escape_json
from kgverify.report.content import ReportContent
from kgverify.report.step_document import align_rows
from kgverify.report.wording import clip, describe_engine, describe_kind
from kgverify.trace.model.trace import Trace

STEP: Final = 1_000
"""The microseconds of a step on the timeline, since traces contain no times."""

MOST_STEPS: Final = 100_000
"""The maximum number of steps drawn for each side; candidates with divergences come first."""

MOST_SLOTS: Final = 32
"""The maximum number of slots drawn if the engines have none, at most one for each candidate."""

Event = dict[str, Any]

Pair = tuple[int | None, int | None]
"""The rows of a candidate in the expected and the actual trace; None in a trace that lacks it."""


def render_perfetto(report: ReportContent, expected: Trace, actual: Trace) -> bytes:
    """Render the derivations of both sides, and the divergences, as JSON.

    Slots are refilled in the order of the candidates, as the compiled engine does. Both sides of a candidate have the same
    slot and begin at the same time; the slot waits for the longer derivation.
    """
    pairs = _pair(expected, actual)
    counts = [trace.columns.candidates.num_steps.tolist() for trace in (expected, actual)]
    lengths = [max(0 if row is None else count[row] for row, count in zip(pair, counts, strict=True)) for pair in pairs]
    layouts = (trace.header.engine.layout.get("slots", 0) for trace in (actual, expected))
    num_slots = min(next((slots for slots in layouts if slots > 0), MOST_SLOTS), len(lengths))
    places = _place(lengths, num_slots)
    numbers = {pair if pair[0] is None else pair[0]: number for number, pair in enumerate(pairs)}
    divergences: dict[int, list[tuple[int, Divergence]]] = defaultdict(list)
    for i, each in enumerate(report.divergences, 1):
        if each.query < 0:
            # A metric belongs to no candidate.
            continue
        at = (None, each.candidate) if each.expected == NO_CANDIDATE else each.candidate
        divergences[numbers.get(at, -1)].append((i, each))
    drawn = _choose(lengths, divergences)
    events: list[Event] = []
    sides = (("expected", expected, report.environment.expected), ("actual", actual, report.environment.actual))
    # A thread with the same number as its process would be the main thread.
    for side, (role, trace, engine) in enumerate(sides):
        pid = num_slots + 1 + side
        rows = {number: row for number in drawn if (row := pairs[number][side]) is not None}
        events += _name_tracks(
            pid, f"{role}: {describe_engine(engine)}", sorted({places[number][0] for number in rows})
        )
        # In lockstep, divergences belong to steps from the expected goals, which the actual derivation may lack.
        marked = {} if report.lockstep and trace is actual else divergences
        events += _draw(trace, pid, rows, places, marked)
    left_out = len(lengths) - len(drawn)
    notes = {
        "verdict": report.verdict.value,
        "command": report.command,
        "step": f"{STEP} microseconds; not a measured time",
    }
    notes |= {"left out": f"{left_out:,} candidates without room"} if left_out else {}
    return (
        escape_json(msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": notes})) + b"\n"
    )


def _pair(expected: Trace, actual: Trace) -> list[Pair]:
    """Pair the candidates of both traces: first all expected candidates in order, then the further actual ones."""
    numbering = Numbering(expected, actual)
    actual_of = align_rows(numbering.convert(0, expected).columns, numbering.convert(1, actual).columns)
    num_expected, num_actual = (len(trace.columns.candidates.query) for trace in (expected, actual))
    further = sorted(set(range(num_actual)) - set(actual_of.values()))
    return [*((row, actual_of.get(row)) for row in range(num_expected)), *((None, row) for row in further)]


def _place(lengths: Sequence[int], num_slots: int) -> list[tuple[int, int]]:
    """Give each candidate the slot that becomes free first; if there are several, take the lowest number.

    Return the slot of each candidate, from 0, and the step of the timeline at which it begins.
    """
    free: list[tuple[int, int]] = [(0, slot) for slot in range(num_slots)]
    places = []
    for length in lengths:
        begin, slot = free[0]
        places.append((slot, begin))
        # A candidate without steps takes the time of one step.
        heapreplace(free, (begin + max(1, length), slot))
    return places


def _choose(lengths: Sequence[int], divergences: Mapping[int, list[tuple[int, Divergence]]]) -> list[int]:
    """Return the candidates that are drawn, in order."""
    drawn: list[int] = []
    num_steps = 0
    for row in sorted(range(len(lengths)), key=lambda row: (row not in divergences, row)):
        num_steps += max(1, lengths[row])
        if num_steps > MOST_STEPS and drawn:
            break
        drawn.append(row)
    return sorted(drawn)


def _name_tracks(pid: int, name: str, slots: Sequence[int]) -> list[Event]:
    tracks: list[tuple[str, int, Event]] = [
        ("process_name", 0, {"name": name}),
        ("process_sort_index", 0, {"sort_index": pid}),
    ]
    for slot in slots:
        tracks += [
            ("thread_name", slot + 1, {"name": f"slot {slot}"}),
            ("thread_sort_index", slot + 1, {"sort_index": slot}),
        ]
    return [{"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args} for kind, tid, args in tracks]


def _draw(
    trace: Trace,
    pid: int,
    rows: Mapping[int, int],
    places: Sequence[tuple[int, int]],
    divergences: Mapping[int, list[tuple[int, Divergence]]],
) -> Iterator[Event]:
    """Yield the events of one side: for each candidate its slice, the slices of its steps, and its divergences.

    rows: the number of each drawn candidate among the pairs, to its row in the trace
    """
    names, reader, fields = Names(trace), StepReader(trace.columns), trace.fields
    c = trace.columns.candidates
    for pair, row in rows.items():
        slot, begin = places[pair]
        num_steps = int(c.num_steps[row])
        track = {"pid": pid, "tid": slot + 1}

        def slice_of(name: str, category: str, first: int, length: int, args: Event, track: Event = track) -> Event:
            times = {"ts": first * STEP, "dur": length * STEP}
            return {"ph": "X", "name": clip(name), "cat": category, **track, **times, "args": args}

        about = {"candidate": row, "query": int(c.query[row]), "side": side_name(int(c.side[row])), "steps": num_steps}
        if "candidates.outcome" in fields:
            about["outcome"] = outcome_name(int(c.outcome[row]))
        yield slice_of(names.atom(tuple(c.atom[row].tolist())), "derivation", begin, max(1, num_steps), about)
        for step in range(num_steps):
            view = reader.read(reader.first_step[row] + step)
            args: Event = {
                "candidate": row,
                "step": step,
                "resolvents": int(trace.columns.steps.num_resolvents[reader.first_step[row] + step]),
            }
            if "steps.choice" in fields:
                args["choice"] = view.choice
                if 0 <= view.choice < len(view.resolvents) and "resolvents.origin" in fields:
                    args["clause"] = clip(names.clause(*view.resolvents[view.choice].clause))
            if "steps.outcome" in fields:
                args["outcome"] = outcome_name(view.outcome)
            goal = names.goal(view.goal) if "steps.goal_atoms" in fields else f"step {step}"
            yield slice_of(goal, "step", begin + step, 1, args)
        for number, each in divergences.get(pair, ()):
            described = {
                "divergence": number,
                "step": each.step,
                "stage": each.stage,
                "field": each.field,
                "level": each.level.value,
                "difference": clip(describe_kind(each)),
                "cause": each.cause + 1,
            }
            at = begin + min(max(0, each.step), num_steps)
            yield {
                "ph": "i", "s": "t", "name": clip(f"divergence {number}: {each.stage}"), "cat": "divergence",
                **track, "ts": at * STEP, "args": described,
            }  # fmt: skip
