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
    from kgverify.api.open_trace import open_trace
    from kgverify.api.record import RecordingOptions, record
    from kgverify.api.replay import replay
    from kgverify.api.shrink import shrink
    from kgverify.api.verify import verify
    from kgverify.comparison.equality import Equality
    from kgverify.comparison.result import Verdict
    from kgverify.conformance import check_engine
    from kgverify.engines.adapters.encoding import Encoding
    from kgverify.engines.adapters.outcome import OutcomeEngine
    from kgverify.engines.adapters.staged import StagedEngine, engine_of
    from kgverify.engines.adapters.stepwise import StepwiseEngine
    from kgverify.engines.adapters.tensor import TensorEngine
    from kgverify.engines.protocol import Engine
    from kgverify.errors import UserError
    from kgverify.graphs.graph import KnowledgeGraph
    from kgverify.graphs.load import load_graph
    from kgverify.program.limits import Limits
    from kgverify.program.stages import Stage
    from kgverify.prover.evaluator import Evaluator
    from kgverify.report.report import Report
    from kgverify.runs.job import Job, Queries, Reference
    from kgverify.testing.problems.problem import Problem
    from kgverify.trace.model.header import EngineInfo
    from kgverify.trace.write.loop_writer import LoopWriter
    from kgverify.trace.write.writer import TraceWriter

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

    def __getattr__(name):
        from importlib import import_module

        if name in ("audit", "dialects", "laws", "strategies"):
            return import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
