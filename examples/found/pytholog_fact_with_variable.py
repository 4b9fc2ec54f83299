"""pytholog misses a fact whose first argument is a variable."""

import sys

import pytholog

base = pytholog.KnowledgeBase()
base(["q(X, c)", "q(b, d)", "r(b)", "p(X, Y) :- r(X), q(X, Y)"])
found = base.query(pytholog.Expr("p(b, Y)"))
print("expected: [{'Y': 'c'}, {'Y': 'd'}]")
print("found:", found)
sys.exit(found != [{"Y": "c"}, {"Y": "d"}])
