"""Ask provers of other people for the answers of generated queries, and judge these by the reference and by clingo.

    python -m benchmarks.third_party_provers --programs 1000 problog pydatalog

A problem is a program with one query. Programs have facts and range-restricted rules over predicates of arity 0 to 2,
whose names may have several arities; those of a prover that need not end on recursion have none. The reference answers
each query from the least model. Where a prover differs, clingo computes the least model again: a problem counts as
`differs` where the two judges agree. The script exits with 1 where they do not agree with each other.
"""

import argparse
import importlib
import json
import multiprocessing
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import kgreference
from kgreference.program import Program, Variable

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "third_party"
PACKAGES = {"problog": (True, 0), "pydatalog": (True, 0), "minikanren": (False, 0), "pytholog": (False, 1)}
"""The packages: whether they answer recursive programs, and the least arity that they read."""
MOST_SECONDS = 0.5
"""Seconds of computing that a program may take with all its queries."""
CHUNK = 200
"""Programs for which one process is started."""
CONTEXT = multiprocessing.get_context("fork")


def draw_program(rng, is_recursive, least_arity):
    """Return facts, rules and queries: atoms are tuples of names, and variables start with a capital."""
    predicates = rng.sample(
        [(name, arity) for name in "pqrst" for arity in (0, 1, 2, 2, 2) if arity >= least_arity], rng.randint(2, 5)
    )
    constants = rng.sample(["a", "b", "c", "d", "e1", "f_g"], rng.randint(1, 4))

    def draw_atom(choice, terms):
        name, arity = choice
        return (name, *(rng.choice(terms) for _ in range(arity)))

    facts = [draw_atom(rng.choice(predicates), constants) for _ in range(rng.choice((1, 2, 3, 5, 8)))]
    rules = []
    for _ in range(rng.choice((0, 1, 1, 2, 3, 4))):
        terms = ["X", "Y", "Z", "W"][: rng.randint(1, 4)] + rng.sample(constants, 1) * (rng.random() < 0.25)
        place = rng.randrange(len(predicates))
        lower = [each for each in predicates[:place] if each[0] != predicates[place][0]]
        choices = predicates if is_recursive else lower
        if choices:
            body = [draw_atom(rng.choice(choices), terms) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
            bound = sorted({term for atom in body for term in atom[1:]})
            if bound or predicates[place][1] == 0:
                rules.append((draw_atom(predicates[place], bound), body))
    if not is_recursive and not is_stratified(rules):
        return draw_program(rng, is_recursive, least_arity)
    known = [*facts, *(atom for head, body in rules for atom in (head, *body))]
    asked = [(atom[0], len(atom) - 1) for atom in rng.choices(known, k=10)]
    queries = [draw_atom(each, [*constants, "X", "Y"] if rng.random() < 0.7 else ["X", "Y"]) for each in asked]
    return facts, rules, list(dict.fromkeys(queries))


def is_stratified(rules):
    """Return whether no predicate needs itself, whatever its arity."""
    below = {}
    for head, body in rules:
        below.setdefault(head[0], set()).update(atom[0] for atom in body)
    for _ in below:
        below = {name: names.union(*(below.get(other, set()) for other in names)) for name, names in below.items()}
    return all(name not in names for name, names in below.items())


def encode(atom):
    """Return the atom as one of two arguments: repeated, or made up; its predicate is named by name and arity."""
    terms = [Variable(term) if term[0].isupper() else term for term in atom[1:]]
    return (f"{atom[0]}{len(terms)}", *([*terms, *terms] if len(terms) == 1 else terms or ["none", "none"]))


def model_of_reference(facts, rules):
    """Return the least model by the reference: pairs of a predicate's name and terms."""
    encoded = [(encode(head), [encode(atom) for atom in body]) for head, body in rules]
    program = Program.from_names([encode(fact) for fact in facts], encoded)
    return {program.decode(atom) for atom in kgreference.least_model(program)}


def model_of_clingo(facts, rules):
    """Return the least model by clingo."""
    import clingo

    def write(atom):
        name, *terms = encode(atom)
        return f"{name}({','.join(str(t.name) if isinstance(t, Variable) else t for t in terms)})"

    control = clingo.Control(["--warn=none"])
    control.add("base", [], "".join(f"{write(head)} :- {','.join(map(write, body))}.\n" for head, body in rules))
    control.add("base", [], "".join(f"{write(fact)}.\n" for fact in facts))
    control.ground([("base", [])])
    symbols = [each.symbol for each in control.symbolic_atoms]
    return {(each.name, *map(str, each.arguments)) for each in symbols}


def select(model, query):
    """Return the tuples of terms of the instances of a query in a model."""
    name, *terms = encode(query)
    found = set()
    for predicate, *values in model:
        bound = {}
        if predicate == name and all(
            bound.setdefault(term, value) == value if isinstance(term, Variable) else term == value
            for term, value in zip(terms, values, strict=True)
        ):
            found.add(tuple(values[: len(query) - 1]))
    return found


def answer_all(adapter, problems, connection):
    """Send the answers to each problem, or the text of its exception; end by a signal where one takes too long."""
    for problem in problems:
        signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)  # its signal ends compiled loops as well
        try:
            found = adapter.find_answers(*problem)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        connection.send(found)


def ask(adapter, problems):
    """Yield the answers to each problem, the text of its exception, or None after `MOST_SECONDS` of computing."""
    start = 0
    while start < len(problems):
        ours, theirs = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=answer_all, args=(adapter, problems[start:], theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            for _ in problems[start:]:
                yield ours.recv()
                start += 1
        except EOFError:
            yield None
            start += 1
        process.join()


def judge(package, seed, num_programs, deadline=float("inf")):
    """Return counts of problems by result, and those that differ with the expected and the given answers."""
    sys.path.insert(0, str(EXAMPLES))
    adapter = importlib.import_module(f"{package}_adapter")
    counts, examples = Counter(), []
    for start in range(0, num_programs, CHUNK):
        if time.monotonic() > deadline:
            break
        numbers = range(start, min(start + CHUNK, num_programs))
        programs = [draw_program(random.Random(f"{seed}:{number}"), *PACKAGES[package]) for number in numbers]
        for (facts, rules, queries), found in zip(programs, ask(adapter, programs), strict=True):
            if not isinstance(found, list):
                found = [
                    each if isinstance(each, str | None) else each[0]
                    for each in ask(adapter, [(facts, rules, [q]) for q in queries])
                ]
            model = model_of_reference(facts, rules)
            counts["programs"] += 1
            for query, answers in zip(queries, found, strict=True):
                expected = select(model, query)
                counts["problems"] += 1
                if answers != expected:
                    kind = "raises" if isinstance(answers, str) else "hangs" if answers is None else "differs"
                    agree = expected == select(model_of_clingo(facts, rules), query)
                    counts[kind if agree else "judges differ"] += 1
                    examples.append((facts, rules, query, expected, answers))
    return counts, examples


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", help=f"of {', '.join(PACKAGES)}; all by default")
    parser.add_argument("--programs", type=int, default=200, help="number of programs for each package")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop a package after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0, help="print this many problems that differ, the shortest first")
    arguments = parser.parse_args()
    is_right = True
    for package in arguments.packages or PACKAGES:
        end = time.monotonic() + arguments.seconds
        counts, examples = judge(package, arguments.seed, arguments.programs, end)
        print(json.dumps({"package": package, "seed": arguments.seed, **counts}), flush=True)
        for example in sorted(examples, key=lambda each: len(str(each[:3])))[: arguments.show]:
            print("   ", *example, sep="  ")
        is_right = is_right and not counts["judges differ"]
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
