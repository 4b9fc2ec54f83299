"""Lists that hold STOP, an engine's own terminal action, are judged without it first; STOP alone is judged second."""

import json
from pathlib import Path

import pytest

import kgverify as kv
from kgverify.trace.lines.import_lines import import_lines

START, FORWARD = [["loc", "d", "e"]], [["nb", "d", "?0"], ["loc", "?0", "e"]]
NEXT, BACK = [["loc", "g", "e"]], [["nb", "g", "?0"], ["loc", "?0", "e"]]
TRUE = {"kind": "TRUE"}


def write(path: Path, last: list, *, stops: bool) -> Path:
    """Write a derivation of four steps with the resolvents of its last step, and with STOP in each list if `stops`."""
    lines: list[dict] = [{"trace": 1, "engine": path.name}, {"candidate": START[0]}]
    for goal, resolvents in ((START, [FORWARD]), (FORWARD, [NEXT]), (NEXT, [BACK]), (BACK, last)):
        listed = [*resolvents, *["STOP"] * (stops and TRUE not in resolvents)] or [False]
        lines.append({"goal": goal, "successors": listed, "choice": 0})
    lines.append({"end": "PROVED" if TRUE in last else "FAILED"})
    lines_path = path.with_suffix(".jsonl")
    lines_path.write_text("\n".join(map(json.dumps, lines)))
    import_lines(lines_path, path)
    return path


@pytest.mark.parametrize(
    ("expected", "actual", "stage", "kind"),
    [
        ([], [START], "revisit", "extra"),
        ([START, [["q", "a", "b"]]], [[["q", "a", "b"]]], "revisit", "missing"),
        ([TRUE], [[["q", "a", "b"]]], "close", "proof_lost"),
        ([TRUE], [], "close", "proof_lost"),
    ],
)
@pytest.mark.parametrize("stops", [False, True])
def test_the_cause_is_the_same_with_and_without_the_action(expected, actual, stage, kind, stops, tmp_path):
    report = kv.compare(write(tmp_path / "a.h5", expected, stops=stops), write(tmp_path / "b.h5", actual, stops=stops))
    found = report.first_divergence
    assert (found.step, found.stage, found.kind) == (3, stage, kind), found.evidence


def test_the_action_alone_is_one_cause_and_the_switch_that_declares_it_is_named(tmp_path):
    last = [[["q", "a", "b"]]]
    report = kv.compare(write(tmp_path / "a.h5", last, stops=False), write(tmp_path / "b.h5", last, stops=True))
    (cause,) = report.causes
    assert (cause.stage, cause.kind) == ("close", "extra")
    assert "STOP is extra" in report.first_divergence.evidence
    assert "`stopping`" in report.first_divergence.evidence
    assert str(report.first_divergence.actual) == "['STOP']"
