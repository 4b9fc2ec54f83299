"""Annotations stand at a line of the user's files: the engine's function, or the fact or rule that differs."""

from pathlib import Path

import pytest
from invoked_commands import invoke

import kgverify as kv

ENGINE = """
from kgverify.dialects import ReferenceEngine


class Base(ReferenceEngine):
    def step(self, positions):
        return super().step(positions)

    def prove(self, candidates, progress=None):
        columns = super().prove(candidates)
        ends = columns.candidates
        return columns._replace(candidates=ends._replace(is_limited=1 - ends.is_limited))


class Mine(Base):
    pass


def make(program, limits, policy):
    return Mine(program, limits, policy)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "annotated.py").write_text(ENGINE)
    graph = tmp_path / "data" / "family"
    graph.mkdir(parents=True)
    facts = "".join(f"ann\tparent\tp{i:02}\n" for i in range(60))
    (graph / "train.txt").write_text(f"{facts}p59\tparent\tcid\n")
    (graph / "test.txt").write_text("ann\tgrandparent\tcid\n")
    (graph / "rules.pl").write_text("grandparent(X,Y) :- parent(X,Z), parent(Z,Y).\n")
    return tmp_path


def list_annotations(*words: object) -> list[str]:
    done = invoke(["report", *words, "--github"])
    assert done.exit_code == 0, done.output
    return [line.partition(",title=")[0] for line in done.stdout.splitlines() if line.startswith("::error")]


def test_annotations_stand_at_the_function_of_the_engine(folder: Path):
    diff = ["diff", "--graph", "./data/family", "--queries", 1, "--corruptions", 2, "--save", "run"]
    for name in ("annotated.py:Mine", "annotated:Mine", "annotated.py:make"):
        done = invoke([*diff, "--engine", name])
        assert done.exit_code == 1
        assert "kgverify shrink run --python --trust   # a minimal example as code that runs alone\n" in done.stdout
        assert set(list_annotations("run")) == {"::error file=annotated.py,line=9"}
    kv.record("data/family", "golden.h5", "reference", queries=1, corruptions=2)
    assert invoke("diff --reference golden.h5 --engine annotated.py:Mine --save run").exit_code == 1
    assert all("file=" not in each for each in list_annotations("run"))
    assert set(list_annotations("run", "--engine", "annotated.py:Mine")) == {"::error file=annotated.py,line=9"}


def test_without_a_file_of_the_engine_annotations_stand_at_the_fact_or_rule(folder: Path):
    faulty = kv.Evaluator(mode="plain", faults="fact-cap")
    kv.verify("data/family", faulty, queries=1, corruptions=2, save="run")
    assert "::error file=data/family/train.txt,line=51" in list_annotations("run")


def test_a_file_outside_of_the_folder_or_without_the_engine_gives_no_line(folder: Path):
    (folder / "broken.py").write_text("class X(" + "(" * 9000)
    kv.verify("countries", kv.Evaluator(mode="plain", faults="fact-cap"), queries=1, corruptions=2, save="run")
    for name in ("../annotated.py:Mine", "/etc/passwd:x", "annotated.py:None", "broken.py:X", "\0:x", "a" * 9999):
        annotations = list_annotations("run", "--engine", name)
        assert annotations
        assert all("file=" not in each for each in annotations), name
