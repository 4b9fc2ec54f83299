"""Generated inputs: faults that must be found, graph files, steps, dialects, and sound evaluations."""

import gc
import gzip
import importlib.util
import itertools
import json
import multiprocessing
import random
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

import msgspec

import kgverify as kv
from benchmarks.shared import ROOT, make_parser, print_header, print_row

sys.path.extend(str(ROOT / "tests" / folder) for folder in ("dialects", "testing"))

from fault_search import REPLICAS, ProblemStream, find_breakers
from random_dialects import random_dialect
from second_engine import SecondEngine, engine_of_dialect

from kgverify.graphs.graph import KnowledgeGraph
from kgverify.laws.catalogue import LAWS
from kgverify.laws.law import Law, check_laws
from kgverify.program.atoms import Variable
from kgverify.program.limits import FILTERS, OURS, VALUES, Dialect
from kgverify.prover.faults.plant import FAULTS
from kgverify.runs.engine_makers import EngineSpec, as_maker, compiled_maker
from kgverify.testing.campaigns.campaign import Campaign, run_campaign
from kgverify.testing.checking.check import Checker, prepare_batches
from kgverify.testing.problems.decode import draw_problems
from stepaudit.audited_function import Subject
from stepaudit.environment import read_cpu_seconds
from stepaudit.ladder.climb import Judge, climb, compiling_without_caches, keeping_caches
from stepaudit.ladder.culprit import find_culprit
from stepaudit.minimize import minimize
from stepaudit.options import RUNGS, AuditOptions

# Faults


def hunt_all(num_seeds: int, faults: Sequence[str]) -> None:
    """Print the examples that each fault takes, those that take most first, and how many are found within how many."""
    streams = [ProblemStream(seed) for seed in range(num_seeds)]
    taken: dict[str, list[int]] = {}
    for name in faults:
        hunts = [stream.search_fault(name) for stream in streams]
        taken[name] = [each.examples if each.is_found else sys.maxsize for each in hunts]
        print(f"{name:28} {' '.join(map(render_examples, taken[name]))}", flush=True)
    medians = {name: statistics.median(examples) for name, examples in taken.items()}
    worst = {name: max(examples) for name, examples in taken.items()}
    print(f"\n{'fault':28} {'median':>7} {'worst':>7}")
    for name in sorted(taken, key=lambda name: (-medians[name], -worst[name])):
        print(f"{name:28} {render_examples(medians[name])} {render_examples(worst[name])}")
    print(f"\n{'within':>8} {'by median':>10} {'by worst':>10}   of {len(taken)}")
    for limit in (1, 5, 10, 20, 50, 100, 200, 500, 1000, 2000):
        num = [sum(each <= limit for each in counts.values()) for counts in (medians, worst)]
        print(f"{limit:8,} {num[0]:10} {num[1]:10}")
    found = sum(each < sys.maxsize for examples in taken.values() for each in examples)
    print(
        f"\nfound: {found} of {len(taken) * num_seeds} searches; median of the medians"
        f" {render_examples(statistics.median(medians.values()))}"
    )


def render_examples(examples: float) -> str:
    """The number, or a dash where the fault is not found."""
    return f"{'-':>7}" if examples >= sys.maxsize else f"{examples:7,.0f}"


def print_power(faults: Sequence[str]) -> None:
    """Print the laws that each fault breaks, with the number of problems that it took."""
    caught = without_replica = 0
    for fault in faults:
        breakers = find_breakers(compiled_maker(faults=[fault]), list(LAWS.values()))
        names = sorted(breakers, key=lambda name: (name in REPLICAS, breakers[name]))
        caught += bool(names)
        without_replica += any(name not in REPLICAS for name in names)
        told = ", ".join(f"{name} ({breakers[name]})" for name in names[:4]) or "-"
        print(f"{fault:26}{told}{f' and {len(names) - 4} more' if len(names) > 4 else ''}", flush=True)
    print(f"{caught} of {len(faults)} faults caught; {without_replica} without the laws that compute anything again")


def run_hunt(words: list[str]) -> None:
    """Plant every fault of the catalogue, and count the generated problems up to the first that fails.

        python -m benchmarks hunt --seeds 5

    The figures do not depend on a clock. `--laws` looks for broken laws instead, which need no reference; those that
    compute resolvents or scores again are counted apart.
    """
    parser = make_parser(run_hunt)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--laws", action="store_true", help="search for the laws that each fault breaks")
    parser.add_argument("--fault", action="append", help="a fault to find; repeatable; all if not given")
    arguments = parser.parse_args(words)
    # Many small tuples and no cycles.
    gc.disable()
    faults = arguments.fault or list(FAULTS)
    if arguments.laws:
        print_power(faults)
    else:
        hunt_all(arguments.seeds, faults)


# Graph files


SECONDS = 5
GIGABYTE = 1 << 30

Atom = tuple[str, str, str]
Rule = tuple[Atom, tuple[Atom, ...]]
"""Variables begin with `?`, which no name does."""


class Result(NamedTuple):
    """The end of a graph: `loaded`, `refused`, or what is wrong; and the message of a refusal."""

    seed: int
    kind: str
    message: str = ""


# Known content.

PREDICATES = ("parent", "lives_in", "/people/person/born_in", "located-in", "p1", "concept:knows")
ODD_PREDICATES = (
    "has part",
    "côte d'or",
    "a,b",
    "not x",
    "0.9 p",
    "x(y)",
    "~p",
    "r1:0.5:p",
    "http://x.org/a#b",
    "a->b",
)
CONSTANTS = ("ann", "bob", "Carl", "New_York", "00260881", "/m/0abc", "x-1", "a.b", "東京", "Q42")
ODD_CONSTANTS = (
    "New York", "a, b", "it's", 'say "x"', "back\\slash", "f(x)", "f(x", "x)", "%d", "#e", "a % b", "/* c */", "a:-b",
    "->", "[a]", "0.5", "1e9", "null", "nan", "X", "_", "head", "-", "a\u00a0", "\u200bz", "x;y", "x|y", "<a>", '"', "'",
)  # fmt: skip


def draw_atom(draw: random.Random, predicates: Sequence[str], terms: Sequence[str]) -> Atom:
    return draw.choice(predicates), draw.choice(terms), draw.choice(terms)


def draw_rule(draw: random.Random, predicates: Sequence[str], constants: Sequence[str]) -> Rule:
    terms = ("?X", "?Y", "?Z", *(draw.sample(constants, 1) if draw.random() < 0.3 else ()))
    body = tuple(draw_atom(draw, predicates, terms) for _ in range(draw.randint(1, 3)))
    return draw_atom(draw, predicates, terms), body


# Renderers, one for each format; they share nothing with the readers.


def quote(draw: random.Random, name: str) -> str:
    sign = draw.choice("'\"")
    text = name.replace("\\", "\\\\")
    return sign + text.replace(sign, draw.choice((sign * 2, f"\\{sign}"))) + sign


def blank(draw: random.Random) -> str:
    return draw.choice(("", "", "", "", "", " ", " ", "  ", "\t"))


def write_predicate(draw: random.Random, name: str) -> str:
    is_plain = re.fullmatch(r"[\w/][\w/.:#-]*", name) and ":0." not in name
    return name if is_plain and draw.random() < 0.8 else quote(draw, name)


def write_atom(draw: random.Random, atom: Atom, write_term: Callable[[random.Random, str], str]) -> str:
    predicate, *terms = atom
    sides = [f"{blank(draw)}{write_term(draw, term)}{blank(draw)}" for term in terms]
    return f"{write_predicate(draw, predicate)}{blank(draw)}({','.join(sides)})"


def write_constant(draw: random.Random, name: str) -> str:
    is_plain = re.fullmatch(r"[\w/][\w/.-]*", name)
    return name if is_plain and draw.random() < 0.8 else quote(draw, name)


def write_prolog_term(draw: random.Random, term: str) -> str:
    if term.startswith("?"):
        return term[1:]
    is_plain = re.fullmatch(r"[a-z0-9][a-z0-9_]*", term)
    return term if is_plain and draw.random() < 0.5 else quote(draw, term)


def write_arrow_term(draw: random.Random, term: str) -> str:
    return term if term.startswith("?") else quote(draw, term)


def comment(draw: random.Random) -> str:
    text = draw.choice(("", "why", "p(a,b).", "it's", "a -> b :- c", "0.9::p(a,b)"))
    return draw.choice((f"% {text}", f"# {text}", f"/* {text} */"))


def write_functional(draw: random.Random, atoms: Sequence[Atom]) -> str:
    text = draw.choice(("", ":- dynamic parent/2.\n", "/* facts:\n p(a,b). */\n", "% facts\n"))
    for atom in atoms:
        weight = draw.choice(("", "", "", "0.9::", "0.25 :: ", "1.0::"))
        text += blank(draw) + weight + write_atom(draw, atom, write_constant) + blank(draw)
        text += draw.choice((".\n", ".\n", "\n", ". ", f". {comment(draw)}\n"))
    return text


def write_prolog(draw: random.Random, rules: Sequence[Rule]) -> str:
    text = draw.choice(("", ":- discontiguous p/2, q/2.\n", "/* rules:\n p(X,Y) :- q(X,Y). */\n", "# rules\n"))
    for clause_head, body in rules:
        weight = draw.choice(("", "", "", "0.9::", "0.25 "))
        atoms = [write_atom(draw, atom, write_prolog_term) for atom in body]
        text += weight + write_atom(draw, clause_head, write_prolog_term) + blank(draw)
        text += draw.choice((":-", " :- ", ":-\n  ", f" :- {comment(draw)}\n", "\n  :- "))
        text += draw.choice((",", ", ", ",\n  ", f", {comment(draw)}\n  ", "\n  , ")).join(atoms)
        text += draw.choice((".\n", ".\n", "\n\n", ". ", f". {comment(draw)}\n"))
    return text


def write_arrow(draw: random.Random, rules: Sequence[Rule]) -> str:
    text = ""
    for i, (clause_head, body) in enumerate(rules):
        prefix = draw.choice((f"r{i}:{draw.random():.3f}:", f"r{i}::", f"{draw.random():.4f}:", ":0.5:"))
        joined = draw.choice((",", ", ")).join(write_atom(draw, atom, write_arrow_term) for atom in body)
        end = draw.choice(("", ".", f". {comment(draw)}"))
        text += f"{prefix}{joined}{draw.choice(('->', ' -> '))}{write_atom(draw, clause_head, write_arrow_term)}{end}\n"
    return text


def write_anyburl(draw: random.Random, rules: Sequence[Rule]) -> str:
    text = ""
    for clause_head, body in rules:
        atoms = [write_atom(draw, atom, write_prolog_term).replace("\t", " ") for atom in (clause_head, *body)]
        text += f"{draw.randint(1, 99)}\t{draw.randint(1, 99)}\t{draw.random()}\t{atoms[0]} <= {', '.join(atoms[1:])}\n"
    return text


def write_amie(draw: random.Random, rules: Sequence[Rule]) -> str:
    text = draw.choice(("", "Rule\tHead Coverage\tStd Confidence\tPCA Confidence\n"))
    for clause_head, body in rules:
        head, *rest = ("  ".join((atom[1], atom[0], atom[2])) for atom in (clause_head, *body))
        text += f"{'  '.join(rest)}   => {head}\t0.1\t{draw.random():.3f}\t0.7\n"
    return text


def write_openke(folder: Path, atoms: Sequence[Atom]) -> None:
    """Write triples of ids, and the files that name them."""
    relations = {name: i for i, name in enumerate(dict.fromkeys(atom[0] for atom in atoms))}
    entities = {name: i for i, name in enumerate(dict.fromkeys(name for atom in atoms for name in atom[1:]))}
    for role, names in (("entity", entities), ("relation", relations)):
        rows = "".join(f"{name}\t{i}\n" for name, i in names.items())
        (folder / f"{role}2id.txt").write_bytes(f"{len(names)}\n{rows}".encode())
    rows = "".join(f"{entities[first]} {entities[second]} {relations[name]}\n" for name, first, second in atoms)
    (folder / "train2id.txt").write_bytes(f"{len(atoms)}\n{rows}".encode())


def write_table(delimiter: str) -> Callable[[random.Random, Sequence[Atom]], str]:
    def write(draw: random.Random, atoms: Sequence[Atom]) -> str:
        def field(name: str) -> str:
            needs = delimiter != "\t" and any(sign in name for sign in (delimiter, '"', " ", "'", "%", "#"))
            return '"' + name.replace('"', '""') + '"' if needs else name

        rows = [("head", "relation", "tail")] if draw.random() < 0.3 else []
        rows += [(first, predicate, second) for predicate, first, second in atoms]
        end = draw.choice(("\n", "\r\n"))
        return "".join(delimiter.join(map(field, row)) + end for row in rows)

    return write


def write_ntriples(draw: random.Random, atoms: Sequence[Atom]) -> str:
    def iri(name: str) -> str:
        return "<" + "".join(c if c.isalnum() or c in "/._-:#" else f"\\u{ord(c):04X}" for c in name) + ">"

    return "".join(f"{iri(first)} {iri(predicate)} {iri(second)} .\n" for predicate, first, second in atoms)


TRIPLES: Sequence[tuple[str, Callable[[random.Random, Sequence[Atom]], str]]] = (
    (".pl", write_functional),
    (".txt", write_functional),
    (".tsv", write_table("\t")),
    (".csv", write_table(",")),
    (".csv", write_table(";")),
    (".txt", write_table("|")),
    (".txt", write_table(" ")),
    (".nt", write_ntriples),
)
RULES = (write_prolog, write_arrow, write_anyburl, write_amie)


def write_graph(draw: random.Random, folder: Path, oddness: float) -> tuple[list[Atom], list[Rule]]:
    """Write a graph and return its train triples and rules."""

    def choose(usual: Sequence[str], odd: Sequence[str]) -> list[str]:
        return [draw.choice(odd if draw.random() < oddness else usual) for _ in range(6)]

    predicates, constants = choose(PREDICATES, ODD_PREDICATES), choose(CONSTANTS, ODD_CONSTANTS)
    atoms = [draw_atom(draw, predicates, constants) for _ in range(draw.randint(3, 12))]
    known = [term for atom in atoms for term in atom[1:]]
    rules = [draw_rule(draw, [atom[0] for atom in atoms], known) for _ in range(draw.randint(1, 5))]
    if uses_ids := draw.random() < 0.1:
        write_openke(folder, atoms)
    for split in ("train", "valid", "test"):
        if not (uses_ids if split == "train" else draw.random() < 0.5):
            ending, write = draw.choice(TRIPLES)
            content = write(draw, atoms).encode(draw.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16")))
            is_packed = draw.random() < 0.1
            name = f"{split}{ending}{'.gz' * is_packed}"
            (folder / name).write_bytes(gzip.compress(content) if is_packed else content)
    if draw.random() < 0.8:
        (folder / "rules.txt").write_bytes(draw.choice(RULES)(draw, rules).encode())
    else:
        rules = []
    if draw.random() < 0.5:
        separator = "\t" if any(" " in name or draw.random() < 0.3 for name in known) else " "
        (folder / "domains.txt").write_bytes(f"all{separator}{separator.join(known)}\n".encode())
    return atoms, rules


# Damage.

SIGNS = (
    "::", ":-", "->", "<=", "=>", "\\+", "not ", "~", "!", ";", "|", ",", ".", "(", ")", "[", "]", "'", '"', "\\", "/*", "*/",
    "%", "#", "\t", "\n", "\r", "\0", "\ufeff", "\u2028", "?", "_", "0.9::", "0.9 ", "1e999::", "-", "=", "<", ">", "X is Y+1",
    ":- dynamic p/2.", ":- [file].", "?- p.", "\x1b[31m", "::error::", "##[error]", "\u202e", "p(a,b).", "p(X,Y) :- q(X,Y).",
    "b(X,Y) -> h(X,Y)", "1\t2\t0.5\th(X,Y) <= b(X,Y)", "?a  b  ?c   => ?a  h  ?c", "head\trelation\ttail", "head,relation,tail",
    "<a> <b> <c> .", '"x"@en', "{}", "[1, 2]", "@prefix a: <b> .", "\ud800", "9" * 400,
)  # fmt: skip


def encode(text: str) -> bytes:
    """Encode a text, also with bytes that were not UTF-8, or else with halves of characters."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def damage(draw: random.Random, content: bytes) -> bytes:
    """Change a file in a few places."""
    text = content.decode("utf-8", "surrogateescape")
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randint(0, len(text))
        size = 2 ** draw.randint(0, 8)
        sign = draw.choice(SIGNS)
        way = draw.randrange(10)
        if way <= 2:
            text = text[:at] + sign + text[at:]
        elif way == 3:
            text = text[:at] + text[at + size :]
        elif way == 4:
            text = text[:at] + text[at : at + size] * draw.randint(2, 50) + text[at + size :]
        elif way == 5:
            text = text[:at] + chr(draw.choice((draw.randrange(128), draw.randrange(0xD800)))) + text[at + 1 :]
        elif way == 6:
            text = text[:at] + sign * draw.choice((10, 100, 1_000, 20_000)) + text[at:]
        elif way == 7:
            text = text.replace(draw.choice(("\n", ",", "(", ")", " ", ".")), sign)
        elif way == 8:
            text = text[:at]
        else:
            lines = text.split("\n")
            draw.shuffle(lines)
            text = "\n".join(lines)
    content = encode(text)
    way = draw.randrange(20)
    if way == 0:
        at = draw.randint(0, len(content))
        content = content[:at] + draw.randbytes(4) + content[at + 4 :]
    elif way == 1:
        content = gzip.compress(content)
        content = content[: draw.choice((len(content), draw.randint(0, len(content))))]
    elif way == 2:
        content = text.encode(draw.choice(("utf-16", "utf-16-le", "latin-1", "utf-8-sig")), "replace")
    return content


# Judgement.

WHOLE_FILE = re.compile(r"expected at least one triple|expected one file|.*(?:gzip|zstd|unpack|compress)", re.DOTALL)
"""Refusals that concern no line."""


class Hang(BaseException):
    """A load that takes too long."""


def stop(signal_number: int, frame: FrameType | None) -> None:
    raise Hang


def load(folder: Path) -> KnowledgeGraph | kv.UserError:
    """Load a graph, or return the refusal."""
    try:
        return kv.load_graph(folder)
    except kv.UserError as error:
        return error


def check_place(folder: Path, error: kv.UserError) -> str:
    """Return `refused`, or what the refusal lacks."""
    file, _, line = error.where.rpartition(":")
    names = {entry.name for entry in folder.iterdir()}
    names |= {str(folder / name) for name in names} | {folder.name, str(folder)}
    if not error.fix:
        return "refused without a fix"
    if file in names and line.isdigit():
        return "refused"
    if error.where in names and WHOLE_FILE.match(error.message):
        return "refused"
    return "refused without a place"


def normalize(rule: Rule) -> object:
    numbers: dict[str, int] = {}

    def number(term: str) -> object:
        return numbers.setdefault(term, len(numbers)) if term.startswith("?") else term

    return [(predicate, number(a), number(b)) for predicate, a, b in (rule[0], *rule[1])]


def named(graph: KnowledgeGraph) -> Iterable[Rule]:
    def text(term: str | Variable) -> str:
        return f"?{term.name}" if isinstance(term, Variable) else term

    for rule in graph.rules:
        head, *body = [(atom.predicate, text(atom.first), text(atom.second)) for atom in (rule.clause_head, *rule.body)]
        yield head, tuple(body)


def try_damaged(seed: int, folder: Path) -> Result:
    draw = random.Random(f"damaged {seed}")
    write_graph(draw, folder, 0.2)
    for file in draw.sample(sorted(folder.iterdir()), draw.randint(1, len(list(folder.iterdir())))):
        file.write_bytes(damage(draw, file.read_bytes()))
    outcome = load(folder)
    if isinstance(outcome, kv.UserError):
        return Result(seed, check_place(folder, outcome), str(outcome))
    return Result(seed, "loaded")


def try_written(seed: int, folder: Path) -> Result:
    draw = random.Random(f"written {seed}")
    atoms, rules = write_graph(draw, folder, 0.3)
    outcome = load(folder)
    if isinstance(outcome, kv.UserError):
        return Result(seed, check_place(folder, outcome), str(outcome))
    if [tuple(atom) for atom in outcome.train] != atoms:
        return Result(seed, "read wrongly", "train")
    if [normalize(rule) for rule in named(outcome)] != [normalize(rule) for rule in rules]:
        return Result(seed, "read wrongly", "rules")
    return Result(seed, "loaded")


TRIALS = {"damaged": try_damaged, "written": try_written}


def measure_memory() -> int:
    """Return the peak of the memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def judge_files(job: tuple[str, int]) -> Result:
    """Write one graph, load it, and return what became of it."""
    way, seed = job
    begin = time.perf_counter()
    memory = measure_memory()
    with tempfile.TemporaryDirectory() as folder:
        signal.signal(signal.SIGALRM, stop)
        signal.alarm(2 * SECONDS)
        try:
            result = TRIALS[way](seed, Path(folder))
        except Hang:
            result = Result(seed, "hang")
        except Exception as error:
            result = Result(seed, "traceback", f"{type(error).__name__}: {error}")
        finally:
            signal.alarm(0)
    if time.perf_counter() - begin > SECONDS:
        return Result(seed, "hang")
    if measure_memory() - memory > GIGABYTE:
        return Result(seed, "more than 1 GiB")
    return result


BAD_LOADS = ("traceback", "hang", "more than 1 GiB", "read wrongly", "refused without a place", "refused without a fix")


def run_graph_files(words: list[str]) -> int:
    """Files of graphs by the thousand: damaged ones, and written ones whose content is known.

        python -m benchmarks graph-files                      # 5,000 damaged graphs, 5,000 written ones
        python -m benchmarks graph-files --num 200 --seed 7

    A damaged graph is a folder in a format that people have, with changes at random: other signs, cut or repeated
    spans, signs repeated many thousand times, other encodings. It loads, or it is refused with the file and, unless the
    whole file is at fault, the line. A written graph is made from known triples and rules, with quotes, blanks,
    comments, weights and directives at random. It is read back exactly, or refused. Prints a Markdown table; exit code
    1 if anything else occurred, if a load took longer than 5 seconds, or if it took more than 1 GiB more.
    """
    parser = make_parser(run_graph_files)
    parser.add_argument("--num", type=int, default=5_000, help="graphs of each kind")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--verbose", action="store_true", help="count the messages of refusals")
    options = parser.parse_args(words)
    print_header("graphs", "loaded", "refused", *BAD_LOADS)
    num_bad = 0
    messages: Counter[str] = Counter()
    for way in TRIALS:
        jobs = [(way, options.seed + i) for i in range(options.num)]
        if options.jobs > 1:
            with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
                results = pool.map(judge_files, jobs, chunksize=50)
        else:
            results = [judge_files(job) for job in jobs]
        counts = Counter(result.kind for result in results)
        print_row(way, *(counts[kind] for kind in ("loaded", "refused", *BAD_LOADS)))
        for result in results:
            messages[f"{way}: {re.sub(r'[0-9]+|found .*', '', result.message.partition(': ')[2])[:70]}"] += 1
            if result.kind in BAD_LOADS:
                num_bad += 1
                print(f"{way} {result.seed}: {result.kind}: {result.message[:200]!r}", file=sys.stderr)
    if options.verbose:
        for message, count in messages.most_common(60):
            print(f"{count:6} {message!r}", file=sys.stderr)
    return 1 if num_bad else 0


# Steps


FLOATS: Final = ("a", "b", "STATE", "MEMORY.value")
INTEGERS: Final = ("i", "j", "COUNTS")
STATEMENTS: Final = (
    "{f} = {f}.clone()",
    "{f}[:] = {g}[:]",
    "{f}.copy_({g})",
    "{f}[1:] = {f}[:-1].clone()",
    "{f}[1:] = {g}[:-1]",
    "{f}[::2] = {g}[::2]",
    "{f}.add_({g})",
    "{f}.add_({g}.flip(0))",
    "{f}.mul_(2)",
    "{f}.t().add_({g})",
    "{f}.t().copy_({g})",
    "{f}.view(-1)[3:7] = {g}.view(-1)[1:5]",
    "{f}.index_put_(({i} % 6,), {g})",
    "{f}.index_copy_(0, torch.arange(5, -1, -1), {g})",
    "{f}.index_add_(0, {i} % 6, {g})",
    "{f}.scatter_(0, ({i} % 6)[None].expand(1, 6), {g}[:1])",
    "{f}[{i} % 6] = {g}[{j} % 6]",
    "{f}.masked_fill_({g} > 2, 7.0)",
    "{f}[{g} > 3] = 1.0",
    "{f} = torch.where(({i} > 2)[:, None], {f}, {g})",
    "{f} = {g}.index_select(0, {i} % 6)",
    "{f} = torch.slice_scatter({f}, {g}[1:3], 0, 2, 4)",
    "{f} = torch.select_scatter({f}, {g}[1], 0, 2)",
    "{f} = torch.cat([{f}[3:], {g}[:3]])",
    "{f} = {f}.roll(1, 0)",
    "{f} = {f}.cummax(0).values",
    "{f} = torch.stack(({f}, {g})).amax(0)",
    "{f} = {f}[{f}.sum(1).argsort(stable=True)]",
    "{f}, {g} = {g}, {f}",
    "torch._foreach_add_([{f}, {g}], 1.0)",
    "{i}.add_(1)",
    "{i}.copy_({j})",
    "{i}[1:] = {i}[:-1].clone()",
    "{i} = {i} * 2654435761 >> 7",
    "{i} = (torch.arange(6) * 40503 + {j}) >> 3",
    "{i} = {i} ^ ({j} << 5)",
    "{i} = {i} // 3 - {j} % 5",
    "{i} = torch.where({i} > {j}, {i}, -{j})",
    "{i} = {i}.to(torch.int32).to(torch.int64)",
    "{i} = ({i} % 7).to(torch.int8).cumsum(0)",
    "{i} = ({f} > {g}).to(torch.int8).argmax(1)",
    "{i} = ({f} > {g}).sum(1)",
    "{i} = {f}.argmax(1)",
    "{i} = {f}.t().argmin(1)",
    "{i} = torch.searchsorted({i}.sort().values, {j})",
    "{i} = ({i} % 6).scatter(0, {j} % 6, {i})",
    "{i} = torch.bitwise_and({i}, {j}).abs()",
    "{f}.put_({i} % 36, {g}[0])",
    "{f}.masked_scatter_({g} > 0, {g}.flip(1))",
    "{f}.scatter_reduce_(0, ({i} % 6)[None].expand(6, 6), {g}, 'amax')",
    "{f}.index_reduce_(0, {i} % 6, {g}, 'amin')",
    "{f}.index_fill_(1, {i} % 6, 2.0)",
    "{f}.fill_diagonal_(3.0)",
    "{f}.diagonal().copy_({g}[0])",
    "{f}.unfold(0, 2, 2)[0].mul_(3)",
    "{f}.addcmul_({g}.t(), {g})",
    "{f}.sub_({f}.roll(1, 1))",
    "{f}.lerp_({g}.flip(1), 0.5)",
    "{f}[:, 1:].add_({f}[:, :-1])",
    "{f}[{i} % 6, {j} % 6] += 1",
    "{f}[-1].copy_({f}[0])",
    "{f}.swapaxes(0, 1)[2].zero_()",
    "{f} = {f}.as_strided((6, 6), (1, 6)).clone()",
    "{f} = {f}.gather(1, ({i} % 6)[:, None].expand(6, 6))",
    "{f} = {f}.topk(6, 1).values",
    "{f} = {f}.sort(dim=1, descending=True, stable=True).values",
    "{f} = {f}.cumsum(1).flip(1)",
    "{f} = {f}.tril() + {g}.triu(1)",
    "{f} = torch.diagonal_scatter({f}, {g}[2])",
    "{f} = torch.masked_fill({f}, {f} == {f}.amax(1, keepdim=True), -torch.inf).nan_to_num(neginf=-9)",
    "{f} = {f}.to(torch.int8).to(torch.float32)",
    "{f} = {f}.remainder(5) - {g}.fmod(3)",
    "{f} = {f}.round().div(2, rounding_mode='floor')",
    "{f} = {f}.half().add({g}.half()).float()",
    "{f} = {f}.bfloat16().amax(0).float() + {g}",
    "{f} = {f}.view(torch.int32).bitwise_and(-65536).view(torch.float32)",
    "{f} = {f}.unflatten(0, (2, 3)).transpose(0, 1).flatten(0, 1)",
    "{f} = torch.nn.functional.pad({f}[1:, 1:], (1, 0, 0, 1), value=2.0)",
    "{f} = torch.nn.functional.one_hot({i} % 6, 6) * {f}",
    "{f} = torch.nn.functional.embedding({i} % 6, {f})",
    "{f}, {i} = {f}.amax(1, keepdim=True).expand(6, 6).clone(), {f}.max(1).indices",
    "torch._foreach_mul_([{f}, {g}], [2.0, 3.0])",
    "torch._foreach_copy_([{f}, {g}], [{g}.clone(), {f}.clone()])",
    "torch._foreach_sub_([{f}, {g}], [{g}, {f}])",
    "{i}[{j} % 6] = {i}.clone()",
    "{i}.scatter_add_(0, {j} % 6, {i}.clone())",
    "{i}.bitwise_xor_({j}.flip(0))",
    "{i} = {i}.to(torch.int32) * 65537 * 65537 + {j}",
    "{i} = {i}.to(torch.uint8) - {j}.to(torch.uint8) + {i}",
    "{i} = ({i}.to(torch.int16) << 12).to(torch.int64) >> 3",
    "{i} = {i}.remainder(-5) + torch.fmod({j}, 3)",
    "{i} = {i}.clamp(2, 5).cumprod(0) - {j}",
    "{i} = torch.div({i}, -4, rounding_mode='trunc')",
    "{i} = {i}.argsort(stable=True, descending=True)",
    "{i} = torch.bucketize({i}, {j}.sort().values, right=True)",
    "{i} = {i}.unique_consecutive().sum() + {j}",
    "{i} = ({i} == {j}).logical_not().long() | {j}",
    "{i} = ({i}[:, None] == {j}).any(1) * {i} + ({i}[:, None] < {j}).sum(1)",
    "{i} = ({i}[:, None] == {j}).int().argmax(1)",
    "{i} = torch.arange(5, -1, -1)[{i} % 6] * {j}",
    "{i} = torch.repeat_interleave({i} % 6, 2)[1:7]",
    "{i} = {f}.long().amin(1) - {f}.bool().sum(1)",
    "{i} = ({f} == {f}.amax()).flatten().nonzero().sum() + {j}",
    "{i} = torch.where({i} % 2 == 0, {i} >> 1, 3 * {j} + 1)",
    "{i} = {i}.roll(2) ^ ({i} >> ({j} & 7))",
    "r = Pair({f}, {i}); {f} = r._replace(value={g}).value",
    "r = Pair({f}, {i}); {g}.copy_(r.value.flip(0)); {i} = r.rows + 1",
    "MEMORY.value = {f}.clone()",
    "MEMORY.value[:2] = {f}[2:4]",
    "MEMORY.count += 1; {f} = {f} + MEMORY.count",
)
_NUMBERS: Final = itertools.count()
STEP_HEAD: Final = '''"""A step that torch compiles wrongly, drawn by `python -m benchmarks steps`, seed {seed}."""

from typing import NamedTuple

import torch

STATE = torch.arange(36.0).reshape(6, 6) % 7
COUNTS = torch.arange(6)


class Pair(NamedTuple):
    value: torch.Tensor
    rows: torch.Tensor


class Memory:
    def __init__(self):
        self.value = torch.ones(6, 6)
        self.count = 0


MEMORY = Memory()


def make(call):
    draw = torch.Generator().manual_seed(call)
    floats = [torch.randint(-4, 5, (6, 6), generator=draw).float() for _ in range(2)]
    return *floats, *(torch.randint(0, 9, (6,), generator=draw) for _ in range(2))


def step(a, b, i, j):
    global STATE, COUNTS
    {body}
    return a, b, i, j
'''


def draw_statements(seed: int) -> tuple[str, ...]:
    """Draw the statements of a step."""
    rng = random.Random(seed)
    statements = []
    for _ in range(rng.randint(2, 6)):
        f, g = rng.sample(FLOATS, 2)
        i, j = rng.sample(INTEGERS, 2)
        statements.append(rng.choice(STATEMENTS).format(f=f, g=g, i=i, j=j))
    return tuple(statements)


def draw_steps(seed: int, job: int = 0, jobs: int = 1) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the steps of one of several jobs, without end: the seed from which each was drawn, and its statements.

    A step that was drawn before is left out. The statements choose the job, so that no two jobs have one step.
    """
    drawn: set[tuple[str, ...]] = set()
    for number in itertools.count(seed):
        statements = draw_statements(number)
        if zlib.crc32("\n".join(statements).encode()) % jobs == job and statements not in drawn:
            drawn.add(statements)
            yield number, statements


def write_step(statements: tuple[str, ...], seed: int, path: Path) -> None:
    """Write a step as a module."""
    path.write_text(STEP_HEAD.format(seed=seed, body="\n    ".join(statements or ("pass",))), encoding="utf-8")


def load_step(path: Path) -> ModuleType:
    """Import a step anew."""
    # Dynamo keeps the module of a name that it has imported, and imports the module whose globals a step reads.
    name = f"{path.stem}_{next(_NUMBERS)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_rung(statements: tuple[str, ...], seed: int, path: Path, names: tuple[str, ...]) -> str:
    """Return the first of the rungs on which a step deviates; empty if none does, or if it fails in eager."""
    write_step(statements, seed, path)
    module = load_step(path)
    subject = Subject("step", module.step, module.make, calls=1)
    judge = Judge(subject, AuditOptions(repetitions=0))
    if any(each.error for each in judge.expected.values()):
        return ""
    for rung in RUNGS:
        if rung.name in names and judge.judge(judge.watch(rung))[0]:
            return rung.name
    return ""


def find_cause(statements: tuple[str, ...], seed: int, path: Path, name: str) -> str:
    """Return what the compiler must leave out on a rung, so that a step is right; empty if nothing is found in a minute."""
    write_step(statements, seed, path)
    module = load_step(path)
    options = AuditOptions(rungs=(name,), repetitions=0)
    ladder = climb(Subject("step", module.step, module.make, calls=1), options)
    items = find_culprit(ladder.judge, ladder.first).items if ladder.first is not None else ()
    return " and ".join(map(str, items))


def name_kind(statements: tuple[str, ...], rung: str) -> str:
    """Name what is left of a step by its rung and operations."""
    words = (re.sub(r"\b(a|b|i|j|STATE|COUNTS|MEMORY\.value)\b", "x", each) for each in statements)
    return f"{rung}: {'; '.join(words)}"


def search_steps(seconds: float, seed: int, folder: Path, job: int, jobs: int) -> None:
    """Draw, compare and shrink steps until the time is over, that of earlier searches in the folder included."""
    done = folder / "done.json"
    last, num, before, kinds = json.loads(done.read_text()) if done.exists() else (seed - 1, 0, 0.0, {})
    rungs = ("backend-eager", "default")
    scratch = folder / "drawn.py"
    with keeping_caches([rung for rung in RUNGS if rung.name in rungs]), compiling_without_caches():
        for number, statements in draw_steps(seed, job, jobs):
            if number <= last:
                continue
            if (used := before + read_cpu_seconds()) > seconds:
                break
            num += 1
            if rung := find_rung(statements, number, scratch, rungs):

                def still(part: tuple[str, ...], rung: str = rung, number: int = number) -> bool:
                    return find_rung(part, number, scratch, (rung,)) == rung

                least = minimize(statements, still)
                kind = name_kind(least, rung)
                if kind not in kinds:
                    write_step(least, number, folder / f"step_{number}.py")
                    cause = find_cause(least, number, scratch, rung)
                    print(f"seed {number}: {kind} | right without {cause or '?'}", flush=True)
                kinds[kind] = kinds.get(kind, 0) + 1
            used = before + read_cpu_seconds()
            done.write_text(json.dumps((number, num, used, kinds)))
            if num % 50 == 0:
                print(f"{num} steps, {len(kinds)} kinds, {used:.0f} s", flush=True)
    summary: list[Any] = sorted(kinds.items(), key=lambda each: -each[1])
    print(f"{num} steps, {len(summary)} kinds, {before + read_cpu_seconds():.0f} s")
    for kind, count in summary:
        print(f"{count:4} {kind}")


def run_steps(words: list[str]) -> None:
    """Draw small steps, and compare each with eager on the first and the last rung of the compiler.

        python -m benchmarks steps --seconds 600 --save found
        python -m benchmarks steps --seconds 600 --save found --jobs 16

    The steps are what slot-recycling code is made of: mutation of captured state and arguments, views, scatters, masks,
    integer arithmetic, records. A step that deviates is shrunk statement by statement, and saved as a file with `step`
    and `make`, for `kgverify audit step`. Steps that deviate after the same shrinking, with the same operations, count
    once, and the pass or switch without which each is right is searched. Each of several jobs takes its own steps of
    one sequence, in its own folder `job_N`; no two of them try the same step. A search that was interrupted resumes
    after its last step: the folder holds what it has done.
    """
    parser = make_parser(run_steps)
    parser.add_argument("--seconds", type=float, default=600.0, help="CPU time of each job, with its processes")
    parser.add_argument("--seed", type=int, default=0, help="the first step's")
    parser.add_argument("--save", type=Path, default=Path("found"), help="folder for the steps that deviate")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--job", type=int, help="run this one of the jobs alone, from 0")
    options = parser.parse_args(words)
    if options.jobs == 1 or options.job is not None:
        options.save.mkdir(parents=True, exist_ok=True)
        search_steps(options.seconds, options.seed, options.save, options.job or 0, options.jobs)
        return
    command = [sys.executable, "-m", "benchmarks", "steps", "--seconds", str(options.seconds)]
    command += ["--seed", str(options.seed), "--jobs", str(options.jobs)]
    running = []
    for job in range(options.jobs):
        folder = options.save / f"job_{job}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log.txt").open("a") as log:
            one = [*command, "--job", str(job), "--save", str(folder)]
            running.append(subprocess.Popen(one, stdout=log, stderr=subprocess.STDOUT))
    for each in running:
        each.wait()


# Dialects


BATCHED: Final = Dialect(
    unification="one_pass",
    filters=("prune", "close", "max_resolvents", "revisit", "max_atoms"),
    memory="set",
    exempts_terminal=True,
    stopping="where_no_terminal",
    ties="random",
)
"""The dialect of a batched engine in docs/semantics.md."""
PLAIN: Final = Dialect(exclusion="never", filters=("max_atoms", "max_resolvents"), memory="none")
"""The dialect of plain resolution: nothing is pruned, visited or excluded."""
SEED: Final = 21
PART: Final = 256
"""Problems of one check of laws, and most problems that a planted difference is sought in at once."""

UNSEEN: Final = {
    "exempts_terminal": "no goal without atoms is visited in a derivation",
    "unproved": "no step shows it, only ranks",
    "ties": "no step shows it, only ranks",
    "exclusion always positives_only": "no corruption is a fact",
    "close before revisit": "an empty list becomes FALSE after either",
}
"""The switches that make no difference in the steps of any derivation."""


def list_dialects(num: int) -> list[Dialect]:
    """Return the published dialects and others that are drawn at random, half of them close to the default one."""
    rng = random.Random(SEED)
    found = [OURS, BATCHED, PLAIN]
    while len(found) < num:
        drawn = random_dialect(rng, make_dialect, rng.choice((2, 13)))
        if drawn not in found:
            found.append(drawn)
    return found[:num]


def make_dialect(**switches: Any) -> Dialect:
    """Return a dialect of switches with the reference's values."""
    plain = {name: value if isinstance(value, bool) else str(value) for name, value in switches.items()}
    if "filters" in switches:
        plain["filters"] = tuple(map(str, switches["filters"]))
    return Dialect(**plain)


def list_flips(dialect: Dialect) -> Iterator[tuple[str, Dialect]]:
    """Yield every dialect that differs in one switch, in one filter, or in the order of two neighbouring filters."""
    for name, values in VALUES.items():
        now = getattr(dialect, name)
        for value in values:
            if value != now:
                yield f"{name} {now} {value}", msgspec.structs.replace(dialect, **{name: value})
    filters = dialect.filters
    for i, name in enumerate(filters):
        yield f"without {name}", msgspec.structs.replace(dialect, filters=filters[:i] + filters[i + 1 :])
        if i:
            swapped = (*filters[: i - 1], name, filters[i - 1], *filters[i + 1 :])
            yield f"{name} before {filters[i - 1]}", msgspec.structs.replace(dialect, filters=swapped)
    for name in FILTERS:
        if name not in filters:
            yield f"with {name}", msgspec.structs.replace(dialect, filters=(*filters, name))


def count_false_alarms(dialects: list[Dialect], num_problems: int, num_for_laws: int, corpus: Path, jobs: int) -> int:
    """Print and return the false alarms of fuzzing and of laws."""
    print_header("dialect", "problems", "steps", "differ", "laws", "problems", "broken", "seconds")
    num_alarms = 0
    engine = EngineSpec(f"{ROOT / 'tests' / 'dialects' / 'second_engine.py'}:SecondEngine")
    for number, dialect in enumerate(dialects):
        begun = time.monotonic()
        num_steps = num_tried = num_differing = 0
        if num_problems:
            campaign = Campaign(
                corpus=corpus / str(number),
                engine=engine,
                seed=number,
                examples=num_problems,
                dialect=dialect,
                jobs=jobs,
                minimum={},
            )
            result = run_campaign(campaign)
            num_steps, num_tried, num_differing = result.num_steps, result.num_problems, result.num_differing
            num_differing += len(result.divergences)
        laws = [law for law in LAWS.values() if law.holds_in(dialect)]
        broken = check_all_laws(number, dialect, laws, num_for_laws, corpus / f"{number}-laws.json")
        num_alarms += num_differing + len(broken)
        seconds = f"{time.monotonic() - begun:,.0f}"
        counts = f"{num_tried:,}", f"{num_steps:,}", num_differing, len(laws), f"{num_for_laws:,}"
        print_row(dialect, *counts, ", ".join(broken) or 0, seconds)
    print(f"\nfalse alarms: {num_alarms} in {len(dialects)} dialects")
    return num_alarms


def check_all_laws(number: int, dialect: Dialect, laws: list[Law], num: int, kept: Path) -> list[str]:
    """Return the names of the laws that the engine breaks, resuming from the file that says how many problems were checked."""
    num_checked, broken = (
        msgspec.json.decode(kept.read_bytes(), type=tuple[int, list[str]]) if kept.exists() else (0, [])
    )
    drawn = islice(draw_problems(1000 + number, 0, dialect), num_checked, None)
    while num_checked < num:
        part = list(islice(drawn, min(PART, num - num_checked)))
        broken += [each.law for each in check_laws(as_maker(SecondEngine), part, laws, most=1)]
        num_checked += len(part)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(msgspec.json.encode((num_checked, broken)))
    return broken


def find_planted(base: Dialect, most: int) -> int:
    """Print the first problem that shows each single difference from a dialect; return how many are not found."""
    print(f"\njudged in: {base}\n")
    print_header("the engine's dialect differs", "problems until it is found")
    waiting = dict(list_flips(base))
    found: dict[str, str] = {}
    for name in list(waiting):
        reason = next((reason for key, reason in UNSEEN.items() if _covers(key, name)), "")
        if reason:
            found[name] = f"none: {reason}"
            del waiting[name]
    drawn, begin, size = draw_problems(SEED, 0, base), 0, 8
    while waiting and begin < most:
        part = list(islice(drawn, min(size, most - begin)))
        batches = prepare_batches(part)
        for name, other in list(waiting.items()):
            maker = as_maker(engine_of_dialect(other))
            suspects = [each.number for batch in batches for each in Checker(maker).find_suspects(batch)]
            if suspects:
                found[name] = f"{begin + min(suspects) + 1:,}"
                del waiting[name]
        begin += len(part)
        size = min(2 * size, PART)
    for name, _ in list_flips(base):
        print_row(name, found.get(name, f"NOT FOUND in {most:,}"))
    num_seen = sum(not each.startswith("none") for each in found.values())
    print(f"\nfound: {num_seen} of {num_seen + len(waiting)}", flush=True)
    return len(waiting)


def _covers(key: str, name: str) -> bool:
    """Return whether a difference is one of a switch without effect, or of its values, in either direction."""
    words = name.split()
    return words[0] == key if " " not in key else set(words) == set(key.split())


def run_dialects(words: list[str]) -> int:
    """Judge correct engines of many dialects, and engines that differ from their dialect in one switch.

        python -m benchmarks dialects --problems 10000 --laws 500 --corpus build/dialects
        python -m benchmarks dialects --problems 0 --laws 0 --planted 4096

    The first form compares the reference, in each of 20 dialects, with an engine of the same dialect that was written
    apart from it (tests/dialects), and checks the laws that hold in the dialect. Each difference is a false alarm. Both
    resume from the corpus. The second judges, in two dialects, engines of dialects that differ in one switch, and
    prints the first problem that shows it. Exit code 1 for a
    false alarm or a difference that is not found.
    """
    parser = make_parser(run_dialects)
    parser.add_argument("--dialects", type=int, default=20)
    parser.add_argument("--problems", type=int, default=2000, help="compared in each dialect")
    parser.add_argument("--laws", type=int, default=PART, help="problems on which laws are checked in each dialect")
    parser.add_argument("--planted", type=int, default=2048, help="most problems to find a planted difference")
    parser.add_argument("--corpus", type=Path, help="the folder from which an interrupted run resumes")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args(words)
    num_bad = 0
    if arguments.problems or arguments.laws:
        dialects = list_dialects(arguments.dialects)
        with tempfile.TemporaryDirectory() as folder:
            corpus = arguments.corpus or Path(folder)
            num_bad += count_false_alarms(dialects, arguments.problems, arguments.laws, corpus, arguments.jobs)
    if arguments.planted:
        num_bad += sum(find_planted(base, arguments.planted) for base in (OURS, BATCHED))
    return int(bool(num_bad))


# False alarms


def draw_arguments(device: str, mode: str, seed: int) -> dict[str, Any]:
    """Return the arguments of one evaluation."""
    import kgverify as kv

    rng = random.Random(seed)
    return {
        "graph": rng.choice([f"random:{seed}", f"random:{seed}", f"random:{seed}", "countries"]),
        "queries": rng.choice([1, 2, 3, 5, 9, None]),
        "corruptions": rng.choice([0, 1, 3, 7, 20, "all"]),
        "seed": rng.choice([seed, seed + (1 << 33)]),
        "policy": rng.choice(["shortest", "two_tower"]),
        "limits": kv.Limits(
            max_depth=rng.choice([1, 2, 3, 5, 8]),
            max_atoms=rng.choice([2, 3, 6]),
            max_resolvents=rng.choice([2, 5, 20, 120]),
        ),
        "engine": kv.Evaluator(mode=mode, device=device, slots=rng.choice([None, 1, 3, 16, 64])),
        "options": kv.EvaluationOptions(
            part_size=rng.choice([None, None, 1, 10, 100]),
            rank_only=rng.random() < 0.5,
            check=rng.choice([0, 16, 256]),
            minimum={},
        ),
    }


def evaluate_seed(device: str, mode: str, seed: int) -> str:
    """Return what is wrong with one evaluation; empty if it is sound."""
    import kgverify as kv

    arguments = draw_arguments(device, mode, seed)
    try:
        report = kv.evaluate(**arguments)
    except kv.UserError as error:
        # Not every random graph has enough triples or constants: such a draw is refused, in words.
        return f"refused: {error}".splitlines()[0]
    except Exception as error:
        return f"seed {seed}: {arguments}: {type(error).__name__}: {error}"
    return "" if report.is_sound else f"seed {seed}: {arguments}: not sound"


def run_false_alarms(words: list[str]) -> int:
    """Evaluate many small graphs, each with its checks, and count those that are called wrong although nothing is.

        python -m benchmarks false-alarms --evaluations 1000 --jobs 2
        python -m benchmarks false-alarms --evaluations 100 --device cuda

    Graphs, numbers of corruptions, policies, limits, layouts and the ways to rank are drawn from the seed. A line names
    each evaluation that is not sound or raises; the exit code is 1 if there is one. `kgverify fuzz` is the same measure
    for generated problems. No minimum is asked for, since many of the graphs prove nothing.
    """
    parser = make_parser(run_false_alarms)
    parser.add_argument("--evaluations", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode", default="auto")
    options = parser.parse_args(words)
    begin = time.monotonic()
    seeds = range(options.first_seed, options.first_seed + options.evaluations)
    one = partial(evaluate_seed, options.device, options.mode)
    refused: set[str] = set()
    num_refused = num_wrong = 0
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for number, text in enumerate(pool.map(one, seeds) if options.jobs > 1 else map(one, seeds), 1):
            if text.startswith("refused"):
                refused.add(text)
                num_refused += 1
            elif text:
                print(text, flush=True)
                num_wrong += 1
            if number % 100 == 0 or number == len(seeds):
                seconds = time.monotonic() - begin
                print(
                    f"{number - num_refused} evaluations, {num_wrong} called wrong, {num_refused} refused, {seconds:.0f} s",
                    flush=True,
                )
    print(*sorted(refused), sep="\n")
    return bool(num_wrong)
