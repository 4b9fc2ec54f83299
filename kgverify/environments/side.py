"""One side of a comparison: a recorded run of an environment, in memory or as a trace in a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kgverify.environments.trajectory import ENVIRONMENT, GROUPS, Trajectories
from kgverify.errors import UserError
from kgverify.program.limits import DeclaredLimits
from kgverify.program.program import Symbols
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import EngineInfo, Header, PolicyInfo
from kgverify.trace.model.trace import Trace
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
        """Return it as a trace in memory; its symbols are the names and types of the numbers, and of columns."""
        fields = self.columns_known
        texts = [
            f"{name} {dtype}"
            for group, names in self.names.items()
            for name, dtype in zip(names, self.dtypes[group], strict=True)
        ]
        scalars = [f"{name} {self.dtypes[name][0]}" for name in sorted(self.dtypes.keys() - self.names)]
        info = EngineInfo(self.name, mode=self.autoreset, unknown=tuple(sorted(ENVIRONMENT.compared_names - fields)))
        return Trace(
            header=Header(info, DeclaredLimits(), PolicyInfo(""), ""),
            symbols=Symbols(tuple(texts), tuple(scalars)),
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
    def of_trace(cls, trace: Trace) -> "Side":
        """Return the side of a trace that `as_trace` made. UserError for other symbols."""
        names: dict[str, list[str]] = {}
        dtypes = {name: [dtype] for name, _, dtype in (text.rpartition(" ") for text in trace.symbols.constants)}
        for text in trace.symbols.predicates:
            name, _, dtype = text.rpartition(" ")
            group = next((each for each in GROUPS if name.startswith(each.removesuffix("s"))), "")
            if not group:
                raise UserError(f"{text!r} names no number", where=trace.source, fix="record the environment again")
            names.setdefault(group, []).append(name)
            dtypes.setdefault(group, []).append(dtype)
        steps = {name.removeprefix("steps.") for name in trace.fields if name.startswith("steps.")}
        known = frozenset(steps - {"kind", *GROUPS.values()})
        return cls(trace.header.engine.name, trace.columns, names, dtypes, known, trace.header.engine.mode)  # type: ignore[arg-type]
