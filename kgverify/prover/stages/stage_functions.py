"""The stages of a step as one immutable record of callables. A probe wraps them; a fault or a kernel replaces some."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from kgverify.prover.program.tables import Tables
from kgverify.prover.stages import choose as choose_stages
from kgverify.prover.stages import match as match_stages
from kgverify.prover.stages import recycle as recycle_stages
from kgverify.prover.stages import resolve as resolve_stages
from kgverify.prover.state import Choices, Derivations, Items, Pool, Rows, Segments, Work


class Stages(NamedTuple):
    """A pure function per stage; `look_up` belongs to `match_facts` and `match_rules`, which it serves.

    The functions of this package document the shapes. `score` is the policy's.
    """

    score: choose_stages.Score
    select: Callable[[Tensor], Tensor] = match_stages.select
    look_up: Callable[[Tables, Tensor], Segments] = match_stages.look_up
    match_rules: Callable[[Tables, Items, Tensor], Tensor] = match_stages.match_rules
    match_facts: Callable[[Tables, Items, Tensor, bool], Tensor] = match_stages.match_facts
    resolve: Callable[[Tables, Items, Tensor, Tensor, int], Tensor] = resolve_stages.resolve
    prune: Callable[[Tables, Tensor, Tensor, bool], tuple[Tensor, Tensor]] = resolve_stages.prune
    rename: Callable[[Tensor], Tensor] = resolve_stages.rename
    revisit: Callable[[Tables, Tensor, Tensor, Tensor, Tensor], Tensor] = resolve_stages.revisit
    close: Callable[[Tensor, Tensor, Tensor], Tensor] = resolve_stages.close
    limit: Callable[[Tensor, Tensor, Items, Tensor, Work, int, int], resolve_stages.Placement] = resolve_stages.limit
    choose: Callable[[Tensor, Tensor, Tensor], Choices] = choose_stages.choose
    advance: Callable[[Derivations, Work, Rows, Choices, Tensor], Derivations] = choose_stages.advance
    finish: Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor] = choose_stages.finish
    recycle: Callable[[Pool, Derivations], tuple[Pool, Derivations]] = recycle_stages.recycle
