"""The reference's least model of a program in ids."""

from collections.abc import Iterable

import kgreference
from kgreference.program import Program as ReferenceProgram
from kgreference.program import Rule as ReferenceRule
from kgreference.terms import Atom as ReferenceAtom
from kgverify.program.atoms import Atom
from kgverify.program.program import Rule


def derive_least_model(
    num_predicates: int, num_constants: int, facts: Iterable[Atom], rules: Iterable[Rule]
) -> set[tuple[int, int, int]]:
    """Return every ground atom that follows, as predicate, first and second."""
    program = ReferenceProgram(
        ("",) * num_predicates,
        ("",) * num_constants,
        [ReferenceAtom(*fact) for fact in facts],
        [ReferenceRule(rule.clause_head, rule.body) for rule in rules],
    )
    return kgreference.least_model(program)
