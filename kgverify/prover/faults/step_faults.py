"""Faults of the stages of a step: each function takes the place of a sound stage, which is its first argument."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from kgverify.prover.faults.fault import FACT_CAP, Plant, plants, replaces
from kgverify.prover.program.tables import Tables
from kgverify.prover.stages.choose import Parameters
from kgverify.prover.stages.match import apply_bindings, bindings, standardize_apart
from kgverify.prover.stages.resolve import Placement, count_by_slot, is_fact, left_align
from kgverify.prover.state import (
    FALSE,
    GOAL,
    PAD,
    PROVED,
    TRUE,
    Choices,
    Derivations,
    Items,
    Rows,
    Segments,
    Work,
    alter,
)

RULE_CAP: Final = 2

TensorStage: TypeAlias = Callable[..., Tensor]
Limit: TypeAlias = Callable[..., Placement]
Prune: TypeAlias = Callable[..., tuple[Tensor, Tensor]]
Advance: TypeAlias = Callable[[Derivations, Work, Rows, Choices, Tensor], Derivations]


def match_nothing_for_padding(plant: Plant) -> Plant:
    """Make an empty goal a dead end. A sound evaluator never resolves its padding, which must not reach the tables."""

    def look_up(sound: Callable[..., Segments], tables: Tables, selected: Tensor) -> Segments:
        segments, is_atom = sound(tables, selected), selected[:, 0] != PAD
        num_rules = torch.where(is_atom, segments.num_rules, 0)
        return alter(segments, num_rules=num_rules, num_facts=torch.where(is_atom, segments.num_facts, 0))

    return plant.replace("look_up", look_up)


@replaces("rule-cap", "match_rules")
def cap_rules(sound: TensorStage, tables: Tables, items: Items, head: Tensor) -> Tensor:
    """Try only the first `RULE_CAP` rules of each head predicate."""
    predicate = _selected_predicate(tables, items)
    beyond = tables.rule_first[predicate] + RULE_CAP
    is_capped = beyond < tables.rule_first[predicate + 1]
    first_lost = tables.rules_by_head[torch.where(is_capped, beyond, 0)]
    return sound(tables, items, head) & ~(is_capped & (items.clause >= first_lost))


@replaces("repeated-head-variable", "match_rules")
def forget_repetition_in_rule(sound: TensorStage, tables: Tables, items: Items, head: Tensor) -> Tensor:
    """Match the arguments of a rule's head p(X, X) separately, so that it is tried for p(a, b)."""
    is_repeated = (head[:, 0] == head[:, 1]) & (head[:, 0] < 0) & (head[:, 0] != PAD)
    return sound(tables, items, head) | is_repeated


@replaces("fact-cap", "match_facts")
def cap_facts(sound: TensorStage, tables: Tables, items: Items, *given: Any) -> Tensor:
    """Try only the first `FACT_CAP` facts of each predicate."""
    number = items.clause - tables.predicate_first[_selected_predicate(tables, items)]
    return sound(tables, items, *given) & (number < FACT_CAP)


@replaces("last-fact-lost", "look_up")
def lose_last_fact(sound: Callable[..., Segments], *given: Any) -> Segments:
    """Take the exclusive end of each range of facts for its last index."""
    segments = sound(*given)
    return alter(segments, num_facts=(segments.num_facts - 1).clamp(min=0))


@replaces("query-matched", "match_facts")
@replaces("query-pruned", "prune")
def forget_excluded(sound: Callable[..., Any], *given: Any) -> Any:
    """Treat the query like any other fact."""
    *others, _ = given
    return sound(*others, False)


@replaces("repeated-goal-variable", "match_facts")
def forget_repetition_in_goal(
    sound: TensorStage, tables: Tables, items: Items, head: Tensor, exclude_query: bool
) -> Tensor:
    """Match the arguments of p(X, X) separately, so that p(a, b) counts as a match."""
    is_repeated = (items.selected[:, 1] == items.selected[:, 2]) & (items.selected[:, 1] < 0)
    fact = torch.cat((items.selected[:, :1], head), dim=1)
    is_excluded = (fact == items.query).all(-1) & exclude_query
    return sound(tables, items, head, exclude_query) | (is_repeated & ~is_excluded)


def _selected_predicate(tables: Tables, items: Items) -> Tensor:
    return items.selected[:, 0].long().clamp(0, tables.predicate_first.shape[0] - 2)


@replaces("sequential-substitution", "resolve")
def substitute_in_wrong_order(
    sound: TensorStage, tables: Tables, items: Items, head: Tensor, goal: Tensor, variable_offset: int
) -> Tensor:
    """Apply the bindings in the wrong order, the second one first, so that terms from the first stay unresolved."""
    no_body = tables.rule_body.shape[0] - 1
    body = tables.rule_body[torch.where(items.is_rule, items.clause, no_body)]
    atoms = torch.cat((standardize_apart(body, variable_offset), goal[:, 1:]), dim=1)
    _, x1, t1, x2, t2 = bindings(head, items.selected)
    return torch.cat((atoms[..., :1], apply_bindings(atoms[..., 1:], x2, t2, x1, t1)), dim=-1)


@replaces("captured-variables", "resolve")
def capture_variables(sound: TensorStage, *given: Any) -> Tensor:
    """Do not standardize rules apart: their variables are numbered from 0, like the goal's."""
    return _resolve_with_offset(sound, 0, *given)


@replaces("overlapping-variables", "resolve")
def overlap_variables(sound: TensorStage, *given: Any) -> Tensor:
    """Standardize rules apart by one variable, whatever the goal holds."""
    return _resolve_with_offset(sound, 1, *given)


def _resolve_with_offset(
    sound: TensorStage, offset: int, tables: Tables, items: Items, head: Tensor, goal: Tensor, variable_offset: int
) -> Tensor:
    is_variable = (head < 0) & (head != PAD)
    shifted = torch.where(is_variable, head + variable_offset - offset, head)
    return sound(tables, items, shifted, goal, offset)


@replaces("rest-not-substituted", "resolve")
def forget_rest(
    sound: TensorStage, tables: Tables, items: Items, head: Tensor, goal: Tensor, variable_offset: int
) -> Tensor:
    """Apply the unifier to the rule's body and not to the rest of the goal."""
    resolvents = sound(tables, items, head, goal, variable_offset)
    return torch.cat((resolvents[:, : tables.rule_body.shape[1]], goal[:, 1:]), dim=1)


@replaces("gap-after-pruning", "prune", match_nothing_for_padding)
def leave_gaps(
    sound: Prune, tables: Tables, atoms: Tensor, query: Tensor, exclude_query: bool
) -> tuple[Tensor, Tensor]:
    """Leave a gap where an atom was deleted.

    A goal is read up to its first gap, so a goal that begins with a gap is empty. A goal that is empty although atoms
    remain is not a proof: no clause matches padding.
    """
    _, num_left = sound(tables, atoms, query, exclude_query)
    is_gap = is_fact(tables, atoms)
    if exclude_query:
        is_gap = is_gap & ~(atoms == query[:, None]).all(-1)
    return left_align(atoms, (atoms[..., 0] != PAD) & (is_gap.cumsum(1) == 0)), num_left


@replaces("empty-goal-ends", "prune", match_nothing_for_padding)
def end_empty_goals(sound: Prune, tables: Tables, atoms: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    """Treat a goal whose atoms were all deleted as ended rather than proved."""
    pruned, num_atoms = sound(tables, atoms, *given)
    return pruned, torch.where((atoms[..., 0] != PAD).any(1), num_atoms.clamp(min=1), num_atoms)


@replaces("any-atom-proves", "prune")
def prove_by_any_atom(sound: Prune, tables: Tables, atoms: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    """Treat a resolvent as TRUE as soon as any of its atoms is a fact."""
    pruned, num_atoms = sound(tables, atoms, *given)
    has_fact = num_atoms < (atoms[..., 0] != PAD).sum(1)
    return pruned, torch.where(has_fact, 0, num_atoms)


@replaces("packed-fact-keys", "prune")
def pack_keys(sound: Prune, tables: Tables, atoms: Tensor, query: Tensor, exclude_query: bool) -> tuple[Tensor, Tensor]:
    """Pack a fact into 32 bits, 8 for each argument: constants from 256 on reach into their neighbours' bits."""

    def pack(atoms: Tensor) -> Tensor:
        predicate, first, second = atoms.long().unbind(-1)
        return (predicate * 65536 + first * 256 + second) & 0xFFFFFFFF

    keys = pack(tables.facts).sort().values
    key = pack(atoms)
    index = torch.searchsorted(keys, key).clamp(max=keys.shape[0] - 1)
    is_deleted = (atoms >= 0).all(-1) & (keys[index] == key)
    if exclude_query:
        is_deleted = is_deleted & ~(atoms == query[:, None]).all(-1)
    return sound(tables, left_align(atoms, (atoms[..., 0] != PAD) & ~is_deleted), query, exclude_query)


@replaces("offset-renaming", "rename")
def rename_by_offset(sound: TensorStage, atoms: Tensor) -> Tensor:
    """Subtract the smallest variable's number from all, modulo the number of variables that there is room for."""
    arguments = atoms[..., 1:]
    is_variable = (arguments < 0) & (arguments != PAD)
    number = torch.where(is_variable, -1 - arguments, 2**30)
    smallest = number.flatten(1).amin(1)[:, None, None]
    renamed = -1 - (number - smallest) % (2 * atoms.shape[1])
    return torch.cat((atoms[..., :1], torch.where(is_variable, renamed, arguments).to(atoms.dtype)), dim=-1)


@replaces("no-revisit-check", "revisit")
def skip_check(sound: TensorStage, tables: Tables, atoms: Tensor, *given: Tensor) -> Tensor:
    """Let derivations walk in circles."""
    return torch.zeros(len(atoms), dtype=torch.bool, device=atoms.device)


@replaces("order-blind-hash", "revisit")
def ignore_order(
    sound: TensorStage, tables: Tables, atoms: Tensor, visited: Tensor, slot: Tensor, depth: Tensor
) -> Tensor:
    """Treat goals with the same atoms in any order as equal: the hash is a sum over atoms, and nothing checks it."""

    def goal_hash(atoms: Tensor) -> Tensor:
        of_atom = (atoms.long() * tables.hash_keys[:3]).sum(-1)
        return (of_atom * (of_atom ^ (of_atom >> 29))).sum(-1)

    turns = torch.arange(visited.shape[1], device=atoms.device)
    is_same = goal_hash(visited)[slot] == goal_hash(atoms)[:, None]
    return (is_same & (turns <= depth[slot][:, None])).any(1)


@plants("scatter-collision")
def read_overflow_as_proof(plant: Plant) -> Plant:
    """Count a row of padding as valid if resolvents are dropped beyond the cap: an empty goal is a proof.

    Rows beyond the cap and invalid rows are scattered to the same last row, which keeps the last one written.
    """
    cap = plant.limits.max_resolvents

    def close(sound: TensorStage, num_survivors: Tensor, true_origin_kind: Tensor, num_kept: Tensor) -> Tensor:
        is_full = (num_kept >= cap) & (num_survivors > num_kept)
        return torch.where(is_full, TRUE, sound(num_survivors, true_origin_kind, num_kept)).to(torch.int32)

    return plant.replace("close", close)


@plants("dead-end-open")
def leave_dead_ends(plant: Plant) -> Plant:
    """Do not turn a dead end into FALSE: the slot stays at its goal until the depth limit.

    If `limit` has left nothing, FALSE remains.
    """

    def close(sound: TensorStage, num_survivors: Tensor, *given: Any) -> Tensor:
        kind = sound(num_survivors, *given)
        return torch.where((kind == FALSE) & (num_survivors == 0), GOAL, kind).to(torch.int32)

    def advance(
        sound: Advance, derivations: Derivations, work: Work, rows: Rows, choices: Choices, is_taken: Tensor
    ) -> Derivations:
        after = sound(derivations, work, rows, choices, is_taken)
        is_stuck = is_taken & (choices.num_resolvents == 0)
        return alter(
            after,
            goal=torch.where(is_stuck[:, None, None], derivations.goal, after.goal),
            visited=torch.where(is_stuck[:, None, None, None], derivations.visited, after.visited),
        )

    return plant.replace("close", close).replace("advance", advance)


@replaces("true-not-alone", "close")
def keep_siblings(sound: TensorStage, num_survivors: Tensor, true_origin_kind: Tensor, num_kept: Tensor) -> Tensor:
    """Continue with the other resolvents if some are left besides TRUE."""
    kind = sound(num_survivors, true_origin_kind, num_kept)
    return torch.where((kind == TRUE) & (num_kept > 0), GOAL, kind).to(torch.int32)


@replaces("max-atoms-off-by-one", "limit")
def drop_at_max_atoms(sound: Limit, *given: Any) -> Placement:
    """Drop resolvents of exactly `max_atoms` atoms as well."""
    *others, max_atoms, max_resolvents = given
    return sound(*others, max_atoms - 1, max_resolvents)


@replaces("max-resolvents-off-by-one", "limit")
@replaces("max-depth-off-by-one", "finish")
def lower_limit(sound: Callable[..., Any], *given: Any) -> Any:
    """Keep one resolvent fewer than `max_resolvents`, or report DEPTH_LIMIT one step before `max_depth`."""
    *others, limit = given
    return sound(*others, limit - 1)


@replaces("truncated-goals", "limit")
def truncate(sound: Limit, is_survivor: Tensor, num_atoms: Tensor, *given: Any) -> Placement:
    """Keep resolvents with more atoms than there is room for, but drop their last atoms."""
    max_atoms = given[-2]
    return sound(is_survivor, num_atoms.clamp(max=max_atoms), *given)


@replaces("facts-before-rules", "limit")
def put_facts_first(
    sound: Limit, is_survivor: Tensor, num_atoms: Tensor, items: Items, held: Tensor, work: Work, *limits: int
) -> Placement:
    """List resolvents of facts before resolvents of rules, within each window of clauses."""
    placement = sound(is_survivor, num_atoms, items, held, work, *limits)
    by_fact = placement.is_kept & ~items.is_rule
    by_rule = placement.is_kept & items.is_rule
    num_by_fact, num_by_rule = count_by_slot(by_fact, held), count_by_slot(by_rule, held)

    def rank(mask: Tensor, count: Tensor) -> Tensor:
        return mask.cumsum(0) - 1 - (count.cumsum(0) - count)[items.slot]

    after_facts = num_by_fact[items.slot] + rank(by_rule, num_by_rule)
    row = work.num_kept[items.slot] + torch.where(items.is_rule, after_facts, rank(by_fact, num_by_fact))
    return Placement(placement.is_kept, row, placement.num_kept, placement.dropped_atoms, placement.dropped_resolvents)


@replaces("bf16-scores", "score")
def round_to_bf16(sound: TensorStage, *given: Any) -> Tensor:
    """Score in bfloat16: 8 significant bits."""
    return sound(*given).bfloat16().float()


@replaces("tf32-scores", "score")
def round_to_tf32(sound: TensorStage, *given: Any) -> Tensor:
    """Score with 11 significant bits, as tensor cores multiply float32."""
    fraction, exponent = torch.frexp(sound(*given))
    return torch.ldexp((fraction * 2048).round() / 2048, exponent)


@replaces("nan-score", "score")
def divide_by_no_variables(
    sound: TensorStage, parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor
) -> Tensor:
    """Take a masked mean over a resolvent's variables; without variables it is 0 / 0."""
    arguments = resolvents[..., 1:]
    num_variables = ((arguments < 0) & (arguments != PAD)).flatten(1).sum(1)
    return sound(parameters, goals, resolvents, slot) * (num_variables / num_variables)


@replaces("stale-weights", "score")
def keep_old_weights(sound: TensorStage, parameters: Parameters, *given: Tensor) -> Tensor:
    """Score with the weights from before the last update, here nine tenths of each."""
    old = tuple(each * 0.9 if each.is_floating_point() else each for each in parameters)
    return sound(old, *given)


@replaces("last-argmax", "choose")
def choose_last(sound: Callable[..., Choices], kind: Tensor, num_resolvents: Tensor, score: Tensor) -> Choices:
    """Choose the highest index of equal scores."""
    choices = sound(kind, num_resolvents, score)
    last = score.shape[1] - 1 - score.flip(1).argmax(1)
    choice = torch.where((kind == GOAL) & (num_resolvents > 0), last, choices.choice)
    return Choices(choices.kind, choices.num_resolvents, choices.score, choice, choices.log_probability)


@replaces("stale-resolvents", "advance")
def keep_query_resolvents(
    sound: Advance, derivations: Derivations, work: Work, rows: Rows, choices: Choices, is_taken: Tensor
) -> Derivations:
    """Choose from the query's resolvents at every step: the goal to resolve stays the query."""
    after = sound(derivations, work, rows, choices, is_taken)
    goes_on = is_taken & (choices.kind == GOAL)
    return alter(after, goal=torch.where(goes_on[:, None, None], derivations.visited[:, 0], after.goal))


@replaces("log-probability-after-end", "advance")
def add_after_end(
    sound: Advance, derivations: Derivations, work: Work, rows: Rows, choices: Choices, is_taken: Tensor
) -> Derivations:
    """Add a log-probability for one more step after the end, here the mean so far."""
    after = sound(derivations, work, rows, choices, is_taken)
    ends = is_taken & (choices.kind != GOAL)
    once_more = after.log_probability / after.depth.clamp(min=1)
    return alter(after, log_probability=after.log_probability + torch.where(ends, once_more, 0.0))


@replaces("enum-folded", "finish", match_nothing_for_padding)
def fold_comparison(sound: TensorStage, depth: Tensor, outcome: Tensor, kind: Tensor, *given: Any) -> Tensor:
    """Fold `kind == TRUE` to False: a proof is not noticed, and the slot continues from an empty goal."""
    return sound(depth, outcome, torch.where(kind == TRUE, GOAL, kind), *given)


@replaces("failure-credited", "finish")
def credit_failure(
    sound: TensorStage, depth: Tensor, outcome: Tensor, kind: Tensor, is_taken: Tensor, max_depth: int
) -> Tensor:
    """Count every end of a derivation as a success."""
    after = sound(depth, outcome, kind, is_taken, max_depth)
    return torch.where(is_taken & (kind == FALSE), PROVED, after).to(torch.int32)
