"""The faults of the choice of a step, from `score` to `finish`."""

from typing import Final

from kgverify.comparison.result import DifferenceClass as Kind
from kgverify.faults.fault import CONSTRUCTED, Fault
from kgverify.program.stages import Stage

CHOICE_FAULTS: Final = (
    Fault(
        "bf16-scores",
        Stage.SCORE,
        "scores have 8 significant bits: near-ties are chosen otherwise",
        "policies run in bfloat16: 26 of 4,096 choices flipped",
        Kind.ROUNDING,
        "with `shortest` a resolvent of 4 atoms or more and an odd number of variables; with weights nothing",
        "score.round_to_bf16",
    ),
    Fault(
        "tf32-scores",
        Stage.SCORE,
        "scores have 11 significant bits: near-ties are chosen otherwise",
        "policies run on tensor cores: 2 of 4,096 choices flipped",
        Kind.ROUNDING,
        "a policy with weights: the scores of `shortest` are exact",
        "score.round_to_tf32",
    ),
    Fault(
        "nan-score",
        Stage.SCORE,
        "a masked mean over no variables is 0 / 0: the score is NaN, and the first NaN is chosen",
        CONSTRUCTED,
        Kind.NUMBER,
        "a resolvent without variables that does not stand alone",
        "score.divide_by_no_variables",
    ),
    Fault(
        "stale-weights",
        Stage.SCORE,
        "the policy of before the last update is evaluated",
        "a captured graph that kept the weights it was captured with",
        Kind.NUMBER,
        "a policy with weights",
        "score.keep_old_weights",
    ),
    Fault(
        "last-argmax",
        Stage.CHOOSE,
        "of equal scores the last is chosen, not the first",
        "top-k and argmax mixed, whose ties differ",
        Kind.TIE,
        "two resolvents with the highest score",
        "score.choose_last",
    ),
    Fault(
        "stale-resolvents",
        Stage.ADVANCE,
        "resolvents are computed for the query only; each later step chooses from that list again",
        "a published evaluator: 0 proofs in 20,200 candidates, and a very good speed",
        Kind.STALE,
        "a derivation of two steps",
        "advance.keep_query_resolvents",
    ),
    Fault(
        "log-probability-after-end",
        Stage.ADVANCE,
        "an ended slot goes on adding log-probabilities",
        CONSTRUCTED,
        Kind.NUMBER,
        "a derivation with a choice that ends in TRUE or FALSE",
        "advance.add_after_end",
    ),
    Fault(
        "max-depth-off-by-one",
        Stage.FINISH,
        "a derivation ends one step before max_depth",
        CONSTRUCTED,
        Kind.OUTCOME,
        "a derivation of max_depth - 1 steps or more",
        "advance.stop_one_step_early",
    ),
    Fault(
        "enum-folded",
        Stage.FINISH,
        "the comparison with TRUE is folded to False by the compiler: a proof is not noticed, and the slot runs on",
        "a tensor compared with an IntEnum member in compiled code (torch 2.13)",
        Kind.OUTCOME,
        "a proof",
        "advance.fold_comparison",
    ),
    Fault(
        "failure-credited",
        Stage.FINISH,
        "a dead end is counted as a success",
        "evaluators that credited success to ended slots, or counted the expected failure of a corruption as success",
        Kind.OUTCOME,
        "a dead end",
        "advance.credit_failure",
    ),
)
