"""miniKanren unifies two sets or not, as the order of their elements in memory happens to be."""

import sys

from kanren import eq, run, var

found = []
for number in range(32):
    x, y = var(f"x{number}"), var(f"y{number}")
    found.append(run(0, (x, y), eq({1, x}, {2, y})))
print("expected: ((2, 1),) each time")
print("found:", found.count(((2, 1),)), "times, and other than that", {each for each in found if each != ((2, 1),)})
sys.exit(any(each != ((2, 1),) for each in found))
