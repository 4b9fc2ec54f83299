"""The tick: a window of clauses is tried for all slots, and every slot whose step is complete takes it.

A tick has fixed shapes and no host synchronisation, however many clauses match. A slot with more clauses than fit stays
in the middle of its step until later ticks have tried them all: there is no cap. Which tick a step is completed in
changes nothing in it.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

from kgverify.program.limits import Limits
from kgverify.prover.program.tables import Tables
from kgverify.prover.stages.choose import Parameters
from kgverify.prover.stages.match import clause_heads, expand, gather_items, origin_kinds
from kgverify.prover.stages.rescore import Rescoring, rescore
from kgverify.prover.stages.resolve import count_by_slot, first_by_slot
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.state import (
    GOAL,
    OPEN,
    PAD,
    RULE,
    TRUE,
    Derivations,
    Items,
    Layout,
    Rows,
    Segments,
    StepRecord,
    Work,
    alter,
)

_COUNTERS: Final = tuple(name for name in Work._fields if name not in ("origin_kind", "origin"))


class Setting(NamedTuple):
    """The settings fixed when a tick is compiled. rescoring: for close choices, where scores are of a fast precision."""

    stages: Stages
    limits: Limits
    layout: Layout
    rescoring: Rescoring | None = None


def tick(
    setting: Setting, tables: Tables, parameters: Parameters, derivations: Derivations, work: Work
) -> tuple[Derivations, Work, StepRecord]:
    """Try a window of clauses; take the steps that are complete."""
    stages = setting.stages
    is_running = derivations.outcome == OPEN
    selected = stages.select(derivations.goal)
    segments = stages.look_up(tables, selected)
    work, is_tried = try_clauses(setting, tables, derivations, work, selected, segments, is_running)

    kind = stages.close(work.num_survivors, work.true_origin_kind, work.num_kept)
    work = stand_alone(work, kind)
    rows, is_taken = form_rows(setting, tables, derivations, work, selected, kind, is_running & is_tried)
    score = score_rows(setting, parameters, derivations, rows, kind)
    gaps = None
    if setting.rescoring is not None:
        score, is_taken, gaps = rescore(setting.rescoring, parameters, derivations.goal, rows, score, kind, is_taken)
    num_resolvents = torch.where(kind == GOAL, work.num_kept, 1)
    choices = stages.choose(kind, num_resolvents, score)
    after = stages.advance(derivations, work, rows, choices, is_taken)
    outcome = stages.finish(after.depth, derivations.outcome, kind, is_taken, setting.limits.max_depth)
    record = StepRecord(
        is_taken, derivations.pool_index, derivations.goal, derivations.depth, outcome, work, rows, choices, gaps
    )
    return alter(after, outcome=outcome), begin_step(work, is_taken), record


def try_clauses(
    setting: Setting,
    tables: Tables,
    derivations: Derivations,
    work: Work,
    selected: Tensor,
    segments: Segments,
    is_running: Tensor,
) -> tuple[Work, Tensor]:
    """Turn one window of clauses into kept resolvents; also return which slots have no clause left to try, bool [B]."""
    stages, limits, layout = setting.stages, setting.limits, setting.layout
    items, held = gather_items(tables, derivations, work, selected, segments, is_running, layout.match_window)
    matches, num_atoms, is_new = try_items(setting, tables, derivations, items)
    is_resolvent = items.is_live & matches
    is_true = is_resolvent & (num_atoms == 0)
    is_survivor = is_resolvent & is_new & ~is_true
    placement = stages.limit(is_survivor, num_atoms, items, held, work, limits.max_atoms, limits.max_resolvents)

    kinds = origin_kinds(items)
    first_true, finds_true = first_by_slot(is_true, held)
    is_first = finds_true & (work.true_origin_kind == 0)
    row = torch.where(placement.is_kept, placement.row, layout.resolvents)
    cursor = work.cursor + held
    num_clauses = segments.num_rules + segments.num_facts
    work = Work(
        cursor=cursor,
        num_survivors=work.num_survivors + count_by_slot(is_survivor, held),
        num_kept=work.num_kept + placement.num_kept,
        dropped_atoms=work.dropped_atoms + placement.dropped_atoms,
        dropped_resolvents=work.dropped_resolvents + placement.dropped_resolvents,
        true_origin_kind=torch.where(is_first, kinds[first_true], work.true_origin_kind),
        true_origin=torch.where(is_first, items.clause[first_true], work.true_origin).int(),
        # The sink takes zeros alone: of several values any may be the last.
        origin_kind=work.origin_kind.index_put((items.slot, row), torch.where(placement.is_kept, kinds, 0)),
        origin=work.origin.index_put((items.slot, row), torch.where(placement.is_kept, items.clause, 0).int()),
    )
    # A proof found makes the clauses after it irrelevant.
    return work, (cursor >= num_clauses) | (work.true_origin_kind != 0)


def try_items(
    setting: Setting, tables: Tables, derivations: Derivations, items: Items
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply the stages from `match_rules` to `revisit` to each clause.

    Returns whether it matches, bool [C], the atoms left of its resolvent, int64 [C], and whether that is new, bool [C]; the
    last two are unspecified where it does not match.
    """
    stages, exclude_query = setting.stages, setting.limits.exclude_query
    head = clause_heads(tables, items, 2 * setting.layout.atoms)
    matches = torch.where(
        items.is_rule,
        stages.match_rules(tables, items, head),
        stages.match_facts(tables, items, head, exclude_query),
    )
    atoms, num_atoms = _resolve(setting, tables, derivations, items, head)
    # A resolvent that the padding cuts off is longer than every goal visited, so its remaining atoms must not be compared.
    is_cut = num_atoms > setting.layout.atoms
    is_new = is_cut | ~stages.revisit(tables, atoms, derivations.visited, items.slot, derivations.depth)
    return matches, num_atoms, is_new


def form_atoms(setting: Setting, tables: Tables, derivations: Derivations, items: Items) -> Tensor:
    """Return the resolvents of clauses that match, int32 [C, A, 3], free rows PAD; all PAD where an item is not live."""
    head = clause_heads(tables, items, 2 * setting.layout.atoms)
    atoms, _ = _resolve(setting, tables, derivations, items, head)
    return torch.where(items.is_live[:, None, None], atoms, PAD)


def _resolve(
    setting: Setting, tables: Tables, derivations: Derivations, items: Items, head: Tensor
) -> tuple[Tensor, Tensor]:
    stages, layout = setting.stages, setting.layout
    raw = stages.resolve(tables, items, head, derivations.goal[items.slot], 2 * layout.atoms)
    pruned, num_atoms = stages.prune(tables, raw, items.query, setting.limits.exclude_query)
    return stages.rename(pruned[:, : layout.atoms]), num_atoms


def stand_alone(work: Work, kind: Tensor) -> Work:
    """Clear the counts of dropped atoms and resolvents where TRUE stands alone."""
    return clear_counts(work, kind == TRUE, "dropped_atoms", "dropped_resolvents")


def clear_counts(work: Work, mask: Tensor, *names: str) -> Work:
    """Set some counts to zero in the slots of a mask, bool [B]."""
    counts = {name: getattr(work, name) for name in names}
    return alter(work, **{name: torch.where(mask, 0, held).to(held.dtype) for name, held in counts.items()})


def form_rows(
    setting: Setting,
    tables: Tables,
    derivations: Derivations,
    work: Work,
    selected: Tensor,
    kind: Tensor,
    is_tried: Tensor,
) -> tuple[Rows, Tensor]:
    """Return the resolvents of as many complete slots as the score window holds, and which slots, bool [B]."""
    layout = setting.layout
    num_rows = torch.where(is_tried & (kind == GOAL), work.num_kept, 0)
    ends = num_rows.cumsum(0)
    is_taken = is_tried & (ends <= layout.score_window)
    slot, row, is_live, _ = expand(torch.where(is_taken, num_rows, 0), layout.score_window)
    row = torch.where(is_live, row, layout.resolvents)
    is_rule = work.origin_kind[slot, row] == RULE
    clause = torch.where(is_live, work.origin[slot, row], 0).long()
    items = Items(slot, is_live, is_rule, clause, selected[slot], derivations.query[slot])
    atoms = form_atoms(setting, tables, derivations, items)
    return Rows(slot, is_live, atoms, ends - num_rows), is_taken


def score_rows(setting: Setting, parameters: Parameters, derivations: Derivations, rows: Rows, kind: Tensor) -> Tensor:
    """Return the scores [B, S], -inf in free rows."""
    layout = setting.layout
    values = setting.stages.score(parameters, derivations.goal, rows.atoms, rows.slot)
    row = torch.where(rows.is_live, torch.arange(layout.score_window, device=values.device) - rows.first[rows.slot], -1)
    shape = (layout.slots, layout.resolvents + 1)
    score = torch.full(shape, -torch.inf, dtype=values.dtype, device=values.device)
    score = score.index_put((rows.slot, row), torch.where(rows.is_live, values, 0.0))[:, : layout.resolvents]
    alone = (kind != GOAL)[:, None] & (torch.arange(layout.resolvents, device=score.device) == 0)
    return torch.where(alone, 0.0, score)


def begin_step(work: Work, is_taken: Tensor) -> Work:
    """Clear the counters of the slots that took their step."""
    return clear_counts(work, is_taken, *_COUNTERS)
