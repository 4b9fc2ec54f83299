"""Traces that declare what they do not hold are refused: ranks, the hash of the program, errors of scores."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from trace_builders import FACTS, HEADER, RANKINGS, RULES, SYMBOLS, make_columns, write_file

from kgverify import UserError
from kgverify.trace.hdf5.writing import write_arrays
from kgverify.trace.maintain.check import check_trace
from kgverify.trace.model.header import Header
from kgverify.trace.read.data_file import DataFile
from kgverify.trace.read.trace_file import read_trace

COLUMNS = make_columns(1, 6)


@pytest.mark.parametrize(
    ("name", "row", "value", "message"),
    [
        ("optimistic", 0, 0.0, "row 0 is 0 of 3 candidates, expected a rank from 1 to 3"),
        ("optimistic", 1, -1.0, "row 1 is -1 of 3"),
        ("pessimistic", 2, np.nan, "row 2 is nan of 2"),
        ("pessimistic", 2, np.inf, "row 2 is inf of 2"),
        ("pessimistic", 1, 4.0, "row 1 is 4 of 3"),
        ("optimistic", 2, 2.5, "row 2 is 2.5 of 2"),
        ("pessimistic", 1, 1.0, "row 1 is 2, above the pessimistic rank 1"),
        ("num_ranked", 0, 0, "row 0 is 1 of 0"),
        ("side", 1, 0, "ranked twice"),
    ],
)
def test_ranks_that_no_ranking_gives_are_refused(tmp_path: Path, name: str, row: int, value: Any, message: str):
    column = getattr(RANKINGS, name).copy()
    column[row] = value
    wrong = RANKINGS._replace(**{name: column})
    with pytest.raises(UserError, match=message):
        write_file(tmp_path / "written", HEADER, SYMBOLS, COLUMNS, wrong)
    write_file(tmp_path / "sound", HEADER, SYMBOLS, COLUMNS, RANKINGS)
    arrays = DataFile(tmp_path / "sound").load_arrays() | {f"rankings/{name}": column}
    write_arrays(tmp_path / "wrong", arrays, "test")
    with pytest.raises(UserError, match=message):
        read_trace(tmp_path / "wrong")
    assert check_trace(tmp_path / "wrong").state == "damaged"


def test_a_hash_of_another_program_is_refused(tmp_path: Path):
    other = FACTS.copy()
    other[3, 1] += 1
    for facts, rules in ((other, RULES), (FACTS, RULES[:2])):
        with pytest.raises(UserError, match=r"expected .* from the names, facts and rules"):
            write_file(tmp_path / "wrong", HEADER, SYMBOLS, COLUMNS, facts=facts, rules=rules)
    write_file(tmp_path / "right", HEADER, SYMBOLS, COLUMNS, facts=FACTS, rules=RULES)
    arrays = DataFile(tmp_path / "right").load_arrays() | {"program/facts": other}
    write_arrays(tmp_path / "wrong", arrays, "test")
    with pytest.raises(UserError, match="program_sha256 is"):
        read_trace(tmp_path / "wrong")
    # Without all of the program, or without a hash, nothing can be checked.
    write_file(tmp_path / "facts", HEADER, SYMBOLS, COLUMNS, facts=other)
    unknown = msgspec.structs.replace(HEADER, program_sha256="")
    write_file(tmp_path / "unknown", unknown, SYMBOLS, COLUMNS, facts=other, rules=RULES)


def test_a_program_without_rules_has_a_hash_that_is_checked(tmp_path: Path):
    with pytest.raises(UserError, match="program_sha256 is"):
        write_file(tmp_path / "wrong", HEADER, SYMBOLS, COLUMNS, facts=FACTS, rules=())


def with_number(name: str, value: float) -> Header:
    if name == "score_error":
        return msgspec.structs.replace(HEADER, engine=msgspec.structs.replace(HEADER.engine, score_error=value))
    if name == "rank_tolerance":
        return msgspec.structs.replace(HEADER, run=msgspec.structs.replace(HEADER.run, rank_tolerance=value))
    policy = msgspec.structs.replace(HEADER.policy, score_errors={"float32": value})
    return msgspec.structs.replace(HEADER, policy=policy)


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize("name", ["score_error", "rank_tolerance", "score_errors.float32"])
def test_errors_of_scores_are_finite_numbers(tmp_path: Path, name: str, value: float):
    with pytest.raises(UserError, match=f"{name} is .*expected a finite number from 0 on"):
        write_file(tmp_path / "wrong", with_number(name, value), SYMBOLS, COLUMNS)
