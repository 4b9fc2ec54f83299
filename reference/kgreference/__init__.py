"""The reference prover: an implementation of docs/semantics.md that is as plain as possible.

It shares no code with kgverify, so that one bug cannot hide on both sides. The neural policy, which needs
numpy, is `kgreference.two_tower.TwoTower`.
"""

from kgreference.corrupt import HEAD, TAIL, Corrupter, mix
from kgreference.derivation import Derivation, derive
from kgreference.metric import metrics
from kgreference.model import least_model
from kgreference.policy import Policy, Shortest
from kgreference.program import NamedAtom, NamedRule, Program, Rule, Variable
from kgreference.rank import Ranks, rank, ranking_score
from kgreference.resolvent import FALSE, Kind, OriginKind, Resolvent
from kgreference.step import Limits, Outcome, Step, take_step
from kgreference.terms import Atom, Goal, canonical, substitute, unify, variable

__all__ = [
    "FALSE",
    "HEAD",
    "TAIL",
    "Atom",
    "Corrupter",
    "Derivation",
    "Goal",
    "Kind",
    "Limits",
    "NamedAtom",
    "NamedRule",
    "OriginKind",
    "Outcome",
    "Policy",
    "Program",
    "Ranks",
    "Resolvent",
    "Rule",
    "Shortest",
    "Step",
    "Variable",
    "canonical",
    "derive",
    "least_model",
    "metrics",
    "mix",
    "rank",
    "ranking_score",
    "substitute",
    "take_step",
    "unify",
    "variable",
]
