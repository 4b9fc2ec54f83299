"""What a process may be set to, by any library in it, that would change scores; pinned while the evaluator works."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch

HIGHEST: Final = "highest"
_DEVICES: Final = ("cpu", "cuda")


@contextmanager
def products_set_to(setting: str) -> Iterator[None]:
    """Products of float32 under `highest`, `high` or `medium`, as `torch.set_float32_matmul_precision` means them.

    What was set before is restored: the old setting and, apart from it, the new ones of each library.
    """
    libraries: tuple[Any, ...] = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    before = [getattr(library, "fp32_precision", None) for library in libraries]
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:
        # The new settings contradict it; they alone are restored.
        legacy = None
    torch.set_float32_matmul_precision(setting)
    try:
        yield
    finally:
        if legacy is not None:
            torch.set_float32_matmul_precision(legacy)
        for library, value in zip(libraries, before, strict=True):
            if value is not None:
                library.fp32_precision = value


@contextmanager
def pinned_arithmetic() -> Iterator[None]:
    """Products of float32 in float32, and no autocast: the precision of scores is the one declared, nothing else's."""
    with ExitStack() as stack:
        stack.enter_context(products_set_to(HIGHEST))
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
