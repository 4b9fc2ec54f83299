"""The folders in which kgverify keeps what would take long to find again."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

CACHE: Final = "KGVERIFY_CACHE"
"""The environment variable with the folder of all caches; empty: nothing is kept."""


def find_cache(name: str) -> Path | None:
    """Return the folder of one cache; None if nothing is kept. It need not exist."""
    named = os.environ.get(CACHE)
    if named is not None:
        return Path(named) / name if named else None
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    with suppress(RuntimeError):
        return (Path(base) if base else Path.home() / ".cache") / "kgverify" / name
    return None
