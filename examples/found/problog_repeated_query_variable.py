"""ProbLog answers a query t(X, X) with t(d, a), which is not an instance of it."""

import sys

from problog import get_evaluatable
from problog.program import PrologString

PROGRAM = """
s(a).
t(d, Z) :- s(Z).
query(t(X, X)).
"""
result = get_evaluatable().create_from(PrologString(PROGRAM)).evaluate()
found = sorted(str(term) for term, probability in result.items() if probability > 0)
print("expected: []")
print("found:", found)
sys.exit(found != [])
