"""Recorded steps of provers that kgverify did not write, compared up to names and order."""

import pytest
from foreign_records import needs_records, trace_of

from kgverify import Equality, Verdict
from kgverify.comparison.compare import compare


@needs_records
@pytest.mark.parametrize(
    ("graph", "engine", "num_wrong", "exact"),
    [
        ("countries_s3", "compiled_later", 0, 464),
        pytest.param("family", "compiled_later", 50, 391, marks=pytest.mark.deep),
        ("countries_s3", "compiled_first", 273, 273),
        pytest.param("family", "compiled_first", 198, 317, marks=pytest.mark.deep),
    ],
)
def test_recorded_steps_differ_where_names_and_order_do_not_explain_it(
    graph: str, engine: str, num_wrong: int, exact: int
):
    expected, actual = trace_of(graph, "eager"), trace_of(graph, engine)
    assert len(compare(expected, actual, equality=Equality(modulo=())).divergences) == exact
    comparison = compare(expected, actual, equality=Equality(modulo=["names", "order"]))
    assert len(comparison.divergences) == num_wrong
    assert comparison.verdict is (Verdict.DIVERGE if num_wrong else Verdict.AGREE)
