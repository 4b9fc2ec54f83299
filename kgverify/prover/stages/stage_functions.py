"""The stages of a step as one immutable record of callables: a probe wraps them, a fault or a kernel replaces some."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from kgverify.prover.program.tables import Tables
from kgverify.prover.stages import choose, match, recycle, resolve
from kgverify.prover.state import Choices, Derivations, Items, Pool, Rows, Segments, Work


class Stages(NamedTuple):
    """A pure function per stage; `look_up` belongs to `match_facts` and `match_rules`, which it serves.

    The functions of this package document the shapes. `score` is the policy's.
    """

    select: Callable[[Tensor], Tensor]
    look_up: Callable[[Tables, Tensor], Segments]
    match_rules: Callable[[Tables, Items, Tensor], Tensor]
    match_facts: Callable[[Tables, Items, Tensor, bool], Tensor]
    resolve: Callable[[Tables, Items, Tensor, Tensor, int], Tensor]
    prune: Callable[[Tables, Tensor, Tensor, bool], tuple[Tensor, Tensor]]
    rename: Callable[[Tensor], Tensor]
    revisit: Callable[[Tables, Tensor, Tensor, Tensor, Tensor], Tensor]
    close: Callable[[Tensor, Tensor, Tensor], Tensor]
    limit: Callable[[Tensor, Tensor, Items, Tensor, Work, int, int], resolve.Placement]
    score: choose.Score
    choose: Callable[[Tensor, Tensor, Tensor], Choices]
    advance: Callable[[Derivations, Work, Rows, Choices, Tensor], Derivations]
    finish: Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]
    recycle: Callable[[Pool, Derivations], tuple[Pool, Derivations]]


def build_stages(score: choose.Score) -> Stages:
    """Return the stages as the semantics defines them, with a policy's score function."""
    return Stages(
        select=match.select,
        look_up=match.look_up,
        match_rules=match.match_rules,
        match_facts=match.match_facts,
        resolve=resolve.resolve,
        prune=resolve.prune,
        rename=resolve.rename,
        revisit=resolve.revisit,
        close=resolve.close,
        limit=resolve.limit,
        score=score,
        choose=choose.choose,
        advance=choose.advance,
        finish=choose.finish,
        recycle=recycle.recycle,
    )
