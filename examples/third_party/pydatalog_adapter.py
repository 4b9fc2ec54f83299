"""Ask pyDatalog for answers. The process has one knowledge base, which is cleared first."""

from pyDatalog import pyDatalog


def write_atom(atom):
    """Return an atom as pyDatalog reads it."""
    return f"{atom[0]}({', '.join(term if term[0].isupper() else repr(term) for term in atom[1:])})"


def find_answers(facts, rules, queries):
    """Return for each query the set of its instances that follow, each as the tuple of its terms."""
    pyDatalog.clear()
    text = [f"+ {write_atom(fact)}" for fact in facts]
    text += [f"{write_atom(head)} <= {' & '.join(map(write_atom, body))}" for head, body in rules]
    pyDatalog.load("\n".join(text))
    found = [pyDatalog.ask(write_atom(query)) for query in queries]
    names = [list(dict.fromkeys(term for term in query[1:] if term[0].isupper())) for query in queries]
    bindings = [
        [dict(zip(n, a, strict=True)) for a in f.answers] if f else [] for n, f in zip(names, found, strict=True)
    ]
    return [{tuple(b.get(t, t) for t in query[1:]) for b in bs} for query, bs in zip(queries, bindings, strict=True)]
