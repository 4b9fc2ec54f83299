"""The reference prover: the plainest possible implementation of docs/semantics.md.

It shares no code with kgverify, so that the same bug cannot hide on both sides. The neural policy, which needs numpy,
is `kgreference.two_tower.TwoTower`.
"""

from kgreference.corrupt import HEAD, TAIL, Corrupter, mix
from kgreference.derivation import Derivation, derive, derive_together
from kgreference.dialect import (
    OURS,
    Aggregate,
    Dialect,
    Exclusion,
    Filter,
    LongResolvents,
    Memory,
    Merge,
    Order,
    Stopping,
    Ties,
    Unification,
    Unproved,
)
from kgreference.model import least_model
from kgreference.policy import Policy, Shortest
from kgreference.program import NamedAtom, NamedRule, Program, Rule, Variable
from kgreference.rank import Ranks, metrics, rank, ranking_score
from kgreference.resolvent import FALSE, STOP, Kind, Matches, OriginKind, Resolvent
from kgreference.search import Search, rank_answers, score_answers, search
from kgreference.step import OUR_STAGES, Limits, Outcome, Situation, Stages, Step, find_excluded, take_step
from kgreference.terms import Atom, Goal, canonical, substitute, unify, variable

__all__ = [
    "FALSE",
    "HEAD",
    "OURS",
    "OUR_STAGES",
    "STOP",
    "TAIL",
    "Aggregate",
    "Atom",
    "Corrupter",
    "Derivation",
    "Dialect",
    "Exclusion",
    "Filter",
    "Goal",
    "Kind",
    "Limits",
    "LongResolvents",
    "Matches",
    "Memory",
    "Merge",
    "NamedAtom",
    "NamedRule",
    "Order",
    "OriginKind",
    "Outcome",
    "Policy",
    "Program",
    "Ranks",
    "Resolvent",
    "Rule",
    "Search",
    "Shortest",
    "Situation",
    "Stages",
    "Step",
    "Stopping",
    "Ties",
    "Unification",
    "Unproved",
    "Variable",
    "canonical",
    "derive",
    "derive_together",
    "find_excluded",
    "least_model",
    "metrics",
    "mix",
    "rank",
    "rank_answers",
    "ranking_score",
    "score_answers",
    "search",
    "substitute",
    "take_step",
    "unify",
    "variable",
]
