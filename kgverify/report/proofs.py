"""The proofs of a triple, or what prevents one, as text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kgverify.engines.proofs import FoundProofs, Proof
from kgverify.errors import count_of
from kgverify.escaping import ShownAsText, make_visible
from kgverify.program.atoms import Atom
from kgverify.program.fact_index import FactIndex
from kgverify.program.outcomes import Origin
from kgverify.program.program import Program, Source, render_named
from kgverify.report.proof_tree import Tree, TreeLine

LACKING: Final = "lacking"
"""The note of an atom that is lacking."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Why(ShownAsText):
    """The proofs of a triple, the smallest first; without a proof, some incomplete ones.

    atom:        the triple
    fact:        its file and line if it is a fact, such as `train.txt:7`; else empty
    is_excluded: whether its proofs may not use it as a fact
    is_proved:   whether there is a proof
    is_complete: whether all proofs are listed; a proof in which an atom is above itself does not count
    is_decided:  whether the search ended; if not, there may be a proof although none is listed
    max_depth:   the largest number of steps of a derivation
    trees:       the proofs; an atom with the note `lacking` follows from nothing

    Example:
        >>> import kgverify as kv
        >>> found = kv.why("locatedInCR(armenia, asia)", limit=1)
        >>> found.is_proved, [line.atom for line in found.trees[0]][1:3]
        (True, ['neighborOf(armenia, iran)', 'locatedInCR(iran, asia)'])
    """

    atom: str
    fact: str
    is_excluded: bool
    is_proved: bool
    is_complete: bool
    is_decided: bool
    max_depth: int
    trees: tuple[Tree, ...]

    @property
    def lacking(self) -> tuple[tuple[str, ...], ...]:
        """The atoms that are lacking, for each tree."""
        return tuple([tuple(dict.fromkeys(line.atom for line in tree if line.note == LACKING)) for tree in self.trees])

    def __str__(self) -> str:
        """Return the proofs as text."""
        return "\n".join(map(make_visible, self._lines()))

    def _lines(self) -> Iterator[str]:
        yield self.headline
        for number, tree in enumerate(self.trees, 1):
            yield ""
            yield self._title(number, tree)
            labels = [f"  {'  ' * line.depth}{line.atom}" for line in tree]
            width = max(map(len, labels))
            yield from (
                f"{label:{width}}   {line.clause or line.note}" for label, line in zip(labels, tree, strict=True)
            )

    @property
    def headline(self) -> str:
        """The answer in a sentence."""
        num, least = len(self.trees), len(self.lacking[0]) if self.trees else 0
        start = f"{self.atom} is a fact, {self.fact}" if self.fact else self.atom
        if self.fact and self.is_excluded:
            start += "; without it, it"
        if self.is_proved:
            which = "Its" if self.is_complete else "The smallest" if num == 1 else f"The {num} smallest"
            only = " only" if self.is_complete and num == 1 else f" {num}" if self.is_complete else ""
            proofs = f"{which}{only} proof{'s' * (num > 1)}:"
            return f"{start} follows. {proofs}" if self.is_excluded or not self.fact else f"{start}. {proofs}"
        if not self.is_decided:
            return f"{start} may follow: the search reached its limit without a proof."
        if not self.trees:
            return f"{start} does not follow: {'' if self.fact else 'it is no fact, and '}no rule concludes it."
        return f"{start} does not follow. It would, for example, with {count_of(least, 'more fact')}:"

    def _title(self, number: int, tree: Tree) -> str:
        num = len(tree)
        lacking = self.lacking[number - 1]
        if lacking:
            return f"{number}: with {', '.join(lacking)}"
        beyond = f", more than max_depth {self.max_depth}" if num > self.max_depth else ""
        return f"{number}: {count_of(num, 'clause')}{beyond}"


def describe_proofs(program: Program, atom: Atom, found: FoundProofs, *, max_depth: int, is_excluded: bool) -> Why:
    """Describe the proofs that were found for an atom."""
    row = FactIndex(program.facts).get(atom)
    return Why(
        atom=render_named(program.symbols.decode(atom)),
        fact="" if row is None else _locate_fact(program, row),
        is_excluded=is_excluded,
        is_proved=found.is_proved,
        is_complete=found.is_complete,
        is_decided=found.is_decided,
        max_depth=max_depth,
        trees=tuple([_describe_proof(program, proof) for proof in found.proofs]),
    )


def _describe_proof(program: Program, proof: Proof) -> Tree:
    lines: list[TreeLine] = []
    for node in proof:
        depth = lines[node.parent].depth + 1 if node.parent >= 0 else 0
        clause = ""
        if node.kind is Origin.RULE:
            source = program.rule_sources[node.origin]
            clause = program.rule_texts[node.origin] + (f" [{source}]" if source else "")
        elif node.kind is Origin.FACT:
            clause = f"fact [{_locate_fact(program, node.origin)}]"
        atom = render_named(program.symbols.decode(node.atom, "_{}".format))
        lines.append(TreeLine(depth, atom, clause, -1, "" if clause else LACKING))
    return tuple(lines)


def _locate_fact(program: Program, row: int) -> str:
    """Return the file and the line of a fact, or its number if its file is unknown."""
    line = int(program.fact_lines[row])
    return str(Source(program.facts_file, line)) if line else f"fact {row} of the program"
