"""pytholog does not see a fact that is added after a query."""

import sys

import pytholog

base = pytholog.KnowledgeBase()
base(["p(a)"])
base.query(pytholog.Expr("p(X)"))
base(["p(b)"])
found = base.query(pytholog.Expr("p(X)"))
print("expected: [{'X': 'a'}, {'X': 'b'}]")
print("found:", found)
sys.exit(found != [{"X": "a"}, {"X": "b"}])
