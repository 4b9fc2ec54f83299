"""Every program of a scope, once; as many as Burnside's lemma counts; and what a certificate says."""

from concurrent.futures import Future, wait
from dataclasses import replace
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest
from burnside import count_programs

from kgverify.engines.sizes import Sizes
from kgverify.errors import UserError
from kgverify.program.atoms import Atom
from kgverify.runs.engine_makers import (
    EAGER,
    EngineSpec,
    MakePipeline,
    Sides,
    compiled_maker,
    make_reference,
)
from kgverify.runs.run import Pipeline, Run
from kgverify.testing.exhaustive import certificate as exhaustive
from kgverify.testing.exhaustive.certificate import Certificate, certify
from kgverify.testing.exhaustive.scope import SCOPES, Count, Scope, ScopedProgram, enumerate_programs, find_scope


def make_scope(name: str, **sizes: Any) -> Scope:
    """Return a scope with its count."""
    scope = Scope(name=name, count=Count(0, 0), **sizes)
    return replace(scope, count=count_programs(scope))


SMALL = make_scope("small", max_body=1, max_facts=1, max_depth=(2,), max_atoms=(2,), max_resolvents=(1, 3))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "scope",
    [
        SCOPES["tiny"],
        SCOPES["one-rule"],
        make_scope("two rules", max_rules=2, max_body=1, max_facts=2),
        make_scope("two predicates", predicates=2, max_body=1, max_facts=3),
        make_scope("three constants", constants=3, max_body=1, max_facts=3),
        make_scope("no rules, two predicates, all facts", predicates=2, max_rules=0, max_facts=8),
    ],
    ids=lambda scope: scope.name,
)
def test_as_many_programs_are_enumerated_as_burnsides_lemma_counts(scope: Scope) -> None:
    programs = problems = 0
    for program in enumerate_programs(scope):
        programs += 1
        problems += len(program.queries) * len(scope.limits)
    assert Count(programs, problems) == scope.count


def test_the_counts_of_the_scopes_are_burnsides() -> None:
    assert all(scope.count == count_programs(scope) for scope in SCOPES.values())
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
    "scope", [SCOPES["tiny"], make_scope("two predicates", predicates=2, max_body=1, max_facts=1)], ids=str
)
def test_no_problem_is_a_renaming_of_another(scope: Scope) -> None:
    seen: set[object] = set()
    for program in enumerate_programs(scope):
        for query in program.queries:
            images = _images(program, query, scope)
            assert seen.isdisjoint(images)
            seen |= images


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
    certificate = certify(SMALL, EngineSpec(faults=(fault,)))
    assert certificate.is_complete
    assert not certificate.is_proof
    assert 0 < certificate.divergent < certificate.compared.problems
    assert certificate.findings
    assert "no divergence" not in str(certificate)


def _state(path: Path) -> Certificate:
    return certify(SMALL, state=path, programs_at_once=100)


def _interrupt(path: Path) -> None:
    """Interrupt a certificate in its second block."""
    calls: list[int] = []

    def press(num_problems: int) -> None:
        calls.append(num_problems)
        if len(calls) > len(SMALL.limits):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        certify(SMALL, state=path, programs_at_once=100, progress=press)
    assert blocks_of(path) == [0]


def test_an_interrupted_run_resumes(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    _interrupt(path)
    first = msgspec.json.decode(path.read_bytes().splitlines()[1])
    with path.open("ab") as file:
        file.write(b'{"block": 1, "progr')  # killed while it wrote a line
    calls: list[int] = []
    second = certify(SMALL, state=path, programs_at_once=100, progress=calls.append)
    assert calls[0] == first["problems"]
    assert sum(calls) == second.expected.problems
    assert second.is_proof
    assert second.resumed == first["problems"]
    third = _state(path)
    assert third == msgspec.structs.replace(second, resumed=second.expected.problems)


def without_seconds(certificate: Certificate) -> Certificate:
    """Return the certificate without its seconds."""
    return msgspec.structs.replace(certificate, seconds=0.0)


@pytest.mark.exhaustive
def test_the_certificate_and_its_state_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    spec = EngineSpec(faults=("no-revisit-check",))
    calls: list[int] = []

    def run(jobs: int) -> Certificate:
        path = tmp_path / f"{jobs}.jsonl"
        return certify(SMALL, spec, state=path, programs_at_once=80, jobs=jobs, progress=calls.append)

    alone = run(1)
    assert alone.divergent
    assert len(alone.findings) > 10
    # Two processes resume from the first two blocks.
    lines = (tmp_path / "1.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "2.jsonl").write_bytes(b"".join(lines[:3]))
    calls.clear()
    assert without_seconds(run(2)) == without_seconds(alone)
    assert sum(calls) == alone.compared.problems
    assert calls[0] == sum(msgspec.json.decode(line)["problems"] for line in lines[1:3])
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


def test_a_file_of_another_scope_engine_or_block_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    _interrupt(path)
    content = path.read_bytes()
    with pytest.raises(UserError, match="with another scope"):
        certify(SCOPES["tiny"], state=path, programs_at_once=100)
    with pytest.raises(UserError, match="with another block size"):
        certify(SMALL, state=path, programs_at_once=50)
    with pytest.raises(UserError, match="with another engine"):
        certify(SMALL, EngineSpec(faults=("fact-cap",)), state=path, programs_at_once=100)
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


def test_where_the_engine_raises_an_exception_nothing_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    fails: list[int] = []
    makers = _failing(compiled_maker(), fails), make_reference
    monkeypatch.setattr(Sides, "find_makers", lambda self: makers)
    certificate = certify(SMALL)
    assert fails
    assert not certificate.is_complete
    assert "have not been compared" in certificate.statement
    assert certificate.divergent == 1
    assert "p0(X0, X0) <-" in certificate.findings[0].problem
    assert certificate.findings[0].signature == "crash ValueError"


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(UserError, match="one-rule"):
        find_scope("onerule")


def test_the_order_of_programs_never_changes() -> None:
    assert list(islice(enumerate_programs(SMALL), 50)) == list(islice(enumerate_programs(SMALL), 50))
