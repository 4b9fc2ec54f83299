"""Resolution in the fused kernels: each lane resolves a clause with its slot's goal.

While a lane goes through the atoms of a resolvent, it keeps only a few numbers.
"""

from typing import Final

import triton
import triton.language as tl

from kgverify.prover.kernel_constants import PAD
from kgverify.prover.program.tables import FACT_HASH

MOST_ATOMS: Final = 7
"""The length of the longest goals. Their variables are numbered in four bits each; 0 means no variable."""
MOST_VARIABLES: Final = 32
"""The largest number of variables of a goal and a clause together: two words of four bits per variable."""
MOST_RESOLVENTS: Final = 1024
"""The largest number of resolvents of a step: a program holds all their scores at once."""

_MULTIPLIER = tl.constexpr(FACT_HASH)


@triton.jit
def _bind(left, right):
    """Make two arguments equal: return the variable, its value, and whether that is possible."""
    variable = tl.where(left < 0, left, right)
    return variable, tl.where(left < 0, right, left), (variable < 0) | (left == right)


@triton.jit
def _substitute(argument, variable, value):
    return tl.where((argument == variable) & (variable < 0), value, argument)


@triton.jit
def _standardize_apart(argument, offset):
    return tl.where((argument < 0) & (argument > -(2**30)), argument - offset, argument)


@triton.jit
def _is_fact(mask, predicate, first, second, tables):
    key = (predicate.to(tl.int64) * tl.load(tables.num_constants) + first) * tl.load(tables.num_constants) + second
    shift, longest = tl.load(tables.bucket_shape), tl.load(tables.bucket_shape + 1)
    bucket = (key * _MULTIPLIER) >> shift
    bucket = tl.where(mask, bucket & ((1 << (64 - shift)) - 1), 0)
    begin = tl.load(tables.bucket_first + bucket, mask=mask, other=0)
    end = tl.load(tables.bucket_first + bucket + 1, mask=mask, other=0)
    found = mask & False
    # A `while`, since the interpreter supports `range` only for constants.
    i = 0
    while i < longest:
        place = begin + i
        is_there = mask & (place < end)
        found = found | (is_there & (tl.load(tables.bucket_keys + place, mask=is_there, other=-1) == key))
        i += 1
    return found


@triton.jit
def _number(argument, is_left, low, high, count):
    """Return the canonical argument, the numbers assigned so far, in four bits each, and their count."""
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
def resolve_clauses(
    mask,
    slot,
    is_rule,
    clause,
    derivations,
    tables,
    empty_hash,
    other_atoms,
    out_atoms,
    A,
    BODY,
    only_proofs,
    EXCLUDE: tl.constexpr,
    COMPARE: tl.constexpr,
    STORE: tl.constexpr,
):
    """Resolve clauses, one in each lane.

    Returns whether each clause matches, the resolvent's number of atoms and of variables, its hash, and whether it
    equals `other`.
    only_proofs: whether to stop once an atom is left; then the result only shows whether any is left
    COMPARE: compare with the goals at `other_atoms`; STORE: write to `out_atoms`; each lane has a pointer of both kinds
    """
    goal = derivations.goal + slot * (3 * A)
    predicate = tl.load(goal, mask=mask, other=PAD)
    first = tl.load(goal + 1, mask=mask, other=0)
    second = tl.load(goal + 2, mask=mask, other=0)
    rule, fact = mask & is_rule, mask & (is_rule == 0)
    head_first = tl.load(tables.rule_head + clause * 2, mask=rule, other=0)
    head_second = tl.load(tables.rule_head + clause * 2 + 1, mask=rule, other=0)
    head_first += tl.load(tables.facts + clause * 3 + 1, mask=fact, other=0)
    head_second += tl.load(tables.facts + clause * 3 + 2, mask=fact, other=0)
    q0 = tl.load(derivations.query + slot * 3, mask=mask, other=PAD)
    q1 = tl.load(derivations.query + slot * 3 + 1, mask=mask, other=0)
    q2 = tl.load(derivations.query + slot * 3 + 2, mask=mask, other=0)

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
    hashed = tl.zeros_like(slot) + empty_hash
    is_same = matches
    # Not unrolled: one compilation serves goals and bodies of every length.
    j = 0
    while j < BODY + A - 1:
        is_body = j < BODY
        row = tl.where(is_body, tables.rule_body + (clause * BODY + j) * 3, goal + (j - BODY + 1) * 3)
        here = matches & (is_rule | (is_body == 0)) & ((num_atoms == 0) | (only_proofs == 0))
        p = tl.load(row, mask=here, other=PAD)
        here = here & (p != PAD)
        if tl.max(here.to(tl.int32), 0) == 0:
            # Padding comes last: no lane has another atom of a body, or of the goal.
            j = tl.where(is_body, BODY, BODY + A - 1)
        else:
            a = tl.load(row + 1, mask=here, other=0)
            b = tl.load(row + 2, mask=here, other=0)
            offset = tl.where(is_body, 2 * A, 0)
            a, b = _standardize_apart(a, offset), _standardize_apart(b, offset)
            a = _substitute(_substitute(a, x1, t1), x2, t2)
            b = _substitute(_substitute(b, x1, t1), x2, t2)
            may_be_fact = here & (a >= 0) & (b >= 0)
            if EXCLUDE:
                may_be_fact = may_be_fact & ((p != q0) | (a != q1) | (b != q2))
            left = here
            if tl.max(may_be_fact.to(tl.int32), 0) > 0:
                left = here & (_is_fact(may_be_fact, p, a, b, tables) == 0)
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
                keys = tables.hash_keys + place
                hashed += tl.where(kept, (p.to(tl.int64) - PAD) * tl.load(keys), 0)
                hashed += tl.where(kept, (a.to(tl.int64) - PAD) * tl.load(keys + 1), 0)
                hashed += tl.where(kept, (b.to(tl.int64) - PAD) * tl.load(keys + 2), 0)
            num_atoms += left.to(tl.int32)
            j += 1
    return matches, num_atoms, num_variables, hashed, is_same
