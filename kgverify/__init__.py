"""kgverify: find the step where a compiled knowledge-graph prover stops agreeing with a reference prover.

    >>> import kgverify as kv
    >>> report = kv.verify("countries", kv.Evaluator(mode="eager"), queries=2, corruptions=5)
    >>> report.verdict.value
    'AGREE'

Everything public is here, and in `kgverify.strategies`, `kgverify.laws`, `kgverify.dialects` and `kgverify.kinds`. Other
modules are internal: they may change without notice. `import kgverify` loads neither torch nor h5py nor numpy; each name
loads what it needs.
"""

from kgverify.version import __version__ as __version__

_TYPES = "# isort: split"
"""The line of the stub before the types of signatures."""


def _read_names():
    """Return two tables from the names in the stub to their modules: what users call, and the types of signatures."""
    with open(f"{__path__[0]}/__init__.pyi", encoding="utf-8") as stub:
        parts = stub.read().split(_TYPES)
    rows = [[line.split() for line in part.split("\n") if line.startswith("from ")] for part in parts]
    return [{name: home for _, home, _, name, *_ in each} for each in rows]


_OFFERED, _OTHERS = _read_names()
_HOMES = _OFFERED | _OTHERS
__all__ = sorted(_OFFERED)


def __getattr__(name):
    from importlib import import_module

    if name in ("dialects", "kinds", "laws", "strategies"):
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__():
    return sorted({*globals(), *_HOMES})
