"""The options of an audit, and the rungs of the compiler, that is, the ways to run a function that are compared with eager."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch._inductor

from stepaudit.errors import UserError, suggest
from stepaudit.isolation import SECONDS
from stepaudit.values import Precision

COMPILE_MODES: Final = ("default", "reduce-overhead", "max-autotune")


class Rung(NamedTuple):
    """A way to run a function.

    adds:    the work of the compiler that the rung below does not do
    options: the options of `torch.compile`; None leaves the function unchanged
    """

    name: str
    adds: str
    options: dict[str, Any] | None

    @property
    def has_caches(self) -> bool:
        """True if Inductor takes part. Its caches keep graphs and kernels."""
        return (self.options or {}).get("backend") == "inductor"


EAGER: Final = Rung("eager", "nothing", None)

RUNGS: Final = (
    EAGER,
    Rung("backend-eager", "tracing by Dynamo", {"backend": "eager"}),
    Rung("aot-eager", "functionalization by AOTAutograd", {"backend": "aot_eager"}),
    Rung("aot-eager-decomposed", "decompositions and the partitioner", {"backend": "aot_eager_decomp_partition"}),
    Rung("default", "Inductor: its passes, lowerings and generated kernels", {"backend": "inductor"}),
    Rung("reduce-overhead", "CUDA graphs", {"backend": "inductor", "mode": "reduce-overhead"}),
    Rung("max-autotune", "kernels chosen by measuring", {"backend": "inductor", "mode": "max-autotune"}),
)
RUNG_NAMES: Final = tuple(rung.name for rung in RUNGS[1:])


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """The options of an audit.

    Args:
        name: the name in the report; the function's own if not given.
        calls: the number of different calls to make.
        device: the device to which the inputs are moved; `auto` leaves them where they are.
        rungs: the ways to compile that are compared with eager; none leaves the values out.
        tolerance: the largest absolute and relative error of a float. If not given, a float may differ as far as another
            rounding of the same operations allows.
        exact: whether all bits must be equal.
        mode: of `torch.compile`, for the properties: default, reduce-overhead or max-autotune.
        dynamic: of `torch.compile`; None lets a shape that changes become symbolic.
        keeps_outputs: whether the caller reads an output after the next call.
        budget: limits on the measures, or a file of them.
        seconds: limit on the CPU time of the searches for the cause and the line of a deviation.
        patience: CPU seconds that the calls of one rung may take, with compilation; what takes longer counts as a call that
            does not return.
        reproducer: the Python file to write where a value deviates.
        repetitions: the number of times that the first call is repeated on equal arguments.
        announce: receives the name of the work that begins.

    Raises:
        UserError: for values that are unknown, out of range, or exclude each other.
    """

    name: str = ""
    calls: int = 6
    device: str = "auto"
    rungs: Sequence[str] = RUNG_NAMES
    tolerance: float | None = None
    exact: bool = False
    mode: str = "default"
    dynamic: bool | None = None
    keeps_outputs: bool = True
    budget: Path | str | Mapping[str, float] | None = None
    seconds: float = 120.0
    patience: float = SECONDS
    reproducer: Path | str | None = None
    repetitions: int = 2
    announce: Callable[[str], None] = lambda what: None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.calls < 1:
            raise UserError(f"expected at least 1 call, found {self.calls}", where="calls", fix="give 1 or more")
        if self.tolerance is not None and not self.tolerance >= 0:
            raise UserError(
                f"expected 0 or more, found {self.tolerance}", where="tolerance", fix="give an error such as 1e-5"
            )
        if self.tolerance is not None and self.exact:
            raise UserError("cannot be combined with exact", where="tolerance", fix="give one of the two")
        path = self.script
        if path and (path.suffix != ".py" or path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
            raise UserError(
                "is not a Python file in a folder that exists", where=f"reproducer {path}", fix="give wrong.py"
            )
        check_names("mode", (self.mode,), COMPILE_MODES)
        check_names("rung", self.rungs, RUNG_NAMES)

    @property
    def ladder(self) -> list[Rung]:
        """The rungs that are compared with eager, lowest first."""
        return [rung for rung in RUNGS if rung.name in self.rungs]

    @property
    def script(self) -> Path | None:
        """The path of the reproducer, if one is requested."""
        return Path(self.reproducer) if self.reproducer is not None else None

    @property
    def precision(self) -> Precision:
        """The differences that count."""
        return Precision(self.tolerance, self.exact)

    @property
    def of_inductor(self) -> dict[str, Any]:
        """Inductor's own options of the mode."""
        return torch._inductor.list_mode_options(self.mode)

    @property
    def asks_for_graphs(self) -> bool:
        """True if the mode captures CUDA graphs."""
        return bool(self.of_inductor.get("triton.cudagraphs", False))


def check_names(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise UserError for an unknown name of a mode or a rung."""
    for name in names:
        if name not in known:
            fix = suggest(name, known) or f"choose {', '.join(known)}"
            raise UserError(f"unknown {what} {name!r}", where=what, fix=fix)


USUALLY: Final = AuditOptions()
