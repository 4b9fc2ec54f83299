"""Known runs: a few queries that the reference proves, and engines that are wrong in known ways, verified before others.

They test what explains a divergence: the repeated steps, lockstep, the steps behind near-ties, and the split of the loss.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import numpy as np
from pairs import Known, at_level, take
from problem_text import graph_of

from kgverify import CandidateSet, Columns, EngineInfo, Limits, Positions, Stage, StageOutputs
from kgverify.dialects import ReferenceEngine
from kgverify.program.outcomes import Outcome
from kgverify.runs.run import Pipeline, Run, build_trace, reference_pipeline
from kgverify.trace.model.columns import StageItems, starts_of
from kgverify.trace.model.stage_items import StageReader, encode_stage_outputs
from kgverify.verification.record import prove_deep

Change = Callable[[Columns], Columns]

_ERROR: Final = 1e-3


class _WrongEngine(ReferenceEngine):
    """The reference, which changes what it proves, the steps it takes, and the stages it shows."""

    def __init__(self, run: Run, prove: Change, step: Change, probe: Callable[[StageOutputs], StageOutputs]) -> None:
        super().__init__(run.graph.program, run.limits, run.policy)
        self._changes = prove, step, probe

    @property
    def info(self) -> EngineInfo:
        return EngineInfo("known", score_error=_ERROR)

    def prove(self, candidates: CandidateSet, progress: Any = None) -> Columns:
        return self._changes[0](super().prove(candidates))

    def step(self, positions: Positions) -> Columns:
        return self._changes[1](super().step(positions))

    def probe(self, position: Positions) -> StageOutputs:
        return self._changes[2](super().probe(position))


def _known_run() -> Run:
    graph = graph_of(
        "p(a, b); p(b, c); p(c, d); p(a, d); q(b, a); q(d, b); p(d, a);"
        "q(X, Y) <- p(Y, X); q(X, Z) <- p(X, Y), p(Y, Z); q(X, Y) <- q(Y, X); q(X, Z) <- q(X, Y), p(Y, Z);"
        "! q(a, c); ! q(c, b); ! q(d, a)",
        "known",
    )
    return Run(graph, Limits(max_depth=5, max_atoms=3, max_resolvents=6), num_queries=3, num_corruptions=2)


def _long_run(limits: Limits, *, has_base: bool = False, split: str = "test") -> Run:
    """Return a run of derivations of one to five steps, which fail, reach the depth limit or, with a base, prove something."""
    pairs = {"q": "ab ea ff ge", "p": "aa ab ac ae cb da dd df ea eb ge"}
    facts = "; ".join(f"{name}({pair[0]}, {pair[1]})" for name, listed in pairs.items() for pair in listed.split())
    base = "s(X, Y) <- q(X, Y); " * has_base
    graph = graph_of(
        f"{facts}; {base} s(X, Y) <- p(X, Z), s(Z, Y); s(X, Y) <- q(X, Z), s(Z, Y); s(X, X) <- p(X, Z), q(Z, X);"
        "s(X, Y) <- p(Y, Z), s(Y, Z); q(X, Y) <- p(X, Z), p(Z, Y), q(Y, X); ! s(e, e); ! s(d, a); ! s(b, a)",
        "known",
    )
    return Run(graph, limits, num_queries=3, num_corruptions=2, split=split)


def _same(columns: Any) -> Any:
    return columns


def _owner(columns: Columns) -> Any:
    return np.repeat(np.arange(len(columns.steps.depth)), columns.steps.num_resolvents)


def _score(columns: Columns, depth: int, change: float) -> Columns:
    score = columns.resolvents.score.copy()
    score[columns.steps.depth[_owner(columns)] == depth] += change
    return columns._replace(resolvents=columns.resolvents._replace(score=score))


def _steps(columns: Columns, **changes: Callable[[Any], Any]) -> Columns:
    """Change columns of the steps at depth 1."""
    steps = columns.steps
    at = steps.depth == 1
    made = {}
    for name, change in changes.items():
        values = getattr(steps, name)
        made[name] = np.where(at, change(values), values).astype(values.dtype)
    return columns._replace(steps=steps._replace(**made))


def _ends(columns: Columns) -> Columns:
    """Change the sums of some candidates, the outcome of others, and a flag."""
    candidates = columns.candidates
    number = np.arange(len(candidates.query))
    return columns._replace(
        candidates=candidates._replace(
            log_probability=candidates.log_probability - 300.0 * (number % 4 == 1),
            outcome=np.where(number % 5 == 2, (candidates.outcome + 1) % 4, candidates.outcome).astype(np.int8),
            is_limited=np.where(number % 5 == 3, 1 - candidates.is_limited, candidates.is_limited).astype(np.uint8),
        )
    )


def _drop(columns: Columns) -> Columns:
    """Count other dropped resolvents at depth 1, and other scores at depth 0 of every other candidate."""
    return _score(_steps(columns, dropped_resolvents=lambda values: values + 1), 2, 0.5)


def _mixed(columns: Columns) -> Columns:
    """Change something else in each query: scores, atoms of a goal, dropped resolvents, and sums in every fourth candidate."""
    steps, candidates = columns.steps, columns.candidates
    owner = np.repeat(np.arange(len(candidates.query)), candidates.num_steps)
    query = candidates.query[owner] if len(candidates.query) else owner
    at = (steps.depth == 1) & (owner % 2 == 0)
    score = columns.resolvents.score + 0.25 * ((query == 0) & at)[_owner(columns)]
    atoms = steps.goal_atoms.copy()
    atoms[np.repeat((query == 1) & at, steps.num_atoms), 2] = 0
    dropped = (steps.dropped_atoms + ((query == 2) & at)).astype(np.uint32)
    columns = columns._replace(
        steps=steps._replace(goal_atoms=atoms, dropped_atoms=dropped),
        resolvents=columns.resolvents._replace(score=score.astype(np.float64)),
    )
    return _ends(columns)


def _tie(columns: Columns) -> Columns:
    """Choose the last of equal scores, which the engine's own scores put first."""
    steps, score = columns.steps, columns.resolvents.score.copy()
    first, choice = starts_of(steps.num_resolvents), steps.choice.copy()
    for row in range(len(choice)):
        own = score[first[row] : first[row + 1]]
        best: Any = np.flatnonzero(own == own.max()) if len(own) else []
        if len(best) > 1:
            choice[row] = best[-1]
            own[best[-1]] += _ERROR / 2
    return columns._replace(steps=steps._replace(choice=choice), resolvents=columns.resolvents._replace(score=score))


def _tie_and_sums(columns: Columns) -> Columns:
    """Choose the last of equal scores, and let the rest of these derivations cost something."""
    tied = _tie(columns)
    is_other = (
        np.add.reduceat(tied.steps.choice != columns.steps.choice, starts_of(columns.candidates.num_steps)[:-1]) > 0
    )
    sums = columns.candidates.log_probability - 3.0 * is_other
    return tied._replace(candidates=tied.candidates._replace(log_probability=sums))


def _all_drop(columns: Columns) -> Columns:
    """Count other dropped resolvents in every step."""
    steps = columns.steps
    return columns._replace(steps=steps._replace(dropped_resolvents=(steps.dropped_resolvents + 1).astype(np.uint32)))


def _goals(columns: Columns) -> Columns:
    """Change the last argument of the goals at depth 1."""
    steps = columns.steps
    atoms = steps.goal_atoms.copy()
    atoms[np.repeat(steps.depth == 1, steps.num_atoms), 2] = 0
    return columns._replace(steps=steps._replace(goal_atoms=atoms))


def _other_scores(columns: Columns) -> Columns:
    score = columns.resolvents.score + 0.25
    return columns._replace(resolvents=columns.resolvents._replace(score=score))


def _of_scores(outputs: StageOutputs) -> StageOutputs:
    return {**outputs, Stage.SCORE: tuple(score + 0.25 for score in outputs[Stage.SCORE])}


def _of_stages(outputs: StageOutputs) -> StageOutputs:
    limited = outputs[Stage.LIMIT]
    return {**outputs, Stage.LIMIT: (limited[0], limited[1], limited[2] + 1)}


def _two_faults(columns: Columns) -> Columns:
    """Count other dropped resolvents, and end otherwise, in every step."""
    steps = _all_drop(columns).steps
    return columns._replace(steps=steps._replace(outcome=((steps.outcome + 1) % 4).astype(np.int8)))


def _of_two_stages(outputs: StageOutputs) -> StageOutputs:
    return {**_of_stages(outputs), Stage.FINISH: (outputs[Stage.FINISH] + 1) % 4}


def known_runs() -> Iterator[tuple[str, Run, Pipeline, Pipeline, dict[str, Any]]]:
    """Yield the name of each known run, its pipelines and the options of its verification."""
    run = _known_run()
    right = reference_pipeline(run)

    def wrong(prove: Change, step: Change, probe: Any = _same) -> Pipeline:
        return right._replace(engine=_WrongEngine(run, prove, step, probe))

    def goals(columns: Columns) -> Columns:
        atoms = columns.steps.goal_atoms.copy()
        atoms[-1, 2] = atoms[0, 1]
        return columns._replace(steps=columns.steps._replace(goal_atoms=atoms))

    def later(columns: Columns) -> Columns:
        return _steps(columns, outcome=lambda values: (values + 1) % 4)

    def limited(columns: Columns) -> Columns:
        # One error, whatever the outcome should be: two that are renumbered alike could be two errors.
        return _steps(columns, outcome=lambda values: np.full_like(values, Outcome.DEPTH_LIMIT))

    lockstep = {"lockstep": True}
    yield "the same wrong step alone", run, right, wrong(_drop, _drop), {}
    yield "the same wrong step alone, in lockstep", run, right, wrong(_drop, _drop), lockstep
    yield "a wrong stage", run, right, wrong(_drop, _drop, _of_stages), {}
    two_stages = wrong(_two_faults, _two_faults, _of_two_stages)
    yield "two wrong stages", run, right, two_stages, {}
    yield "two wrong stages, in lockstep", run, right, two_stages, lockstep
    yield "wrong only in a batch", run, right, wrong(lambda c: goals(_drop(c)), _same), {}
    yield "wrong ends", run, right, wrong(_ends, _same), {}
    yield "near-ties", run, right, wrong(_tie, _same), {"score_error": _ERROR}
    yield "wrong behind near-ties", run, right, wrong(_tie, later), {"score_error": _ERROR}
    yield (
        "other scores behind near-ties",
        run,
        right,
        wrong(_tie, lambda c: _score(c, 1, 0.1)),
        {"score_error": _ERROR},
    )
    yield "near-ties in lockstep", run, right, wrong(_tie, _tie), {**lockstep, "score_error": _ERROR}
    yield "several causes", run, right, wrong(_mixed, _same), {}
    yield "several causes, in lockstep", run, right, wrong(_mixed, _mixed, _of_stages), lockstep
    ranks = right._replace(
        rank=lambda *given: right.rank(*given)._replace(optimistic=right.rank(*given).optimistic + 1)
    )
    yield "wrong ranks", run, right, ranks, {}
    yield "a wrong goal after a wrong stage", run, right, wrong(_goals, _all_drop, _of_stages), {}

    def draw_others(*given: Any) -> CandidateSet:
        drawn = right.draw(*given)
        # Of the other predicate.
        return drawn._replace(atom=np.column_stack((1 - drawn.atom[:, 0], drawn.atom[:, 1:])))

    yield "other candidates, in lockstep", run, right, right._replace(draw=draw_others), lockstep
    calls = count()
    unsteady = wrong(lambda columns: columns if next(calls) % 2 else _ends(columns), _same)
    twice = {"determinism": True}
    yield "an actual engine that does not repeat itself", run, right, unsteady, twice
    yield "an expected engine that does not repeat itself", run, unsteady, right, twice
    tie = {"score_error": _ERROR}
    yield "near-ties that cost something", run, right, wrong(lambda c: _ends(_tie_and_sums(c)), _same), tie
    run = _long_run(Limits(max_depth=5, max_atoms=3, max_resolvents=4))
    right = reference_pipeline(run)
    yield "many steps: near-ties", run, right, wrong(_tie, _same), tie
    yield "many steps: near-ties behind near-ties", run, right, wrong(_tie, _tie), tie
    two = wrong(_tie_and_sums, lambda columns: _score(limited(columns), 3, 0.5))
    yield "many steps: two causes behind near-ties", run, right, two, tie
    scores = wrong(_goals, lambda columns: _score(columns, 0, 0.5))
    yield "many steps: wrong goals after wrong steps, in lockstep", run, right, scores, lockstep
    early = wrong(
        lambda columns: _steps(columns, dropped_resolvents=lambda values: values + 1),
        lambda columns: _score(columns, 2, 0.5),
    )
    yield "many steps: right alone before wrong steps, in lockstep", run, right, early, lockstep
    yield "many steps: wrong behind near-ties", run, right, wrong(_tie_and_sums, limited), tie
    yield "many steps: wrong ends alone as well", run, right, wrong(_ends, _ends), {}
    yield "many steps: wrong goals after wrong scores", run, right, wrong(_goals, _other_scores, _of_scores), {}
    yield "many steps: several causes, in lockstep", run, right, wrong(_mixed, _mixed, _of_stages), lockstep
    yield "many steps: later steps, in lockstep", run, right, wrong(later, _drop), lockstep


def traces_of_runs() -> Iterator[Known]:
    """Yield recorded traces of the known run whose stages were recorded."""
    run = _known_run()
    pipeline = reference_pipeline(run)
    columns = prove_deep(pipeline.engine, pipeline.draw_for(run))
    numbers = columns.stages.number.copy()
    numbers[columns.stages.stage >= 11] += 1
    spoiled = _mixed(columns)
    spoiled = spoiled._replace(stages=spoiled.stages._replace(number=numbers))
    right, wrong, stages = (
        build_trace(run, pipeline.engine, each, None) for each in (columns, _mixed(columns), spoiled)
    )
    yield Known("deep", at_level(right, "deep"), at_level(wrong, "deep"))
    yield Known("recorded, deep and steps", at_level(right, "deep"), at_level(wrong, "steps"))
    yield Known("recorded, other outputs of stages", at_level(right, "deep"), at_level(stages, "deep"))
    unknown = build_trace(run, pipeline.engine, spoiled._replace(stages=_forget(columns)), None)
    yield Known("recorded, fewer stages", at_level(right, "deep"), at_level(unknown, "deep"))
    ended = build_trace(run, pipeline.engine, _steps(columns, outcome=lambda values: (values + 1) % 4), None)
    yield Known("recorded, fewer candidates", at_level(right, "steps"), at_level(take(ended, range(2, 9)), "steps"))
    run = _long_run(Limits(max_depth=5, max_atoms=2, max_resolvents=4), has_base=True, split="train")
    pipeline = reference_pipeline(run)
    columns = prove_deep(pipeline.engine, pipeline.draw_for(run))
    right, wrong = (build_trace(run, pipeline.engine, each, None) for each in (columns, _goals(_drop(columns))))
    yield Known("recorded, facts as queries", at_level(right, "steps"), at_level(wrong, "deep"))
    yield Known("recorded, deep facts as queries", at_level(right, "deep"), at_level(wrong, "deep"))


def _forget(columns: Columns) -> StageItems:
    """Return the outputs of stages as an engine that does not know the last two shows them."""
    reader, lost = StageReader(columns), (Stage.ADVANCE, Stage.FINISH)
    steps = map(reader.read, range(len(columns.steps.depth)))
    return encode_stage_outputs(
        {stage: output for stage, output in step.items() if stage not in lost} for step in steps
    )
