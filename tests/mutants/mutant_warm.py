"""The preparation of a process, made once before it forks for the trials."""

import contextlib
import importlib
import pkgutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from invoked_commands import invoke

import kgverify

PACKAGES: Final = ("kgverify", "kgreference")


def warm_up() -> None:
    """Import every module, and run a few commands on the original, which import what they need and warm torch up.

    What the original computed is forgotten: a mutant must compute it again.
    """
    for info in pkgutil.walk_packages(kgverify.__path__, "kgverify."):
        if not info.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(info.name)
    eager = ("--graph", "countries", "--mode", "eager", "--queries", "2")
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        invoke(["diff", *eager, "--fault", "fact-cap", "--save", run])
        invoke(["report", run])
        invoke(["evaluate", *eager])
    forget_caches()


def forget_caches() -> None:
    """Clear the caches of functions of our own modules."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES:
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
