"""The reference's program: numbered by the reference out of names, or with the columns of a large graph, which are checked."""

from typing import Any, Final

import numpy as np

from kgreference.facts import FactColumns, ListedFacts
from kgreference.program import NumberedFacts
from kgreference.program import Program as ReferenceProgram
from kgreference.program import Rule as ReferenceRule
from kgreference.program import Variable as ReferenceVariable
from kgreference.terms import Atom
from kgverify.errors import InternalError
from kgverify.garbage_collection import without_garbage_collection
from kgverify.program.atom_table import AtomTable, number_rows
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.program import Program

MOST_LISTED: Final = 100_000
"""The facts that the reference numbers and sorts itself. Of more it searches the program's columns, which takes longer for
each step, and needs neither the time nor the memory to build anything."""

_MOST_CONSTANTS: Final = 1 << 24
"""The constants of which the triples of up to 2^15 predicates have different numbers."""

_NUM_SAMPLED: Final = 64


@without_garbage_collection()
def build_reference_program(program: Program) -> ReferenceProgram:
    """Build the same program in the reference's terms. InternalError if the reference numbers the symbols differently.

    A program read from a trace has no named clauses, and keeps its ids and the order of its facts.
    """
    is_named = program.named_facts or program.named_rules or program.named_queries
    if not is_named or (len(program.facts) and not program.named_facts):
        return ReferenceProgram(
            list(program.symbols.predicates),
            list(program.symbols.constants),
            ListedFacts(zip(*program.facts.T.tolist(), strict=True)),
            [ReferenceRule(Atom(*head), tuple(Atom(*atom) for atom in body)) for head, body in program.rules],
        )

    variables: dict[str, ReferenceVariable] = {}

    def term(named: Term) -> str | ReferenceVariable:
        if not isinstance(named, Variable):
            return named
        if named.name not in variables:
            variables[named.name] = ReferenceVariable(named.name)
        return variables[named.name]

    def atom(named: NamedAtom) -> tuple[str, str | ReferenceVariable, str | ReferenceVariable]:
        predicate, first, second = named
        return predicate, term(first), term(second)

    table = AtomTable.of(program.named_facts)
    is_large = len(table) > MOST_LISTED and len(table.constants) < _MOST_CONSTANTS and table.has_numbered_names
    built = ReferenceProgram.from_names(
        facts=_take_columns(program, table) if is_large else table.iterate_names(),
        rules=[(atom(rule.clause_head), [atom(b) for b in rule.body]) for rule in program.named_rules],
        queries=[atom(query) for query in program.named_queries],
        constants=program.symbols.constants[len(table.constants) if is_large else 0 :],
    )
    if (built.predicates, built.constants) != (program.symbols.predicates, program.symbols.constants):
        raise InternalError("the reference numbers the symbols of the program differently")
    if is_large:
        _check_sample(built, table)
    return built


def _take_columns(program: Program, table: AtomTable) -> NumberedFacts:
    """Return the program's facts by column. InternalError unless they are the different rows of the table, in order."""
    facts, rows = program.facts, table.rows
    size = len(table.constants)
    _, first = table.distinct
    is_repeated = np.ones(len(rows), np.bool_)
    is_repeated[first] = False
    numbers = number_rows(facts, size)
    if not (bool((numbers[1:] > numbers[:-1]).all()) and np.array_equal(np.take(rows, first, axis=0), facts)):
        raise InternalError("the facts of the program are not those of its file")
    repeated = number_rows(rows[is_repeated], size)
    found = np.minimum(np.searchsorted(numbers, repeated), len(numbers) - 1)
    if not (numbers[found] == repeated).all():
        raise InternalError("the program lacks a fact of its file")
    # numpy finds them in a fraction of the reference's time.
    extremes: Any = facts.min(0).tolist(), facts.max(0).tolist()
    columns = FactColumns(facts[:, 0], facts[:, 1], facts[:, 2], extremes)
    return NumberedFacts(table.predicates, table.constants, columns)


def _check_sample(built: ReferenceProgram, table: AtomTable) -> None:
    """InternalError unless some facts of the file are facts of the reference and the other way round, all in names."""
    _, first = table.distinct
    for row in np.linspace(0, len(table) - 1, _NUM_SAMPLED).astype(np.int64).tolist():
        if built.facts.find(built.encode(table[row])) < 0:
            raise InternalError(f"the reference lacks the fact {table[row]}")
    for index in np.linspace(0, len(first) - 1, _NUM_SAMPLED).astype(np.int64).tolist():
        if built.decode(built.facts[index]) != table[int(first[index])]:
            raise InternalError(f"the reference has the fact {built.decode(built.facts[index])}, which the file lacks")
