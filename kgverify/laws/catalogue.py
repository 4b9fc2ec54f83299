"""The laws by name."""

from kgverify.errors import UserError, suggest
from kgverify.laws.law import Law
from kgverify.laws.statements.clause_laws import CLAUSE_LAWS
from kgverify.laws.statements.derivation_laws import DERIVATION_LAWS
from kgverify.laws.statements.machinery_laws import MACHINERY_LAWS
from kgverify.laws.statements.program_laws import PROGRAM_LAWS
from kgverify.laws.statements.ranking_laws import RANKING_LAWS
from kgverify.laws.statements.score_laws import SCORE_LAWS
from kgverify.laws.statements.step_laws import STEP_LAWS

LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        *DERIVATION_LAWS,
        *CLAUSE_LAWS,
        *SCORE_LAWS,
        *STEP_LAWS,
        *PROGRAM_LAWS,
        *MACHINERY_LAWS,
        *RANKING_LAWS,
    )
}


def find_law(name: str) -> Law:
    """Return the law of a name. UserError for an unknown one."""
    if name not in LAWS:
        raise UserError(
            f"unknown law {name!r}", where="law", fix=suggest(name, LAWS) or f"choose one of {', '.join(LAWS)}"
        )
    return LAWS[name]
