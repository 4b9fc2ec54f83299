"""The laws by name."""

from kgverify.errors import UserError, suggest
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


LAWS_OF_ANY_PROVER: dict[str, Law] = {name: law for name, law in LAWS.items() if law.of_any_prover}
"""The laws that presume nothing of the semantics: they judge an engine that is compared with a foreign reference."""


def find_law(name: str) -> Law:
    """Return the law of a name. UserError for an unknown one."""
    if name not in LAWS:
        raise UserError(
            f"unknown law {name!r}", where="law", fix=suggest(name, LAWS) or f"choose one of {', '.join(LAWS)}"
        )
    return LAWS[name]
