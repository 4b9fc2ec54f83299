"""The second comparison, `kgreference.compare`, of traces in memory. It reads both traces value by value, in names."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from kgreference.compare import Clause, Found, Proved, Rules, TakenStep, find_difference
from kgverify.trace.model.paths import has_paths
from kgverify.trace.model.trace import Trace


def compare_again(
    expected: Trace, actual: Trace, tolerance: float, *, lockstep: bool = False
) -> list[tuple[Any, Any, Found | None]]:
    """Return the identities of the candidates in each row of two traces, and the first difference.

    The traces must have levels that keep goals. They are compared one candidate at a time.
    """
    left, right, rules = read_sides(expected, actual, tolerance, lockstep=lockstep)
    return [
        (one.identity, other.identity, find_difference(one, other, rules))
        for one, other in zip(left, right, strict=True)
    ]


def read_sides(
    expected: Trace, actual: Trace, tolerance: float, *, lockstep: bool = False
) -> tuple[list[Proved], list[Proved], Rules]:
    """Return the candidates of two traces, without the columns that only one trace has, and the rules of equality."""
    fields = expected.fields & actual.fields
    has_clauses = "resolvents.origin" in fields
    # The indices of facts depend on the numbering of names, and mean nothing without the facts.
    has_facts = expected.facts is not None and actual.facts is not None
    has_clauses &= expected.symbols == actual.symbols or has_facts
    left, right = (list(_read(trace, fields, has_clauses, has_facts)) for trace in (expected, actual))
    score = actual.columns.resolvents.score
    is_rounded = "resolvents.score" not in actual.fields
    is_rounded |= actual.header.engine.precision not in (score.dtype.name, "float32")
    return left, right, Rules(tolerance, lockstep, is_rounded, has_paths(expected.columns))


def _read(trace: Trace, fields: frozenset[str], has_clauses: bool, has_facts: bool) -> Iterator[Proved]:
    """Yield the candidates of a trace, without the columns that only one trace has."""
    symbols, (candidates, steps, resolvents, _, paths) = trace.symbols, trace.columns
    facts: Any = trace.facts if has_facts and trace.facts is not None else ()

    def argument(number: int) -> Any:
        return symbols.constants[number] if 0 <= number < len(symbols.constants) else number

    def name(atom: Sequence[int]) -> Any:
        predicate, first, second = atom
        is_known = 0 <= predicate < len(symbols.predicates)
        return symbols.predicates[predicate] if is_known else predicate, argument(first), argument(second)

    def clause(kind: int, number: int) -> Any:
        if not has_clauses:
            return None
        return (kind, name(facts[number].tolist())) if kind == 2 and 0 <= number < len(facts) else (kind, number)

    def known(field: str, values: Any) -> Iterator[Any]:
        listed = values.tolist()
        return iter(listed if field in fields else [None] * len(listed))

    def of_path(name: str, num: int) -> Any:
        return getattr(paths, name).tolist() if f"paths.{name}" in fields else [None] * num

    names: dict[tuple[int, ...], Any] = {}

    def named(atom: list[int]) -> Any:
        key = tuple(atom)
        if key not in names:
            names[key] = name(key)
        return names[key]

    goals, atoms = map(named, steps.goal_atoms.tolist()), map(named, resolvents.atoms.tolist())
    each_resolvent = zip(
        resolvents.kind.tolist(),
        resolvents.num_atoms.tolist(),
        resolvents.origin_kind.tolist(),
        resolvents.origin.tolist(),
        # Scores that only one side has still decide what counts as a near-tie.
        resolvents.score.tolist() if "resolvents.score" in trace.fields else [None] * len(resolvents.kind),
        *(of_path(name, len(resolvents.kind)) for name in ("child", "child_log_probability")),
        strict=True,
    )
    each_step = zip(
        known("steps.depth", steps.depth),
        steps.num_atoms.tolist(),
        steps.num_resolvents.tolist(),
        known("steps.dropped_atoms", steps.dropped_atoms),
        known("steps.dropped_resolvents", steps.dropped_resolvents),
        steps.choice.tolist() if "steps.choice" in fields else [-1] * len(steps.choice),
        known("steps.outcome", steps.outcome),
        *(of_path(name, len(steps.depth)) for name in ("level", "place", "parent", "log_probability")),
        strict=True,
    )

    def take_step() -> TakenStep:
        depth, num_atoms, num_resolvents, dropped_atoms, dropped_resolvents, choice, outcome, *path = next(each_step)
        goal = tuple(islice(goals, num_atoms))
        made = [
            Clause((kind, tuple(islice(atoms, num))), clause(by, number), score, *of_path)
            for kind, num, by, number, score, *of_path in islice(each_resolvent, num_resolvents)
        ]
        return TakenStep(goal, depth, made, dropped_atoms, dropped_resolvents, choice, outcome, *path)

    for query, side, atom, num_steps, outcome, is_limited, log_probability in zip(
        candidates.query.tolist(),
        candidates.side.tolist(),
        candidates.atom.tolist(),
        candidates.num_steps.tolist(),
        known("candidates.outcome", candidates.outcome),
        known("candidates.is_limited", candidates.is_limited),
        known("candidates.log_probability", candidates.log_probability),
        strict=True,
    ):
        taken = [take_step() for _ in range(num_steps)]
        yield Proved((query, side, name(atom)), taken, outcome, is_limited, log_probability)
