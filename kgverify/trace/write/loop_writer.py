"""Writing a trace from a prover's own loop: from NumPy arrays, tensors, or anything that converts to an array.

The names of the columns are those of docs/traces.md.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError, suggest
from kgverify.program.atoms import Atom, NamedAtom, Variable, decode_variable, encode_variable, is_variable
from kgverify.program.limits import DeclaredLimits, declare_limits
from kgverify.program.outcomes import Side
from kgverify.program.program import NamedRule, Rule, Symbols
from kgverify.trace.model.columns import FIELD_OF, KNOWLEDGE_GRAPH, LABELS, Columns, Rankings, starts_of
from kgverify.trace.model.header import ClauseTexts, EngineInfo, Header, Part, PolicyInfo, RunInfo
from kgverify.trace.model.schema import Column, TraceLevel
from kgverify.trace.model.stage_items import StageOutputs, encode_stage_outputs
from kgverify.trace.write.writer import Clauses, Storage, TraceWriter

_DROPPED: Final = ("steps/dropped_atoms", "steps/dropped_resolvents")

Arrays = Mapping[str, Any]
"""Columns by name. A value is anything that converts to an array: NumPy, torch on any device, JAX, a list of numbers."""


class LoopWriter:
    """A context manager that writes candidates batch by batch; the trace appears at `path` when it exits without error.

    engine:      the prover's name, or its complete description
    predicates, constants: the names behind the ids
    limits:      the limits under which it proves: a `Limits`, or a dictionary of the known ones; None: unknown
    policy:      the policy's name, or its complete description; empty: unknown
    facts:       int [F, 3]  the program's facts; the origin of a resolvent is an index into them; optional
    rules:       the program's rules, each a `Rule`, or a list of its atoms as ids, the head first; optional
    part:        the part of this process, if several record together; then `query`, the number of the query, is required
    level, is_archived, shard_steps: as in `Storage`
    overwrites:  replace an existing trace at `path`

    UserError, with the name of the column, for values that cannot be written.

    Example:
        >>> import kgverify as kv
        >>> candidates = {"atom": [[0, 0, 1]], "num_steps": [1], "outcome": [1]}
        >>> steps = {"num_atoms": [1], "num_resolvents": [1], "choice": [0], "goal_atoms": [[0, 0, 1]]}
        >>> resolvents = {"kind": [1], "num_atoms": [0], "atoms": []}
        >>> with kv.LoopWriter("mine.h5", engine="mine", predicates=["capitalOf"], constants=["paris", "france"]) as trace:
        ...     trace.append(candidates, steps, resolvents)
        >>> kv.open_trace("mine.h5").num_steps
        1
    """

    def __init__(
        self,
        path: Path | str,
        *,
        engine: str | EngineInfo,
        predicates: Sequence[str],
        constants: Sequence[str],
        limits: DeclaredLimits | Mapping[str, Any] | None = None,
        policy: str | PolicyInfo = "",
        program_sha256: str = "",
        run: RunInfo | None = None,
        part: Part | None = None,
        facts: Any = None,
        rules: Sequence[Rule | Sequence[Sequence[int]]] | None = None,
        level: str = "steps",
        is_archived: bool = False,
        shard_steps: int = 1_000_000,
        overwrites: bool = True,
    ) -> None:
        self._path = Path(path)
        self._header = Header(
            engine=EngineInfo(engine) if isinstance(engine, str) else engine,
            limits=declare_limits(limits, str(path)),
            policy=PolicyInfo(policy) if isinstance(policy, str) else policy,
            program_sha256=program_sha256,
            run=run or RunInfo(),
            part=part,
        )
        self._symbols = Symbols(tuple(predicates), tuple(constants))
        self._facts = None if facts is None else self._convert(FIELD_OF["program/facts"], facts)
        self._rules = None if rules is None else [_number_variables(rule) for rule in rules]
        texts = tuple([self._render(rule) for rule in self._rules or ()])
        self._header = msgspec.structs.replace(self._header, clauses=ClauseTexts(rules=texts))
        self._level, self._is_archived, self._shard_steps = level, is_archived, shard_steps
        self._overwrites = overwrites
        self._num_candidates = 0
        self._given: frozenset[str] | None = None
        self._writer: TraceWriter | None = None

    def append(
        self,
        candidates: Arrays,
        steps: Arrays,
        resolvents: Arrays,
        stages: Arrays | Sequence[StageOutputs] | None = None,
        paths: Arrays | None = None,
    ) -> None:
        """Add candidates with all their steps, by the names of the columns.

        stages: the outputs of the stages, for level `deep`: a dictionary for each step, or all columns
        paths:  the paths of a search, if the dialect of the limits has one

        By default, `query` counts the candidates from 0, `side` is 2 (none), and `is_limited` follows from the columns of
        dropped resolvents, if they are passed. Optional columns of the format may be left out, but then in every batch:
        they are unknown, and not compared. `is_true` of candidates marks the true triple of each query and side.
        """
        if stages is not None and not isinstance(stages, Mapping):
            stages = encode_stage_outputs(stages)._asdict()
        groups = {"candidates": candidates, "steps": steps, "resolvents": resolvents}
        groups |= {"stages": stages or {}, "paths": paths or {}}
        given = {
            f"{group}/{name}": self._convert(self._field(group, name), value)
            for group, columns in groups.items()
            for name, value in columns.items()
        }
        names = frozenset(FIELD_OF[path].name for path in given)
        if self._given is not None and names != self._given:
            odd = min(names ^ self._given)
            raise UserError(
                f"{odd} is in one batch and not in another",
                where=str(self._path),
                fix="give the same columns every time",
            )
        self._given = names
        columns = self._complete(given)
        if self._writer is None:
            self._writer = self._open(KNOWLEDGE_GRAPH.optional - {FIELD_OF[path].name for path in given})
        self._writer.append(columns, is_true=given.get(LABELS))
        self._num_candidates += len(columns.candidates.query)

    def set_rankings(self, rankings: Rankings) -> None:
        """Set the rankings, before the context exits."""
        if self._writer is None:
            self._writer = self._open(frozenset())
        self._writer.set_rankings(rankings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            writer = self._writer or self._open(frozenset())
            writer.close()
        elif self._writer is not None:
            self._writer.__exit__(kind, *error)

    def _open(self, absent: frozenset[str]) -> TraceWriter:
        return TraceWriter(
            self._path,
            self._header,
            self._symbols,
            clauses=Clauses(self._facts, rules=self._rules),
            storage=Storage(self._level, absent, self._is_archived, self._shard_steps),
            overwrites=self._overwrites,
        )

    def _render(self, rule: Rule) -> str:
        predicates, constants = self._symbols.predicates, self._symbols.constants
        try:
            head, *body = (
                NamedAtom(
                    predicates[p], *(Variable(f"X{decode_variable(t)}") if t < 0 else constants[t] for t in terms)
                )
                for p, *terms in (rule.clause_head, *rule.body)
            )
        except IndexError:
            raise UserError(
                f"the rule {rule} has an id without a name",
                where=f"{self._path}:program/rule_atoms",
                fix="give the names of all predicates and constants",
            ) from None
        return str(NamedRule(head, tuple(body)))

    def _field(self, group: str, name: str) -> Column:
        field = FIELD_OF.get(f"{group}/{name}")
        if field is None:
            names = [path.split("/")[1] for path in FIELD_OF if path.startswith(f"{group}/")]
            raise UserError(
                f"unknown column {name!r} of {group}",
                where=str(self._path),
                fix=suggest(name, names) or f"choose from {', '.join(names)}",
            )
        return field

    def _convert(self, field: Column, value: Any) -> NDArray[Any]:
        return as_column(field, value, f"{self._path}:{field.path}")

    def _complete(self, given: dict[str, NDArray[Any]]) -> Columns:
        num = len(given.get("candidates/num_steps", ()))
        first = self._num_candidates
        if self._header.part is None:
            given.setdefault("candidates/query", np.arange(first, first + num, dtype=np.int32))
        given.setdefault("candidates/side", np.full(num, Side.NONE, np.int8))
        if "candidates/is_limited" not in given and given.keys() >= {"candidates/num_steps", *_DROPPED}:
            dropped = (given[_DROPPED[0]] > 0) | (given[_DROPPED[1]] > 0)
            running = starts_of(dropped.astype(np.int64))
            ends = np.minimum(starts_of(given["candidates/num_steps"]), len(dropped))
            given["candidates/is_limited"] = (np.diff(running[ends]) > 0).astype(np.uint8)
        has_stages = any(path in given for path in KNOWLEDGE_GRAPH.deep)
        for field in KNOWLEDGE_GRAPH.own:
            is_stage = field.level is TraceLevel.DEEP
            if field.path not in given and (has_stages if is_stage else field.is_required):
                which = "of the stages, or none" if is_stage else "that the format requires"
                raise UserError(f"{field.name} is missing", where=str(self._path), fix=f"give every column {which}")
        columns: Columns = KNOWLEDGE_GRAPH.decode(given)
        return columns


def _number_variables(rule: Rule | Sequence[Sequence[int]]) -> Rule:
    """Return a rule with its variables numbered by first appearance."""
    atoms = (rule.clause_head, *rule.body) if isinstance(rule, Rule) else rule
    numbers: dict[int, int] = {}

    def number(term: int) -> int:
        return encode_variable(numbers.setdefault(term, len(numbers))) if is_variable(term) else int(term)

    head, *body = (Atom(int(predicate), number(first), number(second)) for predicate, first, second in atoms)
    return Rule(head, tuple(body))


def as_column(field: Column, value: Any, where: str) -> NDArray[Any]:
    """Convert to an array of the type that the field prescribes. UserError for values that this type cannot hold unchanged."""
    array = as_array(value, where)
    allowed = [np.dtype(dtype) for dtype in field.dtypes]
    dtype = next((each for each in allowed if each == array.dtype), allowed[-1])
    if not array.size:
        return np.zeros((0, field.width) if field.width else 0, dtype)
    if dtype.kind == "f":
        if array.dtype.kind not in "fiu":
            raise UserError(f"dtype is {array.dtype}, expected numbers", where=where, fix="give floating-point values")
        return np.ascontiguousarray(array, dtype)
    if array.dtype.kind not in "iub":
        raise UserError(f"dtype is {array.dtype}, expected integers", where=where, fix="give integers")
    bounds = np.iinfo(dtype)
    low, high = int(array.min()), int(array.max())
    if low < bounds.min or high > bounds.max:
        raise UserError(
            f"values from {low} to {high}, expected {bounds.min} to {bounds.max}",
            where=where,
            fix="give values that the column can hold",
        )
    return np.ascontiguousarray(array, dtype)


def as_array(value: Any, where: str) -> NDArray[Any]:
    """Convert numbers to a NumPy array: a tensor on any device, an object with `__array__` or `.numpy()`, a list."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            if "bfloat16" in str(value.dtype):
                value = value.float()
        if not isinstance(value, np.ndarray) and hasattr(value, "numpy"):
            value = value.numpy()
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"is not an array: {error}", where=where, fix="give a NumPy array, a tensor, or a list of numbers"
        ) from error
    if array.dtype.kind not in "iubf":
        # The name of a short float type that NumPy itself does not know contains "float".
        if "float" in array.dtype.name:
            return array.astype(np.float32)
        if array.size:
            raise UserError(f"dtype is {array.dtype}, expected numbers", where=where, fix="give an array of numbers")
    return array
