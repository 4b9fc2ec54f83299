"""All property audits of one step."""

import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kgverify.audit.budget import check_budget, exceed_budget, read_budget
from kgverify.audit.environment import describe_environment
from kgverify.audit.finding import AuditReport
from kgverify.audit.properties.aliasing import find_aliasing, find_overwritten, find_unstable_addresses
from kgverify.audit.properties.captured_values import Place, places, restoring
from kgverify.audit.properties.compiled_run import CompileSetting, joint_inputs, quiet_compiler, run_compiled
from kgverify.audit.properties.graph_breaks import find_graph_breaks
from kgverify.audit.properties.graph_size import measure_graphs
from kgverify.audit.properties.guard_holes import find_guard_holes
from kgverify.audit.properties.launches import (
    find_copied_inputs,
    find_missing_replays,
    hearing_skips,
    measure_launches,
    profile_calls,
)
from kgverify.audit.properties.notes import Notes
from kgverify.audit.properties.recompilations import find_recompilations
from kgverify.audit.properties.scatters import find_scatters
from kgverify.audit.properties.syncs import find_cuda_syncs, find_syncs
from kgverify.audit.source_lines import definition_line, stack_line
from kgverify.audit.subject import Function, Inputs, MakeInputs, Subject, make_subject
from kgverify.engines.compiled.execution.caches import fresh_caches
from kgverify.engines.compiled.execution.compilation import MODES, has_cpp_compiler
from kgverify.engines.compiled.execution.device import resolve_device
from kgverify.errors import UserError

COMPILED_MODES: Final = tuple(mode for mode in MODES if mode not in ("eager", "fused"))
GUARD_SECONDS: Final = 20.0
"""For changing what a step closes over, place by place."""

Tell = Callable[[str], None]
"""Told of what begins."""


def audit_step(
    fn: Function,
    make_inputs: Callable[[], Inputs] | MakeInputs,
    *,
    name: str = "",
    device: str = "auto",
    mode: str = "default",
    calls: int = 6,
    budget: Path | str | Mapping[str, float] | None = None,
    dynamic: bool | None = None,
    keeps_outputs: bool = True,
    has_fresh_cache: bool = True,
) -> AuditReport:
    """Look at one's own step function, property by property, as `torch.compile` makes it run.

    fn:              any function of tensors, nested in tuples, lists, dicts and named tuples, and of plain values
    make_inputs:     the arguments, a tuple; with the number of the call, from 0, if it takes one
    device:          where the inputs are moved to; `auto` leaves them where they are
    mode:            of `torch.compile`: default, reduce-overhead or max-autotune
    calls:           how many different ones are made
    budget:          limits, or a file of them
    keeps_outputs:   whether the caller reads an output after the next call
    has_fresh_cache: whether nothing compiled earlier is taken, as it must be where compile time matters

    Whatever this process has compiled before is compiled again when it is called next. UserError for arguments that do not
    fit, and for a function that raises without the compiler.
    """
    if calls < 1:
        raise UserError(f"expected at least 1 call, found {calls}", where="calls", fix="give 1 or more")
    limits = read_budget(Path(budget)) if isinstance(budget, (str, Path)) else check_budget(budget or {})
    subject = make_subject(name or getattr(fn, "__name__", type(fn).__name__), fn, make_inputs)
    subject = replace(subject, calls=calls)
    if device != "auto":
        on, made = resolve_device(device), subject.make_inputs
        subject = replace(subject, make_inputs=lambda call: _moved(made(call), on))
    setting = CompileSetting(mode, dynamic)
    return audit_subject(subject, setting, budget=limits, keeps_outputs=keeps_outputs, has_fresh_cache=has_fresh_cache)


def audit_subject(
    subject: Subject,
    setting: CompileSetting,
    *,
    budget: Mapping[str, float] | None = None,
    keeps_outputs: bool = True,
    has_fresh_cache: bool = True,
    is_in_fresh_cache: bool = False,
    stage_seconds: float = 60.0,
    tell: Tell = lambda _: None,
) -> AuditReport:
    """Every property audit of a subject, and the costs of each of its parts.

    has_fresh_cache, is_in_fresh_cache: whether one is to be made, or has been made by the caller
    stage_seconds:                      most time for compiling the parts
    """
    if setting.mode not in COMPILED_MODES:
        raise UserError(
            f"mode {setting.mode!r} is none of torch.compile",
            where="--mode",
            fix=f"choose of {', '.join(COMPILED_MODES)}",
        )
    notes = Notes()
    found = places(subject.function)
    is_cuda = _is_on_cuda(subject, found)
    if not is_cuda and not has_cpp_compiler():
        raise UserError("a CPU backend needs a C++ compiler", where="--mode", fix="install g++ or clang")
    tell("reading values, colliding writes")
    num_eager = _look_eagerly(subject, found, notes)
    tell("guards")
    find_guard_holes(subject, setting, found, notes, GUARD_SECONDS)
    with fresh_caches() if has_fresh_cache and not is_in_fresh_cache else nullcontext():
        tell("compiling")
        with quiet_compiler(), restoring(found):
            _look_compiled(subject, setting, found, notes, num_eager, is_cuda=is_cuda, keeps_outputs=keeps_outputs)
        _look_at_parts(subject, setting, notes, stage_seconds, tell, is_cuda=is_cuda)
    findings = tuple(notes.findings)
    overruns, unchecked = exceed_budget(budget or {}, notes.measures, findings)
    return AuditReport(
        subject=subject.name,
        findings=findings,
        unmeasured=(*notes.unmeasured, *unchecked),
        measures=notes.measures,
        overruns=overruns,
        details=notes.details,
        environment=describe_setting(setting, is_cuda=is_cuda, has_fresh_cache=has_fresh_cache or is_in_fresh_cache),
    )


def _look_eagerly(subject: Subject, found: list[Place], notes: Notes) -> int:
    try:
        with restoring(found):
            num_eager = find_syncs(subject, notes)
        find_scatters(subject, found, notes)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{subject.name} raises without the compiler: {type(error).__name__}: {error}",
            where=stack_line(traceback.extract_tb(error.__traceback__)) or definition_line(subject.function),
            fix="audit a function that returns on these inputs",
        ) from error
    return num_eager


def _look_compiled(
    subject: Subject,
    setting: CompileSetting,
    found: list[Place],
    notes: Notes,
    num_eager: int,
    *,
    is_cuda: bool,
    keeps_outputs: bool,
) -> None:
    hears = is_cuda and setting.asks_for_graphs
    silence: AbstractContextManager[list[str]] = nullcontext([])
    with hearing_skips() if hears else silence as skips:
        limit = torch._dynamo.config.recompile_limit
        run, compiled = run_compiled(subject, setting, more_calls=max(0, limit + 2 - subject.calls))
        find_graph_breaks(run, num_eager, notes)
        find_recompilations(run, num_eager, notes)
        measure_graphs(run, notes)
        if run.error is not None:
            notes.skip("launches", "the compiled function raised")
            return
        with restoring(found):
            find_aliasing(subject, run, found, notes)
        find_overwritten(subject, run, notes, keeps_outputs=keeps_outputs)
        find_unstable_addresses(subject, run, notes)
        inputs = joint_inputs(subject, range(subject.calls))
        with restoring(found):
            seen = profile_calls(subject, compiled, inputs, is_cuda=is_cuda)
        measure_launches(run, seen, len(inputs), notes, is_cuda=is_cuda)
        with restoring(found):
            find_cuda_syncs(subject, compiled, notes, is_cuda)
        if is_cuda:
            find_missing_replays(run, seen, skips, len(inputs), notes)
            with restoring(found):
                find_copied_inputs(subject, run, compiled, inputs, found, notes)


def _look_at_parts(
    subject: Subject, setting: CompileSetting, notes: Notes, seconds: float, tell: Tell, *, is_cuda: bool
) -> None:
    """What each part costs by itself: calls of aten, kernels, nodes, compile time; on CUDA launches and device time."""
    until = time.monotonic() + seconds
    left = []
    for name, part in subject.parts.items():
        prefix = f"stages.{name}."
        single, own = replace(part, calls=1), Notes()
        tell(f"stage {name}")
        notes.measures[f"{prefix}aten_calls"] = find_syncs(single, own)
        if time.monotonic() > until:
            left.append(name)
            continue
        with quiet_compiler():
            run, compiled = run_compiled(single, setting)
            measure_graphs(run, notes, prefix)
            if run.error is not None:
                notes.skip("stages", f"{name} raised when compiled: {type(run.error).__name__}")
            elif is_cuda:
                seen = profile_calls(single, compiled, joint_inputs(single, range(1)), is_cuda=True)
                notes.measures[f"{prefix}launches"] = seen.num_launches
                notes.measures[f"{prefix}device_kernels"] = seen.num_kernels
                notes.measures[f"{prefix}device_seconds"] = seen.device_seconds
    if left:
        notes.skip("stages", f"not compiled by themselves, for want of time: {', '.join(left)}")


def _moved(inputs: Any, device: torch.device) -> Any:
    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, inputs)


def _is_on_cuda(subject: Subject, found: list[Place]) -> bool:
    leaves = [*pytree.tree_leaves(subject.inputs(0)), *(place.get() for place in found)]
    return any(isinstance(leaf, Tensor) and leaf.device.type == "cuda" for leaf in leaves)


def describe_setting(setting: CompileSetting, *, is_cuda: bool, has_fresh_cache: bool) -> dict[str, str]:
    """What the measures depend on."""
    return describe_environment(
        "cuda" if is_cuda else "cpu",
        mode=setting.mode,
        dynamic=str(setting.dynamic),
        cache="fresh" if has_fresh_cache else "the process's own",
    )
