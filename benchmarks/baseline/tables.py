"""A program as the baseline holds it: facts and rules in segments by predicate, everything int64."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kgverify.program.program import Program
from kgverify.prover.state import PAD


class Segments(NamedTuple):
    """F facts, Q predicates, K rules, Kp the most rules of one predicate, Lb the longest body.

    facts:         int64 [F, 3]      ascending
    fact_keys:     int64 [F]         `(predicate * E + first) * E + second`, ascending; E constants
    fact_first:    int64 [Q + 1]     where the facts of each predicate begin
    places:        int64 [S]         0 to S - 1, S the most facts of one predicate
    num_constants: int64 []          E
    rules:         int64 [Q, Kp]     the rules of each head predicate; free places K
    rule_head:     int64 [K + 1, 3]  the last one, PAD, heads no rule
    rule_body:     int64 [K + 1, Lb, 3]  free rows PAD
    hash_keys:     int64 [A * 3]     random odd multipliers of the hash of a goal
    """

    facts: Tensor
    fact_keys: Tensor
    fact_first: Tensor
    places: Tensor
    num_constants: Tensor
    rules: Tensor
    rule_head: Tensor
    rule_body: Tensor
    hash_keys: Tensor


def build_segments(program: Program, num_atoms: int, device: torch.device) -> Segments:
    """Lay a program out for goals of at most `num_atoms` atoms."""
    num_predicates, num_constants = len(program.symbols.predicates), max(1, len(program.symbols.constants))
    facts = program.facts.astype(np.int64)
    first = np.searchsorted(facts[:, 0], np.arange(num_predicates + 1))
    most = max(1, int(np.diff(first).max(initial=1)))
    if not len(facts):
        facts = np.full((1, 3), PAD, np.int64)

    of_predicate: list[list[int]] = [[] for _ in range(num_predicates)]
    for i, rule in enumerate(program.rules):
        of_predicate[rule.clause_head.predicate].append(i)
    none = len(program.rules)
    rules = np.full((num_predicates, max(1, *(len(each) for each in of_predicate))), none, np.int64)
    heads = np.full((none + 1, 3), PAD, np.int64)
    bodies = np.full((none + 1, max((len(rule.body) for rule in program.rules), default=1), 3), PAD, np.int64)
    for predicate, each in enumerate(of_predicate):
        rules[predicate, : len(each)] = each
    for i, rule in enumerate(program.rules):
        heads[i] = rule.clause_head
        bodies[i, : len(rule.body)] = rule.body
    keys = (facts[:, 0] * num_constants + facts[:, 1]) * num_constants + facts[:, 2]
    hash_keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, num_atoms * 3, np.int64) | 1
    arrays = (facts, keys, first, np.arange(most), np.array(num_constants), rules, heads, bodies, hash_keys)
    return Segments(*(torch.as_tensor(np.ascontiguousarray(array, np.int64), device=device) for array in arrays))
