"""Files of graphs by the thousand: damaged ones, and written ones whose content is known.

    python benchmarks/fuzzed_graph_files.py                      # 5,000 damaged graphs, 5,000 written ones
    python benchmarks/fuzzed_graph_files.py --num 200 --seed 7

A damaged graph is a folder in a format that people have, with changes at random: other signs, cut or repeated spans, signs
repeated many thousand times, other encodings. It loads, or it is refused with the file and, unless the whole file is at fault,
the line. A written graph is made from known triples and rules, with quotes, blanks, comments, weights and directives at random.
It is read back exactly, or refused. Prints a Markdown table; exit code 1 if anything else occurred, if a load took longer
than 5 seconds, or if it took more than 1 GiB more.
"""

import argparse
import gzip
import multiprocessing
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import kgverify as kv
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.atoms import Variable

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
    """Return the most memory that the process had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def judge(job: tuple[str, int]) -> Result:
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


BAD = ("traceback", "hang", "more than 1 GiB", "read wrongly", "refused without a place", "refused without a fix")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=5_000, help="graphs of each kind")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--verbose", action="store_true", help="count the messages of refusals")
    options = parser.parse_args()
    print(f"| graphs | loaded | refused | {' | '.join(BAD)} |\n|{'---|' * (3 + len(BAD))}")
    num_bad = 0
    messages: Counter[str] = Counter()
    for way in TRIALS:
        jobs = [(way, options.seed + i) for i in range(options.num)]
        if options.jobs > 1:
            with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
                results = pool.map(judge, jobs, chunksize=50)
        else:
            results = [judge(job) for job in jobs]
        counts = Counter(result.kind for result in results)
        print(f"| {way} | {' | '.join(str(counts[kind]) for kind in ('loaded', 'refused', *BAD))} |")
        for result in results:
            messages[f"{way}: {re.sub(r'[0-9]+|found .*', '', result.message.partition(': ')[2])[:70]}"] += 1
            if result.kind in BAD:
                num_bad += 1
                print(f"{way} {result.seed}: {result.kind}: {result.message[:200]!r}", file=sys.stderr)
    if options.verbose:
        for message, count in messages.most_common(60):
            print(f"{count:6} {message!r}", file=sys.stderr)
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
