"""pytholog continues after neq(X, Y) of two equal terms."""

import sys

import pytholog

base = pytholog.KnowledgeBase()
base(["q(a, a)", "p(X) :- q(X, Y), neq(X, Y)"])
found = base.query(pytholog.Expr("p(X)"))
print("expected: ['No']")
print("found:", found)
sys.exit(found != ["No"])
