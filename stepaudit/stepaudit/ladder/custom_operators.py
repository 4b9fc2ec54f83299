"""Custom operators of a step, each checked by `torch.library.opcheck` on the arguments of its first use."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch

from stepaudit.errors import describe_error
from stepaudit.isolation import run_isolated
from stepaudit.options import AuditOptions
from stepaudit.report import ReportBuilder
from stepaudit.source_lines import find_calling_line
from stepaudit.values import deepcopy_values

AUDIT: Final = "custom-operators"
_OF_TORCH: Final = frozenset(
    (
        *(
            "aten",
            "prims",
            "prim",
            "profiler",
            "inductor",
            "inductor_prims",
            "quantized",
            "quantized_decomposed",
            "mkl",
        ),
        *("mkldnn", "mkldnn_prepacked", "onednn", "sparse", "c10d", "c10d_functional", "symm_mem", "rngprims", "fsdp"),
        *("debugprims", "static_runtime", "quantization", "export", "streams", "higher_order", "debug_mode_ops"),
    )
)
"""The namespaces of torch's own operators, besides those that begin with an underscore."""


class UseOfOperator(NamedTuple):
    """A call of an operator. where: its line, as `file:line`."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    where: str


def note_use(uses: dict[Any, UseOfOperator], operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note the first use of an operator that torch does not define, which is about to run, with copies of its arguments."""
    space = getattr(operator, "namespace", "aten")
    if operator not in uses and space not in _OF_TORCH and not space.startswith("_"):
        args, kwargs = deepcopy_values((args, kwargs))
        uses[operator] = UseOfOperator(args, kwargs, find_calling_line(sys._getframe(2)))


def find_wrong_operators(uses: Mapping[Any, UseOfOperator], report: ReportBuilder, options: AuditOptions) -> None:
    """Report what each operator declares wrongly to the compiler: schema, gradient, fake kernel, traced code."""
    for operator, use in uses.items():
        options.announce(f"operator {operator.name()}")
        for error, tests in _check(operator, use, options.patience).items():
            report.find(
                AUDIT,
                mechanism="the compiler believes the schema, the fake kernel and the gradient of a custom operator",
                finding=f"{operator.name()} fails {' and '.join(tests)} of torch.library.opcheck: {error}",
                where=use.where,
                remedy="repair how it is registered until torch.library.opcheck passes",
            )


def _check(operator: Any, use: UseOfOperator, seconds: float) -> dict[str, list[str]]:
    """Return the errors of `opcheck`, each with the tests that end in it."""
    failures: dict[str, list[str]] = {}

    def check(send: Callable[[tuple[str, str]], None]) -> None:
        for test, result in torch.library.opcheck(operator, use.args, use.kwargs, raise_exception=False).items():
            if isinstance(result, Exception):
                send((describe_error(result), test))

    def receive(sent: tuple[str, str]) -> None:
        failures.setdefault(sent[0], []).append(sent[1])

    if end := run_isolated(check, receive, seconds=seconds):
        failures[f"the process ended: {end}"] = ["a test"]
    return failures
