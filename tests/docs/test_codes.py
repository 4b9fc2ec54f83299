"""The codes of findings have a section each, and the pages for programs are made from the docs."""

import re
import runpy
from pathlib import Path

from kgverify.codes import SECTIONS, Code
from kgverify.comparison.modulo import MEANINGS
from kgverify.program.outcomes import DifferenceClass
from kgverify.testing.checking.failure import ENDS_RUN, LAW

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_each_code_has_a_section_whose_anchor_it_is():
    text = (DOCS / "verdicts.md").read_text(encoding="utf-8")
    assert re.findall(r"^#### (\w+)$", text, re.MULTILINE) == list(Code)
    assert len(Code.__members__) == len(Code)
    assert SECTIONS.endswith("/verdicts/#")
    for kind in DifferenceClass:
        assert re.search(rf"^#### {kind.code}\n\n`{kind.value}`\. [A-Z]", text, re.MULTILINE), kind


def test_whatever_the_product_finds_has_a_code_and_each_code_is_used():
    """A reason and a warning of a graph are of type `Coded`, which only `Code.mark` makes: mypy checks that."""
    by_kind = {kind.upper() for kind in (*DifferenceClass, *ENDS_RUN, LAW, *MEANINGS)}
    files = [path for path in (ROOT / "kgverify").glob("**/*.py") if path.name != "codes.py"]
    texts = "\n".join(path.read_text(encoding="utf-8") for path in files)
    used = set(re.findall(r"\bCode\.([A-Z_]+)\b", texts))
    assert not re.search(r"\bCoded\(", texts)
    assert by_kind | used == set(Code.__members__)


def test_the_pages_for_programs_are_those_that_the_tool_makes():
    made = runpy.run_path(str(ROOT / "tools" / "write_agents.py"))["write_pages"]()
    stored = {name: (DOCS / name).read_text(encoding="utf-8") for name in made}
    assert stored == made, "run python tools/write_agents.py"
