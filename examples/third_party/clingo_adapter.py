"""Ask clingo for the least models of programs, grounded together: the first argument of an atom numbers its program."""

import clingo


def find_models(programs):
    """Return the least model of each program, as a set of atoms.

    A program is its clauses, each a head and a list; variables are negative. Those of a head must occur in the body.
    """
    text = []
    for number, clauses in enumerate(programs):
        atoms = [[write(number, atom) for atom in (head, *body)] for head, body in clauses]
        text += [f"{head} :- {', '.join(body)}." for head, *body in atoms]
    control = clingo.Control(["--warn=none"])
    control.add("base", [], "\n".join(text))
    control.ground([("base", [])])
    models = [set() for _ in programs]
    for each in control.symbolic_atoms.by_signature("a", 4):
        number, *atom = (argument.number for argument in each.symbol.arguments)
        models[number].add(tuple(atom))
    return models


def write(number, atom):
    """Return an atom as clingo reads it."""
    return f"a({number}, {', '.join(str(term) if term >= 0 else f'V{-term}' for term in atom)})"
