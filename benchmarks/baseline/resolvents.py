"""The baseline's engine: all clauses of the selected predicate, tried at once for every slot."""

from typing import NamedTuple

import torch
from torch import Tensor

from baseline.tables import Segments
from kgverify.program.limits import Limits
from kgverify.prover.state import FALSE, GOAL, PAD, TRUE


class Resolvents(NamedTuple):
    """The resolvents that each slot can choose from. N slots, R = max_resolvents, A = max_atoms.

    atoms:      int64 [N, R, A, 3]  free rows PAD
    count:      int64 [N]           rows in use
    kind:       int64 [N]           GOAL, or TRUE or FALSE standing alone
    is_limited: bool  [N]           a limit dropped something
    """

    atoms: Tensor
    count: Tensor
    kind: Tensor
    is_limited: Tensor


class Tried(NamedTuple):
    """Clauses of one kind, C of them for each slot.

    matches:   bool  [N, C]
    atoms:     int64 [N, C, A, 3]  canonical; of a resolvent that is longer, the first A
    num_atoms: int64 [N, C]
    """

    matches: Tensor
    atoms: Tensor
    num_atoms: Tensor


def compute_resolvents(
    segments: Segments, limits: Limits, goal: Tensor, query: Tensor, visited: Tensor, depth: Tensor
) -> Resolvents:
    """One step's resolvents: goal int64 [N, A, 3], query int64 [N, 3], visited int64 [N, D] hashes, depth int64 [N]."""
    selected = goal[:, 0]
    predicate = torch.where(selected[:, 0] >= 0, selected[:, 0], 0)
    parts = (
        try_rules(segments, limits, goal, query, predicate),
        try_facts(segments, limits, goal, query, predicate),
    )
    tried = Tried(*(torch.cat(each, 1) for each in zip(*parts, strict=True)))
    is_true = (tried.matches & (tried.num_atoms == 0)).any(1)
    was_visited = is_visited(segments, tried.atoms, visited, depth) & (tried.num_atoms <= limits.max_atoms)
    survives = tried.matches & (tried.num_atoms > 0) & ~was_visited
    fits = survives & (tried.num_atoms <= limits.max_atoms)
    row = fits.long().cumsum(1) - 1
    is_kept = fits & (row < limits.max_resolvents)

    # The clause of each row; what is not kept goes to a row beyond the last one.
    num_slots, num_clauses = row.shape
    clause = torch.zeros(num_slots, limits.max_resolvents + 1, dtype=torch.int64, device=goal.device)
    target = torch.where(is_kept, row, limits.max_resolvents)
    numbers = torch.arange(num_clauses, device=goal.device).expand(num_slots, num_clauses)
    clause = clause.scatter(1, target, numbers)[:, : limits.max_resolvents]
    count = is_kept.sum(1)
    is_used = torch.arange(limits.max_resolvents, device=goal.device) < count[:, None]
    rows = tried.atoms.gather(1, clause[:, :, None, None].expand(-1, -1, limits.max_atoms, 3))

    kind = torch.where(is_true, TRUE, torch.where(count == 0, FALSE, GOAL))
    stands_alone = kind != GOAL
    return Resolvents(
        torch.where((is_used & ~stands_alone[:, None])[:, :, None, None], rows, PAD),
        torch.where(stands_alone, 1, count),
        kind,
        (survives.sum(1) > count) & ~is_true,
    )


def try_rules(segments: Segments, limits: Limits, goal: Tensor, query: Tensor, predicate: Tensor) -> Tried:
    """Every rule of the selected predicate."""
    rule = segments.rules[predicate]
    offset = 2 * limits.max_atoms
    head = standardize_apart(segments.rule_head[rule], offset)
    body = standardize_apart(segments.rule_body[rule], offset)
    matches, bindings = unify(head, goal[:, :1])
    rest = goal[:, None, 1:].expand(-1, rule.shape[1], -1, -1)
    is_rule = rule < len(segments.rule_head) - 1
    return reduce_atoms(segments, limits, torch.cat((body, rest), 2), bindings, query, matches & is_rule)


def try_facts(segments: Segments, limits: Limits, goal: Tensor, query: Tensor, predicate: Tensor) -> Tried:
    """Every fact of the selected predicate: the whole segment, whatever the arguments are."""
    begin, end = segments.fact_first[predicate], segments.fact_first[predicate + 1]
    place = begin[:, None] + segments.places
    inside = place < end[:, None]
    fact = segments.facts[torch.where(inside, place, 0)]
    matches, bindings = unify(fact, goal[:, :1])
    matches = matches & inside
    if limits.exclude_query:
        matches = matches & ~(fact == query[:, None]).all(-1)
    rest = goal[:, None, 1:].expand(-1, place.shape[1], -1, -1)
    return reduce_atoms(segments, limits, rest, bindings, query, matches)


def reduce_atoms(
    segments: Segments,
    limits: Limits,
    atoms: Tensor,
    bindings: tuple[Tensor, Tensor, Tensor, Tensor],
    query: Tensor,
    matches: Tensor,
) -> Tried:
    """Resolve, prune and rename: atoms int64 [N, C, L, 3], free rows PAD, anywhere."""
    if not atoms.shape[2]:
        atoms = torch.nn.functional.pad(atoms, (0, 0, 0, 1), value=PAD)
    once = substitute(atoms[..., 1:], *(each[..., None, None] for each in bindings[:2]))
    arguments = substitute(once, *(each[..., None, None] for each in bindings[2:]))
    atoms = torch.cat((atoms[..., :1], arguments), -1)

    predicate, first, second = atoms.unbind(-1)
    is_ground = (predicate >= 0) & (first >= 0) & (second >= 0)
    key = (predicate * segments.num_constants + first) * segments.num_constants + second
    key = torch.where(is_ground, key, -1)
    place = torch.searchsorted(segments.fact_keys, key).clamp(max=len(segments.fact_keys) - 1)
    is_fact = is_ground & (segments.fact_keys[place] == key)
    if limits.exclude_query:
        is_fact = is_fact & ~(atoms == query[:, None, None]).all(-1)
    is_left = (predicate != PAD) & ~is_fact
    return Tried(matches, rename(left_align(atoms, is_left, limits.max_atoms)), is_left.sum(-1))


def unify(head: Tensor, selected: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Unify heads int64 [N, C, 3] with the selected atoms int64 [N, 1, 3]: whether they do, and x1 -> t1, then x2 -> t2."""
    x1, t1, agrees1 = _bind(head[..., 1], selected[..., 1])
    x2, t2, agrees2 = _bind(substitute(head[..., 2], x1, t1), substitute(selected[..., 2], x1, t1))
    return agrees1 & agrees2, (x1, t1, x2, t2)


def _bind(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    variable = torch.where(left < 0, left, right)
    value = torch.where(left < 0, right, left)
    return variable, value, (variable < 0) | (left == right)


def substitute(arguments: Tensor, variable: Tensor, value: Tensor) -> Tensor:
    """Put a value where the variable stands."""
    return torch.where((arguments == variable) & (variable < 0) & (variable != PAD), value, arguments)


def standardize_apart(atoms: Tensor, offset: int) -> Tensor:
    """Number a clause's variables, all arguments below 0 but PAD, from `offset` on."""
    arguments = atoms[..., 1:]
    is_variable = (arguments < 0) & (arguments != PAD)
    return torch.cat((atoms[..., :1], torch.where(is_variable, arguments - offset, arguments)), -1)


def left_align(atoms: Tensor, is_left: Tensor, length: int) -> Tensor:
    """int64 [..., length, 3]: the atoms that are left, in order, at the front; free rows PAD."""
    num = atoms.shape[-2]
    rank = torch.where(is_left, is_left.long().cumsum(-1) - 1, -1)
    places = torch.arange(length, device=atoms.device)
    goes_here = rank[..., None, :] == places[:, None]
    numbers = torch.arange(num, device=atoms.device)
    source = torch.where(goes_here, numbers, 0).sum(-1)
    aligned = atoms.gather(-2, source[..., None].expand(*source.shape, 3))
    return torch.where(goes_here.any(-1)[..., None], aligned, PAD)


def rename(atoms: Tensor) -> Tensor:
    """Number the variables of each goal, int64 [..., A, 3], by first appearance."""
    arguments = atoms[..., 1:].flatten(-2)
    is_variable = (arguments < 0) & (arguments != PAD)
    num = arguments.shape[-1]
    places = torch.arange(num, device=atoms.device)
    is_same = (arguments[..., :, None] == arguments[..., None, :]) & is_variable[..., None, :]
    first = torch.where(is_same, places, num).amin(-1)
    appears = is_variable & (first == places)
    # A variable's number: how many others appear before it does.
    number = (appears[..., None, :] & (places < first[..., None])).sum(-1)
    renamed = torch.where(is_variable, -1 - number, arguments)
    return torch.cat((atoms[..., :1], renamed.unflatten(-1, (-1, 2))), -1)


def goal_hash(segments: Segments, atoms: Tensor) -> Tensor:
    """int64 [...]: a multilinear hash of goals int64 [..., A, 3]; here 63 bits decide whether goals are equal."""
    return (atoms.flatten(-2) * segments.hash_keys).sum(-1)


def is_visited(segments: Segments, atoms: Tensor, visited: Tensor, depth: Tensor) -> Tensor:
    """bool [N, C]: whether a resolvent's hash is one of the goals visited, int64 [N, D], up to the present depth."""
    turns = torch.arange(visited.shape[1], device=atoms.device)
    is_same = goal_hash(segments, atoms)[:, :, None] == visited[:, None]
    return (is_same & (turns <= depth[:, None])[:, None]).any(-1)
