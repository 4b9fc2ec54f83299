r"""Reproducers as text: clauses and queries as in Prolog, and `key: value` lines around them.

A bare name that begins with a lower-case letter or a digit is a constant or a predicate; one that begins with an
upper-case letter or with `_` is a variable; every other name stands in single quotes, with \\\\, \\', \\n, \\t and
\\xHEX\\ as in ISO Prolog. A line that begins with % is a comment. A line holds one clause, query or key.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

from kgverify.engines.sizes import Sizes
from kgverify.engines.table import COMPILED, REFERENCE
from kgverify.errors import InternalError, UserError, suggest
from kgverify.escaping import MARKED
from kgverify.files.reading import read_file
from kgverify.files.writing import write_file
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.dialect import OURS, VALUES, Dialect
from kgverify.program.limits import NUMBERS, Limits
from kgverify.program.program import NamedRule
from kgverify.ranking.corrupt import ALL
from kgverify.runs.engine_makers import EAGER, EngineSpec
from kgverify.testing.checking.failure import CRASH, LAW, Signature
from kgverify.testing.checking.guard import CheckBug
from kgverify.testing.problems.problem import NO_SPREAD, PolicySpec, Problem, Spread
from kgverify.testing.reproducers.reproducer import Reproducer
from kgverify.testing.shrinking.terms import rename_variables

SUFFIX: Final = ".kg"
_MAX_BYTES: Final = 16 << 20


def render_reproducer(reproducer: Reproducer) -> str:
    """Return the text of a reproducer, which `parse_reproducer` reads; variables with unusual names are renamed."""
    problem = reproducer.problem
    lines = [FIRST_LINE, *(f"note: {escape_line(note)}" for note in reproducer.notes), ""]
    lines += [f"{_atom(fact)}." for fact in problem.facts]
    lines += [_clause(rule) for rule in problem.rules]
    lines += [f"?- ranked {_atom(query)}." for query in problem.queries]
    lines += [f"?- {_atom(*_plain_variables([query]))}." for query in problem.unranked]
    lines += [
        "",
        f"limits: {_pairs({name: getattr(problem.limits, name) for name in NUMBERS})}",
        *_optional("dialect", _render_dialect(problem.limits.dialect)),
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
    lines += ["", *_optional("stage", stage), *_optional("field", field), f"class: {escape_line(kind)}"]
    lines += _optional("law" if kind == LAW else "situation", situation) + _optional("candidate", reproducer.candidate)
    lines += [f"step: {reproducer.step}"] if reproducer.step >= 0 else []
    lines += [f"expected: {escape_line(line)}".rstrip() for line in reproducer.expected]
    lines += [f"actual: {escape_line(line)}".rstrip() for line in reproducer.actual]
    lines += _optional("message", reproducer.message)
    lines.append(f"compared: {'in lockstep' if reproducer.lockstep else 'free-running'}")
    lines += _optional("neighbour", reproducer.neighbour)
    lines += ["", *_engine_lines("", reproducer.engine), *_engine_lines("reference_", reproducer.reference)]
    lines += _optional("versions", _pairs(reproducer.versions))
    return "\n".join(lines) + "\n"


def _render_dialect(dialect: Dialect) -> str:
    """Return the switches that differ from the default; empty for the default dialect."""
    changed = {name: getattr(dialect, name) for name in dialect.__struct_fields__}
    changed = {name: value for name, value in changed.items() if value != getattr(OURS, name)}
    return ", ".join(f"{name} {_switch(value)}" for name, value in changed.items())


def _switch(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(value) or "none" if isinstance(value, tuple) else str(value)


def read_reproducer(path: Path) -> Reproducer:
    """Read a file. UserError if it cannot be read or is not a reproducer."""
    content = read_file(path, purpose=f"a {SUFFIX} file of `kgverify shrink`", max_bytes=_MAX_BYTES)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError("is not UTF-8 text", where=str(path), fix="give a file of `kgverify shrink`") from None
    return parse_reproducer(text, str(path))


def write_reproducer(reproducer: Reproducer, path: Path) -> None:
    """Write a file. UserError if it cannot be written."""
    write_file(path, render_reproducer(reproducer))


@contextmanager
def saving_bugs() -> Iterator[None]:
    """Save the problems on which kgverify itself fails, a file each, and raise an InternalError that names their folder."""
    try:
        yield
    except CheckBug as bug:
        kind, _, message = str(bug).partition(": ")
        made = [
            Reproducer(
                problem=problem,
                signature=Signature("", "", CRASH, kind),
                message=message,
                notes=("kgverify itself failed on this problem",),
            )
            for problem in bug.problems
        ]
        try:
            folder = Path(mkdtemp(prefix="kgverify-bug-"))
            for i, each in enumerate(made):
                write_reproducer(each, folder / f"problem-{i}{SUFFIX}")
            where = f"saved in {folder}"
        except (OSError, UserError) as error:
            where = f"which could not be saved ({error})"
        which = "this problem" if len(made) == 1 else f"these {len(made)} problems together"
        raise InternalError(f"kgverify itself failed on {which}, {where}: {bug}") from bug.__cause__


def _engine_lines(prefix: str, engine: EngineSpec) -> list[str]:
    """Return the lines of an engine; those of the reference begin with a prefix."""
    lines = [f"{prefix.strip('_') or 'engine'}: {escape_line(engine.name)}"]
    if engine.name == COMPILED:
        lines += [f"{prefix}mode: {escape_line(engine.mode)}", f"{prefix}device: {escape_line(engine.device)}"]
    return lines + _optional(f"{prefix}faults", ", ".join(engine.faults))


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


PLAIN: Final = re.compile(r"[a-z0-9]\w*", re.ASCII)
"""A predicate or a constant that needs no quotes."""
VARIABLE: Final = re.compile(r"[A-Z]\w*|_\w+", re.ASCII)
"""A variable's name."""

_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{1,6})\\|\\(.)", re.DOTALL)
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\t": "\\t"}
_SIGNS = {"n": "\n", "t": "\t"}


def quote(name: str) -> str:
    """Return the name of a predicate or a constant, quoted if necessary."""
    if PLAIN.fullmatch(name):
        return name
    escaped = escape(name).replace("'", "\\'")
    return f"'{escaped}'"


def escape(text: str) -> str:
    """Return the text on one line of printable characters."""

    def show(sign: str) -> str:
        return _ESCAPED.get(sign) or (sign if sign.isprintable() else f"\\x{ord(sign):x}\\")

    return MARKED.sub(lambda sign: f"\\x{ord(sign[0]):x}\\", "".join(map(show, text)))


def escape_line(text: str) -> str:
    """Return the text on one line, with blanks at the ends escaped as well, since a reader strips them."""
    escaped = escape(text)
    if escaped.startswith(" "):
        escaped = f"\\x20\\{escaped[1:]}"
    return f"{escaped[:-1]}\\x20\\" if escaped.endswith(" ") else escaped


def unescape(text: str) -> str:
    """Return the text that `escape` was given."""

    def read(match: re.Match[str]) -> str:
        if match[1]:
            code = int(match[1], 16)
            return chr(code) if code < 0x110000 else match[0]
        return _SIGNS.get(match[2], match[2])

    return _ESCAPE.sub(read, text)


FIRST_LINE: Final = "% kgverify reproducer 1"
KEYS: Final = (
    "note",
    "limits",
    "dialect",
    "policy",
    "sizes",
    "spread",
    "corruptions",
    "seed",
    "constants",
    "stage",
    "field",
    "class",
    "situation",
    "law",
    "candidate",
    "step",
    "expected",
    "actual",
    "message",
    "compared",
    "neighbour",
    "engine",
    "mode",
    "device",
    "faults",
    "reference",
    "reference_mode",
    "reference_device",
    "reference_faults",
    "versions",
)
_REPEATED: Final = ("note", "expected", "actual")

_KEY = re.compile(r"([a-z_]+):(?: (.*))?")
_TOKEN = re.compile(
    r"[ \t]*(?:(?P<quoted>'(?:[^'\\]|\\x[0-9a-fA-F]+\\|\\[^x])*')|(?P<bare>\w+)|(?P<sign>:-|\?-|[(),.]))", re.ASCII
)


def parse_reproducer(text: str, file: str = "reproducer") -> Reproducer:
    """Parse the text of a reproducer. UserError, with file and line, if it is not one."""
    return _Parser(file).parse(text)


class _Parser:
    """A parser that reads a text line by line, and knows the current line."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._line = 0
        self._tokens: list[tuple[str, str]] = []
        self._values: dict[str, list[str]] = {}
        self._lines: dict[str, int] = {}

    def parse(self, text: str) -> Reproducer:
        lines = text.split("\n")
        self._line = 1
        if lines[0].rstrip() != FIRST_LINE:
            raise self._error(f"expected {FIRST_LINE!r}, found {lines[0][:60]!r}", "give a file of `kgverify shrink`")
        facts: list[NamedAtom] = []
        rules: list[NamedRule] = []
        ranked: list[NamedAtom] = []
        unranked: list[NamedAtom] = []
        for self._line, raw in enumerate(lines, 1):
            line = raw.rstrip("\r")
            if not line.strip() or line.startswith("%"):
                continue
            key = _KEY.fullmatch(line)
            if key:
                self._keep(key[1], key[2] or "")
                continue
            self._tokens = self._scan(line)
            if self._take("?-"):
                (ranked if self._take_ranked() else unranked).append(self._atom())
            else:
                head = self._atom()
                if self._take(":-"):
                    body = [self._atom()]
                    while self._take(","):
                        body.append(self._atom())
                    rules.append(NamedRule(head, tuple(body)))
                elif not head.is_ground:
                    raise self._error("expected a fact without variables", "give it a body, or name constants")
                else:
                    facts.append(head)
            self._end()
        problem = self._problem(facts, rules, ranked, unranked)
        signature = Signature(*(self._text(key) for key in ("stage", "field", "class", "situation")))
        if not signature.kind:
            raise self._error("expected a line `class: ...`, found none", "say what difference is expected")
        if signature.kind == LAW:
            signature = signature._replace(situation=self._text("law") or signature.situation)
            if not signature.situation:
                raise self._error("expected a line `law: ...`, found none", "name the law that is broken", "class")
        return Reproducer(
            problem=problem,
            signature=signature,
            candidate=self._text("candidate"),
            step=self._number("step", -1),
            expected=self._texts("expected"),
            actual=self._texts("actual"),
            message=self._text("message"),
            lockstep=self._choice("compared", "free-running", "in lockstep"),
            neighbour=self._text("neighbour"),
            engine=self._engine("", self._text("engine") or COMPILED),
            # Earlier versions wrote no line of the reference, which was kgverify's own.
            reference=self._engine("reference_", self._text("reference") or REFERENCE),
            versions=dict(self._split_pair("versions", item) for item in self._items("versions")),
            notes=self._texts("note"),
        )

    def _engine(self, prefix: str, name: str) -> EngineSpec:
        return EngineSpec(
            name,
            self._text(f"{prefix}mode") or EAGER.mode,
            self._text(f"{prefix}device") or EAGER.device,
            tuple(self._items(f"{prefix}faults")),
        )

    def _problem(
        self, facts: list[NamedAtom], rules: list[NamedRule], ranked: list[NamedAtom], unranked: list[NamedAtom]
    ) -> Problem:
        policy, *weights = self._items("policy") or ["shortest"]
        try:
            return Problem(
                facts=tuple(facts),
                rules=tuple(rules),
                queries=tuple(ranked),
                unranked=tuple(unranked),
                constants=self._constants(),
                limits=Limits(**self._numbers("limits", NUMBERS), dialect=self._dialect()),
                policy=PolicySpec(policy, **self._numbers("policy", PolicySpec._fields[1:], weights)),
                num_corruptions=ALL if self._text("corruptions") == "all" else self._number("corruptions", 0),
                seed=self._number("seed", 0),
                sizes=Sizes(**self._numbers("sizes", Sizes._fields)),
                spread=Spread(**self._numbers("spread", Spread._fields)),
            )
        except UserError as error:
            where = error.where if error.where.startswith(self._file) else f"{self._file}: {error.where}"
            raise UserError(error.message, where=where, fix=error.fix) from None

    def _keep(self, key: str, value: str) -> None:
        if key not in KEYS:
            raise self._error(f"unknown key {key!r}", suggest(key, KEYS) or f"use one of {', '.join(KEYS)}")
        if key in self._values and key not in _REPEATED:
            raise self._error(f"a second line {key!r}", "leave one of them out")
        self._lines[key] = self._line
        self._values.setdefault(key, []).append(value)

    def _texts(self, key: str) -> tuple[str, ...]:
        return tuple(map(unescape, self._values.get(key, ())))

    def _text(self, key: str) -> str:
        return next(iter(self._texts(key)), "")

    def _items(self, key: str) -> list[str]:
        value = self._values.get(key, [""])[0]
        return [item.strip() for item in value.split(",")] if value.strip() else []

    def _choice(self, key: str, no: str, yes: str) -> bool:
        value = self._text(key) or no
        if value not in (no, yes):
            raise self._error(f"expected {no!r} or {yes!r}, found {value!r}", "choose one of the two", key)
        return value == yes

    def _number(self, key: str, default: int) -> int:
        value = self._text(key)
        return self._integer(key, value) if value else default

    def _integer(self, key: str, value: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,20}", value):
            raise self._error(f"expected a number, found {value!r}", "write digits", key)
        return int(value)

    def _numbers(self, key: str, names: Iterable[str], items: list[str] | None = None) -> dict[str, Any]:
        known = tuple(names)
        found: dict[str, Any] = {}
        for item in self._items(key) if items is None else items:
            name, value = self._split_pair(key, item)
            if name not in known:
                raise self._error(f"unknown {name!r}", suggest(name, known) or f"use {', '.join(known)}", key)
            if name == "exclude_query":
                if value not in ("yes", "no"):
                    raise self._error(f"expected yes or no, found {value!r}", "write yes or no", key)
                found[name] = value == "yes"
            else:
                found[name] = self._integer(key, value)
        return found

    def _dialect(self) -> Dialect:
        """Return the dialect; a switch that is not named has its default."""
        found: dict[str, Any] = {}
        for item in self._items("dialect"):
            name, value = self._split_pair("dialect", item)
            if name == "filters":
                found[name] = () if value == "none" else tuple(value.split())
            elif name not in VALUES:
                known = (*VALUES, "filters")
                raise self._error(f"unknown {name!r}", suggest(name, known) or f"use {', '.join(known)}", "dialect")
            else:
                found[name] = next((each for each in VALUES[name] if _switch(each) == value), value)
        try:
            return Dialect(**found)
        except UserError as error:
            raise self._error(error.message, error.fix, "dialect") from None

    def _split_pair(self, key: str, item: str) -> tuple[str, str]:
        name, _, value = item.partition(" ")
        if not value:
            raise self._error(f"expected a name and a value, found {item!r}", f"write {key}: NAME VALUE, ...", key)
        return name, value.strip()

    def _constants(self) -> tuple[str, ...]:
        if not self._values.get("constants"):
            return ()
        self._line = self._lines["constants"]
        self._tokens = self._scan(self._values["constants"][0])
        found = [self._constant()]
        while self._take(","):
            found.append(self._constant())
        if self._tokens:
            raise self._error(f"expected a comma, found {self._tokens[0][1]!r}", "separate the constants by commas")
        return tuple(found)

    def _constant(self) -> str:
        term = self._term()
        if isinstance(term, Variable):
            raise self._error(f"expected a constant, found the variable {term.name}", "quote the name")
        return term

    def _take_ranked(self) -> bool:
        is_ranked = len(self._tokens) > 1 and self._tokens[0] == ("bare", "ranked") and self._tokens[1][1] != "("
        if is_ranked:
            self._tokens.pop(0)
        return is_ranked

    def _atom(self) -> NamedAtom:
        predicate = self._term()
        if isinstance(predicate, Variable):
            raise self._error(f"expected a predicate, found the variable {predicate.name}", "quote the name")
        self._expect("(")
        first = self._term()
        self._expect(",")
        second = self._term()
        self._expect(")")
        return NamedAtom(predicate, first, second)

    def _term(self) -> Term:
        kind, text = self._tokens.pop(0) if self._tokens else ("end", "the end of the line")
        if kind == "quoted":
            return unescape(text[1:-1])
        if kind != "bare":
            raise self._error(f"expected a name, found {text!r}", "write atoms as p(a, X)")
        if text == "_":
            raise self._error("expected a name, found _", "give each variable a name")
        return Variable(text) if VARIABLE.fullmatch(text) else text

    def _take(self, sign: str) -> bool:
        is_next = bool(self._tokens) and self._tokens[0] == ("sign", sign)
        if is_next:
            self._tokens.pop(0)
        return is_next

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            found = self._tokens[0][1] if self._tokens else "the end of the line"
            raise self._error(f"expected {sign!r}, found {found!r}", "write clauses as p(X, Y) :- q(X, Z), r(Z, Y).")

    def _end(self) -> None:
        self._expect(".")
        if self._tokens:
            raise self._error(f"expected the end of the line, found {self._tokens[0][1]!r}", "write one clause a line")

    def _scan(self, line: str) -> list[tuple[str, str]]:
        tokens, at, end = [], 0, len(line.rstrip())
        while at < end:
            match = _TOKEN.match(line, at)
            if match is None:
                raise self._error(f"cannot read {line[at:].strip()[:40]!r}", "put unusual names in single quotes")
            kind = str(match.lastgroup)
            tokens.append((kind, match[kind]))
            at = match.end()
        return tokens

    def _error(self, message: str, fix: str, key: str = "") -> UserError:
        return UserError(message, where=f"{self._file}:{self._lines.get(key, self._line)}", fix=fix)
