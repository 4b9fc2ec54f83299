"""Reproducers as text: clauses and queries as in Prolog, and `key: value` lines around them.

A bare name that begins with a lower-case letter or a digit is a constant, or a predicate; one that begins with an
upper-case letter or with `_` is a variable; every other name stands in single quotes, with \\\\, \\', \\n, \\t and
\\xHEX\\ as in ISO Prolog. A line that begins with % is a comment. One clause, query or key a line.
"""

from pathlib import Path
from typing import Any, Final

import msgspec

from kgverify.errors import UserError
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule
from kgverify.ranking.corrupt import ALL
from kgverify.testing.checking.engine_spec import COMPILED
from kgverify.testing.checking.failure import LAW
from kgverify.testing.problems.problem import NO_SPREAD, PolicySpec
from kgverify.testing.reproducers.parser import FIRST_LINE, parse_reproducer
from kgverify.testing.reproducers.quoting import VARIABLE, escape_line, quote
from kgverify.testing.reproducers.reproducer import Reproducer
from kgverify.testing.shrinking.terms import rename_variables

SUFFIX: Final = ".kg"


def render_reproducer(reproducer: Reproducer) -> str:
    """The text of a reproducer; `parse_reproducer` reads it back, with variables renamed that have unusual names."""
    problem = reproducer.problem
    lines = [FIRST_LINE, *(f"note: {escape_line(note)}" for note in reproducer.notes), ""]
    lines += [f"{_atom(fact)}." for fact in problem.facts]
    lines += [_clause(rule) for rule in problem.rules]
    lines += [f"?- ranked {_atom(query)}." for query in problem.queries]
    lines += [f"?- {_atom(*_plain_variables([query]))}." for query in problem.unranked]
    lines += [
        "",
        f"limits: {_pairs(msgspec.structs.asdict(problem.limits))}",
        f"policy: {problem.policy.name}" + _weights(problem.policy),
        f"sizes: {_pairs(problem.sizes._asdict())}",
    ]
    if problem.spread != NO_SPREAD:
        lines.append(f"spread: {_pairs(problem.spread._asdict())}")
    if problem.queries or problem.num_corruptions != 0:
        lines.append(f"corruptions: {'all' if problem.num_corruptions == ALL else problem.num_corruptions}")
    if problem.seed:
        lines.append(f"seed: {problem.seed}")
    if problem.constants:
        lines.append(f"constants: {', '.join(map(quote, problem.constants))}")
    stage, field, kind, situation = reproducer.signature
    lines += ["", *_optional("stage", stage), *_optional("field", field), f"class: {kind}"]
    lines += _optional("law" if kind == LAW else "situation", situation) + _optional("candidate", reproducer.candidate)
    lines += [f"step: {reproducer.step}"] if reproducer.step >= 0 else []
    lines += [f"expected: {escape_line(line)}".rstrip() for line in reproducer.expected]
    lines += [f"actual: {escape_line(line)}".rstrip() for line in reproducer.actual]
    lines += _optional("message", reproducer.message)
    lines.append(f"compared: {'in lockstep' if reproducer.lockstep else 'free-running'}")
    lines += _optional("neighbour", reproducer.neighbour)
    engine = reproducer.engine
    lines += ["", f"engine: {escape_line(engine.name)}"]
    if engine.name == COMPILED:
        lines += [f"mode: {engine.mode}", f"device: {engine.device}"]
    lines += _optional("faults", ", ".join(engine.faults))
    lines += _optional("versions", _pairs(reproducer.versions))
    return "\n".join(lines) + "\n"


def read_reproducer(path: Path) -> Reproducer:
    """Read a file. UserError if it cannot be read or is no reproducer."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot be read: {error.strerror}", where=str(path), fix=f"give a {SUFFIX} file of `kgverify shrink`"
        ) from None
    except UnicodeDecodeError:
        raise UserError("is not UTF-8 text", where=str(path), fix="give a file of `kgverify shrink`") from None
    return parse_reproducer(text, str(path))


def write_reproducer(reproducer: Reproducer, path: Path) -> None:
    """Write a file. UserError if it cannot be written."""
    try:
        path.write_text(render_reproducer(reproducer), encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(
            f"cannot be written: {error.strerror}", where=str(path), fix="give a path in a folder that exists"
        ) from None


def _clause(rule: NamedRule) -> str:
    head, *body = _plain_variables([rule.clause_head, *rule.body])
    return f"{_atom(head)} :- {', '.join(map(_atom, body))}."


def _plain_variables(atoms: list[NamedAtom]) -> list[NamedAtom]:
    names = [term.name for atom in atoms for term in atom[1:] if isinstance(term, Variable)]
    return atoms if all(map(VARIABLE.fullmatch, names)) else rename_variables(atoms)


def _atom(atom: NamedAtom) -> str:
    first, second = (term.name if isinstance(term, Variable) else quote(term) for term in atom[1:])
    return f"{quote(atom.predicate)}({first}, {second})"


def _optional(key: str, value: str) -> list[str]:
    return [f"{key}: {escape_line(value)}"] if value else []


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_show(value)}" for name, value in values.items())


def _show(value: Any) -> Any:
    return ("no", "yes")[value] if isinstance(value, bool) else value


def _weights(policy: PolicySpec) -> str:
    return "" if policy.name == "shortest" else f", {_pairs(dict(list(policy._asdict().items())[1:]))}"
