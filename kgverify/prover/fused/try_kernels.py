"""The first half of a fused tick: every slot tries its own clauses, and a step gets rows once all its clauses are tried.

Kernels read and write the records of `state.py` and of `ticks.py`, whose fields are pointers here. In `look_up` a lane
is a slot; in `try` a program processes its slots one by one, and its lanes are clauses; in `form` a lane is a row.
"""

from typing import Final

import triton
import triton.language as tl

from kgverify.prover.fused.resolve_kernels import resolve_clauses
from kgverify.prover.kernel_constants import FACT, FAILED, FALSE, GOAL, OPEN, PAD, RULE, TRUE

_MOST_OTHERS = tl.constexpr(8)
"""The lanes for the atoms of a goal after the first: at least `MOST_ATOMS` minus one."""


@triton.jit
def _search(keys, bound, mask, num):
    """Return the index of the first of `num` ascending keys that is not less than the bound, in each lane."""
    place = tl.zeros_like(bound)
    size = num
    while size > 1:
        half = size // 2
        place = tl.where(tl.load(keys + place + (half - 1), mask=mask, other=0) < bound, place + half, place)
        size -= half
    return place + (tl.load(keys + place, mask=mask, other=0) < bound).to(tl.int64)


@triton.jit
def _find_facts(predicate, first, second, mask, tables, num_facts, num_predicates):
    """Return the list of keys with the facts that may match an atom, their start, and a bound of their keys, in each lane.

    The keys are ordered by the first argument, or by the second if only that one is bound, which is also returned.
    """
    predicate = tl.minimum(tl.maximum(predicate, 0), num_predicates - 1).to(tl.int64)
    size = tl.load(tables.num_constants)
    by_second = (first < 0) & (second >= 0)
    lead = tl.where(by_second, second, tl.maximum(first, 0)).to(tl.int64)
    low = (predicate * size + lead) * size + tl.where(first >= 0, tl.maximum(second, 0), 0)
    is_ground = (first >= 0) & (second >= 0)
    width = tl.where(is_ground, 1, tl.where((first >= 0) | (second >= 0), size, size * size))
    keys = tl.where(by_second, tables.second_keys + tl.zeros_like(low), tables.fact_keys + tl.zeros_like(low))
    return _search(keys, low, mask, num_facts), keys, low + width, by_second


@triton.jit
def _list(mask, slot, listed, num):
    """Append the slots of the lanes in a mask to a list."""
    first = tl.atomic_add(num, tl.sum(mask.to(tl.int32), 0))
    tl.store(listed + first + tl.cumsum(mask.to(tl.int32), 0) - 1, slot.to(tl.int32), mask=mask)


@triton.jit(do_not_specialize=["num_slots", "A", "num_facts", "num_predicates", "most_light", "most_heavy"])
def look_up_kernel(
    derivations,
    work,
    tables,
    segments,
    decisions,
    goals,
    light,
    heavy,
    heaviest,
    counts,
    num_slots,
    A,
    num_facts,
    num_predicates,
    most_light,
    most_heavy,
    BLOCK: tl.constexpr,
):
    """Do `select` for every open slot, and find the clauses that may match.

    List these slots, also by the number of clauses.

    most_light, most_heavy: the largest numbers of clauses of a slot that is listed as light, and as heavy
    """
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = slot < num_slots
    tl.store(decisions.is_taken + slot, tl.zeros_like(slot).to(tl.int32), mask=inside)
    mask = inside & (tl.load(derivations.outcome + slot, mask=inside, other=FAILED) == OPEN)
    if tl.max(mask.to(tl.int32), 0) > 0:
        goal = derivations.goal + slot * (3 * A)
        predicate = tl.load(goal, mask=mask, other=0)
        first, second = tl.load(goal + 1, mask=mask, other=0), tl.load(goal + 2, mask=mask, other=0)
        begin, keys, bound, by_second = _find_facts(predicate, first, second, mask, tables, num_facts, num_predicates)
        end = _search(keys, bound, mask, num_facts)
        predicate = tl.minimum(tl.maximum(predicate, 0), num_predicates - 1)
        rule_first = tl.load(tables.rule_first + predicate, mask=mask, other=0)
        num_rules = tl.load(tables.rule_first + predicate + 1, mask=mask, other=0) - rule_first
        tl.store(segments.rule_first + slot, rule_first, mask=mask)
        tl.store(segments.num_rules + slot, num_rules, mask=mask)
        tl.store(segments.fact_first + slot, begin, mask=mask)
        tl.store(segments.num_facts + slot, end - begin, mask=mask)
        tl.store(segments.by_second + slot, by_second, mask=mask)
        _list(mask, slot, goals, counts.goals)
        left = num_rules + end - begin - tl.load(work.cursor + slot, mask=mask, other=0)
        is_heavy = mask & (left > most_light)
        _list(mask & (left <= most_light), slot, light, counts.light)
        if tl.max(is_heavy.to(tl.int32), 0) > 0:
            is_heaviest = is_heavy & (left > most_heavy)
            is_heavy = is_heavy & (left <= most_heavy)
            place = tl.atomic_add(counts.heavy + tl.zeros_like(slot), 1, mask=is_heavy)
            tl.store(heavy + place, slot.to(tl.int32), mask=is_heavy)
            place = tl.atomic_add(counts.heaviest + tl.zeros_like(slot), 1, mask=is_heaviest)
            tl.store(heaviest + place, slot.to(tl.int32), mask=is_heaviest)


@triton.jit
def _facts_may_prove(goal, tables, num_facts, num_predicates, A):
    """Return whether a fact may prove a goal.

    A fact binds the variables of the first atom to constants. So no fact proves the goal if another atom has other
    variables, or if no fact matches that atom.
    """
    atom = 1 + tl.arange(0, _MOST_OTHERS)
    own = goal + 3 * atom
    predicate = tl.load(own, mask=atom < A, other=PAD)
    is_atom = predicate != PAD
    left, right = tl.load(own + 1, mask=is_atom, other=0), tl.load(own + 2, mask=is_atom, other=0)
    first, second = tl.load(goal + 1), tl.load(goal + 2)
    is_left_free = (left < 0) & (left != first) & (left != second)
    is_right_free = (right < 0) & (right != first) & (right != second)
    place, keys, bound, _by_second = _find_facts(predicate, left, right, is_atom, tables, num_facts, num_predicates)
    is_there = is_atom & (place < num_facts)
    is_matched = is_there & (tl.load(keys + place, mask=is_there, other=0) < bound)
    return tl.max((is_atom & (is_left_free | is_right_free | (is_matched == 0))).to(tl.int32), 0) == 0


@triton.jit
def _try_slot(
    slot,
    derivations,
    work,
    tables,
    segments,
    decisions,
    rows,
    counts,
    empty_hash,
    A,
    BODY,
    DEPTH,
    max_atoms,
    max_resolvents,
    row_stride,
    window,
    counts_all,
    num_facts,
    num_predicates,
    rounds,
    EXCLUDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Try the next clauses of a slot.

    If none is left, decide its step, and take rows for its resolvents. Once a step is full and has dropped something,
    more clauses matter only if they prove the goal or, with counts_all, are counted.
    """
    rule_first, num_rules = tl.load(segments.rule_first + slot), tl.load(segments.num_rules + slot)
    fact_first, num = tl.load(segments.fact_first + slot), num_rules + tl.load(segments.num_facts + slot)
    by_second = tl.load(segments.by_second + slot) != 0
    depth = tl.load(derivations.depth + slot)
    cursor, num_kept = tl.load(work.cursor + slot), tl.load(work.num_kept + slot)
    num_survivors = tl.load(work.num_survivors + slot)
    dropped_atoms, dropped_resolvents = tl.load(work.dropped_atoms + slot), tl.load(work.dropped_resolvents + slot)
    true_kind, true_origin = tl.load(work.true_origin_kind + slot), tl.load(work.true_origin + slot)
    lane = tl.arange(0, BLOCK)
    slots = slot + tl.zeros((BLOCK,), tl.int64)
    is_asked = 0
    turn_round = 0
    while (turn_round < rounds) & (cursor < num) & (true_kind == 0):
        is_full = (num_kept >= max_resolvents) & (dropped_atoms + dropped_resolvents > 0) & (counts_all == 0)
        ordinal = cursor + lane
        mask = ordinal < num
        is_rule = mask & (ordinal < num_rules)
        place = tl.where(is_rule, 0, fact_first + ordinal - num_rules)
        is_indirect = mask & (is_rule == 0) & by_second
        fact = tl.where(is_indirect, tl.load(tables.facts_by_second + place, mask=is_indirect, other=0), place)
        rule = tl.load(tables.rules_by_head + rule_first + ordinal, mask=is_rule, other=0)
        clause = tl.where(is_rule, rule, fact)
        matches, num_atoms, _variables, hashed, _same = resolve_clauses(
            mask, slots, is_rule, clause, derivations, tables, empty_hash, derivations.goal + slots,
            derivations.goal + slots, A, BODY, is_full, EXCLUDE, False, False,
        )  # fmt: skip
        is_goal = matches & (num_atoms > 0) & (is_full == 0)
        fits = is_goal & (num_atoms <= A)
        turn = tl.zeros((BLOCK,), tl.int64)
        found = tl.zeros((BLOCK,), tl.int1)
        t = 0
        while t <= depth:
            is_equal = fits & (tl.load(derivations.visited_hash + slot * DEPTH + t) == hashed)
            turn = tl.where(is_equal & (found == 0), t, turn)
            found = found | is_equal
            t += 1
        is_new = is_goal
        if tl.max(found.to(tl.int32), 0) > 0:
            other = derivations.visited + (slots * DEPTH + turn) * (3 * A)
            _matches, _num_atoms, _num_variables, _hashed, is_same = resolve_clauses(
                found, slots, is_rule, clause, derivations, tables, empty_hash, other, other, A, BODY, False, EXCLUDE, True,
                False,
            )  # fmt: skip
            # Equal in all atoms, and without further atoms.
            is_longer = found & (num_atoms < A)
            after = tl.load(other + tl.where(is_longer, num_atoms, 0) * 3, mask=is_longer, other=PAD)
            is_new = is_goal & ((found & is_same & (after == PAD)) == 0)
        stays = is_new & (num_atoms <= max_atoms)
        rank = num_kept + tl.cumsum(stays.to(tl.int32), 0) - 1
        is_kept = stays & (rank < max_resolvents)
        own = slot * row_stride + tl.where(is_kept, rank, 0)
        tl.store(work.origin_kind + own, tl.where(is_rule, RULE, FACT).to(tl.int32), mask=is_kept)
        tl.store(work.origin + own, clause.to(tl.int32), mask=is_kept)
        num_stay, num_here = tl.sum(stays.to(tl.int64), 0), tl.sum(is_kept.to(tl.int64), 0)
        num_survivors += tl.sum(is_new.to(tl.int64), 0)
        dropped_atoms += tl.sum((is_new & (num_atoms > max_atoms)).to(tl.int64), 0)
        dropped_resolvents += num_stay - num_here
        num_kept += num_here
        first_true = tl.min(tl.where(matches & (num_atoms == 0), lane, BLOCK), 0)
        if first_true < BLOCK:
            is_first = lane == first_true
            true_kind = tl.max(tl.where(is_first, tl.where(is_rule, RULE, FACT), 0), 0).to(tl.int32)
            true_origin = tl.max(tl.where(is_first, clause, 0), 0).to(tl.int32)
        cursor = tl.minimum(cursor + BLOCK, num)
        if is_full & (is_asked == 0):
            is_asked = 1
            goal = derivations.goal + slot * (3 * A)
            # A rule has a body, so it proves nothing by itself.
            after_rules = tl.maximum(cursor, num_rules)
            cursor = tl.where(_facts_may_prove(goal, tables, num_facts, num_predicates, A), after_rules, num)
        turn_round += 1
    is_done = (cursor >= num) | (true_kind != 0)
    kind = tl.where(true_kind != 0, TRUE, tl.where((num_survivors == 0) | (num_kept == 0), FALSE, GOAL))
    # If TRUE is the only resolvent, `limit` has dropped nothing.
    is_alone = is_done & (kind == TRUE)
    tl.store(work.cursor + slot, cursor)
    tl.store(work.num_kept + slot, num_kept)
    tl.store(work.num_survivors + slot, num_survivors)
    tl.store(work.dropped_atoms + slot, tl.where(is_alone, 0, dropped_atoms))
    tl.store(work.dropped_resolvents + slot, tl.where(is_alone, 0, dropped_resolvents))
    tl.store(work.true_origin_kind + slot, true_kind)
    tl.store(work.true_origin + slot, true_origin)
    if is_done:
        num_rows = tl.where(kind == GOAL, num_kept, 0).to(tl.int32)
        first = tl.atomic_add(counts.rows, num_rows)
        is_taken = (num_rows == 0) | (first + num_rows <= window)
        tl.store(decisions.kind + slot, kind.to(tl.int32))
        tl.store(decisions.first + slot, first.to(tl.int64))
        tl.store(decisions.num_resolvents + slot, tl.where(kind == GOAL, num_kept, 1))
        tl.store(decisions.is_taken + slot, is_taken.to(tl.int32))
        # A step that does not fit waits for another tick, but the rows up to the window's end stay reserved for it.
        i = 0
        while i < num_rows:
            place = first + i + lane
            tl.store(rows.slot + place, slots.to(tl.int32), mask=(i + lane < num_rows) & (place < window))
            i += BLOCK


_SIZES: Final = [
    "A",
    "BODY",
    "DEPTH",
    "max_atoms",
    "max_resolvents",
    "row_stride",
    "window",
    "counts_all",
    "num_facts",
    "num_predicates",
    "rounds",
]


@triton.jit(do_not_specialize=_SIZES)
def try_kernel(
    derivations,
    work,
    tables,
    segments,
    decisions,
    rows,
    listed,
    num_listed,
    counts,
    empty_hash,
    A,
    BODY,
    DEPTH,
    max_atoms,
    max_resolvents,
    row_stride,
    window,
    counts_all,
    num_facts,
    num_predicates,
    rounds,
    EXCLUDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Run `match_rules` to `limit` and `close` for the listed slots."""
    hashed = tl.load(empty_hash)
    number = tl.program_id(0)
    num = tl.load(num_listed)
    while number < num:
        slot = tl.load(listed + number).to(tl.int64)
        _try_slot(
            slot, derivations, work, tables, segments, decisions, rows, counts, hashed, A, BODY, DEPTH, max_atoms,
            max_resolvents, row_stride, window, counts_all, num_facts, num_predicates, rounds, EXCLUDE, BLOCK,
        )  # fmt: skip
        number += tl.num_programs(0)


@triton.jit(do_not_specialize=["A", "BODY", "row_stride", "window"])
def form_kernel(
    derivations,
    work,
    tables,
    decisions,
    rows,
    counts,
    A,
    BODY,
    row_stride,
    window,
    EXCLUDE: tl.constexpr,
    IS_SHORTEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Form the resolvents of the taken rows; if the policy is `shortest`, also score them."""
    num = tl.minimum(tl.load(counts.rows), window)
    begin = tl.program_id(0) * BLOCK
    if begin < num:
        row = begin + tl.arange(0, BLOCK)
        mask = row < num
        slot = tl.load(rows.slot + row, mask=mask, other=0).to(tl.int64)
        index = row - tl.load(decisions.first + slot, mask=mask, other=0)
        origin = slot * row_stride + tl.where(mask, index, 0)
        is_rule = tl.load(work.origin_kind + origin, mask=mask, other=0) == RULE
        clause = tl.load(work.origin + origin, mask=mask, other=0).to(tl.int64)
        own = rows.atoms + row.to(tl.int64) * (3 * A)
        _matches, num_atoms, num_variables, _hashed, _same = resolve_clauses(
            mask, slot, is_rule, clause, derivations, tables, 0, own, own, A, BODY, False, EXCLUDE, False, True,
        )  # fmt: skip
        i = 0
        while i < A:
            is_free = mask & (i >= num_atoms)
            for k in tl.static_range(3):
                tl.store(own + 3 * i + k, tl.zeros((BLOCK,), tl.int32) + PAD, mask=is_free)
            i += 1
        if IS_SHORTEST:
            tl.store(rows.score + row, -(num_atoms + num_variables.to(tl.float32) / 64), mask=mask)
