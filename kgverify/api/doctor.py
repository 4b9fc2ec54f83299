"""An examination of the installation: what is installed, missing or broken, and a self-test."""

import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from itertools import chain, starmap
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from kgverify.engines.table import COMPILED, make_entry
from kgverify.errors import EXTRAS, UserError, describe_error
from kgverify.files.code_identity import COMPILERS, has_mark, keep_mark
from kgverify.graphs import load
from kgverify.graphs.load import DATA_VARIABLE
from kgverify.runs.environment import SELF_TEST, find_result
from kgverify.runs.job import Queries, Split
from kgverify.verification.rounding import count_compilations
from kgverify.version import __version__


class State(StrEnum):
    """The state of one item: present, absent (so a feature is missing), or broken (present but not working)."""

    PRESENT = "present"
    ABSENT = "absent"
    BROKEN = "broken"


class Finding(msgspec.Struct, frozen=True):
    """An item that kgverify needs or can use.

    name:   a package, program, device, folder or setting
    state:  whether it is present and works
    detail: its version or location, or what is missing without it
    fix:    what to do; empty if there is nothing to do
    """

    name: str
    state: State
    detail: str
    fix: str = ""


TOOLS: Final = {
    "C++ compiler": (
        COMPILERS,
        "compiled modes on a CPU",
        "install g++; until then modes are eager or plain",
    ),
    "swipl": (("swipl",), "judges of the reference in kgverify's own tests", ""),
}
"""The programs: the names under which to look for them, what needs them, and what to do without them."""


def examine_installation(*, imports: bool = False) -> list[Finding]:
    """Return what is installed and what is missing, in the order in which a reader asks.

    Args:
        imports: Whether every package that is present is imported, which takes seconds, so that BROKEN means that it was
            tried. Else its version is read.

    Returns:
        One finding for each package, program, device, cache and setting that matters.

    Example:
        >>> from kgverify.api.doctor import examine_installation
        >>> examine_installation()[0].name
        'kgverify'
    """
    own = [
        Finding("kgverify", State.PRESENT, __version__),
        Finding("Python", State.PRESENT, f"{platform.python_version()} on {platform.platform(terse=True)}"),
    ]
    packages = [_examine_package(package, required, imports=imports) for package, required in _required().items()]
    tools = starmap(_examine_tool, TOOLS.items())
    return [*own, *packages, *tools, *_look_at_devices(), *_look_at_caches(imports=imports), _examine_data()]


def _examine_package(package: str, required: SpecifierSet, *, imports: bool) -> Finding:
    try:
        installed = version(package)
    except PackageNotFoundError:
        # A module of that name in the current folder belongs to somebody else.
        extra, needs = EXTRAS.get(package, ("", "kgverify needs"))
        fix = f"pip install 'kgverify[{extra}]'" if extra else f"pip install {package}"
        return Finding(package, State.ABSENT if extra else State.BROKEN, f"{needs} it", fix)
    try:
        # The distribution backports-zstd is the module backports.zstd.
        module = package.replace("-", ".")
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        if imports:
            import_module(module)
    except Exception as error:
        return Finding(package, State.BROKEN, describe_error(error), f"pip install --force-reinstall {package}")
    if required and not required.contains(installed, prereleases=True):
        fix = f"pip install '{package}{required}'"
        return Finding(package, State.BROKEN, f"{installed}; kgverify works with {required}", fix)
    return Finding(package, State.PRESENT, installed)


def _required() -> dict[str, SpecifierSet]:
    """Return the packages that kgverify's metadata names, except those for its tests, with the accepted versions."""
    try:
        named = [Requirement(line) for line in requires("kgverify") or []]
    except PackageNotFoundError:
        named = []
    always = {each.name: each.specifier for each in named if each.marker is None or each.marker.evaluate({"extra": ""})}
    optional = {each.name: each.specifier for each in named if each.name in EXTRAS}
    return always | {package: optional.get(package, SpecifierSet()) for package in EXTRAS}


def _examine_tool(name: str, tool: tuple[Sequence[str], str, str]) -> Finding:
    programs, what, fix = tool
    found = next((path for program in programs if (path := shutil.which(program))), None)
    return Finding(name, State.PRESENT, found) if found else Finding(name, State.ABSENT, f"for {what}", fix)


def _look_at_devices() -> Iterator[Finding]:
    if find_spec("torch") is None:
        return
    evaluator = make_entry(COMPILED)
    if reason := evaluator.why_not_compiled():
        yield Finding("torch.compile", State.BROKEN, reason, "unset this variable")
    try:
        if not evaluator.uses_cuda():
            yield Finding("GPU", State.ABSENT, "there is no driver, or torch finds no device")
            return
        import torch
    except Exception:
        return
    try:
        for device in range(torch.cuda.device_count()):
            seen = torch.cuda.get_device_properties(device)
            torch.zeros(1, device=f"cuda:{device}").add_(1).cpu()
            memory = f"{seen.total_memory / 2**30:.0f} GiB"
            yield Finding(f"GPU {device}", State.PRESENT, f"{seen.name}, {memory}, CUDA {torch.version.cuda}")
    except RuntimeError as error:
        yield Finding(
            "GPU", State.BROKEN, describe_error(error), "install a build of torch for this GPU and its driver"
        )


def _look_at_caches(*, imports: bool) -> Iterator[Finding]:
    graphs = load.find_folder()
    if graphs is not None:
        yield Finding("cache of graphs", State.PRESENT, load.describe_stored(graphs))
    if not imports:
        return
    with suppress(Exception):
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        folder = Path(cache_dir())
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        yield Finding("cache of compiled code", State.PRESENT, f"{folder}, {size / 1e6:,.1f} MB")


def _examine_data() -> Finding:
    name, folder = f"${DATA_VARIABLE}", os.environ.get(DATA_VARIABLE)
    if folder is None:
        return Finding(name, State.ABSENT, "names a folder of graphs, which --graph then takes by name")
    if not Path(folder).is_dir():
        return Finding(name, State.BROKEN, f"there is no folder {folder!r}", f"set or unset {DATA_VARIABLE}")
    graphs = sorted(path.name for path in Path(folder).iterdir() if path.is_dir())
    return Finding(name, State.PRESENT, f"{folder}: {', '.join(graphs) or 'no graph'}")


GRAPH: Final = "countries"
SIZE: Final[dict[str, Any]] = {"number": 4, "corruptions": 10}
FAULTS: Final[dict[str, Split]] = {"fact-cap": "test", "query-matched": "train", "last-argmax": "test"}
"""The faults that every evaluator with replaceable stages supports, each with a split whose queries trigger it."""


def try_installation() -> Iterator[Finding]:
    """Prove the embedded graph with each evaluator on this machine and with the reference, and find planted faults.

    Yields:
        One finding for each evaluator and each fault; BROKEN if the evaluator differs, or the fault is not found.
    """
    modes = make_entry(COMPILED).list_modes()
    mode = "eager" if "eager" in modes else "plain"
    has_passed = bool(modes)
    for found in chain(map(_try_mode, modes), (_find_fault(fault, mode, split) for fault, split in FAULTS.items())):
        has_passed &= found.state is State.PRESENT
        yield found
    if has_passed:
        keep_mark(find_result(), "passed")


def describe_last_test() -> Finding:
    """Return whether the self-test passed in this environment before."""
    if has_mark(find_result()):
        return Finding("self-test", State.PRESENT, "passed in this environment")
    return Finding("self-test", State.ABSENT, "has not passed in this environment", SELF_TEST)


def _verify(evaluator: Any, split: Split = "test") -> Any:
    # Show the list of installed items whatever is broken.
    from kgverify.api.verify import verify

    return verify(GRAPH, evaluator, queries=Queries(**SIZE, split=split))


def _try_mode(mode: str) -> Finding:
    name, began, before = f"self-test: mode {mode}", perf_counter(), count_compilations()[1]
    try:
        report = _verify(make_entry(COMPILED, mode=mode))
    except UserError as error:
        return Finding(name, State.BROKEN, error.message, error.fix or "")
    compiling = count_compilations()[1] - before
    took = f"{perf_counter() - began - compiling:.1f} s, and {compiling:.1f} s of compilation"
    if report.verdict.value == "AGREE":
        return Finding(name, State.PRESENT, f"agrees with the reference: {took}")
    first = report.first_divergence
    what = f"first in {first.stage}" if first is not None else "; ".join(report.reasons)
    return Finding(name, State.BROKEN, f"{report.verdict.value}: {what}", "report this")


def _find_fault(fault: str, mode: str, split: Split) -> Finding:
    name, began = f"self-test: fault {fault}", perf_counter()
    evaluator = make_entry(COMPILED, mode=mode, faults=fault)
    stage = next(each.stage for each, _ in evaluator.catalogue()[0] if each.name == fault)
    first = _verify(evaluator, split).first_divergence
    if first is None or first.stage != stage:
        seen = "nothing" if first is None else f"another stage, {first.stage}"
        return Finding(name, State.BROKEN, f"expected {stage}, found {seen}", "report this")
    return Finding(name, State.PRESENT, f"found in {stage}: {perf_counter() - began:.1f} s")
