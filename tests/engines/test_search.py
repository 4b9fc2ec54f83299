"""The references that search: complete reasoners agree with them, and false and lost proofs have names."""

import random
from collections import defaultdict
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest

import kgverify as kv
from kgreference.model import least_model
from kgverify import Limits, NamedAtom, Program
from kgverify.engines.policy import SHORTEST
from kgverify.engines.reference.engine import build_reference_program
from kgverify.engines.search import Tables
from kgverify.program.atoms import Atom, Variable, parse_atoms
from kgverify.program.fact_index import FactIndex
from kgverify.program.program import NamedRule, parse_rules

BUGS = "leak", "rule", "cap", "body"


def is_variable(term):
    return term.startswith("?")


def put(atom, bound):
    return tuple(bound.get(term, term) for term in atom)


def match(pattern, atom, bound):
    """Return the bindings with which a pattern is an atom, or None."""
    bound = dict(bound)
    for own, other in zip(pattern, atom, strict=True):
        if bound.setdefault(own, other) != other if is_variable(own) else own != other:
            return None
    return bound


class Index:
    """Ground atoms, found by what a pattern knows."""

    def __init__(self, atoms=()):
        self.all, self.by = set(), defaultdict(list)
        for atom in atoms:
            self.add(atom)

    def add(self, atom):
        if atom not in self.all:
            self.all.add(atom)
            p, a, b = atom
            for key in ((p, None, None), (p, a, None), (p, None, b), (p, a, b)):
                self.by[key].append(atom)

    def like(self, pattern):
        return list(self.by[tuple(None if is_variable(term) else term for term in pattern)])

    def join(self, body, bound):
        """Yield the bindings under which all atoms of a body are known."""
        if not body:
            yield bound
            return
        for atom in self.like(put(body[0], bound)):
            found = match(body[0], atom, bound)
            if found is not None:
                yield from self.join(body[1:], found)


class Reasoner(kv.OutcomeEngine):
    """A complete reasoner with one planted bug."""

    bug = ""

    def setup(self):
        self.clauses = list(self.rules[:-1] if self.bug == "rule" else self.rules)
        if self.bug == "body":
            self.clauses = [(head, body[:1] if len(body) > 1 else body) for head, body in self.clauses]
        self.known = sorted(self.facts)[:: 2 if self.bug == "cap" else 1]
        self.of = cache(self.prepare)

    def decide(self, query):
        is_excluded = self.limits.exclude_query and self.bug != "leak" and query in self.facts
        return self.proves(self.of(query if is_excluded else None), query)

    def given(self, excluded):
        return [fact for fact in self.known if fact != excluded]

    def conclude(self, head, bound):
        """Return the instances of a head; variables that only the head has stand for every constant."""
        atom, names = put(head, bound), self.program.symbols.constants
        free = next(filter(is_variable, atom), None)
        return {atom} if free is None else {one for name in names for one in self.conclude(atom, {free: name})}

    def proves(self, prepared, query):
        return query in prepared


class Forward(Reasoner):
    """Apply every rule to everything, until nothing is new."""

    def prepare(self, excluded):
        index, num = Index(self.given(excluded)), -1
        while num < len(index.all):
            num = len(index.all)
            for head, body in self.clauses:
                for bound in list(index.join(body, {})):
                    for atom in self.conclude(head, bound):
                        index.add(atom)
        return index.all


class SemiNaive(Reasoner):
    """Apply a rule only where an atom of its body is new."""

    def prepare(self, excluded):
        index, new = Index(), set(self.given(excluded))
        while new:
            for atom in new:
                index.add(atom)
            found = set()
            for head, body in self.clauses:
                for i, pattern in enumerate(body):
                    for atom in new:
                        bound = match(pattern, atom, {})
                        if bound is not None:
                            for each in index.join(body[:i] + body[i + 1 :], bound):
                                found |= self.conclude(head, each)
            new = found - index.all
        return index.all


class Clingo(Reasoner):
    """Ground the program with clingo."""

    def prepare(self, excluded):
        import clingo

        names = self.program.symbols.constants
        number = {name: str(i) for i, name in enumerate((*self.program.symbols.predicates, *names))}

        def write(atom):
            return f"t({','.join('V' + each[1:] if is_variable(each) else number[each] for each in atom)})"

        lines = [f"c({number[name]})." for name in names] + [f"{write(fact)}." for fact in self.given(excluded)]
        for head, body in self.clauses:
            free = [f"c(V{term[1:]})" for term in head[1:] if is_variable(term)]
            lines.append(f"{write(head)} :- {', '.join([*map(write, body), *free])}.")
        control = clingo.Control(["--warn=none"])
        control.add("base", [], " ".join(lines))
        control.ground([("base", [])])
        back = {int(each): name for name, each in number.items()}
        return {tuple(back[a.number] for a in s.symbol.arguments) for s in control.symbolic_atoms.by_signature("t", 3)}


class Tabled(Reasoner):
    """Answer each subgoal from its table, and repeat until no table grows; later queries use the tables again."""

    def prepare(self, excluded):
        return Index(self.given(excluded)), {}, set()

    def proves(self, prepared, query):
        _, tables, complete = prepared
        size = -1
        tables.setdefault(query, Index(prepared[0].like(query)))
        while size < sum(len(each.all) + 1 for each in tables.values()):
            size = sum(len(each.all) + 1 for each in tables.values())
            for goal in set(tables) - complete:
                known = [place for place, term in enumerate(goal) if not is_variable(term)]
                for head, body in self.clauses:
                    start = match([head[i] for i in known], [goal[i] for i in known], {})
                    for bound in [] if start is None else list(self.solve(prepared, body, start)):
                        for atom in self.conclude(head, bound):
                            tables[goal].add(atom)
        complete |= set(tables)
        return query in tables[query].all

    def ask(self, prepared, atom):
        facts, tables, _ = prepared
        goal = tuple("?" if is_variable(term) else term for term in atom)
        if atom[0] not in {head[0] for head, _ in self.clauses}:
            return facts.like(atom)
        if goal not in tables:
            tables[goal] = Index(facts.like(goal))
        return tables[goal].like(atom)

    def solve(self, prepared, body, bound):
        if not body:
            yield bound
            return
        for atom in self.ask(prepared, put(body[0], bound)):
            found = match(body[0], atom, bound)
            if found is not None:
                yield from self.solve(prepared, body[1:], found)


class Recursive(Reasoner):
    """Prove ground atoms by recursion, each once in a pass; values of variables come from facts if no rule makes them."""

    def prepare(self, excluded):
        self.made = {head[0] for head, _ in self.clauses}
        return Index(self.given(excluded))

    def proves(self, index, query):
        num = -1
        while num < len(index.all) and query not in index.all:
            num = len(index.all)
            self.search(index, query, set())
        return query in index.all

    def search(self, index, goal, seen):
        if goal not in index.all and goal not in seen:
            seen.add(goal)
            starts = ((body, match(head, goal, {})) for head, body in self.clauses)
            if any(bound is not None and self.find(index, body, bound, seen) for body, bound in starts):
                index.add(goal)
        return goal in index.all

    def find(self, index, body, bound, seen):
        if not body:
            return True
        goal, rest = put(body[0], bound), body[1:]
        free = [term for term in goal[1:] if is_variable(term)]
        if not free:
            return self.search(index, goal, seen) and self.find(index, rest, bound, seen)
        if goal[0] in self.made:
            names = self.program.symbols.constants
            return any(self.find(index, body, bound | {free[0]: name}, seen) for name in names)
        matches = (match(goal, atom, bound) for atom in index.like(goal))
        return any(found is not None and self.find(index, rest, found, seen) for found in matches)


REASONERS = [
    Forward,
    SemiNaive,
    Tabled,
    Recursive,
    pytest.param(Clingo, marks=pytest.mark.skipif(find_spec("clingo") is None, reason="clingo is not installed")),
]


def draw_program(seed):
    """Draw a small recursive program."""
    draw = random.Random(seed)

    def term():
        return Variable(draw.choice("XYZ")) if draw.random() < 0.85 else draw.choice("abcd")

    def atom():
        return NamedAtom(draw.choice("pqr"), term(), term())

    facts = [NamedAtom(draw.choice("pqr"), draw.choice("abcd"), draw.choice("abcd")) for _ in range(6)]
    return facts, [NamedRule(atom(), tuple(atom() for _ in range(draw.randint(1, 3)))) for _ in range(4)]


def every_atom(program):
    predicates, constants = (range(len(each)) for each in (program.symbols.predicates, program.symbols.constants))
    return [Atom(p, a, b) for p in predicates for a in constants for b in constants]


def test_the_search_decides_what_the_least_model_decides():
    for seed in range(40):
        facts, rules = draw_program(seed)
        program = Program.from_names(facts, rules)
        index, model = FactIndex(program.facts), least_model(build_reference_program(program))
        shared = Tables(program, index)
        for atom in every_atom(program):
            assert (shared.find(atom) < np.inf) == (tuple(atom) in model), (seed, atom)
            if atom in index and seed < 10:
                left = Program.from_names(
                    [each for each in facts if program.symbols.encode(each) != atom],
                    rules,
                    (program.symbols.decode(atom),),
                )
                same = left.symbols.encode(program.symbols.decode(atom))
                expected = tuple(same) in least_model(build_reference_program(left))
                assert (Tables(program, index, atom).find(atom) < np.inf) == expected, (seed, atom)


def verify(graph, reasoner, bug="", **options):
    return kv.verify(graph, type(reasoner.__name__, (reasoner,), {"bug": bug}), **options)


@pytest.mark.sample(1, deep=1)
@pytest.mark.parametrize("reasoner", REASONERS)
def test_complete_reasoners_agree_on_countries_and_their_bugs_are_named(reasoner):
    report = verify("countries", reasoner, queries=6, corruptions=3)
    assert report.verdict is kv.Verdict.AGREE, str(report)
    assert "counted apart, no divergence: the path of the policy misses 12 of 26 proofs of both" in " ".join(
        str(report).split()
    )
    found = {}
    for bug in BUGS:
        queries = kv.Queries(6, corruptions=3, split="train" if bug == "leak" else "test")
        report = verify("countries", reasoner, bug, queries=queries)
        found[bug] = [report.verdict.value, *((each.kind.value, each.num_candidates) for each in report.causes)]
    assert found == {
        "leak": ["DIVERGE", ("false_proof", 12)],
        "rule": ["DIVERGE", ("proof_lost", 1)],
        "cap": ["DIVERGE", ("proof_lost", 11)],
        "body": ["DIVERGE", ("false_proof", 22)],
    }


@pytest.mark.sample(2, deep=1)
@pytest.mark.parametrize("reasoner", REASONERS)
def test_complete_reasoners_agree_on_random_programs_and_every_divergence_is_named_rightly(reasoner):
    kinds = set()
    for seed in range(2):
        facts, rules = draw_program(seed)
        program = Program.from_names(facts, rules)
        test = tuple(map(program.symbols.decode, every_atom(program)))
        graph = kv.KnowledgeGraph("random", facts, test=test, rules=tuple(rules))
        for reference in (None, "model"):
            report = verify(graph, reasoner, queries=None, corruptions=0, reference=reference)
            assert not report.divergences, (seed, str(report))
        for bug in BUGS[seed:]:
            report = verify(graph, reasoner, bug, queries=None, corruptions=0)
            for each in report.divergences:
                if each.field == "candidates.outcome":
                    kinds.add((each.kind.value, each.expected, each.actual))
    assert kinds == {("proof_lost", "PROVED", "FAILED"), ("false_proof", "FAILED", "PROVED")}


CHAIN = kv.KnowledgeGraph(
    "chain",
    parse_atoms(" ".join(f"e(n{i},n{i + 1})" for i in range(30))),
    test=parse_atoms("p(n0,n3) p(n0,n30) p(n3,n0)"),
    rules=parse_rules("p(X,Y) e(X,Y); p(X,Z) p(X,Y) e(Y,Z)"),
)


class Bounded(SemiNaive):
    def decide(self, query):
        return query[2] != "n30" and super().decide(query)


class Loses(Bounded):
    def decide(self, query):
        return query[2] == "n30" or (query[2] != "n3" and super().decide(query))


def test_a_proof_beyond_the_bound_is_undecided_and_counted_apart():
    options = {"queries": None, "corruptions": 0}
    for engine in (SemiNaive, Bounded):
        report = kv.verify(CHAIN, engine, **options)
        assert report.verdict is kv.Verdict.AGREE, str(report)
        undecided = [each for each in report.notes if each.startswith("undecided")]
        assert len(undecided) == (engine is Bounded)
    assert "2 follow only by proofs of more than max_depth (20) clauses, of 6 candidates" in undecided[0]
    agreeing = kv.verify(CHAIN, SemiNaive, reference="model", **options)
    assert agreeing.verdict is kv.Verdict.AGREE
    assert "fields compared, but no scores" in str(agreeing)
    assert "ranks were compared, and no scores" in agreeing.notes[0]
    for engine, reference, lost in ((Bounded, "model", "p(n0, n30)"), (Loses, None, "p(n0, n3)")):
        report = kv.verify(CHAIN, engine, reference=reference, **options)
        found = {(each.kind.value, each.atom) for each in report.divergences if each.stage == "finish"}
        assert found == {("proof_lost", lost)}
    assert kv.verify(CHAIN, Bounded, limits=kv.Limits(max_depth=200), **options).verdict is kv.Verdict.DIVERGE


def test_without_work_nothing_is_decided(monkeypatch):
    for name in ("WORK_OF_RUN", "WORK_OF_CANDIDATE"):
        monkeypatch.setattr(f"kgverify.engines.search.{name}", 0)
    report = kv.verify(CHAIN, Bounded, queries=None, corruptions=0)
    assert report.verdict is kv.Verdict.INCONCLUSIVE
    assert "before the search's budget of work ended" in str(report)


def test_recorded_searches_are_compared_in_the_same_way(tmp_path):
    paths = [tmp_path / f"{engine}.h5" for engine in ("search", "model", "bounded", "loses")]
    for path, engine in zip(paths, ("search", "model", Bounded, Loses), strict=True):
        kv.record(CHAIN, path, engine, queries=None, corruptions=0)
    search, model, bounded, loses = paths
    verdicts = [kv.compare(*pair).verdict.value for pair in ((search, bounded), (model, bounded), (search, loses))]
    assert verdicts == ["AGREE", "DIVERGE", "DIVERGE"]
    assert kv.compare(search, loses).causes[0].kind.value == "proof_lost"


def test_rules_and_facts_are_given_in_names():
    engine = SemiNaive(
        Program.from_names(parse_atoms("p(a,b)"), parse_rules("p(X,Y) q(X,Z) p(Z,c)")), Limits(), SHORTEST
    )
    assert engine.rules == ((("p", "?0", "?1"), (("q", "?0", "?2"), ("p", "?2", "c"))),)
    assert engine.facts == {("p", "a", "b")}
