"""Laws that hold for every prover of the semantics: they judge an engine without a reference.

>>> from kgverify.laws import LAWS, check_laws
>>> sorted(LAWS)[:3]
['alone', 'begins-at-candidate', 'candidate-order']
"""

from kgverify.laws.catalogue import LAWS, find_law
from kgverify.laws.law import Law, Violation, check_laws
from kgverify.laws.replay import make_law_reproducer, shrink_violation
from kgverify.runs.engine_makers import compiled_maker
from kgverify.testing.problems.decode import draw_problems
from kgverify.testing.reproducers.text_format import render_reproducer

__all__ = [
    "LAWS",
    "Law",
    "Violation",
    "check_laws",
    "compiled_maker",
    "draw_problems",
    "find_law",
    "make_law_reproducer",
    "render_reproducer",
    "shrink_violation",
]
