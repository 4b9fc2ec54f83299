"""An evaluation of a small graph by an engine that derives nothing: a formula gives the ending of each atom.

Draw, ranks, counts, statistics and the sample of candidates are compared with what a loop over single candidates gives, for all
corruptions and for a few, with and without those that cannot affect a rank. The formula gives every kind of ending to true
triples and to corruptions: PROVED below -100, ties, the depth limit, limited candidates.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from evaluation_answers.reference_model import derive_least_model
from numpy.typing import NDArray

from kgverify import EngineInfo, KnowledgeGraph, UserError
from kgverify.engines.protocol import STOPPED, Positions
from kgverify.engines.reference.ranking import ReferenceDraw, sum_mixed
from kgverify.errors import InternalError
from kgverify.evaluation.parts import SALT, SAMPLED, PartResult
from kgverify.evaluation.proving import FullWork, PartWork
from kgverify.evaluation.rank_only import build_rank_only
from kgverify.program.atoms import Atom, NamedAtom, Variable
from kgverify.program.outcomes import Outcome, Side
from kgverify.program.program import NamedRule
from kgverify.progress import Progress, no_progress
from kgverify.ranking.draw import ALL, draw_candidates
from kgverify.ranking.rank import RANK_TOLERANCE, rank_candidates
from kgverify.runs.run import Pipeline, Run, plan_parts
from kgverify.trace.model.columns import CandidateSet, Columns

NUM_CONSTANTS: Final = 16
NUM_QUERIES: Final = 139
"""Twice as many rankings, more than 8 bits can number; the last of three equal parts is followed by one of a single query."""
SEED: Final = (1 << 40) + 5
FEW: Final = 3
"""The corruptions of a query and side where not all are taken."""
BLOCK_SIZE: Final = 58
"""The corruptions that are proved at once where those that cannot affect a rank are left out: those of four or five kinds."""
_PART_SIZE: Final = 500
"""The candidates of a part where some parts are planned."""
_APART: Final = RANK_TOLERANCE / 8
"""The distance of log-probabilities that tie."""

Triple = tuple[int, int, int]


class Ending(NamedTuple):
    """The ending of an atom, and the closeness of its choices."""

    outcome: int
    is_limited: int
    log_probability: float
    num_choices: int
    num_rescored: int
    gap: float

    @property
    def score(self) -> float:
        """The score that it is ranked by."""
        return self.log_probability - 100 * (self.outcome != Outcome.PROVED)


class Endings(dict[Triple, Ending]):
    """The ending of each atom. What does not follow is not PROVED."""

    def __init__(self, model: set[Triple]) -> None:
        self.model = model

    def __missing__(self, atom: Triple) -> Ending:
        predicate, first, second = atom
        number = (predicate * 101 + first) * 103 + second
        number = number * 2654435761 % 2**32 >> 8
        kind = number % 8
        if atom in self.model and kind < 6:
            # Below -100, it may rank below one that is not PROVED.
            outcome, log_probability = Outcome.PROVED, -100.5 if kind == 0 else -0.5 * (number // 8 % 9)
        else:
            outcome = Outcome.DEPTH_LIMIT if kind % 2 else Outcome.FAILED
            log_probability = -0.5 * (number // 8 % 9)
        # A tie is no equality.
        log_probability += (number // 32 % 3 - 1) * _APART
        self[atom] = Ending(
            int(outcome), number // 16 % 2, log_probability, number % 5, number % 3, 1.1 + number % 1009 / 7
        )
        return self[atom]


class _Evaluated(NamedTuple):
    """The endings of candidates, as an engine with a method `evaluate` returns them."""

    results: tuple[Any, Any, Any]
    num_choices: int
    num_rescored: int
    smallest_gap: float


@dataclass(eq=False)
class FormulaEngine:
    """The engine that looks endings up. It counts the closeness of the choices of what it was given."""

    endings: Endings
    info: EngineInfo
    takes_floors: bool = False
    num_choices: int = 0
    num_rescored: int = 0
    gaps: list[float] = field(default_factory=lambda: [np.inf])

    def evaluate(
        self, candidates: CandidateSet, progress: Progress = no_progress, *, floor: NDArray[np.float64] | None = None
    ) -> _Evaluated:
        """Return the endings of candidates; below its floor, each is stopped before it ends."""
        found = [self.endings[predicate, a, b] for predicate, a, b in candidates.atom.tolist()]
        choices, rescored = sum(each.num_choices for each in found), sum(each.num_rescored for each in found)
        gap = min((each.gap for each in found), default=np.inf)
        self.num_choices += choices
        self.num_rescored += rescored
        self.gaps.append(gap)
        outcome = np.array([each.outcome for each in found], np.int32)
        is_limited = np.array([each.is_limited for each in found], np.bool_)
        log_probability = np.array([each.log_probability for each in found], np.float64)
        if floor is not None:
            outcome[log_probability < floor] = STOPPED
        return _Evaluated((outcome, is_limited, log_probability), choices, rescored, gap)

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Raise NotImplementedError: an evaluation records no steps."""
        raise NotImplementedError

    def step(self, positions: Positions) -> Columns:
        """Raise NotImplementedError."""
        raise NotImplementedError


def build_graph() -> KnowledgeGraph:
    """Return a graph with queries of two predicates that share entities, about half of which follow."""
    names = [f"c{i}" for i in range(NUM_CONSTANTS)]
    pairs = [(a, b) for a in range(NUM_CONSTANTS) for b in range(NUM_CONSTANTS)]
    x, y, z = map(Variable, "XYZ")
    return KnowledgeGraph(
        "known",
        # The predicates of the queries come after eight others.
        train=(
            *(NamedAtom(f"a{i}", names[0], names[1]) for i in range(8)),
            *(NamedAtom("r", names[a], names[b]) for a, b in pairs if (a * 7 + b * 3) % 11 < 2),
        ),
        test=tuple(NamedAtom("pq"[(a + b) % 2], names[a], names[b]) for a, b in pairs if (a * 5 + b) % 9 < 5),
        rules=(
            NamedRule(NamedAtom("p", x, y), (NamedAtom("r", x, z), NamedAtom("r", z, y))),
            NamedRule(NamedAtom("q", x, y), (NamedAtom("r", y, x),)),
        ),
    )


def build_engine(graph: KnowledgeGraph, device: str, *, takes_floors: bool = False) -> FormulaEngine:
    """Return the engine of a graph, of the device on which the least model is derived."""
    program = graph.program
    facts = [Atom(*fact) for fact in program.facts.tolist()]
    model = derive_least_model(len(program.symbols.predicates), NUM_CONSTANTS, facts, program.rules)
    return FormulaEngine(Endings(model), EngineInfo("formula", device=device), takes_floors)


def check_known_evaluation(device: str, *, with_ranks_only: bool = True) -> list[tuple[Run, FormulaEngine, PartResult]]:
    """Evaluate the graph in each way, and return the results. InternalError if a value is wrong.

    with_ranks_only: also evaluate what ranks need alone, which needs torch
    """
    graph = build_graph()
    if with_ranks_only:
        _check_refusals(graph, device)
    found = []
    for num_corruptions, rank_only, takes_floors in (
        (ALL, False, False),
        (FEW, False, False),
        *(((ALL, True, False), (ALL, True, True), (FEW, True, False)) if with_ranks_only else ()),
    ):
        engine = build_engine(graph, device, takes_floors=takes_floors)
        run = Run(graph, num_queries=NUM_QUERIES, num_corruptions=num_corruptions, seed=SEED)
        pipeline = Pipeline(engine, draw_candidates, rank_candidates)
        work: PartWork = build_rank_only(run, pipeline, BLOCK_SIZE) if rank_only else FullWork(run, pipeline)
        (part,) = plan_parts(run, "cpu", 1 << 20).parts
        result = work.summarize(part, work.prove(part, work.draw(part), no_progress))
        wrong = next(_find_wrong_values(run, engine, result, rank_only=rank_only), None)
        if wrong:
            how = f"{num_corruptions} corruptions{', --rank-only' * rank_only}{', with floors' * takes_floors}"
            raise InternalError(f"evaluate is wrong on a known evaluation ({how}): {wrong}")
        found.append((run, engine, result))
    return found


def _check_refusals(graph: KnowledgeGraph, device: str) -> None:
    """InternalError if ranks are computed without some candidates though the engine draws or ranks by itself."""
    run = Run(graph, num_queries=1)
    engine = build_engine(graph, device)
    for own in (
        Pipeline(engine, lambda *given: draw_candidates(*given), rank_candidates),
        Pipeline(engine, draw_candidates, lambda *given: rank_candidates(*given)),
    ):
        try:
            build_rank_only(run, own)
        except UserError:
            continue
        raise InternalError("--rank-only is accepted for an engine that draws or ranks by itself")


def _find_wrong_values(run: Run, engine: FormulaEngine, result: PartResult, *, rank_only: bool) -> Iterator[str]:
    """Describe values that differ from those of a loop over single candidates."""
    endings = engine.endings
    draw = ReferenceDraw(run.graph, run.split, run.num_corruptions, run.seed)
    groups = [(query, side) for query in run.queries for side in (0, 1)]
    if list(zip(result.query.tolist(), result.side.tolist(), strict=True)) != groups:
        yield "the queries and sides"
        return
    of_group: dict[tuple[int, int], dict[Triple, Ending]] = {}
    num_stopped = 0
    for row, group in enumerate(groups):
        atoms: Sequence[Triple] = draw.draw(*group)
        true, *others = ranked = [endings[atom] for atom in atoms]
        of_group[group] = dict(zip(atoms, ranked, strict=True))
        num_above = sum(each.score > true.score + 0.25 for each in others)
        num_tied = sum(abs(each.score - true.score) < 0.25 for each in others)
        entities = sum_mixed([atom[1 + group[1]] for atom in atoms])
        expected = [len(atoms), 1 + num_above, 1 + num_above + num_tied, true.outcome, true.log_probability]
        columns: list[NDArray[Any]] = [
            result.num_ranked,
            result.optimistic,
            result.pessimistic,
            result.outcome,
            result.log_probability,
        ]
        if not (rank_only and run.num_corruptions == ALL):
            expected.append(entities)
            columns.append(result.drawn)
        if [column[row].item() for column in columns] != expected:
            yield f"query {group[0]}, side {group[1]}: {[column[row].item() for column in columns]}, not {expected}"
        counts = Counter(each.outcome for each in ranked)
        counted = result.num_outcomes[row].tolist()
        needs_all = not rank_only or true.outcome != Outcome.PROVED or true.log_probability < -100
        # A candidate that is stopped neither ties with the true triple nor ranks above it.
        least = [each for each in ranked if not engine.takes_floors or each.score > true.score - 0.25]
        least_counts = Counter(each.outcome for each in least)
        if needs_all and not all(least_counts[each] <= counted[each] <= counts[each] for each in Outcome):
            yield f"query {group[0]}, side {group[1]}: the outcomes of its candidates"
        num_limited = [sum(each.is_limited for each in of) for of in (least, ranked)]
        if needs_all and not num_limited[0] <= result.num_limited[row] <= num_limited[1]:
            yield f"query {group[0]}, side {group[1]}: its limited candidates"
        num_stopped += len(atoms) - sum(counted) if needs_all else 0
        if counted[Outcome.PROVED] != counts[Outcome.PROVED] or sum(counted) > len(atoms):
            yield f"query {group[0]}, side {group[1]}: its PROVED candidates"
    for each in plan_parts(run, "cpu", _PART_SIZE).parts:
        rows = np.isin(result.query, each.queries)
        if each.num_candidates != int(result.num_ranked[rows].sum()):
            yield f"the number of candidates of part {each.number}"
    if bool(num_stopped) != engine.takes_floors:
        yield f"{num_stopped} candidates that were stopped"
    yield from _find_wrong_samples(run, result, of_group)
    if result.choices != (engine.num_choices, engine.num_rescored, min(engine.gaps)):
        yield "the closeness of the choices"
    if not rank_only and engine.num_choices != sum(
        each.num_choices for of in of_group.values() for each in of.values()
    ):
        yield "the candidates that were given to the engine"


def _find_wrong_samples(
    run: Run, result: PartResult, of_group: dict[tuple[int, int], dict[Triple, Ending]]
) -> Iterator[str]:
    """Describe sampled candidates that do not exist, or end otherwise."""
    sample = result.sample
    seen = set()
    for query, side, atom, *ending, is_true in zip(
        sample.candidates.query.tolist(),
        sample.candidates.side.tolist(),
        map(tuple, sample.candidates.atom.tolist()),
        sample.candidates.outcome.tolist(),
        sample.candidates.is_limited.tolist(),
        sample.candidates.log_probability.tolist(),
        sample.is_true.tolist(),
        strict=True,
    ):
        expected = of_group[query, side].get(atom)
        if expected is None or list(expected[:3]) != ending or is_true != (atom == tuple(run.triples[query].tolist())):
            yield f"the sampled candidate {atom} of query {query}, side {Side(side).name}"
        seen.add((query, side, atom))
    num_true = int(sample.is_true.sum())
    if int(result.num_outcomes.sum()) == sum(map(len, of_group.values())):
        # Those of lowest priority among all; a priority depends on the seed, the query, the side and the entity alone.
        key = sum_mixed([(run.seed ^ SALT) % 2**64])
        lowest = sorted(
            sum_mixed([sum_mixed([key ^ (query << 2 | side)]) ^ atom[1 + side]])
            for (query, side), atoms in of_group.items()
            for atom in [*atoms][1:]
        )
        if sorted(sample.priority[~sample.is_true].tolist()) != lowest[:SAMPLED]:
            yield "the sampled candidates are not those of lowest priority"
    if len(seen) < len(sample.candidates.query) or num_true != len(of_group) or num_true == len(seen):
        yield "the number of sampled candidates"
