"""miniKanren loses an answer of a fact with a variable when another fact is added."""

import sys

from kanren import Relation, run, var

x, y = var(), var()
likes = Relation()
likes.add_fact(x, "water")
before = run(0, y, likes("ann", y))
likes.add_fact("ann", "tea")
after = run(0, y, likes("ann", y))
print("expected: ['water'] and then ['tea', 'water']")
print("found:", sorted(before), "and then", sorted(after))
sys.exit(sorted(after) != ["tea", "water"])
