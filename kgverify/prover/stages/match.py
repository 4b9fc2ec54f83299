"""Stages `select`, `match_rules` and `match_facts`, and the index that narrows down the clauses to try."""

import torch
from torch import Tensor

from kgverify.prover.program.tables import Tables
from kgverify.prover.state import FACT, RULE, Derivations, Items, Segments, Work


def select(goal: Tensor) -> Tensor:
    """Return the leftmost atom: int32 [..., A, 3] -> int32 [..., 3]."""
    return goal[..., 0, :]


def look_up(tables: Tables, selected: Tensor) -> Segments:
    """Find the clauses that may match the selected atoms, int32 [B, 3], by (predicate, bound argument)."""
    predicate, first, second = selected.long().unbind(-1)
    predicate = predicate.clamp(0, tables.rule_first.shape[0] - 2)
    size = tables.num_constants
    has_first, has_second = first >= 0, second >= 0

    by_second = has_second & ~has_first
    lead = torch.where(by_second, second, torch.where(has_first, first, 0))
    low = (predicate * size + lead) * size + torch.where(has_first & has_second, second, 0)
    width = torch.where(has_first & has_second, 1, torch.where(has_first | has_second, size, size * size))
    bounds = torch.stack((low, low + width))
    begin, end = torch.where(
        by_second,
        torch.searchsorted(tables.second_keys, bounds),
        torch.searchsorted(tables.fact_keys, bounds),
    ).unbind(0)
    rule_first = tables.rule_first[predicate]
    return Segments(
        rule_first=rule_first,
        num_rules=tables.rule_first[predicate + 1] - rule_first,
        fact_first=begin,
        num_facts=end - begin,
        by_second=by_second,
    )


def expand(counts: Tensor, window: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lay ragged rows of `counts`, int64 [B], end to end into a window of fixed size.

    Returns, for each position of the window, its row, int64 [W], its ordinal in the row, int64 [W], and whether it is
    used, bool [W]. Also returns the number of elements of each row in the window, int64 [B].
    """
    ends = counts.cumsum(0)
    starts = ends - counts
    position = torch.arange(window, device=counts.device)
    row = torch.searchsorted(ends, position, right=True).clamp(max=counts.shape[0] - 1)
    held = ends.clamp(max=window) - starts.clamp(max=window)
    return row, position - starts[row], position < ends[-1], held


def gather_items(
    tables: Tables,
    derivations: Derivations,
    work: Work,
    selected: Tensor,
    segments: Segments,
    is_running: Tensor,
    window: int,
) -> tuple[Items, Tensor]:
    """Return the next clauses to try, over all running slots, and their number for each slot, int64 [B]."""
    remaining = torch.where(is_running, segments.num_rules + segments.num_facts - work.cursor, 0)
    slot, ordinal, is_live, held = expand(remaining, window)
    ordinal = ordinal + work.cursor[slot]
    num_rules = segments.num_rules[slot]
    is_rule = ordinal < num_rules
    rule_row = torch.where(is_live & is_rule, segments.rule_first[slot] + ordinal, 0)
    fact_row = torch.where(is_live & ~is_rule, segments.fact_first[slot] + ordinal - num_rules, 0)
    fact = torch.where(segments.by_second[slot], tables.facts_by_second[fact_row], fact_row)
    clause = torch.where(is_rule, tables.rules_by_head[rule_row], fact)
    return Items(slot, is_live, is_rule, clause, selected[slot], derivations.query[slot]), held


def clause_heads(tables: Tables, items: Items, variable_offset: int) -> Tensor:
    """Return the arguments of each item's head, int32 [C, 2], with variables standardized apart from the goal's."""
    rule = torch.where(items.is_rule, items.clause, 0)
    fact = torch.where(items.is_rule, 0, items.clause)
    head = torch.where(items.is_rule[:, None], tables.rule_head[rule], tables.facts[fact, 1:])
    return standardize_apart(head, variable_offset)


def standardize_apart(arguments: Tensor, variable_offset: int) -> Tensor:
    """Renumber a clause's variables from `variable_offset` on; constants and PAD stay."""
    return torch.where((arguments < 0) & (arguments > -(2**30)), arguments - variable_offset, arguments)


def bindings(head: Tensor, selected: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Find the most general unifier of heads, int32 [C, 2], with selected atoms, int32 [C, 3].

    Returns whether it exists, bool [C], and its bindings x1 -> t1 and then x2 -> t2, each int32 [C]. If there is no
    binding, x equals t.
    """
    x1, t1, agrees1 = _bind(head[:, 0], selected[:, 1])
    x2, t2, agrees2 = _bind(_substitute(head[:, 1], x1, t1), _substitute(selected[:, 2], x1, t1))
    return agrees1 & agrees2, x1, t1, x2, t2


def _bind(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Make two arguments equal: return the variable, its value, and whether that is possible."""
    left_is_variable = left < 0
    variable = torch.where(left_is_variable, left, right)
    value = torch.where(left_is_variable, right, left)
    return variable, value, (variable < 0) | (left == right)


def _substitute(argument: Tensor, variable: Tensor, value: Tensor) -> Tensor:
    return torch.where((argument == variable) & (variable < 0), value, argument)


def apply_bindings(arguments: Tensor, x1: Tensor, t1: Tensor, x2: Tensor, t2: Tensor) -> Tensor:
    """Apply a unifier, int32 [C] each, to int32 [C, ...]. The second binding also applies to terms from the first."""
    shape = (-1,) + (1,) * (arguments.dim() - 1)
    once = _substitute(arguments, x1.view(shape), t1.view(shape))
    return _substitute(once, x2.view(shape), t2.view(shape))


def match_rules(tables: Tables, items: Items, head: Tensor) -> Tensor:
    """Return whether a rule's head unifies with the selected atom, bool [C]."""
    return bindings(head, items.selected)[0]


def match_facts(tables: Tables, items: Items, head: Tensor, exclude_query: bool) -> Tensor:
    """Return whether a fact unifies with the selected atom and is not the excluded atom, bool [C]."""
    unifies = bindings(head, items.selected)[0]
    if not exclude_query:
        return unifies
    fact = torch.cat((items.selected[:, :1], head), dim=1)
    return unifies & ~(fact == items.query).all(-1)


def origin_kinds(items: Items) -> Tensor:
    """Return RULE or FACT for each item, int32 [C]."""
    return torch.where(items.is_rule, RULE, FACT).to(torch.int32)
