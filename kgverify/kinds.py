"""Other kinds of problems than knowledge graphs: a schema says what is recorded, compared and reported.

The writer, the reader and the comparison are those of knowledge graphs, which have one schema of their own,
`KNOWLEDGE_GRAPH`. `minimize` removes what a divergence does not need.
"""

from pathlib import Path
from typing import Any

import msgspec

from kgverify.comparison.compare import Comparer
from kgverify.comparison.result import Comparison, Divergence
from kgverify.environments.recording import read_recording as read_recording
from kgverify.errors import count_of
from kgverify.program.limits import DeclaredLimits
from kgverify.program.program import Symbols
from kgverify.report.report import encode_report
from kgverify.report.wording import value_lines
from kgverify.runs.delta_debugging import minimize as minimize
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH as KNOWLEDGE_GRAPH
from kgverify.trace.model.columns import concatenate
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import EngineInfo, Header, PolicyInfo
from kgverify.trace.model.schema import Column as Column
from kgverify.trace.model.schema import Schema as Schema
from kgverify.trace.model.schema import column as column
from kgverify.trace.model.trace import Trace
from kgverify.trace.model.validate import check_columns
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.trace.write.writer import Storage, TraceWriter
from kgverify.verification.planted_changes import plant_changes


def record(
    schema: Schema, *batches: Any, engine: str = "unknown", path: Path | str | None = None, shard_steps: int = 1_000_000
) -> Trace | TraceFile:
    """Make a trace of some columns, batch by batch: in memory, or at a path, as one file or as a folder of shards.

    UserError for columns that the schema does not describe.
    """
    header = Header(EngineInfo(engine), DeclaredLimits(), PolicyInfo(""), "")
    if path is None:
        columns = concatenate(batches) if batches else schema.empty()
        check_columns(columns, engine, schema=schema)
        return Trace(
            header=header,
            symbols=Symbols((), ()),
            columns=columns,
            digests=compute_digests(columns, schema),
            rankings=None,
            facts=None,
            fact_lines=None,
            fields=schema.compared_names,
            is_complete=True,
            source="",
            schema=schema,
        )
    with TraceWriter(path, header, Symbols((), ()), storage=Storage(shard_steps=shard_steps), schema=schema) as writer:
        for batch in batches:
            writer.append(batch)
    return TraceFile(path, schema=schema)


def read(schema: Schema, path: Path | str) -> Trace:
    """Read a trace of a schema into memory. UserError if it is damaged, or of another kind."""
    return read_trace(path, schema)


def compare(expected: Trace | TraceFile | Path | str, actual: Trace | TraceFile | Path | str) -> Comparison:
    """Compare two traces of one schema, column by column, and plant a change in each column that was compared.

    A path is that of a trace in a knowledge graph; `record` and `read` return traces of other kinds.
    """
    comparer = Comparer(expected, actual)
    found = comparer.compare()
    return msgspec.structs.replace(found, self_test=plant_changes([comparer]))


def describe(comparison: Comparison) -> str:
    """Return a comparison as text: the verdict, what was compared, and each divergence."""
    coverage = comparison.coverage
    what = f"{count_of(coverage.candidates, 'candidate')}, {count_of(coverage.steps, 'step')}"
    lines = [f"{comparison.verdict.value:9} {what}", *map(_describe, comparison.divergences), *comparison.reasons]
    return "\n".join(lines)


def _describe(divergence: Divergence) -> str:
    where = [divergence.atom, f"step {divergence.step}" if divergence.step >= 0 else "", divergence.stage]
    expected, actual = ("; ".join(value_lines(value)) for value in (divergence.expected, divergence.actual))
    return f"{', '.join(filter(None, where))}: {divergence.field} is {actual}, expected {expected}"


def to_json(comparison: Comparison) -> bytes:
    """Return a comparison as indented JSON."""
    return encode_report(comparison)
