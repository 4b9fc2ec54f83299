"""Problems that run alone, small ones that meet the sizes of their own batch, tables and limits exactly.

A run of many problems has none of the boundaries of each: it has rules and facts, many constants, and one last fact.
One problem in 16 of a campaign therefore runs alone. Most take few ticks of an evaluator, since a tick of one problem
takes as long as one of a thousand; a few are deep, or have very many symbols, facts, resolvents or candidates.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, pairwise, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.sizes import Sizes
from kgverify.program.atoms import NamedAtom, Term, Variable, parse_atoms
from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind
from kgverify.program.program import NamedRule, Program, parse_rules
from kgverify.ranking.corrupt import ALL
from kgverify.testing.problems.decode import decode_problem, draw_bytes
from kgverify.testing.problems.problem import DEFAULT_SIZES, SHORTEST, PolicySpec, Problem, Spread, list_constants
from kgverify.trace.model.columns import Columns, starts_of

ALONE_EVERY: Final = 16
"""The distance between two problems that run alone."""
ALONE_ON_DEVICE_EVERY: Final = 32
"""The distance between two problems that run alone on a GPU, where starting a run takes longest."""
MOST_TICKS: Final = 16
"""About the most ticks that a pool or a step of many candidates or clauses takes."""

_X, _Y = map(Variable, "XY")
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
        return replace(small.with_number("limits", "max_depth", min(small.limits.max_depth, 2)), policy=SHORTEST)
    kind = number % 6
    if kind == 0:
        return _wide(pick, 2 + pick(2))
    names = ("c0", "c1", "c2", "c3")
    facts = _facts("q", [(a, b) for a in names[:3] for b in names[: 3 - pick(2)]])
    swap, limits = "p(X,Y) q(Y,X)", (3, 2, 1 + pick(4))
    if kind == 1:
        # A cycle of goals that fill their padding.
        return _build(facts, f"p(X,Y) p(Y,X); {swap}", "p(c3,c0)", (4, 1, 4))
    if kind == 2:
        return _build(facts, "", ("q(c0,Y)", "q(X,c1)", "q(X,Y)", "q(X,X)")[pick(4)], limits)
    if kind == 3:
        loops = parse_atoms("q(c0,c1) q(c1,c0) q(c2,c3) q(c3,c3)")[: 3 + pick(2)]
        return _build(loops, "p(X,Y) q(Z,Z) q(X,Y)", "p(c0,c1)", limits)
    queries = [f"p({names[pick(4)]},{names[pick(4)]})" for _ in range(3)]
    rules = f"p(X,Y) q(X,Z) q(Z,Y); {swap}"
    if kind == 4:
        # One slot for all of them.
        sizes = Sizes(slots=1, match_window=4, score_window=8, pool=3)
        return replace(_build(facts, rules, " ".join(queries), limits), sizes=sizes)
    return replace(_build(facts, rules, queries[0], limits), spread=Spread(3000, 256, pick(3)))


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
    if kind < 3:
        return _deep(pick, (12, _BYTE + 8)[kind - 1] + pick(8))
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


def _build(facts: Iterable[NamedAtom], rules: str, unranked: str, limits: tuple[int, int, int]) -> Problem:
    """Return a problem with rules and queries as text, and with limits of depth, atoms and resolvents."""
    return Problem(facts=tuple(facts), rules=parse_rules(rules), unranked=parse_atoms(unranked), limits=Limits(*limits))


def _with_one_constant(
    facts: Sequence[NamedAtom], rules: Sequence[NamedRule]
) -> tuple[tuple[NamedAtom, ...], tuple[NamedRule, ...]]:
    """Return facts and rules with one constant in place of all."""
    names: dict[Term, Term] = {**dict.fromkeys(list_constants([*facts, *chain(*(rule.atoms for rule in rules))]), "c0")}
    return tuple(dict.fromkeys(fact.rename(names) for fact in facts)), tuple(rule.rename(names) for rule in rules)


def _facts(predicate: str, pairs: Iterable[tuple[str, str]]) -> tuple[NamedAtom, ...]:
    return tuple([NamedAtom(predicate, a, b) for a, b in pairs])


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
    a, b = (name if isinstance(term, Variable) else term for term, name in zip(atom[1:], (first, second), strict=True))
    return NamedAtom(atom.predicate, a, b)


def _deep(pick: _Choices, depth: int) -> Problem:
    """Return a chain whose proof takes about as many steps as allowed, or a cycle that leads back to the first goal."""
    # A link takes two steps: the rule, and its first atom.
    length = (depth - 1 - pick(3)) // 2
    names = [f"c{i}" for i in range(length + 1)]
    pairs = [*pairwise(names)]
    if pick(2):
        pairs[-1] = names[-2], names[0]
    facts = (*_facts("q", pairs), NamedAtom("s", names[-1], names[-1]))
    return _build(facts, "p(X,Z) q(X,Y) p(Y,Z); p(X,X) s(X,X)", f"p({names[pick(2)]},{names[-1]})", (depth, 2, 4))


def _wide(pick: _Choices, number: int) -> Problem:
    """Return about 256 facts or rules that match in one step, or candidates; of each kind in turn."""
    num = _BYTE - 1 + pick(4)
    many = [f"m{i}" for i in range(num)]
    kept, kind = (_BYTE, _BYTE, _BYTE + 1, 2)[pick(4)], number % 4
    if kind == 0:
        # About as many on either side.
        fact = NamedAtom("q", many[num // 2], many[0])
        ranked = replace(_build([fact], "", "q(X,Y)", (2, 2, kept)), queries=(fact,), unranked=())
        return replace(ranked, constants=tuple(many[: num // 2]), num_corruptions=ALL)
    if kind == 1:
        # The last one has the fewest variables, and is chosen.
        num = max(num, _BYTE + 1)
        rules = "p(X,Y) q(X,Y); " * (num - 1) + "p(X,Y) q(X,c0)"
        return _build(parse_atoms("r(c0,c0)"), rules, "p(c0,Y)", (2, 2, num - pick(4) // 3))
    pairs = [("c0", name) if kind == 2 else (name, "c0") for name in many]
    rule = "p(X,Y) q(X,Z) r(Z,Y)" if kind == 2 else "p(X,Y) q(Z,X) r(Z,Y)"
    return _build(_facts("q", pairs), rule, "p(c0,c0)", (2, 2, kept))


def _many_clauses(pick: _Choices) -> Problem:
    """Return steps of about as many clauses as whole blocks of a kernel hold, some dropped, for slots that share a window."""
    num = (128, 128, 512, 1024, 2048)[pick(5)] - 1 + pick(3)
    facts, rules = _facts("q", [(f"s{i % 2}", f"m{i}") for i in range(2 * num)]), "p(X,Y) q(X,Z) r(Z,Y)"
    # The last clause of one subject gives TRUE, or comes back, or nothing stands out.
    last, kind = f"m{2 * num - 1 - pick(2)}", pick(3)
    if kind == 0:
        facts += _facts("r", [(last, "s0")])
    elif kind == 1:
        rules += f"; r({last},Y) p(Y,X)"
    kept = min(num, 1024) - (0, 0, 1, num // 3)[pick(4)]
    queries = " ".join([f"p(s{i % 2},s{pick(2)})" for i in range(1 + pick(3))])
    sizes = Sizes(slots=1 + pick(3), match_window=num, score_window=kept + pick(2) * (kept - 1), pool=1 + pick(3))
    return replace(_build(facts, rules, queries, (3, 2, kept)), sizes=sizes)


def _without_facts(pick: _Choices) -> Problem:
    """Return a rule alone, and queries of the first predicate and constant, each argument bound or not."""
    return _build((), f"p(X,Y) {'pq'[pick(2)]}(Y,X)", "p(c0,Y) p(X,c0) p(X,X) p(X,Y)", (2, 1, 2))


def _many_facts(pick: _Choices) -> Problem:
    """Return more facts of a predicate, and more constants, than 16 bits can number; the last of them matter."""
    names = [f"m{i}" for i in range(_WORD + 2)]
    *_, a, b, c = names
    many = _build(_facts("q", pairwise(names)), "p(X,Y) q(X,Z) q(Z,Y)", f"p({a},Y) q(X,{c}) q({b},Y)", (3, 2, 4))
    return replace(many, queries=(NamedAtom("p", a, c),), num_corruptions=1 + pick(2))


def _many_resolvents(num: int, kept: int) -> Problem:
    """Return a step of a number of resolvents, of which the limit keeps some."""
    facts = _facts("q", [("c0", f"m{i}") for i in range(num)])
    sizes = Sizes(slots=1, match_window=num, score_window=kept, pool=1)
    return replace(_build(facts, "p(X,Y) q(X,Z) r(Z,Y)", "p(c0,c0)", (2, 2, kept)), sizes=sizes)


def _many_variables(pick: _Choices) -> Problem:
    """Return a rule whose body has up to fourteen variables, and atoms that bind some of them later."""
    num = 4 + pick(4)
    body = " ".join([f"q(V{2 * i},V{2 * i + 1})" for i in range(num)])
    return _build(parse_atoms("q(c0,c1) q(c1,c0)"), f"p(X,Y) {body}", "p(c0,c1)", (3, num, 4))


def _many_dropped(pick: _Choices) -> Problem:
    """Return a step that drops about 256 resolvents for their atoms, and keeps one."""
    long = "".join([f"p(X,Y) q(X,m{i}) q(m{i},Y); " for i in range(_BYTE - 1 + pick(3))])
    return _build(parse_atoms("q(c0,c1)"), f"{long}p(X,Y) q(Y,X)", "p(c0,c1)", (2, 1, 4))


def _one_at_a_time(pick: _Choices) -> Problem:
    """Return many derivations in slots of their own, for a window that holds the resolvents of one step."""
    num = 12 + pick(4)
    names = [f"c{i}" for i in range(num)]
    queries = " ".join([f"p({name},z)" for name in names] * 4)
    sizes = Sizes(slots=4 * num, match_window=num, score_window=num, pool=4 * num)
    facts = _facts("q", product(names, names))
    return replace(_build(facts, "p(X,Y) q(X,Z) p(Z,Y)", queries, (6, 2, num)), sizes=sizes)


def _like_keys() -> Problem:
    """Return atoms beside the facts whose keys agree with those of the facts in the low 32 bits: 65,536 constants."""
    pairs = [(a, b) for a in ("c0", "c1") for b in ("c2", "c3")]
    rules = "; ".join([f"p(X,Y) r{i}(X,Y) s(X,Y)" for i in range(16)])
    like = _build(_facts("q", pairs), rules, "p(c0,c2) p(c0,c3) p(c1,c2) p(c1,c3)", (2, 2, 16))
    # No fact holds the others: with few facts, atoms of one key are likely to be in one bucket.
    return replace(like, constants=tuple(f"m{i}" for i in range(_WORD - 4)))


def _many_candidates() -> Problem:
    """Return more candidates of one query than 16 bits can number."""
    names = [f"m{i}" for i in range(_WORD // 2 + 1)]
    return Problem(
        facts=_facts("q", [(a, "c0") for a in names[-2:]]),
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
