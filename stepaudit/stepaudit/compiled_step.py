"""A step that is compiled already: the function inside, and the settings with which it is compiled."""

import functools
import types
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final
from unittest.mock import patch

import torch
from torch._dynamo.eval_frame import OptimizeContext, OptimizedModule

from stepaudit.audited_function import Function, Subject
from stepaudit.errors import UserError
from stepaudit.properties.captured_values import find_captured_values
from stepaudit.source_lines import find_definition

_DISTRIBUTED: Final = ("torch.nn.parallel", "torch.distributed")
_FUNCTION: Final = "_torchdynamo_orig_callable"
_BACKEND: Final = "_torchdynamo_orig_backend"


def unwrap_compiled(function: Function) -> tuple[Function, dict[str, Any]]:
    """Return the function that a compiled function or module compiles, and its settings.

    The settings are those of `AuditOptions`: backend, mode, backend_options, dynamic, fullgraph; none for a function that is
    not compiled. UserError if they cannot be read.
    """
    if isinstance(function, functools.partial):
        inner, settings = unwrap_compiled(function.func)
        return functools.partial(inner, *function.args, **function.keywords) if settings else function, settings
    if isinstance(function, types.MethodType):
        inner, settings = unwrap_compiled(function.__func__)
        return types.MethodType(inner, function.__self__) if settings else function, settings
    if isinstance(function, OptimizedModule):
        return function._orig_mod, _read_settings(function.dynamo_ctx, function._orig_mod)
    if isinstance(function, torch.nn.Module):
        call = function._compiled_call_impl
        return function, {} if call is None else _read_settings(_find_context(call), function)
    context = _find_context(function)
    plain: Function = getattr(function, _FUNCTION, function)
    return (function, {}) if context is None else (plain, _read_settings(context, plain))


def is_compiled(function: Any) -> bool:
    """Return whether calls of a function or a module run what torch has compiled."""
    own_call = vars(function).get("_compiled_call_impl") if isinstance(function, torch.nn.Module) else None
    return isinstance(function, OptimizedModule) or own_call is not None or _find_context(function) is not None


def _find_context(function: Any) -> Any:
    """Return the context in which torch calls a function that it compiles; None for other functions."""
    cells = function.__closure__ or () if hasattr(function, _FUNCTION) else ()
    return next((cell.cell_contents for cell in cells if isinstance(cell.cell_contents, OptimizeContext)), None)


def _read_settings(context: Any, function: Function) -> dict[str, Any]:
    try:
        settings = {"dynamic": context._dynamic, "fullgraph": bool(context.fullgraph)}
        backend = context.callback
        while hasattr(backend, _BACKEND):
            backend = getattr(backend, _BACKEND)
        if isinstance(backend, torch._TorchCompileInductorWrapper):
            return settings | _read_inductor(dict(backend.config), backend.dynamic)
        if isinstance(backend, torch._TorchCompileWrapper):
            name, options = backend.compiler_name, backend.kwargs.get("options") or {}
            is_named = name in torch._dynamo.list_backends(None)
            return settings | {"backend": name if is_named else backend.compiler_fn, "backend_options": options}
        return settings | {"backend": backend}
    except AttributeError as error:
        raise UserError(
            f"is compiled already, and its settings cannot be read from torch {torch.__version__}: {error}",
            where=find_definition(function),
            fix="audit the function without torch.compile, and give its settings to the audit",
        ) from error


def _read_inductor(options: dict[str, Any], dynamic: bool | None) -> dict[str, Any]:
    """Return the mode that stands for some options of Inductor, or else the options themselves."""
    for mode in torch._inductor.list_mode_options():
        if torch._inductor.list_mode_options(mode, dynamic) == options:
            return {"mode": mode}
    return {"backend_options": options}


def calling_plainly(function: Function) -> AbstractContextManager[Any]:
    """Let calls of a module run the module itself, if `module.compile()` has replaced them."""
    owner: Any = getattr(function, "__self__", function)
    is_compiled = isinstance(owner, torch.nn.Module) and owner._compiled_call_impl is not None
    return patch.object(owner, "_compiled_call_impl", None) if is_compiled else nullcontext()


def refuse_distributed(subject: Subject) -> None:
    """Raise UserError if a step reaches a module whose calls need other processes or devices, such as DDP and FSDP."""
    inputs = subject.shared_inputs(subject.first)
    owner = getattr(subject.function, "__self__", subject.function)
    for held in (owner, *find_captured_values(subject.function, inputs).holders):
        kinds = type(held).__mro__ if isinstance(held, torch.nn.Module) else ()
        if kind := next((each for each in kinds if each.__module__.startswith(_DISTRIBUTED)), None):
            raise UserError(
                f"reaches a module of {kind.__name__}, and audits support neither DDP nor FSDP",
                where=find_definition(subject.function),
                fix="audit the module inside, in one process",
            )
