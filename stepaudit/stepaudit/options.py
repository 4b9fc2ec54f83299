"""The options of an audit, and the rungs of the compiler, that is, the ways to run a function that are compared with eager."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch._functorch.config
import torch._inductor.config

from stepaudit.errors import UserError, check_names
from stepaudit.isolation import SECONDS
from stepaudit.values import Precision

COMPILE_MODES: Final = tuple(torch._inductor.list_mode_options())


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
        return self == GIVEN or (self.options or {}).get("backend") == "inductor"

    @property
    def draws_as_eager(self) -> bool:
        """True if compiled code draws the random numbers of eager: nothing decomposes the operations that draw them."""
        return self == EAGER or (self.options or {}).get("backend") in ("eager", "aot_eager")


WITHOUT_CACHES: Final[tuple[tuple[Any, dict[str, bool]], ...]] = (
    (torch._inductor.config, {"fx_graph_cache": False, "fx_graph_remote_cache": False}),
    (torch._functorch.config, {"enable_autograd_cache": False}),
)
"""The settings with which the compiler ignores graphs in the caches, by their modules."""

EAGER: Final = Rung("eager", "nothing", None)
GIVEN: Final = Rung("as-given", "what the step compiles itself", None)
"""The step as it is, which calls functions that are compiled already."""

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
        rungs: the ways to compile that are compared with eager: backend-eager, aot-eager, aot-eager-decomposed, default,
            reduce-overhead, max-autotune; an empty sequence leaves the values out.
        tolerance: the largest absolute and relative error of a float. If not given, a float may differ as far as another
            rounding of the same operations allows.
        exact: whether all bits must be equal.
        signed_zero: whether -0.0 and 0.0 count as different; they are listed in any case.
        mode: of `torch.compile`, for the properties: default, reduce-overhead, max-autotune and the like.
        dynamic: of `torch.compile`, on every rung; if not given, a shape that changes becomes symbolic.
        fullgraph: of `torch.compile`, on every rung: whether a graph break is an error.
        backend: of `torch.compile`, a registered name or a function. Its rung replaces those above `backend-eager`.
        backend_options: the `options` of `torch.compile`. They make another rung, the last one.
        keeps_outputs: whether the caller reads an output after the next call.
        budget: limits on the measures, or a file of them.
        seconds: limit on the CPU time of the searches for the cause and the line of a deviation.
        patience: CPU seconds that the calls of one rung may take, with compilation; what takes longer counts as a call that
            does not return.
        reproducer: the Python file to write where a value deviates.
        repetitions: the number of times that the first call is repeated on equal arguments.
        speed: whether to measure the time of a call, eager beside compiled.
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
    signed_zero: bool = False
    mode: str = "default"
    dynamic: bool | None = None
    fullgraph: bool = False
    backend: str | Callable[..., Any] = "inductor"
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    keeps_outputs: bool = True
    budget: Path | str | Mapping[str, float] | None = None
    seconds: float = 120.0
    patience: float = SECONDS
    reproducer: Path | str | None = None
    repetitions: int = 2
    speed: bool = False
    announce: Callable[[str], None] = lambda what: None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.calls < 1:
            raise UserError(f"expected at least 1 call, found {self.calls}", where="calls", fix="give 1 or more")
        tolerance = self.tolerance
        if tolerance is not None and not tolerance >= 0:
            raise UserError(
                f"expected 0 or more, found {tolerance}", where="tolerance", fix="give an error such as 1e-5"
            )
        if tolerance is not None and self.exact:
            raise UserError("cannot be combined with exact", where="tolerance", fix="give one of the two")
        path = self.script
        if path and (path.suffix != ".py" or path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
            raise UserError(
                "is not a Python file in a folder that exists", where=f"reproducer {path}", fix="give wrong.py"
            )
        check_names("mode", (self.mode,), COMPILE_MODES)
        check_names("rung", self.rungs, RUNG_NAMES)
        if isinstance(self.backend, str):
            check_names("backend", (self.backend,), torch._dynamo.list_backends(None))
        if self.backend == "inductor":
            names = [name.replace("-", "_") for name in self.backend_options]
            check_names("option of Inductor", names, torch._inductor.list_options())

    @property
    def ladder(self) -> list[Rung]:
        """The rungs that are compared with eager, lowest first; the last one has the settings of the user."""
        given = {"dynamic": self.dynamic} if self.dynamic is not None else {}
        given |= {"fullgraph": True} if self.fullgraph else {}
        rungs = [rung for rung in RUNGS if rung.name in self.rungs]
        if self.backend != "inductor":
            options = {"backend": self.backend} | (
                {"options": dict(self.backend_options)} if self.backend_options else {}
            )
            name = self.backend if isinstance(self.backend, str) else getattr(self.backend, "__name__", "a function")
            own = next((rung for rung in RUNGS if rung.options == options), Rung(name, f"the backend {name}", options))
            rungs = [*(rung for rung in rungs if rung.name == "backend-eager" != own.name), own] if rungs else []
        elif rungs and (self.backend_options or self.mode not in ("default", *RUNG_NAMES)):
            name = f"{self.mode} with options" if self.backend_options else self.mode
            rungs.append(
                Rung(name, "Inductor as it is asked for", {"backend": "inductor", "options": self.of_inductor})
            )
        return [rung._replace(options={**(rung.options or {}), **given}) for rung in rungs]

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
        """Inductor's own options: those of the mode, and those of the user."""
        return torch._inductor.list_mode_options(self.mode, self.dynamic) | dict(self.backend_options)

    @property
    def asks_for_graphs(self) -> bool:
        """True if the mode captures CUDA graphs."""
        return bool(self.of_inductor.get("triton.cudagraphs", False))


USUALLY: Final = AuditOptions()
