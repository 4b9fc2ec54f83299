"""The index page of several runs: figures in the order given, trends to one scale, and nothing that runs."""

import json
import re
import shutil
from pathlib import Path

from browser import Browser
from invoked_commands import invoke
from report_runs import HOSTILE, SavedRun


def write_index(folder: Path, *runs: str) -> str:
    done = invoke(["report", *runs, "--html", "index.html"], folder)
    assert done.exit_code == 0, done.stderr
    return (folder / "index.html").read_text("utf-8")


def test_an_index_has_each_run_with_its_figures(faulty: SavedRun, agreeing: SavedRun, tmp_path: Path):
    monday = shutil.copytree(faulty.folder, tmp_path / "monday #1?.x")
    shutil.copytree(agreeing.folder, tmp_path / "tuesday")
    (monday / "report.html").write_text("a page")
    (monday / "times.json").write_text(json.dumps({"total": 61.25, "phases": {"expected: reference": 0.5}}))
    (tmp_path / "tuesday" / "times.json").unlink()
    text = write_index(tmp_path, monday.name, "tuesday")
    assert text.index("monday") < text.index("tuesday")
    assert re.findall(r'<strong class="([A-Z]+)">', text) == ["DIVERGE", agreeing.report.verdict.value]
    assert re.findall(r'href="([^"]*)"', text) == ["./monday%20%231%3F.x/report.html"]
    assert "<dt>metric</dt><dd>the difference changes metrics, not only ranks</dd>" in text
    (cause,) = faulty.report.causes
    assert f'style="--h: 1.0">{cause.num_candidates}</td>' in text
    # Both trends have the same scale, which begins at 0, and a run without a time leaves a gap.
    assert "0.8333" in text
    assert "0.2976" in text
    assert '<polyline class="expected" points="0.0,0.0 1000.0,0.0">' in text
    assert '<polyline class="actual" points="0.0,64.29 1000.0,0.0">' in text
    times = text.partition("<figcaption>Run time, seconds</figcaption>")[2].partition("</figure>")[0]
    assert "<polyline" not in times
    assert times.count('<line class="dot') == 1
    assert '<td class="num">61.2</td>' in text
    (monday / "times.json").write_text("{}")
    done = invoke(["report", monday.name, "tuesday", "--html", "index.html"], tmp_path)
    assert (done.exit_code, "is not the run time of a saved run" in done.stderr) == (2, True)


def test_only_comparable_runs_share_a_line(faulty: SavedRun, agreeing: SavedRun, in_lockstep: SavedRun, tmp_path: Path):
    for name, run in {"a": faulty, "b": in_lockstep, "c": agreeing, "d": in_lockstep}.items():
        shutil.copytree(run.folder, tmp_path / name)
    text = write_index(tmp_path, "a", "b", "c", "d")
    assert re.findall(r"<td>([A-Z])</td>", text) == ["A", "B", "A", "B"]
    chart = text.partition("<figcaption>Divergences</figcaption>")[2].partition("</figure>")[0]
    lines = [[point.split(",")[0] for point in line.split()] for line in re.findall(r'points="([^"]*)"', chart)]
    assert lines == [["0.0", "666.67"], ["333.33", "1000.0"]]
    alike = write_index(tmp_path, "b", "d")
    assert "comparable" not in alike


def test_names_of_runs_and_causes_are_inert(browser: Browser, hostile: SavedRun, tmp_path: Path):
    names = [name.replace("/", "") for name in HOSTILE if "\x00" not in name]
    for name in names:
        shutil.copytree(hostile.folder, tmp_path / name)
    write_index(tmp_path, *names)
    path = tmp_path / "index.html"
    browser.open(path, color_scheme="dark")
    assert (browser.errors, browser.dialogs, browser.requests) == ([], [], [path.as_uri()])
    assert browser.evaluate("document.querySelectorAll('script, img, [onerror], [onmouseover]').length") == 0
    assert names[1] in browser.evaluate("document.body.innerText")
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
