"""A plugin of pytest that blocks the prover, stepaudit and torch: `pytest -p without_prover`, with this folder on the path.

A test that imports one of these itself tests both parts, and is skipped. Any other one must pass, by its first case: the other
cases take the same imports.
"""

import importlib.abc
import sys
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

BLOCKED: Final = ("kgverify.prover", "stepaudit", "torch", "triton")


class _Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if not any(name == each or name.startswith(f"{each}.") for each in BLOCKED):
            return
        importer = _find_importer(sys._getframe(1))
        if importer is not None and importer.is_relative_to(Path(__file__).parent):
            pytest.skip(f"tests {name} as well", allow_module_level=True)
        raise ModuleNotFoundError(f"{name} is blocked", name=name)


def _find_importer(frame: FrameType | None) -> Path | None:
    """Return the file with the import that led here."""
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return None if frame is None else Path(frame.f_code.co_filename)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the first case of each test."""
    first: dict[str, pytest.Item] = {}
    for item in items:
        if item.get_closest_marker("deep") is None and item.get_closest_marker("exhaustive") is None:
            first.setdefault(item.nodeid.partition("[")[0], item)
    items[:] = first.values()


sys.meta_path.insert(0, _Refuse())
