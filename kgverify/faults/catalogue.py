"""The catalogue of faults, by name, and of composites: systems that had several of them at once.

It can be read without torch: the functions that plant the faults are imported when they are called.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from kgverify.comparison.result import DifferenceClass as Kind
from kgverify.errors import UserError, suggest
from kgverify.faults.fault import Composite, Fault, Plant
from kgverify.program.stages import Stage


@dataclass(frozen=True)
class _Imported:
    """A function of `kgverify.faults.planted`, imported when it is called."""

    path: str

    def __getattr__(self, name: str) -> "_Imported":
        if name.startswith("_"):
            raise AttributeError(name)
        return _Imported(f"{self.path}.{name}")

    def __call__(self, plant: Plant) -> Plant:
        module, _, name = self.path.rpartition(".")
        planted: Plant = getattr(import_module(module), name)(plant)
        return planted


planted = _Imported("kgverify.faults.planted")

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "rule-cap",
            Stage.MATCH_RULES,
            Kind.MISSING,
            "only the first 2 rules of each predicate are tried",
            "a predicate with more than 2 rules",
            planted.match.cap_rules,
        ),
        Fault(
            "repeated-head-variable",
            Stage.MATCH_RULES,
            Kind.EXTRA,
            "a rule for p(X, X) is tried for p(a, b): its head's arguments are matched apart",
            "a rule whose head repeats a variable",
            planted.match.forget_repetition_in_rule,
        ),
        Fault(
            "fact-cap",
            Stage.MATCH_FACTS,
            Kind.MISSING,
            "only the first 50 facts of each predicate are tried; whatever needs a later one is lost without an error",
            "a predicate with more than 50 facts",
            planted.match.cap_facts,
            seen_in="a batched evaluator whose MRR fell from 0.82 to 0.47",
        ),
        Fault(
            "last-fact-lost",
            Stage.MATCH_FACTS,
            Kind.MISSING,
            "the exclusive end of each range of facts is taken for the last index in it",
            "a selected atom that matches a fact",
            planted.match.lose_last_fact,
        ),
        Fault(
            "query-matched",
            Stage.MATCH_FACTS,
            Kind.EXTRA,
            "the query itself serves as a fact when facts are matched: what is known is proved by itself",
            "a candidate that is a fact, and is selected in its own derivation",
            planted.match.match_query,
            seen_in="batched evaluators, where everything known came out as proved",
        ),
        Fault(
            "repeated-goal-variable",
            Stage.MATCH_FACTS,
            Kind.EXTRA,
            "p(X, X) matches p(a, b): the arguments of the selected atom are matched apart",
            "a selected atom with a repeated variable, and facts that do not repeat their argument",
            planted.match.forget_repetition_in_goal,
        ),
        Fault(
            "sequential-substitution",
            Stage.RESOLVE,
            Kind.SUBSTITUTED,
            "bindings are applied one after the other, so that what one puts in another does not reach: p(Y, a) for p(a, a)",
            "a rule whose head repeats a variable, or a selected atom that does",
            planted.resolve.substitute_in_wrong_order,
            seen_in="two code paths of one evaluator, which substituted differently",
        ),
        Fault(
            "captured-variables",
            Stage.RESOLVE,
            Kind.SUBSTITUTED,
            "rules are not standardized apart: fresh variables are numbered from the same start as the goal's",
            "a goal with variables whose selected atom a rule resolves",
            planted.resolve.capture_variables,
            seen_in="an evaluator that numbered fresh variables anew in every call",
        ),
        Fault(
            "overlapping-variables",
            Stage.RESOLVE,
            Kind.SUBSTITUTED,
            "rules are standardized apart by too little: after the shift fresh variables equal live ones",
            "a goal with variables whose selected atom a rule resolves",
            planted.resolve.overlap_variables,
            seen_in="an evaluator where 28 of 178 random steps gave wrong resolvents",
        ),
        Fault(
            "rest-not-substituted",
            Stage.RESOLVE,
            Kind.SUBSTITUTED,
            "the unifier is applied to the rule's body and not to the rest of the goal",
            "a goal of which a later atom shares a variable with the selected one",
            planted.resolve.forget_rest,
        ),
        Fault(
            "query-pruned",
            Stage.PRUNE,
            Kind.MISSING,
            "the query itself is deleted like any fact when resolvents are pruned",
            "a candidate that is a fact, and comes up in a resolvent of its own derivation",
            planted.prune.prune_query,
            seen_in="batched evaluators, where everything known came out as proved",
        ),
        Fault(
            "gap-after-pruning",
            Stage.PRUNE,
            Kind.MISSING,
            "an atom deleted by pruning leaves a gap: a goal is read up to its first gap, and one that begins with a gap has"
            " ended",
            "a resolvent of two atoms or more of which one is a fact and another, after it, is not",
            planted.prune.leave_gaps,
            seen_in="a batched evaluator that lost proofs",
        ),
        Fault(
            "empty-goal-ends",
            Stage.PRUNE,
            Kind.EXTRA,
            "a goal whose atoms were all deleted by pruning begins with padding, and counts as ended instead of proved",
            "a resolvent of which all atoms are facts",
            planted.prune.end_empty_goals,
            seen_in="a batched evaluator that lost proofs",
        ),
        Fault(
            "any-atom-proves",
            Stage.PRUNE,
            Kind.MISSING,
            "a resolvent counts as TRUE as soon as any of its atoms is a fact, instead of all",
            "a resolvent of two atoms of which one is a fact",
            planted.prune.prove_by_any_atom,
        ),
        Fault(
            "packed-fact-keys",
            Stage.PRUNE,
            Kind.MISSING,
            "facts are looked up by a 32-bit key with 8 bits for each argument: other atoms have the key of a fact",
            "more than 256 constants, and a ground atom with the key of a fact",
            planted.prune.pack_keys,
            seen_in="hashes packed into too few bits, which confused facts",
        ),
        Fault(
            "offset-renaming",
            Stage.RENAME,
            Kind.RENAMED,
            "variables are renumbered by their distance from the smallest, not by first appearance",
            "a resolvent with variables of the goal and of a rule, or with variables not in ascending order",
            planted.resolve.rename_by_offset,
            seen_in="an evaluator where the same goal had two names, which defeated the check for visited goals",
        ),
        Fault(
            "no-revisit-check",
            Stage.REVISIT,
            Kind.EXTRA,
            "goals visited before are not dropped: derivations walk in circles",
            "rules that lead back to a goal",
            planted.revisit.skip_check,
        ),
        Fault(
            "order-blind-hash",
            Stage.REVISIT,
            Kind.MISSING,
            "a goal counts as visited if its atoms were visited in any order: the hash is a sum, and nothing checks it",
            "a derivation that visits the atoms of a goal in another order",
            planted.revisit.ignore_order,
            seen_in="evaluators whose visited goals were keyed by an order-free sum of hashes: live goals were dropped",
        ),
        Fault(
            "scatter-collision",
            Stage.CLOSE,
            Kind.OUTCOME,
            "rows beyond the resolvent cap and invalid rows share the last row; an all-padding row counts as valid there, and"
            " an empty goal reads as a proof",
            "a step with more than max_resolvents resolvents",
            planted.close.read_overflow_as_proof,
            seen_in="a batched evaluator that proved 25 of 48 unprovable corruptions",
        ),
        Fault(
            "dead-end-open",
            Stage.CLOSE,
            Kind.MISSING,
            "a dead end is not turned into FALSE: the slot runs on to the depth limit",
            "a dead end that no limit has made",
            planted.close.leave_dead_ends,
            seen_in="a batched evaluator",
        ),
        Fault(
            "true-not-alone",
            Stage.CLOSE,
            Kind.OUTCOME,
            "TRUE does not stand alone: where other resolvents are left beside it, the step continues with these",
            "a step with a proof and another resolvent",
            planted.close.keep_siblings,
            seen_in="an evaluator whose list with a proof kept what was left of other resolvents",
        ),
        Fault(
            "max-atoms-off-by-one",
            Stage.LIMIT,
            Kind.LIMIT,
            "resolvents of exactly max_atoms atoms are dropped",
            "a resolvent of exactly max_atoms atoms",
            planted.limit.drop_at_max_atoms,
        ),
        Fault(
            "max-resolvents-off-by-one",
            Stage.LIMIT,
            Kind.LIMIT,
            "max_resolvents - 1 resolvents are kept",
            "a step with max_resolvents resolvents or more",
            planted.limit.drop_at_max_resolvents,
        ),
        Fault(
            "truncated-goals",
            Stage.LIMIT,
            Kind.LIMIT,
            "resolvents longer than the padding lose their last atoms instead of being dropped",
            "a resolvent of more than max_atoms atoms",
            planted.limit.truncate,
            seen_in="a batched evaluator, which gave false proofs",
        ),
        Fault(
            "facts-before-rules",
            Stage.LIMIT,
            Kind.REORDERED,
            "resolvents of facts are listed before those of rules: at equal scores another one is chosen",
            "a step with resolvents of both",
            planted.limit.put_facts_first,
            seen_in="two provers that listed facts on different sides of rules",
        ),
        Fault(
            "bf16-scores",
            Stage.SCORE,
            Kind.ROUNDING,
            "scores have 8 significant bits: near-ties are chosen otherwise",
            "with `shortest` a resolvent of 4 atoms or more and an odd number of variables; with weights nothing",
            planted.score.round_to_bf16,
            seen_in="policies run in bfloat16: 26 of 4,096 choices flipped",
        ),
        Fault(
            "tf32-scores",
            Stage.SCORE,
            Kind.ROUNDING,
            "scores have 11 significant bits: near-ties are chosen otherwise",
            "a policy with weights: the scores of `shortest` are exact",
            planted.score.round_to_tf32,
            seen_in="policies run on tensor cores: 2 of 4,096 choices flipped",
        ),
        Fault(
            "nan-score",
            Stage.SCORE,
            Kind.NUMBER,
            "a masked mean over no variables is 0 / 0: the score is NaN, and the first NaN is chosen",
            "a resolvent without variables that does not stand alone",
            planted.score.divide_by_no_variables,
        ),
        Fault(
            "stale-weights",
            Stage.SCORE,
            Kind.NUMBER,
            "the policy of before the last update is evaluated",
            "a policy with weights",
            planted.score.keep_old_weights,
            seen_in="a captured graph that kept the weights it was captured with",
        ),
        Fault(
            "last-argmax",
            Stage.CHOOSE,
            Kind.TIE,
            "of equal scores the last is chosen, not the first",
            "two resolvents with the highest score",
            planted.score.choose_last,
            seen_in="top-k and argmax mixed, whose ties differ",
        ),
        Fault(
            "stale-resolvents",
            Stage.ADVANCE,
            Kind.STALE,
            "resolvents are computed for the query only; each later step chooses from that list again",
            "a derivation of two steps",
            planted.advance.keep_query_resolvents,
            seen_in="a published evaluator: 0 proofs in 20,200 candidates, and a very good speed",
        ),
        Fault(
            "log-probability-after-end",
            Stage.ADVANCE,
            Kind.NUMBER,
            "an ended slot goes on adding log-probabilities",
            "a derivation with a choice that ends in TRUE or FALSE",
            planted.advance.add_after_end,
        ),
        Fault(
            "max-depth-off-by-one",
            Stage.FINISH,
            Kind.OUTCOME,
            "a derivation ends one step before max_depth",
            "a derivation of max_depth - 1 steps or more",
            planted.advance.stop_one_step_early,
        ),
        Fault(
            "enum-folded",
            Stage.FINISH,
            Kind.OUTCOME,
            "the comparison with TRUE is folded to False by the compiler: a proof is not noticed, and the slot runs on",
            "a proof",
            planted.advance.fold_comparison,
            seen_in="a tensor compared with an IntEnum member in compiled code (torch 2.13)",
        ),
        Fault(
            "failure-credited",
            Stage.FINISH,
            Kind.OUTCOME,
            "a dead end is counted as a success",
            "a dead end",
            planted.advance.credit_failure,
            seen_in="evaluators that credited success to ended slots, or counted the expected failure of a corruption as success",
        ),
        Fault(
            "queries-beyond-slots",
            Stage.RECYCLE,
            Kind.MISSING,
            "candidates beyond the number of slots are never run; unfinished, they count as failures",
            "more candidates than slots",
            planted.recycle.drop_beyond_slots,
            seen_in="a batched evaluator that gave slot i candidates i, i + N, ... and ran the first of them",
        ),
        Fault(
            "idle-slots",
            Stage.RECYCLE,
            Kind.MISSING,
            "slot i takes candidates i, i + N, ..., as many as every other: the remainder is never run while slots idle",
            "more candidates than slots, and not a multiple of them",
            planted.recycle.give_equal_shares,
            seen_in="a batched evaluator with 156 of 256 slots idle",
        ),
        Fault(
            "step-budget",
            Stage.RECYCLE,
            Kind.MISSING,
            "the loop stops after max_depth ticks, before the pool is empty; what is left counts as failed",
            "more candidates than slots, and derivations that together outlast max_depth",
            planted.recycle.stop_at_budget,
            seen_in="a batched evaluator: 8,000 of 20,200 candidates finished, all 20,200 reported",
        ),
        Fault(
            "stale-excluded-atom",
            Stage.RECYCLE,
            Kind.FOREIGN,
            "the excluded atom is not renewed with the slot: every candidate may use itself, and not the slot's first one",
            "more candidates than slots, and a candidate, or the slot's first one, that is a fact",
            planted.recycle.keep_excluded_atom,
            seen_in="batched evaluators, where the query served as a fact",
        ),
        Fault(
            "depth-not-reset",
            Stage.RECYCLE,
            Kind.STALE,
            "a slot's next derivation counts its steps from where the last one ended, and meets the depth limit early",
            "more candidates than slots",
            planted.recycle.keep_depth,
        ),
        Fault(
            "sticky-outcome",
            Stage.RECYCLE,
            Kind.OUTCOME,
            "a slot's success is never reset: once it has proved a candidate, all that follow count as proved",
            "more candidates than slots, a proof, and a failure after it",
            planted.recycle.keep_success,
            seen_in="success credited to slots that had ended",
        ),
        Fault(
            "visited-leak",
            Stage.RECYCLE,
            Kind.FOREIGN,
            "a slot's resolvents are checked against the goals that the slot before has visited as well",
            "two candidates in adjacent slots that reach the same goal",
            planted.revisit.leak_between_slots,
        ),
        Fault(
            "visited-not-cleared",
            Stage.RECYCLE,
            Kind.FOREIGN,
            "the goals that the slot's derivations before have visited are not cleared",
            "more candidates than slots, of which two in one slot reach the same goal",
            planted.revisit.keep_visited,
        ),
        Fault(
            "proof-ends-batch",
            Stage.RECYCLE,
            Kind.FOREIGN,
            "one slot's proof collapses the lists of the whole batch: the other slots reach a dead end",
            "two slots, one with a proof while another is in the middle of its derivation",
            planted.close.close_whole_batch,
            seen_in="an evaluator that collapsed every list when one held a proof",
        ),
        Fault(
            "clamped-results",
            Stage.RECYCLE,
            Kind.OUTCOME,
            "a slot with nothing to report writes over a finished result: pool indices are clamped, not masked",
            "two slots of which one ends before the other, and first candidate and idle slot with different ends",
            planted.recycle.overwrite_with_idle,
            seen_in="an evaluator whose proofs vanished",
        ),
        Fault(
            "overwritten-output",
            Stage.RECYCLE,
            Kind.FOREIGN,
            "a slot's state is read back after the next replay of a captured graph: it goes on from another slot's goal",
            "more candidates than slots",
            planted.recycle.read_neighbours_output,
            seen_in="an evaluator that read the output of a captured graph too late",
        ),
        Fault(
            "chunk-boundary-dropped",
            Stage.RECYCLE,
            Kind.MISSING,
            "the last candidate of each chunk of 16 is lost",
            "more than 16 candidates",
            planted.results.drop_at_boundary,
        ),
        Fault(
            "chunk-boundary-doubled",
            Stage.RECYCLE,
            Kind.EXTRA,
            "the first candidate of each chunk of 16 is counted with the chunk before as well",
            "more than 16 candidates",
            planted.results.double_at_boundary,
        ),
        Fault(
            "stream-per-chunk",
            Stage.CORRUPT,
            Kind.SUBSTITUTED,
            "corruptions are drawn from one shared stream: those of a query depend on the chunk it is in",
            "more eligible entities than corruptions",
            planted.ranks.share_stream,
            seen_in="an evaluator whose MRR depended on its chunk size",
        ),
        Fault(
            "known-triples",
            Stage.CORRUPT,
            Kind.SUBSTITUTED,
            "known triples are drawn as corruptions",
            "a known triple that differs from a query in one argument",
            planted.ranks.leak_known,
        ),
        Fault(
            "swapped-arguments",
            Stage.CORRUPT,
            Kind.SUBSTITUTED,
            "the corruptions' arguments are swapped",
            "a corruption",
            planted.ranks.swap_arguments,
            seen_in="a sampler handed (head, relation, tail) where (relation, head, tail) was documented",
        ),
        Fault(
            "padding-ranked",
            Stage.CORRUPT,
            Kind.EXTRA,
            "where fewer entities are eligible than corruptions are wanted, rows of padding are ranked as candidates",
            "fewer eligible entities than corruptions",
            planted.ranks.rank_padding,
            seen_in="an evaluator that ranked all-padding corruptions",
        ),
        Fault(
            "no-push-down",
            Stage.RANK,
            Kind.RANK,
            "what is not proved is not ranked below what is",
            "an unproved candidate that scores above a proved one of its query",
            planted.ranks.forget_push_down,
            seen_in="the largest part of an MRR that fell from 0.79 to 0.52",
        ),
        Fault(
            "optimistic-ties",
            Stage.RANK,
            Kind.RANK,
            "every tie counts as won",
            "a corruption that ties with the true triple",
            planted.ranks.win_ties,
            seen_in="an evaluator with an MRR of 0.999",
        ),
    )
}

COMPOSITES: dict[str, Composite] = {
    composite.name: composite
    for composite in (
        Composite(
            "first-compiled",
            ("fact-cap", "scatter-collision", "no-push-down"),
            "three causes, each hiding the next: facts are missing, an overflow reads as a proof, and what is not proved"
            " ranks among what is",
            "a compiled evaluator as first shipped: MRR 0.79 -> 0.52 on family",
        ),
        Composite(
            "v10",
            (
                "stale-resolvents",
                "gap-after-pruning",
                "empty-goal-ends",
                "fact-cap",
                "scatter-collision",
                "query-matched",
                "idle-slots",
                "step-budget",
            ),
            "the engine runs for the first step only, so that speed is very good and nothing is ever proved",
            "a published design: 0 proofs in 20,200 candidates of family",
        ),
    )
}


def find_fault(name: str) -> Fault:
    """Return the fault of a name. UserError for an unknown name."""
    if name not in FAULTS:
        raise _unknown(name, FAULTS)
    return FAULTS[name]


def find_faults(names: Sequence[str]) -> tuple[Fault, ...]:
    """Return the faults of the names in order, each once, composites expanded. UserError for an unknown name."""
    known = (*FAULTS, *COMPOSITES)
    for name in names:
        if name not in known:
            raise _unknown(name, known)
    parts = (part for name in names for part in (COMPOSITES[name].parts if name in COMPOSITES else (name,)))
    return tuple(FAULTS[part] for part in dict.fromkeys(parts))


def _unknown(name: str, known: Sequence[str] | dict[str, Fault]) -> UserError:
    return UserError(
        f"unknown fault {name!r}",
        where="--fault",
        fix=suggest(name, known) or "choose one that `kgverify faults list` shows",
    )
