"""The arrays of the compiled evaluator.

One legend of axes for the whole package: B slots; A atoms of a goal, padded; S resolvents of a step, padded; D goals visited,
padded; C items of a match window; L atoms of an unpruned resolvent; R rows of a score window; P candidates of the pool;
F facts; K rules. Trailing 3: predicate, first argument, second argument.
"""

from collections import namedtuple
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

from torch import Tensor

from kgverify.engines.protocol import STOPPED as STOPPED

PAD: Final = -(2**31)
"""A row of an atom axis that holds no atom; no id and no sum of ids can have this value."""

NO_CANDIDATE: Final = -1
"""The pool index of a slot that holds no derivation."""

# Plain ints, since a comparison with an IntEnum member can be folded away by the compiler.
GOAL: Final = 0
TRUE: Final = 1
FALSE: Final = 2

OPEN: Final = 0
PROVED: Final = 1
FAILED: Final = 2
DEPTH_LIMIT: Final = 3

RULE: Final = 1
FACT: Final = 2


class Layout(NamedTuple):
    """The sizes of a batch, which must not change any derivation.

    slots:        derivations in flight (B)
    atoms:        atom padding (A), at least max_atoms
    resolvents:   resolvent padding (S), at least max_resolvents
    match_window: clauses tried at each tick, over all slots (C)
    score_window: resolvents scored at each tick, over all slots (R), at least max_resolvents
    pool:         candidates passed to the device at once (P)
    """

    slots: int
    atoms: int
    resolvents: int
    match_window: int
    score_window: int
    pool: int


class Derivations(NamedTuple):
    """The derivation in each slot, between two steps.

    pool_index:      int64   [B]           the candidate's index in the pool, or NO_CANDIDATE
    query:           int32   [B, 3]        the excluded atom
    goal:            int32   [B, A, 3]     the remaining atoms, left-aligned, free rows PAD
    depth:           int32   [B]           steps taken
    outcome:         int32   [B]           a slot that is not OPEN takes no step
    is_limited:      bool    [B]           a limit dropped something
    log_probability: float64 [B]           nats
    visited:         int32   [B, D, A, 3]  goals visited; row `depth` is the current one
    """

    pool_index: Tensor
    query: Tensor
    goal: Tensor
    depth: Tensor
    outcome: Tensor
    is_limited: Tensor
    log_probability: Tensor
    visited: Tensor


class Work(NamedTuple):
    """The unfinished step of each slot: the resolvents that its match windows have found so far.

    A kept resolvent is represented by its clause; its atoms are formed once the step is complete.

    cursor:             int64 [B]     clauses tried
    num_survivors:      int64 [B]     resolvents left after `revisit`, without TRUE
    num_kept:           int64 [B]     resolvents kept by `limit`
    dropped_atoms:      int64 [B]     dropped for too many atoms
    dropped_resolvents: int64 [B]     dropped beyond max_resolvents
    true_origin_kind:   int32 [B]     origin of the first TRUE; 0 until there is one
    true_origin:        int32 [B]
    origin_kind:        int32 [B, S + 1]  of the kept resolvents; free rows are unspecified, row S is a sink of zeros
    origin:             int32 [B, S + 1]
    """

    cursor: Tensor
    num_survivors: Tensor
    num_kept: Tensor
    dropped_atoms: Tensor
    dropped_resolvents: Tensor
    true_origin_kind: Tensor
    true_origin: Tensor
    origin_kind: Tensor
    origin: Tensor


class Pool(NamedTuple):
    """The waiting candidates, and the results of ended candidates.

    query:           int32   [P, 3]  atoms to prove
    floor:           float64 [P]     in mode `fused`, an open derivation is STOPPED once its log-probability is lower
    size:            int64   []      candidates in the pool
    next_index:      int64   []      index of the next candidate for a slot
    outcome:         int32   [P]     OPEN until ended, or STOPPED
    is_limited:      bool    [P]
    log_probability: float64 [P]
    """

    query: Tensor
    floor: Tensor
    size: Tensor
    next_index: Tensor
    outcome: Tensor
    is_limited: Tensor
    log_probability: Tensor


class Segments(NamedTuple):
    """The clauses that may match each slot's selected atom.

    The index narrows them down; the match stages decide.

    rule_first, num_rules: int64 [B]  a range of the rules ordered by (head predicate, rule)
    fact_first, num_facts: int64 [B]  a range of the facts, or of `facts_by_second`
    by_second:             bool  [B]  whether the range of facts is in `facts_by_second`
    """

    rule_first: Tensor
    num_rules: Tensor
    fact_first: Tensor
    num_facts: Tensor
    by_second: Tensor


class Items(NamedTuple):
    """The clauses to try, each for one slot, in the order of slots and, within a slot, of clauses.

    slot:     int64 [C]
    is_live:  bool  [C]  whether this row of the window is used
    is_rule:  bool  [C]  else a fact
    clause:   int64 [C]  index of the rule or fact; 0 if not live
    selected: int32 [C, 3]  the slot's selected atom
    query:    int32 [C, 3]  the slot's excluded atom
    """

    slot: Tensor
    is_live: Tensor
    is_rule: Tensor
    clause: Tensor
    selected: Tensor
    query: Tensor


class Rows(NamedTuple):
    """The resolvents of the slots whose step is complete, end to end: the rows of the score window.

    slot:    int64 [R]
    is_live: bool  [R]        whether this row of the window is used
    atoms:   int32 [R, A, 3]  free rows PAD
    first:   int64 [B]        where each slot's resolvents begin; unspecified for a slot without any
    """

    slot: Tensor
    is_live: Tensor
    atoms: Tensor
    first: Tensor


class Choices(NamedTuple):
    """The output of `score` and `choose` for the slots whose step is complete.

    kind:            int32   [B]     GOAL, or TRUE or FALSE as the only resolvent
    num_resolvents:  int64   [B]
    score:           float32 or float64 [B, S]  -inf beyond num_resolvents
    choice:          int64   [B]
    log_probability: float64 [B]     log-softmax at the choice
    """

    kind: Tensor
    num_resolvents: Tensor
    score: Tensor
    choice: Tensor
    log_probability: Tensor


class TickGaps(NamedTuple):
    """The closeness of the choices of a tick that are made in a fast precision.

    num_choices:  int64 []          choices between at least two resolvents
    num_rescored: int64 []          choices repeated in a higher precision
    smallest:     float32 []        smallest gap between the two highest scores, in nats; inf without a choice
    """

    num_choices: Tensor
    num_rescored: Tensor
    smallest: Tensor


class StepRecord(NamedTuple):
    """The steps that a tick completed, in the slots where `is_taken`, for a recorder.

    is_taken:   bool  [B]
    pool_index: int64 [B]
    goal:       int32 [B, A, 3]  before the step
    depth:      int32 [B]        before the step
    outcome:    int32 [B]        after the step
    work:       the origins of resolvents, and the numbers dropped
    rows:       the resolvents
    choices:    scores and choice
    gaps:       the closeness of the choices; None if nothing is scored again
    """

    is_taken: Tensor
    pool_index: Tensor
    goal: Tensor
    depth: Tensor
    outcome: Tensor
    work: Work
    rows: Rows
    choices: Choices
    gaps: TickGaps | None


class Decided(NamedTuple):
    """The steps that a tick completes in B slots, up to the stage `limit`.

    is_taken: bool  [B]
    work:     the clauses and counts
    kind:     int32 [B]        GOAL, or TRUE or FALSE as the only resolvent
    first:    int64 [B]        the row of the first resolvent
    atoms:    int32 [R, A, 3]  the rows
    """

    is_taken: Tensor
    work: Work
    kind: Tensor
    first: Tensor
    atoms: Tensor


def make_tuple_type(name: str, fields: Sequence[str]) -> Any:
    """Return a type of named tuples of tensors with the given fields."""
    return namedtuple(name, fields)


Record = TypeVar("Record", Derivations, Work, Pool, Segments)


def alter(record: Record, **changes: Tensor) -> Record:
    """Return a record of tensors with some fields replaced.

    The record is built anew, since on torch 2.11 a compiled function loses fields in a chain of `_replace`.
    """
    return type(record)(*[changes.get(name, value) for name, value in zip(record._fields, record, strict=True)])
