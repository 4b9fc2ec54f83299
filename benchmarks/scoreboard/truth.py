"""The ground truth of a fault, from instrumented replacement, without any comparison of traces.

The faulty evaluator runs tick by tick, eagerly. For every step that it completes, and whenever slots are recycled, the
sound functions are given the very same input, so that a difference is
caused by the fault itself, and is not a consequence of an earlier difference. Draw, reported results and ranks, which are not
functions of slots, are compared directly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kgverify.engines.protocol import Positions, Results
from kgverify.errors import InternalError
from kgverify.progress import Progress, no_progress
from kgverify.prover.execution_choice import choose_layout
from kgverify.prover.faults.fault import identity
from kgverify.prover.faults.plant import find_faults, plant_faults
from kgverify.prover.faults.step_faults import match_nothing_for_padding
from kgverify.prover.program.tables import Tables, build_tables
from kgverify.prover.stages.choose import Parameters, build_parameters
from kgverify.prover.state import GOAL, NO_CANDIDATE, OPEN, PAD, TRUE, Derivations, Pool, StepRecord, Work
from kgverify.prover.tick.stage_ticks import collect_columns
from kgverify.prover.tick.tick import Setting, empty_derivations, empty_pool, empty_work, tick
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import RANK_TOLERANCE, rank_candidates
from kgverify.runs.run import Run
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns, Rankings, concatenate
from kgverify.trace.model.header import EngineInfo

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
    # A fault may leave a slot with an empty goal, of which the semantics says nothing: no clause matches it.
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
    keys = [
        list(zip(each.query.tolist(), each.side.tolist(), map(tuple, each.atom.tolist()), strict=True))
        for each in (expected, reported)
    ]

    def without_partner(rows: list[tuple[int, int, tuple[int, ...]]], others: list[object]) -> tuple[int, ...]:
        left: dict[object, int] = {}
        for key in others:
            left[key] = left.get(key, 0) + 1
        found = []
        for i, key in enumerate(rows):
            if left.get(key, 0):
                left[key] -= 1
            else:
                found.append(i)
        return tuple(found)

    return without_partner(keys[0], list(keys[1])), without_partner(keys[1], list(keys[0]))


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
