"""Published datasets, which are not part of kgverify: `$KGVERIFY_DATA` says where they are."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kgverify import load_graph
from kgverify.program.outcomes import Side

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif("KGVERIFY_DATA" not in os.environ, reason="KGVERIFY_DATA is not set"),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "num_facts", "num_test", "num_constants", "num_predicates", "num_rules"),
    [
        ("countries_s3", 983, 24, 271, 4, 2),
        ("family", 19_845, 5_626, 2_968, 12, 87),
        ("wn18rr", 86_835, 2_924, 40_559, 11, 32),
    ],
)
def test_a_published_dataset_has_its_published_sizes(
    name: str, num_facts: int, num_test: int, num_constants: int, num_predicates: int, num_rules: int
) -> None:
    graph = load_graph(name)
    symbols = graph.program.symbols
    assert len(graph.program.facts) == num_facts
    assert len(graph.queries("test")) == num_test
    assert (len(symbols.constants), len(symbols.predicates)) == (num_constants, num_predicates)
    assert len(graph.rules) == num_rules
    assert all(rule.name and rule.confidence is not None for rule in graph.rules)
    # Sentences about the splits alone: some queries are known from train.
    assert all(re.match(r"(?:valid|test)\.txt: of |.*not read: rules_amie", each) for each in graph.warnings)


def test_the_tails_of_countries_s3_are_its_regions() -> None:
    graph = load_graph("countries_s3")
    located_in = graph.program.symbols.predicate_ids["locatedInCR"]
    assert len(graph.argument_domain(located_in, Side.HEAD)) == 243
    assert len(graph.argument_domain(located_in, Side.TAIL)) == 5


@pytest.mark.deep
def test_wn18rr_loads_in_the_time_of_a_few_plain_readings() -> None:
    """Take the time of two or three plain readings on the same machine."""
    path = Path(os.environ["KGVERIFY_DATA"]) / "wn18rr" / "train.txt"

    def read_plainly() -> None:
        ids: dict[str, int] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            _ = tuple(ids.setdefault(word, len(ids)) for word in re.findall(r"\w+", line))
        assert len(ids) > 40_000

    def seconds_of(function: Callable[[], object]) -> float:
        begin = time.process_time()
        function()
        return time.process_time() - begin

    loading = min(seconds_of(lambda: load_graph("wn18rr")) for _ in range(3))
    assert loading < 8 * min(seconds_of(read_plainly) for _ in range(3))
