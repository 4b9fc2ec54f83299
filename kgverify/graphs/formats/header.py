"""Header rows of tables, and the columns that they name."""

import re
from collections.abc import Sequence
from typing import Final

from kgverify.graphs.formats.reading import Columns

_ROLE_PATTERNS: Final = tuple(
    re.compile(f"(?:{words})(?:entity|node|type|label|name|id|uri|iri)*")
    for words in (
        "head|h|subject|subj|s|source|src|from|start|left|lhs|(?:entity|ent|e|node|arg)1",
        "relation|rel|r|predicate|pred|p|property|prop|edge|relationship|interaction|link|verb|label|type",
        "tail|t|object|obj|o|target|tgt|destination|dest|dst|to|end|right|rhs|(?:entity|ent|e|node|arg)2",
    )
)
"""The words of header rows for head, relation and tail, in lower-case letters and digits."""
_CERTAIN_RELATIONS: Final = ("relation", "predicate", "relationship", "property")
"""Names of the second of three columns by which a row is a header, whatever the other two are."""
_PANDAS_HEADER: Final = ["0", "1", "2"]
_NOT_ALPHANUMERIC: Final = re.compile(r"[^a-z0-9]")


def find_roles(fields: Sequence[str]) -> Columns | None:
    """Return the columns that a header row calls head, relation and tail; None for another row."""
    words, found = _match_roles(fields)
    if all(len(columns) == 1 for columns in found):
        (head,), (relation,), (tail,) = found
        return head, relation, tail
    if words[-3:] == _PANDAS_HEADER and words[:-3] in ([], [""]):
        return len(words) - 3, len(words) - 2, len(words) - 1
    return (0, 1, 2) if len(words) == 3 and words[1] in _CERTAIN_RELATIONS else None


def find_ends(fields: Sequence[str]) -> tuple[int, int] | None:
    """Return the columns that a row calls head and tail, in whole words, if it calls none the relation; else None."""
    words, (heads, relations, tails) = _match_roles(fields)
    if len(heads) != 1 or len(tails) != 1 or relations or min(len(words[heads[0]]), len(words[tails[0]])) < 3:
        return None
    return heads[0], tails[0]


def _match_roles(fields: Sequence[str]) -> tuple[list[str], list[list[int]]]:
    """Return the words of a row, and the columns that they call head, relation and tail."""
    words = [_NOT_ALPHANUMERIC.sub("", field.lower()) for field in fields]
    return words, [[i for i, word in enumerate(words) if pattern.fullmatch(word)] for pattern in _ROLE_PATTERNS]
