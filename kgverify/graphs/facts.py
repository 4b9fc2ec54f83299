"""Read facts in functional form: `relation(head,tail).`, as in Prolog.

A fact ends at its dot or with its line, so that a line may hold several. Every argument is a constant, whatever its case. The
weight of a fact (`0.9::r(a,b).`, `0.9 r(a,b).`) is left out, and declarations (`:- dynamic r/2.`) are skipped, each with a
warning. Rules, negation and other directives are errors.
"""

import re
from collections.abc import Sequence
from typing import Final

from kgverify.graphs.formats.parsed import Triples
from kgverify.graphs.grammar import BLANKS, NUMBER, Clause, Directive, describe_ignored, parse_clauses
from kgverify.graphs.text_file import line_error, show
from kgverify.program.atoms import NamedAtom
from kgverify.program.program import Source

TABULAR: Final = "head<TAB>relation<TAB>tail"
FUNCTIONAL: Final = "relation(head,tail)."

_BARE = r"[^ \t()'\",\\]++(?:[ \t]++[^ \t()'\",\\]++)*+"
_WORD = r"(?:[^ \t()'\",\\:<=>]++|:(?![-:]))++"
_PREDICATE = rf"(?!not[ \t]|[%#~!¬;]|{NUMBER}[ \t]){_WORD}(?:[ \t]++{_WORD})*+"
# What most lines are; the grammar reads them in the same way, only slower. Tests compare both.
PLAIN: Final = re.compile(
    rf"[ \t]*+({_PREDICATE})[ \t]*+\([ \t]*+({_BARE})[ \t]*+,[ \t]*+({_BARE})[ \t]*+\)[ \t]*+\.?[ \t]*+"
)


def parse_facts(lines: Sequence[tuple[int, str]], file: str) -> Triples:
    """Parse the facts of numbered lines. UserError, with `file` and line, at the first that is not a fact."""
    atoms: list[NamedAtom] = []
    numbers: list[int] = []
    parsed: list[Clause | Directive] = []
    match_plain = PLAIN.fullmatch
    has_comments = any("/*" in text for _, text in lines)
    end = 0
    for index, (number, text) in enumerate(lines):
        if index < end:
            continue
        if (match := match_plain(text)) and not (has_comments and "/*" in text):
            atoms.append(NamedAtom(*match.groups()))
            numbers.append(number)
        elif text.strip(BLANKS) and not text.lstrip(BLANKS).startswith(("%", "#")):
            if not any(sign in text for sign in ("(", ":-", "?-", "/*")):
                found, fix = show(text), "write one triple a line, in the same format for the whole file"
                raise line_error(Source(file, number), f"{TABULAR} or {FUNCTIONAL}", found, fix)
            clauses, end = parse_clauses("facts", lines, file, index)
            parsed += clauses
            for clause in clauses:
                if isinstance(clause, Clause):
                    atoms.append(_build_fact(clause, file))
                    numbers.append(clause.line)
    return Triples(tuple(atoms), tuple(numbers), describe_ignored(parsed, file))


def _build_fact(clause: Clause, file: str) -> NamedAtom:
    predicate, first, second, *_ = clause.clause_head
    for term in (first, second):
        if not term.is_quoted and "," in term.text:
            found, fix = f"the compound term {show(term.text)}", "quote a name that contains a comma"
            raise line_error(Source(file, clause.line), "a name", found, fix)
    return NamedAtom(predicate, first.text, second.text)
