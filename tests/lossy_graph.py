"""A graph on which the fault `fact-cap` loses the one fact that proves the query, with any names."""

from collections.abc import Sequence

import kgverify as kv


def lossy_graph(
    name: str, *, predicates: Sequence[str], ends: Sequence[str], middle: Sequence[str]
) -> kv.KnowledgeGraph:
    """Return a graph with a query between two ends, of the third predicate, proved through the last of 60 names."""
    (edge, last, query), (start, end) = predicates, ends
    edges = [kv.NamedAtom(edge, start, each) for each in middle]
    train = (*edges, *(kv.NamedAtom(last, each, end) for each in middle[52:]))
    # The first rule of countries has the same form, with other predicates.
    head, first, second = kv.load_graph("countries").rules[0].atoms
    body = first._replace(predicate=edge), second._replace(predicate=last)
    rule = kv.NamedRule(head._replace(predicate=query), body)
    return kv.KnowledgeGraph(name, train=train, test=(kv.NamedAtom(query, start, end),), rules=(rule,))
