"""The choice of the plain evaluator: without torch, for small runs, and for dialects that no other evaluator supports."""

from importlib.util import find_spec
from typing import Final

from kgverify.errors import UserError

PLAIN: Final = "plain"
"""The mode of the plain evaluator, which is also its name."""


def has_torch() -> bool:
    """Return whether torch is installed, without importing it."""
    try:
        return find_spec("torch") is not None
    except ImportError:
        return False


def choose_plain(mode: str, device: str, precision: str, why: str) -> tuple[str, ...] | None:
    """Return the reasons for choosing the plain evaluator, in words; None if another evaluator is chosen.

    why: the reason why `auto` takes it; empty if it takes another

    UserError if its mode is requested with a device or a precision that it does not support.
    """
    if mode not in ("auto", PLAIN) or (mode == "auto" and not why):
        return None
    lacks = f"device {device}" if device not in ("auto", "cpu") else f"precision {precision}"
    if lacks != "precision float32":
        if mode == "auto":
            return None
        raise UserError(
            f"mode {PLAIN!r} has no {lacks}: it runs on the CPU, in float64", where="--mode", fix="leave it out"
        )
    return (
        f"device cpu: {'as requested' if device == 'cpu' else f'mode {PLAIN} runs on it'}",
        f"mode {PLAIN}: {'as requested' if mode == PLAIN else why}",
        "precision float64: the only one of the mode",
    )
