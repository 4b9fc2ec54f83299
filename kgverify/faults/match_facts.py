"""Faults of the stage `match_facts`."""

from typing import Final

from torch import Tensor

from kgverify.engines.compiled.stages import Stages
from kgverify.engines.compiled.state import Items
from kgverify.engines.compiled.tables import Tables

FACT_CAP: Final = 50


def cap_facts(stages: Stages) -> Stages:
    """Try only the first 50 facts of each predicate."""
    match_facts = stages.match_facts

    def match_first_facts(tables: Tables, items: Items, head: Tensor, exclude_query: bool) -> Tensor:
        predicate = items.selected[:, 0].long().clamp(0, tables.predicate_first.shape[0] - 2)
        place = items.clause - tables.predicate_first[predicate]
        return match_facts(tables, items, head, exclude_query) & (place < FACT_CAP)

    return stages._replace(match_facts=match_first_facts)
