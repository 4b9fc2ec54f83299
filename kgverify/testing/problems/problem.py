"""A problem: a small program with its queries, limits, policy and sizes, as data in names."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any, Final, NamedTuple

import msgspec

from kgverify.engines.protocol import Sizes
from kgverify.errors import UserError
from kgverify.escaping import make_visible
from kgverify.graphs.vocabulary import NO_VOCABULARY, Vocabulary
from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.limits import OURS, Limits
from kgverify.program.program import NamedRule, render_named
from kgverify.ranking.draw import ALL


class PolicySpec(NamedTuple):
    """The policy that chooses: `shortest`, or a random `two_tower` of the given sizes, determined by the seed.

    A symbol's embedding depends only on the seed and on the symbol's number in its own problem. So a derivation has the
    same scores, whatever other problems share its run.
    """

    name: str = "shortest"
    seed: int = 0
    embedding: int = 8
    hidden: int = 8
    blocks: int = 1


VARIABLE_NAMES: Final = "XYZUVW"
"""The names given to unnamed variables, in order."""
SHORTEST: Final = PolicySpec()
DEFAULT_SIZES: Final = Sizes()


class GroupKey(NamedTuple):
    """The settings that all problems of a run share."""

    limits: Limits
    policy: PolicySpec
    num_corruptions: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A program, its queries, and the settings under which they are proved. UserError for invalid values.

    facts, rules:    in order, including repetitions
    queries:         ground; each is ranked among its corruptions, on both sides
    unranked:        queries outside of a ranking, ground or with variables
    constants:       additional constants that may be drawn as corruptions; the constants of the fields above may be
                     drawn anyway
    vocabulary:      the ids of symbols, whether the program has these symbols or not. Without it, and after it, symbols
                     are numbered by first appearance
    num_corruptions: the number for each query and side; `ALL` (-1) for all
    seed:            the seed for drawing corruptions

    Example:
        >>> import kgverify as kv
        >>> result = kv.fuzz(kv.Evaluator(faults="last-fact-lost"), examples=40, corpus="corpus")
        >>> problem = kv.replay(result.divergences[0].file).reproducer.problem
        >>> type(problem) is kv.Problem, len(problem.facts)
        (True, 1)
    """

    facts: tuple[NamedAtom, ...] = ()
    rules: tuple[NamedRule, ...] = ()
    queries: tuple[NamedAtom, ...] = ()
    unranked: tuple[NamedAtom, ...] = ()
    constants: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    policy: PolicySpec = SHORTEST
    num_corruptions: int = 1
    seed: int = 0
    sizes: Sizes = DEFAULT_SIZES
    vocabulary: Vocabulary = NO_VOCABULARY

    def __post_init__(self) -> None:
        for name, atoms in (("facts", self.facts), ("queries", self.queries)):
            if any(issubclass(kind, Variable) for kind in {*map(type, chain.from_iterable(atoms))}):
                raise _invalid(
                    name, "expected ground atoms, found a variable", "give atoms with variables as `unranked`"
                )
        if not self.queries and not self.unranked:
            raise _invalid("queries", "expected a query, found none", "give a query, ranked or not")
        for rule in self.rules:
            if not rule.body:
                raise _invalid("rules", f"{render_named(rule.clause_head)} has no body", "give it as a fact")
        if self.num_corruptions < ALL:
            raise _invalid(
                "num_corruptions", f"expected 0 or more, or {ALL} for all, found {self.num_corruptions}", "give 0"
            )
        if self.policy.name not in ("shortest", "two_tower"):
            raise _invalid("policy", f"unknown policy {self.policy.name!r}", "choose shortest or two_tower")
        for name, value, least in zip(Sizes._fields, self.sizes, (1, 0, 0, 1, 1, 1), strict=True):
            if value < least:
                raise _invalid(f"sizes.{name}", f"expected {least} or more, found {value}", f"give {least} or more")
        if self.vocabulary.is_closed:
            known = self.vocabulary.symbols
            unknown = [p for p in list_predicates(self.atoms()) if p not in known.predicate_ids]
            unknown += [name for name in self.domain if name not in known.constant_ids]
            if unknown:
                raise _invalid("vocabulary", f"{unknown[0]!r} is not in it", "use its names, or give is_closed=False")

    @property
    def size(self) -> int:
        """The number of facts, rules and body atoms, which shrinking minimizes. Unused symbols do not count."""
        return len(self.facts) + len(self.rules) + sum(len(rule.body) for rule in self.rules)

    def with_item(self, field: str, i: int, *new: NamedAtom | NamedRule) -> "Problem":
        """Replace the i-th item of a field by other items; without any, the item is removed."""
        items = getattr(self, field)
        changed: dict[str, Any] = {field: (*items[:i], *new, *items[i + 1 :])}
        return replace(self, **changed)

    def with_number(self, field: str, name: str, value: int) -> "Problem":
        """Return the problem with a number of its limits or sizes changed."""
        numbers = getattr(self, field)
        change = msgspec.structs.replace if field == "limits" else numbers.__class__._replace
        changed: dict[str, Any] = {field: change(numbers, **{name: value})}
        return replace(self, **changed)

    @property
    def key(self) -> GroupKey:
        """The settings that other problems must share to be merged with this one."""
        return GroupKey(self.limits, self.policy, self.num_corruptions, self.seed)

    @property
    def domain(self) -> tuple[str, ...]:
        """The constants that may be drawn as corruptions, in order of first appearance."""
        of_facts: Any = [term for _, first, second in self.facts for term in (first, second)]
        others = list_constants(self.atoms(with_facts=False))
        return tuple(dict.fromkeys((*of_facts, *others, *self.constants)))

    def atoms(self, *, with_facts: bool = True) -> Iterable[NamedAtom]:
        """Yield every atom of facts, rules and queries, in the order that numbers the symbols."""
        if with_facts:
            yield from self.facts
        for rule in self.rules:
            yield from rule.atoms
        yield from self.queries
        yield from self.unranked

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the program for IPython, and for Hypothesis when an example fails."""
        with printer.group(4, "Problem:"):
            for line in str(self).splitlines():
                printer.break_()
                printer.text(line)

    def __str__(self) -> str:
        """Return the program and the queries as text."""
        ranked = "all" if self.num_corruptions == ALL else str(self.num_corruptions)
        lines = [f"{render_named(fact)}." for fact in self.facts]
        lines += [f"{rule}." for rule in self.rules]
        lines += [f"? {render_named(query)}   ({ranked} corruptions a side)" for query in self.queries]
        lines += [f"? {render_named(query)}" for query in self.unranked]
        limits = self.limits
        lines.append(
            f"% max_depth {limits.max_depth}, max_atoms {limits.max_atoms}, max_resolvents {limits.max_resolvents},"
            f" exclude_query {limits.exclude_query}, policy {self.policy.name}, {self.sizes.slots} slots"
        )
        if limits.dialect != OURS:
            lines.append(f"% dialect {limits.dialect}")
        if self.vocabulary:
            lines.append(f"% ids: {self.vocabulary}")
        return "\n".join(map(make_visible, lines))


def list_constants(atoms: Iterable[NamedAtom]) -> dict[str, None]:
    """Return the constants of atoms, in order of first appearance."""
    return {term: None for _, a, b in atoms for term in (a, b) if not isinstance(term, Variable)}


def list_predicates(atoms: Iterable[NamedAtom]) -> list[str]:
    """Return the predicates of atoms, in order of first appearance."""
    return list(dict.fromkeys(atom.predicate for atom in atoms))


def replace_symbols(problem: Problem, constants: Mapping[str, str], predicates: Mapping[str, str]) -> Problem:
    """Return the problem with symbols replaced. Facts that become equal are kept once."""
    terms: dict[Term, Term] = {name: constants[name] for name in constants}

    def change(atoms: Iterable[NamedAtom]) -> tuple[NamedAtom, ...]:
        return tuple([atom.rename(terms, predicates) for atom in atoms])

    facts = change(problem.facts)
    of_terms, of_predicates = list_constants(problem.atoms()), list_predicates(problem.atoms())
    images = {constants.get(n, n) for n in of_terms}, {predicates.get(n, n) for n in of_predicates}
    is_injective = (len(images[0]), len(images[1])) == (len(of_terms), len(of_predicates))
    return replace(
        problem,
        facts=facts if is_injective else tuple(dict.fromkeys(facts)),
        rules=tuple([rule.rename(terms, predicates) for rule in problem.rules]),
        queries=change(problem.queries),
        unranked=change(problem.unranked),
        constants=tuple(dict.fromkeys(constants.get(each, each) for each in problem.constants)),
        vocabulary=problem.vocabulary.rename(predicates, constants),
    )


def push_apart(problem: Problem, constants: int, predicates: int, after: int) -> Problem:
    """Return the problem with unused symbols, numbered after those of the first facts."""
    first, unused = problem.facts[:after], [(num,) if num else () for num in (predicates, constants)]
    ids = Vocabulary((*list_predicates(first), *unused[0]), (*list_constants(first), *unused[1]))
    return replace(problem, vocabulary=ids)


def list_variables(atoms: Iterable[NamedAtom]) -> list[Variable]:
    """Return the variables of atoms, in order of first appearance."""
    return list(dict.fromkeys(term for atom in atoms for term in atom[1:] if isinstance(term, Variable)))


def rename_variables(atoms: Sequence[NamedAtom]) -> list[NamedAtom]:
    """Return the atoms with variables X, Y, Z ... in order of first appearance."""
    names = map(Variable, list_names(VARIABLE_NAMES, "V"))
    renamed: dict[Term, Term] = dict(zip(list_variables(atoms), names, strict=False))
    return [atom.rename(renamed) for atom in atoms]


def list_names(letters: str, prefix: str) -> Iterator[str]:
    """Yield letters as names, followed by the prefix with numbers, without end."""
    yield from letters
    yield from (f"{prefix}{i}" for i in count(len(letters)))


def _invalid(where: str, message: str, fix: str) -> UserError:
    return UserError(message, where=f"problem.{where}", fix=fix)
