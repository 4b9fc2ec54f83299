"""Provers, rankers and steps of other people, against ours."""

import importlib
import random
import sys
import time
from collections import Counter

import numpy as np
from scipy.stats import rankdata

import kgreference
from benchmarks import ROOT, judge_apart, make_parser, print_header, print_row
from kgreference.program import Program, Variable
from kgverify.program.outcomes import Outcome
from kgverify.ranking.rank import rank_scores
from kgverify.trace.model.columns import Candidates

EXAMPLES = ROOT / "examples" / "third_party"


def judge_all(benchmark, words, packages, judge, unit, *kinds):
    """Judge the packages that are named, print a row for each, and return the sum of their counts."""
    parser = make_parser(benchmark)
    parser.add_argument("packages", nargs="*", help=f"of {', '.join(packages)}; all by default")
    parser.add_argument(f"--{unit}", type=int, default=200, dest="num", help=f"number of {unit} for each package")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop a package after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0, help="print this many problems that differ, the shortest first")
    options = parser.parse_args(words)
    total = Counter()
    columns = (unit, "problems", *kinds, "differs", "judges differ")
    print_header("package", "seed", *columns)
    for package in options.packages or packages:
        sys.path.insert(0, str(EXAMPLES))
        try:
            adapter = importlib.import_module(f"{package}_adapter")
        except ModuleNotFoundError as error:
            print(f"{package} is not measured: {error}", file=sys.stderr)
            continue
        counts, examples = judge(adapter, package, options.seed, options.num, time.monotonic() + options.seconds)
        print_row(package, options.seed, *(counts[column] for column in columns))
        for example in sorted(examples, key=lambda each: len(str(each)))[: options.show]:
            print("   ", *example, sep="  ", file=sys.stderr)
        total += counts
    if not total:
        sys.exit("nothing was measured: none of the packages is installed")
    return total


# Provers


PACKAGES = {"problog": (True, 0), "pydatalog": (True, 0), "minikanren": (False, 0), "pytholog": (False, 1)}
"""The packages, each with its ability to answer recursive programs and the smallest arity that it reads."""
MOST_SECONDS = 0.5
"""Seconds of computing that a program may take with all its queries."""
CHUNK = 200
"""Programs for which one process is started."""


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


def encode_atom(atom):
    """Return the atom as one of two arguments: repeated, or made up; its predicate is named by name and arity."""
    terms = [Variable(term) if term[0].isupper() else term for term in atom[1:]]
    return (f"{atom[0]}{len(terms)}", *([*terms, *terms] if len(terms) == 1 else terms or ["none", "none"]))


def make_program(facts, rules):
    """Return facts and rules as a program of the reference."""
    encoded = [(encode_atom(head), [encode_atom(atom) for atom in body]) for head, body in rules]
    return Program.from_names([encode_atom(fact) for fact in facts], encoded)


def find_model_by_clingo(program):
    """Return the least model of a program, as clingo computes it."""
    from clingo_adapter import find_models

    (model,) = find_models([[*((fact, ()) for fact in program.facts), *program.rules]])
    return model


def select(model, query):
    """Return the tuples of terms of the instances of a query in a model."""
    name, *terms = encode_atom(query)
    found = set()
    for predicate, *values in model:
        bound = {}
        if predicate == name and all(
            bound.setdefault(term, value) == value if isinstance(term, Variable) else term == value
            for term, value in zip(terms, values, strict=True)
        ):
            found.add(tuple(values[: len(query) - 1]))
    return found


def ask(adapter, problems):
    """Yield the answers to each problem, the text of its exception, or None after `MOST_SECONDS` of computing."""

    def answer(problem):
        try:
            return adapter.find_answers(*problem)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    for found in judge_apart(answer, problems, MOST_SECONDS):
        yield None if isinstance(found, int) else found


def judge_prover(adapter, package, seed, num_programs, deadline):
    """Return counts of problems by result, and those that differ with the expected and the given answers."""
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
            program = make_program(facts, rules)
            model = {program.decode(atom) for atom in kgreference.least_model(program)}
            counts["programs"] += 1
            for query, answers in zip(queries, found, strict=True):
                expected = select(model, query)
                counts["problems"] += 1
                if answers != expected:
                    kind = "raises" if isinstance(answers, str) else "hangs" if answers is None else "differs"
                    agree = expected == select({program.decode(atom) for atom in find_model_by_clingo(program)}, query)
                    counts[kind if agree else "judges differ"] += 1
                    examples.append((facts, rules, query, expected, answers))
    return counts, examples


def run_provers(words: list[str]) -> int:
    """Ask provers of other people for the answers of generated queries, and judge these by the reference and by clingo.

        python -m benchmarks provers --programs 1000 problog pydatalog

    A problem is a program with one query. Programs have facts and range-restricted rules over predicates of arity 0 to
    2, whose names may have several arities; those of a prover that need not end on recursion have none. The reference
    answers each query from the least model. Where a prover differs, clingo computes the least model again: a problem
    counts as `differs` where the two judges agree. The script exits with 1 where they do not agree with each other.
    """
    counts = judge_all(run_provers, words, PACKAGES, judge_prover, "programs", "raises", "hangs")
    return int(counts["judges differ"] > 0)


# Rankers


RANKERS = ("pykeen", "torchkge", "ogb", "tgb", "torch_geometric", "torchmetrics", "pytrec_eval", "sklearn")
UNFILTERED = {"torch_geometric"}
"""The evaluators that rank known triples as well."""
TOLERANCE = 1e-5
"""The relative error of a rank that a library gives as its float32 reciprocal."""


def draw_graph(rng):
    """Return scores, test triples, known triples, among them the test triples, with repetitions, and a batch size."""
    num_entities, num_relations = int(rng.choice([1, 2, 3, 5, 8, 13, 40])), int(rng.integers(1, 4))
    shape = (num_entities, num_relations, num_entities)
    kind = rng.integers(4)
    if kind == 0:
        scores = rng.integers(-2, 3, shape) / 4  # many ties
    elif kind == 1:
        scores = rng.normal(size=shape)
    elif kind == 2:
        scores = 1 + rng.integers(0, 3, shape) * 2.0**-22  # apart by a rounding of float32
    else:
        scores = np.full(shape, rng.integers(-1, 2) / 2)  # all tie

    def draw_triples(num):
        return np.stack([rng.integers(0, size, num) for size in shape], axis=1)

    tests = draw_triples(int(rng.choice([1, 2, 8, 64, 256])))
    known = np.concatenate([draw_triples(int(rng.choice([0, 1, 5, 30]))), tests])
    known = known[rng.integers(0, len(known), 2 * len(known))] if rng.random() < 0.5 else known
    known = np.concatenate([known, tests])
    batch_size = int(rng.choice([1, 2, 3, len(tests), 100]))
    return scores.astype(np.float32), tests.tolist(), known.tolist(), batch_size


def list_candidates(scores, tests, known):
    """Return the candidates of every ranking, with their scores and where each ranking ends: the test triple first."""
    triples = set(map(tuple, known))
    rows, sizes = [], []
    for query, (h, r, t) in enumerate(tests):
        for side in (0, 1):
            replaced = [(e, r, t) if side == 0 else (h, r, e) for e in range(len(scores))]
            others = [each for each in replaced if each not in triples and each != (h, r, t)]
            rows += [(query, side, *each) for each in [(h, r, t), *others]]
            sizes.append(1 + len(others))
    table = np.array(rows, np.int32)
    num = len(table)
    columns = (np.ones(num, np.uint32), np.full(num, Outcome.PROVED, np.int8), np.zeros(num, np.uint8), np.zeros(num))
    atoms = table[:, [3, 2, 4]]
    found = scores[table[:, 2], table[:, 3], table[:, 4]].astype(np.float64)
    return Candidates(table[:, 0], table[:, 1].astype(np.int8), atoms, *columns), found, np.cumsum(sizes)


def expect(scores, tests, known):
    """Return the bounds of the ranks by side, by us and by scipy."""
    candidates, found, ends = list_candidates(scores, tests, known)
    ours = rank_scores(candidates, found, np.array(tests, np.int32)[:, [1, 0, 2]], 0.0)
    bounds = list(zip(ours.optimistic.tolist(), ours.pessimistic.tolist(), strict=True))
    rankings = np.split(-found, ends[:-1])
    theirs = [tuple(rankdata(each, method)[0] for method in ("min", "max")) for each in rankings]
    return {name: (bounds[side::2], theirs[side::2]) for side, name in ((0, "head"), (1, "tail"))}


def is_expected(rank, low, high, ties):
    """Return whether a rank is the one between the bounds that the way of ties gives."""
    if ties == "any":
        return low * (1 - TOLERANCE) <= rank <= high * (1 + TOLERANCE) and abs(rank - round(rank)) <= TOLERANCE * rank
    wanted = {"optimistic": low, "realistic": (low + high) / 2, "pessimistic": high}[ties]
    return abs(rank - wanted) <= TOLERANCE * wanted


def judge_ranker(adapter, package, seed, num_graphs, deadline):
    """Return counts of problems by result, and examples of those that differ."""
    counts, examples = Counter(), []
    for number in range(num_graphs):
        if time.monotonic() > deadline:
            break
        scores, tests, known, batch_size = draw_graph(np.random.default_rng((seed, number)))
        bounds = expect(scores, tests, [] if package in UNFILTERED else known)
        counts["graphs"] += 1
        found = adapter.find_ranks(scores, tests, known, batch_size)
        counts["problems"] += sum(len(tests) for _ in {side for side, _ in found})
        for (side, ties), ranks in found.items():
            counts["ranks"] += len(ranks)
            for test, rank, ours, theirs in zip(tests, ranks, *bounds[side], strict=True):
                counts["ties"] += ours[0] < ours[1]
                if ours != theirs:
                    counts["judges differ"] += 1
                elif not is_expected(rank, *ours, ties):
                    counts["differs"] += 1
                    examples.append((number, side, ties, test, rank, ours))
    return counts, examples


def run_rankers(words: list[str]) -> int:
    """Compare the ranks of other people's evaluators with ours, on generated scores and graphs.

        python -m benchmarks rankers --graphs 1000 pykeen torchkge

    A problem is one ranking: a test triple with one side replaced by every entity, known triples left out where the
    evaluator does so. Scores tie often. The ranks of `kgverify.ranking` are expected, and `scipy.stats.rankdata` ranks
    the same scores independently: a problem counts as `differs` where these two agree. The script exits with 1 where
    they do not.
    """
    counts = judge_all(run_rankers, words, RANKERS, judge_ranker, "graphs", "ranks", "ties")
    return int(counts["judges differ"] > 0)
