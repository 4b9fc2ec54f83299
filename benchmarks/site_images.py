"""Write the images of the documentation, in `docs/images`: screenshots of a report, with Chromium.

python benchmarks/site_images.py
"""

import base64
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("tests", "tests/report"))

from browser import Browser, find_chromium
from report_runs import countries_verification

from kgverify.report.render.html import render_html
from kgverify.report.render.index import render_index, summarize_run

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
FIRST = "document.querySelector('h1')"
STEP = "document.querySelector('.stepper')"
NARROW_STEP = "document.getElementById('h-step')"
TREE = "document.querySelector('.tree')"
SHOTS = (
    ("report", "report.html", (1100, 700), "", FIRST),
    ("step", "report.html", (1100, 760), "#divergence=1", STEP),
    ("step-narrow", "report.html", (390, 760), "#divergence=1", NARROW_STEP),
    ("tree", "report.html", (1100, 420), "#divergence=1", TREE),
    ("index", "index.html", (1100, 640), "", FIRST),
)
"""The name of each image, its page, its width and height in pixels, the address in the page, and the element at its top."""

READY = "!document.getElementById('viewer-state')?.textContent"


def main() -> None:
    """Make the runs, render their pages, and write the images."""
    chromium = find_chromium()
    if chromium is None:
        sys.exit("no chromium is installed")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Browser(chromium, Path(folder) / "profile") as browser:
        write_pages(Path(folder))
        for name, page, (width, height), fragment, top in SHOTS:
            browser.open(Path(folder) / page, fragment)
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
            browser.call("Emulation.setDeviceMetricsOverride", **size)
            browser.wait_for(READY)
            if top == TREE:
                browser.press("t")
            # Without the bar, which would cover what is at the top.
            bar = "document.querySelector('.moves')"
            browser.evaluate(f"if ({bar}) {bar}.style.position = 'static'")
            browser.evaluate(f"{top}.scrollIntoView(); scrollBy(0, -16)")
            data = browser.call("Page.captureScreenshot", format="webp", quality=80)["data"]
            path = IMAGES / f"{name}.webp"
            path.write_bytes(base64.b64decode(data))
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} kB")


def write_pages(folder: Path) -> None:
    """Write the page of a run in which facts are lost, and the index of runs with and without faults."""
    runs = []
    for day, fault in enumerate(("", "", "fact-cap", "fact-cap", "last-fact-lost", ""), 1):
        started = time.perf_counter()
        found = countries_verification(fault=fault)
        seconds = time.perf_counter() - started
        runs.append(
            summarize_run(
                f"run-{day}", found.report, written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", seconds=seconds
            )
        )
        if fault == "fact-cap":
            (folder / "report.html").write_text(render_html(found.report, found.expected, found.actual), "utf-8")
    (folder / "index.html").write_text(render_index(runs), "utf-8")


if __name__ == "__main__":
    main()
