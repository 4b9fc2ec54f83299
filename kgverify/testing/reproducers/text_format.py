r"""Reproducers as text: clauses and queries as in Prolog, and `key: value` lines around them.

A bare name that begins with a lower-case letter or a digit is a constant or a predicate; one that begins with an
upper-case letter or with `_` is a variable; every other name is written in single quotes, with \\\\, \\', \\n, \\t and
\\xHEX\\ as in ISO Prolog. A line that begins with % is a comment. A line holds one clause, query or key.
"""

import platform
import re
import runpy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from kgverify.arguments import checked
from kgverify.engines.protocol import Sizes
from kgverify.engines.table import COMPILED, REFERENCE
from kgverify.errors import InternalError, UserError, count_of, suggest
from kgverify.escaping import MARKED
from kgverify.files.reading import read_file
from kgverify.files.writing import write_file
from kgverify.graphs.graph import GraphFiles
from kgverify.graphs.vocabulary import Items, Vocabulary
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.limits import NUMBERS, OURS, Dialect, Limits
from kgverify.program.program import NamedRule
from kgverify.ranking.draw import ALL
from kgverify.runs.engine_makers import EAGER, PLAIN, EngineSpec
from kgverify.runs.job import Source, load_named_graph
from kgverify.testing.checking.failure import CRASH, LAW, Failure, Signature
from kgverify.testing.checking.guard import CheckBug
from kgverify.testing.problems.problem import (
    DEFAULT_SIZES,
    SHORTEST,
    PolicySpec,
    Problem,
    rename_variables,
)
from kgverify.version import __version__


@dataclass(frozen=True, kw_only=True)
class Reproducer:
    """A problem, and the difference that it shows.

    signature:        the signature of the difference; a replay compares it with that of the first divergence
    candidate, step:  the location of the difference; step is -1 if it is not about a step
    expected, actual: both values as lines of text
    lockstep:         whether every step was compared from the expected goal
    neighbour:        a change after which both sides agree; empty if none is known
    engine:           the engine under test
    reference:        the engine that it is compared with
    versions:         the version of each library in the run that made it
    notes:            comments for readers
    """

    problem: Problem
    signature: Signature
    candidate: str = ""
    step: int = -1
    expected: tuple[str, ...] = ()
    actual: tuple[str, ...] = ()
    message: str = ""
    lockstep: bool = False
    neighbour: str = ""
    engine: EngineSpec = EAGER
    reference: EngineSpec = PLAIN
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def with_engine(self, engine: EngineSpec, reference: EngineSpec | None = None) -> "Reproducer":
        """Return the same reproducer for another engine, and, if given, another reference."""
        return replace(self, engine=engine, reference=self.reference if reference is None else reference)

    @property
    def sides(self) -> str:
        """The engine under test, and the engine that it is compared with."""
        return f"{self.engine}, compared with {self.reference}"

    def to_python(self) -> str:
        """Return a program of public names that raises an AssertionError while the difference exists."""
        return _render_code(self, _render_call(self))


def make_reproducer(
    failure: Failure,
    engine: EngineSpec = EAGER,
    *,
    reference: EngineSpec = PLAIN,
    lockstep: bool = False,
    neighbour: str = "",
    notes: tuple[str, ...] = (),
) -> Reproducer:
    """Return the reproducer of a failure. UserError if the failure needs other problems in its run: shrink it first."""
    if not failure.is_alone:
        raise UserError(
            f"fails only in one run with {count_of(len(failure.group) - 1, 'other problem')}",
            where="reproducer",
            fix="shrink the failure first",
        )
    divergence = failure.divergence
    return Reproducer(
        problem=failure.problem,
        signature=failure.signature,
        candidate=divergence.atom if divergence else "",
        step=divergence.step if divergence else -1,
        expected=_split_lines(divergence.expected) if divergence else (),
        actual=_split_lines(divergence.actual) if divergence else (),
        message=failure.message,
        lockstep=lockstep,
        neighbour=neighbour,
        engine=engine,
        reference=reference,
        notes=notes,
        versions=_versions(engine, reference),
    )


def _split_lines(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def _versions(*engines: EngineSpec) -> dict[str, str]:
    versions = {"kgverify": __version__, "python": platform.python_version()}
    if any(each.name == COMPILED for each in engines):
        with suppress(PackageNotFoundError):
            versions["torch"] = version("torch")
    return versions


T = TypeVar("T")

SUFFIX: Final = ".kg"
_MAX_BYTES: Final = 16 << 20


def render_reproducer(reproducer: Reproducer) -> str:
    """Return a reproducer as text that `parse_reproducer` reads. Variables with unusual names are renamed."""
    stage, field, kind, situation = reproducer.signature
    difference = {
        "stage": stage,
        "field": field,
        "class": kind,
        "law" if kind == LAW else "situation": situation,
        "candidate": reproducer.candidate,
        "step": str(reproducer.step) if reproducer.step >= 0 else "",
    }
    result = {
        "message": reproducer.message,
        "compared": "in lockstep" if reproducer.lockstep else "free-running",
        "neighbour": reproducer.neighbour,
    }
    lines = [
        FIRST_LINE,
        *(f"note: {escape_line(note)}" for note in reproducer.notes),
        "",
        *_render_clauses(reproducer.problem),
        "",
        *_render_settings(reproducer.problem),
        "",
        *_lines(difference),
        *(f"expected: {escape_line(line)}".rstrip() for line in reproducer.expected),
        *(f"actual: {escape_line(line)}".rstrip() for line in reproducer.actual),
        *_lines(result),
        "",
        *_lines(_list_engine("", reproducer.engine) | _list_engine("reference_", reproducer.reference)),
        *_lines({"versions": _pairs(reproducer.versions)}),
    ]
    return "\n".join(lines) + "\n"


def _render_clauses(problem: Problem) -> list[str]:
    rules = [_render_atoms(rule.atoms) for rule in problem.rules]
    return [
        *(f"{_render_atom(fact)}." for fact in problem.facts),
        *(f"{head} :- {', '.join(body)}." for head, *body in rules),
        *(f"?- ranked {_render_atom(query)}." for query in problem.queries),
        *(f"?- {_render_atoms([query])[0]}." for query in problem.unranked),
    ]


def _render_settings(problem: Problem) -> list[str]:
    limits, policy, dialect = problem.limits, problem.policy, problem.limits.dialect
    switches = {name: value for name in _SWITCHES if (value := getattr(dialect, name)) != _SWITCHES[name]}
    num = "all" if problem.num_corruptions == ALL else str(problem.num_corruptions)
    settings = {
        "limits": _pairs({name: getattr(limits, name) for name in NUMBERS}),
        "dialect": _pairs(switches),
        "policy": policy.name if policy.name == SHORTEST.name else _pairs(policy._asdict()).removeprefix("name "),
        "sizes": _pairs(problem.sizes._asdict()),
        "corruptions": num if problem.queries or problem.num_corruptions != 0 else "",
        "seed": str(problem.seed or ""),
    }
    ids, graph = problem.vocabulary, problem.vocabulary.graph
    lists: dict[str, Items] = {"constants": problem.constants}
    if graph is not None:
        settings["vocabulary"] = f"graph {ids.digest} {msgspec.json.encode(graph).decode()}"
    elif ids:
        settings["vocabulary"] = "closed" if ids.is_closed else "open"
        lists |= {f"vocabulary_{kind}": getattr(ids, kind) for kind in _KINDS}
    return _lines(settings) + [f"{key}: {', '.join(map(_render_item, items))}" for key, items in lists.items() if items]


_KINDS: Final = ("predicates", "constants")


def _render_item(item: str | int) -> str:
    return f"{item} unused" if isinstance(item, int) else quote(item)


@lru_cache(maxsize=4)
def _read_graph(text: str) -> Vocabulary:
    """Return the vocabulary of a graph, whose files are given as JSON. UserError if it cannot be loaded."""
    return Vocabulary.of(load_named_graph(Source(msgspec.json.decode(text, type=GraphFiles)), "the vocabulary's graph"))


def _list_engine(prefix: str, engine: EngineSpec) -> dict[str, str]:
    where = {f"{prefix}mode": engine.mode, f"{prefix}device": engine.device} if engine.name == COMPILED else {}
    return {prefix.strip("_") or "engine": engine.name, **where, f"{prefix}faults": ", ".join(engine.faults)}


def _lines(values: Mapping[str, str]) -> list[str]:
    return [f"{key}: {escape_line(value)}" for key, value in values.items() if value]


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {_show(value)}" for name, value in values.items())


def _show(value: object) -> str:
    if isinstance(value, bool):
        return _WORDS[not value]
    return " ".join(value) or "none" if isinstance(value, tuple) else str(value)


_WORDS: Final = ("yes", "no")
_COMMA: Final = re.compile(r",(?![^(]*\))")
"""A comma between items, unlike that of `sample(4, 0)`."""
_SWITCHES: Final = {name: getattr(OURS, name) for name in OURS.__struct_fields__}
"""The switches of a dialect, each with its default."""


def _render_atoms(atoms: Sequence[NamedAtom]) -> list[str]:
    names = [term.name for atom in atoms for term in atom[1:] if isinstance(term, Variable)]
    plain = atoms if all(map(VARIABLE.fullmatch, names)) else rename_variables(atoms)
    return list(map(_render_atom, plain))


def _render_atom(atom: NamedAtom) -> str:
    first, second = (term.name if isinstance(term, Variable) else quote(term) for term in atom[1:])
    return f"{quote(atom.predicate)}({first}, {second})"


def read_reproducer(path: Path) -> Reproducer:
    """Read a reproducer from a file. UserError if the file cannot be read or is not a reproducer."""
    content = read_file(path, purpose=f"a {SUFFIX} file of `kgverify shrink`", max_bytes=_MAX_BYTES)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError("is not UTF-8 text", where=str(path), fix="give a file of `kgverify shrink`") from None
    return parse_reproducer(text, str(path))


def write_reproducer(reproducer: Reproducer, path: Path) -> None:
    """Write a reproducer to a file. UserError if it cannot be written."""
    write_file(path, render_reproducer(reproducer))


@contextmanager
def saving_bugs() -> Iterator[None]:
    """Save each problem on which kgverify itself fails to a file, and raise an InternalError that names the folder."""
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


PLAIN_NAME: Final = re.compile(r"[a-z0-9]\w*", re.ASCII)
"""A predicate or a constant that needs no quotes."""
VARIABLE: Final = re.compile(r"[A-Z]\w*|_\w+", re.ASCII)
"""A variable's name."""

_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{1,6})\\|\\(.)", re.DOTALL)
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\t": "\\t"}
_SIGNS = {"n": "\n", "t": "\t"}


def quote(name: str) -> str:
    """Return the name of a predicate or a constant, quoted if necessary."""
    if PLAIN_NAME.fullmatch(name):
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
    """Return the original text, undoing `escape`."""

    def read(match: re.Match[str]) -> str:
        if match[1]:
            code = int(match[1], 16)
            return chr(code) if code < 0x110000 else match[0]
        return _SIGNS.get(match[2], match[2])

    return _ESCAPE.sub(read, text)


FIRST_LINE: Final = "% kgverify reproducer 1"
_KEY = re.compile(r"([a-z_]+):(?: (.*))?")
_TOKEN = re.compile(
    r"[ \t]*(?:(?P<quoted>'(?:[^'\\]|\\x[0-9a-fA-F]+\\|\\[^x])*')|(?P<bare>\w+)|(?P<sign>:-|\?-|[(),.]))", re.ASCII
)


@checked
def parse_problem(text: str) -> Problem:
    """Parse a problem from text: clauses and queries as in Prolog, and settings.

    Args:
        text: A clause or a query on each line, and lines `key: value` of settings that differ from their defaults, as in the
            file of a reproducer (docs/fuzzing.md).

    Returns:
        The problem.

    Raises:
        UserError: If the text cannot be read. It names the line.

    Example:
        >>> import kgverify as kv
        >>> problem = kv.parse_problem('''
        ... parent(ann, bob).
        ... ancestor(X, Y) :- parent(X, Y).
        ... ?- ancestor(ann, X).
        ... limits: max_depth 5
        ... ''')
        >>> kv.assert_agrees("search", problem, reference="reference")
    """
    header, problem = _read_lines(text, "problem")
    header.refuse_unknown()
    return problem


def _read_lines(text: str, file: str) -> "tuple[_Header, Problem]":
    """Read clauses, queries and settings; the header has all other keys as well."""
    header = _Header(file)
    clauses: dict[str, list[Any]] = {"facts": [], "rules": [], "queries": [], "unranked": []}
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.rstrip("\r")
        if match := _KEY.fullmatch(line):
            header.add(match[1], match[2] or "", number)
        elif line.strip() and not line.startswith("%"):
            kind, item = _Line(line, f"{file}:{number}").read_clause()
            clauses[kind].append(item)
    return header, header.read_problem({kind: tuple(items) for kind, items in clauses.items()})


def parse_reproducer(text: str, file: str = "reproducer") -> Reproducer:
    """Parse the text of a reproducer. UserError, with file and line, if it is not one."""
    first = text.partition("\n")[0]
    if first.rstrip() != FIRST_LINE:
        message = f"expected {FIRST_LINE!r}, found {first[:60]!r}"
        raise UserError(message, where=f"{file}:1", fix="give a file of `kgverify shrink`")
    header, problem = _read_lines(text, file)
    law = header.text("law")
    signature = Signature(*map(header.text, ("stage", "field", "class", "situation")))
    if not signature.kind:
        raise header.error("expected a line `class: ...`, found none", "say what difference is expected")
    if signature.kind == LAW:
        signature = signature._replace(situation=law or signature.situation)
        if not signature.situation:
            raise header.error("expected a line `law: ...`, found none", "name the law that is broken", "class")
    made = Reproducer(
        problem=problem,
        signature=signature,
        candidate=header.text("candidate"),
        step=header.number("step", -1),
        expected=header.texts("expected"),
        actual=header.texts("actual"),
        message=header.text("message"),
        lockstep=header.choose("compared", header.text("compared", "free-running"), "in lockstep", "free-running"),
        neighbour=header.text("neighbour"),
        engine=header.read_engine("", COMPILED),
        reference=header.read_engine("reference_", REFERENCE),
        versions=header.pairs("versions", header.items("versions")),
        notes=header.texts("note"),
    )
    header.refuse_unknown()
    return made


class _Header:
    """The lines `key: value` of a text.

    values: the values of the lines of each key
    lines:  the number of the last line of each key
    known:  the keys that were read
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.values: dict[str, list[str]] = {}
        self.lines: dict[str, int] = {}
        self.known: dict[str, None] = {}

    def add(self, key: str, value: str, line: int) -> None:
        self.values.setdefault(key, []).append(value)
        self.lines[key] = line

    def read_problem(self, clauses: dict[str, Any]) -> Problem:
        policy, *weights = self.items("policy") or [SHORTEST.name]
        switches = self.pairs("dialect", self.items("dialect"), _SWITCHES)
        numbers = self.pairs("limits", self.items("limits"), {name: getattr(Limits(), name) for name in NUMBERS})
        try:
            return Problem(
                **clauses,
                constants=self._read_items("constants"),
                limits=Limits(**numbers, dialect=Dialect(**switches)),
                policy=PolicySpec(policy, **self.pairs("policy", weights, SHORTEST._asdict())),
                num_corruptions=ALL if self.text("corruptions") == "all" else self.number("corruptions", 0),
                seed=self.number("seed", 0),
                sizes=Sizes(**self.pairs("sizes", self.items("sizes"), DEFAULT_SIZES._asdict())),
                vocabulary=self._read_vocabulary(),
            )
        except UserError as error:
            if error.where in _SWITCHES:
                raise self.error(error.message, error.fix, "dialect") from None
            where = error.where if error.where.startswith(self.file) else f"{self.file}: {error.where}"
            raise UserError(error.message, where=where, fix=error.fix) from None

    def _read_vocabulary(self) -> Vocabulary:
        kind, digest, graph = (*self.text("vocabulary", "open").split(" ", 2), "", "")[:3]
        items = [self._read_items(f"vocabulary_{name}", is_counted=True) for name in _KINDS]
        if kind != "graph":
            return Vocabulary(items[0], items[1], is_closed=self.choose("vocabulary", kind, "closed", "open"))
        try:
            ids = _read_graph(graph)
            if ids.digest != digest:
                raise self.error(f"{ids} has other symbols than before", "give the graph's former files", "vocabulary")
            return ids
        except msgspec.DecodeError as error:
            raise self.error(f"{error}", "write a digest and the files of a graph", "vocabulary") from None

    def _read_items(self, key: str, *, is_counted: bool = False) -> Any:
        written = self._single(key)
        return _Line(written, self._locate(key)).read_names(is_counted=is_counted) if written else ()

    def read_engine(self, prefix: str, name: str) -> EngineSpec:
        """Return the engine whose keys have a prefix; `name` is its default name."""
        return EngineSpec(
            self.text(prefix.strip("_") or "engine", name),
            self.text(f"{prefix}mode", EAGER.mode),
            self.text(f"{prefix}device", EAGER.device),
            tuple(self.items(f"{prefix}faults")),
        )

    def refuse_unknown(self) -> None:
        """Raise a UserError for a key that was not read."""
        for key in [each for each in self.values if each not in self.known]:
            fix = suggest(key, self.known) or f"use one of {', '.join(self.known)}"
            raise self.error(f"unknown key {key!r}", fix, key)

    def texts(self, key: str) -> tuple[str, ...]:
        self.known[key] = None
        return tuple(map(unescape, self.values.get(key, ())))

    def text(self, key: str, default: str = "") -> str:
        return unescape(self._single(key)) or default

    def _single(self, key: str) -> str:
        """Return the value of a key as written; an empty text if the key has no line."""
        self.known[key] = None
        value, *others = self.values.get(key, [""])
        if others:
            raise self.error(f"a second line {key!r}", "leave one of them out", key)
        return value

    def items(self, key: str) -> list[str]:
        return [item.strip() for item in _COMMA.split(self._single(key)) if item.strip()]

    def pairs(self, key: str, items: Iterable[str], defaults: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Return items, pairs of a name and a value, by name.

        A value has the type of its default; without defaults, values are text.
        """
        found: dict[str, Any] = {}
        for item in items:
            name, _, value = item.partition(" ")
            if not value:
                raise self.error(f"expected a name and a value, found {item!r}", f"write {key}: NAME VALUE, ...", key)
            if defaults is not None and name not in defaults:
                raise self.error(f"unknown {name!r}", suggest(name, defaults) or f"use {', '.join(defaults)}", key)
            found[name] = self._convert(key, value.strip(), defaults[name] if defaults else "")
        return found

    def _convert(self, key: str, value: str, like: object) -> Any:
        """Convert a value to the type of `like`."""
        if isinstance(like, bool):
            return self.choose(key, value, *_WORDS)
        if isinstance(like, int):
            if not re.fullmatch(r"-?[0-9]{1,20}", value):
                raise self.error(f"expected a number, found {value!r}", "write digits", key)
            return int(value)
        return value if isinstance(like, str) else tuple(value.split()) if value != "none" else ()

    def choose(self, key: str, value: str, one: str, other: str) -> bool:
        """Return whether a value is the first of two allowed values."""
        if value not in (one, other):
            raise self.error(f"expected {one!r} or {other!r}, found {value!r}", "choose one of the two", key)
        return value == one

    def number(self, key: str, default: int) -> int:
        return int(self._convert(key, self.text(key, str(default)), default))

    def error(self, message: str, fix: str, key: str = "") -> UserError:
        return UserError(message, where=self._locate(key), fix=fix)

    def _locate(self, key: str) -> str:
        return f"{self.file}:{self.lines[key]}" if key in self.lines else self.file


class _Line:
    """The remaining tokens of a line, each with its kind. UserError for text that is not a token."""

    def __init__(self, line: str, where: str) -> None:
        self._where = where
        self._tokens: list[tuple[str, str]] = []
        at, end = 0, len(line.rstrip())
        while at < end:
            match = _TOKEN.match(line, at)
            if match is None:
                raise self._error(f"cannot read {line[at:].strip()[:40]!r}", "put unusual names in single quotes")
            self._tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            at = match.end()

    def read_clause(self) -> tuple[str, NamedAtom | NamedRule]:
        """Return the field of a problem that the line belongs to, and its fact, rule or query."""
        item: NamedAtom | NamedRule
        if self._take("?-"):
            is_ranked = self._tokens[:1] == [("bare", "ranked")] and self._tokens[1:2] != [("sign", "(")]
            del self._tokens[:is_ranked]
            kind, item = "queries" if is_ranked else "unranked", self._read_atom()
        else:
            kind, item = "facts", self._read_atom()
            if self._take(":-"):
                kind, item = "rules", NamedRule(item, self._read_list(self._read_atom))
            elif not item.is_ground:
                raise self._error("expected a fact without variables", "give it a body, or name constants")
        self._expect(".")
        if self._tokens:
            raise self._error(f"expected the end of the line, found {self._next!r}", "write one clause a line")
        return kind, item

    def read_names(self, *, is_counted: bool = False) -> Items:
        """Return names and, if they may be counted, numbers of unused ones: `12 unused`."""

        def read() -> str | int:
            name = self._read_name("constant")
            return int(name) if is_counted and name.isdecimal() and self._take("unused", "bare") else name

        found = self._read_list(read)
        if self._tokens:
            raise self._error(f"expected a comma, found {self._next!r}", "separate the constants by commas")
        return found

    def _read_list(self, read: Callable[[], T]) -> tuple[T, ...]:
        found = [read()]
        while self._take(","):
            found.append(read())
        return tuple(found)

    def _read_atom(self) -> NamedAtom:
        predicate = self._read_name("predicate")
        self._expect("(")
        first = self._read_term()
        self._expect(",")
        second = self._read_term()
        self._expect(")")
        return NamedAtom(predicate, first, second)

    def _read_name(self, role: str) -> str:
        term = self._read_term()
        if isinstance(term, Variable):
            raise self._error(f"expected a {role}, found the variable {term.name}", "quote the name")
        return term

    def _read_term(self) -> Term:
        text, kind = self._next, self._tokens.pop(0)[0] if self._tokens else "end"
        if kind == "quoted":
            return unescape(text[1:-1])
        if kind != "bare":
            raise self._error(f"expected a name, found {text!r}", "write atoms as p(a, X)")
        if text == "_":
            raise self._error("expected a name, found _", "give each variable a name")
        return Variable(text) if VARIABLE.fullmatch(text) else text

    @property
    def _next(self) -> str:
        return self._tokens[0][1] if self._tokens else "the end of the line"

    def _take(self, sign: str, kind: str = "sign") -> bool:
        is_next = self._tokens[:1] == [(kind, sign)]
        del self._tokens[:is_next]
        return is_next

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            fix = "write clauses as p(X, Y) :- q(X, Z), r(Z, Y)."
            raise self._error(f"expected {sign!r}, found {self._next!r}", fix)

    def _error(self, message: str, fix: str) -> UserError:
        return UserError(message, where=self._where, fix=fix)


_TEMPLATE: Final = '''{raw}"""{title}

Made by kgverify {version}. It fails until {until} on the problem below.
"""

import kgverify as kv

PROBLEM = kv.parse_problem(r"""
{problem}
""")

{call}
'''


class FirstRun(NamedTuple):
    """The result of the first run of a generated test: whether it failed, as it must, and its message."""

    fails: bool
    message: str


def render_test(reproducer: Reproducer) -> str:
    """Return the text of a test file."""
    stage, _, kind, situation = reproducer.signature
    named = f"test_{stage or 'engine'}_{kind}" + (f"_{situation}" if kind == LAW else "")
    function = re.sub(r"\W+", "_", named, flags=re.ASCII).lower()
    return _render_code(reproducer, f"\ndef {function}():\n    {_render_call(reproducer)}")


def _render_code(reproducer: Reproducer, call: str) -> str:
    problem, (stage, field, kind, situation) = reproducer.problem, reproducer.signature
    # The settings of a text that says nothing of them.
    defaults = _render_settings(_read_lines("?- p(a, b).", "")[1])
    lines = [*_render_clauses(problem), *(each for each in _render_settings(problem) if each not in defaults)]
    at = f" at step {reproducer.step}" if reproducer.step >= 0 else ""
    where = f"{at} of {reproducer.candidate}" if reproducer.candidate else ""
    title = [f"{stage or 'engine'}: {kind}{f' ({field})' if field else ''}{where}"]
    values = ("expected", reproducer.expected), ("actual", reproducer.actual)
    title += [f"{label}: {'; '.join(value)}" for label, value in values if value]
    until = f"{reproducer.engine.name} and {reproducer.reference.name} agree"
    if kind == LAW:
        until = f"the law {situation} holds, and {until},"
    *described, until = map(_plain, [*title, until])
    return _TEMPLATE.format(
        raw="r" * any("\\" in line for line in (*described, until)),
        title="\n".join(described),
        version=__version__,
        until=until,
        problem="\n".join(lines).replace('"""', '"\\x22\\"'),
        call=call,
    )


def _render_call(reproducer: Reproducer) -> str:
    kind, law = reproducer.signature[2:]
    arguments = [_render_engine(reproducer.engine), "PROBLEM"]
    arguments += [f"reference={_render_engine(reproducer.reference)}"] * (reproducer.reference.name != REFERENCE)
    arguments += ["lockstep=False"] * (not reproducer.lockstep)
    arguments += [f"laws=[{_quote_in_python(law)}]"] * (kind == LAW)
    return f"kv.assert_agrees({', '.join(arguments)})"


def _render_engine(engine: EngineSpec) -> str:
    if engine.name != COMPILED:
        return _quote_in_python(engine.name)
    options = {"mode": _quote_in_python(engine.mode), "device": _quote_in_python(engine.device)}
    if engine.faults:
        options["faults"] = f"[{', '.join(map(_quote_in_python, engine.faults))}]"
    return f"kv.Evaluator({', '.join(f'{name}={value}' for name, value in options.items())})"


def _quote_in_python(text: str) -> str:
    return f'"{text}"' if text.isascii() and text.isprintable() and not {'"', "\\"} & {*text} else ascii(text)


def _plain(text: str) -> str:
    """Return the text on one line without quotes that would end a docstring."""
    return " ".join(escape(text).replace('"', "'").split())


def write_test(reproducer: Reproducer, path: Path) -> FirstRun:
    """Write the test, and run it once: it must fail before the engine is repaired. UserError if it cannot be written."""
    if not (path.name.startswith("test_") and path.suffix == ".py"):
        raise UserError("pytest does not collect this name", where=str(path), fix="give a name such as test_step.py")
    write_file(path, render_test(reproducer))
    return run_test(path)


def run_test(path: Path) -> FirstRun:
    """Run the tests of a generated file, as pytest would."""
    names = runpy.run_path(str(path))
    for name, function in names.items():
        if name.startswith("test_"):
            try:
                function()
            except AssertionError as error:
                return FirstRun(True, str(error))
    return FirstRun(False, "both sides agree")
