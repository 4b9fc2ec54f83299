"""pytholog remembers the one answer of a query with cut as all answers."""

import sys

import pytholog

base = pytholog.KnowledgeBase()
base(["q(a)", "q(b)", "p(X) :- q(X)"])
base.query(pytholog.Expr("p(X)"), cut=True)
found = base.query(pytholog.Expr("p(X)"))
print("expected: [{'X': 'a'}, {'X': 'b'}]")
print("found:", found)
sys.exit(found != [{"X": "a"}, {"X": "b"}])
