"""One side of a comparison: a recorded run of an environment, in memory or as a trace in a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kgverify.environments.trajectory import ENVIRONMENT, GROUPS, Trajectories
from kgverify.program.limits import DeclaredLimits
from kgverify.program.program import Symbols
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import EngineInfo, Header, PolicyInfo
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import read_trace
from kgverify.trace.write.writer import write_again


@dataclass(frozen=True)
class Side:
    """A recorded run of an environment.

    names, dtypes: of the numbers of each group
    known:         the optional columns of `Steps` that it has
    """

    name: str
    columns: Trajectories
    names: Mapping[str, Sequence[str]]
    dtypes: Mapping[str, Sequence[str]]
    known: frozenset[str]
    autoreset: str = ""

    @property
    def columns_known(self) -> frozenset[str]:
        """The names of the columns that it has, as in `Trace.fields`."""
        optional = {name for group in self.names for name in (f"{group}.number", f"steps.{GROUPS[group]}")}
        optional |= {f"steps.{name}" for name in self.known}
        required = {each.name for each in ENVIRONMENT.compared if each.is_required}
        return frozenset(required | optional)

    def as_trace(self) -> Trace:
        """Return it as a trace in memory; its symbols are the names and types of the numbers."""
        fields = self.columns_known
        texts = [f"{name} {dtype}" for name in sorted(self.dtypes.keys() - self.names) for dtype in self.dtypes[name]]
        for group, names in self.names.items():
            pairs = zip(self.dtypes[group], names, strict=True)
            texts += [f"{group} {dtype} {number} {name}" for number, (dtype, name) in enumerate(pairs)]
        info = EngineInfo(self.name, mode=self.autoreset, unknown=tuple(sorted(ENVIRONMENT.compared_names - fields)))
        return Trace(
            header=Header(info, DeclaredLimits(), PolicyInfo(""), ""),
            symbols=Symbols(tuple(texts), ()),
            columns=self.columns,  # type: ignore[arg-type]
            digests=compute_digests(self.columns, ENVIRONMENT),  # type: ignore[arg-type]
            rankings=None,
            facts=None,
            fact_lines=None,
            fields=fields,
            is_complete=True,
            source="",
            schema=ENVIRONMENT,
        )

    def write(self, path: Path | str) -> None:
        """Write it as a small trace. UserError for data that cannot be stored, OSError if the write fails."""
        write_again(self.as_trace(), Path(path), is_archived=True)

    @classmethod
    def read(cls, path: Path | str) -> "Side":
        """Read what `write` wrote. UserError for any other file."""
        trace = read_trace(path, ENVIRONMENT)
        names: dict[str, list[str]] = {}
        dtypes: dict[str, list[str]] = {}
        for text in trace.symbols.predicates:
            column, dtype, *name = text.split(" ", 3)
            dtypes.setdefault(column, []).append(dtype)
            if name:
                names.setdefault(column, []).append(name[1])
        counts = {"kind", *GROUPS.values()}
        steps = {name.removeprefix("steps.") for name in trace.fields if name.startswith("steps.")}
        engine, columns = trace.header.engine, trace.columns
        return cls(engine.name, columns, names, dtypes, frozenset(steps - counts), engine.mode)  # type: ignore[arg-type]
