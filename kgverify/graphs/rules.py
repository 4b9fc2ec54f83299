"""Read rules in the arrow, Prolog, AnyBURL and AMIE formats, told apart by content, file by file.

The first line that bears the sign of a format (`->`, `:-`, three tabs and `<=`, `=>`) decides for the whole
file. Comments are lines that begin with `%` or `#` and hold no tab.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeAlias

from kgverify.graphs.rule_formats.amie import ARROW, parse_amie
from kgverify.graphs.rule_formats.anyburl import parse_anyburl
from kgverify.graphs.rule_formats.arrow import parse_arrow
from kgverify.graphs.rule_formats.build import OPERATORS, Vocabulary
from kgverify.graphs.rule_formats.prolog import parse_prolog
from kgverify.graphs.scanner import quote_name
from kgverify.graphs.text_file import Line, is_skipped, line_error, show, split_lines
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.program import NamedRule, Source

_Parser: TypeAlias = Callable[[Sequence[Line], str, Vocabulary], list[NamedRule]]

_SIGNS: Final[tuple[tuple[re.Pattern[str], _Parser], ...]] = (
    (re.compile(r"^[^\t]*\t[^\t]*\t[^\t]*\t.*<="), parse_anyburl),
    (ARROW, parse_amie),
    (re.compile(r"\)\s*:-"), parse_prolog),
    (re.compile(r"->"), parse_arrow),
)
_PLAIN_PREDICATE = re.compile(r"[^\s()'\",:%#\\][^()'\",:\\]*")
_VARIABLE = re.compile(r"\?\w+")


def parse_rules(
    text: str,
    file: str,
    *,
    constants: Collection[str] = frozenset(),
    predicates: Collection[str] = frozenset(),
) -> tuple[NamedRule, ...]:
    """Return the rules of a text, in order, each with `file` and its line.

    constants, predicates: the names of the graph, by which the arrow format tells a constant from a variable
        and a predicate with colons from a rule's name
    UserError, with file and line, at the first line that is no rule of the file's format.
    """
    lines = [line for line in split_lines(text) if not is_skipped(line.text)]
    if not lines:
        return ()
    for line in lines:
        for sign, parse in _SIGNS:
            if sign.search(line.text):
                return tuple(parse(lines, file, Vocabulary(constants, predicates)))
    raise line_error(
        Source(file, lines[0].number),
        "a rule in the arrow, Prolog, AnyBURL or AMIE format",
        show(lines[0].text),
        "write b1(X,Z), b2(Z,Y) -> h(X,Y)",
    )


def render_rules(rules: Iterable[NamedRule]) -> str:
    """Rules in the arrow format, one a line; they read back as the same clauses whatever the graph holds.

    Variables are written with `?`, constants in quotes.
    """
    return "".join(_render_rule(rule) + "\n" for rule in rules)


def _render_rule(rule: NamedRule) -> str:
    atoms = (rule.clause_head, *rule.body)
    terms = (term for atom in atoms for term in (atom.first, atom.second))
    variables = dict.fromkeys(term.name for term in terms if isinstance(term, Variable))
    shown = {name: "?" + name.removeprefix("?") for name in variables}
    is_clear = len(set(shown.values())) == len(shown) and all(map(_VARIABLE.fullmatch, shown.values()))
    if not is_clear:
        shown = {name: f"?v{i}" for i, name in enumerate(variables)}

    def render_term(term: Term) -> str:
        return shown[term.name] if isinstance(term, Variable) else quote_name(term)

    def render_atom(atom: NamedAtom) -> str:
        return f"{_render_predicate(atom.predicate)}({render_term(atom.first)},{render_term(atom.second)})"

    clause_head, *body = map(render_atom, atoms)
    name = re.sub(r"[:('\"\t\n%#]", "_", rule.name)
    confidence = "" if rule.confidence is None else repr(float(rule.confidence))
    return f"{name}:{confidence}:{', '.join(body)} -> {clause_head}"


def _render_predicate(predicate: str) -> str:
    is_plain = (
        _PLAIN_PREDICATE.fullmatch(predicate)
        and predicate == predicate.strip()
        and not any(operator in predicate for operator in OPERATORS)
    )
    return predicate if is_plain else quote_name(predicate)
