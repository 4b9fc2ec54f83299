"""miniKanren's `neq` of two tuples rejects tuples that differ in one place only, if it comes before their values."""

import sys

from kanren import eq, run, var
from kanren.constraints import neq

x, y = var(), var()
goals = [neq((x, y), (1, 2)), eq(x, 1), eq(y, 3)]
first, last = run(0, (x, y), *goals), run(0, (x, y), *goals[1:], goals[0])
print("expected: ((1, 3),) in each order")
print("found:", first, "where neq comes first, and", last, "where it comes last")
sys.exit(first != ((1, 3),) or last != ((1, 3),))
