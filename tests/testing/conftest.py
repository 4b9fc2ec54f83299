"""Searches for faults are benchmarks, which lie in a folder of their own; the judges of the reference lie with its tests."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "reference")]
