"""Score the conditions of causes: on the catalogue, on sixty further faults, on pairs, without a fault, and on random ones.

    python -m benchmarks.scoreboard.conditions --jobs 2 --save condition-trials

A later call with the same folder resumes. The truth is the behaviour of both engines in a second run, with other queries,
which the search has not seen: a stated condition must hold there for everything that goes wrong and for nothing else. A pair
of faults counts if each of them changes a step that the other one leaves right, which the engines themselves show, and if no
condition of at most two comparisons says the same as both together, which a sample shows that the search has not seen. The
table goes to standard output, with the pairs that nobody can tell apart; the exit code is 0 if every figure meets its target.
"""

import argparse
import random
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from kgverify.comparison.equality import Equality
from kgverify.conditions import describe
from kgverify.conditions.confirm import Tested
from kgverify.conditions.features import read_features
from kgverify.conditions.find import Found
from kgverify.conditions.instances import Cases
from kgverify.engines.policy import SHORTEST
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.prover.faults.plant import FAULTS as CATALOGUE
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Pipeline, Run, load_policy, reference_pipeline
from kgverify.verification.verify import verify

from .alike_pairs import why_alike
from .condition_pairs import count_own
from .further_faults import FAULTS, Fault, Prover

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
MASKED: Final = "masked"
"""The result of a pair of faults of which one changes nothing that the other one leaves right: it proves nothing."""


PARTS: Final = ("catalogue", "further", "alone", "pairs", "lockstep")
"""The parts of the score; lockstep has pairs again."""


class Score(msgspec.Struct, kw_only=True):
    """The result of one trial.

    results:    of the first cause: exact, 0.95, wrong, none; of all causes: wrong if any condition is
    experiments: the verdicts of the experiments
    seconds:    CPU time that the conditions took
    alike:      why nobody can tell the two faults of a pair apart; empty if that is possible
    """

    name: str
    result: str
    graph: str = ""
    sentences: list[str] = []
    experiments: list[str] = []
    seconds: float = 0.0
    alike: str = ""


class Table(msgspec.Struct, kw_only=True):
    """Instances of a second run: columns by feature."""

    unit: str
    wrong: str
    columns: dict[str, list[float]]
    is_wrong: list[bool]


@contextmanager
def _recording(*, tests: bool) -> Iterator[tuple[list[Found], list[Cases]]]:
    """Record what the search finds, and among which instances. tests: whether experiments are made."""
    found: list[Found] = []
    cases: list[Cases] = []
    originals = describe.find_condition, describe.show, describe.confirm

    def find(stage: str, every: Any, own: Any = ()) -> Any:
        listed = list(every)
        cases.extend(listed)
        return originals[0](stage, listed, own)

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


def _verify(run: Run, actual: Pipeline, *, lockstep: bool = False) -> Any:
    sides = reference_pipeline(run), actual
    return verify(run, *sides, equality=Equality(lockstep=lockstep, determinism=False, minimum={})).report


def _tables(cases: Sequence[Cases]) -> list[Table]:
    tables = []
    for each in cases:
        if not any(i.is_wrong for i in each.instances):
            continue
        columns: dict[str, list[float]] = {}
        for feature in read_features():
            if each.unit in feature.of:
                values = [feature.value(i) for i in each.instances]
                if all(v is not None and v == v for v in values):
                    columns[feature.name] = [float(v) for v in values]  # type: ignore[arg-type]
        tables.append(
            Table(
                unit=each.unit.value, wrong=each.wrong, columns=columns, is_wrong=[i.is_wrong for i in each.instances]
            )
        )
    return tables


def judge(found: Found, tables: Sequence[Table]) -> str | None:
    """Return how a condition does in a second run; None if nothing there can be compared with it."""
    best = None
    for table in tables:
        if (table.unit, table.wrong) != (found.cases.unit.value, found.cases.wrong):
            continue
        used = found.condition.used
        names = [feature.name for feature in found.table.features]
        if any(names[i] not in table.columns for i in used):
            continue
        values = np.zeros((len(table.is_wrong), len(names)))
        for i in used:
            values[:, i] = table.columns[names[i]]
        inside, wrong = found.condition.holds(values), np.array(table.is_wrong)
        both = int((inside & wrong).sum())
        precision, recall = both / max(1, int(inside.sum())), both / max(1, int(wrong.sum()))
        share = min(precision, recall)
        best = share if best is None else max(best, share)
    if best is None:
        return None
    return EXACT if best == 1 else NEARLY if best >= 0.95 else WRONG


def _score(name: str, graph: str, makes: Any) -> tuple[Score, list[Table]]:
    """Run twice, and judge the conditions of the first run by the second one, which shows the fault as well."""
    began = time.process_time()
    with _recording(tests=True) as (found, _):
        report = makes(0)
    if not report.causes:
        return Score(name=name, result=SILENT, graph=graph), []
    tables: list[Table] = []
    for seed in range(1, MOST_SECOND_RUNS + 1):
        with _recording(tests=False) as (_, cases):
            makes(seed)
        if tables := _tables(cases):
            break
    verdicts = [judge(each, tables) for each in found if each.condition.tests and not each.is_partial]
    stated = [verdict for verdict in verdicts if verdict is not None]
    result = WRONG if WRONG in stated else EXACT if EXACT in stated else NEARLY if NEARLY in stated else NONE
    return Score(
        name=name,
        result=result,
        graph=graph,
        sentences=[f"{each.stage} {each.kind.value}: {each.condition}" for each in report.causes],
        experiments=[each.when.experiment.verdict for each in report.causes if each.when and each.when.experiment],
        seconds=time.process_time() - began,
    ), tables


def _first_judged(trials: Iterable[tuple[Score, list[Table]]]) -> tuple[Score, list[Table]]:
    """Return the first trial whose second run shows the fault; else the first in which it does anything, or any."""
    best: tuple[Score, list[Table]] | None = None
    for trial in trials:
        if trial[1]:
            return trial
        if best is None or best[0].result == SILENT:
            best = trial
    assert best is not None
    return best


def try_catalogued(name: str) -> tuple[Score, list[Table]]:
    """Plant a fault of the catalogue in the compiled evaluator, in the first arena in which both runs show it."""
    return _first_judged(_try_arenas(name))


def _try_arenas(name: str) -> Iterator[tuple[Score, list[Table]]]:
    for graph, limits, policy, queries, corruptions, slots in ARENAS:
        loaded = load_graph(graph)
        chosen = SHORTEST if policy == "shortest" else load_policy(policy, loaded, limits, 0)

        def make(seed: int, loaded=loaded, limits=limits, chosen=chosen, q=queries, c=corruptions, s=slots) -> Any:
            run = Run(loaded, limits, chosen, num_queries=q + 4 * seed, num_corruptions=c, seed=seed)
            return _verify(run, evaluator_pipeline(run, faults=[name], mode="eager", device="cpu", slots=s))

        yield _score(name, graph, make)


def _python_pipeline(run: Run, fault: Fault | None) -> Pipeline:
    engine = Prover(run.graph.program, run.limits, run.policy)
    engine.fault = fault
    return Pipeline(engine, draw_candidates, rank_candidates)


def try_further(fault: Fault) -> tuple[Score, list[Table]]:
    """Plant a further fault in the prover in Python, in the first graph in which both runs show it."""
    return _first_judged(_try_graphs(fault))


def _try_graphs(fault: Fault) -> Iterator[tuple[Score, list[Table]]]:
    for graph in ("countries", "random:1", "random:4", "family"):
        loaded = load_graph(graph)

        def make(seed: int, loaded=loaded) -> Any:
            run = Run(loaded, SMALL, SHORTEST, num_queries=5 + 3 * seed, num_corruptions=10, seed=seed)
            return _verify(run, _python_pipeline(run, fault))

        yield _score(fault.name, graph, make)


def _further(i: int) -> tuple[Score, list[Table]]:
    return try_further(FAULTS[i])


def _alone(i: int) -> tuple[Score, list[Table]]:
    """Try an engine without a fault, for even numbers, or one that errs at random in 1 % of cases."""
    hooks = ("fact", "rule", "resolve", "candidate", "score")
    hook = hooks[i // 2 % len(hooks)]

    def holds(*given: Any) -> bool:
        if hook in ("fact", "rule", "resolve"):
            given = (given[0].goal, given[0].clause, given[0].depth, given[0].engine.query)
        elif hook == "candidate":
            given = given[1:]
        return zlib.crc32(repr((i, given)).encode()) % 100 == 0

    fault = Fault(f"random {hook} {i}", hook, holds) if i % 2 else None
    loaded = load_graph(("countries", "random:1", "random:4")[i % 3])
    run = Run(loaded, SMALL, SHORTEST, num_queries=8, num_corruptions=10, seed=i)
    with _recording(tests=True) as (found, _):
        report = _verify(run, _python_pipeline(run, fault))
    stated = [each for each in found if each.is_exact and each.condition.tests]
    name = fault.name if fault else f"sound {i}"
    result = SILENT if not report.causes else EXACT if stated else NONE
    return Score(name=name, result=result, graph=loaded.name, sentences=[each.condition for each in report.causes]), []


def _pair(given: tuple[int, int, str, bool, Path]) -> tuple[Score, list[Table]]:
    """Plant two faults of one stage, and look for both conditions, each judged by the second run of its own fault."""
    i, j, graph, lockstep, folder = given
    first, second = FAULTS[i], FAULTS[j]
    both = Fault("both", first.hook, lambda *at: first.holds(*at) | second.holds(*at))
    name = f"{first.name} + {second.name}"
    run = Run(load_graph(graph), SMALL, SHORTEST, num_queries=8, num_corruptions=10, seed=0)
    if min(count_own(run, (first, second, both), lockstep=lockstep)) == 0:
        return Score(name=name, result=MASKED, graph=graph), []
    alike = why_alike(graph, SMALL, first, second)
    began = time.process_time()
    with _recording(tests=True) as (found, _):
        report = _verify(run, _python_pipeline(run, both), lockstep=lockstep)
    stated = [each for each in found if each.condition.tests]
    stated = [each._replace(condition=part) for each in stated for part in each.condition.parts]
    truths = [_read_trial(folder, "further", fault.name)[1] for fault in (first, second)]
    apart = [any(judge(each, tables) in (EXACT, NEARLY) for each in stated) for tables in truths]
    return Score(
        name=name,
        result=EXACT if all(apart) else NONE,
        graph=graph,
        alike=alike,
        sentences=[f"{each.stage} {each.kind.value}: {each.condition}" for each in report.causes],
        experiments=[each.when.experiment.verdict for each in report.causes if each.when and each.when.experiment],
        seconds=time.process_time() - began,
    ), []


class Trial(msgspec.Struct):
    """A finished trial: its score, and the instances of its second run."""

    score: Score
    tables: list[Table]


def _path(folder: Path, key: str, name: str) -> Path:
    return folder / f"{key}-{''.join(c if c.isalnum() else '_' for c in name)}.msgpack"


def _read_trial(folder: Path, key: str, name: str) -> tuple[Score, list[Table]]:
    trial = msgspec.msgpack.decode(_path(folder, key, name).read_bytes(), type=Trial)
    return trial.score, trial.tables


def _keep(task: tuple[Path, str, str, Callable[[Any], tuple[Score, list[Table]]], Any]) -> Score:
    """Return the score of a trial that the folder has, or make the trial and add it."""
    folder, key, name, make, given = task
    path = _path(folder, key, name)
    if not path.exists():
        trial = Trial(*make(given))
        partial_path = path.with_suffix(".partial")
        partial_path.write_bytes(msgspec.msgpack.encode(trial))
        partial_path.replace(path)
    return _read_trial(folder, key, name)[0]


def _share(num: int, of: int, target: float) -> tuple[str, bool]:
    return f"{num} of {of} ({100 * num / max(1, of):.0f} %)", of > 0 and num >= target * of


def figures(scores: dict[str, list[Score]]) -> list[tuple[str, str, str, bool]]:
    """Return each figure with its target, and whether it is met."""
    rows = []
    for key, title, exact, nearly in (
        ("catalogue", "faults of the catalogue", 0.8, 0.95),
        ("further", "60 further faults", 0.7, 0.9),
    ):
        every = [each for each in scores[key] if each.result != SILENT and each.name not in INEXPRESSIBLE]
        said = [sum(each.result in wanted for each in every) for wanted in ((EXACT,), (EXACT, NEARLY))]
        num_wrong = sum(each.result == WRONG for each in scores[key])
        rows.append((f"{title}: condition exact in a second run", *_with(said[0], len(every), exact)))
        rows.append((f"{title}: precision and recall of 0.95 there", *_with(said[1], len(every), nearly)))
        rows.append((f"{title}: wrong", f"{num_wrong}", "0", num_wrong == 0))
    none = [each for each in scores["alone"] if each.result == EXACT]
    num = len(scores["alone"])
    rows.append(("no fault, or 1 % at random: exact conditions", f"{len(none)} in {num} runs", "0", not none))
    tested = [verdict for key in ("catalogue", "further") for each in scores[key] for verdict in each.experiments]
    tested = [verdict for verdict in tested if verdict != "not testable"]
    rows.append(("confirmed by experiment, where one exists", *_with(tested.count("confirmed"), len(tested), 0.9)))
    for key, mode in (("pairs", "free-running"), ("lockstep", "lockstep")):
        drawn = [each for each in scores[key] if each.result != MASKED]
        counted = [each for each in drawn if not each.alike]
        title = f"pairs of faults in one stage told apart, {mode}"
        rows.append((title, *_with(sum(each.result == EXACT for each in counted), len(counted), 0.9)))
        left_out = f"{len(scores[key]) - len(drawn)} masked and {len(drawn) - len(counted)} alike"
        whole, _ = _share(sum(each.result == EXACT for each in drawn), len(drawn), 0.9)
        rows.append(
            (f"pairs left out of that, {mode}; told apart with those that are alike", f"{left_out}; {whole}", "", True)
        )
    return rows


def _with(num: int, of: int, target: float) -> tuple[str, str, bool]:
    text, is_met = _share(num, of, target)
    return text, f"{target:.0%}", is_met


def _draw_pairs(
    pool: ProcessPoolExecutor, folder: Path, scores: Sequence[Score], num: int, *, lockstep: bool
) -> Iterator[Score]:
    """Yield the scores of pairs, in a random order, until some number of them count."""
    usable = [i for i, score in enumerate(scores) if score.result == EXACT]
    choices = [
        (i, j)
        for i, j in combinations(usable, 2)
        if FAULTS[i].hook == FAULTS[j].hook and scores[i].graph == scores[j].graph
    ]
    random.Random(0).shuffle(choices)
    key = "lockstep" if lockstep else "pairs"
    while choices and num > 0:
        drawn, choices = choices[:num], choices[num:]
        tasks = [
            (folder, key, f"{FAULTS[i].name} + {FAULTS[j].name}", _pair, (i, j, scores[i].graph, lockstep, folder))
            for i, j in drawn
        ]
        for score in pool.map(_keep, tasks):
            num -= score.result != MASKED and not score.alike
            yield score


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoreboard.conditions", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; all if not given")
    parser.add_argument("--alone", type=int, default=40, help="runs without a fault, or with one that acts at random")
    parser.add_argument("--pairs", type=int, default=60, help="pairs of faults, in each mode")
    parser.add_argument("--save", type=Path, required=True, help="a folder for finished trials, from which it resumes")
    given = parser.parse_args()
    parts, folder = given.only or PARTS, given.save
    folder.mkdir(parents=True, exist_ok=True)
    scores: dict[str, list[Score]] = {key: [] for key in PARTS}
    with ProcessPoolExecutor(given.jobs) as pool:

        def run(key: str, results: Iterable[Score]) -> None:
            for score in results:
                scores[key].append(score)
                print(
                    f"{score.name} [{score.graph}] {score.result} {score.experiments} {score.seconds:.1f}s",
                    file=sys.stderr,
                )
                print("".join(f"    {text}\n" for text in score.sentences), file=sys.stderr, end="", flush=True)

        if {"further", "pairs", "lockstep"} & set(parts):
            tasks = [(folder, "further", fault.name, _further, i) for i, fault in enumerate(FAULTS)]
            run("further", pool.map(_keep, tasks))
        if "alone" in parts:
            run("alone", pool.map(_keep, [(folder, "alone", str(i), _alone, i) for i in range(given.alone)]))
        if "catalogue" in parts:
            run("catalogue", pool.map(_keep, [(folder, "catalogue", name, try_catalogued, name) for name in CATALOGUE]))
        for key in ("pairs", "lockstep"):
            if key in parts:
                run(key, _draw_pairs(pool, folder, scores["further"], given.pairs, lockstep=key == "lockstep"))
    print("| figure | measured | target |\n|---|---|---|")
    rows = figures(scores)
    for title, text, target, _ in rows:
        print(f"| {title} | {text} | {target} |")
    alike = {each.name: each.alike for key in ("pairs", "lockstep") for each in scores[key] if each.alike}
    print("".join(f"\n- {name}: {why}" for name, why in alike.items()))
    return 0 if all(is_met for *_, is_met in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
