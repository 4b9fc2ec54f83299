"""A program as tensors: facts ordered for look-up, rules padded and ordered by head predicate."""

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kgverify.errors import UserError
from kgverify.program.program import Program
from kgverify.prover.state import PAD

FACT_HASH: Final = 0x9E3779B97F4A7C15 - (1 << 64)
"""The multiplier of Fibonacci hashing, as an int64; the upper bits of a key's product are its bucket."""


class Tables(NamedTuple):
    """A program on a device.

    A fact's key is `(predicate * E + first) * E + second`, where E is the number of constants.

    num_constants:    int64 []      E
    facts:            int32 [F, 3]  ascending
    fact_keys:        int64 [F]     their keys, ascending
    facts_by_second:  int64 [F]     fact indices ordered by (predicate, second, first)
    second_keys:      int64 [F]     `(predicate * E + second) * E + first` in that order, ascending
    bucket_first:     int32 [T + 1] where the keys of each bucket begin; there are T buckets by `FACT_HASH`, T a power
                      of two
    bucket_keys:      int64 [F]     the facts' keys by bucket
    bucket_shape:     int64 [2]     the shift of a key's product that gives its bucket; the number of keys of the fullest bucket
    predicate_first:  int64 [Q + 1] where the facts of each predicate begin, Q predicates
    rule_head:        int32 [K, 2]  arguments of the heads, in file order
    rule_body:        int32 [K + 1, Lb, 3]  bodies, free rows PAD; the last one is the empty body of a fact
    rules_by_head:    int64 [K]     rule indices ordered by (head predicate, rule)
    rule_first:       int64 [Q + 1] where the rules of each head predicate begin in `rules_by_head`
    hash_keys:        int64 [A * 3] random odd multipliers of the goal hash

    F and K are at least 1: a program without facts or rules has one row outside every range. F, K and Q may be rounded up to
    powers of two, so that programs of about the same size have the same shapes; the additional rows are outside every range, too.
    """

    num_constants: Tensor
    facts: Tensor
    fact_keys: Tensor
    facts_by_second: Tensor
    second_keys: Tensor
    bucket_first: Tensor
    bucket_keys: Tensor
    bucket_shape: Tensor
    predicate_first: Tensor
    rule_head: Tensor
    rule_body: Tensor
    rules_by_head: Tensor
    rule_first: Tensor
    hash_keys: Tensor


def build_tables(program: Program, num_atoms: int, device: torch.device, *, is_rounded: bool = False) -> Tables:
    """Index a program for the device and for goals padded to `num_atoms`.

    UserError if its keys do not fit in 63 bits.

    is_rounded: whether sizes are rounded up to powers of two
    """
    num_predicates, num_constants = len(program.symbols.predicates), max(1, len(program.symbols.constants))
    if (num_predicates + 1) * num_constants**2 >= 2**63:
        raise UserError(
            f"{num_predicates} predicates and {num_constants} constants do not fit the 63-bit keys of facts",
            where="graph",
            fix="split the graph: predicates * constants^2 must stay below 2^63",
        )
    num_facts = round_up(len(program.facts)) if is_rounded else max(1, len(program.facts))
    filled = np.full((num_facts, 3), PAD, np.int32)
    filled[: len(program.facts)] = program.facts.reshape(-1, 3)
    # The device sorts: for millions of facts, uploading the sorted result would take longer than sorting there.
    facts = torch.as_tensor(filled).to(device)
    predicate, first, second = facts[: len(program.facts)].long().unbind(1)
    keys = (predicate * num_constants + first) * num_constants + second
    second_keys, order = torch.sort((predicate * num_constants + second) * num_constants + first, stable=True)
    num_buckets = 4 * round_up(len(keys))
    shift = 65 - num_buckets.bit_length()
    bucket = (keys * FACT_HASH >> shift) & (num_buckets - 1)
    bucket_sizes = torch.zeros(num_buckets + 1, dtype=torch.int32, device=device)
    bucket_sizes.index_add_(0, bucket + 1, torch.ones_like(bucket, dtype=torch.int32))
    fullest = bucket_sizes.amax().long()

    head_predicates = np.array([rule.clause_head.predicate for rule in program.rules], np.int64)
    longest = max((len(rule.body) for rule in program.rules), default=1)
    bodies = np.full((len(program.rules) + 1, longest, 3), PAD, np.int64)
    for i, rule in enumerate(program.rules):
        bodies[i, : len(rule.body)] = rule.body
    heads = np.array([rule.clause_head[1:] for rule in program.rules], np.int64).reshape(-1, 2)
    bounds = np.arange((round_up(num_predicates) if is_rounded else num_predicates) + 1)
    num_rules = round_up(len(program.rules)) if is_rounded else max(1, len(program.rules))
    # The empty body comes last.
    bodies = np.concatenate((bodies, np.full((num_rules - len(program.rules), *bodies.shape[1:]), PAD, np.int64)))

    def tensor(array: NDArray[Any], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(array)).to(device=device, dtype=dtype)

    def fill(array: NDArray[Any], size: int, value: int) -> NDArray[Any]:
        return np.concatenate((array, np.full((size - len(array), *array.shape[1:]), value, np.int64)))

    def fill_facts(of_facts: Tensor, value: int) -> Tensor:
        return torch.cat((of_facts, of_facts.new_full((num_facts - len(of_facts),), value)))

    never = 2**63 - 1
    return Tables(
        num_constants=tensor(np.array(num_constants)),
        facts=facts,
        fact_keys=fill_facts(keys, never),
        facts_by_second=fill_facts(order, 0),
        second_keys=fill_facts(second_keys, never),
        bucket_first=bucket_sizes.cumsum(0, dtype=torch.int32),
        bucket_keys=fill_facts(keys[torch.argsort(bucket, stable=True)], never),
        bucket_shape=torch.stack((torch.full_like(fullest, shift), fullest)),
        predicate_first=torch.searchsorted(predicate.contiguous(), tensor(bounds)),
        rule_head=tensor(fill(heads, num_rules, PAD), torch.int32),
        rule_body=tensor(bodies, torch.int32),
        rules_by_head=tensor(fill(np.argsort(head_predicates, kind="stable"), num_rules, 0)),
        rule_first=tensor(np.searchsorted(np.sort(head_predicates), bounds)),
        hash_keys=build_hash_keys(num_atoms, device),
    )


def round_up(size: int) -> int:
    """Return the smallest power of two that is at least the size."""
    return 1 << (max(1, size) - 1).bit_length()


def build_hash_keys(num_atoms: int, device: torch.device) -> Tensor:
    """Return random odd multipliers, int64 [num_atoms * 3]."""
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, num_atoms * 3, np.int64) | 1
    return torch.as_tensor(keys, device=device)
