"""kgverify: find the step where a compiled knowledge-graph prover stops agreeing with a reference prover.

    >>> import kgverify as kv
    >>> report = kv.verify("countries", kv.Evaluator(mode="eager"), queries=2, corruptions=5)
    >>> report.verdict.value
    'AGREE'

Everything public is here, and in `kgverify.strategies`, `kgverify.laws` and `kgverify.dialects`. Other modules
are internal: they may change without notice. `import kgverify` loads neither torch nor h5py nor numpy; each name loads what it
needs.
"""

from kgverify.version import __version__ as __version__

TYPE_CHECKING = False
"""The constant of `typing`, whose import takes longer than all else before the command line can handle Ctrl-C."""
if TYPE_CHECKING:
    from kgverify.api.agreement import assert_agrees
    from kgverify.api.compare import compare
    from kgverify.api.conformance import assert_equivalent
    from kgverify.api.evaluate import EvaluationOptions, evaluate
    from kgverify.api.fuzz import FuzzOptions, fuzz
    from kgverify.api.open_trace import RecordedTrace as RecordedTrace
    from kgverify.api.open_trace import open_trace
    from kgverify.api.record import RecordingOptions, record
    from kgverify.api.replay import replay
    from kgverify.api.shrink import shrink
    from kgverify.api.verify import verify
    from kgverify.comparison.equality import Equality
    from kgverify.comparison.result import Divergence as Divergence
    from kgverify.comparison.result import Verdict
    from kgverify.conformance import Conformance as Conformance
    from kgverify.conformance import NotConforming as NotConforming
    from kgverify.conformance import check_engine
    from kgverify.engines.adapters.encoding import Encoding
    from kgverify.engines.adapters.outcome import OutcomeEngine
    from kgverify.engines.adapters.staged import Clause as Clause
    from kgverify.engines.adapters.staged import StagedEngine, engine_of
    from kgverify.engines.adapters.stepwise import StepwiseEngine
    from kgverify.engines.adapters.tensor import TensorEngine
    from kgverify.engines.policy import Policy as Policy
    from kgverify.engines.protocol import Engine
    from kgverify.engines.protocol import Positions as Positions
    from kgverify.engines.sizes import Sizes as Sizes
    from kgverify.engines.sizes import Workload as Workload
    from kgverify.engines.table import EngineMaker as EngineMaker
    from kgverify.errors import InternalError as InternalError
    from kgverify.errors import KgverifyError as KgverifyError
    from kgverify.errors import MissingDependency as MissingDependency
    from kgverify.errors import UserError
    from kgverify.graphs.formats.ids import Dataset as Dataset
    from kgverify.graphs.formats.ids import TriplesFactory as TriplesFactory
    from kgverify.graphs.formats.reading import ReadingOptions as ReadingOptions
    from kgverify.graphs.graph import GraphFile as GraphFile
    from kgverify.graphs.graph import KnowledgeGraph
    from kgverify.graphs.load import load_graph
    from kgverify.laws.law import Law as Law
    from kgverify.laws.replay import Replay as Replay
    from kgverify.program.atoms import NamedAtom as NamedAtom
    from kgverify.program.dialect import Dialect as Dialect
    from kgverify.program.limits import DeclaredLimits as DeclaredLimits
    from kgverify.program.limits import Limits
    from kgverify.program.outcomes import Side as Side
    from kgverify.program.program import NamedRule as NamedRule
    from kgverify.program.program import Program as Program
    from kgverify.program.program import Rule as Rule
    from kgverify.program.program import Symbols as Symbols
    from kgverify.program.stages import Stage
    from kgverify.prover.evaluator import Evaluator
    from kgverify.report.content import ComparedTraces as ComparedTraces
    from kgverify.report.content import EngineNames as EngineNames
    from kgverify.report.evaluation import EvaluationReport as EvaluationReport
    from kgverify.report.report import Report
    from kgverify.runs.engine_makers import EngineSpec as EngineSpec
    from kgverify.runs.job import EngineLike as EngineLike
    from kgverify.runs.job import Engines as Engines
    from kgverify.runs.job import GraphLike as GraphLike
    from kgverify.runs.job import Job, Queries, Reference
    from kgverify.runs.job import Proofs as Proofs
    from kgverify.runs.job import Source as Source
    from kgverify.runs.run import Run as Run
    from kgverify.step.resolvent import Resolvent as Resolvent
    from kgverify.step.resolvent import Taken as Taken
    from kgverify.testing.campaigns.result import CampaignResult as CampaignResult
    from kgverify.testing.campaigns.result import Tally as Tally
    from kgverify.testing.problems.problem import GroupKey as GroupKey
    from kgverify.testing.problems.problem import PolicySpec as PolicySpec
    from kgverify.testing.problems.problem import Problem
    from kgverify.testing.problems.problem import Spread as Spread
    from kgverify.testing.reproducers.reproducer import Reproducer as Reproducer
    from kgverify.testing.shrinking.shrink_run import ShrunkRun as ShrunkRun
    from kgverify.trace.files.manifest import Part as Part
    from kgverify.trace.model.columns import Candidates as Candidates
    from kgverify.trace.model.columns import CandidateSet as CandidateSet
    from kgverify.trace.model.columns import Columns as Columns
    from kgverify.trace.model.columns import Rankings as Rankings
    from kgverify.trace.model.header import EngineInfo
    from kgverify.trace.model.header import Header as Header
    from kgverify.trace.model.header import PolicyInfo as PolicyInfo
    from kgverify.trace.model.header import RunInfo as RunInfo
    from kgverify.trace.model.levels import TraceLevel as TraceLevel
    from kgverify.trace.model.stage_items import StageOutputs as StageOutputs
    from kgverify.trace.model.trace import Trace as Trace
    from kgverify.trace.model.trace import Unknown as Unknown
    from kgverify.trace.read.trace_file import TraceFile as TraceFile
    from kgverify.trace.write.encode import Clauses as Clauses
    from kgverify.trace.write.loop_writer import LoopWriter
    from kgverify.trace.write.writer import Durability as Durability
    from kgverify.trace.write.writer import Storage as Storage
    from kgverify.trace.write.writer import TraceWriter
    from kgverify.verification.record import Recording as Recording

__all__ = [
    "Encoding",
    "Engine",
    "EngineInfo",
    "Equality",
    "EvaluationOptions",
    "Evaluator",
    "FuzzOptions",
    "Job",
    "KnowledgeGraph",
    "Limits",
    "LoopWriter",
    "OutcomeEngine",
    "Problem",
    "Queries",
    "RecordingOptions",
    "Reference",
    "Report",
    "Stage",
    "StagedEngine",
    "StepwiseEngine",
    "TensorEngine",
    "TraceWriter",
    "UserError",
    "Verdict",
    "assert_agrees",
    "assert_equivalent",
    "check_engine",
    "compare",
    "engine_of",
    "evaluate",
    "fuzz",
    "load_graph",
    "open_trace",
    "record",
    "replay",
    "shrink",
    "verify",
]

if not TYPE_CHECKING:
    _HOMES = {
        "Encoding": "engines.adapters.encoding",
        "Engine": "engines.protocol",
        "EngineInfo": "trace.model.header",
        "Equality": "comparison.equality",
        "EvaluationOptions": "api.evaluate",
        "Evaluator": "prover.evaluator",
        "FuzzOptions": "api.fuzz",
        "Job": "runs.job",
        "KnowledgeGraph": "graphs.graph",
        "Limits": "program.limits",
        "LoopWriter": "trace.write.loop_writer",
        "OutcomeEngine": "engines.adapters.outcome",
        "Problem": "testing.problems.problem",
        "Queries": "runs.job",
        "RecordingOptions": "api.record",
        "Reference": "runs.job",
        "Report": "report.report",
        "Stage": "program.stages",
        "StagedEngine": "engines.adapters.staged",
        "StepwiseEngine": "engines.adapters.stepwise",
        "TensorEngine": "engines.adapters.tensor",
        "TraceWriter": "trace.write.writer",
        "UserError": "errors",
        "Verdict": "comparison.result",
        "assert_agrees": "api.agreement",
        "assert_equivalent": "api.conformance",
        "check_engine": "conformance",
        "compare": "api.compare",
        "engine_of": "engines.adapters.staged",
        "evaluate": "api.evaluate",
        "fuzz": "api.fuzz",
        "load_graph": "graphs.load",
        "open_trace": "api.open_trace",
        "record": "api.record",
        "replay": "api.replay",
        "shrink": "api.shrink",
        "verify": "api.verify",
    }
    # The types of the signatures, by their modules.
    _TYPES = {
        "api.open_trace": "RecordedTrace",
        "comparison.result": "Divergence",
        "conformance": "Conformance NotConforming",
        "engines.adapters.staged": "Clause",
        "step.resolvent": "Resolvent Taken",
        "engines.policy": "Policy",
        "engines.protocol": "Positions",
        "engines.sizes": "Sizes Workload",
        "engines.table": "EngineMaker",
        "errors": "InternalError KgverifyError MissingDependency",
        "graphs.formats.ids": "Dataset TriplesFactory",
        "graphs.formats.reading": "ReadingOptions",
        "graphs.graph": "GraphFile",
        "laws.law": "Law",
        "laws.replay": "Replay",
        "program.atoms": "NamedAtom",
        "program.dialect": "Dialect",
        "program.limits": "DeclaredLimits",
        "program.outcomes": "Side",
        "program.program": "NamedRule Program Rule Symbols",
        "report.content": "ComparedTraces EngineNames",
        "report.evaluation": "EvaluationReport",
        "runs.engine_makers": "EngineSpec",
        "runs.job": "EngineLike Engines GraphLike Proofs Source",
        "runs.run": "Run",
        "testing.campaigns.result": "CampaignResult Tally",
        "testing.problems.problem": "GroupKey PolicySpec Spread",
        "testing.reproducers.reproducer": "Reproducer",
        "testing.shrinking.shrink_run": "ShrunkRun",
        "trace.files.manifest": "Part",
        "trace.model.columns": "CandidateSet Candidates Columns Rankings",
        "trace.model.header": "Header PolicyInfo RunInfo",
        "trace.model.levels": "TraceLevel",
        "trace.model.stage_items": "StageOutputs",
        "trace.model.trace": "Trace Unknown",
        "trace.read.trace_file": "TraceFile",
        "trace.write.encode": "Clauses",
        "trace.write.writer": "Durability Storage",
        "verification.record": "Recording",
    }
    _HOMES |= {name: home for home, names in _TYPES.items() for name in names.split()}

    def __getattr__(name):
        from importlib import import_module

        if name in ("audit", "dialects", "laws", "strategies"):
            return import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found

    def __dir__():
        return sorted({*globals(), *_HOMES})
