"""Code that a machine has just compiled proves the embedded graph before it proves anything else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kgverify.prover.native import library

ROOT = Path(__file__).parents[2]
RUN = """
import sys
from pathlib import Path
import kgverify as kv
from kgverify.prover.native import library

library.files = lambda package: Path(sys.argv[1])
try:
    print(kv.evaluate("countries", kv.Evaluator(mode="native"), queries=2, corruptions=3).verdict.value)
except kv.UserError as error:
    print(error)
"""


def run_with_sources(sources: Path, libraries: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(sources)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "KGVERIFY_LIBRARIES": str(libraries), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.stdout


@pytest.mark.deep
@pytest.mark.skipif(library.why_not_available() is not None, reason="there is no C++ compiler")
def test_a_library_that_was_compiled_wrongly_proves_nothing_for_a_user(tmp_path: Path) -> None:
    sources, libraries = tmp_path / "sources", tmp_path / "libraries"
    sources.mkdir()
    libraries.mkdir(mode=0o700)
    for name in library.SOURCES:
        text = (Path(library.__file__).parent / name).read_text()
        (sources / name).write_text(text.replace("depth >= limits.max_depth ?", "depth >= 2 ?"))
    first, second = (run_with_sources(sources, libraries) for _ in range(2))
    assert "the native library that this machine compiled differs from the reference" in first
    assert "finish" in first
    assert second == first
    assert not list(libraries.glob("*.tried"))
