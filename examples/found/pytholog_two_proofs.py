"""pytholog answers No to a query that has two proofs."""

import sys

import pytholog

base = pytholog.KnowledgeBase()
base(["r(a)", "s(a)", "p(X) :- r(X)", "p(X) :- s(X)"])
found = base.query(pytholog.Expr("p(a)"))
print("expected: ['Yes']")
print("found:", found)
sys.exit(found != ["Yes"])
