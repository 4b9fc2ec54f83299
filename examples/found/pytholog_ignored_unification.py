"""pytholog continues where the body of a rule does not unify with a fact: q(X, X) and r(X, c) match q(a, b) and r(a, b)."""

import sys

import pytholog

base = pytholog.KnowledgeBase()
base(["q(a, b)", "p(X) :- q(X, X)", "r(a, b)", "s(X) :- r(X, c)"])
found = [base.query(pytholog.Expr(query)) for query in ("p(X)", "s(X)")]
print("expected: [['No'], ['No']]")
print("found:", found)
sys.exit(found != [["No"], ["No"]])
