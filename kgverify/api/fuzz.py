"""`kgverify.fuzz`: search for divergences in generated problems."""

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgverify.arguments import check_fields, checked
from kgverify.comparison.exercise.exercise import MINIMUM, Minimum, parse_minimum
from kgverify.engines.table import COMPILED
from kgverify.errors import UserError
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.limits import OURS, Dialect
from kgverify.runs.engine_makers import find_dialect, find_factory
from kgverify.runs.job import EngineLike, GraphLike, Source, choose_reference, write_down
from kgverify.testing.campaigns.campaign import Campaign, run_campaign
from kgverify.testing.campaigns.result import CampaignResult, Watch


@dataclass(frozen=True)
class FuzzOptions:
    """The options of a campaign.

    Attributes:
        dialect: The dialect of both engines, in which the problems are drawn; None: the attribute `dialect` of a class or
            function, and the default dialect if it has none.
        lockstep: Compare every step from the expected goal as well.
        scheduler: The address of a dask scheduler, whose workers try the problems instead of processes here.
        fresh: Try again the problems that earlier calls have tried.
        accept_changed: Count what earlier calls tried although this code changed, such as `helper.py`.
        minimum: The exercise that the whole campaign requires, as for `diff`; `proved=1,rules=1,choices=1` if not given,
            `none` for nothing. Below it the verdict is INCONCLUSIVE.

    Example:
        >>> import kgverify as kv
        >>> sets = kv.FuzzOptions(dialect=kv.Dialect(memory="set"), minimum={})
        >>> kv.fuzz("reference", examples=4, options=sets).is_passed
        True
    """

    dialect: Dialect | None = None
    lockstep: bool = False
    scheduler: str | None = None
    fresh: bool = False
    accept_changed: Sequence[str] = ()
    minimum: str | Minimum | None = None

    def __post_init__(self) -> None:
        check_fields(self)


DEFAULT_OPTIONS = FuzzOptions()


@checked
def fuzz(
    engine: EngineLike = COMPILED,
    *,
    reference: EngineLike | None = None,
    examples: int | None = None,
    seconds: float | None = None,
    graph: GraphLike | None = None,
    corpus: str | Path | None = None,
    seed: int = 0,
    jobs: int = 1,
    options: FuzzOptions = DEFAULT_OPTIONS,
    progress: Watch = lambda tally: None,
) -> CampaignResult:
    """Compare an engine with a reference on generated problems until a budget is spent.

    The problems of a graph, if given, come first. Each kind of divergence is shrunk to a minimal problem once. With a corpus it
    is kept there as a reproducer for `kgverify.replay`, and the next call replays the corpus first, and resumes where this one
    stopped. Without one nothing is written.

    Args:
        engine: The engine under test: `kgverify.Evaluator(...)`, `"compiled"` (eager on the CPU), `"reference"`,
            `"module:name"`, `"file.py:name"`, or a class or function of `(program, limits, policy)` at the top level of a
            module.
        reference: The engine to compare with, given in the same way; if not given, kgverify's reference prover, or
            `"search"` for a subclass of `kgverify.OutcomeEngine`.
        examples: Number of problems; 2,000 if neither `examples` nor `seconds` is given.
        seconds: The time for trying problems. Shrinking takes what is left of it, at least 20 s. A problem that takes more
            than a tenth of it is left; only native code that does not return, and other threads, cannot be interrupted.
        graph: A graph that comes from files, its name or its path: the neighbourhoods of its test queries, with its rules,
            are tried first.
        corpus: Folder of reproducers; if not given, nothing is written.
        seed: Seed of the problems.
        jobs: Number of processes.
        options: How the problems are drawn and tried.
        progress: A function that is called with the state of the campaign.

    Returns:
        The result: `.verdict`, `.is_passed`, `.divergences`, and what was covered.

    Raises:
        UserError: If the engine cannot be made, or the corpus cannot be used.

    Example:
        >>> import kgverify as kv
        >>> result = kv.fuzz("compiled", examples=20)
        >>> result.is_passed, result.num_problems
        (True, 20)
    """
    with nullcontext(corpus) if corpus is not None else tempfile.TemporaryDirectory(prefix="kgverify-fuzz-") as folder:
        source = None if graph is None else Source(graph).load()
        budget = {"examples": examples, "seconds": seconds, "seed": seed, "jobs": jobs}
        campaign = plan_campaign(engine, reference, Path(folder), options, graph=source, **budget)
        result = run_campaign(campaign, watch=progress)
    if corpus is None:
        for found in result.divergences:
            found.file = ""
    return result


def plan_campaign(
    engine: EngineLike,
    reference: EngineLike | None,
    corpus: Path,
    options: FuzzOptions,
    *,
    graph: KnowledgeGraph | None = None,
    **budget: Any,
) -> Campaign:
    """Return the campaign of options and a budget: `examples`, `seconds`, `seed`, `jobs`. UserError as for `fuzz`."""
    if graph is not None and graph.loaded is None:
        raise UserError("was made in Python, and other processes read it again", where="graph", fix="name its files")
    named = write_down(engine)
    made = find_factory(named, "engine") if reference is None and not named.is_own else None
    return Campaign(
        corpus=corpus,
        engine=named,
        reference=write_down(choose_reference(reference, made), "reference"),
        graph=None if graph is None else graph.loaded,
        files=() if graph is None else graph.files,
        lockstep=options.lockstep,
        scheduler=options.scheduler,
        is_fresh=options.fresh,
        accept_changed=tuple(options.accept_changed),
        minimum=parse_minimum(options.minimum, default=MINIMUM),
        dialect=options.dialect or (OURS if isinstance(engine, str) else find_dialect(engine)),
        **budget,
    )
