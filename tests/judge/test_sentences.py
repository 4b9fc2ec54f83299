"""The columns of two traces contradict no sentence of their report: an independent checker evaluates each."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from columns import Numbers
from foreign_folder import FOLDER, needs_records
from msgspec.structs import replace
from problem_text import RINGS
from sentences import Checked, Checker, check_saved
from words import read_phrase

import kgverify as kv
from kgverify.engines.plain.engine import PlainEngine
from kgverify.ranking.draw import draw_candidates
from kgverify.step.plain_step import SOUND, match_facts, match_rules, resolve, score, score_shortest

TABLE = tomllib.loads(resources.files("kgverify.conditions").joinpath("features.toml").read_text("utf-8"))
CATALOGUE = tomllib.loads(resources.files("kgverify.prover.faults").joinpath("catalogue.toml").read_text("utf-8"))
FAULTS = [each["name"] for each in CATALOGUE["faults"] if "dialect" not in each]

NOT_CHECKED = {
    "needs a chain",
    "position in its chunk",
    "chunk",
    "slot was used before",
    "slot",
    "turn of its slot",
    "follows a proof",
    "follows any proof",
    "follows a failure",
    "follows max_depth",
    "follows its own query",
    "steps of its slot before",
    "step of its chunk at the end",
    "meets a proof",
    "meets an earlier goal",
    "is in a partial turn",
    "is a triple of {each}",
    "is a triple of any split",
    "total surplus",
    *(row["name"] for row in TABLE["features"] if {"expand", "aggregate"} & {*row.get("stages", ())}),
}
"""The features of searches, and others that the columns do not hold: the slots of a batch, the splits, and wrong rules."""

SWITCHES = ("key", "leak", "capture", "falsy", "body", "cap", "sort", "late", "depth", "names", "no_prune")
JAVASCRIPT = FOLDER.parent / "cases" / "strangers" / "engines"


def record(fault: str, folder: Path, *, is_tight: bool, lockstep: bool = False) -> Checked:
    """Verify the evaluator with a planted fault, and check what is saved."""
    limits = {"max_depth": 5, "max_atoms": 3, "max_resolvents": 4} if is_tight else {}
    graph, queries, corruptions = ("random:1", 10, 8) if is_tight else ("countries", 2, 20)
    kv.verify(
        graph,
        kv.Evaluator(mode="eager", device="cpu", faults=(fault,), slots=5 if is_tight else 16),
        queries=queries,
        corruptions=corruptions,
        limits=kv.Limits(**limits),
        equality=kv.Equality(determinism=False, minimum={}, lockstep=lockstep),
        save=folder / "run",
    )
    return check_saved(folder / "run")


@pytest.mark.sample(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_columns_contradict_nothing_said_of_a_planted_fault(fault: str, tmp_path: Path):
    found = record(fault, tmp_path, is_tight=True)
    assert found.contradicted == []
    assert found.num_confirmed > 50


def test_the_columns_contradict_nothing_said_in_lockstep(tmp_path: Path):
    assert record("rule-cap", tmp_path, is_tight=True, lockstep=True).contradicted == []


@pytest.mark.sample(0, deep=18)
@pytest.mark.usefixtures("experiments")
@pytest.mark.parametrize("fault", FAULTS)
def test_the_columns_contradict_nothing_that_experiments_confirm(fault: str, tmp_path: Path):
    assert record(fault, tmp_path, is_tight=False).contradicted == []


HIDDEN = {
    "atoms that are facts stay": {"prune": lambda situation, resolvents: list(resolvents)},
    "the first fact is not tried": {"match_facts": lambda situation, selected: match_facts(situation, selected)[1:]},
    "long resolvents lack an atom": {
        "resolve": lambda *given: [
            each._replace(atoms=each.atoms[:-1]) if len(each.atoms) > 2 else each for each in resolve(*given)
        ]
    },
    "each resolvent is listed twice": {"resolve": lambda *given: [each for each in resolve(*given) for _ in range(2)]},
    "a rule is not tried": {"match_rules": lambda situation, selected: match_rules(situation, selected)[1:]},
    "scores in sixteenths": {
        "score": lambda situation, resolvents: [
            round(each * 16) / 16 for each in score_shortest(situation.goal, resolvents)
        ]
    },
}


@pytest.mark.parametrize("fault", HIDDEN)
def test_the_columns_contradict_nothing_said_of_an_engine_that_shows_no_stages(fault: str, tmp_path: Path):
    class Hidden(PlainEngine):
        probe = None

        def __init__(self, program: Any, limits: Any, policy: Any) -> None:
            super().__init__(program, limits, policy, stages=SOUND._replace(**HIDDEN[fault]))
            self.info = replace(self.info, name="hidden", mode="")

    every = {"queries": 10, "corruptions": 4, "limits": kv.Limits(max_depth=6, max_atoms=3)}
    report = kv.verify(
        "random:1", Hidden, equality=kv.Equality(determinism=False, minimum={}), save=tmp_path / "run", **every
    )
    assert report.causes
    assert check_saved(tmp_path / "run").contradicted == []


class Numbered(PlainEngine):
    """An engine that draws its candidates in another order, and has numbers of its own."""

    probe = None
    stages = SOUND

    def __init__(self, program: Any, limits: Any, policy: Any) -> None:
        super().__init__(program, limits, policy, stages=self.stages)
        self.info = replace(self.info, name="numbered", mode="")
        symbols = program.symbols
        self.numbers = np.arange(len(symbols.predicates))[::-1] * 3, np.arange(len(symbols.constants)) * 5 % 17
        MADE.append(self)

    def draw(self, graph: Any, split: str, queries: Any, num_corruptions: Any, seed: Any) -> Any:
        drawn = draw_candidates(graph, split, queries, num_corruptions, seed)
        return drawn.take(np.arange(len(drawn.query))[::-1])

    def prove(self, candidates: Any, progress: Any = None) -> Any:
        columns = super().prove(candidates)
        lane = np.arange(len(columns.candidates.query)) % 7
        of_step = np.repeat(lane, columns.candidates.num_steps)
        self.declared = {"lane": lane, "lane of the step": of_step, "lane four": lane == 4}
        return columns


MADE: list[Numbered] = []


class Lanes(Numbered):
    """It scores too low in one of its lanes."""

    def features(self, columns: Any) -> Any:
        return self.declared

    def prove(self, candidates: Any, progress: Any = None) -> Any:
        columns = super().prove(candidates)
        is_low = np.repeat(self.declared["lane of the step"] == 4, columns.steps.num_resolvents)
        return columns._replace(
            resolvents=columns.resolvents._replace(score=columns.resolvents.score - 0.25 * is_low),
        )


def lose_high_numbers(situation: Any, selected: Any) -> list[int]:
    facts = situation.clauses.facts
    return [index for index in match_facts(situation, selected) if facts[index][1] * 5 % 17 < 9]


class Short(Numbered):
    """It has no room for facts whose first argument has a high number."""

    stages = SOUND._replace(match_facts=lose_high_numbers)


@pytest.mark.parametrize(
    ("engine", "words"),
    [(Lanes, "with lane four"), (Short, "whose first argument has the engine's number 9 or more")],
)
def test_the_columns_contradict_nothing_said_of_an_engines_own_numbers(
    engine: type[Numbered], words: str, tmp_path: Path
):
    equality = kv.Equality(determinism=False, minimum={})
    report = kv.verify(RINGS, engine, queries=8, corruptions=3, equality=equality, save=tmp_path / "run")
    assert any(words in cause.condition for cause in report.causes), [cause.condition for cause in report.causes]
    declared = {name: values.tolist() for name, values in MADE[-1].declared.items()}
    predicates, constants = (values.tolist() for values in MADE[-1].numbers)
    assert check_saved(tmp_path / "run", Numbers(predicates, constants, declared)).contradicted == []
    false = Numbers(predicates, constants[::-1], {name: values[1:] + values[:1] for name, values in declared.items()})
    assert check_saved(tmp_path / "run", false).contradicted


@needs_records
@pytest.mark.parametrize("kind", [pytest.param("forced", marks=pytest.mark.deep), "free"])
@pytest.mark.parametrize(
    ("graph", "engine"),
    [
        ("countries_s3", "compiled_first"),
        pytest.param("countries_s3", "compiled_later", marks=pytest.mark.deep),
        pytest.param("family", "compiled_first", marks=pytest.mark.deep),
        pytest.param("family", "compiled_later", marks=pytest.mark.deep),
    ],
)
def test_the_columns_contradict_nothing_said_of_recorded_steps(
    graph: str, engine: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "foreign"))
    from foreign_records import write_trace

    every = {"countries_s3": 1, "family": 48}[graph]
    kv.compare(
        *(write_trace(tmp_path, graph, each, kind, every=every) for each in ("eager", engine)), save=tmp_path / "run"
    )
    assert check_saved(tmp_path / "run").contradicted == []


@pytest.mark.deep
@pytest.mark.skipif(
    shutil.which("node") is None or not JAVASCRIPT.is_dir(), reason="needs node and the provers of others"
)
@pytest.mark.parametrize(
    "switch", ["key", "leak", "capture", "falsy", "body", "cap", "sort", "late", "depth", "names", "no_prune"]
)
def test_the_columns_contradict_nothing_said_of_a_prover_in_javascript(switch: str, tmp_path: Path):
    def run(*words: str) -> Any:
        return subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True)

    run(sys.executable, str(JAVASCRIPT / "mk.py"))
    steps = tmp_path / "steps.jsonl"
    steps.write_text(run("node", str(JAVASCRIPT / "prover.js"), "graph.json", switch).stdout)
    run(sys.executable, "-m", "kgverify", "trace", "import", str(steps), "-o", "steps.h5")
    kv.compare("reference", tmp_path / "steps.h5", save=tmp_path / "run")
    assert check_saved(tmp_path / "run").contradicted == []


RANKS = {
    "the side tail": lambda relation, side, rank: rank + (side == "tail"),
    "the relation q": lambda relation, side, rank: rank + rank * (relation == "q"),
    "each of the 50 actual ranks that differ is 2 higher": lambda relation, side, rank: rank + 2 * (rank > 5),
    "each rank is one too high": lambda relation, side, rank: rank + 1,
    "no actual rank is above 10": lambda relation, side, rank: min(rank, 10),
    "not ranked by the actual side": lambda relation, side, rank: 0 if side == "head" else rank,
}


@pytest.mark.parametrize("words", RANKS)
def test_the_ranks_contradict_nothing_said_of_their_differences(words: str, tmp_path: Path):
    every = [(f"h{i}", "pqr"[i % 3], f"t{i}", side, 1 + i * 7 % 40) for i in range(30) for side in ("head", "tail")]
    for name, rank_of in (("expected", lambda relation, side, rank: rank), ("actual", RANKS[words])):
        rows = [(h, r, t, side, changed) for h, r, t, side, rank in every if (changed := rank_of(r, side, rank))]
        text = "".join(",".join(map(str, row)) + "\n" for row in [("head", "relation", "tail", "side", "rank"), *rows])
        (tmp_path / f"{name}.csv").write_text(text)
    report = kv.compare(tmp_path / "expected.csv", tmp_path / "actual.csv", save=tmp_path / "run")
    assert words in report.causes[0].condition
    assert all(".realistic." in key for key in report.metrics.actual)
    found = check_saved(tmp_path / "run")
    assert found.contradicted == []
    saved = json.loads((tmp_path / "run" / "report.json").read_text("utf-8"))
    cause = saved["causes"][0]
    for number in set(re.findall(r"\d+", cause["condition"])):
        cause["condition"] = re.sub(rf"\b{number}\b", str(int(number) + 1), report.causes[0].condition)
        assert Checker.of(saved, tmp_path / "run").check().contradicted, cause["condition"]


REMEDIES = {
    "accepted_error 0.0008": (
        {"score": lambda situation, made: [each - i / 10_000 for i, each in enumerate(score(situation, made))]},
        {},
        "accepted_error 0.0001",
    ),
    "--minimum proved=1,choices=1": ({}, {"minimum": {"proved": 1, "rules": 400, "choices": 1}}, "--minimum proved=99"),
    "max_resolvents": ({"match_facts": lambda situation, _: range(0, len(situation.clauses.facts), 3)}, {}, ""),
}


@pytest.mark.parametrize("words", REMEDIES)
def test_a_remedy_is_one_of_this_run(words: str, tmp_path: Path):
    stages, equality, others = REMEDIES[words]

    def make(program: Any, limits: Any, policy: Any) -> PlainEngine:
        engine = PlainEngine(program, limits, policy, stages=SOUND._replace(**stages))
        engine.info = replace(engine.info, name="hidden", mode="")
        return engine

    kv.verify(
        "random:1",
        make,
        queries=10,
        corruptions=4,
        limits=kv.Limits(max_depth=4, **({} if others else {"max_resolvents": 3})),
        equality=kv.Equality(**{"determinism": False, "minimum": {}, **equality}),
        save=tmp_path / "run",
    )
    assert check_saved(tmp_path / "run").contradicted == []
    text = (tmp_path / "run" / "report.json").read_text("utf-8")
    assert words in text
    report = json.loads(text.replace(words, others or words))
    if not others:
        report["exercise"]["actual"]["enough"][words] = 3
    assert Checker.of(report, tmp_path / "run").check().contradicted


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved run of an engine that tries only the first 50 facts of a predicate."""
    folder = tmp_path_factory.mktemp("capped")
    assert record("fact-cap", folder, is_tight=False).contradicted == []
    return folder / "run"


def state_bound(bound: str) -> Callable[[Any], None]:
    """Return a change of the position from which facts are said to be missing."""

    def change(report: Any) -> None:
        when = report["causes"][0]["when"]
        for text in (when["tests"][0], when["sentence"]):
            assert "position 50 or later" in text
        when["tests"] = [text.replace("50 or", f"{bound} or") for text in when["tests"]]
        when["sentence"] = when["sentence"].replace("position 50 or", f"position {bound} or")

    return change


def change_value(*path: Any, to: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return a change of one value of a report."""

    def change(report: Any) -> None:
        *outer, last = path
        for key in outer:
            report = report[key]
        changed = to(report[last])
        assert changed != report[last]
        report[last] = changed

    return change


WHEN = "causes", 0, "when"
FIRST = "divergences", 0
FALSE_SENTENCES = {
    "a bound that is too low": state_bound("20"),
    "a bound that is too high": state_bound("200"),
    "words without a meaning": change_value(*WHEN, "tests", to=lambda tests: ["in a bad mood"]),
    "a count in a sentence": change_value(*WHEN, "sentence", to=lambda text: text.replace(" of the 1", " of the 2")),
    "a common clause": change_value(*WHEN, "sentence", to=lambda text: f"{text}; all of them by one clause"),
    "another reading": change_value(
        *WHEN, "sentence", to=lambda text: f"{text}; on these the same as facts that equal the query"
    ),
    "a number of candidates": change_value("causes", 0, "num_candidates", to=lambda number: number + 1),
    "a number of later steps": change_value("causes", 0, "num_later", to=lambda number: number - 1),
    "a member": change_value(*FIRST, "cause", to=lambda number: 1),
    "a first wrong step": change_value(*FIRST, "step", to=lambda number: number - 1),
    "evidence": change_value(*FIRST, "evidence", to=lambda text: f"5{text[1:]}"),
    "a level": change_value(*FIRST, "level", to=lambda level: "renaming"),
    "a lost proof": change_value(*FIRST, "kind", to=lambda kind: "proof_lost"),
    "a limit": change_value("exercise", "expected", "limits", "max_atoms", to=lambda number: number + 1),
    "outcomes": change_value("outcomes", "expected", "PROVED", to=lambda number: number + 1),
    "a note": change_value("notes", to=lambda notes: [note.replace("7 of 52", "8 of 52") for note in notes]),
    "a share": change_value("attribution", "shares", 0, "share", to=lambda share: share / 2),
    "a metric if repaired": change_value("attribution", "shares", 0, "repaired", to=lambda value: value / 2),
    "a reproducer": change_value("causes", 0, "reproduce", to=lambda text: "kgverify shrink RUN_DIR --divergence 0"),
    "a metric": change_value("metrics", "actual", "both.realistic.hits_at_10", to=lambda value: value + 0.1),
}


@pytest.mark.parametrize("name", FALSE_SENTENCES)
def test_a_false_sentence_is_contradicted(name: str, capped: Path):
    report = json.loads((capped / "report.json").read_text("utf-8"))
    FALSE_SENTENCES[name](report)
    assert Checker.of(report, capped).check().contradicted


def test_the_features_that_are_not_checked_are_listed():
    unknown = set()
    for row in (*TABLE["features"], *TABLE["numbers"]):
        phrases = [
            row[key].replace("{each}", str(each)).replace("{size}", "1,601")
            for key in ("phrase", "opposite", "zero", "other_than_zero", "at_least_zero", "at_most_zero", "negative")
            if key in row
            for each in row.get("each", [8])
        ]
        values = [read_phrase(text.replace("{}", "3 or more")) for text in phrases]
        if None in values:
            assert not any(values)
            unknown.add(row["name"])
    assert unknown == NOT_CHECKED


def test_the_checker_shares_no_code():
    imported = (
        "import sys, sentences; print(*[name for name in sys.modules if name.startswith(('kgverify', 'kgreference'))])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[:2]))}
    found = subprocess.run(
        [sys.executable, "-c", imported], capture_output=True, text=True, check=True, env=environment
    )
    assert found.stdout.strip() == ""
