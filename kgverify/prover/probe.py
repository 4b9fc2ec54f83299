"""A probe of one step of the compiled evaluator: eager ticks of one slot, with the engine's own stages, paddings and windows."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kgverify.engines.protocol import StageOutputs
from kgverify.errors import InternalError
from kgverify.program.outcomes import Origin, Stage
from kgverify.prover.program.tables import Tables
from kgverify.prover.stages.choose import Parameters
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.state import FALSE, GOAL, OPEN, PAD, TRUE, Derivations, Items, Layout, StepRecord
from kgverify.prover.tick.tick import Setting, empty_work, tick, try_clauses
from kgverify.step.clauses import number_variables

PlainGoal = tuple[tuple[int, int, int], ...]

PAD_ATOM = (PAD, PAD, PAD)


class Call(NamedTuple):
    """A call of a stage: its arguments and its output."""

    arguments: tuple[Any, ...]
    output: Any


def watch_stages(stages: Stages) -> tuple[Stages, dict[str, Call]]:
    """Return the same stages, and a dictionary in which each records its first call, under the stage's name.

    The first call is for the tried clauses; kept clauses are resolved a second time.
    """
    calls: dict[str, Call] = {}

    def watch(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            if name in calls:
                return function(*arguments)
            output = function(*arguments)
            calls[name] = Call(arguments, output)
            return output

        return watched

    return Stages(*(watch(name, function) for name, function in stages._asdict().items())), calls


def probe_layout(own: Layout, tables: Tables, num_rules: int) -> Layout:
    """Return the engine's own layout for one slot: the same paddings, and windows as large as a slot can fill.

    To save time, a window that a single step cannot fill is cut to one row more than the step needs.
    """
    most_clauses = int(tables.predicate_first.diff().max()) + num_rules
    return own._replace(
        slots=1,
        match_window=min(own.match_window, most_clauses + 1),
        score_window=min(own.score_window, own.resolvents + 1),
        pool=1,
    )


def probe_step(setting: Setting, tables: Tables, parameters: Parameters, derivations: Derivations) -> StageOutputs:
    """Take one step of a single slot, in the necessary number of ticks, and return the output of every stage.

    InternalError if the ticks never complete the step.
    """
    work = empty_work(setting.layout, derivations.goal.device)
    windows: list[dict[str, Call]] = []
    while True:
        stages, calls = watch_stages(setting.stages)
        after, next_work, record = tick(setting._replace(stages=stages), tables, parameters, derivations, work)
        windows.append(calls)
        if bool(record.is_taken[0]):
            break
        if int(next_work.cursor[0]) == int(work.cursor[0]):
            raise InternalError("the evaluator's ticks do not complete a step")
        derivations, work = after, next_work

    # The tick may skip the clauses after a proof, but their outputs are shown, too.
    last, later = windows[-1], record.work
    segments, is_running = last["look_up"].output, derivations.outcome == OPEN
    while int(later.cursor[0]) < int(segments.num_rules[0] + segments.num_facts[0]):
        stages, calls = watch_stages(setting.stages)
        given = derivations, later, last["select"].output, segments, is_running
        before = int(later.cursor[0])
        later, _ = try_clauses(setting._replace(stages=stages), tables, *given)
        windows.append(calls)
        if int(later.cursor[0]) == before:
            break
    tried = [_read_window(calls, setting.stages) for calls in windows]
    return _stage_outputs(last, [item for window in tried for item in window], after, record)


class _Tried(NamedTuple):
    """A clause that a window tried, and its resolvent after each stage."""

    kind: int
    clause: int
    matches: bool
    is_left: bool
    resolved: PlainGoal
    pruned: PlainGoal
    num_atoms: int
    renamed: PlainGoal


def _read_window(calls: dict[str, Call], stages: Stages) -> list[_Tried]:
    """Return the clauses of a window that match, and the clauses that the tick keeps.

    `limit` receives the resolvents that the tick lets pass; an empty one also remains.
    """
    items: Items = calls["match_rules"].arguments[1]
    matches = items.is_live & torch.where(items.is_rule, calls["match_rules"].output, calls["match_facts"].output)
    pruned, num_atoms = calls["prune"].output
    renamed = calls["rename"].output
    is_left = calls["limit"].arguments[0] | (matches & (num_atoms == 0))
    padding = renamed.shape[1]
    if bool((matches & (num_atoms > padding)).any()):
        # The tick cuts off atoms beyond its padding; `limit` drops such resolvents.
        renamed = torch.cat((renamed, stages.rename(pruned)[:, padding:]), 1)
    row = torch.nonzero(matches | is_left).squeeze(1)
    columns = (
        torch.where(items.is_rule, int(Origin.RULE), int(Origin.FACT)),
        items.clause,
        matches,
        is_left,
        calls["resolve"].output,
        pruned,
        num_atoms,
        renamed,
    )
    kind, clause, *of_tick, raw, kept, num, named = (column[row].tolist() for column in columns)
    resolved, left = ([number_variables(iter(plain_goal(goal))) for goal in goals] for goals in (raw, kept))
    return list(map(_Tried, kind, clause, *of_tick, resolved, left, num, map(plain_goal, named)))


def _stage_outputs(calls: dict[str, Call], tried: list[_Tried], after: Derivations, record: StepRecord) -> StageOutputs:
    """Convert one step to `StageOutputs`. calls: the calls of the tick that completed it."""
    matched = [each for each in tried if each.matches]
    survivors = tuple((each.kind, each.clause, each.renamed) for each in tried if each.is_left)
    kind = int(calls["close"].output[0])
    num_survivors = int(calls["close"].arguments[0][0])
    alone = {
        TRUE: (TRUE, int(record.work.true_origin_kind[0]), int(record.work.true_origin[0]), ()),
        FALSE: (FALSE, 0, 0, ()),
    }
    is_alone = kind == TRUE or (kind == FALSE and num_survivors == 0)
    closed = (alone[kind],) if is_alone else tuple((GOAL, *each) for each in survivors)
    num = int(record.choices.num_resolvents[0])
    limited: tuple[Any, ...] = (alone[kind],) if kind != GOAL else ()
    if kind == GOAL:
        work = record.work
        columns = (work.origin_kind[0, :num], work.origin[0, :num], record.rows.atoms[:num])
        rows = zip(*(column.tolist() for column in columns), strict=True)
        limited = tuple((GOAL, k, o, plain_goal(atoms)) for k, o, atoms in rows)
    return {
        Stage.SELECT: tuple(calls["select"].output[0].tolist()),
        Stage.MATCH_RULES: tuple(each.clause for each in matched if each.kind == Origin.RULE),
        Stage.MATCH_FACTS: tuple(each.clause for each in matched if each.kind == Origin.FACT),
        Stage.RESOLVE: tuple((each.kind, each.clause, each.resolved) for each in matched),
        # The count of `prune` decides: missing atoms are PAD, and atoms beyond the count are not read.
        Stage.PRUNE: tuple(
            (
                each.kind,
                each.clause,
                (*each.pruned, *(PAD_ATOM,) * (each.num_atoms - len(each.pruned)))[: each.num_atoms],
            )
            for each in matched
        ),
        Stage.RENAME: tuple((each.kind, each.clause, each.renamed) for each in matched),
        Stage.REVISIT: survivors,
        Stage.CLOSE: closed,
        Stage.LIMIT: (limited, int(record.work.dropped_atoms[0]), int(record.work.dropped_resolvents[0])),
        Stage.SCORE: tuple(record.choices.score[0, :num].tolist()),
        Stage.CHOOSE: int(record.choices.choice[0]),
        Stage.ADVANCE: (kind, plain_goal(after.goal[0].tolist()), int(after.depth[0])),
        Stage.FINISH: int(record.outcome[0]),
    }


def plain_goal(rows: list[list[int]]) -> PlainGoal:
    """Drop the padding of a goal."""
    return tuple((p, a, b) for p, a, b in rows if p != PAD)
