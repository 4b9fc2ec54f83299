"""Checks of the values of a trace's columns, before they are written and after they are read."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.program.outcomes import Origin, Side
from kgverify.program.program import Program, Symbols
from kgverify.trace.model.codec import decode_rules
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, Columns, Rankings, Resolvents, StageItems
from kgverify.trace.model.offsets import ADD_UP, check_counts, refuse_first
from kgverify.trace.model.schema import SEQUENCE, Arrays, Column, Schema, TraceLevel, encode_level
from kgverify.trace.model.stage_items import check_stage_items

_LINE = 256
"""The number of atoms that are compared as one row."""


def check_array(field: Column, array: NDArray[Any], where: str) -> None:
    """Raise a UserError unless the array has the type and the shape that the field prescribes."""
    place = f"{where}:{field.path}"
    allowed = [np.dtype(d) for d in field.dtypes]
    if not isinstance(array, np.ndarray) or array.dtype.newbyteorder("=") not in [d.newbyteorder("=") for d in allowed]:
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        expected = " or ".join(d.name for d in allowed)
        raise UserError(
            f"dtype is {found}, expected {expected}",
            where=place,
            fix=f"convert with .astype({allowed[-1].name!r})",
        )
    check_shape(field, array.shape, place)


def check_shape(field: Column, shape: tuple[int, ...], where: str) -> None:
    """Raise a UserError unless the shape is valid for the field."""
    if len(shape) != 1 + bool(field.width) or (field.width and shape[1] != field.width):
        raise UserError(
            f"shape is {list(shape)}, expected {field.shape_text}",
            where=where,
            fix=f"write it with shape {field.shape_text}",
        )


def check_appended(arrays: Arrays, level: TraceLevel, where: str, schema: Schema = KNOWLEDGE_GRAPH) -> None:
    """Raise a UserError unless appended columns and their digests have the right types, lengths and stages."""
    check_types(arrays, where, schema)
    num_steps = schema.num_rows({path: len(array) for path, array in arrays.items()})["steps"]
    if level is TraceLevel.DEEP and any(len(arrays[path]) != num_steps for path in schema.deep[:1]):
        raise UserError(
            "level deep keeps the outputs of the stages of each step, and these columns do not hold them",
            where=f"{where}:{schema.deep[0]}",
            fix="give the columns of `stages` as well, `told` 0 where nothing is known; or write level steps",
        )
    if SEQUENCE in arrays and len(arrays[SEQUENCE]) != num_steps:
        raise UserError(
            f"found {len(arrays[SEQUENCE])} digests for {num_steps} steps",
            where=f"{where}:{SEQUENCE}",
            fix="write one digest for each step, or none",
        )


def check_lengths(lengths: Mapping[str, int], where: str, schema: Schema = KNOWLEDGE_GRAPH) -> None:
    """Raise a UserError unless all datasets of a level, given by path with their lengths, have the same length."""
    expected = schema.num_rows(lengths)
    levels: dict[str, dict[str, int]] = {}
    for path, length in lengths.items():
        levels.setdefault(schema.column_of[path].rows, {})[path] = length
    for level, members in levels.items():
        num = expected.get(level) or next(iter(members.values()))
        odd = next((path for path, length in members.items() if length != num), None)
        if odd is not None:
            texts = (f"{path.rpartition('/')[2]} {length}" for path, length in members.items())
            raise UserError(
                f"lengths differ: {', '.join(texts)}; expected {num} rows",
                where=f"{where}:{odd}",
                fix="write one row for each in every column",
            )


def check_columns(
    columns: Columns,
    where: str,
    *,
    num_rules: int | None = None,
    num_facts: int | None = None,
    schema: Schema = KNOWLEDGE_GRAPH,
) -> None:
    """Raise a UserError unless lengths and counts add up and every code exists.

    Atoms and choices are not checked, nor whether TRUE and FALSE have atoms: holes, ids without a name, and choices
    that do not exist are findings about the prover, not errors of the file.
    """
    arrays = schema.encode(columns)
    has_stages = any(len(arrays[path]) for path in schema.deep)
    if not has_stages:
        arrays = {path: array for path, array in arrays.items() if path not in schema.deep}
    _check_arrays(arrays, where, schema)
    if schema != KNOWLEDGE_GRAPH:
        return
    _check_range(f"{where}:candidates/is_limited", columns.candidates.is_limited, 0, 1, "a flag")
    _check_range(f"{where}:paths/place", columns.paths.place, 0, 2**31 - 1, "a place")
    if has_stages:
        check_stage_items(columns.stages, where)
        _check_origins("stages/origin", columns.stages, where, num_rules, num_facts)
    _check_origins("resolvents/origin", columns.resolvents, where, num_rules, num_facts)


def check_stages(stages: StageItems, where: str) -> None:
    """Raise a UserError unless the outputs of the stages of some steps are possible."""
    _check_arrays(encode_level("stages", stages), where)
    check_stage_items(stages, where)
    _check_origins("stages/origin", stages, where, None, None)


def _check_arrays(arrays: Arrays, where: str, schema: Schema = KNOWLEDGE_GRAPH) -> None:
    """Raise a UserError unless the lengths and counts of some columns add up, and every code exists."""
    lengths = {path: len(array) for path, array in arrays.items()}
    check_lengths(lengths, where, schema)
    below = {schema.column_of[path].rows: length for path, length in lengths.items()}
    for each in schema.counts:
        if each.path in arrays and each.counts in below:
            name = f"{each.counts.partition('/')[0]} rows"
            check_counts(arrays[each.path], below[each.counts], name, f"{where}:{each.path}")
    for path, array in arrays.items():
        check_codes(path, array, where, schema)


def _check_origins(
    path: str, rows: Resolvents | StageItems, where: str, num_rules: int | None, num_facts: int | None
) -> None:
    """Raise a UserError unless every origin is the index of a clause."""
    origin = rows.origin
    for kind, most in ((Origin.RULE, num_rules), (Origin.FACT, num_facts)):
        # If the file does not hold the clauses, any index that is not negative may be right.
        most = most if most is not None else 1 << 31
        if len(origin) and (int(origin.min()) < 0 or int(origin.max()) >= most):
            refuse_first(
                (rows.origin_kind == kind) & ((origin < 0) | (origin >= most)),
                f"names {kind.name.lower()} {{}}, expected 0 to {most - 1}",
                origin,
                where=f"{where}:{path}",
                fix="write the clause's index in the program that the header names",
            )


def check_codes(path: str, values: NDArray[Any], where: str, schema: Schema = KNOWLEDGE_GRAPH) -> None:
    """Raise a UserError unless every value of a one-byte column of codes is one of its codes; ignore other columns."""
    codes = schema.column_of[path].codes
    # As unsigned bytes, negative values lie above all codes.
    if codes is not None and values.size and int(values.view(np.uint8).max()) >= len(codes):
        _check_range(f"{where}:{path}", values, 0, len(codes) - 1, f"a code of {codes.__name__}")


def check_ids(columns: Columns, symbols: Symbols, where: str) -> None:
    """Raise a UserError unless every atom consists of known names, without holes, as the laws of steps require."""
    for path, atoms in (
        ("candidates/atom", columns.candidates.atom),
        ("steps/goal_atoms", columns.steps.goal_atoms),
        ("resolvents/atoms", columns.resolvents.atoms),
    ):
        _check_atoms(f"{where}:{path}", atoms, symbols)


def check_rankings(rankings: Rankings, where: str) -> None:
    """Raise a UserError unless the columns have one row for each query and side, with ranks that are possible."""
    check_lengths({path: len(column) for path, column in encode_level("rankings", rankings).items()}, where)
    check_codes("rankings/side", rankings.side, where)
    num = rankings.num_ranked
    for name in ("optimistic", "pessimistic"):
        ranks = getattr(rankings, name)
        refuse_first(
            # NaN is in no range.
            ~((ranks >= 1) & (ranks <= num)),
            "is {0:g} of {1} candidates, expected a rank from 1 to {1}",
            ranks,
            num,
            where=f"{where}:rankings/{name}",
            fix="write the rank of the true candidate, 1 for the best, and count it in num_ranked",
        )
    best, worst = rankings.optimistic, rankings.pessimistic
    refuse_first(
        best > worst,
        "is {:g}, above the pessimistic rank {:g}",
        best,
        worst,
        where=f"{where}:rankings/optimistic",
        fix="write the better of the two ranks as optimistic",
    )
    keys = rankings.query.astype(np.int64) * len(Side) + rankings.side
    if len(np.unique(keys)) != len(keys):
        raise UserError(
            "a query and side is ranked twice, expected one row for each",
            where=f"{where}:rankings/query",
            fix="write one row for each query and side",
        )


def check_program(arrays: Arrays, symbols: Symbols, sha256: str, where: str) -> None:
    """Raise a UserError unless the header's hash matches the program, if the trace holds the whole program."""
    rules = decode_rules(arrays)
    if not sha256 or rules is None or "program/facts" not in arrays:
        return
    found = Program(symbols, arrays["program/facts"], rules, (), (), ()).sha256
    if found != sha256:
        raise UserError(
            f"program_sha256 is {sha256[:16]}, expected {found[:16]} from the names, facts and rules that the trace holds",
            where=f"{where}:header",
            fix="write the hash that docs/traces.md defines, or an empty one if it is unknown",
        )


def check_facts(
    facts: NDArray[np.int32] | None, fact_lines: NDArray[np.int32] | None, symbols: Symbols, where: str
) -> None:
    """Raise a UserError unless facts are ground atoms of known symbols and each has a line number."""
    place = f"{where}:program/facts"
    if facts is not None:
        check_array(KNOWLEDGE_GRAPH.column_of["program/facts"], facts, where)
        _check_atoms(place, facts, symbols)
        if facts.size and int(facts.min()) < 0:
            raise UserError("found a variable, expected ground atoms", where=place, fix="write facts without variables")
    if fact_lines is not None:
        check_array(KNOWLEDGE_GRAPH.column_of["program/fact_lines"], fact_lines, where)
        if facts is None or len(fact_lines) != len(facts):
            raise UserError(
                f"found {len(fact_lines)} lines for {0 if facts is None else len(facts)} facts",
                where=f"{where}:program/fact_lines",
                fix="write one line for each fact, or none at all",
            )


def check_rules(arrays: Arrays, symbols: Symbols, where: str) -> None:
    """Raise a UserError unless rules in ids, if there are any, have a head and a body of known symbols."""
    if "program/rule_lengths" not in arrays:
        return
    lengths, atoms = arrays["program/rule_lengths"], arrays["program/rule_atoms"]
    total = int(lengths.sum(dtype=np.uint64))
    if total != len(atoms) or (len(lengths) and int(lengths.min()) < 2):
        raise UserError(
            f"lengths add up to {total}, and the least is {min(lengths.tolist(), default=0)}; there are {len(atoms)}"
            " atoms, and a rule has a head and one or more atoms in its body",
            where=f"{where}:program/rule_lengths",
            fix=ADD_UP,
        )
    _check_atoms(f"{where}:program/rule_atoms", atoms, symbols)


def check_types(arrays: Arrays, where: str, schema: Schema = KNOWLEDGE_GRAPH) -> None:
    """Check each array with `check_array`."""
    for path, array in arrays.items():
        check_array(schema.column_of[path], array, where)


def _check_atoms(where: str, atoms: NDArray[np.int32], symbols: Symbols) -> None:
    num_predicates, num_constants = len(symbols.predicates), len(symbols.constants)
    if atoms.flags.c_contiguous and len(atoms) > _LINE:
        low, high = _bounds(atoms)
        if low[0] >= 0 and high[0] < num_predicates and max(high[1:]) < num_constants:
            return
    _check_range(where, atoms[:, 0], 0, len(symbols.predicates) - 1, "a predicate's id")
    for column in (atoms[:, 1], atoms[:, 2]):
        _check_range(where, column, None, len(symbols.constants) - 1, "a constant's id")


def _bounds(atoms: NDArray[np.int32]) -> tuple[list[int], list[int]]:
    """Return the minimum and the maximum of each column; reducing many rows at a time makes this several times faster."""
    split = len(atoms) // _LINE * _LINE
    lines = atoms[:split].reshape(-1, 3 * _LINE)
    least = np.concatenate([lines.min(axis=0).reshape(-1, 3), atoms[split:]]).min(axis=0)
    greatest = np.concatenate([lines.max(axis=0).reshape(-1, 3), atoms[split:]]).max(axis=0)
    return least.tolist(), greatest.tolist()


def _check_range(where: str, values: NDArray[Any], low: int | None, high: int, what: str) -> None:
    if not values.size or (int(values.max()) <= high and (low is None or int(values.min()) >= low)):
        return
    expected = f"{low} to {high}" if low is not None else f"at most {high}"
    refuse_first(
        values > high if low is None else (values < low) | (values > high),
        f"is {{}}, expected {what}, {expected}",
        values,
        where=where,
        fix=f"write {what} that the trace defines",
    )
