"""Write the stored outputs of the locked cases anew: `python tests/locked/write_outputs.py [-k NAME]`.

The expectations of stated.toml are written by hand, and still have to hold.
"""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

if __name__ == "__main__":
    os.environ["KGVERIFY_WRITE_OUTPUTS"] = "1"
    (HERE / "outputs").mkdir(exist_ok=True)
    if len(sys.argv) == 1:
        for path in (HERE / "outputs").glob("*.txt"):
            path.unlink()
    sys.exit(pytest.main([str(HERE), "-n", "0", "-q", *sys.argv[1:]]))
