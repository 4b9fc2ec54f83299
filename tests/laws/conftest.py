"""The search for the laws that a fault breaks lies with the tests of the generator of problems."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
