"""The engines of known dialects are those of the benchmark, which finds the second prover and the examples itself."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import proposed_dialects as proposed_dialects
