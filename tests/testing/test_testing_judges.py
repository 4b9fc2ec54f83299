"""The reference judged by programs that share nothing with it: SWI-Prolog and clingo, on generated programs.

Prolog judges every resolvent of every goal that a derivation reaches, and what can be proved in how many steps; clingo the least
models, and by these what is proved.
"""

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kgreference.step
from kgreference import Derivation, Limits, Outcome, Program, Resolvent, Shortest, derive, least_model
from kgreference.program import Rule
from kgreference.resolvent import Kind, Matches
from kgreference.terms import Atom, Goal, Triple, canonical, unify
from kgverify.engines.reference.engine import build_reference_program
from kgverify.testing.problems.decode import draw_problems
from kgverify.testing.problems.merge import merge

NUM_PROGRAMS = int(os.environ.get("KGVERIFY_JUDGED", "1000"))
"""Programs that each judge gets; the figures of docs/fuzzing.md are of 10,000."""

ANSWERS = Path(__file__).parent / "provability.pl"
MOST_INFERENCES = 1_000_000
"""The limit of Prolog for one query: a count, so that the same queries are decided on every machine."""
MOST_LOADED = 500
"""Programs of one Prolog process, which gets slower with every program that it has forgotten."""
MOST_CONSTANTS, MOST_FACTS, MOST_ROWS = 12, 24, 1 << 16
"""clingo gets no program of more constants or facts, or whose longest body could join more rows of a full model."""


class Case(NamedTuple):
    """A generated program in the reference's terms, its queries and its limits."""

    program: Program
    queries: tuple[Atom, ...]
    limits: Limits


def draw_cases(seed: int) -> Iterator[Case]:
    """Generated problems, each alone, without the unused symbols that only an engine's tables care for."""
    for problem in draw_problems(seed):
        merged = merge([problem])
        program = build_reference_program(merged.graph.program)
        queries = tuple(program.encode((p, str(a), str(b))) for p, a, b in problem.queries)
        queries += tuple(Atom(*row) for row in merged.unranked.atom.tolist())
        each = problem.limits
        yield Case(program, queries, Limits(each.max_depth, each.max_atoms, each.max_resolvents, each.exclude_query))


def excluded_by(limits: Limits, query: Atom) -> Atom | None:
    """The fact that the derivation of a query may not use."""
    return query if limits.exclude_query and min(query) >= 0 else None


class Prolog:
    """A SWI-Prolog process that holds one program, and answers with resolvents and with what can be proved."""

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
        ((num_clauses,),) = self.ask(f"load([{', '.join(clauses)}])")
        assert num_clauses == len(clauses)

    def judge(self, case: Case) -> tuple[int, list[str]]:
        """Return the number of goals that were judged, and the differences of resolvents."""
        program, limits = case.program, case.limits
        self.load(program)
        requests = []
        found: list[tuple[Goal, list[Goal]]] = []
        for query in case.queries:
            excluded = excluded_by(limits, query)
            for step in derive(program, limits, Shortest(), query).steps:
                found.append((step.goal, [canonical(each.atoms) for each in step.after_resolve]))
                requests.append(f"step({render_all(step.goal)}, {render(excluded) if excluded else 'none'})")
        wrong = []
        for (goal, actual), answer in zip(found, self.ask(*requests), strict=True):
            expected = [tuple(Atom(*atom) for atom in resolvent) for resolvent in answer]
            if actual != expected:
                wrong.append(f"{goal}: expected {expected}, found {actual}")
        return len(found), wrong

    def judge_outcomes(self, case: Case, seen: Counter[str]) -> list[str]:
        """Return candidates that are PROVED in too few steps, or that FAILED without a choice and can be proved."""
        program, limits = case.program, case.limits
        self.load(program)
        assert self.ask("index") == [len(program.rules) + len(program.facts)]
        asked: list[tuple[Derivation, bool]] = []
        requests = []
        for query in case.queries:
            each = derive(program, limits, Shortest(), query)
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
def clingo() -> Any:
    try:
        import clingo
    except ImportError:
        is_missing("clingo")
    return clingo


def ground(clingo: Any, programs: Sequence[Program]) -> list[set[Triple]]:
    """The least models of programs, grounded together: the first argument of an atom tells whose it is."""

    def atom(owner: int, each: Triple) -> str:
        first, second = (str(term) if term >= 0 else f"V{-1 - term}" for term in each[1:])
        return f"a({owner},{each[0]},{first},{second})"

    lines = []
    for i, program in enumerate(programs):
        lines.append(f"c({i},0..{len(program.constants) - 1}).")
        lines += [f"{atom(i, fact)}." for fact in program.facts]
        for rule in program.rules:
            body = [atom(i, each) for each in rule.body]
            body += [f"c({i},V{-1 - term})" for term in rule.head[1:] if term < 0]
            lines.append(f"{atom(i, rule.head)} :- {', '.join(body)}.")
    control = clingo.Control(["--warn=none"])
    control.add("base", [], "\n".join(lines))
    control.ground([("base", [])])
    models: list[set[Atom]] = [set() for _ in programs]
    for symbolic in control.symbolic_atoms.by_signature("a", 4):
        owner, *rest = (argument.number for argument in symbolic.symbol.arguments)
        models[owner].add(Atom(*rest))
    return models


def without(program: Program, fact: Atom | None) -> Program:
    """The program without a fact."""
    facts = [each for each in program.facts if each != fact]
    return Program(program.predicates, program.constants, facts, program.rules)


def holds(query: Atom, model: set[Atom]) -> bool:
    """Return whether a query, or an instance of it, is in a model."""
    return query in model or any(unify(query, atom) is not None for atom in model if min(query) < 0)


def judge_by_clingo(clingo: Any, cases: Sequence[Case], seen: Counter[str]) -> list[str]:
    """Return where the least model differs, or something is proved that does not follow."""
    asked: list[tuple[Program, Atom | None]] = []
    for case in cases:
        asked.append((case.program, None))
        for query in case.queries:
            outcome = derive(case.program, case.limits, Shortest(), query).outcome
            if outcome is Outcome.PROVED:
                asked += [(without(case.program, excluded_by(case.limits, query)), query)]
    wrong = []
    for (program, proved), expected in zip(asked, ground(clingo, [each[0] for each in asked]), strict=True):
        if proved is not None:
            seen["proved"] += 1
            if not holds(proved, expected):
                wrong.append(f"{proved} is proved and does not follow")
            continue
        actual = least_model(program)
        seen["models"] += 1
        seen["derived"] += len(actual) - len(set(program.facts))
        if actual != expected:
            wrong.append(f"least models differ in {actual ^ expected}")
    return wrong


def small_cases(seed: int) -> Iterator[Case]:
    """Cases that clingo gets."""
    for case in draw_cases(seed):
        program = case.program
        longest = max((len(rule.body) for rule in program.rules), default=0)
        rows = (len(program.constants) ** 2) ** longest
        if len(program.constants) <= MOST_CONSTANTS and len(program.facts) <= MOST_FACTS and rows <= MOST_ROWS:
            yield case


def test_prolog_finds_the_resolvents_of_every_goal_reached(prolog: Prolog) -> None:
    num_goals = 0
    for case in islice(draw_cases(1), NUM_PROGRAMS):
        num, wrong = prolog.judge(case)
        assert not wrong, wrong[0]
        num_goals += num
    assert num_goals > 3 * NUM_PROGRAMS


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
def test_clingo_finds_the_least_models_and_what_is_proved_in_them(clingo: Any) -> None:
    cases = small_cases(2)
    seen: Counter[str] = Counter()
    for _ in range(NUM_PROGRAMS // 100):
        wrong = judge_by_clingo(clingo, list(islice(cases, 100)), seen)
        assert not wrong, wrong[0]
    assert seen["models"] == NUM_PROGRAMS // 100 * 100
    assert seen["proved"] > NUM_PROGRAMS // 2
    assert seen["derived"] > NUM_PROGRAMS


Resolve = Callable[[Goal, Matches, Matches], list[Resolvent]]
NO_MATCHES = Matches.of([])


def _first_facts_only(resolve: Resolve) -> Resolve:
    return lambda goal, rules, facts: resolve(goal, rules, Matches(*(column[:3] for column in facts)))


def _rest_not_substituted(resolve: Resolve) -> Resolve:
    def planted(goal: Goal, rules: Matches, facts: Matches) -> list[Resolvent]:
        found = resolve(goal, rules, facts)
        num = len(goal) - 1
        return [each._replace(atoms=each.atoms[: len(each.atoms) - num] + goal[1:]) for each in found]

    return planted


def _facts_first(resolve: Resolve) -> Resolve:
    return lambda goal, rules, facts: [*resolve(goal, NO_MATCHES, facts), *resolve(goal, rules, NO_MATCHES)]


def _body_backwards(resolve: Resolve) -> Resolve:
    return lambda goal, rules, facts: resolve(goal, rules._replace(bodies=[body[::-1] for body in rules.bodies]), facts)


@pytest.mark.parametrize("plant", [_first_facts_only, _rest_not_substituted, _facts_first, _body_backwards])
def test_prolog_catches_a_mistake_planted_in_the_reference(
    plant: Callable[[Resolve], Resolve], prolog: Prolog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kgreference.step, "resolve", plant(kgreference.step.resolve))
    assert any(prolog.judge(case)[1] for case in islice(draw_cases(3), 200))


def test_prolog_catches_rules_that_share_the_goals_variables(prolog: Prolog, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_apart(program: Program, predicate: int, first_variable: int) -> list[tuple[int, Rule]]:
        return [(i, rule) for i, rule in enumerate(program.rules) if rule.head[0] == predicate]

    monkeypatch.setattr(Program, "rules_apart", not_apart)
    assert any(prolog.judge(case)[1] for case in islice(draw_cases(4), 200))


def test_prolog_catches_an_excluded_query_that_serves_as_a_fact(
    prolog: Prolog, monkeypatch: pytest.MonkeyPatch
) -> None:
    match_facts = kgreference.step.match_facts
    monkeypatch.setattr(kgreference.step, "match_facts", lambda program, _, atom: match_facts(program, None, atom))
    assert any(prolog.judge(case)[1] for case in islice(draw_cases(5), 200))


@pytest.mark.sample(1)
@pytest.mark.parametrize("drops", ["excluded", "any ground atom"])
def test_clingo_catches_proofs_by_what_is_no_fact(drops: str, clingo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prune = kgreference.step.prune

    def planted(program: Program, excluded: Atom | None, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
        if drops == "excluded":
            return prune(program, None, resolvents)
        bare = [each._replace(atoms=tuple(a for a in each.atoms if min(a) < 0)) for each in resolvents]
        return prune(program, excluded, bare)

    monkeypatch.setattr(kgreference.step, "prune", planted)
    cases = list(islice(small_cases(6), 200))
    assert any("does not follow" in each for each in judge_by_clingo(clingo, cases, Counter()))


def _proves_at_the_depth_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = kgreference.step.finish

    def planted(limits: Limits, chosen: Resolvent, depth: int) -> Outcome:
        outcome = finish(limits, chosen, depth)
        return Outcome.PROVED if outcome is Outcome.DEPTH_LIMIT else outcome

    monkeypatch.setattr(kgreference.step, "finish", planted)


def _proves_a_goal_of_one_atom(monkeypatch: pytest.MonkeyPatch) -> None:
    """False proofs, each of which a least model may well hold: an atom is taken for proved when it is reached."""
    close = kgreference.step.close

    def planted(resolvents: Sequence[Resolvent]) -> list[Resolvent]:
        return close([each._replace(kind=Kind.TRUE, atoms=()) if len(each.atoms) == 1 else each for each in resolvents])

    monkeypatch.setattr(kgreference.step, "close", planted)


def _prunes_the_excluded_atom(monkeypatch: pytest.MonkeyPatch) -> None:
    prune = kgreference.step.prune
    monkeypatch.setattr(kgreference.step, "prune", lambda program, _, resolvents: prune(program, None, resolvents))


def _fails_where_a_fact_has_a_variable_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    match_facts = kgreference.step.match_facts

    def planted(program: Program, excluded: Atom | None, atom: Atom) -> Matches:
        return match_facts(program, excluded, atom) if min(atom) >= 0 else NO_MATCHES

    monkeypatch.setattr(kgreference.step, "match_facts", planted)


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (_proves_at_the_depth_limit, "is proved in"),
        (_proves_a_goal_of_one_atom, "is proved in"),
        (_prunes_the_excluded_atom, "is proved in"),
        (_fails_where_a_fact_has_a_variable_matched, "failed and can be proved"),
    ],
)
def test_prolog_catches_false_proofs_and_lost_ones(
    plant: Callable[[pytest.MonkeyPatch], None], message: str, prolog: Prolog, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    cases = islice(draw_cases(8), 200)
    assert any(message in each for case in cases for each in prolog.judge_outcomes(case, Counter()))


def test_a_proof_that_takes_more_steps_than_allowed_is_in_the_least_model_and_caught_by_prolog_alone(
    prolog: Prolog, clingo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _proves_at_the_depth_limit(monkeypatch)
    only_by_prolog = 0
    for case in islice(small_cases(9), 100):
        if prolog.judge_outcomes(case, Counter()) and not judge_by_clingo(clingo, [case], Counter()):
            only_by_prolog += 1
    assert only_by_prolog
