"""`kgverify.fuzz`: search for divergences in generated problems."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from kgverify.api.inputs import EngineLike, write_down_sides
from kgverify.comparison.exercise.minimum import MINIMUM, Minimum, parse_minimum
from kgverify.program.dialect import OURS, Dialect
from kgverify.testing.campaigns.campaign import Campaign, run_campaign
from kgverify.testing.campaigns.known_divergences import read_known
from kgverify.testing.campaigns.result import CampaignResult, Watch
from kgverify.testing.checking.engine_makers import find_dialect
from kgverify.testing.problems.scope import SCOPE_MINIMUM


def fuzz(
    engine: EngineLike = "compiled",
    *,
    reference: EngineLike = "reference",
    examples: int | None = None,
    seconds: float | None = None,
    corpus: str | Path = "fuzz-corpus",
    mode: str = "eager",
    device: str = "cpu",
    faults: str | Sequence[str] = (),
    dialect: Dialect | None = None,
    scope: str | None = None,
    lockstep: bool = False,
    seed: int = 0,
    jobs: int = 1,
    scheduler: str | None = None,
    known: str | Path | None = None,
    fresh: bool = False,
    accept_changed: Sequence[str] = (),
    minimum: str | Minimum | None = None,
    today: date | None = None,
    watch: Watch = lambda tally: None,
) -> CampaignResult:
    """Compare an engine with a reference on generated problems until a budget is spent.

    Each kind of divergence is shrunk to a minimal problem once, and kept in the corpus as a reproducer for
    `kgverify.replay`. The next call replays the corpus first, and resumes where this one stopped.

    Args:
        engine: The engine under test: `"compiled"`, `"reference"`, `"module:name"`, `"file.py:name"`, or a class or
            function of `(program, limits, policy)` at the top level of a module.
        reference: The engine to compare with, given in the same way; kgverify's reference prover if not given.
        examples: Number of problems; 2,000 if neither `examples` nor `seconds` is given.
        seconds: Seconds after which no further problems are tried.
        corpus: Folder of reproducers.
        mode: Mode of the compiled evaluator.
        device: Device of the compiled evaluator.
        faults: Faults to plant in the compiled evaluator.
        dialect: The dialect of both engines, in which the problems are drawn; if not given, the attribute `dialect` of a class
            or function, and the default dialect if it has none.
        scope: `"tiny"` tries every problem up to that size, once each, instead of generated ones.
        lockstep: Compare every step from the expected goal as well.
        seed: Seed of the problems.
        jobs: Number of processes.
        scheduler: Address of a dask scheduler, whose workers try the problems instead.
        known: A TOML file of known divergences, which are not reported as new.
        fresh: Try again the problems that earlier calls have tried.
        accept_changed: Names of changed code, such as `"helper.py"`. Problems that earlier calls tried count although it
            changed; otherwise they are tried again.
        minimum: The exercise that the whole campaign requires, as for `kgverify.verify`; below it the verdict is INCONCLUSIVE.
        today: Date at which known divergences expire; the current one if not given.
        watch: A function that is called with the state of the campaign.

    Returns:
        The result: `.verdict`, `.is_passed`, `.new` (the divergences), and what was covered.

    Raises:
        UserError: If the engine cannot be made, or the corpus cannot be used.

    Example:
        >>> import kgverify as kv
        >>> result = kv.fuzz("compiled", examples=20, corpus="corpus")
        >>> result.is_passed, result.num_problems
        (True, 20)
    """
    sides = write_down_sides(engine, reference, mode=mode, device=device, faults=faults)
    campaign = Campaign(
        corpus=Path(corpus),
        engine=sides.engine,
        reference=sides.reference,
        lockstep=lockstep,
        seed=seed,
        examples=examples,
        seconds=seconds,
        jobs=jobs,
        scheduler=scheduler,
        known=() if known is None else read_known(Path(known)),
        is_fresh=fresh,
        accept_changed=tuple(accept_changed),
        minimum=parse_minimum(minimum, default=MINIMUM if scope is None else SCOPE_MINIMUM),
        dialect=dialect or (OURS if isinstance(engine, str) else find_dialect(engine)),
        scope=scope,
    )
    return run_campaign(campaign, watch=watch, today=today)
