"""ProbLog takes a stratified program for one with a cycle through negation."""

import sys

from problog import get_evaluatable
from problog.errors import ProbLogError
from problog.program import PrologString

PROGRAM = "r(b). r(X) :- r(X), \\+q. q :- q. query(r(Y))."
try:
    found = str(get_evaluatable().create_from(PrologString(PROGRAM)).evaluate())
except ProbLogError as error:
    found = f"{type(error).__name__}: {error}"
print("expected: {r(b): 1.0}")
print("found:", found)
sys.exit(found != "{r(b): 1.0}")
