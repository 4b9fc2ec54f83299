"""Read domains: `domain constant constant ...`, one per line.

Names are separated by blanks, or by tabs if the line has one, so that names with blanks survive. A later line that begins
with the same name continues the domain. Lines that begin with `%` or `#` and contain no tab are comments.
"""

from collections.abc import Collection

from kgverify.graphs.formats.reading import is_skipped, line_error, show, split_lines
from kgverify.program.program import Source

_EXPECTED = "domain constant constant ..."
_PUNCTUATION = "'\"`,;:.|=(){}[]<>"
_OPENING = ("'", '"', "{", "[", "/*")


def parse_domains(text: str, file: str, *, constants: Collection[str] = frozenset()) -> dict[str, tuple[str, ...]]:
    """Parse the constants of each domain, in file order, without repetitions.

    constants: the constants of the triples, which tell whether punctuation belongs to a name or to another format
    UserError, with file and line, for an empty domain and for punctuation around a constant.
    """
    domains: dict[str, dict[str, None]] = {}
    for number, line in split_lines(text):
        if is_skipped(line):
            continue
        source = Source(file, number)
        has_tabs = "\t" in line
        first, *others = line.split("\t") if has_tabs else line.lstrip(" ").split(" ")
        members = [member for member in others if member]
        if not first or not members:
            raise line_error(
                source,
                _EXPECTED,
                f"the domain {show(first)} without constants" if first else "no domain name",
                "list the domain's constants after its name, on the same line",
            )
        if not has_tabs:
            _check_blanks(first, members, source, constants)
        domains.setdefault(first, {}).update(dict.fromkeys(members))
    return {name: tuple(members) for name, members in domains.items()}


def _check_blanks(first: str, members: list[str], source: Source, constants: Collection[str]) -> None:
    """Raise UserError for the signs of another format: `d: a b`, `d a, b`, `d(a). d(b).`, `d 'a b'`, `d a % note`."""
    fix = "separate the names by blanks alone, or by tabs; write comments on lines of their own"
    if first.endswith((":", ",", "=", ";", "(", ").")) or first.startswith(_OPENING):
        raise line_error(source, _EXPECTED, show(first), fix)
    for member in members:
        bare = member.strip(_PUNCTUATION)
        is_foreign = not bare or member.startswith((*_OPENING, "%", "#")) or (bare != member and bare in constants)
        if is_foreign and member not in constants:
            raise line_error(source, _EXPECTED, show(member), fix)
