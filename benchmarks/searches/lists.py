"""A search engine in plain lists, one beam after the other."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import kgverify
from benchmarks.searches.steps import Atom, Prover, Scorer, draw
from kgverify.engines.adapters.searching import Ended, Kept, Level, Path, SearchEngine
from kgverify.program.outcomes import GoalKind, Outcome
from kgverify.program.program import Program
from kgverify.step.plain_step import Resolvent, Taken


class Child(NamedTuple):
    """A resolvent of a path of the beam. row: the number of the path in the beam; place, merged_into: once it is kept."""

    path: Path
    row: int
    choice: int
    resolvent: Resolvent
    log_probability: float
    place: int = -1
    merged_into: int = -1

    @property
    def kept(self) -> Kept:
        """The child as the adapter takes it."""
        return Kept(self.path.place, self.choice, self.place, self.log_probability, self.merged_into)


Children: TypeAlias = list[Child]


def add_logs(logs: Iterable[float]) -> float:
    """Return the logarithm of the sum of the exponentials."""
    listed = list(logs)
    most = max(listed)
    return most + math.log(math.fsum(math.exp(each - most) for each in listed))


def level_of(beam: Sequence[Path]) -> int:
    """Return the level of a beam, from 0."""
    return len(beam[0].visited) - 1


class ListSearch(SearchEngine):
    """A search of one beam at a time."""

    policies: ClassVar[tuple[str, ...]] = ("shortest", "two_tower")

    def __init__(self, program: Program, limits: kgverify.Limits, policy: kgverify.Policy) -> None:
        super().__init__(program, limits, policy)
        self.prover, self.scorer = Prover(program, limits), Scorer(policy)
        self.search, self.dialect = limits.dialect.searching, limits.dialect

    def take_level(self, query: Atom, beam: Sequence[Path]) -> Level:
        """Take a step of every path, and choose the children that are kept."""
        taken = self.score(beam, self.take(query, beam))
        children = self.keep(query, beam, self.expand(beam, taken))
        if self.dialect.merge != "none":
            children = self.merge(children)
        return Level(taken=taken, kept=[each.kept for each in sorted(children, key=lambda each: each.place)])

    def take(self, query: Atom, beam: Sequence[Path]) -> list[Taken]:
        """Return the resolvents of each path."""
        excluded = query if self.limits.exclude_query else None
        return [self.prover.take(path.visited, excluded) for path in beam]

    def score(self, beam: Sequence[Path], taken: Sequence[Taken]) -> list[Taken]:
        """Return the resolvents with their scores."""
        scored = []
        for path, made in zip(beam, taken, strict=True):
            (scores,) = self.scorer.score([path.visited[-1]], [made.resolvents])
            pairs = zip(made.resolvents, scores, strict=True)
            scored.append(made._replace(resolvents=[each._replace(score=score) for each, score in pairs]))
        return scored

    def expand(self, beam: Sequence[Path], taken: Sequence[Taken]) -> Children:
        """Return every child, in order of path and index."""
        return [
            Child(path, row, choice, each, path.log_probability + log)
            for row, (path, made) in enumerate(zip(beam, taken, strict=True))
            for choice, (each, log) in enumerate(zip(made.resolvents, self.normalise(made.resolvents), strict=True))
        ]

    def normalise(self, made: Sequence[Resolvent]) -> list[float]:
        """Return the log-probability of each resolvent among the others of its path."""
        most = max(each.score for each in made)
        total = math.log(math.fsum(math.exp(each.score - most) for each in made))
        return [each.score - most - total for each in made]

    def keep(self, query: Atom, beam: Sequence[Path], children: Children) -> Children:
        """Return the children that are kept, with their places."""
        if self.search.kind == "sample":
            return self.keep_samples(query, beam, children)
        kept = self.keep_beam(beam, children) if self.search.kind == "beam" else self.keep_all(beam, children)
        return [each._replace(place=place) for place, each in enumerate(kept)]

    def keep_beam(self, beam: Sequence[Path], children: Children) -> Children:
        """Return the best children."""
        return sorted(children, key=lambda each: -self.key(each))[: self.search.size]

    def key(self, child: Child) -> Any:
        """Return the number by which children are ranked, the highest first."""
        return child.log_probability

    def keep_all(self, beam: Sequence[Path], children: Children) -> Children:
        """Return the first children."""
        return children[: self.search.size]

    def keep_samples(self, query: Atom, beam: Sequence[Path], children: Children) -> Children:
        """Return one child of each path, drawn by its probability."""
        drawn = []
        for row, path in enumerate(beam):
            own = [each for each in children if each.row == row]
            drawn.append(own[self.pick(own, self.draw_numbers(query, beam, row))]._replace(place=path.place))
        return drawn

    def draw_numbers(self, query: Atom, beam: Sequence[Path], row: int) -> float:
        """Return a number from 0 to 1 for a path of the beam."""
        return draw(self.search.seed, *beam[row].visited[0][0], beam[row].place, level_of(beam))

    def pick(self, children: Children, number: float) -> int:
        """Return the index of the first child whose cumulative probability exceeds a number."""
        most = max(each.resolvent.score for each in children)
        weights = [math.exp(each.resolvent.score - most) for each in children]
        total, reached = math.fsum(weights), 0.0
        for index, weight in enumerate(weights):
            reached += weight / total
            if reached > number:
                return index
        return len(weights) - 1

    def merge(self, children: Children) -> Children:
        """Merge the children with the same goal into the first of them."""
        groups: dict[Any, Children] = {}
        for each in children:
            key = self.merge_key(each) if each.resolvent.kind == GoalKind.GOAL else each.place
            groups.setdefault(key, []).append(each)
        return [each for group in groups.values() for each in (self.merge_group(group) if len(group) > 1 else group)]

    def merge_key(self, child: Child) -> Any:
        """Return what children have in common that are merged."""
        return child.resolvent.atoms

    def merge_group(self, group: Children) -> Children:
        """Return the children of a group, all but the first merged into it."""
        first, *others = group
        log_probability = self.merge_logs([each.log_probability for each in group])
        merged = [each._replace(merged_into=first.place) for each in others]
        return [first._replace(log_probability=log_probability), *merged]

    def merge_logs(self, logs: Sequence[float]) -> float:
        """Return the log-probability of the child into which others are merged; its own comes first."""
        return add_logs(logs) if self.dialect.merge == "sum" else max(logs)

    def aggregate(self, query: Atom, ended: Sequence[Ended]) -> tuple[Outcome, float]:
        """Return the outcome and the log-probability of a candidate from its paths."""
        paths = self.distinct(ended)
        proofs = [each.log_probability for each in paths if each.outcome is Outcome.PROVED]
        if proofs:
            return Outcome.PROVED, self.combine(proofs)
        best = self.best(paths)
        return best.outcome, best.log_probability

    def distinct(self, ended: Sequence[Ended]) -> list[Ended]:
        """Return the paths, each derivation once, in order of level and place."""
        firsts: dict[Any, Ended] = {}
        for each in sorted(ended, key=lambda each: (each.level, each.place)):
            firsts.setdefault(each.choices, each)
        return list(firsts.values())

    def best(self, paths: Sequence[Ended]) -> Ended:
        """Return the best path where none is a proof."""
        return max(paths, key=lambda each: each.log_probability)

    def combine(self, proofs: Sequence[float]) -> float:
        """Return the log-probability of some proofs."""
        if self.dialect.aggregate == "max":
            return max(proofs)
        # Below, the exponential is not a normal number, and the sum has the same digits.
        if self.dialect.aggregate == "sum" or max(proofs) < -700:
            return add_logs(proofs)
        if math.exp(max(proofs)) >= 1.0:
            return 0.0
        return math.log(-math.expm1(math.fsum(math.log1p(-math.exp(each)) for each in proofs)))
