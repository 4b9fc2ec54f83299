"""The trials of mutants: one process collects the tests and generates problems, and forks for each test and mutant."""

import contextlib
import gc
import io
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from mutant import ROOT, Mutant
from mutant_coverage import PASSED, Coverage, RecordedTest, read_runs
from mutant_judges import NUM_PROBLEMS, NamedRound, make_rounds
from mutant_pool import Task, run_tasks
from mutant_trial import KILLED, Result, TimedJudge, record_judge, status_of, try_mutant
from mutant_warm import warm_up

LEAST_LIKELY: Final = 0.002
"""The likelihood that a test notices a mutant whose statement it executes, where none that it killed says more."""
TIMES_OWN: Final = 10
"""The factor of that likelihood for rounds, and for tests of the mutant's own package."""
TIMES_NAMED: Final = 100
"""The factor of that likelihood for tests in a file that is named for the mutant's module."""
LONGEST_TEST: Final = 120.0
"""CPU seconds after which a test ends, and judges nothing, when its lines are recorded: tracing makes it slower."""
SHORTEST: Final = 0.02
"""Seconds that a test takes at least."""

TIERS: Final = {"default": "not deep and not exhaustive", "deep": "not exhaustive"}
"""The markers of the tests that judge."""

Judge = pytest.Item | NamedRound
OnResult = Callable[[Result], None]
"""Called with each result."""


@dataclass(frozen=True)
class Plan:
    """The options of a run.

    jobs:         processes at a time
    tier:         a name of `TIERS`
    tests:        the files and folders of the tests that judge, below `tests`; all of them if empty
    coverage:     the file of recorded lines
    num_problems: generated problems for each mutant of a prover; 0 where tests alone are to judge
    test_seconds: the CPU seconds of a mutant after which no further test begins
    earlier:      results of other mutants, which say what each test is likely to notice
    deadline:     nothing begins after this time (`time.monotonic`)
    """

    jobs: int
    tier: str = "default"
    tests: Sequence[str] = ()
    coverage: Path = Path("mutants-coverage.jsonl")
    num_problems: int = NUM_PROBLEMS
    test_seconds: float = 60.0
    earlier: Sequence[Result] = ()
    deadline: float = float("inf")


def read_results(path: Path) -> dict[str, Result]:
    """Read results by the digests of their mutants, ignoring an incomplete last line."""
    results = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(msgspec.DecodeError):
            result = msgspec.json.decode(line, type=Result)
            results[result.digest] = result
    return results


def run_mutants(mutants: dict[str, list[Mutant]], plan: Plan, on_result: OnResult, note: Callable[[str], None]) -> None:
    """Try the mutants of some parts, `plan.jobs` at a time; first record the lines of tests and rounds that were not recorded.

    RuntimeError if no test passes.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch reads it
    # Kernels are judged in Triton's interpreter, whatever device there is.
    os.environ["TRITON_INTERPRET"], os.environ["CUDA_VISIBLE_DEVICES"] = "1", ""
    import torch
    from hypothesis import HealthCheck, Phase, settings

    torch.set_num_threads(1)
    settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutants")
    plugin = _Trials(mutants, plan, on_result, note)
    arguments = [f"--rootdir={ROOT}", "-o", "addopts=", "-p", "pytester", "-m", TIERS[plan.tier], "-s"]
    arguments += ["-p", "no:cacheprovider", "-p", "no:benchmark", f"--ignore={ROOT / 'tests/mutants'}"]
    arguments += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    tests = [str(ROOT / "tests" / path) for path in plan.tests or [""]]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main([*arguments, *tests], plugins=[plugin])
    if plugin.failure or not plugin.has_run or code == pytest.ExitCode.INTERNAL_ERROR:
        raise RuntimeError(plugin.failure or f"the tests could not be run:\n{output.getvalue()}")


class _Trials:
    """A plugin that replaces pytest's loop over the tests."""

    def __init__(
        self, mutants: dict[str, list[Mutant]], plan: Plan, on_result: OnResult, note: Callable[[str], None]
    ) -> None:
        self.mutants, self.plan, self.on_result, self.note = mutants, plan, on_result, note
        self.failure = ""
        self.has_run = False

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.note(f"not collected, and judges nothing: {report.nodeid}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.has_run = True
        warm_up()
        gc.collect()
        gc.freeze()
        tests: dict[str, Judge] = {item.nodeid: item for item in session.items}
        rounds = {part: make_rounds(part, self.plan.num_problems) for part, mutants in self.mutants.items() if mutants}
        every = tests | {each.name: each for listed in rounds.values() for each in listed}
        runs = _record(every, self.plan, self.note)
        if not any(name in runs and runs[name].status == PASSED for name in every):
            self.failure = "no test was recorded"
            return True
        waiting: list[tuple[Mutant, _Judging]] = []
        for part, listed in rounds.items():
            judges = tests | {each.name: each for each in listed}
            coverage = Coverage(runs[name] for name in judges if name in runs)
            judging = _Judging(part, judges, coverage, self.plan, self.on_result)
            waiting += [(mutant, judging) for mutant in self.mutants[part]]
        # The parts take turns, so that a run which is ended early has tried a sample of each.
        waiting.sort(key=lambda each: each[0].digest)
        run_tasks((judging.task(mutant) for mutant, judging in waiting), self.plan.jobs, self.plan.deadline)
        return True


def _record(judges: dict[str, Judge], plan: Plan, note: Callable[[str], None]) -> dict[str, RecordedTest]:
    """Return the runs of judges, after those that are not in the file were run and added."""
    runs = read_runs(plan.coverage)
    left = [name for name in judges if name not in runs]
    num_done = 0

    def end(name: str, answer: Any, code: int | None, seconds: float) -> None:
        nonlocal num_done
        num_done += 1
        status, lines = answer or (f"ended with {code}", {})
        run = RecordedTest(test=name, status=status, seconds=round(seconds, 3), lines=lines)
        runs[run.test] = run
        with plan.coverage.open("ab") as file:
            file.write(msgspec.json.encode(run) + b"\n")
        if num_done % 100 == 0 or num_done == len(left):
            note(f"recorded {num_done}/{len(left)} tests")

    def task(name: str) -> Task:
        return Task(
            lambda folder, answer: record_judge(judges[name], LONGEST_TEST, folder, answer),
            lambda answer, code, seconds: end(name, answer, code, seconds),
        )

    run_tasks(map(task, left), plan.jobs, plan.deadline)
    found = {name: runs[name].status for name in judges if name in runs}
    note(
        "tests: "
        + ", ".join(f"{num} {status}" for status, num in Counter(each[:15] for each in found.values()).items())
    )
    for name, status in found.items():
        if status not in (PASSED, "passed, skipped"):
            note(f"{status}, and judges nothing: {name}")
    return runs


def is_named_for(test: str, path: str) -> bool:
    """Return whether the file of a test has a word in its name that a module has in its own."""
    words = (word[:6] for word in Path(path).stem.split("_") if len(word) > 3)
    name = Path(test.partition("::")[0]).stem
    return any(word in name for word in words)


class _Judging:
    """The trials of the mutants of one part. Tests that killed other mutants of a function are tried first."""

    def __init__(
        self,
        part: str,
        judges: dict[str, Judge],
        coverage: Coverage,
        plan: Plan,
        on_result: OnResult,
    ) -> None:
        self._part, self._judges, self._coverage = part, judges, coverage
        self._plan, self._on_result = plan, on_result
        self._killers: dict[tuple[str, ...], Counter[str]] = {}
        for result in plan.earlier:
            if result.part == part and result.status == KILLED:
                path, function, _ = result.mutant.split(" ", 2)
                self._learn(path, function.removesuffix(":"), result.judge)

    def task(self, mutant: Mutant) -> Task:
        """Return the trial of a mutant; what earlier trials found chooses the order of its tests."""
        covering = self._coverage.tests_of(mutant)
        return self._task(mutant, self.order(mutant, covering), len(covering))

    def _learn(self, path: str, function: str, judge: str) -> None:
        """Count a test that killed a mutant."""
        if judge not in self._judges:
            judge = judge.rpartition(": ")[0]  # without the error
        if judge in self._judges:
            for name in ((path, function), (path,), ()):
                self._killers.setdefault(name, Counter())[judge] += 1

    def order(self, mutant: Mutant, covering: Sequence[str]) -> list[TimedJudge]:
        """Return the judges to try, those first that are likeliest to notice the mutant for their time.

        What is likely follows from the mutants of the function, of the file and of the part that each test killed.
        """
        seconds = self._coverage.seconds
        names = (mutant.path, mutant.function), (mutant.path,), ()
        known = [(kills, kills.total() + 4) for name in names if (kills := self._killers.get(name))]
        own = f"tests/{mutant.path.removeprefix('kgverify/').partition('/')[0]}/"

        def cost(test: str) -> tuple[float, str]:
            likelihood = sum(kills[test] / num for kills, num in known)
            is_own = isinstance(self._judges[test], NamedRound) or test.startswith(own)
            likelihood += LEAST_LIKELY * (
                TIMES_NAMED if is_named_for(test, mutant.path) else TIMES_OWN if is_own else 1
            )
            return max(seconds[test], SHORTEST) / likelihood, test

        return [TimedJudge(self._judges[test], seconds[test]) for test in sorted(covering, key=cost)]

    def _task(self, mutant: Mutant, tests: list[TimedJudge], num_covering: int) -> Task:
        def end(answer: Any, code: int | None, seconds: float) -> None:
            status, judge, num_tried = status_of(answer, code)
            self._learn(mutant.path, mutant.function, judge)
            self._on_result(
                Result(
                    digest=mutant.digest,
                    mutant=str(mutant),
                    part=self._part,
                    line=mutant.lines[0],
                    status=status,
                    judge=judge,
                    seconds=round(seconds, 2),
                    num_covering=num_covering,
                    num_tried=num_tried,
                )
            )

        return Task(lambda folder, answer: try_mutant(mutant, tests, self._plan.test_seconds, folder, answer), end)
