"""pytholog answers p(X, X) from its memory of p(X, Y)."""

import sys

import pytholog

base = pytholog.KnowledgeBase()
base(["q(a, b)", "p(X, Y) :- q(X, Y)"])
base.query(pytholog.Expr("p(X, Y)"))
found = base.query(pytholog.Expr("p(X, X)"))
print("expected: ['No']")
print("found:", found)
sys.exit(found != ["No"])
