"""The reference's resolvents against SWI-Prolog's unification."""

import json
import os
import random
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from reference_programs import random_goal, random_program, read_dataset

from kgreference import Limits, OriginKind, Shortest, canonical, derive, take_step


class Prolog:
    """A SWI-Prolog process that holds one program and answers with resolvents."""

    def __init__(self, executable):
        script = Path(__file__).with_name("resolvents.pl")
        self.process = subprocess.Popen(
            [executable, "-q", "-g", "main", "-t", "halt", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, request):
        self.process.stdin.write(request + ".\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def load(self, program):
        rules = [f"c({render(rule.head)}, {render_all(rule.body)})" for rule in program.rules]
        facts = [f"c({render(fact)}, [])" for fact in program.facts]
        assert self.ask(f"load([{', '.join(rules + facts)}])") == [len(rules) + len(facts)]

    def resolvents(self, goal, excluded):
        answer = self.ask(f"step({render_all(goal)}, {render(excluded) if excluded else 'none'})")
        return [tuple(tuple(atom) for atom in resolvent) for resolvent in answer]

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=60)


def render(atom):
    terms = [str(term) if term >= 0 else f"V{-1 - term}" for term in atom[1:]]
    return f"[{atom[0]}, {terms[0]}, {terms[1]}]"


def render_all(atoms):
    return f"[{', '.join(render(atom) for atom in atoms)}]"


@pytest.fixture(scope="module")
def prolog():
    executable = shutil.which("swipl")
    if executable is None:
        if os.environ.get("CI"):
            pytest.fail("swipl is not installed")
        pytest.skip("swipl is not installed")
    judge = Prolog(executable)
    yield judge
    judge.close()


def first_step(program, goal, query):
    return take_step(program, Limits(), Shortest(), query, goal, 0, frozenset())


def assert_prolog_agrees(prolog, step, excluded):
    expected = prolog.resolvents(step.goal, excluded)
    actual = [canonical(resolvent.atoms) for resolvent in step.after_resolve]
    assert Counter(actual) == Counter(expected), step.goal
    assert actual == expected, step.goal


def test_prolog_finds_the_same_resolvents_in_random_programs(prolog):
    rng = random.Random(20240611)
    num_pairs = 0
    seen = Counter()
    for _ in range(300):
        program = random_program(rng)
        prolog.load(program)
        for _ in range(12):
            goal = random_goal(rng, program)
            query = rng.choice([goal[0], rng.choice(program.facts or [goal[0]])])
            step = first_step(program, goal, query)
            assert_prolog_agrees(prolog, step, query if min(query) >= 0 else None)
            num_pairs += 1
            first, second = step.selected[1:]
            seen["repeated" if first == second < 0 else (first < 0, second < 0)] += 1
            seen.update(resolvent.origin_kind for resolvent in step.after_resolve)
            seen["excluded"] += query in program.fact_index and step.selected == query
    assert num_pairs == 3600
    kinds = [
        "repeated",
        (True, True),
        (True, False),
        (False, True),
        (False, False),
        OriginKind.RULE,
        OriginKind.FACT,
    ]
    assert all(seen[kind] > 100 for kind in [*kinds, "excluded"]), seen


@pytest.mark.data
def test_prolog_finds_the_same_resolvents_on_family(prolog):
    program, test, corrupter = read_dataset("family")
    prolog.load(program)
    rng = random.Random(7)
    num_steps = 0
    for index in rng.sample(range(len(test)), 6):
        for side in (0, 1):
            for query in corrupter.candidates(test[index], index, side, 2, 0):
                for step in derive(program, Limits(), Shortest(), query).steps[:3]:
                    assert_prolog_agrees(prolog, step, query)
                    num_steps += 1
    assert num_steps >= 36
