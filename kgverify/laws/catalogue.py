"""The laws by name."""

from kgverify.errors import check_known
from kgverify.laws.law import Law
from kgverify.laws.statements import (
    clause_laws,
    derivation_laws,
    machinery_laws,
    program_laws,
    ranking_laws,
    score_laws,
    step_laws,
)

LAWS: dict[str, Law] = {
    law.name: law
    for module in (derivation_laws, clause_laws, score_laws, step_laws, program_laws, machinery_laws, ranking_laws)
    for law in vars(module).values()
    if isinstance(law, Law)
}


def find_law(name: str) -> Law:
    """Return the law with this name. UserError for an unknown name."""
    check_known(name, LAWS, "law", "law")
    return LAWS[name]
