"""Problems that run alone, small ones that meet the sizes of their own batch, tables and limits exactly.

A run of many problems has none of the boundaries of each: it has rules and facts, many constants, and one last fact.
One problem in 16 of a campaign therefore runs alone. Most take few ticks of an evaluator, since a tick of one problem
takes as long as one of a thousand; a few are deep, or have very many symbols, facts, resolvents or candidates.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.sizes import Sizes
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind
from kgverify.program.program import NamedRule, Program
from kgverify.ranking.corrupt import ALL
from kgverify.testing.problems.decode import decode_problem, draw_bytes
from kgverify.testing.problems.problem import DEFAULT_SIZES, PolicySpec, Problem, Spread, list_constants
from kgverify.trace.model.columns import Columns, starts_of

ALONE_EVERY: Final = 16
"""The distance between two problems that run alone."""
ALONE_ON_DEVICE_EVERY: Final = 32
"""The distance between two problems that run alone on a GPU, where starting a run takes longest."""
MOST_TICKS: Final = 16
"""About the most ticks that a pool or a step of many candidates or clauses takes."""

_X, _Y, _Z = map(Variable, "XYZ")
_LAST: Final = "z"
"""A constant that no other problem has: the last one of the facts."""
_MANY_SYMBOLS: Final = (1 << 14, 1 << 14, 1 << 15, 1 << 16)
_BYTE: Final = 1 << 8
_WORD: Final = 1 << 16


def runs_alone(index: int, every: int = ALONE_EVERY) -> bool:
    """Return whether the problem at an index of a seed's sequence runs alone."""
    return index % every == every - 1


def draw_boundary_problem(seed: int, index: int) -> Problem:
    """Return the problem that runs alone at an index of a seed's sequence, with sizes that do not fit it yet."""
    pick = _Choices(seed, index, "program")
    turn = index // ALONE_EVERY
    # The expensive ones come at fixed intervals, no two in one block, and each early in a campaign.
    if turn % 2048 == 120:
        return _many_facts(pick)
    if turn % 4096 == 248:
        return _many_resolvents(_WORD + 2, _WORD + 1)
    if turn % 4096 == 376:
        return _deep(pick, _BYTE + 8 + pick(8))
    if turn % 16384 == 504:
        return _many_candidates()
    if turn % 512 == 100:
        spread = Spread(_MANY_SYMBOLS[turn // 512 % 4] - pick(4), pick(2), pick(3))
        return replace(_small(seed, index, pick), spread=spread)
    if turn % 128 == 20:
        return _deep(pick, 12 + pick(8))
    if turn % 64 == 42:
        return _wide(pick, turn // 64)
    if turn % 64 == 10:
        return _without_facts(pick)
    if turn % 128 == 26:
        # Few symbols, and keys of facts beyond 32 bits.
        return replace(_small(seed, index, pick), spread=Spread(3000, 256, pick(3)))
    return _small(seed, index, pick)


def draw_kernel_problem(seed: int, index: int) -> Problem:
    """Return a problem of few steps at an index of a seed's sequence, for kernels that are interpreted, and so slow.

    Every second one holds a condition of the kernels' loops: more clauses than lanes, several proofs in one block, a goal
    that fills its padding and comes again, a second derivation in a slot, keys beyond 31 bits.
    """
    pick = _Choices(seed, index, "kernel")
    number, is_special = divmod(index, 2)
    if not is_special:
        small = _small(seed, index, pick)
        depth = min(small.limits.max_depth, 2)
        limits = Limits(depth, small.limits.max_atoms, small.limits.max_resolvents, small.limits.exclude_query)
        return replace(small, limits=limits, policy=PolicySpec())
    kind = number % 6
    if kind == 0:
        return _wide(pick, 2 + pick(2))
    names = ("c0", "c1", "c2", "c3")
    facts = tuple(NamedAtom("q", a, b) for a in names[:3] for b in names[: 3 - pick(2)])
    rules = (
        NamedRule(NamedAtom("p", _X, _Y), (NamedAtom("q", _X, _Z), NamedAtom("q", _Z, _Y))),
        NamedRule(NamedAtom("p", _X, _Y), (NamedAtom("q", _Y, _X),)),
    )
    limits = Limits(max_depth=3, max_atoms=2, max_resolvents=1 + pick(4))
    if kind == 1:
        # A cycle of goals that fill their padding.
        turned = NamedRule(NamedAtom("p", _X, _Y), (NamedAtom("p", _Y, _X),))
        one_atom = Limits(max_depth=4, max_atoms=1, max_resolvents=4)
        return Problem(facts=facts, rules=(turned, rules[1]), unranked=(NamedAtom("p", "c3", "c0"),), limits=one_atom)
    if kind == 2:
        pairs = (("c0", _Y), (_X, "c1"), (_X, _Y), (_X, _X))
        return Problem(facts=facts, unranked=(NamedAtom("q", *pairs[pick(4)]),), limits=limits)
    if kind == 3:
        pairs_of_loops = (("c0", "c1"), ("c1", "c0"), ("c2", "c3"), ("c3", "c3"))[: 3 + pick(2)]
        loops = tuple(NamedAtom("q", *each) for each in pairs_of_loops)
        loop = NamedRule(NamedAtom("p", _X, _Y), (NamedAtom("q", _Z, _Z), NamedAtom("q", _X, _Y)))
        return Problem(facts=loops, rules=(loop,), unranked=(NamedAtom("p", "c0", "c1"),), limits=limits)
    queries = tuple(NamedAtom("p", names[pick(4)], names[pick(4)]) for _ in range(3))
    if kind == 4:
        # One slot for all of them.
        sizes = Sizes(slots=1, match_window=4, score_window=8, pool=3)
        return Problem(facts=facts, rules=rules, unranked=queries, limits=limits, sizes=sizes)
    return Problem(facts=facts, rules=rules, unranked=queries[:1], limits=limits, spread=Spread(3000, 256, pick(3)))


def draw_device_problem(seed: int, index: int) -> Problem:
    """Return a problem for kernels on a GPU: one of those for interpreted kernels, or a boundary that needs more work."""
    number, kind = divmod(index, 4)
    if kind < 2:
        return draw_kernel_problem(seed, 2 * number + kind)
    pick = _Choices(seed, index, "device")
    if kind == 2:
        return _many_clauses(pick)
    if number % 16 == 1:
        return _many_facts(pick)
    if number % 128 == 2:
        return _like_keys()
    if number % 128 == 7:
        return _many_resolvents(_WORD // 2 + 2, 4)
    kind = number % 7
    if kind == 0:
        return _wide(pick, number // 7)
    if kind == 1:
        return _deep(pick, 12 + pick(8))
    if kind == 2:
        return _deep(pick, _BYTE + 8 + pick(8))
    return (_without_facts, _many_variables, _many_dropped, _one_at_a_time)[kind - 3](pick)


class _Choices:
    """Choices from bytes that a seed and an index determine."""

    def __init__(self, seed: int, index: int, what: str) -> None:
        self._bytes = iter(hashlib.shake_128(f"{seed}:{index}:{what}".encode()).digest(64))

    def __call__(self, num: int) -> int:
        """Return a number below another."""
        return next(self._bytes) % num


def _small(seed: int, index: int, pick: _Choices) -> Problem:
    """Return a drawn program, or part of it, with one query or few."""
    drawn = decode_problem(draw_bytes(seed, index))
    facts, rules = drawn.facts, drawn.rules
    shape = pick(16)
    if shape < 5:
        rules = ()
    elif shape < 7:
        facts = ()
    elif shape < 9:
        facts, rules = _with_one_constant(facts, rules)
    if pick(2) or not (facts or rules):
        # The last constant of the facts is the first argument of the last fact.
        name = "pz" if pick(2) or not facts else facts[-1].predicate
        facts = (*facts, NamedAtom(name, _LAST, _LAST if shape in (7, 8) or pick(4) == 0 else "c0"))
        if shape in (7, 8):
            facts, rules = _with_one_constant(facts, rules)
    queries = [_query(facts, rules, pick) for _ in range((1, 1, 1, 1, 1, 1, 2, 3)[pick(8)])]
    ranked: tuple[NamedAtom, ...] = ()
    if pick(5) == 0:
        constants = [*list_constants([*facts, *queries])] or ["c0"]
        ranked = (_bind(queries.pop(), constants[-1], constants[pick(len(constants))]),)
    limits = Limits(
        max_depth=(1, 1, 1, 1, 1, 1, 1, 2, 2, 4)[pick(10)],
        max_atoms=1 + pick(5),
        max_resolvents=(1, 2, 4, 24)[pick(4)],
        exclude_query=pick(4) > 0,
    )
    return Problem(
        facts=facts,
        rules=rules,
        queries=ranked,
        unranked=tuple(queries),
        limits=limits,
        policy=PolicySpec("two_tower", seed=1) if pick(16) == 0 else PolicySpec(),
        num_corruptions=(0, 0, 1, 1, ALL)[pick(5)] if len(list_constants(facts)) < 12 else 1,
    )


def _with_one_constant(
    facts: Sequence[NamedAtom], rules: Sequence[NamedRule]
) -> tuple[tuple[NamedAtom, ...], tuple[NamedRule, ...]]:
    """Return facts and rules with one constant in place of all."""

    def convert(atom: NamedAtom) -> NamedAtom:
        return NamedAtom(atom.predicate, *(each if isinstance(each, Variable) else "c0" for each in atom[1:]))

    return (
        tuple(dict.fromkeys(map(convert, facts))),
        tuple(NamedRule(convert(rule.clause_head), tuple(map(convert, rule.body))) for rule in rules),
    )


def _query(facts: Sequence[NamedAtom], rules: Sequence[NamedRule], pick: _Choices) -> NamedAtom:
    """Return a query that a rule or one of the last facts may match, with up to two variables."""
    if rules and (pick(2) or not facts):
        head = rules[-1 - pick(min(3, len(rules)))].clause_head
        constants = [*list_constants(facts)] or ["c0"]
        atom = _bind(head, constants[pick(len(constants))], constants[-1])
    else:
        atom = facts[-1 - pick(2) * pick(len(facts))] if facts else NamedAtom("p", "c0", "c0")
    pattern = pick(6)
    first, second = (_X if pattern in (1, 3, 4) else atom.first), (_Y if pattern in (2, 3) else atom.second)
    return NamedAtom(atom.predicate, first, _X if pattern == 4 else second)


def _bind(atom: NamedAtom, first: str, second: str) -> NamedAtom:
    a, b = (name if isinstance(term, Variable) else term for term, name in ((atom.first, first), (atom.second, second)))
    return NamedAtom(atom.predicate, a, b)


def _deep(pick: _Choices, depth: int) -> Problem:
    """Return a chain whose proof takes about as many steps as allowed, or a cycle that leads back to the first goal."""
    # A link takes two steps: the rule, and its first atom.
    length = (depth - 1 - pick(3)) // 2
    names = [f"c{i}" for i in range(length + 1)]
    facts = tuple(NamedAtom("q", a, b) for a, b in pairwise(names))
    if pick(2):
        facts = (*facts[:-1], NamedAtom("q", names[-2], names[0]))
    rules = (
        NamedRule(NamedAtom("p", _X, _Z), (NamedAtom("q", _X, _Y), NamedAtom("p", _Y, _Z))),
        NamedRule(NamedAtom("p", _X, _X), (NamedAtom("s", _X, _X),)),
    )
    query = NamedAtom("p", names[pick(2)], names[-1])
    return Problem(
        facts=(*facts, NamedAtom("s", names[-1], names[-1])),
        rules=rules,
        unranked=(query,),
        limits=Limits(max_depth=depth, max_atoms=2, max_resolvents=4),
    )


def _wide(pick: _Choices, number: int) -> Problem:
    """Return about 256 facts or rules that match in one step, or candidates; of each kind in turn."""
    num = _BYTE - 1 + pick(4)
    many = [f"m{i}" for i in range(num)]
    limits = Limits(max_depth=2, max_atoms=2, max_resolvents=(_BYTE, _BYTE, _BYTE + 1, 2)[pick(4)])
    kind = number % 4
    if kind == 0:
        # About as many on either side.
        fact = NamedAtom("q", many[num // 2], many[0])
        constants = tuple(many[: num // 2])
        return Problem(facts=(fact,), queries=(fact,), constants=constants, num_corruptions=ALL, limits=limits)
    if kind == 1:
        # The last one has the fewest variables, and is chosen.
        num = max(num, _BYTE + 1)
        limits = Limits(max_depth=2, max_atoms=2, max_resolvents=num - pick(4) // 3)
        ends: list[Term] = [*[_Y] * (num - 1), "c0"]
        rules = tuple(NamedRule(NamedAtom("p", _X, _Y), (NamedAtom("q", _X, end),)) for end in ends)
        return Problem(
            facts=(NamedAtom("r", "c0", "c0"),), rules=rules, unranked=(NamedAtom("p", "c0", _Y),), limits=limits
        )
    pairs = [("c0", name) if kind == 2 else (name, "c0") for name in many]
    facts = tuple(NamedAtom("q", *each) for each in pairs)
    first, second = (_X, _Z) if kind == 2 else (_Z, _X)
    rule = NamedRule(NamedAtom("p", _X, _Y), (NamedAtom("q", first, second), NamedAtom("r", _Z, _Y)))
    return Problem(facts=facts, rules=(rule,), unranked=(NamedAtom("p", "c0", "c0"),), limits=limits)


def _many_clauses(pick: _Choices) -> Problem:
    """Return steps of about as many clauses as whole blocks of a kernel hold, some dropped, for slots that share a window."""
    num = (128, 128, 512, 1024, 2048)[pick(5)] - 1 + pick(3)
    facts = tuple(NamedAtom("q", f"s{i % 2}", f"m{i}") for i in range(2 * num))
    rules = [NamedRule(NamedAtom("p", _X, _Y), (NamedAtom("q", _X, _Z), NamedAtom("r", _Z, _Y)))]
    # The last clause of one subject gives TRUE, or comes back, or nothing stands out.
    last, kind = f"m{2 * num - 1 - pick(2)}", pick(3)
    if kind == 0:
        facts = (*facts, NamedAtom("r", last, "s0"))
    elif kind == 1:
        rules.append(NamedRule(NamedAtom("r", last, _Y), (NamedAtom("p", _Y, _X),)))
    kept = min(num, 1024) - (0, 0, 1, num // 3)[pick(4)]
    limits = Limits(max_depth=3, max_atoms=2, max_resolvents=kept)
    queries = tuple(NamedAtom("p", f"s{i % 2}", f"s{pick(2)}") for i in range(1 + pick(3)))
    sizes = Sizes(slots=1 + pick(3), match_window=num, score_window=kept + pick(2) * (kept - 1), pool=1 + pick(3))
    return Problem(facts=facts, rules=tuple(rules), unranked=queries, limits=limits, sizes=sizes)


def _without_facts(pick: _Choices) -> Problem:
    """Return a rule alone, and queries of the first predicate and constant, each argument bound or not."""
    rule = NamedRule(NamedAtom("p", _X, _Y), (NamedAtom("pq"[pick(2)], _Y, _X),))
    queries = (NamedAtom("p", "c0", _Y), NamedAtom("p", _X, "c0"), NamedAtom("p", _X, _X), NamedAtom("p", _X, _Y))
    return Problem(rules=(rule,), unranked=queries, limits=Limits(max_depth=2, max_atoms=1, max_resolvents=2))


def _many_facts(pick: _Choices) -> Problem:
    """Return more facts of a predicate, and more constants, than 16 bits can number; the last of them matter."""
    names = [f"m{i}" for i in range(_WORD + 2)]
    facts = tuple(NamedAtom("q", a, b) for a, b in pairwise(names))
    rule = NamedRule(NamedAtom("p", _X, _Y), (NamedAtom("q", _X, _Z), NamedAtom("q", _Z, _Y)))
    return Problem(
        facts=facts,
        rules=(rule,),
        queries=(NamedAtom("p", names[-3], names[-1]),),
        unranked=(NamedAtom("p", names[-3], _Y), NamedAtom("q", _X, names[-1]), NamedAtom("q", names[-2], _Y)),
        num_corruptions=1 + pick(2),
        limits=Limits(max_depth=3, max_atoms=2, max_resolvents=4),
    )


def _many_resolvents(num: int, kept: int) -> Problem:
    """Return a step of a number of resolvents, of which the limit keeps some."""
    facts = tuple(NamedAtom("q", "c0", f"m{i}") for i in range(num))
    rule = NamedRule(NamedAtom("p", _X, _Y), (NamedAtom("q", _X, _Z), NamedAtom("r", _Z, _Y)))
    return Problem(
        facts=facts,
        rules=(rule,),
        unranked=(NamedAtom("p", "c0", "c0"),),
        limits=Limits(max_depth=2, max_atoms=2, max_resolvents=kept),
        sizes=Sizes(slots=1, match_window=num, score_window=kept, pool=1),
    )


def _many_variables(pick: _Choices) -> Problem:
    """Return a rule whose body has up to fourteen variables, and atoms that bind some of them later."""
    num = 4 + pick(4)
    names = [Variable(f"V{i}") for i in range(2 * num)]
    body = tuple(NamedAtom("q", names[2 * i], names[2 * i + 1]) for i in range(num))
    facts = (NamedAtom("q", "c0", "c1"), NamedAtom("q", "c1", "c0"))
    return Problem(
        facts=facts,
        rules=(NamedRule(NamedAtom("p", _X, _Y), body),),
        unranked=(NamedAtom("p", "c0", "c1"),),
        limits=Limits(max_depth=3, max_atoms=num, max_resolvents=4),
    )


def _many_dropped(pick: _Choices) -> Problem:
    """Return a step that drops about 256 resolvents for their atoms, and keeps one."""
    num = _BYTE - 1 + pick(3)
    long = [(NamedAtom("q", _X, f"m{i}"), NamedAtom("q", f"m{i}", _Y)) for i in range(num)]
    rules = tuple(NamedRule(NamedAtom("p", _X, _Y), body) for body in (*long, (NamedAtom("q", _Y, _X),)))
    return Problem(
        facts=(NamedAtom("q", "c0", "c1"),),
        rules=rules,
        unranked=(NamedAtom("p", "c0", "c1"),),
        limits=Limits(max_depth=2, max_atoms=1, max_resolvents=4),
    )


def _one_at_a_time(pick: _Choices) -> Problem:
    """Return many derivations in slots of their own, for a window that holds the resolvents of one step."""
    num = 12 + pick(4)
    names = [f"c{i}" for i in range(num)]
    facts = tuple(NamedAtom("q", a, b) for a in names for b in names)
    rule = NamedRule(NamedAtom("p", _X, _Y), (NamedAtom("q", _X, _Z), NamedAtom("p", _Z, _Y)))
    queries = tuple(NamedAtom("p", name, "z") for name in names) * 4
    sizes = Sizes(slots=len(queries), match_window=num, score_window=num, pool=len(queries))
    limits = Limits(max_depth=6, max_atoms=2, max_resolvents=num)
    return Problem(facts=facts, rules=(rule,), unranked=queries, limits=limits, sizes=sizes)


def _like_keys() -> Problem:
    """Return atoms beside the facts whose keys agree with those of the facts in the low 32 bits: 65,536 constants."""
    names = [f"c{i}" for i in range(4)]
    pairs = [(a, b) for a in names[:2] for b in names[2:]]
    rules = tuple(
        NamedRule(NamedAtom("p", _X, _Y), (NamedAtom(f"r{i}", _X, _Y), NamedAtom("s", _X, _Y))) for i in range(16)
    )
    return Problem(
        facts=tuple(NamedAtom("q", *each) for each in pairs),
        rules=rules,
        unranked=tuple(NamedAtom("p", *each) for each in pairs),
        # No fact holds the others: with few facts, atoms of one key are likely to be in one bucket.
        constants=tuple(f"m{i}" for i in range(_WORD - len(names))),
        limits=Limits(max_depth=2, max_atoms=2, max_resolvents=16),
    )


def _many_candidates() -> Problem:
    """Return more candidates of one query than 16 bits can number."""
    names = [f"m{i}" for i in range(_WORD // 2 + 1)]
    facts = tuple(NamedAtom("q", a, "c0") for a in names[-2:])
    return Problem(
        facts=facts,
        queries=(NamedAtom("q", names[-1], names[0]),),
        constants=tuple(names),
        num_corruptions=ALL,
        limits=Limits(max_depth=1, max_atoms=1, max_resolvents=1),
        sizes=Sizes(slots=4096, match_window=8192, score_window=4096, pool=_WORD),
    )


def fit_sizes(problem: Problem, program: Program, columns: Columns, seed: int, index: int) -> Problem:
    """Return the problem with sizes of the batch that its first steps fill exactly, or miss by one.

    columns: the reference's, of the problem run alone
    """
    if problem.sizes != DEFAULT_SIZES:
        return problem
    pick = _Choices(seed, index, "sizes")
    limits, steps = problem.limits, columns.steps
    first_steps = starts_of(columns.candidates.num_steps)[:-1]
    kinds = columns.resolvents.kind[starts_of(steps.num_resolvents)[:-1]]
    resolvents = np.where(kinds == GoalKind.GOAL, steps.num_resolvents, 0)[first_steps]
    clauses = count_clauses(program, columns.candidates.atom)
    num = len(clauses)
    slots = (num, num, num, num, num, num + 1, max(1, num - 1), 1)[pick(8)]
    pool = (num, num, num, num, num, num + 1, max(1, num - 1), (num + 1) // 2)[pick(8)]
    if num > MOST_TICKS:
        slots, pool = num - pick(2), num - pick(2)
    held = max(1, slots - (pick(4) == 0))
    tried, scored = int(clauses[:held].sum()), int(resolvents[:held].sum())
    # Later steps may try more clauses than the first ones.
    least = max(1, len(program.facts) // 4)
    sizes = Sizes(
        slots=slots,
        atoms=(0, 0, 0, 1)[pick(4)],
        resolvents=(0, 0, 0, 1)[pick(4)],
        match_window=max(least, tried + (0, 0, 0, 0, 1, 1, 16, -1)[pick(8)]),
        score_window=max(limits.max_resolvents, scored + (0, 0, 0, 1)[pick(4)]),
        pool=pool,
    )
    return replace(problem, sizes=sizes)


def count_clauses(program: Program, atoms: NDArray[np.int32]) -> NDArray[np.int64]:
    """Count the clauses that an index by predicate and bound argument gives for each atom, int32 [N, 3]: int64 [N]."""
    heads = [rule.clause_head.predicate for rule in program.rules]
    counts = []
    for predicate, first, second in atoms.tolist():
        matches = program.facts[:, 0] == predicate
        for column, term in ((1, first), (2, second)):
            if term >= 0:
                matches &= program.facts[:, column] == term
        counts.append(heads.count(predicate) + int(matches.sum()))
    return np.array(counts, np.int64)
