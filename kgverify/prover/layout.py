"""The sizes of the batch. They change speed and memory, and nothing in any derivation."""

from typing import Final

from kgverify.errors import UserError
from kgverify.program.limits import Limits
from kgverify.prover.state import Layout

MEMORY_BUDGET: Final = 8 << 30
"""The most bytes that the buffers of an engine may take."""


def choose_layout(
    limits: Limits,
    *,
    slots: int = 256,
    atoms: int | None = None,
    resolvents: int | None = None,
    match_window: int | None = None,
    score_window: int | None = None,
    pool: int = 16384,
) -> Layout:
    """Return a layout for the limits; sizes not given follow from them. UserError as in `check_layout`."""
    layout = Layout(
        slots=slots,
        atoms=limits.max_atoms if atoms is None else atoms,
        resolvents=limits.max_resolvents if resolvents is None else resolvents,
        match_window=max(1024, 16 * slots) if match_window is None else match_window,
        score_window=max(limits.max_resolvents, 8 * slots) if score_window is None else score_window,
        pool=pool,
    )
    check_layout(layout, limits)
    return layout


def check_layout(layout: Layout, limits: Limits) -> None:
    """Raise UserError if a size is too small for the limits, or the buffers would take too much memory."""
    least = Layout(1, limits.max_atoms, limits.max_resolvents, 1, limits.max_resolvents, 1)
    for name, size, needed in zip(layout._fields, layout, least, strict=True):
        if size < needed:
            raise UserError(
                f"{name} is {size}; these limits need at least {needed}",
                where=name,
                fix=f"choose {name} >= {needed}, or lower the limits",
            )
    # Goals visited and clauses kept, twice: before and after a tick.
    num_bytes = 2 * layout.slots * (12 * layout.atoms * (limits.max_depth + 1) + 8 * (layout.resolvents + 1))
    if num_bytes > MEMORY_BUDGET:
        raise UserError(
            f"{layout.slots} slots of {layout.resolvents} resolvents and depth {limits.max_depth} take"
            f" {num_bytes / 2**30:.1f} GiB, more than {MEMORY_BUDGET >> 30} GiB",
            where="layout",
            fix="use fewer slots with --tune, or lower max_resolvents or max_depth of --limits",
        )
