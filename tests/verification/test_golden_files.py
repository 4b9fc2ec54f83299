"""Golden files: minted from the reference, compared by digests, decided by the reference."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from invoked_commands import invoke
from textbook import Textbook

import kgverify as kv

SMALL = {"queries": 2, "corruptions": 5}
PLAIN = {"mode": "plain"}


WIDTH, START = 8, 2.0**22
"""The length of embeddings, and the number to which products are added, so that sums lose most of their digits."""


class Rounding(Textbook):
    """Scores by sums of float32, in one order or the other."""

    stride = 1

    def score(self, goal, resolvents):
        table = np.random.default_rng(5).normal(size=(400, WIDTH)).astype(np.float32)
        before = self.embed(table, goal)
        return [float(self.add(before * self.embed(table, each.atoms))) for each in resolvents]

    def embed(self, table, atoms):
        return np.sum([table[[p, *(10 + t if t >= 0 else -1 for t in terms)]].prod(0) for p, *terms in atoms], 0)

    def add(self, products):
        total = np.float32(START)
        for product in products[:: self.stride]:
            total = np.float32(total + product)
        return total


class Backwards(Rounding):
    stride = -1


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a golden file of two queries."""
    monkeypatch.chdir(tmp_path)
    report = kv.golden("small.golden", "reference", **SMALL)
    assert report.verdict is kv.Verdict.INCONCLUSIVE
    assert "small.golden was missing, and is now written from reference: 22 candidates" in report.reasons[0]
    return tmp_path / "small.golden"


def alter(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_an_engine_with_equal_digests_agrees_and_its_scores_are_not_compared(path: Path):
    report = kv.golden(path, kv.Evaluator(**PLAIN))
    usual = kv.verify("countries", kv.Evaluator(**PLAIN), **SMALL)
    assert report.verdict is usual.verdict is kv.Verdict.AGREE
    assert report.coverage.steps == usual.coverage.steps
    assert {"resolvents.score", "candidates.log_probability"} <= {*report.coverage.not_compared}
    assert report.metrics == usual.metrics
    assert any("22 of 22 candidates have the digests" in note for note in report.notes)


def test_an_engine_that_differs_by_near_ties_alone_agrees(tmp_path: Path):
    path = tmp_path / "near.golden"
    kv.golden(path, Rounding, reference=Rounding, **SMALL)
    report = kv.golden(path, Backwards, reference=Rounding)
    assert report.verdict is kv.Verdict.AGREE
    assert report.near_ties
    assert {*report.coverage.not_compared}.isdisjoint({"resolvents.score"})
    assert f"proved {len({each.candidate for each in report.near_ties})} other" in report.notes[0]
    assert not any("stale" in note for note in report.notes)


def test_an_engine_of_other_people_that_numbers_variables_its_own_way_has_the_same_digests(path: Path):
    report = kv.golden(path, Textbook)
    assert report.verdict is kv.Verdict.AGREE
    assert "22 of 22 candidates have the digests" in report.notes[0]


OF_EAGER = ("nan-score", "log-probability-after-end")


@pytest.mark.parametrize(
    "fault",
    [
        "fact-cap",
        "last-argmax",
        "swapped-arguments",
        "no-push-down",
        *[pytest.param(each, marks=pytest.mark.deep) for each in OF_EAGER],
    ],
)
def test_a_fault_is_found_at_the_same_step_as_by_a_comparison_with_the_reference(path: Path, fault: str):
    engine = kv.Evaluator(mode="eager" if fault in OF_EAGER else "plain", faults=fault)
    found, usual = kv.golden(path, engine), kv.verify("countries", engine, **SMALL)
    assert found.verdict is usual.verdict is kv.Verdict.DIVERGE
    for name in ("candidate", "stage", "step", "kind"):
        assert getattr(found.first_divergence, name) == getattr(usual.first_divergence, name)
    assert [each.stage for each in found.causes] == [each.stage for each in usual.causes]
    assert found.metrics == usual.metrics


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limits": kv.Limits(max_depth=5)}, "limits max_depth: 20 there, 5 here"),
        ({"limits": kv.Limits(dialect=kv.Dialect(memory="set"))}, "limits dialect memory: not given there, set here"),
        ({"seed": 1}, "queries seed: 0 there, 1 here"),
        ({"queries": kv.Queries(2, 5, "valid")}, "queries split: test there, valid here"),
        ({"policy": "two_tower"}, "policy: shortest there"),
        ({"reference": Textbook}, "reference: reference there, textbook:Textbook here"),
        ({"graph": "random:7"}, "program_sha256: "),
    ],
)
def test_another_run_is_inconclusive_with_what_differs(path: Path, options, said: str):
    report = kv.golden(path, "reference", **options)
    assert report.verdict is kv.Verdict.INCONCLUSIVE
    assert not report.coverage.candidates
    assert any(f"small.golden is of another run: {said}" in each for each in report.reasons), report.reasons


def test_another_schema_and_other_queries_are_inconclusive(path: Path):
    lines = json.loads(path.read_text())["candidates"]
    second = "1 locatedInCR(azerbaijan, asia), 11 candidates,"
    for changes, said in (
        ({"schema_version": 1}, "schema_version: 1 there"),
        (
            {"candidates": [lines[0], lines[0]]},
            f"query 1: 0 locatedInCR(armenia, asia), 11 candidates, there, {second} here",
        ),
        ({"candidates": lines[:1]}, f"query 1: not given there, {second} here"),
        ({"candidates": [*lines, lines[1]]}, f"query 2: {second} there, not given here"),
        ({"candidates": [lines[0], lines[1][:-17]]}, "query 1: 1 locatedInCR(azerbaijan, asia), 10 candidates, there"),
    ):
        before = path.read_text()
        alter(path, **changes)
        report = kv.golden(path, "reference")
        assert report.verdict is kv.Verdict.INCONCLUSIVE
        assert said in report.reasons[0]
        path.write_text(before)


def test_a_file_that_the_reference_contradicts_is_stale_until_it_is_written_again(path: Path):
    lines = json.loads(path.read_text())["candidates"]
    label, _, digests = lines[1].rpartition(": ")
    alter(path, candidates=[lines[0], f"{label}: {'0' * 16}{digests[16:]}"])
    report = kv.golden(path, "reference")
    assert report.verdict is kv.Verdict.INCONCLUSIVE
    assert "is stale: reference itself gives 1 candidate other steps (update writes" in report.reasons[0]
    faulty = kv.golden(path, kv.Evaluator(**PLAIN, faults="fact-cap"))
    assert faulty.verdict is kv.Verdict.DIVERGE
    assert any("is stale" in note for note in faulty.notes)
    again = kv.golden(path, "reference", update=True)
    assert again.verdict is kv.Verdict.AGREE
    assert "written again from reference: 1 of 22 candidates changed" in again.notes[0]
    assert json.loads(path.read_text())["candidates"] == lines


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not a golden file"),
        ("<<<<<<< HEAD\n{}", "is not a golden file"),
        ("[" * 100_000, "is not a golden file"),
        ("{}", "is not a golden file"),
        ({"format": "kgverify golden 2"}, "is not a golden file"),
        ({"surprise": 1}, "is not a golden file"),
        ({"candidates": ["0 p(a, b): 00"]}, "holds a line that is not made of digests"),
        ({"candidates": ["0 p(a, b): zz"]}, "holds a line that is not made of digests"),
        ({"limits": {"max_depth": 0}}, "max_depth is 0"),
        ({"queries": {"number": 0}}, "expected at least 1 query"),
        ({"queries": {"corruptions": "some"}}, "expected a number or `all`"),
        ({"graph": {"spec": "s3://example.invalid/graph"}}, "was read from a URL"),
        ({"graph": {"spec": "-"}}, "was read from standard input"),
        ({"graph": {"spec": "nowhere"}}, "nowhere"),
        ({"policy": "evil.py:policy"}, "unknown policy"),
    ],
)
def test_hostile_content_is_refused_with_a_reason(path: Path, content, said: str):
    if isinstance(content, str):
        path.write_text(content)
    else:
        alter(path, **content)
    before = path.read_bytes()
    for update in (False, True):
        with pytest.raises(kv.UserError, match=r"(?s).*") as found:
            kv.golden(path, "reference", update=update)
        assert said in str(found.value)
        assert "fix: " in str(found.value)
    assert path.read_bytes() == before


def test_the_file_of_a_named_engine_does_not_make_kgverify_import_it(path: Path):
    Path("evil.py").write_text("open('imported', 'w')")
    alter(path, reference="evil.py:Engine")
    assert kv.golden(path, "reference").verdict is kv.Verdict.INCONCLUSIVE
    assert not Path("imported").exists()


def test_an_engine_that_tells_only_outcomes_is_compared_by_them(tmp_path: Path):
    class Knows(kv.OutcomeEngine):
        def decide(self, query):
            return query in self.facts

    path = tmp_path / "outcomes.golden"
    assert "from search" in kv.golden(path, Knows, **SMALL).reasons[0]
    report = kv.golden(path, Knows)
    usual = kv.verify("countries", Knows, **SMALL)
    assert (report.verdict, len(report.divergences)) == (usual.verdict, len(usual.divergences))


def test_the_command_writes_a_missing_file_and_takes_what_is_not_given_from_it(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["golden", "new.golden", "--engine", "reference"]
    assert invoke([*words, "--queries", "2", "--corruptions", "5"]).exit_code == 3
    assert invoke([*words, "-q"]).exit_code == 0
    (tmp_path / "kgverify.toml").write_text('seed = 3\nengine = "reference"\n')
    done = invoke(["golden", "new.golden"])
    assert done.exit_code == 3
    assert "queries seed: 0 there, 3 here" in done.stdout
    assert invoke(["golden", "new.golden", "--update", "-q"]).exit_code == 0
    assert json.loads(Path("new.golden").read_text())["queries"]["seed"] == 3


@pytest.mark.deep
def test_the_bytes_do_not_depend_on_hash_seeds_or_threads(tmp_path: Path):
    contents = set()
    for number, hash_seed in enumerate("01"):
        file = tmp_path / f"{number}.golden"
        words = [
            sys.executable,
            "-m",
            "kgverify",
            "golden",
            str(file),
            "--engine",
            "reference",
            "--policy",
            "two_tower",
        ]
        environment = {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": str(1 + number)}
        done = subprocess.run(
            [*words, "--queries", "3", "--corruptions", "9", "--jobs", str(1 + number)],
            env=os.environ | environment,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 3, done.stderr
        contents.add(file.read_bytes())
    assert len(contents) == 1
    assert len(contents.pop()) < 24 * 1024
