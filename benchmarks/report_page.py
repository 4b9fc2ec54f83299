"""The report page in headless Chromium: its size, its first paint, and the time from one step to the next.

    python benchmarks/report_page.py                          # 1, 1,000 and 100,000 divergences
    python benchmarks/report_page.py --screenshots FOLDER     # at 1280 and 390 pixels, light and dark
    python benchmarks/report_page.py --axe axe.min.js         # the accessibility checks of axe-core, from a file

The divergences are those of a small run with a planted fault, over and over, each with a name of its own. A step takes from
the key until after the next frame, which alone takes up to 17 ms. Prints a Markdown table; exit code 1 if a time or the size
exceeds its target, the page asks for anything or logs an error, or axe finds something serious.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("tests", "tests/report"))

from browser import Browser, find_chromium
from report_runs import change, countries_verification, enlarged

from kgverify.report.render.html import render_html
from kgverify.verification.verify import Verification

MOST_BYTES = 200_000
WIDTHS = ((1280, 900), (390, 844))
KEYS = "nfbnnfbppsSonf"
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"
READY = "!document.getElementById('viewer-state').textContent"
PRESS = """(async () => {
  const times = [];
  for (const act of %s) {
    const began = performance.now();
    act();
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
    times.push(performance.now() - began);
  }
  return times;
})()"""
KEY = "() => document.getElementById('list').dispatchEvent(new KeyboardEvent('keydown', {key: '%s', bubbles: true}))"
SEARCH = "() => { const box = document.getElementById('filter-text'); box.value = '%s'; box.dispatchEvent(new Event('input')); }"
AXE = "axe.run().then((found) => found.violations.map((each) => `${each.impact}: ${each.id} (${each.nodes.length})`))"


def wait(browser: Browser, expression: str) -> Any:
    """Evaluate a promise of the page."""
    called = browser.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
    return called["result"]["value"]


def make_page(verification: Verification, num: int, path: Path) -> tuple[int, int, float]:
    """Write a page. Return its bytes, those without its data, and the seconds that it took."""
    report = enlarged(verification.report, num)
    named = tuple(change(each, atom=f"{each.atom} {i}") for i, each in enumerate(report.divergences))
    report = change(report, divergences=named, first_cause=named[0])
    started = time.perf_counter()
    text = render_html(report, verification.expected, verification.actual)
    seconds = time.perf_counter() - started
    path.write_text(text, "utf-8")
    data = re.findall(r'<script type="[a-z/]*" id="[a-z-]*">([^<]*)</script>', text)
    return len(text.encode()), len(text.encode()) - sum(map(len, data)), seconds


def main() -> int:
    """Write the pages and look at them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 1_000, 100_000], help="numbers of divergences")
    parser.add_argument("--paint-ms", type=float, default=1_000, help="target of the first paint")
    parser.add_argument("--step-ms", type=float, default=50, help="target from step to step, the median")
    parser.add_argument("--screenshots", type=Path, help="the folder for screenshots")
    parser.add_argument("--axe", type=Path, help="axe.min.js of axe-core")
    arguments = parser.parse_args()
    chromium = find_chromium()
    if chromium is None:
        print("no chromium is installed")
        return 1
    if arguments.screenshots:
        arguments.screenshots.mkdir(parents=True, exist_ok=True)
    verification = countries_verification(fault="fact-cap")
    failures: list[str] = []
    print("| divergences | page, kB | without data, kB | written, s | first paint, ms | list ready, ms | step, median ms |"
          " step, most ms | search, ms |")  # fmt: skip
    print("|---:|" + "---:|" * 8)
    with tempfile.TemporaryDirectory() as folder, Browser(chromium, Path(folder) / "profile") as browser:
        for num in arguments.sizes:
            path = Path(folder) / f"{num}.html"
            num_bytes, num_plain, seconds = make_page(verification, num, path)
            browser.open(path)
            browser.wait_for(READY)
            ready = browser.evaluate("performance.now()")
            browser.wait_for(f"({FIRST_PAINT}) >= 0")
            paint = browser.evaluate(FIRST_PAINT)
            steps = wait(browser, PRESS % f"[{', '.join(KEY % key for key in KEYS)}]")
            searches = wait(browser, PRESS % f"[{', '.join(SEARCH % text for text in ('asia 7', 'asia 77', ''))}]")
            median = statistics.median(steps)
            print(f"| {num:,} | {num_bytes / 1e3:.0f} | {num_plain / 1e3:.0f} | {seconds:.1f} | {paint:.0f} | {ready:.0f} |"
                  f" {median:.0f} | {max(steps):.0f} | {max(searches):.0f} |", flush=True)  # fmt: skip
            targets = ("bytes without data", num_plain, MOST_BYTES), ("first paint", paint, arguments.paint_ms)
            for name, value, most in (*targets, ("step", median, arguments.step_ms)):
                if value > most:
                    failures.append(f"{num:,} divergences: {name} {value:.0f}, at most {most:.0f} expected")
            if browser.errors or browser.requests != [path.as_uri()]:
                failures.append(f"{num:,} divergences: {browser.errors} {browser.requests}")
            if arguments.screenshots or arguments.axe:
                failures += look(browser, path, num, arguments)
    print(*failures, sep="\n")
    return bool(failures)


def look(browser: Browser, path: Path, num: int, arguments: argparse.Namespace) -> list[str]:
    """Take screenshots, and check the page with axe-core. Return what is serious."""
    failures = []
    for width, height in WIDTHS:
        for scheme in ("light", "dark"):
            browser.open(path, fragment="#divergence=1", color_scheme=scheme)
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            browser.call("Emulation.setScrollbarsHidden", hidden=True)  # A screenshot has none, and would be cut.
            browser.call("Emulation.setDeviceMetricsOverride", **size)
            browser.wait_for(READY)
            if arguments.screenshots:
                browser.screenshot(arguments.screenshots / f"{num}-{width}-{scheme}.png")
            if arguments.axe:
                browser.evaluate(f"{arguments.axe.read_text('utf-8')};0")
                found = wait(browser, AXE)
                print(f"axe, {num:,} divergences, {width} pixels, {scheme}: {', '.join(found) or 'nothing'}")
                failures += [each for each in found if each.startswith(("serious", "critical"))]
    return failures


if __name__ == "__main__":
    sys.exit(main())
