"""A probe of one step of the compiled evaluator: eager, one slot, one window, the engine's own stages."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from kgverify.engines.compiled.program.tables import Tables
from kgverify.engines.compiled.stages.stage_functions import Stages
from kgverify.engines.compiled.state import FALSE, GOAL, PAD, TRUE, Items, Layout
from kgverify.engines.protocol import StageOutputs
from kgverify.program.atoms import encode_variable
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Origin
from kgverify.program.stages import Stage

PlainGoal = tuple[tuple[int, int, int], ...]

PAD_ATOM = (PAD, PAD, PAD)


class Call(NamedTuple):
    """A call of a stage: its arguments and its output."""

    arguments: tuple[Any, ...]
    output: Any


def watch_stages(
    stages: Stages, keep: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple
) -> tuple[Stages, dict[str, Call]]:
    """Return the same stages, and a dictionary in which each records its first call, under the stage's name.

    The first call is that for the clauses tried; kept clauses are resolved a second time.
    keep: copies the arguments before that call, where a stage may write into them
    """
    calls: dict[str, Call] = {}

    def watch(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            if name in calls:
                return function(*arguments)
            kept = keep(arguments)
            output = function(*arguments)
            calls[name] = Call(kept, output)
            return output

        return watched

    return Stages(*(watch(name, function) for name, function in stages._asdict().items())), calls


def probe_layout(tables: Tables, limits: Limits, num_rules: int) -> Layout:
    """Return a layout of one slot, a window that holds every clause of a step, and room for the longest resolvent."""
    longest_body = tables.rule_body.shape[1]
    most_facts = int(tables.predicate_first.diff().max())
    return Layout(
        slots=1,
        atoms=limits.max_atoms + longest_body,
        resolvents=limits.max_resolvents,
        match_window=max(1, most_facts + num_rules),
        score_window=limits.max_resolvents,
        pool=1,
    )


def stage_outputs(calls: dict[str, Call], derivations_after: Any, record: Any) -> StageOutputs:
    """Convert the calls of one step to `StageOutputs`."""
    items: Items = calls["match_rules"].arguments[1]
    is_rule, is_live = items.is_rule, items.is_live
    rules = is_live & is_rule & calls["match_rules"].output
    facts = is_live & ~is_rule & calls["match_facts"].output
    matched = rules | facts
    origins = [
        (int(Origin.RULE if rule else Origin.FACT), clause)
        for rule, clause in zip(is_rule[matched].tolist(), items.clause[matched].tolist(), strict=True)
    ]

    def listed(atoms: Tensor, mask: Tensor, rename: bool = False) -> tuple[tuple[int, int, PlainGoal], ...]:
        picked = [origin for origin, keep in zip(origins, mask[matched].tolist(), strict=True) if keep]
        goals = (plain_goal(rows, rename) for rows in atoms[mask].tolist())
        return tuple((*origin, goal) for origin, goal in zip(picked, goals, strict=True))

    pruned, num_atoms = calls["prune"].output
    renamed = calls["rename"].output
    left = matched & ((num_atoms == 0) | ~calls["revisit"].output)
    survivors = listed(renamed, left)
    kind = int(calls["close"].output[0])
    num_survivors = int(calls["close"].arguments[0][0])
    alone_true = (TRUE, int(record.work.true_origin_kind[0]), int(record.work.true_origin[0]), ())
    if kind == TRUE:
        closed: tuple[Any, ...] = (alone_true,)
    elif kind == FALSE and num_survivors == 0:
        closed = ((FALSE, 0, 0, ()),)
    else:
        closed = tuple((GOAL, *each) for each in survivors)
    num = int(record.choices.num_resolvents[0])
    if kind == GOAL:
        rows = zip(
            record.work.origin_kind[0, :num].tolist(),
            record.work.origin[0, :num].tolist(),
            record.rows.atoms[:num].tolist(),
            strict=True,
        )
        limited: tuple[Any, ...] = tuple((GOAL, k, o, plain_goal(atoms)) for k, o, atoms in rows)
    else:
        limited = (alone_true,) if kind == TRUE else ((FALSE, 0, 0, ()),)
    return {
        Stage.SELECT: tuple(calls["select"].output[0].tolist()),
        Stage.MATCH_RULES: tuple(items.clause[rules].tolist()),
        Stage.MATCH_FACTS: tuple(items.clause[facts].tolist()),
        Stage.RESOLVE: listed(calls["resolve"].output, matched, rename=True),
        # The count of `prune` decides: atoms missing from it are PAD, atoms beyond it are not read.
        Stage.PRUNE: tuple(
            (kind, clause, (*goal, *(PAD_ATOM,) * (count - len(goal)))[:count])
            for (kind, clause, goal), count in zip(
                listed(pruned, matched, rename=True), num_atoms[matched].tolist(), strict=True
            )
        ),
        Stage.RENAME: listed(renamed, matched),
        Stage.REVISIT: survivors,
        Stage.CLOSE: closed,
        Stage.LIMIT: (limited, int(record.work.dropped_atoms[0]), int(record.work.dropped_resolvents[0])),
        Stage.SCORE: tuple(record.choices.score[0, :num].tolist()),
        Stage.CHOOSE: int(record.choices.choice[0]),
        Stage.ADVANCE: (kind, plain_goal(derivations_after.goal[0].tolist()), int(derivations_after.depth[0])),
        Stage.FINISH: int(record.outcome[0]),
    }


def plain_goal(rows: list[list[int]], rename: bool = False) -> PlainGoal:
    """Drop the padding of a goal; with `rename`, renumber its variables by first appearance."""
    numbers: dict[int, int] = {}

    def argument(value: int) -> int:
        if value >= 0 or not rename:
            return value
        return encode_variable(numbers.setdefault(value, len(numbers)))

    return tuple((p, argument(a), argument(b)) for p, a, b in rows if p != PAD)
