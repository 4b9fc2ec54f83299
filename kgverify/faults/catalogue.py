"""The faults by name, and the composites: systems that had several of them at once."""

from collections.abc import Sequence

from kgverify.errors import UserError, suggest
from kgverify.faults.choice_faults import CHOICE_FAULTS
from kgverify.faults.fault import Composite, Fault
from kgverify.faults.resolvent_faults import RESOLVENT_FAULTS
from kgverify.faults.run_faults import RUN_FAULTS

FAULTS: dict[str, Fault] = {fault.name: fault for fault in (*RESOLVENT_FAULTS, *CHOICE_FAULTS, *RUN_FAULTS)}

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
    """The fault of a name. UserError for an unknown one."""
    if name not in FAULTS:
        raise _unknown(name, FAULTS)
    return FAULTS[name]


def find_faults(names: Sequence[str]) -> tuple[Fault, ...]:
    """The faults of the names, composites taken apart, each fault once, in order. UserError for an unknown name."""
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
