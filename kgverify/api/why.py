"""`kgverify.why`: the proofs of a triple, or the facts that are lacking."""

from kgverify.arguments import checked
from kgverify.engines.proofs import find_proofs
from kgverify.errors import UserError, suggest
from kgverify.graphs.triples import parse_facts
from kgverify.program.atoms import NamedAtom
from kgverify.program.limits import Limits
from kgverify.program.program import Program, render_named
from kgverify.report.proofs import Why, describe_proofs
from kgverify.runs.job import GraphLike, Source


@checked
def why(atom: str, graph: GraphLike = "countries", *, limit: int = 5, limits: Limits | None = None) -> Why:
    """Return the proofs of a triple, the smallest first; without a proof, some proofs for which facts are lacking.

    A proof in which an atom is above itself is left out. Whether a policy finds a proof is another question: `kgverify.verify`
    shows its derivation.

    Args:
        atom: The triple, such as `"locatedInCR(armenia, asia)"`.
        graph: The name of a graph, its path, or a `KnowledgeGraph`; see `kgverify.verify`.
        limit: The maximum number of proofs.
        limits: `exclude_query` and `max_depth` apply; `kgverify.Limits()` if not given. A triple that is a fact may not be
            used in its own proofs if `exclude_query` is set.

    Returns:
        The answer: `.is_proved`, the proofs as `.trees`, the missing facts as `.lacking`, and all of it as text.

    Raises:
        UserError: If the graph cannot be read, or the triple has names that are not in the graph.

    Example:
        >>> import kgverify as kv
        >>> print(kv.why("neighborOf(armenia, iran)"))
        neighborOf(armenia, iran) is a fact, train.txt:382; without it, it does not follow: no rule concludes it.
    """
    if limit < 1:
        raise UserError(f"expected 1 or more, found {limit}", where="limit", fix="give 1 or more")
    program, limits = Source(graph).load().program, limits or Limits()
    named = _parse(atom, program)
    encoded = program.symbols.encode(named)
    is_excluded = limits.exclude_query and limits.dialect.exclusion != "never"
    found = find_proofs(program, encoded, limit, excludes_atom=is_excluded)
    return describe_proofs(program, encoded, found, max_depth=limits.max_depth, is_excluded=is_excluded)


def _parse(text: str, program: Program) -> NamedAtom:
    """Parse a triple of a program. UserError for a text that is not a triple, or for an unknown name."""
    atoms = parse_facts(text, "atom").atoms
    if len(atoms) != 1:
        raise UserError(f"expected one triple, found {len(atoms)}", where="atom", fix="give predicate(first, second)")
    predicate, *terms = atoms[0]
    symbols = program.symbols
    names = [
        (predicate, symbols.predicate_ids, "predicate"),
        *((term, symbols.constant_ids, "constant") for term in terms),
    ]
    for name, known, kind in names:
        if name not in known:
            fix = suggest(str(name), known) or f"give a {kind} of the graph"
            raise UserError(f"unknown {kind} {name!r} in {render_named(atoms[0])}", where="atom", fix=fix)
    return atoms[0]
