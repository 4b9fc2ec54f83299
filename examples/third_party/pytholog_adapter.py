"""Ask pytholog for answers. It keeps no memory of its goals, so that recursive rules need not end."""

import pytholog


def write_atom(atom):
    """Return an atom as pytholog reads it."""
    return f"{atom[0]}({','.join(atom[1:])})"


def find_answers(facts, rules, queries):
    """Return for each query the set of its instances that follow, each as the tuple of its terms."""
    base = pytholog.KnowledgeBase()
    base([write_atom(fact) for fact in facts])
    base([f"{write_atom(head)} :- {', '.join(map(write_atom, body))}" for head, body in rules])
    found = [base.query(pytholog.Expr(write_atom(query))) for query in queries]
    bindings = [[{} if answer == "Yes" else answer for answer in answers if answer != "No"] for answers in found]
    return [{tuple(b.get(t, t) for t in query[1:]) for b in bs} for query, bs in zip(queries, bindings, strict=True)]
