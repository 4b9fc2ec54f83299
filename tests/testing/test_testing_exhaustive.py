"""Every program of a scope, once; as many as Burnside's lemma counts; and what a certificate says."""

from concurrent.futures import Future, wait
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgverify.errors import UserError
from kgverify.program.atoms import Atom
from kgverify.runs.run import Pipeline, Run
from kgverify.testing.checking.engine_makers import EAGER, EngineSpec, MakePipeline, compiled_maker
from kgverify.testing.exhaustive import certificate as exhaustive
from kgverify.testing.exhaustive.burnside import count_programs
from kgverify.testing.exhaustive.certificate import Certificate, certify
from kgverify.testing.exhaustive.scope import SCOPES, Count, Scope, ScopedProgram, enumerate_programs, find_scope
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import Sizes

SMALL = Scope(name="small", max_body=1, max_facts=1, max_depth=(2,), max_atoms=(2,), max_resolvents=(1, 3))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "scope",
    [
        SCOPES["tiny"],
        SCOPES["one-rule"],
        SCOPES["one-rule-ordered"],
        Scope(name="two rules", max_rules=2, max_body=1, max_facts=2),
        Scope(name="two predicates", predicates=2, max_body=1, max_facts=3),
        Scope(name="two predicates, in order", predicates=2, max_body=1, max_facts=3, every_order=True),
        Scope(name="three constants", constants=3, max_body=1, max_facts=3),
        Scope(name="three constants, in order", constants=3, max_body=1, max_facts=4, every_order=True),
        Scope(name="four constants, in order", constants=4, max_rules=0, max_facts=4, every_order=True),
        Scope(name="no rules, two predicates, all facts", predicates=2, max_rules=0, max_facts=8),
    ],
    ids=lambda scope: scope.name,
)
def test_as_many_programs_are_enumerated_as_burnsides_lemma_counts(scope: Scope) -> None:
    programs = problems = 0
    for program in enumerate_programs(scope):
        programs += 1
        problems += len(program.queries) * len(scope.limits)
    assert Count(programs, problems) == count_programs(scope)


def test_the_scope_of_one_rule_holds_seven_million_problems() -> None:
    assert count_programs(find_scope("one-rule")) == Count(27_758, 7_400_052)
    assert len(find_scope("one-rule").limits) == 27


def _images(program: ScopedProgram, query: Atom, scope: Scope) -> set[object]:
    """A problem under every renaming, its facts as a set."""
    images: set[object] = set()
    for p in permutations(range(scope.predicates)):
        for c in permutations(range(scope.constants)):

            def rename(atom: Atom, p: tuple[int, ...] = p, c: tuple[int, ...] = c) -> Atom:
                first, second = (term if term < 0 else c[term] for term in atom[1:])
                return Atom(p[atom.predicate], first, second)

            rules = tuple(tuple(map(rename, rule)) for rule in program.rules)
            images.add((frozenset(map(rename, program.facts)), rules, rename(query)))
    return images


@pytest.mark.deep
@pytest.mark.parametrize(
    "scope", [SCOPES["tiny"], Scope(name="two predicates", predicates=2, max_body=1, max_facts=1)], ids=str
)
def test_no_problem_is_a_renaming_of_another(scope: Scope) -> None:
    seen: set[object] = set()
    for program in enumerate_programs(scope):
        for query in program.queries:
            images = _images(program, query, scope)
            assert seen.isdisjoint(images)
            seen |= images


@pytest.mark.deep
def test_in_every_order_no_two_problems_are_the_same_in_numbers() -> None:
    scope = Scope(name="ordered", max_body=1, max_facts=2, every_order=True)
    seen: set[object] = set()
    num = 0
    for each in enumerate_programs(scope):
        for query in each.queries:
            merged = merge([each._replace(queries=(query,)).problem(scope.limits[0])])
            program = merged.graph.program
            seen.add((program.facts.tobytes(), program.rules, merged.unranked.atom.tobytes()))
            num += 1
    assert len(seen) == num == count_programs(scope).problems // len(scope.limits)


def test_a_list_of_facts_brings_its_constants_in_in_each_order() -> None:
    scope = Scope(name="ordered", max_rules=0, every_order=True)
    lists = [merge([each.problem(scope.limits[0])]).run.graph.program for each in enumerate_programs(scope)]
    facts = [tuple(map(tuple, program.facts.tolist())) for program in lists]
    # One empty set, one fact about one constant, and the eleven sets of facts about two that can be numbered so.
    assert len(facts) == len(set(facts)) == 13


@pytest.mark.deep
def test_no_divergence_exists_in_the_tiny_scope() -> None:
    done: list[int] = []
    certificate = certify(SCOPES["tiny"], progress=done.append)
    assert certificate.is_proof
    assert certificate.compared == certificate.expected == Count(860, 33_632)
    assert sum(done) == 33_632
    assert "no divergence exists in this scope" in str(certificate)


@pytest.mark.deep
@pytest.mark.parametrize("fault", ["query-matched", "no-revisit-check"])
def test_a_fault_is_found_and_reported(fault: str) -> None:
    certificate = certify(SMALL, compiled_maker(faults=[fault]))
    assert certificate.is_complete
    assert not certificate.is_proof
    assert 0 < certificate.divergent < certificate.compared.problems
    assert certificate.findings
    assert "no divergence" not in str(certificate)


def _state(path: Path, most_blocks: int | None = None) -> Certificate:
    return certify(SMALL, state=path, programs_at_once=100, most_blocks=most_blocks)


def test_an_interrupted_run_resumes(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    first = _state(path, most_blocks=1)
    assert not first.is_complete
    assert "have not been compared" in first.statement
    with path.open("ab") as file:
        file.write(b'{"block": 1, "progr')  # killed while it wrote a line
    calls: list[int] = []
    second = certify(SMALL, state=path, programs_at_once=100, progress=calls.append)
    assert calls[0] == first.compared.problems
    assert sum(calls) == second.expected.problems
    assert second.is_proof
    third = _state(path)
    assert third == second


def without_seconds(certificate: Certificate) -> Certificate:
    """Return the certificate without its seconds."""
    return msgspec.structs.replace(certificate, seconds=0.0)


@pytest.mark.exhaustive
def test_the_certificate_and_its_state_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    spec = EngineSpec(faults=("no-revisit-check",))
    calls: list[int] = []

    def run(jobs: int, most_blocks: int | None = None) -> Certificate:
        path = tmp_path / f"{jobs}.jsonl"
        return certify(
            SMALL, spec, state=path, programs_at_once=80, most_blocks=most_blocks, jobs=jobs, progress=calls.append
        )

    alone = run(1)
    assert alone.divergent
    assert len(alone.findings) > 10
    part = run(2, most_blocks=2)
    assert not part.is_complete
    calls.clear()
    assert without_seconds(run(2)) == without_seconds(alone)
    assert sum(calls) == alone.compared.problems
    assert calls[0] == part.compared.problems
    assert sorted(blocks_of(tmp_path / "2.jsonl")) == list(range(-(-alone.compared.programs // 80)))
    # Any number of processes can resume from a state.
    assert without_seconds(certify(SMALL, spec, state=tmp_path / "2.jsonl", programs_at_once=80)) == without_seconds(
        alone
    )


def blocks_of(path: Path) -> list[int]:
    return [msgspec.json.decode(line)["block"] for line in path.read_bytes().splitlines()[1:]]


@pytest.mark.deep
def test_ctrl_c_saves_the_blocks_in_progress(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"

    def pressed_while_waiting(futures: set[Future[object]], **named: Any) -> object:
        monkeypatch.undo()
        wait(futures, **named)
        raise KeyboardInterrupt

    told: list[bool] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(exhaustive, "wait", pressed_while_waiting)
        with pytest.raises(KeyboardInterrupt):
            certify(SMALL, EAGER, state=path, programs_at_once=80, jobs=2, on_interrupt=lambda: told.append(True))
    # Of the two handed over those that were begun, the one that was done before among them.
    assert set() < set(blocks_of(path)) <= {0, 1}
    assert told == [True]
    assert certify(SMALL, EAGER, state=path, programs_at_once=80).is_proof


def test_processes_need_the_name_of_an_engine() -> None:
    with pytest.raises(UserError, match="only its name"):
        certify(SMALL, compiled_maker(), programs_at_once=80, jobs=2)


def test_a_file_of_another_scope_engine_or_block_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    _state(path, most_blocks=1)
    content = path.read_bytes()
    with pytest.raises(UserError, match="with another scope"):
        certify(SCOPES["tiny"], state=path, programs_at_once=100)
    with pytest.raises(UserError, match="with another block size"):
        certify(SMALL, state=path, programs_at_once=50)
    with pytest.raises(UserError, match="with another engine"):
        certify(SMALL, compiled_maker(faults=["fact-cap"]), state=path, programs_at_once=100)
    assert path.read_bytes() == content
    other = tmp_path / "notes.txt"
    other.write_text("notes\nof mine")
    for _ in range(2):
        with pytest.raises(UserError, match="is not the state of a certificate"):
            _state(other)
        other.write_text("notes")
    assert other.read_text() == "notes"


def _failing(make: MakePipeline, fails: list[int]) -> MakePipeline:
    """Raises an exception where a rule's head is p(X, X), as some engines do."""

    def make_failing(run: Run, sizes: Sizes) -> Pipeline:
        heads = [rule.clause_head for rule in run.graph.program.rules]
        if run.limits.max_resolvents == 1 and any(a == b < 0 for _, a, b in heads):
            fails.append(len(heads))
            raise ValueError("repeated variable")
        return make(run, sizes)

    return make_failing


def test_where_the_engine_raises_an_exception_nothing_is_proved() -> None:
    fails: list[int] = []
    certificate = certify(SMALL, _failing(compiled_maker(), fails))
    assert fails
    assert not certificate.is_complete
    assert certificate.divergent == 1
    assert "p0(X0, X0) <-" in certificate.findings[0].problem
    assert certificate.findings[0].signature == "crash ValueError"


def test_scopes_that_hold_nothing_are_refused() -> None:
    with pytest.raises(UserError, match="constants is 0"):
        Scope(name="none", constants=0)
    with pytest.raises(UserError, match="a value or more of each limit"):
        Scope(name="none", max_depth=())
    with pytest.raises(UserError, match="one-rule"):
        find_scope("onerule")


def test_the_order_of_programs_never_changes() -> None:
    assert list(islice(enumerate_programs(SMALL), 50)) == list(islice(enumerate_programs(SMALL), 50))
