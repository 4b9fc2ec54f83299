"""Triton kernels that put logged steps and their resolvents in the order of the candidates, without padding.

A program processes its steps one by one; its lanes are the step's resolvents, or the atoms of its goal.
"""

import triton
import triton.language as tl

from kgverify.prover.kernel_constants import GOAL, PAD


@triton.jit(do_not_specialize=["num_places", "A"])
def place_kernel(
    steps,
    rows,
    candidates,
    start,
    num_logged,
    order,
    sizes,
    num_places,
    A,
    ATOMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Find the place of each step, and the numbers of its resolvents, of its goal's atoms and of its resolvents' atoms."""
    number = tl.program_id(0).to(tl.int64)
    num = tl.load(num_logged)
    lane = tl.arange(0, BLOCK)
    while number < num:
        candidate = tl.load(steps.pool_index + number)
        turn = tl.load(steps.depth + number) - tl.load(candidates.depth + candidate)
        place = tl.load(start + candidate) + turn
        num_resolvents = tl.load(steps.num_resolvents + number)
        tl.store(order + place, number)
        tl.store(sizes + place, num_resolvents)
        atom = tl.arange(0, ATOMS)
        predicate = tl.load(steps.goal + (number * A + atom) * 3, mask=atom < A, other=PAD)
        mask = (lane < num_resolvents) & (tl.load(steps.kind + number) == GOAL)
        own = rows.atoms + (tl.load(steps.first + number) + lane) * (3 * A)
        num_atoms = tl.zeros((BLOCK,), tl.int32)
        i = 0
        while i < A:
            num_atoms += (tl.load(own + 3 * i, mask=mask, other=PAD) != PAD).to(tl.int32)
            i += 1
        tl.store(sizes + num_places + place, tl.sum((predicate != PAD).to(tl.int32), 0))
        tl.store(sizes + 2 * num_places + place, tl.sum(num_atoms, 0))
        number += tl.num_programs(0)


@triton.jit(do_not_specialize=["num_places", "A"])
def send_kernel(
    steps,
    rows,
    sent,
    num_logged,
    order,
    sizes,
    ends,
    num_places,
    A,
    ATOMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the columns of each step and of its resolvents at their places."""
    place = tl.program_id(0).to(tl.int64)
    num = tl.load(num_logged)
    lane = tl.arange(0, BLOCK)
    while place < num:
        number = tl.load(order + place)
        num_resolvents = tl.load(sizes + place)
        at = tl.load(ends + place) - num_resolvents + lane
        kind, first = tl.load(steps.kind + number), tl.load(steps.first + number)
        true_kind, true_origin = tl.load(steps.true_kind + number), tl.load(steps.true_origin + number)
        mask = lane < num_resolvents
        is_goal = mask & (kind == GOAL)
        row = first + lane
        origin_kind = tl.load(rows.origin_kind + row, mask=is_goal, other=0)
        origin = tl.load(rows.origin + row, mask=is_goal, other=0)
        tl.store(sent.score + at, tl.load(rows.score + row, mask=is_goal, other=0.0), mask=mask)
        tl.store(sent.kind + at, tl.zeros_like(at).to(tl.int8) + kind.to(tl.int8), mask=mask)
        tl.store(sent.origin_kind + at, tl.where(is_goal, origin_kind, true_kind.to(tl.int8)), mask=mask)
        tl.store(sent.origin + at, tl.where(is_goal, origin, true_origin), mask=mask)
        tl.store(sent.pool_index + place, tl.load(steps.pool_index + number))
        tl.store(sent.depth + place, tl.load(steps.depth + number).to(tl.int16))
        tl.store(sent.num_resolvents + place, num_resolvents)
        tl.store(sent.dropped_atoms + place, tl.load(steps.dropped_atoms + number))
        tl.store(sent.dropped_resolvents + place, tl.load(steps.dropped_resolvents + number))
        tl.store(sent.choice + place, tl.load(steps.choice + number))
        tl.store(sent.outcome + place, tl.load(steps.outcome + number).to(tl.int8))
        num_goal_atoms = tl.load(sizes + num_places + place)
        tl.store(sent.num_goal_atoms + place, num_goal_atoms.to(tl.int16))
        atom = tl.arange(0, ATOMS)
        to = sent.goal_atoms + (tl.load(ends + num_places + place) - num_goal_atoms + atom) * 3
        for k in tl.static_range(3):
            word = tl.load(steps.goal + (number * A + atom) * 3 + k, mask=atom < num_goal_atoms, other=PAD)
            tl.store(to + k, word, mask=atom < num_goal_atoms)
        own = rows.atoms + row * (3 * A)
        num_atoms = tl.zeros((BLOCK,), tl.int32)
        i = 0
        while i < A:
            num_atoms += (tl.load(own + 3 * i, mask=is_goal, other=PAD) != PAD).to(tl.int32)
            i += 1
        begin = tl.load(ends + 2 * num_places + place) - tl.load(sizes + 2 * num_places + place)
        to = sent.atoms + (begin + tl.cumsum(num_atoms, 0) - num_atoms) * 3
        i = 0
        while i < A:
            is_atom = i < num_atoms
            for k in tl.static_range(3):
                tl.store(to + k, tl.load(own + k, mask=is_atom, other=PAD), mask=is_atom)
            own += 3
            to += 3
            i += 1
        tl.store(sent.num_atoms + at, num_atoms.to(tl.int16), mask=mask)
        place += tl.num_programs(0)
