"""An engine of the simplest stage `resolve`, such as a third party might write, with the unification of kgreference."""

from kgreference import substitute, unify
from kgverify import StagedEngine


class Textbook(StagedEngine):
    """Resolves with each clause, and leaves the rest to the class."""

    def resolve(self, goal, excluded):
        shift = min(0, *(term for _, *terms in goal for term in terms))
        for clause in self.clauses_for(goal, excluded):
            head, *body = [
                (p, *(t if t >= 0 else t + shift for t in terms)) for p, *terms in (clause.head, *clause.body)
            ]
            unifier = unify(goal[0], head)
            if unifier is not None:
                yield clause, substitute((*body, *goal[1:]), unifier)
