"""A declaration of the programs that an engine can be made for, which generators of problems respect."""

from dataclasses import dataclass
from typing import Final

from kgverify.graphs.vocabulary import Vocabulary
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule


@dataclass(frozen=True)
class Support:
    """The programs that an engine can be made for. The attribute `support` of its class or function declares them.

    Generated problems then have only such names and rules. An engine that declares nothing may refuse a program when it is
    made, with NotImplementedError or UserError; the problem is then skipped and counted.

    Attributes:
        vocabulary: The symbols that it knows, such as those of trained embeddings; None for any.
        max_body_atoms: The largest number of atoms in the body of a rule; None for any.
        max_new_variables: The largest number of variables of a rule that do not occur in its head; None for any.
        constants_in_rules: Whether rules may contain constants.
        repeated_variables: Whether a variable may occur twice in an atom of a rule.

    Example:
        >>> import kgverify as kv
        >>> chains = kv.Support(max_body_atoms=2, max_new_variables=1, constants_in_rules=False, repeated_variables=False)
        >>> chains.allows(kv.load_graph("countries").rules[0])
        True
    """

    vocabulary: Vocabulary | None = None
    max_body_atoms: int | None = None
    max_new_variables: int | None = None
    constants_in_rules: bool = True
    repeated_variables: bool = True

    def allows(self, rule: NamedRule) -> bool:
        """Return whether a rule has a form that the engine supports."""
        of_head, of_body = _list_variables(rule.clause_head), {v for atom in rule.body for v in _list_variables(atom)}
        is_named = any(not isinstance(term, Variable) for atom in rule.atoms for term in atom[1:])
        is_repeated = any(a == b and isinstance(a, Variable) for _, a, b in rule.atoms)
        return (
            (self.max_body_atoms is None or len(rule.body) <= self.max_body_atoms)
            and (self.max_new_variables is None or len(of_body - of_head) <= self.max_new_variables)
            and (self.constants_in_rules or not is_named)
            and (self.repeated_variables or not is_repeated)
        )


ANY_PROGRAM: Final = Support()


def _list_variables(atom: NamedAtom) -> set[Variable]:
    return {term for term in atom[1:] if isinstance(term, Variable)}
