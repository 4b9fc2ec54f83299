"""A trace, a derivation or a single step with names, as data for `--json` and for the terminal."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NotRequired, TypedDict

from rich.console import Group, RenderableType
from rich.table import Table

from kgverify.comparison.locate import render_output
from kgverify.comparison.step_view import Names, StepReader, StepView, outcome_name, side_name
from kgverify.errors import UserError, count_of, use_words
from kgverify.escaping import make_visible
from kgverify.program.limits import DeclaredLimits
from kgverify.report.render.screen import FittedTable, Text
from kgverify.trace.model.columns import Candidates
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import EngineInfo, PolicyInfo, RunInfo
from kgverify.trace.model.schema import RECORD_AGAIN, SEQUENCE
from kgverify.trace.model.stage_items import StageOutputs, StageReader
from kgverify.trace.model.trace import Trace
from kgverify.trace.model.validate import check_stages
from kgverify.trace.read.trace_file import TraceFile

MOST_CANDIDATES = 20
MOST_RESOLVENTS = 40
MOST_READ: Final = 16 << 20
"""The largest trace, in bytes of memory, that is read as a whole."""


class ShownCandidate(TypedDict):
    """A candidate of a trace. A value is None if the trace does not contain it."""

    candidate: int
    atom: str
    query: int
    side: str
    outcome: str | None
    is_limited: bool | None
    log_probability: float | None
    num_steps: int


class ShownResolvent(TypedDict):
    """A resolvent of a step: its goal, and the clause and the score, None if the trace does not contain them."""

    goal: str
    clause: str | None
    score: float | None


class ShownStep(TypedDict):
    """A step of a trace. A value is None if the trace does not contain it; `stages` are the outputs of the stages."""

    step: int
    depth: int | None
    goal: list[str]
    resolvents: list[ShownResolvent]
    dropped_atoms: int | None
    dropped_resolvents: int | None
    choice: int | None
    outcome: str | None
    stages: NotRequired[dict[str, list[str]]]


class ShownDerivation(ShownCandidate):
    """A candidate with its steps: `kgverify show TRACE --candidate N`."""

    steps: list[ShownStep]


class ShownCandidateStep(ShownCandidate, ShownStep):
    """A step with its candidate, whose outcome it has: `kgverify show TRACE --candidate N --step N`."""


class ShownTrace(TypedDict):
    """The header, the sizes and the candidates of a trace: `kgverify show TRACE`."""

    engine: EngineInfo
    run: RunInfo
    limits: DeclaredLimits
    policy: PolicyInfo
    is_complete: bool
    num_candidates: int
    num_steps: int
    num_resolvents: int
    root_digest: str
    candidates: NotRequired[list[ShownCandidate]]


class TraceView:
    """A view of the candidates and steps of a trace. UserError for a candidate or a step that it does not have."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.names = Names(trace)
        self._readers = StepReader(trace.columns), StageReader(trace.columns)

    @property
    def num_candidates(self) -> int:
        """The number of candidates."""
        return len(self.trace.columns.candidates.query)

    def sizes(self) -> tuple[int, int, int]:
        """Return the number of steps and of resolvents, and the root digest."""
        return len(self.trace.columns.steps.depth), len(self.trace.columns.resolvents.kind), self.trace.root

    def _find(self, candidate: int) -> tuple[Candidates, int]:
        """Return the columns that contain a candidate, and its row there."""
        return self.trace.columns.candidates, candidate

    def _read(self, candidate: int, step: int) -> tuple[StepView, StageOutputs]:
        """Return a step, and the outputs of its stages."""
        steps, stages = self._readers
        row = steps.first_step[candidate] + step
        return steps.read(row), stages.read(row)

    def candidate(self, candidate: int) -> ShownCandidate:
        """Return a candidate and its outcome."""
        if not 0 <= candidate < self.num_candidates:
            raise UserError(
                f"expected a candidate from 0 to {self.num_candidates - 1}, found {candidate}"
                if self.num_candidates
                else "holds no candidates",
                where=self.trace.source,
                fix="choose a candidate that the trace has" if self.num_candidates else "record some candidates",
            )
        c, row = self._find(candidate)

        def known(name: str, show: Callable[[Any], Any]) -> Any:
            return show(getattr(c, name)[row].item()) if f"candidates.{name}" in self.trace.fields else None

        return {
            "candidate": candidate,
            "atom": self.names.atom(tuple(c.atom[row].tolist())),
            "query": int(c.query[row]),
            "side": side_name(int(c.side[row])),
            "outcome": known("outcome", outcome_name),
            "is_limited": known("is_limited", bool),
            "log_probability": known("log_probability", float),
            "num_steps": int(c.num_steps[row]),
        }

    def step(self, candidate: int, step: int) -> ShownStep:
        """Return a step with names, and with the outputs of its stages if the trace contains them."""
        num_steps = self.candidate(candidate)["num_steps"]
        if not 0 <= step < num_steps:
            raise UserError(
                f"candidate {candidate} has {count_of(num_steps, 'step')}, expected a step from 0 to {num_steps - 1},"
                f" found {step}"
                if num_steps
                else f"candidate {candidate} has no steps",
                where=self.trace.source,
                fix="choose a step that the candidate has" if num_steps else "leave out the step",
            )
        level = self.trace.header.level
        if "steps.goal_atoms" not in self.trace.fields:
            raise UserError(
                f"the trace is of level {level!r}, which keeps no goals: there is no step to show",
                where=self.trace.source,
                fix="record it again at level steps",
            )
        view, outputs = self._read(candidate, step)
        stages = {stage.value: list(render_output(stage, given, self.names)) for stage, given in outputs.items()}

        def known(name: str, value: Any) -> Any:
            return value if name in self.trace.fields else None

        shown: ShownStep = {
            "step": step,
            "depth": known("steps.depth", view.depth),
            "goal": [self.names.atom(atom) for atom in view.goal],
            "resolvents": [
                {
                    "goal": self.names.goal(r.atoms, r.kind),
                    "clause": known("resolvents.origin", self.names.clause(*r.clause)),
                    "score": known("resolvents.score", r.score),
                }
                for r in view.resolvents
            ],
            "dropped_atoms": known("steps.dropped_atoms", view.dropped_atoms),
            "dropped_resolvents": known("steps.dropped_resolvents", view.dropped_resolvents),
            "choice": known("steps.choice", view.choice),
            "outcome": known("steps.outcome", outcome_name(view.outcome)),
        }
        if stages:
            shown["stages"] = stages
        return shown

    def candidate_step(self, candidate: int, step: int) -> ShownCandidateStep:
        """Return a step with its candidate."""
        return {**self.candidate(candidate), **self.step(candidate, step)}

    def derivation(self, candidate: int) -> ShownDerivation:
        """Return a candidate with its steps."""
        found = self.candidate(candidate)
        return {**found, "steps": [self.step(candidate, step) for step in range(found["num_steps"])]}

    def summary(self) -> ShownTrace:
        """Return the header and the sizes."""
        header = self.trace.header
        num_steps, num_resolvents, root = self.sizes()
        return {
            "engine": header.engine,
            "run": header.run,
            "limits": header.limits,
            "policy": header.policy,
            "is_complete": self.trace.is_complete,
            "num_candidates": self.num_candidates,
            "num_steps": num_steps,
            "num_resolvents": num_resolvents,
            "root_digest": f"{root:016x}",
        }


class LazyTraceView(TraceView):
    """A view of a trace that stays on disk. It reads only the requested parts, and checks them by their digests."""

    def __init__(self, trace: TraceFile) -> None:
        super().__init__(trace.metadata_only())
        self._mapped = trace

    @property
    def num_candidates(self) -> int:
        """The number of candidates."""
        return self._mapped.num_candidates

    def sizes(self) -> tuple[int, int, int]:
        """Return the number of steps and of resolvents, and the root of the stored digests."""
        return self._mapped.num_steps, self._mapped.num_rows("resolvents"), self._mapped.compute_root()

    def _find(self, candidate: int) -> tuple[Candidates, int]:
        return self._mapped.candidate_columns(candidate, candidate + 1), 0

    def _read(self, candidate: int, step: int) -> tuple[StepView, StageOutputs]:
        """Return a step, and the outputs of its stages, after checking that they are valid."""
        columns, stored = self._mapped.read_step(candidate, step)
        expected = compute_digests(columns).sequence
        if stored is not None and expected.tolist() != stored.tolist():
            raise UserError(
                f"step {step} of candidate {candidate} has digest {int(stored[0]):016x},"
                f" expected {int(expected[0]):016x} from its columns",
                where=f"{self.trace.source}:{SEQUENCE}",
                fix=RECORD_AGAIN,
            )
        if "stages.told" not in self.trace.fields:
            return StepReader(columns).read(0), {}
        check_stages(columns.stages, self.trace.source)
        return StepReader(columns).read(0), StageReader(columns).read(0)


def view_trace(trace: TraceFile) -> TraceView:
    """Read and check a small trace as a whole; leave a large one on disk, and check only the steps that are shown."""
    num_bytes = 0
    for file in trace.files:
        num_bytes += sum(stored.num_bytes for stored in file.stored.values())
        if num_bytes > MOST_READ:
            return LazyTraceView(trace)
    return TraceView(trace.load())


def render_trace(view: TraceView) -> RenderableType:
    """Render the header and the first candidates of a trace."""
    summary = view.summary()
    header = view.trace.header
    engine = header.engine
    lines = Text(make_visible(engine.name), style="bold")
    lines.append(
        f"   {make_visible(', '.join(filter(None, (engine.mode, engine.device, engine.precision, *engine.faults))))}\n"
        f"  graph {make_visible(header.run.graph) or '?'}, {count_of(header.run.num_queries, 'query')} of"
        f" {make_visible(header.run.split)}, policy {make_visible(header.policy.name) or '?'}\n"
        f"  {summary['num_candidates']:,} candidates, {summary['num_steps']:,} steps,"
        f" {summary['num_resolvents']:,} resolvents, root digest {summary['root_digest']}"
        + ("" if summary["is_complete"] else "\n  INCOMPLETE: the recording did not finish"),
        style="default",
    )
    titles = "candidate", "atom", "query", "side", "outcome", "steps", "log-probability"
    rows = []
    for i in range(min(MOST_CANDIDATES, view.num_candidates)):
        c = view.candidate(i)
        outcome = (c["outcome"] or "?") + (" limited" if c["is_limited"] else "")
        number = _number(c["log_probability"])
        rows.append((str(i), c["atom"], str(c["query"]), c["side"], outcome, str(c["num_steps"]), number))
    more = view.num_candidates - MOST_CANDIDATES
    rest = [Text(f"... and {more:,} more; {use_words('--candidate N shows one')}", style="dim")] if more > 0 else []
    return Group(lines, _fit(titles, rows), *rest)


def _fit(titles: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> FittedTable:
    return FittedTable(Table(*titles, box=None, padding=(0, 2, 0, 0)), rows, styles=styles)


def _number(value: float | None) -> str:
    """Render a sum of log-probabilities, which not every trace contains."""
    return "not recorded" if value is None else f"{value:.4f}"


def render_derivation(c: ShownDerivation) -> RenderableType:
    """Render the goals of a candidate from its data, which includes its `steps`."""
    title = Text(f"candidate {c['candidate']}: {make_visible(c['atom'])}", style="bold")
    title.append(
        f"   query {c['query']}, {c['side']} side, {c['outcome'] or '?'}{', limited' if c['is_limited'] else ''},"
        f" log-probability {_number(c['log_probability'])}",
        style="default",
    )
    rows = []
    for i, step in enumerate(c["steps"]):
        choice = -1 if step["choice"] is None else step["choice"]
        chosen = step["resolvents"][choice] if 0 <= choice < len(step["resolvents"]) else {"clause": "?", "goal": "?"}
        by = chosen["clause"] or chosen["goal"]
        rows.append((str(i), ", ".join(step["goal"]), str(len(step["resolvents"])), by))
    return Group(title, _fit(("step", "goal", "resolvents", "chosen by"), rows))


def render_step(s: ShownCandidateStep) -> RenderableType:
    """Render one step from its data and its candidate's: goal, resolvents with clauses and scores, choice, outcome."""
    title = Text(f"candidate {s['candidate']}: {make_visible(s['atom'])}   step {s['step']}", style="bold")
    goal = Text("goal  ", style="dim")
    goal.append(make_visible(", ".join(s["goal"])), style="default")
    shown = s["resolvents"][:MOST_RESOLVENTS]
    rows = [
        (
            f"{'->' if i == s['choice'] else ''} {i}",
            "?" if resolvent["score"] is None else f"{resolvent['score']:.6g}",
            resolvent["goal"],
            "?" if resolvent["clause"] is None else resolvent["clause"],
        )
        for i, resolvent in enumerate(shown)
    ]
    styles = ["bold" if i == s["choice"] else "" for i in range(len(shown))]
    fitted = _fit(("", "score", "resolvent", "by"), rows, styles)
    more = len(s["resolvents"]) - MOST_RESOLVENTS
    rest = [Text(_describe_rest(more), style="dim")] if more > 0 else []
    ends = s["choice"], s["outcome"], s["dropped_atoms"], s["dropped_resolvents"]
    choice, outcome, *dropped = ("?" if each is None else each for each in ends)
    end = Text(f"chosen {choice}, then {outcome}; dropped {dropped[0]} by max_atoms, {dropped[1]} by max_resolvents")
    return Group(title, goal, fitted, *rest, end, *_render_stages(s.get("stages", {})))


def _describe_rest(num: int) -> str:
    return f"... and {num} more; {use_words('--json has them all')}"


def _render_stages(stages: dict[str, list[str]]) -> Iterator[RenderableType]:
    if not stages:
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("stage")
    table.add_column("output", overflow="fold")
    for stage, lines in stages.items():
        shown = [make_visible(line) for line in lines[:MOST_RESOLVENTS]]
        if (more := len(lines) - MOST_RESOLVENTS) > 0:
            shown.append(_describe_rest(more))
        table.add_row(stage, Text("\n".join(shown) or "nothing"))
    yield Text()
    yield table
