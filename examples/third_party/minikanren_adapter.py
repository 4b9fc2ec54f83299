"""Ask miniKanren for answers. A predicate is a `Relation` of facts and a goal for each rule; the search need not end."""

from kanren import Relation, conde, eq, run, var


def rename(atoms):
    """Return the terms of atoms, with new variables for the names that start with a capital."""
    names = {term: var() for atom in atoms for term in atom[1:] if term[0].isupper()}
    return [(atom[0], tuple(names.get(term, term) for term in atom[1:])) for atom in atoms]


def find_answers(facts, rules, queries):
    """Return for each query the set of its instances that follow, each as the tuple of its terms."""
    relations = {
        (atom[0], len(atom) - 1): Relation() for atom in [*facts, *queries, *(a for h, b in rules for a in (h, *b))]
    }
    for predicate, *terms in facts:
        relations[predicate, len(terms)].add_fact(*terms)

    def prove(predicate, terms):
        def goal(state):
            heads = [
                rename([head, *body]) for head, body in rules if (head[0], len(head) - 1) == (predicate, len(terms))
            ]
            bodies = [[eq(head, terms), *(prove(*atom) for atom in body)] for (_, head), *body in heads]
            yield from conde([relations[predicate, len(terms)](*terms)], *bodies)(state)

        return goal

    asked = [rename([query])[0] for query in queries]
    return [set(run(0, terms, prove(predicate, terms))) for predicate, terms in asked]
