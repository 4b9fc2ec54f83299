"""`kgverify why`: the proofs of a triple, or the facts that are lacking."""

from typing import Annotated

from cyclopts import Parameter, validators

from kgverify.api.why import why as find_why
from kgverify.cli import options
from kgverify.cli.progress import make_result_console, print_lines, show_phase, write_json


def why(
    atom: str,
    /,
    *,
    source: Annotated[options.GraphOptions, options.OWN] = options.GraphOptions(),
    proofs: Annotated[options.LimitOptions, options.OWN] = options.LimitOptions(),
    limit: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 5,
) -> None:
    """Show the proofs of a triple, the smallest first; or some proofs for which facts are lacking.

    Args:
        atom: The triple, such as 'locatedInCR(armenia, asia)'.
        limit: The maximum number of proofs.
    """
    limits, graph = proofs.read_limits(), source.load()
    with show_phase("searching proofs", 0):
        found = find_why(atom, graph, limit=limit, limits=limits)
    print_lines(make_result_console(), *str(found).splitlines())
    write_json(found)
