"""A run: the candidates to prove, their program and limits. A pipeline: the engine that proves them."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.align import settle_undecided
from kgverify.comparison.comparable import MemorySource
from kgverify.engines.policy import POLICY_NAMES, SHORTEST, Policy, make_two_tower, read_policy
from kgverify.engines.protocol import Engine, Workload
from kgverify.engines.table import EngineMaker
from kgverify.errors import UserError, suggest
from kgverify.files.code_identity import Code, identify_compilers, identify_engines, identify_own_code
from kgverify.graphs.embedded import list_embedded
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Outcome
from kgverify.program.program import Program
from kgverify.ranking.draw import ALL, Draw, count_candidates
from kgverify.ranking.rank import RANK_TOLERANCE, Rank
from kgverify.trace.model.columns import (
    KNOWLEDGE_GRAPH,
    Candidates,
    CandidateSet,
    Columns,
    Rankings,
    cut_rows,
    starts_of,
)
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import ClauseTexts, Header, InputFile, RunInfo, check_unknown, known_columns
from kgverify.trace.model.header import Part as Share
from kgverify.trace.model.trace import Trace
from kgverify.trace.model.validate import check_columns
from kgverify.version import __version__

MOST: Final = (1 << 31) - 1
"""The maximum number of queries of a run, and of corruptions of each query."""

_SHIPPED = resources.files("kgverify.engines.weights")


@dataclass(frozen=True, eq=False)
class Run:
    """The queries to evaluate, with their graph, limits and policy.

    num_queries:     the number of triples, from the beginning of the split; all if there are fewer
    num_corruptions: the number of corruptions for each query and side; -1 means all
    part:            the part of this process, if several share the queries by their number mod the number of processes
    """

    graph: KnowledgeGraph
    limits: Limits = field(default_factory=Limits)
    policy: Policy = SHORTEST
    split: str = "test"
    num_queries: int = 20
    num_corruptions: int = 50
    seed: int = 0
    part: Share | None = None

    def __post_init__(self) -> None:
        if self.num_queries < 1:
            raise UserError(
                f"expected at least 1 query, found {self.num_queries}", where="queries", fix="give 1 or more"
            )
        for what, num in (("queries", self.num_queries), ("corruptions", self.num_corruptions)):
            if num > MOST:
                raise UserError(
                    f"expected at most {MOST:,} {what}, found more", where=what, fix="give a smaller number"
                )
        if not 0 <= self.seed < 1 << 64:
            raise UserError(
                f"expected a seed from 0 to {(1 << 64) - 1}, found {self.seed}", where="seed", fix="give another seed"
            )

    @property
    def triples(self) -> NDArray[np.int32]:
        """The triples of the split: int32 [n, 3]."""
        return self.graph.queries(self.split)

    @property
    def queries(self) -> range:
        """The indices of the queries of this process."""
        every = range(min(self.num_queries, len(self.triples)))
        return every if self.part is None else every[self.part.rank :: self.part.world]

    @property
    def num_candidates(self) -> NDArray[np.int64]:
        """The number of candidates of each query: int64 [n]. UserError as in `count_candidates`."""
        return count_candidates(self.graph, self.split, self.queries, self.num_corruptions)


def run_of_program(program: Program, limits: Limits, policy: Policy) -> Run:
    """Return a run without queries of a program without a graph, such as that of a trace."""
    graph = KnowledgeGraph("trace", ())
    # Set the cached property, since names alone would number the symbols differently.
    graph.__dict__["program"] = program
    return Run(graph, limits, policy)


def identify_code(engines: Sequence[str]) -> Code:
    """Return the identity of kgverify, its dependencies, the compilers, and the named engines."""
    return identify_own_code() | identify_compilers() | identify_engines(engines)


SCORE_SUMS: Final = "candidates.log_probability"


class Pipeline(NamedTuple):
    """An engine with its own functions for corruptions and ranks, so that they are verified as well.

    engines: the names that identify third-party engines in the pipeline; any other text stands for an unidentifiable engine
    maker:   the maker of the engine, if it is in the table of engines
    ignores_sizes: whether the engine was made without the sizes of the batch
    """

    engine: Engine
    draw: Draw
    rank: Rank
    engines: tuple[str, ...] = ()
    maker: EngineMaker | None = None
    ignores_sizes: bool = False

    def identify_code(self) -> Code:
        """Return the identity of all code that affects the results of the pipeline."""
        built = None if self.maker is None else self.maker.find_built(self.engine.info.mode)
        return identify_code(self.engines) | ({} if built is None else {built.name: built.digest})

    def draw_for(self, run: Run) -> CandidateSet:
        """Draw the candidates of a run."""
        return self.draw(run.graph, run.split, run.queries, run.num_corruptions, run.seed)

    def rank_finite(self, run: Run, candidates: Candidates) -> Rankings | None:
        """Rank the candidates. Return None if a log-probability is not finite and so cannot be ranked."""
        if not np.isfinite(candidates.log_probability).all():
            return None
        return self.rank_in_dialect(run, candidates)

    def rank_in_dialect(self, run: Run, candidates: Candidates) -> Rankings:
        """Rank the candidates. All count as proved if the dialect has no penalty for unproved candidates."""
        if run.limits.dialect.unproved == "log_probability":
            candidates = candidates._replace(outcome=np.full_like(candidates.outcome, Outcome.PROVED))
        return self.rank(candidates, run.triples, RANK_TOLERANCE)


def rank_alike(run: Run, pipelines: Sequence[Pipeline], traces: Sequence[Trace]) -> tuple[Trace, ...]:
    """Rank the traces of two sides by data that both have: only by outcomes if one side has no scores."""
    if not any(SCORE_SUMS in trace.header.engine.unknown for trace in traces):
        return tuple(traces)
    sources = settle_undecided((MemorySource(traces[0]), MemorySource(traces[1])))
    ranked = []
    for pipeline, trace, source in zip(pipelines, traces, sources, strict=True):
        candidates = source.shell(has_candidates=True).columns.candidates
        candidates = candidates._replace(log_probability=np.zeros_like(candidates.log_probability))
        columns = trace.columns._replace(candidates=candidates)
        rankings = pipeline.rank_finite(run, candidates)
        ranked.append(replace(trace, columns=columns, rankings=rankings, fields=trace.fields - {SCORE_SUMS}))
    return tuple(ranked)


def describe_ranking(traces: Sequence[Trace]) -> list[str]:
    """Return a note if a side has no scores, so that both are ranked only by outcomes."""
    named = (trace.header.engine.name for trace in traces if SCORE_SUMS in trace.header.engine.unknown)
    names = list(dict.fromkeys(named))
    if not names:
        return []
    verb = "give" if len(names) > 1 else "gives"
    return [f"{' and '.join(names)} {verb} no scores: both sides are ranked by PROVED or not alone"]


def load_policy(spec: str, graph: KnowledgeGraph, limits: Limits, seed: int) -> Policy:
    """Load a policy: `shortest`, `two_tower` (random, from the seed), `trained` (shipped), or a safetensors file.

    UserError for anything else, and for `trained` if kgverify ships no weights for the graph.
    """
    if spec == "shortest":
        return SHORTEST
    if spec == "two_tower":
        if seed < 0:
            raise UserError(f"expected a seed of 0 or more, found {seed}", where="seed", fix="give another seed")
        return make_two_tower(graph.program, limits, seed=seed)
    if spec == "trained":
        return _read_shipped(graph)
    if spec.endswith(".safetensors") or Path(spec).exists():
        return read_policy(Path(spec))
    specs = (*POLICY_NAMES, "trained")
    raise UserError(
        f"unknown policy {spec!r}",
        where="policy",
        fix=suggest(spec, specs)
        or f"choose {' or '.join(specs)}, or give a safetensors file; in Python, also a function",
    )


def _read_shipped(graph: KnowledgeGraph) -> Policy:
    names = [name for name in list_embedded() if (_SHIPPED / f"{name}.safetensors").is_file()]
    for name in names:
        if load_graph(name).program.sha256 == graph.program.sha256:
            with resources.as_file(_SHIPPED / f"{name}.safetensors") as path:
                return read_policy(path)
    raise UserError(
        f"kgverify ships no trained weights for the facts and rules of {graph.name!r}, only for {', '.join(names)}",
        where="policy trained",
        fix=f"kgverify train --graph {shlex.quote(graph.name)} -o trained.safetensors, then --policy trained.safetensors",
    )


def reference_triples(run: Run) -> NDArray[np.int32] | None:
    """Return the triples that tell the reference the positives; None if its dialect treats corruptions the same way."""
    return run.triples if run.graph.has_splits and run.limits.dialect.exclusion == "positives_only" else None


def reference_pipeline(run: Run) -> Pipeline:
    """Build the pipeline of the reference prover."""
    from kgverify.engines.reference.engine import ReferenceEngine

    return with_reference_ranking(
        ReferenceEngine(run.graph.program, run.limits, run.policy, triples=reference_triples(run))
    )


def with_reference_ranking(engine: Engine) -> Pipeline:
    """Return an engine's pipeline with the reference's corruptions and ranks, which do not share kgverify's code."""
    from kgverify.engines.reference import ranking

    return Pipeline(engine, ranking.draw_candidates, ranking.rank_candidates)


def build_header(run: Run, engine: Engine, level: str = "steps") -> Header:
    """Return the header of a trace of this run by this engine."""
    program, info = run.graph.program, engine.info
    check_unknown(info)
    if odd := sorted({*info.unknown} - KNOWLEDGE_GRAPH.compared_names):
        raise UserError(
            f"EngineInfo.unknown names {odd[0]!r}, which is not a column",
            where=f"engine {info.name}",
            fix=suggest(odd[0], KNOWLEDGE_GRAPH.compared_names) or "name it as docs/traces.md does: steps.choice",
        )
    return Header(
        engine=info,
        limits=run.limits,
        policy=run.policy.info,
        program_sha256=program.sha256,
        run=RunInfo(
            graph=run.graph.name,
            split=run.split,
            # The program of a trace or of a watched engine has no queries.
            num_queries=min(run.num_queries, len(run.triples)) if run.graph.has_splits else 0,
            num_corruptions=run.num_corruptions,
            seed=run.seed,
            rank_tolerance=RANK_TOLERANCE,
        ),
        inputs=tuple(InputFile(each.name, each.sha256) for each in run.graph.files),
        clauses=ClauseTexts(
            rules=program.rule_texts,
            rule_sources=program.rule_sources,
            facts_file=program.facts_file,
        ),
        creator=f"kgverify {__version__}",
        level=level,
        part=run.part,
    )


def build_trace(run: Run, engine: Engine, columns: Columns, rankings: Rankings | None) -> Trace:
    """Build a trace in memory with every column that an engine knows. UserError for inconsistent columns."""
    program = run.graph.program
    where = f"engine {engine.info.name}"
    check_columns(columns, where, num_rules=len(program.rules), num_facts=len(program.facts))
    fields = known_columns(engine.info, run.limits)
    return Trace(
        header=build_header(run, engine),
        symbols=program.symbols,
        columns=columns,
        digests=compute_digests(columns),
        rankings=rankings,
        facts=program.facts,
        fact_lines=program.fact_lines,
        fields=fields,
        is_complete=True,
        source="",
        rules=program.rules,
    )


SIZES: Final = {"cuda": (1 << 17, 1 << 20), "cpu": (1 << 13, 1 << 16)}
"""The minimum and maximum default size of a part, in candidates. It is large on a GPU, whose slots become empty at the end of
each part."""

RANKED_SIZES: Final = {"cuda": (1 << 25, 1 << 25), "cpu": SIZES["cpu"]}
"""The same sizes for ranks among all corruptions without steps: few of these candidates are proved."""

LEAST_WORK: Final = 5 << 21
"""The number of rows in the least model's joins that every run can afford: 0.5 s on a CPU."""

WORK_OF_CANDIDATE: Final = {"shared": 2, "cpu": 256, "cuda": 4}
"""The additional rows for each candidate: a tenth of the time to prove a candidate.

One core takes 80 µs or more. An engine that shares derivations between candidates takes 0.3 to 3 µs.
"""

WORK_OF_TORCH: Final = 48 << 20
"""The number of rows joined in the 2 s that importing torch takes. The native evaluator does not need torch."""

_MIN_PARTS: Final = 64
"""The minimum number of parts, if the sizes allow it, so that several GPUs end at about the same time."""


class Part(NamedTuple):
    """Consecutive queries: their indices, and the number of their candidates."""

    number: int
    queries: range
    num_candidates: int

    @property
    def name(self) -> str:
        """The name of the part's file."""
        return f"part-{self.number:06d}.npz"


class Plan(NamedTuple):
    """The parts of a run.

    size:      the maximum number of candidates in a part; a query with more candidates is a separate part
    rank_only: whether only ranks are computed
    """

    size: int
    parts: tuple[Part, ...]
    rank_only: bool = False


def plan_parts(run: Run, device: str, size: int | None = None, *, rank_only: bool = False) -> Plan:
    """Group consecutive queries with at most `size` candidates together.

    The default of `size` depends only on the number of the run's candidates and on the kind of device.
    """
    queries = run.queries
    counts = run.num_candidates
    if size is None:
        sizes = RANKED_SIZES if rank_only and run.num_corruptions == ALL else SIZES
        least, most = sizes.get(device, sizes["cpu"])
        size = int(np.clip(int(counts.sum()) // _MIN_PARTS, least, most))
    starts = starts_of(counts)
    parts: list[Part] = []
    for begin, end in cut_rows(starts, size):
        parts.append(Part(len(parts), queries[begin:end], int(starts[end] - starts[begin])))
    return Plan(size, tuple(parts), rank_only)


def choose_most_work(run: Run, engine: Engine) -> int:
    """Return the number of rows that a run's least model may join: a small share of the time to prove the candidates."""
    device = "shared" if getattr(engine, "shares_derivations", False) else engine.info.device
    least = LEAST_WORK if "torch" in sys.modules else LEAST_WORK - WORK_OF_TORCH
    return least + WORK_OF_CANDIDATE.get(device, WORK_OF_CANDIDATE["cpu"]) * int(run.num_candidates.sum())


def describe_work(run: Run, size: int | None = None, *, rank_only: bool = False, records: bool = False) -> Workload:
    """Return the workload of a run for its engine: the number of candidates in the largest part."""

    def count(device: str) -> int:
        return max(part.num_candidates for part in plan_parts(run, device, size, rank_only=rank_only).parts)

    return Workload(count, int(run.num_candidates.sum()), records)
