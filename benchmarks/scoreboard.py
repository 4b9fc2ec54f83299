"""The scoreboard: how well faults are found, measured against ground truth that no comparison of traces takes part in."""

import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import torch
from torch import Tensor

from benchmarks import Figure, Result, Task, make_parser, print_figures, print_header, print_row, run_tasks
from kgverify.comparison.equality import Equality
from kgverify.comparison.result import Divergence, Verdict
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import Engine, Positions, ProbedEngine, Results, StageOutputs
from kgverify.engines.table import COMPILED, make_entry
from kgverify.errors import InternalError
from kgverify.graphs.load import load_graph
from kgverify.program.limits import OURS, Limits
from kgverify.program.outcomes import Side, Stage
from kgverify.progress import Progress, no_progress
from kgverify.prover.execution_choice import choose_layout
from kgverify.prover.faults.fault import identity
from kgverify.prover.faults.plant import FAULTS, find_faults, plant_faults
from kgverify.prover.faults.step_faults import match_nothing_for_padding
from kgverify.prover.program.tables import Tables, build_tables
from kgverify.prover.stages.choose import Parameters, build_parameters
from kgverify.prover.state import GOAL, NO_CANDIDATE, OPEN, PAD, TRUE, Derivations, Pool, StepRecord, Work
from kgverify.prover.tick.stage_ticks import collect_columns
from kgverify.prover.tick.tick import Setting, empty_derivations, empty_pool, empty_work, tick
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import RANK_TOLERANCE, rank_candidates
from kgverify.runs.engine_makers import make_for
from kgverify.runs.run import Pipeline, Run, load_policy, reference_pipeline
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns, Rankings, concatenate
from kgverify.trace.model.header import EngineInfo
from kgverify.verification.verify import Verification, verify

# The ground truth


SCORE_NOISE = 1e-5
"""The absolute difference allowed between scores of weights computed in batches of different sizes; every fault is larger."""

OF_NO_STEP = -1
"""The step of what is wrong with a candidate as a whole: that it was drawn, or how it is reported to have ended."""


@dataclass(frozen=True)
class Truth:
    """The effect of faults in a run.

    first_step: for each candidate whose derivation a fault touched itself, by its row in the faulty evaluator's draw,
                the first step whose record it made wrong, the goal that the step starts from included;
                `OF_NO_STEP` where no step is wrong, but the outcome, the mark or the sum reported
    missing:    candidates of the right draw that the faulty evaluator does not report, by their rows there
    extra:      candidates reported that the right draw does not have, or more than once, by their rows in the report
    rankings:   (query, side) of what is ranked wrongly though the candidates' scores are as given
    """

    first_step: dict[int, int]
    missing: tuple[int, ...]
    extra: tuple[int, ...]
    rankings: tuple[tuple[int, int], ...]

    @property
    def has_manifested(self) -> bool:
        """True if anything is wrong."""
        return bool(self.first_step or self.missing or self.extra or self.rankings)


def find_truth(run: Run, names: Sequence[str], *, slots: int) -> Truth:
    """Find the effect of the named faults in a run with some slots, on the CPU. UserError for an unknown name."""
    plant = plant_faults(run.limits, run.policy, find_faults(names))
    expected = draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    drawn = plant.draw(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    layout = choose_layout(run.limits, slots=slots)
    program, cpu = run.graph.program, torch.device("cpu")
    # A fault may leave a slot with an empty goal. The semantics does not define its step: no clause matches it.
    sound = match_nothing_for_padding(plant_faults(run.limits, run.policy, ())).stages
    twin = _Twin(
        faulty=Setting(plant.stages, run.limits, layout),
        sound=Setting(sound, run.limits, layout),
        tables=build_tables(program, layout.atoms, cpu),
        parameters=build_parameters(run.policy, cpu, torch.float32),
        noise=0.0 if run.policy.name == "shortest" else SCORE_NOISE,
    )
    first_step: dict[int, int] = {}
    proved = []
    for begin in range(0, len(drawn.query), layout.pool):
        part = drawn.take(slice(begin, begin + layout.pool))
        touched, results = twin.run(part)
        first_step |= {begin + candidate: step for candidate, step in touched.items()}
        proved.append(collect_columns(part, [], results))
    columns = concatenate(proved)
    if plant.wrap_engine is not identity:
        columns = plant.wrap_engine(_Recorded(columns)).prove(drawn)
    missing, extra = _unpaired(expected, columns.candidates)
    right = rank_candidates(columns.candidates, run.triples, RANK_TOLERANCE)
    return Truth(
        first_step, missing, extra, differing_ranks(right, plant.rank(columns.candidates, run.triples, RANK_TOLERANCE))
    )


def _unpaired(expected: CandidateSet, reported: Candidates) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """List the rows without a partner of the same query, side and atom on the other side."""

    def key(each: CandidateSet | Candidates) -> list[tuple[int, ...]]:
        rows = zip(each.query.tolist(), each.side.tolist(), each.atom.tolist(), strict=True)
        return [(query, side, *atom) for query, side, atom in rows]

    def without_partner(rows: list[tuple[int, ...]], others: list[tuple[int, ...]]) -> tuple[int, ...]:
        left, found = Counter(others), []
        for i, row in enumerate(rows):
            left[row] -= 1
            if left[row] < 0:
                found.append(i)
        return tuple(found)

    keys = key(expected), key(reported)
    return without_partner(*keys), without_partner(*reversed(keys))


def differing_ranks(right: Rankings, given: Rankings) -> tuple[tuple[int, int], ...]:
    """List (query, side) of the rows in which two rankings differ."""
    rows = [
        {(row[0], row[1]): row[2:] for row in zip(*(column.tolist() for column in r), strict=True)}
        for r in (right, given)
    ]
    return tuple(sorted(key for key in rows[0].keys() | rows[1].keys() if rows[0].get(key) != rows[1].get(key)))


class _Recorded:
    """An engine that returns a recorded result."""

    info = EngineInfo("recorded")

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        return self._columns

    def step(self, positions: Positions) -> Columns:
        raise InternalError("a recorded result takes no further step")


class _Twin:
    """The faulty evaluator and the sound one, run together."""

    def __init__(self, faulty: Setting, sound: Setting, tables: Tables, parameters: Parameters, noise: float) -> None:
        self._faulty = faulty
        self._sound = sound
        self._tables = tables
        self._parameters = parameters
        self._noise = noise

    def run(self, candidates: CandidateSet) -> tuple[dict[int, int], Results]:
        """Return the first wrong step of each pool index that a fault touched, and the reported results."""
        num, layout, cpu = len(candidates.query), self._faulty.layout, torch.device("cpu")
        pool = empty_pool(layout, cpu)
        pool.query[:num] = torch.as_tensor(candidates.atom)
        queries = pool.query.clone()
        pool.size.fill_(num)
        derivations = empty_derivations(layout, self._faulty.limits.max_depth, cpu)
        work = empty_work(layout, cpu)
        notes = _Notes(num)
        while True:
            pool, derivations = self._recycle(pool, derivations, notes)
            if not bool((derivations.outcome == OPEN).any()):
                reported = (pool.outcome, pool.is_limited, pool.log_probability)
                return notes.first_step, Results(*(buffer[:num].numpy() for buffer in reported))
            derivations, work = self._tick(queries, derivations, work, notes)

    def _recycle(self, pool: Pool, derivations: Derivations, notes: "_Notes") -> tuple[Pool, Derivations]:
        sound_pool, sound = self._sound.stages.recycle(pool, derivations)
        faulty_pool, faulty = self._faulty.stages.recycle(pool, derivations)
        num = len(notes.num_steps)
        for right, given in (
            (sound_pool.outcome, faulty_pool.outcome),
            (sound_pool.is_limited, faulty_pool.is_limited),
            (sound_pool.log_probability, faulty_pool.log_probability),
        ):
            for candidate in _rows_that_differ(right[:num], given[:num]):
                notes.note(candidate, is_of_step=not notes.has_ended[candidate])
        # Where a slot takes the wrong candidate, or none, the results show which candidates were not run.
        is_held = (sound.pool_index == faulty.pool_index) & (sound.pool_index != NO_CANDIDATE)
        wrong = is_held & (_state_differs(sound, faulty) | (sound.outcome != faulty.outcome))
        for candidate in sound.pool_index[wrong].tolist():
            notes.note(candidate, is_of_step=True)
        return faulty_pool, faulty

    def _tick(self, queries: Tensor, derivations: Derivations, work: Work, notes: "_Notes") -> tuple[Derivations, Work]:
        """Run one tick of the faulty evaluator, and take the steps that it completes with the sound one as well.

        queries: int32 [P, 3], the pool's candidates.
        """
        faulty, next_work, given = tick(self._faulty, self._tables, self._parameters, derivations, work)
        taken = given.is_taken
        if not bool(taken.any()):
            return faulty, next_work
        sound, right = self._take_whole_steps(queries, derivations)
        wrong = taken & _record_differs(right, given, self._noise)
        starts_wrong = taken & ~wrong & _state_differs(sound, faulty)
        wrong_sum = _differs(sound.log_probability, faulty.log_probability, self._noise)
        wrong_sum = wrong_sum | (sound.is_limited != faulty.is_limited)
        for candidate in derivations.pool_index[wrong].tolist():
            notes.note(candidate, is_of_step=True)
        for candidate in derivations.pool_index[taken & wrong_sum & ~wrong].tolist():
            notes.note(candidate, is_of_step=False)
        for candidate in derivations.pool_index[taken].tolist():
            notes.num_steps[candidate] += 1
        for candidate in derivations.pool_index[starts_wrong].tolist():
            notes.note(candidate, is_of_step=True)
        for candidate in derivations.pool_index[taken & (faulty.outcome != OPEN)].tolist():
            notes.has_ended[candidate] = True
        return faulty, next_work

    def _take_whole_steps(self, queries: Tensor, derivations: Derivations) -> tuple[Derivations, StepRecord]:
        """Take the sound step of every running slot in one tick, with windows as wide as needed."""
        running = derivations.outcome == OPEN
        # The excluded atom belongs to the candidate, whatever the slot holds.
        own = torch.where(running[:, None], queries[derivations.pool_index.clamp(min=0)], derivations.query)
        stages, limits, layout = self._sound.stages, self._sound.limits, self._sound.layout
        segments = stages.look_up(self._tables, stages.select(derivations.goal))
        num_clauses = int(torch.where(running, segments.num_rules + segments.num_facts, 0).sum())
        wide = layout._replace(match_window=max(1, num_clauses), score_window=layout.slots * layout.resolvents)
        after, _, record = tick(
            Setting(stages, limits, wide),
            self._tables,
            self._parameters,
            derivations._replace(query=own),
            empty_work(wide, torch.device("cpu")),
        )
        if not torch.equal(record.is_taken, running):
            raise InternalError("a step did not fit into one tick")
        return after, record


class _Notes:
    """The state of each candidate of the pool: steps taken, whether it has ended, and its first wrong step."""

    def __init__(self, num: int) -> None:
        self.num_steps = [0] * num
        self.has_ended = [False] * num
        self.first_step: dict[int, int] = {}

    def note(self, candidate: int, *, is_of_step: bool) -> None:
        """Note that a candidate is wrong: in the step that it takes, or took last, or as a whole."""
        if not is_of_step:
            self.first_step.setdefault(candidate, OF_NO_STEP)
        elif self.first_step.get(candidate, OF_NO_STEP) == OF_NO_STEP:
            self.first_step[candidate] = self.num_steps[candidate]


def _record_differs(right: StepRecord, given: StepRecord, noise: float) -> Tensor:
    """Return whether the recorded fields of a step differ, bool [B]."""
    a, b = right.choices, given.choices
    differs = (right.outcome != given.outcome) | (a.kind != b.kind) | (a.num_resolvents != b.num_resolvents)
    differs = differs | (a.choice != b.choice)
    for field in ("dropped_atoms", "dropped_resolvents"):
        differs = differs | (getattr(right.work, field) != getattr(given.work, field))
    is_true = (a.kind == TRUE) & (b.kind == TRUE)
    for field in ("true_origin_kind", "true_origin"):
        differs = differs | (is_true & (getattr(right.work, field) != getattr(given.work, field)))
    rows = torch.arange(a.score.shape[1])
    is_row = rows < a.num_resolvents[:, None]
    differs = differs | (is_row & _differs(a.score, b.score, noise)).any(1)
    is_goal_row = is_row & (a.kind == GOAL)[:, None]
    num = len(rows)
    for field in ("origin_kind", "origin"):
        other = getattr(right.work, field)[:, :num] != getattr(given.work, field)[:, :num]
        differs = differs | (is_goal_row & other).any(1)
    atoms = (_padded_atoms(right, num) != _padded_atoms(given, num)).flatten(2).any(2)
    return differs | (is_goal_row & atoms).any(1)


def _padded_atoms(record: StepRecord, num: int) -> Tensor:
    """Return the resolvents of each slot, int32 [B, num, A, 3], free rows PAD."""
    slot, is_live, atoms, first = record.rows
    row = torch.arange(len(slot)) - first[slot]
    padded = torch.full((len(first), num, *atoms.shape[1:]), PAD, dtype=atoms.dtype)
    padded[slot[is_live], row[is_live]] = atoms[is_live]
    return padded


def _state_differs(right: Derivations, given: Derivations) -> Tensor:
    """Return whether the next step starts from another goal, depth or set of visited goals, bool [B]."""
    is_open = (right.outcome == OPEN) & (given.outcome == OPEN)
    turns = torch.arange(right.visited.shape[1])
    reached = turns <= torch.minimum(right.depth, given.depth)[:, None]
    visited = (reached & (right.visited != given.visited).flatten(2).any(2)).any(1)
    goal = (right.goal != given.goal).flatten(1).any(1)
    return is_open & ((right.depth != given.depth) | goal | visited)


def _differs(right: Tensor, given: Tensor, noise: float = 0.0) -> Tensor:
    """Compare elementwise, by more than the noise, NaN being equal to itself."""
    is_close = (right == given) | ((right - given).abs() <= noise)
    return ~is_close & ~(right.isnan() & given.isnan())


def _rows_that_differ(right: Tensor, given: Tensor) -> list[int]:
    return torch.nonzero(_differs(right, given) if right.is_floating_point() else right != given).flatten().tolist()


# Arenas


class Arena(msgspec.Struct, frozen=True, kw_only=True):
    """A small run of one graph in which faults are planted, and the number of slots of the evaluator."""

    graph: str
    name: str = "plain"
    limits: Limits = Limits()
    policy: str = "shortest"
    num_queries: int = 8
    num_corruptions: int = 8
    seed: int = 0
    slots: int = 16

    def run(self) -> Run:
        """Return the run. UserError for a graph that is not found."""
        graph = load_graph(self.graph)
        policy = SHORTEST if self.policy == "shortest" else load_policy(self.policy, graph, self.limits, self.seed)
        return Run(
            graph,
            self.limits,
            policy,
            num_queries=self.num_queries,
            num_corruptions=self.num_corruptions,
            seed=self.seed,
        )


TIGHT: Final = Limits(max_depth=5, max_atoms=3, max_resolvents=4)


def arenas_of(graph: str) -> tuple[Arena, ...]:
    """Return the arenas of a graph: with default limits, with limits that many steps meet, and with a policy of weights."""
    return (
        Arena(graph=graph),
        Arena(graph=graph, name="tight limits", limits=TIGHT, num_queries=10, num_corruptions=3, slots=5),
        Arena(graph=graph, name="weights", policy="two_tower", num_queries=4, slots=7),
    )


def sound_arenas(graphs: Sequence[str], num: int, seed: int = 0) -> Iterator[Arena]:
    """Generate configurations to try without a fault: the graphs in turn, everything else drawn from the seed."""
    rng = random.Random(seed)
    for i in range(num):
        weighted = rng.random() < 0.4
        yield Arena(
            graph=graphs[i % len(graphs)],
            name=f"configuration {i}",
            limits=Limits(
                max_depth=rng.choice((1, 2, 5, 20)),
                max_atoms=rng.choice((1, 2, 3, 6)),
                max_resolvents=rng.choice((1, 4, 30, 120)),
                exclude_query=rng.random() < 0.7,
            ),
            policy="two_tower" if weighted else "shortest",
            num_queries=rng.choice((1, 3, 6)),
            num_corruptions=rng.choice((0, 2, 6)),
            seed=rng.randrange(1000),
            slots=rng.choice((1, 3, 16, 64)),
        )


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of planting faults in an arena.

    faults:      the faults planted; none for the unchanged evaluator
    stages, kinds: the stage and class of each fault, which the report should name
    is_manifest: whether the faults did anything, by the truth
    num_wrong:   candidates (or ranks) wrong by the truth or in the report
    num_steps:   those for which truth and report name the same first step
    num_divergences, num_stages, num_kinds: the divergences of the report, those with a planted stage, and those also with
                 its class
    found:       (stage, class) of the report's causes, largest first
    """

    graph: str
    arena: str
    faults: tuple[str, ...]
    stages: tuple[str, ...]
    kinds: tuple[str, ...]
    verdict: str
    is_manifest: bool
    num_wrong: int
    num_steps: int
    num_divergences: int
    num_stages: int
    num_kinds: int
    found: tuple[tuple[str, str], ...]


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """The result of lockstep for two faults at once.

    is_visible: whether taking either away changes anything that the evaluator does
    is_listed:  whether both are among the causes, with stage and class
    found:      (stage, class) of the report's causes, largest first
    """

    graph: str
    arena: str
    faults: tuple[str, str]
    is_visible: bool
    is_listed: bool
    found: tuple[tuple[str, str], ...]


class Stand:
    """A prepared arena: its graph loaded, and the results of the reference remembered."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._run = arena.run()
        sound = reference_pipeline(self._run)
        self._expected = Pipeline(Remembering(sound.engine), sound.draw, sound.rank)

    def verify(self, faults: Sequence[str], *, lockstep: bool = False) -> Verification:
        """Verify the evaluator with the faults against the reference."""
        return verify(
            self._run,
            self._expected,
            self._judged(faults),
            equality=Equality(determinism=False, minimum={}, lockstep=lockstep),
        )

    def _judged(self, faults: Sequence[str]) -> Pipeline:
        return make_for(
            self._run, make_entry(COMPILED, faults=faults, mode="eager", device="cpu", slots=self.arena.slots)
        )

    def try_faults(self, faults: Sequence[str]) -> Trial:
        """Plant the faults, and compare the report with the ground truth."""
        truth = find_truth(self._run, faults, slots=self.arena.slots)
        return judge(self.arena, faults, truth, self.verify(faults))

    def try_pair(self, faults: tuple[str, str]) -> Pair:
        """Plant two faults and look for both among the causes of lockstep."""
        together, *alone = (self._do(names) for names in (faults, faults[:1], faults[1:]))
        found = _causes_of(self.verify(faults, lockstep=True))
        wanted = {(fault.stage.value, fault.expected_kind.value) for fault in find_faults(faults)}
        return Pair(
            graph=self.arena.graph,
            arena=self.arena.name,
            faults=faults,
            is_visible=together not in alone,
            is_listed=wanted <= set(found),
            found=found,
        )

    def _do(self, faults: Sequence[str]) -> bytes:
        """Return the bytes of everything that the evaluator with the faults computes, ranks included."""
        run, judged = self._run, self._judged(faults)
        columns = judged.engine.prove(judged.draw_for(run))
        ranks = judged.rank_finite(run, columns.candidates) or ()
        every = (*columns.candidates, *columns.steps, *columns.resolvents, *ranks)
        return b"".join(np.ascontiguousarray(column).tobytes() for column in every)


def judge(arena: Arena, names: Sequence[str], truth: Truth, verification: Verification) -> Trial:
    """Compare the report with the ground truth."""
    faults = find_faults(names)
    report = verification.report
    wanted, found = _wrong_by_truth(truth), dict(map(_locate, report.divergences))
    planted = {fault.stage.value for fault in faults}
    kinds = {(fault.stage.value, fault.expected_kind.value) for fault in faults}
    return Trial(
        graph=arena.graph,
        arena=arena.name,
        faults=tuple(fault.name for fault in faults),
        stages=tuple(fault.stage.value for fault in faults),
        kinds=tuple(fault.expected_kind.value for fault in faults),
        verdict=report.verdict.value,
        is_manifest=truth.has_manifested,
        num_wrong=len(wanted.keys() | found.keys()),
        num_steps=sum(location in found and found[location] == step for location, step in wanted.items()),
        num_divergences=len(report.divergences),
        num_stages=sum(each.stage in planted for each in report.divergences),
        num_kinds=sum((each.stage, each.kind.value) in kinds for each in report.divergences),
        found=_causes_of(verification),
    )


def _causes_of(verification: Verification) -> tuple[tuple[str, str], ...]:
    return tuple(dict.fromkeys((cause.stage, cause.kind.value) for cause in verification.report.causes))


Location = tuple[str, int, int]


def _wrong_by_truth(truth: Truth) -> dict[Location, int]:
    return {
        **{("candidate", row, 0): step for row, step in truth.first_step.items()},
        **{("missing", row, 0): -1 for row in truth.missing},
        **{("extra", row, 0): -1 for row in truth.extra},
        **{("rank", query, side): -1 for query, side in truth.rankings},
    }


def _locate(divergence: Divergence) -> tuple[Location, int]:
    if divergence.stage == Stage.RANK:
        return ("rank", divergence.query, Side[divergence.side.upper()]), -1
    if divergence.field == "candidates.atom":
        return ("extra" if divergence.expected == "no such candidate" else "missing", divergence.candidate, 0), -1
    return ("candidate", divergence.candidate, 0), divergence.step


class Remembering:
    """An engine that proves the same candidates once."""

    def __init__(self, engine: Engine) -> None:
        if not isinstance(engine, ProbedEngine):
            raise TypeError("expected an engine with probes")
        self._engine: ProbedEngine = engine
        self._proved: dict[bytes, Columns] = {}

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        key = b"".join(column.tobytes() for column in candidates)
        if key not in self._proved:
            self._proved[key] = self._engine.prove(candidates, progress)
        return self._proved[key]

    def step(self, positions: Positions) -> Columns:
        return self._engine.step(positions)

    def probe(self, position: Positions) -> StageOutputs:
        return self._engine.probe(position)


# Trials


def try_faults(arena: Arena, faults: Sequence[str]) -> list[Trial]:
    """Try each fault in an arena, or the unchanged evaluator if no fault is given."""
    stand = Stand(arena)
    return [stand.try_faults([fault]) for fault in faults] or [stand.try_faults([])]


def try_pairs(arena: Arena, pairs: Sequence[tuple[str, str]]) -> list[Pair]:
    """Try each pair of faults in an arena."""
    stand = Stand(arena)
    return [stand.try_pair(pair) for pair in pairs]


def draw_pairs(arenas: Sequence[Arena], trials: Sequence[Trial], num: int, seed: int) -> Iterator[Task]:
    """Draw pairs of faults that manifest in one arena, spread evenly over the arenas, and yield a task for each arena."""
    rng = random.Random(seed)
    for i, arena in enumerate(arenas):
        place = arena.graph, arena.name
        names = [each.faults[0] for each in trials if each.is_manifest and (each.graph, each.arena) == place]
        share = num // len(arenas) + (i < num % len(arenas))
        if share and len(names) > 1:
            pairs = [tuple(rng.sample(names, 2)) for _ in range(share)]
            yield f"pairs {arena} {pairs}", try_pairs, (arena, pairs)


# Figures


INERT: Final = "="
"""The cell of a fault that does nothing on a graph: both traces, and the ranks, are equal."""


def list_figures(trials: Sequence[Trial], sound: Sequence[Trial], pairs: Sequence[Pair]) -> Iterator[Figure]:
    """Yield the figures of the scoreboard."""
    manifest = [trial for trial in trials if trial.is_manifest]
    silent = [trial for trial in trials if not trial.is_manifest]
    visible = [pair for pair in pairs if pair.is_visible]
    num_found, num_wrong, num_steps, num_stages, num_kinds = (
        sum(getattr(trial, name) for trial in manifest)
        for name in ("num_divergences", "num_wrong", "num_steps", "num_stages", "num_kinds")
    )
    num_detected = sum(trial.verdict == Verdict.DIVERGE for trial in manifest)
    yield Figure("faults that manifest: detected", num_detected, len(manifest), 1.0)
    yield Figure("first divergent step exact", num_steps, num_wrong, 0.98)
    yield Figure("stage exact", num_stages, num_found, 0.95)
    yield Figure("stage of the largest cause", sum(map(_has_stage, manifest)), len(manifest), 0.95)
    yield Figure("class right", num_kinds, num_found, 0.9)
    yield Figure("class of the largest cause", sum(map(_has_kind, manifest)), len(manifest), 0.9)
    yield Figure("faults that do nothing: traces equal", sum(map(_is_equal, silent)), len(silent), 1.0)
    yield Figure("no fault: no alarm", sum(map(_is_equal, sound)), len(sound), 1.0)
    num_listed = sum(pair.is_listed for pair in visible)
    yield Figure("pairs of faults in lockstep: both listed", num_listed, len(visible), 0.9)


def _has_stage(trial: Trial) -> bool:
    return bool(trial.found) and trial.found[0][0] in trial.stages


def _has_kind(trial: Trial) -> bool:
    return _has_stage(trial) and trial.found[0][1] in trial.kinds


def _is_equal(trial: Trial) -> bool:
    """Return whether nothing was found. Scores of weights may differ in bits, so that equal digests are not required."""
    return trial.verdict == Verdict.AGREE and not trial.num_divergences


def print_faults(trials: Sequence[Trial]) -> None:
    """Print, for each fault and graph, the candidates found of those wrong."""
    graphs = tuple(dict.fromkeys(trial.graph for trial in trials))
    print_header("fault", "stage", "class", *graphs)
    for name in dict.fromkeys(trial.faults[0] for trial in trials):
        own = [trial for trial in trials if trial.faults == (name,) and trial.is_manifest]
        cells = (_cell([trial for trial in own if trial.graph == graph]) for graph in graphs)
        print_row(name, FAULTS[name].stage.value, FAULTS[name].expected_kind.value, *cells)


def _cell(trials: Sequence[Trial]) -> str:
    if not trials:
        return INERT
    num, of = (sum(getattr(trial, name) for trial in trials) for name in ("num_steps", "num_wrong"))
    is_exact = all(trial.num_stages == trial.num_divergences for trial in trials)
    is_right = all(trial.num_kinds == trial.num_divergences for trial in trials)
    return f"{num:,}/{of:,}{'' if is_exact else ' stage'}{'' if is_right else ' class'}"


DEFAULT_GRAPHS = ("countries", "family", "random:1", "random:4")


def run_scoreboard(words: list[str]) -> int:
    """Plant every fault on several graphs and score the report: verdict, first step, stage, class and false alarms.

        python -m benchmarks scoreboard --graph countries --graph random:4 --log scoreboard.jsonl

    Each graph is tried with default limits, with limits that many steps meet, and with a policy of weights. The ground
    truth is computed without the differ: the faulty evaluator runs tick by tick, and the sound functions are given the
    very same input. A cell `n/m` counts the candidates that are wrong by the ground truth or by the report (m), and those
    for which both name the same first step (n). `stage` or `class` marks a cell in which the report gives some of them
    another stage or class; `=` a fault without any effect. The exit code is 0 if every figure meets its target.
    """
    parser = make_parser(run_scoreboard)
    parser.add_argument("--graph", action="append", help="a graph to plant faults on; repeatable")
    parser.add_argument("--fault", action="append", help="a fault to plant; repeatable; all if none is given")
    parser.add_argument("--sound", type=int, default=200, help="configurations to try without a fault")
    parser.add_argument("--pairs", type=int, default=50, help="pairs of faults to look for in lockstep")
    parser.add_argument("--seed", type=int, default=0, help="seed of the configurations and the pairs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--log", type=Path, help="a file of finished trials, from which a later run resumes")
    given = parser.parse_args(words)
    graphs = tuple(given.graph or DEFAULT_GRAPHS)
    every = [name for name, fault in FAULTS.items() if fault.dialect == OURS]
    names = tuple(fault.name for fault in find_faults(given.fault or every))

    def run(tasks: list[Task], kind: type[Result]) -> list[Result]:
        return [each for found in run_tasks(tasks, list[kind], given.jobs, given.log) for each in found]  # type: ignore[valid-type]

    arenas = [arena for graph in graphs for arena in arenas_of(graph)]
    trials = run([(f"trials {arena} {names}", try_faults, (arena, names)) for arena in arenas], Trial)
    drawn = sound_arenas(graphs, given.sound, given.seed)
    sound = run([(f"sound {arena}", try_faults, (arena, ())) for arena in drawn], Trial)
    pairs = run(list(draw_pairs(arenas, trials, given.pairs, given.seed)), Pair)
    code = print_figures(figure for figure in list_figures(trials, sound, pairs) if figure.of)
    print_faults(trials)
    for pair in pairs:
        if pair.is_visible and not pair.is_listed:
            found = "; ".join(map(", ".join, pair.found))
            print(f"not listed: {' and '.join(pair.faults)} ({pair.graph}, {pair.arena}): {found}", file=sys.stderr)
    return code
