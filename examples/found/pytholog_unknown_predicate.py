"""pytholog raises TypeError for a query whose predicate has no clauses."""

import sys

import pytholog

base = pytholog.KnowledgeBase()
base(["q(a)"])
try:
    found = base.query(pytholog.Expr("p(a)"))
except TypeError as error:
    found = repr(error)
print("expected: ['No']")
print("found:", found)
sys.exit(found != ["No"])
