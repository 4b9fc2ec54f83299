"""The trials of the scoreboard, run in parallel; an interrupted run resumes from its log."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, as_completed
from pathlib import Path
from typing import Final

import msgspec

from kgverify.progress import Progress, no_progress
from kgverify.prover.faults.plant import FAULTS
from kgverify.runs.ledger import Ledger
from kgverify.runs.pool import Processes

from .arenas import Arena, Pair, Stand, Trial, arenas_of, sound_arenas

SOUND_BATCH: Final = 10
"""Sound configurations of one task."""


class Scores(msgspec.Struct, kw_only=True):
    """The results that the scoreboard is computed from: trials with one fault, trials without, and pairs."""

    trials: list[Trial] = []
    sound: list[Trial] = []
    pairs: list[Pair] = []


class _Identity(msgspec.Struct):
    """The first line of a log, which identifies it."""

    content: str = "scoreboard"


class _Entry(msgspec.Struct, kw_only=True):
    """A finished task in the log."""

    task: str
    scores: Scores


Task = tuple[str, Callable[..., Scores], tuple[object, ...]]
"""A name that identifies the task, the function and its arguments."""


def run_scoreboard(
    graphs: Sequence[str],
    faults: Sequence[str] = tuple(FAULTS),
    *,
    num_sound: int = 200,
    num_pairs: int = 50,
    seed: int = 0,
    jobs: int = 1,
    log: Path | None = None,
    progress: Progress = no_progress,
) -> Scores:
    """Try the faults in the arenas of the graphs, the unchanged evaluator in `num_sound` configurations, and pairs of faults.

    log:      a file of finished tasks, one on each line; those found there are not run again
    progress: called after each trial

    UserError for a graph that is not found, or a log that cannot be used.
    """
    ledger = Ledger(log, _Identity(), _Entry, title="log of a scoreboard") if log else None
    done = {entry.task: entry.scores for entry in ledger.records} if ledger else {}
    with Processes(jobs) as executor:
        arenas = [arena for graph in graphs for arena in arenas_of(graph)]
        tasks: list[Task] = [(f"trials {arena} {faults}", try_faults, (arena, tuple(faults))) for arena in arenas]
        every = list(sound_arenas(graphs, num_sound, seed))
        for i in range(0, len(every), SOUND_BATCH):
            batch = tuple(every[i : i + SOUND_BATCH])
            tasks.append((f"sound {batch}", try_sound, (batch,)))
        _run_tasks(executor, tasks, done, ledger, progress)
        trials = [trial for name, *_ in tasks for trial in done[name].trials]
        pairs = [
            (f"pairs {arena} {drawn}", try_pairs, (arena, tuple(drawn)))
            for arena, drawn in _draw_pairs(arenas, trials, num_pairs, seed)
        ]
        _run_tasks(executor, pairs, done, ledger, progress)
    parts = [done[name] for name, *_ in (*tasks, *pairs)]
    return Scores(
        trials=trials,
        sound=[trial for part in parts for trial in part.sound],
        pairs=[pair for part in parts for pair in part.pairs],
    )


def num_trials(graphs: Sequence[str], faults: Sequence[str], num_sound: int, num_pairs: int) -> int:
    """Return the number of trials of `run_scoreboard`."""
    return len(graphs) * len(arenas_of("")) * len(faults) + num_sound + num_pairs


def try_faults(arena: Arena, faults: Sequence[str]) -> Scores:
    """Try each fault in an arena."""
    stand = Stand(arena)
    return Scores(trials=[stand.try_faults([fault]) for fault in faults])


def try_sound(arenas: Sequence[Arena]) -> Scores:
    """Try the unchanged evaluator in each arena."""
    return Scores(sound=[Stand(arena).try_faults([]) for arena in arenas])


def try_pairs(arena: Arena, pairs: Sequence[tuple[str, str]]) -> Scores:
    """Try each pair of faults in an arena."""
    stand = Stand(arena)
    return Scores(pairs=[stand.try_pair(pair) for pair in pairs])


def _draw_pairs(
    arenas: Sequence[Arena], trials: Sequence[Trial], num: int, seed: int
) -> list[tuple[Arena, list[tuple[str, str]]]]:
    """Draw pairs of faults that manifest in one arena, spread evenly over the arenas."""
    rng = random.Random(seed)
    drawn = []
    for i, arena in enumerate(arenas):
        names = [
            trial.faults[0]
            for trial in trials
            if trial.is_manifest and (trial.graph, trial.arena) == (arena.graph, arena.name)
        ]
        share = num // len(arenas) + (i < num % len(arenas))
        if share and len(names) > 1:
            pairs = [rng.sample(names, 2) for _ in range(share)]
            drawn.append((arena, [(first, second) for first, second in pairs]))
    return drawn


def _run_tasks(
    executor: Executor,
    tasks: Sequence[Task],
    done: dict[str, Scores],
    ledger: Ledger[_Entry] | None,
    progress: Progress,
) -> None:
    def advance(scores: Scores) -> None:
        progress(len(scores.trials) + len(scores.sound) + len(scores.pairs))

    futures: dict[Future[Scores], str] = {}
    for name, function, arguments in tasks:
        if name in done:
            advance(done[name])
        else:
            futures[executor.submit(function, *arguments)] = name
    try:
        for future in as_completed(futures):
            done[futures[future]] = future.result()
            advance(future.result())
            if ledger:
                ledger.add(_Entry(task=futures[future], scores=future.result()))
    except BaseException:
        for future in futures:
            future.cancel()
        raise
