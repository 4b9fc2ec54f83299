"""The folder of the recorded steps of provers that kgverify did not write."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("KGVERIFY_FOREIGN", Path(os.environ.get("KGVERIFY_DATA", ".")) / ".." / "foreign"))

needs_records = pytest.mark.skipif(
    not (FOLDER / "program_family.json").is_file(), reason="KGVERIFY_FOREIGN names no folder with the recorded steps"
)
