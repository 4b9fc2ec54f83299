"""The folder in which kgverify keeps what later processes reuse."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

CACHE: Final = "KGVERIFY_CACHE"
"""The environment variable with the folder; empty: nothing is kept."""


def find_cache() -> Path | None:
    """Return the folder, which need not exist; None if nothing is kept."""
    named = os.environ.get(CACHE)
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    with suppress(RuntimeError):
        return (Path(base) if base else Path.home() / ".cache") / "kgverify"
    return None
