"""The reference judged by programs that share nothing with it, SWI-Prolog and clingo, on the problems that fuzzing generates.

Prolog judges every stage of every step, and what can be proved in how many steps by any choice; clingo the least models, and by
these what is proved. Programs generated for these judges alone are in tests/reference.
"""

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
from judges.cases import Case, NamedAtom, Term
from judges.derivations import build_program, derive, encode_queries, judge_derivations, limits_of
from judges.models import has_clingo, is_small, judge_models

import kgreference
from kgreference import Atom, Derivation, Limits, Outcome, Program, Resolvent, Shortest, Situation, Stages
from kgreference.resolvent import Kind, Matches
from kgverify.laws import draw_problems
from kgverify.program.atoms import NamedAtom as ProblemAtom
from kgverify.program.atoms import Variable

NUM_PROGRAMS = int(os.environ.get("KGVERIFY_JUDGED", "1000"))
"""Programs that each judge gets."""

ANSWERS = Path(__file__).parent / "provability.pl"
MOST_INFERENCES = 1_000_000
"""The limit of Prolog for one query: a count, so that the same queries are decided on every machine."""
MOST_LOADED = 500
"""Programs of one Prolog process, which gets slower with every program that it has forgotten."""
MOST_FACTS: Final = 500
"""Prolog looks at the facts one by one."""
NO_MATCHES: Final = Matches.of([])
SOUND: Final = Stages()


def draw_cases(seed: int) -> Iterator[Case]:
    """Generated problems, each alone, without the unused symbols that only an engine's tables care for."""
    for problem in draw_problems(seed):
        if len(problem.facts) > MOST_FACTS:
            continue
        labels: dict[str, int] = {}

        def term(name: str | Variable, labels: dict[str, int] = labels) -> Term:
            return f"n{name.name.lower()}" if isinstance(name, Variable) else labels.setdefault(name, len(labels))

        def atom(named: ProblemAtom, labels: dict[str, int] = labels) -> NamedAtom:
            return labels.setdefault(f"/{named.predicate}", len(labels)), term(named.first), term(named.second)

        limits = problem.limits
        yield Case(
            [atom(fact) for fact in problem.facts],
            [(atom(rule.clause_head), [atom(each) for each in rule.body]) for rule in problem.rules],
            [atom(query) for query in (*problem.queries, *problem.unranked)],
            [],
            (limits.max_depth, limits.max_atoms, limits.max_resolvents, limits.exclude_query),
            [],
        )


def excluded_by(limits: Limits, query: Atom) -> Atom | None:
    """The fact that the derivation of a query may not use."""
    return query if limits.exclude_query and min(query) >= 0 else None


class Prolog:
    """A SWI-Prolog process that holds one program, and answers what can be proved."""

    def __init__(self, executable: str) -> None:
        self.executable = executable
        self.start()

    def start(self) -> None:
        """Begin a process."""
        self.num_programs = 0
        self.process = subprocess.Popen(
            [self.executable, "-q", "-g", "main", "-t", "halt", str(ANSWERS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *requests: str) -> list[Any]:
        """The answers to requests."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("".join(f"{request}.\n" for request in requests))
        self.process.stdin.flush()
        return [json.loads(self.process.stdout.readline()) for _ in requests]

    def load(self, program: Program) -> None:
        """Hold this program from now on."""
        if self.num_programs == MOST_LOADED:
            self.close()
            self.start()
        self.num_programs += 1
        clauses = [f"c({render(rule.head)}, {render_all(rule.body)})" for rule in program.rules]
        clauses += [f"c({render(fact)}, [])" for fact in program.facts]
        assert self.ask(f"load([{', '.join(clauses)}])") == [len(clauses)]

    def judge_outcomes(self, case: Case, seen: Counter[str]) -> list[str]:
        """Return candidates that are PROVED in too few steps, or that FAILED without a choice and can be proved."""
        program, limits = build_program(case), limits_of(case)
        self.load(program)
        asked: list[tuple[Derivation, bool]] = []
        requests = []
        for query in encode_queries(program, case):
            each = derive(program, case, Shortest(), query)
            is_proved = each.outcome is Outcome.PROVED
            if is_proved or (each.outcome is Outcome.FAILED and had_no_choice(each)):
                asked.append((each, is_proved))
                excluded = excluded_by(limits, query)
                withheld = render(excluded) if excluded else "none"
                most = len(each.steps) if is_proved else limits.max_depth
                requests.append(f"prove({render(query)}, {withheld}, {most}, {MOST_INFERENCES})")
        wrong = []
        for (each, is_proved), answer in zip(asked, self.ask(*requests), strict=True):
            seen["undecided" if answer < 0 else "PROVED" if is_proved else "FAILED"] += 1
            if is_proved and answer == 0:
                wrong.append(f"{each.query} is proved in {len(each.steps)} steps and cannot be")
            if not is_proved and answer == 1:
                wrong.append(f"{each.query} failed and can be proved")
        return wrong

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=60)


def had_no_choice(derivation: Derivation) -> bool:
    """Return whether no step had a second resolvent, or dropped one: then a failed goal cannot be proved."""
    return not derivation.is_limited and all(
        len(step.after_rename) <= 1 and len(step.after_revisit) == len(step.after_rename) for step in derivation.steps
    )


def render(atom: Atom) -> str:
    """An atom as Prolog has it."""
    first, second = (str(term) if term >= 0 else f"V{-1 - term}" for term in atom[1:])
    return f"[{atom[0]}, {first}, {second}]"


def render_all(atoms: Sequence[Atom]) -> str:
    """Atoms as a Prolog list."""
    return f"[{', '.join(map(render, atoms))}]"


def is_missing(what: str) -> None:
    """Skip, or fail where every judge must be there."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is not installed")
    pytest.skip(f"{what} is not installed")


@pytest.fixture(scope="module")
def prolog() -> Iterator[Prolog]:
    executable = shutil.which("swipl")
    if executable is None:
        is_missing("swipl")
    assert executable is not None
    judge = Prolog(executable)
    yield judge
    judge.close()


@pytest.fixture(scope="module")
def clingo() -> None:
    if not has_clingo():
        is_missing("clingo")


def small_cases(seed: int) -> Iterator[Case]:
    """Cases that clingo gets."""
    return filter(is_small, draw_cases(seed))


def test_prolog_takes_every_step_of_the_derivations_of_generated_problems(prolog: Prolog) -> None:
    seen: Counter[str] = Counter()
    assert judge_derivations(list(islice(draw_cases(1), NUM_PROGRAMS)), seen) == []
    assert seen["steps"] > 3 * NUM_PROGRAMS


def test_prolog_proves_within_as_many_steps_what_is_proved_and_nothing_that_failed_without_a_choice(
    prolog: Prolog,
) -> None:
    seen: Counter[str] = Counter()
    for case in islice(draw_cases(7), NUM_PROGRAMS):
        wrong = prolog.judge_outcomes(case, seen)
        assert not wrong, wrong[0]
    assert seen["PROVED"] > NUM_PROGRAMS // 2
    assert seen["FAILED"] > NUM_PROGRAMS // 10
    assert seen["undecided"] <= NUM_PROGRAMS // 500


@pytest.mark.deep
@pytest.mark.usefixtures("clingo")
def test_clingo_finds_the_least_models_and_what_is_proved_in_them() -> None:
    cases = small_cases(2)
    seen: Counter[str] = Counter()
    for _ in range(NUM_PROGRAMS // 100):
        assert judge_models(list(islice(cases, 100)), seen) == []
    assert seen["models"] == NUM_PROGRAMS // 100 * 100
    assert seen["proved"] > NUM_PROGRAMS // 2
    assert seen["derived"] > NUM_PROGRAMS


def plant(monkeypatch: pytest.MonkeyPatch, **stages: Any) -> None:
    """Let the reference derive with other functions for some stages."""
    monkeypatch.setattr(kgreference, "derive", partial(kgreference.derive, stages=Stages(**stages)))


def _prunes_every_ground_atom(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    bare = [each._replace(atoms=tuple(a for a in each.atoms if min(a) < 0)) for each in resolvents]
    return SOUND.prune(situation, bare)


def _proves_at_the_depth_limit(situation: Situation, chosen: Resolvent, depth: int) -> Outcome:
    outcome = SOUND.finish(situation, chosen, depth)
    return Outcome.PROVED if outcome is Outcome.DEPTH_LIMIT else outcome


def _proves_a_goal_of_one_atom(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """False proofs, each of which a least model may well hold: an atom is taken for proved when it is reached."""
    proved = [each._replace(kind=Kind.TRUE, atoms=()) if len(each.atoms) == 1 else each for each in resolvents]
    return SOUND.close(situation, proved)


def _prunes_the_excluded_atom(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    return SOUND.prune(situation._replace(excluded=None), resolvents)


@pytest.mark.sample(1)
@pytest.mark.usefixtures("clingo")
@pytest.mark.parametrize("prune", [_prunes_the_excluded_atom, _prunes_every_ground_atom])
def test_clingo_catches_proofs_by_what_is_no_fact(
    prune: Callable[..., list[Resolvent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, prune=prune)
    assert any("does not follow" in each for each in judge_models(list(islice(small_cases(6), 200)), Counter()))


def _fails_where_a_fact_has_a_variable_matched(situation: Situation, atom: Atom) -> Matches:
    return SOUND.match_facts(situation, atom) if min(atom) >= 0 else NO_MATCHES


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({"finish": _proves_at_the_depth_limit}, "is proved in"),
        ({"close": _proves_a_goal_of_one_atom}, "is proved in"),
        ({"prune": _prunes_the_excluded_atom}, "is proved in"),
        ({"match_facts": _fails_where_a_fact_has_a_variable_matched}, "failed and can be proved"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_prolog_catches_false_proofs_and_lost_ones(
    stages: dict[str, Callable[..., Any]], message: str, prolog: Prolog, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, **stages)
    cases = islice(draw_cases(8), 200)
    assert any(message in each for case in cases for each in prolog.judge_outcomes(case, Counter()))


@pytest.mark.usefixtures("clingo")
def test_a_proof_that_takes_more_steps_than_allowed_is_in_the_least_model_and_caught_by_prolog_alone(
    prolog: Prolog, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, finish=_proves_at_the_depth_limit)
    only_by_prolog = 0
    for case in islice(small_cases(9), 100):
        if prolog.judge_outcomes(case, Counter()) and not judge_models([case], Counter()):
            only_by_prolog += 1
    assert only_by_prolog
