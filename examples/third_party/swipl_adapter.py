"""Let SWI-Prolog take steps, by a meta-interpreter: clauses in their order, limits of depth, atoms and resolvents, no memory."""

import json
import subprocess

INTERPRETER = """step(P, M, S, [A|B], Rs) :- findall(R, limit(S, (c(P, A, C), append(C, B, R), length(R, N), N =< M)), Rs).
walk(P, D, M, S, G, [[G|Rs]|T]) :- step(P, M, S, G, Rs), E is D - 1,
    ( Rs = [N|_], N \\== [], E > 0 -> walk(P, E, M, S, N, T) ; T = [] ).
bind([], _).
bind([N|Vs], N) :- M is N - 1, bind(Vs, M).
show(Goal, Shown) :- copy_term(Goal, Shown), term_variables(Shown, Vs), bind(Vs, -1).
main :- forall(q(P, D, M, S, Q), (walk(P, D, M, S, [Q], T), maplist(maplist(show), T, U), print(U), nl)).
"""


def find_steps(problems):
    """Return the steps of each query, which choose the first resolvent: lists of the goal and its resolvents, canonical.

    A problem is (clauses, queries, depth, atoms, resolvents); a clause is its head and a list. A variable v is -1 - v.
    """
    text = [INTERPRETER, ":- style_check(-singleton).\n:- discontiguous c/3, q/5.\n"]
    for number, (clauses, queries, *limits) in enumerate(problems):
        text += [f"c({number}, {write(head)}, {list(map(write, body))}).\n".replace("'", "") for head, body in clauses]
        text += [f"q({number}, {', '.join(map(str, limits))}, {write(query)}).\n" for query in queries]
    command = ["swipl", "-q", "-g", "load_files(steps, [stream(user_input)])", "-g", "main", "-t", "halt"]
    found = subprocess.run(command, input="".join(text), capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in found.splitlines()]


def write(atom):
    """Return an atom as a list of Prolog."""
    return f"[{', '.join(str(term) if term >= 0 else f'V{-term}' for term in atom)}]"
