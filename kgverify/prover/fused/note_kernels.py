"""Triton kernels that log the decisions of a fused tick before their execution: steps and resolvents, or digests."""

import triton
import triton.language as tl

from kgverify.prover.kernel_constants import DEPTH_LIMIT, FAILED, FALSE, GOAL, OPEN, PAD, PROVED, TRUE
from kgverify.torch.splitmix_kernels import fold, mix


@triton.jit
def _hash_atom(position, predicate, first, second):
    word = fold(fold(position * 0, position), predicate.to(tl.int64))
    return fold(fold(word, first.to(tl.int64)), second.to(tl.int64))


@triton.jit
def _hash_goal(kind, num_atoms, total):
    return fold(mix(mix(num_atoms.to(tl.int64)) ^ kind), total)


@triton.jit
def _outcome_after(kind, depth, max_depth):
    outcome = tl.where(depth + 1 >= max_depth, DEPTH_LIMIT, OPEN)
    return tl.where(kind == TRUE, PROVED, tl.where(kind == FALSE, FAILED, outcome))


@triton.jit(do_not_specialize=["max_depth"])
def note_steps_kernel(
    derivations,
    work,
    decisions,
    log,
    candidates,
    num_logged,
    row_base,
    max_depth,
    A,
    BLOCK: tl.constexpr,
):
    """Log a step for each slot that takes one, in any order. row_base: the rows logged before this tick."""
    slot = tl.program_id(0).to(tl.int64)
    if tl.load(decisions.is_taken + slot) != 0:
        place = tl.atomic_add(num_logged, 1).to(tl.int64)
        lane = tl.arange(0, BLOCK)
        kind, depth = tl.load(decisions.kind + slot), tl.load(derivations.depth + slot)
        pool_index, num_resolvents = tl.load(derivations.pool_index + slot), tl.load(decisions.num_resolvents + slot)
        dropped_atoms, dropped_resolvents = tl.load(work.dropped_atoms + slot), tl.load(work.dropped_resolvents + slot)
        choice, first = tl.load(decisions.choice + slot), tl.load(row_base) + tl.load(decisions.first + slot)
        true_kind, true_origin = tl.load(work.true_origin_kind + slot), tl.load(work.true_origin + slot)
        mask = lane < 3 * A
        words = tl.load(derivations.goal + slot * (3 * A) + lane, mask=mask)
        num_before = tl.load(candidates.num + pool_index)
        tl.store(candidates.num + pool_index, num_before + 1)
        if num_before == 0:
            tl.store(candidates.depth + pool_index, depth)
        tl.store(log.pool_index + place, pool_index)
        tl.store(log.depth + place, depth)
        tl.store(log.kind + place, kind)
        tl.store(log.num_resolvents + place, num_resolvents.to(tl.int32))
        tl.store(log.dropped_atoms + place, dropped_atoms.to(tl.int32))
        tl.store(log.dropped_resolvents + place, dropped_resolvents.to(tl.int32))
        tl.store(log.choice + place, choice.to(tl.int32))
        tl.store(log.outcome + place, _outcome_after(kind, depth, max_depth).to(tl.int32))
        tl.store(log.first + place, first)
        tl.store(log.true_kind + place, true_kind)
        tl.store(log.true_origin + place, true_origin)
        tl.store(log.goal + place * (3 * A) + lane, words, mask=mask)


@triton.jit(do_not_specialize=["row_stride", "window", "A"])
def note_rows_kernel(work, decisions, rows, count, log, row_base, row_stride, window, A, BLOCK: tl.constexpr):
    """Log the rows of a tick, in order, after the rows of earlier ticks."""
    num = tl.minimum(tl.load(count), window)
    begin = tl.program_id(0) * BLOCK
    if begin < num:
        row = begin + tl.arange(0, BLOCK)
        mask = row < num
        slot = tl.load(rows.slot + row, mask=mask, other=0).to(tl.int64)
        origin = slot * row_stride + row - tl.load(decisions.first + slot, mask=mask, other=0)
        place = tl.load(row_base) + row
        kind = tl.load(work.origin_kind + origin, mask=mask, other=0)
        tl.store(log.origin_kind + place, kind.to(tl.int8), mask=mask)
        tl.store(log.origin + place, tl.load(work.origin + origin, mask=mask, other=0), mask=mask)
        tl.store(log.score + place, tl.load(rows.score + row, mask=mask, other=0), mask=mask)
        # The words of all rows are adjacent: each lane takes the next word, not the words of one row.
        to = log.atoms + tl.load(row_base) * (3 * A)
        word = begin.to(tl.int64) * (3 * A) + tl.arange(0, BLOCK)
        i = 0
        while i < 3 * A:
            is_word = word < num.to(tl.int64) * (3 * A)
            tl.store(to + word, tl.load(rows.atoms + word, mask=is_word, other=PAD), mask=is_word)
            word += BLOCK
            i += 1


@triton.jit(do_not_specialize=["window"])
def move_base_kernel(count, row_base, window):
    """Advance the base of the rows past those of this tick."""
    tl.store(row_base, tl.load(row_base) + tl.minimum(tl.load(count), window))


@triton.jit(do_not_specialize=["window", "A"])
def hash_rows_kernel(rows, count, hashes, window, A, BLOCK: tl.constexpr):
    """Hash each row's resolvent."""
    num = tl.minimum(tl.load(count), window)
    begin = tl.program_id(0) * BLOCK
    if begin < num:
        row = begin + tl.arange(0, BLOCK)
        mask = row < num
        total = tl.zeros((BLOCK,), tl.int64)
        num_atoms = tl.zeros((BLOCK,), tl.int32)
        i = 0
        while i < A:
            own = rows.atoms + (row.to(tl.int64) * A + i) * 3
            predicate = tl.load(own, mask=mask, other=PAD)
            is_atom = predicate != PAD
            first, second = tl.load(own + 1, mask=is_atom, other=0), tl.load(own + 2, mask=is_atom, other=0)
            position = tl.zeros((BLOCK,), tl.int64) + i
            total += tl.where(is_atom, _hash_atom(position, predicate, first, second), 0)
            num_atoms += is_atom.to(tl.int32)
            i += 1
        tl.store(hashes + row, _hash_goal(GOAL, num_atoms, total), mask=mask)


@triton.jit
def _finish_digest(goal, total, chosen, num_resolvents, dropped_atoms, dropped_resolvents, outcome, depth):
    state = fold(goal, total)
    state = fold(state, num_resolvents.to(tl.int64))
    state = fold(state, dropped_atoms.to(tl.int64))
    state = fold(state, dropped_resolvents.to(tl.int64))
    state = mix(state ^ chosen)
    state = fold(state, outcome.to(tl.int64))
    return fold(state, depth.to(tl.int64))


@triton.jit(do_not_specialize=["max_depth", "A"])
def digest_kernel(
    derivations, work, decisions, hashes, sequence, multiset, max_depth, A, ATOMS: tl.constexpr, BLOCK: tl.constexpr
):
    """Compute the digests of each step, and store them at its candidate's pool index and its depth."""
    slot = tl.program_id(0).to(tl.int64)
    if tl.load(decisions.is_taken + slot) != 0:
        kind, depth = tl.load(decisions.kind + slot), tl.load(derivations.depth + slot)
        atom = tl.arange(0, ATOMS)
        own = derivations.goal + (slot * A + atom) * 3
        predicate = tl.load(own, mask=atom < A, other=PAD)
        is_atom = predicate != PAD
        first, second = tl.load(own + 1, mask=is_atom, other=0), tl.load(own + 2, mask=is_atom, other=0)
        words = tl.where(is_atom, _hash_atom(atom.to(tl.int64), predicate, first, second), 0)
        goal = _hash_goal(GOAL, tl.sum(is_atom.to(tl.int64), 0), tl.sum(words, 0))

        lane = tl.arange(0, BLOCK)
        num = tl.load(decisions.num_resolvents + slot)
        mask = lane < num
        row = tl.load(decisions.first + slot) + lane
        option = tl.load(hashes + row, mask=mask & (kind == GOAL), other=0)
        if kind != GOAL:
            option += _hash_goal(kind.to(tl.int64), depth * 0, tl.zeros((), tl.int64))
        mixed = mix(option)
        choice = tl.load(decisions.choice + slot)
        chosen = tl.sum(tl.where(lane == choice, option, 0), 0)
        in_order = tl.sum(tl.where(mask, mix(mixed ^ lane.to(tl.int64)), 0), 0)
        in_any_order = tl.sum(tl.where(mask, mixed, 0), 0)
        # Both at once.
        which = tl.arange(0, 2)
        total = tl.where(which == 0, in_order, in_any_order)
        selected = mix(tl.where(which == 0, choice, chosen))
        digest = _finish_digest(
            goal, total, selected, num, tl.load(work.dropped_atoms + slot), tl.load(work.dropped_resolvents + slot),
            _outcome_after(kind, depth, max_depth), depth,
        )  # fmt: skip
        place = tl.load(derivations.pool_index + slot) * max_depth + depth
        tl.store(tl.where(which == 0, sequence + place, multiset + place), digest)
