"""Files of ranks: mistakes of evaluators are named from two files, from a trace and a file, and from two traces."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evaluators import RIGHT, WRONG, Evaluate, rank_by, write_ranks
from invoked_commands import invoke

import kgverify as kv
from kgverify.ranking.draw import add_known
from kgverify.runs.run import Run, build_trace, load_policy, reference_pipeline
from kgverify.trace.model.trace import Trace

EXCHANGED = "the ranks of the head and the tail side are exchanged"
CASES = WRONG | {"exchanged": (RIGHT["mean"], EXCHANGED, EXCHANGED)}
QUICK = ("one more", "sampled 20", "filter without valid", "filter on the head side only", "rounded up")
"""The mistakes that the default tier seeks among the candidates of a trace as well."""


class Case:
    """A graph with several answers to each query, a trace of all its candidates, and ranks of evaluators."""

    def __init__(self, folder: Path) -> None:
        rng, names = random.Random(3), [f"e{i}" for i in range(90)]
        relations = "likes", "knows", "near"
        triples = sorted({(rng.choice(names[:40]), rng.choice(relations), rng.choice(names)) for _ in range(900)})
        rng.shuffle(triples)
        self.folder = folder
        (folder / "social").mkdir()
        for split, part in (("train", triples[:650]), ("valid", triples[650:750]), ("test", triples[750:830])):
            (folder / "social" / f"{split}.txt").write_text("".join("\t".join(each) + "\n" for each in part))
        rules = "likes(X,Z) :- knows(X,Y), near(Y,Z).\nknows(X,Y) :- knows(Y,X).\nnear(X,Y) :- likes(X,Y).\n"
        (folder / "social" / "rules.txt").write_text(rules)
        self.graph = kv.load_graph(folder / "social")
        self.job = kv.Job(kv.Source(self.graph))
        policy = load_policy("two_tower", self.graph, kv.Limits(), 0)
        run = Run(self.graph, policy=policy, num_queries=24, num_corruptions=-1)
        pipeline = reference_pipeline(run)
        candidates = add_known(self.graph, run.triples, pipeline.draw_for(run))
        self.raw = build_trace(run, pipeline.engine, pipeline.engine.prove(candidates), None)
        self.right = self.ranked(RIGHT["both bounds"])
        self.expected = write_ranks(folder / "expected.csv", self.right.rankings, has_bounds=True)

    def ranked(self, evaluate: Evaluate, *, exchanges: bool = False) -> Trace:
        splits = {split: self.graph.queries(split) for split in ("train", "valid", "test")}
        return replace(self.raw, rankings=rank_by(self.raw, evaluate, splits, exchanges=exchanges))

    def write(self, name: str) -> Path:
        ranked = self.ranked(CASES[name][0], exchanges=name == "exchanged")
        return write_ranks(self.folder / "actual.tsv", ranked.rankings)


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("ranks")
        patch.setenv("KGVERIFY_DATA", str(folder))
        yield Case(folder)


@pytest.mark.parametrize("name", [name for name in CASES if name != "counted from 0"])
def test_two_files_show_the_pattern_of_a_mistake(name: str, case: Case):
    report = kv.compare(case.expected, case.write(name), job=case.job)
    assert report.verdict is kv.Verdict.DIVERGE
    assert CASES[name][2] in report.causes[0].condition
    shown = case.graph.test[report.first_divergence.query]
    assert report.first_divergence.atom == f"{shown.predicate}({shown.first}, {shown.second})"
    gaps = [
        abs(float(each.actual.split()[-1]) - float(each.expected.split()[-1]))
        for each in report.divergences
        if "not" not in each.actual
    ]
    assert gaps == sorted(gaps, reverse=True)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.deep) for name in CASES if name != "counted from 0"],
)
def test_the_candidates_of_a_trace_show_the_rule_of_a_file(name: str, case: Case):
    path, words = case.write(name), CASES[name][1]
    report = kv.compare(case.right, path)
    rule = report.ranking_rules.actual
    if name == "sampled 20":
        # Without the number of ranked candidates, only the pattern is known.
        assert "no actual rank is above 21" in report.causes[0].condition
        return
    assert words in "; ".join((rule.rule, *rule.remarks))
    num = len(path.read_text().splitlines()) - 1
    assert f"{num} of the {num} ranks of {path} follow from the candidates, ranked {rule.rule}" in report.notes


@pytest.mark.deep
@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("one more", "at least, itself too", "counted from 0")]
)
def test_two_traces_show_the_rule_of_a_mistake(name: str, case: Case):
    """A rank that is one more may be beyond the number of candidates, which a trace does not hold; so may rank 0."""
    report = kv.compare(case.right, case.ranked(CASES[name][0], exchanges=name == "exchanged"))
    rule = report.ranking_rules.actual
    assert CASES[name][1] in "; ".join((rule.rule, *rule.remarks))
    assert not rule.num_unexplained


def test_right_ranks_raise_no_alarm(case: Case):
    for name, evaluate in RIGHT.items():
        path = write_ranks(case.folder / "right.csv", case.ranked(evaluate).rankings, has_bounds=name != "mean")
        for expected in (case.expected, case.right, case.raw):
            report = kv.compare(expected, path, job=case.job)
            assert (report.verdict, report.divergences) == (kv.Verdict.AGREE, ())
            assert report.coverage.rankings == 48
    assert kv.compare(case.expected, case.expected, job=case.job).verdict is kv.Verdict.INCONCLUSIVE


def test_ranks_of_chance_have_no_name(case: Case):
    rankings = case.right.rankings
    ranks = np.random.default_rng(1).integers(1, 80, len(rankings.query)).astype(np.float64)
    path = write_ranks(case.folder / "chance.tsv", rankings._replace(optimistic=ranks, pessimistic=ranks))
    assert kv.compare(case.expected, path, job=case.job).causes[0].condition == "no known pattern"
    assert kv.compare(case.right, path).ranking_rules.actual.num_unexplained > 10


def test_an_engine_proves_the_candidates_of_a_file_again(case: Case):
    job = replace(case.job, queries=kv.Queries(3, "all"))
    report = kv.compare("reference", case.expected, job=job)
    assert any("42 ranks of" in note and "not compared" in note for note in report.notes)
    assert report.coverage.rankings == 6


NAMES = "head,relation,tail,side,rank\n"


def compare_texts(folder: Path, expected: str, actual: str, **options) -> kv.Report:
    for name, text in (("expected.txt", expected), ("actual.txt", actual)):
        (folder / name).write_bytes(text.encode())
    return kv.compare(folder / "expected.txt", folder / "actual.txt", **options)


def test_names_and_json_lines_need_no_graph(tmp_path: Path):
    triples = [("[red]<b>", "p", "x\u202e"), ("a,b", "p", "c"), ("e", "q", "f"), ("g", "q", "h"), ("i", "q", "j")]
    rows = [(triple, side, rank) for rank, triple in enumerate(triples, 2) for side in ("head", "tail")]
    table = "".join(f'"{h}",{r},{t},{side},{rank}\n' for (h, r, t), side, rank in rows)

    def write(rank_of) -> str:
        keys = "subject", "predicate", "object", "side", "rank"
        objects = (
            dict(zip(keys, (*triple, side, rank_of(*triple, side, rank)), strict=True)) for triple, side, rank in rows
        )
        return "".join(f"{json.dumps(each)}\n" for each in objects)

    same = compare_texts(tmp_path, NAMES + table, write(lambda h, r, t, side, rank: rank))
    assert (same.verdict, same.coverage.rankings) == (kv.Verdict.AGREE, 10)
    partly = compare_texts(
        tmp_path, NAMES + table, write(lambda h, r, t, side, rank: rank + rank * (side == "tail" and r == "q"))
    )
    # Three ranks drawn at random may well be of one side and one relation.
    assert "only the" not in partly.causes[0].condition
    rows += [((f"h{i}", "pqq"[i % 3], f"t{i}"), side, 4) for i in range(18) for side in ("head", "tail")]
    table = "".join(f'"{h}",{r},{t},{side},{rank}\n' for (h, r, t), side, rank in rows)
    many = compare_texts(
        tmp_path, NAMES + table, write(lambda h, r, t, side, rank: rank + rank * (side == "tail" and r == "q"))
    )
    assert many.causes[0].condition.startswith(
        "only the side tail: 15 of 23 ranks differ there, none of 23 elsewhere; only the relation q: 15 of 30"
    )
    worse = compare_texts(tmp_path, NAMES + table, write(lambda h, r, t, side, rank: rank + 90 // rank))
    assert (
        worse.notes[1].startswith("the largest differences: p([red]<b>, x\\u202e) head +45")
        or worse.first_divergence.atom == "p([red]<b>, x\u202e)"
    )
    assert "\u202e" not in str(worse)
    assert "[red]<b>" in str(worse)


@pytest.mark.parametrize(("gap", "words"), [(2, "2 higher"), (-2, "2 lower")])
def test_one_gap_of_all_ranks_that_differ_is_named_with_its_direction(tmp_path: Path, gap: int, words: str):
    keys = [f"a{i},p,b{i},{side}" for i in range(12) for side in ("head", "tail")]
    texts = [
        NAMES + "".join(f"{key},{5 + i % 7 + more * (i % 3 == 0)}\n" for i, key in enumerate(keys)) for more in (0, gap)
    ]
    report = compare_texts(tmp_path, *texts)
    assert f"each of the 8 actual ranks that differ is {words}" in report.causes[0].condition
    higher, lower = (8, 0) if gap > 0 else (0, 8)
    assert f"8 of 24 ranks differ: {higher} higher, {lower} lower" in report.notes
    (largest,) = (each.partition(": ")[2] for each in report.notes if each.startswith("the largest differences: "))
    assert {each.split()[-1] for each in re.split(r", (?=p\()", largest)} == {f"{gap:+}"}


def test_a_rank_for_both_sides_of_a_query_is_compared(tmp_path: Path):
    texts = [
        "query,side,rank\n" + "".join(f"{query},both,{query % 5 + 1.5 + more}\n" for query in range(24))
        for more in (0, 1)
    ]
    job = kv.Job(kv.Source("countries"))
    assert compare_texts(tmp_path, texts[0], texts[0], job=job).verdict is kv.Verdict.AGREE
    report = compare_texts(tmp_path, *texts, job=job)
    assert "each rank is one too high" in report.causes[0].condition
    assert report.first_divergence.side == "none"


def test_too_little_is_inconclusive(tmp_path: Path):
    one = f"{NAMES}a,p,b,head,1\n"
    assert compare_texts(tmp_path, one, one).reasons[0].startswith("every rank is 1, which any rule of ranking gives")
    assert compare_texts(tmp_path, one, one, equality=kv.Equality(minimum={})).verdict is kv.Verdict.AGREE
    assert compare_texts(tmp_path, one, f"{NAMES}a,p,b,tail,4\n").reasons == (
        "no query and side has a rank on both sides [KG201]",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected ranks, found none"),
        ("head,relation,tail,side,rank\n", "expected ranks, found none"),
        (f"{NAMES}a,p,b,head,0\n", "if yours count from 0, add 1"),
        (f"{NAMES}a,p,b,head,nan\n", "`float` >= 1.0"),
        (f"{NAMES}a,p,b,head,1e300\n", "`float` <= 2147483647.0"),
        (f"{NAMES}a,p,b,head,three\n", "actual.txt:2: expected a query, a side and a rank"),
        (f"{NAMES}a,p,b,subject,3\n", "'subject'"),
        (f"{NAMES}a,p,,head,3\n", "an index of the query, or three names"),
        (f"{NAMES}a,p,b,head\n", "5 fields, as in the header row"),
        (
            f"{NAMES}a,p,b,head,3\na,p,b,head,3\n",
            "actual.txt:3: expected one row for each query and side, found those of line 2",
        ),
        (f"{NAMES}a,p,b,head,3\na,p,b,both,3\n", "both beside a single side"),
        ('head,relation,tail,side,rank\n"a,p,b,head,3\n', "names that end at their quotes"),
        ("a,p,b,3\n", "expected ranks, found none"),
        ("query,side,rank\n0,head,3\n", "give graph"),
        ("query,rank\n0,3\n", "missing required field `side`"),
        ("query,side,rank,filtered_rank\n0,head,3,2\n", "one rank, or an optimistic and a pessimistic one"),
        ("query,side,rank,rank\n0,head,3,2\n", "name each column once"),
        ("query,side,optimistic,pessimistic\n0,head,3,2\n", "optimistic <= pessimistic"),
        ('{"query": 0, "side": "head", "rank": [3]}\n', "got `array`"),
        ('[{"query": 0, "side": "head", "rank": 3}]\n', "a JSON object"),
        ('{"query": 0, "rank": 3}\n', "missing required field `side`"),
        ('{"head": "a", "relation": "p", "tail": "b", "rank": 3}\n', "missing required field `side`"),
    ],
)
def test_what_is_no_rank_is_refused_with_its_place(text: str, words: str, tmp_path: Path):
    with pytest.raises(kv.UserError) as error:
        compare_texts(tmp_path, f"{NAMES}a,p,b,head,3\n", text)
    assert words in str(error.value)
    assert "fix: " in str(error.value)


def test_queries_must_be_those_of_the_graph(tmp_path: Path):
    job = kv.Job(kv.Source("countries"))
    first = kv.load_graph("countries").test[0]
    right = f"query,head,relation,tail,side,rank\n0,{first.first},{first.predicate},{first.second},head,3\n"
    assert compare_texts(tmp_path, right, "query,side,rank\n0,head,3\n", job=job).verdict is kv.Verdict.AGREE
    for text, words in (
        (right.replace("\n0,", "\n1,"), "the triple of query 1 of test of countries"),
        (right.replace("\n0,", "\n24,"), "one of the 24 queries of test of countries"),
        (right.replace(first.first, "atlantis").replace("query,", "").replace("\n0,", "\n"), "'locatedInCR(atlantis"),
    ):
        with pytest.raises(kv.UserError, match="fix: ") as error:
            compare_texts(tmp_path, right, text, job=job)
        assert words in str(error.value)


def test_the_command_saves_a_run_and_ends_with_the_verdict(tmp_path: Path):
    pytest.importorskip("kgverify.prover.engine")
    triples = ("<script>alert(1)</script>", "p", "b"), ("c", "p", "d"), ("e", "p", "f")
    for name, more in (("ours", 0), ("theirs", 1), ("copy", 0)):
        rows = (f"{','.join(triple)},tail,{rank + more}\n" for rank, triple in enumerate(triples, 1))
        (tmp_path / f"{name}.csv").write_text(NAMES + "".join(rows))
    found = invoke(["diff", "ours.csv", "theirs.csv", "--save", "run"], tmp_path)
    assert found.exit_code == 1
    words = "all 3 actual ranks follow from the expected ones: each rank is one too high, as if the true triple were above itself"
    assert words in " ".join(found.stdout.split())
    assert invoke(["diff", "ours.csv", "copy.csv"], tmp_path).exit_code == 0
    assert invoke(["diff", "ours.csv", "ours.csv"], tmp_path).exit_code == 3
    assert invoke(["diff", "ours.csv", "theirs.csv", "--graph", "countries"], tmp_path).exit_code == 2
    assert invoke(["report", "run", "--html", "page.html", "--junit", "cases.xml"], tmp_path).exit_code == 0
    assert "<script>alert" not in (tmp_path / "page.html").read_text()
    assert (tmp_path / "cases.xml").read_text().count("<failure") == 3
