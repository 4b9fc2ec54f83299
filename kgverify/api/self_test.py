"""`kgverify doctor --self-test`: the embedded graph by every evaluator of this machine, and planted faults that must be found."""

from collections.abc import Iterator
from time import perf_counter
from typing import Any, Final

from kgverify.api.doctor import Finding, State
from kgverify.engines.table import COMPILED, make_entry
from kgverify.errors import UserError
from kgverify.files.cache import has_mark, keep_mark
from kgverify.runs.environment import SELF_TEST, find_result
from kgverify.verification.compilation_log import count_compilations

GRAPH: Final = "countries"
SIZE: Final[dict[str, Any]] = {"queries": 4, "corruptions": 10}
FAULTS: Final = ("fact-cap", "query-matched", "last-argmax")
"""Those that every evaluator with replaceable stages carries."""


def try_installation() -> Iterator[Finding]:
    """Prove the embedded graph by each evaluator of this machine and by the reference, and find planted faults.

    Yields:
        One finding for each evaluator and each fault; BROKEN if the evaluator differs, or the fault is not found.
    """
    states = []
    modes = make_entry(COMPILED).list_modes()
    for mode in modes:
        states.append(found := _try_mode(mode))
        yield found
    mode = "eager" if "eager" in modes else "plain"
    for fault in FAULTS:
        states.append(found := _find_fault(fault, mode))
        yield found
    if states and all(each.state is State.PRESENT for each in states):
        keep_mark(find_result(), "passed")


def describe_last_test() -> Finding:
    """Return whether the self-test passed in this environment before."""
    if has_mark(find_result()):
        return Finding("self-test", State.PRESENT, "passed in this environment")
    return Finding("self-test", State.ABSENT, "has not passed in this environment", SELF_TEST)


def _try_mode(mode: str) -> Finding:
    # The list of what is installed is shown whatever is broken.
    from kgverify.api.verify import verify

    began, before = perf_counter(), count_compilations()[1]
    try:
        report = verify(GRAPH, make_entry(COMPILED, mode=mode), **SIZE)
    except UserError as error:
        return Finding(f"self-test: mode {mode}", State.BROKEN, error.message, error.fix or "")
    compiling = count_compilations()[1] - before
    took = f"{perf_counter() - began - compiling:.1f} s, and {compiling:.1f} s of compilation"
    if report.verdict.value == "AGREE":
        return Finding(f"self-test: mode {mode}", State.PRESENT, f"agrees with the reference: {took}")
    first = report.first_divergence
    what = f"first in {first.stage}" if first is not None else "; ".join(report.reasons)
    return Finding(f"self-test: mode {mode}", State.BROKEN, f"{report.verdict.value}: {what}", "report this")


def _find_fault(name: str, mode: str) -> Finding:
    from kgverify.api.verify import verify

    began = perf_counter()
    evaluator = make_entry(COMPILED, mode=mode, faults=name)
    stage = next(fault.stage for fault, _ in evaluator.catalogue()[0] if fault.name == name)
    first = verify(GRAPH, evaluator, **SIZE).first_divergence
    if first is None or first.stage != stage:
        seen = "nothing" if first is None else f"another stage, {first.stage}"
        return Finding(f"self-test: fault {name}", State.BROKEN, f"expected {stage}, found {seen}", "report this")
    return Finding(f"self-test: fault {name}", State.PRESENT, f"found in {stage}: {perf_counter() - began:.1f} s")
