"""Everything that kgverify stores and reuses, in the current folder: run by test_runs_code_identity.py in processes of its own.

Prints, as JSON, whether each was reused. `python stored_conclusions.py [LIMITS] [DIALECT] [numpy=VERSION]`
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import kgverify as kv
from kgverify import UserError
from kgverify.dialects import Dialect
from kgverify.files import code_identity
from kgverify.graphs import load
from kgverify.prover.native import library

MINE, OTHER = "my.py:engine", "my.py:other"
REFUSED = "refused"
LIMITS = kv.Limits(max_depth=5) if "limits" in sys.argv else kv.Limits()
if "dialect" in sys.argv:
    LIMITS = kv.Limits(dialect=Dialect(order="facts_first"))
DIALECT = LIMITS.dialect
RUN: dict[str, Any] = {"queries": 2, "corruptions": 3, "limits": LIMITS}


def evaluate(engine: str | kv.Evaluator, **options: Any) -> bool:
    name = f"parts {engine} {options}".translate(str.maketrans(" /:'{}", "______"))
    found = kv.evaluate(
        "countries",
        engine,
        save=name,
        **RUN | options,
        options=kv.EvaluationOptions(part_size=4, check=0, minimum="none"),
    )
    return found.num_parts_resumed > 0


def record(level: str, engine: str, *, as_reference: bool = False) -> bool:
    path = Path(f"recording-{level}-{'reference' if as_reference else 'engine'}.h5")
    options = kv.RecordingOptions(level=level, as_reference=as_reference)
    run = RUN | {"queries": 24, "corruptions": 24}
    proved = 0

    def stop_in_the_second_chunk(num: int) -> None:
        nonlocal proved
        proved += num
        if proved > 512:
            raise KeyboardInterrupt

    if path.with_name(f"{path.name}.partial").exists():
        return kv.record("countries", path, engine, **run, options=replace(options, resume=True)).num_resumed > 0
    try:
        kv.record("countries", path, engine, **run, options=options, progress=stop_in_the_second_chunk)
    except KeyboardInterrupt:
        return False
    raise AssertionError("was not interrupted")


def fuzz(engine: str, reference: str = "reference") -> bool:
    corpus = f"corpus-{engine[:4]}-{reference[:4]}"
    options = kv.FuzzOptions(minimum="none", dialect=DIALECT)
    return kv.fuzz(engine, reference=reference, examples=20, corpus=corpus, options=options).num_resumed > 0


def native_library() -> bool:
    compiled = []
    before = library._compile

    def compile_now(*given: Any) -> Path:
        compiled.append(given)
        return before(*given)

    library._compile = compile_now
    library.load_library.__wrapped__()
    library._compile = before
    return not compiled


def graph() -> bool:
    load.SMALLEST = 0
    texts = {"train": Path("facts.tsv")}
    before = len(list((load.find_folder() or Path()).glob("*.graph")))
    kv.load_graph(**texts)
    return len(list((load.find_folder() or Path()).glob("*.graph"))) == before


CONCLUSIONS: dict[str, Callable[[], bool]] = {
    "native library": native_library,
    "graph": graph,
    "log of an engine": lambda: fuzz(MINE),
    "log of a reference": lambda: fuzz("reference", MINE),
    "parts": lambda: evaluate(MINE),
    "parts of two engines": lambda: evaluate(OTHER),
    "parts of the reference": lambda: evaluate("reference"),
    "parts with weights": lambda: evaluate("reference", policy="weights.safetensors"),
    "parts of the native evaluator": lambda: evaluate(kv.Evaluator(mode="native"), policy="weights.safetensors"),
    "recording": lambda: record("steps", MINE),
    "compact recording": lambda: record("compact", "reference"),
    "deep recording": lambda: record("deep", "reference"),
    "recording of a reference": lambda: record("steps", MINE, as_reference=True),
}


def ask(conclusion: Callable[[], bool]) -> bool | str:
    try:
        return conclusion()
    except UserError as error:
        return f"{REFUSED}: {error.message}"


if __name__ == "__main__":
    if versions := dict(word.split("=") for word in sys.argv[1:] if "=" in word):
        installed = code_identity.version
        code_identity.version = lambda name: versions.get(name) or installed(name)
    print(json.dumps({name: ask(conclusion) for name, conclusion in CONCLUSIONS.items()}))
