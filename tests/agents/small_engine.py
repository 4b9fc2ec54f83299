"""A prover in plain Python, one function for each stage. The test plants faults in single lines."""

import kgverify as kv
from kgverify.program.outcomes import GoalKind, Origin

FALSE = kv.Resolvent((), Origin.NONE, 0, GoalKind.FALSE)


class Small(kv.StagedEngine):
    """Takes one step after the other, without an index."""

    def resolve(self, goal, excluded):
        selected, rest = self.select(goal), goal[1:]
        clauses = [*self.match_rules(selected), *self.match_facts(selected, excluded)]
        resolvents = []
        for clause in clauses:
            bound = unify(selected, fresh(clause.head))
            body = [bind(fresh(atom), bound) for atom in clause.body]
            others = [bind(atom, bound) for atom in rest]
            resolvents.append((clause, body + others))
        return resolvents

    def select(self, goal):
        return goal[0]

    def match_rules(self, selected):
        rules = self.rules
        matching = [rule for rule in rules if unify(selected, fresh(rule.head)) is not None]
        return matching

    def match_facts(self, selected, excluded):
        facts = self.facts
        usable = [fact for fact in facts if fact.head != excluded]
        matching = [fact for fact in usable if unify(selected, fact.head) is not None]
        return matching

    def prune(self, resolvents, excluded):
        known = {fact.head for fact in self.facts}
        pruned = []
        for each in resolvents:
            atoms = tuple(atom for atom in each.atoms if atom not in known or atom == excluded)
            pruned.append(each._replace(atoms=atoms))
        return pruned

    def rename(self, resolvents):
        renamed = []
        for each in resolvents:
            names = {}
            for term in (term for atom in each.atoms for term in atom[1:] if term < 0):
                names.setdefault(term, -1 - len(names))
            atoms = tuple((atom[0], *(names.get(term, term) for term in atom[1:])) for atom in each.atoms)
            renamed.append(each._replace(atoms=atoms))
        return renamed

    def revisit(self, resolvents, visited):
        seen = set(visited)
        return [each for each in resolvents if each.atoms not in seen]

    def close(self, resolvents):
        marked = [each if each.atoms else each._replace(kind=GoalKind.TRUE) for each in resolvents]
        proofs = [each for each in marked if not each.atoms]
        return proofs[:1] or marked or [FALSE]

    def limit(self, resolvents):
        most_atoms, most = self.limits.max_atoms, self.limits.max_resolvents
        short = [each for each in resolvents if len(each.atoms) <= most_atoms]
        kept = short[:most]
        return kv.Taken(kept or [FALSE], len(resolvents) - len(short), len(short) - len(kept))

    def score(self, goal, resolvents):
        scores = []
        for each in resolvents:
            variables = {term for atom in each.atoms for term in atom[1:] if term < 0}
            scores.append(-(len(each.atoms) + len(variables) / 64))
        return scores


def fresh(atom):
    return atom[0], *(term if term >= 0 else term - 1000 for term in atom[1:])


def bind(atom, bound):
    terms = atom[1:]
    while any(term in bound for term in terms):
        terms = tuple(bound.get(term, term) for term in terms)
    return atom[0], *terms


def unify(left, right):
    if left[0] != right[0]:
        return None
    bound = {}
    for i in (1, 2):
        a, b = bind(left, bound)[i], bind(right, bound)[i]
        if a != b and min(a, b) >= 0:
            return None
        if a != b:
            bound[min(a, b)] = max(a, b)
    return bound
