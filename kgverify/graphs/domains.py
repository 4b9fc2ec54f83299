"""Read domains: `domain constant constant ...` per line.

Names are separated by spaces; in a line with a tab they are separated by tabs, so that names with spaces
survive. A domain may be continued by a further line that begins with its name.
"""

from collections.abc import Mapping

from kgverify.graphs.text_file import is_skipped, line_error, split_lines
from kgverify.program.program import Source


def parse_domains(text: str, file: str) -> dict[str, tuple[str, ...]]:
    """Return the constants of each domain, in file order, without repetitions. UserError at an empty domain."""
    domains: dict[str, dict[str, None]] = {}
    for number, line in split_lines(text):
        if is_skipped(line):
            continue
        first, *others = line.split("\t") if "\t" in line else line.lstrip(" ").split(" ")
        constants = [constant for constant in others if constant]
        if not first or not constants:
            raise line_error(
                Source(file, number),
                "domain constant constant ...",
                f"the domain {first!r} without constants" if first else "no domain name",
                "list the domain's constants after its name, on the same line",
            )
        domains.setdefault(first, {}).update(dict.fromkeys(constants))
    return {name: tuple(constants) for name, constants in domains.items()}


def render_domains(domains: Mapping[str, tuple[str, ...]]) -> str:
    """Domains separated by tabs, one a line; any name without tab and end of line survives."""
    return "".join("\t".join((name, *constants)) + "\n" for name, constants in domains.items())
