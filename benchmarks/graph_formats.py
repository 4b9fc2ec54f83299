"""Known graphs in 12 formats and 27 variants of each: every file must be read as the known graph, or refused with a remedy.

    python benchmarks/graph_formats.py [--graphs 3]

A cell counts the graphs that were read (r), and refused by a UserError with file and fix (x). Anything else is an error: another
graph than the known one, a header row, weight or empty field that was skipped without a warning, a line in error that the
error does not name, any other exception.
"""

import argparse
import bz2
import codecs
import csv
import gzip
import io
import lzma
import random
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from kgverify.errors import UserError
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import load_graph

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Triple: TypeAlias = tuple[str, str, str]  # head, relation, tail
Rule: TypeAlias = tuple[str, str, str]  # rule[0](X,Y) <- rule[1](X,Z), rule[2](Z,Y)

# fmt: off
UNUSUAL = [
    "new york", "côte d'ivoire", "東京", "a;b", "p|q", "x(y)", "42", "1e5", "X", "Y1", "?y", "_", "-", "null", "NaN", "O'Hara",
    'say "hi"', "a:-b", "Ünal Öz", "e\u0301", "http://a.b/c#d", "50%", "C#", "a\\b", "[x]", "{y}", "a=b", "True", "x->y", "<z>",
    "a, b", "c,d",
]
# fmt: on


@dataclass
class Known:
    """A graph whose triples and rules are known."""

    splits: dict[str, list[Triple]]
    rules: list[Rule]
    entities: list[str]
    relations: list[str]


@dataclass
class Files:
    """The files of a graph: their lines before they are encoded."""

    triples: dict[str, list[str]]
    other: dict[str, list[str]]
    delimiter: str = ""
    skipped: bool = False
    """True if something must be skipped, which needs a warning."""
    wrong: tuple[str, int] | None = None
    """A file and a line that is wrong: it must be refused there."""
    packed: dict[str, bytes] = field(default_factory=dict)


def draw_known(seed: int, unusual: bool) -> Known:
    """Draw a graph; every relation and most entities occur several times."""
    rng = random.Random(seed)
    entities = [f"e{i}" for i in range(12)] + (rng.sample(UNUSUAL, 16) if unusual else [])
    relations = ["likes", "knows", "near"]
    splits = {}
    for split, number in (("train", 60), ("valid", 8), ("test", 8)):
        rows = [(rng.choice(entities), rng.choice(relations), rng.choice(entities)) for _ in range(number)]
        splits[split] = list(dict.fromkeys(rows))
    return Known(splits, [("likes", "knows", "near"), ("near", "likes", "likes")], entities, relations)


# Formats: each writes the files of a known graph.


def quote(name: str, delimiter: str, force: bool = False) -> str:
    if force or any(sign in name for sign in (delimiter, '"', "\n")) or name[0] in "#%'":
        return '"' + name.replace('"', '""') + '"'
    return name


def write_table(known: Known, delimiter: str, extension: str) -> Files:
    def line(row: Triple) -> str:
        return delimiter.join(row if delimiter == "\t" else [quote(name, delimiter) for name in row])

    triples = {f"{split}.{extension}": [line(row) for row in rows] for split, rows in known.splits.items()}
    return Files(triples, {"rules.txt": write_arrows(known)}, delimiter)


def write_arrows(known: Known) -> list[str]:
    return [f"r{i}:0.5:{b}(X,Z), {c}(Z,Y) -> {h}(X,Y)" for i, (h, b, c) in enumerate(known.rules)]


def write_facts(known: Known) -> Files:
    def name(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    triples = {f"{s}.pl": [f"{r}({name(h)},{name(t)})." for h, r, t in rows] for s, rows in known.splits.items()}
    return Files(triples, {"rules.pl": [f"{h}(X,Y) :- {b}(X,Z), {c}(Z,Y)." for h, b, c in known.rules]})


def write_openke(known: Known) -> Files:
    ids = {name: i for i, name in enumerate(known.entities)}
    relation_ids = {name: i for i, name in enumerate(known.relations)}
    triples = {
        f"{split}2id.txt": [str(len(rows)), *(f"{ids[h]} {ids[t]} {relation_ids[r]}" for h, r, t in rows)]
        for split, rows in known.splits.items()
    }
    names = {
        f"{kind}2id.txt": [str(len(each)), *(f"{name}\t{i}" for i, name in enumerate(each))]
        for kind, each in (("entity", known.entities), ("relation", known.relations))
    }
    return Files(triples, names | {"rules.txt": write_arrows(known)}, " ")


IRI = "http://example.org/"


def write_ntriples(known: Known) -> Files:
    """Write every name as an IRI with escapes."""
    triples = {f"{s}.nt": [f"{nt(h)} {nt(r)} {nt(t)} ." for h, r, t in rows] for s, rows in known.splits.items()}
    rules = [f"'{iri(h)}'(X,Y) :- '{iri(b)}'(X,Z), '{iri(c)}'(Z,Y)." for h, b, c in known.rules]
    return Files(triples, {"rules.pl": rules}, " ")


def iri(name: str) -> str:
    return IRI + "".join(each if each.isalnum() or ord(each) > 127 else f"%{ord(each):02X}" for each in name)


def nt(name: str) -> str:
    return "<" + "".join(each if ord(each) < 128 else f"\\u{ord(each):04X}" for each in iri(name)) + ">"


def write_pykeen(known: Known) -> Files:
    """Write what `Dataset.to_directory_binary` of PyKEEN 1.11 writes, but for its pickled metadata."""
    ids = {name: i for i, name in enumerate(known.entities)}
    relation_ids = {name: i for i, name in enumerate(known.relations)}
    triples, names = {}, {}
    for split, folder in (("train", "training"), ("valid", "validation"), ("test", "testing")):
        rows = [f"{ids[h]}\t{relation_ids[r]}\t{ids[t]}" for h, r, t in known.splits[split]]
        triples[f"{folder}/numeric_triples.tsv"] = ["head\trelation\ttail", *rows]
        for kind, each in (("entity", ids), ("relation", relation_ids)):
            buffer = io.StringIO()
            csv.writer(buffer, delimiter="\t", lineterminator="\n").writerows(
                [("id", "label"), *((i, n) for n, i in each.items())]
            )
            names[f"{folder}/{kind}_to_id.tsv"] = buffer.getvalue().splitlines()
    return Files(triples, names | {"rules.txt": write_arrows(known)}, "\t")


def write_with_rules(known: Known, name: str, lines: Iterable[str]) -> Files:
    files = write_table(known, "\t", "txt")
    files.other = {name: list(lines)}
    return files


FORMATS: dict[str, Callable[[Known], Files]] = {
    "tsv": lambda known: write_table(known, "\t", "tsv"),
    "csv": lambda known: write_table(known, ",", "csv"),
    "semicolons": lambda known: write_table(known, ";", "csv"),
    "pipes": lambda known: write_table(known, "|", "txt"),
    "blanks": lambda known: write_table(known, " ", "txt"),
    "facts": write_facts,
    "OpenKE": write_openke,
    "N-Triples": write_ntriples,
    "PyKEEN": write_pykeen,
    "tsv, Prolog": lambda known: write_with_rules(
        known, "rules.pl", (f"{h}(X,Y) :- {b}(X,Z), {c}(Z,Y)." for h, b, c in known.rules)
    ),
    "tsv, AnyBURL": lambda known: write_with_rules(
        known, "rules-100", (f"9\t5\t0.5\t{h}(X,Y) <= {b}(X,A), {c}(A,Y)" for h, b, c in known.rules)
    ),
    "tsv, AMIE": lambda known: write_with_rules(
        known, "rules.tsv", (f"?a  {b}  ?z   ?z  {c}  ?b   => ?a  {h}  ?b\t0.1\t0.5\t9" for h, b, c in known.rules)
    ),
}

# Variants: each changes the files, in place.


def each_line(files: Files, change: Callable[[str], str]) -> None:
    files.triples = {name: [change(line) for line in lines] for name, lines in files.triples.items()}


def add_header(files: Files, rng: random.Random) -> None:
    words = rng.choice(
        [("head", "relation", "tail"), ("subject", "predicate", "object"), ("Source", "Label", "Target")]
    )
    files.triples = {name: [(files.delimiter or ",").join(words), *lines] for name, lines in files.triples.items()}
    files.skipped = True


def reorder(files: Files, rng: random.Random) -> None:
    if len(files.delimiter) != 1 or (files.delimiter == " " and "train.txt" not in files.triples):
        add_header(files, rng)
        return
    for name, lines in files.triples.items():
        rows = list(
            csv.reader(
                lines,
                delimiter=files.delimiter,
                quoting=csv.QUOTE_MINIMAL if files.delimiter != "\t" else csv.QUOTE_NONE,
            )
        )
        order = [1, 2, 0]
        table = (
            [["head", "relation", "tail"], *rows] if not name.startswith(("training", "valida", "testing")) else rows
        )
        files.triples[name] = [
            files.delimiter.join(row[i] if files.delimiter == "\t" else quote(row[i], files.delimiter) for i in order)
            for row in table
        ]
    files.skipped = True


def add_comments(files: Files, rng: random.Random) -> None:
    for lines in files.triples.values():
        lines[:0] = ["# made by a program, version 2", "% two"]
        lines.insert(rng.randrange(3, len(lines)), "# a comment")


def add_blank_lines(files: Files, rng: random.Random) -> None:
    for lines in [*files.triples.values(), *files.other.values()]:
        lines.insert(rng.randrange(1, len(lines)), "")
        lines += ["", "  "]


def quote_all(files: Files, rng: random.Random) -> None:
    if files.delimiter not in ("\t", ",", ";", "|", " ") or any(
        "2id" in name or name.endswith(".nt") for name in files.triples
    ):
        return
    for name, lines in files.triples.items():
        quoting = csv.QUOTE_NONE if files.delimiter == "\t" else csv.QUOTE_MINIMAL
        rows = csv.reader(lines, delimiter=files.delimiter, quoting=quoting)
        files.triples[name] = [files.delimiter.join(quote(each, "", force=True) for each in row) for row in rows]


def add_weights(files: Files, rng: random.Random) -> None:
    if files.delimiter:
        each_line(files, lambda line: f"{line}{files.delimiter}0.{rng.randrange(1, 99):02}")
    else:
        each_line(files, lambda line: f"0.{rng.randrange(1, 99):02}::{line}")
    files.skipped = True


def add_delimiters(files: Files, rng: random.Random) -> None:
    each_line(files, lambda line: line + (files.delimiter or ","))
    files.skipped = files.delimiter not in ("", " ")


def duplicate(files: Files, rng: random.Random) -> None:
    for name, lines in files.triples.items():
        if "2id" in name:
            lines[0] = str(len(lines))
        lines.append(lines[-1])


def truncate(files: Files, rng: random.Random) -> None:
    """Cut the last line of train within its second name."""
    name = next(iter(files.triples))
    lines = files.triples[name]
    delimiter = files.delimiter or ","
    lines[-1] = lines[-1][: lines[-1].rindex(delimiter, 0, -2 if files.delimiter else None)]
    files.wrong = (name, len(lines))


def extend(files: Files, rng: random.Random) -> None:
    """Add a name to one line of train."""
    name = next(iter(files.triples))
    lines = files.triples[name]
    i = rng.randrange(2, len(lines))
    lines[i] = f"{lines[i]}{files.delimiter}extra" if files.delimiter else lines[i].replace("(", "(extra,")
    files.wrong = (name, i + 1)


def rename_upper(files: Files, rng: random.Random) -> None:
    def rename(names: dict[str, list[str]]) -> dict[str, list[str]]:
        return {
            str(Path(n).with_suffix(Path(n).suffix.upper())) if "/" not in n else n: lines for n, lines in names.items()
        }

    files.triples, files.other = rename(files.triples), rename(files.other)


def nothing(files: Files, rng: random.Random) -> None:
    """Leave the files as they are; the variant is in their names or bytes."""


def empty(split: int) -> Callable[[Files, random.Random], None]:
    def change(files: Files, rng: random.Random) -> None:
        files.triples[list(files.triples)[split]] = []
        files.skipped = bool(split)

    return change


VARIANTS: dict[str, Callable[[Files, random.Random], None]] = {
    "plain": nothing,
    "header": add_header,
    "other order": reorder,
    "mark": nothing,
    "CRLF": nothing,
    "CR": nothing,
    "no last newline": nothing,
    "blank lines": add_blank_lines,
    "comments": add_comments,
    "quotes": quote_all,
    "blanks at ends": lambda files, rng: each_line(files, lambda line: line + "  "),
    "last delimiter": add_delimiters,
    "weights": add_weights,
    "repeated lines": duplicate,
    "upper case": rename_upper,
    "gzip": nothing,
    "zstd": nothing,
    "bzip2": nothing,
    "xz": nothing,
    "zip": nothing,
    "unusual names": nothing,
    "truncated": truncate,
    "extra column": extend,
    "UTF-16": nothing,
    "Latin-1": nothing,
    "empty train": empty(0),
    "empty valid": empty(1),
}


def encode(lines: Sequence[str], variant: str) -> bytes:
    """Return the bytes of a file."""
    end = {"CRLF": "\r\n", "CR": "\r"}.get(variant, "\n")
    text = end.join(lines) + (end if lines and variant != "no last newline" else "")
    if variant == "mark":
        return codecs.BOM_UTF8 + text.encode()
    if variant == "UTF-16":
        return text.encode("utf-16")
    if variant == "Latin-1":
        return text.replace("e1", "é1").encode("latin-1")
    content = text.encode()
    return PACKERS[variant].pack(content) if variant in PACKERS else content


class Packer(NamedTuple):
    """A way to pack files, and the suffix of their names."""

    suffix: str
    pack: Callable[[bytes], bytes]


def pack_as_zip(content: bytes) -> bytes:
    """Return a zip with one file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("graph.txt", content)
    return packed.getvalue()


PACKERS = {
    "gzip": Packer(".gz", gzip.compress),
    "zstd": Packer(".zst", zstd.compress),
    "bzip2": Packer(".bz2", bz2.compress),
    "xz": Packer(".xz", lzma.compress),
    "zip": Packer(".zip", pack_as_zip),
}


def write_files(files: Files, variant: str, folder: Path) -> None:
    """Write the files of a graph, packed and named as the variant says."""
    suffix = PACKERS[variant].suffix if variant in PACKERS else ""
    for name, lines in (files.triples | files.other).items():
        path = folder / (name + suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(lines, variant))


def expect(known: Known, form: str, variant: str) -> Known:
    """Return the graph as the reader should name it."""
    splits = {split: list(rows) for split, rows in known.splits.items()}
    if variant == "repeated lines":
        splits = {split: [*rows, rows[-1]] for split, rows in splits.items()}
    if variant == "empty valid":
        splits["valid"] = []
    if form != "N-Triples":
        return Known(splits, known.rules, known.entities, known.relations)
    named = {split: [(iri(h), iri(r), iri(t)) for h, r, t in rows] for split, rows in splits.items()}
    rules = [(iri(h), iri(b), iri(c)) for h, b, c in known.rules]
    return Known(named, rules, known.entities, known.relations)


def differs(graph: KnowledgeGraph, known: Known) -> str:
    """Return how a graph differs from the known one; empty if it is the same."""
    for split, rows in known.splits.items():
        found = [(str(a.first), a.predicate, str(a.second)) for a in getattr(graph, split)]
        if found != rows:
            odd = next((pair for pair in zip(found, rows, strict=False) if pair[0] != pair[1]), (len(found), len(rows)))
            return f"{split}: found, known: {odd}"
    rules = [(rule.clause_head.predicate, *(atom.predicate for atom in rule.body)) for rule in graph.rules]
    return "" if rules == known.rules else f"rules: found {rules}, known {known.rules}"


def judge(form: str, variant: str, seed: int, folder: Path) -> tuple[str, str]:
    """Return `r` for a graph that was read, `x` for one that was refused, and what is wrong."""
    known = draw_known(seed, variant == "unusual names")
    files = FORMATS[form](known)
    VARIANTS[variant](files, random.Random(seed))
    write_files(files, variant, folder)
    try:
        graph = load_graph(folder)
    except UserError as error:
        file, _, line = error.where.rpartition(":")
        names = {Path(name).name for name in (*files.triples, *files.other)}
        if not error.fix or not any(name in error.where for name in names):
            return "x", f"refused without place or fix: {error}"
        if (
            files.wrong
            and (file, line) != (Path(files.wrong[0]).name, str(files.wrong[1]))
            and "number of" not in str(error)
        ):
            return "x", f"refused at another line than {files.wrong}: {error}"
        return "x", ""
    except Exception as error:
        return "x", f"{type(error).__name__}: {error}"
    if variant == "Latin-1":
        return "r", "read another encoding"
    if problem := differs(graph, expect(known, form, variant)) or ("a wrong line was read" if files.wrong else ""):
        return "r", f"read wrongly: {problem}"
    if files.skipped and not graph.warnings:
        return "r", "no warning"
    return "r", ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the number of errors, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=3, help="graphs for each cell")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), help="the variants to try")
    options = parser.parse_args(arguments)
    total: Counter[str] = Counter()
    problems = []
    print(f"{'':16}", *(f"{form:>13}" for form in FORMATS))
    for variant in options.variants:
        cells = []
        for form in FORMATS:
            found: Counter[str] = Counter()
            for seed in range(options.graphs):
                with tempfile.TemporaryDirectory() as folder:
                    outcome, problem = judge(form, variant, seed, Path(folder))
                found["!" if problem else outcome] += 1
                if problem:
                    problems.append(f"{form}, {variant}, graph {seed}: {problem}")
            total.update(found)
            cells.append(" ".join(f"{number}{sign}" for sign, number in sorted(found.items())))
        print(f"{variant:16}", *(f"{cell:>13}" for cell in cells), flush=True)
    print(f"{total['r']} read, {total['x']} refused with file and fix, {total['!']} wrong")
    print("\n".join(problems))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
