"""The same prover as a plain function on names, which is obviously right, and slow."""

import kgverify as kv


def unify(goal, head):
    """Return what the head's variables, and then the goal's, stand for; None if a variable has two targets."""
    of_head, of_goal = {}, {}
    for left, right in zip(goal[1:], head[1:], strict=True):
        if right.startswith("?"):
            fits = of_head.setdefault(right, left) == left
        elif left.startswith("?"):
            fits = of_goal.setdefault(left, right) == right
        else:
            fits = left == right
        if not fits:
            return None
    return of_head, of_goal


def substitute(atom, *bindings):
    """Return the atom with the terms that its variables stand for, one binding after the other."""
    predicate, *terms = atom
    for binding in bindings:
        terms = [binding.get(term, term) for term in terms]
    return predicate, *terms


@kv.engine_of(terms=True, memory="sets")
def Slow(goal, program):
    """Resolve the first atom of a goal with each rule, then with each fact."""
    selected, *rest = goal
    successors = []
    for head, body in [*program.rules, *((fact, ()) for fact in program.facts.of(selected[0]))]:
        if head[0] == selected[0] and (unified := unify(selected, head)):
            of_head, of_goal = unified
            new = {
                term: of_head.get(term, f"{term}.{len(program.visited)}")
                for a in body
                for term in a[1:]
                if term[0] == "?"
            }
            atoms = [substitute(a, new, of_goal) for a in body] + [substitute(a, of_goal) for a in rest]
            successors.append([atom for atom in atoms if atom not in program.facts])
    if [] in successors:
        return [True]
    return successors[: program.limits.max_resolvents] or [False]
