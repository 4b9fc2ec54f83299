"""A comparison that agrees loads what it uses: nothing that explains, stores, prints or tests."""

import subprocess
import sys
from pathlib import Path

from run_engines import needs_compiler

SCRIPT = Path(__file__).parents[2] / "tools" / "loaded.py"
MOST_LINES = 30_000
UNUSED = (
    "conditions.",
    "testing.",
    "laws.",
    "trace.hdf5.",
    "trace.read.",
    "trace.write.",
    "report.render.",
    "runs.fan_out",
    "verification.explain",
    "verification.recorded",
    "verification.save",
)
LIBRARIES = "import sys, kgverify as kv; kv.verify('countries', {!r}, queries=2, corruptions=5); print(*sys.modules)"


@needs_compiler
def test_a_run_that_agrees_loads_what_it_uses():
    done = subprocess.run([sys.executable, SCRIPT, "--list"], capture_output=True, text=True, check=True)
    *rows, summary = done.stdout.splitlines()
    assert summary.startswith("AGREE: ")
    modules = {name: int(lines.replace(",", "")) for lines, _, name in map(str.split, rows)}
    assert sum(modules.values()) <= MOST_LINES
    assert "kgverify.comparison.compare" in modules
    assert [name for name in modules if name.removeprefix("kgverify.").startswith(UNUSED)] == []


def test_a_run_that_agrees_loads_no_library_of_files_and_tables():
    code = LIBRARIES.format("reference")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"numpy", "msgspec"} <= {*done.stdout.split()}
    assert not {"h5py", "rich", "jinja2", "distributed", "hypothesis", "cyclopts", "torch"} & {*done.stdout.split()}
