"""Record the golden traces anew, and write their manifest: `python traces/write_traces.py`.

The manifest states what each trace must contain; tests compare.
"""

import hashlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from kgverify.trace.read.trace_file import TraceFile

FOLDER = Path(__file__).parent
REFERENCE = "--engine reference --queries 2 --corruptions 5"
COMPILED = "--engine compiled --mode eager --device cpu --tune slots=16 --queries 2 --corruptions 5"
OPTIONS = {
    "reference": REFERENCE,
    "compiled": COMPILED,
    "digests": f"{COMPILED} --level digests",
    "archive": f"{REFERENCE} --archive",
    "deep": f"{REFERENCE} --level deep --archive",
}


def write(name: str, options: str) -> dict[str, str | int]:
    """Record one trace, and return its entry in the manifest."""
    path = FOLDER / f"countries-{name}.h5"
    command = f"kgverify record {options} -o traces/{path.name}"
    path.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", *shlex.split(command)], cwd=FOLDER.parent, env=os.environ, check=True)
    trace = TraceFile(path)
    return {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "schema_version": trace.header.schema_version,
        "engine": trace.header.engine.name,
        "level": trace.header.level,
        "num_candidates": trace.num_candidates,
        "num_steps": trace.num_steps,
        "root": f"{trace.compute_root():016x}",
        "command": command,
    }


def main() -> None:
    """Record all of them."""
    entries = [write(name, options) for name, options in OPTIONS.items()]
    (FOLDER / "manifest.json").write_text(json.dumps({"traces": entries}, indent=2) + "\n")


if __name__ == "__main__":
    main()
