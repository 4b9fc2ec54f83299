"""The two problems of each experiment that a report states go as it says, if both engines take their steps again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from columns import NO_NUMBERS, Recorded
from experiments import Problem, Take
from msgspec.structs import replace
from problem_text import BRANCHING, LOOPED
from sentences import Checker, check_saved
from test_sentences import HIDDEN

import kgverify as kv
from kgverify.engines.plain.engine import PlainEngine
from kgverify.engines.protocol import make_positions
from kgverify.step.plain_step import SOUND, Stages, match_facts
from kgverify.trace.model.columns import CandidateSet

pytestmark = pytest.mark.usefixtures("experiments")


def lose(place: int, *bound: bool) -> Callable[[Any, Any], list[int]]:
    """Return a stage that loses the first or the last fact if these arguments of the selected atom are constants."""

    def match(situation: Any, selected: Any) -> list[int]:
        found = [*match_facts(situation, selected)]
        if found and tuple(term >= 0 for term in selected[1:]) == bound:
            found.pop(place)
        return found

    return match


def forget_all_but_the_goal(situation: Any, resolvents: Any) -> Any:
    return [each for each in resolvents if not each.atoms or each.atoms != situation.goal]


FAULTS = {
    **{
        name: ("random:1", SOUND._replace(**stages))
        for name, stages in HIDDEN.items()
        if "atoms" in name or "not tried" in name or "sixteenths" in name
    },
    "the first of the facts by their second argument is lost": (
        BRANCHING,
        SOUND._replace(match_facts=lose(0, False, True)),
    ),
    "the last of all facts is lost": ("random:1", SOUND._replace(match_facts=lose(-1, False, False))),
    "a goal visited before is visited again": (LOOPED, SOUND._replace(revisit=forget_all_but_the_goal)),
}


class Both:
    """Both engines of a run that was verified: the sound one, and one with other stages that it does not show."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    def make(self, program: Any, limits: Any, policy: Any) -> PlainEngine:
        self.engines = [PlainEngine(program, limits, policy, stages=each) for each in (SOUND, self._stages)]
        self._facts = program.facts.tolist()
        judged = self.engines[1]
        judged.info = replace(judged.info, name="hidden", mode="")
        judged.probe = None
        return judged

    def take(self, trace: Recorded) -> Take:
        """Return a function that takes steps again, and returns them with the program of a trace."""

        def take(problems: list[Problem]) -> tuple[Recorded, Recorded]:
            num = len(problems)
            atoms = np.array([each.query for each in problems], np.int32)
            candidates = CandidateSet(np.zeros(num, np.int32), np.zeros(num, np.int8), atoms)
            depths = np.array([each.depth for each in problems])
            positions = make_positions(candidates, depths, [self._visit(each) for each in problems])
            sides = []
            for engine in self.engines:
                columns = engine.step(positions)._asdict()
                levels = {name: columns[name]._asdict() for name in ("candidates", "steps", "resolvents")}
                own = {f"{level}/{name}": column for level, named in levels.items() for name, column in named.items()}
                sides.append(Recorded(trace.header, trace.columns | own))
            return sides[0], sides[1]

        return take

    def _visit(self, problem: Problem) -> list[Any]:
        """Return the goals visited by a problem; a fact of its own stands for each that is not named."""
        others = [((p, a, -1),) for p, a, _ in self._facts]
        others = [goal for goal in others if goal not in problem.visited]
        return [problem.named.get(i) or others[-i] for i in range(1, len(problem.visited))] + [problem.goal]


def verify(fault: str, folder: Path) -> Take:
    graph, stages = FAULTS[fault]
    both = Both(stages)
    report = kv.verify(
        graph,
        both.make,
        queries=8,
        corruptions=3,
        limits=kv.Limits(max_depth=6, max_atoms=4),
        equality=kv.Equality(determinism=False, minimum={}),
        save=folder,
    )
    assert "confirmed" in {cause.when.experiment.verdict for cause in report.causes if cause.when.experiment}
    return both.take(Recorded.read(folder / "expected.h5"))


SLOW = ("long resolvents lack an atom", "scores in sixteenths", "the last of all facts is lost")


@pytest.mark.parametrize("fault", [pytest.param(each, marks=[pytest.mark.deep] * (each in SLOW)) for each in FAULTS])
def test_what_an_experiment_confirmed_goes_so_again(fault: str, tmp_path: Path):
    take = verify(fault, tmp_path / "run")
    found = check_saved(tmp_path / "run", take=take)
    assert found.contradicted == []
    assert not [each for each in found.not_checked if "an experiment" in each]


def test_problems_that_were_exchanged_are_contradicted(tmp_path: Path):
    take = verify("atoms that are facts stay", tmp_path / "run")
    report = json.loads((tmp_path / "run" / "report.json").read_text("utf-8"))
    when = report["causes"][0]["when"]
    wrong, right = when["experiment"]["pair"]
    when["experiment"]["pair"] = [right, wrong]
    when["sentence"] = when["sentence"].replace(
        f"wrong at {wrong}, and right at {right}", f"wrong at {right}, and right at {wrong}"
    )
    assert len(Checker.of(report, tmp_path / "run", NO_NUMBERS, take).check().contradicted) == 4
