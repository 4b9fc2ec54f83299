"""`kgverify why`: the proofs of a triple, or the facts that are lacking."""

from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter, validators

from kgverify.api.why import why as find_why
from kgverify.cli import options
from kgverify.cli.progress import check_writable, make_result_console, print_lines, show_phase, write_json, write_result
from kgverify.errors import UserError
from kgverify.report.proofs import Why

_RENDERERS: Final = {".dot": Why.render_dot, ".svg": Why.render_svg}


def why(
    atom: str,
    /,
    *,
    source: Annotated[options.GraphOptions, options.OWN] = options.GraphOptions(),
    proofs: Annotated[options.LimitOptions, options.OWN] = options.LimitOptions(),
    limit: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 5,
    output: Annotated[Path | None, Parameter(alias="-o", metavar="FILE.svg|FILE.dot")] = None,
) -> None:
    """Show the proofs of a triple, the smallest first; or some proofs for which facts are lacking.

    Args:
        atom: The triple, such as 'locatedInCR(armenia, asia)'.
        limit: The maximum number of proofs.
        output: Draw the proofs as an SVG image, or for Graphviz.
    """
    if output is not None:
        if output.suffix not in _RENDERERS:
            raise UserError("has no format", where=str(output), fix=f"end its name with {' or '.join(_RENDERERS)}")
        check_writable(str(output))
    limits, graph = proofs.read_limits(), source.load()
    with show_phase("searching proofs", 0):
        found = find_why(atom, graph, limit=limit, limits=limits)
    print_lines(make_result_console(), *str(found).splitlines())
    if output is not None:
        write_result(_RENDERERS[output.suffix](found).encode(), str(output))
    write_json(found)
