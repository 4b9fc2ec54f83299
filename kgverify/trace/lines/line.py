"""The lines of a trace as text: their fields, and a reader of one line at a time. `docs/traces.md` describes them."""

import codecs
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from kgverify.errors import UserError, suggest
from kgverify.files.reading import NOT_JSON, STANDARD_INPUT, open_file
from kgverify.program.limits import DeclaredLimits
from kgverify.trace.model.header import EngineInfo, Part, PolicyInfo, RunInfo

_MAX_LINE_BYTES: Final = 256 << 20
"""The longest line that is accepted, as it is held in memory. The header line lists all facts and names."""

_MAX_KEYS: Final = 20

_PAGE: Final = "docs/traces.md describes the lines"

_Id = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
_Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
_Depth = Annotated[int, Meta(ge=0, lt=1 << 16)]
Term: TypeAlias = str | _Id
NamedTerms: TypeAlias = tuple[Term, Term, Term]
GoalTerms: TypeAlias = list[NamedTerms | None]
_Number: TypeAlias = float | Literal["nan", "inf", "-inf"]
_Outcome: TypeAlias = Literal["OPEN", "PROVED", "FAILED", "DEPTH_LIMIT"]


class HeaderLine(Struct, forbid_unknown_fields=True):
    """The first line: the engine, the run and the program, as far as they are known."""

    trace: Literal[1]
    engine: str | EngineInfo = "unknown"
    limits: DeclaredLimits | None = None
    policy: str | PolicyInfo = ""
    program_sha256: str = ""
    run: RunInfo = RunInfo()
    part: Part | None = None
    predicates: list[str] | None = None
    constants: list[str] | None = None
    facts: list[NamedTerms] | None = None
    rules: list[Annotated[list[NamedTerms], Meta(min_length=2)]] | None = None
    uppercase_variables: bool = False

    @property
    def engine_info(self) -> EngineInfo:
        """The description of the engine. An engine described only by its name numbers variables its own way."""
        return EngineInfo(self.engine, variables="own") if isinstance(self.engine, str) else self.engine

    def is_variable(self, name: str) -> bool:
        """Return whether a name stands for a variable."""
        return name.startswith("?") or (self.uppercase_variables and (name[:1].isupper() or name.startswith("_")))


class CandidateLine(Struct, forbid_unknown_fields=True):
    """A candidate, to which the steps on the next lines belong."""

    candidate: NamedTerms
    query: _Id | None = None
    side: Literal["head", "tail", "none"] | None = None
    is_true: bool | None = None
    outcome: _Outcome | None = None
    is_limited: bool | None = None
    log_probability: _Number | None = None


class EndLine(Struct, forbid_unknown_fields=True):
    """The outcome of the previous candidate."""

    end: _Outcome | None
    is_limited: bool | None = None
    log_probability: _Number | None = None


class Successor(Struct, forbid_unknown_fields=True):
    """A resolvent with all that is known about it."""

    goal: GoalTerms = []
    kind: Literal["GOAL", "TRUE", "FALSE", "STOP"] = "GOAL"
    rule: _Count | None = None
    fact: _Count | None = None
    score: _Number | None = None


class StepLine(Struct, forbid_unknown_fields=True):
    """A step: a goal and its resolvents."""

    goal: GoalTerms
    successors: list[GoalTerms | bool | Literal["TRUE", "FALSE", "STOP"] | Successor]
    depth: _Depth | None = None
    choice: _Id | UnsetType | None = UNSET
    outcome: _Outcome | None = None
    dropped_atoms: _Count | None = None
    dropped_resolvents: _Count | None = None

    def listed(self) -> list[Successor]:
        """Return all resolvents, including those in a short form."""
        return [_expand(each) for each in self.successors]


Line: TypeAlias = HeaderLine | CandidateLine | StepLine | EndLine
_KINDS: Final[dict[str, Any]] = {"trace": HeaderLine, "candidate": CandidateLine, "goal": StepLine, "end": EndLine}


@contextmanager
def open_twice(source: Path) -> Iterator[IO[bytes]]:
    """Open a file so that it can be read twice; standard input is copied to a temporary file."""
    with open_file(source, purpose="a file of JSON lines", standard_input=True) as file:
        if str(source) != STANDARD_INPUT:
            yield file
            return
        with tempfile.TemporaryFile() as copied:
            try:
                shutil.copyfileobj(file, copied)
            except OSError as error:
                raise UserError(
                    f"cannot be copied to {tempfile.gettempdir()}: {error.strerror}",
                    where=str(source),
                    fix="make room there, or give the path of a file",
                ) from error
            copied.seek(0)
            yield copied


def read_lines(file: IO[bytes], where: str) -> Iterator[tuple[int, Line]]:
    """Yield each line that is not blank, with its number. UserError for a line that is not as the page describes."""
    decode = msgspec.json.Decoder(StepLine).decode
    for number, text in enumerate(iter(partial(file.readline, _MAX_LINE_BYTES), b""), 1):
        if number == 1:
            # Editors and shells on Windows add it.
            text = text.removeprefix(codecs.BOM_UTF8)
        if not text.strip():
            continue
        if len(text) == _MAX_LINE_BYTES:
            raise UserError(
                f"takes {_MAX_LINE_BYTES:,} bytes or more",
                where=f"{where}:{number}",
                fix="print one object on each line",
            )
        try:
            yield number, decode(text)
        except NOT_JSON:
            yield number, _decode_other(text, f"{where}:{number}")


def _decode_other(text: bytes, where: str) -> Line:
    """Decode a line that may not be a step."""
    try:
        raw = msgspec.json.decode(text)
    except NOT_JSON as error:
        raise UserError(f"not JSON: {error}", where=where, fix="print one JSON object on each line") from error
    found = next((name for name in _KINDS if isinstance(raw, dict) and name in raw), None)
    if found is None:
        names = ", ".join(repr(name) for name in _KINDS)
        keys = islice(raw, _MAX_KEYS) if isinstance(raw, dict) else ()
        close = next((hint for key in keys if (hint := suggest(key, _KINDS))), _PAGE)
        raise UserError(f"expected an object with one of {names}", where=where, fix=close)
    try:
        line: Line = msgspec.convert(raw, _KINDS[found])
    except msgspec.MsgspecError as error:
        raise UserError(f"not a line with {found!r}: {error}", where=where, fix=_PAGE) from error
    except UserError as error:
        raise UserError(error.message, where=where, fix=error.fix) from error
    return line


def _expand(given: GoalTerms | bool | str | Successor) -> Successor:
    if isinstance(given, Successor):
        return given
    if isinstance(given, list):
        return Successor(given)
    kind: Any = str(given).upper()
    return Successor(kind=kind)
