"""The proofs of triples and the facts that are lacking, judged by SWI-Prolog."""

import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from run_engines import needs_data

import kgverify as kv
from kgverify.prover.program.least_model import LeastModel

JUDGE = """
:- use_module(library(main)).
:- discontiguous ask/1.
:- dynamic fact/3, rule/3, lacks/4.
:- table holds/4.
holds(K, P, A, B) :- fact(P, A, B), \\+ lacks(K, P, A, B).
holds(K, P, A, B) :- rule(_, a(P, A, B), Body), all(K, Body).
all(_, []).
all(K, [a(P, A, B) | Rest]) :- holds(K, P, A, B), all(K, Rest).
say(Goal) :- ( call(Goal) -> writeln(yes) ; writeln(no) ).
main :- forall(ask(Goal), say(Goal)).
"""


def quote(name: str) -> str:
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


def split(atom: str) -> tuple[str, str, str]:
    predicate, _, rest = atom.partition("(")
    first, second = rest[:-1].split(", ")
    return predicate, first, second


def terms(atom: str) -> str:
    """Return an atom that kgverify printed as arguments in Prolog; all its variables are one constant."""
    return ", ".join(quote("anything" if term.startswith("_") else term) for term in split(atom))


def clauses(graph: kv.KnowledgeGraph) -> Iterator[str]:
    yield from (f"fact({', '.join(map(quote, fact))})." for fact in graph.train)
    for number, rule in enumerate(graph.rules):
        named = {}

        def write(atom, named=named):
            terms = [quote(t) if isinstance(t, str) else named.setdefault(t, f"V{len(named)}") for t in atom[1:]]
            return f"a({quote(atom.predicate)}, {', '.join(terms)})"

        yield f"rule({number}, {write(rule.clause_head)}, [{', '.join(map(write, rule.body))}])."


def ask_prolog(graph: kv.KnowledgeGraph, lines: Sequence[str], folder: Path) -> list[bool]:
    """Return whether each goal `ask(...)` among the lines holds."""
    script = folder / "judge.pl"
    script.write_text("\n".join([JUDGE, *clauses(graph), *sorted(lines, key=lambda line: line.partition("(")[0]), ""]))
    command = ["swipl", "-q", "-g", "main", "-t", "halt", str(script)]
    answers = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(answers) == sum(line.startswith("ask(") for line in lines)
    return [answer == "yes" for answer in answers]


def judge(
    graph: kv.KnowledgeGraph, atoms: Sequence[str], folder: Path, answers: Sequence[bool] | None = None
) -> tuple[int, int, list[str]]:
    """Return how many atoms have a proof and how many have none, and what is wrong.

    answers: whether each atom follows, if Prolog is not to search for its proof
    """
    rules = [str(rule) for rule in graph.rules]
    lines, expected, labels = [], [], []

    def ask(goal: str, value: bool, label: str) -> None:
        lines.append(f"ask({goal}).")
        expected.append(value)
        labels.append(label)

    num_proved = 0
    for number, atom in enumerate(atoms):
        found = kv.why(atom, graph, limit=3)
        assert found.is_decided
        num_proved += found.is_proved
        if answers is not None:
            assert found.is_proved == answers[number], atom
        # Triples that are not facts share the tables of Prolog.
        number = number if found.fact else "nothing"
        if found.fact:
            lines.append(f"lacks({number}, {terms(atom)}).")
        if answers is None:
            ask(f"holds({number}, {terms(atom)})", found.is_proved, f"{atom} proved")
        assert [len(tree) for tree in found.trees] == sorted(len(tree) for tree in found.trees) or not found.is_proved
        assert len(set(found.trees)) == len(found.trees)
        for tree in found.trees:
            lacking = [line for line in tree if line.note == "lacking"]
            assert bool(lacking) == (not found.is_proved)
            for i, line in enumerate(tree):
                if line.clause.startswith("fact "):
                    ask(f"(fact({terms(line.atom)}), \\+ lacks({number}, {terms(line.atom)}))", True, f"{atom}: {line}")
                elif line.clause:
                    rule = rules.index(line.clause.rpartition(" [")[0] or line.clause)
                    body = ", ".join(f"a({terms(each.atom)})" for each in _below(tree, i))
                    ask(f"rule({rule}, a({terms(line.atom)}), [{body}])", True, f"{atom}: {line}")
                elif answers is None:
                    ask(f"holds({number}, {terms(line.atom)})", False, f"{atom}: {line} is lacking")
    answers = ask_prolog(graph, lines, folder)
    wrong = [label for label, answer, value in zip(labels, answers, expected, strict=True) if answer != value]
    return num_proved, len(atoms) - num_proved, wrong


def _below(tree, i):
    for line in tree[i + 1 :]:
        if line.depth <= tree[i].depth:
            return
        if line.depth == tree[i].depth + 1:
            yield line


def draw(graph: kv.KnowledgeGraph, num: int, seed: int) -> list[str]:
    """Return test triples, facts, and triples with another second argument."""
    rng = random.Random(seed)
    triples = [rng.choice(graph.test if i % 3 else graph.train) for i in range(num)]
    constants = graph.program.symbols.constants
    changed = [each._replace(second=rng.choice(constants)) if i % 2 else each for i, each in enumerate(triples)]
    return list(dict.fromkeys(f"{p}({a}, {b})" for p, a, b in changed))


needs_prolog = pytest.mark.skipif(shutil.which("swipl") is None, reason="SWI-Prolog is not installed")


@needs_prolog
def test_prolog_confirms_every_proof_and_every_lacking_fact_of_countries(tmp_path: Path):
    graph = kv.load_graph("countries")
    num_proved, num_others, wrong = judge(graph, draw(graph, 24, seed=1), tmp_path)
    assert not wrong
    assert min(num_proved, num_others) >= 5


@needs_prolog
@needs_data
@pytest.mark.deep
def test_prolog_confirms_every_clause_and_the_least_model_every_answer_of_family(tmp_path: Path):
    graph = kv.load_graph("family")
    atoms = [atom for atom in draw(graph, 24, seed=2) if not kv.why(atom, graph, limit=1).fact]
    model = LeastModel(graph.program, device="cpu")
    rows = np.array([graph.program.symbols.encode(kv.NamedAtom(*split(atom))) for atom in atoms], np.int32)
    num_proved, num_others, wrong = judge(graph, atoms, tmp_path, answers=model.contains(rows).tolist())
    assert not wrong
    assert min(num_proved, num_others) >= 5


FACTS = "p(a, b). p(b, c). q(c, d)."
RULES = "r(X, Z) :- p(X, Y), r(Y, Z).\nr(X, Y) :- q(X, Y).\nloop(X, Y) :- loop(X, Y).\n"


@pytest.fixture
def small(tmp_path: Path) -> kv.KnowledgeGraph:
    (tmp_path / "facts.txt").write_text(FACTS.replace(". ", ".\n"))
    (tmp_path / "rules.txt").write_text(RULES)
    return kv.load_graph(train=tmp_path / "facts.txt", rules=tmp_path / "rules.txt")


def test_a_recursive_proof_lists_each_rule_and_fact_with_its_line(small: kv.KnowledgeGraph):
    found = kv.why("r(a, d)", small)
    assert found.is_proved
    assert found.is_complete
    assert [(line.depth, line.atom, line.clause) for line in found.trees[0]] == [
        (0, "r(a, d)", "r(X, Z) <- p(X, Y), r(Y, Z) [rules.txt:1]"),
        (1, "p(a, b)", "fact [facts.txt:1]"),
        (1, "r(b, d)", "r(X, Z) <- p(X, Y), r(Y, Z) [rules.txt:1]"),
        (2, "p(b, c)", "fact [facts.txt:2]"),
        (2, "r(c, d)", "r(X, Y) <- q(X, Y) [rules.txt:2]"),
        (3, "q(c, d)", "fact [facts.txt:3]"),
    ]
    assert str(found).splitlines()[0] == "r(a, d) follows. Its only proof:"


def test_a_proof_longer_than_a_derivation_may_be_says_so(small: kv.KnowledgeGraph):
    assert "1: 6 clauses, more than max_depth 4" in str(kv.why("r(a, d)", small, limits=kv.Limits(max_depth=4)))


def test_a_triple_without_a_proof_names_what_is_lacking(small: kv.KnowledgeGraph):
    found = kv.why("r(b, a)", small)
    assert not found.is_proved
    assert ("q(b, a)",) in found.lacking
    assert ("r(c, a)",) in found.lacking
    assert "r(b, a) does not follow. It would, for example, with 1 more fact:" in str(found)


def test_a_rule_that_needs_itself_proves_nothing(small: kv.KnowledgeGraph):
    assert str(kv.why("loop(a, b)", small)) == "loop(a, b) does not follow: it is no fact, and no rule concludes it."


def test_a_fact_is_its_own_proof_only_if_queries_are_not_excluded(small: kv.KnowledgeGraph):
    alone = "p(a, b) is a fact, facts.txt:1; without it, it does not follow: no rule concludes it."
    assert str(kv.why("p(a, b)", small)) == alone
    kept = kv.why("p(a, b)", small, limits=kv.Limits(exclude_query=False))
    assert [line.clause for line in kept.trees[0]] == ["fact [facts.txt:1]"]


@pytest.mark.parametrize(
    "atom, message",
    [
        ("r(a, e)", "unknown constant 'e'"),
        ("s(a, b)", "unknown predicate 's'"),
        ("r(a, b). r(b, c)", "expected one triple, found 2"),
        ("r(a, X)", "unknown constant 'X'"),
    ],
)
def test_what_is_no_triple_of_the_graph_is_refused(small: kv.KnowledgeGraph, atom: str, message: str):
    with pytest.raises(kv.UserError, match=message):
        kv.why(atom, small)
