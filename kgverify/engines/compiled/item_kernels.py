"""`match_rules` to `revisit` for a window of clauses as one Triton kernel; what it stands in for is in `kernels.py`.

A program looks at a block of items, each in a lane of its own, and goes through the atoms of their resolvents one after
the other: what is known of a resolvent so far is a few numbers of a lane. So nothing but the verdict on an item, or the
atoms asked for, is written.
"""

from typing import Final

import triton
import triton.language as tl

from kgverify.engines.compiled.state import PAD
from kgverify.engines.compiled.tables import FACT_HASH

MOST_ATOMS: Final = 7
"""Longest goals: their variables are numbered in four bits each, 0 being none."""
MOST_VARIABLES: Final = 32
"""Variables of a goal and a clause together: two words of four bits each."""

_PAD = tl.constexpr(PAD)
_MULTIPLIER = tl.constexpr(FACT_HASH)


@triton.jit
def _bind(left, right):
    """Make two arguments equal: the variable, what it becomes, and whether that is possible."""
    variable = tl.where(left < 0, left, right)
    return variable, tl.where(left < 0, right, left), (variable < 0) | (left == right)


@triton.jit
def _substitute(argument, variable, value):
    return tl.where((argument == variable) & (variable < 0), value, argument)


@triton.jit
def _standardize_apart(argument, offset):
    return tl.where((argument < 0) & (argument > -(2**30)), argument - offset, argument)


@triton.jit
def _is_fact(mask, predicate, first, second, num_constants, bucket_first, bucket_keys, shift, longest):
    key = (predicate.to(tl.int64) * num_constants + first) * num_constants + second
    bucket = (key * _MULTIPLIER) >> shift
    bucket = tl.where(mask, bucket & ((1 << (64 - shift)) - 1), 0)
    begin = tl.load(bucket_first + bucket, mask=mask, other=0)
    end = tl.load(bucket_first + bucket + 1, mask=mask, other=0)
    found = mask & False
    # A `while`, since the interpreter takes no `range` of a number that is not a constant.
    i = 0
    while i < longest:
        place = begin + i
        is_there = mask & (place < end)
        found = found | (is_there & (tl.load(bucket_keys + place, mask=is_there, other=-1) == key))
        i += 1
    return found


@triton.jit
def _number(argument, is_left, low, high, count):
    """The argument under its canonical number; the numbers given so far, four bits each, and how many they are."""
    is_variable = is_left & (argument < 0)
    variable = tl.where(is_variable, -1 - argument, 0).to(tl.int64)
    shift = (variable & 15) * 4
    word = tl.where(variable < 16, low, high)
    number = ((word >> shift) & 15).to(tl.int32)
    is_new = is_variable & (number == 0) & (count < 15)
    count = count + is_new.to(tl.int32)
    number = tl.where(is_new, count, number)
    bits = tl.where(is_new, number.to(tl.int64) << shift, 0)
    low = low | tl.where(variable < 16, bits, 0)
    high = high | tl.where(variable < 16, 0, bits)
    return tl.where(is_variable, -number, argument), low, high, count


@triton.jit
def _resolve(
    mask,
    slot,
    is_rule,
    clause,
    goals,
    queries,
    facts,
    rule_head,
    rule_body,
    num_constants,
    bucket_first,
    bucket_keys,
    bucket_shape,
    hash_keys,
    pad_hash,
    other_atoms,
    out_atoms,
    A,
    BODY,
    EXCLUDE: tl.constexpr,
    COMPARE: tl.constexpr,
    STORE: tl.constexpr,
):
    """Resolve the items of a block: whether each matches, the atoms left, the goal's hash, and whether it is `other`.

    COMPARE: compare with the goals at `other_atoms`; STORE: write to `out_atoms`; both are pointers, one for each lane
    """
    size = tl.load(num_constants)
    shift, longest = tl.load(bucket_shape), tl.load(bucket_shape + 1)
    goal = goals + slot * (3 * A)
    predicate = tl.load(goal, mask=mask, other=_PAD)
    first = tl.load(goal + 1, mask=mask, other=0)
    second = tl.load(goal + 2, mask=mask, other=0)
    rule, fact = mask & is_rule, mask & (is_rule == 0)
    head_first = tl.load(rule_head + clause * 2, mask=rule, other=0)
    head_second = tl.load(rule_head + clause * 2 + 1, mask=rule, other=0)
    head_first += tl.load(facts + clause * 3 + 1, mask=fact, other=0)
    head_second += tl.load(facts + clause * 3 + 2, mask=fact, other=0)
    q0 = tl.load(queries + slot * 3, mask=mask, other=_PAD)
    q1 = tl.load(queries + slot * 3 + 1, mask=mask, other=0)
    q2 = tl.load(queries + slot * 3 + 2, mask=mask, other=0)

    head_first = _standardize_apart(head_first, 2 * A)
    head_second = _standardize_apart(head_second, 2 * A)
    x1, t1, agrees1 = _bind(head_first, first)
    x2, t2, agrees2 = _bind(_substitute(head_second, x1, t1), _substitute(second, x1, t1))
    matches = mask & agrees1 & agrees2
    if EXCLUDE:
        matches = matches & (is_rule | (predicate != q0) | (head_first != q1) | (head_second != q2))

    num_atoms = tl.zeros_like(predicate)
    num_variables = tl.zeros_like(predicate)
    low, high = tl.zeros_like(slot), tl.zeros_like(slot)
    hashed = tl.zeros_like(slot) + pad_hash
    is_same = matches
    # Not unrolled: one compilation serves goals and bodies of every length.
    j = 0
    while j < BODY + A - 1:
        is_body = j < BODY
        row = tl.where(is_body, rule_body + (clause * BODY + j) * 3, goal + (j - BODY + 1) * 3)
        here = matches & (is_rule | (is_body == 0))
        p = tl.load(row, mask=here, other=_PAD)
        here = here & (p != _PAD)
        a = tl.load(row + 1, mask=here, other=0)
        b = tl.load(row + 2, mask=here, other=0)
        offset = tl.where(is_body, 2 * A, 0)
        a, b = _standardize_apart(a, offset), _standardize_apart(b, offset)
        a = _substitute(_substitute(a, x1, t1), x2, t2)
        b = _substitute(_substitute(b, x1, t1), x2, t2)
        may_be_fact = here & (a >= 0) & (b >= 0)
        if EXCLUDE:
            may_be_fact = may_be_fact & ((p != q0) | (a != q1) | (b != q2))
        left = here & (_is_fact(may_be_fact, p, a, b, size, bucket_first, bucket_keys, shift, longest) == 0)
        a, low, high, num_variables = _number(a, left, low, high, num_variables)
        b, low, high, num_variables = _number(b, left, low, high, num_variables)
        kept = left & (num_atoms < A)
        place = tl.where(kept, num_atoms, 0) * 3
        if COMPARE:
            is_same = is_same & (
                (kept == 0)
                | (
                    (tl.load(other_atoms + place, mask=kept, other=0) == p)
                    & (tl.load(other_atoms + place + 1, mask=kept, other=0) == a)
                    & (tl.load(other_atoms + place + 2, mask=kept, other=0) == b)
                )
            )
        elif STORE:
            tl.store(out_atoms + place, p, mask=kept)
            tl.store(out_atoms + place + 1, a, mask=kept)
            tl.store(out_atoms + place + 2, b, mask=kept)
        else:
            hashed += tl.where(kept, (p.to(tl.int64) - _PAD) * tl.load(hash_keys + place), 0)
            hashed += tl.where(kept, (a.to(tl.int64) - _PAD) * tl.load(hash_keys + place + 1), 0)
            hashed += tl.where(kept, (b.to(tl.int64) - _PAD) * tl.load(hash_keys + place + 2), 0)
        num_atoms += left.to(tl.int32)
        j += 1
    return matches, num_atoms, hashed, is_same


@triton.jit
def try_items_kernel(
    slots,
    is_live,
    is_rule,
    clauses,
    num_items,
    goals,
    queries,
    visited,
    visited_hash,
    depths,
    facts,
    rule_head,
    rule_body,
    num_constants,
    bucket_first,
    bucket_keys,
    bucket_shape,
    hash_keys,
    pad_hash,
    out_matches,
    out_num_atoms,
    out_is_new,
    A,
    BODY,
    DEPTH,
    EXCLUDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whether each item matches, the atoms left of its resolvent, and whether that is new; shapes as in `launch_try_items`."""
    items = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = items < num_items
    mask = inside & (tl.load(is_live + items, mask=inside, other=0) != 0)
    matches, is_new = mask, mask
    num_atoms = tl.zeros((BLOCK,), tl.int32)
    if tl.max(mask.to(tl.int32), 0) > 0:
        slot = tl.load(slots + items, mask=mask, other=0)
        rule = tl.load(is_rule + items, mask=mask, other=0) != 0
        clause = tl.load(clauses + items, mask=mask, other=0)
        matches, num_atoms, hashed, _same = _resolve(
            mask, slot, rule, clause, goals, queries, facts, rule_head, rule_body, num_constants, bucket_first,
            bucket_keys, bucket_shape, hash_keys, tl.load(pad_hash), goals + slot, goals + slot, A, BODY, EXCLUDE, False, False,
        )  # fmt: skip
        fits = matches & (num_atoms <= A) & (num_atoms > 0)
        depth = tl.load(depths + slot, mask=fits, other=-1)
        turn = tl.zeros((BLOCK,), tl.int64)
        found = tl.zeros((BLOCK,), tl.int1)
        deepest = tl.max(depth, 0)
        t = 0
        while t <= deepest:
            is_turn = fits & (t <= depth)
            is_equal = is_turn & (tl.load(visited_hash + slot * DEPTH + t, mask=is_turn, other=0) == hashed)
            turn = tl.where(is_equal & (found == 0), t, turn)
            found = found | is_equal
            t += 1
        if tl.max(found.to(tl.int32), 0) > 0:
            other = visited + (slot * DEPTH + turn) * (3 * A)
            _matches, _num_atoms, _hashed, is_same = _resolve(
                found, slot, rule, clause, goals, queries, facts, rule_head, rule_body, num_constants, bucket_first,
                bucket_keys, bucket_shape, hash_keys, 0, other, other, A, BODY, EXCLUDE, True, False,
            )  # fmt: skip
            # Equal in all its atoms, and with none after them.
            is_longer = found & (num_atoms < A)
            after = tl.load(other + tl.where(is_longer, num_atoms, 0) * 3, mask=is_longer, other=_PAD)
            is_new = mask & ((found & is_same & (after == _PAD)) == 0)
    tl.store(out_matches + items, matches.to(tl.int8), mask=inside)
    tl.store(out_num_atoms + items, num_atoms, mask=inside)
    tl.store(out_is_new + items, is_new.to(tl.int8), mask=inside)


@triton.jit
def form_atoms_kernel(
    slots,
    is_live,
    is_rule,
    clauses,
    num_items,
    goals,
    queries,
    facts,
    rule_head,
    rule_body,
    num_constants,
    bucket_first,
    bucket_keys,
    bucket_shape,
    out_atoms,
    A,
    BODY,
    EXCLUDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The resolvents of items that match."""
    items = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = items < num_items
    mask = inside & (tl.load(is_live + items, mask=inside, other=0) != 0)
    own = out_atoms + items * (3 * A)
    i = 0
    while i < 3 * A:
        tl.store(own + i, tl.zeros((BLOCK,), tl.int32) + _PAD, mask=inside)
        i += 1
    if tl.max(mask.to(tl.int32), 0) > 0:
        slot = tl.load(slots + items, mask=mask, other=0)
        rule = tl.load(is_rule + items, mask=mask, other=0) != 0
        clause = tl.load(clauses + items, mask=mask, other=0)
        _resolve(
            mask, slot, rule, clause, goals, queries, facts, rule_head, rule_body, num_constants, bucket_first,
            bucket_keys, bucket_shape, bucket_keys, 0, own, own, A, BODY, EXCLUDE, False, True,
        )  # fmt: skip
