"""The specification and the code say the same, and its example works."""

import re
import runpy
from pathlib import Path

import numpy as np

from kgverify.program.program import Symbols
from kgverify.trace.model.columns import FIELDS
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.schema import OPTIONAL_COLUMNS
from kgverify.trace.read.trace_file import read_trace

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trace-format.md").read_text(encoding="utf-8")


def test_the_example_writes_a_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "trace_without_kgverify.py"))
    trace = read_trace(tmp_path / "mine.trace.h5")
    assert trace.is_complete
    assert trace.header.engine.name == "my-prover"
    assert trace.symbols == Symbols(("locatedIn",), ("paris", "france"))
    assert trace.columns.candidates.atom.tolist() == [[0, 0, 1]]
    assert trace.columns.resolvents.kind.tolist() == [1]
    known = {"candidates.outcome", "steps.depth", "steps.choice", "steps.outcome"}
    assert trace.fields & OPTIONAL_COLUMNS == known
    for stored, computed in zip(trace.digests, compute_digests(trace.columns), strict=True):
        np.testing.assert_array_equal(stored, computed)


def test_the_page_lists_every_dataset_as_the_code_has_it():
    listed = re.findall(r"^\| `/([a-z_/]+)` \| ([^|]+) \| \[([^\]]+)\] \| (MUST|SHOULD|MAY) \|", PAGE, re.MULTILINE)
    assert [(path, dtype.strip(), must == "MUST") for path, dtype, _, must in listed] == [
        (f.path, " or ".join(np.dtype(d).name for d in f.dtypes), f.is_required) for f in FIELDS
    ]
    assert all(("3" in shape) == bool(f.width) for (_, _, shape, _), f in zip(listed, FIELDS, strict=True))
