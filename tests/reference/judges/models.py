"""Least models, and what is proved in them, by clingo."""

from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final

from judges.cases import Case, NamedAtom, is_ground
from judges.derivations import build_program, derive, encode_queries

import kgreference

Labels = tuple[int, int, int]

MOST_ROWS: Final = 1 << 13


def has_clingo() -> bool:
    """Return whether clingo is installed."""
    return find_spec("clingo") is not None


def is_small(case: Case) -> bool:
    """Return whether no join of a rule's body can have more than `MOST_ROWS` rows."""
    num_variables = [
        len({term for atom in (head, *body) for term in atom[1:] if isinstance(term, str)}) for head, body in case.rules
    ]
    return len(_constants(case)) ** max(num_variables, default=0) <= MOST_ROWS


def judge_models(cases: Sequence[Case], seen: Counter[str]) -> list[str]:
    """Return where least models differ, or where something is proved that does not follow without the excluded atom."""
    wrong: list[str] = []
    asked: list[tuple[Case, NamedAtom | None]] = []
    models = []
    for case in cases:
        try:
            program = build_program(case)
            models.append(kgreference.least_model(program))
            asked.append((case, None))
            for query, encoded in zip(case.queries, encode_queries(program, case), strict=True):
                if derive(program, case, kgreference.Shortest(), encoded).outcome == kgreference.Outcome.PROVED:
                    models.append(None)
                    asked.append((case, query))
        except Exception as error:
            wrong.append(f"{case}: {error!r}")
            del models[len(asked) :]
    for (case, proved), model, expected in zip(asked, models, _ground(asked), strict=True):
        if proved is not None:
            seen["proved"] += 1
            if not _holds(proved, expected):
                wrong.append(f"{case}: {proved} is proved and does not follow")
            continue
        program = build_program(case)
        actual = {tuple(int(name[1:]) for name in program.decode(atom)) for atom in model}
        seen["models"] += 1
        seen["derived"] += len(expected) - len(set(case.facts))
        seen["the last constant derived"] += any(
            program.constants[-1] == f"c{atom[1]}" for atom in expected - set(case.facts)
        )
        if actual != expected:
            wrong.append(f"{case}: least models differ in {sorted(actual ^ expected)[:5]}")
    return wrong


def _constants(case: Case) -> set[int]:
    atoms = [*case.facts, *case.queries, *(atom for head, body in case.rules for atom in (head, *body))]
    return {term for atom in atoms for term in atom[1:] if not isinstance(term, str)} | set(case.others)


def _ground(asked: Sequence[tuple[Case, NamedAtom | None]]) -> list[set[Labels]]:
    """Return the least models, grounded together: the first argument of an atom is the number of its program."""
    import clingo

    def atom(owner: int, named: NamedAtom) -> str:
        first, second = (f"V{term}" if isinstance(term, str) else str(term) for term in named[1:])
        return f"a({owner},{named[0]},{first},{second})"

    lines = []
    for i, (case, proved) in enumerate(asked):
        lines += [f"c({i},{label})." for label in sorted(_constants(case))]
        is_excluded = proved is not None and is_ground(proved) and (case.limits is None or case.limits[3])
        lines += [f"{atom(i, fact)}." for fact in case.facts if not (is_excluded and fact == proved)]
        for head, body in case.rules:
            conditions = [atom(i, each) for each in body]
            conditions += [f"c({i},V{term})" for term in head[1:] if isinstance(term, str)]
            lines.append(f"{atom(i, head)} :- {', '.join(conditions)}.")
    control: Any = clingo.Control(["--warn=none"])
    control.add("base", [], "\n".join(lines))
    control.ground([("base", [])])
    models: list[set[Labels]] = [set() for _ in asked]
    for symbolic in control.symbolic_atoms.by_signature("a", 4):
        owner, predicate, first, second = (argument.number for argument in symbolic.symbol.arguments)
        models[owner].add((predicate, first, second))
    return models


def _holds(query: NamedAtom, model: set[Labels]) -> bool:
    """Return whether the query or an instance of it is in a model."""
    predicate, first, second = query
    return any(
        p == predicate
        and (isinstance(first, str) or x == first)
        and (isinstance(second, str) or y == second)
        and (first != second or x == y)
        for p, x, y in model
    )
