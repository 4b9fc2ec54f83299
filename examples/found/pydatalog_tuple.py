"""pyDatalog does not compare the two elements of a tuple (X, X)."""

import sys

from pyDatalog import pyDatalog

pyDatalog.load("+ p((1, 1))\n+ p((1, 3))")
found = sorted(pyDatalog.ask("p((X, X))").answers)
print("expected: [(1,)]")
print("found:", found)
sys.exit(found != [(1,)])
