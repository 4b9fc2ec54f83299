"""Custom operators of a step, each checked by `torch.library.opcheck` on the arguments of its first use."""

import re
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

_OF_TORCH: Final = re.compile(
    "_.*|aten|prims?|c10d(_functional)?|debug_mode_ops|debugprims|export|fsdp|higher_order|inductor(_prims)?|mkl|onednn|"
    "mkldnn(_prepacked)?|profiler|quantization|quantized(_decomposed)?|rngprims|sparse|static_runtime|streams|symm_mem"
)
"""The namespaces of torch's own operators."""


class UseOfOperator(NamedTuple):
    """A call of an operator. where: its line, as `file:line`."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    where: str


def note_use(uses: dict[Any, UseOfOperator], operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note the first use of an operator that torch does not define, which is about to run, with copies of its arguments."""
    space = getattr(operator, "namespace", "aten")
    if operator not in uses and not _OF_TORCH.fullmatch(space):
        args, kwargs = deepcopy_values((args, kwargs))
        uses[operator] = UseOfOperator(args, kwargs, find_calling_line(sys._getframe(2)))


def find_wrong_operators(uses: Mapping[Any, UseOfOperator], report: ReportBuilder, options: AuditOptions) -> None:
    """Report what each operator declares wrongly to the compiler: schema, gradient, fake kernel, traced code."""
    for operator, use in uses.items():
        options.announce(f"operator {operator.name()}")
        for error, tests in _check(operator, use, options.patience).items():
            finding = f"{operator.name()} fails {' and '.join(tests)} of torch.library.opcheck: {error}"
            report.find("custom-operators", finding, use.where)


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
