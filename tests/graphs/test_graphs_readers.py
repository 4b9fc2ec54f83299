"""The quick readers of plain files: arrays of bytes instead of one line after the other, with the same result."""

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgverify import UserError
from kgverify.graphs import grammar
from kgverify.graphs.formats import plain, tables
from kgverify.graphs.formats.plain import NameColumn, parse_plain_facts
from kgverify.graphs.rules import parse_rules
from kgverify.graphs.triples import parse_facts

CHARACTERS = st.characters(exclude_characters="\t\n\r\0", exclude_categories=["Cs"])
NAMES = st.text(CHARACTERS, min_size=1, max_size=4)
PLAIN_NAMES = st.text(st.sampled_from("aZ0_-/é .,('%"), min_size=1, max_size=3)


@given(st.lists(st.tuples(NAMES, NAMES, NAMES), min_size=1, max_size=4))
def test_the_quick_reader_of_plain_tables_agrees_with_the_other(lines: list[tuple[str, str, str]]) -> None:
    texts = ["\t".join(line) for line in lines]
    if found := tables.parse_plain("\n".join(texts).encode(), "\t", texts[0]):
        table = tables.parse_table(texts, "\t", "train.tsv")
        assert (table.header, table.warnings) == (None, ())
        assert [(str(atom.first), atom.predicate, str(atom.second)) for atom in found.atoms] == lines
        assert (found.atoms, list(found.lines)) == (table.atoms, list(table.lines))


@given(st.lists(st.tuples(PLAIN_NAMES, PLAIN_NAMES, PLAIN_NAMES), min_size=1, max_size=4), st.sampled_from([").", ")"]))
def test_the_quick_reader_of_facts_agrees_with_the_other(rows: list[tuple[str, str, str]], end: str) -> None:
    lines = [f"{predicate}({first},{second}{end}" for predicate, first, second in rows]
    for text in ("\n".join(lines), "\n".join(lines) + "\n"):
        if found := parse_plain_facts(text.encode()):
            others = parse_facts("\n".join(lines), "train")
            assert (found.atoms, list(found.lines)) == (others.atoms, list(others.lines))


def test_facts_are_read_quickly_in_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_CHUNK", 20)
    for line in ("r{0}(a,b{0}).", "r{0}(a,b{0})"):
        found = parse_plain_facts("\n".join(line.format(i) for i in range(30)).encode())
        assert found is not None
        assert [tuple(atom) for atom in found.atoms] == [(f"r{i}", "a", f"b{i}") for i in range(30)]
    for text in (b"r(a,b).\nr(a,).\n", b"r(a,b).\nr(a,b)\n", b"r(a\0,b).\n", b"r(a,b)c.\n", b""):
        assert parse_plain_facts(text) is None


SIGNS = [
    *"aX1:-.(),'\"\\%#/~?<>=;! \t\u00a0é_",
    "p",
    "q r",
    "0.9",
    "::",
    "/*",
    "*/",
    "not ",
    "?-",
    ":-",
    "->",
    "<=",
    "  ",
]
TERMS = st.lists(st.sampled_from(SIGNS), min_size=1, max_size=3).map("".join)
ATOMS = st.builds("{}({},{})".format, TERMS, TERMS, TERMS)
ENDS = st.sampled_from(["", ".", ". ", " . "])


def parse(text: str, *, of_facts: bool) -> object:
    try:
        return parse_facts(text, "f") if of_facts else parse_rules(text, "f")
    except UserError as error:
        return str(error)


def parse_slowly(text: str, *, of_facts: bool) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammar, "_PLAIN_ATOM", re.compile("(?!)"))
        return parse(text, of_facts=of_facts)


@given(st.lists(st.builds("{}{}".format, ATOMS, ENDS), min_size=1, max_size=3).map("".join))
@example("?- p(a,b).")
@example("not p(a,b)")
@example("0.5 p(a,b)")
@example("p(1..2,b)")
@example("p(a/*,b).p(a,c).*/,d).")
@example("0.9::'p'(a,\"b\").p(a,b)")
def test_a_plain_line_of_facts_is_read_as_by_the_grammar(line: str) -> None:
    assert parse(line, of_facts=True) == parse_slowly(line, of_facts=True)


@given(st.lists(ATOMS, min_size=2, max_size=3), st.sampled_from(["", ".", " . "]))
def test_a_plain_rule_is_read_as_by_the_grammar(atoms: list[str], end: str) -> None:
    first, *others = atoms
    body = ", ".join(others)
    for text in (f"{first} :- {body}{end}", f"{body} -> {first}{end}", f"1\t1\t1\t{first} <= {body}{end}"):
        assert parse(text, of_facts=False) == parse_slowly(text, of_facts=False)


# The hash table that numbers names.


def number(chunks: list[list[str]]) -> tuple[list[int], tuple[str, ...]] | None:
    column = NameColumn()
    numbers = []
    for chunk in chunks:
        encoded = [name.encode() for name in chunk]
        ends = np.cumsum([len(each) + 1 for each in encoded]) - 1
        starts = ends - [len(each) for each in encoded]
        stored = np.frombuffer(b"\n".join(encoded) + bytes(plain.MOST_BYTES), np.uint8)
        found = column.add(stored, starts, ends)
        if found is None:
            return None
        numbers.append(found)
    every = np.concatenate(numbers).astype(np.int32)[:, None]
    names = column.finish(every).tobytes().decode()
    return every[:, 0].tolist(), tuple(names.removesuffix("\n").split("\n"))


ANY_LENGTH = st.sampled_from(["a", "aa", "é", "longer than eight", ""]) | st.text(CHARACTERS, max_size=20)


@given(st.lists(st.lists(ANY_LENGTH, min_size=1), min_size=1))
@example([["a" * 64]])
@example([["a" * 65]])
@example([[str(i) for i in range(5 * plain._FEWEST_SLOTS)]] * 2)
def test_names_are_numbered_in_the_order_of_their_first_occurrence(chunks: list[list[str]]) -> None:
    every = [name for chunk in chunks for name in chunk]
    numbers = {name: i for i, name in enumerate(dict.fromkeys(every))}
    if max(len(name.encode()) for name in every) <= 64:
        assert number(chunks) == ([numbers[name] for name in every], tuple(numbers))
    else:
        assert number(chunks) is None


def test_names_of_equal_hashes_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_FACTORS", np.zeros(8, np.uint64))
    assert number([["a", "b", "a"], ["b", "c"]]) == ([0, 1, 0, 1, 2], ("a", "b", "c"))
    assert number([[str(i) for i in range(plain._MOST_PROBES + 2)]]) is None
