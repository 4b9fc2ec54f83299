"""A first pass over the lines of a trace: it finds the columns that they hold, and the names in them."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import Final

from msgspec import UNSET

from kgverify.errors import UserError, suggest
from kgverify.trace.lines.line import CandidateLine, EndLine, HeaderLine, Line, NamedTerms, StepLine
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, LABELS

_PARTIAL: Final = ("steps.choice", "steps.outcome", "candidates.outcome", "resolvents.origin_kind", "resolvents.origin")
"""The columns that are known if any line has them: they do not apply to the lines without them."""

LABEL: Final = LABELS.replace("/", ".")

_OF_LINES: Final = KNOWLEDGE_GRAPH.optional & KNOWLEDGE_GRAPH.compared_names

_WHOLE: Final = {
    name.partition(".")[2]: name
    for name in ("candidates.query", "candidates.side", LABEL, *sorted(_OF_LINES.difference(_PARTIAL)))
}
"""The fields that either all lines of a kind have, or no line has, and their columns."""

_OF_STEPS: Final = tuple(name for name, column in _WHOLE.items() if column.startswith("steps."))


class Survey:
    """The result of a first pass over all lines: the header, the names, and the columns that the lines hold.

    columns:     the columns to write, named as in `Trace.fields`; set by `finish`
    infers_ends: whether candidates have outcomes and no step has one, so that the outcomes of steps follow; set by `finish`
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self.header = HeaderLine(1)
        self.columns: frozenset[str] = frozenset()
        self.infers_ends = False
        self.num_steps = 0
        self._is_first, self._has_candidate = True, False
        self._names: tuple[dict[str, int], dict[str, int]] = {}, {}
        self._first: dict[str, int] = {}

    def add(self, number: int, line: Line) -> None:
        """Take a line into account. UserError if it contradicts the lines before it."""
        if isinstance(line, HeaderLine):
            if not self._is_first:
                raise self._error(number, "the header is not the first line", "print it once, before all other lines")
            self._add_header(number, line)
        elif isinstance(line, CandidateLine):
            self._has_candidate = True
            self._look_up(number, [line.candidate])
            self._see(number, line, "query", "side", "is_true", "outcome")
        elif isinstance(line, StepLine):
            self._add_step(number, line)
        else:
            if not self._has_candidate:
                raise self._error(
                    number, "ends a candidate, but no candidate was printed before", "print the candidate first"
                )
            self._see(number, line, "end")
        if isinstance(line, CandidateLine | EndLine):
            for name in ("is_limited", "log_probability"):
                if getattr(line, name) is not None:
                    self._first.setdefault(name, number)
        self._is_first = False

    def finish(self) -> None:
        """Decide which columns the lines hold. UserError if only some lines have a field, or if lines mix names and ids."""
        for name in _WHOLE:
            with_it, without = self._first.get(name), self._first.get(f"no {name}")
            if with_it is not None and without is not None:
                raise self._error(
                    without,
                    f"has no {name!r}, and line {with_it} has",
                    "give it every time, or leave it out every time",
                )
        for kind, table in (("predicates", self.header.predicates), ("constants", self.header.constants)):
            mixed = self._first_with_both(f"{kind} by name", f"{kind} by id")
            if table is None and mixed is not None:
                raise self._error(
                    mixed,
                    f"has {kind} by name and by id, or the lines before have, and there is no list of them",
                    f"list the names in {kind!r} of the first line, or use names alone",
                )
        if (mixed := self._first_with_both("variables by name", "variables by id")) is not None:
            raise self._error(mixed, "has variables by name and by id, or the lines before have", "use one of the two")
        known = {column for name, column in _WHOLE.items() if name in self._first}
        for name, columns in (
            ("choice", _PARTIAL[:1]),
            ("step outcome", _PARTIAL[1:2]),
            ("outcome", _PARTIAL[2:3]),
            ("origin", _PARTIAL[3:]),
        ):
            known |= set(columns) if name in self._first else set()
        if len(known & {"steps.dropped_atoms", "steps.dropped_resolvents"}) == 1:
            has, lacks = sorted(("dropped_atoms", "dropped_resolvents"), key=lambda name: name not in self._first)
            raise self._error(self._first[has], f"has {has!r} without {lacks!r}", "give both, or neither")
        self.infers_ends = "candidates.outcome" in known and "steps.outcome" not in known
        self.columns = frozenset(known | ({"steps.outcome"} if self.infers_ends else set()))

    def symbols(self) -> tuple[list[str], list[str]]:
        """Return the names of predicates and of constants."""
        predicates, constants = self.header.predicates, self.header.constants
        return (
            [*self._names[0]] if predicates is None else predicates,
            [*self._names[1]] if constants is None else constants,
        )

    def _add_header(self, number: int, line: HeaderLine) -> None:
        self.header = line
        for table in (line.predicates, line.constants):
            if table is not None and len(set(table)) != len(table):
                double = Counter(table).most_common(1)[0][0]
                raise self._error(number, f"lists the name {double!r} twice", "list each name once")
        for fact in line.facts or ():
            if any((name < 0 if isinstance(name, int) else line.is_variable(name)) for name in fact[1:]):
                raise self._error(number, f"has a variable in the fact {list(fact)}", "list facts without variables")
        first = dict(self._first)
        self._look_up(number, chain(line.facts or (), *(line.rules or ())))
        # The variables of rules are numbered separately.
        for name in ("variables by name", "variables by id"):
            self._first.pop(name, None)
        self._first |= first

    def _add_step(self, number: int, line: StepLine) -> None:
        self.num_steps += 1
        self._see(number, line, *_OF_STEPS)
        if line.choice is not UNSET:
            self._first.setdefault("choice", number)
        if line.outcome is not None:
            self._first.setdefault("step outcome", number)
        self._look_up(number, line.goal)
        for each in line.listed():
            self._look_up(number, each.goal)
            self._first.setdefault("score" if each.score is not None else "no score", number)
            for name, clauses in (("rule", self.header.rules), ("fact", self.header.facts)):
                index = getattr(each, name)
                if index is None:
                    continue
                self._first.setdefault("origin", number)
                if clauses is not None and index >= len(clauses):
                    last = len(clauses) - 1
                    fix = f"count from 0, up to {last}" if clauses else f"list the {name}s in the first line"
                    raise self._error(number, f"names {name} {index}, and the first line lists {len(clauses)}", fix)
            if each.rule is not None and each.fact is not None:
                raise self._error(number, "has a successor of a rule and a fact", "give the clause that made it")

    def _first_with_both(self, *names: str) -> int | None:
        """Return the first line by which both had been seen; None if they were not both seen."""
        lines = [self._first.get(name) for name in names]
        return None if None in lines else max(line for line in lines if line is not None)

    def _see(self, number: int, line: Line, *names: str) -> None:
        for name in names:
            found = getattr(line, name) is not None
            name = "outcome" if name == "end" else name
            self._first.setdefault(name if found else f"no {name}", number)

    def _look_up(self, number: int, atoms: Iterable[NamedTerms | None]) -> None:
        """Collect the names of atoms. UserError for a name that the first line does not list."""
        header = self.header
        tables = header.predicates, header.constants
        for atom in atoms:
            for position, term in enumerate(atom or ()):
                is_argument = position > 0
                kind = ("predicates", "constants")[is_argument]
                if isinstance(term, int):
                    what = "variables" if is_argument and term < 0 else kind
                    self._first.setdefault(f"{what} by id", number)
                    continue
                if is_argument and header.is_variable(term):
                    self._first.setdefault("variables by name", number)
                    continue
                self._first.setdefault(f"{kind} by name", number)
                names, table = self._names[is_argument], tables[is_argument]
                if term in names:
                    continue
                if table is not None and term not in table:
                    raise self._error(
                        number,
                        f"has {term!r}, which is not among the {kind} of the first line",
                        suggest(term, table) or f"list it in {kind!r}",
                    )
                names[term] = len(names)

    def _error(self, number: int, message: str, fix: str) -> UserError:
        return UserError(message, where=f"{self._where}:{number}", fix=fix)
