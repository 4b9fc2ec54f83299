"""Ask ProbLog for answers. Its programs are Prolog's, and recursion is tabled, so that every query ends."""

from problog.engine import DefaultEngine
from problog.logic import Term
from problog.program import PrologString


def write_atom(atom):
    """Return an atom as Prolog writes it."""
    return f"{atom[0]}({', '.join(atom[1:])})" if atom[1:] else atom[0]


def find_answers(facts, rules, queries):
    """Return for each query the set of its instances that follow, each as the tuple of its terms."""
    text = [f"{write_atom(fact)}." for fact in facts]
    text += [f"{write_atom(head)} :- {', '.join(map(write_atom, body))}." for head, body in rules]
    engine = DefaultEngine(unknown=DefaultEngine.UNKNOWN_FAIL)
    program = engine.prepare(PrologString("\n".join(text)))
    answers = [engine.query(program, Term.from_string(write_atom(query))) for query in queries]
    return [{tuple(map(str, answer)) for answer in found} for found in answers]
