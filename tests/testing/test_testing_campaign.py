"""Campaigns: what they try, keep and replay, how they resume, and how known divergences are judged."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kgverify as kv
from kgverify import Problem, UserError
from kgverify.dialects import Dialect
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule
from kgverify.runs.engine_makers import EAGER, PLAIN, EngineSpec, find_maker
from kgverify.runs.pool import MOST_KILLS, Here
from kgverify.testing.campaigns import campaign as campaigns
from kgverify.testing.campaigns.campaign import MOST_EXAMPLES, Campaign, Tally, run_campaign, try_block
from kgverify.testing.campaigns.result import (
    NOT_SHRUNK,
    Block,
    CampaignResult,
    Corpus,
    FoundDivergence,
    Identity,
    KnownDivergence,
    KnownStatus,
    is_shrunk,
    read_known,
)
from kgverify.testing.checking import guard as guards
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.failure import Failure, Signature
from kgverify.testing.reproducers.text_format import Reproducer, make_reproducer, read_reproducer

LOST = EngineSpec(faults=("last-fact-lost",))
TWO = EngineSpec(faults=("last-fact-lost", "visited-leak"))
LOST_SIGNATURE = "match_facts stage.match_facts missing"
TODAY = date(2026, 6, 1)
WORK = Identity(engine=EAGER, reference=PLAIN, lockstep=False, seed=0, block_size=32)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(campaigns, "BLOCK_SIZE", 32)


@pytest.fixture
def corpus(tmp_path) -> Path:
    return tmp_path / "corpus"


def known(signature: str = LOST_SIGNATURE, expires: date = date(2026, 6, 1), within: int = 10_000) -> KnownDivergence:
    return KnownDivergence(signature=signature, issue="#1", reason="a test", expires=expires, within=within)


def comparable(result: CampaignResult) -> tuple[object, ...]:
    """Return the results that must not depend on the clock, on the number of processes, or on the folder."""
    found = [(each.signature, each.num_problems, each.first, each.size, each.program) for each in result.divergences]
    return result.num_problems, result.num_differing, result.num_confirmed, result.exercise, result.stages, found


def interrupt_after(num_problems: int) -> Callable[[Tally], None]:
    """Return a watch that interrupts once, when `num_problems` problems are done."""
    pressed = []

    def watch(tally: Tally) -> None:
        if tally.phase == "try" and tally.done >= num_problems and not pressed:
            pressed.append(True)
            raise KeyboardInterrupt

    return watch


@pytest.mark.deep
def test_the_evaluator_as_it_is_passes_and_reports_what_was_exercised(corpus):
    result = run_campaign(Campaign(corpus=corpus, examples=96))
    assert result.is_passed
    assert (result.num_problems, result.divergences) == (96, [])
    assert result.num_candidates > 96
    assert result.exercise.outcomes["PROVED"] > 10
    assert [path.suffix for path in corpus.iterdir()] == [".jsonl"]


@pytest.mark.exhaustive
def test_a_divergence_is_kept_once_as_the_smallest_problem_that_shows_it(corpus):
    result = run_campaign(Campaign(corpus=corpus, engine=LOST, examples=64))
    assert not result.is_passed
    (found,) = result.divergences
    assert (found.signature, found.size, found.is_shrunk) == (LOST_SIGNATURE, 1, True)
    assert result.num_differing >= result.num_confirmed >= found.num_problems > 1
    made = read_reproducer(Path(found.file))
    assert made.engine == LOST
    assert made.notes == (f"problem {found.first} of seed 0",)
    assert str(Checker(find_maker(LOST)).judge(made.problem).signature) == LOST_SIGNATURE


@pytest.mark.exhaustive
def test_the_result_does_not_depend_on_the_number_of_processes(tmp_path):
    alone, together = (
        run_campaign(Campaign(corpus=tmp_path / str(jobs), engine=TWO, examples=80, jobs=jobs, most_shrunk=1))
        for jobs in (1, 2)
    )
    assert comparable(alone) == comparable(together)
    assert len(alone.divergences) > 1


@pytest.mark.deep
def test_the_corpus_is_replayed_first_and_nothing_is_tried_twice(corpus):
    first = run_campaign(Campaign(corpus=corpus, engine=LOST, examples=64))
    files = sorted(corpus.iterdir())
    phases: list[str] = []
    again = run_campaign(Campaign(corpus=corpus, engine=LOST, examples=64), watch=lambda t: phases.append(t.phase))
    assert phases[:2] == ["start", "replay"]
    assert "shrink" not in phases
    assert comparable(first) == comparable(again)
    assert again.num_resumed == 64
    assert [(each.signature, each.found) for each in again.replays] == [(LOST_SIGNATURE, LOST_SIGNATURE)]
    assert sorted(corpus.iterdir()) == files


@pytest.mark.exhaustive
def test_a_campaign_resumes_an_earlier_one_with_the_result_of_both(tmp_path):
    for examples in (40, 96):
        parts = run_campaign(Campaign(corpus=tmp_path / "parts", engine=TWO, examples=examples, most_shrunk=0))
    whole = run_campaign(Campaign(corpus=tmp_path / "whole", engine=TWO, examples=96, most_shrunk=0))
    assert comparable(parts) == comparable(whole)
    fresh = run_campaign(Campaign(corpus=tmp_path / "parts", engine=TWO, examples=32, is_fresh=True, most_shrunk=0))
    assert (fresh.num_problems, fresh.num_resumed) == (32, 0)


@pytest.mark.exhaustive
def test_other_engines_and_seeds_begin_anew_in_the_same_corpus(corpus):
    run_campaign(Campaign(corpus=corpus, engine=LOST, examples=32))
    for other in (Campaign(corpus=corpus, examples=32), Campaign(corpus=corpus, engine=LOST, seed=1, examples=32)):
        assert run_campaign(other).num_resumed == 0


@pytest.mark.exhaustive
def test_an_interrupted_campaign_keeps_what_it_found_and_shrinks_it_the_next_time(corpus):
    campaign = Campaign(corpus=corpus, engine=LOST, examples=96)
    stopped = run_campaign(campaign, watch=interrupt_after(32))
    assert stopped.is_interrupted
    assert stopped.num_problems == 32
    (found,) = stopped.divergences
    assert not found.is_shrunk
    assert not is_shrunk(read_reproducer(Path(found.file)))
    resumed = run_campaign(campaign)
    assert (resumed.is_interrupted, resumed.num_problems, resumed.num_resumed) == (False, 96, 32)
    assert [(each.file, each.is_shrunk, each.size) for each in resumed.divergences] == [(found.file, True, 1)]


def test_a_second_interrupt_ends_at_once(corpus):
    def watch(tally: Tally) -> None:
        if tally.phase == "try":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_campaign(Campaign(corpus=corpus, examples=96), watch=watch)


def test_seconds_are_a_budget_too(corpus):
    result = run_campaign(Campaign(corpus=corpus, seconds=0.3))
    assert 32 <= result.num_problems < 2000
    assert result.num_problems % 32 == 0


@pytest.mark.exhaustive
def test_a_repaired_divergence_is_replayed_and_passes(corpus):
    run_campaign(Campaign(corpus=corpus, engine=LOST, examples=32))
    repaired = run_campaign(Campaign(corpus=corpus, examples=32))
    assert repaired.is_passed
    assert [(each.signature, each.found) for each in repaired.replays] == [(LOST_SIGNATURE, "")]


@pytest.mark.deep
def test_a_divergence_that_only_the_corpus_shows_is_a_divergence(corpus):
    run_campaign(Campaign(corpus=corpus, engine=LOST, examples=32))
    for log in corpus.glob("*.jsonl"):
        log.unlink()
    result = run_campaign(Campaign(corpus=corpus, engine=LOST, examples=1, seed=3))
    assert not result.is_passed
    assert [each.signature for each in result.divergences] == [LOST_SIGNATURE]
    assert result.divergences[0].size == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("engine", "entry", "status", "is_passed"),
    [
        (LOST, known(), KnownStatus.OCCURS, True),
        (LOST, known(expires=date(2026, 5, 31)), KnownStatus.EXPIRED, False),
        (EngineSpec(), known(expires=date(2026, 5, 31)), KnownStatus.EXPIRED, False),
        (EngineSpec(), known(), KnownStatus.NOT_JUDGED, True),
        (EngineSpec(), known(within=32), KnownStatus.GONE, False),
        (LOST, known("resolve stage.resolve extra"), KnownStatus.NOT_JUDGED, False),
    ],
)
def test_a_known_divergence_is_counted_until_it_expires_or_is_gone(corpus, engine, entry, status, is_passed):
    result = run_campaign(Campaign(corpus=corpus, engine=engine, examples=32, known=(entry,)), today=TODAY)
    (judged,) = result.known
    assert (judged.status, result.is_passed) == (status, is_passed)
    assert (judged.num_problems > 0) == (engine == LOST and entry.signature == LOST_SIGNATURE)


@pytest.mark.deep
def test_a_known_divergence_is_gone_when_its_reproducer_agrees(corpus):
    run_campaign(Campaign(corpus=corpus, engine=LOST, examples=32))
    result = run_campaign(Campaign(corpus=corpus, examples=32, known=(known(),)), today=TODAY)
    assert [each.status for each in result.known] == [KnownStatus.GONE]
    assert not result.is_passed


def test_a_known_divergence_is_gone_where_a_replay_or_enough_problems_do_not_show_it():
    entry, name = known(within=100), LOST_SIGNATURE
    assert entry.judge({name}, {name}, 100, TODAY) is KnownStatus.OCCURS
    assert entry.judge((), {name}, 0, TODAY) is KnownStatus.GONE
    assert entry.judge((), (), 100, TODAY) is KnownStatus.GONE
    assert entry.judge({"another"}, {"another"}, 99, TODAY) is KnownStatus.NOT_JUDGED
    assert entry.judge({name}, (), 0, date(2026, 6, 2)) is KnownStatus.EXPIRED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[known]", "is not TOML"),
        ('[[known]]\nsignature = "a"\nissue = "b"\nreason = "c"\n', "missing required field `expires`"),
        ('[[known]]\nsignature = "a"\nissue = "b"\nreason = " "\nexpires = 2026-01-01\n', "its reason is empty"),
        ('[[known]]\nsignature = "a"\nissue = "b"\nreason = "c"\nexpires = 7\n', "expires"),
        ('[[known]]\nsignature = "a"\nissue = "b"\nreason = "c"\nexpires = 2026-01-01\nuntil = 1\n', "unknown field"),
        ('[[known]]\nsignature = "a"\nissue = "b"\nreason = "c"\nexpires = 2026-01-01\nwithin = 0\n', "1 or more"),
        (2 * '[[known]]\nsignature = "a"\nissue = "b"\nreason = "c"\nexpires = 2026-01-01\n', "there twice"),
    ],
)
def test_a_mistake_in_the_file_of_known_divergences_is_an_error(tmp_path, text, message):
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        read_known(path)
    assert caught.value.where.startswith(str(path))
    assert caught.value.fix


def test_a_file_of_known_divergences_lists_each_once(tmp_path):
    path = tmp_path / "known.toml"
    entry = '[[known]]\nsignature = "%s"\nissue = "b"\nreason = "c"\nexpires = 2026-01-01\n'
    path.write_text(entry % "a" + entry % "z")
    assert [each.signature for each in read_known(path)] == ["a", "z"]


def make_agreeing(**changes: object) -> Reproducer:
    """Return a reproducer of a problem on which both sides agree now."""
    problem = Problem(unranked=(NamedAtom("p", "a", "b"),))
    failure = Failure(index=0, problem=problem, group=(problem,), signature=Signature("prune", "stage.prune", "extra"))
    return replace(make_reproducer(failure, EngineSpec()), **changes)


def test_the_corpus_is_replayed_where_no_problem_is_left(corpus):
    path = Corpus(corpus).add(make_agreeing())
    result = run_campaign(Campaign(corpus=corpus, examples=0))
    assert [(each.file, each.signature, each.found) for each in result.replays] == [
        (str(path), "prune stage.prune extra", "")
    ]
    assert result.num_problems == 0


def test_a_reproducer_whose_shrink_ended_its_process_counts_as_shrunk(corpus, monkeypatch):
    path = Corpus(corpus).add(make_agreeing(notes=("a note", NOT_SHRUNK)))

    def do_all(run, executor, phase, tasks, take, after_death):
        assert len(tasks) == 1
        take(0, after_death)

    monkeypatch.setattr(campaigns._Run, "_do_all", do_all)
    campaigns._Run(Campaign(corpus=corpus), lambda tally: None).shrink_found(None)
    assert read_reproducer(path).notes == ("a note",)


@pytest.mark.parametrize(("most", "num"), [(0, 0), (1, 1), (2, 2), (9, 3)])
def test_no_more_reproducers_are_shrunk_than_a_campaign_allows(corpus, monkeypatch, most, num):
    nums: list[int] = []
    for _ in range(3):
        Corpus(corpus).add(make_agreeing(notes=(NOT_SHRUNK,)))
    monkeypatch.setattr(campaigns._Run, "_do_all", lambda run, executor, phase, tasks, *given: nums.append(len(tasks)))
    campaigns._Run(Campaign(corpus=corpus, most_shrunk=most), lambda tally: None).shrink_found(None)
    assert nums == [num]


def test_reproducers_of_one_signature_get_names_of_their_own(corpus):
    paths = [Corpus(corpus).add(make_agreeing()) for _ in range(3)]
    stem, second, third = (path.stem for path in paths)
    assert (second, third) == (f"{stem}-2", f"{stem}-3")
    assert [path for path, _ in Corpus(corpus).reproducers()] == sorted(paths)


def test_a_campaign_runs_in_this_process_by_default(corpus):
    here = Campaign(corpus=corpus)
    others = (replace(here, jobs=2), replace(here, is_apart=True), replace(here, scheduler="tcp://localhost:1"))
    assert here.runs_here
    assert not any(each.runs_here for each in others)


def test_a_default_number_of_problems_is_tried_where_no_budget_is_given(corpus):
    assert Campaign(corpus=corpus).most_examples == MOST_EXAMPLES
    assert Campaign(corpus=corpus, examples=5).most_examples == 5
    assert Campaign(corpus=corpus, seconds=1.0).most_examples is None
    assert Campaign(corpus=corpus, examples=5, seconds=1.0).most_examples == 5


def test_a_partial_block_that_is_tried_again_counts_once(corpus, monkeypatch):
    def work(run, executor, tasks, take, report, retry):
        for number, _, (_, _, num_problems, *_) in tasks:
            take(number, Block(number=number, num_problems=num_problems, num_steps=10 * num_problems))
            report(())

    monkeypatch.setattr(campaigns._Run, "_work", work)
    tallies: list[Tally] = []
    for examples in (40, 96):
        run = campaigns._Run(Campaign(corpus=corpus, examples=examples), tallies.append)
        run.try_blocks(None)
    # Blocks of 32 and 8 problems; then two of 32, the first of them in place of the 8.
    assert [(each.done, each.tried.num_steps) for each in tallies] == [(32, 320), (40, 400), (64, 640), (96, 960)]


@pytest.mark.parametrize("has_log", [False, True])
def test_only_a_process_that_can_be_replaced_may_end_itself(monkeypatch, tmp_path, has_log):
    may_end: list[bool] = []

    def record(checker, batch):
        may_end.append(guards._nothing is not None)
        return []

    monkeypatch.setattr(Checker, "find_suspects", record)
    try_block(WORK, 0, 4, (), tmp_path / "log" if has_log else None)
    assert set(may_end) == {has_log}
    assert guards._nothing is None


def test_problems_that_ended_a_process_are_run_in_halves_and_not_alone(monkeypatch):
    runs: list[tuple[int, ...]] = []

    def record(checker, batch):
        runs.append(batch.indices)
        return []

    monkeypatch.setattr(Checker, "find_suspects", record)
    try_block(WORK, 0, 16)
    whole = max(runs, key=len)
    first, second = whole[: len(whole) // 2], whole[len(whole) // 2 :]
    runs.clear()
    # The last problem runs alone.
    block = try_block(WORK, 0, 16, (whole, first, (15,)))
    assert second in runs
    assert {whole, first, (15,)}.isdisjoint(runs)
    assert [(each.signature.kind, each.count) for each in block.sightings] == [("death", 2)]


def test_a_block_whose_process_ends_is_tried_again_without_what_ended_it(corpus, monkeypatch):
    tried = []

    def work(run, executor, tasks, take, report, retry):
        number, _, arguments = next(iter(tasks))
        for _ in range(MOST_KILLS):
            arguments[-1].write_text("[3, 4]")
            _, arguments = retry(number, 1)
            tried.append(arguments[-2])

    monkeypatch.setattr(campaigns._Run, "_work", work)
    run = campaigns._Run(Campaign(corpus=corpus, examples=32, is_apart=True), lambda tally: None)
    run.try_blocks(None)
    assert tried[-1] == ((3, 4),)


def test_groups_that_ended_a_process_are_halved_down_to_single_problems():
    halved = campaigns._halve([[1, 2], [3], [4, 5, 6, 7]], {(1, 2), (3,), (4, 5, 6, 7), (6, 7)})
    assert list(halved) == [[1], [2], [3], [4, 5], [6], [7]]


def test_the_smallest_groups_contain_no_other():
    groups = [(1, 2, 3), (1, 2), (4,), (4, 5), (2, 3)]
    assert campaigns._find_smallest(groups) == [(4,), (1, 2), (2, 3)]


def test_a_missing_file_of_known_divergences_is_an_error(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_known(tmp_path / "nothing.toml")


@pytest.mark.deep
def test_a_line_that_was_being_written_when_the_process_died_is_tried_again(corpus):
    campaign = Campaign(corpus=corpus, examples=64)
    run_campaign(campaign)
    (log,) = corpus.glob("*.jsonl")
    log.write_bytes(log.read_bytes()[:-20])
    again = run_campaign(campaign)
    assert (again.num_problems, again.num_resumed) == (64, 32)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("log", "x\ny\n", "is not the log of a campaign"), ("bad.kg", "p(a, b)\n", "expected")],
)
def test_a_corpus_that_cannot_be_read_is_an_error(corpus, name, text, message):
    campaign = Campaign(corpus=corpus, examples=1)
    run_campaign(campaign)
    (log,) = corpus.glob("*.jsonl")
    (log if name == "log" else corpus / name).write_text(text)
    with pytest.raises(UserError, match=message):
        run_campaign(campaign)


def test_a_corpus_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is not a folder"):
        run_campaign(Campaign(corpus=tmp_path / "file", examples=1))


OWN = """
import os

def cannot_be_made(program, limits, policy):
    raise RuntimeError("not yet")

def raises(program, limits, policy):
    raise_it = lambda *arguments: cannot_be_made(program, limits, policy)
    return type("Raises", (), {"prove": raise_it, "step": raise_it})()

def dies(program, limits, policy):
    os._exit(1)
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> None:
    (tmp_path / "own_engine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))


def test_an_engine_that_raises_an_exception_is_a_divergence(own, corpus):
    campaign = Campaign(corpus=corpus, engine=EngineSpec("own_engine:raises"), examples=8)
    (found,) = run_campaign(campaign).divergences
    assert found.signature == "crash RuntimeError"
    assert found.size == 0


def test_an_engine_whose_factory_raises_an_exception_is_the_users_mistake(own, corpus):
    campaign = Campaign(corpus=corpus, engine=EngineSpec("own_engine:cannot_be_made"), examples=8)
    with pytest.raises(
        UserError, match=r"(?s)making the engine failed: RuntimeError: not yet .*own_engine.py:5.*expected a class"
    ):
        run_campaign(campaign)


def test_a_process_that_dies_is_an_error(own, corpus):
    campaign = Campaign(corpus=corpus, engine=EngineSpec("own_engine:dies"), examples=8, jobs=2)
    with pytest.raises(UserError, match="a process died"):
        run_campaign(campaign)


def test_an_engine_that_cannot_be_made_is_an_error_before_anything_is_tried(corpus):
    with pytest.raises(UserError, match="cannot make the engine 'nothing'"):
        run_campaign(Campaign(corpus=corpus, engine=EngineSpec("nothing"), examples=1))
    assert not corpus.exists()


@pytest.mark.exhaustive
def test_a_divergence_beyond_the_limit_is_shrunk_by_the_next_campaign(corpus):
    campaign = Campaign(corpus=corpus, engine=LOST, examples=32, most_shrunk=0)
    (found,) = run_campaign(campaign).divergences
    assert not found.is_shrunk
    (found,) = run_campaign(replace(campaign, most_shrunk=1)).divergences
    assert found.is_shrunk


def test_of_several_divergences_those_beyond_the_limit_wait(corpus):
    found = [(corpus / f"{i}.kg", make_agreeing(notes=(NOT_SHRUNK,))) for i in range(3)]
    tasks: list[object] = []
    run: Any = SimpleNamespace(
        replays=(),
        corpus=SimpleNamespace(reproducers=lambda: found),
        campaign=Campaign(corpus=corpus, engine=LOST, most_shrunk=2),
        is_interrupted=False,
        _do_all=lambda executor, phase, given, *others: tasks.extend(given),
    )
    campaigns._Run.shrink_found(run, None)  # type: ignore[arg-type]
    assert len(tasks) == 2


def test_tasks_that_end_together_are_handed_over_in_their_order(corpus):
    class Six(Here):
        def count(self) -> int:
            return 6

    taken: list[tuple[int, int]] = []
    run: Any = SimpleNamespace(campaign=Campaign(corpus=corpus, jobs=6), is_interrupted=False)
    tasks = ((number, int, (10 * number,)) for number in range(12))
    campaigns._Run._work(run, Six(), tasks, lambda *each: taken.append(each), lambda at_work: None, None)  # type: ignore[arg-type]
    assert taken == [(number, 10 * number) for number in range(12)]


@pytest.mark.parametrize(
    ("most", "blocks"), [(0, []), (20, [(0, 20)]), (64, [(0, 32), (1, 32)]), (65, [(0, 32), (1, 32), (2, 1)])]
)
def test_no_block_is_empty(most, blocks):
    assert list(campaigns._blocks_to_do({}, 32, most)) == blocks


def test_a_divergence_of_the_corpus_alone_has_no_first_problem(corpus):
    x, y, z = map(Variable, "XYZ")
    rule = NamedRule(NamedAtom("q", x, z), (NamedAtom("p", x, y), NamedAtom("r", y, z)))
    facts = tuple(NamedAtom("p", "a", f"c{i}") for i in range(3))
    problem = Problem(facts=facts, rules=(rule,), unranked=(NamedAtom("q", "a", x),))
    failure = Checker(find_maker(LOST)).judge(problem)
    assert failure is not None
    Corpus(corpus).add(make_reproducer(failure, LOST))
    (found,) = run_campaign(Campaign(corpus=corpus, engine=LOST, examples=0)).divergences
    assert (found.num_problems, found.first) == (0, -1)


def describe(**given: object) -> list[str]:
    """Return the lines of a result that has these values, and 0 everywhere else."""
    empty: dict[type, object] = {int: 0, float: 0.0, bool: False, str: ""}
    fields = {name: empty.get(kind, kind()) for name, kind in CampaignResult.__annotations__.items() if kind in empty}
    lists: dict[str, object] = {name: [] for name in ("divergences", "known", "replays")}
    counts: dict[str, object] = {name: {} for name in ("stages", "classes")}
    return str(CampaignResult(**{**fields, **lists, **counts, **given})).splitlines()


def new_divergence(number: int, **given: object) -> FoundDivergence:
    return FoundDivergence(signature=f"prune extra {number}", stage="prune", kind="extra", is_new=True, **given)


@pytest.mark.parametrize(("num", "more"), [(20, []), (21, ["1 more in the corpus"]), (25, ["5 more in the corpus"])])
def test_twenty_new_divergences_are_listed(num, more):
    lines = describe(divergences=[new_divergence(number) for number in range(num)])
    assert [line for line in lines if line.startswith("prune extra")] == [
        f"prune extra {number}   in the corpus" for number in range(20)
    ]
    assert [line for line in lines if "more in the corpus" in line] == more


@pytest.mark.parametrize("num_lines", [12, 13])
def test_a_long_program_of_a_divergence_is_cut(num_lines):
    program = [f"p(a, c{i})." for i in range(num_lines)]
    found = new_divergence(0, program="\n".join(program), file="a.kg", num_problems=2, first=7, neighbour="one less")
    lines = describe(divergences=[found])
    shown = program if num_lines == 12 else [*program[:11], "... 13 lines in all"]
    assert lines[-len(shown) - 3 :] == [
        "prune extra 0   in 2 problems, first in problem 7",
        *(f"   {line}" for line in shown),
        "   both sides agree with one change: one less",
        "   kgverify replay a.kg   (not shrunk yet)",
    ]


def test_the_dialect_of_a_campaign_is_named_unless_it_is_kgverifys():
    assert not any("dialect" in line for line in describe())
    assert "   dialect     ties random" in describe(dialect=Dialect(ties="random"))


def test_stages_and_classes_are_counted():
    assert describe(stages={"select": 1, "prune": 1_200})[-1] == "   stages      prune 1,200, select 1"
    assert describe(classes={"extra": 2})[-1] == "   classes     extra 2"


def test_a_dialect_other_than_the_default_one_is_named():
    other = Dialect(is_reversed=True)
    assert not any("dialect" in line for line in describe())
    assert f"   dialect     {other}" in describe(dialect=other)


def test_a_campaign_without_a_corpus_writes_nothing_and_names_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = kv.Evaluator(mode="eager", device="cpu", faults="last-fact-lost")
    result = kv.fuzz(engine, examples=32)
    assert list(tmp_path.iterdir()) == []
    (found,) = result.new
    assert (found.signature, found.file, found.is_shrunk) == (LOST_SIGNATURE, "", True)
    assert "p(a, a)." in found.program
    assert "not saved: a corpus keeps its reproducer" in str(result)
    kept = kv.fuzz(engine, examples=32, corpus=tmp_path / "corpus").new[0]
    assert kv.replay(kept.file).is_same
    assert kept.program == found.program
