"""pytholog loses a value when it asks again with exchanged variables, and changes the answer given before."""

import sys

import pytholog

base = pytholog.KnowledgeBase()
base(["q(a, b)"])
first = base.query(pytholog.Expr("q(X, Y)"))
second = base.query(pytholog.Expr("q(Y, X)"))
print("expected: [{'X': 'a', 'Y': 'b'}] and [{'Y': 'a', 'X': 'b'}]")
print("found:", first, "and", second)
sys.exit(first != [{"X": "a", "Y": "b"}] or second != [{"Y": "a", "X": "b"}])
