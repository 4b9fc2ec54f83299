"""Compare the steps of SWI-Prolog and the least models of clingo with the reference's, on generated programs.

    python -m benchmarks.third_party_steps --programs 1000 swipl clingo

A problem of SWI-Prolog is one query: every resolvent of every step of the derivation that takes the first resolvent, up to
three limits, is compared with the reference in the dialect `PROLOG`. A problem of clingo is one program.
"""

import argparse
import importlib
import json
import random
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import kgreference
from kgreference import Dialect, Exclusion, Filter, Kind, Limits, Memory
from kgverify.program.atoms import Variable
from kgverify.testing.problems.decode import draw_problems

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "third_party"
PROLOG = Dialect(exclusion=Exclusion.NEVER, filters=(Filter.MAX_ATOMS, Filter.MAX_RESOLVENTS), memory=Memory.NONE)
"""Prolog's semantics: no fact is deleted from a goal, and no goal is remembered."""
MOST_TOGETHER = 500
"""The programs of one process."""
MOST_FACTS = 500
MOST_ROWS = 1 << 13
"""The constants to the power of a rule's variables, at most, for least models."""


class First:
    """The policy that takes the first resolvent."""

    def scores(self, goal, resolvents):
        """Return lower scores for later resolvents."""
        return [float(-i) for i in range(len(resolvents))]


def draw_programs(seed):
    """Yield programs of the reference with their queries and limits."""
    rng = random.Random(seed)
    for problem in draw_problems(seed):
        if len(problem.facts) <= MOST_FACTS:
            named = [
                [(rule.clause_head, list(rule.body)) for rule in problem.rules],
                [*problem.queries, *problem.unranked],
            ]
            rules, queries = named
            program = kgreference.Program.from_names(
                [rename(fact) for fact in problem.facts],
                [(rename(head), [rename(atom) for atom in body]) for head, body in rules],
                [rename(query) for query in queries],
            )
            limits = (rng.randint(1, 12), rng.choice((1, 2, 3, 4, 6)), rng.choice((1, 2, 3, 5, 30, 120)))
            yield program, [encode(program, rename(query)) for query in queries], limits


def rename(atom):
    """Return an atom with the reference's variables."""
    terms = [kgreference.Variable(t.name) if isinstance(t, Variable) else t for t in (atom.first, atom.second)]
    return (atom.predicate, *terms)


def encode(program, query):
    """Return a query by ids, canonical."""
    predicate, *terms = query
    ids = {}
    found = [
        ids.setdefault(t, -1 - len(ids)) if isinstance(t, kgreference.Variable) else program.constant_ids[t]
        for t in terms
    ]
    return (program.predicate_ids[predicate], *found)


def list_clauses(program):
    """Return the clauses in the order in which the dialect tries them."""
    return [(rule.head, rule.body) for rule in program.rules] + [(fact, ()) for fact in program.facts]


def judge_steps(adapter, programs, counts):
    """Compare the steps of SWI-Prolog with the reference's; return the queries that differ."""
    found = iter(
        adapter.find_steps([(list_clauses(program), queries, *limits) for program, queries, limits in programs])
    )
    wrong = []
    for program, queries, limits in programs:
        for query in queries:
            derivation = kgreference.derive(program, Limits(*limits), First(), query, PROLOG)
            expected = []
            for step in derivation.steps:
                resolvents = [each.atoms for each in step.after_limit if each.kind is not Kind.FALSE]
                expected.append([listed(step.goal), *map(listed, resolvents)])
            counts["problems"] += 1
            counts["steps"] += len(expected)
            counts[derivation.outcome.name] += 1
            if next(found) != expected:
                wrong.append((program.facts, program.rules, query, limits, expected))
    return wrong


def listed(atoms):
    """Return atoms as lists."""
    return [list(atom) for atom in atoms]


def judge_models(adapter, programs, counts):
    """Compare the models of clingo with the reference's; return the programs that differ."""
    small = [program for program, _, _ in programs if is_small(program)]
    wrong = []
    for program, found in zip(small, adapter.find_models(list(map(list_clauses, small))), strict=True):
        expected = kgreference.least_model(program)
        counts["problems"] += 1
        counts["derived"] += len(expected) - len(program.facts)
        if found != expected:
            wrong.append((program.facts, program.rules, sorted(found ^ expected)))
    return wrong


def is_small(program):
    """Return whether no join is large, and whether every variable of a head occurs in the body."""
    variables = [
        ({t for t in rule.head if t < 0}, {t for atom in rule.body for t in atom if t < 0}) for rule in program.rules
    ]
    return all(head <= body and len(program.constants) ** len(body) <= MOST_ROWS for head, body in variables)


JUDGES = {"swipl": judge_steps, "clingo": judge_models}


def judge(package, seed, num_programs, deadline=float("inf")):
    """Return counts, and the problems that differ."""
    sys.path.insert(0, str(EXAMPLES))
    adapter = importlib.import_module(f"{package}_adapter")
    counts, wrong = Counter(), []
    programs = islice(draw_programs(seed), num_programs)
    while (some := list(islice(programs, MOST_TOGETHER))) and time.monotonic() < deadline:
        counts["programs"] += len(some)
        wrong += JUDGES[package](adapter, some, counts)
    counts["differs"] = len(wrong)
    return counts, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", help=f"of {', '.join(JUDGES)}; all by default")
    parser.add_argument("--programs", type=int, default=1000, help="number of programs for each package")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop a package after this time")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    num_wrong = 0
    for package in arguments.packages or JUDGES:
        end = time.monotonic() + arguments.seconds
        counts, wrong = judge(package, arguments.seed, arguments.programs, end)
        print(json.dumps({"package": package, "seed": arguments.seed, **counts}), flush=True)
        if wrong:
            print("   ", min(wrong, key=lambda each: len(str(each))))
        num_wrong += len(wrong)
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
