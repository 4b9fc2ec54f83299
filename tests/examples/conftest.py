"""The folders of the examples whose modules the tests import."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

sys.path.insert(0, str(EXAMPLES / "padded_engine"))
