"""Render facts, rules and domains as text that the readers of graphs read back."""

import re
from collections.abc import Iterable, Mapping

from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.program import NamedRule

_NEEDS_QUOTES = frozenset("[{;()'\",\\")
_PLAIN_PREDICATE = re.compile(r"[\w/][\w/.-]*")
_VARIABLE = re.compile(r"\?\w+")


def render_domains(domains: Mapping[str, tuple[str, ...]]) -> str:
    """Render domains separated by tabs, one a line; any name without tab and end of line survives."""
    return "".join("\t".join((name, *constants)) + "\n" for name, constants in domains.items())


def render_triples(atoms: Iterable[NamedAtom]) -> str:
    """Render ground atoms in the functional format, one a line; names get quotes where they need them."""
    return "".join(f"{_render_predicate(p)}({_render_name(str(a))},{_render_name(str(b))}).\n" for p, a, b in atoms)


def render_rules(rules: Iterable[NamedRule]) -> str:
    """Render rules in the arrow format, one a line; they read back as the same clauses whatever the graph holds.

    Variables are written with `?`, constants in quotes.
    """
    return "".join(_render_rule(rule) + "\n" for rule in rules)


def _quote(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _render_name(name: str) -> str:
    is_bare = (
        name
        and not _NEEDS_QUOTES.intersection(name)
        and "/*" not in name
        and ".." not in name
        and name == name.strip(" \t")
    )
    return name if is_bare else _quote(name)


def _render_rule(rule: NamedRule) -> str:
    atoms = (rule.clause_head, *rule.body)
    terms = (term for atom in atoms for term in (atom.first, atom.second))
    variables = dict.fromkeys(term.name for term in terms if isinstance(term, Variable))
    shown = {name: "?" + name.removeprefix("?") for name in variables}
    is_clear = len(set(shown.values())) == len(shown) and all(map(_VARIABLE.fullmatch, shown.values()))
    if not is_clear:
        shown = {name: f"?v{i}" for i, name in enumerate(variables)}

    def render_term(term: Term) -> str:
        return shown[term.name] if isinstance(term, Variable) else _quote(term)

    def render_atom(atom: NamedAtom) -> str:
        return f"{_render_predicate(atom.predicate)}({render_term(atom.first)},{render_term(atom.second)})"

    clause_head, *body = map(render_atom, atoms)
    name = re.sub(r"[:('\"\t\n%#]", "_", rule.name)
    confidence = "" if rule.confidence is None else repr(float(rule.confidence))
    return f"{name}:{confidence}:{', '.join(body)} -> {clause_head}"


def _render_predicate(predicate: str) -> str:
    return predicate if _PLAIN_PREDICATE.fullmatch(predicate) else _quote(predicate)
