"""pytholog splits a rule at a variable whose name contains OR or AND."""

import sys

import pytholog

base = pytholog.KnowledgeBase()
base(["q(a)", "p(DOOR) :- q(DOOR)"])
try:
    found = base.query(pytholog.Expr("p(a)"))
except SyntaxError as error:
    found = repr(error)[:60]
print("expected: ['Yes']")
print("found:", found)
sys.exit(found != ["Yes"])
