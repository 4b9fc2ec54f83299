"""Engines whose dialects are known, and the verdict on a dialect that is proposed for one.

The engines are kgverify's own, those of `examples/padded_engine`, small ones at every level that kgverify accepts, and the second
prover in dialects drawn at random: as an engine of steps, and as a black box that gives only outcomes.
"""

import random
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import fast
import msgspec
import numpy as np
import slow
from second_engine import SecondEngine

import kgverify as kv
from kgverify import Taken
from kgverify.dialects import Dialect, Proposal, ReferenceEngine, propose_dialect
from kgverify.engines.protocol import take_position
from kgverify.program.limits import FILTERS, OURS, VALUES
from kgverify.runs.run import reference_pipeline
from kgverify.trace.model.columns import Rankings, concatenate

EXCEPT_MEMORY = tuple(each for each in OURS.filters if each != "revisit")
BATCHED = Dialect(
    unification="one_pass",
    filters=("prune", "close", "max_resolvents", "revisit", "max_atoms"),
    memory="set",
    exempts_terminal=True,
    stopping="where_no_terminal",
)


class Staged(kv.StagedEngine):
    """An engine in kgverify's own stages, with a unification of its own."""

    def resolve(self, goal, excluded):
        """Try every clause."""
        for clause in self.clauses_for(goal, excluded):
            head, *body = [
                (p, *(a if a >= 0 else a - 1000 for a in terms)) for p, *terms in (clause.head, *clause.body)
            ]
            bound = self.unify(goal[0], head)
            if bound is not None:
                yield clause, [_bind(atom, bound) for atom in (*body, *goal[1:])]

    def unify(self, goal, head):
        """Return what variables stand for; None if the atoms do not unify."""
        bound: dict[int, int] = {}
        for i in (1, 2):
            left, right = _bind(goal, bound)[i], _bind(head, bound)[i]
            if left != right and min(left, right) >= 0:
                return None
            if left != right:
                bound[min(left, right)] = max(left, right)
        return bound


def _bind(atom, bound):
    terms = atom[1:]
    while any(term in bound for term in terms):
        terms = tuple(bound.get(term, term) for term in terms)
    return atom[0], *terms


class Backwards(Staged):
    """Tries the facts first, and all clauses from the last to the first."""

    def clauses_for(self, goal, excluded):
        """Return the clauses in the opposite order."""
        return super().clauses_for(goal, excluded)[::-1]


class OnePass(Staged):
    """Fails where a variable of a clause meets two different terms."""

    def unify(self, goal, head):
        """Refuse a head with a repeated variable, unless the goal's terms are equal."""
        is_refused = head[1] == head[2] < 0 and goal[1] != goal[2]
        return None if is_refused else super().unify(goal, head)


class KeepsFacts(Staged):
    """Proves facts by steps."""

    def prune(self, resolvents, excluded):
        """Return the resolvents as they are."""
        return resolvents


class Forgetful(Staged):
    """Remembers no goal."""

    def revisit(self, resolvents, visited):
        """Return the resolvents as they are."""
        return resolvents


class CutsFirst(Staged):
    """Keeps the first resolvents before it looks at their length, and truncates long ones."""

    def limit(self, resolvents):
        """Return the resolvents within the limits."""
        kept = resolvents[: self.limits.max_resolvents]
        most = self.limits.max_atoms
        num_long = sum(len(each.atoms) > most for each in kept)
        return Taken([each._replace(atoms=each.atoms[:most]) for each in kept], num_long, len(resolvents) - len(kept))


class BlackBox(kv.OutcomeEngine):
    """Gives the outcomes of the reference in a dialect."""

    def __init__(self, program, limits, policy, *, dialect):
        self.inner = ReferenceEngine(program, msgspec.structs.replace(limits, dialect=dialect), policy)
        super().__init__(program, limits, policy)

    def prove(self, candidates, progress=lambda num: None):
        """Prove, and leave the steps out."""
        self._proved = self.inner.prove(candidates).candidates.outcome == 1
        return super().prove(candidates, progress)

    def decide_all(self, queries):
        """Return the outcomes."""
        return self._proved.tolist()


def exclude_positives(run, sizes):
    """Make an engine that excludes the query of a test triple alone, which the run names."""
    positives = {tuple(row) for row in run.triples.tolist()}
    barred, free = (
        ReferenceEngine(
            run.graph.program,
            msgspec.structs.replace(run.limits, exclude_query=each and run.limits.exclude_query, dialect=OURS),
            run.policy,
        )
        for each in (True, False)
    )

    class Divided:
        info = barred.info

        def choose(self, candidates):
            rows = zip(candidates.side.tolist(), candidates.atom.tolist(), strict=True)
            # What stands outside of a ranking is no corruption.
            return [barred if side == 2 or tuple(atom) in positives else free for side, atom in rows]

        def prove(self, candidates, progress=lambda num: None):
            parts = [engine.prove(candidates.take(slice(i, i + 1))) for i, engine in enumerate(self.choose(candidates))]
            return concatenate(parts)

        def step(self, positions):
            chosen = self.choose(positions.candidates)
            return concatenate([chosen[i].step(take_position(positions, i)) for i in range(len(chosen))])

    return reference_pipeline(run)._replace(engine=Divided())


def rank_by(run, sizes, *, dialect):
    """Make the reference with a ranking of its own."""
    draw = random.Random(0)

    def rank(candidates, triples, tolerance):
        is_proved = candidates.outcome == 1
        scores = candidates.log_probability - 100 * ~is_proved * (dialect.unproved == "subtract_100")
        above, tied = (scores > scores[0]).sum(), (scores == scores[0]).sum() - 1
        place = {"optimistic": 0, "realistic": tied / 2, "pessimistic": tied, "random": draw.randint(0, tied)}
        ranks = np.array([1.0 + above + place[dialect.ties]])
        return Rankings(candidates.query[:1], candidates.side[:1], np.array([len(scores)], np.uint32), ranks, ranks)

    return reference_pipeline(run)._replace(rank=rank)


class Known(NamedTuple):
    """An engine whose dialect is known.

    is_compared: whether the engine is compared with the reference in the proposed dialect
    has_steps:   whether it takes steps
    """

    name: str
    engine: Any
    dialect: Dialect
    is_compared: bool = True
    has_steps: bool = True


def list_engines() -> list[Known]:
    """Return the engines that are written down."""
    cut_first = Dialect(
        filters=("prune", "revisit", "close", "max_resolvents", "max_atoms"), long_resolvents="truncate"
    )
    padded = msgspec.structs.replace(BATCHED, forgets_names=False, stopping="never")
    engines = [
        Known("reference", "reference", OURS),
        Known("compiled", "compiled", OURS),
        Known("Staged", Staged, OURS),
        Known("Backwards", Backwards, Dialect(order="facts_first", is_reversed=True)),
        Known("OnePass", OnePass, Dialect(unification="one_pass")),
        Known("KeepsFacts", KeepsFacts, Dialect(filters=OURS.filters[1:])),
        Known("Forgetful", Forgetful, Dialect(memory="none")),
        Known("CutsFirst", CutsFirst, cut_first),
        Known("padded Fast", fast.Fast, padded),
        Known("padded Slow", slow.Slow, padded),
        Known("second", partial(SecondEngine, dialect=BATCHED), BATCHED),
        Known("black box", partial(BlackBox, dialect=OURS), OURS, has_steps=False),
        Known("black box, batched", partial(BlackBox, dialect=BATCHED), BATCHED, has_steps=False),
        Known("exclude_positives", exclude_positives, Dialect(exclusion="positives_only")),
    ]
    for unproved in VALUES["unproved"]:
        for ties in VALUES["ties"]:
            dialect = Dialect(unproved=unproved, ties=ties)
            ranks = partial(rank_by, dialect=dialect)
            engines.append(Known(f"ranks {unproved}, {ties}", ranks, dialect, is_compared=False))
    return engines


def draw_dialect(rng: random.Random) -> Dialect:
    """Draw a dialect that an engine can have without a `rank` and without knowing the positives."""
    filters = rng.sample(FILTERS, len(FILTERS))
    kept = tuple(each for each in filters if rng.random() < (0.25 if each == "duplicates" else 0.85))
    switches = {name: rng.choice(values) for name, values in VALUES.items() if name not in ("unproved", "ties")}
    switches["exclusion"] = rng.choice(("always", "never"))
    return Dialect(filters=kept, **switches)


def judge(known: Known, proposal: Proposal) -> dict[str, str]:
    """Return for each switch whether it is `right`, `undecided`, or wrong; a wrong one is described."""
    truth = known.dialect
    remembers = truth.memory != "none" and "revisit" in truth.filters
    results = {}
    for finding in proposal.findings:
        value = getattr(truth, finding.switch)
        if finding.switch == "filters":
            is_fitting = _fit(truth.filters, proposal, finding.others, remembers)
        else:
            if finding.switch == "memory" and not remembers:
                value = "none"
            is_fitting = value == finding.value or str(value).lower() in finding.others
            is_fitting |= "no meaning" in finding.reason
        results[finding.switch] = "right" if finding.is_decided else "undecided"
        if not is_fitting:
            results[finding.switch] = f"{finding.switch} is {finding.value}, known as {value}"
    return results


def _fit(filters: tuple[str, ...], proposal: Proposal, others: tuple[str, ...], remembers: bool) -> bool:
    """Return whether filters are those proposed, or others that are left open."""
    unsure = {each.removeprefix("with or without ") for each in others}
    ignored = unsure if remembers and proposal.dialect.memory != "none" else {*unsure, "revisit"}
    known = [each for each in filters if each not in ignored]
    found = [each for each in proposal.dialect.filters if each not in ignored]
    if set(known) != set(found):
        return False
    return all(
        (found.index(a) < found.index(b)) == (known.index(a) < known.index(b))
        or f"{a} before or after {b}" in others
        or f"{b} before or after {a}" in others
        for a, b in combinations(known, 2)
    )


def try_engine(known: Known, examples: int) -> tuple[dict[str, str], str, str]:
    """Return what `judge` says, the verdict of the comparison, and its report where the engine differs."""
    proposal = propose_dialect(known.engine, examples=examples if known.is_compared else 0)
    verdict = proposal.verdict.value if known.is_compared and examples else ""
    return judge(known, proposal), verdict, proposal.verified.text if verdict == "DIVERGE" else ""
