"""The problems that an engine supports."""

from collections.abc import Sequence

from kgverify.engines.load_engine import pass_on
from kgverify.engines.policy import SHORTEST
from kgverify.errors import UserError
from kgverify.program.limits import Limits
from kgverify.runs.engine_makers import MakePipeline
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import PolicySpec, Problem
from kgverify.trace.model.header import EngineInfo


def find_supported(make_pipeline: MakePipeline, problems: Sequence[Problem]) -> list[int]:
    """Return the indices of the problems that an engine supports, which is made once for each policy with each limits.

    An engine does not support these if it raises NotImplementedError or, except for the policy `shortest`, UserError.
    """
    is_supported: dict[tuple[PolicySpec, Limits], bool] = {}
    for problem in problems:
        settings = problem.policy, problem.limits
        if settings in is_supported:
            continue
        is_supported[settings] = True
        try:
            make_once(make_pipeline, problem)
        except NotImplementedError:
            is_supported[settings] = False
        except BaseException as error:
            pass_on(error)
            # Any other error is a crash, which the problems show.
            if isinstance(error, UserError):
                is_supported[settings] = problem.policy.name == SHORTEST.name
    return [i for i, problem in enumerate(problems) if is_supported[problem.policy, problem.limits]]


def make_once(make_pipeline: MakePipeline, problem: Problem) -> EngineInfo:
    """Make an engine for a problem, and return its info, or raise what it raises."""
    merged = merge([problem])
    return make_pipeline(merged.run, merged.sizes).engine.info
