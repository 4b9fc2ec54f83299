"""pyDatalog does not end on three predicates that need each other, nor on one whose rule asks it twice."""

import multiprocessing
import sys

from pyDatalog import pyDatalog

THREE = "+ p(1)\np(X) <= q(X)\nq(X) <= r(X)\nr(X) <= p(X)"
found = []
for program, query in {THREE: "p(X)", "+ t(2, 1)\nt(Z, Y) <= t(X, Z) & t(Z, Y)": "t(1, X)"}.items():
    pyDatalog.clear()
    pyDatalog.load(program)
    asking = multiprocessing.get_context("fork").Process(target=pyDatalog.ask, args=(query,))
    asking.start()
    asking.join(1)
    found.append("no answer in one second" if asking.is_alive() else "an answer")
    asking.kill()
print(f"expected: ['an answer', 'an answer']\nfound: {found}")
sys.exit(found != ["an answer"] * 2)
