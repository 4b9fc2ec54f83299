"""Programs to test the reference prover with: written by hand, drawn at random, or read from a dataset."""

import os
import random
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from kgreference import Atom, Corrupter, Program, Rule, Variable, canonical, variable

ATOM = re.compile(r"\s*(\w+)\(\s*([^,()]+?)\s*,\s*([^,()]+?)\s*\)")


def name_of(text):
    """Upper-case initials are variables, as in Prolog."""
    return Variable(text) if text[0].isupper() else text


def named_atoms(text):
    return [(predicate, name_of(first), name_of(second)) for predicate, first, second in ATOM.findall(text)]


def program_of(text, queries=""):
    """A program from lines ``p(a, b)`` and ``p(X, Z) <- q(X, Y), r(Y, Z)``."""
    facts, rules = [], []
    for line in filter(str.strip, text.splitlines()):
        clause_head, arrow, body = line.partition("<-")
        if arrow:
            rules.append((named_atoms(clause_head)[0], named_atoms(body)))
        else:
            facts += named_atoms(clause_head)
    return Program.from_names(facts, rules, named_atoms(queries))


def goal_of(program, text):
    """A goal by id; its variables share one scope, numbered by first appearance."""
    numbers: dict[str, int] = {}

    def term(name):
        if isinstance(name, Variable):
            return variable(numbers.setdefault(name.name, len(numbers)))
        return program.constant_ids[name]

    return tuple(
        Atom(program.predicate_ids[predicate], term(first), term(second))
        for predicate, first, second in named_atoms(text)
    )


def text_of(program, goal):
    def name(term):
        return program.constants[term] if term >= 0 else f"X{-1 - term}"

    return ", ".join(f"{program.predicates[p]}({name(first)}, {name(second)})" for p, first, second in goal)


def random_atom(rng: random.Random, num_predicates: int, terms: list[int]) -> Atom:
    return Atom(rng.randrange(num_predicates), rng.choice(terms), rng.choice(terms))


def random_program(rng: random.Random) -> Program:
    """A small program; heads hold constants and repeated variables, bodies variables of their own."""
    num_predicates, num_constants = rng.randint(1, 3), rng.randint(1, 4)
    constants = list(range(num_constants))
    facts = [random_atom(rng, num_predicates, constants) for _ in range(rng.randint(0, 8))]
    rules = []
    for _ in range(rng.randint(0, 5)):
        variables = [variable(number) for number in range(rng.randint(1, 4))]
        terms = variables * 3 + constants
        atoms = canonical(tuple(random_atom(rng, num_predicates, terms) for _ in range(rng.randint(2, 4))))
        rules.append(Rule(atoms[0], atoms[1:]))
    return Program(
        [f"p{number}" for number in range(num_predicates)],
        [f"c{number}" for number in range(num_constants)],
        facts,
        rules,
    )


class Dataset(NamedTuple):
    program: Program
    test: list[Atom]
    corrupter: Corrupter


def read_dataset(name: str) -> Dataset:
    """A dataset of $KGVERIFY_DATA. Every argument of an arrow rule is taken as a variable."""
    root = os.environ.get("KGVERIFY_DATA")
    if not root:
        pytest.skip("KGVERIFY_DATA is not set")
    folder = Path(root) / name
    splits = {split: ATOM.findall((folder / f"{split}.txt").read_text()) for split in ("train", "valid", "test")}
    rules = []
    for line in filter(str.strip, (folder / "rules.txt").read_text().splitlines()):
        body, clause_head = line.split(":", 2)[2].split("->")
        atoms = [(p, Variable(first), Variable(second)) for p, first, second in ATOM.findall(clause_head + body)]
        rules.append((atoms[0], atoms[1:]))
    domains = {}
    for line in filter(str.strip, (folder / "domain2constants.txt").read_text().splitlines()):
        domain, *members = line.split()
        domains[domain] = members
    program = Program.from_names(
        splits["train"],
        rules,
        splits["valid"] + splits["test"],
        [constant for members in domains.values() for constant in members],
    )
    known = [program.encode(triple) for split in splits.values() for triple in split]
    return Dataset(program, [program.encode(triple) for triple in splits["test"]], Corrupter(program, known, domains))
