"""The second half of a fused tick: the choice among a slot's resolvents, the step, and the next candidate of an ended slot.

A program processes its slots one by one; its lanes are resolvents, or the words of a goal. It issues all loads for a
slot at once, before the stores, since each load takes longer than the work on its data.
"""

import triton
import triton.language as tl

from kgverify.prover.kernel_constants import (
    DEPTH_LIMIT,
    FAILED,
    FALSE,
    GOAL,
    NO_CANDIDATE,
    OPEN,
    PAD,
    PROVED,
    STOPPED,
    TRUE,
)


@triton.jit
def _resolvents_of(slot, decisions):
    """Return whether a slot chooses among resolvents, whether it takes a step at all, their number and their first row."""
    is_taken, kind = tl.load(decisions.is_taken + slot), tl.load(decisions.kind + slot)
    num, first = tl.load(decisions.num_resolvents + slot), tl.load(decisions.first + slot)
    return (is_taken != 0) & (kind == GOAL), is_taken != 0, num, first


@triton.jit
def _load_scores(num, first, rows, BLOCK: tl.constexpr):
    """Return the lanes of resolvents, their mask and their scores."""
    lane = tl.arange(0, BLOCK)
    mask = lane < num
    return lane, mask, tl.load(rows.score + first + lane, mask=mask, other=float("-inf"))


@triton.jit
def _has_same_symbols(row, mask, best, rows, A):
    """Return whether the resolvent of each lane has the same symbols as that of the row `best`.

    The policy adds the rows of predicates and of first arguments, and subtracts the rows of second arguments. Two
    resolvents whose sums have the same terms have equal scores in exact arithmetic.
    """
    own, other = rows.atoms + best * (3 * A), rows.atoms + row * (3 * A)
    is_same = mask
    i = 0
    while i < 3 * A:
        # Second arguments change sides. The terms are then equal if each first term occurs equally often on both sides.
        predicate, first, second = tl.load(own + i), tl.load(own + i + 1), tl.load(other + i + 2, mask=mask)
        of_predicate, of_first, of_second = tl.zeros_like(row), tl.zeros_like(row), tl.zeros_like(row)
        j = 0
        while j < 3 * A:
            own_first, own_second = tl.load(own + j + 1), tl.load(own + j + 2)
            other_first, other_second = tl.load(other + j + 1, mask=mask), tl.load(other + j + 2, mask=mask)
            of_predicate += (tl.load(own + j) == predicate).to(tl.int64)
            of_predicate -= (tl.load(other + j, mask=mask) == predicate).to(tl.int64)
            of_first += (own_first == first).to(tl.int64) + (other_second == first).to(tl.int64)
            of_first -= (other_first == first).to(tl.int64) + (own_second == first).to(tl.int64)
            of_second += (own_first == second).to(tl.int64) + (other_second == second).to(tl.int64)
            of_second -= (other_first == second).to(tl.int64) + (own_second == second).to(tl.int64)
            j += 3
        is_same = is_same & (of_predicate == 0) & (of_first == 0) & (of_second == 0)
        i += 3
    return is_same


@triton.jit
def _list_contests(slot, row, contends, close, CONTENDERS: tl.constexpr, BLOCK: tl.constexpr):
    """List the slot with its contending rows, `CONTENDERS` in each contest."""
    num = tl.sum(contends.to(tl.int32), 0)
    num_contests = (num + CONTENDERS - 1) // CONTENDERS
    contests = close.contests + tl.atomic_add(close.num_contests, num_contests) * (CONTENDERS + 1)
    lane = tl.arange(0, BLOCK)
    place = tl.cumsum(contends.to(tl.int32), 0) - 1
    tl.store(
        contests + place // CONTENDERS * (CONTENDERS + 1) + 1 + place % CONTENDERS, row.to(tl.int32), mask=contends
    )
    goals = tl.zeros_like(lane) + slot.to(tl.int32)
    tl.store(contests + lane * (CONTENDERS + 1), goals, mask=lane < num_contests)
    # The rest of the last contest is empty.
    free = num % CONTENDERS + tl.arange(0, CONTENDERS + 1)
    last = contests + (num_contests - 1) * (CONTENDERS + 1) + 1
    tl.store(last + free, tl.zeros_like(free) - 1, mask=(num % CONTENDERS > 0) & (free < CONTENDERS))


@triton.jit
def _find_close(slot, decisions, rows, tally, close, margin, A, CONTENDERS: tl.constexpr, BLOCK: tl.constexpr):
    is_asked, _is_taken, num, first = _resolvents_of(slot, decisions)
    if is_asked & (num > 1):
        num_choices, num_rescored = tl.load(tally.num_choices + slot), tl.load(tally.num_rescored + slot)
        smallest = tl.load(tally.smallest + slot)
        lane, mask, score = _load_scores(num, first, rows, BLOCK)
        best = tl.max(score, 0)
        choice = tl.min(tl.where(score == best, lane, BLOCK), 0)
        gap = best - tl.max(tl.where(lane == choice, float("-inf"), score), 0)
        is_close = gap <= margin
        contends = mask & (score >= best - margin)
        if is_close:
            # Scores that only rounding distinguishes are made equal, so that the first of them is chosen.
            is_twin = contends & _has_same_symbols(first + lane, contends, first + choice, rows, A)
            score = tl.where(is_twin, best, score)
            tl.store(rows.score + first + lane, score, mask=is_twin)
            gap = best - tl.max(tl.where(is_twin, float("-inf"), score), 0)
            is_close = gap <= margin
        tl.store(tally.num_choices + slot, num_choices + 1)
        tl.store(tally.num_rescored + slot, num_rescored + is_close.to(tl.int64))
        tl.store(tally.smallest + slot, tl.minimum(smallest, gap))
        if is_close:
            _list_contests(slot, first + lane, contends, close, CONTENDERS, BLOCK)


@triton.jit(do_not_specialize=["num_slots", "margin", "A"])
def find_close_kernel(
    decisions,
    rows,
    tally,
    close,
    num_slots,
    margin,
    A,
    CONTENDERS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """List the slots whose highest scores of different resolvents are close, with all resolvents close to the highest."""
    slot = tl.program_id(0).to(tl.int64)
    while slot < num_slots:
        _find_close(slot, decisions, rows, tally, close, margin, A, CONTENDERS, BLOCK)
        slot += tl.num_programs(0)


@triton.jit
def _choose(slot, decisions, rows, BLOCK: tl.constexpr):
    is_asked, is_taken, num, first = _resolvents_of(slot, decisions)
    if is_taken:
        if is_asked:
            lane, mask, score = _load_scores(num, first, rows, BLOCK)
            is_nan = mask & (score != score)
            has_nan = tl.max(is_nan.to(tl.int32), 0) > 0
            best = tl.max(tl.where(is_nan, float("-inf"), score), 0)
            choice = tl.min(tl.where(is_nan | (mask & (score == best) & (has_nan == 0)), lane, BLOCK), 0)
            chosen = tl.where(has_nan, float("nan"), best).to(tl.float64)
            total = tl.sum(tl.where(mask, tl.exp(score.to(tl.float64) - chosen), 0.0), 0)
            tl.store(decisions.choice + slot, choice.to(tl.int64))
            tl.store(decisions.log_probability + slot, -tl.log(total))
        else:
            tl.store(decisions.choice + slot, 0)
            tl.store(decisions.log_probability + slot, 0.0)


@triton.jit(do_not_specialize=["num_slots"])
def choose_kernel(decisions, rows, num_slots, BLOCK: tl.constexpr):
    """Choose the highest score, with the lowest index among equals; if any score is NaN, choose the first NaN."""
    slot = tl.program_id(0).to(tl.int64)
    while slot < num_slots:
        _choose(slot, decisions, rows, BLOCK)
        slot += tl.num_programs(0)


@triton.jit
def _begin_goal(slot, depth, words, lane, derivations, tables, A, DEPTH):
    """Store the words as the slot's goal and, if visited goals are kept, as the goal visited at this depth."""
    mask = lane < 3 * A
    tl.store(derivations.goal + slot * (3 * A) + lane, words, mask=mask)
    if depth < DEPTH:
        turn = slot * DEPTH + depth
        keys = tl.load(tables.hash_keys + lane, mask=mask, other=0)
        tl.store(derivations.visited + turn * (3 * A) + lane, words, mask=mask)
        tl.store(derivations.visited_hash + turn, tl.sum(words.to(tl.int64) * keys, 0))


@triton.jit
def _take_step(
    slot, lane, derivations, work, tables, decisions, rows, pool, A, DEPTH, max_depth, RECYCLES: tl.constexpr
):
    kind = tl.load(decisions.kind + slot)
    row = tl.load(decisions.first + slot) + tl.load(decisions.choice + slot)
    depth = tl.load(derivations.depth + slot) + 1
    is_dropped = (tl.load(work.dropped_atoms + slot) > 0) | (tl.load(work.dropped_resolvents + slot) > 0)
    is_limited = (tl.load(derivations.is_limited + slot) != 0) | (is_dropped & (kind != TRUE))
    log_probability = tl.load(derivations.log_probability + slot) + tl.load(decisions.log_probability + slot)
    outcome = tl.where(depth >= max_depth, DEPTH_LIMIT, OPEN)
    outcome = tl.where(kind == TRUE, PROVED, tl.where(kind == FALSE, FAILED, outcome))
    if RECYCLES:
        floor = tl.load(pool.floor + tl.load(derivations.pool_index + slot))
    words = tl.load(rows.atoms + row * (3 * A) + lane, mask=(lane < 3 * A) & (kind == GOAL), other=PAD)
    _begin_goal(slot, depth, words, lane, derivations, tables, A, DEPTH)
    tl.store(derivations.depth + slot, depth)
    tl.store(derivations.is_limited + slot, is_limited)
    tl.store(derivations.log_probability + slot, log_probability)
    if RECYCLES:
        is_below = log_probability < floor
        outcome = tl.where((outcome == OPEN) & is_below, STOPPED, outcome)
    tl.store(derivations.outcome + slot, outcome.to(tl.int32))
    tl.store(work.cursor + slot, 0)
    tl.store(work.num_survivors + slot, 0)
    tl.store(work.num_kept + slot, 0)
    tl.store(work.dropped_atoms + slot, 0)
    tl.store(work.dropped_resolvents + slot, 0)
    tl.store(work.true_origin_kind + slot, 0)
    tl.store(work.true_origin + slot, 0)
    tl.store(decisions.is_taken + slot, 0)


@triton.jit
def _recycle(slot, lane, derivations, pool, tables, counts, num_steps, A, DEPTH):
    """Store the result of an ended derivation, and give the slot the next candidate."""
    place = tl.load(derivations.pool_index + slot)
    if place != NO_CANDIDATE:
        tl.store(pool.outcome + place, tl.load(derivations.outcome + slot))
        tl.store(pool.is_limited + place, tl.load(derivations.is_limited + slot) != 0)
        tl.store(pool.log_probability + place, tl.load(derivations.log_probability + slot))
        tl.store(num_steps + place, tl.load(derivations.depth + slot))
        tl.atomic_add(counts.left, -1)
    next_index = tl.load(pool.next_index)
    size = tl.load(pool.size)
    if next_index < size:
        next_index = tl.atomic_add(pool.next_index, 1)
    if next_index < size:
        tl.atomic_add(counts.given, 1)
        query = pool.query + next_index * 3
        predicate, first, second = tl.load(query), tl.load(query + 1), tl.load(query + 2)
        tl.store(derivations.query + slot * 3, predicate)
        tl.store(derivations.query + slot * 3 + 1, first)
        tl.store(derivations.query + slot * 3 + 2, second)
        is_new = (first >= 0) | (second == first)
        renamed = tl.where(second < 0, tl.where(is_new, -1, -2), second)
        words = tl.where(lane == 0, predicate, tl.where(lane == 1, tl.where(first < 0, -1, first), renamed))
        _begin_goal(slot, 0, tl.where(lane < 3, words, PAD), lane, derivations, tables, A, DEPTH)
        tl.store(derivations.pool_index + slot, next_index)
        tl.store(derivations.depth + slot, 0)
        tl.store(derivations.outcome + slot, OPEN)
        tl.store(derivations.is_limited + slot, False)
        tl.store(derivations.log_probability + slot, 0.0)
    else:
        if place != NO_CANDIDATE:
            tl.store(derivations.pool_index + slot, NO_CANDIDATE)


@triton.jit(do_not_specialize=["num_slots", "A", "DEPTH", "max_depth"])
def advance_kernel(
    derivations,
    work,
    pool,
    tables,
    decisions,
    rows,
    counts,
    num_steps,
    num_slots,
    A,
    DEPTH,
    max_depth,
    RECYCLES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Do `advance` and `finish` in slots that take a step.

    RECYCLES: then do `recycle`, also if a candidate falls below its floor.
    """
    slot = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    while slot < num_slots:
        if tl.load(decisions.is_taken + slot) != 0:
            _take_step(slot, lane, derivations, work, tables, decisions, rows, pool, A, DEPTH, max_depth, RECYCLES)
        if RECYCLES:
            # All threads read the data stored by one.
            tl.debug_barrier()
            if tl.load(derivations.outcome + slot) != OPEN:
                _recycle(slot, lane, derivations, pool, tables, counts, num_steps, A, DEPTH)
        slot += tl.num_programs(0)
