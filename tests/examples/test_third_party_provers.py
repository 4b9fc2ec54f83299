"""Adapters of other people's provers: they are short, and answer generated queries as the two judges do."""

import importlib.util
import io
import json
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "third_party"
MOST_LINES = 20
MODULES = {"problog": "problog", "pydatalog": "pyDatalog", "minikanren": "kanren", "pytholog": "pytholog"}
IGNORED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def count_code_lines(source):
    """Count the lines with a token that is neither a comment nor a docstring."""
    lines, starts = set(), True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_docstring = starts and token.type == tokenize.STRING
        starts = token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.NL, tokenize.COMMENT} or (
            starts and token.type == tokenize.ENCODING
        )
        if token.type not in IGNORED and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*_adapter.py")), ids=lambda path: path.stem)
def test_an_adapter_has_at_most_twenty_lines(path):
    assert 5 < count_code_lines(path.read_text()) <= MOST_LINES


@pytest.mark.parametrize(("package", "module"), MODULES.items())
def test_generated_problems_are_judged(package, module):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    num_programs = 5 if package == "pydatalog" else 60  # each that hangs takes seconds
    command = [sys.executable, "-m", "benchmarks", "provers", package, "--programs", str(num_programs)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT
    )  # not all import without warnings
    assert done.returncode == 0, done.stderr
    counts = Counter(json.loads(done.stdout))
    assert counts["programs"] == num_programs
    assert counts["problems"] > 4 * num_programs
    assert (counts["differs"] > 50) == (package == "pytholog")
    assert package != "minikanren" or set(counts) == {"package", "seed", "programs", "problems"}
