"""pytholog takes a variable whose name starts with Z, and is longer, for a constant."""

import sys

import pytholog

base = pytholog.KnowledgeBase()
base(["q(a)", "p(Zone) :- q(Zone)"])
found = base.query(pytholog.Expr("p(a)"))
print("expected: ['Yes']")
print("found:", found)
sys.exit(found != ["Yes"])
