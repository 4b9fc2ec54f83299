"""Faults of the stages `match_rules` and `match_facts`, and of the index that serves them."""

from typing import Final

import torch
from torch import Tensor

from kgverify.engines.compiled.program.tables import Tables
from kgverify.engines.compiled.state import PAD, Items, Segments
from kgverify.faults.fault import Plant

FACT_CAP: Final = 50
RULE_CAP: Final = 2


def cap_facts(plant: Plant) -> Plant:
    """Try only the first `FACT_CAP` facts of each predicate."""
    match_facts = plant.stages.match_facts

    def match_first_facts(tables: Tables, items: Items, head: Tensor, exclude_query: bool) -> Tensor:
        number = items.clause - tables.predicate_first[_selected_predicate(tables, items)]
        return match_facts(tables, items, head, exclude_query) & (number < FACT_CAP)

    return plant.with_stages(match_facts=match_first_facts)


def cap_rules(plant: Plant) -> Plant:
    """Try only the first `RULE_CAP` rules of each head predicate."""
    match_rules = plant.stages.match_rules

    def match_first_rules(tables: Tables, items: Items, head: Tensor) -> Tensor:
        predicate = _selected_predicate(tables, items)
        beyond = tables.rule_first[predicate] + RULE_CAP
        is_capped = beyond < tables.rule_first[predicate + 1]
        first_lost = tables.rules_by_head[torch.where(is_capped, beyond, 0)]
        return match_rules(tables, items, head) & ~(is_capped & (items.clause >= first_lost))

    return plant.with_stages(match_rules=match_first_rules)


def match_query(plant: Plant) -> Plant:
    """Let the query serve as a fact."""
    match_facts = plant.stages.match_facts

    def match_all_facts(tables: Tables, items: Items, head: Tensor, exclude_query: bool) -> Tensor:
        return match_facts(tables, items, head, False)

    return plant.with_stages(match_facts=match_all_facts)


def lose_last_fact(plant: Plant) -> Plant:
    """Take the exclusive end of each range of facts for its last index."""
    look_up = plant.stages.look_up

    def look_up_short(tables: Tables, selected: Tensor) -> Segments:
        segments = look_up(tables, selected)
        return Segments(
            rule_first=segments.rule_first,
            num_rules=segments.num_rules,
            fact_first=segments.fact_first,
            num_facts=(segments.num_facts - 1).clamp(min=0),
            by_second=segments.by_second,
        )

    return plant.with_stages(look_up=look_up_short)


def forget_repetition_in_goal(plant: Plant) -> Plant:
    """Match the arguments of p(X, X) apart, so that p(a, b) is taken for a match."""
    match_facts = plant.stages.match_facts

    def match_arguments_apart(tables: Tables, items: Items, head: Tensor, exclude_query: bool) -> Tensor:
        is_repeated = (items.selected[:, 1] == items.selected[:, 2]) & (items.selected[:, 1] < 0)
        fact = torch.cat((items.selected[:, :1], head), dim=1)
        is_excluded = (fact == items.query).all(-1) & exclude_query
        return match_facts(tables, items, head, exclude_query) | (is_repeated & ~is_excluded)

    return plant.with_stages(match_facts=match_arguments_apart)


def forget_repetition_in_rule(plant: Plant) -> Plant:
    """Match the arguments of a rule's head p(X, X) apart, so that it is tried for p(a, b)."""
    match_rules = plant.stages.match_rules

    def match_arguments_apart(tables: Tables, items: Items, head: Tensor) -> Tensor:
        is_repeated = (head[:, 0] == head[:, 1]) & (head[:, 0] < 0) & (head[:, 0] != PAD)
        return match_rules(tables, items, head) | is_repeated

    return plant.with_stages(match_rules=match_arguments_apart)


def match_nothing_for_padding(plant: Plant) -> Plant:
    """Make an empty goal a dead end: its padding, which a sound evaluator never resolves, must not reach the tables."""
    look_up = plant.stages.look_up

    def look_up_atoms(tables: Tables, selected: Tensor) -> Segments:
        segments = look_up(tables, selected)
        is_atom = selected[:, 0] != PAD
        return Segments(
            rule_first=segments.rule_first,
            num_rules=torch.where(is_atom, segments.num_rules, 0),
            fact_first=segments.fact_first,
            num_facts=torch.where(is_atom, segments.num_facts, 0),
            by_second=segments.by_second,
        )

    return plant.with_stages(look_up=look_up_atoms)


def _selected_predicate(tables: Tables, items: Items) -> Tensor:
    return items.selected[:, 0].long().clamp(0, tables.predicate_first.shape[0] - 2)
