"""Shrink a divergence of a run on a real graph: cut the graph to a proof slice first, then shrink that."""

import shlex
from collections.abc import Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kgverify.engines.plain.choice import PLAIN as PLAIN_MODE
from kgverify.engines.table import COMPILED, REFERENCE
from kgverify.errors import UserError, count_of
from kgverify.escaping import make_visible
from kgverify.files.reading import STANDARD_INPUT
from kgverify.files.remote import names_url
from kgverify.graphs.folder import ROLES
from kgverify.graphs.formats.reading import ReadingOptions
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import load_graph
from kgverify.report.content import EngineNames
from kgverify.report.report import Report
from kgverify.runs.engine_makers import EAGER, PLAIN, EngineSpec, MakePipeline, Sides, make_reference
from kgverify.testing.checking.failure import sign
from kgverify.testing.problems.problem import SHORTEST, PolicySpec, Problem
from kgverify.testing.reproducers.reproducer import Reproducer, make_reproducer
from kgverify.testing.reproducers.text_format import saving_bugs, write_reproducer
from kgverify.testing.shrinking.oracle import Oracle, OutOfBudget
from kgverify.testing.shrinking.proof_slice import Slicer, shrink_keeping_ids
from kgverify.testing.shrinking.shrink import MAX_SECONDS, Progress, Shrunk, shrink_with
from kgverify.trace.model.header import EngineInfo
from kgverify.verification.verify import Verification

RANDOM_POLICIES: Final = tuple(PolicySpec("two_tower", seed=seed) for seed in range(4))
"""A problem has no weights of its own: these, and then `shortest`, replace a policy with weights."""
_FILE_OPTIONS: Final = {"--graph": "spec"} | {
    f"--{name.replace('_', '-')}": name for name in (*ROLES, *ReadingOptions.__annotations__)
}
"""The options that name a graph and its files and say how they are read, and what `load_graph` calls them.

Beside its name, `--graph` takes the others as `train=FILE`; those by themselves are options of earlier versions.
"""

MAX_RUN_CALLS: Final = 500
"""Default limit on the runs of the engine under test while a divergence on a graph is shrunk."""
MOST_SHOWN: Final = 24
"""Lines of a problem that are printed; the reproducer has them all."""


class NoSlice(UserError):
    """An error: no part of the graph was found that diverges as the run does."""


@dataclass(frozen=True, kw_only=True)
class ShrunkRun:
    """The result of shrinking a divergence of a run.

    report:  of the run
    graph:   of the run
    sliced:  the problem that the proof slice left, with which the shrinker began
    engine:  the engine on which the divergence was shrunk; reference: the one that it was compared with
    """

    shrunk: Shrunk
    sliced: Problem
    graph: KnowledgeGraph
    report: Report
    engine: EngineSpec = EAGER
    reference: EngineSpec = PLAIN

    @property
    def removed(self) -> float:
        """The share of the graph's facts that are not in the slice, 0 to 1."""
        return 1 - len(self.sliced.facts) / max(1, len(self.graph.train))

    @property
    def reproducer(self) -> Reproducer:
        """The reproducer of the minimal problem, with notes of the run."""
        report, problem, graph = self.report, self.shrunk.problem, self.graph
        notes = (
            f"the run was recorded as: {report.command}" if report.command else f"from a run on {report.run.graph}",
            f"{count_of(len(graph.train), 'fact')} and {count_of(len(graph.rules), 'rule')} cut to {len(self.sliced.facts):,} and"
            f" {len(self.sliced.rules):,} by the proof slice, then to {len(problem.facts):,} and"
            f" {len(problem.rules):,}; {count_of(self.shrunk.calls, 'run')} of the engine",
        )
        return make_reproducer(
            self.shrunk.failure,
            self.engine,
            reference=self.reference,
            lockstep=report.lockstep,
            neighbour=self.shrunk.change,
            notes=notes,
        )

    @property
    def agreeing(self) -> Reproducer | None:
        """The reproducer with one change, on which both sides agree; None where none is known."""
        if self.shrunk.neighbour is None:
            return None
        notes = (f"both sides agree; they differ without one change: {self.shrunk.change}",)
        return replace(
            self.reproducer,
            problem=self.shrunk.neighbour.problem,
            candidate="",
            step=-1,
            expected=(),
            actual=(),
            message="",
            neighbour="",
            notes=notes,
        )

    @property
    def problem(self) -> Problem:
        """The minimal problem."""
        return self.shrunk.problem

    def save(self, path: str | Path) -> Path:
        """Write the reproducer, and return its path. UserError if it cannot be written."""
        write_reproducer(self.reproducer, Path(path))
        return Path(path)

    def save_pair(self, path: str | Path) -> tuple[Path, ...]:
        """Write the reproducer, and beside it the one on which both sides agree, if one is known; return both paths."""
        written = [self.save(path)]
        if self.agreeing is not None:
            written.append(agreeing_path(written[0]))
            write_reproducer(self.agreeing, written[1])
        return tuple(written)

    def __repr__(self) -> str:
        """Return the first line of the text."""
        return f"<ShrunkRun {str(self).partition(chr(10))[0]}>"

    def __str__(self) -> str:
        """Return the signature, the sizes before and after, and the problem."""
        shrunk, minimum, graph, sliced = self.shrunk, self.problem, self.graph, self.sliced
        is_other = self.engine.name == COMPILED and self.engine != find_engines(self.report)[-1]
        against = "" if self.reference == PLAIN else f", compared with {self.reference}"
        lines = [
            f"{shrunk.failure.signature}   on {self.engine}{against}"
            + (", where it occurs as well" if is_other else ""),
            f"   graph      {_count(graph.train, 'fact')}, {_count(graph.rules, 'rule')}",
            f"   slice      {_count(sliced.facts, 'fact')}, {_count(sliced.rules, 'rule')}"
            f"   ({self.removed:.1%} of the facts removed)",
            f"   minimum    {_count(minimum.facts, 'fact')}, {_count(minimum.rules, 'rule')},"
            f" {_count((*minimum.queries, *minimum.unranked), 'query', 'queries')}"
            f"   in {count_of(shrunk.calls, 'run')}, {shrunk.seconds:.1f} s"
            + ("" if shrunk.is_finished else ", the smallest found before --max-calls or --seconds ran out"),
            "",
        ]
        program = str(minimum).splitlines()
        if len(program) > MOST_SHOWN:
            hidden = len(program) - MOST_SHOWN
            program = [*program[: MOST_SHOWN // 2], f"... {hidden} lines", *program[-MOST_SHOWN // 2 :]]
        lines += [f"   {line}" for line in program]
        if shrunk.change:
            lines += ["", f"both sides agree with one change: {shrunk.change}"]
        return "\n".join(map(make_visible, lines))


def agreeing_path(path: Path) -> Path:
    """Return the path of the problem on which both sides agree, beside that of a reproducer."""
    return path.with_name(f"{path.stem}.agrees{path.suffix}")


@saving_bugs()
def shrink_run(
    verification: Verification,
    divergence: int = 1,
    *,
    engine: EngineSpec | None = None,
    reference: EngineSpec | None = None,
    graph: KnowledgeGraph | None = None,
    max_calls: int = MAX_RUN_CALLS,
    seconds: float = MAX_SECONDS,
    progress: Progress | None = None,
) -> ShrunkRun:
    """Shrink a divergence of a verification to a minimal problem.

    divergence: its number in the report, from 1
    engine:     the engine under test; by default the run's own, eager on the CPU if the divergence shows there as well
    reference:  the engine that it is compared with; by default the run's own
    graph:      by default the run's, loaded again

    UserError if there is no such divergence, the graph or the engine cannot be found again, the graph has changed, or no
    part of the graph diverges in the same way.
    """
    engines = [engine] if engine is not None else find_engines(verification.report)
    expected = find_reference(verification.report) if reference is None else reference
    loaded = load_run_graph(verification.report) if graph is None else graph
    while True:
        spec, *engines = engines
        try:
            maker, make_expected = Sides(spec, expected).find_makers()
            found = shrink_divergence(
                verification,
                loaded,
                maker,
                divergence,
                max_calls,
                seconds,
                reference=make_expected,
                progress=progress,
            )
            return replace(found, engine=spec, reference=expected)
        except NoSlice:
            if not engines:
                raise


def shrink_divergence(
    verification: Verification,
    graph: KnowledgeGraph,
    maker: MakePipeline,
    number: int = 1,
    max_calls: int = MAX_RUN_CALLS,
    seconds: float = MAX_SECONDS,
    *,
    reference: MakePipeline = make_reference,
    progress: Progress | None = None,
) -> ShrunkRun:
    """Shrink a divergence of a verification on the engine that `maker` makes; otherwise like `shrink_run`."""
    report = verification.report
    if not 1 <= number <= len(report.divergences):
        num = len(report.divergences)
        raise UserError(
            f"there is no divergence {number}: the run has {num}",
            where="divergence",
            fix=f"give 1 to {num}" if num else "shrink a run that diverges",
        )
    if graph.program.sha256 != verification.expected.header.program_sha256:
        raise UserError(
            "holds other facts or rules than the run had",
            where=f"graph {graph.name}",
            fix="run `kgverify diff --save` again, and shrink that run",
        )
    divergence = report.divergences[number - 1]
    oracle = Oracle(
        maker,
        sign(report, divergence),
        reference=reference,
        lockstep=report.lockstep,
        max_calls=max_calls,
        seconds=seconds,
    )
    sliced = _find_slice(verification, graph, number, oracle)
    if progress is not None:
        progress("slice", sliced, oracle.calls)
    failure = oracle.judge(sliced)
    assert failure is not None
    shrunk = shrink_with(oracle, failure, progress)
    return ShrunkRun(shrunk=shrunk, sliced=sliced, graph=graph, report=report)


def load_run_graph(report: Report) -> KnowledgeGraph:
    """Load the graph of a saved run as its command did. UserError if it is not found."""
    try:
        words = shlex.split(report.command)
    except ValueError:
        # No command that kgverify wrote.
        words = []
    given: dict[str, Any] = {}
    train: list[str] = []
    for i, word in enumerate(words):
        option, equals, value = word.partition("=")
        name = _FILE_OPTIONS.get(option)
        if name == "skip_rules":
            given[name] = True
        elif name and (equals or i + 1 < len(words)):
            text = value if equals else words[i + 1]
            key, sign, rest = text.partition("=")
            if name == "spec" and sign and key in _FILE_OPTIONS.values():
                name, text = key, rest
            given[name] = text == "true" if name == "skip_rules" else text
            train += [text] * (name == "train")
    given |= {"train": train} if train else {}
    spec = given.pop("spec", None if train else report.run.graph)
    files = [spec, *train, *(given[role] for role in ROLES[1:] if role in given)]
    if STANDARD_INPUT in files:
        # Only where the user types it, and then not twice.
        raise UserError("was read from standard input", where="the run's graph", fix="write it to a file")
    if any(names_url(each) for each in files if each):
        # A file of a stranger could let this machine ask any other.
        raise UserError("was read from a URL", where="the run's graph", fix="name it with --graph")
    return load_graph(spec, **given)


def find_engines(report: Report) -> list[EngineSpec]:
    """Return the ways to run the engine of a saved run, the fastest first. UserError if kgverify cannot make it."""
    recorded = _read_spec(report.engines, report.engines.actual, report.environment.actual, "--engine")
    if recorded.name != COMPILED:
        return [recorded]
    return list(dict.fromkeys((_without_compilation(recorded), recorded)))


def find_reference(report: Report) -> EngineSpec:
    """Return the reference of a saved run; the evaluator runs eagerly. UserError if kgverify cannot make it."""
    recorded = _read_spec(report.engines, report.engines.expected, report.environment.expected, "--reference")
    return _without_compilation(recorded)


def _without_compilation(spec: EngineSpec) -> EngineSpec:
    return spec if spec.mode == PLAIN_MODE else spec._replace(mode=EAGER.mode, device=EAGER.device)


def _read_spec(names: EngineNames, name: str, info: EngineInfo, option: str) -> EngineSpec:
    """Return the specification of an engine from the name by which it was made, if it is known, and its info."""
    # Two traces that are compared, and earlier reports, name neither engine. Beside a name, an engine without one is a
    # class or function that cannot be imported, whatever it calls itself.
    if names == EngineNames() and info.name in (COMPILED, REFERENCE, PLAIN_MODE):
        name = REFERENCE if info.name == REFERENCE else COMPILED
    if not name:
        raise UserError(
            f"kgverify cannot make the engine {info.name!r} again",
            where="the run's engine",
            fix=f"give {option} MODULE:FUNCTION, a function of (program, limits, policy) that returns it",
        )
    return EngineSpec(name, info.mode, info.device, info.faults) if name == COMPILED else EngineSpec(name)


def _find_slice(verification: Verification, graph: KnowledgeGraph, number: int, oracle: Oracle) -> Problem:
    report = verification.report
    divergence = report.divergences[number - 1]
    is_plain = report.policy.name == SHORTEST.name
    policies = (SHORTEST,) if is_plain else (*RANDOM_POLICIES, SHORTEST)
    try:
        rounds = [Slicer(verification, graph, policy).slices(divergence) for policy in policies]
        for attempts in (attempts for attempts in zip(*rounds, strict=True)):
            for of_policy in attempts:
                if (found := oracle.first(of_policy, None)) is None:
                    continue
                if len(found.facts) < len(graph.train):
                    return found
                return shrink_keeping_ids(found, Slicer(verification, graph).touched(divergence), oracle)
    except OutOfBudget:
        if oracle.smallest is not None:
            return oracle.smallest
    raise NoSlice(
        f"no part of the graph was found that diverges in the same way ({oracle.signature}) in {count_of(oracle.calls, 'run')}",
        where=f"divergence {number}",
        fix="choose another divergence of the same cause, or allow more --seconds"
        + ("" if is_plain else "; it may take the weights of the run's policy, which a problem cannot have"),
    )


def _count(things: Sized, one: str, many: str = "") -> str:
    return f"{len(things):,} {one if len(things) == 1 else many or one + 's'}"
