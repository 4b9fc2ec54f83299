"""Score the conditions of causes."""

import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from benchmarks import Figure, Task, make_parser, print_figures, print_header, print_row, run_tasks
from kgverify.comparison.equality import Equality
from kgverify.conditions import describe
from kgverify.conditions.confirm import Tested
from kgverify.conditions.find import Found
from kgverify.conditions.instances import Cases
from kgverify.engines.plain.engine import PlainEngine
from kgverify.engines.policy import SHORTEST, Policy
from kgverify.engines.table import COMPILED, make_entry
from kgverify.graphs.load import load_graph
from kgverify.program.fact_index import Ids
from kgverify.program.limits import OURS, Limits
from kgverify.program.outcomes import GoalKind, Origin, Outcome
from kgverify.program.program import Program
from kgverify.progress import Progress, no_progress
from kgverify.prover.faults.plant import FAULTS as CATALOGUE
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.engine_makers import make_for
from kgverify.runs.run import Pipeline, Run, load_policy, reference_pipeline
from kgverify.step import plain_step
from kgverify.step.clauses import Atoms
from kgverify.step.plain_step import FALSE, Resolvent, Situation, Stages
from kgverify.trace.model.columns import CandidateSet, Columns, concatenate, select_candidates
from kgverify.verification.verify import verify

# Sixty faults


class At(NamedTuple):
    """A clause that matches at a step.

    match, num_matches: its position among the matches, and their number
    position, num:      its position among the clauses of its predicate, and their number
    atoms:              the resolvent that it makes, before pruning; empty while clauses are matched
    """

    situation: Situation
    head: Atoms
    body: Atoms
    match: int
    num_matches: int
    position: int
    num: int
    atoms: Atoms = ()

    @property
    def goal(self) -> Atoms:
        return self.situation.goal

    @property
    def depth(self) -> int:
        return self.situation.depth


class Fault(NamedTuple):
    """A fault: what it breaks, and the predicate under which it does."""

    name: str
    hook: str
    holds: Callable[..., bool]


class FaultyEngine(PlainEngine):
    """The plain evaluator with a fault in one stage, or in whole candidates."""

    def __init__(self, program: Program, limits: Limits, policy: Policy, fault: Fault | None) -> None:
        super().__init__(program, limits, policy, stages=plant(fault) if fault else Stages())
        self._breaks = fault.holds if fault and fault.hook == "candidate" else None
        stages = Stages(offer_stop=lambda situation, resolvents: [FALSE])
        self._broken = PlainEngine(program, limits, policy, stages=stages)

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        columns, num = super().prove(candidates, progress), len(candidates.query)
        rows = [i for i in range(num) if self._breaks is not None and self._breaks(candidates, i, num)]
        if not rows:
            return columns
        order = np.arange(num)
        order[rows] = num + np.arange(len(rows))
        return select_candidates(concatenate([columns, self._broken.prove(candidates.take(rows))]), order)


def plant(fault: Fault) -> Stages:
    """Return the stages of a step, one of which has a fault."""
    holds = fault.holds

    def locate(situation: Situation, kind: Origin, found: Sequence[int], i: int) -> At:
        clauses, predicate = situation.clauses, situation.goal[0][0]
        of_predicate = clauses.rules_of(predicate) if kind is Origin.RULE else clauses.facts_of(predicate)
        head, body = clauses.rules[found[i]] if kind is Origin.RULE else (clauses.facts[found[i]], ())
        position = bisect_left(of_predicate, found[i])
        return At(situation, head, body, i, len(found), position, len(of_predicate))

    def match_rules(situation: Situation, selected: Ids) -> list[int]:
        found = plain_step.match_rules(situation, selected)
        return [each for i, each in enumerate(found) if not holds(locate(situation, Origin.RULE, found, i))]

    def match_facts(situation: Situation, selected: Ids) -> list[int]:
        found = plain_step.match_facts(situation, selected)
        return [each for i, each in enumerate(found) if not holds(locate(situation, Origin.FACT, found, i))]

    def resolve(situation: Situation, rules: Sequence[int], facts: Sequence[int]) -> list[Resolvent]:
        made = plain_step.resolve(situation, rules, facts)
        places = [(Origin.RULE, rules, i) for i in range(len(rules))] + [
            (Origin.FACT, facts, i) for i in range(len(facts))
        ]
        return [
            each._replace(atoms=tuple((p, b, a) for p, a, b in each.atoms))
            if holds(locate(situation, *place)._replace(atoms=each.atoms))
            else each
            for each, place in zip(made, places, strict=True)
        ]

    def prune(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
        return [
            old if len(new.atoms) < len(old.atoms) and holds(old.atoms, new.atoms, situation.depth) else new
            for old, new in zip(resolvents, plain_step.prune(situation, resolvents), strict=True)
        ]

    def revisit(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
        new = plain_step.revisit(situation, resolvents)
        return [each for each in resolvents if each in new or holds(each.atoms, situation.depth)]

    def limit(situation: Situation, resolvents: Sequence[Resolvent]) -> tuple[list[Resolvent], int]:
        taken, num_dropped = plain_step.limit_resolvents(situation, resolvents)
        kept = [
            each
            for i, each in enumerate(taken)
            if each.kind or not each.atoms or not holds(each.atoms, i, situation.limits)
        ]
        return kept, num_dropped + len(taken) - len(kept)

    def score(situation: Situation, resolvents: Sequence[Resolvent]) -> list[float]:
        scores = plain_step.score(situation, resolvents)
        pairs = zip(scores, resolvents, strict=True)
        return [
            s - 8 * bool(not each.kind and holds(situation.goal, each.atoms, situation.depth, s)) for s, each in pairs
        ]

    def finish(situation: Situation, chosen: Resolvent, depth: int) -> Outcome:
        outcome = plain_step.finish(situation, chosen, depth)
        if holds(chosen.kind, situation.depth, situation.limits):
            return Outcome.PROVED if outcome is Outcome.FAILED else Outcome.FAILED
        return outcome

    stages: dict[str, Stages] = {
        "fact": Stages(match_facts=match_facts),
        "rule": Stages(match_rules=match_rules),
        "resolve": Stages(resolve=resolve),
        "prune": Stages(prune=prune),
        "revisit": Stages(revisit=revisit),
        "limit": Stages(limit_resolvents=limit),
        "score": Stages(score=score),
        "finish": Stages(finish=finish),
    }
    return stages.get(fault.hook, Stages())


def _facts(*rows):
    return [Fault(f"facts: {name}", "fact", holds) for name, holds in rows]


GOAL, TRUE = GoalKind.GOAL, GoalKind.TRUE


def _num_variables(atoms):
    return len({t for atom in atoms for t in atom[1:] if t < 0})


FURTHER_FAULTS: Final = (
    *_facts(
        ("position 7 or later", lambda x: x.position >= 7),
        ("position 23 or later", lambda x: x.position >= 23),
        ("position 100 or later", lambda x: x.position >= 100),
        ("the first 40 of a segment", lambda x: x.position < 40),
        ("odd positions", lambda x: x.position % 2 == 1),
        ("position 3 modulo 4", lambda x: x.position % 4 == 3),
        ("position 0 modulo 8", lambda x: x.position % 8 == 0),
        ("position 5 modulo 7", lambda x: x.position % 7 == 5),
        ("the last 30 of a segment", lambda x: x.num - 1 - x.position < 30),
        ("the third match and later", lambda x: x.match >= 2),
        ("the first match", lambda x: x.match == 0),
        ("every other match", lambda x: x.match % 2 == 1),
        ("the last but one match", lambda x: x.num_matches - x.match == 2),
        ("first argument 64 or more", lambda x: x.head[1] >= 64),
        ("second argument below 30", lambda x: x.head[2] < 30),
        ("second argument odd", lambda x: x.head[2] % 2 == 1),
        ("first argument 0 modulo 8", lambda x: x.head[1] % 8 == 0),
        ("an argument of 128 or more", lambda x: max(x.head[1:]) >= 128),
        ("depth 3 or more", lambda x: x.depth >= 3),
        ("odd depth", lambda x: x.depth % 2 == 1),
        ("goals of two atoms or more", lambda x: len(x.goal) >= 2),
        ("goals of one atom", lambda x: len(x.goal) == 1),
        ("three matches or more", lambda x: x.num_matches >= 3),
        ("position 10 or later at depth 2 or more", lambda x: x.position >= 10 and x.depth >= 2),
        ("positions 16 to 300", lambda x: 16 <= x.position <= 300),
        ("a free first argument", lambda x: x.goal[0][1] < 0),
        ("a free second argument", lambda x: x.goal[0][2] < 0),
    ),
    Fault("rules: the second of a predicate and later", "rule", lambda x: x.position >= 1),
    Fault("rules: two body atoms or more", "rule", lambda x: len(x.body) >= 2),
    Fault("rules: one body atom", "rule", lambda x: len(x.body) == 1),
    Fault("rules: recursive", "rule", lambda x: any(b[0] == x.head[0] for b in x.body)),
    Fault("rules: depth 2 or more", "rule", lambda x: x.depth >= 2),
    Fault("rules: depth 3", "rule", lambda x: x.depth == 3),
    Fault("rules: goals of three atoms or more", "rule", lambda x: len(x.goal) >= 3),
    Fault("rules: the last match", "rule", lambda x: x.match == x.num_matches - 1 and x.num_matches > 1),
    Fault("resolve: rules swap arguments", "resolve", lambda x: bool(x.body)),
    Fault("resolve: depth 2 or more", "resolve", lambda x: x.depth >= 2),
    Fault("resolve: three atoms", "resolve", lambda x: len(x.atoms) == 3),
    Fault("resolve: the second match and later", "resolve", lambda x: x.match >= 1),
    Fault("prune: two atoms or more before", "prune", lambda old, new, depth: len(old) >= 2),
    Fault("prune: two facts", "prune", lambda old, new, depth: len(old) - len(new) >= 2),
    Fault("prune: depth 2 or more", "prune", lambda old, new, depth: depth >= 2),
    Fault("revisit: depth 2 or more", "revisit", lambda atoms, depth: depth >= 2),
    Fault("revisit: two atoms or more", "revisit", lambda atoms, depth: len(atoms) >= 2),
    Fault("limit: max_atoms atoms", "limit", lambda atoms, i, limits: len(atoms) == limits.max_atoms),
    Fault("limit: index 3 and later", "limit", lambda atoms, i, limits: i >= 3),
    Fault("limit: odd indices", "limit", lambda atoms, i, limits: i % 2 == 1),
    Fault("limit: the last place of max_resolvents", "limit", lambda atoms, i, limits: i == limits.max_resolvents - 1),
    Fault("score: two atoms or more", "score", lambda goal, atoms, depth, s: len(atoms) >= 2),
    Fault("score: no variables", "score", lambda goal, atoms, depth, s: not _num_variables(atoms)),
    Fault("score: two variables or more", "score", lambda goal, atoms, depth, s: _num_variables(atoms) >= 2),
    Fault("score: depth 2 or more", "score", lambda goal, atoms, depth, s: depth >= 2),
    Fault("finish: one step too early", "finish", lambda kind, d, limits: kind is GOAL and d == limits.max_depth - 2),
    Fault("finish: proofs at depth 2 or more", "finish", lambda kind, d, limits: kind is TRUE and d >= 2),
    Fault("finish: dead ends", "finish", lambda kind, d, limits: kind is GoalKind.FALSE),
    Fault("candidates: number 64 or later", "candidate", lambda c, i, num: i >= 64),
    Fault("candidates: odd numbers", "candidate", lambda c, i, num: i % 2 == 1),
    Fault("candidates: the last of each 16", "candidate", lambda c, i, num: i % 16 == 15),
    Fault("candidates: the tail side", "candidate", lambda c, i, num: c.side[i] == 1),
    Fault("candidates: first argument 50 or more", "candidate", lambda c, i, num: c.atom[i][1] >= 50),
)


# The score


SMALL: Final = Limits(max_depth=6, max_atoms=3, max_resolvents=8)
TIGHT: Final = Limits(max_depth=5, max_atoms=3, max_resolvents=4)
ARENAS: Final = (
    ("countries", Limits(), "shortest", 8, 12, 16),
    ("random:1", TIGHT, "shortest", 10, 8, 5),
    ("random:4", TIGHT, "shortest", 10, 8, 5),
    ("family", TIGHT, "shortest", 8, 6, 16),
)
"""Graph, limits, policy, queries, corruptions and slots, in the order in which a fault of the catalogue is tried."""

INEXPRESSIBLE: Final = {
    "stale-resolvents": "the step before decides, and its resolvents are not a feature",
    "bf16-scores": "the bits of a score before rounding, beside its tolerance",
    "tf32-scores": "needs weights",
    "stale-weights": "every score is wrong",
    "last-argmax": "every step is wrong that has a tie",
    "visited-leak": "what the slot before has visited by then, which rests on the order of the work within a step",
    "stale-excluded-atom": "the first candidate of the slot",
    "clamped-results": "when a slot becomes idle",
    "overwritten-output": "what the slot before does at the same time",
    "idle-slots": "the remainder of candidates by slots: one or two candidates",
    "chunk-boundary-doubled": "a candidate that only one side has",
    "stream-per-chunk": "a draw, not a derivation",
    "known-triples": "a draw, not a derivation",
    "swapped-arguments": "a draw, not a derivation",
    "padding-ranked": "a draw, not a derivation",
    "no-push-down": "a ranking, not a derivation",
    "optimistic-ties": "a ranking, not a derivation",
}
"""The faults of the catalogue whose condition cannot be said in the features, and why."""

MOST_SECOND_RUNS: Final = 4
"""The second runs to make, each with other queries, until one shows the fault."""

EXACT, NEARLY, WRONG, NONE, SILENT = "exact", "0.95", "wrong", "none", "does nothing"
PARTS: Final = ("catalogue", "further", "alone")


class Score(msgspec.Struct, kw_only=True):
    """The result of one trial.

    result:      of the first cause: exact, 0.95, wrong, none; of all causes: wrong if any condition is
    experiments: the verdicts of the experiments
    """

    name: str
    result: str
    graph: str = ""
    experiments: list[str] = []


@contextmanager
def _recording(*, tests: bool) -> Iterator[tuple[list[Found], list[Cases]]]:
    """Record what the search finds, and among which instances. tests: whether experiments are made."""
    found: list[Found] = []
    cases: list[Cases] = []
    originals = describe.find_condition, describe.show, describe.confirm

    def find(stage: str, kind: Any, every: Any, own: Any = ()) -> Any:
        listed = list(every)
        cases.extend(listed)
        return originals[0](stage, kind, listed, own)

    def show(stage: str, best: Found, experiment: Any = None) -> Any:
        if experiment is None or experiment.verdict != "refuted":
            found.append(best)
        return originals[1](stage, best, experiment)

    describe.find_condition, describe.show = find, show
    if not tests:
        describe.confirm = lambda stage, best, *given: Tested(best)
    try:
        yield found, cases
    finally:
        describe.find_condition, describe.show, describe.confirm = originals


def _verify(run: Run, actual: Pipeline) -> Any:
    sides = reference_pipeline(run), actual
    return verify(run, *sides, equality=Equality(determinism=False, minimum={})).report


def judge(found: Found, cases: Sequence[Cases]) -> str | None:
    """Return how a condition does in a second run; None if nothing there can be compared with it."""
    shares = []
    for each in cases:
        wrong = np.array([instance.is_wrong for instance in each.instances])
        if (each.unit, each.wrong) != (found.cases.unit, found.cases.wrong) or not wrong.any():
            continue
        values = np.zeros((len(wrong), len(found.table.features)))
        for i in found.condition.used:
            values[:, i] = [found.table.features[i].value(instance) for instance in each.instances]
        # A value that is None becomes NaN.
        if np.isnan(values).any():
            continue
        inside = found.condition.holds(values)
        both = int((inside & wrong).sum())
        shares.append(both / max(1, int(inside.sum()), int(wrong.sum())))
    best = max(shares, default=None)
    return best if best is None else EXACT if best == 1 else NEARLY if best >= 0.95 else WRONG


def _score(name: str, graph: str, makes: Any) -> tuple[Score, list[Cases]]:
    """Run twice, and judge the conditions of the first run by the second one, which shows the fault as well."""
    with _recording(tests=True) as (found, _):
        report = makes(0)
    if not report.causes:
        return Score(name=name, result=SILENT, graph=graph), []
    shown: list[Cases] = []
    for seed in range(1, MOST_SECOND_RUNS + 1):
        with _recording(tests=False) as (_, cases):
            makes(seed)
        shown = [each for each in cases if any(instance.is_wrong for instance in each.instances)]
        if shown:
            break
    verdicts = [judge(each, shown) for each in found if each.condition.tests and not each.is_partial]
    stated = [verdict for verdict in verdicts if verdict is not None]
    result = WRONG if WRONG in stated else EXACT if EXACT in stated else NEARLY if NEARLY in stated else NONE
    return Score(
        name=name,
        result=result,
        graph=graph,
        experiments=[each.when.experiment.verdict for each in report.causes if each.when and each.when.experiment],
    ), shown


def _try_each(name: str, makes: Iterable[tuple[str, Callable[[int], Any]]]) -> Score:
    """Return the first score whose second run shows the fault; else the first in which it does anything, or any."""
    scores = []
    for graph, make in makes:
        score, shown = _score(name, graph, make)
        if shown:
            return score
        scores.append(score)
    return next((score for score in scores if score.result != SILENT), scores[0])


def try_catalogued(name: str) -> Score:
    """Plant a fault of the catalogue in the compiled evaluator, in the first arena in which both runs show it."""

    def list_arenas() -> Iterator[tuple[str, Callable[[int], Any]]]:
        for graph, limits, policy, queries, corruptions, slots in ARENAS:
            loaded = load_graph(graph)
            chosen = SHORTEST if policy == "shortest" else load_policy(policy, loaded, limits, 0)

            def make(seed: int, loaded=loaded, limits=limits, chosen=chosen, q=queries, c=corruptions, s=slots) -> Any:
                run = Run(loaded, limits, chosen, num_queries=q + 4 * seed, num_corruptions=c, seed=seed)
                return _verify(
                    run, make_for(run, make_entry(COMPILED, faults=[name], mode="eager", device="cpu", slots=s))
                )

            yield graph, make

    return _try_each(name, list_arenas())


def _verify_in_python(run: Run, fault: Fault | None) -> Any:
    engine = FaultyEngine(run.graph.program, run.limits, run.policy, fault)
    return _verify(run, Pipeline(engine, draw_candidates, rank_candidates))


def try_further(i: int) -> Score:
    """Plant a further fault in the plain evaluator, in the first graph in which both runs show it."""
    fault = FURTHER_FAULTS[i]

    def make(seed: int, graph: str) -> Any:
        run = Run(load_graph(graph), SMALL, SHORTEST, num_queries=5 + 3 * seed, num_corruptions=10, seed=seed)
        return _verify_in_python(run, fault)

    graphs = ("countries", "random:1", "random:4", "family")
    return _try_each(fault.name, ((graph, partial(make, graph=graph)) for graph in graphs))


def try_alone(i: int) -> Score:
    """Try an engine without a fault, for even numbers, or one that errs at random in 1 % of cases."""
    hooks = ("fact", "rule", "resolve", "candidate", "score")
    hook = hooks[i // 2 % len(hooks)]

    def holds(*given: Any) -> bool:
        if hook in ("fact", "rule", "resolve"):
            at = given[0]
            given = (at.goal, at.head, at.body, at.depth, at.situation.visited[0])
        elif hook == "candidate":
            given = given[1:]
        return zlib.crc32(repr((i, given)).encode()) % 100 == 0

    fault = Fault(f"random {hook} {i}", hook, holds) if i % 2 else None
    loaded = load_graph(("countries", "random:1", "random:4")[i % 3])
    run = Run(loaded, SMALL, SHORTEST, num_queries=8, num_corruptions=10, seed=i)
    with _recording(tests=True) as (found, _):
        report = _verify_in_python(run, fault)
    stated = [each for each in found if each.is_exact and each.condition.tests]
    name = fault.name if fault else f"sound {i}"
    result = SILENT if not report.causes else EXACT if stated else NONE
    return Score(name=name, result=result, graph=loaded.name)


def list_figures(scores: dict[str, list[Score]]) -> Iterator[Figure]:
    """Yield the figures of the parts that were tried."""
    for key, title, exact, nearly in (
        ("catalogue", "faults of the catalogue", 0.8, 0.95),
        ("further", "60 further faults", 0.7, 0.9),
    ):
        every = [each for each in scores[key] if each.result != SILENT and each.name not in INEXPRESSIBLE]
        said = [sum(each.result in wanted for each in every) for wanted in ((EXACT,), (EXACT, NEARLY))]
        num_right = sum(each.result != WRONG for each in scores[key])
        yield Figure(f"{title}: condition exact in a second run", said[0], len(every), exact)
        yield Figure(f"{title}: precision and recall of 0.95 there", said[1], len(every), nearly)
        yield Figure(f"{title}: not wrong there", num_right, len(scores[key]), 1.0)
    num_none = sum(each.result != EXACT for each in scores["alone"])
    yield Figure("no fault, or 1 % at random: no exact condition", num_none, len(scores["alone"]), 1.0)
    tested = [verdict for key in ("catalogue", "further") for each in scores[key] for verdict in each.experiments]
    tested = [verdict for verdict in tested if verdict != "not testable"]
    yield Figure("confirmed by experiment, where one exists", tested.count("confirmed"), len(tested), 0.9)


def run_conditions(words: list[str]) -> int:
    """Score the conditions of causes: of the catalogue, sixty further faults, random faults, and none.

        python -m benchmarks conditions --jobs 2 --log conditions.jsonl

    A later call with the same file resumes. The truth is the behaviour of both engines in a second run, with other
    queries, which the search has not seen: a stated condition must hold there for everything that goes wrong and for
    nothing else. The exit code is 0 if every figure meets its target.
    """
    parser = make_parser(run_conditions)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; all if not given")
    parser.add_argument("--alone", type=int, default=40, help="runs without a fault, or with one that acts at random")
    parser.add_argument("--log", type=Path, help="a file of finished trials, from which a later run resumes")
    given = parser.parse_args(words)
    tasks: dict[str, list[Task]] = {
        "further": [(f"further {fault.name}", try_further, (i,)) for i, fault in enumerate(FURTHER_FAULTS)],
        "alone": [(f"alone {i}", try_alone, (i,)) for i in range(given.alone)],
        "catalogue": [
            (f"catalogue {name}", try_catalogued, (name,)) for name, fault in CATALOGUE.items() if fault.dialect == OURS
        ],
    }
    scores: dict[str, list[Score]] = {key: [] for key in PARTS}
    for key in given.only or PARTS:
        scores[key] = list(run_tasks(tasks[key], Score, given.jobs, given.log))
    print_header("part", "fault", "graph", "condition in a second run", "experiments")
    for key, of_part in scores.items():
        for score in of_part:
            print_row(key, score.name, score.graph, score.result, ", ".join(score.experiments))
    return print_figures(figure for figure in list_figures(scores) if figure.of)
