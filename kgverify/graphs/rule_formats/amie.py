"""AMIE rules: `?a  rel  ?b   ?b  rel2  ?c   => ?a  head  ?c`, then the metrics, separated by tabs.

A name that begins with `?` is a variable, any other a constant. Atoms are separated by two or more spaces, so
that names may hold single ones; where a rule has none, single spaces separate. The confidence is the column
`Std Confidence` of the header; without a header the second metric, or the only one. Lines with neither
`=>` nor `?`, which AMIE writes before and after the rules, are skipped.
"""

import re
from collections.abc import Sequence

from kgverify.graphs.rule_formats.build import Vocabulary, build_rule, empty_body, read_confidence
from kgverify.graphs.scanner import RawAtom, RawTerm
from kgverify.graphs.text_file import Line, line_error, show
from kgverify.program.program import NamedRule, Source

ARROW = re.compile(r"(?:^|\s)=>(?:\s|$)")

_SPACES = re.compile(r" {2,}")
_FORMAT = "?a  rel  ?b   ?b  rel2  ?c   => ?a  head  ?c"


def parse_amie(lines: Sequence[Line], file: str, vocabulary: Vocabulary) -> list[NamedRule]:
    """Return the rules of the lines. UserError at the first line with `?` or `=>` that is no AMIE rule."""
    rules = []
    header: list[str] = []
    for number, text in lines:
        if "?" in text or ARROW.search(text):
            rules.append(_parse_line(text, Source(file, number), vocabulary, header))
        elif "\t" in text and not header:
            header = [column.strip().lower() for column in text.split("\t")]
    return rules


def _parse_line(text: str, source: Source, vocabulary: Vocabulary, header: Sequence[str]) -> NamedRule:
    clause, *metrics = text.split("\t")
    sides = ARROW.split(clause)
    if len(sides) != 2:
        raise line_error(source, _FORMAT, show(clause), f"write {_FORMAT}")
    if not sides[0].strip():
        raise empty_body(source)
    body = _parse_atoms(sides[0], source)
    clause_heads = _parse_atoms(sides[1], source)
    if len(clause_heads) != 1:
        raise line_error(
            source,
            "one atom after '=>'",
            f"{len(clause_heads)} in {show(sides[1].strip())}",
            f"write {_FORMAT}",
        )
    return build_rule(
        clause_heads[0],
        body,
        is_variable=lambda _: True,
        vocabulary=vocabulary,
        source=source,
        confidence=_pick_confidence(metrics, header, source),
    )


def _parse_atoms(text: str, source: Source) -> list[RawAtom]:
    text = text.strip()
    names = _SPACES.split(text)
    if len(names) % 3 or any(name.startswith("?") and " " in name for name in names):
        names = text.split()
    if not names or len(names) % 3 or any(name.startswith("?") for name in names[1::3]):
        raise line_error(
            source,
            "atoms of three names, such as ?a  rel  ?b",
            f"{len(names)} names in {show(text)}",
            f"write {_FORMAT}",
        )
    return [
        RawAtom(relation, _term(first), _term(second))
        for first, relation, second in zip(names[::3], names[1::3], names[2::3], strict=True)
    ]


def _term(name: str) -> RawTerm:
    return RawTerm(name, not name.startswith("?"))


def _pick_confidence(metrics: Sequence[str], header: Sequence[str], source: Source) -> float | None:
    if "std confidence" in header:
        column = header.index("std confidence") - 1
    else:
        column = min(1, len(metrics) - 1)
    if not 0 <= column < len(metrics):
        return None
    return read_confidence(metrics[column].replace(",", "."), source)
