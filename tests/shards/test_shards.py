"""Traces of several processes: every planted fault of the sharing is named, with its ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sharded_engine as engine
from invoked_commands import invoke

import kgverify as kv

ANY = kv.Equality(minimum={})
NAMES = [f"path(n{a}, n{b})" for _, a, b in engine.QUERIES]

NAMED = {
    "first lost": [("lost", 0, 0)],
    "middle lost": [("lost", 14, 2)],
    "last lost": [("lost", 29, 1)],
    "remainder lost": [("lost", 28, 0), ("lost", 29, 1)],
    "padded by repetition": [("doubled", 0, 2), ("doubled", 1, 3)],
    "exchanged between ranks": [("wrong_rank", 5, 2), ("wrong_rank", 14, 1)],
    "names exchanged": [("foreign", 5, 1), ("foreign", 14, 2)],
    "wrong rank": [("wrong_rank", 9, 3)],
    "wrong offset": [(kind, n, n % 4) for kind, rank in (("lost", 2), ("doubled", 3)) for n in range(rank, 30, 4)],
    "another seed": [("number", n, 1) for n in range(1, 30, 4)],
    "stale limit": [("outcome", 3, 3), ("outcome", 23, 3)],
    "rank written twice": [("doubled", n, 1) for n in range(1, 30, 4)],
}
"""The divergences of each fault: the class, the number of the query, and the rank."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "whole.h5"
    engine.write(path, range(len(engine.QUERIES)))
    return path


def write(folder: Path, fault: str = "none", assign: str = "modulo") -> Path:
    folder.mkdir()
    for rank in range(engine.WORLD):
        engine.write_rank(folder, rank, fault, assign)
    return folder


def list_named(report: kv.Report) -> list[tuple[str, int, int]]:
    return sorted((each.kind.value, NAMES.index(each.atom), each.rank) for each in report.divergences)


def check(whole: Path, folder: Path, fault: str) -> None:
    """Compare the traces of a fault with the whole one."""
    if fault == "another seed, stated":
        with pytest.raises(kv.UserError, match=r"rank-1\.h5:header: differs in policy from that of .*rank-0\.h5"):
            kv.compare(whole, folder)
        return
    report = kv.compare(whole, folder, equality=ANY)
    has_gap = fault in ("no trace of a rank", "rank written twice")
    assert report.verdict.value == ("INCONCLUSIVE" if has_gap else "AGREE" if fault == "none" else "DIVERGE")
    assert ["rank 2 of 4 has no trace" in reason for reason in report.reasons] == [True] * has_gap
    if fault == "gathered in the order of ranks":
        assert {each.rank for each in report.divergences if "it holds the derivation of" in each.evidence} == {
            0,
            1,
            2,
            3,
        }
    else:
        assert list_named(report) == sorted(NAMED.get(fault, []))
    for rank in {each.rank for each in report.divergences}:
        assert any(f"actual rank {rank} (rank-{rank}.h5)" in note and "the earliest" in note for note in report.notes)


@pytest.mark.parametrize(
    "fault",
    ["none", "padded by repetition", "wrong offset", "stale limit", "another seed, stated", "no trace of a rank"],
)
def test_a_fault_of_the_sharing_is_named_with_its_ranks(whole, tmp_path, fault):
    check(whole, write(tmp_path / "ranks", fault), fault)


@pytest.mark.deep
def test_every_fault_of_four_processes_is_named_with_its_ranks(whole, tmp_path):
    script = Path(engine.__file__)
    processes = [subprocess.Popen([sys.executable, script, tmp_path, str(rank)]) for rank in range(engine.WORLD)]
    assert [each.wait() for each in processes] == [0] * engine.WORLD
    for fault in ("none", *engine.FAULTS):
        check(whole, tmp_path / fault, fault)


def test_copies_and_exchanges_are_described(whole, tmp_path):
    evidence = {}
    for fault in ("exchanged between ranks", "names exchanged", "rank written twice"):
        folder = write(tmp_path / fault, fault)
        check(whole, folder, fault)
        evidence[fault] = kv.compare(whole, folder, equality=ANY).divergences[0].evidence
    assert list(evidence.values()) == [
        f"rank 2 computed it; by modulo of queries, it belongs to rank 1, which computed {NAMES[14]} in exchange",
        f"it holds the derivation of {NAMES[14]}, of rank 2, in exchange",
        "computed 2 times on the actual side, by rank 1 and rank 1; the copies agree",
    ]
    engine.write(folder / "rank-2.h5", engine.share(1), kv.Part(1, 4, "modulo"), seed=8)
    report = kv.compare(whole, folder, equality=ANY)
    assert ["the copies differ" in each.evidence for each in report.divergences] == [True] * 8


def test_blocks_and_other_worlds_are_joined_in_any_order(tmp_path):
    blocks, modulo = write(tmp_path / "blocks", assign="blocks"), tmp_path / "modulo"
    modulo.mkdir()
    for rank in range(3):
        engine.write(modulo / f"{9 - rank}.h5", engine.share(rank, world=3), kv.Part(rank, 3, "modulo"))
    assert kv.compare(blocks, modulo, equality=ANY).verdict.value == "AGREE"
    engine.write(modulo / "8.h5", [*engine.share(1, world=3), 0], kv.Part(1, 3, "modulo"))
    engine.write(modulo / "9.h5", engine.share(0, world=3)[:-1], kv.Part(0, 3, "modulo"))
    report = kv.compare(blocks, modulo, equality=ANY)
    assert list_named(report) == [("doubled", 0, 1), ("lost", 27, 0)]
    assert list_named(kv.compare(modulo, blocks, equality=ANY)) == [("doubled", 0, 0), ("lost", 27, 3)]


def test_without_a_rule_the_other_side_tells_the_right_rank(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        for rank in range(4):
            own = engine.share(rank, assign="modulo" if name != "c" else "blocks")
            own = [{5: 14, 14: 5}.get(number, number) for number in own] if name == "b" else own
            engine.write(tmp_path / name / f"{rank}.h5", own, kv.Part(rank, 4))
    report = kv.compare(tmp_path / "a", tmp_path / "b", equality=ANY)
    assert list_named(report) == [("wrong_rank", 5, 2), ("wrong_rank", 14, 1)]
    assert "as on the expected side" in report.divergences[0].evidence
    # Two rules that have little in common are no evidence.
    assert kv.compare(tmp_path / "a", tmp_path / "c", equality=ANY).verdict.value == "AGREE"


def test_what_both_sides_doubled_is_no_agreement(tmp_path):
    sides = [write(tmp_path / name, "padded by repetition") for name in ("a", "b")]
    report = kv.compare(*sides, equality=ANY)
    assert report.verdict.value == "DIVERGE"
    assert [(each.kind.value, NAMES.index(each.atom)) for each in report.divergences] == [
        ("doubled", 0),
        ("doubled", 1),
    ]


def test_a_lone_rank_is_compared_only_with_itself(whole, tmp_path):
    sides = [write(tmp_path / name) for name in ("a", "b")]
    alike = kv.compare(sides[0] / "rank-1.h5", sides[1] / "rank-1.h5", equality=ANY)
    assert (alike.verdict.value, alike.coverage.candidates) == ("AGREE", 8)
    report = kv.compare(whole, sides[1] / "rank-1.h5", equality=ANY)
    assert report.verdict.value == "INCONCLUSIVE"
    assert "is the trace of rank 1 of 4: give the folder with all [KG204]" in report.reasons[0]
    assert not report.divergences
    assert kv.compare(sides[0], sides[0], equality=ANY).reasons[0].startswith("the same recording twice")


def test_traces_that_are_not_of_one_recording_are_refused(whole, tmp_path):
    folder = write(tmp_path / "ranks")
    engine.write(folder / "rank-3.h5", engine.share(3), kv.Part(3, 5, "modulo"))
    with pytest.raises(kv.UserError, match=r"processes of one recording, found .*rank-3\.h5 \(.*world=5"):
        kv.compare(whole, folder)
    engine.write(folder / "rank-3.h5", engine.share(3))
    with pytest.raises(kv.UserError, match=r"rank-3\.h5 \(no rank\)"):
        kv.compare(whole, folder)
    write(tmp_path / "cut")
    cut = tmp_path / "cut" / "rank-2.h5"
    cut.write_bytes(cut.read_bytes()[:-400])
    with pytest.raises(kv.UserError, match=r"rank-2\.h5.*cut off or damaged"):
        kv.compare(whole, tmp_path / "cut")
    with pytest.raises(kv.UserError, match="is rank 4 of a world of 4"):
        kv.Part(4, 4)


def test_a_rank_may_be_a_folder_and_is_named_if_it_did_not_finish(whole, tmp_path):
    folder = write(tmp_path / "ranks")
    (folder / "rank-2.h5").unlink()
    engine.write(folder / "rank-2", engine.share(2), kv.Part(2, 4, "modulo"), shard_steps=5)
    assert len(list((folder / "rank-2").glob("shard-*.h5"))) > 1
    assert kv.compare(whole, folder, equality=ANY).verdict.value == "AGREE"
    (folder / "rank-2").rename(folder / "rank-2.partial")
    report = kv.compare(whole, folder, equality=ANY)
    assert report.verdict.value == "INCONCLUSIVE"
    assert "rank-2.partial is not complete: resume its recording" in report.reasons[0]
    with pytest.raises(kv.UserError, match=r"rank-2\.partial is not complete"):
        kv.open_trace(folder)


def test_the_ranks_of_a_recording_are_one_trace(tmp_path):
    options = ("--engine", "reference", "--queries", "3", "--corruptions", "2")
    for name, more in (("whole", ()), ("0", ("--rank", "0", "--world", "2")), ("1", ("--rank", "1", "--world", "2"))):
        folder = tmp_path / ("ranks" if more else ".")
        folder.mkdir(exist_ok=True)
        assert invoke(["record", *options, *more, "-o", f"{name}.h5"], folder).exit_code == 0
    trace = kv.open_trace(tmp_path / "ranks")
    assert [(member.part, member.num_candidates) for member in trace.members] == [
        (kv.Part(rank, 2, "modulo"), num) for rank, num in ((0, 12), (1, 6))
    ]
    assert trace.load().rankings.query.tolist() == [0, 0, 1, 1, 2, 2]
    found = invoke("diff whole.h5 ranks --minimum none", tmp_path)
    assert found.stdout.startswith("AGREE   18 candidates"), found
    assert invoke("trace join ranks -o joined", tmp_path).exit_code == 0
    assert kv.open_trace(tmp_path / "joined").header.part is None
    report = kv.compare(tmp_path / "whole.h5", tmp_path / "joined", equality=ANY)
    assert (report.verdict.value, report.metrics.actual) == ("AGREE", report.metrics.expected)
    assert "expected rank and world" in invoke("record --engine reference --world 2 -o x.h5", tmp_path).output


def test_reports_show_the_ranks(whole, tmp_path):
    folder = write(tmp_path / "ranks", "wrong offset")
    report = kv.compare(whole, folder, equality=ANY, save=tmp_path / "run")
    page = report.to_html(tmp_path / "report.html").read_text()
    for text in (str(report), page):
        assert "no rank of the actual side computed it" in text
        assert "actual rank 2 (rank-2.h5): 7 divergences; the earliest in its order: shard of path(n2, n11)" in text
        assert "KG125" in text
    shown = json.loads((tmp_path / "run" / "report.json").read_text())
    assert {(each["stage"], each["code"]) for each in shown["causes"]} == {("shard", "KG125"), ("shard", "KG126")}
    assert kv.open_trace(tmp_path / "run" / "actual.h5").num_candidates == 30


def test_lines_state_the_rank_and_need_the_number_of_the_query(tmp_path):
    header = {
        "trace": 1,
        "engine": "other",
        "part": {"rank": 1, "world": 2},
        "constants": ["a", "b"],
        "predicates": ["p"],
    }
    steps = {"candidate": ["p", "a", "b"]}, {"goal": [["p", "a", "b"]], "successors": [True], "choice": 0}
    lines, output = tmp_path / "rank-1.jsonl", tmp_path / "rank-1.h5"
    lines.write_text("\n".join(map(json.dumps, (header, *steps))))
    words = ["trace", "import", lines, "-o", output]
    assert "candidates.query is missing" in invoke(words).output
    lines.write_text("\n".join(map(json.dumps, (header, steps[0] | {"query": 1}, steps[1]))))
    assert invoke(words).exit_code == 0
    assert kv.open_trace(output).header.part == kv.Part(1, 2)


def test_single_candidates_of_a_query_may_be_shared(tmp_path):
    def record(path, numbers, part=None):
        """Number all candidates as those of three queries, each of the tail side."""
        engine.write(path, numbers, part, query=[number // 10 for number in numbers])

    record(tmp_path / "whole.h5", range(30))
    for assign in ("modulo", "blocks", ""):
        folder = tmp_path / f"ranks {assign}"
        folder.mkdir()
        for rank in range(4):
            record(folder / f"{rank}.h5", engine.share(rank, assign or "modulo"), kv.Part(rank, 4, assign))
        assert kv.compare(tmp_path / "whole.h5", folder, equality=ANY).verdict.value == "AGREE"
    # A candidate of a query is lost, and another one doubled: it was not drawn differently.
    folder = tmp_path / "ranks modulo"
    record(
        folder / "1.h5",
        [5 if number == 1 else 2 if number == 5 else number for number in engine.share(1)],
        kv.Part(1, 4, "modulo"),
    )
    report = kv.compare(tmp_path / "whole.h5", folder, equality=ANY)
    assert list_named(report) == [("doubled", 2, 2), ("lost", 1, 1)]
    assert "by modulo of candidates, it belongs to rank 1" in report.divergences[0].evidence
