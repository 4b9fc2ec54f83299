"""Files of metrics: MRR, mean ranks and hits as evaluators and papers print them, in JSON, TOML or a table."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.graphs.formats.fields import Unquoted, read_rows
from kgverify.graphs.formats.reading import read_text, show
from kgverify.program.outcomes import Side
from kgverify.trace.model.columns import Rankings

MRR: Final = "mean_reciprocal_rank"
MEAN_RANK: Final = "arithmetic_mean_rank"
_NAMES: Final = {
    "mrr": MRR,
    MRR: MRR,
    "inverse_harmonic_mean_rank": MRR,
    "mr": MEAN_RANK,
    "mean_rank": MEAN_RANK,
    MEAN_RANK: MEAN_RANK,
}
_HITS: Final = re.compile(r"(?:hits?|h)[@_ ]?(?:at[_ ])?(\d{1,6})")
_SIDES: Final = ("head", "tail", "both")
_KINDS: Final = ("optimistic", "realistic", "pessimistic")
_SMALLEST: Final = Decimal("5e-7")
"""Half the unit of the last digit that is compared: a mean in float32 is right in six digits."""
_ROUNDING: Final = 1e-12
_FIX: Final = (
    "name metrics mrr, mean_rank or hits@K, below head, tail or both, and optimistic, realistic or pessimistic:"
    ' {"mrr": 0.47, "tail": {"hits@10": 0.61}}; or in a table with the columns metric and value, perhaps side, ranks'
    " and relation"
)


class Metric(NamedTuple):
    """A metric that a file states. Its value lies from `low` up to, but not at, `high`: as its printed digits tell.

    name:     `mean_reciprocal_rank`, `arithmetic_mean_rank` or `hits_at_10`
    side:     `head`, `tail` or `both`
    kind:     `optimistic`, `realistic` or `pessimistic`; empty if the file does not say
    relation: the only relation whose queries count; empty for all
    text:     the value as the file has it
    """

    name: str
    side: str
    kind: str
    relation: str
    value: float
    low: float
    high: float
    text: str

    def __str__(self) -> str:
        of_relation = f", relation {show(self.relation)}" if self.relation else ""
        return f"{self.name}, {self.side} side{'s' * (self.side == 'both')}{of_relation}{f', {self.kind}' if self.kind else ''}"

    def holds(self, value: float | None) -> bool:
        """Return whether a value is printed like this one; it may miss the lower bound by a rounding of float64."""
        return value is not None and self.low - _ROUNDING <= value < self.high

    def compute(self, rankings: Rankings, relation: NDArray[Any]) -> float | None:
        """Return the metric of some ranks; None without ranks of its side and relation. relation: the name of each, [n]."""
        rows = (
            np.ones(len(rankings.query), np.bool_) if self.side == "both" else rankings.side == Side[self.side.upper()]
        )
        rows &= (relation == self.relation) if self.relation else True
        low, high = rankings.optimistic[rows], rankings.pessimistic[rows]
        ranks = {"optimistic": low, "pessimistic": high}.get(self.kind, (low + high) / 2)
        if not len(ranks):
            return None
        with np.errstate(divide="ignore"):
            # Ranks that are counted from 0 by mistake have no reciprocal.
            values = {MRR: 1 / ranks, MEAN_RANK: ranks}.get(self.name)
        return float((ranks <= int(self.name.rpartition("_")[2]) if values is None else values).mean())


class MetricFile(NamedTuple):
    """The metrics of a file, and the names of its other numbers, which are not compared."""

    metrics: tuple[Metric, ...]
    others: tuple[str, ...]


def read_metric_file(path: str | Path) -> MetricFile | None:
    """Read a file of metrics; return None for a text of another form, such as a file of ranks.

    UserError for a value outside of its range, a metric that is stated twice, and a file without any known metric.
    """
    text = read_text(Path(path), purpose="a file of metrics or ranks")
    cells = _read_cells(text.text, Path(path).suffix.lower())
    if cells is None:
        return None
    metrics: dict[tuple[str, ...], Metric] = {}
    others = []
    for names, value in cells:
        key = _parse_names(names)
        if key is None:
            others.append(".".join(names))
        elif key in metrics:
            raise UserError(f"{metrics[key]} is stated twice", where=text.name, fix="keep one of the two")
        else:
            metrics[key] = Metric(*key, *_parse_value(key[0], value, text.name), str(value))
    if not metrics:
        listed = ", ".join(map(show, others[:5])) or "nothing"
        raise UserError(f"expected metrics, found {listed}", where=text.name, fix=_FIX)
    return MetricFile(tuple(metrics.values()), tuple(others))


_Cell = tuple[tuple[str, ...], Any]


def _read_cells(text: str, suffix: str) -> list[_Cell] | None:
    """Return the names and the value of each number; None unless the text is a JSON object, TOML, or a table of metrics."""
    if suffix == ".toml":
        try:
            return list(_walk(tomllib.loads(text, parse_float=Decimal)))
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"expected TOML, found {error}", where="a file of metrics", fix=_FIX) from error
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text, parse_float=Decimal, parse_constant=Decimal)
        except (ValueError, RecursionError):
            # Several objects are JSON lines.
            return None
        # One row of ranks, or the first line of a trace.
        is_row = any(not isinstance(found.get(name, {}), Mapping) for name in ("rank", *_KINDS, "trace"))
        return None if is_row else list(_walk(found))
    return _read_table([line for line in text.splitlines() if line.strip()])


def _walk(found: Mapping[str, Any], names: tuple[str, ...] = ()) -> Iterator[_Cell]:
    for name, value in found.items():
        # PyKEEN's keys join their parts by dots; below "relation", a name is whole.
        own = (name,) if names[-1:] in (("relation",), ("relations",)) else tuple(name.split("."))
        if isinstance(value, Mapping):
            yield from _walk(value, (*names, *own))
        elif isinstance(value, int | float | Decimal | str) and not isinstance(value, bool):
            yield (*names, *own), value


def _read_table(lines: Sequence[str]) -> list[_Cell] | None:
    try:
        rows = read_rows(lines) if lines else []
    except Unquoted:
        return None
    header = [name.strip().lower() for name in rows[0]] if rows else []
    if "rank" in header or any(len(row) != len(header) for row in rows):
        return None
    cells: list[_Cell] = []
    for row in rows[1:]:
        fields = dict(zip(header, map(str.strip, row), strict=True))
        where = tuple(filter(None, (fields.pop("side", ""), fields.pop("ranks", ""))))
        if relation := fields.pop("relation", ""):
            where = (*where, "relation", relation)
        if {"metric", "value"} <= fields.keys():
            cells.append(((*where, *fields["metric"].split(".")), fields["value"]))
        elif all(_parse_name(name) for name in fields):
            cells += [((*where, name), value) for name, value in fields.items() if value]
        else:
            return None
    return cells or None


def _parse_name(name: str) -> str:
    name = name.strip().lower()
    hits = _HITS.fullmatch(name)
    return f"hits_at_{int(hits[1])}" if hits and int(hits[1]) else _NAMES.get(name, "")


def _parse_names(names: Sequence[str]) -> tuple[str, str, str, str] | None:
    """Return the metric, side, kind and relation that some names mean; None if one of them means something else."""
    found = {"name": "", "side": "", "kind": "", "relation": ""}
    rest = list(names)
    while rest:
        part = rest.pop(0)
        if part.lower() in ("relation", "relations") and rest:
            role, meaning = "relation", rest.pop(0)
        elif part.lower() in _SIDES or part.lower() in _KINDS:
            role, meaning = "side" if part.lower() in _SIDES else "kind", part.lower()
        else:
            role, meaning = "name", _parse_name(part)
        if found[role] or not meaning:
            return None
        found[role] = meaning
    return (found["name"], found["side"] or "both", found["kind"], found["relation"]) if found["name"] else None


def _parse_value(name: str, value: Any, where: str) -> tuple[float, float, float]:
    """Return a value and its bounds: half a unit of its last digit to each side."""
    text = str(value).strip()
    is_share = text.endswith("%")
    try:
        number = Decimal(text.removesuffix("%").strip())
        half = max(Decimal((0, (5,), int(number.as_tuple().exponent) - 1)), _SMALLEST * max(Decimal(1), abs(number)))
    except (InvalidOperation, TypeError, ValueError) as error:
        raise UserError(f"expected a number for {name}, found {show(text)}", where=where, fix=_FIX) from error
    if is_share:
        number, half = number / 100, half / 100
    if not (number >= 1 if name == MEAN_RANK else 0 <= number <= 1):
        expected = "1 or more" if name == MEAN_RANK else "from 0 to 1"
        fix = "write a share as 0.47, or as 47%"
        raise UserError(f"expected {name} {expected}, found {show(text)}", where=where, fix=fix)
    return float(number), float(number - half), float(number + half)
