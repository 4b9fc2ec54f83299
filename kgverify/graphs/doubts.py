"""Warnings about a graph that loads but probably contains a mistake in its columns, its splits or its rules.

A warning about names lists the first ones and counts the rest.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

import numpy as np

from kgverify.codes import Code, Coded
from kgverify.errors import count_of, suggest
from kgverify.graphs.folder import SPLITS
from kgverify.graphs.formats.reading import Part, Triples, line_error
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.atom_table import AtomTable
from kgverify.program.atoms import Term, Variable
from kgverify.program.program import NamedRule, Source

_DEFAULT: Final = (0, 1, 2)
_MIN_ROWS: Final = 10
_MIN_DOUBTFUL_ROWS: Final = 3
_MAX_SINGLE: Final = 0.1
_MIN_RATIO: Final = 4


def check_parts(parts: Sequence[Part], train: AtomTable, *, has_columns: bool) -> Iterator[Coded]:
    """Return the warnings about files of triples. has_columns: whether the user named the columns of the tables.

    UserError for a first row that is almost certainly a header, and for tables whose columns may be in different orders.
    """
    tables = [part for part in parts if part.triples.is_table and part.triples.atoms]
    named = next((part.file for part in tables if part.triples.header not in (None, _DEFAULT)), "")
    for part in (each for each in tables if each.triples.header is None):
        source = Source(part.file, part.triples.lines[0])
        if named:
            found = f"none, while that of {named} is in another order than head, relation, tail"
            raise line_error(source, "a header row", found, f"add the header row of {named}, if it is that of this")
        yield from map(Code.LIKELY_HEADER.mark, _check_first_row(part.triples, parts, source))
    for _, file, triples in parts:
        yield from map(Code.ROWS_CHANGED.mark, triples.warnings)
        if file and not triples.atoms:
            yield Code.EMPTY_FILE.mark(f"{file}: no triple in it")
        if triples.is_table and triples.header is None and not has_columns:
            yield from map(Code.COLUMN_ORDER.mark, _find_unlikely_order(AtomTable.of(triples.atoms), train, file))


def find_doubts(
    graph: KnowledgeGraph, files: Mapping[str, str], constants: Collection[str], strangers: Collection[str]
) -> Iterator[Coded]:
    """Return the warnings about a graph whose files are read.

    Args:
        graph: The graph.
        files: The name of the file of each role, or of several files.
        constants: The constants of the triples and the domains.
        strangers: Those of the domains that no triple has.
    """
    tables = {split: AtomTable.of(getattr(graph, split)) for split in SPLITS}
    predicates = {name for table in tables.values() for name in table.predicates}
    train = files.get("train", graph.name)
    num_repeated, row = tables["train"].find_repeated()
    if num_repeated:
        lines = graph.fact_lines
        line, first = (f":{lines[row]}", ", the first on this line") if lines else ("", "")
        yield Code.REPEATED_FACT.mark(f"{train}{line}: {count_of(num_repeated, 'repeated fact')}{first}")
    yield from _find_rule_warnings(graph.rules, tables["train"].predicates, predicates, constants)
    if strangers:
        number = count_of(len(strangers), "constant")
        text = f"{files['domains']}: {number} that no triple has, such as {min(strangers)!r}"
        yield Code.UNKNOWN_IN_DOMAIN.mark(text)
    yield from map(Code.SPLITS.mark, _find_split_warnings(tables, files))


def _check_first_row(triples: Triples, parts: Sequence[Part], source: Source) -> Iterator[str]:
    """Warn about a first row whose names occur in no other row, although the names of almost every other row do.

    UserError instead if there are enough rows to be sure. A few rows may all be about different things, so a warning is
    enough for them.
    """
    first = triples.atoms[0]
    rows = [each.atoms[each.is_table and each.header is None :] for _, _, each in parts]
    if not any(map(len, rows)) or any(
        first.predicate == atom.predicate or not {first.first, first.second}.isdisjoint((atom.first, atom.second))
        for atom in chain(triples.atoms[1:], *rows)
    ):
        return
    others = list(chain(*rows))
    relations = Counter(atom.predicate for atom in others)
    entities = Counter(term for atom in others for term in (atom.first, atom.second))
    alone = sum(relations[p] == 1 and entities[a] == 1 and entities[b] == 1 for p, a, b in others)
    if len(others) >= _MIN_DOUBTFUL_ROWS and alone > _MAX_SINGLE * len(others):
        return
    found = f"{first.first!r}, {first.predicate!r}, {first.second!r}, which occur nowhere else and may be a header row"
    if len(others) < _MIN_ROWS or len(triples.atoms) == 1:
        yield f"{source}: read as a triple: {found}"
        return
    fix = "remove the line if it is a header row; if it is a triple, put it after another one"
    raise line_error(source, "a triple", found, fix)


def _find_unlikely_order(triples: AtomTable, train: AtomTable, file: str) -> Iterator[str]:
    """Warn about a table without a header row whose names say that its columns are not head, relation and tail."""
    relations = triples.names_in(0)
    # Names that are both head and tail are entities.
    if not relations or (triples.has_common_arguments() if triples is train else train.names_in(0) & relations):
        return
    heads, tails = triples.names_in(1), triples.names_in(2)
    for word, few, other in (("first", heads, tails), ("third", tails, heads)):
        if triples is not train:
            is_likely = few <= train.names_in(0)
        else:
            # Few names that are neither head nor tail are relations.
            is_likely = (few.isdisjoint(relations) and not other.isdisjoint(relations)) or (
                _MIN_RATIO * len(few) <= len(relations) and 2 * len(few) <= len(other)
            )
        if is_likely:
            yield (
                f"{file}: the {word} column may be the relation, with {count_of(len(few), 'name')}, rather than the second, "
                f"with {len(relations):,}; the order is head, relation, tail, unless a header row names another"
            )
            return


_INVERSE: Final = re.compile(
    r"(?:[!~_-]|inv(?:erse)?[_:-])(?P<after>.+)|(?P<before>.+)(?:[_-]inv(?:erse)?|_reversed?|\^?-1)"
)
"""The ways in which data sets name the inverses of relations."""
_IN_TRAIN: Final = (
    "also in train",
    "reversed in train",
    "reversed in train under another relation",
    "reversed in train under the name of the inverse",
    "with an entity that train lacks",
)
_SAME, _REVERSED, _OTHER, _NAMED, _UNKNOWN = _IN_TRAIN


def _find_split_warnings(tables: Mapping[str, AtomTable], files: Mapping[str, str]) -> Iterator[str]:
    """Describe, in one sentence each, the splits on which an evaluation may mislead."""
    relations = {name for table in tables.values() for name in table.predicates}
    for split, table in tables.items():
        counts = {} if split == "train" else _compare_with_train(table, tables["train"])
        is_inverse = np.array([_invert(name) in relations for name in table.predicates], np.bool_)
        counts |= {
            "also in valid": tables["valid"].count_common(table) if split == "test" else 0,
            "listed more than once": 0 if split == "train" else table.find_repeated()[0],
            "under the name of an inverse relation": int(is_inverse[table.rows[:, 0]].sum()) if len(table) else 0,
        }
        if parts := [f"{num:,} {what}" for what, num in counts.items() if num]:
            yield f"{files.get(split, split)}: of {count_of(len(table), 'triple')}, {', '.join(parts)}"


def _compare_with_train(table: AtomTable, train: AtomTable) -> dict[str, int]:
    """Count the triples of a split that train contains, as they are or reversed, and those with an entity that train lacks."""
    heads, tails = table.encode({}, train.constant_ids)[:, 1:].astype(np.int64).T
    size = len(train.constants)
    straight, turned = heads * size + tails, tails * size + heads
    is_known = (heads >= 0) & (tails >= 0)
    numbers = train.rows[:, 1].astype(np.int64) * size + train.rows[:, 2]
    found: dict[int, set[str]] = defaultdict(set)
    for i in np.flatnonzero(np.isin(numbers, np.concatenate((straight[is_known], turned[is_known])))).tolist():
        found[int(numbers[i])].add(train.predicates[train.rows[i, 0]])
    counts = dict.fromkeys(_IN_TRAIN, 0) | {_UNKNOWN: int((~is_known).sum())}
    for predicate, same, reverse in zip(table.rows[:, 0].tolist(), straight.tolist(), turned.tolist(), strict=True):
        relation, others = table.predicates[predicate], found.get(reverse, set())
        counts[_SAME] += relation in found.get(same, ())
        if others and same != reverse:
            is_named = relation in map(_invert, others)
            counts[_REVERSED if relation in others else _NAMED if is_named else _OTHER] += 1
    return counts


def _invert(name: str) -> str:
    """Return the relation whose inverse a name denotes; empty for another name."""
    match = _INVERSE.fullmatch(name)
    return (match["after"] or match["before"]) if match else ""


_MAX_LISTED: Final = 20
_LIKE_CONSTANT: Final = re.compile(r"[^\W\d_][^\W\d]\w*")  # Not `X`, `X1`, `_x` or `?x`.


def _find_rule_warnings(
    rules: Sequence[NamedRule], facts: Collection[str], triples: Collection[str], constants: Collection[str]
) -> Iterator[Coded]:
    """Warn about names of rules that lead nowhere.

    facts: the predicates of train; triples: the predicates of all splits; constants: those of the triples and the domains
    """
    proved = {*facts, *(rule.clause_head.predicate for rule in rules)}
    asked = {*triples, *(atom.predicate for rule in rules for atom in rule.body)}

    def describe_body(predicate: str, rule: NamedRule) -> str:
        name = f"rule {rule.name!r}" if rule.name else "the rule"
        reason = f"{name} can never apply: no fact and no rule's head has predicate {predicate!r}"
        return "; ".join(filter(None, (reason, suggest(predicate, proved))))

    def describe_clause_head(predicate: str, _: NamedRule) -> str:
        reason = f"nothing asks for the rule's head: no triple and no rule's body has predicate {predicate!r}"
        return "; ".join(filter(None, (reason, suggest(predicate, asked))))

    def describe_constant(constant: str, _: NamedRule) -> str:
        return f"no triple and no domain has the constant {constant!r}: it is no candidate"

    bodies = ((atom.predicate, rule) for rule in rules for atom in rule.body)
    yield from map(Code.RULE_NEVER_APPLIES.mark, _list_first(bodies, proved, describe_body))
    heads = ((rule.clause_head.predicate, rule) for rule in rules)
    yield from map(Code.RULE_NOT_ASKED.mark, _list_first(heads, asked, describe_clause_head))
    terms = ((term, rule) for rule in rules for term in _terms(rule) if isinstance(term, str))
    yield from map(Code.UNKNOWN_CONSTANT.mark, _list_first(terms, constants, describe_constant, "constant"))
    yield from map(Code.LIKELY_CONSTANT.mark, _find_likely_constants(rules, constants))
    doubtful = [(rule, name) for rule in rules if (name := next(_single_variables(rule), ""))]
    if doubtful:
        first, name = doubtful[0]
        number = f"{count_of(len(doubtful), 'rule')} with a variable that occurs once, or only in the head"
        text = f"{first.source}: {number}, such as {name!r} here; for a constant, write it in quotes"
        yield Code.SINGLE_VARIABLE.mark(text)


def _terms(rule: NamedRule) -> Iterator[Term]:
    return (term for _, *terms in rule.atoms for term in terms)


def _single_variables(rule: NamedRule) -> Iterator[str]:
    """Return the variables that occur once in a rule or only in its head, and are long enough to be constants."""
    in_body = [term.name for atom in rule.body for term in atom[1:] if isinstance(term, Variable)]
    names = in_body + [term.name for term in rule.clause_head[1:] if isinstance(term, Variable)]
    long = (name for name in names if len(name) > 1 and name[0] != "_" and len(name.removeprefix("?")) > 1)
    return (name for name in long if names.count(name) == 1 or name not in in_body)


def _find_likely_constants(rules: Sequence[NamedRule], constants: Collection[str]) -> Iterator[str]:
    """Warn about variables whose names equal that of a constant except for upper and lower case."""
    firsts: dict[str, NamedRule] = {}
    for rule in rules:
        for term in _terms(rule):
            if isinstance(term, Variable) and _LIKE_CONSTANT.fullmatch(term.name):
                firsts.setdefault(term.name, rule)
    folded = {constant.casefold(): constant for constant in constants} if firsts else {}
    likely = ((name, rule) for name, rule in firsts.items() if name.casefold() in folded)
    for name, rule in islice(likely, _MAX_LISTED):
        constant = folded[name.casefold()]
        yield f"{rule.source}: {name!r} is a variable; for the constant {constant!r}, write it in quotes"


def _list_first(
    names: Iterable[tuple[str, NamedRule]],
    known: Collection[str],
    describe: Callable[[str, NamedRule], str],
    noun: str = "predicate",
) -> Iterator[str]:
    """Describe the unknown names, each at the first rule that contains it."""
    firsts: dict[str, NamedRule] = {}
    for name, rule in names:
        if name not in known:
            firsts.setdefault(name, rule)
    for name, rule in islice(firsts.items(), _MAX_LISTED):
        yield f"{rule.source}: {describe(name, rule)}"
    if (num_more := len(firsts) - _MAX_LISTED) > 0:
        file = next(iter(firsts.values())).source.file
        yield f"{file}: the same of {count_of(num_more, f'more {noun}')}"
