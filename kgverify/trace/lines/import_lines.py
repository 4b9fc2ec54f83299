"""Traces from text: JSON lines printed by a prover in any language. `docs/traces.md` describes them.

The file is read twice, line by line: first to check it and to collect names, then to write the trace. No line is kept.
"""

from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from kgverify.errors import UserError
from kgverify.program.limits import OURS
from kgverify.program.outcomes import GoalKind, Origin, Outcome, Side
from kgverify.trace.lines.line import (
    CandidateLine,
    EndLine,
    HeaderLine,
    Line,
    NamedTerms,
    StepLine,
    Term,
    open_twice,
    read_lines,
)
from kgverify.trace.lines.survey import LABEL, Survey
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, PATHS
from kgverify.trace.write.loop_writer import LoopWriter

_BATCH: Final = 1 << 14
"""The number of steps after which a batch is written, at the end of a candidate."""

_HOLE: Final = (-1, 0, 0)


class Imported(NamedTuple):
    """The result of an import. unknown: the columns that the lines do not hold, and that are therefore not compared."""

    num_candidates: int
    num_steps: int
    unknown: tuple[str, ...]


def import_lines(
    source: Path,
    target: Path,
    *,
    level: str = "steps",
    is_archived: bool = False,
    overwrites: bool = True,
) -> Imported:
    """Write the trace that JSON lines describe, and add nothing to it; `-` stands for standard input.

    overwrites: replace an existing trace at `target`

    UserError, with the file and the line number, for a line that is not as docs/traces.md describes.
    """
    with open_twice(source) as file:
        survey = Survey(str(source))
        for number, line in read_lines(file, str(source)):
            survey.add(number, line)
        survey.finish()
        file.seek(0)
        header = survey.header
        symbols = survey.symbols()
        encoder = _Encoder(header, *symbols)
        facts = None if header.facts is None else [encoder.atom(fact) for fact in header.facts]
        engine = header.engine_info
        if not survey.num_steps:
            # Lines of candidates alone tell their ends, and no derivations.
            engine = msgspec.structs.replace(
                engine, unknown=tuple(dict.fromkeys((*engine.unknown, "candidates.num_steps")))
            )
        dialect = header.limits.dialect if header.limits is not None else None
        if dialect is not None and dialect.search != OURS.search:
            raise UserError(
                f"the dialect searches by {dialect.search}, and lines cannot tell the paths of a search",
                where=str(source),
                fix="write the trace with kgverify.LoopWriter, which takes the columns of paths",
            )
        writer = LoopWriter(
            target,
            engine=engine,
            predicates=symbols[0],
            constants=symbols[1],
            limits=header.limits,
            policy=header.policy,
            program_sha256=header.program_sha256,
            run=header.run,
            part=header.part,
            facts=facts,
            rules=None if header.rules is None else [encoder.rule(rule) for rule in header.rules],
            level=level,
            is_archived=is_archived,
            overwrites=overwrites,
        )
        with writer:
            batch = _Batch(encoder, survey.columns, infers_ends=survey.infers_ends)
            for _, line in read_lines(file, str(source)):
                if batch.num_steps >= _BATCH and batch.begins_candidate(line):
                    batch.write(writer)
                batch.add(line)
            batch.write(writer)
    return Imported(
        batch.num_written, survey.num_steps, tuple(sorted(KNOWLEDGE_GRAPH.optional - PATHS - survey.columns))
    )


class _Encoder:
    """The encoding of names as ids. Variables are numbered by first appearance in each goal, or in each candidate if `own`."""

    def __init__(self, header: HeaderLine, predicates: list[str], constants: list[str]) -> None:
        self._header = header
        self._predicates = {name: i for i, name in enumerate(predicates)}
        self._constants = {name: i for i, name in enumerate(constants)}
        self._variables: dict[str, int] = {}
        self._is_own = header.engine_info.variables == "own"

    def start_candidate(self) -> None:
        """Forget the variables of the previous candidate."""
        self._variables = {}

    def goal(self, atoms: Iterable[NamedTerms | None]) -> list[tuple[int, int, int]]:
        """Encode the atoms of a goal as ids; a hole is an atom without a predicate."""
        if not self._is_own:
            self._variables = {}
        return [_HOLE if atom is None else self.atom(atom) for atom in atoms]

    def rule(self, atoms: Iterable[NamedTerms]) -> list[tuple[int, int, int]]:
        """Encode the atoms of a rule as ids, with variables numbered separately for the rule."""
        self._variables = {}
        return [self.atom(atom) for atom in atoms]

    def atom(self, atom: NamedTerms) -> tuple[int, int, int]:
        """Encode an atom as ids."""
        predicate, first, second = atom
        return (
            predicate if isinstance(predicate, int) else self._predicates[predicate],
            self._argument(first),
            self._argument(second),
        )

    def _argument(self, term: Term) -> int:
        if isinstance(term, int):
            return term
        if self._header.is_variable(term):
            return -1 - self._variables.setdefault(term, len(self._variables))
        return self._constants[term]


class _Batch:
    """The columns of some candidates, as lists.

    infers_ends: whether no step has an outcome: then a candidate's outcome is that of its last step, and the others are OPEN
    """

    def __init__(self, encoder: _Encoder, columns: frozenset[str], *, infers_ends: bool) -> None:
        self._encoder, self._known, self._infers_ends = encoder, columns, infers_ends
        self.num_written = 0
        self._has_candidate = False
        self._clear()

    def _clear(self) -> None:
        self.num_steps = 0
        self._columns: dict[str, dict[str, list[Any]]] = {"candidates": {}, "steps": {}, "resolvents": {}}
        identity = {f"candidates.{name}" for name in ("query", "side")}
        for each in KNOWLEDGE_GRAPH.compared:
            if each.name in self._known or (each.is_required and each.name not in identity):
                self._columns[each.group][each.path.partition("/")[2]] = []
        if LABEL in self._known:
            self._columns["candidates"]["is_true"] = []

    def begins_candidate(self, line: Line) -> bool:
        """Return whether the line begins a candidate. Without candidate lines, each step is a candidate of its own."""
        return isinstance(line, CandidateLine) or (isinstance(line, StepLine) and not self._has_candidate)

    def add(self, line: Line) -> None:
        """Add a line."""
        if isinstance(line, CandidateLine):
            self._has_candidate = True
            self._start(line.candidate)
            self._set(line, line.outcome)
        elif isinstance(line, StepLine):
            if not self._has_candidate:
                self._start(next((atom for atom in line.goal if atom is not None), None))
            self._add_step(line)
        elif isinstance(line, EndLine):
            self._set(line, line.end)

    def write(self, writer: LoopWriter) -> None:
        """Append the batch to the trace, and start a new one."""
        if self._columns["candidates"]["atom"]:
            if self._infers_ends:
                self._set_ends()
            writer.append(**self._columns)
            self.num_written += len(self._columns["candidates"]["atom"])
        self._clear()

    def _set_ends(self) -> None:
        """Give the last step of each candidate the candidate's outcome."""
        candidates, outcomes = self._columns["candidates"], self._columns["steps"]["outcome"]
        counts = candidates["num_steps"]
        for end, num_steps, outcome in zip(accumulate(counts), counts, candidates["outcome"], strict=True):
            if num_steps:
                outcomes[end - 1] = outcome

    def _start(self, atom: NamedTerms | None) -> None:
        self._encoder.start_candidate()
        columns = self._columns["candidates"]
        columns["atom"] += self._encoder.goal([atom])
        columns["num_steps"].append(0)
        nothing = {"side": int(Side.NONE), "outcome": int(Outcome.OPEN), "log_probability": 0.0}
        for name in columns.keys() - {"atom", "num_steps"}:
            columns[name].append(nothing.get(name, 0))

    def _set(self, line: CandidateLine | EndLine, outcome: str | None) -> None:
        """Set the values that a line has for the last candidate."""
        values = {
            "outcome": None if outcome is None else int(Outcome[outcome]),
            "is_limited": None if line.is_limited is None else int(line.is_limited),
            "log_probability": None if line.log_probability is None else float(line.log_probability),
        }
        if isinstance(line, CandidateLine):
            side = None if line.side is None else int(Side[line.side.upper()])
            values |= {"query": line.query, "side": side, "is_true": line.is_true}
        for name, value in values.items():
            if value is not None:
                self._columns["candidates"][name][-1] = value

    def _add_step(self, line: StepLine) -> None:
        self.num_steps += 1
        self._columns["candidates"]["num_steps"][-1] += 1
        goal, successors = self._encoder.goal(line.goal), line.listed()
        values = {
            "num_atoms": len(goal),
            "num_resolvents": len(successors),
            "choice": -1 if line.choice is UNSET or line.choice is None else line.choice,
            "outcome": int(Outcome[line.outcome or "OPEN"]),
        }
        for name, column in self._columns["steps"].items():
            if name == "goal_atoms":
                column += goal
            else:
                column.append(values[name] if name in values else getattr(line, name))
        columns = self._columns["resolvents"]
        for each in successors:
            atoms = self._encoder.goal(each.goal)
            columns["atoms"] += atoms
            columns["num_atoms"].append(len(atoms))
            columns["kind"].append(int(GoalKind[each.kind]))
            if "score" in columns:
                columns["score"].append(float(each.score if each.score is not None else 0.0))
            if "origin" in columns:
                kind = Origin.NONE if each.rule is each.fact else Origin.FACT if each.rule is None else Origin.RULE
                columns["origin_kind"].append(int(kind))
                columns["origin"].append(next((n for n in (each.rule, each.fact) if n is not None), 0))
